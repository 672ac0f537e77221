//! Properties and headers of a request that go into its entry of a batch, beside the contract's fields.
//!
//! They are chosen once, when the request is read, by the configuration of that moment, and the choice is
//! stored with the properties. So an item's part of a batch is as long as its weight says, whatever is
//! configured when it leaves, and a batch that is sent again is identical. The values themselves are read
//! from the stored properties.
//!
//! The choice in bytes: properties u8, one bit each in the order of [`CopiedProperty::ALL`], the highest for
//! the trace context; then a u16 for each header, its place in the table, ascending.

use super::json::{push_base64, push_number, push_string};
use super::properties::{elements, entries, put_choice, Basic, RawValue, MAX_DEPTH};
use super::trace::{state, SpanContext, TRACEPARENT, TRACESTATE};
use jiff::Timestamp;
use std::io::Write as _;
use tidegate_config::{event_name, is_event_member, CopiedProperty, Reading, Readings};

/// The bit of the trace context among the chosen properties.
const TRACED: u8 = 0x80;
const _: () = assert!(CopiedProperty::ALL.len() < 8);

/// First second of the year 0: RFC 3339 has no years before it.
const FIRST_SECOND: i64 = -62_167_219_200;

/// Chosen properties and headers of one item.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copied<'a> {
    basic: Basic<'a>,
    /// The entries of the header table, without its length.
    table: &'a [u8],
    /// See the module's page; empty where nothing was chosen.
    choice: &'a [u8],
}

/// A chosen property.
enum PropertyValue<'a> {
    Text(&'a str),
    Number(u8),
    Seconds(u64),
}

/// A choice for an entry, and its length.
#[derive(Debug, Default)]
pub(crate) struct Choice {
    bytes: Vec<u8>,
    /// Most bytes that it adds to an entry, in any format.
    pub cost: usize,
}

impl Choice {
    /// Chooses of stored properties what `reading` names and the request has. `traced`: it may have a trace
    /// context.
    fn of(stored: &[u8], reading: &Reading, traced: bool) -> Self {
        let traced = traced && reading.traces;
        if reading.copies.is_empty() && !traced {
            return Choice::default();
        }
        let Some((basic, table)) = Basic::parse(stored) else { return Choice::default() };
        let copies = &*reading.copies;
        let traced = traced && trace_of(table.get(4..).unwrap_or_default()).is_some();
        let mut bytes = vec![if traced { TRACED } else { 0 }];
        for (bit, (_, property)) in CopiedProperty::ALL.iter().enumerate() {
            if copies.properties.contains(property) && value_of(&basic, *property).is_some() {
                bytes[0] |= 1 << bit;
            }
        }
        for (place, (name, _)) in (0_u16..).zip(entries(table.get(4..).unwrap_or_default())) {
            if copies.headers.iter().any(|header| header == name) {
                bytes.extend_from_slice(&place.to_be_bytes());
            }
        }
        if bytes == [0] {
            return Choice::default();
        }
        // Measured as it will be written, so that the bound and the encoder cannot differ.
        let copied = Copied::of(basic, table, &bytes);
        let (mut fields, mut attributes) = (Vec::new(), Vec::new());
        copied.push_fields(&mut fields);
        copied.push_attributes(&mut attributes, &|_| false);
        let cost = fields.len().max(attributes.len());
        Choice { bytes, cost }
    }

    /// Stores the choice with the properties that it was made from.
    pub(crate) fn keep(&self, stored: &mut Vec<u8>) {
        if !self.bytes.is_empty() {
            put_choice(stored, &self.bytes);
        }
    }
}

/// The choices of one message, whose entries may be of different applications.
pub(crate) struct Choices<'a> {
    readings: &'a Readings,
    traced: bool,
    made: Vec<(&'a Reading, Choice)>,
}

impl<'a> Choices<'a> {
    /// `traced`: the message may have a trace context.
    pub(crate) fn new(readings: &'a Readings, traced: bool) -> Self {
        Choices { readings, traced, made: Vec::new() }
    }

    /// The choice for an entry of this application. Entries do not differ in anything that can be chosen, so
    /// it is made and measured once for all of them.
    pub(crate) fn of(&mut self, application: &str, stored: &[u8]) -> &Choice {
        let reading = self.readings.of(application);
        let known = self.made.iter().position(|(made, _)| std::ptr::eq(*made, reading));
        let at = known.unwrap_or_else(|| {
            self.made.push((reading, Choice::of(stored, reading, self.traced)));
            self.made.len() - 1
        });
        &self.made[at].1
    }
}

