//! Intake: pauses that return nothing, a growing prefetch, and one daemon for each queue.

use crate::fake_broker::harness::*;
use crate::fake_broker::{idle, FakeBroker, Script, Seen};
use lapin::types::{AMQPValue, FieldTable};
use lapin::BasicProperties;
use std::sync::mpsc::channel;
use std::sync::Mutex;
use std::time::Duration;
use tidegate_amqp::{BrokerEvent, Event, LinkStatus, Side};
use tidegate_common::clock;
use tidegate_types::event::Intake;
use tidegate_types::{Ack, Delivery, RequestBody};

const A_WHILE: Duration = Duration::from_millis(400);

fn is_request(event: &Event) -> bool {
    matches!(event, Event::Requests { .. } | Event::Broker(BrokerEvent::IngestLost))
}

/// Pauses the intake, and waits until this is in force.
fn pause(daemon: &Daemon) {
    daemon.amqp.intake(Intake::Pause);
    daemon.wait("the state", |event| {
        matches!(
            event,
            Event::Broker(BrokerEvent::Link { side: Side::Ingest, link: LinkStatus::Paused { .. } })
        )
        .then_some(())
    });
}

/// A pause closes neither channel nor consumer: deliveries during the pause are held, acks continue, and the
/// resume forwards the deliveries.
/// Judges promise 12.
#[test]
fn a_pause_holds_deliveries_and_returns_none() {
    let (told, tells) = channel();
    let (go, next) = channel::<()>();
    let next = Mutex::new(next);
    let script: Script = Box::new(move |mut peer, n| loop {
        match peer.next() {
            Seen::Consume { channel, tag, .. } => {
                assert_eq!(n, 0);
                told.send("consume").unwrap();
                peer.deliver(channel, &tag, 1, BasicProperties::default(), b"1");
                next.lock().unwrap().recv().unwrap();
                for tag_of in 2..=9 {
                    peer.deliver(channel, &tag, tag_of, BasicProperties::default(), b"n");
                }
            }
            Seen::Cancelled => told.send("cancelled").unwrap(),
            Seen::Ack { tag: 1, .. } => told.send("acked 1").unwrap(),
            Seen::Ack { tag: 9, multiple: true } => told.send("acked 9").unwrap(),
            Seen::Gone => return,
            _ => {}
        }
    });
    let daemon = Daemon::start(options(FakeBroker::start("127.0.0.1", script, idle()).port));
    let first = daemon.request().delivery;
    assert_eq!(tells.recv_timeout(PATIENCE).unwrap(), "consume");
    pause(&daemon);
    go.send(()).unwrap();
    daemon.quiet_for(A_WHILE, is_request);
    daemon.amqp.ack(vec![Ack { delivery: first, multiple: true }]);
    assert_eq!(tells.recv_timeout(PATIENCE).unwrap(), "acked 1");
    daemon.amqp.intake(Intake::Resume);
    for tag in 2..=9 {
        assert_eq!(daemon.request().delivery, Delivery { generation: 1, tag });
    }
    daemon.amqp.stop_intake();
    assert_eq!(tells.recv_timeout(PATIENCE).unwrap(), "cancelled");
    daemon.amqp.ack(vec![Ack { delivery: Delivery { generation: 1, tag: 9 }, multiple: true }]);
    assert_eq!(tells.recv_timeout(PATIENCE).unwrap(), "acked 9");
    assert_eq!(daemon.amqp.stats().ingest_failures, 0);
}

