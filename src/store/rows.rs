//! Keys of all keyspaces, and the small rows beside the items: windows, lanes, marks. Pure.
//!
//! Keys sort as the engine counts: numbers big endian, names with their length (u16, big endian) before them, so
//! that no name is a prefix of another. Every small row carries a crc32c over its key and its fields.

use super::{fields, StoreError};
use crate::engine::event::{AppRow, BucketRow, LaneRow, Marks, WindowRow};
use crate::engine::types::{Identity, Key};
use std::sync::Arc;

/// Format of the whole store: which keyspaces there are, and what lies in them.
///
/// To change it: raise it, and let `disk` bring a store of the previous format up to it in one commit that also
/// writes the new number; a program that knows less refuses the store from then on.
///
/// Format 1, of no released program, had no identity rows; items in the store alone could not be found by identity,
/// so it is refused.
pub const FORMAT: u32 = 2;

/// Key in `meta` of the format number. Key and layout stay the same in every format.
pub const META_FORMAT: &[u8] = b"format";
/// Key in `meta` of the store's identity.
pub const META_IDENTITY: &[u8] = b"identity";
/// Key in `meta` of the marks of the last commit.
pub const META_MARKS: &[u8] = b"marks";
/// Key of the row about the bucket, in the bucket's own keyspace. It is shorter than an identity.
pub const BUCKET: &[u8] = b"bucket";

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
fn seal(key: &[u8], mut row: Vec<u8>) -> Vec<u8> {
    fields::seal(key, &mut row);
    row
}

/// The fields of a sealed row, exactly `N` 64-bit numbers.
fn unseal<const N: usize>(key: &[u8], bytes: &[u8]) -> Result<[u64; N], String> {
    let mut fields = fields::unseal(key, bytes).map_err(|e| e.to_string())?;
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
    let value = seal_numbers(&key, &[row.waiting, row.paused.into()]);
    Ok((key, value))
}

/// Reads [`app_row`].
///
/// # Errors
///
/// Says what is wrong with it.
pub fn read_app(key: &[u8], bytes: &[u8]) -> Result<AppRow, String> {
    let [application] = names(key)?;
    let [waiting, paused] = unseal(key, bytes)?;
    let paused = match paused {
        0 => false,
        1 => true,
        other => return Err(format!("unknown pause flag {other}")),
    };
    Ok(AppRow { application, waiting, paused })
}

/// Key and value of the row that leads from an identity to its item.
pub fn identity_row(identity: Identity, key: Key) -> ([u8; 16], Vec<u8>) {
    let row = identity.to_bytes();
    (row, seal_numbers(&row, &[key.due, key.seq]))
}

/// Reads [`identity_row`].
///
/// # Errors
///
/// Says what is wrong with it.
pub fn read_identity(identity: Identity, bytes: &[u8]) -> Result<Key, String> {
    unseal(&identity.to_bytes(), bytes).map(|[due, seq]| Key { due, seq })
}

/// The row about a bucket that lives its life number `life`.
pub fn bucket_row(row: BucketRow, life: u64) -> Vec<u8> {
    seal_numbers(BUCKET, &[row.bucket.into(), row.from, life])
}

/// Reads [`bucket_row`] of this bucket.
///
/// # Errors
///
/// Says what is wrong with it.
pub fn read_bucket(bucket: u8, bytes: &[u8]) -> Result<(BucketRow, u64), String> {
    let [found, from, life] = unseal(BUCKET, bytes)?;
    if found == u64::from(bucket) {
        Ok((BucketRow { bucket, from }, life))
    } else {
        Err(format!("it belongs to bucket {found}"))
    }
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
            let app = AppRow { application: "a".into(), waiting: a, paused: expires };
            let (k, v) = app_row(&app).unwrap();
            prop_assert_eq!(read_app(&k, &v).unwrap(), app);
            let identity = Identity::assigned(a);
            let (_, v) = identity_row(identity, key(b, c));
            prop_assert_eq!(read_identity(identity, &v).unwrap(), key(b, c));
            let bucket = BucketRow { bucket: 3, from: a };
            prop_assert_eq!(read_bucket(3, &bucket_row(bucket, b)).unwrap(), (bucket, b));
            prop_assert!(read_bucket(4, &bucket_row(bucket, b)).is_err());
        }

        #[test]
        fn any_bytes_are_read_or_refused(k in any::<Vec<u8>>(), v in any::<Vec<u8>>()) {
            prop_assert!(read_window(&k, &v).is_err());
            prop_assert!(read_lane(&k, &v).is_err());
            prop_assert!(read_app(&k, &v).is_err());
            prop_assert!(read_marks(&v).is_err());
            prop_assert!(read_bucket(0, &v).is_err());
            prop_assert!(read_identity(Identity::assigned(1), &v).is_err());
            // A right checksum over wrong fields.
            let sealed = seal(&k, v);
            let _ = (read_window(&k, &sealed), read_lane(&k, &sealed), read_number(&k, &sealed));
            let _ = (read_app(&k, &sealed), read_bucket(0, &sealed));
        }
    }

    #[test]
    fn a_flipped_bit_is_noticed() {
        fn every_bit<T: std::fmt::Debug>(good: &[u8], read: impl Fn(&[u8]) -> Result<T, String>) {
            read(good).unwrap();
            for bit in 0..good.len() * 8 {
                let mut bad = good.to_vec();
                bad[bit / 8] ^= 1 << (bit % 8);
                assert!(read(&bad).unwrap_err().starts_with("checksum mismatch"), "bit {bit}");
            }
        }
        every_bit(&marks_row(3, &Marks { next_seq: 9, ..Marks::default() }), read_marks);
        let (app, row) = app_row(&AppRow { application: "a".into(), waiting: 7, paused: true }).unwrap();
        every_bit(&row, |bytes| read_app(&app, bytes));
        let identity = Identity::given([7; 16]);
        every_bit(&identity_row(identity, key(1, 2)).1, |bytes| read_identity(identity, bytes));
        every_bit(&bucket_row(BucketRow { bucket: 2, from: 9 }, 4), |bytes| read_bucket(2, bytes));
    }

    #[test]
    fn a_flag_without_a_meaning_is_refused() {
        let app = prefix(&["a"]).unwrap();
        let error = read_app(&app, &seal_numbers(&app, &[7, 2])).unwrap_err();
        assert_eq!(error, "unknown pause flag 2");
    }

    #[test]
    fn a_name_too_long_is_refused() {
        let name = "x".repeat(66_000);
        assert!(matches!(prefix(&[&name]), Err(StoreError::NameTooLong(66_002))));
    }
}
