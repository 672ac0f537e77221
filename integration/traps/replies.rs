//! Answers to commands: each is reported exactly once, whatever the broker does, and none affects a batch.

use crate::fake_broker::harness::*;
use crate::fake_broker::{idle, FakeBroker, Published, Script, Seen};
use lapin::BasicProperties;
use std::net::TcpListener;
use std::sync::mpsc::channel;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tidegate_amqp::{BrokerEvent, Event, Options, OutgoingReply};
use tidegate_config::Config;
use tidegate_types::{Delivery, ReplyTo};

/// The contract's time limit for one answer.
const BY_CONTRACT: Duration = Duration::from_secs(5);
/// A time limit for answers of which some are sent and some are given up, and a margin for a busy machine.
const LIMIT: Duration = Duration::from_secs(15);
const GRACE: Duration = PATIENCE;
/// The body of every answer; it must not appear in a log.
const BODY: &[u8] = b"{\"result\":\"canary-answer\"}";

/// With a time limit for answers that a busy machine does not exceed: all of them are sent.
fn ample(port: u16) -> Options {
    Options { answer_limit: PATIENCE, ..options(port) }
}

/// With the time limit for answers of which some are given up.
fn limited(port: u16) -> Options {
    Options { answer_limit: LIMIT, ..options(port) }
}

/// An answer for a queue that is named after the tag.
fn reply(tag: u64) -> OutgoingReply {
    OutgoingReply {
        delivery: Delivery { generation: 1, tag },
        reply_to: ReplyTo {
            queue: format!("answers{tag}").into(),
            correlation_id: Some(format!("c{tag}").into()),
        },
        body: BODY.to_vec(),
    }
}

fn replies(tags: impl IntoIterator<Item = u64>) -> Vec<OutgoingReply> {
    tags.into_iter().map(reply).collect()
}

impl Daemon {
    /// Waits for `count` reported answers; fails if one is reported twice.
    fn answered(&self, count: usize) -> Vec<u64> {
        let mut tags = Vec::new();
        while tags.len() < count {
            tags.extend(self.wait("answers told", |event| match event {
                Event::Broker(BrokerEvent::Answered(deliveries)) => {
                    Some(deliveries.into_iter().map(|delivery| delivery.tag))
                }
                _ => None,
            }));
        }
        tags.sort_unstable();
        let told = tags.len();
        tags.dedup();
        assert_eq!((tags.len(), told), (count, count), "each once");
        tags
    }

    fn nothing_more_is_answered(&self) {
        self.quiet_for(Duration::from_millis(600), |event| {
            matches!(event, Event::Broker(BrokerEvent::Answered(_)))
        });
    }
}

/// A broker that confirms batches.
fn broker(answers: Script) -> FakeBroker {
    let batches: Script = Box::new(|mut peer, n| {
        assert_eq!(n, 0, "answers cost the batches no connection");
        loop {
            match peer.next() {
                Seen::Published(p) => peer.ack(p.channel, p.tag, false),
                Seen::Gone => return,
                _ => {}
            }
        }
    });
    FakeBroker::answering("127.0.0.1", idle(), batches, answers)
}

#[test]
fn an_answer_goes_out_while_a_batch_is_unconfirmed() {
    let (told, tells) = channel();
    let (arrived, arrivals) = channel();
    let (go, next) = channel::<()>();
    let next = Mutex::new(next);
    let batches: Script = Box::new(move |mut peer, _| {
        let first = peer.next_publish();
        arrived.send(()).unwrap();
        next.lock().unwrap().recv().unwrap();
        peer.ack(first.channel, first.tag, false);
        peer.serve();
    });
    let answers: Script = Box::new(move |mut peer, _| {
        let answer = peer.next_publish();
        peer.ack(answer.channel, answer.tag, false);
        told.send(answer).unwrap();
        peer.serve();
    });
    let broker = FakeBroker::answering("127.0.0.1", idle(), batches, answers);
    let daemon = Daemon::start(ample(broker.port));
    daemon.ready();
    daemon.amqp.publish(vec![batch(1)]);
    arrivals.recv_timeout(PATIENCE).unwrap();
    daemon.amqp.reply(vec![reply(7)]);
    let answer = tells.recv_timeout(PATIENCE).unwrap();
    assert_eq!(daemon.answered(1), [7]);
    assert_eq!((answer.exchange.as_str(), answer.routing_key.as_str()), ("", "answers7"));
    assert!(answer.mandatory);
    assert_eq!(answer.body, BODY);
    let sent = *answer.properties.timestamp();
    assert!(sent.is_some_and(|at| at > 1_700_000_000));
    let expected = BasicProperties::default()
        .with_correlation_id("c7".into())
        .with_content_type("application/json".into())
        .with_app_id("tidegate".into())
        .with_type("tidegate.answer".into())
        .with_delivery_mode(2)
        .with_timestamp(sent.unwrap_or_default())
        .with_headers(Default::default());
    assert_eq!(answer.properties, expected);
    go.send(()).unwrap();
    assert_eq!(daemon.settled(1)[&1], confirmed(1));
    daemon.nothing_more_is_answered();
}

