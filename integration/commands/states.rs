//! Look-up and cancel in every state of an item.

use super::{wait_for, FAR};
use serde_json::{json, Value};
use std::time::{Duration, Instant};
use tidegate_harness::{now_ms, wait_until, Asker, Config, Daemon, Inbox, Node, Proxy, Site, Way};

fn item(daemon: &Daemon, application: &str, id: &str) -> Value {
    daemon.ask("GET", &format!("/api/v1/items/{application}/{id}")).1
}

fn cancel(daemon: &Daemon, application: &str, id: &str) -> (u16, Value) {
    daemon.ask("DELETE", &format!("/api/v1/items/{application}/{id}"))
}

fn config(site: &Site<'_>) -> Config {
    site.config()
        .text("defaults.window", "60s")
        .set("defaults.retry", r#"{ min = "60s", max = "60s" }"#)
        .set("applications.gone.retry", r#"{ min = "50ms", max = "50ms", attempts = 2 }"#)
}

#[test]
fn what_has_not_ended() {
    let site = Site::new("live");
    let inbox = site.inbox("shop");
    let daemon = site.start(&config(&site));
    let near = i64::try_from(now_ms()).expect("a date") + 15_000;
    let before = now_ms();
    site.client.publish_all([
        site.push("shop", "1").id("near").number("x-deliver-at", near),
        site.push("shop", "1").id("far").customer("f").delay(FAR),
        site.push("shop", "1").id("window").customer("w"),
        site.push("nobody", "1").id("parked").customer("p"),
        site.push("nobody", "1").id("alone"),
    ]);
    wait_for(&daemon, "nobody", "parked", "waiting");
    daemon.ask("POST", "/api/v1/customers/nobody/p/flush");
    wait_until("the far one is in the store alone, two are parked", Duration::from_secs(10), || {
        let items = daemon.state()["items"].clone();
        // Of the waiting items only the near one is in memory: none that is parked, and none of a window that
        // ends in a minute.
        items["waiting"] == 3 && items["in_memory"] == 1 && items["parked"] == 2
    });
    let found = |application: &str, id: &str, state: &str, customer: Option<&str>| {
        let found = item(&daemon, application, id);
        let told = ["state", "application", "id", "customer"].map(|key| found[key].clone());
        assert_eq!(json!(told), json!([state, application, id, customer]), "{found}");
        found
    };
    assert_eq!(found("shop", "near", "waiting", None)["due"], near);
    let due = found("shop", "far", "waiting", Some("f"))["due"].as_u64().expect("due");
    assert!((before + FAR as u64..=now_ms() + FAR as u64).contains(&due), "{due}");
    let due = found("shop", "window", "waiting", Some("w"))["due"].as_u64().expect("due");
    assert!((before + 60_000..=now_ms() + 60_000).contains(&due), "the end of its window: {due}");
    let alone = found("nobody", "alone", "parked", None);
    let parked = found("nobody", "parked", "parked", Some("p"));
    let failed: Vec<_> = [&alone, &parked].into_iter().filter(|item| item["attempts"] == 1).collect();
    assert!(!failed.is_empty(), "one of them has been tried: {alone} {parked}");
    for item in failed {
        assert!(item["last_error"].as_str().is_some_and(|text| !text.is_empty()), "{item}");
    }
    for (application, id) in
        [("shop", "near"), ("shop", "far"), ("shop", "window"), ("nobody", "parked"), ("nobody", "alone")]
    {
        assert_eq!(
            cancel(&daemon, application, id),
            (200, json!({"result": "cancelled", "count": 1})),
            "{id}"
        );
        assert_eq!(item(&daemon, application, id)["state"], "cancelled", "{id}");
        // A repeated cancel gets the same answer.
        assert_eq!(cancel(&daemon, application, id).1["result"], "cancelled", "{id}");
    }
    let state = daemon.state();
    let left = ["waiting", "parked", "in_memory", "windows"].map(|key| state["items"][key].clone());
    assert_eq!((json!(left), &state["totals"]["cancelled"]), (json!([0, 0, 0, 0]), &json!(5)), "{state}");
    site.application("nobody");
    site.client.bind(&site.queue("shop"), &site.out(), "nobody");
    daemon.ask("POST", "/api/v1/applications/nobody/retry");
    inbox.quiet(Duration::from_millis(400));
}

#[test]
fn what_has_ended() {
    let site = Site::new("ended");
    let inbox = site.inbox("shop");
    let daemon = site.start(&config(&site));
    let before = now_ms();
    let past = i64::try_from(before).expect("a date") - 1;
    site.client.publish_all([
        site.push("shop", "1").id("sent").customer("s").delay(100),
        site.push("shop", "1").id("expired").customer("e").number("x-deliver-before", past),
        site.push("gone", "1").id("dead"),
    ]);
    let batch = inbox.batch();
    wait_for(&daemon, "shop", "sent", "sent");
    wait_for(&daemon, "shop", "expired", "expired");
    wait_for(&daemon, "gone", "dead", "dead");
    let at = |answer: &Value| {
        let at = answer["at"].as_u64().expect("when");
        assert!((before..=now_ms()).contains(&at), "{answer}");
    };
    let sent = item(&daemon, "shop", "sent");
    assert_eq!((&sent["customer"], &sent["batch"]), (&json!("s"), &json!(batch.id)), "{sent}");
    at(&sent);
    let expired = item(&daemon, "shop", "expired");
    assert_eq!(expired["customer"], "e", "{expired}");
    let dead = item(&daemon, "gone", "dead");
    assert_eq!((&dead["attempts"], &dead["reason"]), (&json!(2), &json!("attempts")), "{dead}");
    assert!(dead["last_error"].is_string(), "{dead}");
    let (status, answer) = cancel(&daemon, "shop", "sent");
    assert_eq!((status, &answer["result"], &answer["batch"]), (200, &json!("sent"), &json!(batch.id)));
    at(&answer);
    let (status, answer) = cancel(&daemon, "shop", "expired");
    assert_eq!((status, &answer["result"]), (200, &json!("expired")));
    at(&answer);
    let (status, answer) = cancel(&daemon, "gone", "dead");
    assert_eq!((status, &answer["result"], &answer["reason"]), (200, &json!("dead"), &json!("attempts")));
    let unknown = item(&daemon, "shop", "dead");
    let keys = ["customer", "due", "attempts", "last_error"];
    assert!(unknown["state"] == "unknown" && keys.iter().all(|key| unknown[*key].is_null()), "{unknown}");
    assert_eq!(cancel(&daemon, "shop", "dead"), (404, json!({"result": "unknown"})));
    assert_eq!(daemon.state()["totals"]["cancelled"], 0);
}

/// Batches reach the broker from now on, but their confirms do not get through; the first item was sent
/// before that.
fn without_confirms(site: &Site<'_>) -> (Inbox, Proxy, Daemon) {
    let inbox = site.inbox("shop");
    let (egress, uri) = site.node.proxied();
    let daemon = site.start(&site.config().text("egress.uri", &uri));
    site.client.publish(&site.push("shop", "1").id("first"));
    assert_eq!(inbox.batch().ids(), ["first"]);
    wait_for(&daemon, "shop", "first", "sent");
    egress.stall_one(Way::Down);
    (inbox, egress, daemon)
}

#[test]
fn in_flight_the_answer_waits_for_the_outcome() {
    let Some(node) = Node::controlled("in_flight_the_answer_waits_for_the_outcome") else { return };
    let site = Site::on(node, "flying");
    let inbox = site.inbox("shop");
    let daemon = site.start(&config(&site).text("timeouts.confirm", "120s"));
    site.client.publish(&site.push("shop", "1").id("first"));
    assert_eq!(inbox.batch().ids(), ["first"]);
    wait_for(&daemon, "shop", "first", "sent");
    let ids = |round: u32| ["x", "y"].map(|id| format!("{id}{round}"));
    fly(node, &site, &daemon, &ids(0));
    let start = Instant::now();
    assert_eq!(cancel(&daemon, "shop", "x0"), (200, json!({"result": "in_flight"})));
    let waited = start.elapsed();
    assert!(waited >= Duration::from_millis(4500), "{waited:?}");
    // On a busy machine it may take longer to wake the queue than the commands wait.
    let is_told = (0..3).any(|round| {
        let ids = ids(round);
        if round > 0 {
            fly(node, &site, &daemon, &ids);
        }
        let is_told = outcome_is_told(node, &site, &daemon, &ids[0]);
        assert_eq!(inbox.batch().ids(), ids);
        for id in &ids {
            wait_for(&daemon, "shop", id, "sent");
        }
        is_told
    });
    assert!(is_told, "the commands were always answered before the outcome arrived");
    inbox.quiet(Duration::from_millis(300));
}

/// Sends these two items of one customer as a batch that gets no outcome until the queue is woken.
fn fly(node: &Node, site: &Site<'_>, daemon: &Daemon, ids: &[String; 2]) {
    site.client.publish_all(ids.iter().map(|id| site.push("shop", "1").id(id).customer("c")));
    daemon.holds("waiting", 2);
    // A network that carries nothing would be given up sooner, and the batch published again.
    node.silence(&[site.queue("shop")]);
    assert_eq!(daemon.ask("POST", "/api/v1/customers/shop/c/flush").1["count"], 2);
    for id in ids {
        wait_for(daemon, "shop", id, "in_flight");
    }
}

/// Cancels this item and its customer while they are in flight, and wakes the queue. Whether both answers tell the
/// outcome; otherwise a command was answered before.
fn outcome_is_told(node: &Node, site: &Site<'_>, daemon: &Daemon, id: &str) -> bool {
    let (asked, all) = std::thread::scope(|scope| {
        let asked = scope.spawn(|| cancel(daemon, "shop", id));
        let all = scope.spawn(|| daemon.ask("DELETE", "/api/v1/customers/shop/c/items"));
        // Both commands should be under way when the outcome arrives; if not, they get the same answers.
        std::thread::sleep(Duration::from_millis(300));
        node.wake(&[site.queue("shop")]);
        (asked.join().expect("an answer"), all.join().expect("an answer"))
    });
    if asked == (200, json!({"result": "in_flight"})) {
        return false;
    }
    assert_eq!((asked.0, &asked.1["result"]), (200, &json!("sent")), "{}", asked.1);
    if all == (200, json!({"result": "cancelled", "count": 0, "in_flight": 2})) {
        return false;
    }
    assert_eq!(all, (200, json!({"result": "cancelled", "count": 0})));
    true
}

#[test]
fn a_connection_lost_between_publish_and_confirm_repeats_with_the_same_ids() {
    let site = Site::new("lost");
    let (inbox, egress, daemon) = without_confirms(&site);
    site.client.publish_all(["x", "y"].map(|id| site.push("shop", "1").id(id)));
    let mut ids: Vec<_> = inbox.items(2, Duration::from_secs(10)).into_iter().map(|i| i.id).collect();
    ids.sort();
    assert_eq!(ids, ["x", "y"]);
    wait_for(&daemon, "shop", "x", "in_flight");
    // Between publish and confirm the outcome is unknown, so the batch is sent again.
    egress.cut(true);
    egress.heal();
    let mut again = inbox.take(2, Duration::from_secs(10));
    let attempts: Vec<_> = again.iter().filter_map(|message| message.number("x-attempt")).collect();
    assert!(attempts.len() == 2 && attempts.iter().all(|attempt| *attempt >= 2), "{attempts:?}");
    let mut ids: Vec<_> = again.drain(..).map(|m| m.batch().items[0].id.clone()).collect();
    ids.sort();
    assert_eq!(ids, ["x", "y"], "a repeat carries the same ids");
    let (_, answer) = cancel(&daemon, "shop", "x");
    assert_eq!(answer["result"], "sent", "{answer}");
    inbox.quiet(Duration::from_millis(300));
}

#[test]
fn an_assigned_id_is_as_good_as_any() {
    let site = Site::new("assigned");
    let inbox = site.inbox("shop");
    let daemon = site.start(&site.config().text("defaults.window", "60s"));
    let asker = Asker::new(&site);
    site.client.publish_all([
        site.push("shop", "1").customer("near").delay(15_000),
        site.push("shop", "1").customer("far").delay(FAR),
        site.push("shop", "1").customer("window"),
        site.push("shop", "1").customer("sent").delay(200),
    ]);
    assert_eq!(inbox.batch().customer.as_deref(), Some("sent"));
    wait_until("three are left", Duration::from_secs(10), || daemon.items("waiting") == 3);
    let (_, list) = daemon.ask("GET", "/api/v1/items");
    let items = list["items"].as_array().expect("items").clone();
    assert_eq!(items.len(), 3, "{list}");
    for listed in items {
        let id = listed["id"].as_str().expect("an id");
        let found = asker.ask("lookup", site.push("shop", "").id(id));
        assert_eq!(
            (&found["state"], &found["customer"]),
            (&json!("waiting"), &listed["customer"]),
            "{listed}"
        );
        let elsewhere = asker.ask("lookup", site.push("mail", "").id(id));
        assert_eq!(elsewhere["state"], "unknown", "an id counts within its application");
        let answer = asker.ask("cancel", site.push("shop", "").id(id));
        assert_eq!(answer, json!({"result": "cancelled", "count": 1}), "{listed}");
    }
    daemon.holds("waiting", 0);
    inbox.quiet(Duration::from_millis(100));
}
