//! An ingest message that is being read, and the item that it becomes.

use super::batch::batch_id;
use super::copied::Choices;
use super::fields::{self, Fields, Made, OwnTime, RETRIED};
use super::header_value::{header_value, HeaderValue};
use super::identity::{identity, read_assigned};
use super::json::{coding, is_embeddable, media_type};
use super::properties::{put_headers, Basic, TooDeep, MAX_DEPTH};
use super::sharing::{Restored, Sharing};
use lapin::types::AMQPValue;
use lapin::BasicProperties;
use std::borrow::Cow;
use std::sync::Arc;
use tidegate_config::rfc3339::Rounding;
use tidegate_config::terms::{batch_header, FIRST_PLAUSIBLE_MS, MAX_NAME};
use tidegate_config::{DelayFrom, Readings};
use tidegate_types::size::{self, Parts};
use tidegate_types::{Content, Dead, Identity, NewItem, Reason, Tried};

/// Most headers of a request.
const MAX_HEADERS: usize = 1_000;
/// Bytes of a frame that are kept free for the headers added to a dead letter.
const ADDED_HEADERS: usize = 8 << 10;
/// Content type of the JSON envelope.
pub(crate) const ENVELOPE: &str = "application/vnd.tidegate+json";

/// The configured limits that reading a request needs (`[limits]`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLimits {
    /// Most bytes of a body.
    pub max_body: u64,
    /// Most entries of an array.
    pub max_envelope_items: usize,
    /// Furthest own time, ms ahead.
    pub max_delay_ms: u64,
    /// Bytes of the largest AMQP frame that the connections have agreed upon: properties and headers of one
    /// message must fit into one, with what is added to them on the way out.
    pub frame_max: u32,
}

impl RequestLimits {
    /// Most bytes of a request's properties, headers included.
    fn max_properties(&self) -> usize {
        self.frame_max as usize / 2
    }

    /// Most bytes of properties that a dead letter can carry.
    fn max_dead_properties(&self) -> usize {
        (self.frame_max as usize).saturating_sub(ADDED_HEADERS).max(self.max_properties())
    }
}

/// A message that is being read.
#[derive(Clone, Copy)]
pub(crate) struct Message<'a> {
    pub basic: Basic<'a>,
    pub fields: Fields<'a>,
    pub properties: &'a BasicProperties,
    /// Empty where it does not name an application.
    pub routing_key: &'a str,
    /// When it arrived, UTC ms, rounded up.
    pub received: u64,
    pub limits: &'a RequestLimits,
    pub readings: &'a Readings,
    /// Part of the ids that this store assigns.
    pub store_identity: u64,
    /// Absent in a daemon with one shard.
    pub sharing: Option<&'a Sharing>,
    pub restored: Restored,
}

impl<'a> Message<'a> {
    pub(crate) fn is_envelope(&self) -> bool {
        self.basic.content_type.is_some_and(|text| media_type(text).eq_ignore_ascii_case(ENVELOPE))
    }

