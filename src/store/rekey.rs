//! Members of a closed window, moved from the planned end to the moment at which it closed.

use super::changes::Changes;
use super::database::{view, Row};
use super::keyspace::KeyspaceId;
use super::record::{self, View};
use super::{rows, ReadError};
use crate::engine::event::{ClosingRow, IndexRows};
use crate::engine::types::Key;

/// See [`crate::engine::event::Op::Rekey`]. The members lie together.
///
/// # Errors
///
/// The storage engine's; a row that does not read as it was written.
pub(super) fn rekey(changes: &mut Changes<'_>, closed: &ClosingRow, except: &[u64]) -> Result<(), ReadError> {
    let first = Key { due: closed.end, window: closed.window, seq: 0 };
    let start = rows::item_key(&closed.application, first)?;
    let behind =
        rows::item_key(&closed.application, Key { window: closed.window.saturating_add(1), ..first })?;
    let mut members = Vec::new();
    changes.visit(KeyspaceId::Items, start, behind, |(row, bytes)| {
        let item = view(&row, &bytes)?;
        // The first of them may have a time of its own meanwhile, and be due at the same moment.
        let stays = !item.is_windowed() || except.binary_search(&item.key.seq).is_ok();
        if !stays {
            members.push((row, bytes));
        }
        Ok(())
    })?;
    members.iter().try_for_each(|row| move_member(changes, closed, row))
}

fn move_member(changes: &mut Changes<'_>, closed: &ClosingRow, (row, bytes): &Row) -> Result<(), ReadError> {
    let queue = &closed.application;
    let old = view(row, bytes)?;
    let key = Key { due: closed.due, ..old.key };
    let moved = View { key, closed_by: closed.cause, ..old.clone() };
    let target = rows::item_key(queue, key)?;
    let record = record::encode(&target, &moved);
    changes.remove(KeyspaceId::Customers, rows::place_key(&[queue, &closed.customer], old.key)?);
    changes.remove(KeyspaceId::Items, row.clone());
    changes.put(KeyspaceId::Items, target, record);
    let customer = Some((queue.clone(), closed.customer.clone()));
    changes.index(key, &IndexRows { identity: Some(old.identity()), customer })?;
    Ok(())
}
