//! Basic properties to bytes and back: cleaned of what must never be copied, bounded in depth.
//!
//! The stored form is AMQP's own wire encoding. The choice of what goes into the entries of batches may
//! follow it (see `copied`), marked by a flag that AMQP does not use. Batches are built from views that
//! borrow from those bytes; a header table is only decoded where it leaves as a table (`passthrough`, dead
//! letters). The delivery mode is not kept: it is 2 on every output.

use lapin::types::parsing::parse_field_table;
use lapin::types::{AMQPValue, FieldTable, ShortString, MAX_SHORT_STRING_LENGTH};
use lapin::BasicProperties;
use tidegate_config::terms::NEVER_COPIED;

/// Deepest nesting of tables and arrays inside the headers. RabbitMQ relays any depth, but the encoder here,
/// the decoder of the stored copy, and those of all consumers recurse.
pub(crate) const MAX_DEPTH: usize = 64;

const DELIVERY_MODE_PERSISTENT: u8 = 2;

/// The flag, counted from the highest, of a choice behind the properties. AMQP has 14 flags.
const CHOICE: u32 = 14;

/// Header of a foreign `user_id`: as a property the broker would refuse it and close the channel.
const USER_ID_HEADER: &str = "x-user-id";

/// The name by which a client asks for direct replies. RabbitMQ closes a channel that publishes with it and
/// does not consume them. By AMQP 1.0 a message may come with it; by AMQP 0-9-1 it is an address by then.
const DIRECT_REPLIES: &str = "amq.rabbitmq.reply-to";

/// The header table is nested deeper than [`MAX_DEPTH`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooDeep;

/// Properties without headers, borrowed from a message or from stored bytes. What is never copied has no
/// field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Basic<'a> {
    /// Empty is absent.
    pub content_type: Option<&'a str>,
    /// Empty is absent.
    pub content_encoding: Option<&'a str>,
    pub priority: Option<u8>,
    pub correlation_id: Option<&'a str>,
    pub reply_to: Option<&'a str>,
    /// Empty is absent.
    pub message_id: Option<&'a str>,
    pub timestamp: Option<u64>,
    /// The `type` property; empty is absent.
    pub kind: Option<&'a str>,
    pub app_id: Option<&'a str>,
    pub cluster_id: Option<&'a str>,
}

impl<'a> Basic<'a> {
    /// Of a message as it came.
    pub(crate) fn of(properties: &'a BasicProperties) -> Self {
        fn text(value: &Option<ShortString>) -> Option<&str> {
            value.as_ref().map(ShortString::as_str)
        }
        Basic {
            content_type: text(properties.content_type()).filter(|text| !text.is_empty()),
            content_encoding: text(properties.content_encoding()).filter(|text| !text.is_empty()),
            priority: *properties.priority(),
            correlation_id: text(properties.correlation_id()),
            reply_to: text(properties.reply_to()),
            message_id: text(properties.message_id()).filter(|text| !text.is_empty()),
            timestamp: *properties.timestamp(),
            kind: text(properties.kind()).filter(|text| !text.is_empty()),
            app_id: text(properties.app_id()),
            cluster_id: text(properties.cluster_id()),
        }
    }

