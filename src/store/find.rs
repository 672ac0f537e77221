//! Where an item is, or how it ended, by its identity.

use super::database::{damaged, Epochs, Keyspaces};
use super::errors::broken_contract;
use super::keyspace::KeyspaceId;
use super::{ended, rows, ReadError};
use crate::engine::event::{Found, Stored, Wanted};
use crate::engine::types::Ended;

/// What the store knows of one item.
///
/// # Errors
///
/// The storage engine's; a row that does not read as it was written; the identity row of a producer's id
/// that leads nowhere, or one that leads to another item. None of them is skipped: an item that is there and
/// not found would be taken for a new one. What somebody asks is never among them: an id that this store
/// assigned, and that belongs to another application's item, is not found.
pub(super) fn find(keyspaces: &Keyspaces, epochs: &Epochs, wanted: &Wanted) -> Result<Found, ReadError> {
    Ok(Found { item: waiting(keyspaces, wanted)?, ended: ended(keyspaces, epochs, wanted)? })
}

fn waiting(keyspaces: &Keyspaces, wanted: &Wanted) -> Result<Option<Stored>, ReadError> {
    let queue = &wanted.application;
    let item = |key| keyspaces.item_as_due(queue, key, |view| view.stored(queue));
    let row = wanted.identity.to_bytes();
    let Some(bytes) = keyspaces.get(KeyspaceId::Identities, &row)? else {
        // The key comes from whoever asks, and may be another item's.
        let found = wanted.key.map(item).transpose()?.flatten();
        return Ok(found.filter(|item| item.identity() == wanted.identity));
    };
    let broken = |error: &dyn std::fmt::Display| damaged(KeyspaceId::Identities, &row, error);
    let key = rows::read_identity(wanted.identity, &bytes).map_err(|e| broken(&e))?;
    match item(key)? {
        Some(item) if item.identity() == wanted.identity => Ok(Some(item)),
        Some(_) => Err(broken(&"the item that this row leads to is another one")),
        // An assigned id says nothing of an application, and whoever asks names any. Under a producer's id
        // the application stands too: it is in the hash.
        None if !wanted.identity.is_given() => Ok(None),
        None => Err(broken(&"no item of the application's queue belongs to this row")),
    }
}

/// How it ended, as the first of the buckets says that knows it.
///
/// # Errors
///
/// The storage engine's; a row that does not read as it was written.
pub(super) fn ended(
    keyspaces: &Keyspaces,
    epochs: &Epochs,
    wanted: &Wanted,
) -> Result<Option<Ended>, ReadError> {
    let row = wanted.identity.to_bytes();
    for bucket in &wanted.buckets {
        let Some(id) = KeyspaceId::ended(*bucket) else {
            return Err(broken_contract(format!("there is no bucket {bucket} of ended items")).into());
        };
        let Some(bytes) = keyspaces.get(id, &row)? else { continue };
        let (epoch, ended) = ended::decode(wanted.identity, &bytes).map_err(|e| damaged(id, &row, &e))?;
        // What is left of an earlier epoch of the bucket says nothing any more.
        if epochs.get(usize::from(*bucket)) == Some(&epoch) {
            return Ok(Some(ended));
        }
    }
    Ok(None)
}
