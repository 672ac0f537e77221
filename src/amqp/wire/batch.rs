//! Encodes batches as output messages: four body formats, and the properties and headers around them.
//!
//! Bodies are written straight into one buffer, in one pass over the items; a body that leaves as it came is
//! shared, not copied. `tidegate_types::size` bounds the length of a body beforehand, and the tests check
//! that bound.

use super::copied::Copied;
use super::event::OwnEvent;
use super::identity::assigned;
use super::json::{coding, is_media_type, push_number, push_payload, push_segment, push_string};
use super::properties::{has_choice, parse_table, put_choice, set_number, set_text, short, signed, Basic};
use super::trace::{BatchTrace, Traces, TRACEPARENT, TRACESTATE};
use super::{dead, fields};
use jiff::Timestamp;
use lapin::types::{FieldTable, ShortString};
use lapin::BasicProperties;
use std::borrow::Cow;
use std::convert::Infallible;
use std::io::Write as _;
use std::ops::Deref;
use std::sync::Arc;
use tidegate_config::terms::batch_header as header;
use tidegate_types::{AssignedId, Batch, BatchId, BatchItem, Content, Format};

pub(crate) const APP_ID: &str = "tidegate";
pub(crate) const BATCH_TYPE: &str = "tidegate.batch";
/// CloudEvents `type` of an item whose request had no `type`.
const ITEM_TYPE: &str = "tidegate.item";
/// Hex digits of a batch id (128 bits).
const BATCH_ID_LENGTH: usize = 32;

/// Names of the two exchanges that are published to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchanges {
    /// `egress.exchange` of the configuration.
    pub egress: ShortString,
    /// `dead.exchange` of the configuration.
    pub dead: ShortString,
}

impl Exchanges {
    /// Names longer than the 255 bytes that the protocol can carry are cut; the configuration refuses them.
    pub fn new(egress: &str, dead: &str) -> Self {
        Exchanges { egress: short(egress), dead: short(dead) }
    }
}

/// One message to be published, `mandatory` and confirmed.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// Exchange to publish to.
    pub exchange: ShortString,
    /// The application's name; empty for a dead request whose application could not be read.
    pub routing_key: ShortString,
    /// With all headers.
    pub properties: BasicProperties,
    /// Payload of the message.
    pub body: Body,
    /// The batch id; as hexadecimal digits also in header `x-batch`.
    pub id: BatchId,
    /// Present if a request in it carried one.
    pub trace: Option<BatchTrace>,
}

/// A payload, built or shared; read it as `&[u8]`.
#[derive(Clone, Debug)]
pub enum Body {
    /// Encoded for this batch.
    Built(Vec<u8>),
    /// The body of this content, as it came.
    Of(Arc<Content>),
    /// These bytes, which others may hold as well.
    Shared(Arc<Vec<u8>>),
}

impl Deref for Body {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Body::Built(bytes) => bytes,
            Body::Of(content) => &content.body,
            Body::Shared(bytes) => bytes,
        }
    }
}

