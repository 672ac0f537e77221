//! Standby daemons: several on one broker with the memory store, of which one serves. When it is killed or
//! stopped, another takes over within moments and nothing is lost.
//!
//! Judges promise 11.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tidegate_harness::{
    alone, best_of_three, wait_until, workdir, Config, Daemon, Ledger, Node, Recorder, Report, Site, Welcome,
};

const LIMIT: Duration = Duration::from_secs(60);
/// Requests per second.
const RATE: u64 = 200;

fn state_of(daemon: &Daemon) -> String {
    // A daemon that has just started does not answer yet.
    daemon.ask("GET", "/api/v1/state").1["state"].as_str().unwrap_or_default().to_owned()
}

/// How the serving daemon ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Killed,
    Stopped,
}

/// The serving daemon and its standbys.
struct Cluster {
    serving: Daemon,
    spares: Vec<Daemon>,
}

impl Cluster {
    fn start(site: &Site<'_>, config: &Config, spares: usize) -> Cluster {
        let config = config.clone().text("store.kind", "memory");
        let mut serving = Daemon::start(&config, &site.dir);
        serving.wait_ready();
        assert_eq!(state_of(&serving), "running");
        let spare = |_| {
            let dir = workdir("spare");
            let mut spare =
                Daemon::start(&config.clone().text("store.path", &dir.join("store").to_string_lossy()), &dir);
            spare.wait_ready();
            spare
        };
        let cluster = Cluster { serving, spares: (0..spares).map(spare).collect() };
        cluster.settled();
        cluster
    }

    /// Waits until one serves and all others stand by and are ready.
    fn settled(&self) {
        wait_until("one that serves", LIMIT, || state_of(&self.serving) == "running");
        for spare in &self.spares {
            wait_until("one that stands by, and is ready", LIMIT, || {
                state_of(spare) == "standby" && spare.ask("GET", "/readyz").0 == 200
            });
            assert!(spare.state()["shards"][0]["owner"].is_null(), "who has the items is not known");
        }
        let told = self.serving.state();
        assert_eq!(told["shards"][0]["owner"], told["node"]);
    }

    /// Ends the serving daemon, and starts it again once a standby has taken over. The standbys must stay
    /// ready all the time.
    fn replace(&mut self, end: End, ledger: &Ledger) {
        let over = AtomicBool::new(false);
        let (serving, spares) = (&mut self.serving, &self.spares);
        let next = std::thread::scope(|scope| {
            let watches: Vec<_> = spares
                .iter()
                .map(|spare| {
                    scope.spawn(|| {
                        while !over.load(Ordering::Relaxed) {
                            let (status, said) = spare.ask("GET", "/readyz");
                            assert_eq!(status, 200, "{said}: {}", spare.log_tail());
                            std::thread::sleep(Duration::from_millis(20));
                        }
                    })
                })
                .collect();
            ledger.fault();
            match end {
                End::Killed => serving.kill9(),
                End::Stopped => serving.term(),
            }
            ledger.healed();
            let mut next = None;
            wait_until("another one that serves", LIMIT, || {
                next = spares.iter().position(|spare| state_of(spare) == "running");
                next.is_some()
            });
            over.store(true, Ordering::Relaxed);
            for watch in watches {
                watch.join().expect("a spare is ready all the time");
            }
            next.expect("a place")
        });
        if end == End::Stopped {
            assert!(self.serving.exit(LIMIT).success(), "{}", self.serving.log_tail());
        }
        std::mem::swap(&mut self.serving, &mut self.spares[next]);
        self.spares[next].start_again();
        self.spares[next].wait_ready();
        self.settled();
    }
}

/// Runs a load during these ends, one after the other. Returns the report.
fn replaced(site: &Site<'_>, cluster: &mut Cluster, ends: &[End]) -> Report {
    let ledger = Ledger::new();
    let _recorder = Recorder::start(site.node.uri(), &[site.queue("shop")], &ledger);
    let load = site.load(&ledger, RATE);
    for end in ends {
        let before = ledger.arrived_count();
        wait_until("a flow", LIMIT, || ledger.arrived_count() > before + 100);
        cluster.replace(*end, &ledger);
    }
    load.stop();
    let report = ledger.settle(LIMIT);
    report.assert_clean();
    assert!(report.unexplained.is_empty(), "{} repeats by no kill", report.unexplained.len());
    report
}