/// The user may not write to the default exchange: the broker closes the channel at each answer.
#[test]
fn a_refused_answer_is_told_and_named_and_costs_no_batch() {
    let script: Script = Box::new(|mut peer, n| {
        assert_eq!(n, 0, "the connection stays");
        let mut refused = 0;
        loop {
            match peer.next() {
                Seen::Published(p) if p.routing_key != "answers9" => {
                    if refused == 0 {
                        let text = "ACCESS_REFUSED - access to exchange 'amq.default' in vhost '/' refused";
                        peer.close_channel(p.channel, 403, text);
                    }
                    refused += 1;
                }
                Seen::Published(p) => peer.ack(p.channel, p.tag, false),
                Seen::Gone => return,
                _ => {}
            }
        }
    });
    let log = log();
    let daemon = Daemon::start(ample(broker(script).port));
    daemon.ready();
    daemon.amqp.reply(replies(1..=3));
    assert_eq!(daemon.answered(3), [1, 2, 3]);
    daemon.amqp.publish(vec![batch(1)]);
    assert_eq!(daemon.settled(1)[&1], confirmed(1));
    daemon.amqp.reply(vec![reply(9)]);
    assert_eq!(daemon.answered(1), [9], "over another channel");
    daemon.nothing_more_is_answered();
    assert_eq!(daemon.amqp.stats().egress_failures, 0);
    let log = String::from_utf8_lossy(&log.lock().unwrap()).into_owned();
    let warning = log.lines().find(|line| line.contains("WARN") && line.contains("amq.default"));
    assert!(warning.is_some_and(|line| line.contains("write permission")), "{warning:?}");
    assert!(!log.contains("canary-answer"));
}

/// Nothing can be sent: the oldest answers are dropped when there are too many, and the others at their time
/// limit.
#[test]
fn without_a_connection_answers_are_given_up_in_time() {
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = nobody.local_addr().unwrap().port();
    drop(nobody);
    assert_eq!(Options::new(&Config::default(), STORE, None).answer_limit, BY_CONTRACT);
    let daemon = Daemon::start(limited(port));
    let began = Instant::now();
    daemon.amqp.reply(replies(1..=10_003));
    assert_eq!(daemon.answered(3), [1, 2, 3]);
    assert!(began.elapsed() < LIMIT);
    assert_eq!(daemon.answered(10_000), (4..=10_003).collect::<Vec<_>>());
    assert!(began.elapsed() >= LIMIT && began.elapsed() < LIMIT + GRACE, "{:?}", began.elapsed());
    daemon.nothing_more_is_answered();
}

/// An unconfirmed answer may or may not have arrived: it is reported, and not sent again on the next
/// connection.
#[test]
fn a_lost_connection_ends_what_is_unconfirmed_and_keeps_what_waits() {
    let (told, tells) = channel();
    let (go, next) = channel::<()>();
    let next = Mutex::new(next);
    let script: Script = Box::new(move |mut peer, n| {
        if n == 0 {
            for _ in 0..64 {
                peer.next_publish();
            }
            next.lock().unwrap().recv().unwrap();
            return;
        }
        loop {
            match peer.next() {
                Seen::Published(p) => {
                    peer.ack(p.channel, p.tag, false);
                    told.send(p.routing_key).unwrap();
                }
                Seen::Gone => return,
                _ => {}
            }
        }
    });
    let daemon = Daemon::start(ample(broker(script).port));
    daemon.ready();
    daemon.amqp.reply(replies(1..=66));
    daemon.amqp.publish(vec![batch(1)]);
    assert_eq!(daemon.settled(1)[&1], confirmed(1));
    go.send(()).unwrap();
    assert_eq!(daemon.answered(64), (1..=64).collect::<Vec<_>>());
    assert_eq!(daemon.answered(2), [65, 66]);
    let mut sent = [tells.recv_timeout(PATIENCE).unwrap(), tells.recv_timeout(PATIENCE).unwrap()];
    sent.sort();
    assert_eq!(sent, ["answers65", "answers66"]);
    daemon.nothing_more_is_answered();
    assert!(tells.try_recv().is_err());
}

