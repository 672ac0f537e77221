//! Commands over AMQP: who is answered, where, with what, and what happens to malformed commands.

use super::{wait_for, NOT_SENT};
use serde_json::{json, Value};
use std::time::{Duration, Instant};
use tidegate_harness::{correlation_of, now_ms, wait_until, Asker, Node, Push, Received, Site};

/// After this time an answer does not come any more.
const GIVEN_UP: Duration = Duration::from_secs(15);

#[test]
fn cancel_and_lookup_by_id() {
    let site = Site::new("cancel");
    let inbox = site.inbox("shop");
    let daemon = site.start(&site.config());
    let asker = Asker::new(&site);
    let about = |id: &str| site.push("shop", "").id(id);
    site.client.publish(&site.push("shop", "1").id("later").customer("c").delay(60_000));
    let found = asker.ask("lookup", about("later"));
    for (key, value) in [
        ("state", json!("waiting")),
        ("application", json!("shop")),
        ("id", json!("later")),
        ("customer", json!("c")),
        ("attempts", json!(0)),
        ("last_error", Value::Null),
    ] {
        assert_eq!(found.get(key), Some(&value), "{key}: {found}");
    }
    assert!(found["due"].is_u64(), "{found}");
    assert_eq!(asker.ask("cancel", about("later")), json!({"result": "cancelled", "count": 1}));
    assert_eq!(asker.ask("lookup", about("later"))["state"], "cancelled");
    assert_eq!(asker.ask("cancel", about("nobody")), json!({"result": "unknown"}));
    assert_eq!(asker.ask("lookup", about("nobody"))["state"], "unknown");
    // The id of a cancelled item may be reused at once.
    site.client.publish(&site.push("shop", "2").id("later"));
    let batch = inbox.batch();
    assert_eq!(batch.ids(), ["later"]);
    // Of an item in flight the answer may be that its outcome is unknown.
    wait_for(&daemon, "shop", "later", "sent");
    let sent = asker.ask("cancel", about("later"));
    assert_eq!((&sent["result"], &sent["batch"]), (&json!("sent"), &json!(batch.id)), "{sent}");
    assert!(sent["at"].is_u64(), "{sent}");
}

#[test]
fn cancel_all_of_a_customer_and_flush() {
    let site = Site::new("flush");
    let inbox = site.inbox("shop");
    let _daemon = site.start(&site.config().text("defaults.window", "60s"));
    let asker = Asker::new(&site);
    // From now on the daemon has a connection for its answers.
    asker.ask("lookup", site.push("shop", "").id("nobody"));
    let of = |customer: &str| site.push("shop", "").customer(customer);
    site.client.publish_all((0..3).map(|n| of("a").id(&format!("a{n}"))));
    site.client.publish(&of("a").id("a-later").delay(60_000));
    site.client.publish(&of("a").delay(super::FAR));
    site.client.publish_all((0..2).map(|n| of("b").id(&format!("b{n}"))));
    // The cancel does not apply to what its producer publishes after it.
    assert_eq!(asker.ask("cancel", of("a")), json!({"result": "cancelled", "count": 5}));
    site.client.publish(&of("a").id("after"));
    assert_eq!(asker.ask("flush", of("b")), json!({"result": "flushed", "count": 2}));
    let batch = inbox.batch();
    assert_eq!(batch.ids(), ["b0", "b1"]);
    assert_eq!(batch.message.text("x-closed-by").as_deref(), Some("flush"));
    assert_eq!(asker.ask("flush", of("a")), json!({"result": "flushed", "count": 1}));
    assert_eq!(inbox.batch().ids(), ["after"]);
    assert_eq!(asker.ask("flush", of("b")), json!({"result": "flushed", "count": 0}));
    assert_eq!(asker.ask("cancel", of("nobody")), json!({"result": "cancelled", "count": 0}));
    inbox.quiet(Duration::from_millis(300));
}

