//! Rows 60 to 74: two daemons share a store in a database, and one of them, the database or a network fails.
//!
//! Each daemon reaches the database and the broker through proxies of its own. After each fault one daemon
//! serves and the other one stands by, and requests arrive again.
//!
//! Judges promise 11.

use crate::scene::{Context, Row, Scene, Sending};
use std::path::Path;
use std::time::{Duration, Instant};
use tidegate_harness::{
    holds_within, now_ms, say, Config, Daemon, Database, Load, Node, Proxy, Push, Recipe, Shutdown, Site,
    WallClock, Welcome,
};

/// Length of the lease. A busy machine delays an answer of the database by seconds.
const LEASE: Duration = Duration::from_secs(6);
/// Time limit of each step; a slow machine needs much of it.
const LIMIT: Duration = Duration::from_secs(90);
const NO_DATABASE: &str = "PostgreSQL";
const NO_FAILPOINTS: &str = "TIDEGATE_FAILPOINT_BIN, a daemon built with the feature failpoints";

/// The ways of one daemon to the others.
struct Network {
    database: Proxy,
    broker: Proxy,
}

impl Network {
    fn around(node: &Node, server: &Database) -> Network {
        Network { database: Proxy::start(server.address()), broker: Proxy::start(node.login().0) }
    }

    /// This configuration, with addresses of the proxies.
    fn config(&self, config: Config, server: &Database) -> Config {
        config
            .text("store.uri", &server.uri_by(&self.database))
            .text("amqp.uri", &self.broker.uri("guest", "%2f"))
    }
}

/// Two daemons on one store, under load: the one of the scene serves, the other one stands by.
struct Pair<'n> {
    scene: Scene<'n>,
    spare: Daemon,
    /// The ways of the serving daemon and of the spare.
    networks: [Network; 2],
    /// How often the two have lost the store by a fault of the row.
    losses: usize,
}

/// How often a daemon has lost its store without its own end.
fn losses(daemon: &Daemon) -> usize {
    daemon.log().matches("the store is lost: ").count()
}

impl<'n> Pair<'n> {
    /// Both run, under a load of `per_second` requests.
    fn start(context: &'n Context, name: &str, server: &Database, per_second: u64) -> Pair<'n> {
        Pair::start_with(context, name, server, per_second, None)
    }

    /// As [`Pair::start`], with this binary.
    fn start_with(
        context: &'n Context,
        name: &str,
        server: &Database,
        per_second: u64,
        binary: Option<&Path>,
    ) -> Pair<'n> {
        let networks = [(); 2].map(|()| Network::around(&context.node, server));
        let mut pair = Pair::meeting(context, name, networks, |network, site, config| {
            network.config(site.in_database(config, server), server)
        });
        if let Some(binary) = binary {
            pair.scene.daemon.use_binary(binary);
            pair.spare.use_binary(binary);
        }
        pair.run(per_second);
        pair
    }

    /// Neither runs yet; `config` makes the configuration of each daemon.
    fn meeting(
        context: &'n Context,
        name: &str,
        networks: [Network; 2],
        config: impl Fn(&Network, &Site<'_>, Config) -> Config,
    ) -> Pair<'n> {
        let [ours, theirs] = &networks;
        let mut spares = None;
        let mut scene = Scene::on(context, &context.node, name, |site, common| {
            let common =
                common.text("store.lease", &format!("{}s", LEASE.as_secs())).text("timeouts.connect", "2s");
            spares = Some(config(theirs, site, common.clone()));
            config(ours, site, common)
        });
        // Counters begin anew with each process.
        scene.restarted = true;
        let spare = Daemon::another(&spares.unwrap_or_default());
        Pair { scene, spare, networks, losses: 0 }
    }

    fn run(&mut self, per_second: u64) {
        self.scene.start();
        self.spare.start_again();
        self.settle();
        self.scene.load(per_second);
        self.flows();
    }

