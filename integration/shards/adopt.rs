//! `shards adopt`: it leads requests to the queues of shards while a daemon with `topology = "passive"` runs,
//! and back to one queue; what the broker refuses, and what is not its own, ends it with a sentence.

use super::{
    applications, arrives, consumed, elsewhere, end, killed, leads, leads_home, maps, moves, naming,
    nothing_more, queues, site, COUNT, LIMIT,
};
use serde_json::json;
use tidegate_harness::lapin::types::FieldTable;
use tidegate_harness::lapin::ExchangeKind;
use tidegate_harness::{text, wait_until, Daemon, Ledger, Node, Recorder, Site, Told};

/// A user of this test alone.
const POOR: &str = "shards-poor";

fn adopt(daemon: &Daemon) -> Told {
    daemon.cli(&["shards", "adopt"])
}

/// Adopts; returns the lines.
fn adopts(daemon: &Daemon) -> String {
    let told = adopt(daemon);
    assert_eq!((told.code, told.err.as_str()), (0, ""), "{told:?}");
    told.out
}

/// Does not adopt, and says why.
fn fails(daemon: &Daemon, why: &[&str]) {
    let told = adopt(daemon);
    assert!(told.code == 1 && told.out.is_empty() && told.err.lines().count() == 1, "{told:?}");
    why.iter().for_each(|part| assert!(told.err.contains(part), "{part}: {told:?}"));
}

/// The binding of the exchange of requests with one shard.
fn direct_way(site: &Site<'_>) -> [(String, String); 1] {
    [(site.ingest_queue(), String::new())]
}

/// Declares what a passive daemon with several shards looks for, with one binding for all requests.
fn declared_as_for_one(site: &Site<'_>) {
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), text("quorum"));
    queues(site).for_each(|queue| site.client.queue(&queue, arguments.clone()));
    site.client.queue(&site.dead(), arguments.clone());
    site.client.exchange(&site.dead(), ExchangeKind::Fanout);
    site.client.bind(&site.dead(), &site.dead(), "");
    site.client.exchange(&site.ingest(), ExchangeKind::Fanout);
    site.client.bind(&site.ingest_queue(), &site.ingest(), "");
}

#[test]
fn with_passive_topology_what_is_not_bound_goes_through_the_sharder() {
    let Some(_node) = Node::controlled("with_passive_topology_what_is_not_bound_goes_through_the_sharder")
    else {
        return;
    };
    let site = site("shards-passive");
    declared_as_for_one(&site);
    let all = consumed(&site);
    let names = applications(2);
    let configured = || names.iter().step_by(2);
    let daemon = site.start(&naming(site.config().text("amqp.topology", "passive"), configured()));
    arrives(&site, &all, "before");
    assert!(!site.client.has_exchange(&site.map_exchange(), ExchangeKind::Direct));
    leads(&site, &site.ingest(), &direct_way(&site));

    let lines = adopts(&daemon);
    leads_home(&site, configured());
    for name in [site.map_exchange(), site.unmapped_exchange(), site.ingest()].iter().chain(configured()) {
        assert!(lines.lines().any(|line| line.contains(name.as_str())), "{name}: {lines}");
    }
    let differs = |queue: String| lines.contains(&format!("queue '{queue}' has other arguments"));
    assert!(queues(&site).all(differs), "{lines}");
    // Another queue gets what no binding takes.
    let tap = format!("{}.tap", site.unmapped_exchange());
    site.client.queue(&tap, FieldTable::default());
    site.client.bind(&tap, &site.unmapped_exchange(), "");
    arrives(&site, &all, "after");
    site.lies(&tap, 4);
    site.client.delete_queue(&tap);

    // The daemon itself binds nothing, and what is done already is done again. A wrong binding goes.
    let wrong = site.shard_queue(COUNT - 1);
    site.client.bind(&wrong, &site.map_exchange(), &names[0]);
    let told = daemon.cli(&["shards", "adopt", "--output", "json"]);
    let again: Vec<_> = lines.lines().map(|line| json!(line)).collect();
    assert_eq!((told.code, &told.json()), (0, &json!({ "steps": again })), "{told:?}");
    leads_home(&site, configured());
    arrives(&site, &all, "again");
    nothing_more(&all);
    leads_home(&site, configured());
    queues(&site).chain([site.dead()]).for_each(|queue| site.lies(&queue, 0));
}

