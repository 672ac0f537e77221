//! Common parts of all rows: the names on the broker, the daemon, the load, the ledger, and the verdict.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tidegate_harness::{
    bounded, holds_within, percentile, Client, Config, Daemon, Ledger, Load, Moments, Node, Proxy, Push,
    Recorder, Report, Site, Verdict,
};

/// Time limit of a row: rows that measure run up to three times.
const LIMIT: Duration = Duration::from_secs(900);
const LIMIT_LONG: Duration = Duration::from_secs(3_600);

/// Options and resources of a run.
pub struct Context {
    /// The node shared by all rows that leave it unchanged.
    pub node: Node,
    /// The seed of all random moments.
    pub seed: u64,
    /// Backlogs of a million items, and more kills.
    pub long: bool,
    /// Part of every `make test`: fewer kills.
    pub quick: bool,
    /// A daemon built with the feature `failpoints`.
    pub failpoints: Option<PathBuf>,
}

/// One row of the table of faults.
pub struct Fault {
    /// Its number in the table.
    pub number: u32,
    /// Its title.
    pub name: &'static str,
    /// Whether it is part of every test run.
    pub quick: bool,
    /// Injects the fault and checks the outcome.
    pub run: fn(&Context) -> Row,
}

/// The result of a row.
#[derive(Debug, Default)]
pub struct Row {
    pub injections: u32,
    pub requests: u64,
    pub lost: usize,
    pub repeats: usize,
    pub early: usize,
    /// Latest arrival after its due, ms.
    pub worst_ms: i64,
    /// Longest time from the end of a fault to the first arrival of a request sent after it, ms.
    pub recovery_ms: Option<u64>,
    /// Failed checks; empty is good.
    pub wrong: Vec<String>,
    /// Longest turn of the daemon's loop, in rows about that.
    pub longest_turn_us: Option<u64>,
    /// What this machine lacks to run the row.
    pub lacking: Option<String>,
}

impl Row {
    pub fn lacking(what: &str) -> Row {
        Row { lacking: Some(what.to_owned()), ..Row::default() }
    }

    /// One row for several, each with the name of its part.
    pub fn sum(rows: impl IntoIterator<Item = (&'static str, Row)>) -> Row {
        let mut sum = Row::default();
        for (part, row) in rows {
            sum.injections += row.injections;
            sum.requests += row.requests;
            sum.lost += row.lost;
            sum.repeats += row.repeats;
            sum.early += row.early;
            sum.worst_ms = sum.worst_ms.max(row.worst_ms);
            sum.recovery_ms = sum.recovery_ms.max(row.recovery_ms);
            sum.lacking = sum.lacking.or(row.lacking);
            sum.wrong.extend(row.wrong.into_iter().map(|wrong| format!("{part}: {wrong}")));
        }
        sum
    }

    /// For faults without a crash or a lost connection: nothing may arrive twice.
    pub fn without_repeats(mut self) -> Row {
        if self.repeats > 0 {
            self.wrong.push(format!("{} repeats", self.repeats));
        }
        self
    }
}

impl Fault {
    /// Its number and name, which together are unique.
    pub fn title(&self) -> String {
        format!("row {}, {}", self.number, self.name)
    }

    /// Runs it in a thread whose name the harness prints if the row hangs. A panic is a failed check.
    pub fn judge(&self, context: &Context) -> Row {
        let limit = if context.long { LIMIT_LONG } else { LIMIT };
        let ended = std::thread::scope(|scope| {
            let row = std::thread::Builder::new().name(self.title());
            let running = row.spawn_scoped(scope, || {
                bounded(limit);
                (self.run)(context)
            });
            running.expect("a thread").join()
        });
        ended.unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("panicked");
            Row { wrong: vec![text.lines().next().unwrap_or_default().to_owned()], ..Row::default() }
        })
    }
}

/// A request for [`Scene::send`]: message, application, customer, earliest moment.
pub type Sending = (Push, String, Option<String>, Option<u64>);

pub struct Scene<'n> {
    pub site: Site<'n>,
    pub config: Config,
    pub ledger: Arc<Ledger>,
    pub daemon: Daemon,
    pub moments: Moments,
    /// The process was restarted, so its counters do not cover the whole row.
    pub restarted: bool,
    recorders: Vec<Recorder>,
    load: Option<Load>,
    loads: u64,
    injections: u32,
    wrong: Vec<String>,
    /// Repeats may have causes that the row does not know.
    are_repeats_excused: bool,
}

