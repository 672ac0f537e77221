//! Keys of all keyspaces, and the small rows other than items: queues, windows, closings, marks. Pure.
//!
//! Keys sort in the engine's order: numbers are big endian, and names follow their length (one byte), so that
//! no name is a prefix of another. Every small row ends in a crc32c over its key and its fields.

use super::errors::{broken_contract, BrokenContract};
use super::fields::{self, closed_by_code};
use std::sync::Arc;
use tidegate_types::event::{BucketRow, ClosingRow, Marks, WindowRow};
use tidegate_types::{ClosedBy, Identity, Key};

/// Format of the whole store: its keyspaces and their contents.
///
/// To change the format, raise this number, and let `disk` convert a store of the previous format in one
/// commit that also writes the new number. Older programs refuse the store from then on.
///
/// Formats 1 and 2, which no released program used, had one index by time for all applications, and are
/// refused.
pub const FORMAT: u32 = 5;

/// Key in `meta` of the format number. Key and layout stay the same in every format.
pub const META_FORMAT: &[u8] = b"format";
/// Key in `meta` of the store's identity.
pub const META_IDENTITY: &[u8] = b"identity";
/// Key in `meta` of the marks of the last commit.
pub const META_MARKS: &[u8] = b"marks";
/// Key in `meta` of the mark of a store whose import is not complete. The last commit of the import removes
/// it.
pub const META_IMPORTING: &[u8] = b"importing";
/// Prefix of the keys in `meta` of notes that earlier builds kept of their imports. They have no meaning now.
pub const META_FORMER_IMPORT: &[u8] = b"import:";
/// Length of the row of the marks, in bytes; see [`marks_row`].
pub const MARKS_LEN: usize = 28;
/// Key of the row about the bucket, in the bucket's own keyspace. It is shorter than an identity.
pub const BUCKET: &[u8] = b"bucket";

/// A key that no row has, in any keyspace: it is shorter than an identity, no text, and as the beginning of
/// other keys it would be the length of a name that does not follow. The storage engine takes no empty key.
pub const NO_ROW: &[u8] = &[255];

/// Length of an item's place in the order, in bytes; a key with a place ends with it.
pub const PLACE_LEN: usize = 24;
/// Longest name in a key, in bytes. The engine's names have at most 200.
const NAME_MAX: usize = 255;

/// The bytes of an item's place in the order.
fn place_bytes(key: Key) -> [u8; PLACE_LEN] {
    let mut place = [0; PLACE_LEN];
    for (bytes, number) in place.chunks_exact_mut(8).zip([key.due, key.window, key.seq]) {
        bytes.copy_from_slice(&number.to_be_bytes());
    }
    place
}

/// The place in the order at the end of a stored key; `None`: the key is too short.
pub fn place_of(bytes: &[u8]) -> Option<Key> {
    let place = bytes.last_chunk::<PLACE_LEN>()?;
    let mut numbers =
        place.chunks_exact(8).map(|bytes| bytes.iter().fold(0, |n, byte| n << 8 | u64::from(*byte)));
    Some(Key { due: numbers.next()?, window: numbers.next()?, seq: numbers.next()? })
}

/// The common prefix of all keys under these names.
///
/// # Errors
///
/// A name of more than 255 bytes.
pub fn prefix(names: &[&str]) -> Result<Vec<u8>, BrokenContract> {
    let all: usize = names.iter().map(|name| 1 + name.len()).sum();
    let mut out = Vec::with_capacity(all + PLACE_LEN + 1);
    for name in names {
        if name.len() > NAME_MAX {
            return Err(broken_contract(format!("a name of {} bytes is too long for a key", name.len())));
        }
        out.push(name.len() as u8);
        out.extend_from_slice(name.as_bytes());
    }
    Ok(out)
}

/// The key of a place under these names.
///
/// # Errors
///
/// As [`prefix`].
pub fn place_key(names: &[&str], key: Key) -> Result<Vec<u8>, BrokenContract> {
    let mut out = prefix(names)?;
    out.extend_from_slice(&place_bytes(key));
    Ok(out)
}

