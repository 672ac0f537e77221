//! Moving in and out: `tidegate move` empties a store into another daemon, under load and through kills; and a
//! store in a database is exported, whichever nodes have its shards.
//!
//! Judges promise 3.

use crate::shards::{applications, end, load, naming, COUNT, LIMIT};
use lapin::types::FieldTable;
use lapin::ExchangeKind;
use serde_json::{json, Value};
use std::collections::BTreeMap;
use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tidegate_harness::{
    binary, holds_within, now_ms, wait_until, Client, Config, Daemon, Database, Ledger, Moments, Node, Push,
    Recorder, Site, Told, Verdict,
};

/// How far ahead the moved items are due, ms: longer than it takes to move them on an idle machine.
const AHEAD_MS: u64 = 20_000;

/// Publishes these requests, which are due after as many ms, and records them.
fn send(
    client: &Client,
    ledger: &Ledger,
    requests: impl Iterator<Item = (Push, String, Option<String>, u64)>,
) {
    let requests: Vec<_> = requests.collect();
    for slice in requests.chunks(500) {
        let pushes: Vec<Push> = slice.iter().map(|(push, ..)| push.clone()).collect();
        let id = |push: &Push| push.properties.message_id().as_ref().map(ToString::to_string);
        let ids: Vec<String> = pushes.iter().map(|push| id(push).expect("an id")).collect();
        for ((_, application, customer, due), id) in slice.iter().zip(&ids) {
            ledger.sending(id, application, customer.as_deref(), Some(*due).filter(|due| *due > 0));
        }
        for (id, verdict) in ids.iter().zip(client.publish_window(&pushes)) {
            assert_eq!(verdict, Verdict::Taken);
            ledger.confirmed(id);
        }
    }
}

/// Waits until the daemon has this many waiting items, all durable.
fn stored(daemon: &Daemon, count: u64) {
    let mut state = Value::Null;
    let all = holds_within(LIMIT, || {
        state = daemon.state();
        state["items"]["waiting"] == count && state["uncommitted"] == 0
    });
    assert!(all, "{count} are to be stored: {}, uncommitted {}", state["items"], state["uncommitted"]);
}

/// The store of a stopped daemon is sound, and has this many items.
fn verified(daemon: &Daemon, items: u64) {
    let told = daemon.cli(&["store", "verify", "--output", "json"]);
    assert_eq!(
        (told.code, &told.json()["items"], &told.json()["faults"]),
        (0, &json!(items), &json!(0)),
        "{told:?}"
    );
}

/// `move` with the configuration of this daemon.
fn moving(daemon: &Daemon, from: &str) -> Child {
    let mut command = Command::new(binary());
    command.args(["move", "--from", from, "--config"]).arg(daemon.config_file());
    command.stdout(Stdio::null()).spawn().expect("the binary")
}

