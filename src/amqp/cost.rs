//! Memory cost of a request once it is read. Pure.

use tidegate_types::{NewItem, Rejected, Request, RequestBody};
use tidegate_wire::Forward;

/// Bytes that the engine adds for each item until its commit: a row, an operation of the store, index
/// entries, and their places in tables. A measured upper bound.
const ENGINE_COST: u64 = 512;

/// Bytes of a request as read, with what the engine adds to it; at least `raw`, its size as delivered.
pub(crate) fn of(request: &Request, raw: u64) -> u64 {
    let read = match &request.body {
        RequestBody::Items(items) | RequestBody::Elsewhere(items) => items.iter().map(item).sum(),
        RequestBody::Rejected(rejected) => self::rejected(rejected),
        RequestBody::Command(..) => ENGINE_COST,
    };
    let shell = std::mem::size_of::<Request>() as u64;
    raw.max(read).saturating_add(shell)
}

/// Bytes of a request that is not read yet, and has this size as delivered.
pub(crate) fn of_unread(raw: u64) -> u64 {
    raw.saturating_add(std::mem::size_of::<Request>() as u64 + ENGINE_COST)
}

/// Bytes of the parts of a request that are kept until they are confirmed.
pub(crate) fn of_parts(parts: &[Forward]) -> u64 {
    parts.iter().map(|part| part.size() as u64).sum()
}

fn item(item: &NewItem) -> u64 {
    let names = item.application.len() + item.customer.as_ref().map_or(0, |name| name.len());
    let own = std::mem::size_of::<NewItem>() + names;
    own as u64 + item.content.size() + ENGINE_COST
}

fn rejected(rejected: &Rejected) -> u64 {
    let own = std::mem::size_of::<Rejected>() + rejected.dead.error.len();
    own as u64 + rejected.content.size() + ENGINE_COST
}

#[cfg(test)]
mod tests {
    use super::*;
    use lapin::types::FieldTable;
    use lapin::BasicProperties;
    use tidegate_config::Readings;
    use tidegate_types::Delivery;
    use tidegate_wire::{self, Incoming, RequestLimits};

    fn cost(properties: BasicProperties, body: Vec<u8>) -> u64 {
        let limits = RequestLimits {
            max_body: 1 << 20,
            max_envelope_items: 10_000,
            max_delay_ms: 1,
            frame_max: 128 << 10,
        };
        let raw = body.len() as u64;
        let incoming = Incoming { exchange: "in", routing_key: "app", properties, body, received: 1 };
        let body = tidegate_wire::request(incoming, &limits, &Readings::default(), 1);
        of(
            &Request { delivery: Delivery { generation: 1, tag: 1 }, redelivered: false, received: 1, body },
            raw,
        )
    }

    /// Judges promise 7.
    #[test]
    fn headers_entries_and_bodies_all_count() {
        let plain = cost(BasicProperties::default(), vec![b'x'; 200]);
        assert!((900..2_000).contains(&plain), "{plain}");
        let mut headers = FieldTable::default();
        headers.insert("h".into(), lapin::types::AMQPValue::LongString("h".repeat(60_000).into()));
        let heavy = cost(BasicProperties::default().with_headers(headers), b"{}".to_vec());
        assert!((60_000..63_000).contains(&heavy), "{heavy}");
        let envelope = BasicProperties::default().with_content_type("application/vnd.tidegate+json".into());
        let entries = format!("[{}]", vec![r#"{"payload":1}"#; 10_000].join(","));
        let size = entries.len() as u64;
        let read = cost(envelope, entries.into_bytes());
        assert!(read > 40 * size, "{read} for {size} bytes in 10,000 entries");
        assert!(cost(BasicProperties::default(), vec![0; 500_000]) >= 500_000);
    }
}
