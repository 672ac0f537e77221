//! What leaves its flight, or the list of those to be sent again, without having been sent.

use super::Dispatch;
use crate::engine::ids::{ItemId, QueueId};
use crate::engine::live::LiveItems;
use crate::engine::mutant::{mutated, Mutant};
use std::collections::VecDeque;

impl Dispatch {
    /// All flights of a queue that wait for their next try: it is given up for now. Their members, in order.
    /// Those that wait for payloads follow when these have come: what has failed goes before them.
    pub(in crate::engine) fn recall(&mut self, live: &mut LiveItems, queue: QueueId) -> Vec<ItemId> {
        for number in live.queues.at(queue).at_work().flights().fetching() {
            if let Some(flight) = self.flights.get_mut(number) {
                flight.recalled = true;
            }
        }
        let lane = live.queues.at(queue).at_work().flights_mut();
        let mut numbers = lane.recall();
        if lane.suspects() > 0 && !mutated(Mutant::SuspectsStay) {
            let flights = &self.flights;
            let is_mine = |number: &&u64| flights.get(**number).is_some_and(|flight| flight.queue == queue);
            let (mine, others) = self.suspects.iter().partition::<VecDeque<u64>, _>(is_mine);
            self.suspects = others;
            lane.remove_suspects(mine.len());
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