/// One daemon stops, four shards in a database take over its traffic, and its store moves to them meanwhile.
#[test]
fn a_store_moves_to_four_shards_under_load_and_through_kills_and_each_item_comes_once() {
    const ITEMS: u64 = 6_000;
    const WINDOWED: u64 = 250;
    let Some(server) = Database::shared() else { return };
    let single = Site::new("moves-in");
    let names = applications(2);
    names.iter().for_each(|name| single.application(name));
    let queues: Vec<String> = names.iter().map(|name| single.queue(name)).collect();
    let ledger = Ledger::new();
    let recorder = Recorder::start(single.node.uri(), &queues, &ledger);
    // The windows of the items that wait end beyond the move.
    let slow = |config: Config| config.text(&format!("applications.{}.window", names[0]), "25s");
    let mut old = single.start(&slow(naming(single.config(), &names)));
    let due = now_ms() + AHEAD_MS;
    let timed = |n: u64| {
        let (name, customer) = (&names[(n % 8) as usize], format!("c{}", n % 50));
        let push = single.push(name, n.to_string()).id(&format!("t{n}")).customer(&customer);
        (push.number("x-deliver-at", due as i64), name.clone(), Some(customer), due)
    };
    let windowed = |n: u64| {
        let customer = format!("w{}", n % 20);
        let push = single.push(&names[0], n.to_string()).id(&format!("w{n}")).customer(&customer);
        (push, names[0].clone(), Some(customer), 0)
    };
    send(&single.client, &ledger, (0..ITEMS).map(timed).chain((0..WINDOWED).map(windowed)));
    stored(&old, ITEMS + WINDOWED);
    let from = format!("disk:{}", single.dir.join("store").display());

    let load = load(&single, &ledger, "amid", &names[1..]);
    end(&mut old);
    let site = single.divided(COUNT);
    let config = naming(site.in_database(site.config(), server), &names);
    let mut new = Daemon::another(&config);
    new.start_again();
    new.wait_ready();
    let mut moments = Moments::of("moves-in");
    let mut killed = 0;
    for _ in 0..3 {
        let mut move_ = moving(&new, &from);
        moments.pause(30, 250);
        killed += u32::from(move_.try_wait().expect("its state").is_none());
        move_.kill().expect("a signal");
        move_.wait().expect("its end");
    }
    assert!(killed > 0, "no kill has met a move");
    let told = new.cli(&["move", "--from", &from, "--output", "json"]);
    assert_eq!((told.code, told.err.as_str()), (0, ""), "{told:?}");
    let document = told.json();
    assert_eq!((&document["result"], &document["left"]), (&json!("moved"), &json!(0)), "{document}");
    verified(&old, 0);
    let again = new.cli(&["move", "--from", &from, "--output", "json"]);
    assert_eq!((again.code, &again.json()["items"]), (0, &json!(0)), "{again:?}");

    load.stop();
    ledger.settle(LIMIT).assert_exact();
    drop(recorder);
    site.lies(&site.dead(), 0);
    end(&mut new);
}

/// A step that was confirmed and not removed is published again.
#[test]
fn what_was_cancelled_meanwhile_stays_so_when_a_step_is_repeated() {
    let site = Site::new("moves-again");
    let shop = site.inbox("shop");
    let mut old = site.start(&site.config());
    let far = |id: &str| site.push("shop", id).id(id).customer("c").delay(3_600_000);
    site.client.publish_all(["a", "b", "c"].map(far));
    stored(&old, 3);
    end(&mut old);
    let [store, before] = ["store", "before"].map(|name| site.dir.join(name).display().to_string());
    assert!(Command::new("cp").args(["-r", &store, &before]).status().expect("cp").success());
    let mut new = Daemon::another(&site.config());
    new.start_again();
    new.wait_ready();
    assert_eq!(moved(&new, &["--from", &format!("disk:{store}")]).json()["items"], 3);
    stored(&new, 3);
    assert_eq!(new.ask("DELETE", "/api/v1/items/shop/b").0, 200);
    assert_eq!(moved(&new, &["--from", &format!("disk:{before}")]).json()["items"], 3);
    wait_until("all are known", LIMIT, || site.client.depth(&site.ingest_queue()) == Some(0));
    wait_until("two are dropped", LIMIT, || {
        new.state()["totals"]["duplicates"]["keep"]["dropped"].as_u64() >= Some(2)
    });
    stored(&new, 2);
    assert_eq!(new.ask("GET", "/api/v1/items/shop/b").1["state"], "cancelled");
    let (_, flushed) = new.ask("POST", "/api/v1/customers/shop/c/flush");
    assert_eq!(flushed["count"], 0, "they have times of their own: {flushed}");
    shop.quiet(std::time::Duration::from_millis(300));
    end(&mut new);
}