/// The output message of a batch, or the dead letter that it stands for.
///
/// `store_identity` makes the ids of items that came without one unique; `now_ms` (UTC) becomes the message's
/// timestamp. The properties and headers that were chosen of an item precede its payload (see `copied`). An
/// item without content type has `"content_type": null` in the JSON formats, and in CloudEvents no
/// `datacontenttype`; nor has one whose content type is no media type. CloudEvents know only 32-bit integers,
/// so the extension `due` is text there (UTC ms in decimal); a content encoding travels as the extension
/// `contentencoding`.
///
/// A `passthrough` batch or a dead letter has exactly one item. If there are more, they leave as JSON, so
/// that none is lost.
pub fn encode(batch: &Batch, names: &Exchanges, store_identity: u64, now_ms: u64) -> Outgoing {
    debug_assert!(!batch.items.is_empty());
    let mut members = Members::of(&batch.application);
    if let [item] = batch.items.as_slice() {
        let (basic, table) = parts(&item.content);
        // Only a batch that came back has this type.
        if basic.kind == Some(BATCH_TYPE) && batch.dead.is_none() {
            if let Some(id) = basic.message_id.and_then(|id| batch_id(id.as_bytes())) {
                return again(batch, item, names, (basic, table), id);
            }
        }
        if batch.dead.is_some() || batch.format == Format::Passthrough {
            return alone(batch, item, names, store_identity, members);
        }
    }
    debug_assert!(batch.dead.is_none() && batch.format != Format::Passthrough);
    let (content_type, body) = match batch.format {
        Format::Json | Format::Passthrough => ("application/json", json(batch, store_identity, &mut members)),
        Format::Ndjson => ("application/x-ndjson", ndjson(batch, store_identity, &mut members)),
        Format::CloudEvents => {
            ("application/cloudevents-batch+json", cloud_events(batch, store_identity, &mut members))
        }
    };
    let id = members.id();
    let hex = id.to_string();
    let mut headers = FieldTable::default();
    if let Some(customer) = &batch.customer {
        set_text(&mut headers, fields::CUSTOMER, customer);
    }
    set_number(&mut headers, header::COUNT, batch.items.len() as u64);
    set_number(&mut headers, header::DUE, batch.due);
    set_text(&mut headers, header::CLOSED_BY, batch.closed_by.as_str());
    set_number(&mut headers, header::ATTEMPT, batch.attempt.into());
    set_text(&mut headers, header::BATCH, &hex);
    put_retry(&mut headers, batch);
    let trace = members.traces.of_attempt(id, batch.attempt);
    if let Some(BatchTrace { context, state, .. }) = &trace {
        set_text(&mut headers, TRACEPARENT, &context.to_string());
        state.iter().for_each(|state| set_text(&mut headers, TRACESTATE, state));
    }
    let basic = Basic {
        content_type: Some(content_type),
        message_id: Some(&hex),
        timestamp: Some(now_ms / 1000),
        kind: Some(BATCH_TYPE),
        app_id: Some(APP_ID),
        ..Basic::default()
    };
    Outgoing {
        exchange: names.egress.clone(),
        routing_key: short(&batch.application),
        properties: basic.to_amqp(headers),
        body: Body::Built(body),
        id,
        trace,
    }
}

/// The batch id in the header of a message, in particular of one that was returned.
pub fn batch_id_of(properties: &BasicProperties) -> Option<BatchId> {
    batch_id(properties.headers().as_ref()?.inner().get(header::BATCH)?.as_long_string()?.as_bytes())
}

/// Reads a batch id from its hexadecimal digits.
pub(crate) fn batch_id(text: &[u8]) -> Option<BatchId> {
    // Only digits: the number parser would accept a sign, too.
    let digits: &[u8; BATCH_ID_LENGTH] = text.try_into().ok()?;
    let digits = std::str::from_utf8(digits).ok().filter(|text| !text.starts_with('+'))?;
    u128::from_str_radix(digits, 16).ok().map(|number| BatchId(number.to_be_bytes()))
}

/// The id of an item as its outputs carry it: its producer's, or the one assigned. Of the content only the
/// properties are read.
pub fn item_id(content: &Content, store_identity: u64, id: AssignedId) -> String {
    id_of(&parts(content).0, store_identity, id).into_owned()
}

/// The stored properties of an item that came without an id, with this one: a later reader takes it for its
/// producer's. `None`: they have an id, or are damaged.
pub fn with_message_id(properties: &[u8], id: &str) -> Option<Vec<u8>> {
    let (basic, table, choice) = Basic::parse_with_choice(properties)?;
    if basic.message_id.is_some() {
        return None;
    }
    // The length of the table is written again.
    let entries = table.get(4..).unwrap_or_default();
    let basic = Basic { message_id: Some(id), ..basic };
    let put = |out: &mut Vec<u8>| {
        out.extend_from_slice(entries);
        Ok::<_, Infallible>(())
    };
    let mut named = basic.write(put).ok()?;
    if has_choice(properties) {
        put_choice(&mut named, choice);
    }
    Some(named)
}

/// One item as it came, with what tidegate adds; for the output or the dead exchange.
fn alone(
    batch: &Batch,
    item: &BatchItem,
    names: &Exchanges,
    store_identity: u64,
    mut members: Members<'_>,
) -> Outgoing {
    let (basic, table) = parts(&item.content);
    let message_id = id_of(&basic, store_identity, assigned_id(item));
    members.add(&message_id, item.seq);
    let id = members.id();
    let mut headers = parse_table(table);
    set_number(&mut headers, header::DUE, item.due);
    set_number(&mut headers, header::ATTEMPT, batch.attempt.into());
    set_text(&mut headers, header::BATCH, &id.to_string());
    put_retry(&mut headers, batch);
    let exchange = match &batch.dead {
        Some(verdict) => {
            dead::mark(&mut headers, batch, item, verdict);
            &names.dead
        }
        None => &names.egress,
    };
    Outgoing {
        exchange: exchange.clone(),
        routing_key: short(&batch.application),
        properties: Basic { message_id: Some(&message_id), ..basic }.to_amqp(headers),
        body: Body::Of(Arc::clone(&item.content)),
        id,
        trace: None,
    }
}

