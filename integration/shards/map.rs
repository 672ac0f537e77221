//! The way of requests to the queues of several shards: straight there for configured applications, through
//! the ingest queue for all others, and never by two ways; bindings that are removed or wrong; the way from a
//! single shard.

use super::{applications, consumed, home, killed, queues, site, COUNT};
use std::fs::{self, File};
use std::process::{Command, Stdio};
use std::time::Duration;
use tidegate_harness::lapin::types::{AMQPValue, FieldArray};
use tidegate_harness::lapin::ExchangeKind;
use tidegate_harness::{
    binary, holds_within, text, wait_until, Client, Config, Daemon, Inbox, Ledger, Node, Recorder, Site,
};

/// Time limit of a wait.
const LIMIT: Duration = Duration::from_secs(60);
/// Nobody configures it.
const OTHER: &str = "not-configured";

/// The configuration with these applications.
fn naming(config: Config, applications: &[String]) -> Config {
    applications
        .iter()
        .fold(config, |config, name| config.text(&format!("applications.{name}.window"), "200ms"))
}

/// The configuration of several shards over another store than before.
fn elsewhere(site: &Site<'_>, config: Config) -> Config {
    let path = site.dir.join("several");
    config.set("shards.count", &COUNT.to_string()).text("store.path", &path.to_string_lossy())
}

fn end(daemon: &mut Daemon) {
    daemon.term();
    assert!(daemon.exit(LIMIT).success(), "{}", daemon.log_tail());
}

/// Publishes three requests for each of these and of one more application, while no daemon runs.
fn publish(site: &Site<'_>, applications: &[String]) {
    let all = applications.iter().map(String::as_str).chain([OTHER]);
    site.client.publish_all(all.flat_map(|name| (0..3).map(|_| site.push(name, "{}")).collect::<Vec<_>>()));
}

/// Each lies in one queue: those of the applications in the queues of their homes.
fn lie_at_home(site: &Site<'_>, applications: &[String]) {
    for shard in 0..COUNT {
        let of_it = applications.iter().filter(|name| home(name) == shard).count();
        site.lies(&site.shard_queue(shard), 3 * u32::try_from(of_it).expect("few"));
    }
    site.lies(&site.ingest_queue(), 3);
}

/// Waits until requests go through the map alone, which leads each of these applications to its home.
fn leads_home(site: &Site<'_>, names: &[String]) {
    let mut homes: Vec<_> = names.iter().map(|name| (site.shard_queue(home(name)), name.clone())).collect();
    homes.sort();
    for (exchange, wanted) in [
        (site.ingest(), vec![(site.map_exchange(), String::new())]),
        (site.unmapped_exchange(), vec![(site.ingest_queue(), String::new())]),
        (site.map_exchange(), homes),
    ] {
        let mut found = Vec::new();
        let held = holds_within(LIMIT, || {
            found = site.node.bindings(&exchange);
            found == wanted
        });
        assert!(held, "{exchange} has the bindings {found:?}, not {wanted:?}");
    }
}

/// Publishes a request with this id for each application, which arrives once.
fn arrives(site: &Site<'_>, applications: &[(String, Inbox)], id: &str) {
    site.client.publish_all(applications.iter().map(|(name, _)| site.push(name, "{}").id(id)));
    for (name, inbox) in applications {
        assert_eq!(inbox.batch().ids(), [id], "{name}");
    }
}

fn nothing_more(applications: &[(String, Inbox)]) {
    applications.iter().for_each(|(_, inbox)| inbox.quiet(Duration::from_millis(50)));
}

#[test]
fn requests_of_configured_applications_go_straight_home_and_all_others_through_the_ingest_queue() {
    let site = site("shards-map");
    let names = applications(2);
    end(&mut site.start(&naming(site.config(), &names)));
    publish(&site, &names);
    lie_at_home(&site, &names);
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
    let several = elsewhere(&site, naming(site.config(), &names));
    let inboxes: Vec<_> = names.iter().map(|name| site.inbox(name)).chain([site.inbox(OTHER)]).collect();
    let mut daemon = site.start(&several);
    for inbox in &inboxes {
        assert_eq!(inbox.items(3, LIMIT).len(), 3);
        inbox.quiet(Duration::from_millis(50));
    }
    end(&mut daemon);
    publish(&site, &names);
    lie_at_home(&site, &names);
}

