//! Scans along stored items in bounded steps.

use super::closings::in_order;
use super::database::{place, Keyspaces};
use super::keyspace::KeyspaceId;
use super::record::View;
use super::{rows, ReadError};
use crate::engine::event::{Along, Scan, Stored};
use crate::engine::types::{Content, Key};
use std::sync::Arc;

/// Bytes of rows that one step looks at, beside the first row: commits wait meanwhile, and where rows are
/// large as many as a step may look at would take minutes.
const STEP_BYTES: u64 = 4 << 20;

/// Rows, and the first key not looked at; `None`: the end.
type Step = (Vec<Stored>, Option<Key>);

/// One step of a scan.
///
/// # Errors
///
/// The storage engine's; a row that does not read as it was written.
pub(super) fn scan(keyspaces: &Keyspaces, scan: &Scan) -> Result<Step, ReadError> {
    match &scan.along {
        Along::Queue(queue) => along_queue(keyspaces, scan, queue),
        Along::Customer(application, customer) => along_customer(keyspaces, scan, application, customer),
    }
}

fn along_queue(keyspaces: &Keyspaces, scan: &Scan, queue: &Arc<str>) -> Result<Step, ReadError> {
    let (mut out, mut read) = (Vec::new(), 0);
    for (looked_at, row) in in_order(keyspaces, queue, scan.from, scan.until)?.enumerate() {
        let row = row?;
        if out.len() >= scan.max_rows || looked_at >= scan.max_looked_at || read >= STEP_BYTES {
            return Ok((out, Some(row.place)));
        }
        read += row.len();
        out.extend(wanted(scan, queue, &row.view()?));
    }
    Ok((out, None))
}

fn along_customer(
    keyspaces: &Keyspaces,
    scan: &Scan,
    application: &Arc<str>,
    customer: &str,
) -> Result<Step, ReadError> {
    let names: [&str; 2] = [application, customer];
    let start = rows::place_key(&names, scan.from)?;
    let end = rows::place_key(&names, Key::at(scan.until))?;
    let (mut out, mut read) = (Vec::new(), 0);
    for (looked_at, row) in keyspaces.range(KeyspaceId::Customers, start, end).enumerate() {
        let (row, _) = row?;
        let key = place(KeyspaceId::Customers, &row)?;
        if out.len() >= scan.max_rows || looked_at >= scan.max_looked_at || read >= STEP_BYTES {
            return Ok((out, Some(key)));
        }
        let looked = |view: &View<'_>| (view.content_size(), wanted(scan, application, view));
        let (bytes, item) = keyspaces.item_of_customer_row(&row, application, key, looked)?;
        read += bytes;
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
