//! The harness without the daemon: a node that starts, dies and restarts; clients; the oracle's verdicts.

use std::time::Duration;
use tidegate_harness::{
    alone, best_of_three, bounded, nested_arrays, now_us, require, workdir, Client, Inbox, Ledger, Node,
    Push, Raw, RawProperties, Received, Site, Verdict,
};

#[test]
fn a_private_node_survives_a_kill_and_keeps_what_it_confirmed() {
    let Some(node) = Node::own("a_private_node_survives", "") else { return };
    let client = Client::connect(node.uri());
    client.queue("kept", lapin_table());
    assert_eq!(client.publish(&Push::new("", "kept", "one")), Verdict::Taken);
    assert_eq!(client.publish(&Push::new("", "nowhere", "two")), Verdict::Returned);
    node.kill9();
    assert!(Client::try_connect(node.uri()).is_err(), "the node is down");
    node.start_again();
    let client = Client::connect(node.uri());
    assert_eq!(client.consume("kept").next().body, b"one");
    assert_eq!(node.returned_total(), 0, "counters begin anew");
    assert_eq!(client.publish(&Push::new("", "nowhere", "three")), Verdict::Returned);
    assert_eq!(node.returned_total(), 1);
    node.stop();
    node.start_again();
    let other = Client::connect(&node.uri_of("other", "spare"));
    assert!(!other.has_queue("kept"), "another virtual host");
}

fn lapin_table() -> tidegate_harness::lapin::types::FieldTable {
    let mut table = tidegate_harness::lapin::types::FieldTable::default();
    table.insert("x-queue-type".into(), tidegate_harness::text("quorum"));
    table
}

#[test]
fn the_raw_publisher_speaks_amqp() {
    let site = Site::new("raw");
    site.client.queue("raw-target", lapin_table());
    let mut raw = Raw::connect(site.node);
    let properties = RawProperties::default().persistent().message_id("p\u{e4}".as_bytes());
    raw.flood("", "raw-target", &properties, &[7; 300_000], 20);
    let inbox = site.client.consume("raw-target");
    let first = inbox.next();
    assert_eq!((first.id().as_str(), first.body.len()), ("p\u{e4}", 300_000));
    inbox.take(19, Duration::from_secs(20));
    drop(inbox);
    // Do not consume it: lapin in this process would need the daemon's precautions to survive it.
    site.client.queue("raw-nested", lapin_table());
    let nested = RawProperties::default().headers(&nested_arrays("n", 26_000)).persistent();
    raw.publish("", b"raw-nested", &nested, b"deep");
    site.lies("raw-nested", 1);
    site.client.delete_queue("raw-nested");
    site.client.delete_queue("raw-target");
}

#[test]
fn a_count_is_awaited_and_its_last_value_is_told() {
    let site = Site::new("lies");
    let queue = site.queue("shop");
    site.application("shop");
    std::thread::scope(|scope| {
        let (queue, node) = (queue.clone(), site.node);
        scope.spawn(move || {
            let late = Client::connect(node.uri());
            std::thread::sleep(Duration::from_millis(300));
            late.publish(&Push::new("", &queue, "1"));
        });
        site.lies(&site.queue("shop"), 1);
    });
    let lies = || site.client.lies_by(Duration::from_secs(3), &queue, 2);
    let never = std::panic::catch_unwind(std::panic::AssertUnwindSafe(lies));
    let told = never.expect_err("two never come");
    let told = told.downcast_ref::<String>().map(String::as_str).unwrap_or_default();
    assert!(told.ends_with("but: Some(1)"), "{told}");
}

/// These tests run one at a time, after all others.
mod alone {
    use super::*;

