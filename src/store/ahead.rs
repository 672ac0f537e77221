//! Finds the windows that a clock set back leaves in its future.

use super::closings::in_order;
use super::row_reads::Rows;
use super::ReadError;
use std::collections::BTreeSet;
use tidegate_types::event::{AheadRow, Marks, QueueRow, HORIZON_MS};
use tidegate_types::Key;

/// See [`tidegate_types::event::Opened::ahead`]. Reads nothing if `wall` (UTC ms) has advanced since the last
/// commit. Otherwise it reads all items that are due between `wall` and the end of the last short window.
/// This happens once, because the first commit of the new life moves the rows found, and records its own
/// marks.
///
/// # Errors
///
/// Errors of the storage engine; a row that does not read as it was written.
pub(crate) fn ahead<R: Rows>(
    rows: &R,
    queues: &[QueueRow],
    marks: Marks,
    wall: u64,
) -> Result<Vec<AheadRow>, ReadError> {
    let mut found = BTreeSet::new();
    let queues = queues.iter().filter(|_| marks.wall > wall);
    for queue in queues {
        let from = Key::at(wall.saturating_add(1)).max(queue.low);
        let until = marks.wall.saturating_add(HORIZON_MS + 1);
        for row in in_order(rows, &queue.queue, from, until)? {
            let row = row?;
            let item = row.view()?;
            let Some(customer) = item.customer.filter(|_| item.is_windowed()) else { continue };
            found.insert(AheadRow {
                application: item.application.into(),
                customer: customer.into(),
                end: item.key.due,
                due: item.due,
                window: item.key.window,
                closed_by: (item.due != item.accepted_due).then_some(item.closed_by),
            });
        }
    }
    Ok(found.into_iter().collect())
}
