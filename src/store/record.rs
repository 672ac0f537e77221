//! Bytes to items and back: the format of one stored item. Pure; knows nothing of keyspaces or files.
//!
//! Format 1, in this order, integers without a width as LEB128 varints, texts and byte strings with their length
//! before them:
//!
//! ```text
//! version u8 | flags u8 | received | [expiry] | weight | attempts | application | [customer]
//!   | [given: 16 bytes] | [last error] | [reason u8, error] | properties | body | crc32c u32 LE
//! ```
//!
//! Flags, from the lowest bit: customer, own time, expiry, last error, dead, JSON, given. *Given* is the identity
//! of an item whose producer named it; every other item is known by its arrival number, which is in the key. (No
//! record without that flag was ever written by a released program, so it belongs to version 1.)
//!
//! The checksum covers the key (due and arrival number, big endian) and everything before itself, so a record
//! that turns up under another key is damage as well. A new format gets a new version byte; a record of an
//! older version stays readable until the store's own format version says that none is left.

use super::fields::{put_bytes, put_varint, reason_code, seal, unseal, Reader, RecordError};
use super::rows::time_key;
use crate::engine::event::Stored;
use crate::engine::types::{Content, Dead, Identity, Key, Reason};
use std::sync::Arc;

/// The version byte this code writes.
pub const VERSION: u8 = 1;

const CUSTOMER: u8 = 1;
const OWN_TIME: u8 = 1 << 1;
const EXPIRY: u8 = 1 << 2;
const LAST_ERROR: u8 = 1 << 3;
const DEAD: u8 = 1 << 4;
const JSON: u8 = 1 << 5;
const GIVEN: u8 = 1 << 6;
const KNOWN: u8 = CUSTOMER | OWN_TIME | EXPIRY | LAST_ERROR | DEAD | JSON | GIVEN;

/// A record without a copy: its fields point into the bytes they were read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View<'a> {
    /// See [`Stored::application`].
    pub application: &'a str,
    /// See [`Stored::customer`].
    pub customer: Option<&'a str>,
    /// See [`Stored::given`].
    pub given: Option<Identity>,
    /// See [`Stored::received`].
    pub received: u64,
    /// See [`Stored::own_time`].
    pub own_time: bool,
    /// See [`Stored::expiry`].
    pub expiry: Option<u64>,
    /// See [`Stored::weight`].
    pub weight: u32,
    /// See [`Stored::attempts`].
    pub attempts: u32,
    /// See [`Stored::last_error`].
    pub last_error: Option<&'a str>,
    /// See [`Stored::dead`].
    pub dead: Option<(Reason, &'a str)>,
    /// See [`Content::json`].
    pub json: bool,
    /// See [`Content::properties`].
    pub properties: &'a [u8],
    /// See [`Content::body`].
    pub body: &'a [u8],
}

impl<'a> View<'a> {
    /// The fields of `item`, with `content` for its content: what goes into a record.
    pub fn of(item: &'a Stored, content: &'a Content) -> Self {
        View {
            application: &item.application,
            customer: item.customer.as_deref(),
            given: item.given,
            received: item.received,
            own_time: item.own_time,
            expiry: item.expiry,
            weight: item.weight,
            attempts: item.attempts,
            last_error: item.last_error.as_deref(),
            dead: item.dead.as_ref().map(|d| (d.reason, &*d.error)),
            json: content.json,
            properties: &content.properties,
            body: &content.body,
        }
    }

    /// Bytes of memory that [`View::content`] will cost, as [`Content::size`] counts them.
    pub fn content_size(&self) -> u64 {
        (self.properties.len() + self.body.len() + 128) as u64
    }

    /// A copy of properties and body.
    pub fn content(&self) -> Arc<Content> {
        Arc::new(Content { properties: self.properties.to_vec(), body: self.body.to_vec(), json: self.json })
    }

    /// A copy of everything else; the body is not touched. The caller adds the content if it is wanted.
    pub fn stored(&self, key: Key) -> Stored {
        Stored {
            key,
            application: self.application.into(),
            customer: self.customer.map(Arc::from),
            given: self.given,
            received: self.received,
            own_time: self.own_time,
            expiry: self.expiry,
            weight: self.weight,
            attempts: self.attempts,
            last_error: self.last_error.map(Arc::from),
            dead: self.dead.map(|(reason, error)| Arc::new(Dead { reason, error: error.into() })),
            content: None,
        }
    }
}

