//! Items as requests for another daemon: it makes the same items of them, or the request says why not.

use super::random::{bodies, properties};
use super::*;
use crate::message::ENVELOPE;
use crate::properties::{parse_table, Basic};
use crate::{item_id, MovedRequest};
use proptest::prelude::*;
use std::sync::Arc;
use tidegate_config::{Reading, Redeliver};
use tidegate_types::event::Stored;
use tidegate_types::{AssignedId, Content, Key};

/// The item as its store keeps it.
fn stored(item: NewItem) -> Stored {
    let due = item.at.unwrap_or(NOW + 3_000);
    Stored {
        key: Key::own(due, 77),
        due,
        accepted_due: due,
        application: (*item.application).into(),
        customer: item.customer.as_deref().map(Into::into),
        given: item.identity,
        fingerprint: item.fingerprint,
        received: NOW,
        own_time: item.at.is_some(),
        expiry: item.expiry,
        weight: item.weight,
        closed_by: Default::default(),
        attempts: 2,
        last_error: Some("no queue".into()),
        outcome_unknown: true,
        retry: item.tried.retry,
        dead: None,
        content: Some(item.content),
    }
}

fn moved(item: &Stored) -> MovedRequest {
    MovedRequest::of(item, STORE).unwrap()
}

fn check(item: &Stored) -> Result<(), String> {
    moved(item).check(item, &LIMITS, &Readings::default(), NOW + 60_000)
}

/// What the other daemon takes it for.
fn taken(request: &MovedRequest) -> NewItem {
    item(from("tidegate.in", "orders", request.properties.clone(), &request.body))
}

fn header(request: &MovedRequest, name: &str) -> Option<AMQPValue> {
    request.properties.headers().as_ref()?.inner().get(name).cloned()
}

#[test]
fn an_item_with_everything_is_the_same_item_there() {
    let of = [
        ("x-customer", number(42)),
        ("x-delay", number(5_000)),
        ("x-deliver-before", number(NOW as i64 + 9_000)),
        ("x-on-duplicate", text("replace")),
        ("lang", text("de")),
    ];
    let properties = with(&of)
        .with_message_id("m".into())
        .with_content_type("text/plain".into())
        .with_correlation_id("c".into())
        .with_user_id("guest".into())
        .with_expiration("60000".into());
    let item = stored(item(take(properties, b"hello")));
    let request = moved(&item);
    assert_eq!(check(&item), Ok(()));
    let there = taken(&request);
    assert_eq!((&*there.application, there.customer.as_deref()), ("orders", Some("42")));
    assert_eq!((there.at, there.expiry), (Some(NOW + 5_000), Some(NOW + 9_000)));
    assert_eq!((there.identity, there.on_duplicate), (given("orders", "m"), Default::default()));
    assert_eq!(there.content.body, b"hello");
    assert_eq!(header(&request, "x-delay"), None, "a delay would begin anew");
    assert_eq!(header(&request, "lang"), Some(text("de")));
    assert!(crate::is_moved(&request.properties));
    assert_eq!(header(&request, "x-user-id"), Some(text("guest")));
    assert_eq!(request.properties.correlation_id().as_ref().map(|id| id.as_str()), Some("c"));
    assert_eq!((request.properties.delivery_mode(), request.properties.expiration()), (&Some(2), &None));
}

#[test]
fn an_assigned_id_is_kept_and_a_window_is_a_time() {
    let item = stored(item(take(with(&[("x-customer", text("ann"))]), b"1")));
    let request = moved(&item);
    let content = item.content.clone().unwrap();
    let id = item_id(&content, STORE, AssignedId::of(item.key, item.accepted_due));
    assert_eq!(request.properties.message_id().as_ref().map(|id| id.as_str()), Some(&*id));
    assert_eq!(check(&item), Ok(()));
    let there = taken(&request);
    assert_eq!((there.at, there.identity), (Some(NOW + 3_000), given("orders", &id)));
    // Twice is once: the second is equal and says `keep`.
    assert_eq!(taken(&moved(&item)).fingerprint, there.fingerprint);
}

#[test]
fn a_body_that_would_be_taken_for_an_envelope_is_put_into_one() {
    let kind = format!("{ENVELOPE}; charset=utf-8");
    let envelope =
        serde_json::json!({ "content_type": kind, "payload_base64": "WzFd", "id": "m", "customer": "c" });
    let properties = BasicProperties::default().with_content_type(ENVELOPE.into());
    let item = stored(item(take(properties, envelope.to_string().as_bytes())));
    assert_eq!(item.content.as_ref().unwrap().body, b"[1]");
    assert_eq!(check(&item), Ok(()));
    let there = taken(&moved(&item));
    let (basic, _) = Basic::parse(&there.content.properties).unwrap();
    assert_eq!((there.content.body.as_slice(), basic.content_type), (&b"[1]"[..], Some(&*kind)));
}

