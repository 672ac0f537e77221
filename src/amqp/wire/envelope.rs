//! The JSON envelope: the fields of the headers, in a JSON body.
//!
//! Of the message's own fields only application and id count, as fall-backs. Each entry becomes an item whose
//! properties are in header form, as if it had come alone: so it can be published to the ingest exchange
//! again.

use super::again::Comeback;
use super::copied::Choices;
use super::event;
use super::fields;
use super::fingerprint::Fingerprint;
use super::json::is_json_type;
use super::message::{item, too_deep, Message, Terms};
use super::properties::{put_header_number, put_header_text, put_headers, Basic, TooDeep};
use super::time::{self, Given};
use base64::engine::general_purpose::STANDARD;
use base64::Engine as _;
use serde::de::{Deserializer, SeqAccess, Visitor};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::convert::Infallible;
use tidegate_config::rfc3339::Rounding;
use tidegate_config::terms::{FIRST_PLAUSIBLE_MS, MAX_ID, MAX_NAME};
use tidegate_types::{Dead, DuplicateRule, NewItem, Reason};

/// An entry of a forwarded array that is elsewhere.
const NOT_HERE: &str = "null";
/// Content type of a payload that names none.
const DEFAULT_CONTENT_TYPE: &str = "application/json";
/// Longest content type, bytes: what a short string can carry.
const MAX_CONTENT_TYPE: usize = 255;
/// Most bytes that the message's own properties may take in all the entries of an array together: each entry
/// carries a copy, and 10,000 copies of 64 KiB are not a request but an attack.
const MAX_COPIES: usize = 32 << 20;

/// One object, its values still as written.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct EnvelopeEntry<'a> {
    #[serde(borrow, deserialize_with = "raw")]
    application: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "raw")]
    customer: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "raw")]
    delay_ms: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "raw")]
    deliver_at: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "raw")]
    deliver_before: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "raw")]
    id: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "raw")]
    on_duplicate: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "raw")]
    content_type: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "raw")]
    payload: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "raw")]
    payload_base64: Option<&'a RawValue>,
}

impl EnvelopeEntry<'_> {
    /// Hash over the entry as it is written, and over what it takes from the message.
    fn fingerprint(&self, sent: &Fingerprint, id: &str) -> u64 {
        let mut fingerprint = sent.branch();
        fingerprint.text(Some(id));
        let EnvelopeEntry {
            application,
            customer,
            delay_ms,
            deliver_at,
            deliver_before,
            id: _,
            on_duplicate,
            content_type,
            payload,
            payload_base64,
        } = self;
        for field in [
            application,
            customer,
            delay_ms,
            deliver_at,
            deliver_before,
            on_duplicate,
            content_type,
            payload,
            payload_base64,
        ] {
            fingerprint.text(field.map(RawValue::get));
        }
        fingerprint.finish()
    }
}

/// Unlike serde's default, `null` is a value here: a payload may be `null`.
pub(crate) fn raw<'de, D: Deserializer<'de>>(from: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(from).map(Some)
}

/// The items of an envelope.
///
/// # Errors
/// One invalid entry rejects them all; the sentence names its index.
pub(crate) fn items(message: &Message<'_>, body: &[u8]) -> Result<Vec<NewItem>, Dead> {
    let text = std::str::from_utf8(body).map_err(|_| fields::invalid("the envelope is not UTF-8"))?;
    let mut base = Vec::new();
    // Attributes of an event are left out: with them each entry would be the same event.
    let keep = |name: &str| !fields::Fields::is_field(name) && !event::is_attribute(name);
    put_headers(&mut base, message.properties, |name, _| keep(name)).map_err(|TooDeep| too_deep())?;
    let Ok(shared) = message.basic.write(|out| {
        out.extend_from_slice(&base);
        Ok::<_, Infallible>(())
    });
    message.check_size(shared.len())?;
    // Each entry's own application is hashed with the entry.
    let application = message.application().ok().flatten().unwrap_or_default();
    let sent = Fingerprint::of_message(message, &shared, &application, keep).map_err(|TooDeep| too_deep())?;
    let mut choices = Choices::new(message.readings, message.fields.traced);
    if !is_array(text) {
        let entry = serde_json::from_str(text)
            .map_err(|error| fields::invalid(format!("the envelope is not understood: {error}")))?;
        return Ok(vec![one(message, &base, &sent, &entry, None, &mut choices)?]);
    }
    let entries = array(text, message.limits.max_envelope_items, message.is_part())?;
    if entries.iter().all(Option::is_none) {
        return Err(fields::invalid("the envelope has no entry"));
    }
    if entries.len().saturating_mul(shared.len()) > MAX_COPIES {
        return Err(fields::verdict(
            Reason::TooLarge,
            format!(
                "properties of {} bytes for each of {} entries are more than {MAX_COPIES} bytes together",
                shared.len(),
                entries.len()
            ),
        ));
    }
    let indexed = entries.iter().enumerate();
    let present = indexed.filter_map(|(index, entry)| Some((index, entry.as_ref()?)));
    present
        .map(|(index, entry)| {
            one(message, &base, &sent, entry, Some(index), &mut choices).map_err(|dead| at(index, dead))
        })
        .collect()
}