    #[test]
    fn what_is_measured_has_three_rounds() {
        alone();
        let mut rounds = vec![];
        best_of_three(|round| {
            rounds.push(round);
            (round == 1).then_some(()).ok_or_else(|| "late".to_owned())
        });
        assert_eq!(rounds, [0, 1]);
        let never = std::panic::catch_unwind(|| best_of_three(|round| Err(format!("late {round}"))));
        let told = never.expect_err("none is good");
        let told = told.downcast_ref::<String>().map(String::as_str).unwrap_or_default();
        assert!(told.contains(r#"["late 0", "late 1", "late 2"]"#), "{told}");
    }

    /// Runs beside the other test and can still be heard.
    #[test]
    #[ignore = "a part of the test of what becomes of one that hangs"]
    fn a_test_that_measures() {
        alone();
    }
}

/// A batch of `shop` with these items, published and received.
fn arrived(site: &Site<'_>, inbox: &Inbox, customer: &str, ids: &[&str], due_ms: i64) -> Received {
    let item = |id: &&str| serde_json::json!({"id": id, "due": due_ms, "received": 1, "payload": 1});
    let items: Vec<_> = ids.iter().map(item).collect();
    let body = serde_json::json!({"application": "shop", "customer": customer, "batch": "b", "items": items});
    let push = Push::new(&site.out(), "shop", body.to_string()).number("x-due", due_ms);
    assert_eq!(site.client.publish(&push), Verdict::Taken);
    inbox.next()
}

#[test]
fn the_oracle_sees_what_is_wrong() {
    let site = Site::new("oracle");
    site.application("shop");
    let inbox = site.client.consume(&site.queue("shop"));
    let ledger = Ledger::new();
    for id in ["fine", "gone", "soon", "swapped"] {
        let not_before = (id == "soon").then_some(u64::MAX / 2000);
        ledger.sending(id, "shop", Some("c1"), not_before);
        ledger.confirmed(id);
    }
    ledger.sending("unconfirmed", "shop", None, None);
    let say = |customer: &str, ids: &[&str]| ledger.received(arrived(&site, &inbox, customer, ids, 1));
    say("c1", &["fine", "soon", "made-up"]);
    say("c1", &["fine"]);
    say("c2", &["swapped"]);
    let report = ledger.settle(Duration::from_millis(100));
    assert_eq!(report.lost, ["gone"]);
    assert_eq!(report.early, ["soon"]);
    assert_eq!(report.mixed, ["swapped"]);
    assert_eq!(report.strangers, ["made-up"]);
    assert_eq!(report.repeats, ["fine"]);
    assert_eq!((report.confirmed, report.batches, report.items_out), (4, 3, 5));
}

/// If the queue had no consumer for a while, then an arrival does not say when its message was published. And
/// what was about to leave when the fault began may leave long after somebody else has sent it.
#[test]
fn the_oracle_judges_a_repeat_by_what_can_have_been_under_way_at_the_fault() {
    let site = Site::new("oracle-gap");
    let inbox = site.inbox("shop");
    let ledger = Ledger::new();
    let ids = ["long due", "unwatched", "about to leave", "taken anew", "not yet due"];
    for id in ids {
        ledger.sending(id, "shop", Some("c1"), None);
        ledger.confirmed(id);
    }
    ledger.fault();
    let fault_ms = now_us().cast_signed() / 1000;
    ledger.healed();
    let healed_us = now_us();
    // Later than any fault explains.
    let late = |id: &str, again: bool| {
        let due_ms = match id {
            "about to leave" => fault_ms - 1_000,
            "taken anew" => fault_ms + if again { 10_000 } else { -1_000 },
            "not yet due" => fault_ms + 10_000,
            _ => 1,
        };
        let mut message = arrived(&site, &inbox, "c1", &[id], due_ms);
        message.at_us += 60_000_000;
        message
    };
    for id in ids {
        if id == "unwatched" {
            ledger.received_since(late(id, false), healed_us);
            ledger.received_since(late(id, true), healed_us);
        } else {
            ledger.received(late(id, false));
            ledger.received(late(id, true));
        }
    }
    let report = ledger.settle(Duration::from_millis(100));
    assert_eq!(report.repeats, ids);
    let unexplained =
        report.unexplained.iter().filter_map(|text| text.split(" (").next()).collect::<Vec<_>>();
    assert_eq!(unexplained, ["long due", "not yet due"], "{:?}", report.unexplained);
}

/// Run by the test below as a separate process.
#[test]
#[ignore = "it hangs, so that another test sees what becomes of that"]
fn a_test_that_never_ends() {
    bounded(Duration::from_secs(1));
    loop {
        std::thread::park();
    }
}

#[test]
fn a_test_that_hangs_is_named_and_the_others_run() {
    bounded(Duration::from_secs(60));
    let hanging = std::process::Command::new(std::env::current_exe().expect("this program"))
        .args(["--ignored", "--test-threads", "2", "harness::a_test_that_", "harness::alone::a_test_that_"])
        .output()
        .expect("it runs");
    assert_eq!(hanging.status.code(), Some(101));
    let said = String::from_utf8_lossy(&hanging.stderr);
    assert!(said.contains("HANGS: test harness::a_test_that_never_ends has not ended within 1s"), "{said}");
    let heard = String::from_utf8_lossy(&hanging.stdout);
    assert!(heard.contains("a_test_that_measures ... ok"), "{heard}");
}

#[test]
fn what_is_missing_is_told_and_fails_in_a_ci() {
    let with = |ci: &str, lacks: &str| {
        let dir = workdir("skipped");
        let run = std::process::Command::new(std::env::current_exe().expect("this program"))
            .args(["--ignored", "--exact", "harness::needs_a_tool_that_nobody_has"])
            .envs([("TIDEGATE_CI", ci), ("CI", ""), ("TIDEGATE_LACKS", lacks)])
            .env("TIDEGATE_SKIPPED", dir.join("list"))
            .output()
            .expect("it runs");
        let told = std::fs::read_to_string(dir.join("list")).unwrap_or_default();
        (run.status.success(), told)
    };
    let told = "skipped: harness::needs_a_tool_that_nobody_has: no-such-tool is not installed\n".to_owned();
    assert_eq!(with("", ""), (true, told.clone()));
    assert_eq!(with("1", ""), (false, String::new()));
    assert_eq!(with("1", "mount no-such-tool"), (true, told));
}

#[test]
#[ignore = "a part of the test above, which runs it as a process of its own"]
fn needs_a_tool_that_nobody_has() {
    assert!(!require("no-such-tool"), "it is there");
}

#[test]
fn a_node_tells_its_release() {
    let Some(node) = Node::controlled("a_node_tells_its_release") else { return };
    let release = node.release().expect("it tells");
    assert!(release >= (3, 10), "{release:?}");
    assert!(node.is_since(release.0, release.1) && !node.is_since(release.0, release.1 + 1));
}