    fn swap(&mut self) {
        std::mem::swap(&mut self.scene.daemon, &mut self.spare);
        self.networks.swap(0, 1);
    }

    /// Waits until one daemon serves and takes requests, and the other one stands by; the scene's is then the
    /// one that serves.
    fn settle(&mut self) {
        let Pair { scene, spare, .. } = self;
        let mut stages = [String::new(), String::new()];
        let settled = holds_within(LIMIT, || {
            stages = [scene.daemon.stage(), spare.stage()];
            stages.iter().any(|stage| stage == "running") && stages.iter().any(|stage| stage == "standby")
        });
        scene.check(settled, format!("not within {LIMIT:?}: one serves, one stands by; but {stages:?}"));
        if self.scene.daemon.stage() != "running" {
            self.swap();
        }
        let takes = |s: &Scene<'_>| s.daemon.ask("GET", "/readyz").0 == 200;
        self.scene.check_soon("it takes requests", LIMIT, takes);
    }

    /// Waits until the spare has the store. It takes requests later, if the broker does not know yet that the
    /// owner is gone.
    fn spare_serves(&mut self) {
        let Pair { scene, spare, .. } = self;
        let serves = || ["running", "not_ready"].contains(&spare.stage().as_str());
        scene.check_soon("the spare has the store", LIMIT, |_| serves());
    }

    /// Waits until requests arrive.
    fn flows(&mut self) {
        let before = self.scene.ledger.arrived_count();
        self.scene.check_soon("requests arrive", LIMIT, |s| s.ledger.arrived_count() > before + 200);
    }

    /// A fault at a random moment. Waits until both daemons have their parts again and requests arrive.
    fn suffer(&mut self, fault: impl FnOnce(&mut Self)) {
        self.scene.moments.pause(200, 2_500);
        let before = losses(&self.scene.daemon) + losses(&self.spare);
        self.scene.fault();
        fault(self);
        self.settle();
        self.losses += losses(&self.scene.daemon) + losses(&self.spare) - before;
        self.scene.healed();
        self.flows();
    }

    /// The owner is away for this time, from a random moment on, and the spare serves. Then the owner is back.
    ///
    /// The fault counts up to the takeover only: what the spare sends from then on, the former owner may not
    /// send again. Among that are items that both had in memory, due shortly before the return.
    fn lose_owner(&mut self, time: Duration, away: impl FnOnce(&mut Self), back: impl FnOnce(&mut Self)) {
        const ITEMS: u64 = 50;
        self.scene.moments.pause(200, 2_500);
        let turn = self.scene.moments.pick(0, u64::MAX);
        let in_ms = time.as_millis() as u64 - 2_000;
        let due = now_ms() + in_ms;
        let request = |n: u64| -> Sending {
            let push = self.scene.site.push("shop", "{}").id(&format!("kept-{turn}-{n}"));
            (push.number("x-deliver-at", due as i64), "shop".to_owned(), None, Some(due))
        };
        self.scene.send((0..ITEMS).map(request));
        let last = format!("/api/v1/items/shop/kept-{turn}-{}", ITEMS - 1);
        let waits = |s: &Scene<'_>| s.daemon.ask("GET", &last).1["state"] == "waiting";
        self.scene.check_soon("the items wait", LIMIT, waits);
        let before = losses(&self.scene.daemon);
        let begun = Instant::now();
        self.scene.fault();
        away(self);
        self.spare_serves();
        say(&format!("the spare has the store {:?} after the loss of its owner", begun.elapsed()));
        self.scene.healed();
        std::thread::sleep(time.saturating_sub(begun.elapsed()));
        back(self);
        self.settle();
        self.losses += losses(&self.spare).saturating_sub(before);
        self.flows();
    }

    /// As [`Pair::finish`], and nothing may arrive twice, unless a lease has run out.
    fn finish_without_repeats(self) -> Row {
        match self.end() {
            (row, 0) => row.without_repeats(),
            (row, _) => row,
        }
    }

