//! The store in PostgreSQL: items outlive the daemon and its machine, and one daemon at a time owns the
//! store.
//!
//! Judges promise 11.

mod check;
mod secured;
mod takeover;

use serde_json::json;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use tidegate_harness::{
    now_ms, wait_until, workdir, Config, Daemon, Database, Ledger, Proxy, Recorder, Site, Welcome,
};

const LIMIT: Duration = Duration::from_secs(60);

/// A site whose store is in the database; `None` if PostgreSQL is missing.
fn site(name: &str) -> Option<(Site<'static>, &'static Database, Config)> {
    let server = Database::shared()?;
    let site = Site::new(name);
    let config = site.in_database(site.config(), server);
    Some((site, server, config))
}

/// The database's answer to a query about the site's store; `$` stands for its schema.
fn asked(server: &Database, site: &Site<'_>, text: &str) -> String {
    server.sql(&text.replace('$', site.schema()))
}

#[test]
fn everything_that_waits_outlives_kills() {
    let Some((site, server, config)) = site("pg-round") else { return };
    // A daemon that did not know its own store again would wait for the end of the lease: 40 s and more.
    let config = config.text("defaults.window", "10s").text("store.lease", "60s");
    let inbox = site.inbox("shop");
    let mut daemon = site.start(&config);
    // So nothing leaves before the kill, however long the steps until then take. Windows close all the same.
    assert_eq!(daemon.cli(&["pause", "shop"]).code, 0);
    let push = |id: &str| site.push("shop", format!("{{\"n\":\"{id}\"}}")).id(id);
    site.client.publish(&push("far").delay(3_600_000).customer("a"));
    site.client.publish(&push("gone").delay(3_600_000).customer("a"));
    assert_eq!(daemon.cli(&["pause", "shop", "--customer", "held"]).code, 0);
    site.client.publish(&push("paused").delay(100).customer("held"));
    // Without a queue these are parked.
    site.client.publish(&site.push("nobody", "1").id("parked"));
    daemon.holds("parked", 1);
    // The last one is due after the window of the others.
    let near = [push("w1").customer("b"), push("w2").customer("b"), push("soon").delay(12_000)];
    site.client.publish_all(near);
    // Otherwise they would be delivered again after the kill, and their window would begin then.
    wait_until("all that waits is stored", LIMIT, || {
        let state = daemon.state();
        state["items"]["waiting"] == 6 && state["uncommitted"] == 0
    });
    assert_eq!(daemon.cli(&["cancel", "shop", "gone"]).code, 0);
    // This one expires before it can be delivered.
    let before = i64::try_from(now_ms()).expect("a moment") + 1_500;
    let expiring = site.push("closed", "1").id("late").number("x-deliver-before", before);
    site.client.publish(&expiring);
    daemon.kill9();
    let begun = Instant::now();
    daemon.start_again();
    daemon.wait_ready();
    assert!(begun.elapsed() < Duration::from_secs(30), "ready after {:?}", begun.elapsed());
    assert!(!site.dir.join("store/db").exists() && site.dir.join("store/NODE").exists());
    let listed = daemon.cli(&["list", "--application", "shop", "--output", "json"]);
    for id in ["far", "soon"] {
        assert!(listed.out.contains(&format!("\"{id}\"")), "{listed:?}");
    }
    assert!(!listed.out.contains("\"gone\""), "{listed:?}");
    assert_eq!(daemon.cli(&["resume", "shop"]).code, 0);
    // First the window that was open during the kill, as one batch, then the item that was due.
    let together = inbox.next();
    together.is_not_early();
    assert_eq!(together.batch().ids(), ["w1", "w2"]);
    let soon = inbox.next();
    soon.is_not_early();
    assert_eq!(soon.batch().ids(), ["soon"]);
    assert_eq!(daemon.cli(&["lookup", "shop", "gone"]).code, 0);
    assert_eq!(daemon.ask("GET", "/api/v1/items/shop/gone").1["state"], "cancelled");
    assert_eq!(daemon.ask("GET", "/api/v1/items/shop/far").1["state"], "waiting");
    let letter = site.dead_inbox().next();
    assert_eq!(
        (letter.id().as_str(), letter.text("x-tidegate-reason").as_deref()),
        ("late", Some("expired"))
    );
    assert_eq!(daemon.state()["store"]["kind"], "postgres");
    daemon.holds("parked", 1);
    // A row that is not removed yet would be delivered again, which is allowed.
    let left = |count: &str| {
        let stored = "SELECT count(*) FROM $.waiting WHERE queue = 'shop'";
        wait_until("so many are left", LIMIT, || asked(server, &site, stored) == count);
    };
    left("2");
    daemon.kill9();
    daemon.start_again();
    daemon.wait_ready();
    assert_eq!(daemon.cli(&["resume", "shop", "--customer", "held"]).code, 0);
    assert_eq!(inbox.next().batch().ids(), ["paused"]);
    site.application("nobody");
    let parked = site.client.consume(&site.queue("nobody"));
    assert_eq!(daemon.cli(&["parked", "retry", "nobody"]).code, 0);
    assert_eq!(parked.next().batch().ids(), ["parked"]);
    left("1");
}