#[test]
fn another_number_of_shards_takes_away_the_bindings_of_the_former_one() {
    let site = Site::new("shards-renumbered").divided(3);
    let names = applications(2);
    end(&mut site.start(&naming(site.config(), &names)));
    let site = site.divided(COUNT);
    end(&mut site.start(&elsewhere(&site, naming(site.config(), &names))));
    publish(&site, &names);
    lie_at_home(&site, &names);
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
    let before = consumed(&site);
    let mut daemon = site.start(&naming(site.config(), &names));
    leads_home(&site, &names);
    arrives(&site, &before, "before");
    drop(before);
    node.stop();
    wait_until("the broker is gone", LIMIT, || daemon.ask("GET", "/readyz").0 != 200);
    node.start_again();
    daemon.wait_ready();
    site.client = Client::connect(node.uri());
    leads_home(&site, &names);
    let after = consumed(&site);
    arrives(&site, &after, "after");
    nothing_more(&after);
    end(&mut daemon);
    site.client.publish_all(names.iter().flat_map(|name| (0..3).map(|_| site.push(name, "{}"))));
    site.lies(&site.ingest_queue(), 0);
    (0..COUNT).for_each(|shard| site.lies(&site.shard_queue(shard), 6));
}

/// Judges promise 3.
#[test]
fn removed_and_wrong_bindings_under_load_lose_nothing_and_repeat_nothing() {
    let site = site("shards-disturbed");
    let names = applications(2);
    let inboxes: Vec<String> = names.iter().map(|name| site.queue(name)).collect();
    names.iter().for_each(|name| site.application(name));
    let ledger = Ledger::new();
    let recorder = Recorder::start(site.node.uri(), &inboxes, &ledger);
    let daemon = site.start(&naming(site.config(), &names));
    let load = killed::load(&site, &ledger, "amid", &names);
    let some_more = |count: usize| {
        let sent = ledger.confirmed_count() + count;
        wait_until("some more have come", LIMIT, || ledger.arrived_count() >= sent);
    };
    let map = site.map_exchange();
    for (round, name) in names.iter().enumerate() {
        let (own, wrong) = (site.shard_queue(home(name)), site.shard_queue((home(name) + 1) % COUNT));
        if round % 2 == 1 {
            // Its requests come twice for a moment, and with their ids arrive once.
            site.client.bind(&wrong, &map, name);
        }
        site.client.unbind(&own, &map, name);
        some_more(50);
    }
    some_more(200);
    load.stop();
    ledger.settle(LIMIT).assert_exact();
    drop(recorder);
    daemon.holds("waiting", 0);
    for queue in queues(&site).chain([site.dead()]) {
        site.lies(&queue, 0);
    }
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
    let one = naming(site.config(), &names);
    let mut daemon = site.start(&one);
    let some_more = || {
        let sent = ledger.confirmed_count() + 300;
        wait_until("some more have come", LIMIT, || ledger.arrived_count() >= sent);
    };
    let load = killed::load(&site, &ledger, "amid", &names);
    some_more();
    assert_eq!(node.bindings(&site.ingest()), [(site.ingest_queue(), String::new())]);

    end(&mut daemon);
    let told = daemon.cli(&["store", "export"]);
    assert_eq!(told.code, 0, "{}", told.err);
    let file = site.dir.join("export.ndjson");
    fs::write(&file, &told.out).expect("the export's file");
    daemon.rewrite(&elsewhere(&site, one));
    let mut import = Command::new(binary());
    import.args(["store", "import", "--config"]).arg(daemon.config_file());
    import.stdin(Stdio::from(File::open(&file).expect("the export's file")));
    let output = import.output().expect("the binary");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let waits = node.messages(&site.ingest_queue()).expect("the ingest queue");
    wait_until("the producers go on", LIMIT, || node.messages(&site.ingest_queue()) > Some(waits + 100));

    daemon.start_again();
    daemon.wait_ready();
    some_more();
    leads_home(&site, &names);
    some_more();
    load.stop();
    ledger.settle(LIMIT).assert_exact();
    drop(recorder);
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
    nothing_more(&all);
    let further = || AMQPValue::FieldArray(FieldArray::from(vec![text(&names[3]), text(&names[7])]));
    site.client.publish(&site.push(&names[0], "{}").header("CC", further()).id("copies"));
    assert_eq!(all[0].1.batch().ids(), ["copies"]);
    nothing_more(&all);
    assert!(daemon.log().contains("by its header CC"), "{}", daemon.log_tail());
    // RabbitMQ puts it into three queues, and nothing tells the copies from equal requests.
    site.client.publish(&site.push(&names[0], "{}").header("CC", further()));
    assert_eq!(all[0].1.items(3, LIMIT).len(), 3);
    nothing_more(&all);
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