/// A batch that its consumer has sent back, as it came, under the same id.
fn again(
    batch: &Batch,
    item: &BatchItem,
    names: &Exchanges,
    (basic, table): (Basic<'_>, &[u8]),
    id: BatchId,
) -> Outgoing {
    let mut headers = parse_table(table);
    set_number(&mut headers, header::DUE, item.due);
    set_number(&mut headers, header::ATTEMPT, batch.attempt.into());
    set_text(&mut headers, header::BATCH, &id.to_string());
    put_retry(&mut headers, batch);
    Outgoing {
        exchange: names.egress.clone(),
        routing_key: short(&batch.application),
        properties: basic.to_amqp(headers),
        body: Body::Of(Arc::clone(&item.content)),
        id,
        trace: None,
    }
}

/// Sets the number of the try, if its consumer has sent it back: such an item leaves alone.
fn put_retry(headers: &mut FieldTable, batch: &Batch) {
    let retry = batch.items.iter().map(|item| item.retry).max().unwrap_or_default();
    if retry > 0 && batch.dead.is_none() {
        set_number(headers, header::RETRY, retry.into());
    }
}

fn json<'a>(batch: &'a Batch, store_identity: u64, members: &mut Members<'a>) -> Vec<u8> {
    let mut out = Vec::with_capacity(room(batch));
    out.extend_from_slice(b"{\"application\":");
    push_string(&mut out, &batch.application);
    out.extend_from_slice(b",\"customer\":");
    push_text(&mut out, batch.customer.as_deref());
    out.extend_from_slice(b",\"batch\":\"");
    // The id is known only when all members have been seen.
    let place = out.len();
    out.extend_from_slice(&[b'0'; BATCH_ID_LENGTH]);
    out.extend_from_slice(b"\",\"items\":[");
    for (index, item) in batch.items.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        json_item(&mut out, item, store_identity, members);
    }
    out.extend_from_slice(b"]}");
    out[place..place + BATCH_ID_LENGTH].copy_from_slice(members.id().to_string().as_bytes());
    out
}

fn ndjson<'a>(batch: &'a Batch, store_identity: u64, members: &mut Members<'a>) -> Vec<u8> {
    let mut out = Vec::with_capacity(room(batch));
    for item in &batch.items {
        json_item(&mut out, item, store_identity, members);
        out.push(b'\n');
    }
    out
}

fn json_item<'a>(out: &mut Vec<u8>, item: &'a BatchItem, store_identity: u64, members: &mut Members<'a>) {
    let (basic, copied) = entry_parts(&item.content);
    let id = id_of(&basic, store_identity, assigned_id(item));
    members.add(&id, item.seq);
    members.traces.add(copied.trace());
    out.extend_from_slice(b"{\"id\":");
    push_string(out, &id);
    out.extend_from_slice(b",\"due\":");
    push_number(out, item.due);
    out.extend_from_slice(b",\"received\":");
    push_number(out, item.received);
    out.extend_from_slice(b",\"content_type\":");
    push_text(out, basic.content_type);
    if let Some(encoding) = coding(basic.content_encoding) {
        out.extend_from_slice(b",\"content_encoding\":");
        push_string(out, encoding);
    }
    copied.push_fields(out);
    push_payload(out, "payload", &item.content);
    out.push(b'}');
}

