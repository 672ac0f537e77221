//! What tests see of an engine that nobody else does.

use super::super::{queue, types, Engine};

impl Engine {
    /// Panics where an invariant is broken.
    pub(in crate::engine) fn check_invariants(&self) {
        self.core.stock.check();
    }

    /// Rows in memory, and bytes of payloads.
    pub(in crate::engine) fn memory_bytes(&self) -> (usize, u64) {
        (self.core.stock.items().len(), self.core.stock.items().content_bytes())
    }

    /// Those that are in batches, out or to be sent again.
    pub(in crate::engine) fn rows_in_batches(&self) -> usize {
        self.core.stock.shared.rows_in_batches()
    }

    /// Customers of all applications.
    pub(in crate::engine) fn customers_in_memory(&self) -> usize {
        self.core.stock.customers().len()
    }

    /// Due ones of queues that are held back, which go to the store alone.
    pub(in crate::engine) fn rows_leaving(&self) -> usize {
        let queues = &self.core.stock.queues;
        let leaving = queues
            .ids()
            .filter_map(|id| queues[id].live())
            .filter(|live| live.is(queue::Condition::Evicting));
        leaving.map(|live| live.line().all_items() as usize).sum()
    }

    /// Changes that are remembered because of reads under way.
    pub(in crate::engine) fn noted_for_reads(&self) -> usize {
        self.core.stock.shared.reads.noted()
    }

    /// The item with this number is in memory.
    pub(in crate::engine) fn holds(&self, seq: u64) -> bool {
        self.core.stock.items().by_seq(seq).is_some()
    }

    /// Those of one application that are in the store as well.
    pub(in crate::engine) fn rows_in_memory(&self, application: &str) -> u64 {
        let queues = &self.core.stock.queues;
        queues.find(application).map_or(0, |queue| queues[queue].resident())
    }

    /// Rows touched since the start.
    pub(in crate::engine) fn work(&self) -> u64 {
        self.core.stock.shared.work()
    }

    /// The applications of what came by message and waits for an outcome, one for each that waits.
    pub(in crate::engine) fn awaiting_by_message(&self) -> Vec<String> {
        self.arrivals.awaiting_by_message()
    }

    /// What memory knows of an identity, for messages of tests.
    pub(in crate::engine) fn describe_identity(&self, identity: types::Identity) -> String {
        let item = self
            .core
            .stock
            .items()
            .by_identity(identity)
            .map(|id| (self.core.is_in_flight(id), &self.core.stock.items()[id]));
        format!("{} wait for the outcome of (in flight, item) {item:?}", self.arrivals.awaiting(identity))
    }

    /// The heads of the lines, for messages of tests.
    pub(in crate::engine) fn describe(&self) -> String {
        let queues = &self.core.stock.queues;
        let queues: Vec<String> =
            queues.ids().filter_map(|id| queues.get(id)).map(queue::Queue::describe).collect();
        let stock = &self.core.stock;
        let deadlines = [
            stock.customers().next_look(),
            stock.shared.journal.deadline(),
            stock.shared.deferred_until(),
            self.core.dispatch.deadline(&self.core.stock),
            self.arrivals.deadline(),
            self.scans.deadline(),
        ];
        let (course, arrivals, loader) = (&self.course, self.arrivals.describe(), &self.loader);
        let open = stock.customers().open_windows();
        format!("{course:?}; {arrivals}; {loader:?}; {deadlines:?}; {open} windows; {queues:#?}")
    }
}
