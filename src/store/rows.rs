//! Keys of all keyspaces, and the small rows beside the items: windows, lanes, marks. Pure.
//!
//! Keys sort as the engine counts: numbers big endian, names with their length (u16, big endian) before them, so
//! that no name is a prefix of another. Every small row carries a crc32c over its key and its fields.

use super::StoreError;
use crate::engine::event::{AppRow, LaneRow, Marks, WindowRow};
use crate::engine::types::Key;
use std::sync::Arc;

/// Format of the whole store: which keyspaces there are, and what lies in them.
///
/// To change it: raise it, and let `disk` bring a store of the previous format up to it in one commit that also
/// writes the new number; a program that knows less refuses the store from then on.
pub const FORMAT: u32 = 1;

/// A keyspace. Names and order are part of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    /// (due, seq) -> record.
    Time,
    /// (lane, due, seq) -> record.
    Lanes,
    /// (application, customer, due, seq) -> nothing.
    Customers,
    /// (application, customer) -> window row.
    Windows,
    /// (lane) -> lane row.
    LaneRows,
    /// Counts of stored items by application.
    Applications,
    /// Format, identity, marks.
    Meta,
}

impl Space {
    /// All of them.
    pub const ALL: [Space; 7] = [
        Space::Time,
        Space::Lanes,
        Space::Customers,
        Space::Windows,
        Space::LaneRows,
        Space::Applications,
        Space::Meta,
    ];

    /// Its name in the storage engine and in messages.
    pub fn name(self) -> &'static str {
        match self {
            Space::Time => "time",
            Space::Lanes => "lanes",
            Space::Customers => "customers",
            Space::Windows => "windows",
            Space::LaneRows => "lane_rows",
            Space::Applications => "applications",
            Space::Meta => "meta",
        }
    }
}

/// Key in `meta` of the format number. Key and layout stay the same in every format.
pub const META_FORMAT: &[u8] = b"format";
/// Key in `meta` of the store's identity.
pub const META_IDENTITY: &[u8] = b"identity";
/// Key in `meta` of the marks of the last commit.
pub const META_MARKS: &[u8] = b"marks";

/// Bytes of an item's place in the order, at the end of every key that has one.
pub const PLACE_LEN: usize = 16;

/// A key of the time index.
pub fn time_key(key: Key) -> [u8; PLACE_LEN] {
    ((u128::from(key.due) << 64) | u128::from(key.seq)).to_be_bytes()
}

/// The place in the order that a stored key ends in; `None`: the key is too short to be one.
pub fn place_of(bytes: &[u8]) -> Option<Key> {
    let place = u128::from_be_bytes(*bytes.last_chunk()?);
    Some(Key { due: (place >> 64) as u64, seq: place as u64 })
}

/// The beginning that all keys under these names share.
///
/// # Errors
///
/// A name of more than 65,535 bytes, or names that leave no room in a key, which has as many at most.
pub fn prefix(names: &[&str]) -> Result<Vec<u8>, StoreError> {
    let all: usize = names.iter().map(|name| 2 + name.len()).sum();
    if all + PLACE_LEN > usize::from(u16::MAX) {
        return Err(StoreError::NameTooLong(all));
    }
    let mut out = Vec::with_capacity(all + PLACE_LEN);
    for name in names {
        out.extend_from_slice(&(name.len() as u16).to_be_bytes());
        out.extend_from_slice(name.as_bytes());
    }
    Ok(out)
}

/// The key of one item under these names.
///
/// # Errors
///
/// As [`prefix`].
pub fn place_key(names: &[&str], key: Key) -> Result<Vec<u8>, StoreError> {
    let mut out = prefix(names)?;
    out.extend_from_slice(&time_key(key));
    Ok(out)
}

/// The names at the beginning of a key, and nothing behind them.
fn names<const N: usize>(mut bytes: &[u8]) -> Result<[Arc<str>; N], String> {
    let mut out: [Arc<str>; N] = std::array::from_fn(|_| Arc::from(""));
    for name in &mut out {
        let (len, rest) = bytes.split_first_chunk::<2>().ok_or("the key is too short")?;
        let len = usize::from(u16::from_be_bytes(*len));
        let (text, rest) = rest.split_at_checked(len).ok_or("the key is too short")?;
        *name = std::str::from_utf8(text).map_err(|_| "a name in the key is not UTF-8")?.into();
        bytes = rest;
    }
    if bytes.is_empty() {
        Ok(out)
    } else {
        Err("the key is too long".to_owned())
    }
}

