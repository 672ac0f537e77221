//! What is judged: every answer, every batch, every moment, and the end.

use super::super::world::*;
use super::{Asked, Cancel, Sim, APPS};
use crate::engine::event::*;
use crate::engine::types::*;
use std::collections::HashMap;

/// What may be in memory beyond its bound of what is durable and not on its way out: 256 rows from lanes, as many where
/// nothing would move otherwise; and what came while a load was under way.
const ROWS_BEYOND: usize = 512;

/// Payloads of one turn, in bytes.
const CONTENTS_BEYOND: u64 = 2_000;

impl Sim {
    pub(super) fn check_answers(&mut self) {
        let new: Vec<Reply> = self.world.replies[self.answered..].to_vec();
        self.answered = self.world.replies.len();
        for reply in new {
            let Asker::Local(asker) = reply.asker else { continue };
            if let (Answer::Listed { items, next }, Some(Command::List(filter))) =
                (&reply.answer, reply.command.as_deref())
            {
                assert!(items.len() <= filter.limit);
                assert!(items.windows(2).all(|pair| pair[0].key < pair[1].key), "in order of due");
                assert!(next.is_none_or(|next| items.last().is_none_or(|last| last.key < next)));
            }
            let Some(Cancel { identity, stored }) = self.cancels.remove(&asker) else { continue };
            match &reply.answer {
                Answer::Cancelled { count, .. } => {
                    assert_eq!(*count, 1);
                    self.gone.extend(stored);
                }
                Answer::Ended(ended) if matches!(ended.end, End::Sent(_)) => {
                    let is_one = |id: &String| self.asked[id].id == Some(identity);
                    assert!(self.arrived.keys().any(is_one), "said to be sent, and nothing arrived");
                }
                Answer::Ended(_) | Answer::InFlight | Answer::Unknown => {}
                Answer::Found(_)
                | Answer::Counted { .. }
                | Answer::Flushed(_)
                | Answer::Listed { .. }
                | Answer::Done { .. }
                | Answer::Rejected(_)
                | Answer::Unavailable(_) => panic!("no answer to a cancel: {:?}", reply.answer),
            }
        }
    }

    pub(super) fn receive(&mut self, batch: &Batch) {
        for item in &batch.items {
            let id = name(item);
            let times = self.arrived.entry(id.clone()).or_default();
            *times += 1;
            assert!(*times == 1 || self.faults, "repeated without a fault: {id}");
            if let Some(dead) = &batch.dead {
                self.dead.insert(id, dead.reason);
            } else if *times == 1 {
                self.check_kept(id);
            }
        }
    }

    /// Of the ids that are only ever kept, two items never leave within the tail: judged at the end.
    fn check_kept(&mut self, id: String) {
        let Some(identity) = self.asked[&id].id else { return };
        let is_kept = (0..self.ids / 2)
            .any(|n| APPS.iter().any(|app| target(app, &n.to_string()).identity == identity));
        if !is_kept || !self.durable || self.stepped || self.asked[&id].doomed {
            return;
        }
        let wall = self.world.now.wall;
        self.kept.entry(identity).or_default().push((wall, id));
    }

    /// One that died after all (it had arrived, but nobody knew) gave its id free.
    fn check_all_kept(&self) {
        let tail = AppSettings::default().dedupe_tail;
        for kept in self.kept.values() {
            let alive = |id: &String| !self.dead.contains_key(id) && !self.asked[id].doomed;
            let alive: Vec<&(u64, String)> = kept.iter().filter(|(_, id)| alive(id)).collect();
            let twice = alive.windows(2).find(|pair| pair[0].0 + tail > pair[1].0);
            assert!(twice.is_none(), "two items of one id within its tail: {twice:?}");
        }
    }

    /// What was handed to the publisher, judged by the moment when it was.
    pub(super) fn check_published(&mut self) {
        let fresh = std::mem::take(&mut self.world.fresh);
        for (now, open, batch) in fresh {
            assert!(open, "published without a connection, or while it was blocked");
            assert!(!batch.items.is_empty());
            assert!(batch.format != Format::Passthrough || batch.items.len() == 1, "passthrough goes alone");
            let mut last = None;
            for item in &batch.items {
                let asked = &self.asked[&name(item)];
                assert_eq!(asked.application, batch.application.as_ref(), "routed elsewhere");
                assert_eq!(asked.customer.as_deref(), batch.customer.as_deref(), "customers mixed");
                assert!(last < Some((item.due, item.seq)), "order within a batch");
                last = Some((item.due, item.seq));
                if let Some(dead) = &batch.dead {
                    self.check_dead(now, item, dead);
                    continue;
                }
                assert!(
                    !self.gone.contains(&name(item)),
                    "came back though it was cancelled: {}",
                    name(item)
                );
                assert!(!asked.rejected, "a rejected request went out");
                if let (Some(at), 0) = (asked.not_before, item.attempts) {
                    assert!(now.wall >= at, "left at {}, before its own time {at}", now.wall);
                }
                assert!(asked.expiry.is_none_or(|at| now.wall < at), "left after its expiry");
                let customer = asked.customer.clone().unwrap_or_default();
                if self.calm && !customer.is_empty() {
                    let place = (item.due, item.seq);
                    let before = self.places.insert((asked.application.clone(), customer), place);
                    // In the millisecond in which one left, a window may still close over older ones.
                    let ordered = before.is_none_or(|before| before.0 <= place.0);
                    assert!(ordered, "order of a customer: {before:?}, then {place:?}");
                }
            }
        }
        assert!(self.world.out.len() <= self.world.settings.max_in_flight);
    }

