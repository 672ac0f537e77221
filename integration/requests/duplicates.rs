//! Header `x-on-duplicate`: while the first waits, and after it was sent.

use std::time::Duration;
use tidegate_harness::{wait_until, Inbox, Site};

const SHORT: i64 = 900;
const LONG: i64 = 1600;

fn bodies(inbox: &Inbox, wait: Duration) -> Vec<String> {
    let mut bodies = Vec::new();
    while let Some(received) = inbox.poll(wait) {
        let batch = received.batch();
        bodies.extend(
            batch.items.iter().map(|i| i.payload.as_ref().map(ToString::to_string).unwrap_or_default()),
        );
    }
    bodies
}

#[test]
#[ignore = "this release remembers no identities"]
fn while_the_first_waits() {
    let site = Site::new("waiting");
    let inbox = site.inbox("shop");
    let _daemon = site.start(&site.config());
    let send = |id: &str, rule: &str, first: i64, second: i64| {
        let push = |body: &str, delay| {
            site.push("shop", body)
                .content_type("application/json")
                .id(id)
                .with("x-on-duplicate", rule)
                .delay(delay)
        };
        site.client.publish(&push(&format!("\"{rule} {id} 1\""), first));
        site.client.publish(&push(&format!("\"{rule} {id} 2\""), second));
    };
    send("a", "keep", SHORT, SHORT);
    send("b", "replace", SHORT, LONG);
    send("c", "earliest", LONG, SHORT);
    send("d", "earliest", SHORT, LONG);
    send("e", "latest", SHORT, LONG);
    send("f", "latest", LONG, SHORT);
    send("g", "reject", SHORT, SHORT);
    let mut got = bodies(&inbox, Duration::from_secs(3));
    got.sort();
    assert_eq!(
        got,
        [
            "\"earliest c 2\"",
            "\"earliest d 1\"",
            "\"keep a 1\"",
            "\"latest e 2\"",
            "\"latest f 1\"",
            "\"reject g 1\"",
            "\"replace b 2\""
        ]
    );
    let letter = site.dead_inbox().next();
    assert_eq!(letter.text("x-tidegate-reason").as_deref(), Some("duplicate"));
    assert_eq!(letter.body_text(), "\"reject g 2\"");
}

#[test]
#[ignore = "this release remembers no identities"]
fn after_it_was_sent() {
    let site = Site::new("tail");
    let inbox = site.inbox("shop");
    let daemon = site.start(&site.config().text("defaults.dedupe_tail", "1m"));
    let push = |id: &str, rule: &str, body: &str| {
        site.push("shop", body).content_type("application/json").id(id).with("x-on-duplicate", rule)
    };
    for rule in ["keep", "earliest", "reject", "replace", "latest"] {
        site.client.publish(&push(rule, rule, "1"));
        assert_eq!(inbox.batch().ids(), [rule]);
        wait_until("its end is known", Duration::from_secs(5), || {
            daemon.ask("GET", &format!("/api/v1/items/shop/{rule}")).1["state"] == "sent"
        });
        site.client.publish(&push(rule, rule, "2"));
    }
    let again: Vec<String> =
        inbox.take(2, Duration::from_secs(5)).into_iter().map(|m| m.batch().items[0].id.clone()).collect();
    assert_eq!(again, ["replace", "latest"], "accepted as new; the others are dropped or dead");
    inbox.quiet(Duration::from_millis(300));
    assert_eq!(site.dead_inbox().next().id(), "reject");
}

#[test]
fn the_same_id_of_another_application_is_another_item() {
    let site = Site::new("apps");
    let (shop, mail) = (site.inbox("shop"), site.inbox("mail"));
    let _daemon = site.start(&site.config());
    site.client.publish_all([site.push("shop", "1").id("x"), site.push("mail", "2").id("x")]);
    assert_eq!((shop.batch().ids(), mail.batch().ids()), (vec!["x"], vec!["x"]));
}

#[test]
#[ignore = "this release remembers no identities"]
fn a_sent_id_is_remembered_over_a_restart() {
    let site = Site::new("remembered");
    let inbox = site.inbox("shop");
    let mut daemon = site.start(&site.config());
    site.client.publish(&site.push("shop", "1").id("once").customer("c"));
    assert_eq!(inbox.batch().ids(), ["once"]);
    daemon.term();
    assert!(daemon.exit(Duration::from_secs(20)).success());
    daemon.start_again();
    daemon.wait_ready();
    site.client.publish(&site.push("shop", "1").id("once").customer("c"));
    inbox.quiet(Duration::from_millis(800));
}