    /// Ends both, and returns the verdict.
    fn finish(self) -> Row {
        self.end().0
    }

    /// Ends both. Returns the verdict, and how often the two have lost the store by no fault of the row, until
    /// all that was sent has arrived.
    fn end(self) -> (Row, usize) {
        let Pair { scene, mut spare, networks: _networks, losses: of_row } = self;
        end(&mut spare);
        let mut others = 0;
        let row = scene.finish_unless(|scene| {
            others = (losses(&scene.daemon) + losses(&spare)).saturating_sub(of_row);
            if others > 0 {
                // Each of them returns what is not acked.
                say(&format!("{others} leases ran out on this busy machine: repeats are not judged"));
            }
            others > 0
        });
        (row, others)
    }
}

/// Ends a daemon in order. One that loses its store meanwhile says so by its exit code.
fn end(daemon: &mut Daemon) {
    daemon.term();
    let status = daemon.exit(LIMIT);
    assert!(status.success() || losses(daemon) > 0, "{status}: {}", daemon.log_tail());
}

/// The owner dies at random moments. Some dead daemons are started again at once, and recognise the store as
/// their own; others when the spare has taken over.
pub fn killed(context: &Context) -> Row {
    let Some(server) = Database::shared() else { return Row::lacking(NO_DATABASE) };
    let kills = match context {
        Context { long: true, .. } => 60,
        Context { quick: true, .. } => 3,
        _ => 20,
    };
    let mut pair = Pair::start(context, "two-killed", server, 300);
    for _ in 0..kills {
        pair.suffer(|pair| {
            pair.scene.daemon.kill9();
            if pair.scene.moments.pick(0, 2) == 0 {
                pair.spare_serves();
            }
            pair.scene.daemon.start_again();
        });
    }
    pair.finish()
}

/// The owner dies at named places; it has the store from a takeover each time.
pub fn killed_at_points(context: &Context) -> Row {
    const POINTS: [&str; 7] = [
        "before-commit",
        "after-commit",
        "before-ack",
        "after-ack",
        "before-publish",
        "after-publish",
        "after-confirm",
    ];
    let Some(binary) = &context.failpoints else { return Row::lacking(NO_FAILPOINTS) };
    let Some(server) = Database::shared() else { return Row::lacking(NO_DATABASE) };
    let mut pair = Pair::start_with(context, "two-points", server, 300, Some(binary));
    for point in POINTS {
        for _ in 0..2 {
            pair.suffer(|pair| {
                arm(pair, point, "");
                let status = pair.spare.exit(LIMIT);
                pair.scene.check(status.code().is_none(), format!("it ended by itself at {point}: {status}"));
                pair.spare.environment("TIDEGATE_FAILPOINT", None);
                pair.spare.start_again();
            });
        }
    }
    pair.finish()
}

/// The spare takes over, and meets a failpoint at one of its first visits to it, under load. The former owner
/// stands by.
fn arm(pair: &mut Pair<'_>, point: &str, how: &str) {
    let nth = pair.scene.moments.pick(1, 60);
    end(&mut pair.spare);
    pair.spare.environment("TIDEGATE_FAILPOINT", Some(&format!("{point}:{nth}{how}")));
    pair.spare.start_again();
    let Pair { scene, spare, .. } = pair;
    scene.check_soon("the armed one stands by", LIMIT, |_| spare.stage() == "standby");
    // It may end or freeze before it can be asked. A daemon that starts at once would have its own store back.
    let claims = |daemon: &Daemon| daemon.log().matches("claimed the store").count();
    let before = claims(spare);
    end(&mut scene.daemon);
    scene.check_soon("the armed one has the store", LIMIT, |_| claims(spare) > before);
    scene.daemon.start_again();
}

