//! The fields of stored values: numbers, texts, byte strings, and the checksum after them. Pure.

use thiserror::Error;
use tidegate_types::{ClosedBy, Reason};

/// The fault of a record.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum RecordError {
    /// Fewer bytes than a record can have.
    #[error("the record has {0} bytes, fewer than any record can have")]
    Short(usize),
    /// Content, key or checksum have changed since the record was written.
    #[error("checksum mismatch: found {found:08x}, computed {computed:08x}")]
    Checksum {
        /// The checksum in the record.
        found: u32,
        /// The checksum of its bytes.
        computed: u32,
    },
    /// Written by a newer version of this program.
    #[error("record version {found} is not known (this program knows {known})")]
    Version {
        /// Version of the record.
        found: u8,
        /// Version of this program.
        known: u8,
    },
    /// Flags that no version defines.
    #[error("unknown flags {0:#04x}")]
    Flags(u8),
    /// A field exceeds the end of the record.
    #[error("field `{0}` does not fit in the record")]
    Truncated(&'static str),
    /// A number too large for its field.
    #[error("field `{0}` is out of range")]
    Range(&'static str),
    /// A text that is not UTF-8.
    #[error("field `{0}` is not UTF-8")]
    Utf8(&'static str),
    /// An undefined reason code.
    #[error("unknown reason code {0}")]
    Reason(u8),
    /// An undefined code of what closed a window.
    #[error("unknown cause code {0}")]
    ClosedBy(u8),
    /// A key that cannot be an item's.
    #[error("the key is not an item key")]
    Key,
    /// An undefined code of an end.
    #[error("unknown end code {0}")]
    End(u8),
    /// Bytes left after the last field.
    #[error("{0} bytes too many")]
    Trailing(usize),
}

/// The code on disk; a code is never given a second meaning.
pub fn reason_code(reason: Reason) -> u8 {
    match reason {
        Reason::Invalid => 1,
        Reason::TooLarge => 2,
        Reason::Duplicate => 3,
        Reason::Full => 4,
        Reason::Expired => 5,
        Reason::Attempts => 6,
        Reason::Refused => 7,
        Reason::Unsupported => 8,
    }
}

/// All causes, in the order of their codes.
pub(crate) const CAUSES: [ClosedBy; 6] =
    [ClosedBy::Time, ClosedBy::Count, ClosedBy::Bytes, ClosedBy::Quiet, ClosedBy::Flush, ClosedBy::Expiry];

/// The code on disk; a code is never given a second meaning.
pub fn closed_by_code(cause: ClosedBy) -> u8 {
    match cause {
        ClosedBy::Time => 0,
        ClosedBy::Count => 1,
        ClosedBy::Bytes => 2,
        ClosedBy::Quiet => 3,
        ClosedBy::Flush => 4,
        ClosedBy::Expiry => 5,
    }
}

/// Reads [`closed_by_code`].
///
/// # Errors
///
/// [`RecordError::ClosedBy`].
pub fn read_closed_by(code: u8) -> Result<ClosedBy, RecordError> {
    CAUSES.into_iter().find(|cause| closed_by_code(*cause) == code).ok_or(RecordError::ClosedBy(code))
}

/// Appends a number: seven bits in each byte, the lowest first.
pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends a byte string after its length.
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Reads fields from the remaining bytes.
pub struct FieldReader<'a>(pub &'a [u8]);

impl<'a> FieldReader<'a> {
    /// Reads one byte.
    ///
    /// # Errors
    ///
    /// [`RecordError::Truncated`] with the given name.
    pub fn byte(&mut self, field: &'static str) -> Result<u8, RecordError> {
        let (first, rest) = self.0.split_first().ok_or(RecordError::Truncated(field))?;
        self.0 = rest;
        Ok(*first)
    }

    /// Reads a number of up to 64 bits.
    ///
    /// # Errors
    ///
    /// As [`FieldReader::byte`]; [`RecordError::Range`].
    pub fn varint(&mut self, field: &'static str) -> Result<u64, RecordError> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte(field)?;
            // Only the lowest bit of the tenth byte fits.
            if shift == 63 && byte > 1 {
                return Err(RecordError::Range(field));
            }
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(RecordError::Range(field))
    }

    /// Reads a number of up to 32 bits.
    ///
    /// # Errors
    ///
    /// As [`FieldReader::varint`].
    pub fn u32(&mut self, field: &'static str) -> Result<u32, RecordError> {
        u32::try_from(self.varint(field)?).map_err(|_| RecordError::Range(field))
    }

    /// Reads a byte string after its length.
    ///
    /// # Errors
    ///
    /// As [`FieldReader::varint`].
    pub fn bytes(&mut self, field: &'static str) -> Result<&'a [u8], RecordError> {
        let len = usize::try_from(self.varint(field)?).map_err(|_| RecordError::Range(field))?;
        let (bytes, rest) = self.0.split_at_checked(len).ok_or(RecordError::Truncated(field))?;
        self.0 = rest;
        Ok(bytes)
    }

    /// Reads exactly `N` bytes.
    ///
    /// # Errors
    ///
    /// As [`FieldReader::byte`].
    pub fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], RecordError> {
        let (first, rest) = self.0.split_first_chunk().ok_or(RecordError::Truncated(field))?;
        self.0 = rest;
        Ok(*first)
    }

    /// Reads a text.
    ///
    /// # Errors
    ///
    /// As [`FieldReader::bytes`]; [`RecordError::Utf8`].
    pub fn text(&mut self, field: &'static str) -> Result<&'a str, RecordError> {
        std::str::from_utf8(self.bytes(field)?).map_err(|_| RecordError::Utf8(field))
    }

    /// Reads a reason's code.
    ///
    /// # Errors
    ///
    /// As [`FieldReader::byte`]; [`RecordError::Reason`].
    pub fn reason(&mut self) -> Result<Reason, RecordError> {
        let code = self.byte("reason")?;
        Reason::ALL.into_iter().find(|r| reason_code(*r) == code).ok_or(RecordError::Reason(code))
    }

    /// Whether no bytes are left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Checks that no bytes are left.
    ///
    /// # Errors
    ///
    /// [`RecordError::Trailing`].
    pub fn end(&self) -> Result<(), RecordError> {
        match self.0.len() {
            0 => Ok(()),
            left => Err(RecordError::Trailing(left)),
        }
    }
}

/// Appends the checksum over `key` and all of `out`.
pub fn seal(key: &[u8], out: &mut Vec<u8>) {
    let crc = crc32c::crc32c_append(crc32c::crc32c(key), out);
    out.extend_from_slice(&crc.to_le_bytes());
}

/// Checks the checksum of [`seal`], and returns the fields.
///
/// # Errors
///
/// [`RecordError::Short`], [`RecordError::Checksum`].
pub fn unseal<'a>(key: &[u8], bytes: &'a [u8]) -> Result<&'a [u8], RecordError> {
    let (fields, crc) = bytes.split_last_chunk().ok_or(RecordError::Short(bytes.len()))?;
    let found = u32::from_le_bytes(*crc);
    let computed = crc32c::crc32c_append(crc32c::crc32c(key), fields);
    if found == computed {
        Ok(fields)
    } else {
        Err(RecordError::Checksum { found, computed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_codes_are_distinct() {
        let codes: std::collections::BTreeSet<u8> = Reason::ALL.into_iter().map(reason_code).collect();
        assert_eq!(codes.len(), Reason::ALL.len());
    }

    #[test]
    fn every_cause_comes_back() {
        for cause in CAUSES {
            assert_eq!(read_closed_by(closed_by_code(cause)), Ok(cause));
        }
        assert_eq!(read_closed_by(6), Err(RecordError::ClosedBy(6)));
    }

    #[test]
    fn numbers_of_every_length_come_back() {
        for value in (0..64).flat_map(|bit| [(1 << bit) - 1, 1 << bit]).chain([u64::MAX]) {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            let mut reader = FieldReader(&out);
            assert_eq!((reader.varint("n"), reader.end()), (Ok(value), Ok(())));
        }
    }
}
