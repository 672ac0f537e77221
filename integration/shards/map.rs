//! The way of requests to the queues of several shards: straight there for configured applications and for
//! those that were met, through the ingest queue for all others, and never by two ways; bindings that are
//! removed, wrong or refused; the way from a single shard.

use super::{
    applications, arrives, consumed, counted, counts, elsewhere, end, home, killed, leads_home, maps, moves,
    naming, nothing_more, queues, site, stored, COUNT, LIMIT,
};
use std::time::Duration;
use tidegate_harness::lapin::types::{AMQPValue, FieldArray};
use tidegate_harness::lapin::ExchangeKind;
use tidegate_harness::{holds_within, text, wait_until, Client, Daemon, Ledger, Node, Recorder, Site};

/// A user of this test alone.
const UNBOUND: &str = "shards-unbound";
/// Nobody configures it.
const OTHER: &str = "not-configured";

/// Publishes three requests for each of these and of one more application, while no daemon runs.
fn publish(site: &Site<'_>, applications: &[String]) {
    let all = applications.iter().map(String::as_str).chain([OTHER]);
    site.client.publish_all(all.flat_map(|name| (0..3).map(|_| site.push(name, "{}")).collect::<Vec<_>>()));
}

/// Each lies in one queue: those of the applications in the queues of their homes, others in the ingest queue.
fn lie_at_home(site: &Site<'_>, applications: &[String], unmapped: u32) {
    for shard in 0..COUNT {
        let of_it = applications.iter().filter(|name| home(name) == shard).count();
        site.lies(&site.shard_queue(shard), 3 * u32::try_from(of_it).expect("few"));
    }
    site.lies(&site.ingest_queue(), unmapped);
}

#[test]
fn requests_of_configured_applications_go_straight_home_and_all_others_through_the_ingest_queue() {
    let site = site("shards-map");
    let names = applications(2);
    end(&mut site.start(&naming(site.config(), &names)));
    publish(&site, &names);
    lie_at_home(&site, &names, 3);
    let inboxes: Vec<_> = names.iter().map(|name| site.inbox(name)).chain([site.inbox(OTHER)]).collect();
    let _daemon = site.start(&naming(site.config(), &names));
    for inbox in &inboxes {
        assert_eq!(inbox.items(3, LIMIT).len(), 3);
    }
    queues(&site).for_each(|queue| site.lies(&queue, 0));
    for inbox in &inboxes {
        inbox.quiet(Duration::from_millis(50));
    }
    site.lies(&site.dead(), 0);
}

#[test]
fn the_broker_of_a_single_shard_serves_several_and_no_request_goes_two_ways() {
    let single = Site::new("shards-from-one");
    let names = applications(2);
    end(&mut single.start(&naming(single.config(), &names)));
    publish(&single, &names);
    single.lies(&single.ingest_queue(), 27);
    let site = single.divided(COUNT);
    let several = elsewhere(&site, naming(site.config(), &names), COUNT);
    let inboxes: Vec<_> = names.iter().map(|name| site.inbox(name)).chain([site.inbox(OTHER)]).collect();
    let mut daemon = site.start(&several);
    for inbox in &inboxes {
        assert_eq!(inbox.items(3, LIMIT).len(), 3);
        inbox.quiet(Duration::from_millis(50));
    }
    // All came through the ingest queue, the other one as well, which has a binding from now on.
    counts(&daemon, "bound", 9);
    counts(&daemon, "forwarded", 27);
    assert_eq!(counted(&daemon, "misplaced"), 0);
    end(&mut daemon);
    publish(&site, &names);
    let bound: Vec<String> = names.into_iter().chain([OTHER.to_owned()]).collect();
    lie_at_home(&site, &bound, 0);
}

#[test]
fn another_number_of_shards_takes_away_the_bindings_of_the_former_one() {
    let site = Site::new("shards-renumbered").divided(3);
    let names = applications(2);
    end(&mut site.start(&naming(site.config(), &names)));
    let site = site.divided(COUNT);
    end(&mut site.start(&elsewhere(&site, naming(site.config(), &names), COUNT)));
    publish(&site, &names);
    lie_at_home(&site, &names, 3);
}

