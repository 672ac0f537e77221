//! The rows of keyspace `queues`: one for each queue, and one for each held customer.

use super::errors::BrokenContract;
use super::fields::{self, put_varint};
use super::rows::{names, names_alone, prefix, seal, SmallRow};
use tidegate_types::event::{HeldRow, QueueRow, Slowed, FOR_EVER};
use tidegate_types::{Key, Rate};

/// The end of a pause that only a command ends.
const NO_END: u64 = 1;

/// Key and value of a queue's row. Most commits write one, so its numbers have no fixed width.
///
/// ```text
/// count | low.due | low.window | low.seq | paused | unindexed_until
///     [ | items | each_ms | until ] | crc32c u32 LE
/// ```
///
/// *Paused* is 0 if the queue is not paused, otherwise [`NO_END`] or the end of the pause; *until* has the
/// same form. The last three fields are the temporary rate, and absent without one.
///
/// # Errors
///
/// As [`prefix`].
pub fn queue_row(row: &QueueRow) -> Result<SmallRow, BrokenContract> {
    let key = prefix(&[&row.queue])?;
    let mut value = Vec::with_capacity(32);
    let end = |until: u64| if until == FOR_EVER { NO_END } else { until };
    let paused = row.paused.map_or(0, end);
    let slowed = row.slowed.map(|slowed| {
        let Rate { items, each_ms } = slowed.rate;
        [items.into(), each_ms, end(slowed.until)]
    });
    let numbers = [row.count, row.low.due, row.low.window, row.low.seq, paused, row.unindexed_until];
    for number in numbers.into_iter().chain(slowed.into_iter().flatten()) {
        put_varint(&mut value, number);
    }
    let value = seal(&key, value);
    Ok((key, value))
}

/// Reads [`queue_row`].
///
/// # Errors
///
/// A text that says what is wrong with the row.
pub fn read_queue(key: &[u8], bytes: &[u8]) -> Result<QueueRow, String> {
    let [queue] = names_alone(key)?;
    let text = |error: fields::RecordError| error.to_string();
    let mut r = fields::FieldReader(fields::unseal(key, bytes).map_err(text)?);
    let count = r.varint("count").map_err(text)?;
    let mut low = |name| r.varint(name).map_err(text);
    let low = Key { due: low("low.due")?, window: low("low.window")?, seq: low("low.seq")? };
    let paused = match r.varint("paused").map_err(text)? {
        0 => None,
        NO_END => Some(FOR_EVER),
        until => Some(until),
    };
    let unindexed_until = r.varint("unindexed_until").map_err(text)?;
    let slowed = if r.is_empty() { None } else { Some(slowed(&mut r)?) };
    r.end().map_err(text)?;
    Ok(QueueRow { queue, count, low, paused, unindexed_until, slowed })
}

/// The rate in a queue's row.
fn slowed(r: &mut fields::FieldReader<'_>) -> Result<Slowed, String> {
    let mut number = |name| r.varint(name).map_err(|error| error.to_string());
    let (items, each_ms, until) = (number("items")?, number("each_ms")?, number("until")?);
    let rate = u32::try_from(items).ok().and_then(|items| Rate::new(items, each_ms));
    let rate = rate.ok_or_else(|| format!("{items} items each {each_ms} ms are not a rate"))?;
    Ok(Slowed { rate, until: if until == NO_END { FOR_EVER } else { until } })
}

/// Key and value of the row of a held customer, in keyspace `queues`; `None`: the customer has no row. The
/// value is the end of the hold, as in [`queue_row`].
///
/// # Errors
///
/// As [`prefix`].
pub fn held_row(row: &HeldRow) -> Result<(Vec<u8>, Option<Vec<u8>>), BrokenContract> {
    let key = prefix(&[&row.application, &row.customer])?;
    let value = row.until.map(|until| {
        let mut value = Vec::with_capacity(16);
        put_varint(&mut value, if until == FOR_EVER { NO_END } else { until });
        seal(&key, value)
    });
    Ok((key, value))
}

/// Reads [`held_row`].
///
/// # Errors
///
/// A text that says what is wrong with the row.
pub fn read_held(key: &[u8], bytes: &[u8]) -> Result<HeldRow, String> {
    let [application, customer] = names_alone(key)?;
    let text = |error: fields::RecordError| error.to_string();
    let mut r = fields::FieldReader(fields::unseal(key, bytes).map_err(text)?);
    let until = match r.varint("until").map_err(text)? {
        NO_END => FOR_EVER,
        until => until,
    };
    r.end().map_err(text)?;
    Ok(HeldRow { application, customer, until: Some(until) })
}

/// A row of keyspace `queues`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OfQueue {
    /// The queue's own row.
    Queue(QueueRow),
    /// The row of a held customer.
    Held(HeldRow),
}

/// Reads [`queue_row`] and [`held_row`], which differ by the number of names in their keys.
///
/// # Errors
///
/// A text that says what is wrong with the row.
pub fn read_of_queue(key: &[u8], bytes: &[u8]) -> Result<OfQueue, String> {
    match names::<1>(key) {
        Ok((_, [_, ..])) => read_held(key, bytes).map(OfQueue::Held),
        Ok((_, [])) | Err(_) => read_queue(key, bytes).map(OfQueue::Queue),
    }
}
