//! Scans along stored items in bounded steps.

use super::closings::in_order;
use super::keyspace::KeyspaceId;
use super::load::{item_of_customer_row, place};
use super::record::View;
use super::row_reads::Rows;
use super::{rows, ReadError};
use crate::engine::event::{Along, Scan, Stored};
use crate::engine::types::{Content, Key};
use std::sync::Arc;

/// Bytes of rows that one step looks at, beside the first row: where rows are large as many as a step may
/// look at would take minutes, and other steps wait meanwhile.
const STEP_BYTES: u64 = 4 << 20;

/// Rows, and the first key not looked at; `None`: the end.
type Step = (Vec<Stored>, Option<Key>);

/// One step of a scan, which may end behind any row once `is_late` says so.
///
/// # Errors
///
/// The storage engine's; a row that does not read as it was written.
pub(super) fn scan<R: Rows>(rows: &R, scan: &Scan, is_late: &dyn Fn() -> bool) -> Result<Step, ReadError> {
    let extent = Extent { scan, is_late, rows: 0, looked_at: 0, bytes: 0 };
    match &scan.along {
        Along::Queue(queue) => along_queue(rows, extent, queue),
        Along::Customer(application, customer) => along_customer(rows, extent, application, customer),
    }
}

/// How far a step has gone.
struct Extent<'a> {
    scan: &'a Scan,
    is_late: &'a dyn Fn() -> bool,
    rows: usize,
    looked_at: usize,
    bytes: u64,
}

impl Extent<'_> {
    /// It ends here. The first row is always looked at: a step that brought nothing on would never end.
    fn is_enough(&self) -> bool {
        let Scan { max_rows, max_looked_at, .. } = *self.scan;
        let full = self.rows >= max_rows || self.looked_at >= max_looked_at || self.bytes >= STEP_BYTES;
        full || self.looked_at > 0 && (self.is_late)()
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
    for row in rows.range(KeyspaceId::Customers, (start, end)) {
        let (row, _) = row?;
        let key = place(KeyspaceId::Customers, &row)?;
        if extent.is_enough() {
            return Ok((out, Some(key)));
        }
        let looked = |view: &View<'_>| (view.content_size(), wanted(scan, application, view));
        let (bytes, item) = item_of_customer_row(rows, &row, (application, key), looked)?;
        extent.count(bytes, item.is_some());
        out.extend(item);
    }
    Ok((out, None))
}

/// The item, if the scan wants it.
fn wanted(scan: &Scan, queue: &Arc<str>, view: &View<'_>) -> Option<Stored> {
    if scan.customer.is_some() && scan.customer.as_deref() != view.customer {
        return None;
    }
    let properties = |view: &View<'_>| {
        Arc::new(Content { properties: view.properties.to_vec(), body: Vec::new(), json: view.json })
    };
    Some(Stored { content: scan.properties.then(|| properties(view)), ..view.stored(queue) })
}