/// The record of `view` under `key`.
pub fn encode(key: Key, view: &View<'_>) -> Vec<u8> {
    let texts = view.application.len()
        + view.customer.map_or(0, str::len)
        + view.last_error.map_or(0, str::len)
        + view.dead.map_or(0, |(_, error)| error.len());
    let mut out = Vec::with_capacity(64 + texts + view.properties.len() + view.body.len());
    let flag = |set: bool, bit: u8| if set { bit } else { 0 };
    out.push(VERSION);
    out.push(
        flag(view.customer.is_some(), CUSTOMER)
            | flag(view.own_time, OWN_TIME)
            | flag(view.expiry.is_some(), EXPIRY)
            | flag(view.last_error.is_some(), LAST_ERROR)
            | flag(view.dead.is_some(), DEAD)
            | flag(view.json, JSON)
            | flag(view.given.is_some(), GIVEN),
    );
    put_varint(&mut out, view.received);
    if let Some(expiry) = view.expiry {
        put_varint(&mut out, expiry);
    }
    put_varint(&mut out, view.weight.into());
    put_varint(&mut out, view.attempts.into());
    put_bytes(&mut out, view.application.as_bytes());
    if let Some(customer) = view.customer {
        put_bytes(&mut out, customer.as_bytes());
    }
    if let Some(given) = view.given {
        out.extend_from_slice(&given.to_bytes());
    }
    if let Some(error) = view.last_error {
        put_bytes(&mut out, error.as_bytes());
    }
    if let Some((reason, error)) = view.dead {
        out.push(reason_code(reason));
        put_bytes(&mut out, error.as_bytes());
    }
    put_bytes(&mut out, view.properties);
    put_bytes(&mut out, view.body);
    seal(&time_key(key), &mut out);
    out
}