/// For each of these shards, the array with those entries alone that have their home there. `homes`: of its
/// items, in order; entries that were elsewhere before have none. The others become `null`, so that each
/// keeps its index.
pub(crate) fn parts(body: &[u8], homes: &[Option<u16>], shards: &[u16]) -> Vec<Vec<u8>> {
    // It has been read as an array before.
    let entries: Vec<&RawValue> = serde_json::from_slice(body).unwrap_or_default();
    let (mut parts, mut homes) = (vec![vec![b'[']; shards.len()], homes.iter());
    for (index, entry) in entries.into_iter().enumerate() {
        let home = if entry.get() == NOT_HERE { None } else { homes.next().copied().flatten() };
        for (part, shard) in parts.iter_mut().zip(shards) {
            if index > 0 {
                part.push(b',');
            }
            let text = if home == Some(*shard) { entry.get() } else { NOT_HERE };
            part.extend_from_slice(text.as_bytes());
        }
    }
    for part in &mut parts {
        part.push(b']');
        part.shrink_to_fit();
    }
    parts
}

/// Names that can be read from a rejected envelope.
#[derive(Debug, Default)]
pub(crate) struct EnvelopeNames {
    pub application: Option<Box<str>>,
    pub customer: Option<Box<str>>,
}

/// The names in a single object, whatever else is wrong with it. The entries of an array may differ, so an
/// array gives none.
pub(crate) fn names(body: &[u8]) -> EnvelopeNames {
    #[derive(Deserialize)]
    struct Loose<'a> {
        #[serde(borrow)]
        application: Option<&'a RawValue>,
        #[serde(borrow)]
        customer: Option<&'a RawValue>,
    }
    // An array would be read as the fields in order.
    let object = std::str::from_utf8(body).ok().filter(|text| !is_array(text));
    let Some(loose) = object.and_then(|text| serde_json::from_str::<Loose<'_>>(text).ok()) else {
        return EnvelopeNames::default();
    };
    let name = |value| text_of("", value, MAX_NAME).ok().flatten().map(Into::into);
    EnvelopeNames { application: name(loose.application), customer: name(loose.customer) }
}

pub(crate) fn is_array(text: &str) -> bool {
    text.trim_start_matches([' ', '\t', '\r', '\n']).starts_with('[')
}

fn at(index: usize, dead: Dead) -> Dead {
    fields::verdict(dead.reason, format!("entry {index}: {}", dead.error))
}

/// The entries of an array, at least one and at most `max`. `is_part`: some are elsewhere.
fn array(text: &str, max: usize, is_part: bool) -> Result<Vec<Option<EnvelopeEntry<'_>>>, Dead> {
    let mut reader = serde_json::Deserializer::from_str(text);
    let mut list = List { max, is_part, entries: Vec::new(), too_many: false };
    let read = reader.deserialize_seq(&mut list);
    let List { entries, too_many, .. } = list;
    match read {
        _ if too_many => Err(fields::verdict(
            Reason::TooLarge,
            format!("the envelope has more entries than limits.max_envelope_items ({max})"),
        )),
        Err(error) => Err(fields::invalid(format!("entry {} is not understood: {error}", entries.len()))),
        Ok(()) if reader.end().is_err() => Err(fields::invalid("the envelope has text after its array")),
        Ok(()) if entries.is_empty() => Err(fields::invalid("the envelope is an empty array")),
        Ok(()) => Ok(entries),
    }
}

/// Collects entries until there are too many: what follows is not even read.
struct List<'de> {
    max: usize,
    is_part: bool,
    entries: Vec<Option<EnvelopeEntry<'de>>>,
    too_many: bool,
}