#[test]
fn whoever_serves_is_killed_three_times_and_nothing_is_lost() {
    let site = Site::new("spares");
    site.application("shop");
    let mut cluster = Cluster::start(&site, &site.config(), 2);
    replaced(&site, &mut cluster, &[End::Killed; 3]);
    // It logs that once per start, however often it checks.
    for spare in &cluster.spares {
        let log = spare.log();
        let told = log.lines().filter(|line| line.contains("standing by")).count();
        let begun = log.lines().filter(|line| line.contains(" started ")).count();
        assert!(told <= begun, "{told} of {begun}: {}", spare.log_tail());
    }
    // A standby stops without waiting for anything.
    for mut spare in cluster.spares {
        spare.term();
        assert!(spare.exit(LIMIT).success(), "{}", spare.log_tail());
    }
}

#[test]
fn whoever_serves_is_stopped_and_nothing_comes_twice() {
    let site = Site::new("spares-stopped");
    site.application("shop");
    let mut cluster = Cluster::start(&site, &site.config(), 2);
    replaced(&site, &mut cluster, &[End::Stopped; 2]).assert_exact();
}

/// Without permission to declare the lock.
#[test]
fn where_consumers_are_counted_one_stands_by_all_the_same() {
    let Some(node) = Node::controlled("where_consumers_are_counted") else { return };
    let site = Site::on(node, "counted");
    site.application("shop");
    let mut cluster = Cluster::start(&site, &counted(&site), 1);
    assert!(cluster.spares[0].state()["links"].to_string().contains("1 other consumer(s)"));
    replaced(&site, &mut cluster, &[End::Killed, End::Stopped]);
}

/// The broker counts a cancelled consumer as long as one of its deliveries is unacked, and each change of the
/// prefetch needs a new consumer.
#[test]
fn its_own_former_consumers_are_no_others() {
    const WAITING: u64 = 3_000;
    /// Longer than the interval between two counts.
    const COUNTS: Duration = Duration::from_secs(7);
    let Some(node) = Node::controlled("its_own_former_consumers") else { return };
    let site = Site::on(node, "former");
    let inbox = site.inbox("shop");
    let config = counted(&site).text("store.kind", "memory");
    site.client
        .publish_all((0..WAITING).map(|n| site.push("shop", "{}").id(&format!("w{n}")).delay(600_000)));
    let daemon = site.start(&config);
    wait_until("all wait", LIMIT, || daemon.items("waiting") == WAITING);
    let begun = Instant::now();
    let mut n = 0;
    while begun.elapsed() < COUNTS {
        n += 1;
        site.client.publish(&site.push("shop", "{}").id(&format!("n{n}")));
        assert_eq!(inbox.batch().ids(), [format!("n{n}")]);
        std::thread::sleep(Duration::from_millis(50));
    }
    let log = daemon.log();
    assert!(!log.contains("standing by") && !log.contains("to the queue"), "{}", daemon.log_tail());
    assert_eq!(daemon.state()["totals"]["redelivered"], 0);
}

/// Frozen beyond the heartbeat, it wakes to a queue that another daemon serves, without knowing it.
#[test]
fn one_that_was_frozen_stands_by_afterwards() {
    let site = Site::new("spare-frozen");
    site.application("shop");
    // Longer than a busy machine stands still: nobody else loses a connection.
    let config = site.config().text("amqp.heartbeat", "6s");
    let mut cluster = Cluster::start(&site, &config, 1);
    let ledger = Ledger::new();
    let _recorder = Recorder::start(site.node.uri(), &[site.queue("shop")], &ledger);
    let load = site.load(&ledger, RATE);
    wait_until("a flow", LIMIT, || ledger.arrived_count() > 200);
    ledger.fault();
    cluster.serving.halt();
    wait_until("the spare serves", LIMIT, || state_of(&cluster.spares[0]) == "running");
    cluster.serving.thaw();
    std::mem::swap(&mut cluster.serving, &mut cluster.spares[0]);
    cluster.settled();
    ledger.healed();
    let before = ledger.arrived_count();
    wait_until("a flow", LIMIT, || ledger.arrived_count() > before + 200);
    load.stop();
    let report = ledger.settle(LIMIT);
    report.assert_clean();
    assert!(report.unexplained.is_empty(), "{} repeats by no fault", report.unexplained.len());
    wait_until("it holds nothing", LIMIT, || cluster.spares[0].items("waiting") == 0);
}

/// A configuration whose user may not declare the lock.
fn counted(site: &Site<'_>) -> Config {
    drop(site.start(&site.config()));
    let user = site.ingest_queue();
    site.node.ctl(&["add_user", &user, &user]);
    site.node.ctl(&["set_permissions", "-p", "/", &user, "^$", ".*", ".*"]);
    let uri = site.node.uri_of(&user, "%2f");
    site.config().text("amqp.uri", &uri).text("amqp.topology", "passive")
}