#[test]
fn one_after_the_other_means_in_that_order() {
    let site = Site::new("in-order");
    let inbox = site.inbox("shop");
    let daemon = site.start(&site.config().text("defaults.window", "60s"));
    let asker = Asker::new(&site);
    // From now on the daemon has a connection for its answers.
    asker.ask("lookup", site.push("shop", "").id("nobody"));
    let item = |id: &str| site.push("shop", "1").id(id).customer("c");
    let commanded = |kind: &str, n: u32| {
        let push = site.push("shop", "").customer("c");
        asker.command(push, &format!("tidegate.{kind}"), &format!("{kind}{n}"))
    };
    // Published without waits on one channel to one queue, so this is the order of events.
    site.client.publish_all([item("gone"), commanded("cancel", 1), item("first"), commanded("flush", 2)]);
    assert_eq!(inbox.batch().ids(), ["first"]);
    // Published only now, because a cancel also takes items that were flushed but have not left.
    site.client.publish_all([
        item("gone-too"),
        commanded("cancel", 3),
        item("second"),
        commanded("flush", 4),
    ]);
    assert_eq!(inbox.batch().ids(), ["second"]);
    // A cancel of a customer with a batch in flight is answered when that batch has ended, and delays no
    // other command.
    let next = |_| asker.poll(GIVEN_UP).map(|answer| (correlation_of(&answer), answer.json()));
    let mut answers: Vec<_> = (0..4).filter_map(next).collect();
    answers.sort_by(|a, b| a.0.cmp(&b.0));
    let one =
        |result: &str, correlation: &str| (correlation.to_owned(), json!({"result": result, "count": 1}));
    let wanted = [
        one("cancelled", "cancel1"),
        one("cancelled", "cancel3"),
        one("flushed", "flush2"),
        one("flushed", "flush4"),
    ];
    if daemon.log().contains(NOT_SENT) {
        assert!(answers.iter().all(|answer| wanted.contains(answer)), "{answers:?}");
    } else {
        assert_eq!(answers, wanted);
    }
    inbox.quiet(Duration::from_millis(200));
}

#[test]
fn reschedule_pause_and_resume() {
    let site = Site::new("moved");
    let inbox = site.inbox("shop");
    let daemon = site.start(&site.config());
    let asker = Asker::new(&site);
    let about = |id: &str| site.push("shop", "").id(id);
    // From now on the daemon has a connection for its answers.
    asker.ask("lookup", about("nobody"));
    site.client.publish_all(["1", "2"].map(|id| site.push("shop", "{}").id(id).delay(60_000)));
    let told = asker.ask("reschedule", about("1").delay(0));
    assert_eq!(told["result"], "rescheduled", "{told}");
    assert!(told["before"].as_u64() > told["due"].as_u64(), "{told}");
    let first = inbox.next();
    assert_eq!(first.number("x-due"), told["due"].as_i64());
    wait_for(&daemon, "shop", "1", "sent");
    assert_eq!(asker.ask("reschedule", about("1").delay(0))["result"], "sent");
    assert_eq!(asker.ask("reschedule", about("nobody").delay(0)), json!({"result": "unknown"}));
    let nothing = asker.ask("reschedule", about("2"));
    assert!(nothing["error"].as_str().is_some_and(|text| text.contains("x-delay")), "{nothing}");
    // Until a given time, by a body: items that become due in between wait.
    let body = json!({ "application": "shop", "delay_ms": 15_000 }).to_string();
    let pause = site.push("shop", body).content_type("application/vnd.tidegate+json");
    let told = asker.ask("pause", pause);
    assert_eq!((&told["result"], &told["changed"]), (&json!("done"), &json!(true)), "{told}");
    let until = told["until"].as_i64().expect("its end");
    assert_eq!(asker.ask("reschedule", about("2").delay(0))["result"], "rescheduled");
    let (_, shown) = daemon.ask("GET", "/api/v1/applications/shop");
    assert_eq!((&shown["paused"], shown["paused_until"].as_i64()), (&json!(true), Some(until)), "{shown}");
    let second = inbox.next();
    let came = i64::try_from(second.at_us / 1_000).expect("a sane clock");
    assert!(came >= until, "{came} {until}");
    assert_eq!(daemon.ask("GET", "/api/v1/applications/shop").1["paused"], false);
    // Until a command ends it.
    assert_eq!(asker.ask("pause", site.push("shop", "")), json!({"result": "done", "changed": true}));
    assert_eq!(asker.ask("pause", site.push("shop", "").number("x-deliver-at", until))["result"], "rejected");
    site.client.publish(&site.push("shop", "3").id("3"));
    inbox.quiet(Duration::from_millis(300));
    assert_eq!(asker.ask("resume", site.push("shop", "")), json!({"result": "done", "changed": true}));
    assert_eq!(inbox.batch().ids(), ["3"]);
}

