//! Requests that are CloudEvents themselves, as the AMQP binding carries them (CloudEvents 1.0, AMQP protocol
//! binding 1.0.2, sections 3.1 and 3.2). In structured form the body is the event; in binary form headers are
//! its attributes and the body is its data. In a batch of the format `cloudevents` such a request is that
//! event, and not the data of another.
//!
//! A request that lacks one of the four required attributes, or has one in a form that a strict reader would
//! refuse (and with it the whole batch), is treated as any other request.

use super::copied::{is_moment, push_attribute, push_name, Copied};
use super::json::{coding, is_media_type, media_type, push_number, push_one_line, push_payload, push_string};
use super::properties::{entries, Basic, RawValue};
use base64::prelude::{Engine as _, BASE64_STANDARD};
use fluent_uri::{Uri, UriRef};
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use std::borrow::Cow;
use std::fmt;
use tidegate_config::rfc3339::{rfc3339_ms, Rounding};
use tidegate_types::Content;

/// Content type of an event in structured form.
const STRUCTURED: &str = "application/cloudevents+json";
/// Prefixes of attributes among the headers; the second is for clients that cannot write the first.
const PREFIXES: [&str; 2] = ["cloudEvents:", "cloudEvents_"];
/// Headers that are no attributes: the body and its content type stand for them.
const NO_ATTRIBUTES: [&str; 3] = ["data", "data_base64", "datacontenttype"];
/// Attributes that every event has.
const REQUIRED: [&str; 4] = ["specversion", "id", "source", "type"];
/// Most members of an event, or attributes among the headers; a request with more is no event. Each is
/// compared with all before it, and events have a dozen.
const MOST_MEMBERS: usize = 128;
/// Attributes that must be text of a certain form if they are present; `due` is tidegate's.
const TEXTS: [&str; 8] =
    ["specversion", "id", "source", "type", "subject", "dataschema", "datacontenttype", "due"];
const TIME: &str = "time";
/// The only version that is understood.
const VERSION: &str = "1.0";

/// A request that is an event.
#[derive(Debug)]
pub(crate) enum OwnEvent<'a> {
    /// The body is the event.
    Structured {
        /// Names of its members.
        names: Vec<Cow<'a, str>>,
    },
    /// Headers are its attributes, by name; the required ones are there.
    Binary {
        /// No name occurs twice.
        attributes: Vec<(&'a str, RawValue<'a>)>,
    },
}

/// Whether a header may be an attribute of an event.
pub(crate) fn is_attribute(header: &str) -> bool {
    PREFIXES.iter().any(|prefix| header.starts_with(prefix))
}

/// Most bytes that the attributes of a request's own event add to its entry. `table`: its header table with
/// the length.
pub(crate) fn cost(table: &[u8]) -> usize {
    let mut out = Vec::new();
    if let Some(attributes) = attributes(table) {
        attributes.into_iter().for_each(|(name, value)| push(&mut out, name, value));
    }
    out.len()
}

impl<'a> OwnEvent<'a> {
    /// The event that this request is, if it is one. `table`: its header table with the length.
    pub(crate) fn of(basic: &Basic<'a>, table: &'a [u8], content: &'a Content) -> Option<Self> {
        let is_structured =
            basic.content_type.is_some_and(|text| media_type(text).eq_ignore_ascii_case(STRUCTURED));
        if is_structured {
            let names = if content.json { names(&content.body) } else { None };
            return names.map(|names| OwnEvent::Structured { names });
        }
        attributes(table).map(|attributes| OwnEvent::Binary { attributes })
    }

    fn has(&self, name: &str) -> bool {
        match self {
            OwnEvent::Structured { names } => names.iter().any(|known| known == name),
            OwnEvent::Binary { attributes } => attributes.iter().any(|(known, _)| *known == name),
        }
    }

