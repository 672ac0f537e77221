//! `make bench`: tidegate beside a bare consumer and a naive bridge, in one run on one machine.
//!
//! Absolute figures drift from machine to machine; the ratios count. The kinds are run in turn, several times over,
//! and the median of each is told. Names on the command line (`windowed at-once`) choose rows. Time runs from the first message taken off the ingest queue to the last one at
//! its goal; a delay that was asked for is not counted. With windows it runs until the ingest queue is empty and all of
//! it is durable and acked: batches leave with their windows, a second apart, which would be the unit of the result.
#![expect(clippy::print_stdout, reason = "a program for people to read")]

use futures_util::StreamExt;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tidegate_harness::lapin::message::Delivery;
use tidegate_harness::lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions, ConfirmSelectOptions,
};
use tidegate_harness::lapin::types::FieldTable;
use tidegate_harness::lapin::{Connection, ConnectionProperties, Consumer, PublisherConfirm};
use tidegate_harness::{
    block_on, percentile, run_guarded, text, wait_until, Client, Config, Daemon, Node, Raw, RawProperties,
    Site,
};

const BODY: usize = 200;
const CUSTOMERS: u64 = 1000;
const LIMIT: Duration = Duration::from_secs(600);

struct Plan {
    messages: u64,
    repeats: usize,
    backlog: u64,
    rate: u64,
    seconds: u64,
}

/// One measured run.
#[derive(Clone, Copy, Default)]
struct Run {
    per_second: f64,
    cpu_us: f64,
    rss_mib: f64,
}

fn main() -> ExitCode {
    let (options, names): (Vec<String>, Vec<String>) =
        std::env::args().skip(1).partition(|a| a.starts_with("--"));
    let long = options.iter().any(|a| a == "--long");
    let plan = if long {
        Plan { messages: 1_000_000, repeats: 5, backlog: 1_000_000, rate: 10_000, seconds: 30 }
    } else {
        Plan { messages: 150_000, repeats: 3, backlog: 100_000, rate: 5_000, seconds: 8 }
    };
    run_guarded(|| {
        let node = Node::start("");
        println!(
            "{} messages of {BODY} B from a quorum queue, {} repeats in turn; broker, client and daemon share {} cores\n",
            plan.messages,
            plan.repeats,
            std::thread::available_parallelism().map_or(0, std::num::NonZero::get)
        );
        throughput(&node, &plan, &names);
        let wanted = |name: &str| names.is_empty() || names.iter().any(|n| n == name);
        if wanted("lateness") {
            lateness(&node, &plan);
        }
        if wanted("rates") {
            rates(&node);
        }
    });
    ExitCode::SUCCESS
}

/// What is measured: its name on the command line, how it is told, how one run of it is made, the row that it stands
/// beside, and the share of that one's rate that it is to reach.
struct Row {
    name: &'static str,
    title: &'static str,
    run: fn(&Node, u64) -> Run,
    beside: Option<&'static str>,
    goal: Option<f64>,
}

const ROWS: [Row; 9] = [
    Row {
        name: "bare",
        title: "bare consumer drain (lapin, ack every 200)",
        run: bare,
        beside: None,
        goal: None,
    },
    Row { name: "naive", title: "naive 1:1 bridge (lapin)", run: naive, beside: None, goal: None },
    Row {
        name: "windowed",
        title: "tidegate windowed, disk, 1,000 customers",
        run: |node, count| windowed(node, count, Ids::None),
        beside: Some("bare"),
        goal: Some(0.7),
    },
    Row {
        name: "windowed-ids",
        title: "windowed, a message_id on each request",
        run: |node, count| windowed(node, count, Ids::Each),
        beside: Some("bare"),
        goal: None,
    },
    Row {
        name: "delayed",
        title: "tidegate passthrough, disk, delay 1 s",
        run: |node, count| passthrough(node, count, 1000, Ids::None),
        beside: Some("naive"),
        goal: Some(0.85),
    },
    Row {
        name: "at-once",
        title: "tidegate passthrough, disk, due at once",
        run: |node, count| passthrough(node, count, 0, Ids::None),
        beside: Some("naive"),
        goal: Some(0.95),
    },
    Row {
        name: "at-once-ids",
        title: "due at once, a message_id on each request",
        run: |node, count| passthrough(node, count, 0, Ids::Each),
        beside: Some("naive"),
        goal: None,
    },
    Row {
        name: "far",
        title: "tidegate takes in what is due in a day, with ids",
        run: |node, count| stored(node, count, Ids::Each, 86_400_000),
        beside: Some("bare"),
        goal: None,
    },
    Row {
        name: "parked",
        title: "tidegate takes in what cannot be delivered",
        run: |node, count| stored(node, count, Ids::None, 0),
        beside: Some("bare"),
        goal: None,
    },
];

