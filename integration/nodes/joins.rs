//! A node joins: it gets an even part, what waits moves with its shard, and requests find their home at
//! whichever node it is.

use super::{parts_of, whole, Nodes};
use crate::shards::{applications, consumed, counted, home, listed, nothing_more, LIMIT};
use serde_json::{json, Value};
use std::time::{Duration, Instant};
use tidegate_harness::{wait_until, Inbox};

/// How long nothing may move once all nodes have even parts.
const STILL: Duration = Duration::from_secs(5);
/// One hour, ms.
const LATER: i64 = 3_600_000;

#[test]
fn a_third_node_gets_its_part_of_four_shards_and_then_nothing_moves() {
    let Some(mut nodes) = Nodes::start("nodes-third", 2) else { return };
    let before = nodes.even();
    nodes.join();
    let claims = nodes.even();
    assert_eq!((parts_of(&before), parts_of(&claims)), (vec![2, 2], vec![2, 1, 1]));
    let moved = before.iter().zip(&claims).filter(|(before, after)| before != after).count();
    assert!((1..=2).contains(&moved), "{moved} have moved: {before:?} {claims:?}");
    for node in &nodes.able {
        // Each tells of a shard what its owner says.
        let state = whole(node, "/api/v1/state");
        assert_eq!(state["shards"].as_array().map(Vec::len), Some(claims.len()), "{state}");
        for (shard, claim) in (0..).zip(&claims) {
            let line = &state["shards"][usize::from(shard)];
            let wanted = (json!(claim.owner), json!("running"), json!(claim.epoch));
            assert_eq!(
                (&line["owner"], &line["state"], &line["epoch"]),
                (&wanted.0, &wanted.1, &wanted.2),
                "{line}"
            );
            assert_eq!(
                (&line["shard"], &line["queue"]),
                (&json!(shard), &json!(nodes.site.shard_queue(shard)))
            );
        }
    }
    let begun = Instant::now();
    wait_until("the time without a move is over", LIMIT, || {
        assert_eq!(nodes.recorded(), claims);
        begun.elapsed() >= STILL
    });
}

#[test]
fn what_waits_in_a_shard_is_found_where_the_shard_is_before_and_after_a_move() {
    const IDS: [&str; 3] = ["a", "b", "c"];
    let Some(mut nodes) = Nodes::start("nodes-homes", 1) else { return };
    let inboxes = consumed(&nodes.site);
    let all = || inboxes.iter().flat_map(|(name, _)| IDS.map(|id| (name, id)));
    nodes.site.client.publish_all(all().map(|(name, id)| nodes.site.push(name, "1").id(id).delay(LATER)));
    nodes.able[0].holds("waiting", 24);
    let path = |name: &str, id: &str| format!("/api/v1/items/{name}/{id}");
    let dues: Vec<Value> =
        all().map(|(name, id)| nodes.able[0].ask("GET", &path(name, id)).1["due"].clone()).collect();
    assert!(dues.iter().all(Value::is_u64), "{dues:?}");
    nodes.join();
    let claims = nodes.even();
    // Each node counts the items of all.
    nodes.able.iter().for_each(|node| node.holds("waiting", 24));
    for ((name, id), due) in all().zip(&dues) {
        let place = nodes.place_of(name, &claims);
        let (owner, other) = (&nodes.able[place], &nodes.able[1 - place]);
        let (status, item) = owner.ask("GET", &path(name, id));
        assert_eq!((status, &item["state"], &item["due"]), (200, &json!("waiting"), due), "{item}");
        assert_eq!(other.ask("GET", &path(name, id)), (200, item), "{name}, in shard {}", home(name));
    }
    let lists = [0, 1].map(|place| listed(&[&nodes.able[place]], "limit=5"));
    assert_eq!(lists[0].len(), 24, "{lists:?}");
    assert_eq!(lists[0], lists[1]);
    for (name, inbox) in &inboxes {
        let owner = &nodes.able[nodes.place_of(name, &claims)];
        for id in IDS {
            let (status, said) = owner.ask("POST", &format!("{}/reschedule?delay=0", path(name, id)));
            assert_eq!((status, &said["result"]), (200, &json!("rescheduled")), "{said}");
            assert_eq!(inbox.batch().ids(), [id], "{name}");
        }
    }
    nothing_more(&inboxes);
    nodes.able.iter().for_each(|node| node.holds("waiting", 0));
}

/// Panics unless one request with this text has arrived for each of these applications.
fn arrived_once(inboxes: &[(String, Inbox)], text: &str) {
    for (name, inbox) in inboxes {
        let batch = inbox.batch();
        let payloads: Vec<_> = batch.items.iter().map(|item| item.payload.clone()).collect();
        assert_eq!((batch.application.as_str(), payloads), (name.as_str(), vec![Some(json!(text))]));
    }
    nothing_more(inboxes);
}

/// The requests have no id: only the way itself keeps them single.
#[test]
fn a_request_that_has_to_be_forwarded_to_another_node_arrives_once() {
    let Some(mut nodes) = Nodes::start("nodes-forward", 2) else { return };
    let claims = nodes.even();
    let (site, inboxes) = (&nodes.site, consumed(&nodes.site));
    let request =
        |key: &str, text: &str| site.push(key, json!(text).to_string()).content_type("application/json");
    let count = |key: &str| nodes.able.iter().map(|node| counted(node, key)).collect::<Vec<_>>();
    // By the routing key it comes to a shard of the other node.
    let far = |name: &str| {
        let is_far =
            |key: &&(String, Inbox)| nodes.place_of(&key.0, &claims) != nodes.place_of(name, &claims);
        inboxes.iter().find(is_far).map_or("", |(key, _)| key)
    };
    site.client
        .publish_all(inboxes.iter().map(|(name, _)| request(far(name), "far").with("x-application", name)));
    arrived_once(&inboxes, "far");
    wait_until("each node has forwarded its part", LIMIT, || count("misplaced") == [4, 4]);
    // These have no binding, and the proof of the forward has to carry their routing key to either node.
    let unbound: Vec<(String, Inbox)> = applications(3)
        .into_iter()
        .skip(2)
        .step_by(3)
        .map(|name| (name.clone(), site.inbox(&name)))
        .collect();
    site.client.publish_all(unbound.iter().map(|(name, _)| request(name, "unbound")));
    arrived_once(&unbound, "unbound");
    wait_until("one sharder has forwarded them", LIMIT, || {
        let mut forwarded = count("forwarded");
        forwarded.sort_unstable();
        forwarded == [0, 4]
    });
    site.lies(&site.dead(), 0);
}
