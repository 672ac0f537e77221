//! Hostile messages, in tables. After each table the same process handles a normal request.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use tidegate_harness::lapin::types::{AMQPValue, ByteArray, DecimalValue, FieldArray, FieldTable};
use tidegate_harness::{
    external_uri, now_ms, skip, text, wait_until, Inbox, Push, Raw, RawProperties, Received, Site, Verdict,
};

/// The end of a message.
#[derive(Debug)]
enum End {
    Delivered,
    /// Reason and error sentence.
    Dead(String, String),
}

/// Receives messages until the end of every id is known.
fn ends(inboxes: &[&Inbox], dead: &Inbox, ids: &BTreeSet<String>, limit: Duration) -> BTreeMap<String, End> {
    let mut ends = BTreeMap::new();
    let until = Instant::now() + limit;
    while ids.iter().any(|id| !ends.contains_key(id)) {
        let missing: Vec<_> = ids.iter().filter(|id| !ends.contains_key(*id)).collect();
        assert!(Instant::now() < until, "neither delivered nor dead: {missing:?}");
        for inbox in inboxes {
            while let Some(received) = inbox.poll(Duration::from_millis(20)) {
                for item in received.batch().items {
                    ends.insert(item.id, End::Delivered);
                }
            }
        }
        while let Some(letter) = dead.poll(Duration::from_millis(20)) {
            ends.insert(letter.id(), died(&letter));
        }
    }
    ends
}

fn died(letter: &Received) -> End {
    let reason = letter.text("x-tidegate-reason").expect("a reason");
    let sentence = letter.text("x-tidegate-error").expect("a sentence");
    assert!(
        !sentence.is_empty() && sentence.len() <= 512 && !sentence.contains(char::is_control),
        "{sentence:?}"
    );
    End::Dead(reason, sentence)
}

/// Values of every type that the broker forwards.
fn values() -> Vec<(&'static str, AMQPValue)> {
    let mut table = FieldTable::default();
    table.insert("inner".into(), text("value"));
    let array = FieldArray::from(vec![text("one"), AMQPValue::Boolean(true)]);
    vec![
        ("true", AMQPValue::Boolean(true)),
        ("i8", AMQPValue::ShortShortInt(-128)),
        ("i16", AMQPValue::ShortInt(i16::MIN)),
        ("i32", AMQPValue::LongInt(i32::MIN)),
        ("i64-most", AMQPValue::LongLongInt(i64::MAX)),
        ("i64-least", AMQPValue::LongLongInt(i64::MIN)),
        ("f32", AMQPValue::Float(1.5)),
        ("f64-most", AMQPValue::Double(f64::MAX)),
        ("f64-least", AMQPValue::Double(-1e300)),
        ("decimal", AMQPValue::DecimalValue(DecimalValue { scale: 255, value: u32::MAX })),
        ("text", text("no number, no time, no rule")),
        ("digits", text(&"9".repeat(400))),
        ("empty", text("")),
        ("bytes", AMQPValue::ByteArray(ByteArray::from(&[0xff, 0xfe, 0][..]))),
        ("latin-1", AMQPValue::LongString(b"caf\xe9".to_vec().into())),
        ("nul", text("a\0b")),
        ("long", text(&"x".repeat(60_000))),
        ("timestamp", AMQPValue::Timestamp(u64::MAX >> 1)),
        ("array", AMQPValue::FieldArray(array)),
        ("table", AMQPValue::FieldTable(table)),
        ("void", AMQPValue::Void),
    ]
}

/// Without the headers that name an application: an integer in them would name an application without a
/// queue.
const HEADERS: [&str; 7] = [
    "x-customer",
    "x-deliver-at",
    "x-delay",
    "x-opt-delivery-time",
    "x-opt-delivery-delay",
    "x-deliver-before",
    "x-on-duplicate",
];

fn good(site: &Site<'_>, inbox: &Inbox, id: &str) {
    assert_eq!(site.client.publish(&site.push("shop", "{}").id(id)), Verdict::Taken);
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let received = inbox.poll(Duration::from_secs(1));
        if received.is_some_and(|m| m.batch().items.iter().any(|item| item.id == id)) {
            return;
        }
        assert!(Instant::now() < until, "`{id}` did not go through");
    }
}