/// The owner is frozen at a random moment, until long after another daemon owns the store.
pub fn frozen(context: &Context) -> Row {
    let Some(server) = Database::shared() else { return Row::lacking(NO_DATABASE) };
    let (times, time) = if context.quick { (1, SHORT) } else { (2, LONG) };
    let mut pair = Pair::start(context, "two-frozen", server, 200);
    for _ in 0..times {
        // The daemons change their parts in between.
        pair.lose_owner(time, |pair| pair.scene.daemon.halt(), |pair| pair.scene.daemon.thaw());
    }
    pair.finish()
}

/// The owner is frozen for a minute at four places, in four stores at the same time.
pub fn frozen_at_points(context: &Context) -> Row {
    let Some(binary) = &context.failpoints else { return Row::lacking(NO_FAILPOINTS) };
    let Some(server) = Database::shared() else { return Row::lacking(NO_DATABASE) };
    let Some(own) = Database::own("") else { return Row::lacking(NO_DATABASE) };
    let rows = std::thread::scope(|scope| {
        let at = |point| scope.spawn(move || (point, frozen_at(context, point, server, binary)));
        // The lease was valid when a batch was about to be written.
        let points = ["before-commit", "before-ack", "before-publish"].map(at);
        let inside = scope.spawn(|| ("inside a transaction", frozen_inside(context, &own)));
        let ended = points.into_iter().chain([inside]).map(|row| row.join());
        ended.map(|row| row.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect::<Vec<_>>()
    });
    Row::sum(rows)
}

/// Long enough for a takeover, and for items that leave some seconds after it.
const SHORT: Duration = Duration::from_secs(18);
/// Long after the broker has given up a connection.
const LONG: Duration = Duration::from_secs(60);

fn frozen_at(context: &Context, point: &str, server: &Database, binary: &Path) -> Row {
    let mut pair = Pair::start_with(context, point, server, 100, Some(binary));
    let freeze = |pair: &mut Pair<'_>| {
        arm(pair, point, ":freeze");
        let Pair { scene, spare, .. } = &mut *pair;
        scene.check_soon("it is frozen", LIMIT, |_| spare.is_frozen());
        pair.swap();
    };
    pair.lose_owner(LONG, freeze, |pair| pair.scene.daemon.thaw());
    pair.finish()
}

/// The owner's connection has room for a part of a transaction only, and the owner is frozen in it.
fn frozen_inside(context: &Context, server: &Database) -> Row {
    const INSIDE: &str = "SELECT count(*) > 0 FROM pg_stat_activity \
                          WHERE application_name = 'tidegate' AND state = 'idle in transaction'";
    let mut pair = Pair::start(context, "inside", server, 200);
    let freeze = |pair: &mut Pair<'_>| {
        let way = &pair.networks[0].database;
        way.slow(20_000);
        let inside = holds_within(LIMIT, || server.sql(INSIDE) == "t");
        pair.scene.check(inside, "no transaction was under way");
        way.stall();
        pair.scene.daemon.halt();
    };
    let thaw = |pair: &mut Pair<'_>| {
        pair.networks[0].database.heal();
        pair.scene.daemon.thaw();
    };
    pair.lose_owner(LONG, freeze, thaw);
    pair.finish()
}

/// The owner's network fails for this time: its connections carry nothing any more, or are reset. The spare
/// takes over.
fn cut(
    context: &Context,
    name: &str,
    (times, time): (usize, Duration),
    ways: impl Fn(&Network) -> Vec<&Proxy>,
) -> Row {
    let Some(server) = Database::shared() else { return Row::lacking(NO_DATABASE) };
    let mut pair = Pair::start(context, name, server, 200);
    for turn in 0..times {
        let away = |pair: &mut Pair<'_>| {
            for way in ways(&pair.networks[0]) {
                if turn % 2 == 0 {
                    way.welcome(Welcome::Silent);
                    way.stall();
                } else {
                    way.welcome(Welcome::Refuse);
                    way.cut(true);
                }
            }
        };
        let back = |pair: &mut Pair<'_>| {
            for way in ways(&pair.networks[0]) {
                // The other side has given up the connections that were stalled.
                way.cut(true);
                way.heal();
            }
        };
        pair.lose_owner(time, away, back);
    }
    pair.finish()
}

