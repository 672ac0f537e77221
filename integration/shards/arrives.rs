//! Requests for all shards, published in every way, arrive once and in order.

use super::{consumed, end, home, queues, site, COUNT};
use serde_json::json;
use std::time::Duration;

#[test]
fn each_request_waits_in_its_home_and_arrives_once_and_in_order() {
    let site = site("shards-arrive");
    let applications = consumed(&site);
    let mut daemon = site.start(&site.config().text("defaults.window", "1h"));
    // All lie in one queue before the first is forwarded: requests that are published later may overtake them.
    end(&mut daemon);
    site.client.publish_all((0..800).map(|n| {
        let (application, _) = &applications[n % 8];
        let customer = format!("c{}", n / 8 % 4);
        site.push(application, format!("{n}")).content_type("application/json").customer(&customer)
    }));
    site.lies(&site.ingest_queue(), 800);
    daemon.start_again();
    daemon.wait_ready();
    daemon.holds("waiting", 800);
    let state = daemon.state();
    for (number, line) in state["shards"].as_array().expect("all shards").iter().enumerate() {
        assert_eq!((&line["shard"], &line["waiting"]), (&json!(number), &json!(200)), "{line}");
    }
    assert_eq!(state["shards"].as_array().map(Vec::len), Some(usize::from(COUNT)));
    for (place, (application, inbox)) in applications.iter().enumerate() {
        assert_eq!(usize::from(home(application)), place / 2);
        let flushed = daemon.ask("POST", &format!("/api/v1/applications/{application}/flush"));
        assert_eq!(flushed, (200, json!({"result": "flushed", "count": 100})));
        for _ in 0..4 {
            let batch = inbox.batch();
            let customer: usize =
                batch.customer.as_deref().expect("a customer")[1..].parse().expect("its number");
            let payloads: Vec<_> = batch.items.iter().map(|item| item.payload.clone()).collect();
            let sent = (0..800).filter(|n| n % 8 == place && n / 8 % 4 == customer);
            assert_eq!(payloads, sent.map(|n| Some(json!(n))).collect::<Vec<_>>());
        }
    }
    daemon.holds("waiting", 0);
    for (_, inbox) in &applications {
        inbox.quiet(Duration::from_millis(50));
    }
    for queue in queues(&site).chain([site.dead()]) {
        site.lies(&queue, 0);
    }
}