impl<'a> Copied<'a> {
    /// From the parts that [`Basic::parse_with_choice`] returns.
    pub(crate) fn of(basic: Basic<'a>, table: &'a [u8], choice: &'a [u8]) -> Self {
        Copied { basic, table: table.get(4..).unwrap_or_default(), choice }
    }

    /// For `json` and `ndjson`: `,"correlation_id":".."` and the like, then `,"headers":{..}`.
    pub(crate) fn push_fields(&self, out: &mut Vec<u8>) {
        for (property, value) in self.properties() {
            push_name(out, property.name());
            push_property(out, value);
        }
        let mut opened = false;
        for (name, value) in self.headers() {
            out.extend_from_slice(if opened { b"," } else { b",\"headers\":{" });
            opened = true;
            push_string(out, name);
            out.push(b':');
            push_value(out, value, 0);
        }
        if opened {
            out.push(b'}');
        }
        // A header that is copied by name is among the headers already.
        let named = |field: &str| self.headers().any(|(name, _)| name == field);
        for (name, text) in self.trace_fields().filter(|(name, _)| !named(name)) {
            push_name(out, name);
            push_string(out, text);
        }
    }

    /// The trace context of its entry, with its state.
    pub(crate) fn trace(&self) -> Option<(SpanContext, Option<&'a str>)> {
        let traced = self.choice.first().is_some_and(|chosen| chosen & TRACED != 0);
        let (text, state) = traced.then(|| trace_of(self.table)).flatten()?;
        Some((SpanContext::parse(text.as_bytes())?, state))
    }

    fn trace_fields(&self) -> impl Iterator<Item = (&'static str, &'a str)> {
        let traced = self.choice.first().is_some_and(|chosen| chosen & TRACED != 0);
        let found = traced.then(|| trace_of(self.table)).flatten();
        let fields = found.map(|(text, state)| [Some((TRACEPARENT, text)), state.map(|s| (TRACESTATE, s))]);
        fields.into_iter().flatten().flatten()
    }

    /// For `cloudevents`: `,"correlationid":".."` and the like.
    ///
    /// The configuration refuses names that events cannot carry. What was chosen for another format is left
    /// out where its name is taken, so that no name occurs twice; so are names that the request's own event
    /// `has`.
    pub(crate) fn push_attributes(&self, out: &mut Vec<u8>, has: &dyn Fn(&str) -> bool) {
        let mut taken: Vec<String> = Vec::new();
        let mut take = |name: &str| {
            let name = event_name(name);
            let free = !name.is_empty() && !is_event_member(&name) && !has(&name) && !taken.contains(&name);
            free.then(|| {
                taken.push(name.clone());
                name
            })
        };
        for (property, value) in self.properties() {
            // Every event has the request's type already.
            let Some(name) = take(property.name()) else { continue };
            push_name(out, &name);
            push_property(out, value);
        }
        for (name, value) in self.headers().filter(|(_, value)| value.kind != b'V') {
            let Some(name) = take(name) else { continue };
            push_name(out, &name);
            push_attribute(out, value);
        }
        // The names of the CloudEvents extension for tracing. Both or none: a state belongs to its context.
        if take(TRACEPARENT).is_some() {
            for (name, text) in self.trace_fields().filter(|(name, _)| !has(name)) {
                push_name(out, name);
                push_string(out, text);
            }
        }
    }

    fn properties(self) -> impl Iterator<Item = (CopiedProperty, PropertyValue<'a>)> {
        let chosen = self.choice.first().copied().unwrap_or(0);
        let all = CopiedProperty::ALL.iter().enumerate();
        all.filter(move |(bit, _)| chosen & (1 << bit) != 0)
            .filter_map(move |(_, (_, property))| Some((*property, value_of(&self.basic, *property)?)))
    }

    fn headers(self) -> impl Iterator<Item = (&'a str, RawValue<'a>)> {
        let places = self.choice.get(1..).unwrap_or_default().chunks_exact(2);
        let mut places = places.map(|place| u16::from_be_bytes([place[0], place[1]])).peekable();
        // The table is read no further than the last place.
        (0_u16..)
            .zip(entries(self.table))
            .map_while(move |(place, entry)| {
                let next = places.peek()?;
                Some((place == *next).then(|| {
                    places.next();
                    entry
                }))
            })
            .flatten()
    }
}

