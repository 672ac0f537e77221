//! Rows 50 to 58: large amounts of work at once. No turn of the loop may take long, and another application
//! is served in time.
//!
//! Measured values are judged by the best of three runs, because other work on the machine delays a run.
//! Losses and early deliveries count in every run.
//!
//! Judges promises 6 and 7.

use crate::scene::{Bystander, Context, Row, Scene};
use std::fmt::Write as _;
use std::time::{Duration, Instant};
use tidegate_harness::{now_ms, Config, Raw, RawProperties};

/// Upper bound of the loop's longest turn.
const LONGEST_TURN: Duration = Duration::from_millis(50);
/// Upper bound of the other application's lateness, including that of the machine and the broker.
const LATEST: Duration = Duration::from_secs(2);
const RUNS: u32 = 3;
const HOUR_MS: u64 = 3_600_000;
/// Time to take in what was sent, and to deliver it.
const PATIENCE: Duration = Duration::from_secs(300);

/// One header of a raw request.
enum Header<'a> {
    Number(&'a str, u64),
    Text(&'a str, &'a str),
}

fn table(headers: &[Header<'_>]) -> Vec<u8> {
    let mut out = vec![];
    let name = |out: &mut Vec<u8>, name: &str| {
        out.push(u8::try_from(name.len()).expect("a short name"));
        out.extend_from_slice(name.as_bytes());
    };
    for header in headers {
        match header {
            Header::Number(key, value) => {
                name(&mut out, key);
                out.push(b'l');
                out.extend_from_slice(&value.to_be_bytes());
            }
            Header::Text(key, value) => {
                name(&mut out, key);
                out.push(b'S');
                out.extend_from_slice(&u32::try_from(value.len()).expect("a short text").to_be_bytes());
                out.extend_from_slice(value.as_bytes());
            }
        }
    }
    out
}

/// Publishes `count` requests for the applications that `application` returns.
fn publish(
    scene: &Scene<'_>,
    count: u64,
    application: impl Fn(u64) -> String,
    headers: impl Fn(u64) -> Vec<u8>,
) {
    let mut raw = Raw::connect(scene.site.node);
    let exchange = scene.site.ingest();
    for n in 0..count {
        let id = format!("t{n}");
        let properties = RawProperties::default().headers(&headers(n)).persistent().message_id(id.as_bytes());
        raw.put(&exchange, application(n).as_bytes(), &properties, b"{}");
        if n % 500 == 499 {
            raw.settle(1500);
        }
    }
    raw.settle(0);
}

/// Polls at a low rate: the state document of many applications is work too.
fn wait(scene: &mut Scene<'_>, what: &str, holds: impl Fn(&Scene<'_>) -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds(scene) {
        if Instant::now() > end {
            scene.check(false, format!("not within {PATIENCE:?}: {what}"));
            return;
        }
        std::thread::sleep(Duration::from_millis(250));
    }
}

fn waits_for(scene: &mut Scene<'_>, key: &str, count: u64) {
    wait(scene, &format!("{count} items are {key}"), |s| s.daemon.items(key) >= count);
}

struct Shape {
    name: &'static str,
    count: u64,
    /// The count with `--long`.
    long: u64,
    config: fn(Config) -> Config,
    work: fn(&mut Scene<'_>, u64),
}

impl Shape {
    fn run(&self, context: &Context) -> Row {
        let mut best: Option<Row> = None;
        for _ in 0..RUNS {
            let row = self.once(context);
            let good = row.longest_turn_us.is_none_or(|us| u128::from(us) <= LONGEST_TURN.as_micros())
                && u128::try_from(row.worst_ms).is_ok_and(|ms| ms <= LATEST.as_millis());
            if good || !row.wrong.is_empty() {
                return row;
            }
            let better = best.as_ref().is_none_or(|best| row.longest_turn_us < best.longest_turn_us);
            best = if better { Some(row) } else { best };
        }
        let mut row = best.unwrap_or_default();
        let turn_ms = row.longest_turn_us.unwrap_or(0) / 1000;
        row.wrong.push(format!(
            "the best of {RUNS} runs: longest turn {turn_ms} ms, the others late by {} ms",
            row.worst_ms
        ));
        row
    }

