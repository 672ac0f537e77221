//! The harness itself, without the daemon: a node that starts, dies and comes back; clients; the oracle's judgement.

use std::time::Duration;
use tidegate_harness::{nested_arrays, Client, Ledger, Node, Push, Raw, RawProperties, Site, Verdict};

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
    assert_eq!(other.depth("kept"), None, "another virtual host");
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
    // Never consumed: lapin in this process would need the daemon's precautions to survive it.
    site.client.queue("raw-nested", lapin_table());
    let nested = RawProperties::default().headers(&nested_arrays("n", 26_000)).persistent();
    raw.publish("", b"raw-nested", &nested, b"deep");
    assert_eq!(site.client.depth("raw-nested"), Some(1));
    site.client.delete_queue("raw-nested");
    site.client.delete_queue("raw-target");
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
    let say = |customer: &str, ids: &[&str]| {
        let items: Vec<_> = ids
            .iter()
            .map(|id| serde_json::json!({"id": id, "due": 1, "received": 1, "payload": 1}))
            .collect();
        let body =
            serde_json::json!({"application": "shop", "customer": customer, "batch": "b", "items": items});
        let push = Push::new(&site.out(), "shop", body.to_string()).number("x-due", 1);
        assert_eq!(site.client.publish(&push), Verdict::Taken);
        ledger.received(inbox.next());
    };
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
