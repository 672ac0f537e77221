//! Redelivery: consumers reject a message or publish it again, with `redeliver` set.

use crate::letters::{changed, done};
use serde_json::json;
use std::time::Duration;
use tidegate_harness::lapin::types::FieldTable;
use tidegate_harness::{
    now_ms, text, wait_until, Client, Config, Daemon, Inbox, Node, Push, Received, Site, Verdict,
};

const MIN_MS: i64 = 300;
/// Pause before the first retry, the second, and so on.
const PAUSES_MS: [i64; 4] = [500, 1_000, 2_000, 2_000];

fn config(site: &Site<'_>, format: &str) -> Config {
    let redeliver = r#"{ min = "500ms", max = "2s", attempts = 4 }"#;
    site.config().text("defaults.format", format).set("defaults.redeliver", redeliver)
}

/// The queue of an application whose consumer rejects every message, so that each goes back to the ingest
/// exchange.
fn rejecting(site: &Site<'_>, application: &str) -> Inbox {
    let mut arguments = FieldTable::default();
    arguments.insert("x-dead-letter-exchange".into(), text(&site.ingest()));
    site.application_with(application, arguments);
    site.client.consume_and_reject(&site.queue(application))
}

fn is_unchanged(before: &Received, next: &Received, number: usize) {
    assert_eq!(next.number("x-retry"), Some(number as i64));
    assert_eq!((next.id(), &next.body), (before.id(), &before.body), "try {number}");
}

/// Panics unless `next` is retry number `number`, after `before`: not early, and unchanged.
fn check_try(before: &Received, next: &Received, number: usize) {
    next.is_not_early();
    is_unchanged(before, next, number);
    let came = i64::try_from(before.at_us / 1_000).expect("a sane clock");
    let due = next.number("x-due").expect("x-due");
    assert!(due >= came + PAUSES_MS[number - 1], "try {number}: {due}, {came}");
    for name in ["x-death", "x-first-death-queue", "x-last-death-queue"] {
        assert_eq!(next.header(name), None, "try {number}");
    }
    let headers = |of: &Received| of.properties.headers().as_ref().map_or(0, |headers| headers.inner().len());
    assert!(headers(next) <= headers(before) + 1, "headers do not grow");
}

/// The remaining dead letter, after its reason and the counters are checked.
fn letter(site: &Site<'_>, daemon: &Daemon) -> Received {
    let letter = site.dead_inbox().next();
    assert_eq!(letter.text("x-tidegate-reason").as_deref(), Some("attempts"));
    wait_until("it is counted", Duration::from_secs(10), || daemon.state()["totals"]["dead_confirmed"] == 1);
    assert_eq!(daemon.state()["totals"]["tries_taken"], 4);
    letter
}

/// An item whose consumer rejects each try.
fn tried(site: &Site<'_>, id: Option<&str>) -> Push {
    let push = site.push("work", "try").content_type("text/plain").customer("anna").delay(50);
    id.map_or(push.clone(), |id| push.id(id))
}

/// Waits until the item waits for this retry, durably. Returns when it is due, UTC ms.
fn waits(daemon: &Daemon, id: &str, number: usize) -> u64 {
    let path = format!("/api/v1/items/work/{id}");
    let mut due = None;
    wait_until("it waits again, durably", Duration::from_secs(10), || {
        let told = daemon.ask("GET", &path).1;
        due = told["due"].as_u64();
        told["state"] == "waiting" && told["retry"] == number
    });
    due.expect("a due")
}

fn due_now(daemon: &Daemon, id: &str) {
    let moved = daemon.cli(&["reschedule", "work", id, "--delay", "0s"]);
    assert_eq!(moved.code, 0, "{}", moved.err);
}