    fn once(&self, context: &Context) -> Row {
        let count = if context.long { self.long } else { self.count };
        let mut scene = Scene::on(context, &context.node, self.name, |_, c| (self.config)(c));
        scene.start();
        scene.send([(scene.site.push("shop", "{}").id("first"), "shop".to_owned(), None, None)]);
        let bystander = Bystander::start(&scene);
        scene.fault();
        (self.work)(&mut scene, count);
        let late_us = bystander.end(&mut scene).last().copied().unwrap_or(0);
        scene.healed();
        let longest_turn_us = scene.daemon.state()["longest_turn_us"].as_u64();
        let mut row = scene.leave();
        row.requests = count;
        row.worst_ms = late_us / 1000;
        row.longest_turn_us = longest_turn_us;
        if longest_turn_us.is_none() {
            row.lacking = Some("`longest_turn_us` in the state document".to_owned());
        }
        row
    }
}

fn big(_: u64) -> String {
    "big".to_owned()
}

/// Items of one customer become due within one second.
pub fn one_customer(context: &Context) -> Row {
    let work = |scene: &mut Scene<'_>, count: u64| {
        let inbox = scene.site.inbox("big");
        let due = now_ms() + 3_000 + count / 10;
        let headers =
            |n| table(&[Header::Number("x-deliver-at", due + n % 1000), Header::Text("x-customer", "only")]);
        publish(scene, count, big, headers);
        let mut came = 0;
        let end = Instant::now() + PATIENCE;
        while came < count && Instant::now() < end {
            let received = inbox.poll(Duration::from_secs(1));
            came += received.and_then(|r| r.number("x-count")).map_or(0, |n| u64::try_from(n).unwrap_or(0));
        }
        scene.check(came == count, format!("{came} of {count} arrived"));
    };
    Shape { name: "customer", count: 50_000, long: 1_000_000, config: |c| c, work }.run(context)
}

/// Each application has one far item.
pub fn many_applications(context: &Context) -> Row {
    let work = |scene: &mut Scene<'_>, count: u64| {
        let far = table(&[Header::Number("x-delay", HOUR_MS)]);
        publish(scene, count, |n| format!("app-{n}"), |_| far.clone());
        waits_for(scene, "waiting", count);
        // Includes the periodic work of the following seconds.
        std::thread::sleep(Duration::from_secs(3));
    };
    // Room for the other applications too.
    let config = |c: Config| c.set("limits.applications", "200000");
    Shape { name: "applications", count: 20_000, long: 100_000, config, work }.run(context)
}

/// All items are due in the same millisecond.
pub fn one_millisecond(context: &Context) -> Row {
    let work = |scene: &mut Scene<'_>, count: u64| {
        scene.site.application("big");
        let due = now_ms() + 3_000 + count / 10;
        publish(scene, count, big, |_| table(&[Header::Number("x-deliver-at", due)]));
        let queue = scene.site.queue("big");
        wait(scene, "all have left", |s| s.site.client.depth(&queue).map(u64::from) == Some(count));
    };
    Shape { name: "instant", count: 50_000, long: 1_000_000, config: |c| c, work }.run(context)
}

/// Aligned windows of many customers, which close together.
pub fn windows_together(context: &Context) -> Row {
    let work = |scene: &mut Scene<'_>, count: u64| {
        scene.site.application("big");
        publish(scene, count, big, |n| table(&[Header::Text("x-customer", &format!("c{}", n % 50_000))]));
        wait(scene, "all have left", |s| s.daemon.items("waiting") == 0);
    };
    let config = |c: Config| c.text("defaults.window", "15s").set("defaults.align", "true");
    Shape { name: "windows", count: 50_000, long: 500_000, config, work }.run(context)
}

/// Applications without a bound queue.
pub fn many_parked(context: &Context) -> Row {
    let work = |scene: &mut Scene<'_>, count: u64| {
        publish(scene, count, |n| format!("nobody-{}", n % 2_000), |_| vec![]);
        waits_for(scene, "parked", count);
        std::thread::sleep(Duration::from_secs(5));
    };
    Shape { name: "parked", count: 10_000, long: 200_000, config: |c| c, work }.run(context)
}

/// Envelopes of 10,000 entries each.
pub fn envelopes(context: &Context) -> Row {
    let work = |scene: &mut Scene<'_>, count: u64| {
        let mut raw = Raw::connect(scene.site.node);
        let exchange = scene.site.ingest();
        for n in 0..count / 10_000 {
            let mut body = String::from("[");
            for entry in 0..10_000 {
                let comma = if entry > 0 { "," } else { "" };
                let _written = write!(body, r#"{comma}{{"payload":1,"delay_ms":{HOUR_MS}}}"#);
            }
            body.push(']');
            let properties = RawProperties::default()
                .content_type(b"application/vnd.tidegate+json")
                .persistent()
                .message_id(format!("e{n}").as_bytes());
            raw.put(&exchange, b"big", &properties, body.as_bytes());
        }
        raw.settle(0);
        waits_for(scene, "waiting", count);
    };
    Shape { name: "envelopes", count: 200_000, long: 1_000_000, config: |c| c, work }.run(context)
}