/// The text of a request's trace context, if it is valid, with its state. `table`: the entries of its
/// headers.
fn trace_of(table: &[u8]) -> Option<(&str, Option<&str>)> {
    let mut entries = entries(table).filter(|(_, value)| value.kind == b'S');
    let (mut context, mut added) = (None, None);
    for (name, value) in &mut entries {
        match name {
            TRACEPARENT => {
                context = SpanContext::parse(value.bytes).and(std::str::from_utf8(value.bytes).ok())
            }
            TRACESTATE => added = state(value.bytes),
            _ => {}
        }
    }
    Some((context?, added))
}

/// `None`: the request does not have it. Empty text counts as absent.
fn value_of<'a>(basic: &Basic<'a>, property: CopiedProperty) -> Option<PropertyValue<'a>> {
    let text = match property {
        CopiedProperty::CorrelationId => basic.correlation_id,
        CopiedProperty::ReplyTo => basic.reply_to,
        CopiedProperty::Kind => basic.kind,
        CopiedProperty::AppId => basic.app_id,
        CopiedProperty::ClusterId => basic.cluster_id,
        CopiedProperty::Timestamp => return basic.timestamp.map(PropertyValue::Seconds),
        CopiedProperty::Priority => return basic.priority.map(PropertyValue::Number),
    };
    text.filter(|text| !text.is_empty()).map(PropertyValue::Text)
}

fn push_property(out: &mut Vec<u8>, value: PropertyValue<'_>) {
    match value {
        PropertyValue::Text(text) => push_string(out, text),
        PropertyValue::Number(number) => push_number(out, number.into()),
        PropertyValue::Seconds(seconds) => push_seconds(out, seconds),
    }
}

pub(crate) fn push_name(out: &mut Vec<u8>, name: &str) {
    out.push(b',');
    push_string(out, name);
    out.push(b':');
}

/// Writes a header's value as JSON. `depth` counts the tables and arrays around it, and is bounded as it was
/// when the headers were stored.
pub(crate) fn push_value(out: &mut Vec<u8>, value: RawValue<'_>, depth: usize) {
    match value.kind {
        b'S' => match std::str::from_utf8(value.bytes) {
            Ok(text) => push_string(out, text),
            Err(_) => push_binary(out, value.bytes),
        },
        b'x' => push_binary(out, value.bytes),
        b'T' => push_seconds(out, u64::from_be_bytes(number(value.bytes))),
        b'f' | b'd' if !is_finite(value) => {
            out.push(b'"');
            push_plain(out, value);
            out.push(b'"');
        }
        b'A' if depth < MAX_DEPTH => {
            out.push(b'[');
            for (index, value) in elements(value.bytes).enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                push_value(out, value, depth + 1);
            }
            out.push(b']');
        }
        b'F' if depth < MAX_DEPTH => {
            out.push(b'{');
            for (index, (name, value)) in entries(value.bytes).enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                push_string(out, name);
                out.push(b':');
                push_value(out, value, depth + 1);
            }
            out.push(b'}');
        }
        b'A' | b'F' => out.extend_from_slice(b"null"),
        _ => push_plain(out, value),
    }
}

/// Writes a header's value as a CloudEvents attribute: a boolean, a number of 32 bits, or text. A table or an
/// array becomes the text of its JSON.
pub(crate) fn push_attribute(out: &mut Vec<u8>, value: RawValue<'_>) {
    match value.kind {
        b'S' | b'x' => match std::str::from_utf8(value.bytes) {
            Ok(text) if value.kind == b'S' => push_string(out, text),
            Ok(_) | Err(_) => push_base64(out, value.bytes),
        },
        b'T' => push_value(out, value, 0),
        b't' => push_plain(out, value),
        b'A' | b'F' => {
            let mut text = Vec::new();
            push_value(&mut text, value, 0);
            push_string(out, std::str::from_utf8(&text).unwrap_or_default());
        }
        _ if whole(value).is_some_and(|number| i32::try_from(number).is_ok()) => push_plain(out, value),
        _ => {
            out.push(b'"');
            push_plain(out, value);
            out.push(b'"');
        }
    }
}

