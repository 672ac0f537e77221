//! A failure of one publishing channel stays there: dead letters, batches alone, a channel closed because of
//! a message.

use crate::fake_broker::harness::*;
use crate::fake_broker::{idle, FakeBroker, Peer, Published, Script, Seen};
use lapin::types::{AMQPValue, FieldTable};
use lapin::BasicProperties;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tidegate_amqp::blueprint::Names;
use tidegate_amqp::{BrokerEvent, Event, LinkStatus, OnSpan, PublishSpan, Side};
use tidegate_common::clock;
use tidegate_config::{Config, Readings};
use tidegate_types::{Batch, BatchItem, Dead, Outcome, Reason, RequestBody, ALONE_CHANNELS};
use tidegate_wire::{request, Incoming};

const GONE: &str = "NOT_FOUND - no exchange 'tidegate.dead'";
const TOO_LARGE: &str = "PRECONDITION_FAILED - too large";

fn alone(number: u64) -> Batch {
    Batch { alone: true, ..batch(number) }
}

/// [`alone`], due at `due`, UTC ms, of a request whose trace is recorded.
fn traced(number: u64, due: u64) -> Batch {
    let mut headers = FieldTable::default();
    let context = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    headers.insert("traceparent".into(), AMQPValue::LongString(context.into()));
    let incoming = Incoming {
        exchange: "tidegate.in",
        routing_key: "app",
        properties: BasicProperties::default().with_headers(headers),
        body: b"{}".to_vec(),
        received: due,
    };
    let RequestBody::Items(mut items) = request(incoming, &limits(), &Readings::default(), STORE) else {
        panic!("a plain request is understood")
    };
    let mut batch = Batch { due, ..alone(number) };
    (batch.items[0].due, batch.items[0].content) = (due, items.remove(0).content);
    batch
}

fn letter(number: u64) -> Batch {
    let verdict = Dead { reason: Reason::Invalid, error: "no".into() };
    Batch { dead: Some(Arc::new(verdict)), ..batch(number) }
}

fn unavailable() -> Outcome {
    Outcome::Unavailable(format!("404 {GONE}").into())
}

fn dead_of(event: Event) -> Option<Option<String>> {
    match event {
        Event::Broker(BrokerEvent::Link { side: Side::Egress, link: LinkStatus::Up { dead, .. } }) => {
            Some(dead)
        }
        _ => None,
    }
}

/// The broker closes a channel because of a message: all batches on it are suspects, and the culprit is found
/// on a channel alone while the main channel continues.
/// Judges promise 6.
#[test]
fn a_culprit_is_found_alone_on_the_same_connection() {
    let script: Script = Box::new(|mut peer, n| {
        assert_eq!(n, 0, "the connection stays");
        let batches: Vec<Published> = (0..3).map(|_| peer.next_publish()).collect();
        peer.ack(batches[0].channel, batches[0].tag, false);
        peer.close_channel(batches[0].channel, 406, TOO_LARGE);
        // They arrive in any order.
        let (mut main, mut culprit, mut innocent) = (None, false, false);
        while main.is_none() || !culprit || !innocent {
            match peer.next() {
                // Number 4 stays unconfirmed until the suspects are settled.
                Seen::Published(p) if p.routing_key == "app4" => main = Some((p.channel, p.tag)),
                Seen::Published(p) if p.routing_key == "app2" => {
                    peer.close_channel(p.channel, 406, TOO_LARGE);
                    culprit = true;
                }
                Seen::Published(p) => {
                    peer.ack(p.channel, p.tag, false);
                    innocent = true;
                }
                Seen::Gone => return,
                _ => {}
            }
        }
        let (channel, tag) = main.unwrap();
        peer.ack(channel, tag, false);
        peer.serve();
    });
    let daemon = Daemon::start(options(FakeBroker::start("127.0.0.1", idle(), script).port));
    daemon.ready();
    daemon.amqp.publish((1..=3).map(batch).collect());
    let settled = daemon.settled(3);
    let refused = Outcome::Refused(format!("406 {TOO_LARGE}").into());
    assert_eq!(settled[&1], confirmed(1));
    assert_eq!((&settled[&2], &settled[&3]), (&refused, &refused));
    daemon.amqp.publish(vec![batch(4)]);
    daemon.amqp.publish(vec![alone(2), alone(3)]);
    let settled = daemon.settled(3);
    assert_eq!((&settled[&2], &settled[&3], &settled[&4]), (&refused, &confirmed(3), &confirmed(4)));
    assert_eq!(daemon.amqp.stats().egress_failures, 0);
}