/// One command cancels all items of a customer.
pub fn cancel_of_many(context: &Context) -> Row {
    let work = |scene: &mut Scene<'_>, count: u64| {
        let far = table(&[Header::Number("x-delay", HOUR_MS), Header::Text("x-customer", "only")]);
        publish(scene, count, big, |_| far.clone());
        waits_for(scene, "waiting", count);
        // The answer arrives when all are cancelled, possibly after the client's time limit.
        let _answered = scene.daemon.ask("DELETE", "/api/v1/customers/big/only/items");
        wait(scene, "none is left", |s| s.total("cancelled") >= count);
    };
    Shape { name: "cancel", count: 100_000, long: 1_000_000, config: |c| c, work }.run(context)
}

/// An application at its limit, where each new item causes the oldest to be dropped.
pub fn drops_oldest(context: &Context) -> Row {
    let work = |scene: &mut Scene<'_>, count: u64| {
        let far = |n| table(&[Header::Number("x-delay", HOUR_MS + n % 1000 * 1000)]);
        publish(scene, count, big, far);
        let queue = scene.site.ingest_queue();
        let node = scene.site.node;
        wait(scene, "all are taken", |_| node.messages(&queue) == Some(0));
        let big = |scene: &Scene<'_>| scene.daemon.ask("GET", "/api/v1/applications/big").1["total"].as_u64();
        wait(scene, "what is beyond the limit is given up", |s| big(s).is_some_and(|total| total <= 20_000));
        let left = big(scene);
        scene.check(left == Some(20_000), format!("{left:?} are left, the limit is 20000"));
    };
    let config = |c: Config| {
        c.text("applications.big.on_full", "drop-oldest").set("applications.big.max_waiting", "20000")
    };
    Shape { name: "oldest", count: 40_000, long: 400_000, config, work }.run(context)
}

/// Items of 4 MiB are in the store, and a dozen clients list them at the same time.
pub fn looks_over_large_bodies(context: &Context) -> Row {
    const BODY: usize = 4 << 20;
    /// Bounds the unconfirmed bytes at the broker.
    const AT_ONCE: u64 = 25;
    const LOOKS: u64 = 12;
    const PATHS: [&str; 3] = [
        "/api/v1/timeline?application=big&span=day",
        "/api/v1/items?application=big&limit=1000",
        "/api/v1/customers/big/only",
    ];
    let work = |scene: &mut Scene<'_>, count: u64| {
        let far = table(&[Header::Number("x-delay", HOUR_MS), Header::Text("x-customer", "only")]);
        let (exchange, body) = (scene.site.ingest(), vec![b'x'; BODY]);
        let mut raw = Raw::connect(scene.site.node);
        for n in 0..count {
            let id = format!("t{n}");
            let properties = RawProperties::default().headers(&far).persistent().message_id(id.as_bytes());
            raw.put(&exchange, b"big", &properties, &body);
            if n % AT_ONCE == AT_ONCE - 1 {
                raw.settle(0);
                waits_for(scene, "waiting", n.saturating_sub(4 * AT_ONCE));
            }
        }
        raw.settle(0);
        waits_for(scene, "waiting", count);
        let daemon = &scene.daemon;
        let answered: Vec<(&str, u16)> = std::thread::scope(|scope| {
            let look = |n: u64| {
                let path = PATHS[(n % PATHS.len() as u64) as usize];
                (path, daemon.ask("GET", path).0)
            };
            let looks: Vec<_> = (0..LOOKS).map(|n| scope.spawn(move || look(n))).collect();
            let alive = daemon.ask("GET", "/livez").0;
            let mut answered = vec![("/livez", alive)];
            answered.extend(looks.into_iter().map(|look| look.join().expect("an answer")));
            answered
        });
        for (path, status) in answered {
            // With 10 GB it takes longer than the client or the daemon allows: only the cost to others
            // counts.
            let is_late = path != "/livez" && matches!(status, 0 | 503);
            scene.check(status == 200 || is_late, format!("{status} for {path}"));
        }
    };
    Shape { name: "looks", count: 100, long: 2_500, config: |c| c, work }.run(context)
}