pub fn cut_from_database(context: &Context) -> Row {
    let times = if context.quick { 1 } else { 4 };
    cut(context, "two-cut-d", (times, SHORT), |network| vec![&network.database])
}

/// The owner gives the store away, because another daemon may reach the broker.
pub fn cut_from_broker(context: &Context) -> Row {
    // Once, because a daemon that has given the store away is no heir for five minutes.
    cut(context, "two-cut-b", (1, LONG), |network| vec![&network.broker])
}

pub fn cut_from_both(context: &Context) -> Row {
    cut(context, "two-cut", (4, SHORT), |network| vec![&network.database, &network.broker])
}

/// The database is stopped in order and at once, and started again.
pub fn database_restarted(context: &Context) -> Row {
    let Some(server) = Database::own("") else { return Row::lacking(NO_DATABASE) };
    let mut pair = Pair::start(context, "two-restart", &server, 300);
    let mut pids = [pair.scene.daemon.pid(), pair.spare.pid()];
    let stops = [Shutdown::InOrder, Shutdown::AtOnce].into_iter().cycle();
    for how in stops.take(if context.quick { 2 } else { 6 }) {
        pair.suffer(|pair| {
            server.stop(how);
            pair.scene.moments.pause(0, 1_500);
            server.serve();
        });
    }
    let mut now = [pair.scene.daemon.pid(), pair.spare.pid()];
    pids.sort_unstable();
    now.sort_unstable();
    pair.scene.check(pids == now, "a process has ended");
    pair.finish()
}

/// The database is away for a minute.
pub fn database_down(context: &Context) -> Row {
    let Some(server) = Database::own("") else { return Row::lacking(NO_DATABASE) };
    let mut pair = Pair::start(context, "two-down", &server, 200);
    pair.suffer(|pair| {
        server.stop(Shutdown::InOrder);
        let waits = |daemon: &Daemon| daemon.stage() == "waiting";
        let both = holds_within(LIMIT, || waits(&pair.scene.daemon) && waits(&pair.spare));
        pair.scene.check(both, "the daemons do not say that they wait");
        std::thread::sleep(Duration::from_secs(60));
        server.serve();
    });
    pair.finish()
}

/// The database's machine is lost, twice, and its synchronous replica takes writes. Both addresses are in the
/// configuration, and nothing is lost.
pub fn failover(context: &Context) -> Row {
    let Some(mut primary) = Database::own("") else { return Row::lacking(NO_DATABASE) };
    let mut replica = primary.replica(None);
    let networks = [(); 2].map(|()| Network::around(&context.node, &primary));
    let hosts = format!("{},{}", primary.address(), replica.address());
    let both = primary.uri().replace(&primary.address().to_string(), &hosts);
    let mut pair = Pair::meeting(context, "two-failover", networks, |network, site, config| {
        // The replica is waited for by the database's own settings.
        network.config(site.in_database(config, &primary), &primary).text("store.uri", &both)
    });
    pair.run(300);
    pair.suffer(|_| {
        primary.stop(Shutdown::Killed);
        replica.promote();
    });
    // The other way round, with a replica at the address of the lost one.
    let lost = std::mem::replace(&mut primary, replica).address().port();
    replica = primary.replica(Some(lost));
    pair.suffer(|_| {
        primary.stop(Shutdown::Killed);
        replica.promote();
    });
    pair.finish()
}