    /// Of stored bytes, with the encoded header table (length included; empty if there is none). `None`:
    /// damage.
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        Self::parse_with_choice(bytes).map(|(basic, table, _)| (basic, table))
    }

    /// The same, with the choice that [`put_choice`] has put behind them; empty if there is none.
    pub(crate) fn parse_with_choice(bytes: &'a [u8]) -> Option<(Self, &'a [u8], &'a [u8])> {
        let mut from = TableReader(bytes);
        let flags = u16::from_be_bytes(from.array()?);
        let has = |bit: u32| flags & (1 << (15 - bit)) != 0;
        let content_type = from.text(has(0))?;
        let content_encoding = from.text(has(1))?;
        let table = if has(2) { from.table()? } else { &[] };
        let _delivery_mode = from.byte(has(3))?;
        let priority = from.byte(has(4))?;
        let correlation_id = from.text(has(5))?;
        let reply_to = from.text(has(6))?;
        let _expiration = from.text(has(7))?;
        let message_id = from.text(has(8))?;
        let timestamp = if has(9) { Some(u64::from_be_bytes(from.array()?)) } else { None };
        let kind = from.text(has(10))?;
        let _user_id = from.text(has(11))?;
        let app_id = from.text(has(12))?;
        let cluster_id = from.text(has(13))?;
        let basic = Basic {
            content_type,
            content_encoding,
            priority,
            correlation_id,
            reply_to,
            message_id,
            timestamp,
            kind,
            app_id,
            cluster_id,
        };
        Some((basic, table, if has(CHOICE) { from.0 } else { &[] }))
    }

    /// The stored bytes. `entries` writes header entries; without any, the table is left out.
    ///
    /// # Errors
    /// Those of `entries`.
    pub(crate) fn write<E>(&self, entries: impl FnOnce(&mut Vec<u8>) -> Result<(), E>) -> Result<Vec<u8>, E> {
        let mut out = Vec::with_capacity(256);
        out.extend_from_slice(&[0, 0]);
        let mut flags = 0_u16;
        let mut mark = |bit: u32| flags |= 1 << (15 - bit);
        put_text(&mut out, self.content_type, || mark(0));
        put_text(&mut out, self.content_encoding, || mark(1));
        let start = out.len();
        put_sized(&mut out, entries)?;
        if out.len() == start + 4 {
            out.truncate(start);
        } else {
            mark(2);
        }
        if let Some(priority) = self.priority {
            mark(4);
            out.push(priority);
        }
        put_text(&mut out, self.correlation_id, || mark(5));
        put_text(&mut out, self.reply_to, || mark(6));
        put_text(&mut out, self.message_id, || mark(8));
        if let Some(timestamp) = self.timestamp {
            mark(9);
            out.extend_from_slice(&timestamp.to_be_bytes());
        }
        put_text(&mut out, self.kind, || mark(10));
        put_text(&mut out, self.app_id, || mark(12));
        put_text(&mut out, self.cluster_id, || mark(13));
        out[..2].copy_from_slice(&flags.to_be_bytes());
        out.shrink_to_fit();
        Ok(out)
    }

    /// For the publisher: persistent, with these headers.
    pub(crate) fn to_amqp(self, headers: FieldTable) -> BasicProperties {
        self.to_transient(headers).with_delivery_mode(DELIVERY_MODE_PERSISTENT)
    }

    /// The same without a delivery mode.
    pub(crate) fn to_transient(self, headers: FieldTable) -> BasicProperties {
        let mut properties = BasicProperties::default().with_headers(headers);
        type Setter = fn(BasicProperties, ShortString) -> BasicProperties;
        let texts: [(Option<&str>, Setter); 8] = [
            (self.content_type, BasicProperties::with_content_type),
            (self.content_encoding, BasicProperties::with_content_encoding),
            (self.correlation_id, BasicProperties::with_correlation_id),
            (self.reply_to.filter(|address| *address != DIRECT_REPLIES), BasicProperties::with_reply_to),
            (self.message_id, BasicProperties::with_message_id),
            (self.kind, BasicProperties::with_type),
            (self.app_id, BasicProperties::with_app_id),
            (self.cluster_id, BasicProperties::with_cluster_id),
        ];
        for (text, set) in texts {
            if let Some(text) = text {
                properties = set(properties, short(text));
            }
        }
        if let Some(priority) = self.priority {
            properties = properties.with_priority(priority);
        }
        if let Some(timestamp) = self.timestamp {
            properties = properties.with_timestamp(timestamp);
        }
        properties
    }
}

/// A short string: never longer than the 255 bytes that the protocol can carry.
pub(crate) fn short(text: &str) -> ShortString {
    let mut end = text.len().min(MAX_SHORT_STRING_LENGTH);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    ShortString::try_new(&text[..end]).unwrap_or_default()
}

/// The header table of stored bytes, as [`Basic::parse`] gives it. Damage reads as no headers.
pub(crate) fn parse_table(table: &[u8]) -> FieldTable {
    if table.is_empty() {
        return FieldTable::default();
    }
    parse_field_table(table).map(|(_, table)| table).unwrap_or_default()
}