/// A pause with an end, set on the command line; the daemon is killed before that. Repeated with a longer pause if a
/// busy machine does not start the daemon again before its end.
#[test]
fn a_pause_with_an_end_outlives_a_kill() {
    assert!([3, 15, 60].into_iter().any(is_shown_after_a_kill), "each pause has ended before it was shown");
}

/// Whether the pause of this many seconds is shown after the kill, before its end.
fn is_shown_after_a_kill(seconds: u64) -> bool {
    let site = Site::new(&format!("pause-end-{seconds}"));
    let inbox = site.inbox("shop");
    let mut daemon = site.start(&site.config());
    let begun = Instant::now();
    let told = daemon.cli(&["pause", "shop", "--for", &format!("{seconds}s")]);
    assert!(told.code == 0 && told.out.starts_with("paused until 20"), "{told:?}");
    let Some(until) = daemon.ask("GET", "/api/v1/applications/shop").1["paused_until"].as_u64() else {
        assert!(begun.elapsed() >= Duration::from_secs(seconds), "it has no end: {told:?}");
        return false;
    };
    site.client.publish(&site.push("shop", "1").id("1"));
    wait_until("it is held", Duration::from_secs(10), || daemon.items("waiting") == 1 || now_ms() >= until);
    daemon.kill9();
    daemon.start_again();
    daemon.wait_ready();
    let told = daemon.cli(&["status"]).out;
    let is_shown = told.contains("paused until 20");
    assert!(is_shown || now_ms() >= until, "{told}");
    let came = inbox.next().at_us / 1_000;
    assert!(came >= until, "{came} {until}");
    assert_eq!(daemon.ask("POST", "/api/v1/applications/shop/pause?until=2020-01-01T00:00:00Z").0, 409);
    assert_eq!(daemon.ask("POST", "/api/v1/applications/shop/pause?until=soon").0, 400);
    is_shown
}

#[test]
fn by_direct_reply_to() {
    let site = Site::new("direct");
    site.application("shop");
    let daemon = site.start(&site.config());
    let asker = Asker::direct(&site);
    site.client.publish(&site.push("shop", "1").id("x").delay(60_000));
    let about = || site.push("shop", "").id("x");
    assert_eq!(asker.ask("lookup", about())["state"], "waiting");
    assert_eq!(asker.ask("cancel", about()), json!({"result": "cancelled", "count": 1}));
    daemon.holds("waiting", 0);
}

/// The answer to this look-up, which is sent again if it has none.
fn answer_to(site: &Site<'_>, asker: &Asker<'_>, push: &Push) -> Received {
    let correlation = push.properties.correlation_id().as_ref().map(ToString::to_string).unwrap_or_default();
    let answer = (0..12).find_map(|_| {
        site.client.publish(push);
        // One that was sent twice may have two answers.
        std::iter::from_fn(|| asker.poll(GIVEN_UP)).find(|answer| correlation_of(answer) == correlation)
    });
    answer.expect("an answer")
}

#[test]
fn the_form_of_an_answer() {
    let site = Site::new("form");
    site.application("shop");
    let _daemon = site.start(&site.config());
    let asker = Asker::new(&site);
    // From now on the daemon has a connection for its answers.
    asker.ask("lookup", site.push("shop", "").id("x"));
    let odd = "ünïcode / \"quoted\" \u{1}";
    let push = asker.command(site.push("shop", "").id("x"), "tidegate.lookup", odd);
    let answer = answer_to(&site, &asker, &push);
    assert_eq!((answer.exchange.as_str(), correlation_of(&answer).as_str()), ("", odd));
    let content_type = answer.properties.content_type().as_ref().map(|t| t.as_str());
    assert_eq!(content_type, Some("application/json"));
    // Without a correlation id the answer has none either.
    let mut push = site.push("shop", "").id("x").kind("tidegate.lookup");
    push.properties = push.properties.with_reply_to(answer.key.as_str().into());
    let answer = answer_to(&site, &asker, &push);
    assert_eq!((correlation_of(&answer), &answer.json()["state"]), (String::new(), &json!("unknown")));
}