#[test]
fn kills_under_load_lose_nothing() {
    let Some((site, _, config)) = site("pg-load") else { return };
    site.application("shop");
    let ledger = Ledger::new();
    let recorder = Recorder::start(site.node.uri(), &[site.queue("shop")], &ledger);
    let mut daemon = site.start(&config);
    let load = site.load(&ledger, 300);
    for turn in 1..=3 {
        wait_until("some arrive", LIMIT, || ledger.arrived_count() > turn * 150);
        ledger.fault();
        daemon.kill9();
        daemon.start_again();
        daemon.wait_ready();
        ledger.healed();
    }
    let arrived = ledger.arrived_count();
    wait_until("it goes on", LIMIT, || ledger.arrived_count() > arrived + 150);
    load.stop();
    ledger.settle(LIMIT).assert_clean();
    drop(recorder);
}

/// Waits until the daemon stands by and is ready to take over. Returns the state's sentence about it.
fn stands_by(daemon: &Daemon) -> String {
    let mut told = String::new();
    wait_until("it stands by, ready", LIMIT, || {
        let state = daemon.ask("GET", "/api/v1/state").1;
        state["links"][0]["detail"].as_str().unwrap_or_default().clone_into(&mut told);
        state["state"] == "standby" && !told.is_empty() && daemon.ask("GET", "/readyz").0 == 200
    });
    told
}

fn serves(daemon: &Daemon) {
    wait_until("it serves", LIMIT, || daemon.stage() == "running");
}

#[test]
fn a_second_daemon_stands_by_and_takes_over_once_the_lease_is_over() {
    let Some((site, server, config)) = site("pg-second") else { return };
    let config = config.text("store.lease", "12s");
    let inbox = site.inbox("shop");
    let mut first = site.start(&config);
    // So the first daemon does not deliver it, however long the steps until its end take.
    assert_eq!(first.cli(&["pause", "shop"]).code, 0);
    site.client.publish(&site.push("shop", "1").id("kept").delay(2_000));
    first.holds("waiting", 1);
    let mut second = Daemon::another(&config);
    second.start_again();
    let owner = asked(server, &site, "SELECT owner FROM $.shards");
    let told = stands_by(&second);
    assert!(told.contains(&format!("the store belongs to {owner}")), "{told}");
    let (serving, spare) = (first.state(), second.state());
    let epoch: u64 = asked(server, &site, "SELECT epoch FROM $.shards").parse().expect("a number");
    let (held, seen) = (&serving["shards"][0], &spare["shards"][0]);
    assert_eq!((&held["owner"], &held["epoch"]), (&serving["node"], &json!(epoch)), "{held}");
    assert_eq!((&held["state"], &held["waiting"], &held["life"]), (&json!("running"), &json!(1), &json!(1)));
    assert_eq!((&seen["owner"], &seen["state"]), (&json!(owner), &json!("standby")), "{seen}");
    assert!(held["lease_ms"].is_u64() && seen["lease_ms"].is_u64() && seen.get("epoch").is_none(), "{seen}");
    assert_ne!(spare["node"], owner, "each has a name of its own");
    let shown = first.cli(&["status"]).out;
    assert!(
        shown.contains("shard 0") && shown.contains(&format!("running  owner {owner}  epoch 1")),
        "{shown}"
    );
    let refused = second.cli(&["cancel", "shop", "kept"]);
    assert!(refused.code == 1 && refused.err.contains("stands by"), "{refused:?}");
    assert_eq!(second.cli(&["health"]).code, 0);
    first.kill9();
    serves(&second);
    assert_eq!(second.cli(&["resume", "shop"]).code, 0);
    let kept = inbox.next();
    kept.is_not_early();
    assert_eq!(kept.batch().ids(), ["kept"]);
    // The first daemon is now the standby of the second.
    first.start_again();
    stands_by(&first);
    // A stop releases the store at once, and a standby ends at once.
    second.term();
    assert!(second.exit(LIMIT).success());
    serves(&first);
    second.start_again();
    stands_by(&second);
    second.term();
    assert!(second.exit(LIMIT).success());
    assert!(second.log().contains("stopping: there is nothing to finish"), "{}", second.log_tail());
    site.client.publish(&site.push("shop", "1").id("after"));
    assert_eq!(inbox.next().batch().ids(), ["after"]);
}