/// Two daemons that see each other's consumer both back off, and one of them returns first.
#[test]
fn of_several_that_start_at_one_moment_one_serves() {
    let Some(node) = Node::controlled("of_several_that_start_at_one_moment") else { return };
    let site = Site::on(node, "moment");
    for config in [site.config(), counted(&site)] {
        let config = config.text("store.kind", "memory");
        let daemons: Vec<Daemon> = (0..4)
            .map(|_| {
                let dir = workdir("moment");
                let path = dir.join("store");
                Daemon::start(&config.clone().text("store.path", &path.to_string_lossy()), &dir)
            })
            .collect();
        wait_until("one that serves, and three that do not", LIMIT, || {
            let states: Vec<String> = daemons.iter().map(state_of).collect();
            let count = |word| states.iter().filter(|state| *state == word).count();
            (count("running"), count("standby")) == (1, 3)
        });
        wait_until("its consumer, as the broker counts", LIMIT, || {
            site.node.consumers(&site.ingest_queue()) == Some(1)
        });
    }
}

#[test]
fn a_spare_says_that_it_is_one_and_answers_for_nobody_else() {
    let site = Site::new("spare-says");
    let inbox = site.inbox("shop");
    let mut cluster = Cluster::start(&site, &site.config(), 1);
    site.client.publish(&site.push("shop", "{}").id("later").delay(600_000));
    wait_until("it waits", LIMIT, || cluster.serving.items("waiting") == 1);
    let spare = &cluster.spares[0];
    let state = spare.state();
    assert_eq!((&state["ready"], state["missing"].to_string().as_str()), (&true.into(), "[]"));
    let ingest = &state["links"][0];
    assert_eq!((&ingest["side"], &ingest["state"]), (&"ingest".into(), &"standby".into()));
    assert!(ingest["detail"].to_string().contains("another tidegate serves queue"), "{ingest}");
    assert_eq!(state["links"][1]["state"], "connected");
    let told = spare.cli(&["status"]);
    assert!(told.code == 0 && told.out.contains("standby: another tidegate serves"), "{told:?}");
    let metrics = spare.ask_whole("GET", "/metrics").expect("an answer").body;
    for line in ["tidegate_state{state=\"standby\"} 1", "tidegate_ready 1"] {
        assert!(metrics.lines().any(|l| l.starts_with(line)), "{line}:\n{metrics}");
    }
    // It refuses both look-ups and actions, which would not affect the serving daemon.
    for (method, path) in [
        ("GET", "/api/v1/items"),
        ("GET", "/api/v1/items/shop/later"),
        ("POST", "/api/v1/applications/shop/pause"),
    ] {
        let (status, said) = spare.ask(method, path);
        assert_eq!(status, 503, "{path}: {said}");
        assert!(said["error"].to_string().contains("another one serves queue"), "{path}: {said}");
    }
    // Nor does it say that there is nothing.
    for path in ["/api/v1/applications", "/api/v1/parked"] {
        let (status, said) = spare.ask("GET", path);
        assert_eq!(status, 503, "{path}: {said}");
        assert!(said["error"].to_string().contains("another tidegate serves queue"), "{path}: {said}");
    }
    for arguments in [["parked", "list"], ["list", "--count"]] {
        let told = spare.cli(&arguments);
        assert!(told.code == 1 && told.err.contains("what waits is not known here"), "{told:?}");
    }
    let told = spare.cli(&["cancel", "shop", "later"]);
    assert!(told.code != 0 && told.err.contains("stands by"), "{told:?}");
    assert_eq!(cluster.serving.ask("GET", "/api/v1/items/shop/later").0, 200);
    // Once it serves, it answers them.
    cluster.serving.term();
    assert!(cluster.serving.exit(LIMIT).success());
    let spare = &cluster.spares[0];
    wait_until("its turn", LIMIT, || state_of(spare) == "running");
    wait_until("the item is its own", LIMIT, || spare.items("waiting") == 1);
    assert_eq!(spare.cli(&["parked", "list"]).code, 0);
    let (status, said) = spare.ask("DELETE", "/api/v1/items/shop/later");
    assert_eq!((status, &said["result"]), (200, &"cancelled".into()), "{said}");
    inbox.quiet(Duration::from_millis(300));
}