/// Bytes that are not text: an object distinguishes them from text.
fn push_binary(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(b"{\"base64\":");
    push_base64(out, bytes);
    out.push(b'}');
}

/// Text: the moment in RFC 3339, or the number if it is outside the years of that (milliseconds by mistake,
/// say).
fn push_seconds(out: &mut Vec<u8>, seconds: u64) {
    // Writing to a vector does not fail.
    let _ = match moment(seconds) {
        Some(time) => write!(out, "\"{time}\""),
        None => write!(out, "\"{}\"", seconds.cast_signed()),
    };
}

/// The moment of a timestamp, if it is within the years of RFC 3339.
fn moment(seconds: u64) -> Option<Timestamp> {
    // Clients write moments before 1970 as two's complement.
    let seconds = seconds.cast_signed();
    Timestamp::from_second(seconds).ok().filter(|_| seconds >= FIRST_SECOND)
}

/// Whether a header's value is a timestamp that is written as a moment.
pub(crate) fn is_moment(value: RawValue<'_>) -> bool {
    value.kind == b'T' && moment(u64::from_be_bytes(number(value.bytes))).is_some()
}

/// Writes values that JSON has without quotes, and floats that JSON does not have.
fn push_plain(out: &mut Vec<u8>, value: RawValue<'_>) {
    let bytes = value.bytes;
    // Writing to a vector does not fail.
    let _ = match value.kind {
        b't' => write!(out, "{}", bytes != [0]),
        // The shortest digits that read back as the same number.
        b'f' if is_finite(value) => write!(out, "{:?}", f32::from_be_bytes(number(bytes))),
        b'd' if is_finite(value) => write!(out, "{:?}", f64::from_be_bytes(number(bytes))),
        b'f' => push_unbounded(out, f32::from_be_bytes(number(bytes)).into()),
        b'd' => push_unbounded(out, f64::from_be_bytes(number(bytes))),
        b'D' => push_decimal(out, bytes),
        _ => match whole(value) {
            Some(number) => write!(out, "{number}"),
            None => out.write_all(b"null"),
        },
    };
}

fn push_unbounded(out: &mut Vec<u8>, value: f64) -> std::io::Result<()> {
    let name = if value.is_nan() {
        "NaN"
    } else if value > 0.0 {
        "Infinity"
    } else {
        "-Infinity"
    };
    out.write_all(name.as_bytes())
}

/// As many decimals as its scale says, so that none of its digits is lost. Its value is signed.
fn push_decimal(out: &mut Vec<u8>, bytes: &[u8]) -> std::io::Result<()> {
    let scale = usize::from(bytes.first().copied().unwrap_or(0));
    let value = i32::from_be_bytes(number(bytes.get(1..).unwrap_or_default()));
    let digits = format!("{:0width$}", value.unsigned_abs(), width = scale + 1);
    let (before, behind) = digits.split_at(digits.len() - scale);
    let sign = if value < 0 { "-" } else { "" };
    let point = if scale > 0 { "." } else { "" };
    write!(out, "{sign}{before}{point}{behind}")
}

fn is_finite(value: RawValue<'_>) -> bool {
    match value.kind {
        b'f' => f32::from_be_bytes(number(value.bytes)).is_finite(),
        _ => f64::from_be_bytes(number(value.bytes)).is_finite(),
    }
}

/// An integer of any width; `None`: another type.
fn whole(value: RawValue<'_>) -> Option<i64> {
    let bytes = value.bytes;
    Some(match value.kind {
        b'b' => i8::from_be_bytes(number(bytes)).into(),
        b'B' => u8::from_be_bytes(number(bytes)).into(),
        b's' => i16::from_be_bytes(number(bytes)).into(),
        b'u' => u16::from_be_bytes(number(bytes)).into(),
        b'I' => i32::from_be_bytes(number(bytes)).into(),
        b'i' => u32::from_be_bytes(number(bytes)).into(),
        b'l' => i64::from_be_bytes(number(bytes)),
        _ => return None,
    })
}

/// The reader of a table has taken exactly as many bytes as the type has.
fn number<const N: usize>(bytes: &[u8]) -> [u8; N] {
    debug_assert_eq!(bytes.len(), N);
    bytes.first_chunk().copied().unwrap_or([0; N])
}
