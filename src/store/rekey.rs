//! Members of closed windows, moved from the planned end to the moment at which their window closed.

use super::changes::Changes;
use super::database::{item_bounds, leads_nowhere, place, view, Row};
use super::keyspace::KeyspaceId;
use super::record::{self, View};
use super::{rows, ReadError};
use crate::engine::event::{IndexRows, RekeyMembers};
use crate::engine::types::Key;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

/// Items that are due at one moment of one queue and are members of windows, by the hash of their customer:
/// made with the first window that needs it, and kept up to date for the others of the same call. So a crowd
/// of windows that ends at that moment is gone through once, and not once for each of them.
#[derive(Default)]
pub(super) struct Crowds {
    /// By queue and moment.
    known: HashMap<(Arc<str>, u64), Crowd>,
}

/// Hash of the customer, arrival number.
type Crowd = BTreeSet<(u64, u64)>;

impl Crowds {
    /// A row that is written at this place.
    pub(super) fn note(&mut self, item: &View<'_>) {
        let Some(customer) = item.customer.filter(|_| !self.known.is_empty() && item.is_windowed()) else {
            return;
        };
        if let Some(crowd) = self.known.get_mut(&(Arc::from(item.queue()), item.key.due)) {
            crowd.insert((xxh3_64(customer.as_bytes()), item.key.seq));
        }
    }

    fn of_customer(&self, queue: &Arc<str>, end: u64, customer: &str) -> Option<Vec<u64>> {
        let crowd = self.known.get(&(Arc::clone(queue), end))?;
        let hash = xxh3_64(customer.as_bytes());
        Some(crowd.range((hash, 0)..=(hash, u64::MAX)).map(|(_, seq)| *seq).collect())
    }
}

/// See [`crate::engine::event::Op::Rekey`]. Reads the customer rows of each window at `end`, or, not indexed,
/// the queue's items at `end`, once a call. Of several windows that name an item the first takes it.
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
    for window in members {
        let rows = if indexed {
            by_customer_rows(changes, queue, end, window)?
        } else {
            by_crowd(changes, queue, end, window)?
        };
        for row in rows {
            rekey_item(changes, queue, window, &row)?;
        }
    }
    Ok(())
}

/// Rows of the items that are members, found among all that are due then.
fn by_crowd(
    changes: &mut Changes<'_>,
    queue: &Arc<str>,
    end: u64,
    window: &RekeyMembers,
) -> Result<Vec<Row>, ReadError> {
    let known = changes.crowds().of_customer(queue, end, &window.customer);
    let seqs = match known {
        Some(seqs) => seqs,
        None => {
            let crowd = crowd(changes, queue, end)?;
            changes.crowds_mut().known.insert((Arc::clone(queue), end), crowd);
            changes.crowds().of_customer(queue, end, &window.customer).unwrap_or_default()
        }
    };
    let mut members = Vec::new();
    for seq in seqs {
        let row = rows::item_key(queue, Key { due: end, seq })?;
        let Some(bytes) = changes.get(KeyspaceId::Items, &row)? else { continue };
        if is_member(&view(&row, &bytes)?, window) {
            members.push((row.into(), bytes));
        }
    }
    Ok(members)
}

fn crowd(changes: &Changes<'_>, queue: &Arc<str>, end: u64) -> Result<Crowd, ReadError> {
    let mut crowd = Crowd::new();
    let (start, behind) = item_bounds(queue, Key { due: end, seq: 0 }, end.saturating_add(1))?;
    changes.visit(KeyspaceId::Items, start, behind, |(row, bytes)| {
        let view = view(&row, &bytes)?;
        if let Some(customer) = view.customer.filter(|_| view.is_windowed()) {
            crowd.insert((xxh3_64(customer.as_bytes()), view.key.seq));
        }
        Ok(())
    })?;
    Ok(crowd)
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
    for (row, _) in changes.range(KeyspaceId::Customers, start, behind)? {
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
    changes.crowds_mut().note(&moved);
    changes.remove(KeyspaceId::Customers, rows::place_key(&[queue, &window.customer], old.key)?);
    changes.remove(KeyspaceId::Items, row.clone());
    changes.put(KeyspaceId::Items, target, record);
    let customer = Some((queue.clone(), window.customer.clone()));
    changes.index(key, &IndexRows { identity: Some(old.identity()), customer })?;
    Ok(())
}