/// The broker closes the channel over it, and would do so at each attempt.
#[test]
fn an_item_that_the_broker_refuses_holds_up_no_other() {
    let Some(node) = Node::own("an_item_that_the_broker_refuses", "max_message_size = 200000\n") else {
        return;
    };
    let before = Site::new("moves-refused");
    let mut old = before.start(&before.config());
    let far = |id: &str, bytes: usize| before.push("shop", "x".repeat(bytes)).id(id).delay(3_600_000);
    before.client.publish_all([far("a", 10), far("large", 300_000), far("b", 10), far("c", 10)]);
    stored(&old, 4);
    end(&mut old);
    let site = Site::on(&node, "moves-refused-there");
    let mut new = site.start(&site.config());
    let from = format!("disk:{}", before.dir.join("store").display());
    for (moves, there) in [(3, 3), (0, 3)] {
        let told = moved(&new, &["--from", &from]);
        assert_eq!(told.code, 3, "{told:?}");
        let document = told.json();
        assert_eq!((&document["items"], &document["left"]), (&json!(moves), &json!(1)), "{document}");
        assert_eq!(document["stay"][0]["id"], "large");
        stored(&new, there);
    }
    verified(&old, 1);
    end(&mut new);
}

/// No daemon has been there yet, and a tap takes each request: the broker would confirm it for that alone.
#[test]
fn what_is_moved_reaches_the_ingest_queue_and_not_just_another() {
    let before = Site::new("moves-unbound");
    let mut old = before.start(&before.config());
    before.client.publish(&before.push("shop", "1").id("kept").delay(3_600_000));
    stored(&old, 1);
    end(&mut old);
    let site = Site::new("moves-unbound-there");
    let tap = site.queue("tap");
    site.client.exchange(&site.ingest(), ExchangeKind::Fanout);
    site.client.queue(&tap, FieldTable::default());
    site.client.bind(&tap, &site.ingest(), "");
    let mut new = Daemon::stopped(&site.config(), &site.dir);
    let told = moved(&new, &["--from", &format!("disk:{}", before.dir.join("store").display())]);
    assert_eq!((told.code, told.err.as_str()), (0, ""), "{told:?}");
    assert_eq!(told.json()["items"], 1, "{told:?}");
    verified(&old, 0);
    site.lies(&tap, 1);
    site.lies(&site.ingest_queue(), 1);
    new.start_again();
    new.wait_ready();
    stored(&new, 1);
    assert_eq!(new.ask("GET", "/api/v1/items/shop/kept").1["state"], "waiting");
    end(&mut new);
}

/// All of the four shards' items.
fn listed(daemon: &Daemon) -> BTreeMap<String, Value> {
    let (_, page) = daemon.ask("GET", "/api/v1/items?limit=1000");
    assert_eq!(page["next"], Value::Null, "{page}");
    let items = page["items"].as_array().expect("items").clone();
    items.into_iter().map(|item| (item["id"].as_str().unwrap_or_default().to_owned(), item)).collect()
}

fn moved(daemon: &Daemon, arguments: &[&str]) -> Told {
    daemon.cli_there(&[&["move", "--output", "json"], arguments].concat())
}