#[test]
fn what_came_back_keeps_its_time_and_its_number_of_tries() {
    let redeliver = Redeliver { min: 10_000, max: 60_000, attempts: 3, ..Redeliver::default() };
    let defaults = Reading { redeliver: Arc::new(redeliver), ..Reading::default() };
    let readings = Readings { defaults, ..Readings::default() };
    let batch = "00ff10a0b0c0d0e0f0112233445566aa";
    let deaths = ("x-death", AMQPValue::FieldArray(Default::default()));
    let of = [("x-batch", text(batch)), ("x-retry", number(2)), deaths];
    let properties = with(&of).with_message_id("m".into());
    let incoming = |properties, received| Incoming {
        exchange: "tidegate.in",
        routing_key: "orders",
        properties,
        body: b"x".to_vec(),
        received,
    };
    // A daemon that counts tries, and one that keeps the broker's notes.
    for from in [&readings, &Readings::default()] {
        let item = stored(item(read_with(incoming(properties.clone(), NOW), &LIMITS, from, STORE)));
        let request = moved(&item);
        assert_eq!(request.check(&item, &LIMITS, &readings, NOW), Ok(()));
        let there = items(read_with(incoming(request.properties, NOW + 1_000), &LIMITS, &readings, 1));
        assert_eq!(there[0].at, Some(item.due), "neither sooner nor later");
        assert_eq!((there[0].tried.retry, there[0].over.is_some()), (3, false));
    }
}

#[test]
fn a_repeated_step_is_known_though_the_broker_stamps_each_copy() {
    let item = stored(item(take(with(&[("lang", text("de"))]).with_message_id("m".into()), b"x")));
    let prints: Vec<u64> = [1, 2]
        .map(|n| {
            let request = moved(&item);
            let mut headers = request.properties.headers().clone().unwrap();
            headers.insert("timestamp_in_ms".into(), number(NOW as i64 + n));
            headers.insert("x-routed-by".into(), text(&format!("rabbit@{n}")));
            let properties = request.properties.with_headers(headers).with_timestamp(n.cast_unsigned());
            super::item(from("tidegate.in", "orders", properties, &request.body)).fingerprint
        })
        .into();
    assert_eq!(prints[0], prints[1]);
}

#[test]
fn an_expiry_that_a_number_would_turn_into_seconds_is_over_all_the_same() {
    let properties = with(&[("x-deliver-before", text("1970-01-02T00:00:00Z"))]);
    let item = stored(item(take(properties, b"x")));
    assert_eq!((item.expiry, check(&item)), (Some(86_400_000), Ok(())));
    assert!(taken(&moved(&item)).expiry.is_some_and(|expiry| expiry < NOW));
}

#[test]
fn what_would_be_refused_there_says_why() {
    let late = stored(item(take(with(&[("x-delay", number(5 * DAY as i64))]), b"x")));
    let large = stored(item(take(BasicProperties::default(), &[7; 2_000])));
    let small = RequestLimits { max_body: 1_000, max_delay_ms: 2 * DAY, ..LIMITS };
    let refusal = |item: &Stored| moved(item).check(item, &small, &Readings::default(), NOW).unwrap_err();
    assert!(refusal(&late).contains("max_delay"), "{}", refusal(&late));
    assert!(refusal(&large).contains("max_body"), "{}", refusal(&large));
    let lost = Stored { content: None, ..large.clone() };
    assert!(MovedRequest::of(&lost, STORE).is_none());
    let damaged = Content { properties: vec![1], ..Content::default() };
    assert!(MovedRequest::of(&Stored { content: Some(Arc::new(damaged)), ..large }, STORE).is_none());
}

proptest! {
    #[test]
    fn every_accepted_request_can_be_moved(properties in properties(), body in bodies()) {
        let RequestBody::Items(items) = take(properties, &body) else { return Ok(()) };
        for item in items {
            let item = stored(item);
            prop_assert_eq!(check(&item), Ok(()));
            let there = taken(&moved(&item));
            let of = |content: &Content| {
                let (basic, table) = Basic::parse(&content.properties).unwrap();
                let headers: Vec<_> = parse_table(table)
                    .into_iter()
                    .filter(|(name, _)| {
                        !crate::fields::Fields::is_field(name.as_str()) && name.as_str() != "x-tidegate-moved"
                    })
                    .map(|(name, value)| (name.clone(), format!("{value:?}")))
                    .collect();
                let texts = [basic.content_type, basic.content_encoding, basic.kind, basic.correlation_id];
                (texts.map(|text| text.map(str::to_owned)), basic.priority, basic.timestamp, headers)
            };
            prop_assert_eq!(of(&there.content), of(item.content.as_ref().unwrap()));
            prop_assert_eq!(there.content.json, item.content.unwrap().json);
        }
    }
}
