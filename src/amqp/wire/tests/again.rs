//! Messages that consumers send back: when they are delivered again, how often, and in which form.

use super::batch::{batch, names, out_item};
use super::*;
use crate::dead_letters::RetryTerms;
use crate::{encode, fit, RawLetter};
use std::sync::Arc;
use tidegate_config::{Reading, Redeliver};
use tidegate_types::{BatchItem, Dead, Format};

const SENT_IN: &str = "00ff10a0b0c0d0e0f0112233445566aa";

fn readings() -> Readings {
    let redeliver = Redeliver { min: 10_000, max: 60_000, attempts: 3, ..Redeliver::default() };
    let defaults = Reading { redeliver: Arc::new(redeliver), ..Reading::default() };
    Readings { defaults, ..Readings::default() }
}

fn come(properties: BasicProperties, body: &[u8]) -> RequestBody {
    let incoming =
        Incoming { exchange: "in", routing_key: "orders", properties, body: body.to_vec(), received: NOW };
    read_with(incoming, &LIMITS, &readings(), STORE)
}

fn deaths() -> (&'static str, AMQPValue) {
    ("x-death", AMQPValue::FieldArray(Default::default()))
}

fn sent_in() -> (&'static str, AMQPValue) {
    ("x-batch", text(SENT_IN))
}

fn headers(properties: &BasicProperties) -> Vec<(String, String)> {
    let all = properties.headers().iter().flatten();
    let shown = all.map(|(name, value)| (name.to_string(), crate::fields::show(value)));
    shown.collect()
}

#[test]
fn each_try_waits_twice_as_long_and_the_last_is_told() {
    for (tries, after, over) in [
        (None, 10, false),
        (Some(0), 10, false),
        (Some(1), 20, false),
        (Some(2), 40, false),
        (Some(3), 60, true),
    ] {
        let mut of = vec![sent_in(), deaths(), ("x-delay", number(5))];
        of.extend(tries.map(|tries| ("x-retry", number(tries))));
        let item = item(come(with(&of).with_message_id("m".into()), b"x"));
        assert_eq!(item.at, Some(NOW + after * 1_000), "{tries:?}: the time of its first request is over");
        assert_eq!(u64::from(item.tried.retry), tries.unwrap_or(0).cast_unsigned() + 1);
        assert_eq!(item.over.is_some(), over, "{tries:?}");
    }
    // By its own count it has had all its tries.
    let of = [
        sent_in(),
        ("x-retry", number(3)),
        ("x-error", text("no room")),
        ("x-exception", text("ValueError: 7")),
    ];
    let last = item(come(with(&of), b"x"));
    let Dead { reason, error } = *last.over.expect("it is over");
    assert_eq!(reason, Reason::Attempts);
    assert_eq!(
        &*error,
        "given up after 3 more tries of its consumer (redeliver.attempts); x-exception: \"ValueError: 7\""
    );
}

/// Its headers are its own, whatever the format of its application is, and a broker may have agreed to
/// smaller frames since it was taken.
#[test]
fn a_batch_that_came_back_is_measured_by_its_own_headers() {
    let large = ("h", text(&"x".repeat(20_000)));
    let back = item(come(with(&[sent_in(), deaths(), large]).with_type("tidegate.batch".into()), b"[]"));
    let batch = batch(Format::Json, vec![out_item(1, back)]);
    let mut out = encode(&batch, &names(), STORE, NOW);
    assert!(headers(&out.properties).iter().any(|(name, _)| name == "h"));
    assert!(fit(&mut out, &batch, 131_072).is_ok());
    assert!(fit(&mut out, &batch, 16_384).unwrap_err().contains("a frame of this connection holds 16364"));
}

