//! Whether the properties of a message fit into a frame of the connection that it leaves by. Pure.
//!
//! AMQP divides a body among frames, but not properties and headers: where they are larger than the frame
//! that both ends have agreed upon, RabbitMQ closes the whole connection (501). An accepted request keeps
//! within half a frame, but a broker may agree to smaller frames after a restart than those an item was
//! accepted under.

use super::batch::Outgoing;
use super::fields;
use super::properties::{put_headers, Basic};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::BasicProperties;
use std::collections::BTreeMap;
use tidegate_config::terms::batch_header;
use tidegate_types::Batch;

/// Bytes of a header frame beside the properties: type, channel and length; class, weight and length of the
/// body; the end.
const AROUND: usize = 7 + 12 + 1;
/// More bytes than tidegate adds to the properties of an item: names, numbers and ids in headers, an assigned
/// id. The error of a dead letter is not included.
const ADDED: usize = 1_024;
/// More bytes than the properties of a batch can have whose body tidegate has built.
const OF_BATCH: usize = 2_048;
/// Header with the sentence of a dead letter.
const ERROR: &str = "x-tidegate-error";
/// Headers that a dead letter keeps, whatever else does not fit. Each is short, except for the sentence.
const KEPT: [&str; 8] = [
    fields::APPLICATION,
    fields::CUSTOMER,
    "x-tidegate-reason",
    ERROR,
    "x-tidegate-attempts",
    batch_header::DUE,
    batch_header::ATTEMPT,
    batch_header::BATCH,
];
/// More bytes than any of those needs; a larger header of the same name is one of the request.
const KEPT_BYTES: usize = 1_024;

/// Most bytes of properties in a frame of that size.
pub(crate) fn room(frame_max: u32) -> usize {
    (frame_max as usize).saturating_sub(AROUND)
}

/// Ensures that the message of `batch` fits into frames of `frame_max` bytes. A dead letter is made to fit:
/// its largest dispensable headers are left out.
///
/// # Errors
/// Why it does not fit, as a sentence.
pub fn fit(message: &mut Outgoing, batch: &Batch, frame_max: u32) -> Result<(), String> {
    let most = room(frame_max);
    if roughly(batch) <= most {
        return Ok(());
    }
    let bytes = size(&message.properties);
    if bytes <= most {
        return Ok(());
    }
    if batch.dead.is_none() {
        return Err(format!(
            "properties and headers have {bytes} bytes, and a frame of this connection holds {most}; headers \
             that do not fit are left out here"
        ));
    }
    shed(&mut message.properties, bytes - most);
    Ok(())
}

/// Upper bound on [`size`], which mostly suffices to know that the message fits. A single item may leave with
/// its own properties in any format: a batch that came back leaves as it came.
fn roughly(batch: &Batch) -> usize {
    let [item] = batch.items.as_slice() else { return OF_BATCH };
    let error = batch.dead.as_ref().map_or(0, |verdict| verdict.error.len());
    OF_BATCH.max(item.content.properties.len() + ADDED + error)
}

/// Bytes of the properties in their frame.
pub(crate) fn size(properties: &BasicProperties) -> usize {
    let written = Basic::of(properties).write(|out| put_headers(out, properties, |_, _| true));
    // The delivery mode is not written here. Headers nested too deep do not fit.
    written.map_or(usize::MAX, |bytes| bytes.len() + 1)
}

/// Leaves out headers until the properties are `excess` bytes smaller; if that is not enough, cuts the
/// sentence.
fn shed(properties: &mut BasicProperties, excess: usize) {
    let mut excess = excess;
    let mut headers: BTreeMap<ShortString, AMQPValue> =
        properties.headers().iter().flatten().map(|(name, value)| (name.clone(), value.clone())).collect();
    let mut own: Vec<(usize, ShortString)> = headers
        .iter()
        .map(|(name, value)| (entry(name, value), name.clone()))
        .filter(|(bytes, name)| {
            name.as_str() != ERROR && (*bytes > KEPT_BYTES || !KEPT.contains(&name.as_str()))
        })
        .collect();
    own.sort_unstable_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
    for (bytes, name) in own {
        if excess == 0 {
            break;
        }
        headers.remove(&name);
        excess = excess.saturating_sub(bytes);
    }
    if excess > 0 {
        if let Some(AMQPValue::LongString(error)) = headers.get(ERROR) {
            let mut error = String::from_utf8_lossy(error.as_bytes()).into_owned();
            let left = error.len().saturating_sub(excess);
            error.truncate((0..=left).rev().find(|end| error.is_char_boundary(*end)).unwrap_or(0));
            headers.insert(ERROR.into(), AMQPValue::LongString(error.into()));
        }
    }
    *properties = std::mem::take(properties).with_headers(FieldTable::from(headers));
}

/// Bytes of one entry of the header table.
fn entry(name: &ShortString, value: &AMQPValue) -> usize {
    let mut alone = FieldTable::default();
    alone.insert(name.clone(), value.clone());
    let properties = BasicProperties::default().with_headers(alone);
    let written = Basic::default().write(|out| put_headers(out, &properties, |_, _| true));
    // Without flags and the length of the table.
    written.map_or(usize::MAX, |bytes| bytes.len().saturating_sub(6))
}
