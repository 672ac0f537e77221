//! Requests that come to the wrong queue, envelopes for several shards, and tables that tidegate has not made.

use super::{applications, consumed, home, queues, site, COUNT};
use crate::dropin::passthrough;
use serde_json::{json, Value};
use std::time::Duration;
use tidegate_harness::lapin::types::{AMQPValue, FieldTable};
use tidegate_harness::{text, wait_until, Daemon, Inbox, Node, Push};

const ENVELOPE: &str = "application/vnd.tidegate+json";
/// Time limit of a wait for the broker's count.
const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn a_request_in_the_queue_of_any_shard_arrives_once() {
    let site = site("shards-wrong");
    let applications = consumed(&site);
    let daemon = site.start(&site.config());
    for shard in 0..COUNT {
        site.client.publish_all(applications.iter().map(|(application, _)| {
            let push = Push::new("", &site.shard_queue(shard), "{}").with("x-application", application);
            push.id(&format!("by-{shard}"))
        }));
        // The same request in another queue would be a duplicate.
        for (application, inbox) in &applications {
            let batch = inbox.batch();
            assert_eq!(
                (batch.application.as_str(), batch.ids()),
                (application.as_str(), vec![&*format!("by-{shard}")])
            );
        }
    }
    // Without an id nothing but the way itself keeps it single.
    site.client.publish_all((0..COUNT).flat_map(|shard| {
        let queue = site.shard_queue(shard);
        applications
            .iter()
            .map(move |(application, _)| Push::new("", &queue, "{}").with("x-application", application))
            .collect::<Vec<_>>()
    }));
    for (_, inbox) in &applications {
        assert_eq!(inbox.items(usize::from(COUNT), LIMIT).len(), usize::from(COUNT));
        inbox.quiet(Duration::from_millis(50));
    }
    for queue in queues(&site).chain([site.dead()]) {
        site.lies(&queue, 0);
    }
    assert_eq!(daemon.items("waiting"), 0);
}

/// Waits until the ends of these entries are on the disk, as each answer is, so that no kill repeats them.
fn ended(daemon: &Daemon, applications: &[(String, Inbox)], id: &str, entries: &[usize]) {
    for index in entries {
        let path = format!("/api/v1/items/{}/{id}%2F{index}", applications[*index].0);
        wait_until(&path, LIMIT, || daemon.ask("GET", &path).1["state"] == "sent");
    }
}

#[test]
fn an_envelope_for_all_shards_is_acked_once_each_part_is_safe() {
    let Some(node) = Node::controlled("an_envelope_for_all_shards_is_acked_once_each_part_is_safe") else {
        return;
    };
    let site = site("shards-envelope");
    let applications = consumed(&site);
    let mut daemon = site.start(&site.config());
    let dead = site.dead_inbox();
    let envelope = |id: &str, entries: &[Value]| {
        site.push("none", json!(entries).to_string()).content_type(ENVELOPE).id(id)
    };
    let entry = |(application, _): &(String, _)| json!({"application": application, "payload": application});
    let entries: Vec<Value> = applications.iter().map(entry).collect();
    // Nothing was published to it before: the broker makes a channel wait at its first publish.
    let silent = 2;
    node.silence(&[site.shard_queue(silent)]);
    site.client.publish(&envelope("m", &entries));
    let check = |index: usize| {
        let (application, inbox) = &applications[index];
        let batch = inbox.batch();
        assert_eq!(batch.ids(), [format!("m/{index}")]);
        assert_eq!(batch.items[0].payload, Some(json!(application)));
    };
    let (late, soon): (Vec<usize>, Vec<usize>) =
        (0..8).partition(|index| home(&applications[*index].0) == silent);
    soon.iter().copied().for_each(check);
    // One part of it is not safe, so the whole comes again; what has arrived of it is known.
    ended(&daemon, &applications, "m", &soon);
    daemon.kill9();
    node.wake(&[site.shard_queue(silent)]);
    daemon.start_again();
    daemon.wait_ready();
    late.into_iter().for_each(check);
    wait_until("it is acked", LIMIT, || node.messages(&site.ingest_queue()) == Some(0));

    // One fault rejects the whole, whichever shard it is for.
    for faulty in [0, 7] {
        let mut entries = entries.clone();
        entries[faulty]["delay_ms"] = json!("soon");
        let push = envelope("bad", &entries);
        site.client.publish(&push);
        let letter = dead.next();
        assert_eq!((letter.id().as_str(), &letter.body), ("bad", &push.body));
        assert_eq!(letter.text("x-tidegate-reason").as_deref(), Some("invalid"));
        let sentence = letter.text("x-tidegate-error").expect("a sentence");
        assert!(sentence.contains("delay_ms"), "{sentence}");
    }
    for (_, inbox) in &applications {
        inbox.quiet(Duration::from_millis(50));
    }
    dead.quiet(Duration::from_millis(50));
    assert_eq!(daemon.items("waiting"), 0);
}

#[test]
fn a_table_that_tidegate_has_not_made_has_no_effect() {
    let site = site("shards-forged");
    let application = applications(1).remove(1);
    let inbox = site.inbox(&application);
    let daemon = site.start(&passthrough(&site));
    let mut table = FieldTable::default();
    for (name, value) in [
        ("exchange", text("forged")),
        ("key", text("forged")),
        ("again", AMQPValue::Boolean(true)),
        ("user_id", text("forged")),
        ("expiration", text("1")),
        ("part", AMQPValue::Boolean(true)),
        ("left_out", AMQPValue::LongLongInt(-1)),
        ("proof", AMQPValue::LongString([7; 32].as_slice().into())),
    ] {
        table.insert(name.into(), value);
    }
    let queues = (0..COUNT).map(|shard| site.shard_queue(shard));
    let pushes = queues.map(|queue| Push::new("", &queue, "{}").with("x-application", &application));
    let pushes = pushes.chain([site.push(&application, "{}")]).enumerate();
    for (n, push) in pushes {
        let push = push.header("x-tidegate-forward", AMQPValue::FieldTable(table.clone()));
        site.client.publish(&push.id(&format!("{n}")));
        let got = inbox.next();
        assert_eq!((got.id(), got.body_text()), (format!("{n}"), "{}".to_owned()));
        assert_eq!((got.header("x-user-id"), got.properties.expiration()), (None, &None));
    }
    assert_eq!(daemon.state()["totals"]["redelivered"], 0);
    site.lies(&site.dead(), 0);
}