/// The dead-letter exchange is missing, at the start and later: dead letters get that outcome, everything
/// else continues.
/// Judges promise 6.
#[test]
fn a_missing_dead_exchange_holds_up_dead_letters_alone() {
    let (go, next) = channel::<()>();
    let next = Mutex::new(next);
    let script: Script = Box::new(move |mut peer, n| {
        assert_eq!(n, 0, "the connection stays");
        peer.refuse("tidegate.dead", 404, GONE);
        let mut there = false;
        loop {
            match peer.next() {
                Seen::Published(p) if p.exchange == "tidegate.dead" => {
                    if there {
                        peer.ack(p.channel, p.tag, false);
                    } else {
                        peer.close_channel(p.channel, 404, GONE);
                    }
                }
                Seen::Published(p) if p.routing_key == "app50" => {
                    peer.accept("tidegate.dead");
                    peer.ack(p.channel, p.tag, false);
                }
                Seen::Published(p) if p.routing_key == "app60" => {
                    next.lock().unwrap().recv().unwrap();
                    there = true;
                    peer.ack(p.channel, p.tag, false);
                }
                Seen::Published(p) => peer.ack(p.channel, p.tag, false),
                Seen::Gone => return,
                _ => {}
            }
        }
    });
    let daemon = Daemon::start(options(FakeBroker::start("127.0.0.1", idle(), script).port));
    let trouble = daemon.wait("the state", |event| dead_of(event).flatten());
    assert!(trouble.contains(GONE), "{trouble}");
    let mut batches: Vec<Batch> = (1..=20).map(batch).collect();
    batches.splice(5..5, [letter(100), Batch { alone: true, ..letter(101) }]);
    daemon.amqp.publish(batches);
    let settled = daemon.settled(22);
    assert!((1..=20).all(|n| settled[&n] == confirmed(n)), "{settled:?}");
    for number in [100, 101] {
        assert!(
            matches!(&settled[&number], Outcome::Unavailable(text) if text.contains(GONE)),
            "{settled:?}"
        );
    }
    // The exchange is declared, but the publish is refused.
    daemon.amqp.publish(vec![batch(50)]);
    assert_eq!(daemon.settled(1)[&50], confirmed(50));
    daemon.amqp.publish(vec![letter(102), batch(51)]);
    let settled = daemon.settled(2);
    assert_eq!((&settled[&102], &settled[&51]), (&unavailable(), &confirmed(51)));
    daemon.amqp.publish(vec![Batch { alone: true, ..letter(103) }]);
    assert_eq!(daemon.settled(1)[&103], unavailable());
    go.send(()).unwrap();
    daemon.amqp.publish(vec![batch(60)]);
    assert_eq!(daemon.settled(1)[&60], confirmed(60));
    daemon.amqp.publish(vec![letter(104)]);
    daemon.wait("the letter and then the state", |event| dead_of(event)?.is_none().then_some(()));
    assert_eq!(daemon.amqp.stats().egress_failures, 0);
}

