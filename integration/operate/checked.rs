//! `check --connect`: its findings about permissions, queues and policies; and it changes nothing.

use super::setup;
use serde_json::Value;
use std::time::Duration;
use tidegate_harness::lapin::types::FieldTable;
use tidegate_harness::{skip, wait_until, Daemon, Node, Site, Told};

const PATIENCE: Duration = Duration::from_secs(30);

/// The texts of all findings with this level.
fn of_level(told: &Told, level: &str) -> Vec<String> {
    let document: Value = serde_json::from_str(&told.out).unwrap_or_else(|e| panic!("{e}: {told:?}"));
    let findings = document["findings"].as_array().expect("findings");
    let texts = findings.iter().filter(|f| f["level"] == level).map(|f| f["text"].as_str().expect("a text"));
    texts.map(str::to_owned).collect()
}

/// Warnings, without those about the tests' own surroundings: the password in the configuration file, and
/// what their database server goes without so that it is quick.
fn about_the_broker(told: &Told) -> Vec<String> {
    let mut texts = of_level(told, "warn");
    let own = ["holds a password in a file", "the server runs with fsync = off", "data_checksums is off"];
    texts.retain(|text| !own.iter().any(|of_the_tests| text.contains(of_the_tests)));
    texts
}

#[test]
fn a_right_that_is_missing_is_named_and_nothing_is_sent_to_find_it_out() {
    let test = "a_right_that_is_missing_is_named_and_nothing_is_sent_to_find_it_out";
    let Some(node) = Node::controlled(test) else { return };
    if node.is_since(4, 3) {
        return skip(setup::ASKS_FOR_RIGHTS);
    }
    let site = Site::on(node, "rights");
    // The daemon declares what it needs. This queue would receive anything that the check published.
    site.application("tidegate.check");
    drop(site.start(&site.config()));
    let user = "limited";
    node.ctl(&["add_user", user, user]);
    let may = |configure: &str, write: &str, read: &str| {
        node.ctl(&["set_permissions", "-p", "/", user, configure, write, read]);
    };
    let config = site.config().text("amqp.uri", &node.uri_of(user, "%2f")).text("amqp.topology", "passive");
    let daemon = Daemon::stopped(&config, &site.dir);
    let check = || daemon.cli(&["check", "--connect", "--output", "json"]);
    may("^$", "^$", "^$");
    let told = check();
    let (faults, warnings) = (of_level(&told, "fail"), of_level(&told, "warn"));
    assert_eq!((told.code, faults.len()), (1, 3), "{told:?}");
    assert!(
        faults[0].contains(&format!("the right to read '{}' is missing", site.ingest_queue())),
        "{told:?}"
    );
    assert!(faults[1].contains(&format!("the right to write '{}' is missing", site.out())), "{told:?}");
    assert!(faults[2].contains(&format!("the right to write '{}' is missing", site.dead())), "{told:?}");
    let lock = format!("the right to configure 'tidegate.lock.{}' is missing", site.ingest_queue());
    for missing in [&*lock, "the right to write 'amq.default' is missing", "`tidegate dead` cannot read"] {
        assert!(warnings.iter().any(|text| text.contains(missing)), "{missing}: {told:?}");
    }
    may(".*", ".*", ".*");
    let told = check();
    assert_eq!(
        (told.code, of_level(&told, "fail"), about_the_broker(&told)),
        (0, vec![], vec![]),
        "{told:?}"
    );
    for queue in [site.ingest_queue(), site.dead(), site.queue("tidegate.check")] {
        site.lies(&queue, 0);
    }
    site.client.queue(&format!("tidegate.lock.{}", site.ingest_queue()), FieldTable::default());
}