/// Under load, with a standby daemon at all times.
#[test]
fn owners_that_are_killed_or_stopped_are_followed_by_others_and_nothing_is_lost() {
    let Some((site, server, config)) = site("pg-two") else { return };
    let config = config.text("store.lease", "20s");
    site.application("shop");
    let ledger = Ledger::new();
    let recorder = Recorder::start(site.node.uri(), &[site.queue("shop")], &ledger);
    let mut serving = site.start(&config);
    let mut spare = Daemon::another(&config);
    spare.start_again();
    stands_by(&spare);
    let load = site.load(&ledger, 300);
    for is_killed in [true, false, true] {
        let arrived = ledger.arrived_count();
        wait_until("some arrive", LIMIT, || ledger.arrived_count() > arrived + 150);
        ledger.fault();
        if is_killed {
            serving.kill9();
            asked(server, &site, GIVE_BACK);
        } else {
            serving.term();
            assert!(serving.exit(LIMIT).success(), "{}", serving.log_tail());
        }
        serves(&spare);
        ledger.healed();
        serving.start_again();
        stands_by(&serving);
        std::mem::swap(&mut serving, &mut spare);
    }
    let arrived = ledger.arrived_count();
    wait_until("it goes on", LIMIT, || ledger.arrived_count() > arrived + 150);
    load.stop();
    ledger.settle(LIMIT).assert_clean();
    drop(recorder);
}

const STEAL: &str = "UPDATE $.shards SET claim = '\\x01', writer = '\\x01', owner = 'thief/1', \
                     expires = clock_timestamp() + interval '1 hour'";
const GIVE_BACK: &str = "UPDATE $.shards SET expires = clock_timestamp()";

/// Another daemon has claimed the store, and this one does not know yet.
#[test]
fn whoever_was_robbed_writes_nothing_acks_nothing_and_stands_by() {
    let Some((site, server, config)) = site("pg-zombie") else { return };
    // Long, so that it learns of that from its next commit and not from its clock.
    let config = config.text("store.lease", "60s");
    let inbox = site.inbox("shop");
    let mut daemon = site.start(&config);
    asked(server, &site, STEAL);
    let marks = || asked(server, &site, "SELECT commit_no, next_seq, wall FROM $.shards");
    let before = marks();
    site.client.publish(&site.push("shop", "1").id("kept"));
    let told = stands_by(&daemon);
    assert!(told.contains("the store belongs to thief/1"), "{told}");
    assert!(daemon.log().contains("another daemon has taken the store over"), "{}", daemon.log_tail());
    assert_eq!(asked(server, &site, "SELECT count(*) FROM $.items"), "0");
    assert_eq!(marks(), before);
    site.lies(&site.ingest_queue(), 1);
    // A restarted process is not taken for the former owner either.
    daemon.kill9();
    daemon.start_again();
    stands_by(&daemon);
    asked(server, &site, GIVE_BACK);
    assert_eq!(inbox.next().batch().ids(), ["kept"]);
    serves(&daemon);
}

