//! Reads of a store: answers all loads, over any engine's rows.

use super::closings::{self, InOrder};
use super::ended::Epochs;
use super::keyspace::KeyspaceId;
use super::queue_rows::{self, OfQueue};
use super::reading::{damaged, view};
use super::row_reads::item_bounds;
use super::row_reads::{Rows, ALL_BODIES, NO_BODIES};
use super::rows;
use super::{ahead, find, scan, Contents, ReadError, WantedContents};
use tidegate_types::event::{BucketRow, Load, Loaded, Marks, Opened, Place, Range, RangeRows, Scan, BUCKETS};

/// Bytes of rows that one read of ranges covers, apart from the first row of each range; the next read
/// continues. Many large bodies due together would take minutes, and a call of that length would count as
/// hung.
const READ_BYTES: u64 = 32 << 20;

/// The state that the engine needs at the beginning of a life, and the epoch of each bucket. `wall`: the wall
/// clock, UTC ms.
///
/// # Errors
///
/// Errors of the storage engine; a row that does not read as it was written.
pub(crate) fn opened<R: Rows>(rows: &R, marks: Marks, wall: u64) -> Result<(Opened, Epochs), ReadError> {
    let (buckets, epochs) = read_buckets(rows)?;
    let (mut queues, mut held) = (Vec::new(), Vec::new());
    for row in rows.read_all(KeyspaceId::Queues, queue_rows::read_of_queue)? {
        match row {
            OfQueue::Queue(row) => queues.push(row),
            OfQueue::Held(row) => held.push(row),
        }
    }
    let opened = Opened {
        marks,
        ahead: ahead::ahead(rows, &queues, marks, wall)?,
        queues,
        held,
        windows: rows.read_all(KeyspaceId::Windows, rows::read_window)?,
        buckets,
    };
    Ok((opened, epochs))
}

/// The rows about the buckets, oldest first, and the epoch of each bucket. A bucket that never began has
/// none.
///
/// # Errors
///
/// Errors of the storage engine; a row that does not read as it was written.
pub(crate) fn read_buckets<R: Rows>(from: &R) -> Result<(Vec<BucketRow>, Epochs), ReadError> {
    let (mut begun, mut epochs) = (Vec::new(), Epochs::default());
    let keys: Vec<_> = (0..BUCKETS).map(|n| (KeyspaceId::Ended(n), rows::BUCKET.into())).collect();
    let read = from.get_many(&keys, NO_BODIES);
    for ((bucket, known), bytes) in (0..BUCKETS).zip(&mut epochs).zip(read) {
        let id = KeyspaceId::Ended(bucket);
        let Some(bytes) = bytes()? else { continue };
        let read = rows::read_bucket(bucket, &bytes);
        let (row, epoch) = read.map_err(|e| damaged(id, rows::BUCKET, &e))?;
        begun.push((epoch, row));
        *known = epoch;
    }
    begun.sort_by_key(|(epoch, row)| (*epoch, row.from));
    Ok((begun.into_iter().map(|(_, row)| row).collect(), epochs))
}

/// Answers a load. `epochs`: the epoch of each bucket.
///
/// # Errors
///
/// As [`super::Store::load`].
pub(crate) fn load<R: Rows>(rows: &R, load: &Load, epochs: &Epochs) -> Result<Loaded, ReadError> {
    match load {
        Load::Ranges { ranges, max_rows, max_bytes } => {
            read_ranges(rows, ranges, *max_rows, *max_bytes).map(Loaded::Ranges)
        }
        Load::Contents(wanted) => match contents(rows, wanted)? {
            FoundContents::All(found) => Ok(Loaded::Contents(found)),
            FoundContents::Without(place) => Err(ReadError::Missing { place }),
        },
        Load::Find(wanted) => find::find(rows, epochs, wanted).map(Loaded::Found),
        Load::Scan(wanted) => look(rows, wanted, || false),
    }
}

/// One step of a scan, which may end once `is_late` returns true.
///
/// # Errors
///
/// As [`super::Store::load`].
pub(crate) fn look<R: Rows>(
    rows: &R,
    wanted: &Scan,
    is_late: impl Fn() -> bool,
) -> Result<Loaded, ReadError> {
    let (found, next) = scan::scan(rows, wanted, &is_late)?;
    Ok(Loaded::Scanned { number: wanted.number, rows: found, next })
}