/// Writes the message's headers as table entries, without what is never copied and without those that `keep`
/// refuses; a `user_id` becomes a header.
///
/// # Errors
/// [`TooDeep`], and `out` holds an unfinished table.
pub(crate) fn put_headers(
    out: &mut Vec<u8>,
    properties: &BasicProperties,
    keep: impl Fn(&str, &AMQPValue) -> bool,
) -> Result<(), TooDeep> {
    let user_id = properties.user_id().as_ref().filter(|text| !text.as_str().is_empty());
    for (name, value) in properties.headers().iter().flatten() {
        let name = name.as_str();
        let replaced = user_id.is_some() && name == USER_ID_HEADER;
        if !replaced && !NEVER_COPIED.contains(&name) && keep(name, value) {
            put_named(out, name, value)?;
        }
    }
    if let Some(user_id) = user_id {
        put_header_text(out, USER_ID_HEADER, user_id.as_str());
    }
    Ok(())
}

/// Writes one entry.
///
/// # Errors
/// [`TooDeep`], and `out` holds an unfinished table.
pub(crate) fn put_named(out: &mut Vec<u8>, name: &str, value: &AMQPValue) -> Result<(), TooDeep> {
    put_name(out, name);
    put_value(out, value, 0)
}

/// Writes one entry, text.
pub(crate) fn put_header_text(out: &mut Vec<u8>, name: &str, text: &str) {
    put_name(out, name);
    out.push(b'S');
    put_long(out, text.as_bytes());
}

/// Writes one entry, a signed 64-bit number.
pub(crate) fn put_header_number(out: &mut Vec<u8>, name: &str, number: u64) {
    put_name(out, name);
    out.push(b'l');
    out.extend_from_slice(&signed(number).to_be_bytes());
}

/// Puts a choice behind stored bytes that have none.
pub(crate) fn put_choice(bytes: &mut Vec<u8>, choice: &[u8]) {
    let Some(flags) = bytes.first_chunk_mut() else { return };
    *flags = (u16::from_be_bytes(*flags) | 1 << (15 - CHOICE)).to_be_bytes();
    bytes.reserve_exact(choice.len());
    bytes.extend_from_slice(choice);
}

/// Whether there is a choice behind stored bytes.
pub(crate) fn has_choice(bytes: &[u8]) -> bool {
    bytes.first_chunk().is_some_and(|flags| u16::from_be_bytes(*flags) & 1 << (15 - CHOICE) != 0)
}

/// The nearest signed number.
pub(crate) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn put_name(out: &mut Vec<u8>, name: &str) {
    put_text(out, Some(name), || ());
}

fn put_text(out: &mut Vec<u8>, text: Option<&str>, mark: impl FnOnce()) {
    let Some(text) = text else { return };
    mark();
    // Texts come from short strings, or were measured when they were read.
    debug_assert!(text.len() <= MAX_SHORT_STRING_LENGTH);
    let bytes = &text.as_bytes()[..text.len().min(MAX_SHORT_STRING_LENGTH)];
    out.push(bytes.len() as u8);
    out.extend_from_slice(bytes);
}

fn put_long(out: &mut Vec<u8>, bytes: &[u8]) {
    // The bytes came in frames of 128 KiB, or were cut to less.
    debug_assert!(u32::try_from(bytes.len()).is_ok());
    out.extend_from_slice(&(bytes.len() as u32).to_be_bytes());
    out.extend_from_slice(bytes);
}

/// Writes what `fill` writes, behind its length.
fn put_sized<E>(out: &mut Vec<u8>, fill: impl FnOnce(&mut Vec<u8>) -> Result<(), E>) -> Result<(), E> {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    fill(out)?;
    let length = (out.len() - start - 4) as u32;
    out[start..start + 4].copy_from_slice(&length.to_be_bytes());
    Ok(())
}