/// Judges promise 3.
#[test]
fn requests_that_are_led_elsewhere_under_load_arrive_once() {
    let Some(node) = Node::controlled("requests_that_are_led_elsewhere_under_load_arrive_once") else {
        return;
    };
    let site = site("shards-adopted");
    declared_as_for_one(&site);
    let names = applications(2);
    let inboxes: Vec<String> = names.iter().map(|name| site.queue(name)).collect();
    names.iter().for_each(|name| site.application(name));
    let ledger = Ledger::new();
    let recorder = Recorder::start(node.uri(), &inboxes, &ledger);
    let daemon = site.start(&naming(site.config().text("amqp.topology", "passive"), &names));
    let some_more = || {
        let sent = ledger.confirmed_count() + 200;
        wait_until("some more have come", LIMIT, || ledger.arrived_count() >= sent);
    };
    let load = killed::load(&site, &ledger, "amid", &names);
    some_more();
    for _ in 0..3 {
        adopts(&daemon);
        leads_home(&site, &names);
        some_more();
    }
    load.stop();
    ledger.settle(LIMIT).assert_exact();
    drop(recorder);
    daemon.holds("waiting", 0);
    queues(&site).chain([site.dead()]).for_each(|queue| site.lies(&queue, 0));
}

#[test]
fn what_the_broker_refuses_to_adopt_is_told() {
    let Some(node) = Node::controlled("what_the_broker_refuses_to_adopt_is_told") else { return };
    node.ctl(&["add_user", POOR, POOR]);
    let may = |configure: &str, others: &str| {
        node.ctl(&["set_permissions", "-p", "/", POOR, configure, others, others]);
    };
    let site = site("shards-poor");
    let names = applications(1);
    let config = naming(site.config().text("amqp.uri", &node.uri_of(POOR, "%2f")), &names);
    let daemon = Daemon::stopped(&config, &site.dir);
    may("^$", "^$");
    let rights = "needs the rights for several shards";
    fails(&daemon, &[&site.ingest_queue(), "refused", POOR, rights, "nothing was changed before"]);
    assert!(!site.client.has_queue(&site.ingest_queue()));
    may(r"^(?!.*\.apps$)", ".*");
    fails(&daemon, &[&site.map_exchange(), "refused", POOR, rights, "the 4 steps before stay done"]);
    leads(&site, &site.unmapped_exchange(), &direct_way(&site));
    leads(&site, &site.ingest(), &[]);
    may(".*", ".*");
    adopts(&daemon);
    leads_home(&site, &names);

    daemon.rewrite(&site.config().text("amqp.uri", "amqp://guest:guest@127.0.0.1:1/%2f"));
    fails(&daemon, &["127.0.0.1:1"]);
    leads_home(&site, &names);
}

#[test]
fn an_exchange_of_another_kind_is_neither_adopted_nor_deleted() {
    let Some(_node) = Node::controlled("an_exchange_of_another_kind_is_neither_adopted_nor_deleted") else {
        return;
    };
    let site = site("shards-foreign");
    let single = site.config().set("shards.count", "1");
    // Nothing to lead requests from or to.
    fails(&Daemon::stopped(&single, &site.dir), &["NOT_FOUND", "nothing was changed before"]);
    declared_as_for_one(&site);
    for (foreign, kind) in [
        (site.unmapped_exchange(), ExchangeKind::Direct),
        // It has no alternate exchange.
        (site.map_exchange(), ExchangeKind::Direct),
        (site.map_exchange(), ExchangeKind::Topic),
    ] {
        site.client.exchange(&foreign, kind.clone());
        site.client.bind(&site.dead(), &foreign, "ours");
        let ours = [(site.dead(), "ours".to_owned())];
        for (count, told) in [(COUNT, "inequivalent arg"), (1, "is not deleted")] {
            let config = site.config().set("shards.count", &count.to_string());
            let daemon = Daemon::stopped(&config, &site.dir);
            fails(&daemon, &[&format!("exchange '{foreign}'"), told]);
            leads(&site, &site.ingest(), &direct_way(&site));
            leads(&site, &foreign, &ours);
        }
        site.client.delete_exchange(&foreign);
    }
    // One that the configuration uses itself is nobody's left-over.
    let used = site.map_exchange();
    site.client.exchange(&used, ExchangeKind::Direct);
    let lines = adopts(&Daemon::stopped(&single.text("egress.exchange", &used), &site.dir));
    assert!(!lines.contains(&used), "{lines}");
    assert!(site.client.has_exchange(&used, ExchangeKind::Direct));
}