impl<'n> Scene<'n> {
    /// On this node: the application `shop` is recorded; the daemon is configured but not started.
    pub fn on(
        context: &Context,
        node: &'n Node,
        name: &str,
        change: impl FnOnce(&Site<'n>, Config) -> Config,
    ) -> Scene<'n> {
        let site = Site::on(node, name);
        // Short back-offs, so that they do not dominate the measurements.
        let config = site
            .config()
            .set("defaults.retry", r#"{ min = "200ms", max = "1s" }"#)
            .text("timeouts.drain", "8s");
        let config = change(&site, config);
        let daemon = Daemon::stopped(&config, &site.dir);
        let mut scene = Scene {
            site,
            config,
            ledger: Ledger::new(),
            daemon,
            moments: Moments::seeded(context.seed, name),
            restarted: false,
            recorders: Vec::new(),
            load: None,
            loads: 0,
            injections: 0,
            wrong: Vec::new(),
            are_repeats_excused: false,
        };
        scene.site.application("shop");
        scene.record("shop");
        scene
    }

    /// On the shared node: started, under a load of `per_second` requests.
    pub fn under_load(
        context: &'n Context,
        name: &str,
        per_second: u64,
        change: impl FnOnce(&Site<'n>, Config) -> Config,
    ) -> Scene<'n> {
        let mut scene = Scene::on(context, &context.node, name, change);
        scene.start();
        scene.load(per_second);
        scene
    }

    /// Records what arrives for an application.
    pub fn record(&mut self, application: &str) {
        let recorder = Recorder::start(self.site.node.uri(), &[self.site.queue(application)], &self.ledger);
        self.recorders.push(recorder);
    }

    /// Starts the daemon and waits until it is ready.
    pub fn start(&mut self) {
        self.daemon.start_again();
        self.daemon.wait_ready();
    }

    /// Windowed, timed (up to 2 s) and immediate requests for `shop`. Each load has distinct ids.
    pub fn load(&mut self, per_second: u64) {
        let name = format!("r{}-", self.loads);
        self.loads += 1;
        self.load = Some(self.site.load_named(&name, &self.ledger, per_second));
    }

    pub fn stop_load(&mut self) {
        if let Some(load) = self.load.take() {
            load.stop();
        }
    }

    /// Publishes these and records which were confirmed.
    pub fn send(&self, requests: impl IntoIterator<Item = Sending>) {
        let requests: Vec<Sending> = requests.into_iter().collect();
        for slice in requests.chunks(500) {
            let mut pushes = Vec::with_capacity(slice.len());
            for (push, application, customer, not_before) in slice {
                self.ledger.sending(&id_of(push), application, customer.as_deref(), *not_before);
                pushes.push(push.clone());
            }
            for (push, verdict) in pushes.iter().zip(self.site.client.publish_window(&pushes)) {
                if verdict == Verdict::Taken {
                    self.ledger.confirmed(&id_of(push));
                }
            }
        }
    }

    /// Connects the client again after a restart of the broker.
    pub fn reconnect(&mut self) {
        self.site.client = Client::connect(self.site.node.uri());
    }

    /// A fault begins.
    pub fn fault(&mut self) {
        self.injections += 1;
        self.ledger.fault();
    }

    /// The fault ends.
    pub fn healed(&self) {
        self.ledger.healed();
    }

    /// Records a failure unless the row's own condition holds.
    pub fn check(&mut self, holds: bool, otherwise: impl Into<String>) {
        if !holds {
            self.wrong.push(otherwise.into());
        }
    }

    /// Polls until the condition holds; a failure if it does not within `limit`, which is at least `LEAST_WAIT`.
    pub fn check_soon(&mut self, what: &str, limit: Duration, mut holds: impl FnMut(&Self) -> bool) -> bool {
        let held = holds_within(limit, || holds(self));
        self.check(held, format!("not within {limit:?}: {what}"));
        held
    }

    /// A counter below `totals` of the state document; 0 if the daemon does not answer.
    pub fn total(&self, name: &str) -> u64 {
        self.daemon.ask("GET", "/api/v1/state").1["totals"][name].as_u64().unwrap_or(0)
    }

    /// Waits until all that was sent has ended, and returns the verdict.
    pub fn finish(self) -> Row {
        self.finish_unless(|_| false)
    }

    /// The same. Asks at the end whether there were faults that the row has not made: repeats are counted only
    /// then.
    pub fn finish_unless(mut self, has_others: impl FnOnce(&Self) -> bool) -> Row {
        self.stop_load();
        let report = self.ledger.settle(Duration::from_secs(60));
        self.check(self.daemon.state()["state"] != "not_ready", "it is not ready at the end");
        let empty = |s: &Self| {
            let state = s.daemon.state();
            let none = |key: &str| state["items"][key].as_u64() == Some(0);
            none("waiting") && none("parked") && state["uncommitted"].as_u64() == Some(0)
        };
        if !self.check_soon("the store is empty", Duration::from_secs(30), empty) {
            let items = self.daemon.state()["items"].clone();
            self.wrong.push(items.to_string());
        }
        if !self.restarted {
            self.check_counters();
        }
        let no_letters = |s: &Self| s.site.client.depth(&s.site.dead()) == Some(0);
        self.check_soon("no dead letters", Duration::from_secs(10), no_letters);
        self.are_repeats_excused = has_others(&self);
        self.row(&report)
    }

    /// The verdict of a row that leaves many items waiting: only the expected items have arrived.
    pub fn leave(mut self) -> Row {
        let report = self.ledger.settle(Duration::from_secs(60));
        let running = self.daemon.running();
        self.check(running, "it has not survived");
        self.row(&report)
    }

    /// The verdict of a row about a few requests that the ledger does not know.
    pub fn end(mut self) -> Row {
        let requests = self.total("accepted");
        Row {
            injections: self.injections,
            requests,
            wrong: std::mem::take(&mut self.wrong),
            ..Row::default()
        }
    }

    fn check_counters(&mut self) {
        let totals = self.daemon.state()["totals"].clone();
        let of = |name: &str| totals[name].as_u64().unwrap_or(0);
        let came = of("accepted") + of("rejected");
        let ended = ["confirmed", "dead_confirmed", "cancelled", "replaced", "given_back"].map(of);
        let sum: u64 = ended.iter().sum();
        self.check(came == sum, format!("the counters do not add up: {came} came, {sum} ended: {totals}"));
    }

    fn row(&mut self, report: &Report) -> Row {
        let few = |ids: &[String]| ids.iter().take(3).cloned().collect::<Vec<_>>().join(", ");
        if !report.lost.is_empty() {
            let lie = self.site.client.depth(&self.site.queue("shop"));
            self.wrong.push(format!("ready in the queue of shop: {lie:?}"));
        }
        let none = Vec::new();
        for (what, ids) in [
            ("lost", &report.lost),
            ("early", &report.early),
            ("in a foreign batch", &report.mixed),
            ("never sent", &report.strangers),
            ("repeated without a fault", if self.are_repeats_excused { &none } else { &report.unexplained }),
        ] {
            self.check(ids.is_empty(), format!("VERDICT: {} {what}: {} ..", ids.len(), few(ids)));
        }
        self.check(report.confirmed > 0, "no request was confirmed");
        Row {
            injections: self.injections,
            requests: report.confirmed,
            lost: report.lost.len(),
            repeats: report.repeats.len(),
            early: report.early.len(),
            worst_ms: report.lateness_us.last().copied().unwrap_or(0) / 1000,
            recovery_ms: report.recovery_us.iter().max().map(|us| us / 1000),
            wrong: std::mem::take(&mut self.wrong),
            longest_turn_us: None,
            lacking: None,
        }
    }
}

fn id_of(push: &Push) -> String {
    push.properties.message_id().as_ref().map(ToString::to_string).unwrap_or_default()
}

/// An application beside the one with the fault: its requests are due at once and must not be late.
pub struct Bystander {
    ledger: Arc<Ledger>,
    load: Load,
    recorder: Recorder,
}

impl Bystander {
    /// Fifty requests per second for the application `mail`.
    pub fn start(scene: &Scene<'_>) -> Bystander {
        scene.site.application("mail");
        let ledger = Ledger::new();
        let recorder = Recorder::start(scene.site.node.uri(), &[scene.site.queue("mail")], &ledger);
        let exchange = scene.site.ingest();
        let recipe = move |n: u64| {
            let push = Push::new(&exchange, "mail", n.to_string()).id(&format!("m{n}"));
            (push, "mail".to_owned(), None, None)
        };
        let load = Load::start(scene.site.node.uri(), 50, &ledger, Box::new(recipe));
        Bystander { ledger, load, recorder }
    }