/// Retries until the item is dead-lettered.
fn until_it_is_dead(format: &str, id: Option<&str>) {
    let site = Site::new(&format!("again-{format}-{}", id.is_some()));
    let inbox = rejecting(&site, "work");
    let daemon = site.start(&config(&site, format));
    assert_eq!(site.client.publish(&tried(&site, id)), Verdict::Taken);
    let first = inbox.next();
    assert_eq!(first.number("x-retry"), None);
    let mut before = first.clone();
    for number in 1..=PAUSES_MS.len() {
        let next = inbox.next();
        check_try(&before, &next, number);
        if format != "passthrough" {
            assert_eq!(next.text("x-batch"), first.text("x-batch"), "a batch is the same batch");
        }
        before = next;
    }
    is_given_up(&site, &first, PAUSES_MS.len());
    inbox.quiet(Duration::from_millis(1_500));
    if let Some(id) = id.filter(|_| format == "passthrough") {
        let (_, told) = daemon.ask("GET", &format!("/api/v1/items/work/{id}"));
        assert_eq!((&told["state"], &told["reason"]), (&json!("dead"), &json!("attempts")), "{told}");
    }
}

/// What has been tried so often is a dead letter.
fn is_given_up(site: &Site<'_>, first: &Received, tries: usize) {
    let letter = site.dead_inbox().next();
    assert_eq!(letter.text("x-tidegate-reason").as_deref(), Some("attempts"));
    let error = letter.text("x-tidegate-error").unwrap_or_default();
    let wanted = format!("given up after {tries} more tries of its consumer (redeliver.attempts)");
    assert!(error.starts_with(&wanted), "{error}");
    assert_eq!((letter.id(), &letter.body, letter.key.as_str()), (first.id(), &first.body, "work"));
}

