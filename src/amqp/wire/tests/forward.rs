//! Forwards between the queues of one daemon: whatever way a message takes, it means what it would mean in a
//! daemon with one shard.

use super::random::{bodies, properties};
use super::*;
use crate::{home, shared_request, Delivered, Forward, ForwardKey, SharedRequest, Sharing};
use lapin::protocol::basic::{gen_properties, parse_properties};
use lapin::types::FieldArray;
use proptest::prelude::*;
use std::collections::BTreeMap;

const SHARDS: u16 = 4;
const FRAME: u32 = 128 << 10;

fn key() -> ForwardKey {
    ForwardKey::new([7; 32])
}

fn sharing(own: Option<u16>) -> Sharing {
    Sharing { own, count: SHARDS, key: key() }
}

fn read_at(own: Option<u16>, delivered: Delivered) -> SharedRequest {
    shared_request(delivered, &LIMITS, &Readings::default(), STORE, &sharing(own))
}

fn delivered(exchange: &str, key: &str, properties: BasicProperties, body: &[u8]) -> Delivered {
    Delivered {
        exchange: exchange.into(),
        routing_key: key.into(),
        properties,
        body: body.to_vec(),
        redelivered: false,
        received: NOW,
    }
}

/// What arrives at the queue of its home, encoded and decoded as on the way through a broker.
fn arrived(forward: &Forward) -> Delivered {
    let message = forward.message(&key(), 1, FRAME);
    let (mut bytes, _) = gen_properties(&message.properties)(Vec::new().into()).unwrap().into_inner();
    let (_, properties) = parse_properties(&*std::mem::take(&mut bytes)).unwrap();
    delivered("", &format!("ingest.{}", forward.shard), properties, &message.body)
}

/// The body with which `shard` reads its part of a message that came to `first`; also over a further queue.
fn all_bodies(first: Option<u16>, came: Delivered) -> BTreeMap<u16, SharedRequest> {
    let mut read = BTreeMap::new();
    let mut ways = vec![(first, came)];
    while let Some((at, delivered)) = ways.pop() {
        let mut request = read_at(at, delivered);
        for forward in std::mem::take(&mut request.forwards) {
            ways.push((Some(forward.shard), arrived(&forward)));
        }
        match (&request.body, at) {
            (RequestBody::Elsewhere(items), _) if items.is_empty() => {}
            (RequestBody::Elsewhere(items), Some(at)) => {
                let body = RequestBody::Items(items.clone());
                assert!(read.insert(at, SharedRequest { body, ..request }).is_none());
            }
            (_, at) => assert!(read.insert(at.unwrap(), request).is_none(), "one part for each shard"),
        }
    }
    read
}

/// The items of all parts in the order of their places in `whole`.
fn same(whole: RequestBody, parts: BTreeMap<u16, SharedRequest>) {
    match &whole {
        RequestBody::Items(items) => {
            let mut left: BTreeMap<u16, std::vec::IntoIter<NewItem>> = parts
                .into_iter()
                .map(|(shard, part)| match part.body {
                    RequestBody::Items(items) => (shard, items.into_iter()),
                    other @ (RequestBody::Rejected(_)
                    | RequestBody::Command(..)
                    | RequestBody::Elsewhere(_)) => panic!("{other:?}"),
                })
                .collect();
            for item in items {
                let part = left.get_mut(&home(&item.application, SHARDS)).expect("its home has a part");
                assert_eq!(format!("{:?}", part.next().expect("an item")), format!("{item:?}"));
            }
            assert!(left.into_values().all(|mut part| part.next().is_none()), "no item twice");
        }
        RequestBody::Rejected(_) | RequestBody::Command(..) | RequestBody::Elsewhere(_) => {
            let parts: Vec<_> = parts.into_values().collect();
            assert_eq!(parts.len(), 1);
            assert_eq!(format!("{:?}", parts[0].body), format!("{whole:?}"));
        }
    }
}