#[test]
fn shards_in_a_database_move_back_to_a_disk_with_ids_times_and_dead_letters() {
    let Some(server) = Database::shared() else { return };
    let site = Site::new("moves-back").divided(COUNT);
    let names = applications(1);
    let config = naming(site.in_database(site.config(), server), &names)
        .text("limits.max_delay", "365d")
        // A missing exchange is declared again by the next try.
        .set("defaults.retry", r#"{ min = "60s", max = "60s" }"#);
    let begun = Instant::now();
    let mut old = Daemon::another(&config);
    old.start_again();
    old.wait_ready();
    let inboxes: Vec<_> = names.iter().map(|name| site.inbox(name)).collect();
    for (name, inbox) in names.iter().zip(&inboxes) {
        site.client.publish(&site.push(name, "{}").id("first"));
        assert_eq!(inbox.batch().ids(), ["first"]);
    }
    // All shards publish. Without the dead-letter exchange a dead letter stays in the store.
    site.client.delete_exchange(&site.dead());
    // Nothing becomes due before all have moved, also on a machine with other work.
    let ahead = AHEAD_MS.max(10 * begun.elapsed().as_millis() as u64);
    let due = now_ms() + ahead;
    for name in &names {
        let at = |push: Push| push.number("x-deliver-at", due as i64);
        site.client.publish_all([
            at(site.push(name, "with").id(&format!("{name}-given")).customer("c")),
            at(site.push(name, "without")),
            at(site.push(name, "expires"))
                .id(&format!("{name}-expires"))
                .number("x-deliver-before", due as i64 + 90_000),
            site.push(name, "far")
                .id(&format!("{name}-far"))
                .with("x-delay", &(200 * 86_400_000_u64).to_string()),
        ]);
    }
    site.client.publish(&site.push(&names[0], "{}").id("bad").with("x-delay", "soon"));
    // The letter among them.
    stored(&old, 17);
    let before = listed(&old);
    assert_eq!(old.ask("POST", &format!("/api/v1/applications/{}/pause", names[1])).0, 200);
    // By the lock of its directory, and by its claim in the database.
    for other in [&old, &Daemon::another(&config)] {
        let running = moved(other, &["--from", "postgres"]);
        assert!(running.code == 75 && running.err.contains("stop every daemon"), "{running:?}");
    }
    end(&mut old);

    let paused = moved(&old, &["--from", "postgres"]);
    assert_eq!((paused.code, paused.out.as_str()), (2, ""), "{paused:?}");
    assert!(paused.err.contains(&names[1]) && paused.err.contains("--despite-pauses"), "{}", paused.err);
    // The new daemon: one store on a disk.
    let single = site.divided(1);
    let mut new = single.start(&naming(single.config(), &names).text("limits.max_delay", "100d"));
    // What several shards have on the broker leads requests to their queues.
    let adopted = new.cli(&["shards", "adopt"]);
    assert_eq!(adopted.code, 0, "{adopted:?}");
    let from = format!("postgres:{}", old.config_file().display());
    // Meant for the new daemon, and not for the old one's configuration.
    new.environment("TIDEGATE__SHARDS__COUNT", Some("1"));
    // The letter stays as long as it would stay with the daemon. With "declare", the move makes the exchange.
    single.client.delete_exchange(&single.dead());
    new.environment("TIDEGATE__AMQP__TOPOLOGY", Some("passive"));
    let wrong = moved(&new, &["--from", "postgres"]);
    assert_eq!(wrong.code, 2, "{wrong:?}");
    let told = moved(&new, &["--from", &from, "--despite-pauses"]);
    assert_eq!(told.code, 3, "{told:?}");
    let document = told.json();
    let counts = ["items", "dead_letters", "left"].map(|name| document[name].as_u64());
    assert_eq!(counts, [Some(12), Some(0), Some(5)], "{document}");
    let reasons: Vec<&str> = document["stay"]
        .as_array()
        .map_or(Vec::new(), |stay| stay.iter().filter_map(|item| item["reason"].as_str()).collect());
    let (far, letters): (Vec<&str>, Vec<&str>) = reasons.iter().partition(|why| why.contains("max_delay"));
    assert!(far.len() == 4 && letters.len() == 1 && letters[0].contains(&single.dead()), "{reasons:?}");
    stored(&new, 12);

    end(&mut new);
    let longer = naming(single.config(), &names).text("limits.max_delay", "365d");
    new.rewrite(&longer);
    new.environment("TIDEGATE__AMQP__TOPOLOGY", None);
    new.start_again();
    new.wait_ready();
    let told = moved(&new, &["--from", &from, "--despite-pauses"]);
    let document = told.json();
    assert_eq!(
        (told.code, &document["items"], &document["dead_letters"]),
        (0, &json!(4), &json!(1)),
        "{told:?}"
    );
    stored(&new, 16);
    let dead = single.dead_inbox().next();
    assert_eq!((dead.id().as_str(), dead.text("x-tidegate-reason").as_deref()), ("bad", Some("invalid")));
    let after = listed(&new);
    assert_eq!(after.keys().collect::<Vec<_>>(), before.keys().collect::<Vec<_>>(), "assigned ids are kept");
    for (id, item) in &before {
        for part in ["application", "customer", "due", "expiry"] {
            assert_eq!(after[id][part], item[part], "{part} of {id}");
        }
    }
    for (name, inbox) in names.iter().zip(&inboxes) {
        let mut came: Vec<String> = Vec::new();
        while came.len() < 3 {
            // `ahead` may be longer than the limit.
            let limit = Duration::from_millis(ahead) + LIMIT;
            let batch = inbox.poll(limit).expect("a message in time").batch();
            batch.message.is_not_early();
            came.extend(batch.ids().into_iter().map(str::to_owned));
        }
        let wanted: Vec<&String> = before
            .iter()
            .filter(|(id, item)| item["application"] == **name && !id.ends_with("-far"))
            .map(|(id, _)| id)
            .collect();
        came.sort();
        assert_eq!(came.iter().collect::<Vec<_>>(), wanted);
    }
    end(&mut new);
}

/// The lines of an export without those that name it.
fn told_items(export: &str) -> Vec<Value> {
    let lines = export.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let mut items: Vec<Value> = lines.filter(|line| line["kind"] == "item").collect();
    items.sort_by_key(|item| item["id"].as_str().map(str::to_owned));
    items
}

#[test]
fn every_node_exports_all_shards_of_the_database_and_a_disk_takes_them() {
    let Some(server) = Database::shared() else { return };
    let site = Site::new("moves-export").divided(COUNT);
    let names = applications(2);
    let config = naming(site.in_database(site.config(), server), &names);
    let mut nodes = [(); 2].map(|()| {
        let mut node = Daemon::another(&config);
        node.start_again();
        node
    });
    nodes.iter_mut().for_each(Daemon::wait_ready);
    let each_has_some = |nodes: &[Daemon; 2]| {
        nodes.iter().all(|node| {
            let state = node.state();
            let shards = state["shards"].as_array().cloned().unwrap_or_default();
            shards.iter().filter(|shard| shard["owner"] == state["node"]).count() == 2
        })
    };
    wait_until("each has two shards", LIMIT, || each_has_some(&nodes));
    let far = |n: usize| {
        let name = &names[n % 8];
        site.push(name, n.to_string()).id(&format!("e{n:03}")).customer("c").delay(3_600_000)
    };
    site.client.publish_all((0..400).map(far));
    let all = || nodes[0].state()["items"]["waiting"] == 400 && nodes[0].state()["uncommitted"] == 0;
    wait_until("all are stored", LIMIT, all);
    let texts = nodes.each_ref().map(|node| {
        let told = node.cli(&["store", "export", "--running"]);
        assert_eq!((told.code, told.err.as_str()), (0, ""), "{told:?}");
        told.out
    });
    let told = nodes[1].cli(&["store", "export"]);
    assert_eq!((told.code, told.err.as_str()), (0, ""), "it reads the database: {told:?}");
    let items = told_items(&told.out);
    assert_eq!(items.len(), 400);
    for text in &texts {
        assert_eq!(told_items(text), items);
    }
    let first: Value = serde_json::from_str(told.out.lines().next().expect("a line")).expect("JSON");
    assert_eq!((&first["items"], &first["shards"]), (&json!(400), &json!(COUNT)));
    // A reader that disconnects frees the place for the next one.
    drop(nodes[0].ask_whole("HEAD", "/api/v1/export"));
    let again = || nodes[0].cli(&["store", "export", "--running"]).code == 0;
    assert!(holds_within(LIMIT, again), "another export may begin");

    let file = site.dir.join("export.ndjson");
    fs::write(&file, &told.out).expect("a file");
    let disk = site.dir.join("disk").display().to_string();
    let mut import = Command::new(binary());
    import.args(["store", "import", &disk]).stdin(fs::File::open(&file).expect("the file"));
    assert!(import.output().expect("the binary").status.success());
    let verify = Command::new(binary()).args(["store", "verify", &disk, "--output", "json"]).output();
    let sound: Value = serde_json::from_slice(&verify.expect("the binary").stdout).expect("JSON");
    assert_eq!((&sound["items"], &sound["faults"]), (&json!(400), &json!(0)), "{sound}");
    nodes.iter_mut().for_each(end);
}