impl<'de> Visitor<'de> for &mut List<'de> {
    type Value = ();

    fn expecting(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("an array of objects")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<(), A::Error> {
        while let Some(entry) = from.next_element_seed(Object { may_be_elsewhere: self.is_part })? {
            if self.entries.len() == self.max {
                self.too_many = true;
                return Err(serde::de::Error::custom("too many entries"));
            }
            self.entries.push(entry);
        }
        Ok(())
    }
}

/// Reads one entry, from an object only: serde would take an array as the fields in order.
struct Object {
    may_be_elsewhere: bool,
}

impl<'de> serde::de::DeserializeSeed<'de> for Object {
    type Value = Option<EnvelopeEntry<'de>>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        match self.may_be_elsewhere {
            true => from.deserialize_any(self),
            false => from.deserialize_map(self),
        }
    }
}

impl<'de> Visitor<'de> for Object {
    type Value = Option<EnvelopeEntry<'de>>;

    fn expecting(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("an object")
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<Self::Value, E> {
        match self.may_be_elsewhere {
            true => Ok(None),
            false => Err(E::invalid_type(serde::de::Unexpected::Unit, &self)),
        }
    }

    fn visit_map<A: serde::de::MapAccess<'de>>(self, from: A) -> Result<Self::Value, A::Error> {
        EnvelopeEntry::deserialize(serde::de::value::MapAccessDeserializer::new(from)).map(Some)
    }
}

/// Makes an item of one entry. `base`: the message's headers without those that carry fields; `sent`: hash
/// over the message without its body.
fn one(
    message: &Message<'_>,
    base: &[u8],
    sent: &Fingerprint,
    entry: &EnvelopeEntry<'_>,
    index: Option<usize>,
    choices: &mut Choices<'_>,
) -> Result<NewItem, Dead> {
    let application = match text_of("application", entry.application, MAX_NAME)? {
        Some(name) => name,
        None => message.application()?.ok_or_else(|| {
            fields::invalid("application is missing, and neither x-application nor a routing key names one")
        })?,
    };
    let customer = text_of("customer", entry.customer, MAX_NAME)?;
    let mut own = message.own_times(&application);
    let deliver_at = given_of("deliver_at", entry.deliver_at, Rounding::Up)?;
    own.at("deliver_at", deliver_at, ShownJson(entry.deliver_at))?;
    let delay_ms = given_of("delay_ms", entry.delay_ms, Rounding::Up)?;
    own.after("delay_ms", delay_ms, ShownJson(entry.delay_ms))?;
    let before = given_of("deliver_before", entry.deliver_before, Rounding::Down)?;
    let expiry = fields::expiry("deliver_before", before, ShownJson(entry.deliver_before))?;
    let rule = text_of("on_duplicate", entry.on_duplicate, MAX_NAME)?;
    let on_duplicate = fields::duplicate_rule("on_duplicate", rule.as_deref())?;
    let id = id_of(message, entry, index)?;
    let content_type = text_of("content_type", entry.content_type, MAX_CONTENT_TYPE)?
        .unwrap_or(Cow::Borrowed(DEFAULT_CONTENT_TYPE));
    let body = payload(entry, is_json_type(&content_type))?;

    let basic = Basic {
        content_type: Some(&content_type),
        content_encoding: None,
        message_id: id.as_deref(),
        ..message.basic
    };
    let Ok(properties) = basic.write(|out| {
        out.extend_from_slice(base);
        put_header_text(out, fields::APPLICATION, &application);
        if let Some(customer) = &customer {
            put_header_text(out, fields::CUSTOMER, customer);
        }
        match (deliver_at, delay_ms, own.moment()) {
            (Some(_), _, Some(at)) => put_header_number(out, fields::DELIVER_AT, at),
            (None, Some(_), Some(at)) => put_header_number(out, fields::DELAY, own.delay_until(at)),
            _ => {}
        }
        if let Some(expiry) = expiry {
            // Text may name a moment so early that as a number it would be taken for seconds.
            put_header_number(out, fields::DELIVER_BEFORE, expiry.max(FIRST_PLAUSIBLE_MS));
        }
        if let Some(rule) = rule.as_deref().filter(|_| on_duplicate != DuplicateRule::Keep) {
            put_header_text(out, fields::ON_DUPLICATE, rule);
        }
        Ok::<_, Infallible>(())
    });
    let comeback = message.comeback(&application);
    let at = Comeback::due(comeback.as_ref(), own.moment());
    let (tried, over) = Comeback::apply(comeback.as_ref(), message.tried(id.as_deref()));
    let terms = Terms {
        application: application.into(),
        customer: customer.map(Into::into),
        at,
        expiry,
        on_duplicate,
        fingerprint: id.as_deref().map_or(0, |id| entry.fingerprint(sent, id)),
        tried,
        over,
        event: 0,
    };
    Ok(item(&basic, terms, properties, body, choices))
}

