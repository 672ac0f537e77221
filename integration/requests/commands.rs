//! `tidegate.cancel`, `tidegate.lookup`, `tidegate.flush`, over AMQP and over HTTP.

use serde_json::{json, Value};
use std::time::Duration;
use tidegate_harness::lapin::types::FieldTable;
use tidegate_harness::{wait_until, Inbox, Push, Site};

struct Asker<'s> {
    site: &'s Site<'s>,
    reply_to: String,
    answers: Inbox,
}

impl<'s> Asker<'s> {
    fn new(site: &'s Site<'s>) -> Self {
        let reply_to = site.queue("replies");
        site.client.queue(&reply_to, FieldTable::default());
        let answers = site.client.consume(&reply_to);
        Asker { site, reply_to, answers }
    }

    fn ask(&self, mut push: Push, kind: &str) -> Value {
        push = push.kind(kind);
        let correlation = format!("{kind} {}", push.body.len());
        push.properties = push
            .properties
            .with_reply_to(self.reply_to.as_str().into())
            .with_correlation_id(correlation.as_str().into());
        self.site.client.publish(&push);
        let answer = self.answers.next();
        let id = answer.properties.correlation_id().as_ref().map(ToString::to_string);
        assert_eq!(id, Some(correlation));
        answer.json()
    }
}

#[test]
#[ignore = "this release executes no commands"]
fn cancel_and_lookup_by_id() {
    let site = Site::new("cancel");
    let inbox = site.inbox("shop");
    let _daemon = site.start(&site.config());
    let asker = Asker::new(&site);
    let about = |id: &str| site.push("shop", "").id(id);
    site.client.publish(&site.push("shop", "1").id("later").customer("c").delay(60_000));
    let found = asker.ask(about("later"), "tidegate.lookup");
    for (key, value) in [
        ("state", json!("waiting")),
        ("application", json!("shop")),
        ("id", json!("later")),
        ("customer", json!("c")),
        ("attempts", json!(0)),
    ] {
        assert_eq!(found[key], value, "{key}: {found}");
    }
    assert!(found["due"].is_u64() && found.get("last_error").is_some(), "{found}");
    assert_eq!(asker.ask(about("later"), "tidegate.cancel"), json!({"result": "cancelled", "count": 1}));
    assert_eq!(asker.ask(about("later"), "tidegate.lookup")["state"], "cancelled");
    assert_eq!(asker.ask(about("nobody"), "tidegate.cancel")["result"], "unknown");
    assert_eq!(asker.ask(about("nobody"), "tidegate.lookup")["state"], "unknown");
    // The id of a cancelled item may be used again at once.
    site.client.publish(&site.push("shop", "2").id("later"));
    assert_eq!(inbox.batch().ids(), ["later"]);
    let mut sent = Value::Null;
    wait_until("its end is known", Duration::from_secs(5), || {
        sent = asker.ask(about("later"), "tidegate.cancel");
        sent["result"] == "sent"
    });
    assert!(sent["batch"].is_string() && sent["at"].is_u64(), "{sent}");
}

#[test]
#[ignore = "this release executes no commands"]
fn cancel_all_of_a_customer_and_flush() {
    let site = Site::new("flush");
    let inbox = site.inbox("shop");
    let _daemon = site.start(&site.config().text("defaults.window", "60s"));
    let asker = Asker::new(&site);
    let of = |customer: &str| site.push("shop", "").customer(customer);
    site.client.publish_all((0..3).map(|n| of("a").id(&format!("a{n}"))));
    site.client.publish(&of("a").id("a-later").delay(60_000));
    site.client.publish_all((0..2).map(|n| of("b").id(&format!("b{n}"))));
    assert_eq!(asker.ask(of("a"), "tidegate.cancel"), json!({"result": "cancelled", "count": 4}));
    assert_eq!(asker.ask(of("b"), "tidegate.flush"), json!({"result": "flushed", "count": 2}));
    let batch = inbox.batch();
    assert_eq!(batch.ids(), ["b0", "b1"]);
    assert_eq!(batch.message.text("x-closed-by").as_deref(), Some("flush"));
    inbox.quiet(Duration::from_millis(300));
}

#[test]
#[ignore = "this release executes no commands"]
fn a_malformed_command_is_answered_and_dead() {
    let site = Site::new("malformed-command");
    site.application("shop");
    let _daemon = site.start(&site.config());
    let asker = Asker::new(&site);
    let answer = asker.ask(site.push("shop", ""), "tidegate.cancel");
    assert_eq!(answer["result"], "rejected", "{answer}");
    assert!(answer["error"].is_string(), "{answer}");
    assert_eq!(site.dead_inbox().next().text("x-tidegate-reason").as_deref(), Some("invalid"));
}

#[test]
#[ignore = "this release executes no commands"]
fn the_same_over_http() {
    let site = Site::new("http");
    let inbox = site.inbox("shop");
    let daemon = site.start(&site.config().text("defaults.window", "60s"));
    site.client.publish(&site.push("shop", "1").id("x").delay(60_000));
    site.client.publish_all((0..4).map(|n| site.push("shop", "1").customer("c").id(&format!("c{n}"))));
    wait_until("all are held", Duration::from_secs(5), || {
        let (status, list) = daemon.ask("GET", "/api/v1/items?application=shop&limit=10");
        assert_eq!(status, 200, "{list}");
        list["items"].as_array().is_some_and(|items| items.len() == 5)
    });
    let (status, item) = daemon.ask("GET", "/api/v1/items/shop/x");
    assert_eq!((status, &item["state"]), (200, &json!("waiting")));
    assert_eq!(
        daemon.ask("DELETE", "/api/v1/items/shop/x"),
        (200, json!({"result": "cancelled", "count": 1}))
    );
    assert_eq!(daemon.ask("DELETE", "/api/v1/items/shop/none").0, 404);
    assert_eq!(daemon.ask("GET", "/api/v1/items/shop/none").0, 404);
    let flushed = daemon.ask("POST", "/api/v1/customers/shop/c/flush");
    assert_eq!(flushed, (200, json!({"result": "flushed", "count": 4})));
    assert_eq!(inbox.batch().items.len(), 4);
    site.client.publish(&site.push("shop", "1").customer("d"));
    wait_until("it is held", Duration::from_secs(5), || {
        daemon.ask("GET", "/api/v1/items?application=shop&customer=d").1["items"]
            .as_array()
            .is_some_and(|i| i.len() == 1)
    });
    let cancelled = daemon.ask("DELETE", "/api/v1/customers/shop/d/items");
    assert_eq!(cancelled, (200, json!({"result": "cancelled", "count": 1})));
    assert_eq!(daemon.ask("GET", "/livez").0, 200);
}