/// The rows of these names, or all; with each the one that it stands beside.
fn chosen(names: &[String]) -> Vec<&'static Row> {
    let named = |name: &str| names.is_empty() || names.iter().any(|n| n == name);
    let beside = |name: &str| ROWS.iter().any(|row| named(row.name) && row.beside == Some(name));
    ROWS.iter().filter(|row| named(row.name) || beside(row.name)).collect()
}

fn throughput(node: &Node, plan: &Plan, names: &[String]) {
    let rows = chosen(names);
    let mut runs: Vec<Vec<Run>> = vec![Vec::new(); rows.len()];
    for repeat in 0..plan.repeats {
        println!("repeat {} of {} ..", repeat + 1, plan.repeats);
        for (row, runs) in rows.iter().zip(&mut runs) {
            runs.push((row.run)(node, plan.messages));
        }
    }
    let medians: Vec<Run> = runs.into_iter().map(median).collect();
    println!(
        "\n{:<44} {:>10} {:>9} {:>8} {:>9} {:>9}",
        "", "msg/s", "ratio", "to reach", "CPU us/m", "RSS MiB"
    );
    for (row, run) in rows.iter().zip(&medians) {
        let reference = rows.iter().position(|other| Some(other.name) == row.beside).map(|at| medians[at]);
        line(row.title, *run, reference, row.goal);
    }
}

/// Each figure the median of its own.
fn median(runs: Vec<Run>) -> Run {
    let of = |figure: fn(&Run) -> f64| {
        let mut figures: Vec<f64> = runs.iter().map(figure).collect();
        figures.sort_by(f64::total_cmp);
        figures[figures.len() / 2]
    };
    Run { per_second: of(|r| r.per_second), cpu_us: of(|r| r.cpu_us), rss_mib: of(|r| r.rss_mib) }
}

fn line(name: &str, run: Run, reference: Option<Run>, goal: Option<f64>) {
    let ratio = reference.map_or(String::new(), |r| format!("{:.2}", run.per_second / r.per_second));
    let goal = goal.map_or(String::new(), |g| format!("{g:.2}"));
    let figure = |f: f64| if f > 0.0 { format!("{f:.1}") } else { String::new() };
    println!(
        "{name:<44} {:>10.0} {ratio:>9} {goal:>8} {:>9} {:>9}",
        run.per_second,
        figure(run.cpu_us),
        figure(run.rss_mib)
    );
}

fn quorum() -> FieldTable {
    let mut table = FieldTable::default();
    table.insert("x-queue-type".into(), text("quorum"));
    table
}

fn entry(name: &str, kind: u8, value: &[u8]) -> Vec<u8> {
    let mut bytes = vec![u8::try_from(name.len()).unwrap_or(0)];
    bytes.extend_from_slice(name.as_bytes());
    bytes.push(kind);
    if kind == b'S' {
        bytes.extend_from_slice(&u32::try_from(value.len()).unwrap_or(0).to_be_bytes());
    }
    bytes.extend_from_slice(value);
    bytes
}

fn delay(ms: i64) -> Vec<u8> {
    entry("x-delay", b'l', &ms.to_be_bytes())
}

/// Whether requests have a `message_id`, by which tidegate knows them again.
#[derive(Clone, Copy)]
enum Ids {
    None,
    Each,
}

