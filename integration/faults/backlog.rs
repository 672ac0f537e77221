//! Rows 34, 35 and 36: many items due within one second, while the daemon runs and while it is down.

use crate::scene::{Bystander, Context, Row, Scene};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_harness::{now_ms, Inbox, Ledger, Raw, RawProperties};

/// Upper bound of the process's memory: its limit of 256 MiB and the fixed costs.
const MOST_MEMORY: u64 = 450 << 20;

/// The headers `x-deliver-at` and `x-customer`.
fn headers(when: u64, customer: &str) -> Vec<u8> {
    let mut entries = vec![12];
    entries.extend_from_slice(b"x-deliver-at");
    entries.push(b'l');
    entries.extend_from_slice(&when.to_be_bytes());
    entries.push(10);
    entries.extend_from_slice(b"x-customer");
    entries.push(b'S');
    entries.extend_from_slice(&u32::try_from(customer.len()).expect("a short name").to_be_bytes());
    entries.extend_from_slice(customer.as_bytes());
    entries
}

/// Publishes `count` requests of 10,000 customers, due within the second that begins at `due`.
fn publish(scene: &Scene<'_>, count: u64, due: u64) {
    let mut raw = Raw::connect(scene.site.node);
    let exchange = scene.site.ingest();
    for n in 0..count {
        // Latest due first, so that the daemon must sort.
        let when = due + 999 - n % 1000;
        let customer = format!("c{}", n % 10_000);
        let id = format!("b{n}");
        scene.ledger.sending(&id, "big", Some(&customer), Some(when));
        let properties = RawProperties::default()
            .headers(&headers(when, &customer))
            .persistent()
            .message_id(id.as_bytes());
        raw.put(&exchange, b"big", &properties, b"{}");
        if n % 500 == 499 {
            raw.settle(1500);
        }
    }
    raw.settle(0);
    for n in 0..count {
        scene.ledger.confirmed(&format!("b{n}"));
    }
}

/// Receives and records everything. Returns the largest step backwards in the order of dues, ms.
fn receive(inbox: &Inbox, ledger: &Arc<Ledger>, limit: Duration) -> i64 {
    let end = Instant::now() + limit;
    let (mut latest, mut back) = (0, 0);
    while ledger.missing() > 0 && Instant::now() < end {
        while let Some(received) = inbox.poll(Duration::from_millis(500)) {
            let due = received.number("x-due").unwrap_or(0);
            latest = latest.max(due);
            back = back.max(latest - due);
            ledger.received(received);
        }
    }
    back
}

fn count(context: &Context) -> u64 {
    if context.long {
        1_000_000
    } else {
        100_000
    }
}

/// Longer than it takes to publish this many, ms.
fn lead_ms(count: u64) -> u64 {
    20_000 + count / 10
}

/// Everything becomes due within one second while the daemon runs; another application continues.
pub fn one_second(context: &Context) -> Row {
    let mut scene = Scene::on(context, &context.node, "burst", |_, c| c);
    scene.start();
    scene.send([(scene.site.push("shop", "{}").id("first"), "shop".to_owned(), None, None)]);
    let count = count(context);
    let inbox = scene.site.inbox("big");
    let due = now_ms() + lead_ms(count);
    publish(&scene, count, due);
    scene.check(now_ms() < due, "publishing took longer than the lead");
    scene.check_soon("all of it is accepted", Duration::from_secs(120), |s| s.total("accepted") > count);
    let bystander = Bystander::start(&scene);
    scene.fault();
    let back = receive(&inbox, &scene.ledger, Duration::from_secs(300));
    scene.healed();
    scene.check(back <= 1000, format!("the order of dues was turned back by {back} ms"));
    bystander.finish(&mut scene, Duration::from_secs(10));
    let peak = scene.daemon.peak_rss();
    scene.check(peak < MOST_MEMORY, format!("{} MiB resident", peak >> 20));
    scene.finish()
}

/// A daemon that was stopped with a backlog which has become due; and the first due.
fn stopped_with_a_backlog<'c>(context: &'c Context, name: &str) -> (Scene<'c>, Inbox, u64) {
    let mut scene = Scene::on(context, &context.node, name, |_, c| c);
    scene.start();
    let count = count(context);
    let inbox = scene.site.inbox("big");
    let due = now_ms() + lead_ms(count);
    publish(&scene, count, due);
    scene.check(now_ms() < due, "publishing took longer than the lead");
    scene.check_soon("all of it is accepted", Duration::from_secs(120), |s| s.total("accepted") == count);
    scene.restarted = true;
    scene.fault();
    scene.daemon.term();
    scene.daemon.exit(Duration::from_secs(20));
    while now_ms() < due + 1000 {
        std::thread::sleep(Duration::from_millis(20));
    }
    (scene, inbox, due)
}

/// The daemon is stopped again while the backlog leaves, three times.
pub fn terminated(context: &Context) -> Row {
    let (mut scene, inbox, _) = stopped_with_a_backlog(context, "replay");
    for _ in 0..3 {
        scene.start();
        let came = inbox.poll(Duration::from_secs(180));
        scene.check(came.is_some(), "nothing leaves");
        came.into_iter().for_each(|received| scene.ledger.received(received));
        scene.fault();
        scene.daemon.term();
        let status = scene.daemon.exit(Duration::from_secs(15));
        scene.check(status.code() == Some(0), format!("it ended with {status}"));
        scene.check(scene.ledger.missing() > 0, "everything had left before it was stopped");
    }
    scene.start();
    scene.healed();
    receive(&inbox, &scene.ledger, Duration::from_secs(300));
    scene.finish()
}

/// Everything becomes due while the daemon is down.
pub fn overdue(context: &Context) -> Row {
    let (mut scene, inbox, due) = stopped_with_a_backlog(context, "overdue");
    let begun = Instant::now();
    scene.daemon.start_again();
    let first = inbox.poll(Duration::from_secs(180));
    let took = begun.elapsed();
    scene.check(took < Duration::from_secs(30), format!("the first delivery came {took:?} after the start"));
    if let Some(first) = first {
        let oldest = first.number("x-due").is_some_and(|at| at < i64::try_from(due).unwrap_or(0) + 100);
        scene.check(oldest, "the oldest is not the first");
        scene.ledger.received(first);
    }
    scene.daemon.wait_ready();
    scene.healed();
    let back = receive(&inbox, &scene.ledger, Duration::from_secs(300));
    scene.check(back <= 1000, format!("the order of dues was turned back by {back} ms"));
    let peak = scene.daemon.peak_rss();
    scene.check(peak < MOST_MEMORY, format!("{} MiB resident", peak >> 20));
    let mut row = scene.finish();
    row.recovery_ms = u64::try_from(took.as_millis()).ok();
    row
}