/// A delay counts from the delivery, also if a pause holds the request: it may end before the resume, and is
/// then over at once.
/// Excluded: a delay that counts from the resume; one that ends before its time has passed since the
/// delivery; an overdue request that waits for others because its delay is long.
#[test]
fn a_delay_counts_from_the_delivery_and_not_from_the_end_of_a_pause() {
    const DELAY: u64 = 300;
    let (told, tells) = channel();
    let (go, next) = channel::<()>();
    let next = Mutex::new(next);
    let script: Script = Box::new(move |mut peer, _| {
        let Some((channel, tag, _)) = peer.next_consume() else { return };
        told.send(0).unwrap();
        next.lock().unwrap().recv().unwrap();
        let mut headers = FieldTable::default();
        headers.insert("x-delay".into(), AMQPValue::LongUInt(DELAY as u32));
        told.send(clock::wall_ms()).unwrap();
        peer.deliver(channel, &tag, 1, BasicProperties::default().with_headers(headers), b"1");
        peer.serve();
    });
    let daemon = Daemon::start(options(FakeBroker::start("127.0.0.1", script, idle()).port));
    assert_eq!(tells.recv_timeout(PATIENCE).unwrap(), 0);
    pause(&daemon);
    go.send(()).unwrap();
    let delivered = tells.recv_timeout(PATIENCE).unwrap();
    // On a busy machine it is received later.
    daemon.quiet_for(Duration::from_secs(12), is_request);
    let resumed = clock::wall_ms();
    daemon.amqp.intake(Intake::Resume);
    let (request, may_wait) = daemon.wait("the request", |event| match event {
        Event::Requests { mut requests, may_wait } => Some((requests.remove(0), may_wait)),
        _ => None,
    });
    let RequestBody::Items(items) = &request.body else { panic!("{request:?}") };
    let at = items[0].at.unwrap();
    assert_eq!(at, request.received + DELAY);
    assert!((delivered + DELAY..resumed).contains(&at), "{at}: {delivered}, {resumed}");
    assert!(!may_wait, "it is overdue");
}

/// Deliveries held for nearly the broker's consumer timeout are returned once, and consuming begins again
/// with the resume. A pause without held deliveries returns nothing, however long it is.
/// Judges promise 12.
#[test]
fn deliveries_held_for_too_long_are_returned_once() {
    let (told, tells) = channel();
    let (go, next) = channel::<()>();
    let next = Mutex::new(next);
    let script: Script = Box::new(move |mut peer, n| {
        assert_eq!(n, 0, "the connection stays");
        let mut consumed = None;
        loop {
            match peer.next() {
                Seen::Consume { channel, tag, .. } => {
                    told.send("consume").unwrap();
                    consumed = Some(channel);
                    peer.deliver(channel, &tag, 1, BasicProperties::default(), b"1");
                    next.lock().unwrap().recv().unwrap();
                    for tag_of in 2..=4 {
                        peer.deliver(channel, &tag, tag_of, BasicProperties::default(), b"n");
                    }
                }
                Seen::Closed if consumed.take().is_some() => told.send("returned").unwrap(),
                Seen::Gone => return,
                _ => {}
            }
        }
    });
    let log = log();
    let mut options = options(FakeBroker::start("127.0.0.1", script, idle()).port);
    options.held_limit = Duration::from_secs(2);
    let daemon = Daemon::start(options);
    assert_eq!(tells.recv_timeout(PATIENCE).unwrap(), "consume");
    let first = daemon.request().delivery;
    daemon.amqp.intake(Intake::Pause);
    daemon.quiet_for(Duration::from_secs(4), is_request);
    daemon.amqp.ack(vec![Ack { delivery: first, multiple: true }]);
    go.send(()).unwrap();
    assert_eq!(tells.recv_timeout(PATIENCE).unwrap(), "returned");
    daemon.wait("the loss", |event| matches!(event, Event::Broker(BrokerEvent::IngestLost)).then_some(()));
    daemon.quiet_for(Duration::from_secs(3), is_request);
    let text = String::from_utf8_lossy(&log.lock().unwrap()).into_owned();
    assert!(text.contains("returned 3 deliveries to the queue"), "it is logged");
    daemon.amqp.intake(Intake::Resume);
    assert_eq!(tells.recv_timeout(PATIENCE).unwrap(), "consume");
    assert_eq!(daemon.request().delivery, Delivery { generation: 2, tag: 1 });
    go.send(()).unwrap();
}