/// Frozen for longer than the lease, with items due when it wakes; by then another daemon owns the store.
#[test]
fn whoever_wakes_after_its_lease_sends_nothing() {
    let Some((site, server, config)) = site("pg-frozen") else { return };
    let config = config.text("store.lease", "10s").text("amqp.heartbeat", "60s");
    let inbox = site.inbox("shop");
    let daemon = site.start(&config);
    let due = i64::try_from(now_ms()).expect("a moment") + 20_000;
    let push = |n: u32| site.push("shop", "1").id(&n.to_string()).number("x-deliver-at", due);
    site.client.publish_all((0..50).map(push));
    daemon.holds("waiting", 50);
    daemon.halt();
    let over = "SELECT expires < clock_timestamp() FROM $.shards";
    wait_until("its lease is over", LIMIT, || asked(server, &site, over) == "t");
    asked(server, &site, STEAL);
    wait_until("its items are due", LIMIT, || i64::try_from(now_ms()).is_ok_and(|now| now > due));
    daemon.thaw();
    stands_by(&daemon);
    assert!(daemon.log().contains("may be another daemon's by now"), "{}", daemon.log_tail());
    inbox.quiet(Duration::from_millis(500));
    asked(server, &site, GIVE_BACK);
    let (mut ids, mut count) = (BTreeSet::new(), 0);
    while ids.len() < 50 {
        let batch = inbox.batch();
        count += batch.items.len();
        ids.extend(batch.ids().into_iter().map(|id| id.parse::<u32>().expect("a number")));
    }
    assert_eq!(ids, (0..50).collect::<BTreeSet<u32>>());
    // The end of another life may repeat some.
    let lives_lost = daemon.log().matches("the store is lost: ").count();
    assert!(count == 50 || lives_lost > 1, "{count} items: {}", daemon.log_tail());
}

/// Asks a daemon whose database is silent for the state, for longer than an attempt to open the store takes. On a
/// busy machine one answer may be late; a daemon that did not answer during an attempt would be late each time.
fn answers_while_it_tries(daemon: &Daemon) {
    let begun = Instant::now();
    let (mut answers, mut late) = (0, Vec::new());
    while begun.elapsed() < Duration::from_secs(12) {
        let (status, state) = daemon.ask("GET", "/api/v1/state");
        if status == 503 {
            late.push(state.to_string());
        } else {
            assert_eq!((status, &state["state"]), (200, &"waiting".into()), "while it tries: {state}");
            answers += 1;
        }
        let told = daemon.cli(&["status"]);
        if told.code != 3 {
            late.push(format!("{told:?}"));
        }
    }
    assert!(answers > 0 && late.len() < 2, "{answers} answers in time, and late: {late:?}");
}