/// The file system of the tables is full for some seconds: nothing is taken, and nothing is lost.
pub fn disk_full(context: &Context) -> Row {
    // Removed rows leave room within seconds.
    let Some(server) = Database::own("autovacuum_naptime = 3s\n") else { return Row::lacking(NO_DATABASE) };
    let Some(disk) = server.on_small_disk(128) else { return Row::lacking("mount") };
    let mut pair = Pair::start(context, "two-full", &server, 50);
    let exchange = pair.scene.site.ingest();
    let body = vec![b'x'; 5_000];
    let recipe: Recipe = Box::new(move |n| {
        let delay = 500 + n * 37 % 1_500;
        let push = Push::new(&exchange, "shop", body.clone()).id(&format!("d{n}"));
        (push.delay(i64::try_from(delay).unwrap_or(0)), "shop".to_owned(), None, Some(delay))
    });
    let load = Load::start(pair.scene.site.node.uri(), 50, &pair.scene.ledger, recipe);
    pair.flows();
    pair.suffer(|pair| {
        let told = |daemon: &Daemon| daemon.log().contains("No space left on device");
        let is_full = holds_within(LIMIT, || {
            // Space that was freed in the meantime is filled again.
            disk.fill();
            told(&pair.scene.daemon) || told(&pair.spare)
        });
        pair.scene.check(is_full, "no daemon says that the database's disk is full");
        std::thread::sleep(Duration::from_secs(5));
        disk.make_room();
    });
    load.stop();
    let row = pair.finish();
    server.stop(Shutdown::AtOnce);
    row
}

/// A transaction elsewhere in the database keeps all removed rows for a minute: the flow keeps its pace.
pub fn held_snapshot(context: &Context) -> Row {
    const RATE: usize = 500;
    let Some(server) = Database::shared() else { return Row::lacking(NO_DATABASE) };
    let mut pair = Pair::start(context, "two-held", server, RATE as u64);
    let size = |pair: &Pair<'_>| pair.scene.daemon.state()["store"]["bytes"].as_u64();
    let before = size(&pair);
    std::thread::scope(|scope| {
        let held = scope.spawn(|| server.sql("SELECT pg_sleep(60)"));
        while !held.is_finished() {
            std::thread::sleep(Duration::from_millis(500));
            let missing = pair.scene.ledger.missing();
            // Windows, own times of up to two seconds, and three times as much again for a busy machine.
            pair.scene.check(missing < 10 * RATE, format!("{missing} requests are late"));
        }
    });
    say(&format!("size of the store before {before:?}, after {:?}", size(&pair)));
    pair.finish_without_repeats()
}

/// A daemon whose clock is an hour off does not take the store, even where no other daemon has it.
pub fn clocks_apart(context: &Context) -> Row {
    let Some(server) = Database::shared() else { return Row::lacking(NO_DATABASE) };
    let mut pair = Pair::start(context, "two-clocks", server, 200);
    for ahead_ms in [3_600_000, -3_600_000] {
        end(&mut pair.spare);
        let Some(()) = WallClock::ahead(&mut pair.spare, ahead_ms) else {
            return Row::lacking("the package faketime");
        };
        pair.spare.start_again();
        let Pair { scene, spare, .. } = &mut pair;
        let says = |spare: &Daemon| {
            let state = spare.ask("GET", "/api/v1/state").1;
            let detail = state["links"][0]["detail"].as_str().unwrap_or_default().to_owned();
            state["state"] == "waiting" && detail.contains("clock")
        };
        scene.check_soon("the spare names its clock", LIMIT, |_| says(spare));
        scene.fault();
        scene.daemon.kill9();
        let begun = Instant::now();
        while begun.elapsed() < 3 * LEASE {
            let claimed = spare.stage() == "running";
            scene.check(!claimed, "VERDICT: a daemon with a wrong clock has claimed the store");
            std::thread::sleep(Duration::from_millis(100));
        }
        scene.daemon.start_again();
        scene.daemon.wait_ready();
        scene.healed();
        pair.flows();
    }
    // With the right clock it stands by.
    end(&mut pair.spare);
    pair.spare.environment("LD_PRELOAD", None);
    pair.spare.start_again();
    pair.settle();
    pair.finish()
}