/// The dead-letter exchange is missing for so long that every channel number of a connection was refused once:
/// once the exchange exists, dead letters leave.
/// Excluded: refusals of the broker that the library repeats for each later channel; dead letters that stay.
/// Judges promise 6.
#[test]
fn dead_letters_leave_once_their_exchange_exists_however_often_it_was_missing() {
    /// As many as a connection has channel numbers.
    const NUMBERS: u64 = 2_047;
    const CREATES: u64 = 10_000;
    let exists = AtomicBool::new(false);
    let script: Script = Box::new(move |mut peer, n| {
        assert!(n < 2, "the connection is replaced once");
        peer.refuse("tidegate.dead", 404, GONE);
        loop {
            if exists.load(Ordering::Relaxed) {
                peer.accept("tidegate.dead");
            }
            match peer.next() {
                Seen::Published(p) => {
                    exists.fetch_or(p.routing_key == format!("app{CREATES}"), Ordering::Relaxed);
                    peer.ack(p.channel, p.tag, false);
                }
                Seen::Gone => return,
                _ => {}
            }
        }
    });
    let daemon = Daemon::start(options(FakeBroker::start("127.0.0.1", idle(), script).port));
    daemon.ready();
    let settled = |batch: Batch| {
        let number = batch.number;
        daemon.amqp.publish(vec![batch]);
        let outcome = daemon.settled(1).remove(&number).unwrap();
        if outcome == Outcome::Unsent {
            daemon.ready();
        }
        outcome
    };
    let mut unsent = 0;
    for number in 1..=NUMBERS + 100 {
        match settled(letter(number)) {
            Outcome::Unavailable(text) => assert!(text.contains(GONE), "{number}: {text}"),
            Outcome::Unsent => unsent += 1,
            outcome => panic!("{number}: {outcome:?}"),
        }
    }
    assert_eq!(settled(batch(CREATES)), confirmed(CREATES));
    let (first, second) = (CREATES + 1, CREATES + 2);
    assert_eq!(settled(letter(first)), confirmed(first));
    assert_eq!(settled(letter(second)), confirmed(second));
    assert_eq!((unsent, daemon.amqp.stats().egress_failures), (1, 1));
}

/// The library gives out the number of a channel that the broker has closed again, but opens no channel: one
/// with the next number is opened.
/// Excluded: a connection that is replaced over a single such number, and its unconfirmed batches with it.
#[test]
fn the_number_of_a_channel_that_was_closed_is_left_out() {
    /// With two channels each, one to check the exchange and one that is closed: more than there are numbers.
    const LETTERS: u64 = 1_100;
    let script: Script = Box::new(|mut peer, n| {
        assert_eq!(n, 0, "the connection stays");
        loop {
            match peer.next() {
                Seen::Published(p) => peer.close_channel(p.channel, 406, TOO_LARGE),
                Seen::Gone => return,
                _ => {}
            }
        }
    });
    let daemon = Daemon::start(options(FakeBroker::start("127.0.0.1", idle(), script).port));
    daemon.ready();
    let refused = Outcome::Refused(format!("406 {TOO_LARGE}").into());
    for number in 1..=LETTERS {
        daemon.amqp.publish(vec![letter(number)]);
        assert_eq!(daemon.settled(1)[&number], refused, "{number}");
    }
    assert_eq!(daemon.amqp.stats().egress_failures, 0);
}

/// A classic queue that is busy answers no declaration: neither end waits for it, at the start or later.
/// Judges promise 6.
#[test]
fn a_queue_of_dead_letters_that_does_not_answer_holds_up_nobody() {
    let ingest: Script = Box::new(|mut peer, n| {
        assert_eq!(n, 0, "the connection stays");
        peer.silence("letters");
        loop {
            match peer.next() {
                Seen::Consume { channel, tag, .. } => {
                    peer.deliver(channel, &tag, 1, BasicProperties::default(), b"1");
                }
                Seen::Gone => return,
                _ => {}
            }
        }
    });
    let egress: Script = Box::new(|mut peer, n| {
        assert_eq!(n, 0, "the connection stays");
        peer.silence("letters");
        loop {
            match peer.next() {
                Seen::Published(p) => peer.ack(p.channel, p.tag, false),
                Seen::Gone => return,
                _ => {}
            }
        }
    });
    let mut options = options(FakeBroker::start("127.0.0.1", ingest, egress).port);
    // It bounds each step of both ends, of which one has no answer.
    options.timeouts.connect = Duration::from_secs(12);
    let mut config = Config::default();
    config.dead.queue.name = "letters".to_owned();
    (options.names, options.dead) = (Names::of(&config), config.dead);
    let daemon = Daemon::start(options);
    // Which end is the first is open.
    let (mut settled, mut is_taken) = (BTreeMap::new(), false);
    daemon.wait("all outcomes and a request", |event| {
        match event {
            Event::Broker(BrokerEvent::EgressReady) => {
                daemon.amqp.publish(vec![batch(1), letter(100), batch(2)]);
            }
            Event::Settled(all) => settled.extend(all.into_iter().map(|one| (one.number, one.outcome))),
            Event::Requests { .. } => is_taken = true,
            Event::Broker(_) => {}
        }
        (settled.len() == 3 && is_taken).then_some(())
    });
    assert!([1, 2, 100].iter().all(|n| settled[n] == confirmed(*n)), "{settled:?}");
    let stats = daemon.amqp.stats();
    assert_eq!((stats.ingest_failures, stats.egress_failures), (0, 0));
}