    /// Writes the event, and adds its due and the copied fields where it has no attributes of these names.
    pub(crate) fn push(
        &self,
        out: &mut Vec<u8>,
        (basic, copied): (&Basic<'_>, &Copied<'_>),
        content: &Content,
        due: u64,
    ) {
        match self {
            OwnEvent::Structured { .. } => {
                let end = content.body.iter().rposition(|byte| *byte == b'}').unwrap_or(content.body.len());
                push_one_line(out, &content.body[..end]);
                self.push_added(out, copied, due);
            }
            OwnEvent::Binary { attributes } => {
                // One of them comes first, without a comma.
                out.extend_from_slice(b"{\"specversion\":\"1.0\"");
                for (name, value) in attributes.iter().filter(|(name, _)| *name != REQUIRED[0]) {
                    push(out, name, *value);
                }
                if let Some(content_type) = basic.content_type.filter(|text| is_media_type(text)) {
                    out.extend_from_slice(b",\"datacontenttype\":");
                    push_string(out, content_type);
                }
                if let Some(encoding) =
                    coding(basic.content_encoding).filter(|_| !self.has("contentencoding"))
                {
                    out.extend_from_slice(b",\"contentencoding\":");
                    push_string(out, encoding);
                }
                self.push_added(out, copied, due);
                push_payload(out, "data", content);
            }
        }
        out.push(b'}');
    }

    fn push_added(&self, out: &mut Vec<u8>, copied: &Copied<'_>, due: u64) {
        if !self.has("due") {
            out.extend_from_slice(b",\"due\":\"");
            push_number(out, due);
            out.push(b'"');
        }
        copied.push_attributes(out, &|name| self.has(name));
    }
}

fn push(out: &mut Vec<u8>, name: &str, value: RawValue<'_>) {
    push_name(out, name);
    push_attribute(out, value);
}

/// The attributes among the headers, if they are those of an event. Of an attribute under both prefixes the
/// first one counts.
fn attributes(table: &[u8]) -> Option<Vec<(&str, RawValue<'_>)>> {
    let mut found: Vec<(&str, RawValue<'_>)> = Vec::new();
    for (header, value) in entries(table.get(4..).unwrap_or_default()) {
        let Some(name) = PREFIXES.iter().find_map(|prefix| header.strip_prefix(prefix)) else { continue };
        let named = is_name(name);
        let is_new = !NO_ATTRIBUTES.contains(&name) && found.iter().all(|(known, _)| *known != name);
        if named && is_new && value.kind != b'V' {
            if found.len() == MOST_MEMBERS {
                return None;
            }
            found.push((name, value));
        }
    }
    let text = |name: &str| {
        let (_, value) = found.iter().find(|(known, _)| *known == name)?;
        let text = std::str::from_utf8(value.bytes).ok().filter(|_| value.kind == b'S')?;
        (!text.is_empty()).then_some(text)
    };
    let good = REQUIRED.into_iter().all(|name| text(name).is_some())
        && found.iter().all(|(name, value)| match *name {
            TIME => is_moment(*value) || text(TIME).is_some_and(is_time),
            name if TEXTS.contains(&name) => text(name).is_some_and(|text| has_form(name, text)),
            _ => true,
        });
    good.then_some(found)
}

/// Whether a text is valid for the attribute of this name (CloudEvents 1.0, "Context Attributes"): strict
/// readers refuse the whole batch over an invalid one.
fn has_form(name: &str, text: &str) -> bool {
    match name {
        "specversion" => text == VERSION,
        "source" => !text.is_empty() && UriRef::parse(text).is_ok(),
        "dataschema" => Uri::parse(text).is_ok(),
        "datacontenttype" => is_media_type(text),
        _ => !text.is_empty(),
    }
}

/// Whether a text is a moment in the form of an event. Strict readers take neither lower-case letters nor a
/// space, and no leap second.
fn is_time(text: &str) -> bool {
    let is_strict = text.get(10..11) == Some("T") && text.get(17..19) != Some("60") && !text.ends_with('z');
    is_strict && rfc3339_ms(text, Rounding::Up).is_some()
}

/// Whether this is a valid name of an attribute.
fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
}

/// Names of the members of a structured event, if the body is one.
fn names(body: &[u8]) -> Option<Vec<Cow<'_, str>>> {
    let mut from = serde_json::Deserializer::from_slice(body);
    from.deserialize_map(EventMembers).ok().filter(|_| from.end().is_ok())
}

