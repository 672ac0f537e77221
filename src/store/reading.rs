//! Reads rows as items and keys, and names the rows that are damaged.

use super::keyspace::{self, KeyspaceId};
use super::record::{self, View};
use super::rows;
use super::ReadError;
use std::fmt::Display;
use tidegate_types::Key;

/// The item in a row of [`KeyspaceId::Items`].
///
/// # Errors
///
/// A record that does not read as it was written.
pub(crate) fn view<'a>(row: &'a [u8], bytes: &'a [u8]) -> Result<View<'a>, ReadError> {
    record::decode(row, bytes).map_err(|e| damaged(KeyspaceId::Items, row, &e))
}

/// The same for callers that need no body; it is empty unless it was read.
///
/// # Errors
///
/// As [`view`].
pub(crate) fn head<'a>(row: &'a [u8], bytes: &'a [u8]) -> Result<View<'a>, ReadError> {
    record::decode_head(row, bytes).map_err(|e| damaged(KeyspaceId::Items, row, &e))
}

/// The place in the order at the end of a row's key.
///
/// # Errors
///
/// Damage, if the key is too short.
pub(crate) fn place(id: KeyspaceId, row: &[u8]) -> Result<Key, ReadError> {
    rows::place_of(row).ok_or_else(|| damaged(id, row, &"the key is too short"))
}

/// The error for a row of the customers' index whose item is missing.
pub(crate) fn leads_nowhere(row: &[u8]) -> ReadError {
    damaged(KeyspaceId::Customers, row, &"no item of the queue belongs to this row")
}

/// The error for a row that does not read as it was written.
pub(crate) fn damaged(id: KeyspaceId, key: &[u8], error: &dyn Display) -> ReadError {
    ReadError::Damaged { keyspace: id.name(), key: keyspace::show(id, key), error: error.to_string() }
}
