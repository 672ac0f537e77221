//! Tests of the judgements, with documents in the forms of RabbitMQ 3.10 and 4.

use super::*;
use serde_json::json;

/// A queue as the daemon declares it, in 3.10: without a policy, an empty list.
fn of_3() -> Value {
    json!({
        "arguments": {
            "x-queue-type": "quorum", "x-dead-letter-exchange": "tidegate.dead",
            "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish", "x-delivery-limit": 50
        },
        "auto_delete": false, "durable": true, "exclusive": false, "effective_policy_definition": [],
        "policy": null, "operator_policy": null, "type": "quorum", "state": "running",
        "leader": "rabbit@a", "members": ["rabbit@a"], "online": ["rabbit@a"], "name": "tidegate.ingest"
    })
}

/// The same queue in 4: an empty object, and keys that this version ignores.
fn of_4() -> Value {
    let mut queue = of_3();
    queue["effective_policy_definition"] = json!({});
    queue["internal"] = json!(false);
    queue["delivery_limit"] = json!(50);
    queue
}

/// Severity and text of the lines after the summary.
fn judged(queue: &Value, major: u64) -> Vec<(Severity, String)> {
    let found = Managed::new("ingest", "tidegate.ingest", queue, major).judge_ingest("tidegate.dead");
    assert_eq!(found[0].severity, Severity::Good, "{found:?}");
    found.into_iter().skip(1).map(|f| (f.severity, f.text)).collect()
}

fn only(queue: &Value, major: u64, level: Severity, text: &str) {
    let found = judged(queue, major);
    assert!(found.len() == 1 && found[0].0 == level && found[0].1.contains(text), "{text}: {found:?}");
}

#[test]
fn what_the_daemon_declares_needs_no_advice() {
    assert_eq!(judged(&of_3(), 3), []);
    assert_eq!(judged(&of_4(), 4), []);
}

#[test]
fn each_policy_is_named_with_what_it_does() {
    for (definition, text) in [
        (json!({ "message-ttl": 60_000 }), "policy 'p' sets a message-ttl of 60000 ms"),
        (json!({ "expires": 5 }), "policy 'p' deletes the queue with all requests after 5 ms"),
        (json!({ "delivery-limit": 3 }), "policy 'p' sets a delivery-limit of 3"),
        (json!({ "consumer-timeout": 60_000 }), "policy 'p' sets a consumer timeout of 60000 ms"),
    ] {
        for (mut queue, major) in [(of_3(), 3), (of_4(), 4)] {
            queue["policy"] = json!("p");
            queue["effective_policy_definition"] = definition.clone();
            only(&queue, major, Severity::Warning, text);
        }
    }
}

#[test]
fn an_argument_goes_before_a_policy_where_it_is_a_word() {
    let mut queue = of_4();
    queue["operator_policy"] = json!("ops");
    queue["effective_policy_definition"] =
        json!({ "overflow": "drop-head", "dead-letter-exchange": "other", "max-length": 10 });
    assert_eq!(judged(&queue, 4), [], "a full queue refuses, and its own dead-letter exchange holds");
    queue["arguments"] = json!({ "x-queue-type": "quorum", "x-delivery-limit": 50, "x-max-length": 20 });
    let found = judged(&queue, 4);
    let texts: Vec<&str> = found.iter().map(|(_, text)| text.as_str()).collect();
    assert_eq!(texts.len(), 2, "{texts:?}");
    assert!(texts[0].contains("operator policy 'ops' sets a max-length of 10"), "the lower: {texts:?}");
    assert!(texts[1].contains("to the exchange 'other', not to 'tidegate.dead'"), "{texts:?}");
}

#[test]
fn the_version_says_what_no_limit_means() {
    let mut queue = of_4();
    queue["arguments"]["x-delivery-limit"] = Value::Null;
    only(&queue, 4, Severity::Warning, "removes a request after 20 returns");
    assert_eq!(judged(&queue, 3), []);
    queue["arguments"]["x-delivery-limit"] = json!(-1);
    only(&queue, 3, Severity::Warning, "removes a request at its first return");
    assert_eq!(judged(&queue, 4), []);
    assert_eq!((major("3.10.8"), major("4.1.0-rc.1"), major("")), (3, 4, 0));
}

#[test]
fn what_keeps_the_work_from_being_done_is_a_fault() {
    let mut queue = of_4();
    queue["state"] = json!("minority");
    queue["members"] = json!(["a", "b", "c"]);
    queue["online"] = json!(["a"]);
    let found = judged(&queue, 4);
    assert_eq!((found[0].0, found[1].0, found.len()), (Severity::Fault, Severity::Warning, 2), "{found:?}");
    let mut queue = of_4();
    queue["type"] = json!("stream");
    only(&queue, 4, Severity::Fault, "it is a stream");
    let mut queue = of_4();
    queue["exclusive"] = json!(true);
    only(&queue, 4, Severity::Fault, "it is exclusive");
}

#[test]
fn a_classic_queue_and_a_weak_way_to_the_dead_exchange_are_advice() {
    let mut queue = of_3();
    queue["type"] = json!("classic");
    only(&queue, 3, Severity::Warning, "it is a classic queue");
    let mut queue = of_3();
    queue["arguments"]["x-dead-letter-strategy"] = Value::Null;
    only(&queue, 3, Severity::Note, "may be lost on the way");
    queue["arguments"]["x-dead-letter-exchange"] = Value::Null;
    only(&queue, 3, Severity::Warning, "has no dead-letter exchange");
}

#[test]
fn what_would_delete_a_queue_that_nobody_uses_is_told_of_each() {
    let queue = json!({ "type": "classic", "arguments": {}, "policy": "tidy",
                        "effective_policy_definition": { "expires": 60_000 } });
    let managed = Managed::new("ingest", "q", &queue, 3);
    let told = |found: Vec<CheckLine>, text: &str| {
        let all: Vec<_> = found
            .into_iter()
            .filter(|line| line.severity == Severity::Warning)
            .map(|line| line.text)
            .collect();
        assert!(
            all.iter().any(|line| line.contains("policy 'tidy' deletes") && line.contains(text)),
            "{all:?}"
        );
    };
    told(managed.judge_ingest("dead"), "all requests after 60000 ms");
    told(managed.judge_dead(), "all dead letters after 60000 ms");
    told(managed.judge_lock(), "a second tidegate");
    let plain = json!({ "type": "classic", "arguments": {} });
    assert!(Managed::new("ingest", "q", &plain, 3).judge_lock().is_empty());
}

#[test]
fn looks_at_dead_letters_count_where_the_limit_is_low() {
    let looked = |limit: Value, major| {
        let queue = json!({ "type": "quorum", "arguments": { "x-delivery-limit": limit } });
        let found = Managed::new("egress", "tidegate.dead", &queue, major).judge_dead();
        found.into_iter().skip(1).map(|f| f.text).collect::<Vec<_>>()
    };
    assert_eq!(looked(json!(1_000_000_000), 4), Vec::<String>::new());
    assert_eq!(looked(Value::Null, 3), Vec::<String>::new());
    assert!(looked(Value::Null, 4)[0].contains("lost after 20 returns"));
    assert!(looked(json!(5), 3)[0].contains("lost after 5 returns"));
}