/// `depth` counts the tables and arrays around the value, and bounds the recursion.
fn put_value(out: &mut Vec<u8>, value: &AMQPValue, depth: usize) -> Result<(), TooDeep> {
    // A short string is not allowed inside a table: RabbitMQ reads its mark as another type, or closes the
    // connection.
    if let AMQPValue::ShortString(text) = value {
        out.push(b'S');
        put_long(out, text.as_str().as_bytes());
        return Ok(());
    }
    out.push(value.get_type().get_id() as u8);
    match value {
        AMQPValue::Boolean(value) => out.push(u8::from(*value)),
        AMQPValue::ShortShortInt(value) => out.extend_from_slice(&value.to_be_bytes()),
        AMQPValue::ShortShortUInt(value) => out.push(*value),
        AMQPValue::ShortInt(value) => out.extend_from_slice(&value.to_be_bytes()),
        AMQPValue::ShortUInt(value) => out.extend_from_slice(&value.to_be_bytes()),
        AMQPValue::LongInt(value) => out.extend_from_slice(&value.to_be_bytes()),
        AMQPValue::LongUInt(value) => out.extend_from_slice(&value.to_be_bytes()),
        AMQPValue::LongLongInt(value) => out.extend_from_slice(&value.to_be_bytes()),
        AMQPValue::Float(value) => out.extend_from_slice(&value.to_be_bytes()),
        AMQPValue::Double(value) => out.extend_from_slice(&value.to_be_bytes()),
        AMQPValue::DecimalValue(value) => {
            out.push(value.scale);
            out.extend_from_slice(&value.value.to_be_bytes());
        }
        AMQPValue::LongString(value) => put_long(out, value.as_bytes()),
        AMQPValue::ByteArray(value) => put_long(out, value.as_slice()),
        AMQPValue::Timestamp(value) => out.extend_from_slice(&value.to_be_bytes()),
        AMQPValue::Void | AMQPValue::ShortString(_) => {}
        AMQPValue::FieldArray(_) | AMQPValue::FieldTable(_) if depth >= MAX_DEPTH => return Err(TooDeep),
        AMQPValue::FieldArray(array) => put_sized(out, |out| {
            array.as_slice().iter().try_for_each(|value| put_value(out, value, depth + 1))
        })?,
        AMQPValue::FieldTable(table) => put_sized(out, |out| {
            table.into_iter().try_for_each(|(name, value)| {
                put_name(out, name.as_str());
                put_value(out, value, depth + 1)
            })
        })?,
    }
    Ok(())
}

/// A value inside a table or an array: the protocol's mark of its type, and its bytes without their length.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawValue<'a> {
    pub kind: u8,
    pub bytes: &'a [u8],
}

/// The entries of a table without its length. Damage ends it.
pub(crate) fn entries(table: &[u8]) -> impl Iterator<Item = (&str, RawValue<'_>)> {
    let mut from = TableReader(table);
    std::iter::from_fn(move || Some((from.text(!from.0.is_empty())??, from.value()?)))
}

/// The values of an array without its length. Damage ends it.
pub(crate) fn elements(array: &[u8]) -> impl Iterator<Item = RawValue<'_>> {
    let mut from = TableReader(array);
    std::iter::from_fn(move || from.value())
}

/// Reads forward; `None` once the bytes end too soon.
struct TableReader<'a>(&'a [u8]);

impl<'a> TableReader<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(length)?;
        self.0 = tail;
        Some(head)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    /// Outer `None`: damage. Inner: not there.
    fn byte(&mut self, there: bool) -> Option<Option<u8>> {
        if there {
            self.take(1)?.first().copied().map(Some)
        } else {
            Some(None)
        }
    }

    fn text(&mut self, there: bool) -> Option<Option<&'a str>> {
        let Some(length) = self.byte(there)? else {
            return Some(None);
        };
        std::str::from_utf8(self.take(usize::from(length))?).ok().map(Some)
    }

    fn table(&mut self) -> Option<&'a [u8]> {
        let length = u32::from_be_bytes(*self.0.first_chunk()?);
        self.take(usize::try_from(length).ok()?.checked_add(4)?)
    }

    /// Reads a value of the types that [`put_value`] writes.
    fn value(&mut self) -> Option<RawValue<'a>> {
        let [kind] = self.array()?;
        let bytes = match kind {
            b'V' => &[],
            b't' | b'b' | b'B' => self.take(1)?,
            b's' | b'u' => self.take(2)?,
            b'I' | b'i' | b'f' => self.take(4)?,
            b'D' => self.take(5)?,
            b'l' | b'd' | b'T' => self.take(8)?,
            b'S' | b'x' | b'A' | b'F' => self.table()?.get(4..)?,
            _ => return None,
        };
        Some(RawValue { kind, bytes })
    }
}

/// Sets a header, a signed 64-bit number.
pub(crate) fn set_number(headers: &mut FieldTable, name: &str, number: u64) {
    headers.insert(short(name), AMQPValue::LongLongInt(signed(number)));
}

/// Sets a header, a long string.
pub(crate) fn set_text(headers: &mut FieldTable, name: &str, text: &str) {
    headers.insert(short(name), AMQPValue::LongString(text.into()));
}