    /// Nothing of it may be lost or repeated, and 95 % must arrive within this lateness: the machine may
    /// delay some.
    pub fn finish(self, scene: &mut Scene<'_>, worst: Duration) {
        let late = percentile(&self.end(scene), 95.0);
        let bound = i64::try_from(worst.as_micros()).unwrap_or(i64::MAX);
        scene.check(late < bound, format!("another application was late by {} ms", late / 1000));
    }

    /// Nothing of it may be lost or repeated. Returns the lateness of its messages, us, sorted.
    pub fn end(self, scene: &mut Scene<'_>) -> Vec<i64> {
        self.load.stop();
        let report = self.ledger.settle(Duration::from_secs(30));
        drop(self.recorder);
        let clean = report.lost.is_empty() && report.repeats.is_empty() && report.strangers.is_empty();
        let (lost, repeats) = (report.lost.len(), report.repeats.len());
        scene.check(clean, format!("VERDICT: another application lost {lost}, repeated {repeats}"));
        report.lateness_us
    }
}

/// A proxy in front of the node.
pub fn proxy(node: &Node) -> Proxy {
    Proxy::start(node.login().0)
}

/// A proxied login as `guest` on the main virtual host.
pub fn through(proxy: &Proxy) -> String {
    proxy.uri("guest", "%2f")
}