#[test]
fn while_blocked_answers_wait_and_then_are_given_up() {
    let (go, next) = channel::<()>();
    let next = Mutex::new(next);
    let script: Script = Box::new(move |mut peer, n| {
        assert_eq!(n, 0, "the connection is not given up while blocked");
        let first = peer.next_publish();
        // The confirm comes after it: once the confirm is reported, the block is known.
        peer.blocked("low on memory");
        peer.ack(first.channel, first.tag, false);
        next.lock().unwrap().recv().unwrap();
        peer.unblocked();
        let second = peer.next_publish();
        assert_eq!(second.routing_key, "answers2");
        peer.blocked("low on disk");
        peer.ack(second.channel, second.tag, false);
        peer.serve();
    });
    let daemon = Daemon::start(limited(broker(script).port));
    daemon.amqp.reply(vec![reply(1)]);
    assert_eq!(daemon.answered(1), [1]);
    daemon.amqp.reply(vec![reply(2)]);
    daemon.nothing_more_is_answered();
    go.send(()).unwrap();
    assert_eq!(daemon.answered(1), [2]);
    let began = Instant::now();
    daemon.amqp.reply(vec![reply(3)]);
    assert_eq!(daemon.answered(1), [3]);
    assert!(began.elapsed() >= LIMIT && began.elapsed() < LIMIT + GRACE, "{:?}", began.elapsed());
    daemon.nothing_more_is_answered();
}

#[test]
fn a_connection_lost_while_blocked_is_replaced() {
    let (told, tells) = channel();
    let (go, next) = channel::<()>();
    let next = Mutex::new(next);
    let script: Script = Box::new(move |mut peer, n| {
        let answer = peer.next_publish();
        if n == 0 {
            peer.blocked("low on memory");
            peer.ack(answer.channel, answer.tag, false);
            next.lock().unwrap().recv().unwrap();
        } else {
            peer.ack(answer.channel, answer.tag, false);
            told.send(answer.routing_key).unwrap();
            peer.serve();
        }
    });
    let daemon = Daemon::start(ample(broker(script).port));
    daemon.amqp.reply(vec![reply(1)]);
    assert_eq!(daemon.answered(1), [1]);
    let began = Instant::now();
    daemon.amqp.reply(vec![reply(2)]);
    go.send(()).unwrap();
    assert_eq!(daemon.answered(1), [2]);
    assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
    assert_eq!(tells.recv_timeout(PATIENCE).unwrap(), "answers2");
    daemon.nothing_more_is_answered();
}

#[test]
fn only_so_many_answers_are_unconfirmed_at_a_time() {
    let (told, tells) = channel();
    let script: Script = Box::new(move |mut peer, _| {
        let first: Vec<Published> = (0..64).map(|_| peer.next_publish()).collect();
        told.send(peer.is_quiet(Duration::from_millis(300))).unwrap();
        peer.ack(first[63].channel, 64, true);
        let rest: Vec<Published> = (0..36).map(|_| peer.next_publish()).collect();
        peer.nack(rest[0].channel, rest[0].tag);
        for answer in &rest[1..] {
            peer.ack(answer.channel, answer.tag, false);
        }
        peer.serve();
    });
    let daemon = Daemon::start(ample(broker(script).port));
    daemon.amqp.reply(replies(1..=100));
    assert!(tells.recv_timeout(PATIENCE).unwrap(), "no more than 64 come");
    assert_eq!(daemon.answered(100), (1..=100).collect::<Vec<_>>(), "a nack ends the wait as well");
    daemon.nothing_more_is_answered();
}

#[test]
fn a_connection_that_does_not_confirm_is_left_for_another() {
    let (told, tells) = channel();
    let script: Script = Box::new(move |mut peer, n| {
        let answer = peer.next_publish();
        if n == 0 {
            peer.serve();
            told.send(()).unwrap();
        } else {
            peer.ack(answer.channel, answer.tag, false);
            peer.serve();
        }
    });
    let daemon = Daemon::start(limited(broker(script).port));
    let began = Instant::now();
    daemon.amqp.reply(vec![reply(1)]);
    assert_eq!(daemon.answered(1), [1]);
    assert!(began.elapsed() >= LIMIT && began.elapsed() < LIMIT + GRACE, "{:?}", began.elapsed());
    tells.recv_timeout(PATIENCE).unwrap();
    daemon.amqp.reply(vec![reply(2)]);
    assert_eq!(daemon.answered(1), [2]);
    daemon.nothing_more_is_answered();
}

#[test]
fn a_shutdown_sends_what_it_can_and_tells_of_the_rest() {
    let script: Script = Box::new(|mut peer, _| {
        let first = peer.next_publish();
        peer.next_publish();
        peer.ack(first.channel, first.tag, false);
        peer.serve();
    });
    let daemon = Daemon::start(options(broker(script).port));
    daemon.ready();
    daemon.amqp.reply(replies(1..=2));
    daemon.runtime.block_on(daemon.amqp.shutdown(Duration::from_secs(2)));
    assert_eq!(daemon.answered(2), [1, 2]);
    daemon.nothing_more_is_answered();
}