#[test]
fn an_exchange_that_would_lose_requests_is_named_and_no_way_leads_to_it() {
    for (name, of_unmapped) in [("shards-unmapped", true), ("shards-apps", false)] {
        let site = site(name);
        let exchange = if of_unmapped { site.unmapped_exchange() } else { site.map_exchange() };
        site.client.exchange(&exchange, ExchangeKind::Direct);
        let daemon = Daemon::start(&site.config(), &site.dir);
        let told =
            || daemon.log().contains(&format!("exchange '{exchange}'")) && daemon.log().contains("lost");
        let held = holds_within(LIMIT, told);
        assert!(held, "the log does not name it: {}", daemon.log_tail());
        wait_until("it is not ready", LIMIT, || daemon.ask("GET", "/readyz").0 == 503);
        if Node::controlled("an_exchange_that_would_lose_requests_is_named_and_no_way_leads_to_it").is_some()
        {
            assert_eq!(site.node.bindings(&site.ingest()), [], "nothing leads to {exchange}");
        }
    }
}

#[test]
fn bindings_show_one_home_each_and_outlast_a_restart_of_the_broker() {
    let Some(node) = Node::lent("bindings_show_one_home_each_and_outlast_a_restart_of_the_broker") else {
        return;
    };
    let mut site = Site::on(&node, "shards-bound").divided(COUNT);
    let names = applications(2);
    let met = consumed(&site);
    // One of each home is configured; the other one is met.
    let configured = || names.iter().step_by(2);
    let mut daemon = site.start(&naming(site.config(), configured()));
    leads_home(&site, configured());
    assert_eq!((counted(&daemon, "forwarded"), counted(&daemon, "bound")), (0, 0));
    arrives(&site, &met, "first");
    leads_home(&site, &names);
    counts(&daemon, "bound", 4);
    counts(&daemon, "forwarded", 4);

    // What is not acked or confirmed when the broker stops would be forwarded, or would arrive, again.
    stored(&site);
    wait_until("all is confirmed", LIMIT, || daemon.state()["totals"]["confirmed"] == met.len());
    drop(met);
    node.stop();
    wait_until("the broker is gone", LIMIT, || daemon.ask("GET", "/readyz").0 != 200);
    node.start_again();
    daemon.wait_ready();
    site.client = Client::connect(node.uri());
    leads_home(&site, &names);
    let again = consumed(&site);
    (0..20).for_each(|n| arrives(&site, &again, &format!("again-{n}")));
    assert_eq!((counted(&daemon, "forwarded"), counted(&daemon, "misplaced")), (4, 0));

    // Another run of the daemon finds the bindings of those that it has met.
    end(&mut daemon);
    daemon.start_again();
    daemon.wait_ready();
    arrives(&site, &again, "another-run");
    nothing_more(&again);
    assert_eq!((counted(&daemon, "forwarded"), counted(&daemon, "misplaced")), (0, 0));
    leads_home(&site, &names);
    queues(&site).chain([site.dead()]).for_each(|queue| site.lies(&queue, 0));
}