/// Each opening of the channel of dead letters checks their exchange and queue anew: the state shows what the
/// last check has found.
/// Excluded: notes that are shown once more with each opening; notes that stay when what they tell of has
/// been mended.
#[test]
fn the_state_shows_what_the_last_check_of_the_dead_exchange_has_found() {
    const LAST: u64 = 5;
    let script: Script = Box::new(|mut peer, n| {
        assert_eq!(n, 0, "the connection stays");
        peer.refuse("letters", 403, "ACCESS_REFUSED - configure access refused");
        loop {
            match peer.next() {
                // Even ones close the channel, the others are published on the next one.
                Seen::Published(p) if p.exchange == "tidegate.dead" => {
                    match p.routing_key.trim_start_matches("app").parse::<u64>().unwrap() {
                        number if number % 2 == 1 => peer.ack(p.channel, p.tag, false),
                        number => {
                            if number == LAST - 1 {
                                peer.accept("letters");
                            }
                            peer.close_channel(p.channel, 404, GONE);
                        }
                    }
                }
                Seen::Gone => return,
                _ => {}
            }
        }
    });
    let mut options = options(FakeBroker::start("127.0.0.1", idle(), script).port);
    let mut config = Config::default();
    config.dead.queue.name = "letters".to_owned();
    (options.names, options.dead) = (Names::of(&config), config.dead);
    let daemon = Daemon::start(options);
    let shown = |dead: bool, number: u64| {
        daemon.amqp.publish(vec![Batch { application: format!("app{number}").into(), ..letter(number) }]);
        daemon.wait("the state", |event| match event {
            Event::Broker(BrokerEvent::Link {
                side: Side::Egress,
                link: LinkStatus::Up { notes, dead: trouble, .. },
            }) => (trouble.is_some() == dead).then_some(notes),
            _ => None,
        })
    };
    let first = daemon.wait("the notes", |event| match event {
        Event::Broker(BrokerEvent::Link { side: Side::Egress, link: LinkStatus::Up { notes, .. } }) => {
            Some(notes).filter(|notes| !notes.is_empty())
        }
        _ => None,
    });
    assert_eq!(first.len(), 1, "{first:?}");
    assert!(first[0].contains("letters"), "{first:?}");
    for number in [0, 2] {
        assert_eq!(shown(true, number), first);
        assert_eq!(shown(false, number + 1), first);
    }
    assert_eq!(shown(true, LAST - 1), first);
    assert!(shown(false, LAST).is_empty());
    assert_eq!(daemon.amqp.stats().egress_failures, 0);
}

/// A dead letter that is too large for the broker: those on its channel are suspects, and batches are not
/// affected.
#[test]
fn a_refused_dead_letter_closes_the_channel_of_dead_letters_alone() {
    let script: Script = Box::new(|mut peer, n| {
        assert_eq!(n, 0, "the connection stays");
        let mut batches = BTreeMap::new();
        loop {
            match peer.next() {
                Seen::Published(p) if p.routing_key == "app100" => {
                    peer.close_channel(p.channel, 406, TOO_LARGE)
                }
                Seen::Published(p) => {
                    *batches.entry(p.channel).or_insert(0) += 1;
                    peer.ack(p.channel, p.tag, false);
                }
                Seen::Gone => return,
                _ => {}
            }
        }
    });
    let daemon = Daemon::start(options(FakeBroker::start("127.0.0.1", idle(), script).port));
    daemon.ready();
    let refused = Outcome::Refused(format!("406 {TOO_LARGE}").into());
    for round in 0..3 {
        let first = round * 200 + 1;
        let mut batches: Vec<Batch> = (first..first + 20).map(batch).collect();
        let culprit = Batch { number: 10_000 + round, application: "app100".into(), ..letter(1) };
        let number = culprit.number;
        batches.insert(3, Batch { alone: round > 0, ..culprit });
        daemon.amqp.publish(batches);
        let settled = daemon.settled(21);
        assert_eq!(settled[&number], refused);
        assert!((first..first + 20).all(|n| settled[&n] == confirmed(n)), "round {round}: {settled:?}");
    }
    assert_eq!(daemon.amqp.stats().egress_failures, 0);
}