/// Excluded: a check that finds good what the start would try for ever; a check that creates something.
#[test]
fn what_the_start_could_never_create_is_a_fault() {
    let Some(node) = Node::controlled("what_the_start_could_never_create_is_a_fault") else { return };
    let site = Site::on(node, "uncreated");
    let user = "no-creator";
    node.ctl(&["add_user", user, user]);
    let may = |configure: &str, write: &str| {
        node.ctl(&["set_permissions", "-p", "/", user, configure, write, ".*"]);
    };
    let daemon = Daemon::stopped(&site.config().text("amqp.uri", &node.uri_of(user, "%2f")), &site.dir);
    let check = || daemon.cli(&["check", "--connect", "--output", "json"]);
    let starts = |kind: &str, name: &str| format!("checking {kind} '{name}': ");
    may("^$", ".*");
    let told = check();
    let faults = of_level(&told, "fail");
    let missing = [
        starts("queue", &site.ingest_queue()),
        starts("exchange", &site.ingest()),
        starts("exchange", &site.out()),
    ];
    assert_eq!((told.code, faults.len()), (1, missing.len()), "{told:?}");
    for (fault, begin) in faults.iter().zip(&missing) {
        let refused = "and this login may not create it: 403 ACCESS_REFUSED";
        assert!(fault.starts_with(begin) && fault.contains(refused), "{begin}: {told:?}");
    }
    // What dead letters need may be created by either end, and the daemon works without it.
    let warned = of_level(&told, "warn");
    for begin in [starts("exchange", &site.dead()), starts("queue", &site.dead())] {
        assert_eq!(warned.iter().filter(|text| text.starts_with(&begin)).count(), 2, "{begin}: {told:?}");
    }
    // The queue names the dead exchange, which takes the right to write there.
    may(".*", &format!("^(?!{}$)", site.dead().replace('.', "\\.")));
    let told = check();
    let faults = of_level(&told, "fail");
    assert_eq!((told.code, faults.len()), (1, 2), "{told:?}");
    assert!(faults[0].starts_with(&missing[0]) && faults[0].contains(&site.dead()), "{told:?}");
    assert!(faults[1].contains(&format!("the right to write '{}' is missing", site.dead())), "{told:?}");
    may(".*", ".*");
    let told = check();
    let created = of_level(&told, "ok").iter().filter(|text| text.ends_with("created at the start")).count();
    assert_eq!((told.code, created), (0, 7), "nothing was created before: {told:?}");
}

#[test]
fn the_queue_of_each_shard_is_looked_at_like_the_ingest_queue() {
    let site = Site::new("shards-checked");
    // The daemon declares what is not about shards.
    drop(site.start(&site.config()));
    let stores = site.dir.join("shards");
    let config = site.config().set("shards.count", "2").text("store.path", &stores.to_string_lossy());
    let daemon = Daemon::stopped(&config, &site.dir);
    let check = || daemon.cli(&["check", "--connect", "--output", "json"]);
    let [first, second] = [0, 1].map(|number| format!("{}.{number}", site.ingest_queue()));
    let told = check();
    assert_eq!((told.code, of_level(&told, "fail")), (0, vec![]), "{told:?}");
    let good = of_level(&told, "ok");
    for queue in [&first, &second] {
        let text = format!("checking queue '{queue}': ");
        let is_told = |found: &String| found.starts_with(&text) && found.ends_with("created at the start");
        assert!(good.iter().any(is_told), "{queue}: {told:?}");
    }
    let told_first = format!("2, with the queues '{first}' to '{second}' and stores in ");
    assert!(good.iter().any(|text| text.starts_with(&told_first)), "{told:?}");
    for right in [format!("read '{second}'"), format!("configure 'tidegate.lock.{second}'")] {
        assert!(good.iter().any(|text| text.contains(&right)), "{right}: {told:?}");
    }

    site.client.queue(&first, FieldTable::default());
    daemon.rewrite(&config.text("amqp.topology", "passive"));
    let told = check();
    let faults = of_level(&told, "fail");
    assert_eq!((told.code, faults.len()), (1, 1), "{told:?}");
    assert!(faults[0].contains(&format!("checking queue '{second}': ")), "{told:?}");
    let other = format!("queue '{first}' has other arguments");
    assert!(about_the_broker(&told).iter().any(|text| text.starts_with(&other)), "{told:?}");
}

