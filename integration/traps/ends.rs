//! The publishing connection ends, with any publishes open on any channels: the end is noticed and reported
//! within its limit, each outcome is reported once, the next connection continues, and a culprit is found on
//! a separate connection.

use crate::fake_broker::harness::*;
use crate::fake_broker::{idle, FakeBroker, Peer, Published, Script, Seen};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use tidegate_amqp::{BrokerEvent, Event};
use tidegate_harness::{seed, Moments};
use tidegate_types::{Batch, Dead, Outcome, Reason};

const FRAME: &str = "FRAME_ERROR - frame too large";
const CRASH: &str = "INTERNAL_ERROR";
/// The fake broker cannot end earlier; nothing takes longer than the wait for the close reason (250 ms), except on a
/// busy machine.
const SOON: Duration = PATIENCE;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    Main,
    Alone,
    Letter,
}

const WAYS: [Way; 3] = [Way::Main, Way::Alone, Way::Letter];

impl Way {
    /// A batch for this kind of channel, with this number.
    fn batch(self, number: u64) -> Batch {
        match self {
            Way::Main => batch(number),
            Way::Alone => Batch { alone: true, ..batch(number) },
            Way::Letter => {
                let verdict = Dead { reason: Reason::Invalid, error: "no".into() };
                Batch { dead: Some(Arc::new(verdict)), ..batch(number) }
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Ending {
    /// The socket is closed without a close frame.
    Torn,
    /// An operator closes the connection.
    Closed,
    /// The broker closes it because of a message.
    Blamed,
    /// The broker has failed, which a message may have brought about.
    Crashed,
}

const ENDINGS: [Ending; 4] = [Ending::Torn, Ending::Closed, Ending::Blamed, Ending::Crashed];

impl Ending {
    fn of(self, mut peer: Peer) {
        match self {
            Ending::Torn => drop(peer),
            Ending::Closed => peer.close_connection(320, "CONNECTION_FORCED - by hand"),
            Ending::Blamed => peer.close_connection(501, FRAME),
            Ending::Crashed => peer.close_connection(541, CRASH),
        }
    }
}

/// Acks every publish.
fn taking(mut peer: Peer) {
    loop {
        match peer.next() {
            Seen::Published(p) => peer.ack(p.channel, p.tag, false),
            Seen::Gone => return,
            _ => {}
        }
    }
}

fn number_of(published: &Published) -> u64 {
    published.routing_key.trim_start_matches("app").parse().expect("a number")
}

/// Waits until the loss is noticed, and expects the next connection to confirm a batch.
fn goes_on(daemon: &Daemon, since: Instant, what: &str) {
    daemon.wait("the loss", |event| matches!(event, Event::Broker(BrokerEvent::EgressLost)).then_some(()));
    assert!(since.elapsed() < SOON, "{what}: the loss was told after {:?}", since.elapsed());
    daemon.ready();
    daemon.amqp.publish(vec![batch(900)]);
    assert_eq!(daemon.settled(1)[&900], confirmed(900), "{what}");
}

/// Every combination of unconfirmed publishes, with every ending. If a message ended the connection, or may have,
/// batches on a shared channel are suspects; those alone are unknown.
#[test]
fn whatever_is_open_on_whichever_channel_the_connections_end_is_taken_for_one() {
    let cases = (0..8_u32).flat_map(|open| ENDINGS.map(|ending| (open, ending)));
    let cases = cases.map(|(open, ending)| thread::spawn(move || ends_with(open, ending)));
    for case in cases.collect::<Vec<_>>() {
        case.join().unwrap();
    }
}

fn ends_with(open: u32, ending: Ending) {
    let ways: Vec<Way> = (0..3).filter(|bit| open & 1 << bit != 0).map(|bit| WAYS[bit]).collect();
    let what = format!("{ways:?} {ending:?}");
    let expected = ways.len();
    let script: Script = Box::new(move |mut peer, n| {
        if n > 0 {
            return taking(peer);
        }
        // One publish on each channel is answered: the channels are open, and idle unless another follows.
        let mut left = 3 + expected;
        while left > 0 {
            match peer.next() {
                Seen::Published(p) => {
                    left -= 1;
                    if number_of(&p) < 10 {
                        peer.ack(p.channel, p.tag, false);
                    }
                }
                Seen::Gone => return,
                _ => {}
            }
        }
        ending.of(peer);
    });
    let daemon = Daemon::start(options(FakeBroker::start("127.0.0.1", idle(), script).port));
    daemon.ready();
    daemon.amqp.publish(WAYS.iter().zip(1..).map(|(way, number)| way.batch(number)).collect());
    let settled = daemon.settled(3);
    assert!(settled.values().all(|outcome| matches!(outcome, Outcome::Confirmed(_))), "{what}: {settled:?}");
    let since = Instant::now();
    daemon.amqp.publish(ways.iter().zip(10..).map(|(way, number)| way.batch(number)).collect());
    if ways.is_empty() {
        // Nothing was published: the script ends the connection without a cause.
        return goes_on(&daemon, since, &what);
    }
    let settled = daemon.settled(ways.len());
    for (way, number) in ways.iter().zip(10..) {
        let expected = match ending {
            Ending::Blamed if *way != Way::Alone => refused(),
            Ending::Crashed if *way != Way::Alone => Outcome::Overdue,
            Ending::Torn | Ending::Closed | Ending::Blamed | Ending::Crashed => Outcome::Unknown,
        };
        assert_eq!(settled[&number], expected, "{what}: {way:?}");
    }
    goes_on(&daemon, since, &what);
}

/// Channels are closed one after the other, in every order, and then the connection.
#[test]
fn channels_may_end_in_any_order_before_their_connection_does() {
    let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    let cases = orders.into_iter().flat_map(|order| (0..=3).map(move |closed| (order, closed)));
    let cases = cases.map(|(order, closed)| {
        thread::spawn(move || {
            let script: Script = Box::new(move |mut peer, n| {
                if n > 0 {
                    return taking(peer);
                }
                let mut channels = BTreeMap::new();
                while channels.len() < 3 {
                    match peer.next() {
                        Seen::Published(p) => drop(channels.insert(number_of(&p), p.channel)),
                        Seen::Gone => return,
                        _ => {}
                    }
                }
                for place in &order[..closed] {
                    peer.close_channel(channels[&(1 + *place)], 406, "PRECONDITION_FAILED - no");
                }
            });
            let daemon = Daemon::start(options(FakeBroker::start("127.0.0.1", idle(), script).port));
            daemon.ready();
            let since = Instant::now();
            daemon.amqp.publish(WAYS.iter().zip(1..).map(|(way, number)| way.batch(number)).collect());
            let settled = daemon.settled(3);
            let known = |outcome: &Outcome| matches!(outcome, Outcome::Refused(_) | Outcome::Unknown);
            assert!(settled.values().all(known), "{order:?} {closed}: {settled:?}");
            goes_on(&daemon, since, &format!("{order:?}, {closed} of them"));
        })
    });
    for case in cases.collect::<Vec<_>>() {
        case.join().unwrap();
    }
}

/// Batch 5 has ended the connection by its content, and is a suspect.
fn with_a_suspect(script: Script) -> Daemon {
    let daemon = Daemon::start(options(FakeBroker::start("127.0.0.1", idle(), script).port));
    daemon.ready();
    daemon.amqp.publish(vec![batch(5)]);
    assert_eq!(daemon.settled(1)[&5], refused());
    daemon.ready();
    daemon
}

fn refused() -> Outcome {
    Outcome::Refused(format!("501 {FRAME}").into())
}

/// The batch over which the broker ends the connection is then sent alone on a separate connection, and the
/// other connection is not affected.
#[test]
fn a_culprit_ends_its_own_connection_only_once_it_is_suspected() {
    let ended = Arc::new(Mutex::new(BTreeSet::new()));
    let told = Arc::clone(&ended);
    let script: Script = Box::new(move |mut peer, n| {
        let name = peer.name.clone();
        loop {
            match peer.next() {
                Seen::Published(p) if number_of(&p) == 5 => {
                    told.lock().unwrap().insert((n, name));
                    return peer.close_connection(501, FRAME);
                }
                Seen::Published(p) => peer.ack(p.channel, p.tag, false),
                Seen::Gone => return,
                _ => {}
            }
        }
    });
    let daemon = with_a_suspect(script);
    let suspects = (4..=6).map(|number| Way::Alone.batch(number));
    daemon.amqp.publish((1..=3).map(batch).chain(suspects).chain((7..=9).map(batch)).collect());
    let settled = daemon.settled(9);
    for number in 1..=9 {
        let expected = if number == 5 { refused() } else { confirmed(number) };
        assert_eq!(settled[&number], expected, "batch {number}");
    }
    assert_eq!(daemon.amqp.stats().egress_failures, 1, "the first time only");
    let ended: Vec<_> = ended.lock().unwrap().iter().map(|(_, name)| name.clone()).collect();
    assert_eq!(ended, ["tidegate egress", "tidegate egress, apart"]);
}

/// The broker fails over one message, however often it is published: what was out goes apart and arrives, and the
/// culprit is known by the end of its own connection. It is not refused: its application waits for its next try, under
/// another batch id, and goes apart again. So does a dead letter of the application, also if it was not to go alone.
/// Excluded: a connection of all that ends with each try; a failure of the broker that costs an item.
/// Judges promise 6.
#[test]
fn what_makes_the_broker_fail_ends_its_own_connection_only_once_it_is_suspected() {
    let ended = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&ended);
    let script: Script = Box::new(move |mut peer, n| {
        let (name, mut open) = (peer.name.clone(), 0);
        loop {
            match peer.next() {
                // On the first connection all are out at its end.
                Seen::Published(p) if n == 0 || number_of(&p) == 5 => {
                    open += 1;
                    if n > 0 || open == 4 {
                        told.lock().unwrap().push(name);
                        return peer.close_connection(541, CRASH);
                    }
                }
                Seen::Published(p) => peer.ack(p.channel, p.tag, false),
                Seen::Gone => return,
                _ => {}
            }
        }
    });
    let daemon = Daemon::start(options(FakeBroker::start("127.0.0.1", idle(), script).port));
    daemon.ready();
    daemon.amqp.publish(vec![Way::Alone.batch(3), batch(4), batch(5), Way::Letter.batch(6)]);
    let settled = daemon.settled(4);
    assert_eq!(settled[&3], Outcome::Unknown);
    assert!((4..=6).all(|number| settled[&number] == Outcome::Overdue), "{settled:?}");
    daemon.ready();
    let again = [3, 4, 5].map(|number| Way::Alone.batch(number)).into_iter();
    let letter = Batch { alone: true, ..Way::Letter.batch(6) };
    daemon.amqp.publish(again.chain([letter, batch(7)]).collect());
    let settled = daemon.settled(5);
    for number in [3, 4, 6, 7] {
        assert_eq!(settled[&number], confirmed(number), "batch {number}");
    }
    let failed = Outcome::Failed(format!("541 {CRASH}").into());
    assert_eq!(settled[&5], failed, "it is parked, and no attempt counts");
    let of_culprit = |batch: Batch| Batch { application: "app5".into(), ..batch };
    daemon.amqp.publish(vec![of_culprit(Way::Alone.batch(8)), of_culprit(Way::Letter.batch(9)), batch(10)]);
    let settled = daemon.settled(3);
    assert_eq!(settled[&8], failed);
    assert_eq!(settled[&9], Outcome::Refused(format!("541 {CRASH}").into()));
    assert_eq!(settled[&10], confirmed(10));
    assert_eq!(daemon.amqp.stats().egress_failures, 1, "the first time only");
    let ended = ended.lock().unwrap();
    assert_eq!(ended[0], "tidegate egress");
    assert_eq!(ended[1..], ["tidegate egress, apart"; 3]);
}

/// A publish ends the connection while the channel of dead letters is being opened, and a channel alone is
/// about to be: that publish is the culprit, with the broker's text as the reason.
#[test]
fn what_is_only_being_opened_knows_of_no_culprit() {
    let cases = (0..40).map(|_| {
        thread::spawn(|| {
            let script: Script = Box::new(|mut peer, n| loop {
                match peer.next() {
                    Seen::Published(p) if number_of(&p) == 5 && n == 0 => {
                        return peer.close_connection(501, FRAME);
                    }
                    Seen::Published(_) if peer.name.ends_with("apart") => panic!("nobody else was out"),
                    Seen::Published(p) => peer.ack(p.channel, p.tag, false),
                    Seen::Gone => return,
                    _ => {}
                }
            });
            let daemon = Daemon::start(options(FakeBroker::start("127.0.0.1", idle(), script).port));
            daemon.ready();
            daemon.amqp.publish(vec![batch(5), Way::Alone.batch(6)]);
            let settled = daemon.settled(2);
            assert_eq!(settled[&5], refused());
            // It may have got a channel or not; if it has, both are suspects.
            if settled[&6] == Outcome::Unsent {
                daemon.ready();
                daemon.amqp.publish(vec![Way::Alone.batch(6)]);
                assert_eq!(daemon.settled(1)[&6], confirmed(6));
            }
        })
    });
    for case in cases.collect::<Vec<_>>() {
        case.join().unwrap();
    }
}

/// A suspect's separate connection ends for another reason: other batches are not affected, and the suspect
/// is not sent again at once.
#[test]
fn a_suspect_whose_own_connection_is_lost_waits_and_nobody_else_does() {
    let (go, next) = channel::<()>();
    let next = Mutex::new(next);
    let script: Script = Box::new(move |mut peer, n| loop {
        match peer.next() {
            Seen::Published(_) if n == 0 => return peer.close_connection(501, FRAME),
            Seen::Published(_) if peer.name.ends_with("apart") => {
                return next.lock().unwrap().recv().unwrap()
            }
            Seen::Published(p) => peer.ack(p.channel, p.tag, false),
            Seen::Gone => return,
            _ => {}
        }
    });
    let daemon = with_a_suspect(script);
    daemon.amqp.publish(vec![Way::Alone.batch(5), Way::Alone.batch(6), batch(7)]);
    let settled = daemon.settled(2);
    assert_eq!((&settled[&6], &settled[&7]), (&confirmed(6), &confirmed(7)));
    let since = Instant::now();
    go.send(()).unwrap();
    daemon.amqp.publish(vec![batch(8), Way::Alone.batch(9)]);
    let settled = daemon.settled(3);
    assert_eq!((&settled[&8], &settled[&9]), (&confirmed(8), &confirmed(9)));
    assert_eq!(settled[&5], Outcome::Unknown);
    assert!(since.elapsed() >= Duration::from_secs(1), "{:?}", since.elapsed());
    assert_eq!(daemon.amqp.stats().egress_failures, 1, "the first time only");
}

/// Any combination of answers and endings at any moment: every batch is settled, exactly once and in time.
#[test]
fn every_batch_is_settled_once_whatever_ends_whenever() {
    let first = seed();
    let cases = (0..24).map(|n| thread::spawn(move || random_case(first.wrapping_add(n))));
    for case in cases.collect::<Vec<_>>() {
        case.join().unwrap();
    }
}

/// Number of connections that misbehave, before one that acks everything.
const BAD: usize = 6;

fn random_case(seed: u64) {
    const BATCHES: u64 = 60;
    let script: Script = Box::new(move |mut peer, n| {
        if n >= BAD {
            return taking(peer);
        }
        let mut moments = Moments::seeded(seed, &n.to_string());
        let ending = ENDINGS[moments.pick(0, ENDINGS.len() as u64) as usize];
        // A separate connection has a single publish, and waits for its answer until its place is needed.
        let (mut left, answers) =
            if peer.name.ends_with("apart") { (0, 5) } else { (moments.pick(0, 12), 6) };
        loop {
            let published = match peer.next() {
                Seen::Published(published) => published,
                Seen::Gone => return,
                _ => continue,
            };
            if left == 0 && (answers == 6 || moments.pick(0, 2) == 0) {
                return ending.of(peer);
            }
            left = left.saturating_sub(1);
            let (channel, tag) = (published.channel, published.tag);
            match moments.pick(0, answers) {
                0 => peer.ack(channel, tag, true),
                1 => peer.ack(channel, tag, false),
                2 => peer.nack(channel, tag),
                3 => {
                    peer.give_back(&published);
                    peer.ack(channel, tag, false);
                }
                4 => peer.close_channel(channel, 406, "PRECONDITION_FAILED - no"),
                // This one is never answered.
                _ => {}
            }
        }
    });
    let mut options = options(FakeBroker::start("127.0.0.1", idle(), script).port);
    options.timeouts.confirm = Duration::from_secs(2);
    let daemon = Daemon::start(options);
    daemon.ready();
    let mut moments = Moments::seeded(seed, "batches");
    let mut number = 0;
    while number < BATCHES {
        let next = number + moments.pick(1, 5);
        daemon.amqp.publish((number..next).map(|n| WAYS[moments.pick(0, 3) as usize].batch(n)).collect());
        number = next;
        moments.pause(0, 15);
    }
    let (mut all, mut filler) = (BTreeMap::new(), 1_000);
    let end = Instant::now() + PATIENCE * 3;
    while (0..number).any(|number| !all.contains_key(&number)) {
        assert!(Instant::now() < end, "seed {seed}: {} of {number} settled", all.len());
        // A further publish lets each bad connection reach its end.
        daemon.amqp.publish(vec![batch(filler)]);
        filler += 1;
        for (number, outcome) in daemon.settled_next() {
            assert_eq!(all.insert(number, outcome), None, "seed {seed}: batch {number} settled twice");
        }
        moments.pause(5, 20);
    }
}