/// Each batch alone has a channel; one with an overdue confirm stays open until the engine gives it up.
/// Judges promise 6.
#[test]
fn an_unanswered_batch_holds_up_nothing_and_is_not_given_up_without_need() {
    const LIMIT: Duration = Duration::from_secs(12);
    let (go, next) = channel::<()>();
    let next = Mutex::new(next);
    let script: Script = Box::new(move |mut peer, n| {
        assert_eq!(n, 0, "the connection stays");
        let mut unanswered: Vec<Published> = Vec::new();
        loop {
            match peer.next() {
                // Batches for a queue without a majority.
                Seen::Published(p) if p.properties.headers().is_some() && p.routing_key.len() == 5 => {
                    assert!(unanswered.iter().all(|other| other.channel != p.channel), "alone");
                    unanswered.push(*p);
                }
                Seen::Published(p) if p.routing_key == "app7" => {
                    next.lock().unwrap().recv().unwrap();
                    // The queue has a majority again: the confirm comes late.
                    let late = unanswered.iter().find(|other| other.routing_key == "app11").unwrap();
                    peer.ack(late.channel, late.tag, false);
                    peer.ack(p.channel, p.tag, false);
                }
                Seen::Published(p) => peer.ack(p.channel, p.tag, false),
                Seen::Gone => return,
                _ => {}
            }
        }
    });
    let mut options = options(FakeBroker::start("127.0.0.1", idle(), script).port);
    options.timeouts.confirm = LIMIT;
    let daemon = Daemon::start(options);
    daemon.ready();
    let began = Instant::now();
    let count = ALONE_CHANNELS.min(89) as u64;
    daemon.amqp.publish((10..10 + count).map(alone).collect());
    daemon.amqp.publish(vec![batch(1)]);
    assert_eq!(daemon.settled(1)[&1], confirmed(1));
    daemon.quiet_for(LIMIT + LIMIT / 4, |event| {
        matches!(event, Event::Settled(_) | Event::Broker(BrokerEvent::EgressLost))
    });
    daemon.amqp.publish(vec![alone(2)]);
    daemon.amqp.give_up(vec![10, 2_000]);
    let settled = daemon.settled(2);
    assert_eq!((&settled[&10], &settled[&2]), (&Outcome::Overdue, &confirmed(2)));
    assert!(began.elapsed() >= LIMIT);
    go.send(()).unwrap();
    daemon.amqp.publish(vec![batch(7)]);
    let settled = daemon.settled(2);
    assert_eq!((&settled[&11], &settled[&7]), (&confirmed(11), &confirmed(7)));
    assert_eq!(daemon.amqp.stats().egress_failures, 0);
}

