//! Tests of the translation as a whole, by the contract's tables, with their helpers.

mod again;
mod batch;
mod command;
mod copied;
mod envelope;
mod event;
mod fingerprint;
mod forward;
mod frame;
mod moved;
mod properties;
mod random;
mod request;

use super::{identity, request as read_with, Incoming, RequestLimits};
use lapin::types::{AMQPValue, DecimalValue, FieldTable};
use lapin::BasicProperties;
use tidegate_config::Readings;
use tidegate_types::{Identity, NewItem, Reason, Rejected, RequestBody};

/// 2026-06-01T00:00:00Z.
const NOW: u64 = 1_780_272_000_000;
const DAY: u64 = 86_400_000;
/// Identity of the store.
const STORE: u64 = 0xabcd;
const LIMITS: RequestLimits = RequestLimits {
    max_body: 1 << 20,
    max_envelope_items: 5,
    max_delay_ms: 3650 * DAY,
    frame_max: 128 << 10,
};

fn text(text: &str) -> AMQPValue {
    AMQPValue::LongString(text.into())
}

fn number(number: i64) -> AMQPValue {
    AMQPValue::LongLongInt(number)
}

fn decimal(scale: u8, value: i32) -> AMQPValue {
    AMQPValue::DecimalValue(DecimalValue { scale, value: value as u32 })
}

fn table(headers: &[(&str, AMQPValue)]) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in headers {
        table.insert((*name).into(), value.clone());
    }
    table
}

fn with(headers: &[(&str, AMQPValue)]) -> BasicProperties {
    BasicProperties::default().with_headers(table(headers))
}

/// Published to an exchange with routing key `orders`.
fn take(properties: BasicProperties, body: &[u8]) -> RequestBody {
    from("tidegate.in", "orders", properties, body)
}

fn from(exchange: &str, routing_key: &str, properties: BasicProperties, body: &[u8]) -> RequestBody {
    read(Incoming { exchange, routing_key, properties, body: body.to_vec(), received: NOW }, &LIMITS)
}

fn read(incoming: Incoming<'_>, limits: &RequestLimits) -> RequestBody {
    read_with(incoming, limits, &Readings::default(), STORE)
}

/// Of an item whose producer gave this id.
fn given(application: &str, id: &str) -> Option<Identity> {
    Some(identity(application, id))
}

fn items(body: RequestBody) -> Vec<NewItem> {
    match body {
        RequestBody::Items(items) => items,
        RequestBody::Elsewhere(items) => panic!("elsewhere: {items:?}"),
        RequestBody::Rejected(rejected) => panic!("rejected: {:?}", rejected.dead),
        RequestBody::Command(command, _) => panic!("a command: {command:?}"),
    }
}

fn item(body: RequestBody) -> NewItem {
    let mut items = items(body);
    assert_eq!(items.len(), 1);
    items.remove(0)
}

fn rejected(body: RequestBody) -> Rejected {
    match body {
        RequestBody::Items(items) | RequestBody::Elsewhere(items) => panic!("accepted: {items:?}"),
        RequestBody::Command(command, _) => panic!("a command: {command:?}"),
        RequestBody::Rejected(rejected) => *rejected,
    }
}

/// The sentence of a rejection with reason `invalid`.
fn refusal(body: RequestBody) -> String {
    let rejected = rejected(body);
    assert_eq!(rejected.dead.reason, Reason::Invalid, "{:?}", rejected.dead);
    rejected.dead.error.into()
}
