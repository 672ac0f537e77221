//! Members of closed windows, moved from the planned end to the moment at which their window closed.

use super::changes::Changes;
use super::database::{item_bounds, leads_nowhere, place, view, Row};
use super::keyspace::KeyspaceId;
use super::record::{self, View};
use super::{rows, ReadError};
use crate::engine::event::{IndexRows, RekeyMembers};
use crate::engine::types::Key;
use std::collections::HashMap;
use std::sync::Arc;

/// See [`crate::engine::event::Op::Rekey`]. Reads the customer rows of each window at `end`, or, not indexed,
/// the queue's items at `end` once for all windows.
///
/// # Errors
///
/// The storage engine's; a row that does not read as it was written; a customer row that leads nowhere.
pub(super) fn rekey(
    changes: &mut Changes<'_>,
    queue: &Arc<str>,
    end: u64,
    members: &[RekeyMembers],
    indexed: bool,
) -> Result<(), ReadError> {
    if indexed {
        for window in members {
            for row in by_customer_rows(changes, queue, end, window)? {
                rekey_item(changes, queue, window, &row)?;
            }
        }
        return Ok(());
    }
    let mut by_customer: HashMap<&str, Vec<&RekeyMembers>> = HashMap::new();
    for window in members {
        by_customer.entry(&window.customer).or_default().push(window);
    }
    // The first of several windows that names an item is the one that closed first.
    let window_of = |row: &Row| {
        let view = view(&row.0, &row.1)?;
        let windows = view.customer.and_then(|customer| by_customer.get(customer));
        Ok::<_, ReadError>(windows.into_iter().flatten().copied().find(|window| is_member(&view, window)))
    };
    let (start, behind) = item_bounds(queue, Key { due: end, seq: 0 }, end.saturating_add(1))?;
    let rows = changes.range(KeyspaceId::Items, start, behind, |row| Ok(window_of(row)?.is_some()))?;
    for row in rows {
        if let Some(window) = window_of(&row)? {
            rekey_item(changes, queue, window, &row)?;
        }
    }
    Ok(())
}

fn is_member(view: &View<'_>, window: &RekeyMembers) -> bool {
    view.is_windowed()
        && view.customer == Some(&*window.customer)
        && view.key.seq <= window.through_seq
        && window.except.binary_search(&view.key.seq).is_err()
}

/// Rows of the items that are members, found by their customer rows.
fn by_customer_rows(
    changes: &Changes<'_>,
    queue: &Arc<str>,
    end: u64,
    window: &RekeyMembers,
) -> Result<Vec<Row>, ReadError> {
    let names: [&str; 2] = [queue, &window.customer];
    let start = rows::place_key(&names, Key { due: end, seq: 0 })?;
    let behind = match window.through_seq.checked_add(1) {
        Some(seq) => rows::place_key(&names, Key { due: end, seq })?,
        None => rows::place_key(&names, Key { due: end.saturating_add(1), seq: 0 })?,
    };
    let mut members = Vec::new();
    for (row, _) in changes.range(KeyspaceId::Customers, start, behind, |_| Ok(true))? {
        let item = rows::item_key(queue, place(KeyspaceId::Customers, &row)?)?;
        let bytes = changes.get(KeyspaceId::Items, &item)?.ok_or_else(|| leads_nowhere(&row))?;
        // Own-time items of the customer may be due at the same moment.
        if is_member(&view(&item, &bytes)?, window) {
            members.push((item.into(), bytes));
        }
    }
    Ok(members)
}

fn rekey_item(
    changes: &mut Changes<'_>,
    queue: &Arc<str>,
    window: &RekeyMembers,
    (row, bytes): &Row,
) -> Result<(), ReadError> {
    let old = view(row, bytes)?;
    let key = Key { due: window.due, seq: old.key.seq };
    let moved = View { key, closed_by: window.cause, ..old.clone() };
    let target = rows::item_key(queue, key)?;
    let record = record::encode(&target, &moved);
    changes.remove(KeyspaceId::Customers, rows::place_key(&[queue, &window.customer], old.key)?);
    changes.remove(KeyspaceId::Items, row.clone());
    changes.put(KeyspaceId::Items, target, record);
    let customer = Some((queue.clone(), window.customer.clone()));
    changes.index(key, &IndexRows { identity: Some(old.identity()), customer })?;
    Ok(())
}