/// Judges promise 3.
#[test]
fn removed_and_wrong_bindings_under_load_lose_nothing_and_are_put_right() {
    let test = "removed_and_wrong_bindings_under_load_lose_nothing_and_are_put_right";
    let Some(node) = Node::controlled(test) else { return };
    let site = site("shards-disturbed");
    let names = applications(2);
    let inboxes: Vec<String> = names.iter().map(|name| site.queue(name)).collect();
    names.iter().for_each(|name| site.application(name));
    let ledger = Ledger::new();
    let recorder = Recorder::start(node.uri(), &inboxes, &ledger);
    let daemon = site.start(&naming(site.config(), &names));
    let load = killed::load(&site, &ledger, "amid", &names);
    leads_home(&site, &names);
    let map = site.map_exchange();
    let own = |name: &String| site.shard_queue(home(name));
    let wrong = |name: &String| site.shard_queue((home(name) + 1) % COUNT);
    for (removed, moved) in names.iter().zip(names.iter().skip(4)) {
        let misplaced = counted(&daemon, "misplaced");
        site.client.unbind(&own(removed), &map, removed);
        // Its requests come twice for a moment, and with their ids arrive once.
        site.client.bind(&wrong(moved), &map, moved);
        site.client.unbind(&own(moved), &map, moved);
        wait_until("some come to a wrong shard", LIMIT, || counted(&daemon, "misplaced") > misplaced);
        maps(&site, &names);
    }
    let sent = ledger.confirmed_count() + 200;
    wait_until("some more have come", LIMIT, || ledger.arrived_count() >= sent);
    load.stop();
    ledger.settle(LIMIT).assert_exact();
    drop(recorder);
    assert!(
        counted(&daemon, "corrected") >= 4 && counted(&daemon, "bound") >= 8,
        "{}",
        daemon.state()["map"]
    );
    assert!(counted(&daemon, "forwarded") > 0, "what was removed passed the sharder");
    assert_eq!(counted(&daemon, "bind_failures"), 0);
    leads_home(&site, &names);
    daemon.holds("waiting", 0);
    queues(&site).chain([site.dead()]).for_each(|queue| site.lies(&queue, 0));
}

/// Judges promise 3.
#[test]
fn a_login_that_may_not_bind_to_the_queues_of_shards_delivers_all_through_the_ingest_queue() {
    let test = "a_login_that_may_not_bind_to_the_queues_of_shards_delivers_all_through_the_ingest_queue";
    let Some(node) = Node::controlled(test) else { return };
    node.ctl(&["add_user", UNBOUND, UNBOUND]);
    node.ctl(&["set_permissions", "-p", "/", UNBOUND, ".*", r"^(?!.*\.ingest\.\d+$)", ".*"]);
    let site = site("shards-unbound");
    let all = consumed(&site);
    let daemon = site.start(&site.config().text("amqp.uri", &node.uri_of(UNBOUND, "%2f")));
    arrives(&site, &all, "first");
    // In each shard one binding is tried, and refused.
    wait_until("four failures", LIMIT, || counted(&daemon, "bind_failures") == 4);
    arrives(&site, &all, "second");
    counts(&daemon, "forwarded", 16);
    nothing_more(&all);
    assert_eq!((counted(&daemon, "forwarded"), counted(&daemon, "bound")), (16, 0));
    assert_eq!(counted(&daemon, "bind_failures"), 4);
    let told = daemon.log();
    for shard in 0..COUNT {
        let queue = site.shard_queue(shard);
        let of_it = |line: &&str| line.contains("no binding is made") && line.contains(&queue);
        assert_eq!(told.lines().filter(of_it).count(), 1, "{queue}: {}", daemon.log_tail());
    }
    leads_home(&site, &[]);
}