#[test]
fn every_known_header_with_every_wrong_type() {
    let site = Site::new("types");
    let inbox = site.inbox("shop");
    let mut daemon = site.start(&site.config());
    let pid = daemon.pid();
    let dead = site.dead_inbox();
    let mut wanted = BTreeSet::new();
    for name in HEADERS.into_iter().chain(["x-application"]) {
        for (kind, value) in values() {
            let numeric = kind.starts_with('i') || kind == "nul" || kind == "text";
            if name == "x-application" && numeric {
                continue;
            }
            let id = format!("{name} {kind}");
            let push = site.push("shop", "{}").id(&id).header(name, value);
            assert_eq!(site.client.publish(&push), Verdict::Taken);
            wanted.insert(id);
        }
    }
    let ends = ends(&[&inbox], &dead, &wanted, Duration::from_secs(60));
    let (mut delivered, mut refused) = (0, 0);
    for (id, end) in &ends {
        let (name, kind) = id.split_once(' ').expect("our id");
        match end {
            End::Delivered => {
                let must = kind == "table" || kind == "array" || kind == "true" || kind == "long";
                assert!(!must, "{id} was taken");
                delivered += 1;
            }
            End::Dead(reason, sentence) => {
                // A time in the past is valid, but an expiry in the past ends the item as `expired`.
                assert!(
                    reason == "invalid" || (reason == "expired" && name == "x-deliver-before"),
                    "{id}: {reason}"
                );
                let field = name.trim_start_matches("x-opt-");
                assert!(sentence.contains(field) || reason == "expired", "{id}: {sentence}");
                refused += 1;
            }
        }
    }
    assert!(refused >= 8 * 5 && delivered >= 8, "{refused} refused, {delivered} delivered");
    good(&site, &inbox, "after");
    assert!(daemon.running() && daemon.pid() == pid, "the same process");
}

