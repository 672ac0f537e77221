//! Operations to rows: what a call of commit will write, each row once, with the last word on it.
//!
//! The storage engine cannot read what a batch holds before it is written, and two writes of one key in one batch
//! have no order there. So all groups of a call are collected here first; moving an item looks here before it looks
//! on the disk.

use super::record::{self, View};
use super::space::Space;
use super::spaces::{damaged, row_of, Lives, Spaces};
use super::{ended, rows, StoreError};
use crate::engine::event::{BucketRow, Indexed, Op, Place, Stored};
use crate::engine::types::{Dead, Ended, Identity, Key};
use fjall::Slice;
use std::collections::HashMap;
use std::sync::Arc;

/// What will be written.
pub struct Changes<'a> {
    spaces: &'a Spaces,
    /// `None` removes the row.
    rows: HashMap<(Space, Slice), Option<Slice>>,
    /// Number of the commit: the life of each bucket that begins in it.
    number: u64,
    lives: Lives,
    begun: Vec<Space>,
}

impl<'a> Changes<'a> {
    /// None yet, of commit `number`. `lives`: which life each bucket lives before it.
    pub fn new(spaces: &'a Spaces, number: u64, lives: Lives, ops: usize) -> Self {
        let rows = HashMap::with_capacity(ops + 1);
        Changes { spaces, rows, number, lives, begun: Vec::new() }
    }

    /// Adds one operation.
    ///
    /// # Errors
    ///
    /// See [`StoreError`]; nothing has been written then.
    pub fn apply(&mut self, op: &Op) -> Result<(), StoreError> {
        match op {
            Op::Put { place, item, indexed } => self.put_item(place, item, indexed),
            Op::Delete { place, key, indexed } => {
                let (space, row) = row_of(place, *key)?;
                self.remove(space, row);
                self.remove_index(*key, indexed)
            }
            Op::Index { key, indexed } => self.index(*key, indexed),
            Op::Remember { bucket, identity, ended } => self.remember(*bucket, *identity, ended),
            Op::BeginBucket(row) => self.begin(*row),
            Op::Park { from, key, indexed, identity, lane, attempts, last_error, dead } => {
                self.park(from, *key, lane, (*attempts, last_error.as_deref(), dead.as_deref()))?;
                self.remove_index(*key, indexed)?;
                self.index(*key, &Indexed { identity: *identity, customer: None })
            }
            Op::PutWindow(window) => {
                let (key, value) = rows::window_row(window)?;
                self.put(Space::Windows, key, value);
                Ok(())
            }
            Op::DeleteWindow { application, customer } => {
                self.remove(Space::Windows, rows::prefix(&[application, customer])?);
                Ok(())
            }
            Op::PutLane(lane) => {
                let (key, value) = rows::lane_row(lane)?;
                if lane.count == 0 {
                    self.remove(Space::LaneRows, key);
                } else {
                    self.put(Space::LaneRows, key, value);
                }
                Ok(())
            }
            Op::PutApp(app) => {
                let (key, value) = rows::app_row(app)?;
                if app.waiting == 0 && !app.paused {
                    self.remove(Space::Applications, key);
                } else {
                    self.put(Space::Applications, key, value);
                }
                Ok(())
            }
        }
    }

    /// Writes one row.
    pub fn put(&mut self, space: Space, key: impl Into<Slice>, value: impl Into<Slice>) {
        self.rows.insert((space, key.into()), Some(value.into()));
    }

    /// The buckets that begin anew. What they hold on the disk has to go before the rows are written.
    pub fn begun(&self) -> &[Space] {
        &self.begun
    }

    /// Which life each bucket lives once this is written.
    pub fn lives(&self) -> Lives {
        self.lives
    }

    /// The rows, each once, in no particular order.
    pub fn into_rows(self) -> impl Iterator<Item = (Space, Slice, Option<Slice>)> {
        self.rows.into_iter().map(|((space, key), value)| (space, key, value))
    }

    fn remove(&mut self, space: Space, key: impl Into<Slice>) {
        self.rows.insert((space, key.into()), None);
    }

    fn put_item(&mut self, place: &Place, item: &Stored, indexed: &Indexed) -> Result<(), StoreError> {
        let content = item.content.as_deref().ok_or(StoreError::NoContent { key: item.key })?;
        let (space, row) = row_of(place, item.key)?;
        self.put(space, row, record::encode(item.key, &View::of(item, content)));
        self.index(item.key, indexed)
    }

    fn index(&mut self, key: Key, indexed: &Indexed) -> Result<(), StoreError> {
        if let Some(identity) = indexed.identity {
            let (row, value) = rows::identity_row(identity, key);
            self.put(Space::Identities, row, value);
        }
        if let Some((application, customer)) = &indexed.customer {
            let index = rows::place_key(&[application, customer], key)?;
            self.put(Space::Customers, index, Vec::new());
        }
        Ok(())
    }

    fn remove_index(&mut self, key: Key, indexed: &Indexed) -> Result<(), StoreError> {
        if let Some(identity) = indexed.identity {
            self.remove(Space::Identities, identity.to_bytes());
        }
        if let Some((application, customer)) = &indexed.customer {
            self.remove(Space::Customers, rows::place_key(&[application, customer], key)?);
        }
        Ok(())
    }

    fn park(
        &mut self,
        from: &Place,
        key: Key,
        lane: &Arc<str>,
        (attempts, last_error, dead): (u32, Option<&str>, Option<&Dead>),
    ) -> Result<(), StoreError> {
        let (old_space, old_row) = row_of(from, key)?;
        let (new_space, new_row) = row_of(&Place::Lane(lane.clone()), key)?;
        let old_row = Slice::from(old_row);
        let found = match self.rows.get(&(old_space, old_row.clone())) {
            Some(pending) => pending.clone(),
            None => self.spaces.get(old_space, &old_row)?,
        };
        let bytes = found.ok_or_else(|| StoreError::Missing { place: from.clone(), key })?;
        let view = record::decode(key, &bytes).map_err(|e| damaged(old_space, &old_row, &e))?;
        let dead = dead.map(|d| (d.reason, &*d.error));
        let moved = record::encode(key, &View { attempts, last_error, dead, ..view });
        // In this order: within one lane old and new are the same row.
        self.remove(old_space, old_row);
        self.put(new_space, new_row, moved);
        Ok(())
    }

    fn remember(&mut self, bucket: u8, identity: Identity, ended: &Ended) -> Result<(), StoreError> {
        let space = Space::ended(bucket)?;
        let life = self.lives.get(usize::from(bucket)).copied().unwrap_or_default();
        self.put(space, identity.to_bytes(), ended::encode(identity, life, ended));
        Ok(())
    }

    /// What was written to the bucket before belongs to the life that ends here, also within this call.
    fn begin(&mut self, row: BucketRow) -> Result<(), StoreError> {
        let space = Space::ended(row.bucket)?;
        self.rows.retain(|(other, _), _| *other != space);
        if let Some(life) = self.lives.get_mut(usize::from(row.bucket)) {
            *life = self.number;
        }
        if !self.begun.contains(&space) {
            self.begun.push(space);
        }
        self.put(space, rows::BUCKET, rows::bucket_row(row, self.number));
        Ok(())
    }
}