fn envelope(entries: &[&str]) -> (BasicProperties, Vec<u8>) {
    let properties = with(&[("tenant", text("t"))]).with_message_id("m".into());
    let properties = properties.with_content_type("application/vnd.tidegate+json".into());
    (properties, format!("[ {} ]", entries.join(" , ")).into_bytes())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn any_message_means_the_same_wherever_it_comes_first(
        properties in properties(),
        mode in proptest::option::of(any::<u8>()),
        expiration in proptest::option::of("[0-9]{0,6}"),
        body in bodies(),
        exchange in "[a-z]{0,2}",
        key in "\\PC{0,60}",
        first in proptest::option::of(0..SHARDS),
    ) {
        let mut properties = properties;
        if let Some(mode) = mode { properties = properties.with_delivery_mode(mode); }
        if let Some(text) = expiration { properties = properties.with_expiration(text.as_str().into()); }
        let whole = from(&exchange, &key, properties.clone(), &body);
        same(whole, all_bodies(first, delivered(&exchange, &key, properties, &body)));
    }

    #[test]
    fn any_array_is_divided_and_each_entry_keeps_its_index(
        applications in proptest::collection::vec("[a-e]?", 1..6),
        key in "[a-e]",
        first in proptest::option::of(0..SHARDS),
    ) {
        let entries: Vec<String> = applications.iter().map(|name| match name.as_str() {
            "" => r#"{"payload": "null"}"#.to_owned(),
            name => format!(r#"{{"payload": [1, "]"], "application": "{name}"}}"#),
        }).collect();
        let entries: Vec<&str> = entries.iter().map(String::as_str).collect();
        let (properties, body) = envelope(&entries);
        let whole = from("in", &key, properties.clone(), &body);
        prop_assert!(matches!(&whole, RequestBody::Items(items) if items.len() == entries.len()));
        same(whole, all_bodies(first, delivered("in", &key, properties, &body)));
    }
}

#[test]
fn one_invalid_entry_makes_one_rejection_of_the_whole() {
    let entries = [r#"{"payload":1,"application":"shop"}"#, r#"{"payload":1,"application":"mail"}"#, "null"];
    let (properties, body) = envelope(&entries);
    let whole = from("in", "größe", properties.clone(), &body);
    assert!(matches!(&whole, RequestBody::Rejected(rejected) if rejected.content.body == body));
    same(whole, all_bodies(None, delivered("in", "größe", properties, &body)));
}

#[test]
fn a_shard_keeps_what_nobody_understands_and_the_sharder_passes_it_on() {
    let bad = || delivered("in", "shop", with(&[("x-delay", text("soon"))]), b"x");
    assert_eq!(home("shop", SHARDS), 3);
    let request = read_at(None, bad());
    assert_eq!(request.forwards.iter().map(|forward| forward.shard).collect::<Vec<_>>(), [3]);
    assert!(matches!(read_at(Some(3), bad()).body, RequestBody::Rejected(_)));
    let nameless = || delivered("", "ingest", with(&[]), b"x");
    let request = read_at(None, nameless());
    assert_eq!(request.forwards.iter().map(|forward| forward.shard).collect::<Vec<_>>(), [0]);
    assert!(matches!(read_at(Some(2), nameless()).body, RequestBody::Rejected(_)));
}

#[test]
fn what_a_copy_cannot_carry_comes_back() {
    let cc = AMQPValue::FieldArray(FieldArray::from(vec![text("other")]));
    let own = AMQPValue::FieldTable(table(&[("exchange", text("forged"))]));
    let headers = [("CC", cc.clone()), ("x-tidegate-forward", own.clone()), ("x-delivery-count", number(3))];
    let properties = with(&headers).with_user_id("eve".into()).with_expiration("5000".into());
    let properties = properties.with_delivery_mode(1).with_priority(9).with_message_id("1".into());
    let came = Delivered { redelivered: true, ..delivered("in", "shop", properties, b"x") };
    let request = read_at(None, came);
    let copy = request.forwards[0].message(&key(), 1, FRAME).properties;
    assert_eq!((copy.user_id(), copy.expiration()), (&None, &None));
    assert_eq!((copy.delivery_mode(), copy.priority()), (&Some(2), &Some(9)));
    let names: Vec<&str> = copy.headers().iter().flatten().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["x-tidegate-forward"], "nothing that routes, and no count of another queue");
    let mut back = arrived(&request.forwards[0]);
    back.restore(&key());
    assert_eq!((back.exchange.as_str(), back.routing_key.as_str(), back.redelivered), ("in", "shop", true));
    assert_eq!(back.properties.user_id().as_ref().map(|text| text.as_str()), Some("eve"));
    assert_eq!(back.properties.expiration().as_ref().map(|text| text.as_str()), Some("5000"));
    assert_eq!(*back.properties.delivery_mode(), Some(1));
    let headers = back.properties.headers().clone().unwrap();
    assert_eq!(headers.inner().get("CC"), Some(&cc));
    assert_eq!(headers.inner().get("x-tidegate-forward"), Some(&own), "the producer's own header");
    assert_eq!(headers.inner().len(), 2);
}

#[test]
fn a_second_copy_is_marked_and_proves_itself() {
    let request = read_at(None, delivered("in", "shop", with(&[]).with_message_id("1".into()), b"x"));
    let mut forward = request.forwards[0].clone();
    let first = read_at(Some(3), arrived(&forward));
    let id = forward.message(&key(), 1, FRAME).id;
    assert_eq!(crate::forward_id_of(&forward.message(&key(), 1, FRAME).properties), Some(id));
    assert_ne!(forward.message(&key(), 2, FRAME).id, id, "an equal request");
    forward.repeats();
    assert_ne!(forward.message(&key(), 1, FRAME).id, id);
    let second = read_at(Some(3), arrived(&forward));
    assert_eq!((first.redelivered, second.redelivered), (false, true));
    same(first.body, BTreeMap::from([(3, second)]));
}

#[test]
fn a_forged_table_is_an_ordinary_header() {
    let request = read_at(None, delivered("in", "shop", with(&[]).with_message_id("1".into()), b"x"));
    let good = arrived(&request.forwards[0]);
    let forged = |change: fn(&mut Delivered), key: ForwardKey| {
        let mut message = good.clone();
        change(&mut message);
        let before = message.properties.clone();
        message.restore(&key);
        assert!(message.properties == before && message.exchange.as_str().is_empty());
    };
    let is_restored = |mut message: Delivered| {
        message.restore(&key());
        message.exchange.as_str() == "in"
    };
    assert!(is_restored(good.clone()));
    forged(|_| {}, ForwardKey::new([8; 32]));
    forged(|message| message.body.push(b'y'), key());
    forged(|message| message.properties = message.properties.clone().with_message_id("2".into()), key());
    let altered =
        [("user_id", text("root")), ("key", text("mail")), ("proof", text("short")), ("proof", number(1))];
    for (name, value) in altered {
        let mut message = good.clone();
        let headers = message.properties.headers().clone().unwrap();
        let Some(AMQPValue::FieldTable(table)) = headers.inner().get("x-tidegate-forward").cloned() else {
            panic!("no table")
        };
        let mut table = table;
        table.insert(name.into(), value);
        message.properties = with(&[("x-tidegate-forward", AMQPValue::FieldTable(table))]);
        assert!(!is_restored(message));
    }
}

/// The home has to reject what the forward could not carry, with the sentence of a daemon with one shard.
#[test]
fn headers_that_leave_no_room_for_the_table_are_rejected_at_home() {
    let large = "x".repeat(FRAME as usize - 150);
    let entries =
        [("x-application", text("shop")), ("x-customer", text("ann")), ("large", text(large.as_str()))];
    let Some(whole) = dead_letter_of(from("in", "k", with(&entries), b"{}")) else { panic!("accepted") };
    let request = read_at(None, delivered("in", "k", with(&entries), b"{}"));
    let copy = request.forwards[0].message(&key(), 1, FRAME).properties;
    assert!(super::super::frame::size(&copy) < 1_000);
    let there = dead_letter_of(read_at(Some(3), arrived(&request.forwards[0])).body).unwrap();
    assert_eq!((there.dead.reason, &there.dead.error), (Reason::TooLarge, &whole.dead.error));
    assert_eq!((there.application, there.customer), (Some("shop".into()), Some("ann".into())));
    let mut deep = text("x");
    for _ in 0..70 {
        deep = AMQPValue::FieldArray(FieldArray::from(vec![deep]));
    }
    let request = read_at(None, delivered("in", "shop", with(&[("deep", deep)]), b"{}"));
    let there = dead_letter_of(read_at(Some(3), arrived(&request.forwards[0])).body).unwrap();
    assert_eq!(there.dead.error.as_ref(), "the headers are nested more than 64 levels deep");
}

fn dead_letter_of(body: RequestBody) -> Option<Rejected> {
    match body {
        RequestBody::Rejected(rejected) => Some(*rejected),
        RequestBody::Items(_) | RequestBody::Elsewhere(_) | RequestBody::Command(..) => None,
    }
}

#[test]
fn a_dead_letter_that_died_on_its_way_knows_where_it_came_from() {
    let request = read_at(None, delivered("in", "shop", with(&[]), b"x"));
    let message = request.forwards[0].message(&key(), 1, FRAME);
    let letter =
        crate::RawLetter { routing_key: "ingest.3", properties: &message.properties, body: &message.body };
    assert_eq!(letter.routing_key(), "shop");
    assert_eq!(&*letter.read(false).application, "shop");
    let back = letter.sent_back(&crate::dead_letters::RetryTerms::default(), NOW, "1").unwrap();
    let names: Vec<&str> = back.headers().iter().flatten().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["x-tidegate-retried"], "it is read anew");
}