/// Judges promise 3.
#[test]
fn a_single_shard_becomes_four_under_load() {
    let Some(node) = Node::controlled("a_single_shard_becomes_four_under_load") else { return };
    let site = Site::new("shards-become-four");
    let names = applications(2);
    let inboxes: Vec<String> = names.iter().map(|name| site.queue(name)).collect();
    names.iter().for_each(|name| site.application(name));
    let ledger = Ledger::new();
    let recorder = Recorder::start(node.uri(), &inboxes, &ledger);
    // One of each home is configured; the other one is met.
    let one = naming(site.config(), names.iter().step_by(2));
    let mut daemon = site.start(&one);
    let some_more = || {
        let sent = ledger.confirmed_count() + 300;
        wait_until("some more have come", LIMIT, || ledger.arrived_count() >= sent);
    };
    let load = killed::load(&site, &ledger, "amid", &names);
    some_more();
    assert_eq!(node.bindings(&site.ingest()), [(site.ingest_queue(), String::new())]);

    end(&mut daemon);
    moves(&daemon, &elsewhere(&site, one, COUNT), &site.dir);
    let waits = node.messages(&site.ingest_queue()).expect("the ingest queue");
    wait_until("the producers go on", LIMIT, || node.messages(&site.ingest_queue()) > Some(waits + 100));

    daemon.start_again();
    daemon.wait_ready();
    some_more();
    leads_home(&site, &names);
    wait_until("the sharder has nothing left", LIMIT, || node.messages(&site.ingest_queue()) == Some(0));
    let forwarded = counted(&daemon, "forwarded");
    assert!(forwarded > 100, "what waited passed the sharder: {forwarded}");
    some_more();
    assert_eq!(counted(&daemon, "forwarded"), forwarded, "later requests do not");
    load.stop();
    ledger.settle(LIMIT).assert_exact();
    drop(recorder);
    assert_eq!((counted(&daemon, "misplaced"), counted(&daemon, "bind_failures")), (0, 0));
    assert_eq!(daemon.state()["shards"].as_array().map(Vec::len), Some(usize::from(COUNT)));
    daemon.holds("waiting", 0);
    for queue in queues(&site).chain([site.dead()]) {
        site.lies(&queue, 0);
    }
}

#[test]
fn a_key_that_is_not_the_application_leads_home_and_further_keys_make_copies_that_an_id_makes_one() {
    let site = site("shards-keys");
    let all = consumed(&site);
    let names = applications(2);
    let daemon = site.start(&naming(site.config(), &names));
    // By a key that names nobody, and by that of an application of each home.
    for key in [OTHER, &names[0], &names[2], &names[4], &names[6]] {
        let push = |name: &String| site.push(key, "{}").with("x-application", name).id(key);
        site.client.publish_all(names.iter().map(push));
        for (name, inbox) in &all {
            assert_eq!(inbox.batch().ids(), [key], "{name}");
        }
    }
    // Those whose key names nobody, and six of eight for each key of an application.
    let counted_all = || {
        counts(&daemon, "forwarded", 8);
        counts(&daemon, "misplaced", 24);
    };
    counted_all();
    nothing_more(&all);
    counted_all();
    let further = || AMQPValue::FieldArray(FieldArray::from(vec![text(&names[3]), text(&names[7])]));
    site.client.publish(&site.push(&names[0], "{}").header("CC", further()).id("copies"));
    assert_eq!(all[0].1.batch().ids(), ["copies"]);
    nothing_more(&all);
    assert!(daemon.log().contains("by its header CC"), "{}", daemon.log_tail());
    // RabbitMQ puts it into three queues, and nothing tells the copies from equal requests.
    site.client.publish(&site.push(&names[0], "{}").header("CC", further()));
    assert_eq!(all[0].1.items(3, LIMIT).len(), 3);
    nothing_more(&all);
    // What a foreign key has misplaced says nothing about its binding.
    assert_eq!((counted(&daemon, "corrected"), counted(&daemon, "bound")), (0, 0));
}

#[test]
fn dead_letters_that_are_sent_back_leave_the_bindings_as_they_are() {
    let Some(_node) = Node::controlled("dead_letters_that_are_sent_back_leave_the_bindings_as_they_are")
    else {
        return;
    };
    let site = site("shards-letters");
    let all = consumed(&site);
    let names = applications(2);
    let daemon = site.start(&naming(site.config(), &names));
    site.client.publish_all(names.iter().map(|name| site.push(name, "1").with("x-delay", "soon").id("back")));
    site.lies(&site.dead(), 8);
    let (status, answer) = daemon.ask("POST", "/api/v1/dead/retry?reason=invalid");
    assert_eq!((status, answer["count"].as_u64()), (200, Some(8)), "{answer}");
    for (name, inbox) in &all {
        assert_eq!(inbox.batch().ids(), ["back"], "{name}");
    }
    nothing_more(&all);
    leads_home(&site, &names);
}
