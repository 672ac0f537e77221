//! JSON as bytes: what may be embedded, and how strings, numbers and payloads are written.
//!
//! There is deliberately no value tree: bodies are written straight into their buffer.

use base64::engine::general_purpose::STANDARD;
use base64::Engine as _;
use serde::de::IgnoredAny;
use tidegate_types::size::{base64_len, is_unreserved};
use tidegate_types::Content;

/// Deepest nesting of a payload that is embedded. Consumers' parsers have limits of their own near this.
const MAX_DEPTH: usize = 128;

/// Values of the property `content_encoding`, in any case, that change no byte of the body.
const NO_CODING: [&str; 6] = ["utf-8", "utf8", "us-ascii", "ascii", "identity", ""];

const HEX: &[u8; 16] = b"0123456789abcdef";

/// Whether a payload may be embedded as JSON: its content type says JSON, it has no content encoding, and it
/// is valid UTF-8 JSON, at most 128 arrays and objects deep.
///
/// A lone surrogate (`"\ud800"`) passes the grammar but stands for no Unicode text, and strict parsers fail
/// on it: it would make the whole batch unreadable for them, so such a payload is not embedded.
pub fn is_embeddable(content_type: Option<&str>, content_encoding: Option<&str>, body: &[u8]) -> bool {
    if !content_type.is_some_and(is_json_type) || coding(content_encoding).is_some() {
        return false;
    }
    let Ok(text) = std::str::from_utf8(body) else {
        return false;
    };
    // Syntax first: the scan below relies on it. Skipping values does not recurse.
    serde_json::from_str::<IgnoredAny>(text).is_ok() && is_shallow_unicode(body)
}

/// A content encoding, if it is one. Clients also write the character set there, which is none; nor is
/// `identity`, nor the empty text.
pub(crate) fn coding(content_encoding: Option<&str>) -> Option<&str> {
    content_encoding.filter(|text| !NO_CODING.iter().any(|none| text.eq_ignore_ascii_case(none)))
}

/// `application/json` or `*+json`, with any parameters.
pub(crate) fn is_json_type(content_type: &str) -> bool {
    let media = media_type(content_type);
    media.eq_ignore_ascii_case("application/json")
        || media
            .len()
            .checked_sub(5)
            .and_then(|at| media.get(at..))
            .is_some_and(|end| end.eq_ignore_ascii_case("+json"))
}

/// Whether a text is a media type as RFC 2045 writes it: `type/subtype`, both tokens, and printable
/// parameters.
pub(crate) fn is_media_type(text: &str) -> bool {
    let token = |part: &str| {
        let special = |byte: u8| br#"()<>@,;:\"/[]?="#.contains(&byte);
        !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_graphic() && !special(byte))
    };
    let (essence, parameters) = text.split_once(';').unwrap_or((text, ""));
    let named = essence.trim_end_matches(' ').split_once('/');
    named.is_some_and(|(kind, subtype)| token(kind) && token(subtype))
        && parameters.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ')
}

/// A content type without its parameters.
pub(crate) fn media_type(content_type: &str) -> &str {
    content_type.split(';').next().unwrap_or_default().trim()
}

/// Whether valid JSON is no deeper than the limit, and every escaped surrogate is one of a pair.
fn is_shallow_unicode(json: &[u8]) -> bool {
    let openers = json.iter().filter(|byte| matches!(byte, b'[' | b'{')).count();
    if openers <= MAX_DEPTH && !json.contains(&b'\\') {
        return true;
    }
    let mut depth = 0_usize;
    let mut at = 0;
    while let Some(&byte) = json.get(at) {
        at += 1;
        match byte {
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            b'"' => match end_of_string(json, at) {
                Some(end) => at = end,
                None => return false,
            },
            _ => {}
        }
        if depth > MAX_DEPTH {
            return false;
        }
    }
    true
}