/// What a pause holds lies in memory: large deliveries shrink the prefetch at once, and the broker sends no
/// more than fits.
/// Excluded: a prefetch for small requests that stays until the resume, whatever comes.
/// Judges promise 7.
#[test]
fn large_deliveries_during_a_pause_shrink_the_prefetch() {
    let (told, tells) = channel();
    let (go, next) = channel::<()>();
    let next = Mutex::new(next);
    let script: Script = Box::new(move |mut peer, _| {
        let mut delivered = 0;
        loop {
            match peer.next() {
                Seen::Consume { channel, tag, prefetch } => {
                    told.send(Some(prefetch)).unwrap();
                    let (count, size) = match delivered {
                        0 => (u64::from(prefetch), 10),
                        _ => (3, 60_000),
                    };
                    if size > 10 {
                        next.lock().unwrap().recv().unwrap();
                    }
                    for _ in 0..count {
                        delivered += 1;
                        peer.deliver(channel, &tag, delivered, BasicProperties::default(), &vec![b'x'; size]);
                    }
                }
                Seen::Cancelled => told.send(None).unwrap(),
                Seen::Gone => return,
                _ => {}
            }
        }
    });
    let mut options = options(FakeBroker::start("127.0.0.1", script, idle()).port);
    (options.memory, options.limits.max_body) = (6 << 20, 64 << 10);
    let daemon = Daemon::start(options);
    let heard = || tells.recv_timeout(PATIENCE).unwrap();
    assert_eq!((heard(), heard(), heard()), (Some(16), None, Some(64)));
    (0..16).for_each(|_| drop(daemon.request()));
    pause(&daemon);
    go.send(()).unwrap();
    assert_eq!(heard(), None);
    assert!(heard().is_some_and(|prefetch| prefetch < 20), "what fits beside those that are held");
    daemon.quiet_for(A_WHILE, is_request);
    daemon.amqp.intake(Intake::Resume);
    let last = (0..3).map(|_| daemon.request().delivery).last().unwrap();
    assert_eq!(last, Delivery { generation: 1, tag: 19 }, "nothing was returned");
    go.send(()).unwrap();
}

/// Requests stay unacked, as with the memory store, and a large one comes: the next consumer takes what fits
/// beside them, at once, and once it has used that up, another one does. Of all together no more are unacked
/// than configured; then that is shown until something is acked.
/// Excluded: a rest until most of what waits is acked; more unacked requests than configured; a standstill
/// that shows nowhere.
/// Judges promise 7.
#[test]
fn one_large_request_does_not_stop_the_intake_while_others_stay_unacked() {
    const ALL: u64 = 1_000;
    const LARGE: u64 = 301;
    let (told, tells) = channel();
    let script: Script = Box::new(move |mut peer, _| {
        let mut delivered = 0;
        loop {
            match peer.next() {
                Seen::Consume { channel, tag, prefetch } => {
                    told.send(u64::from(prefetch)).unwrap();
                    let last = (delivered + u64::from(prefetch)).min(ALL);
                    while delivered < last {
                        delivered += 1;
                        let size = if delivered == LARGE { 60_000 } else { 10 };
                        let body = vec![b'x'; size];
                        peer.deliver(channel, &tag, delivered, BasicProperties::default(), &body);
                        if delivered == LARGE {
                            break;
                        }
                    }
                }
                Seen::Gone => return,
                _ => {}
            }
        }
    });
    let mut options = options(FakeBroker::start("127.0.0.1", script, idle()).port);
    (options.memory, options.limits.max_body) = (64 << 20, 64 << 10);
    let daemon = Daemon::start(options);
    for tag in 1..=ALL {
        assert_eq!(daemon.request().delivery, Delivery { generation: 1, tag });
    }
    let notes = |event| match event {
        Event::Broker(BrokerEvent::Link { side: Side::Ingest, link: LinkStatus::Up { notes, .. } }) => {
            Some(notes)
        }
        _ => None,
    };
    let shown = daemon.wait("the note", |event| notes(event).filter(|notes| !notes.is_empty()));
    assert!(shown[0].contains("until some of them are acked: as many are unacked as"), "{shown:?}");
    let prefetches: Vec<u64> = tells.try_iter().collect();
    assert_eq!(prefetches[..3], [16, 64, 920]);
    // 12 MiB less what is unacked, divided by 60 KB.
    assert!((150..=210).contains(&prefetches[3]), "{prefetches:?}");
    assert_eq!(LARGE + prefetches[3..].iter().sum::<u64>(), ALL, "{prefetches:?}");
    daemon.amqp.ack(vec![Ack { delivery: Delivery { generation: 1, tag: 500 }, multiple: true }]);
    let next = tells.recv_timeout(PATIENCE).unwrap();
    assert!((100..=500).contains(&next), "{next}");
    daemon.wait("the end of the note", |event| notes(event).filter(Vec::is_empty));
}