/// The same with a kill of the daemon before each try. The pauses are so long that no try precedes its kill,
/// and a command ends them.
fn until_it_is_dead_over_kills(format: &str, id: Option<&str>) {
    const HOUR_MS: u64 = 3_600_000;
    const TRIES: usize = 2;
    let site = Site::new(&format!("again-kill-{format}-{}", id.is_some()));
    let inbox = rejecting(&site, "work");
    let redeliver = format!(r#"{{ min = "1h", max = "1h", attempts = {TRIES} }}"#);
    let mut daemon = site.start(&config(&site, format).set("defaults.redeliver", &redeliver));
    assert_eq!(site.client.publish(&tried(&site, id)), Verdict::Taken);
    let first = inbox.next();
    assert_eq!(first.number("x-retry"), None);
    let mut before = first.clone();
    for number in 1..=TRIES {
        let due = waits(&daemon, &first.id(), number);
        assert!(due >= before.at_us / 1_000 + HOUR_MS, "try {number}: {due}");
        daemon.kill9();
        daemon.start_again();
        daemon.wait_ready();
        assert!(waits(&daemon, &first.id(), number) >= due, "the kill brings no due forward");
        due_now(&daemon, &first.id());
        let next = inbox.next();
        next.is_not_early();
        is_unchanged(&before, &next, number);
        if format != "passthrough" {
            assert_eq!(next.text("x-batch"), first.text("x-batch"), "a batch is the same batch");
        }
        before = next;
    }
    is_given_up(&site, &first, TRIES);
    inbox.quiet(Duration::from_millis(500));
}

#[test]
fn a_message_that_is_rejected_each_time_comes_so_often_and_is_dead() {
    until_it_is_dead("passthrough", Some("m"));
    until_it_is_dead_over_kills("passthrough", Some("m"));
}

#[test]
fn a_message_without_an_id_that_is_rejected_each_time_comes_so_often_and_is_dead() {
    until_it_is_dead("passthrough", None);
    until_it_is_dead_over_kills("passthrough", None);
}

#[test]
fn a_batch_that_is_rejected_each_time_comes_whole_so_often_and_is_dead() {
    until_it_is_dead("json", Some("m"));
    until_it_is_dead_over_kills("json", Some("m"));
}

#[test]
fn batches_of_the_other_formats_come_whole_as_well() {
    for format in ["ndjson", "cloudevents"] {
        until_it_is_dead(format, None);
        until_it_is_dead_over_kills(format, None);
    }
}

/// What a consumer publishes to send a message back: the message unchanged.
fn published(site: &Site<'_>, received: &Received) -> Push {
    let mut push = site.push("work", received.body.clone());
    push.properties = received.properties.clone();
    push.headers = received.properties.headers().clone().expect("headers");
    push
}

#[test]
fn a_time_that_the_consumer_sets_wins_and_its_reason_stands_in_the_letter() {
    let site = Site::new("again-wish");
    let inbox = site.inbox("work");
    let daemon = site.start(&config(&site, "passthrough"));
    site.client.publish(&site.push("work", "try").id("m"));
    let mut last = inbox.next();
    for number in 1..=4 {
        let wish = number == 2;
        let push = published(&site, &last);
        site.client.publish(&if wish { push.delay(1_200) } else { push });
        let next = inbox.next();
        let waited =
            next.number("x-due").expect("x-due") - i64::try_from(last.at_us / 1_000).expect("a sane clock");
        // The second pause is shorter than the delay that the consumer asks for.
        let least = if wish { 1_200 } else { PAUSES_MS[number - 1] };
        assert!(waited >= least, "try {number}: {waited}");
        assert_eq!(next.number("x-retry"), Some(number as i64));
        last = next;
        last.properties = without(&last, "x-delay");
    }
    site.client.publish(&published(&site, &last).with("x-exception", "ValueError: no such order"));
    let letter = letter(&site, &daemon);
    let error = letter.text("x-tidegate-error").unwrap_or_default();
    assert!(error.ends_with("; x-exception: \"ValueError: no such order\""), "{error}");
    assert_eq!(letter.text("x-exception").as_deref(), Some("ValueError: no such order"));
}

/// The properties without one header.
fn without(received: &Received, name: &str) -> tidegate_harness::lapin::BasicProperties {
    let mut headers = FieldTable::default();
    for (known, value) in
        received.properties.headers().iter().flatten().filter(|(known, _)| known.as_str() != name)
    {
        headers.insert(known.clone(), value.clone());
    }
    received.properties.clone().with_headers(headers)
}

#[test]
fn what_waits_for_its_next_try_is_looked_up_listed_moved_and_cancelled_by_its_id() {
    let site = Site::new("again-commands");
    let inbox = rejecting(&site, "work");
    let config = config(&site, "passthrough").set("defaults.redeliver", r#"{ min = "1h", max = "2h" }"#);
    let daemon = site.start(&config);
    site.client.publish_all([site.push("work", "1").id("one"), site.push("work", "2").id("two")]);
    inbox.take(2, Duration::from_secs(10));
    let look = |id: &str| daemon.ask("GET", &format!("/api/v1/items/work/{id}")).1;
    wait_until("both have come back", Duration::from_secs(20), || {
        ["one", "two"].iter().all(|id| look(id)["state"] == "waiting")
    });
    let told = look("one");
    assert_eq!((&told["retry"], &told["attempts"]), (&json!(1), &json!(0)), "{told}");
    let ahead = told["due"].as_i64().expect("a due") - i64::try_from(now_ms()).expect("a sane clock");
    assert!((3_000_000..=3_600_000).contains(&ahead), "{ahead}");
    let (_, listed) = daemon.ask("GET", "/api/v1/items?application=work");
    let retries: Vec<_> =
        listed["items"].as_array().expect("items").iter().map(|item| item["retry"].clone()).collect();
    assert_eq!(retries, [json!(1), json!(1)]);
    assert_eq!(
        daemon.ask("DELETE", "/api/v1/items/work/one").1,
        json!({ "result": "cancelled", "count": 1 })
    );
    let moved = daemon.cli(&["reschedule", "work", "two", "--delay", "0s"]);
    assert_eq!(moved.code, 0, "{}", moved.err);
    let next = inbox.next();
    assert_eq!((next.id().as_str(), next.number("x-retry")), ("two", Some(1)));
    inbox.quiet(Duration::from_millis(500));
}

/// A whole batch that comes back has the id of the batch; items sent back one by one keep their own ids.
#[test]
fn of_a_batch_the_whole_is_cancelled_by_the_batchs_id_and_the_rest_of_one_comes_item_by_item() {
    let site = Site::new("again-parts");
    let inbox = rejecting(&site, "work");
    // The window closes by its third item, however long the three take to arrive.
    let config = config(&site, "json").text("defaults.window", "60s").set("defaults.max_items", "3");
    let daemon = site.start(&config.set("defaults.redeliver", r#"{ min = "1h", max = "2h" }"#));
    let push = |id: &str| site.push("work", "{}").content_type("application/json").customer("anna").id(id);
    site.client.publish_all([push("one"), push("two"), push("three")]);
    let batch = inbox.batch();
    assert_eq!(batch.ids(), ["one", "two", "three"]);
    let look = || daemon.ask("GET", &format!("/api/v1/items/work/{}", batch.id)).1;
    wait_until("it is back", Duration::from_secs(20), || look()["state"] == "waiting");
    assert_eq!((&look()["customer"], &look()["retry"]), (&json!("anna"), &json!(1)));
    let path = format!("/api/v1/items/work/{}", batch.id);
    assert_eq!(daemon.ask("DELETE", &path).1, json!({ "result": "cancelled", "count": 1 }));
    // The consumer failed on two of the items.
    let named = batch.message.text("x-batch").expect("x-batch");
    for id in ["one", "three"] {
        site.client.publish(&push(id).with("x-batch", &named).delay(MIN_MS));
    }
    for id in ["one", "three"] {
        let again = inbox.batch();
        assert_eq!((again.ids(), again.message.number("x-retry")), (vec![id], Some(1)), "each leaves alone");
    }
}

#[test]
fn where_tries_are_not_counted_a_batch_is_a_letter_that_says_so_and_is_sent_back_later() {
    let site = Site::new("again-off");
    let inbox = rejecting(&site, "work");
    let mut daemon = site.start(&site.config());
    site.client.publish(&site.push("work", "x").customer("anna").id("one"));
    let batch = inbox.next();
    site.lies(&site.dead(), 1);
    let letters = done(&daemon, "GET", "/api/v1/dead");
    let error = letters["letters"][0]["error"].as_str().expect("a sentence").to_owned();
    assert!(error.contains("a batch came back") && error.contains("redeliver = { min = "), "{error}");
    // With retries configured, a dead letter that is sent back counts as a retry of its batch.
    daemon.term();
    assert!(daemon.exit(Duration::from_secs(20)).success());
    let daemon = site.start(&config(&site, "json"));
    let told = changed(&daemon, "POST", "/api/v1/dead/retry?all=true", None);
    assert_eq!(told["count"], 1, "{told}");
    // It is rejected again, and each of these tries is another one.
    for retry in 1..=3 {
        let again = inbox.next();
        assert_eq!(
            (again.id(), &again.body, again.number("x-retry")),
            (batch.id(), &batch.body, Some(retry))
        );
    }
}

/// A message that a consumer has sent back waits in tidegate and leaves after the broker's restart: no try is
/// lost, and none counts twice.
#[test]
fn a_try_that_waits_outlives_a_kill_of_the_broker() {
    let Some(node) = Node::lent("a_try_that_waits_outlives_a_kill_of_the_broker") else { return };
    let site = Site::on(&node, "again-broker");
    let inbox = rejecting(&site, "work");
    // So long that no try precedes the kill; a command ends the pauses.
    let redeliver = r#"{ min = "1h", max = "1h", attempts = 2 }"#;
    let mut daemon = site.start(&site.config().set("defaults.redeliver", redeliver));
    site.client.publish(&site.push("work", "1").id("a").customer("anna"));
    let first = inbox.next();
    waits(&daemon, &first.id(), 1);
    node.kill9();
    node.start_again();
    daemon.wait_ready();
    let client = Client::connect(node.uri());
    let inbox = client.consume_and_reject(&site.queue("work"));
    let mut tries = Vec::new();
    for number in 1..=2 {
        waits(&daemon, &first.id(), number);
        due_now(&daemon, &first.id());
        while tries.len() < number {
            let next = inbox.next();
            next.is_not_early();
            assert_eq!((next.text("x-batch"), &next.body), (first.text("x-batch"), &first.body));
            // A message that was rejected just before the kill may be delivered once more, unchanged.
            tries.extend(next.number("x-retry"));
        }
    }
    assert_eq!(tries, [1, 2], "no try is lost, and none counts twice");
    wait_until("it is dead after the last", Duration::from_secs(20), || {
        daemon.state()["totals"]["dead_confirmed"] == 1
    });
    inbox.quiet(Duration::from_millis(300));
}