/// A batch alone is never confirmed, and no other needs its channel: it is given up after ten times the time limit
/// of confirms, for which blocked time does not count. The next try has another channel.
/// Excluded: a batch whose confirm the broker has lost, and that waits for it for ever.
/// Judges promise 6.
#[test]
fn a_batch_alone_whose_confirm_is_lost_is_given_up_at_last() {
    const LIMIT: Duration = Duration::from_millis(700);
    let bound = LIMIT * 10;
    let (go, next) = channel::<()>();
    let next = Mutex::new(next);
    let script: Script = Box::new(move |mut peer, n| {
        assert_eq!(n, 0, "the connection stays");
        let lost = peer.next_publish();
        peer.blocked("low on memory");
        next.lock().unwrap().recv().unwrap();
        peer.unblocked();
        let again = peer.next_publish();
        assert_ne!(again.channel, lost.channel);
        peer.ack(again.channel, again.tag, false);
        peer.serve();
    });
    let mut options = options(FakeBroker::start("127.0.0.1", idle(), script).port);
    options.timeouts.confirm = LIMIT;
    let daemon = Daemon::start(options);
    daemon.ready();
    daemon.amqp.publish(vec![alone(1)]);
    daemon.wait("blocked", |event| {
        matches!(event, Event::Broker(BrokerEvent::EgressBlocked(true))).then_some(())
    });
    daemon.quiet_for(bound + LIMIT, |event| matches!(event, Event::Settled(_)));
    let began = Instant::now();
    go.send(()).unwrap();
    assert_eq!(daemon.settled(1)[&1], Outcome::Overdue);
    assert!(began.elapsed() >= bound, "{:?} of {bound:?}", began.elapsed());
    daemon.amqp.publish(vec![alone(1)]);
    assert_eq!(daemon.settled(1)[&1], confirmed(1));
    assert_eq!(daemon.amqp.stats().egress_failures, 0);
}

/// A login that may open fewer channels than batches go alone: the broker ends the connection over the first channel
/// too many, and each further connection opens half as many, until all batches leave.
/// Excluded: as many channels on each connection, so that nothing ever leaves; a number that is found anew with each
/// burst.
/// Judges promise 6.
#[test]
fn a_login_with_few_channels_sends_what_goes_alone_over_as_many_as_it_may() {
    const BATCHES: u64 = 100;
    /// Half of the batches are too many, a quarter is not, with the other channels.
    const MOST: usize = 40;
    let script: Script = Box::new(|mut peer, _| {
        peer.allow_channels(MOST);
        serve_acking(&mut peer);
    });
    let daemon = Daemon::start(options(FakeBroker::start("127.0.0.1", idle(), script).port));
    daemon.ready();
    for (burst, tries) in [(0, 3), (1, 1)] {
        let mut left: Vec<u64> = (1..=BATCHES).map(|number| burst * BATCHES + number).collect();
        for n in 1..=tries {
            daemon.amqp.publish(left.iter().copied().map(alone).collect());
            let settled = daemon.settled(left.len());
            left.retain(|number| settled[number] != confirmed(*number));
            assert_eq!(left.is_empty(), n == tries, "burst {burst}, try {n}: {left:?}");
            if n < tries {
                daemon.ready();
            }
        }
    }
    assert_eq!(daemon.amqp.stats().egress_failures, 2);
}

/// A broker that is slow to open channels: batches that need one are given up before they have it, each for the
/// next. The channel that is being opened is for whichever of them is the last.
/// Excluded: an opening for each batch, of which none is used, until the connection has no number left; one that
/// stands still while no batch needs it, and is too late when one does; a lateness of what was not published.
/// Judges promise 6.
#[test]
fn a_channel_that_is_being_opened_is_used_by_the_next_batch() {
    const LIMIT: Duration = Duration::from_secs(12);
    // An opening that is not answered, and in the end how many there were.
    let (sender, told) = channel::<Option<usize>>();
    let sender = Mutex::new(sender);
    let script: Script = Box::new(move |mut peer, n| {
        assert_eq!(n, 0, "the connection stays");
        let tell = |held: Option<usize>| sender.lock().unwrap().send(held).unwrap();
        loop {
            match peer.next() {
                Seen::Held => tell(None),
                Seen::Published(p) => {
                    match p.routing_key.as_str() {
                        "app1" => peer.hold_opens(),
                        "app2" => tell(Some(peer.open_held())),
                        _ => {}
                    }
                    peer.ack(p.channel, p.tag, false);
                }
                Seen::Gone => return,
                _ => {}
            }
        }
    });
    let mut options = options(FakeBroker::start("127.0.0.1", idle(), script).port);
    options.timeouts.connect = LIMIT;
    let daemon = Daemon::start(options);
    daemon.ready();
    // The other channels are open.
    daemon.amqp.publish(vec![letter(3)]);
    assert_eq!(daemon.settled(1)[&3], confirmed(3));
    daemon.amqp.publish(vec![batch(1)]);
    assert_eq!(daemon.settled(1)[&1], confirmed(1));
    for number in 10..20 {
        // The second one goes on the main channel: once it is confirmed, the first one is under way.
        daemon.amqp.publish(vec![alone(number), batch(100 + number)]);
        assert_eq!(daemon.settled(1)[&(100 + number)], confirmed(100 + number));
        if number == 10 {
            assert_eq!(told.recv_timeout(PATIENCE), Ok(None));
        }
        daemon.amqp.give_up(vec![number]);
        assert_eq!(daemon.settled(1)[&number], Outcome::Unsent);
    }
    daemon.amqp.publish(vec![batch(2)]);
    assert_eq!(daemon.settled(1)[&2], confirmed(2));
    assert_eq!(told.recv_timeout(PATIENCE), Ok(Some(1)), "one opening in all");
    daemon.quiet_for(LIMIT + LIMIT / 4, |_| false);
    daemon.amqp.publish(vec![alone(20)]);
    assert_eq!(daemon.settled(1)[&20], confirmed(20));
    let stats = daemon.amqp.stats();
    // Of the batches 1, 2, 20 and 110 to 119, each once; of the others, which were given up, none.
    assert_eq!((stats.lateness.count, stats.batch_items.count, stats.egress_failures), (13, 13, 0));
}