/// A row's fields, sealed with a checksum over its key and themselves.
fn seal(key: &[u8], mut fields: Vec<u8>) -> Vec<u8> {
    let crc = crc32c::crc32c_append(crc32c::crc32c(key), &fields);
    fields.extend_from_slice(&crc.to_le_bytes());
    fields
}

/// The fields of a sealed row, exactly `N` 64-bit numbers.
fn unseal<const N: usize>(key: &[u8], bytes: &[u8]) -> Result<[u64; N], String> {
    let (mut fields, crc) = bytes.split_last_chunk::<4>().ok_or("the row is too short")?;
    if crc32c::crc32c_append(crc32c::crc32c(key), fields) != u32::from_le_bytes(*crc) {
        return Err("checksum mismatch".to_owned());
    }
    let mut out = [0; N];
    for number in &mut out {
        let (first, rest) = fields.split_first_chunk::<8>().ok_or("the row is too short")?;
        *number = u64::from_le_bytes(*first);
        fields = rest;
    }
    if fields.is_empty() {
        Ok(out)
    } else {
        Err("the row is too long".to_owned())
    }
}

fn seal_numbers(key: &[u8], numbers: &[u64]) -> Vec<u8> {
    seal(key, numbers.iter().flat_map(|n| n.to_le_bytes()).collect())
}

/// A row of one number: format and identity.
pub fn number_row(key: &[u8], number: u64) -> Vec<u8> {
    seal_numbers(key, &[number])
}

/// Reads [`number_row`].
///
/// # Errors
///
/// Says what is wrong with it.
pub fn read_number(key: &[u8], bytes: &[u8]) -> Result<u64, String> {
    unseal(key, bytes).map(|[number]| number)
}

/// The marks of commit number `commit`.
pub fn marks_row(commit: u64, marks: &Marks) -> Vec<u8> {
    let Marks { next_seq, low, bare_until, waiting } = *marks;
    seal_numbers(META_MARKS, &[commit, next_seq, low.due, low.seq, bare_until, waiting])
}

/// Reads [`marks_row`].
///
/// # Errors
///
/// Says what is wrong with it.
pub fn read_marks(bytes: &[u8]) -> Result<(u64, Marks), String> {
    let [commit, next_seq, due, seq, bare_until, waiting] = unseal(META_MARKS, bytes)?;
    Ok((commit, Marks { next_seq, low: Key { due, seq }, bare_until, waiting }))
}

/// Key and value of a window's row.
///
/// # Errors
///
/// As [`prefix`].
pub fn window_row(row: &WindowRow) -> Result<(Vec<u8>, Vec<u8>), StoreError> {
    let key = prefix(&[&row.application, &row.customer])?;
    let expiry = [u64::from(row.expiry.is_some()), row.expiry.unwrap_or(0)];
    let value = seal_numbers(&key, &[row.end, row.count.into(), row.weight, expiry[0], expiry[1]]);
    Ok((key, value))
}

/// Reads [`window_row`].
///
/// # Errors
///
/// Says what is wrong with it.
pub fn read_window(key: &[u8], bytes: &[u8]) -> Result<WindowRow, String> {
    let [application, customer] = names(key)?;
    let [end, count, weight, expires, expiry] = unseal(key, bytes)?;
    let count = u32::try_from(count).map_err(|_| "count is out of range")?;
    let expiry = match expires {
        0 => None,
        1 => Some(expiry),
        other => return Err(format!("unknown expiry flag {other}")),
    };
    Ok(WindowRow { application, customer, end, count, weight, expiry })
}

/// Key and value of a lane's row.
///
/// # Errors
///
/// As [`prefix`].
pub fn lane_row(row: &LaneRow) -> Result<(Vec<u8>, Vec<u8>), StoreError> {
    let key = prefix(&[&row.lane])?;
    let value = seal_numbers(&key, &[row.count, row.low.due, row.low.seq]);
    Ok((key, value))
}