    /// Header, else routing key.
    pub(crate) fn application(&self) -> Result<Option<Cow<'a, str>>, Dead> {
        match fields::text(fields::APPLICATION, self.fields.application, MAX_NAME)? {
            Some(name) => Ok(Some(name)),
            None => fields::bounded("the routing key", Cow::Borrowed(self.routing_key), MAX_NAME),
        }
    }

    pub(crate) fn required_application(&self) -> Result<Cow<'a, str>, Dead> {
        self.application()?.ok_or_else(|| {
            fields::invalid(
                "x-application is missing, and there is no routing key of an exchange other than the \
                 default one",
            )
        })
    }

    /// The property `message_id`.
    pub(crate) fn id(&self) -> Option<Cow<'a, str>> {
        self.basic.message_id.map(Cow::Borrowed)
    }

    /// The header `x-customer`.
    pub(crate) fn customer(&self) -> Result<Option<Cow<'a, str>>, Dead> {
        fields::text(fields::CUSTOMER, self.fields.customer, MAX_NAME)
    }

    /// What it reveals about an earlier try of the item with its id. An `x-batch` that is no batch id names
    /// none.
    pub(crate) fn tried(&self, id: Option<&str>) -> Tried {
        let named = self.fields.batch;
        let text = |value| fields::text(batch_header::BATCH, Some(value), usize::MAX).ok().flatten();
        let batch = named.and_then(text).and_then(|text| batch_id(text.as_bytes()));
        let assigned = id.filter(|_| batch.is_some()).and_then(|id| read_assigned(id, self.store_identity));
        let first = assigned.map(|assigned| Identity::assigned(assigned.seq));
        Tried { batch, sent_back: named.is_some() || self.fields.died, first, retry: 0 }
    }

    /// Own times of an entry of this application.
    pub(crate) fn own_times(&self, application: &str) -> OwnTime {
        let made = match self.readings.of(application).delay_from {
            DelayFrom::Received => Made::Unknown,
            DelayFrom::Timestamp => self.made(),
        };
        OwnTime::new(self.received, made, self.limits.max_delay_ms)
    }

    /// When the producer says that it made the message, UTC ms: to the millisecond where RabbitMQ has noted
    /// it so, else to the second.
    fn made(&self) -> Made {
        let headers = self.properties.headers().as_ref();
        let noted = headers.and_then(|headers| headers.inner().get(fields::TIMESTAMP_IN_MS));
        // A negative value or one that is no integer does not count.
        if let Some(HeaderValue::Integer(noted @ 0..)) = noted.map(header_value) {
            let noted = noted.cast_unsigned();
            return if noted < FIRST_PLAUSIBLE_MS { Made::TooEarly(noted) } else { Made::At(noted) };
        }
        // Clients write moments before 1970 as two's complement, and some 0 where they mean none.
        let stamped = self.basic.timestamp.map(u64::cast_signed).filter(|seconds| *seconds > 0);
        stamped.map_or(Made::Unknown, |seconds| Made::At(seconds.cast_unsigned().saturating_mul(1_000)))
    }

    /// When it expires, UTC ms.
    pub(crate) fn expiry(&self) -> Result<Option<u64>, Dead> {
        let (name, value) = (fields::DELIVER_BEFORE, self.fields.deliver_before);
        fields::expiry(name, fields::given(name, value, Rounding::Down)?, ShownHeader(value))
    }

    /// Its own time, UTC ms.
    pub(crate) fn own_time(&self, application: &str) -> Result<Option<u64>, Dead> {
        let found = &self.fields;
        let mut own = self.own_times(application);
        for (name, value) in
            [(fields::DELIVER_AT, found.deliver_at), (fields::OPT_DELIVERY_TIME, found.opt_delivery_time)]
        {
            own.at(name, fields::given(name, value, Rounding::Up)?, ShownHeader(value))?;
        }
        for (name, value) in
            [(fields::DELAY, found.delay), (fields::OPT_DELIVERY_DELAY, found.opt_delivery_delay)]
        {
            own.after(name, fields::given(name, value, Rounding::Up)?, ShownHeader(value))?;
        }
        Ok(own.moment())
    }

    /// The stored form of the properties with those headers that `keep` takes, within the limits of a
    /// request.
    pub(crate) fn checked_properties(
        &self,
        keep: impl Fn(&str, &AMQPValue) -> bool,
    ) -> Result<Vec<u8>, Dead> {
        let bytes =
            self.basic.write(|out| put_headers(out, self.properties, keep)).map_err(|TooDeep| too_deep())?;
        self.check_size(bytes.len())?;
        Ok(bytes)
    }

    /// Whether the headers keep within the limits of a request.
    pub(crate) fn check_size(&self, bytes: usize) -> Result<(), Dead> {
        let count = self.properties.headers().as_ref().map_or(0, |headers| headers.inner().len());
        if count > MAX_HEADERS {
            return Err(fields::verdict(
                Reason::TooLarge,
                format!("the message has {count} headers, more than {MAX_HEADERS}"),
            ));
        }
        if bytes > self.limits.max_properties() {
            return Err(self.too_large(bytes));
        }
        Ok(())
    }

    /// Whether it may be a part of an array: it was divided on its way, or it has died as a part, and is sent
    /// back.
    pub(crate) fn is_part(&self) -> bool {
        let sent_back = self.properties.headers().as_ref().and_then(|headers| headers.inner().get(RETRIED));
        self.restored.is_part || self.sharing.is_some() && sent_back.is_some()
    }

    /// # Errors
    /// The message was too large for a forward: it is rejected, as it would have been without one.
    pub(crate) fn check_restored(&self) -> Result<(), Dead> {
        match self.restored.left_out.map(usize::try_from) {
            None => Ok(()),
            Some(Ok(bytes)) => Err(self.too_large(bytes)),
            Some(Err(_)) => Err(too_deep()),
        }
    }

    /// Reason and sentence for properties of so many bytes.
    fn too_large(&self, bytes: usize) -> Dead {
        let most = self.limits.max_properties();
        let text = format!(
            "the properties have {bytes} bytes, more than {most} (half of the largest frame agreed upon with \
             the broker, at most amqp.frame_max)"
        );
        fields::verdict(Reason::TooLarge, text)
    }

    /// The properties as they came; if they do not fit so, only headers that are plain values, as many as
    /// fit.
    pub(crate) fn dead_properties(&self) -> Vec<u8> {
        if let Ok(bytes) = self.basic.write(|out| put_headers(out, self.properties, |_, _| true)) {
            if bytes.len() <= self.limits.max_dead_properties() {
                return bytes;
            }
        }
        let left = std::cell::Cell::new(self.limits.max_properties());
        let keep = |name: &str, value: &AMQPValue| {
            let Some(size) = plain_size(value).map(|size| size + name.len() + 2) else { return false };
            let Some(rest) = left.get().checked_sub(size) else { return false };
            left.set(rest);
            true
        };
        self.basic.write(|out| put_headers(out, self.properties, keep)).unwrap_or_default()
    }
}