#[test]
fn what_policies_do_to_the_queue_is_told_with_what_to_do() {
    let test = "what_policies_do_to_the_queue_is_told_with_what_to_do";
    let Some((node, port)) = Node::with_management(test) else { return };
    let site = Site::on(&node, "policies");
    drop(site.start(&site.config()));
    let daemon = Daemon::stopped(&site.config(), &site.dir);
    let url = format!("http://127.0.0.1:{port}");
    let check = |url: &str| daemon.cli(&["check", "--connect", "--management", url, "--output", "json"]);
    let told = check(&url);
    assert_eq!((told.code, about_the_broker(&told)), (0, vec![]), "{told:?}");
    let summary = format!("queue '{}': type quorum, no policy", site.ingest_queue());
    assert!(of_level(&told, "ok").contains(&summary), "{told:?}");

    let pattern = format!("^{}$", site.ingest_queue().replace('.', "\\."));
    let definition =
        r#"{"message-ttl":60000,"max-length":1000,"delivery-limit":3,"dead-letter-exchange":"other"}"#;
    node.ctl(&["set_policy", "short", &pattern, definition, "--apply-to", "queues"]);
    wait_until("the policy holds", PATIENCE, || about_the_broker(&check(&url)).len() == 2);
    let told = check(&url);
    let advice = about_the_broker(&told);
    assert_eq!(told.code, 0, "advice alone is no fault: {told:?}");
    assert!(advice[0].contains("policy 'short' sets a message-ttl of 60000 ms"), "{advice:?}");
    assert!(advice[1].contains("policy 'short' sets a delivery-limit of 3"), "{advice:?}");

    // Declared by others: a classic queue, so that the whole policy applies.
    site.client.queue("plain.ingest", FieldTable::default());
    // RabbitMQ ignores a policy with a key that the queue type does not support.
    let definition = definition.replace(r#""delivery-limit":3,"#, "");
    node.ctl(&["set_policy", "plain", "^plain\\.ingest$", &definition, "--apply-to", "queues"]);
    daemon.rewrite(&site.config().text("ingest.queue", "plain.ingest"));
    let expected = [
        "it is a classic queue",
        "policy 'plain' sets a message-ttl of 60000 ms",
        "policy 'plain' sets a max-length of 1000, and overflow is drop-head",
        "policy 'plain' sends requests that the broker removes to the exchange 'other'",
    ];
    wait_until("all of it is told", PATIENCE, || {
        let advice = about_the_broker(&check(&url));
        expected.iter().all(|text| advice.iter().any(|told| told.contains(text)))
    });

    // A policy for all queues that deletes unused ones: the dead letters, and the lock of a running daemon.
    node.ctl(&[
        "set_policy",
        "gone",
        ".*",
        r#"{"expires":3600000}"#,
        "--apply-to",
        "queues",
        "--priority",
        "9",
    ]);
    daemon.rewrite(&site.config());
    let running = site.start(&site.config());
    wait_until("what would be deleted is told", PATIENCE, || {
        let advice = about_the_broker(&check(&url));
        ["all requests", "all dead letters", "a second tidegate could then take requests"].iter().all(
            |text| advice.iter().any(|told| told.contains("policy 'gone' deletes") && told.contains(text)),
        )
    });
    drop(running);

    node.ctl(&["add_user", "untagged", "untagged"]);
    let told = check(&format!("http://untagged:untagged@127.0.0.1:{port}"));
    assert!(about_the_broker(&told).iter().any(|text| text.contains("set_user_tags untagged")), "{told:?}");
    assert!(!told.out.contains("untagged:untagged"), "no password is printed: {told:?}");
    let told = daemon.cli(&["check", "--connect"]);
    assert!(told.out.contains("Give --management URL"), "{told:?}");
}