fn cloud_events<'a>(batch: &'a Batch, store_identity: u64, members: &mut Members<'a>) -> Vec<u8> {
    let mut out = Vec::with_capacity(room(batch) + batch.items.len() * 128);
    // The same in every event of the batch.
    let mut source_and_subject = b",\"source\":\"/tidegate/".to_vec();
    push_segment(&mut source_and_subject, &batch.application);
    source_and_subject.push(b'"');
    if let Some(customer) = &batch.customer {
        source_and_subject.extend_from_slice(b",\"subject\":");
        push_string(&mut source_and_subject, customer);
    }
    out.push(b'[');
    for (index, item) in batch.items.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        let (basic, table, choice) = Basic::parse_with_choice(&item.content.properties).unwrap_or_default();
        let copied = Copied::of(basic, table, choice);
        let id = id_of(&basic, store_identity, assigned_id(item));
        members.add(&id, item.seq);
        members.traces.add(copied.trace());
        if let Some(event) = OwnEvent::of(&basic, table, &item.content) {
            event.push(&mut out, (&basic, &copied), &item.content, item.due);
            continue;
        }
        out.extend_from_slice(b"{\"specversion\":\"1.0\",\"id\":");
        push_string(&mut out, &id);
        out.extend_from_slice(&source_and_subject);
        out.extend_from_slice(b",\"type\":");
        push_string(&mut out, basic.kind.unwrap_or(ITEM_TYPE));
        push_time(&mut out, item.received);
        if let Some(content_type) = basic.content_type.filter(|text| is_media_type(text)) {
            out.extend_from_slice(b",\"datacontenttype\":");
            push_string(&mut out, content_type);
        }
        if let Some(encoding) = coding(basic.content_encoding) {
            out.extend_from_slice(b",\"contentencoding\":");
            push_string(&mut out, encoding);
        }
        out.extend_from_slice(b",\"due\":\"");
        push_number(&mut out, item.due);
        out.push(b'"');
        copied.push_attributes(&mut out, &|_| false);
        push_payload(&mut out, "data", &item.content);
        out.push(b'}');
    }
    out.push(b']');
    out
}

/// `,"time":"..."`, RFC 3339 in UTC with milliseconds; a moment beyond the library's last is written as that.
fn push_time(out: &mut Vec<u8>, ms: u64) {
    let time = Timestamp::from_millisecond(signed(ms)).unwrap_or(Timestamp::MAX);
    // Writing to a vector does not fail.
    let _ = write!(out, ",\"time\":\"{time:.3}\"");
}

/// A JSON string, or null.
fn push_text(out: &mut Vec<u8>, text: Option<&str>) {
    match text {
        Some(text) => push_string(out, text),
        None => out.extend_from_slice(b"null"),
    }
}

/// Estimated bytes of the JSON body, rather too many than too few.
fn room(batch: &Batch) -> usize {
    let body = |item: &BatchItem| {
        if item.content.json {
            item.content.body.len()
        } else {
            item.content.body.len() / 3 * 4
        }
    };
    // Copied fields are about as long as they are stored.
    let copied = |content: &Content| {
        if has_choice(&content.properties) {
            content.properties.len()
        } else {
            0
        }
    };
    let items = batch.items.iter().map(|item| body(item) + copied(&item.content) + 160);
    items.sum::<usize>() + 160 + batch.application.len()
}

/// Properties and encoded headers of an item. The store checks what it reads, so damage here is all but
/// impossible; it must not cost the payload.
fn parts(content: &Content) -> (Basic<'_>, &[u8]) {
    Basic::parse(&content.properties).unwrap_or_default()
}

/// Properties of an item, and what its entry passes on beside the contract's fields.
fn entry_parts(content: &Content) -> (Basic<'_>, Copied<'_>) {
    let (basic, table, choice) = Basic::parse_with_choice(&content.properties).unwrap_or_default();
    (basic, Copied::of(basic, table, choice))
}

/// The producer's id, or the one assigned.
fn id_of<'a>(basic: &Basic<'a>, store_identity: u64, id: AssignedId) -> Cow<'a, str> {
    basic.message_id.map_or_else(|| Cow::Owned(assigned(store_identity, id)), Cow::Borrowed)
}

fn assigned_id(item: &BatchItem) -> AssignedId {
    AssignedId { seq: item.seq, due: item.accepted_due, window: item.window }
}

/// A hash over the application and the (id, arrival number) of each member, so that the same members have the
/// same id over retries and restarts.
struct Members<'a> {
    hasher: blake3::Hasher,
    traces: Traces<'a>,
}

impl Members<'_> {
    fn of(application: &str) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&(application.len() as u64).to_le_bytes());
        hasher.update(application.as_bytes());
        Members { hasher, traces: Traces::default() }
    }

    fn add(&mut self, id: &str, seq: u64) {
        // Lengths keep "a" + "bc" apart from "ab" + "c".
        self.hasher.update(&(id.len() as u64).to_le_bytes());
        self.hasher.update(id.as_bytes());
        self.hasher.update(&seq.to_le_bytes());
    }

    fn id(&self) -> BatchId {
        let mut id = [0; 16];
        id.copy_from_slice(&self.hasher.finalize().as_bytes()[..16]);
        BatchId(id)
    }
}