/// Its own id, else the message's; in an array the latter with the index, so that each entry has a different
/// one.
fn id_of<'a>(
    message: &Message<'a>,
    entry: &EnvelopeEntry<'a>,
    index: Option<usize>,
) -> Result<Option<Cow<'a, str>>, Dead> {
    if let Some(id) = text_of("id", entry.id, MAX_ID)? {
        return Ok(Some(id));
    }
    match (message.basic.message_id, index) {
        (None, _) => Ok(None),
        (Some(id), None) => Ok(Some(Cow::Borrowed(id))),
        (Some(id), Some(index)) => {
            fields::bounded("message_id with the index", Cow::Owned(format!("{id}/{index}")), MAX_ID)
        }
    }
}

/// The payload's bytes: JSON as written; with a content type that is not JSON, a string is its text.
fn payload(entry: &EnvelopeEntry<'_>, json: bool) -> Result<Vec<u8>, Dead> {
    // A null payload is a payload; a null payload_base64 is absent, like any other field's null.
    let base64 = entry.payload_base64.filter(|value| value.get() != "null");
    match (entry.payload, base64) {
        (Some(_), Some(_)) => Err(fields::invalid("payload and payload_base64 exclude each other")),
        (None, None) => Err(fields::invalid("there is neither payload nor payload_base64")),
        (Some(payload), None) if json => Ok(payload.get().as_bytes().to_vec()),
        (Some(payload), None) => match string_of("payload", payload)? {
            Some(text) => Ok(text.into_owned().into_bytes()),
            None => Ok(payload.get().as_bytes().to_vec()),
        },
        (None, Some(value)) => {
            let text = string_of("payload_base64", value)?.ok_or_else(|| {
                fields::invalid(format!("payload_base64 must be text, not {}", ShownJson(Some(value))))
            })?;
            STANDARD.decode(text.as_bytes()).map_err(|error| {
                fields::invalid(format!("payload_base64 is not padded standard base64: {error}"))
            })
        }
    }
}

/// A field that is text, or an integer, which counts as its decimal text. Null and empty are absent.
pub fn text_of<'a>(
    name: &str,
    value: Option<&'a RawValue>,
    max: usize,
) -> Result<Option<Cow<'a, str>>, Dead> {
    let Some(value) = value.filter(|value| value.get() != "null") else {
        return Ok(None);
    };
    let text = match string_of(name, value)? {
        Some(text) => text,
        None if is_integer(value.get()) => Cow::Borrowed(value.get()),
        None => {
            return Err(fields::invalid(format!(
                "{name} must be text or an integer, not {}",
                ShownJson(Some(value))
            )));
        }
    };
    fields::bounded(name, text, max)
}

fn is_integer(json: &str) -> bool {
    let digits = json.strip_prefix('-').unwrap_or(json);
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

/// A time field: number or text. Null and empty are absent.
pub(crate) fn given_of(
    name: &str,
    value: Option<&RawValue>,
    rounding: Rounding,
) -> Result<Option<Given>, Dead> {
    let Some(value) = value.filter(|value| value.get() != "null") else {
        return Ok(None);
    };
    let given = match string_of(name, value)? {
        Some(text) => time::of_text(text.as_bytes(), rounding),
        None => time::of_json_number(value.get(), rounding).map(Some),
    };
    given.map_err(|fault| fields::time_fault(name, fault, ShownJson(Some(value))))
}

/// The text of a JSON string; `None`: another kind of value.
fn string_of<'a>(name: &str, value: &'a RawValue) -> Result<Option<Cow<'a, str>>, Dead> {
    let json = value.get();
    let Some(inner) = json.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) else {
        return Ok(None);
    };
    if !inner.contains('\\') {
        return Ok(Some(Cow::Borrowed(inner)));
    }
    serde_json::from_str::<String>(json)
        .map(|text| Some(Cow::Owned(text)))
        .map_err(|_| fields::invalid(format!("{name} is not Unicode text: {}", ShownJson(Some(value)))))
}

/// A value for a sentence, formatted only when one is needed.
pub(crate) struct ShownJson<'a>(pub Option<&'a RawValue>);

impl std::fmt::Display for ShownJson<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(&self.0.map(|value| fields::show_text(value.get())).unwrap_or_default())
    }
}