/// Without its connection, a daemon does not have what waits: the broker delivers it again.
/// Excluded: `unknown`, or a cancel of nothing, for an item that is sent afterwards.
#[test]
fn cut_off_from_the_queue_it_calls_no_item_unknown() {
    let site = Site::new("spare-cut");
    let inbox = site.inbox("shop");
    let (proxy, uri) = site.node.proxied();
    let config = site.config().text("store.kind", "memory").text("amqp.uri", &uri);
    let daemon = site.start(&config);
    site.client.publish(&site.push("shop", "{}").id("later").customer("ann").delay(600_000));
    daemon.holds("waiting", 1);
    proxy.welcome(Welcome::Refuse);
    proxy.cut(true);
    wait_until("it has nothing", LIMIT, || {
        let state = daemon.state();
        state["links"][0]["state"] != "connected" && state["items"]["waiting"] == 0
    });
    for (method, path) in [
        ("GET", "/api/v1/items"),
        ("GET", "/api/v1/items/shop/later"),
        ("DELETE", "/api/v1/items/shop/later"),
        ("GET", "/api/v1/customers/shop/ann"),
        ("DELETE", "/api/v1/customers/shop/ann/items"),
        ("DELETE", "/api/v1/applications/shop/items?all=true"),
        ("DELETE", "/api/v1/applications/shop/parked"),
        ("POST", "/api/v1/applications/shop/flush"),
    ] {
        let (status, said) = daemon.ask(method, path);
        assert_eq!(status, 503, "{method} {path}: {said}");
        assert!(said["error"].to_string().contains("the broker has the waiting items"), "{path}: {said}");
    }
    let told = daemon.cli(&["cancel", "shop", "later"]);
    assert!(told.code != 0 && told.err.contains("does not consume"), "{told:?}");
    // It holds for what comes.
    for order in ["pause", "resume"] {
        let (status, said) = daemon.ask("POST", &format!("/api/v1/applications/shop/{order}"));
        assert_eq!(status, 200, "{order}: {said}");
    }
    proxy.heal();
    wait_until("the item is back", LIMIT, || daemon.items("waiting") == 1);
    let (status, said) = daemon.ask("DELETE", "/api/v1/items/shop/later");
    assert_eq!((status, &said["result"]), (200, &"cancelled".into()), "{said}");
    inbox.quiet(Duration::from_millis(300));
}

/// Excluded: a parked backlog that `tail` takes and loses, since it asks a daemon that does not have it.
#[test]
fn a_spare_calls_no_application_unknown_so_that_tail_takes_nothing() {
    let site = Site::new("spare-tail");
    let cluster = Cluster::start(&site, &site.config(), 1);
    let (serving, spare) = (&cluster.serving, &cluster.spares[0]);
    site.client.publish(&site.push("shop", "{}").id("kept"));
    wait_until("it is parked", LIMIT, || serving.items("parked") == 1);
    for name in ["shop", "none"] {
        let (status, said) = spare.ask("GET", &format!("/api/v1/applications/{name}"));
        assert_eq!(status, 503, "{name}: {said}");
        assert!(said["error"].to_string().contains("another tidegate serves queue"), "{name}: {said}");
    }
    let refused = spare.cli(&["tail", "shop", "--for", "2s"]);
    assert!(refused.code == 1 && refused.err.contains("--drain"), "{refused:?}");
    serving.holds("parked", 1);
    assert_eq!(serving.ask("GET", "/api/v1/applications/none").0, 404);
}

mod alone {
    use super::*;

    /// The longest time from the end of the serving daemon to the first arrival of a request sent after it.
    fn gap(ends: &[End], config: &Config, site: &Site<'_>) -> Duration {
        site.application("shop");
        let mut cluster = Cluster::start(site, config, 1);
        let report = replaced(site, &mut cluster, ends);
        assert_eq!(report.recovery_us.len(), ends.len());
        Duration::from_micros(report.recovery_us.into_iter().max().unwrap_or(0))
    }

    fn within(bound: Duration, gap: Duration) -> Result<(), String> {
        (gap <= bound).then_some(()).ok_or_else(|| format!("a gap of {gap:?}"))
    }

    #[test]
    fn a_kill_costs_two_seconds_at_most() {
        alone();
        best_of_three(|round| {
            let site = Site::new(&format!("spare-kill-{round}"));
            within(Duration::from_secs(2), gap(&[End::Killed; 3], &site.config(), &site))
        });
    }

    #[test]
    fn a_stop_costs_two_seconds_at_most() {
        alone();
        best_of_three(|round| {
            let site = Site::new(&format!("spare-stop-{round}"));
            within(Duration::from_secs(2), gap(&[End::Stopped; 2], &site.config(), &site))
        });
    }

    #[test]
    fn a_kill_costs_six_seconds_at_most_where_consumers_are_counted() {
        alone();
        best_of_three(|round| {
            let Some(node) = Node::controlled("a_kill_costs_six_seconds") else { return Ok(()) };
            let site = Site::on(node, &format!("counted-kill-{round}"));
            within(Duration::from_secs(6), gap(&[End::Killed; 3], &counted(&site), &site))
        });
    }
}
