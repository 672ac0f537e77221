//! Views into an engine for tests only.

use crate::{queue, Engine};

impl Engine {
    /// Panics where an invariant is broken.
    pub(crate) fn check_invariants(&self) {
        self.core.live.check();
    }

    /// Rows in memory, and bytes of payloads.
    pub(crate) fn memory_bytes(&self) -> (usize, u64) {
        (self.core.live.items().len(), self.core.live.items().content_bytes())
    }

    /// Rows in batches, in flight or to be sent again.
    pub(crate) fn rows_in_batches(&self) -> usize {
        self.core.live.shared.rows_in_batches()
    }

    /// Number of customers of all applications.
    pub(crate) fn customers_in_memory(&self) -> usize {
        self.core.live.customers().len()
    }

    /// Number of customers that owe their rate and have nothing in memory.
    pub(crate) fn debts(&self) -> usize {
        self.core.live.customers().debts()
    }

    /// Due rows of queues that are held back, which are moved to the store alone.
    pub(crate) fn rows_leaving(&self) -> usize {
        let queues = &self.core.live.queues;
        let leaving = queues
            .ids()
            .filter_map(|id| queues[id].active())
            .filter(|live| live.is(queue::Condition::Evicting));
        leaving.map(|live| live.ready().all_items() as usize).sum()
    }

    /// Number of changes that are remembered for reads under way.
    pub(crate) fn noted_for_reads(&self) -> usize {
        self.core.live.shared.reads.noted()
    }

    /// Whether the item with this number is in memory.
    pub(crate) fn holds(&self, seq: u64) -> bool {
        self.core.live.items().by_seq(seq).is_some()
    }

    /// Rows of one application that are in memory and in the store.
    pub(crate) fn rows_in_memory(&self, application: &str) -> u64 {
        let queues = &self.core.live.queues;
        queues.find(application).map_or(0, |queue| queues[queue].resident())
    }

    /// Rows touched since the start.
    pub(crate) fn work(&self) -> u64 {
        self.core.live.shared.work()
    }

    /// Applications of commands and requests by message that wait for an outcome, one for each that waits.
    pub(crate) fn awaiting_by_message(&self) -> Vec<String> {
        self.arrivals.awaiting_by_message()
    }

    /// Number of ends of waits that are kept, and number of arrivals that wait for an outcome.
    pub(crate) fn ends_of_waits(&self) -> (usize, usize) {
        self.arrivals.ends_of_waits()
    }

    /// State of an identity in memory, for messages of tests.
    pub(crate) fn describe_identity(&self, identity: tidegate_types::Identity) -> String {
        let item = self
            .core
            .live
            .items()
            .by_identity(identity)
            .map(|id| (self.core.is_in_flight(id), &self.core.live.items()[id]));
        format!("{} wait for the outcome of (in flight, item) {item:?}", self.arrivals.awaiting(identity))
    }

    /// State of all queues, for messages of tests.
    pub(crate) fn describe(&self) -> String {
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
