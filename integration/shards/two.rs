//! Two daemons with stores of their own: all queues belong to the one that has the ingest queue.

use super::{consumed, queues, site, stored};
use std::time::Duration;
use tidegate_harness::{wait_until, workdir, Daemon};

/// Time limit of a wait.
const LIMIT: Duration = Duration::from_secs(60);

/// Judges promise 11.
#[test]
fn the_shards_of_a_second_daemon_wait_for_its_sharder() {
    let site = site("shards-two");
    let applications = consumed(&site);
    let mut first = site.start(&site.config());
    let dir = workdir("shards-two");
    let config = site.config().text("store.path", &dir.join("store").to_string_lossy());
    let mut second = Daemon::start(&config, &dir);
    wait_until("its sharder's reason", LIMIT, || second.log().contains("another tidegate serves queue"));
    wait_until("its shards wait as well", LIMIT, || {
        let state = second.state();
        let links = state["links"].as_array().cloned().unwrap_or_default();
        links.iter().filter(|link| link["state"] == "standby").count() == 5
    });
    let told = second.state()["links"].to_string();
    assert!(told.contains("another tidegate serves queue"), "{told}");
    assert!(told.contains("the sharder of this daemon does not serve the ingest queue"), "{told}");
    assert_eq!(second.ask("GET", "/readyz").0, 503);
    for queue in queues(&site) {
        assert_eq!(site.node.consumers(&queue), Some(1), "{queue}");
    }
    let publish = |round: &str| {
        site.client
            .publish_all(applications.iter().map(|(application, _)| site.push(application, "{}").id(round)));
        applications.iter().for_each(|(_, inbox)| assert_eq!(inbox.batch().ids(), [round]));
    };
    publish("first");
    // What is not acked at the kill would come to the second one.
    stored(&site);
    first.kill9();
    second.wait_ready();
    publish("second");
    wait_until("all queues are the second one's", LIMIT, || {
        queues(&site).all(|queue| site.node.consumers(&queue) == Some(1))
    });
    wait_until("its own batches are confirmed", LIMIT, || {
        second.state()["totals"]["confirmed"] == applications.len()
    });
    second.term();
    assert!(second.exit(LIMIT).success(), "{}", second.log_tail());
}