/// A batch that goes alone waits for its channel, which is being opened: what is told of its publish is of the
/// moment of the publish.
/// Excluded: a lateness without the wait for a channel; a span that begins before its publish, or without one.
#[test]
fn the_lateness_of_a_batch_alone_includes_its_wait_for_a_channel() {
    let script: Script = Box::new(|mut peer, _| loop {
        match peer.next() {
            Seen::Published(p) => {
                match p.routing_key.as_str() {
                    "app1" => peer.hold_opens(),
                    "app9" => drop(peer.open_held()),
                    _ => {}
                }
                peer.ack(p.channel, p.tag, false);
            }
            Seen::Gone => return,
            _ => {}
        }
    });
    let mut options = options(FakeBroker::start("127.0.0.1", idle(), script).port);
    let (sender, spans) = channel();
    options.spans = Some(OnSpan(Arc::new(move |span| sender.send(span).unwrap())));
    let daemon = Daemon::start(options);
    daemon.ready();
    // The other channels are open.
    daemon.amqp.publish(vec![letter(3)]);
    assert_eq!(daemon.settled(1)[&3], confirmed(3));
    let opened = Batch { due: u64::MAX, ..batch(9) };
    let opened = Batch { items: vec![BatchItem { due: u64::MAX, ..opened.items[0].clone() }], ..opened };
    daemon.amqp.publish(vec![batch(1)]);
    assert_eq!(daemon.settled(1)[&1], confirmed(1));
    // Once what goes on the main channel is confirmed, the other one is under way.
    daemon.amqp.publish(vec![traced(5, 1_000), batch(101)]);
    assert_eq!(daemon.settled(1)[&101], confirmed(101));
    daemon.amqp.give_up(vec![5]);
    assert_eq!(daemon.settled(1)[&5], Outcome::Unsent);
    let due = clock::wall_ms();
    daemon.amqp.publish(vec![traced(2, due), batch(102)]);
    assert_eq!(daemon.settled(1)[&102], confirmed(102));
    let (before, waited_until) = (daemon.amqp.stats().lateness, clock::wall_us());
    daemon.amqp.publish(vec![opened]);
    let settled = daemon.settled(2);
    assert!([2, 9].iter().all(|number| matches!(settled[number], Outcome::Confirmed(_))), "{settled:?}");
    let (after, least) = (daemon.amqp.stats().lateness, waited_until - due * 1_000);
    assert_eq!((before.count, after.count), (3, 5));
    assert!(after.sum - before.sum >= least, "{least}: {before:?} {after:?}");
    let told: Vec<PublishSpan> = spans.try_iter().collect();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].begun >= waited_until && told[0].lateness >= least, "{told:?}");
    assert_eq!((told[0].destination.1.as_str(), told[0].attempt, told[0].error.as_ref()), ("app2", 1, None));
}