#[test]
fn back_to_one_shard() {
    let Some(_node) = Node::controlled("back_to_one_shard") else { return };
    let site = site("shards-back");
    let all = consumed(&site);
    let names = applications(2);
    // Another queue of the exchange gets all requests, whatever is changed behind it.
    site.client.exchange(&site.ingest(), ExchangeKind::Fanout);
    let tap = format!("{}.tap", site.ingest());
    site.client.queue(&tap, FieldTable::default());
    site.client.bind(&tap, &site.ingest(), "");
    let with_tap = |name: String| {
        let mut bindings = [(name, String::new()), (tap.clone(), String::new())];
        bindings.sort();
        bindings
    };
    let mut daemon = site.start(&naming(site.config(), &names));
    maps(&site, &names);
    arrives(&site, &all, "of-four");
    leads(&site, &site.ingest(), &with_tap(site.map_exchange()));
    site.client.publish_all(names.iter().map(|name| site.push(name, "1").id("later").delay(3_600_000)));
    daemon.holds("waiting", 8);
    queues(&site).for_each(|queue| site.lies(&queue, 0));
    end(&mut daemon);

    moves(&daemon, &elsewhere(&site, site.config(), 1), &site.dir);
    let left = || {
        let told = daemon.cli(&["check", "--connect"]);
        assert_eq!(told.code, 0, "{told:?}");
        told.out.contains(&format!("exchange '{}' of several shards exists", site.map_exchange()))
    };
    assert!(left(), "the check names what would lead requests away");
    let exchanges = [site.map_exchange(), site.unmapped_exchange()];
    let lines = adopts(&daemon);
    for exchange in &exchanges {
        assert!(lines.contains(&format!("exchange '{exchange}' deleted\n")), "{lines}");
    }
    assert!(lines.lines().last().is_some_and(|line| line.contains(&site.shard_queue(0))), "{lines}");
    leads(&site, &site.ingest(), &with_tap(site.ingest_queue()));
    assert!(!site.client.has_exchange(&site.map_exchange(), ExchangeKind::Direct));
    assert!(!site.client.has_exchange(&site.unmapped_exchange(), ExchangeKind::Fanout));
    assert!((0..COUNT).all(|shard| site.client.has_queue(&site.shard_queue(shard))), "it deletes no queue");
    assert!(!left(), "the check finds nothing more");
    (0..COUNT).for_each(|shard| site.client.delete_queue(&site.shard_queue(shard)));
    let lines = adopts(&daemon);
    for exchange in &exchanges {
        assert!(lines.contains(&format!("exchange '{exchange}' does not exist: nothing to do\n")), "{lines}");
    }

    daemon.start_again();
    daemon.wait_ready();
    daemon.holds("waiting", 8);
    arrives(&site, &all, "of-one");
    nothing_more(&all);
    leads(&site, &site.ingest(), &with_tap(site.ingest_queue()));
    for name in &names {
        let path = format!("/api/v1/items/{name}/later");
        assert_eq!(daemon.ask("DELETE", &path), (200, json!({"result": "cancelled", "count": 1})));
    }
    site.lies(&tap, 24);
    site.lies(&site.dead(), 0);
}
