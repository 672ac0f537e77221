//! Scans over stored items in bounded steps.

use super::closings::{as_due, in_order};
use super::keyspace::KeyspaceId;
use super::reading::{head, leads_nowhere, place};
use super::record::View;
use super::row_reads::{Row, Rows, NO_BODIES};
use super::{rows, ReadError};
use std::sync::Arc;
use tidegate_types::event::{Along, Scan, Stored};
use tidegate_types::{Content, Key};

/// Bytes of rows that one step reads, apart from the first row. Without this bound a step over large rows
/// could take minutes, while other steps wait.
const STEP_BYTES: u64 = 4 << 20;

/// The rows, and the first key not read; `None`: the end.
type Step = (Vec<Stored>, Option<Key>);

/// One step of a scan, which may end after any row once `is_late` returns true.
///
/// # Errors
///
/// Errors of the storage engine; a row that does not read as it was written.
pub(crate) fn scan<R: Rows>(rows: &R, scan: &Scan, is_late: &dyn Fn() -> bool) -> Result<Step, ReadError> {
    let extent = Extent { scan, is_late, together: R::AHEAD, rows: 0, looked_at: 0, bytes: 0 };
    match &scan.along {
        Along::Queue(queue) => along_queue(rows, extent, queue),
        Along::Customer(application, customer) => along_customer(rows, extent, application, customer),
    }
}

/// Progress of a step.
struct Extent<'a> {
    scan: &'a Scan,
    is_late: &'a dyn Fn() -> bool,
    /// Number of rows that are read together; all rows read are examined, however late it is.
    together: usize,
    rows: usize,
    looked_at: usize,
    bytes: u64,
}

impl Extent<'_> {
    /// Whether the step ends here. It always examines the first row: a step without progress would repeat
    /// without end.
    fn is_enough(&self) -> bool {
        let Scan { max_rows, max_looked_at, .. } = *self.scan;
        let full = self.rows >= max_rows || self.looked_at >= max_looked_at || self.bytes >= STEP_BYTES;
        let is_border = self.looked_at > 0 && self.looked_at.is_multiple_of(self.together);
        full || is_border && (self.is_late)()
    }

    fn count(&mut self, bytes: u64, wanted: bool) {
        self.looked_at += 1;
        self.bytes += bytes;
        self.rows += usize::from(wanted);
    }
}

fn along_queue<R: Rows>(rows: &R, mut extent: Extent<'_>, queue: &Arc<str>) -> Result<Step, ReadError> {
    let (scan, mut out) = (extent.scan, Vec::new());
    for row in in_order(rows, queue, scan.from, scan.until)? {
        let row = row?;
        if extent.is_enough() {
            return Ok((out, Some(row.place)));
        }
        let item = wanted(scan, queue, &row.view()?);
        extent.count(row.len(), item.is_some());
        out.extend(item);
    }
    Ok((out, None))
}

fn along_customer<R: Rows>(
    rows: &R,
    mut extent: Extent<'_>,
    application: &Arc<str>,
    customer: &str,
) -> Result<Step, ReadError> {
    let (scan, mut out) = (extent.scan, Vec::new());
    let names: [&str; 2] = [application, customer];
    let start = rows::place_key(&names, scan.from)?;
    let end = rows::place_key(&names, Key::at(scan.until))?;
    let mut leads = rows.range(KeyspaceId::Customers, (start, end), NO_BODIES);
    loop {
        let together = leads.by_ref().take(R::AHEAD).collect::<Result<Vec<Row>, _>>()?;
        if together.is_empty() {
            return Ok((out, None));
        }
        let place = |(row, _): &Row| place(KeyspaceId::Customers, row);
        let places = together.iter().map(place).collect::<Result<Vec<_>, _>>()?;
        if extent.is_enough() {
            return Ok((out, places.first().copied()));
        }
        let key = |key: &Key| Ok((KeyspaceId::Items, rows::item_key(application, *key)?.into()));
        let keys = places.iter().map(key).collect::<Result<Vec<_>, ReadError>>()?;
        let mut found = Vec::with_capacity(keys.len());
        let lying = keys.iter().zip(rows.get_many(&keys, NO_BODIES));
        for (((_, key), row), (lead, _)) in lying.zip(&together) {
            let Some(bytes) = row()? else {
                if rows.has_losses() {
                    found.push((0, None));
                    continue;
                }
                return Err(leads_nowhere(lead));
            };
            found.push((bytes.len() as u64, wanted(scan, application, &head(key, &bytes)?)));
        }
        as_due(rows, found.iter_mut().filter_map(|(_, item)| item.as_mut()))?;
        for (place, (bytes, item)) in places.into_iter().zip(found) {
            if extent.is_enough() {
                return Ok((out, Some(place)));
            }
            extent.count(bytes, item.is_some());
            out.extend(item);
        }
    }
}

/// The item, if it matches the scan.
fn wanted(scan: &Scan, queue: &Arc<str>, view: &View<'_>) -> Option<Stored> {
    if scan.customer.is_some() && scan.customer.as_deref() != view.customer {
        return None;
    }
    let properties = |view: &View<'_>| {
        Arc::new(Content { properties: view.properties.to_vec(), body: Vec::new(), json: view.json })
    };
    Some(Stored { content: scan.properties.then(|| properties(view)), ..view.stored(queue) })
}