/// Acks every publish until the client is gone.
fn serve_acking(peer: &mut Peer) {
    loop {
        match peer.next() {
            Seen::Published(p) => peer.ack(p.channel, p.tag, false),
            Seen::Gone => return,
            _ => {}
        }
    }
}

/// The broker stops reading from the connection, because of a queue without a majority: another connection
/// replaces it long before confirms are overdue, and each unconfirmed batch is tried alone.
/// Judges promise 6.
#[test]
fn a_connection_that_stands_still_is_replaced() {
    let (end, ended) = channel::<()>();
    let ended = Mutex::new(ended);
    let script: Script = Box::new(move |mut peer, n| {
        if n > 0 {
            return serve_acking(&mut peer);
        }
        let answered = peer.next_publish();
        // Both channels are open: it works so far.
        assert!(peer.answer_selects(2));
        peer.ack(answered.channel, answered.tag, false);
        // The connection stays open, but is neither read nor written until the end.
        let _ = ended.lock().unwrap().recv();
    });
    let mut options = options(FakeBroker::start("127.0.0.1", idle(), script).port);
    let limit = Duration::from_secs(60);
    options.timeouts.confirm = limit;
    let daemon = Daemon::start(options);
    daemon.ready();
    daemon.amqp.publish(vec![batch(1)]);
    assert_eq!(daemon.settled(1)[&1], confirmed(1));
    let began = Instant::now();
    daemon.amqp.publish(vec![batch(2), batch(3)]);
    let settled = daemon.settled(2);
    assert_eq!((&settled[&2], &settled[&3]), (&Outcome::Overdue, &Outcome::Overdue));
    daemon.wait("another connection", |event| {
        matches!(event, Event::Broker(BrokerEvent::EgressReady)).then_some(())
    });
    assert!(began.elapsed() < limit / 2, "{:?} of {limit:?}", began.elapsed());
    daemon.amqp.publish(vec![alone(2), alone(3), batch(4)]);
    let settled = daemon.settled(3);
    assert!((2..5).all(|n| settled[&n] == confirmed(n)), "{settled:?}");
    assert_eq!(daemon.amqp.stats().egress_failures, 1);
    drop(end);
}

/// A slow queue does not end a connection on which the broker still answers.
/// Judges promise 6.
#[test]
fn a_connection_that_answers_stays_though_a_confirm_does_not_come() {
    let script: Script = Box::new(|mut peer, n| {
        assert_eq!(n, 0, "the connection stays");
        let slow = peer.next_publish();
        // For as long as a queue may be slow, every liveness probe is answered.
        assert!(peer.answer_selects(5), "it is asked again and again");
        peer.ack(slow.channel, slow.tag, false);
        serve_acking(&mut peer);
    });
    let daemon = Daemon::start(options(FakeBroker::start("127.0.0.1", idle(), script).port));
    daemon.ready();
    daemon.amqp.publish(vec![batch(1)]);
    assert_eq!(daemon.settled(1)[&1], confirmed(1));
    assert_eq!(daemon.amqp.stats().egress_failures, 0);
}

/// The broker pauses under load: the time limit does not depend on how often the publisher is woken.
#[test]
fn a_connection_that_pauses_under_load_stays() {
    const PAUSE: Duration = Duration::from_secs(3);
    let (go, next) = channel::<()>();
    let next = Mutex::new(next);
    let script: Script = Box::new(move |mut peer, n| {
        assert_eq!(n, 0, "the connection stays");
        peer.next_publish();
        next.lock().unwrap().recv().unwrap();
        serve_acking(&mut peer);
    });
    let daemon = Daemon::start(options(FakeBroker::start("127.0.0.1", idle(), script).port));
    daemon.ready();
    let began = Instant::now();
    let mut last = 0;
    while began.elapsed() < PAUSE {
        last += 1;
        daemon.amqp.publish(vec![batch(last)]);
        std::thread::sleep(Duration::from_millis(5));
    }
    go.send(()).unwrap();
    // The first publish was read during the pause, and is never confirmed.
    let settled = daemon.settled(last as usize - 1);
    assert!((2..=last).all(|n| settled[&n] == confirmed(n)), "{settled:?}");
    assert_eq!(daemon.amqp.stats().egress_failures, 0);
}