    fn check_dead(&self, now: Now, item: &BatchItem, dead: &Dead) {
        let asked = &self.asked[&name(item)];
        let right = match dead.reason {
            Reason::Invalid => asked.rejected,
            // A step of the clock back cannot recall the verdict.
            Reason::Expired => asked.expiry.is_some_and(|at| !self.calm || now.wall >= at),
            Reason::Attempts => item.attempts >= 3,
            Reason::Refused => asked.poison,
            Reason::Full => !asked.rejected,
            Reason::Duplicate => asked.id.is_some(),
            Reason::TooLarge | Reason::Unsupported => false,
        };
        assert!(right, "dead without reason: {dead:?} {}", item.attempts);
    }

    pub(super) fn check(&mut self) {
        if !self.durable {
            return;
        }
        self.world.engine.check_invariants(&self.world.logical);
        let (rows, bytes) = self.world.engine.kept_in_memory();
        let budget = self.world.settings.budget;
        let room = (budget.rows + ROWS_BEYOND, budget.contents + CONTENTS_BEYOND);
        assert!(rows <= room.0 && bytes <= room.1, "{rows} rows, {bytes} bytes in memory; {budget:?}");
    }

    pub(super) fn check_end(&mut self) {
        self.check_all_kept();
        let mut ids: HashMap<Identity, u32> = HashMap::new();
        for (id, asked) in &self.asked {
            if let Some(identity) = asked.id {
                *ids.entry(identity).or_default() += u32::from(self.arrived.contains_key(id) || asked.doomed);
            }
        }
        let is_missing = |(id, asked): (&String, &Asked)| {
            let known = asked.id.is_some_and(|identity| ids[&identity] > 0);
            !self.arrived.contains_key(id) && !asked.doomed && !known
        };
        let missing: Vec<&String> =
            self.asked.iter().filter(|(id, asked)| is_missing((id, asked))).map(|(id, _)| id).collect();
        let state = self.world.engine.snapshot(self.world.now);
        let (out, intake) = (self.world.out.len(), self.world.intake_open);
        let deadline = self.world.engine.next_deadline();
        assert!(
            missing.is_empty(),
            "{} lost: {:?}; {}; {state:?}; out {out}; intake {intake}; {:?} {deadline:?}",
            missing.len(),
            missing.first(),
            self.world.engine.arrivals(),
            self.world.now,
        );
        assert!(self.world.queue.is_empty(), "{} requests not acked", self.world.queue.len());
        let store = &self.world.store;
        assert!(store.time.is_empty(), "left in the time index");
        assert!(store.lanes.is_empty() && store.lane_rows.is_empty(), "left in lanes");
        assert!(store.index.is_empty(), "left in the customer index");
        assert!(store.windows.is_empty(), "left of windows: {:?}", store.windows);
        assert!(store.identities.is_empty(), "left of identities: {:?}", store.identities);
        assert!(store.paused.is_empty(), "left of paused applications");
        assert!(self.cancels.is_empty(), "{} cancels were not answered", self.cancels.len());
        let items = &state.items;
        assert_eq!((items.waiting, items.in_memory, items.parked, items.windows), (0, 0, 0, 0));
        assert_eq!((items.payload_bytes, items.due, items.in_flight), (0, 0, 0));
        self.world.input(Input::Drain);
        self.world.drain_jobs();
        assert!(self.world.engine.is_idle(), "nothing is left, but it is not idle");
        let counters = &state.totals;
        if self.first_life {
            let taken = counters.accepted + counters.rejected;
            let ended = counters.confirmed + counters.dead_confirmed + counters.given_back;
            assert_eq!(taken, ended + counters.cancelled + counters.replaced, "{counters:?}");
            if !self.faults {
                let dropped: u64 = counters.duplicates.iter().map(|rule| rule.dropped).sum();
                assert_eq!(taken + dropped, self.asked.len() as u64);
            }
        }
    }
}
