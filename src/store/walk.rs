//! Walks over stored items in bounded steps.

use super::record;
use super::rows;
use super::space::Space;
use super::spaces::{damaged, place, unreadable, Spaces};
use super::StoreError;
use crate::engine::event::{Along, LaneRow, Place, Stored, Walk};
use crate::engine::types::{Content, Key};
use fjall::Slice;
use std::cmp::{Ordering, Reverse};
use std::collections::binary_heap::{BinaryHeap, PeekMut};
use std::sync::Arc;

/// Rows, and the first key not looked at; `None`: the end.
type Step = (Vec<(Place, Stored)>, Option<Key>);

/// One step of a walk.
///
/// # Errors
///
/// The storage engine's; a row that does not read as it was written.
pub fn walk(spaces: &Spaces, walk: &Walk) -> Result<Step, StoreError> {
    match walk.along {
        Along::Customer => along_customer(spaces, walk),
        Along::Lane => merged(walk, lanes(spaces, walk)?),
        Along::All => {
            let mut sources = lanes(spaces, walk)?;
            sources.push(Source::new(spaces, Place::Time, walk.low, walk)?);
            merged(walk, sources)
        }
    }
}

/// The application's lane, or else every lane but that of the dead exchange: all in there is dead.
fn lanes(spaces: &Spaces, walk: &Walk) -> Result<Vec<Source>, StoreError> {
    let lanes = match &walk.application {
        Some(lane) => {
            let row = rows::prefix(&[lane])?;
            let known =
                spaces.get(Space::LaneRows, &row)?.map(|bytes| rows::read_lane(&row, &bytes)).transpose();
            let low =
                known.map_err(|e| damaged(Space::LaneRows, &row, &e))?.map_or(Key::default(), |row| row.low);
            vec![LaneRow { lane: lane.clone(), count: 0, low }]
        }
        None => spaces.all(Space::LaneRows, rows::read_lane)?,
    };
    let wanted = lanes.into_iter().filter(|row| !row.lane.is_empty());
    wanted.map(|row| Source::new(spaces, Place::Lane(row.lane), row.low, walk)).collect()
}

fn along_customer(spaces: &Spaces, walk: &Walk) -> Result<Step, StoreError> {
    let mut out = Vec::new();
    let (Some(application), Some(customer)) = (&walk.application, &walk.customer) else {
        debug_assert!(false, "a walk along a customer names it");
        return Ok((out, None));
    };
    let names: [&str; 2] = [application, customer];
    let start = rows::place_key(&names, walk.from.max(walk.low))?;
    let end = rows::place_key(&names, Key { due: walk.until, seq: 0 })?;
    if start >= end {
        return Ok((out, None));
    }
    let most = walk.max_rows.min(walk.max_looked_at);
    for row in spaces.of(Space::Customers).range(start.clone()..end) {
        let row = row.key().map_err(|e| unreadable(Space::Customers, &start, &e))?;
        let key = place(Space::Customers, &row)?;
        if out.len() >= most {
            return Ok((out, Some(key)));
        }
        out.push((Place::Time, spaces.of_index_row(&row, key)?));
    }
    Ok((out, None))
}

/// The rows of several places in one order of key.
fn merged(walk: &Walk, sources: Vec<Source>) -> Result<Step, StoreError> {
    let mut heads = BinaryHeap::with_capacity(sources.len());
    for mut source in sources {
        if let Some((key, row, bytes)) = source.next()? {
            heads.push(Reverse(Head { key, row, bytes, source }));
        }
    }
    let mut out = Vec::new();
    let mut looked_at = 0;
    while let Some(mut head) = heads.peek_mut() {
        let Reverse(Head { key, row, bytes, source }) = &mut *head;
        if out.len() >= walk.max_rows || looked_at >= walk.max_looked_at {
            return Ok((out, Some(*key)));
        }
        looked_at += 1;
        if let Some(item) = item(walk, source.space, *key, row, bytes)? {
            out.push((source.place.clone(), item));
        }
        match source.next()? {
            Some(next) => (*key, *row, *bytes) = next,
            None => drop(PeekMut::pop(head)),
        }
    }
    Ok((out, None))
}

/// The item in a row, if the walk wants it.
fn item(walk: &Walk, space: Space, key: Key, row: &[u8], bytes: &[u8]) -> Result<Option<Stored>, StoreError> {
    let view = record::decode(key, bytes).map_err(|e| damaged(space, row, &e))?;
    let alive_alone = match walk.along {
        Along::All => true,
        Along::Lane | Along::Customer => walk.application.is_none(),
    };
    let other_application = walk.application.as_deref().is_some_and(|name| name != view.application);
    let other_customer = walk.customer.is_some() && walk.customer.as_deref() != view.customer;
    if other_application || other_customer || (alive_alone && view.dead.is_some()) {
        return Ok(None);
    }
    let content = Content { properties: view.properties.to_vec(), body: Vec::new(), json: view.json };
    Ok(Some(Stored { content: Some(Arc::new(content)), ..view.stored(key) }))
}

/// The rows of one place, from where the walk begins, but never from below its low mark.
struct Source {
    place: Place,
    space: Space,
    rows: Option<fjall::Iter>,
    /// The last key read, for messages.
    last: Vec<u8>,
}

impl Source {
    fn new(spaces: &Spaces, place: Place, low: Key, walk: &Walk) -> Result<Self, StoreError> {
        let (from, end) = (walk.from.max(low), Key { due: walk.until, seq: 0 });
        let (space, start, end) = match &place {
            Place::Time => (Space::Time, rows::time_key(from).to_vec(), rows::time_key(end).to_vec()),
            Place::Lane(lane) => {
                (Space::Lanes, rows::place_key(&[lane], from)?, rows::place_key(&[lane], end)?)
            }
        };
        // An inverted range is a fault to the storage engine.
        let rows = (start < end).then(|| spaces.of(space).range(start.clone()..end));
        Ok(Source { place, space, rows, last: start })
    }

    fn next(&mut self) -> Result<Option<(Key, Slice, Slice)>, StoreError> {
        let Some(row) = self.rows.as_mut().and_then(Iterator::next) else { return Ok(None) };
        let (row, bytes) = row.into_inner().map_err(|e| unreadable(self.space, &self.last, &e))?;
        let key = place(self.space, &row)?;
        self.last.clear();
        self.last.extend_from_slice(&row);
        Ok(Some((key, row, bytes)))
    }
}

/// The foremost row of a source; ordered by its key alone, which no two places share.
struct Head {
    key: Key,
    row: Slice,
    bytes: Slice,
    source: Source,
}

impl PartialEq for Head {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for Head {}

impl PartialOrd for Head {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Head {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key.cmp(&other.key)
    }
}