/// The next rows of some queues, as [`Load::Ranges`] describes them.
///
/// # Errors
///
/// As [`super::Store::load`].
pub(crate) fn read_ranges<R: Rows>(
    rows: &R,
    ranges: &[Range],
    max_rows: usize,
    max_bytes: u64,
) -> Result<Vec<RangeRows>, ReadError> {
    let bounds = ranges.iter().map(|range| item_bounds(&range.queue, range.from, range.until));
    // One additional row shows where the next read begins.
    let most = ranges.iter().map(|range| range.max_rows).max().unwrap_or_default().min(max_rows);
    let lying = rows.ranges(bounds.collect::<Result<_, _>>()?, most.saturating_add(1), max_bytes);
    let (mut room, mut looked_at, mut left) = (Some(max_bytes), 0, max_rows);
    let mut answers = Vec::with_capacity(ranges.len());
    for (range, lying) in ranges.iter().zip(lying) {
        let most = range.max_rows.min(left);
        // The read did not reach this range: the answer contains no row, not even the place of the first one.
        if most == 0 && range.max_rows > 0 {
            let queue = range.queue.clone();
            answers.push(RangeRows { queue, rows: Vec::new(), next: Some(range.from) });
            continue;
        }
        // Later ranges have their bodies in the next read, which begins where this one ends.
        let bodies = room.unwrap_or_default().min(READ_BYTES.saturating_sub(looked_at));
        let lying = closings::in_order_of(rows, Box::new(lying), range, bodies)?;
        let answer = read_range(range, lying, most, &mut room, &mut looked_at)?;
        left -= answer.rows.len();
        answers.push(answer);
    }
    Ok(answers)
}

/// At most `most` rows of one range. `room`: bytes left for contents; `None` once a content did not fit, so
/// that only the first rows have contents. A row whose body a remote engine has left out takes none of it:
/// bodies of the ranges behind it have arrived nevertheless. `looked_at`: bytes that this read has covered.
fn read_range<R: Rows>(
    range: &Range,
    lying: InOrder<'_, R>,
    most: usize,
    room: &mut Option<u64>,
    looked_at: &mut u64,
) -> Result<RangeRows, ReadError> {
    let queue = &range.queue;
    let mut answer = RangeRows { queue: queue.clone(), rows: Vec::new(), next: None };
    for row in lying {
        let row = row?;
        let enough = *looked_at >= READ_BYTES && !answer.rows.is_empty();
        if enough || answer.rows.len() >= most {
            answer.next = Some(row.place);
            break;
        }
        *looked_at += row.len();
        let view = row.view()?;
        let mut item = view.stored(queue);
        if row.is_whole() {
            *room = room.and_then(|room| room.checked_sub(view.content_size()));
            item.content = room.map(|_| view.content());
        }
        answer.rows.push(item);
    }
    Ok(answer)
}

/// The result of a read of contents.
pub(crate) enum FoundContents {
    /// All contents, in the order of the request.
    All(Contents),
    /// There is no item at this place.
    Without(Place),
}

impl FoundContents {
    /// The contents; `None`: one of them is missing.
    pub(crate) fn all(self) -> Option<Contents> {
        match self {
            FoundContents::All(found) => Some(found),
            FoundContents::Without(_) => None,
        }
    }
}

/// Reads contents, if none is missing.
///
/// # Errors
///
/// Errors of the storage engine; a record that does not read as it was written.
pub(crate) fn contents<R: Rows>(rows: &R, wanted: &WantedContents) -> Result<FoundContents, ReadError> {
    let key =
        |(_, place): &(u64, Place)| Ok((KeyspaceId::Items, rows::item_key(&place.queue, place.key)?.into()));
    let keys = wanted.iter().map(key).collect::<Result<Vec<_>, ReadError>>()?;
    let mut found = Vec::with_capacity(wanted.len());
    for (((number, place), (_, key)), row) in wanted.iter().zip(&keys).zip(rows.get_many(&keys, ALL_BODIES)) {
        let Some(bytes) = row()? else { return Ok(FoundContents::Without(place.clone())) };
        found.push((*number, view(key, &bytes)?.content()));
    }
    Ok(FoundContents::All(found))
}