/// A daemon that knows another format of the tables refuses to start; the one that serves is not disturbed.
pub fn other_format(context: &Context) -> Row {
    let Some(server) = Database::shared() else { return Row::lacking(NO_DATABASE) };
    let mut pair = Pair::start(context, "two-formats", server, 200);
    let cluster = format!("{}.cluster", pair.scene.site.schema());
    let format = server.sql(&format!("SELECT format FROM {cluster}"));
    for other in ["1", "99"] {
        end(&mut pair.spare);
        server.sql(&format!("UPDATE {cluster} SET format = {other}"));
        pair.spare.start_again();
        let status = pair.spare.exit(LIMIT);
        let said = pair.spare.log().contains(&format!("its tables have format {other}"));
        let refused = status.code() == Some(78) && said;
        pair.scene.check(refused, format!("format {other}: {status}, {}", pair.spare.log_tail()));
        server.sql(&format!("UPDATE {cluster} SET format = {format}"));
        pair.spare.start_again();
        pair.settle();
        pair.flows();
    }
    pair.finish_without_repeats()
}

/// A request that kills each daemon that receives it: the queue's delivery limit removes it, and everything
/// else arrives.
pub fn poisoned(context: &Context) -> Row {
    let Some(binary) = &context.failpoints else { return Row::lacking(NO_FAILPOINTS) };
    let Some(server) = Database::shared() else { return Row::lacking(NO_DATABASE) };
    let mut pair = Pair::start_with(context, "two-poison", server, 100, Some(binary));
    let (queue, policy) = (pair.scene.site.ingest_queue(), "tidegate-test-poison");
    let pattern = format!("^{queue}$");
    // Above the deaths of both daemons before they suspect a request.
    let node = &context.node;
    node.ctl(&["set_policy", "--apply-to", "queues", policy, &pattern, r#"{"delivery-limit":15}"#]);
    for daemon in [&mut pair.scene.daemon, &mut pair.spare] {
        daemon.environment("TIDEGATE_FAILPOINT", Some("poisoned-request"));
    }
    // The environment counts from the next start on.
    pair.suffer(|pair| {
        end(&mut pair.spare);
        pair.spare.start_again();
        pair.settle();
        end(&mut pair.scene.daemon);
        pair.scene.daemon.start_again();
    });
    let dead = pair.scene.site.dead();
    pair.suffer(|pair| {
        let push = pair.scene.site.push("shop", "poison").id("poison");
        pair.scene.site.client.publish(&push);
        let begun = Instant::now();
        let Pair { scene, spare, .. } = pair;
        let (mut deaths, mut starts) = (0, [None; 2]);
        let is_over = |scene: &Scene<'_>| {
            scene.site.client.depth(&dead).is_some_and(|depth| depth > 0) || begun.elapsed() > POISONED
        };
        while !is_over(scene) || starts.iter().any(Option::is_some) {
            for (daemon, start) in [&mut scene.daemon, &mut *spare].into_iter().zip(&mut starts) {
                if daemon.running() {
                    continue;
                }
                // Of two starts one has its own store back, and the other one comes after the takeover.
                let at = *start.get_or_insert_with(|| {
                    deaths += 1;
                    Instant::now() + if deaths % 2 == 0 { 2 * LEASE } else { Duration::ZERO }
                });
                if Instant::now() >= at {
                    daemon.start_again();
                    *start = None;
                }
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        say(&format!("the request has killed {deaths} times in {:?}", begun.elapsed()));
        pair.scene.check((4..=16).contains(&deaths), format!("{deaths} deaths"));
    });
    node.ctl(&["clear_policy", policy]);
    let removed = pair.scene.site.dead_inbox().poll(LIMIT).map(|letter| letter.id());
    pair.scene.check(removed.as_deref() == Some("poison"), format!("removed: {removed:?}"));
    pair.finish()
}

/// Time until the request has killed often enough.
const POISONED: Duration = Duration::from_secs(300);
