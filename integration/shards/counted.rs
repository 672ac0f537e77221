//! What is counted of requests that do not come straight to their shard.

use super::{applications, consumed, counted, home, queues, site, COUNT, LIMIT};
use serde_json::json;
use tidegate_harness::{wait_until, Push, Site};

#[test]
fn requests_by_the_sharder_and_from_wrong_shards_are_counted_wherever_the_state_is_told() {
    let site = site("shards-counted");
    let inboxes = consumed(&site);
    let daemon = site.start(&site.config());
    let map = |key: &str| counted(&daemon, key);
    assert_eq!((map("forwarded"), map("misplaced")), (0, 0));
    // The one request for all of them passes the sharder, and counts once.
    let entries: Vec<_> =
        applications(1).iter().map(|name| json!({ "application": name, "payload": {} })).collect();
    let envelope = Push::new(&site.ingest(), "", json!(entries).to_string());
    site.client.publish(&envelope.content_type("application/vnd.tidegate+json"));
    wait_until("the sharder's count", LIMIT, || map("forwarded") == 1);
    // In the queue of each shard, one that belongs there, and one that does not.
    let application = &inboxes[0].0;
    site.client.publish_all(
        (0..COUNT)
            .map(|shard| Push::new("", &site.shard_queue(shard), "{}").with("x-application", application)),
    );
    wait_until("the count of the shards", LIMIT, || map("misplaced") == u64::from(COUNT) - 1);
    queues(&site).for_each(|queue| site.lies(&queue, 0));
    assert_eq!((map("forwarded"), home(application)), (1, 0));
    let metrics = daemon.ask_whole("GET", "/metrics").expect("an answer").body;
    for line in ["{by=\"sharder\"} 1\n", "{by=\"shard\"} 3\n"] {
        assert!(metrics.contains(&format!("tidegate_forwarded_requests_total{line}")), "{metrics}");
    }
    let status = daemon.cli(&["status"]).out;
    assert!(status.contains("forwarded: 1 by the sharder, 3 by shards; bindings: "), "{status}");
}

#[test]
fn a_single_shard_tells_nothing_of_a_map() {
    let site = Site::new("shards-uncounted");
    let daemon = site.start(&site.config());
    assert_eq!(daemon.state().get("map"), None);
    let metrics = daemon.ask_whole("GET", "/metrics").expect("an answer").body;
    assert!(
        !metrics.contains("tidegate_forwarded_requests") && !metrics.contains("tidegate_map_"),
        "{metrics}"
    );
}