#[test]
fn a_time_that_the_consumer_sets_wins_and_one_that_the_broker_brings_back_does_not() {
    let due = |of: &[(&str, AMQPValue)]| item(come(with(of), b"x")).at;
    assert_eq!(due(&[sent_in(), ("x-delay", number(500))]), Some(NOW + 500));
    assert_eq!(due(&[sent_in(), ("x-deliver-at", number(NOW as i64 + 9))]), Some(NOW + 9));
    assert_eq!(due(&[sent_in(), ("x-delay", number(500)), deaths()]), Some(NOW + 10_000));
    assert_eq!(
        due(&[sent_in(), ("x-delay", text("soon")), deaths()]),
        Some(NOW + 10_000),
        "whatever it says"
    );
    // A message that names no batch has not been delivered.
    assert_eq!(due(&[("x-delay", number(500)), deaths(), ("x-retry", number(9))]), Some(NOW + 500));
    assert_eq!(item(come(with(&[("x-retry", number(9))]), b"x")).tried.retry, 0);
    // Entries of an envelope: each as if it had come alone.
    let envelope =
        with(&[sent_in(), ("x-retry", number(1))]).with_content_type("application/vnd.tidegate+json".into());
    let entries = items(come(envelope, br#"[{"payload":1,"id":"a"},{"payload":2,"delay_ms":7}]"#));
    let told: Vec<_> = entries.iter().map(|entry| (entry.at, entry.tried.retry)).collect();
    assert_eq!(told, [(Some(NOW + 20_000), 2), (Some(NOW + 7), 2)]);
}

#[test]
fn notes_of_brokers_and_counts_are_not_passed_on_where_tries_are_counted() {
    let of = [
        sent_in(),
        deaths(),
        ("x-first-death-queue", text("work")),
        ("x-retry", number(1)),
        ("tenant", text("blue")),
    ];
    let out = |body: RequestBody, retry: u32| {
        let item = BatchItem { retry, ..out_item(1, item(body)) };
        headers(&encode(&batch(Format::Passthrough, vec![item]), &names(), STORE, NOW).properties)
    };
    let names =
        |headers: Vec<(String, String)>| headers.into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    let counted = out(come(with(&of), b"x"), 2);
    assert!(counted.contains(&("x-retry".into(), "2".into())), "{counted:?}");
    assert_eq!(names(counted), ["tenant", "x-attempt", "x-batch", "x-due", "x-retry"]);
    let as_it_came = out(take(with(&of), b"x"), 0);
    assert_eq!(
        names(as_it_came),
        ["tenant", "x-attempt", "x-batch", "x-death", "x-due", "x-first-death-queue", "x-retry"]
    );
}

/// A batch as it is published, and as it comes back.
fn published() -> (BasicProperties, Vec<u8>) {
    let items = vec![
        out_item(1, item(take(BasicProperties::default(), b"1"))),
        out_item(2, item(take(BasicProperties::default(), b"2"))),
    ];
    let out = encode(&batch(Format::Json, items), &names(), STORE, NOW);
    (out.properties, out.body.to_vec())
}

fn and(properties: &BasicProperties, more: &[(&str, AMQPValue)]) -> BasicProperties {
    let mut headers = properties.headers().clone().unwrap_or_default();
    for (name, value) in more {
        headers.insert((*name).into(), value.clone());
    }
    properties.clone().with_headers(headers)
}

#[test]
fn a_batch_comes_back_whole_and_goes_out_as_it_was_under_its_id() {
    let (properties, body) = published();
    let id = properties.message_id().clone().expect("a batch id").to_string();
    let back = item(come(and(&properties, &[deaths()]), &body));
    assert_eq!((back.identity, back.at, back.tried.retry), (given("orders", &id), Some(NOW + 10_000), 1));
    assert_eq!(
        back.customer.as_deref(),
        properties
            .headers()
            .as_ref()
            .and_then(|h| h.inner().get("x-customer"))
            .and_then(|v| v.as_long_string())
            .map(|text| std::str::from_utf8(text.as_bytes()).expect("UTF-8"))
    );
    for format in [Format::Json, Format::Ndjson, Format::CloudEvents, Format::Passthrough] {
        let again = BatchItem { retry: 1, ..out_item(9, back.clone()) };
        let out = encode(&batch(format, vec![again]), &names(), STORE, NOW + 5);
        assert_eq!((&*out.body, out.id.to_string()), (&*body, id.clone()), "{format:?}");
        let (before, after) = (headers(&properties), headers(&out.properties));
        let is_own =
            |(name, _): &&(String, String)| !matches!(name.as_str(), "x-due" | "x-retry" | "x-attempt");
        assert!(before.iter().filter(is_own).eq(after.iter().filter(is_own)), "{before:?}\n{after:?}");
        assert!(
            after.contains(&("x-retry".into(), "1".into()))
                && after.contains(&("x-batch".into(), format!("\"{id}\"")))
        );
        let kept = |p: &BasicProperties| (p.kind().clone(), p.content_type().clone(), p.message_id().clone());
        assert_eq!(kept(&out.properties), kept(&properties));
        // A batch that has come back once comes back again, as another try; the same try has the same
        // fingerprint.
        let (next, same) = (
            item(come(out.properties.clone(), &body)),
            item(come(and(&out.properties, &[("x-error", text("no"))]), &body)),
        );
        assert_eq!((next.tried.retry, next.identity), (2, back.identity));
        assert_ne!(next.fingerprint, back.fingerprint);
        assert_eq!(next.fingerprint, same.fingerprint);
    }
    // Without its type it is known by its id, where tries are counted.
    let bare = BasicProperties::default()
        .with_message_id(id.as_str().into())
        .with_headers(properties.headers().clone().unwrap_or_default());
    assert!(item(come(bare.clone(), &body)).tried.retry == 1);
    assert_eq!(item(take(bare, &body)).tried.retry, 0);
}

#[test]
fn a_batch_that_cannot_come_back_is_a_dead_letter_and_a_letter_that_is_sent_back_begins_anew() {
    let (properties, body) = published();
    let refused = refusal(take(properties.clone(), &body));
    assert!(refused.contains("redeliver = { min = \"10s\" } in its table of [applications]"), "{refused}");
    let nameless = BasicProperties::default().with_type("tidegate.batch".into());
    assert!(refusal(come(nameless, b"{}")).contains("neither x-batch nor message_id is a batch id"));
    let back = item(come(and(&properties, &[("x-retry", number(3))]), &body));
    let over = back.over.clone().expect("that was the last");
    let mut letter = batch(Format::Json, vec![BatchItem { retry: 0, ..out_item(9, back) }]);
    letter.dead = Some(Arc::new(*over));
    let dead = encode(&letter, &names(), STORE, NOW);
    assert_eq!(&*dead.body, &*body);
    let raw = RawLetter { routing_key: "orders", properties: &dead.properties, body: &dead.body };
    let sent_back = raw.sent_back(&RetryTerms::default(), NOW, "mark").expect("no envelope");
    let anew = item(come(sent_back.clone(), &body));
    assert_eq!((anew.tried.retry, anew.at, anew.over.is_some()), (1, Some(NOW), false));
    // Its consumer rejects it again: the count goes on, although it still has the mark of its way back.
    let mut fingerprints = vec![anew.fingerprint];
    for (tries, after, over) in [(1, 20, false), (2, 40, false), (3, 60, true)] {
        let next = and(&sent_back, &[sent_in(), deaths(), ("x-retry", number(tries))]);
        let next = item(come(next, &body));
        assert_eq!((next.at, next.over.is_some()), (Some(NOW + after * 1_000), over), "after {tries}");
        fingerprints.push(next.fingerprint);
    }
    fingerprints.dedup();
    assert_eq!(fingerprints.len(), 4, "no try is taken for a repeat of the one before");
    assert_eq!(anew.identity, given("orders", properties.message_id().as_ref().expect("an id").as_str()));
    // It may be as large as a batch, which an item may not.
    let large = vec![b'x'; LIMITS.max_body as usize + 1];
    assert_eq!(items(come(properties.clone(), &large)).len(), 1);
    let larger = vec![b'x'; LIMITS.max_body as usize * 4];
    assert_eq!(rejected(come(properties, &larger)).dead.reason, Reason::TooLarge);
}