/// Reads the record that lies under `key`.
///
/// # Errors
///
/// Any input that [`encode`] did not make for this key: a [`RecordError`], never a panic.
pub fn decode(key: Key, bytes: &[u8]) -> Result<View<'_>, RecordError> {
    let mut r = Reader(unseal(&time_key(key), bytes)?);
    let version = r.byte("version")?;
    if version != VERSION {
        return Err(RecordError::Version { found: version, known: VERSION });
    }
    let flags = r.byte("flags")?;
    if flags & !KNOWN != 0 {
        return Err(RecordError::Flags(flags));
    }
    let has = |bit: u8| flags & bit != 0;
    // A struct's fields are evaluated as they are written: this is the order in the record.
    let view = View {
        own_time: has(OWN_TIME),
        json: has(JSON),
        received: r.varint("received")?,
        expiry: if has(EXPIRY) { Some(r.varint("expiry")?) } else { None },
        weight: r.u32("weight")?,
        attempts: r.u32("attempts")?,
        application: r.text("application")?,
        customer: if has(CUSTOMER) { Some(r.text("customer")?) } else { None },
        given: if has(GIVEN) { Some(Identity::from_bytes(r.array("given")?)) } else { None },
        last_error: if has(LAST_ERROR) { Some(r.text("last_error")?) } else { None },
        dead: if has(DEAD) { Some((r.reason()?, r.text("error")?)) } else { None },
        properties: r.bytes("properties")?,
        body: r.bytes("body")?,
    };
    r.end()?;
    Ok(view)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::option;
    use proptest::prelude::*;

    fn key() -> impl Strategy<Value = Key> {
        (any::<u64>(), any::<u64>()).prop_map(|(due, seq)| Key { due, seq })
    }

    prop_compose! {
        fn text(max: usize)(chars in vec(any::<char>(), 0..max)) -> String {
            chars.into_iter().collect()
        }
    }

    prop_compose! {
        fn item()(
            key in key(),
            application in text(20),
            customer in option::of(text(20)),
            given in option::of(any::<[u8; 16]>()),
            received in any::<u64>(),
            own_time in any::<bool>(),
            expiry in option::of(any::<u64>()),
            weight in any::<u32>(),
            attempts in any::<u32>(),
            last_error in option::of(text(30)),
            dead in option::of((0..Reason::ALL.len(), text(30))),
            content in (vec(any::<u8>(), 0..40), vec(any::<u8>(), 0..300), any::<bool>()),
        ) -> Stored {
            Stored {
                key, application: application.into(), customer: customer.map(Arc::from),
                given: given.map(Identity::given), received, own_time, expiry, weight, attempts, last_error: last_error.map(Arc::from),
                dead: dead.map(|(r, e)| Arc::new(Dead { reason: Reason::ALL[r], error: e.into() })),
                content: Some(Arc::new(Content { properties: content.0, body: content.1, json: content.2 })),
            }
        }
    }

    fn encoded(item: &Stored) -> Vec<u8> {
        encode(item.key, &View::of(item, item.content.as_ref().unwrap()))
    }

    /// Gives arbitrary fields a right checksum, so that the decoder behind it is reached.
    fn sealed(key: Key, mut fields: Vec<u8>) -> Vec<u8> {
        seal(&time_key(key), &mut fields);
        fields
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

        #[test]
        fn what_is_written_is_read(item in item()) {
            let bytes = encoded(&item);
            let view = decode(item.key, &bytes).unwrap();
            let mut back = view.stored(item.key);
            prop_assert_eq!(&back.content, &None);
            back.content = Some(view.content());
            prop_assert_eq!(back, item);
        }

        #[test]
        fn a_record_under_another_key_is_refused(item in item(), other in key()) {
            prop_assume!(other != item.key);
            let mismatch = matches!(decode(other, &encoded(&item)), Err(RecordError::Checksum { .. }));
            prop_assert!(mismatch);
        }

        #[test]
        fn any_bytes_are_read_or_refused(key in key(), bytes in vec(any::<u8>(), 0..200)) {
            prop_assert!(decode(key, &bytes).is_err());
            if let Ok(view) = decode(key, &sealed(key, bytes.clone())) {
                // Readable by chance: then it means what it says.
                let again = encode(key, &view);
                prop_assert_eq!(decode(key, &again).unwrap(), view);
            }
        }

        /// Arbitrary bytes rarely get past version and flags; these always do.
        #[test]
        fn any_fields_are_read_or_refused(key in key(), flags in 0..=KNOWN, rest in vec(any::<u8>(), 0..200)) {
            let mut fields = vec![VERSION, flags];
            fields.extend_from_slice(&rest);
            if let Ok(view) = decode(key, &sealed(key, fields)) {
                let again = encode(key, &view);
                prop_assert_eq!(decode(key, &again).unwrap(), view);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(24) })]

        #[test]
        fn every_flipped_bit_and_every_cut_is_noticed(item in item()) {
            let good = encoded(&item);
            for bit in 0..good.len() * 8 {
                let mut bad = good.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                prop_assert!(decode(item.key, &bad).is_err(), "bit {}", bit);
            }
            for len in 0..good.len() {
                prop_assert!(decode(item.key, &good[..len]).is_err(), "cut to {}", len);
            }
        }
    }

    #[test]
    fn errors_name_what_is_wrong() {
        let key = Key { due: 7, seq: 1 };
        let of = |fields: &[u8]| decode(key, &sealed(key, fields.to_vec())).unwrap_err();
        assert_eq!(decode(key, &[1, 2]).unwrap_err(), RecordError::Short(2));
        assert_eq!(of(&[9, 0]), RecordError::Version { found: 9, known: VERSION });
        assert_eq!(of(&[VERSION, 0x80]), RecordError::Flags(0x80));
        assert_eq!(of(&[VERSION, 0]), RecordError::Truncated("received"));
        assert_eq!(of(&[VERSION, 0, 0, 0, 0, 5, b'a']), RecordError::Truncated("application"));
        assert_eq!(of(&[VERSION, 0, 0, 0, 0, 1, 0xff]), RecordError::Utf8("application"));
        assert_eq!(of(&[VERSION, GIVEN, 0, 0, 0, 0, 1, 2]), RecordError::Truncated("given"));
        assert_eq!(of(&[VERSION, DEAD, 0, 0, 0, 0, 99]), RecordError::Reason(99));
        assert_eq!(of(&[VERSION, 0, 0, 0, 0, 0, 0, 0, 1]), RecordError::Trailing(1));
        let wide = [VERSION, 0, 0, 0xff, 0xff, 0xff, 0xff, 0x7f];
        assert_eq!(of(&wide), RecordError::Range("weight"));
        let endless = [VERSION, 0, 255, 255, 255, 255, 255, 255, 255, 255, 255, 2];
        assert_eq!(of(&endless), RecordError::Range("received"));
    }
}