/// Reads the names of an object's members, and checks those that every event has.
struct EventMembers;

impl<'de> Visitor<'de> for EventMembers {
    type Value = Vec<Cow<'de, str>>;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an event")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut names: Vec<Cow<'de, str>> = Vec::new();
        let mut required = 0;
        while let Some(Name(name)) = map.next_key()? {
            if names.contains(&name) || names.len() == MOST_MEMBERS {
                return Err(serde::de::Error::custom("a member is there twice, or there are too many"));
            }
            let good = match &*name {
                "data" => map.next_value::<IgnoredAny>().map(|_| true)?,
                TIME => is_time(&map.next_value::<Name<'de>>()?.0),
                name if TEXTS.contains(&name) => {
                    required += usize::from(REQUIRED.contains(&name));
                    has_form(name, &map.next_value::<Name<'de>>()?.0)
                }
                "data_base64" => BASE64_STANDARD.decode(&*map.next_value::<Name<'de>>()?.0).is_ok(),
                name => map.next_value::<Scalar>().map(|_| is_name(name))?,
            };
            let both = name == "data" && names.iter().any(|known| known == "data_base64")
                || name == "data_base64" && names.iter().any(|known| known == "data");
            if !good || both {
                return Err(serde::de::Error::custom("a member is not what an event's is"));
            }
            names.push(name);
        }
        if required < REQUIRED.len() {
            return Err(serde::de::Error::custom("it lacks what every event has"));
        }
        Ok(names)
    }
}

/// The value of an attribute that is an extension: none, a boolean, a whole number of 32 bits, or text. Any
/// other is refused unread: what an array or an object takes in memory is many times its length.
struct Scalar;

impl<'de> serde::Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Scalar)
    }
}

impl Visitor<'_> for Scalar {
    type Value = Self;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("none, a boolean, a whole number of 32 bits, or text")
    }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<Self, E> {
        i32::try_from(number).map(|_| self).map_err(E::custom)
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Self, E> {
        i32::try_from(number).map(|_| self).map_err(E::custom)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self, E> {
        Ok(self)
    }
}

/// Text, borrowed where it has no escapes.
#[derive(serde::Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

#[cfg(test)]
mod tests {
    use super::*;
    use serde::de::value::{Error, SeqDeserializer};
    use serde::Deserialize as _;
    use std::cell::Cell;

    #[test]
    fn an_extension_is_none_a_boolean_a_short_whole_number_or_text() {
        let is_event = |value: &str| {
            let required = r#""specversion":"1.0","id":"e","source":"s","type":"t""#;
            names(format!("{{{required},\"x\":{value}}}").as_bytes()).is_some()
        };
        let numbers = ["0", "-1", "2147483647", "-2147483648"];
        let others = ["null", "true", "false", "\"\"", r#""text""#, r#""a\u00e9\n" "#];
        for value in numbers.into_iter().chain(others) {
            assert!(is_event(value), "{value}");
        }
        let numbers = ["2147483648", "-2147483649", "18446744073709551616", "-0", "1.0", "1e3", "1e999"];
        let others = ["[]", "[1]", "[[[]]]", "{}", r#"{"a":1}"#, "nul", r#""text"#, ""];
        for value in numbers.into_iter().chain(others) {
            assert!(!is_event(value), "{value}");
        }
        // None of these overflows the stack, or is built.
        for open in ["[", r#"{"a":"#] {
            assert!(!is_event(&open.repeat(1 << 20)));
        }
        assert!(!is_event(&format!("[{}1]", "[],".repeat(1 << 18))));
    }

    /// Excluded: an array that is built, in many times its length, and then refused.
    #[test]
    fn an_array_is_refused_before_its_first_element_is_read() {
        let read = Cell::new(0);
        let elements = (0..1_000_u32).inspect(|_| read.set(read.get() + 1));
        let refused = Scalar::deserialize(SeqDeserializer::<_, Error>::new(elements)).is_err();
        assert!(refused && read.get() == 0, "{} elements were read", read.get());
    }
}