/// Reads the key of a customer's row: application, customer, place in the order.
///
/// # Errors
///
/// A text that says what is wrong with the row.
pub fn read_customer_key(row: &[u8]) -> Result<([Arc<str>; 2], Key), String> {
    let (names, place) = names(row)?;
    let key = place_of(place).filter(|_| place.len() == PLACE_LEN).ok_or("the key has a wrong length")?;
    Ok((names, key))
}

/// The key of an item.
///
/// # Errors
///
/// As [`prefix`].
pub fn item_key(queue: &str, key: Key) -> Result<Vec<u8>, BrokenContract> {
    place_key(&[queue], key)
}

/// Reads [`item_key`]; `None`: it is not the key of an item.
pub fn read_item_key(row: &[u8]) -> Option<(&str, Key)> {
    let (len, rest) = row.split_first()?;
    let (name, place) = rest.split_at_checked(usize::from(*len))?;
    let queue = std::str::from_utf8(name).ok()?;
    (place.len() == PLACE_LEN).then(|| place_of(place)).flatten().map(|key| (queue, key))
}

/// The names at the beginning of a key, and the bytes after them.
pub(crate) fn names<const N: usize>(mut bytes: &[u8]) -> Result<([Arc<str>; N], &[u8]), String> {
    let mut out: [Arc<str>; N] = std::array::from_fn(|_| Arc::from(""));
    for name in &mut out {
        let (len, rest) = bytes.split_first().ok_or("the key is too short")?;
        let (text, rest) = rest.split_at_checked(usize::from(*len)).ok_or("the key is too short")?;
        *name = std::str::from_utf8(text).map_err(|_| "a name in the key is not UTF-8")?.into();
        bytes = rest;
    }
    Ok((out, bytes))
}

/// The names of a key that may contain nothing else.
pub(crate) fn names_alone<const N: usize>(bytes: &[u8]) -> Result<[Arc<str>; N], String> {
    match names(bytes)? {
        (names, []) => Ok(names),
        (_, [_, ..]) => Err("the key is too long".to_owned()),
    }
}