/// The connection is cut, and then it is silent.
#[test]
fn a_database_that_is_gone_for_a_while_ends_no_process_and_loses_nothing() {
    let Some((site, server, config)) = site("pg-gone") else { return };
    let (proxy, second) = (Proxy::start(server.address()), Proxy::start(server.address()));
    // An attempt to open the store takes 5 s for each host that is silent.
    second.welcome(Welcome::Silent);
    let hosts = format!("{},{}", proxy.address(), second.address());
    let uri = server.uri_by(&proxy).replace(&proxy.address().to_string(), &hosts);
    let config = config.text("store.lease", "12s").text("store.uri", &uri);
    let inbox = site.inbox("shop");
    let mut daemon = site.start(&config);
    let pid = daemon.pid();
    let lives = |daemon: &Daemon| daemon.log().matches("the store is lost: ").count();
    let stored = |count: u32| {
        let count = count.to_string();
        wait_until("so many are stored", LIMIT, || {
            asked(server, &site, "SELECT count(*) FROM $.items") == count
        });
    };
    // The first item of each turn is due when the store is lost, after a renewal or at the end of the lease.
    for (turn, is_silent, in_ms) in [(1, false, 12_000), (2, true, 25_000)] {
        let [before, meanwhile] = ["before", "meanwhile"].map(|when| format!("{turn}-{when}"));
        site.client.publish(&site.push("shop", "1").id(&before).delay(in_ms));
        stored(1);
        // An idle daemon notices at the next renewal.
        if is_silent {
            proxy.welcome(Welcome::Silent);
            proxy.stall();
            // This query is open when the store is lost.
            let (status, said) = daemon.ask("GET", "/api/v1/items?application=shop");
            let told = said["error"].as_str().unwrap_or_default();
            assert!(status == 503 && told.contains("the store was lost"), "{status} {said}");
        } else {
            proxy.welcome(Welcome::Refuse);
            proxy.cut(true);
        }
        wait_until("it waits", LIMIT, || lives(&daemon) == turn && daemon.stage() == "waiting");
        let (status, missing) = daemon.ask("GET", "/readyz");
        assert!(status == 503 && missing["missing"][0] == "store", "{status} {missing}");
        assert_eq!(daemon.ask("GET", "/livez").0, 200);
        if is_silent {
            answers_while_it_tries(&daemon);
        }
        let refused = daemon.cli(&["lookup", "shop", &before]);
        assert!(refused.code == 1 && refused.err.contains("there is no store at present"), "{refused:?}");
        site.client.publish(&site.push("shop", "1").id(&meanwhile).delay(100));
        proxy.heal();
        second.heal();
        serves(&daemon);
        second.welcome(Welcome::Silent);
        let mut ids = [inbox.batch().ids().join(""), inbox.batch().ids().join("")];
        ids.sort();
        assert_eq!(ids, [before, meanwhile]);
        // A row that is not removed yet would be delivered again, which is allowed.
        stored(0);
    }
    assert!(daemon.running() && daemon.pid() == pid, "{}", daemon.log_tail());
    // The counters continue over all three lives.
    let state = daemon.state();
    assert_eq!(
        (&state["totals"]["confirmed"], &state["lateness"]["count"]),
        (&4.into(), &4.into()),
        "{state}"
    );
    let store = &state["store"];
    assert_eq!(store["lives"], 3, "{store}");
    // If the database is silent, the lease ends first.
    let ended = json!({ "database": 1, "lease_over": 1, "fenced": 0, "given_away": 0 });
    assert_eq!(store["lives_ended"], ended, "{store}");
    assert_eq!(store["takeovers"], json!({ "free": 1, "expired": 0, "own": 2 }), "{store}");
    assert!((1..=9_600).contains(&store["lease_remaining_ms"].as_u64().unwrap_or(0)), "{store}");
    let metrics = daemon.ask_whole("GET", "/metrics").expect("an answer").body;
    for line in [
        "tidegate_items_confirmed_total 4",
        "tidegate_publish_lateness_seconds_count 4",
        "tidegate_store_lives_total 3",
        "tidegate_store_lives_ended_total{reason=\"lease_over\"} 1",
        "tidegate_store_takeovers_total{reason=\"own\"} 2",
        "tidegate_store_lease_remaining_seconds ",
    ] {
        assert!(metrics.lines().any(|told| told.starts_with(line)), "{line}:\n{metrics}");
    }
    daemon.term();
    assert!(daemon.exit(LIMIT).success());
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let Some((site, server, config)) = site("pg-refused") else { return };
    let mut daemon = site.start(&config);
    daemon.term();
    assert!(daemon.exit(LIMIT).success());
    for (change, code, part) in [
        ("UPDATE $.cluster SET format = 7", 78, "its tables have format 7"),
        ("UPDATE $.cluster SET format = 2, shards = 4", 78, "it is laid out for 4 shards"),
    ] {
        asked(server, &site, change);
        daemon.start_again();
        assert_eq!(daemon.exit(LIMIT).code(), Some(code), "{change}");
        assert!(daemon.log().contains(part), "{}", daemon.log_tail());
    }
    std::fs::create_dir_all(site.dir.join("store/db")).expect("a directory");
    std::fs::write(site.dir.join("store/db/version"), "").expect("a file");
    daemon.start_again();
    assert_eq!(daemon.exit(LIMIT).code(), Some(78));
    assert!(daemon.log().contains("holds a store on the disk"), "{}", daemon.log_tail());
}

