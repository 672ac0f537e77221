//! The flights of one queue: those that hold a slot, that wait for payloads, that are sent again or alone.
//!
//! The dispatcher owns the flights themselves. This module keeps what decides whether another may go.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// See the module's page. Flights are given by number; a lower one was formed before.
#[derive(Debug, Default)]
pub(crate) struct QueueFlights {
    /// To be sent again, oldest first; they go before anything new.
    resend: VecDeque<u64>,
    /// Formed and waiting for payloads, in order; nothing overtakes them.
    fetching: VecDeque<u64>,
    /// How many of these were recalled: their items go back to the ready queue.
    recalled: usize,
    /// Flights that hold a slot of the publisher, and their items.
    slots: usize,
    items: u64,
    /// Bytes of their payloads.
    bytes: u64,
    /// Flights waiting to be sent alone, or sent so.
    suspects: usize,
}

impl QueueFlights {
    /// Flights that hold a slot of the publisher.
    pub(crate) fn slots(&self) -> usize {
        self.slots
    }

    /// Items in flight.
    pub(crate) fn items(&self) -> u64 {
        self.items
    }

    /// Flights waiting to be sent alone, or sent so: nothing overtakes them.
    pub(crate) fn suspects(&self) -> usize {
        self.suspects
    }

    /// Flights that hold a slot, or wait for their next try.
    pub(crate) fn under_way(&self) -> usize {
        self.slots + self.suspects + self.resend.len()
    }

    /// Whether recalled flights still wait for payloads, after which their items go back to the ready queue.
    pub(crate) fn has_recalled(&self) -> bool {
        self.recalled > 0
    }

    /// Whether no flight is under way or waits for its next try.
    pub(crate) fn is_idle(&self) -> bool {
        self.under_way() == 0 && self.fetching.is_empty()
    }

    // ---- slots --------------------------------------------------------------------------------------------

    /// Bytes of payloads in flight.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn take_slot(&mut self, bytes: u64) {
        self.slots += 1;
        self.bytes += bytes;
    }

    pub(crate) fn free_slot(&mut self, bytes: u64) {
        self.slots -= 1;
        self.bytes -= bytes;
    }

    /// Counts further items in flight.
    pub(crate) fn add_items(&mut self, count: u64) {
        self.items += count;
    }

    /// Counts out items that are no longer in flight.
    pub(crate) fn remove_items(&mut self, count: u64) {
        self.items = self.items.saturating_sub(count);
    }

    // ---- sent again ---------------------------------------------------------------------------------------

    /// Flights to be sent again, oldest first.
    pub(crate) fn to_resend(&self) -> impl Iterator<Item = u64> + '_ {
        self.resend.iter().copied()
    }

    pub(crate) fn first_to_resend(&self) -> Option<u64> {
        self.resend.front().copied()
    }

    pub(crate) fn take_to_resend(&mut self) -> Option<u64> {
        self.resend.pop_front()
    }

    /// The flight is to be sent again, before anything new.
    pub(crate) fn resend(&mut self, number: u64) {
        let at = self.resend.partition_point(|other| *other < number);
        self.resend.insert(at, number);
    }

    /// The flight has nothing left to be sent again.
    pub(crate) fn forget_resend(&mut self, number: u64) {
        self.resend.retain(|other| *other != number);
    }

    pub(crate) fn add_suspect(&mut self) {
        self.suspects += 1;
    }

    /// Counts out flights that are no longer suspect.
    pub(crate) fn remove_suspects(&mut self, count: usize) {
        self.suspects -= count;
    }

    // ---- waiting for payloads -----------------------------------------------------------------------------

    /// Flights that wait for payloads, in order.
    pub(crate) fn fetching(&self) -> impl Iterator<Item = u64> + '_ {
        self.fetching.iter().copied()
    }

    pub(crate) fn first_fetching(&self) -> Option<u64> {
        self.fetching.front().copied()
    }

    /// Adds a flight that waits for payloads, behind those that go before it; `goes_before` holds for the
    /// first ones of the list only.
    pub(crate) fn fetch(&mut self, number: u64, goes_before: impl Fn(u64) -> bool) {
        let at = self.fetching.partition_point(|other| goes_before(*other));
        self.fetching.insert(at, number);
    }

    /// The first of them has its payloads, or is gone.
    pub(crate) fn fetched(&mut self, was_recalled: bool) {
        self.fetching.pop_front();
        self.recalled -= usize::from(was_recalled);
    }

    /// The queue cannot be delivered to: flights that wait for payloads are recalled. Returns those that were
    /// to be sent again.
    pub(crate) fn recall(&mut self) -> Vec<u64> {
        self.recalled = self.fetching.len();
        core::mem::take(&mut self.resend).into()
    }
}