/// Publishes `count` messages whose headers come from `headers(n)`.
fn fill(node: &Node, exchange: &str, key: &str, count: u64, ids: Ids, headers: impl Fn(u64) -> Vec<u8>) {
    let mut raw = Raw::connect(node);
    let body = [b'x'; BODY];
    for n in 0..count {
        let properties = RawProperties::default().headers(&headers(n)).persistent();
        let properties = match ids {
            Ids::None => properties,
            Ids::Each => properties.message_id(format!("order-{n:08}").as_bytes()),
        };
        raw.put(exchange, key.as_bytes(), &properties, &body);
        if n % 500 == 499 {
            raw.settle(1500);
        }
    }
    raw.settle(0);
}

async fn connect(uri: &str) -> Connection {
    let runtime = async_rs::Runtime::tokio_current();
    Connection::connect_with_runtime(uri, ConnectionProperties::default(), runtime)
        .await
        .expect("a connection")
}

async fn consumer(connection: &Connection, queue: &str) -> Consumer {
    let channel = connection.create_channel().await.expect("a channel");
    channel.basic_qos(2000, BasicQosOptions::default()).await.expect("basic.qos");
    let options = BasicConsumeOptions::default();
    channel.basic_consume(queue.into(), "".into(), options, FieldTable::default()).await.expect("a consumer")
}

fn per_second(count: u64, time: Duration) -> Run {
    Run { per_second: count as f64 / time.as_secs_f64(), ..Run::default() }
}

fn bare(node: &Node, count: u64) -> Run {
    let client = Client::connect(node.uri());
    client.queue("bench.bare", quorum());
    fill(node, "", "bench.bare", count, Ids::None, |_| Vec::new());
    let time = block_on(async {
        let connection = connect(node.uri()).await;
        let start = Instant::now();
        let mut deliveries = consumer(&connection, "bench.bare").await;
        for n in 1..=count {
            let delivery = deliveries.next().await.expect("a delivery").expect("a delivery");
            if n % 200 == 0 || n == count {
                delivery.acker.ack(BasicAckOptions { multiple: true }).await.expect("basic.ack");
            }
        }
        start.elapsed()
    });
    client.delete_queue("bench.bare");
    per_second(count, time)
}

fn naive(node: &Node, count: u64) -> Run {
    let client = Client::connect(node.uri());
    client.queue("bench.from", quorum());
    client.queue("bench.to", FieldTable::default());
    fill(node, "", "bench.from", count, Ids::None, |_| Vec::new());
    let time = block_on(async {
        let (from, to) = (connect(node.uri()).await, connect(node.uri()).await);
        let channel = to.create_channel().await.expect("a channel");
        channel.confirm_select(ConfirmSelectOptions::default()).await.expect("confirm.select");
        let (sender, mut open) = tokio::sync::mpsc::channel::<(PublisherConfirm, Delivery)>(1000);
        let start = Instant::now();
        let mut deliveries = consumer(&from, "bench.from").await;
        let acks = tokio::spawn(async move {
            while let Some((confirm, delivery)) = open.recv().await {
                assert!(confirm.await.expect("a confirm").is_ack(), "nacked");
                delivery.acker.ack(BasicAckOptions::default()).await.expect("basic.ack");
            }
        });
        for _ in 0..count {
            let delivery = deliveries.next().await.expect("a delivery").expect("a delivery");
            let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
            let properties = delivery.properties.clone();
            let publish =
                channel.basic_publish("".into(), "bench.to".into(), options, &delivery.data, properties);
            let confirm = publish.await.expect("basic.publish");
            assert!(sender.send((confirm, delivery)).await.is_ok(), "the acking task lives");
        }
        drop(sender);
        acks.await.expect("the acking task");
        start.elapsed()
    });
    client.delete_queue("bench.from");
    client.delete_queue("bench.to");
    per_second(count, time)
}

/// Fills the ingest queue with the daemon down, starts it, and returns with the moment of the first delivery.
fn filled(
    site: &Site<'_>,
    config: &Config,
    count: u64,
    ids: Ids,
    headers: impl Fn(u64) -> Vec<u8>,
) -> (Daemon, Instant, u64) {
    let mut daemon = site.start(config);
    daemon.term();
    daemon.exit(Duration::from_secs(30));
    fill(site.node, &site.ingest(), "shop", count, ids, headers);
    daemon.start_again();
    let full = u32::try_from(count).ok();
    let end = Instant::now() + LIMIT;
    while site.client.depth(&site.ingest_queue()) == full {
        assert!(Instant::now() < end, "the daemon takes nothing");
        std::thread::sleep(Duration::from_millis(2));
    }
    let cpu = daemon.cpu_us();
    (daemon, Instant::now(), cpu)
}