#[test]
fn a_role_that_may_make_nothing_works_over_tables_that_others_made() {
    let Some((site, server, config)) = site("pg-weak") else { return };
    let role = format!("{}_weak", site.schema());
    server.sql(&format!("CREATE ROLE {role} LOGIN"));
    let config = config.text("store.uri", &server.uri_of(&role));
    let inbox = site.inbox("shop");
    let mut daemon = Daemon::stopped(&config, &site.dir);
    daemon.start_again();
    wait_until("it waits", LIMIT, || daemon.log().contains("waiting for the store"));
    assert!(daemon.log().contains("tidegate schema"), "{}", daemon.log_tail());
    let schema = daemon.cli(&["schema"]);
    assert_eq!(schema.code, 0, "{schema:?}");
    server.sql(&schema.out);
    asked(server, &site, &format!("GRANT USAGE ON SCHEMA $ TO {role}"));
    asked(
        server,
        &site,
        &format!("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA $ TO {role}"),
    );
    daemon.wait_ready();
    site.client.publish(&site.push("shop", "1").id("x"));
    assert_eq!(inbox.next().batch().ids(), ["x"]);
}

#[test]
fn neither_password_nor_uri_is_told() {
    const CANARY: &str = "canary-pg-41d0b7c2";
    let Some((site, server, config)) = site("pg-canary") else { return };
    let role = format!("{}_login", site.schema());
    server.sql(&format!("CREATE ROLE {role} LOGIN PASSWORD '{CANARY}'"));
    let silent = |place: &str, text: &str| assert!(!text.contains(CANARY), "{place}: {text}");
    let uri = server.uri_of(&format!("{role}:{CANARY}"));
    // An unknown database; an unknown parameter; no server at that address.
    let bent = [
        uri.replace("/postgres?", "/nothing?"),
        uri.replace("/postgres?", "/postgres?x=1&"),
        format!("postgres://{role}:{CANARY}@127.0.0.1:1/d"),
    ];
    for uri in bent {
        let dir = workdir("canary");
        let mut daemon = Daemon::stopped(&config.clone().text("store.uri", &uri), &dir);
        daemon.start_again();
        wait_until("it has looked", LIMIT, || {
            !daemon.running() || daemon.log().contains("waiting for the store")
        });
        silent("log", &daemon.log());
        for command in [&["check"][..], &["config", "show"], &["schema"]] {
            let told = daemon.cli(command);
            silent(command[0], &format!("{}{}", told.out, told.err));
        }
    }
    // With everything logged.
    let inbox = site.inbox("shop");
    let mut shown = Daemon::stopped(&config.text("store.uri", &uri), &site.dir);
    server.sql(&format!("GRANT CREATE ON DATABASE postgres TO {role}"));
    shown.environment("TIDEGATE_LOG", Some("trace"));
    shown.start_again();
    shown.wait_ready();
    site.client.publish(&site.push("shop", CANARY).with("x-order", CANARY).id("x"));
    inbox.batch();
    shown.holds("waiting", 0);
    let log = shown.log();
    silent("log", &log);
    let bytes: Vec<String> = CANARY.bytes().take(8).map(|byte| byte.to_string()).collect();
    assert!(log.contains("tidegate::") && !log.contains(&bytes.join(", ")), "the log tells it in bytes");
    let told = shown.cli(&["config", "show"]);
    assert!(told.out.contains(&format!("postgres://{role}:***@127.0.0.1")), "{told:?}");
    silent("config show", &format!("{}{}", told.out, told.err));
    let checked = shown.cli(&["check"]);
    assert!(checked.out.contains(&format!("schema `{}`", site.schema())), "{checked:?}");
}

#[test]
fn what_is_not_there_with_a_database_says_so() {
    let Some((site, _, config)) = site("pg-lacks") else { return };
    let daemon = site.start(&config);
    let verify = daemon.cli(&["store", "verify"]);
    assert!(verify.code == 2 && verify.err.contains("the items are in the database"), "{verify:?}");
}