/// A row's fields, sealed with a checksum over its key and themselves.
pub(crate) fn seal(key: &[u8], mut row: Vec<u8>) -> Vec<u8> {
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

/// A row of one number, for the format, the identity and the mark of an import.
pub fn number_row(key: &[u8], number: u64) -> Vec<u8> {
    seal_numbers(key, &[number])
}

/// Reads [`number_row`].
///
/// # Errors
///
/// A text that says what is wrong with the row.
pub fn read_number(key: &[u8], bytes: &[u8]) -> Result<u64, String> {
    unseal(key, bytes).map(|[number]| number)
}

/// The row of the marks of commit number `commit`.
pub fn marks_row(commit: u64, marks: &Marks) -> Vec<u8> {
    seal_numbers(META_MARKS, &[commit, marks.next_seq, marks.wall])
}

/// Reads [`marks_row`].
///
/// # Errors
///
/// A text that says what is wrong with the row.
pub fn read_marks(bytes: &[u8]) -> Result<(u64, Marks), String> {
    let [commit, next_seq, wall] = unseal(META_MARKS, bytes)?;
    Ok((commit, Marks { next_seq, wall }))
}

/// The key of a window's row.
///
/// # Errors
///
/// As [`prefix`].
pub fn window_key(application: &str, customer: &str) -> Result<Vec<u8>, BrokenContract> {
    prefix(&[application, customer])
}

/// Key and value of a window's row.
///
/// # Errors
///
/// As [`prefix`].
pub fn window_row(row: &WindowRow) -> Result<SmallRow, BrokenContract> {
    let key = window_key(&row.application, &row.customer)?;
    let expiry = [u64::from(row.expiry.is_some()), row.expiry.unwrap_or(0)];
    let numbers = [row.end, row.window, row.count.into(), row.weight, expiry[0], expiry[1]];
    let value = seal_numbers(&key, &numbers);
    Ok((key, value))
}

/// Reads [`window_row`].
///
/// # Errors
///
/// A text that says what is wrong with the row.
pub fn read_window(key: &[u8], bytes: &[u8]) -> Result<WindowRow, String> {
    let [application, customer] = names_alone(key)?;
    let [end, window, count, weight, expires, expiry] = unseal(key, bytes)?;
    let count = u32::try_from(count).map_err(|_| "count is out of range")?;
    let expiry = match expires {
        0 => None,
        1 => Some(expiry),
        other => return Err(format!("unknown expiry flag {other}")),
    };
    Ok(WindowRow { application, customer, end, window, count, weight, expiry })
}

/// A small row's key and value.
pub type SmallRow = (Vec<u8>, Vec<u8>);

/// First byte of the key of a closing's row: by planned end, or by the moment of closing.
const BY_END: u8 = 0;
const BY_DUE: u8 = 1;

/// The key of a closing's row by planned end. The keys of the members contain that end and the window.
///
/// # Errors
///
/// As [`prefix`].
pub fn closed_by_end(queue: &str, member: Key) -> Result<Vec<u8>, BrokenContract> {
    closing_key(BY_END, queue, member)
}

/// The key of a closing's row by the moment of closing. The places of the members contain that moment and the
/// window.
///
/// # Errors
///
/// As [`prefix`].
pub fn closed_by_due(queue: &str, member: Key) -> Result<Vec<u8>, BrokenContract> {
    closing_key(BY_DUE, queue, member)
}

fn closing_key(by: u8, queue: &str, member: Key) -> Result<Vec<u8>, BrokenContract> {
    let mut key = place_key(&[queue], Key { seq: 0, ..member })?;
    key.insert(0, by);
    Ok(key)
}

/// Keys and values of the two rows of a closing, the one by planned end first.
///
/// # Errors
///
/// As [`prefix`].
pub fn closing_rows(row: &ClosingRow) -> Result<[SmallRow; 2], BrokenContract> {
    let place = |due| Key { due, window: row.window, seq: 0 };
    let by_end = closed_by_end(&row.application, place(row.end))?;
    let by_due = closed_by_due(&row.application, place(row.due))?;
    let cause = closed_by_code(row.cause).into();
    let values = [seal_numbers(&by_end, &[row.due, cause]), seal_numbers(&by_due, &[row.end, cause])];
    let [end_value, due_value] = values;
    Ok([(by_end, end_value), (by_due, due_value)])
}

/// The two numbers of a closing's row: the other moment, and the cause.
fn read_closing(key: &[u8], bytes: &[u8]) -> Result<(u64, ClosedBy), String> {
    let [moment, cause] = unseal(key, bytes)?;
    let cause = u8::try_from(cause).map_err(|_| "cause is out of range")?;
    Ok((moment, fields::read_closed_by(cause).map_err(|e| e.to_string())?))
}

/// Reads a closing's row by planned end: the moment of closing and its cause.
///
/// # Errors
///
/// A text that says what is wrong with the row.
pub fn read_closed_by_end(key: &[u8], bytes: &[u8]) -> Result<(u64, ClosedBy), String> {
    read_closing(key, bytes)
}

/// Reads a closing's row by the moment of closing.
///
/// # Errors
///
/// A text that says what is wrong with the row.
pub fn read_closed_by_due(key: &[u8], bytes: &[u8]) -> Result<ClosingRow, String> {
    let (by_due, application, place) = read_closing_key(key)?;
    if !by_due {
        return Err("the row is one by planned end".to_owned());
    }
    let (end, cause) = read_closing(key, bytes)?;
    Ok(ClosingRow { application, end, window: place.window, due: place.due, cause })
}

/// Reads the key of a closing's row: whether it is by the moment of closing; the queue; and that moment or
/// the planned end, with the window.
///
/// # Errors
///
/// A text that says what is wrong with the row.
pub fn read_closing_key(key: &[u8]) -> Result<(bool, Arc<str>, Key), String> {
    let (by, rest) = key.split_first().ok_or("the key is too short")?;
    let by_due = match *by {
        BY_END => false,
        BY_DUE => true,
        other => return Err(format!("unknown kind {other} of closing")),
    };
    let ([queue], place) = names(rest)?;
    let place = place_of(place).filter(|_| place.len() == PLACE_LEN).ok_or("the key has a wrong length")?;
    Ok((by_due, queue, place))
}

/// Key and value of the row that leads from an identity to its item.
pub fn identity_row(identity: Identity, key: Key) -> ([u8; 16], Vec<u8>) {
    let row = identity.to_bytes();
    (row, seal_numbers(&row, &[key.due, key.window, key.seq]))
}

/// Reads [`identity_row`].
///
/// # Errors
///
/// A text that says what is wrong with the row.
pub fn read_identity(identity: Identity, bytes: &[u8]) -> Result<Key, String> {
    unseal(&identity.to_bytes(), bytes).map(|[due, window, seq]| Key { due, window, seq })
}

/// The row about a bucket in epoch `epoch`.
pub fn bucket_row(row: BucketRow, epoch: u64) -> Vec<u8> {
    seal_numbers(BUCKET, &[row.bucket.into(), row.from, epoch])
}

/// Reads [`bucket_row`] of this bucket.
///
/// # Errors
///
/// A text that says what is wrong with the row.
pub fn read_bucket(bucket: u8, bytes: &[u8]) -> Result<(BucketRow, u64), String> {
    let [found, from, epoch] = unseal(BUCKET, bytes)?;
    if found == u64::from(bucket) {
        Ok((BucketRow { bucket, from }, epoch))
    } else {
        Err(format!("it belongs to bucket {found}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue_rows::{held_row, queue_row, read_held, read_of_queue, read_queue, OfQueue};
    use proptest::prelude::*;
    use tidegate_types::event::{HeldRow, QueueRow, Slowed, FOR_EVER};
    use tidegate_types::Rate;

    fn key(due: u64, seq: u64) -> Key {
        Key::own(due, seq)
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn keys_sort_as_places_do(a in any::<(u64, u64)>(), b in any::<(u64, u64)>()) {
            let (a, b) = (key(a.0, a.1), key(b.0, b.1));
            let (row, other) = (item_key("app", a).unwrap(), item_key("app", b).unwrap());
            prop_assert_eq!(row.cmp(&other), a.cmp(&b));
            prop_assert_eq!(place_of(&row), Some(a));
            prop_assert_eq!(read_item_key(&row), Some(("app", a)));
        }

        #[test]
        fn no_name_reaches_into_another(a in "[ab]{0,4}", b in "[ab]{0,4}", place in any::<(u64, u64)>()) {
            prop_assume!(a != b);
            let under = place_key(&[&a], key(place.0, place.1)).unwrap();
            prop_assert!(!under.starts_with(&prefix(&[&b]).unwrap()));
        }

        #[test]
        fn small_rows_come_back(
            numbers in any::<[u64; 4]>(),
            count in any::<u32>(),
            expires in any::<bool>(),
        ) {
            let [a, b, c, d] = numbers;
            let marks = Marks { next_seq: b, wall: c };
            prop_assert_eq!(read_marks(&marks_row(a, &marks)).unwrap(), (a, marks));
            let window = WindowRow {
                application: "app".into(), customer: "c".into(), end: a, window: d, count, weight: b,
                expiry: expires.then_some(c),
            };
            let (k, v) = window_row(&window).unwrap();
            prop_assert_eq!(read_window(&k, &v).unwrap(), window);
            let queue = QueueRow {
                queue: if expires { "" } else { "a" }.into(), count: a, low: key(b, c),
                paused: expires.then_some(if b % 2 == 0 { FOR_EVER } else { c.max(2) }),
                unindexed_until: d,
                slowed: Rate::new(count, 60_000).map(|rate| Slowed { rate, until: a.max(2) }),
            };
            let (k, v) = queue_row(&queue).unwrap();
            prop_assert_eq!(read_queue(&k, &v).unwrap(), queue.clone());
            prop_assert_eq!(read_of_queue(&k, &v).unwrap(), OfQueue::Queue(queue));
            let held = HeldRow { application: "a".into(), customer: "c".into(), until: Some(a.max(2)) };
            let (k, v) = held_row(&held).unwrap();
            prop_assert_eq!(read_of_queue(&k, &v.unwrap()).unwrap(), OfQueue::Held(held));
            let closing = ClosingRow {
                application: "a".into(), end: a, window: b, due: c,
                cause: if expires { ClosedBy::Expiry } else { ClosedBy::Time },
            };
            let [(end_key, end_row), (due_key, due_row)] = closing_rows(&closing).unwrap();
            prop_assert_eq!(read_closed_by_end(&end_key, &end_row).unwrap(), (c, closing.cause));
            let known = (false, "a".into(), Key { due: a, window: b, seq: 0 });
            prop_assert_eq!(read_closing_key(&end_key).unwrap(), known);
            prop_assert!(read_closed_by_due(&end_key, &end_row).is_err());
            prop_assert_eq!(read_closed_by_due(&due_key, &due_row).unwrap(), closing);
            let identity = Identity::assigned(a);
            let (_, v) = identity_row(identity, key(b, c));
            prop_assert_eq!(read_identity(identity, &v).unwrap(), key(b, c));
            let k = place_key(&["a", "b"], key(c, d)).unwrap();
            prop_assert_eq!(read_customer_key(&k).unwrap(), (["a".into(), "b".into()], key(c, d)));
            let bucket = BucketRow { bucket: 3, from: a };
            prop_assert_eq!(read_bucket(3, &bucket_row(bucket, b)).unwrap(), (bucket, b));
            prop_assert!(read_bucket(4, &bucket_row(bucket, b)).is_err());
        }

        #[test]
        fn any_bytes_are_read_or_refused(k in any::<Vec<u8>>(), v in any::<Vec<u8>>()) {
            prop_assert!(read_window(&k, &v).is_err());
            prop_assert!(read_queue(&k, &v).is_err());
            prop_assert!(read_closed_by_end(&k, &v).is_err() && read_closed_by_due(&k, &v).is_err());
            prop_assert!(read_marks(&v).is_err());
            prop_assert!(read_bucket(0, &v).is_err());
            prop_assert!(read_identity(Identity::assigned(1), &v).is_err());
            // A valid checksum over invalid fields.
            let sealed = seal(&k, v);
            let _ = (read_window(&k, &sealed), read_closed_by_due(&k, &sealed), read_number(&k, &sealed));
            let _ = (read_closed_by_end(&k, &sealed), read_closing_key(&k));
            let _ = (read_of_queue(&k, &sealed), read_bucket(0, &sealed), read_item_key(&k));
            let _ = read_held(&k, &sealed);
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
        every_bit(&marks_row(3, &Marks { next_seq: 9, wall: 5 }), read_marks);
        let queue = QueueRow {
            queue: "a".into(),
            count: 7,
            low: key(1, 2),
            paused: Some(FOR_EVER),
            unindexed_until: 3,
            slowed: Rate::new(9, 1_000).map(|rate| Slowed { rate, until: FOR_EVER }),
        };
        let (under, row) = queue_row(&queue).unwrap();
        every_bit(&row, |bytes| read_queue(&under, bytes));
        let identity = Identity::given([7; 16]);
        every_bit(&identity_row(identity, key(1, 2)).1, |bytes| read_identity(identity, bytes));
        every_bit(&bucket_row(BucketRow { bucket: 2, from: 9 }, 4), |bytes| read_bucket(2, bytes));
    }

    #[test]
    fn a_flag_without_a_meaning_is_refused() {
        let mut closing = closed_by_due("a", key(1, 2)).unwrap();
        let error = read_closed_by_due(&closing, &seal_numbers(&closing, &[7, 99])).unwrap_err();
        assert_eq!(error, "unknown cause code 99");
        closing[0] = 7;
        assert_eq!(read_closing_key(&closing).unwrap_err(), "unknown kind 7 of closing");
    }

    #[test]
    fn the_row_of_the_marks_has_the_length_that_the_log_is_searched_for() {
        assert_eq!(marks_row(u64::MAX, &Marks { next_seq: 1, wall: 1 }).len(), MARKS_LEN);
    }

    #[test]
    #[should_panic(expected = "a name of 256 bytes is too long for a key")]
    fn a_name_too_long_is_refused() {
        let _ = prefix(&["x", &"x".repeat(256)]);
    }
}
