//! Upper bounds of the length of an encoded batch, known before it is encoded.
//!
//! The engine closes and splits batches by these numbers; the encoder (`amqp::wire`) is tested against them.
//! Deliberately absent: the encoding itself. Here is only the length of each format's text around the parts
//! of an item.

use crate::Format;

/// Length of the longest assigned id: 16 hex digits of the store, up to 16 of the arrival number and of the
/// due, and eight for the place in the window, separated by dashes.
const ASSIGNED_ID: u64 = 59;
/// Decimal digits of the largest `u64`.
const DIGITS: u64 = 20;
/// A batch id: 128 bits in hex.
const BATCH_ID: u64 = 32;
/// Length of `null`.
const NULL: u64 = 4;
/// `,"content_encoding":`, or the CloudEvents extension `,"contentencoding":`, whichever is longer.
const ENCODING_LABEL: u64 = 20;

/// The length of a batch in addition to the weights of its items, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overhead {
    /// Once for each batch.
    pub batch: u64,
    /// For each item, in addition to its weight.
    pub item: u64,
}

/// The parts of an item that determine its weight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts<'a> {
    /// Length of the payload in bytes.
    pub body: usize,
    /// Whether it is embedded as JSON; else the JSON formats contain it in base64.
    pub json: bool,
    /// The producer's id; `None`: one will be assigned.
    pub id: Option<&'a str>,
    /// The property `content_type`.
    pub content_type: Option<&'a str>,
    /// The property `content_encoding`.
    pub content_encoding: Option<&'a str>,
    /// The `type` property.
    pub kind: Option<&'a str>,
    /// Bytes that its other properties and headers add in any format; the border decides which.
    pub copied: usize,
}

/// See [`crate::NewItem::weight`]. Saturates.
pub fn weight(parts: &Parts<'_>) -> u32 {
    let body = parts.body as u64;
    let payload = if parts.json { body } else { base64_len(body).saturating_add(2) };
    let id = parts.id.map_or(2 + ASSIGNED_ID, quoted_len);
    let content_type = parts.content_type.map_or(NULL, quoted_len);
    let encoding = parts.content_encoding.map_or(0, |text| ENCODING_LABEL + quoted_len(text));
    let kind = parts.kind.map_or(0, quoted_len);
    let total =
        payload.saturating_add(id + content_type + encoding + kind).saturating_add(parts.copied as u64);
    u32::try_from(total).unwrap_or(u32::MAX)
}

/// With this, `overhead.batch` plus, for each item, `weight + overhead.item` is never less than the length of
/// the encoded body.
pub fn overhead(format: Format, application: &str, customer: Option<&str>) -> Overhead {
    let text = |parts: &[&str]| parts.iter().map(|part| part.len() as u64).sum::<u64>();
    // `payload_base64` is the longer of the two labels; the last byte is a comma or a line break.
    let item = text(&[r#"{"id":,"due":,"received":,"content_type":,"payload_base64":}"#]) + 2 * DIGITS + 1;
    match format {
        Format::Json => Overhead {
            batch: text(&[r#"{"application":,"customer":,"batch":"","items":[]}"#])
                + quoted_len(application)
                + customer.map_or(NULL, quoted_len)
                + BATCH_ID,
            item,
        },
        Format::Ndjson => Overhead { batch: 0, item },
        Format::CloudEvents => Overhead {
            batch: 2,
            item: text(&[
                r#"{"specversion":"1.0","id":,"source":"/tidegate/","type":"tidegate.item""#,
                r#","time":"2026-01-01T00:00:00.000Z","datacontenttype":,"due":"","data_base64":},"#,
            ]) + percent_len(application)
                + customer.map_or(0, |name| r#","subject":"#.len() as u64 + quoted_len(name))
                + DIGITS,
        },
        Format::Passthrough => Overhead { batch: 0, item: 0 },
    }
}

/// Length of `text` as a JSON string, quotes included.
pub fn quoted_len(text: &str) -> u64 {
    2 + text.bytes().map(|byte| u64::from(escaped_len(byte))).sum::<u64>()
}

/// Length of one byte of UTF-8 inside a JSON string.
fn escaped_len(byte: u8) -> u8 {
    match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0c => 2,
        0..=0x1f => 6,
        _ => 1,
    }
}

/// Length of this number of bytes in padded base64.
pub fn base64_len(bytes: u64) -> u64 {
    bytes.div_ceil(3).saturating_mul(4)
}

/// The body as text, if it is UTF-8 and no longer as a JSON string than in base64: an escape may need six
/// bytes for one.
pub fn readable(body: &[u8]) -> Option<&str> {
    let fits = |text: &&str| quoted_len(text) <= 2 + base64_len(body.len() as u64);
    core::str::from_utf8(body).ok().filter(fits)
}

/// Length of `text` with all characters except RFC 3986's unreserved ones as `%XX`.
fn percent_len(text: &str) -> u64 {
    text.bytes().map(|byte| if is_unreserved(byte) { 1 } else { 3 }).sum()
}

/// RFC 3986, section 2.3: characters that a URI never needs to escape.
pub fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_texts() {
        assert_eq!(quoted_len(""), 2);
        assert_eq!(quoted_len("abc"), 5);
        assert_eq!(quoted_len("\"\\\n\u{1}ü"), 2 + 2 + 2 + 2 + 6 + 2);
        assert_eq!((base64_len(0), base64_len(1), base64_len(3), base64_len(4)), (0, 4, 4, 8));
        assert_eq!(percent_len("a-b/ü"), 3 + 3 + 6);
    }

    #[test]
    fn weight_counts_what_is_there() {
        let bare = Parts { body: 10, json: true, ..Parts::default() };
        assert_eq!(weight(&bare), 10 + 61 + 4);
        assert_eq!(weight(&Parts { json: false, ..bare }), 2 + 16 + 61 + 4);
        let full = Parts {
            id: Some("i"),
            content_type: Some("text/plain"),
            content_encoding: Some("gzip"),
            kind: Some("t"),
            copied: 100,
            ..bare
        };
        assert_eq!(weight(&full), 10 + 3 + 12 + 26 + 3 + 100);
        assert_eq!(weight(&Parts { copied: usize::MAX, ..bare }), u32::MAX);
        assert_eq!(weight(&Parts { body: usize::MAX, ..bare }), u32::MAX);
        assert_eq!(weight(&Parts { body: usize::MAX, json: false, ..bare }), u32::MAX);
    }

    #[test]
    fn passthrough_adds_nothing() {
        assert_eq!(overhead(Format::Passthrough, "a", Some("c")), Overhead { batch: 0, item: 0 });
    }
}
