//! Operations to rows: what a call of commit will write, each row once, with the last word on it.
//!
//! The storage engine cannot read what a batch holds before it is written, and two writes of one key in one batch
//! have no order there. So all groups of a call are collected here first; moving an item looks here before it looks
//! on the disk.

use super::record::{self, View};
use super::rows::{self, Space};
use super::spaces::{damaged, row_of, Spaces};
use super::StoreError;
use crate::engine::event::{Op, Place, Stored};
use crate::engine::types::{Dead, Key};
use fjall::Slice;
use std::collections::HashMap;
use std::sync::Arc;

/// Application and customer of an item that has an index row.
type Indexed = Option<(Arc<str>, Arc<str>)>;

/// What will be written.
pub struct Changes<'a> {
    spaces: &'a Spaces,
    /// `None` removes the row.
    rows: HashMap<(Space, Slice), Option<Slice>>,
}

impl<'a> Changes<'a> {
    /// None yet.
    pub fn new(spaces: &'a Spaces, ops: usize) -> Self {
        Changes { spaces, rows: HashMap::with_capacity(ops + 1) }
    }

    /// Adds one operation.
    ///
    /// # Errors
    ///
    /// See [`StoreError`]; nothing has been written then.
    pub fn apply(&mut self, op: &Op) -> Result<(), StoreError> {
        match op {
            Op::Put { place, item, indexed } => self.put_item(place, item, *indexed),
            Op::Delete { place, key, indexed } => {
                let (space, row) = row_of(place, *key)?;
                self.remove(space, row);
                self.remove_index(*key, indexed)
            }
            Op::Index { key, application, customer } => {
                let row = rows::place_key(&[application, customer], *key)?;
                self.put(Space::Customers, row, Vec::new());
                Ok(())
            }
            Op::Park { from, key, indexed, lane, attempts, last_error, dead } => {
                self.park(from, *key, indexed, lane, (*attempts, last_error.as_deref(), dead.as_deref()))
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
                if app.waiting == 0 {
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

    /// The rows, each once, in no particular order.
    pub fn into_rows(self) -> impl Iterator<Item = (Space, Slice, Option<Slice>)> {
        self.rows.into_iter().map(|((space, key), value)| (space, key, value))
    }

    fn remove(&mut self, space: Space, key: impl Into<Slice>) {
        self.rows.insert((space, key.into()), None);
    }

    fn put_item(&mut self, place: &Place, item: &Stored, indexed: bool) -> Result<(), StoreError> {
        let content = item.content.as_deref().ok_or(StoreError::NoContent { key: item.key })?;
        let (space, row) = row_of(place, item.key)?;
        debug_assert!(!indexed || (space == Space::Time && item.customer.is_some()), "nothing to index by");
        self.put(space, row, record::encode(item.key, &View::of(item, content)));
        match &item.customer {
            Some(customer) if indexed => {
                let index = rows::place_key(&[&item.application, customer], item.key)?;
                self.put(Space::Customers, index, Vec::new());
            }
            _ => {}
        }
        Ok(())
    }

    fn remove_index(&mut self, key: Key, indexed: &Indexed) -> Result<(), StoreError> {
        if let Some((application, customer)) = indexed {
            self.remove(Space::Customers, rows::place_key(&[application, customer], key)?);
        }
        Ok(())
    }

    fn park(
        &mut self,
        from: &Place,
        key: Key,
        indexed: &Indexed,
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
        self.remove_index(key, indexed)
    }
}
