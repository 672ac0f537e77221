//! Parses one batch of the storage engine's log. Pure.
//!
//! ```text
//! batch    1 u8, rows u32, sequence number u64; rows; 3 u8, xxh3-64 of the rows u64, "FJL\x03"
//! row      2 u8, kind u8, compression u8, keyspace u64, key length u16, value length u32, length here u32,
//!          key, value
//! clearing 4 u8, keyspace u64                                               (all numbers little endian)
//! ```

use super::rows::{self, MARKS_LEN, META_MARKS};
use std::io::{self, Read};
use xxhash_rust::xxh3::Xxh3;

const TRAILER: &[u8; 4] = b"FJL\x03";
/// Number of bytes of a batch before its first row.
pub(crate) const HEAD: u64 = 13;

/// Why a batch could not be read.
pub(crate) enum ParseError {
    Io(io::Error),
    /// Its end cannot be determined.
    Shape(&'static str),
}

impl From<io::Error> for ParseError {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::UnexpectedEof {
            ParseError::Shape("it ends within a batch")
        } else {
            ParseError::Io(error)
        }
    }
}

/// One batch, from its first to its last byte.
pub(crate) struct LogBatch {
    pub(crate) len: u64,
    pub(crate) sequence: u64,
    /// Number of the commit in it.
    pub(crate) number: Option<u64>,
    /// Whether the checksum matches.
    pub(crate) whole: bool,
}

struct LoggedRows<R> {
    inner: R,
    hasher: Xxh3,
    read: u64,
    /// Maximum number of bytes of the batch.
    room: u64,
}

impl<R: Read> LoggedRows<R> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], ParseError> {
        let mut bytes = [0; N];
        self.inner.read_exact(&mut bytes)?;
        self.read += N as u64;
        Ok(bytes)
    }

    /// Takes bytes of a row, which the checksum covers.
    fn part<const N: usize>(&mut self) -> Result<[u8; N], ParseError> {
        let bytes = self.take()?;
        self.hasher.update(&bytes);
        Ok(bytes)
    }

    fn skip(&mut self, len: u64) -> Result<(), ParseError> {
        if len > self.room.saturating_sub(self.read) {
            return Err(ParseError::Shape("a length exceeds the log"));
        }
        let (mut left, mut chunk) = (len, [0; 4096]);
        while let Some(part) = chunk.get_mut(..left.min(4096) as usize).filter(|part| !part.is_empty()) {
            self.inner.read_exact(part)?;
            self.hasher.update(part);
            left -= part.len() as u64;
        }
        self.read += len;
        Ok(())
    }

    /// Reads a row after its tag. Returns the commit's number, if it is the row of the marks.
    fn row(&mut self) -> Result<Option<u64>, ParseError> {
        let [_kind, compression] = self.part()?;
        self.part::<8>()?;
        let key = u16::from_le_bytes(self.part()?);
        let value = u32::from_le_bytes(self.part()?);
        let here = u32::from_le_bytes(self.part()?);
        if compression > 1 || (compression == 0 && value != here) {
            return Err(ParseError::Shape("a row is of an unknown kind"));
        }
        // No other keyspace has a key of these bytes: it would begin with the length of a name that does not
        // fit into it.
        if usize::from(key) != META_MARKS.len() || here as usize != MARKS_LEN {
            self.skip(u64::from(key) + u64::from(here))?;
            return Ok(None);
        }
        let key: [u8; META_MARKS.len()] = self.part()?;
        let value: [u8; MARKS_LEN] = self.part()?;
        Ok((key == META_MARKS).then(|| rows::read_marks(&value).ok()).flatten().map(|(number, _)| number))
    }
}

/// Reads one batch of at most `room` bytes (the rest of the file).
pub(crate) fn read_batch(inner: impl Read, room: u64) -> Result<LogBatch, ParseError> {
    let mut rows = LoggedRows { inner, hasher: Xxh3::new(), read: 0, room };
    let ([1], count, sequence) = (rows.take()?, u32::from_le_bytes(rows.take()?), rows.take()?) else {
        return Err(ParseError::Shape("no batch begins here"));
    };
    let mut number = None;
    for _ in 0..count {
        match rows.part()? {
            [2] => number = rows.row()?.or(number),
            [4] => rows.skip(8)?,
            _ => return Err(ParseError::Shape("a row has an unknown tag")),
        }
    }
    if rows.take()? != [3] {
        return Err(ParseError::Shape("a batch does not end where it should"));
    }
    let checksum = u64::from_le_bytes(rows.take()?);
    if rows.take()? != *TRAILER {
        return Err(ParseError::Shape("a batch does not end where it should"));
    }
    let whole = rows.hasher.digest() == checksum;
    Ok(LogBatch { len: rows.read, sequence: u64::from_le_bytes(sequence), number, whole })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn batch(rows: &[(u16, u8, Vec<u8>)], sequence: u64) -> Vec<u8> {
        let mut body = Vec::new();
        for (key, compression, value) in rows {
            body.extend_from_slice(&[2, 0, *compression]);
            body.extend_from_slice(&1_u64.to_le_bytes());
            body.extend_from_slice(&key.to_le_bytes());
            body.extend_from_slice(&(value.len() as u32).to_le_bytes());
            body.extend_from_slice(&(value.len() as u32).to_le_bytes());
            body.extend(std::iter::repeat_n(7, usize::from(*key)));
            body.extend_from_slice(value);
        }
        let mut out = vec![1];
        out.extend_from_slice(&(rows.len() as u32).to_le_bytes());
        out.extend_from_slice(&sequence.to_le_bytes());
        let mut hasher = Xxh3::new();
        hasher.update(&body);
        out.extend_from_slice(&body);
        out.push(3);
        out.extend_from_slice(&hasher.digest().to_le_bytes());
        out.extend_from_slice(TRAILER);
        out
    }

    fn rows() -> impl Strategy<Value = Vec<(u16, u8, Vec<u8>)>> {
        proptest::collection::vec((0_u16..40, 0_u8..2, any::<Vec<u8>>()), 0..6)
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2_000) })]

        #[test]
        fn a_changed_batch_is_never_whole(
            rows in rows(),
            sequence in any::<u64>(),
            at in any::<prop::sample::Index>(),
            bit in 0_u8..8,
            cut in any::<bool>(),
        ) {
            let good = batch(&rows, sequence);
            let read = read_batch(&*good, good.len() as u64).ok().expect("it reads");
            prop_assert!(read.whole && read.len == good.len() as u64 && read.sequence == sequence);
            let mut bad = good.clone();
            let at = at.index(bad.len());
            if cut {
                bad.truncate(at);
            } else {
                bad[at] ^= 1 << bit;
            }
            // The checksum does not cover the sequence number; its order is checked instead.
            if cut || !(5..13).contains(&at) {
                let read = read_batch(&*bad, bad.len() as u64);
                prop_assert!(!read.is_ok_and(|read| read.whole));
            }
        }

        #[test]
        fn any_bytes_are_read(bytes in any::<Vec<u8>>(), rows in rows(), room in 0_u64..400) {
            let _ = read_batch(&*bytes, room);
            let _ = read_batch(&*[&batch(&rows, 1)[..], &bytes].concat(), room);
        }
    }
}