fn measured(daemon: &Daemon, count: u64, time: Duration, cpu_before: u64) -> Run {
    Run {
        cpu_us: (daemon.cpu_us() - cpu_before) as f64 / count as f64,
        rss_mib: daemon.peak_rss() as f64 / f64::from(1 << 20),
        ..per_second(count, time)
    }
}

/// Waits until everything has been taken off the ingest queue and is durable: then it is acked, too.
fn taken_in(site: &Site<'_>, daemon: &Daemon, count: u64) -> Instant {
    let end = Instant::now() + LIMIT;
    loop {
        let state = daemon.state();
        let accepted = state["totals"]["accepted"].as_u64();
        if accepted == Some(count) && state["uncommitted"].as_u64() == Some(0) {
            break;
        }
        assert!(Instant::now() < end, "not all is taken in: {accepted:?} of {count}");
        std::thread::sleep(Duration::from_millis(5));
    }
    let taken = Instant::now();
    // Acks follow at once; asking the broker about them takes it a second.
    wait_until("all of it is acked", Duration::from_secs(20), || {
        site.node.messages(&site.ingest_queue()) == Some(0)
    });
    taken
}

fn windowed(node: &Node, count: u64, ids: Ids) -> Run {
    let site = Site::on(node, "windowed");
    let config = site.config().text("defaults.window", "1s");
    site.application("shop");
    let customers: Vec<Vec<u8>> =
        (0..CUSTOMERS).map(|c| entry("x-customer", b'S', format!("customer-{c}").as_bytes())).collect();
    let header = |n: u64| customers[usize::try_from(n % CUSTOMERS).unwrap_or(0)].clone();
    let inbox = site.client.consume(&site.queue("shop"));
    let (daemon, start, cpu) = filled(&site, &config, count, ids, header);
    let took = taken_in(&site, &daemon, count).duration_since(start);
    let mut items = 0;
    while items < count {
        let received = inbox.poll(Duration::from_secs(60)).expect("a batch within a minute");
        items += u64::try_from(received.number("x-count").unwrap_or(0)).unwrap_or(0);
    }
    let run = measured(&daemon, count, took, cpu);
    clean(&site);
    run
}

fn passthrough(node: &Node, count: u64, delay_ms: i64, ids: Ids) -> Run {
    let site = Site::on(node, "passthrough");
    let wait = Duration::from_millis(u64::try_from(delay_ms).unwrap_or(0));
    let config = site.config().text("defaults.format", "passthrough");
    site.application("shop");
    let headers = if delay_ms > 0 { delay(delay_ms) } else { Vec::new() };
    let (daemon, start, cpu) = filled(&site, &config, count, ids, |_| headers.clone());
    let end = Instant::now() + LIMIT;
    while u64::from(site.client.depth(&site.queue("shop")).unwrap_or(0)) < count {
        assert!(Instant::now() < end, "not all arrive: {:?}", site.client.depth(&site.queue("shop")));
        std::thread::sleep(Duration::from_millis(10));
    }
    let run = measured(&daemon, count, start.elapsed().saturating_sub(wait), cpu);
    clean(&site);
    run
}

/// From the queue into the store, and no further: it is due in a day, or no queue is bound.
fn stored(node: &Node, count: u64, ids: Ids, delay_ms: i64) -> Run {
    let site = Site::on(node, "stored");
    let config = site.config().text("defaults.format", "passthrough");
    let headers = if delay_ms > 0 { delay(delay_ms) } else { Vec::new() };
    let (daemon, start, cpu) = filled(&site, &config, count, ids, |_| headers.clone());
    let took = taken_in(&site, &daemon, count).duration_since(start);
    measured(&daemon, count, took, cpu)
}

fn clean(site: &Site<'_>) {
    site.client.delete_queue(&site.queue("shop"));
}

