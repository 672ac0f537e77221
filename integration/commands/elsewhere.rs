//! Ids of another application's items are unknown over every interface, and the daemon survives.

use super::{wait_for, FAR};
use serde_json::json;
use std::time::Duration;
use tidegate_harness::{is_on_disk, wait_until, Asker, Daemon, Site};

/// No command that names the other application finds the item.
fn is_unknown_elsewhere(site: &Site<'_>, asker: &Asker<'_>, daemon: &mut Daemon, id: &str) {
    let path = format!("/api/v1/items/other/{id}");
    let (status, told) = daemon.ask("GET", &path);
    assert_eq!((status, &told["state"]), (404, &json!("unknown")), "{told}");
    for (method, path) in [("DELETE", path.clone()), ("POST", format!("{path}/reschedule?delay=1"))] {
        let (status, told) = daemon.ask(method, &path);
        assert_eq!((status, &told["result"]), (404, &json!("unknown")), "{method}: {told}");
    }
    assert_eq!(asker.ask("lookup", site.push("other", "").id(id))["state"], "unknown");
    assert_eq!(asker.ask("cancel", site.push("other", "").id(id))["result"], "unknown");
    assert!(daemon.running());
}

#[test]
fn an_item_that_was_rescheduled_is_unknown_to_another_application_and_arrives() {
    let site = Site::new("elsewhere");
    let inbox = site.inbox("shop");
    let asker = Asker::new(&site);
    let mut daemon = site.start(&site.config());
    // The other application has an item in the store only, so the store is searched.
    site.client.publish_all([
        site.push("other", "1").id("theirs").delay(FAR),
        site.push("shop", json!({ "id": 1 }).to_string()).content_type("application/json").delay(FAR),
    ]);
    wait_for(&daemon, "other", "theirs", "waiting");
    let listed = || daemon.ask("GET", "/api/v1/items?application=shop").1["items"][0]["id"].clone();
    wait_until("it is listed", Duration::from_secs(10), || listed().is_string());
    let id = listed().as_str().expect("the id that it was assigned").to_owned();
    let later = |daemon: &Daemon, delay: i64| {
        let path = format!("/api/v1/items/shop/{id}/reschedule?delay={delay}");
        let (status, told) = daemon.ask("POST", &path);
        assert_eq!((status, &told["result"]), (200, &json!("rescheduled")), "{told}");
    };
    later(&daemon, FAR / 2);
    is_unknown_elsewhere(&site, &asker, &mut daemon, &id);
    // An orderly stop: after a kill, the answer of an unacked command would be sent again.
    daemon.term();
    assert!(daemon.exit(Duration::from_secs(20)).success());
    daemon.start_again();
    daemon.wait_ready();
    is_unknown_elsewhere(&site, &asker, &mut daemon, &id);
    wait_for(&daemon, "shop", &id, "waiting");
    later(&daemon, 100);
    let batch = inbox.batch();
    assert_eq!((batch.ids(), &batch.items[0].payload), (vec![id.as_str()], &Some(json!({ "id": 1 }))));
    // Commands by message have been acked, so none is delivered again.
    daemon.term();
    assert!(daemon.exit(Duration::from_secs(20)).success());
    site.lies(&site.ingest_queue(), 0);
    if is_on_disk() {
        assert_eq!(daemon.cli(&["store", "verify", "--output", "json"]).code, 0);
    }
}