/// `at`: the place behind the opening quote. Returns the place behind the closing one; `None`: a lone
/// surrogate.
fn end_of_string(json: &[u8], mut at: usize) -> Option<usize> {
    loop {
        match json.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' if json.get(at + 1) == Some(&b'u') => match escaped_unit(json, at)? {
                0xd800..=0xdbff => match escaped_unit(json, at + 6)? {
                    0xdc00..=0xdfff => at += 12,
                    _ => return None,
                },
                0xdc00..=0xdfff => return None,
                _ => at += 6,
            },
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

/// The code unit of `\uXXXX` at `at`.
fn escaped_unit(json: &[u8], at: usize) -> Option<u16> {
    let digits = json.get(at..at + 6)?.strip_prefix(b"\\u")?;
    u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

/// Writes a JSON string, quotes included; `tidegate_types::size::quoted_len` is its length.
pub(crate) fn push_string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    let bytes = text.as_bytes();
    let mut clean = 0;
    for (at, &byte) in bytes.iter().enumerate() {
        if byte >= 0x20 && byte != b'"' && byte != b'\\' {
            continue;
        }
        out.extend_from_slice(&bytes[clean..at]);
        clean = at + 1;
        let short = match byte {
            b'"' | b'\\' => byte,
            b'\n' => b'n',
            b'\r' => b'r',
            b'\t' => b't',
            0x08 => b'b',
            0x0c => b'f',
            _ => {
                out.extend_from_slice(b"\\u00");
                push_hex(out, byte, HEX);
                continue;
            }
        };
        out.extend_from_slice(&[b'\\', short]);
    }
    out.extend_from_slice(&bytes[clean..]);
    out.push(b'"');
}

fn push_hex(out: &mut Vec<u8>, byte: u8, digits: &[u8; 16]) {
    out.extend_from_slice(&[digits[usize::from(byte >> 4)], digits[usize::from(byte & 15)]]);
}

/// Writes a decimal number.
pub(crate) fn push_number(out: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0_u8; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// Writes one segment of a URI path.
pub(crate) fn push_segment(out: &mut Vec<u8>, text: &str) {
    for byte in text.bytes() {
        if is_unreserved(byte) {
            out.push(byte);
        } else {
            out.push(b'%');
            push_hex(out, byte, b"0123456789ABCDEF");
        }
    }
}

/// Writes `,"NAME":` and the payload, or `,"NAME_base64":` and its base64.
pub(crate) fn push_payload(out: &mut Vec<u8>, name: &str, content: &Content) {
    out.extend_from_slice(b",\"");
    out.extend_from_slice(name.as_bytes());
    if content.json {
        out.extend_from_slice(b"\":");
        push_one_line(out, &content.body);
    } else {
        out.extend_from_slice(b"_base64\":");
        push_base64(out, &content.body);
    }
}

/// Writes valid JSON as it is, but on one line.
pub(crate) fn push_one_line(out: &mut Vec<u8>, json: &[u8]) {
    let start = out.len();
    out.extend_from_slice(json);
    // In valid JSON a line break can only stand between tokens; inside a string it is always escaped.
    for byte in &mut out[start..] {
        if matches!(byte, b'\n' | b'\r') {
            *byte = b' ';
        }
    }
}

/// Writes bytes as a JSON string of padded base64.
pub(crate) fn push_base64(out: &mut Vec<u8>, bytes: &[u8]) {
    out.push(b'"');
    let start = out.len();
    let length = usize::try_from(base64_len(bytes.len() as u64)).unwrap_or(usize::MAX);
    out.resize(start.saturating_add(length), b'=');
    // The space is exactly what padded base64 needs, so this cannot fail.
    let written = STANDARD.encode_slice(bytes, &mut out[start..]);
    debug_assert_eq!(written.ok(), Some(length));
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tidegate_types::size::quoted_len;

    fn embeddable(body: &[u8]) -> bool {
        is_embeddable(Some("application/json"), None, body)
    }

    #[test]
    fn only_a_media_type_is_one() {
        for text in ["text/plain", "application/vnd.x+json", "text/plain; charset=utf-8", "a/b;"] {
            assert!(is_media_type(text), "{text}");
        }
        for text in ["", "json", "a/", "/b", "a/b/c", "a b/c", "a/b; \n", "a/\u{e9}", "text plain"] {
            assert!(!is_media_type(text), "{text}");
        }
    }

    #[test]
    fn content_types() {
        for (content_type, expected) in [
            ("application/json", true),
            ("Application/JSON; charset=utf-8", true),
            ("application/json;charset=utf-8", true),
            ("application/problem+json", true),
            ("application/cloudevents+JSON ; x=y", true),
            ("text/json", false),
            ("application/jsonp", false),
            ("application/x-ndjson", false),
            ("json", false),
            ("", false),
            ("ü+jsö", false),
            ("üü", false),
        ] {
            assert_eq!(is_embeddable(Some(content_type), None, b"1"), expected, "{content_type}");
        }
        assert!(!is_embeddable(None, None, b"1"));
        assert!(!is_embeddable(Some("application/json"), Some("gzip"), b"1"));
        for none in ["", "utf-8", "UTF-8", "Utf8", "us-ascii", "US-ASCII", "ascii", "identity", "Identity"] {
            assert!(is_embeddable(Some("application/json"), Some(none), b"1"), "{none}");
            assert_eq!(coding(Some(none)), None);
        }
        for some in ["gzip", "utf-16", "utf-8, gzip", " utf-8", "latin-1"] {
            assert!(!is_embeddable(Some("application/json"), Some(some), b"1"), "{some}");
            assert_eq!(coding(Some(some)), Some(some));
        }
    }

    #[test]
    fn validity() {
        for good in
            [&b"1"[..], b" {\"a\" :\r\n [1, null]} \n", b"\"\\ud83d\\ude00\"", b"\"\\\\ud800\"", b"1e400"]
        {
            assert!(embeddable(good), "{}", String::from_utf8_lossy(good));
        }
        for bad in [
            &b""[..],
            b" ",
            b"{",
            b"1 2",
            b"{\"a\":1,}",
            b"\xef\xbb\xbf1",
            b"\"\xff\"",
            b"\"\n\"",
            b"NaN",
            b"\"\\ud800\"",
            b"\"\\ud800\\u0041\"",
            b"\"\\ud800x\"",
            b"\"\\udc00\"",
        ] {
            assert!(!embeddable(bad), "{}", String::from_utf8_lossy(bad));
        }
    }

    #[test]
    fn depth_128_is_the_last() {
        let nested = |depth: usize| [b"[".repeat(depth), b"]".repeat(depth)].concat();
        assert!(embeddable(&nested(128)));
        assert!(!embeddable(&nested(129)));
        assert!(!embeddable(&nested(1_000_000)));
        let objects = |depth: usize| [b"{\"[\":".repeat(depth), b"1".to_vec(), b"}".repeat(depth)].concat();
        assert!(embeddable(&objects(128)));
        assert!(!embeddable(&objects(129)));
        // Wide is not deep, and brackets in strings are text.
        assert!(embeddable(format!("[{}[]]", "[],".repeat(1000)).as_bytes()));
        assert!(embeddable(format!("\"{}\\\"\"", "[".repeat(1000)).as_bytes()));
    }

    proptest! {
        #[test]
        fn strings_as_serde_reads_them(text in any::<String>()) {
            let mut out = Vec::new();
            push_string(&mut out, &text);
            prop_assert_eq!(out.len() as u64, quoted_len(&text));
            prop_assert_eq!(serde_json::from_slice::<String>(&out).unwrap(), text);
        }

        #[test]
        fn numbers(number in any::<u64>()) {
            let mut out = Vec::new();
            push_number(&mut out, number);
            prop_assert_eq!(String::from_utf8(out).unwrap(), number.to_string());
        }

        #[test]
        fn base64_as_the_library_writes_it(body in any::<Vec<u8>>()) {
            let mut out = Vec::new();
            let content = Content { body: body.clone(), ..Content::default() };
            push_payload(&mut out, "data", &content);
            let expected = format!(",\"data_base64\":\"{}\"", STANDARD.encode(&body));
            prop_assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
    }
}