/// The prefetch grows by a new consumer on the same channel, and only when no delivery is in flight.
#[test]
fn the_prefetch_grows_when_it_is_used_up_and_messages_are_small() {
    let (told, tells) = channel();
    let script: Script = Box::new(move |mut peer, _| {
        let mut delivered = 0;
        let mut on_the_way = 0;
        loop {
            match peer.next() {
                Seen::Consume { channel, tag, prefetch } => {
                    told.send((channel, prefetch)).unwrap();
                    on_the_way = prefetch;
                    while on_the_way > 0 && delivered < 900 {
                        delivered += 1;
                        on_the_way -= 1;
                        peer.deliver(channel, &tag, delivered, BasicProperties::default(), b"small");
                    }
                }
                Seen::Cancelled => assert_eq!(on_the_way, 0, "a delivery would come again"),
                Seen::Gone => return,
                _ => {}
            }
        }
    });
    let daemon = Daemon::start(options(FakeBroker::start("127.0.0.1", script, idle()).port));
    for tag in 1..=900 {
        assert_eq!(daemon.request().delivery, Delivery { generation: 1, tag });
    }
    let all: Vec<(u16, u16)> = (0..3).map(|_| tells.recv_timeout(PATIENCE).unwrap()).collect();
    assert!(all.iter().all(|(channel, _)| *channel == all[0].0), "{all:?}");
    assert_eq!(
        all.iter().map(|(_, prefetch)| *prefetch).collect::<Vec<_>>(),
        [16, 64, 920],
        "1,000 together"
    );
    assert_eq!(daemon.amqp.prefetch(), 1_000);
}

/// The lock queue belongs to another connection: this daemon stands by, logs that once, and continues once it
/// has the lock, all on one connection. While the queue has a consumer it does not even try the lock, because
/// a refusal closes a channel.
/// Judges promise 11.
#[test]
fn a_second_daemon_waits_for_the_lock() {
    const LOCK: &str = "tidegate.lock.tidegate.ingest";
    let (looks, counted) = channel();
    let script: Script = Box::new(move |mut peer, n| {
        assert_eq!(n, 0, "another connection");
        peer.refuse(LOCK, 405, "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue");
        peer.consumers("tidegate.ingest", 1);
        let (mut tries, mut counts) = (0, 0);
        while counts < 6 {
            match peer.next() {
                Seen::Refused => tries += 1,
                Seen::Counted => counts += 1,
                Seen::Consume { .. } => panic!("consumed without the lock"),
                Seen::Gone => panic!("it has left its connection"),
                _ => {}
            }
        }
        looks.send(tries).unwrap();
        peer.accept(LOCK);
        peer.consumers("tidegate.ingest", 0);
        assert!(peer.next_consume().is_some());
        peer.serve();
    });
    let log = log();
    let daemon = Daemon::start(options(FakeBroker::start("127.0.0.1", script, idle()).port));
    let reason = daemon.wait("the reason", |event| match event {
        Event::Broker(BrokerEvent::Link { side: Side::Ingest, link: LinkStatus::Standby { reason } }) => {
            Some(reason)
        }
        _ => None,
    });
    assert!(reason.contains("another tidegate serves queue 'tidegate.ingest'"), "{reason}");
    assert!(reason.contains(LOCK) && reason.contains("former connection"), "{reason}");
    daemon.wait("its turn", |event| {
        matches!(event, Event::Broker(BrokerEvent::IngestReady { .. })).then_some(())
    });
    assert_eq!(counted.recv_timeout(PATIENCE).unwrap(), 1, "tries of the lock");
    let text = String::from_utf8_lossy(&log.lock().unwrap()).into_owned();
    assert_eq!(text.matches("standing by").count(), 1, "{text}");
    assert_eq!(daemon.amqp.stats().ingest_failures, 0);
}

/// Without permission to declare the lock it consumes all the same, and names the permission to grant.
/// Judges promise 11.
#[test]
fn without_the_right_to_the_lock_it_counts_consumers_and_warns() {
    const LOCK: &str = "tidegate.lock.tidegate.ingest";
    let script: Script = Box::new(move |mut peer, _| {
        peer.refuse(LOCK, 403, "ACCESS_REFUSED - configure access refused");
        assert!(peer.next_consume().is_some());
        peer.serve();
    });
    let log = log();
    let daemon = Daemon::start(options(FakeBroker::start("127.0.0.1", script, idle()).port));
    daemon.wait("the consumer", |event| {
        matches!(event, Event::Broker(BrokerEvent::IngestReady { .. })).then_some(())
    });
    let text = String::from_utf8_lossy(&log.lock().unwrap()).into_owned();
    let warning = text.lines().find(|line| line.contains("WARN") && line.contains("guarded weakly"));
    let named =
        warning.is_some_and(|line| line.contains("Grant the configure permission") && line.contains(LOCK));
    assert!(named, "{warning:?}");
}