/// A broker may be configured to write them into every message that is published to it.
#[test]
fn what_a_broker_stamps_on_a_copy_is_not_the_producers() {
    let stamped = [("timestamp_in_ms", number(1)), ("x-routed-by", text("rabbit@a"))];
    for headers in [&stamped[..], &[]] {
        let sent = with(headers).with_message_id("1".into());
        let sent = if headers.is_empty() { sent } else { sent.with_timestamp(7) };
        let whole = from("in", "shop", sent.clone(), b"x");
        let request = read_at(None, delivered("in", "shop", sent, b"x"));
        let mut copy = arrived(&request.forwards[0]);
        let mut table = copy.properties.headers().clone().unwrap();
        table.insert("timestamp_in_ms".into(), number(NOW as i64));
        table.insert("x-routed-by".into(), text("rabbit@b"));
        copy.properties = copy.properties.with_headers(table).with_timestamp(NOW / 1_000);
        same(whole, BTreeMap::from([(3, read_at(Some(3), copy))]));
    }
}

/// A shard may reject its part, or the broker move it after many returns.
#[test]
fn a_part_of_an_array_that_died_is_sent_back_as_it_is() {
    let entries = [r#"{"payload":1,"application":"shop"}"#, r#"{"payload":2,"application":"mail"}"#];
    let (properties, body) = envelope(&entries);
    let request = read_at(None, delivered("in", "k", properties.clone(), &body));
    let part = request.forwards.iter().find(|forward| forward.shard == 2).unwrap().message(&key(), 1, FRAME);
    let letter = crate::RawLetter { routing_key: "ingest.2", properties: &part.properties, body: &part.body };
    let back = letter.sent_back(&crate::dead_letters::RetryTerms::default(), NOW, "1").unwrap();
    let parts = all_bodies(None, delivered("in", "k", back, &part.body));
    let RequestBody::Items(items) = &parts[&2].body else { panic!("{parts:?}") };
    assert_eq!((parts.len(), items.len(), &*items[0].application), (1, 1, "mail"));
    assert_eq!(items[0].identity, given("mail", "m/1"), "the index of the original");
    let nothing = with(&[("x-tidegate-retried", text("1"))]);
    let nothing = nothing.with_content_type("application/vnd.tidegate+json".into());
    assert!(dead_letter_of(from("in", "k", nothing, b"[null]")).is_some());
}

#[test]
fn what_was_left_out_is_told_over_a_further_queue() {
    let large = "x".repeat(FRAME as usize - 150);
    let entries = [("x-application", text("shop")), ("large", text(large.as_str()))];
    let request = read_at(None, delivered("in", "k", with(&entries), b"{}"));
    let again = read_at(None, arrived(&request.forwards[0]));
    let there = dead_letter_of(read_at(Some(3), arrived(&again.forwards[0])).body).unwrap();
    assert_eq!(there.dead.reason, Reason::TooLarge);
}

#[test]
fn a_forward_counts_the_memory_that_it_takes() {
    let large = "x".repeat(60_000);
    let request = read_at(None, delivered("in", "shop", with(&[("large", text(&large))]), &[0; 5_000]));
    let size = request.forwards[0].size();
    assert!((2 * 60_000 + 5_000..130_000).contains(&size), "{size}");
}

/// Excluded: a binding that is made or taken away for a request that says nothing about it.
#[test]
fn a_request_proves_a_missing_or_wrong_binding_by_a_key_that_is_its_application() {
    let name = (0..).map(|n| format!("app-{n}")).find(|name| home(name, SHARDS) == 1).unwrap();
    let other = (0..).map(|n| format!("app-{n}")).find(|name| home(name, SHARDS) == 2).unwrap();
    let keyed = |own: Option<u16>, came: Delivered| {
        let request = read_at(own, came);
        assert!(!request.forwards.is_empty(), "{:?}", request.body);
        request.forwards[0].keyed_application().map(|name| name.as_str().to_owned())
    };
    let plain = |exchange: &str, key: &str| delivered(exchange, key, with(&[]), b"{}");
    assert_eq!(keyed(None, plain("in", &name)), Some(name.clone()));
    assert_eq!(keyed(Some(3), plain("in", &name)), Some(name.clone()));
    let named = delivered("in", &other, with(&[("x-application", text(&name))]), b"{}");
    assert_eq!(keyed(None, named), None, "another key");
    let by_queue = delivered("", &name, with(&[("x-application", text(&name))]), b"{}");
    assert_eq!(keyed(None, by_queue), None, "the key names a queue");
    let copied = |own| {
        let further = AMQPValue::FieldArray(FieldArray::from(vec![text(&other)]));
        keyed(own, delivered("in", &name, with(&[("CC", further)]), b"{}"))
    };
    assert_eq!((copied(None), copied(Some(2))), (Some(name.clone()), None), "a further key led it there");
    let forward = read_at(None, plain("in", &name)).forwards.remove(0);
    assert_eq!(keyed(Some(3), arrived(&forward)), None, "it came as a forward");
    let entry = |name: &str| format!(r#"{{"application":"{name}","payload":1}}"#);
    for (entries, is_keyed) in [([&name, &name], true), ([&name, &other], false)] {
        let (properties, body) = envelope(&entries.map(|name| entry(name)).each_ref().map(String::as_str));
        let came = delivered("in", &name, properties, &body);
        assert_eq!(keyed(None, came), is_keyed.then(|| name.clone()), "{entries:?}");
    }
}
