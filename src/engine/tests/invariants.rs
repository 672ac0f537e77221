//! What must hold at every moment, against a store that has executed all writes.

use super::FakeStore;
use crate::engine::event::{Op, Place};
use crate::engine::table::{Row, State};
use crate::engine::Engine;

impl Engine {
    /// What memory holds of items that are durable and not on their way out: rows, and bytes of their payloads.
    pub(super) fn kept_in_memory(&self) -> (usize, u64) {
        let is_kept =
            |row: &&Row| row.stored && row.token <= self.committed && !matches!(row.state, State::Flying(_));
        let kept = || self.rows.ids().map(|id| &self.rows[id]).filter(is_kept);
        let bytes = kept().filter_map(|row| row.content.as_ref()).map(|content| content.size()).sum();
        (kept().count(), bytes)
    }

    /// The invariants of the module pages, against the store as it stands once all writes are executed.
    pub(super) fn check_invariants(&self, store: &FakeStore) {
        let pending: u64 =
            self.deletes.iter().filter(|op| matches!(op, Op::Delete { place: Place::Time, .. })).count()
                as u64;
        assert_eq!(self.stored + pending, store.time.len() as u64, "count of the time index");
        let gone: std::collections::HashSet<u64> = self
            .deletes
            .iter()
            .filter_map(|op| match op {
                Op::Delete { key, .. } => Some(key.seq),
                Op::Put { .. }
                | Op::Index { .. }
                | Op::Park { .. }
                | Op::PutWindow(_)
                | Op::DeleteWindow { .. }
                | Op::PutLane(_)
                | Op::Remember { .. }
                | Op::BeginBucket(_)
                | Op::PutApp(_) => None,
            })
            .collect();
        for (key, item) in store.time.range(..self.cursor.until) {
            assert!(
                gone.contains(&key.seq) || self.by_seq.contains_key(&key.seq),
                "below the cursor {:?} and not in memory: {item:?}",
                self.cursor.until
            );
        }
        let in_memory = self.rows.ids().filter(|id| self.rows[*id].stored && !self.rows[*id].in_lane).count();
        assert_eq!(self.stored_in_memory, in_memory as u64);
        let contents: u64 =
            self.rows.ids().filter_map(|id| self.rows[id].content.as_ref()).map(|c| c.size()).sum();
        assert_eq!(self.content_bytes, contents, "bytes of payloads");
        for app in self.apps.ids() {
            let lane = self.apps[app].lane.as_ref().map_or(0, |lane| lane.count);
            let gone = self
                .deletes
                .iter()
                .filter(
                    |op| matches!(op, Op::Delete { place: Place::Lane(l), .. } if *l == self.apps[app].name),
                )
                .count();
            let there = store.lanes.keys().filter(|(name, _)| *name == self.apps[app].name).count() - gone;
            assert_eq!(lane, there as u64, "count of lane {:?}", self.apps[app].name);
        }
        assert_eq!(self.slots, self.apps.ids().map(|id| self.apps[id].slots).sum::<usize>());
    }
}