#[test]
fn names_and_ids_at_and_beyond_their_limits() {
    let site = Site::new("limits");
    let (inbox, widest) = (site.inbox("shop"), "ä".repeat(100));
    let wide = site.inbox(&widest);
    let mut daemon = site.start(&site.config());
    let pid = daemon.pid();
    let dead = site.dead_inbox();
    let id_of = |c: &str| c.repeat(255 / c.len());
    let mut cases: Vec<(Push, Option<&str>)> = vec![
        (site.push("shop", "1").id(&id_of("i")), None),
        (site.push("shop", "2").id(&id_of("ü")), None),
        (site.push("shop", "3").id("' \" \\ / %2f <b> {} \u{202e}"), None),
        (site.push("shop", "4").id("customer-200").customer(&widest), None),
        (site.push("shop", "5").id("customer-202").customer(&"ä".repeat(101)), Some("x-customer")),
        (site.push("shop", "6").id("application-200").with("x-application", &widest), None),
        (
            site.push("shop", "7").id("application-201").with("x-application", &"a".repeat(201)),
            Some("x-application"),
        ),
        (site.push(&"k".repeat(201), "8").id("routing-key-201"), Some("routing key")),
        (site.push("", "9").id("no-application"), Some("application")),
        (site.push("shop", "10").id("far").delay(i64::MAX), Some("x-delay")),
        (site.push("shop", "11").id("negative").delay(-1), None),
        (site.push("shop", "12").id("kind").kind("tidegate."), Some("type")),
    ];
    let command = |kind: &str, id: &str, body: &str| {
        site.push("shop", body).kind(kind).id(id).content_type("application/vnd.tidegate+json")
    };
    cases.push((command("tidegate.cancel", "command-array", "[{}]"), Some("body")));
    cases.push((command("tidegate.cancel", "command-key", r#"{"payload":1}"#), Some("body")));
    cases.push((command("tidegate.lookup", "command-number", r#"{"id":1e999}"#), Some("id")));
    cases.push((command("tidegate.flush", "flush-nobody", "{}"), Some("customer")));
    let wanted = cases.iter().map(|(push, _)| id(push)).collect();
    for (push, _) in &cases {
        assert_eq!(site.client.publish(push), Verdict::Taken);
    }
    let ends = ends(&[&inbox, &wide], &dead, &wanted, Duration::from_secs(60));
    for (push, field) in &cases {
        match (&ends[&id(push)], field) {
            (End::Delivered, None) => {}
            (End::Dead(reason, sentence), Some(field)) => {
                assert!(
                    reason == "invalid" && sentence.contains(field),
                    "{}: {reason}, {sentence}",
                    id(push)
                );
            }
            (end, expected) => panic!("{}: {end:?}, but {expected:?}", id(push)),
        }
    }
    good(&site, &inbox, "after");
    assert!(daemon.running() && daemon.pid() == pid, "the same process");
}

fn id(push: &Push) -> String {
    push.properties.message_id().as_ref().map(ToString::to_string).unwrap_or_default()
}

#[test]
fn hostile_envelopes() {
    let site = Site::new("envelopes");
    let inbox = site.inbox("shop");
    let mut daemon = site.start(&site.config());
    let pid = daemon.pid();
    let dead = site.dead_inbox();
    let many = |n: usize| {
        let entries: Vec<String> = (0..n).map(|i| format!(r#"{{"id":"m{n}-{i}","payload":{i}}}"#)).collect();
        format!("[{}]", entries.join(","))
    };
    let deep = |n: usize| format!(r#"{{"payload":{}{}}}"#, "[".repeat(n), "]".repeat(n));
    let now = now_ms();
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        ("objects", r#"{"payload":"#.repeat(100_000).into_bytes(), ""),
        ("too-many", many(10_001).into_bytes(), "10000"),
        ("cut", many(100).as_bytes()[..500].to_vec(), ""),
        ("huge-number", br#"{"delay_ms":1e400,"payload":1}"#.to_vec(), "delay_ms"),
        ("large-number", br#"{"delay_ms":99999999999999999999999999,"payload":1}"#.to_vec(), "delay_ms"),
        (
            "both",
            format!(r#"{{"deliver_at":{},"delay_ms":5,"payload":1}}"#, now + 90_000).into_bytes(),
            "delay_ms",
        ),
        ("twice", br#"{"id":"a","id":"b","payload":1}"#.to_vec(), "id"),
        ("surrogate", br#"{"id":"\ud800","payload":1}"#.to_vec(), ""),
        ("latin-1", b"{\"payload\":\"caf\xe9\"}".to_vec(), "UTF-8"),
        ("unknown", br#"{"payloud":1}"#.to_vec(), "payloud"),
        ("base64", br#"{"payload_base64":"not base64!"}"#.to_vec(), "payload_base64"),
        ("second", br#"[{"payload":1},{"payload":1,"customer":[]}]"#.to_vec(), "customer"),
        ("nothing", Vec::new(), ""),
        ("empty-array", b"[]".to_vec(), ""),
    ];
    for (name, body, _) in &cases {
        let push = site.push("shop", body.clone()).id(name).content_type("application/vnd.tidegate+json");
        assert_eq!(site.client.publish(&push), Verdict::Taken);
    }
    let wanted = cases.iter().map(|(name, _, _)| (*name).to_owned()).collect();
    let ends = ends(&[&inbox], &dead, &wanted, Duration::from_secs(60));
    let mut wrong = Vec::new();
    for (name, body, word) in &cases {
        match &ends[*name] {
            End::Dead(reason, sentence)
                if (reason == "invalid" || reason == "too_large") && sentence.contains(word) => {}
            end @ (End::Delivered | End::Dead(..)) => {
                wrong.push(format!("{name} of {} bytes: {end:?}", body.len()))
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // A payload nested too deeply for JSON parsers is delivered in base64.
    let push = site.push("shop", deep(500_000)).id("deep").content_type("application/vnd.tidegate+json");
    assert_eq!(site.client.publish(&push), Verdict::Taken);
    let item = inbox.batch().items.remove(0);
    assert!(item.payload.is_none() && item.base64.is_some_and(|text| text.len() > 1_000_000));
    // The maximum number of entries.
    let push = site.push("shop", many(10_000)).id("most").content_type("application/vnd.tidegate+json");
    assert_eq!(site.client.publish(&push), Verdict::Taken);
    let ids: BTreeSet<_> =
        inbox.items(10_000, Duration::from_secs(30)).into_iter().map(|item| item.id).collect();
    assert_eq!(ids.len(), 10_000);
    good(&site, &inbox, "after");
    assert!(daemon.running() && daemon.pid() == pid, "the same process");
}

#[test]
fn answers_to_hostile_addresses_harm_nobody() {
    let site = Site::new("reply-to");
    let inbox = site.inbox("shop");
    let mut daemon = site.start(&site.config());
    let pid = daemon.pid();
    let addresses = [
        "nobody".to_owned(),
        "amq.rabbitmq.reply-to".to_owned(),
        "amq.rabbitmq.reply-to.g1h2AAA".to_owned(),
        site.ingest_queue(),
        site.dead(),
        "x".repeat(255),
        "\u{1}\n' OR 1".to_owned(),
    ];
    for address in &addresses {
        for kind in ["tidegate.lookup", "tidegate.cancel", "tidegate.dance", "tidegate.flush"] {
            let mut push = site.push("shop", "").kind(kind).id("q").customer("c");
            let correlation = "z".repeat(255);
            push.properties = push
                .properties
                .with_reply_to(address.as_str().into())
                .with_correlation_id(correlation.into());
            // The broker itself refuses some of these.
            if site.client.try_publish(&push).is_err() {
                break;
            }
        }
    }
    let client = tidegate_harness::Client::connect(site.node.uri());
    assert_eq!(client.publish(&site.push("shop", "{}").id("after")), Verdict::Taken);
    assert_eq!(inbox.batch().ids(), ["after"]);
    wait_until("everything is settled", Duration::from_secs(20), || {
        client.depth(&site.ingest_queue()) == Some(0) && daemon.items("waiting") == 0
    });
    assert!(daemon.running() && daemon.pid() == pid, "the same process");
}

/// A header entry with this name and a long string of these bytes.
fn entry(name: &[u8], value: &[u8]) -> Vec<u8> {
    let length = u32::try_from(value.len()).expect("a short value").to_be_bytes();
    let short = [u8::try_from(name.len()).expect("a short name")];
    [&short, name, b"S", &length, value].concat()
}

#[test]
fn what_the_client_library_cannot_read_is_dead_and_the_others_flow() {
    let site = Site::new("not-utf-8");
    let inbox = site.inbox("shop");
    let mut daemon = site.start(&site.config());
    if external_uri().is_none() {
        // The daemon's queue allows fifty deliveries, each of which would cost a connection here.
        let pattern = format!("^{}$", site.ingest_queue().replace('.', "\\."));
        let few = r#"{"delivery-limit":15}"#;
        site.node.ctl(&["set_policy", "few-returns", &pattern, few, "--apply-to", "queues"]);
    }
    let mut raw = Raw::connect(site.node);
    let persistent = || RawProperties::default();
    // Header values may be any bytes; names and short strings must be UTF-8.
    let value = persistent().headers(&entry(b"x-note", b"caf\xe9")).persistent().message_id(b"value");
    raw.publish(&site.ingest(), b"shop", &value, b"{}");
    assert_eq!(inbox.batch().ids(), ["value"]);
    let name = persistent().headers(&entry(b"caf\xe9", b"x")).persistent().message_id(b"name");
    let kind = persistent().persistent().message_id(b"kind").kind(b"\xff");
    for properties in [&name, &kind] {
        raw.publish(&site.ingest(), b"shop", properties, b"{}");
    }
    let limit = Duration::from_secs(180);
    good_in(&site, &inbox, "between", limit);
    // Each is in the dead-letter queue, or was delivered after all.
    let mut delivered = 0;
    wait_until("all have ended", limit, || {
        delivered += inbox.poll(Duration::from_millis(20)).map_or(0, |m| m.batch().items.len());
        delivered + site.client.depth(&site.dead()).unwrap_or(0) as usize >= 2
    });
    good_in(&site, &inbox, "after", Duration::from_secs(60));
    assert!(daemon.running());
    site.lies(&site.ingest_queue(), 0);
}

fn good_in(site: &Site<'_>, inbox: &Inbox, id: &str, limit: Duration) {
    assert_eq!(site.client.publish(&site.push("shop", "{}").id(id)), Verdict::Taken);
    let until = Instant::now() + limit;
    while Instant::now() < until {
        let received = inbox.poll(Duration::from_secs(1));
        if received.is_some_and(|m| m.batch().items.iter().any(|item| item.id == id)) {
            return;
        }
    }
    panic!("`{id}` did not go through within {limit:?}");
}

/// RabbitMQ converts a message that goes into a stream, and from some release on its channel crashes over such a header.
/// It ends the connection each time.
/// Excluded: one message that keeps all applications in a loop of lost connections and repeats; an attempt that counts;
/// an application that does not go on once the message is cancelled.
/// Judges promise 6.
#[test]
fn a_message_over_which_the_broker_crashes_stops_its_application_alone() {
    let site = Site::new("crashing");
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), text("stream"));
    site.application_with("log", arguments);
    let shop = site.inbox("shop");
    let config = site
        .config()
        .text("applications.log.format", "passthrough")
        .set("applications.log.retry", r#"{ min = "1s", max = "2s", attempts = 2 }"#);
    let daemon = site.start(&config);
    let poison = site.push("log", "{}").id("poison").header("x-amqp-1.0-properties", text("x"));
    site.client.publish(&poison);
    let told = || daemon.ask("GET", "/api/v1/items/log/poison").1;
    wait_until("its application is parked, or it is taken", Duration::from_secs(60), || {
        ["parked", "sent"].iter().any(|state| told()["state"] == *state)
    });
    if told()["state"] == "sent" {
        return skip("this RabbitMQ does not crash over such a message");
    }
    let crash = || daemon.log().lines().filter(|line| line.contains("541") && line.contains("log")).count();
    assert!(crash() > 0, "{}", daemon.log_tail());
    for n in 0..30 {
        let id = format!("n{n}");
        site.client.publish(&site.push("shop", "{}").id(&id));
        assert_eq!(shop.batch().ids(), [id]);
    }
    let poisoned = told();
    assert_eq!(poisoned["attempts"], 0, "a lost connection is no attempt: {poisoned}");
    wait_until("it is cancelled", Duration::from_secs(60), || {
        daemon.cli(&["cancel", "log", "poison"]).code == 0
    });
    site.client.publish(&site.push("log", "{}").id("sound"));
    wait_until("the application goes on", Duration::from_secs(60), || {
        daemon.ask("GET", "/api/v1/items/log/sound").1["state"] == "sent"
    });
}
