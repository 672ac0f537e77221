//! Lists and counts: order, filters, pages, and what the command line shows of them.

mod cli;
mod counts;
mod filters;
mod looks;
mod pages;

use serde_json::Value;
use tidegate_harness::{wait_until, Config, Daemon, Site};

/// Three hours, ms: such an item is held in the store only.
pub(super) const FAR: i64 = 3 * 3_600_000;
/// So near that such an item is in memory, ms. A test may take longer: it pauses what must stay.
pub(super) const NEAR: i64 = 15_000;

/// Windows stay open, and undeliverable items stay parked.
pub(super) fn config(site: &Site<'_>) -> Config {
    site.config().text("defaults.window", "10m").set("defaults.retry", r#"{ min = "10m", max = "10m" }"#)
}

/// Pauses the application `shop`: its items stay, and are listed, when they are due.
pub(super) fn pause(daemon: &Daemon) {
    wait_until("it is paused", std::time::Duration::from_secs(10), || {
        let (status, answer) = daemon.ask("POST", "/api/v1/applications/shop/pause");
        assert!(matches!(status, 200 | 503), "{status} {answer}");
        status == 200
    });
}

/// The rows of a listing that fits in one page.
pub(super) fn list(daemon: &Daemon, query: &str) -> Vec<Value> {
    let (status, page) = daemon.ask("GET", &format!("/api/v1/items?{query}"));
    assert_eq!((status, &page["next"]), (200, &Value::Null), "{query}: {page}");
    page["items"].as_array().unwrap_or_else(|| panic!("{query}: {page}")).clone()
}

/// The ids of [`list`].
pub(super) fn ids(daemon: &Daemon, query: &str) -> Vec<String> {
    let id = |row: &Value| row["id"].as_str().expect("an id").to_owned();
    list(daemon, query).iter().map(id).collect()
}

/// An item in every state: five of `shop`, which is paused, one of `mail`, three of `nobody`, which has no
/// queue.
pub(super) fn one_of_each(site: &Site<'_>, daemon: &Daemon) {
    for application in ["shop", "mail"] {
        site.application(application);
    }
    pause(daemon);
    site.client.publish_all([
        site.push("shop", "1").id("far").customer("a").delay(FAR),
        site.push("shop", "1").id("farther").customer("b").delay(2 * FAR),
        site.push("shop", "1").id("near").customer("a").delay(NEAR),
        site.push("shop", "1").id("window").customer("a"),
        site.push("shop", "1").id("alone").delay(NEAR + 5_000),
        site.push("mail", "1").id("mail").customer("a").delay(FAR / 2),
        site.push("nobody", "1").id("p1"),
        site.push("nobody", "1").id("p2").customer("a").delay(50),
        site.push("nobody", "1").id("p3").customer("z").delay(100),
    ]);
    wait_until("all are where they belong", std::time::Duration::from_secs(10), || {
        let items = daemon.state()["items"].clone();
        items["parked"] == 3 && items["waiting"] == 6
    });
}
