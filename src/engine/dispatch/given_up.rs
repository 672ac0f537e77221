//! Flights that end without having been sent.

use super::Dispatch;
use crate::ids::{ItemId, QueueId};
use crate::live::LiveItems;
use crate::mutant::{mutated, Mutant};
use alloc::collections::VecDeque;
use alloc::vec::Vec;

impl Dispatch {
    /// Ends all flights of a parked queue that wait for their next try. Returns their members, in order.
    /// Flights that wait for payloads are only marked, and end once these have come: failed ones go before
    /// them.
    pub(crate) fn recall(&mut self, live: &mut LiveItems, queue: QueueId) -> Vec<ItemId> {
        for number in live.queues.at(queue).at_work().flights().fetching() {
            if let Some(flight) = self.flights.get_mut(number) {
                flight.recalled = true;
            }
        }
        let queue_flights = live.queues.at(queue).at_work().flights_mut();
        let mut numbers = queue_flights.recall();
        if queue_flights.suspects() > 0 && !mutated(Mutant::SuspectsStay) {
            let flights = &self.flights;
            let is_mine = |number: &&u64| flights.get(**number).is_some_and(|flight| flight.queue == queue);
            let (mine, others) = self.suspects.iter().partition::<VecDeque<u64>, _>(is_mine);
            self.suspects = others;
            queue_flights.remove_suspects(mine.len());
            numbers.extend(mine);
        }
        numbers.sort_unstable();
        numbers
            .into_iter()
            .filter_map(|number| self.flights.end(number))
            .flat_map(|flight| flight.rows)
            .collect()
    }
}
