//! What tests see of an engine that nobody else does.

use super::super::{queue, types, Engine};

impl Engine {
    /// Panics where an invariant is broken.
    pub(in crate::engine) fn check_invariants(&self) {
        self.core.live.check();
    }

    /// Rows in memory, and bytes of payloads.
    pub(in crate::engine) fn memory_bytes(&self) -> (usize, u64) {
        (self.core.live.items().len(), self.core.live.items().content_bytes())
    }

    /// Those that are in batches, out or to be sent again.
    pub(in crate::engine) fn rows_in_batches(&self) -> usize {
        self.core.live.shared.rows_in_batches()
    }

    /// Customers of all applications.
    pub(in crate::engine) fn customers_in_memory(&self) -> usize {
        self.core.live.customers().len()
    }

    /// Due ones of queues that are held back, which go to the store alone.
    pub(in crate::engine) fn rows_leaving(&self) -> usize {
        let queues = &self.core.live.queues;
        let leaving = queues
            .ids()
            .filter_map(|id| queues[id].active())
            .filter(|live| live.is(queue::Condition::Evicting));
        leaving.map(|live| live.ready().all_items() as usize).sum()
    }

    /// Changes that are remembered because of reads under way.
    pub(in crate::engine) fn noted_for_reads(&self) -> usize {
        self.core.live.shared.reads.noted()
    }

    /// The item with this number is in memory.
    pub(in crate::engine) fn holds(&self, seq: u64) -> bool {
        self.core.live.items().by_seq(seq).is_some()
    }

    /// Those of one application that are in the store as well.
    pub(in crate::engine) fn rows_in_memory(&self, application: &str) -> u64 {
        let queues = &self.core.live.queues;
        queues.find(application).map_or(0, |queue| queues[queue].resident())
    }

    /// Rows touched since the start.
    pub(in crate::engine) fn work(&self) -> u64 {
        self.core.live.shared.work()
    }

    /// The applications of what came by message and waits for an outcome, one for each that waits.
    pub(in crate::engine) fn awaiting_by_message(&self) -> Vec<String> {
        self.arrivals.awaiting_by_message()
    }

    /// What memory knows of an identity, for messages of tests.
    pub(in crate::engine) fn describe_identity(&self, identity: types::Identity) -> String {
        let item = self
            .core
            .live
            .items()
            .by_identity(identity)
            .map(|id| (self.core.is_in_flight(id), &self.core.live.items()[id]));
        format!("{} wait for the outcome of (in flight, item) {item:?}", self.arrivals.awaiting(identity))
    }

    /// The heads of the lines, for messages of tests.
    pub(in crate::engine) fn describe(&self) -> String {
        let queues = &self.core.live.queues;
        let queues: Vec<String> =
            queues.ids().filter_map(|id| queues.get(id)).map(queue::Queue::describe).collect();
        let live = &self.core.live;
        let deadlines = [
            live.customers().next_look(),
            live.shared.journal.deadline(),
            live.shared.deferred_until(),
            self.core.dispatch.deadline(&self.core.live),
            self.arrivals.deadline(),
            self.scans.deadline(),
        ];
        let (turn_state, arrivals, loader) = (&self.turn_state, self.arrivals.describe(), &self.loader);
        let open = live.customers().open_windows();
        format!("{turn_state:?}; {arrivals}; {loader:?}; {deadlines:?}; {open} windows; {queues:#?}")
    }
}