/// Key and value of an application's row.
///
/// # Errors
///
/// As [`prefix`].
pub fn app_row(row: &AppRow) -> Result<(Vec<u8>, Vec<u8>), StoreError> {
    let key = prefix(&[&row.application])?;
    let value = seal_numbers(&key, &[row.waiting]);
    Ok((key, value))
}

/// Reads [`app_row`].
///
/// # Errors
///
/// Says what is wrong with it.
pub fn read_app(key: &[u8], bytes: &[u8]) -> Result<AppRow, String> {
    let [application] = names(key)?;
    let [waiting] = unseal(key, bytes)?;
    Ok(AppRow { application, waiting })
}

/// Reads [`lane_row`].
///
/// # Errors
///
/// Says what is wrong with it.
pub fn read_lane(key: &[u8], bytes: &[u8]) -> Result<LaneRow, String> {
    let [lane] = names(key)?;
    let [count, due, seq] = unseal(key, bytes)?;
    Ok(LaneRow { lane, count, low: Key { due, seq } })
}

/// A key as it is named in messages: its bytes in hexadecimal, printable names readable beside them.
pub fn show(key: &[u8]) -> String {
    if let (PLACE_LEN, Some(place)) = (key.len(), place_of(key)) {
        return format!("due {} number {}", place.due, place.seq);
    }
    format!("`{}`", key.escape_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(due: u64, seq: u64) -> Key {
        Key { due, seq }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn keys_sort_as_places_do(a in any::<(u64, u64)>(), b in any::<(u64, u64)>()) {
            let (a, b) = (key(a.0, a.1), key(b.0, b.1));
            prop_assert_eq!(time_key(a).cmp(&time_key(b)), a.cmp(&b));
            prop_assert_eq!(place_of(&time_key(a)), Some(a));
        }

        #[test]
        fn no_name_reaches_into_another(a in "[ab]{0,4}", b in "[ab]{0,4}", place in any::<(u64, u64)>()) {
            prop_assume!(a != b);
            let under = place_key(&[&a], key(place.0, place.1)).unwrap();
            prop_assert!(!under.starts_with(&prefix(&[&b]).unwrap()));
        }

        #[test]
        fn small_rows_come_back(numbers in any::<[u64; 6]>(), count in any::<u32>(), expires in any::<bool>()) {
            let [a, b, c, d, e, f] = numbers;
            let marks = Marks { next_seq: b, low: key(c, d), bare_until: e, waiting: f };
            prop_assert_eq!(read_marks(&marks_row(a, &marks)).unwrap(), (a, marks));
            let window = WindowRow {
                application: "app".into(), customer: "c".into(), end: a, count, weight: b,
                expiry: expires.then_some(c),
            };
            let (k, v) = window_row(&window).unwrap();
            prop_assert_eq!(read_window(&k, &v).unwrap(), window);
            let lane = LaneRow { lane: "".into(), count: a, low: key(b, c) };
            let (k, v) = lane_row(&lane).unwrap();
            prop_assert_eq!(read_lane(&k, &v).unwrap(), lane);
            let app = AppRow { application: "a".into(), waiting: a };
            let (k, v) = app_row(&app).unwrap();
            prop_assert_eq!(read_app(&k, &v).unwrap(), app);
        }

        #[test]
        fn any_bytes_are_read_or_refused(k in any::<Vec<u8>>(), v in any::<Vec<u8>>()) {
            prop_assert!(read_window(&k, &v).is_err());
            prop_assert!(read_lane(&k, &v).is_err());
            prop_assert!(read_marks(&v).is_err());
            // A right checksum over wrong fields.
            let sealed = seal(&k, v);
            let _ = (read_window(&k, &sealed), read_lane(&k, &sealed), read_number(&k, &sealed));
        }
    }

    #[test]
    fn a_flipped_bit_is_noticed() {
        let good = marks_row(3, &Marks { next_seq: 9, ..Marks::default() });
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(read_marks(&bad), Err("checksum mismatch".to_owned()), "bit {bit}");
        }
    }

    #[test]
    fn a_name_too_long_is_refused() {
        let name = "x".repeat(66_000);
        assert!(matches!(prefix(&[&name]), Err(StoreError::NameTooLong(66_002))));
    }
}