#[test]
fn an_envelope_may_name_what_is_meant() {
    let site = Site::new("envelope");
    site.application("shop");
    let _daemon = site.start(&site.config());
    let asker = Asker::new(&site);
    site.client.publish(&site.push("shop", "1").id("x").customer("c").delay(60_000));
    let named = |body: Value| {
        // Like client libraries that give every message an id.
        site.push("elsewhere", body.to_string()).content_type("application/vnd.tidegate+json").id("library")
    };
    let found = asker.ask("lookup", named(json!({"application": "shop", "id": "x"})));
    assert_eq!((&found["state"], &found["customer"]), (&json!("waiting"), &json!("c")), "{found}");
    let cancelled = asker.ask("cancel", named(json!({"application": "shop", "customer": "c"})));
    assert_eq!(cancelled, json!({"result": "cancelled", "count": 1}));
}

#[test]
fn a_malformed_command_is_answered_and_dead() {
    let site = Site::new("malformed-command");
    site.application("shop");
    let daemon = site.start(&site.config());
    let dead = site.dead_inbox();
    let asker = Asker::new(&site);
    let cases = [
        ("cancel", site.push("shop", "")),
        ("lookup", site.push("shop", "").customer("c")),
        ("flush", site.push("shop", "").id("x")),
        ("cancel", site.push("", "").id("x")),
        ("dance", site.push("shop", "").id("x")),
    ];
    for (n, (kind, push)) in cases.into_iter().enumerate() {
        let answer = asker.ask(kind, push);
        assert_eq!(answer["result"], "rejected", "case {n}: {answer}");
        let error = answer["error"].as_str().expect("a sentence").to_owned();
        let letter = dead.next();
        assert_eq!(letter.text("x-tidegate-reason").as_deref(), Some("invalid"), "case {n}");
        assert_eq!(letter.text("x-tidegate-error"), Some(error), "case {n}");
    }
    wait_until("the dead letters are confirmed", Duration::from_secs(10), || {
        daemon.state()["totals"]["dead_confirmed"] == 5
    });
    site.lies(&site.ingest_queue(), 0);
}

#[test]
fn without_reply_to_it_is_done_all_the_same() {
    let site = Site::new("no-reply-to");
    let inbox = site.inbox("shop");
    let daemon = site.start(&site.config().text("defaults.window", "60s"));
    site.client.publish_all([
        site.push("shop", "1").id("x").delay(60_000),
        site.push("shop", "1").id("y").customer("c"),
        site.push("shop", "").id("x").kind("tidegate.cancel"),
        site.push("shop", "").id("x").kind("tidegate.lookup"),
        site.push("shop", "").customer("c").kind("tidegate.flush"),
        site.push("shop", "").kind("tidegate.cancel").id("never-seen"),
    ]);
    assert_eq!(inbox.batch().ids(), ["y"]);
    wait_for(&daemon, "shop", "x", "cancelled");
    site.lies(&site.dead(), 0);
}

#[test]
fn an_answer_that_nobody_waits_for_holds_nobody_up() {
    let Some(node) = Node::controlled("an_answer_that_nobody_waits_for") else { return };
    let site = Site::on(node, "no-queue");
    let inbox = site.inbox("shop");
    let _daemon = site.start(&site.config());
    let asker = Asker::new(&site);
    for n in 0..20 {
        let mut push = site.push("shop", "").id(&format!("{n}")).kind("tidegate.lookup");
        push.properties = push.properties.with_reply_to("a queue that is not there".into());
        site.client.publish(&push);
    }
    site.client.publish(&site.push("shop", "1").id("after"));
    assert_eq!(inbox.batch().ids(), ["after"]);
    assert_eq!(asker.ask("lookup", site.push("shop", "").id("nobody"))["state"], "unknown");
    wait_until("all are acked", Duration::from_secs(10), || node.messages(&site.ingest_queue()) == Some(0));
}