fn lateness(node: &Node, plan: &Plan) {
    let site = Site::on(node, "lateness");
    let inbox = site.inbox("shop");
    let daemon = site.start(&site.config().text("defaults.format", "passthrough"));
    let far = delay(86_400_000);
    fill(node, &site.ingest(), "shop", plan.backlog, Ids::None, |_| far.clone());
    let end = Instant::now() + LIMIT;
    while site.client.depth(&site.ingest_queue()) != Some(0) {
        assert!(Instant::now() < end, "the backlog is not taken in");
        std::thread::sleep(Duration::from_millis(20));
    }
    let total = plan.rate * plan.seconds;
    let feeding = std::thread::scope(|scope| {
        let feeder = scope.spawn(|| feed(node, &site.ingest(), plan.rate, plan.seconds, 4000));
        let mut late: Vec<i64> = Vec::new();
        while (late.len() as u64) < total {
            let received = inbox.poll(Duration::from_secs(30)).expect("a message within 30 s");
            late.push(received.lateness_us());
        }
        feeder.join().expect("the feeder");
        late.sort_unstable();
        late
    });
    let ms = |p: f64| percentile(&feeding, p) as f64 / 1000.0;
    println!(
        "\nlateness at the consumer, {} msg/s with delays of 1 to 5 s, {} more waiting:\n  \
         p50 {:.2} ms   p99 {:.2} ms   p99.9 {:.2} ms   largest {:.2} ms   early {}   RSS {:.0} MiB",
        plan.rate,
        plan.backlog,
        ms(50.0),
        ms(99.0),
        ms(99.9),
        ms(100.0),
        feeding.iter().filter(|l| **l < 0).count(),
        daemon.rss() as f64 / f64::from(1 << 20)
    );
}

/// What little traffic costs: the daemon alone, at rates far below what it can do.
fn rates(node: &Node) {
    const SECONDS: u64 = 10;
    println!("\nsteady rates, delays of 1 to 3 s, {SECONDS} s each:");
    println!(
        "{:>10} {:>10} {:>22} {:>8} {:>8}",
        "msg/s", "CPU us/m", "thread wake-ups/m", "p50 ms", "p99 ms"
    );
    for rate in [200, 1_000, 5_000] {
        let site = Site::on(node, "rates");
        let inbox = site.inbox("shop");
        let daemon = site.start(&site.config().text("defaults.format", "passthrough"));
        let count = rate * SECONDS;
        let (cpu, wakeups) = (daemon.cpu_us(), daemon.wakeups());
        let mut late: Vec<i64> = std::thread::scope(|scope| {
            scope.spawn(|| feed(node, &site.ingest(), rate, SECONDS, 2000));
            let come = |_| inbox.poll(Duration::from_secs(30)).expect("a message within 30 s").lateness_us();
            (0..count).map(come).collect()
        });
        late.sort_unstable();
        let each = |before: u64, after: u64| (after - before) as f64 / count as f64;
        println!(
            "{rate:>10} {:>10.0} {:>22.1} {:>8.2} {:>8.2}",
            each(cpu, daemon.cpu_us()),
            each(wakeups, daemon.wakeups()),
            percentile(&late, 50.0) as f64 / 1000.0,
            percentile(&late, 99.0) as f64 / 1000.0,
        );
        drop(daemon);
        clean(&site);
    }
}

/// Requests one by one at a steady rate, with delays of a second and up to `spread_ms` more.
fn feed(node: &Node, exchange: &str, rate: u64, seconds: u64, spread_ms: u64) {
    let mut raw = Raw::connect(node);
    let body = [b'x'; BODY];
    let start = Instant::now();
    let mut sent = 0;
    while sent < rate * seconds {
        let passed = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
        let target = (passed * rate / 1000).min(rate * seconds);
        while sent < target {
            let headers = delay(1000 + i64::try_from(sent * 7919 % spread_ms).unwrap_or(0));
            let properties = RawProperties::default().headers(&headers).persistent();
            raw.put(exchange, b"shop", &properties, &body);
            sent += 1;
        }
        raw.settle(20_000);
        std::thread::sleep(Duration::from_micros(1_000_000 / rate));
    }
    raw.settle(0);
}