/// Reason and sentence for headers nested too deep.
pub(crate) fn too_deep() -> Dead {
    fields::invalid(format!("the headers are nested more than {MAX_DEPTH} levels deep"))
}

/// What a request asks for.
pub(crate) struct Terms {
    pub application: Box<str>,
    pub customer: Option<Box<str>>,
    pub at: Option<u64>,
    pub expiry: Option<u64>,
    pub on_duplicate: tidegate_types::DuplicateRule,
    pub fingerprint: u64,
    pub tried: Tried,
    pub over: Option<Box<Dead>>,
    /// What attributes of an event among its headers add to its entry, bytes.
    pub event: usize,
}

/// Builds an item of these parts; `basic` is the content of `properties`.
pub(crate) fn item(
    basic: &Basic<'_>,
    terms: Terms,
    mut properties: Vec<u8>,
    body: Vec<u8>,
    choices: &mut Choices<'_>,
) -> NewItem {
    let choice = choices.of(&terms.application, &properties);
    choice.keep(&mut properties);
    let json = is_embeddable(basic.content_type, basic.content_encoding, &body);
    let weight = size::weight(&Parts {
        body: body.len(),
        json,
        id: basic.message_id,
        content_type: basic.content_type,
        content_encoding: coding(basic.content_encoding),
        kind: basic.kind,
        copied: choice.cost.saturating_add(terms.event),
    });
    let identity = basic.message_id.map(|id| identity(&terms.application, id));
    NewItem {
        application: terms.application,
        customer: terms.customer,
        at: terms.at,
        expiry: terms.expiry,
        identity,
        on_duplicate: terms.on_duplicate,
        fingerprint: terms.fingerprint,
        tried: terms.tried,
        over: terms.over,
        weight,
        content: Arc::new(Content { properties, body, json }),
    }
}

/// Encoded size of a value that contains no others, bytes, at most; `None` for an array or a table.
pub fn plain_size(value: &AMQPValue) -> Option<usize> {
    match value {
        AMQPValue::FieldArray(_) | AMQPValue::FieldTable(_) => None,
        AMQPValue::LongString(text) => Some(4 + text.len()),
        AMQPValue::ByteArray(bytes) => Some(4 + bytes.len()),
        AMQPValue::ShortString(text) => Some(4 + text.as_str().len()),
        AMQPValue::Boolean(_)
        | AMQPValue::ShortShortInt(_)
        | AMQPValue::ShortShortUInt(_)
        | AMQPValue::ShortInt(_)
        | AMQPValue::ShortUInt(_)
        | AMQPValue::LongInt(_)
        | AMQPValue::LongUInt(_)
        | AMQPValue::LongLongInt(_)
        | AMQPValue::Float(_)
        | AMQPValue::Double(_)
        | AMQPValue::DecimalValue(_)
        | AMQPValue::Timestamp(_)
        | AMQPValue::Void => Some(8),
    }
}

/// Formats a header's value only when a sentence needs it.
struct ShownHeader<'a>(Option<&'a AMQPValue>);

impl std::fmt::Display for ShownHeader<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(&self.0.map(fields::show).unwrap_or_default())
    }
}
