//! Candidates, which could be sent next, and flights, which have been formed.

use crate::ids::{CustomerId, ItemId, QueueId};
use crate::items::{Item, NumberMap, Stage};
use crate::live::LiveItems;
use crate::lookup::Lookup;
use crate::mutant::{mutated, Mutant};
use alloc::vec::Vec;
use tidegate_types::Format;

/// A batch that could be sent next.
#[derive(Debug)]
pub(crate) struct Candidate {
    /// Its number, if it is a repeat.
    pub(super) number: Option<u64>,
    pub(crate) queue: QueueId,
    pub(crate) rows: Vec<ItemId>,
    pub(super) alone: bool,
    /// Its format and number of publishes, if it is a repeat.
    pub(super) before: Option<(Format, u32)>,
    pub(super) suspect: bool,
}

impl Candidate {
    /// Whether it was formed before.
    pub(crate) fn is_repeat(&self) -> bool {
        self.number.is_some()
    }

    /// Whether it was published before, so that a consumer may have received it.
    pub(crate) fn has_been_out(&self) -> bool {
        self.before.is_some_and(|(_, publishes)| publishes > 0)
    }
}

/// State of a flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlightState {
    /// Formed; `missing` payloads are still to come from the store. Holds a slot.
    Fetching { missing: usize, alone: bool },
    /// With the publisher. Holds a slot.
    Out { alone: bool },
    /// To be sent again, in its queue's list.
    Resend,
    /// To be sent again alone.
    Suspect,
}

/// A batch, from its forming until its items have ended or returned to the queue.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) queue: QueueId,
    /// Customer of its items, if they have one.
    pub(super) customer: Option<CustomerId>,
    /// In order of (due, seq). Empty only while they are checked before they are sent.
    pub(crate) rows: Vec<ItemId>,
    /// Payload bytes, against the publisher's bound.
    pub(super) bytes: u64,
    /// Fixed when it is formed: a repeat is the same message, also if the settings have changed.
    pub(super) format: Format,
    pub(super) publishes: u32,
    pub(super) state: FlightState,
    /// When it took its slot, monotonic ms.
    pub(crate) since: u64,
    /// Same as [`tidegate_types::Batch::held`].
    pub(super) held: Option<[u64; 2]>,
    /// Its queue was parked while payloads were fetched: its members return to the queue once these have
    /// come.
    pub(super) recalled: bool,
}

impl FlightState {
    /// Whether it holds a slot of the publisher.
    pub(super) fn holds_slot(self) -> bool {
        match self {
            FlightState::Fetching { .. } | FlightState::Out { .. } => true,
            FlightState::Resend | FlightState::Suspect => false,
        }
    }
}

/// All flights, by number.
#[derive(Debug)]
pub(crate) struct Flights {
    table: NumberMap<u64, Flight>,
    next_number: u64,
}

impl Flights {
    pub(super) fn new() -> Self {
        Flights { table: Lookup::new(), next_number: 1 }
    }

    /// The number of a new flight of this many items. It reserves one number for each item, so that the
    /// halves of a split have numbers too, at their places in the order.
    pub(super) fn number(&mut self, items: usize) -> u64 {
        self.next_number += items as u64;
        self.next_number - items as u64
    }

    pub(super) fn insert(&mut self, number: u64, flight: Flight) {
        self.table.insert(number, flight);
    }

    /// Number of flights, those included that hold no slot and wait for their next try.
    pub(crate) fn count(&self) -> usize {
        self.table.len()
    }

    pub(crate) fn get(&self, number: u64) -> Option<&Flight> {
        self.table.get(&number)
    }

    /// A flight to be changed. It must not have ended: lists and items forget its number with its end.
    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut Flight> {
        let flight = self.table.get_mut(&number);
        debug_assert!(flight.is_some(), "what has ended is not changed");
        flight
    }

    /// Ends a flight, which must not have ended, and returns it.
    pub(crate) fn end(&mut self, number: u64) -> Option<Flight> {
        let flight = self.table.remove(&number);
        debug_assert!(flight.is_some(), "a flight ends once");
        flight
    }

    fn of(&self, item: &Item) -> Option<&Flight> {
        let Stage::Flying(number) = item.stage() else { return None };
        self.get(number)
    }

    /// Whether the item's flight is with the publisher, or fetches payloads for that.
    pub(crate) fn is_in_flight(&self, item: &Item) -> bool {
        self.of(item).is_some_and(|flight| flight.state.holds_slot())
    }

    /// Whether the item's flight waits for payloads.
    pub(crate) fn is_fetching(&self, item: &Item) -> bool {
        self.of(item).is_some_and(|flight| matches!(flight.state, FlightState::Fetching { .. }))
    }

    /// Whether the flight has never been published.
    pub(crate) fn is_new(&self, number: u64) -> bool {
        self.get(number).is_some_and(|flight| flight.publishes == 0)
    }

    /// Whether its queue was parked since it was formed.
    pub(crate) fn is_recalled(&self, number: u64) -> bool {
        self.get(number).is_some_and(|flight| flight.recalled)
    }

    /// Whether it holds a slot.
    pub(crate) fn is_under_way(&self, number: u64) -> bool {
        self.get(number).is_some_and(|flight| flight.state.holds_slot())
    }

    /// This many members of a formed flight do not leave: the rates are not charged for them.
    pub(crate) fn refund(&self, live: &mut LiveItems, number: u64, rows: u64) {
        if let Some(flight) = self.get(number) {
            live.queues.at(flight.queue).at_work().pace_mut().refund(rows);
            live.shared.customers.refund(flight.customer, rows);
        }
    }

    /// The flight was handed over, but was not published.
    pub(crate) fn not_published(&mut self, number: u64) {
        if let Some(flight) = self.get_mut(number) {
            flight.publishes = flight.publishes.saturating_sub(u32::from(!mutated(Mutant::UnsentCounts)));
        }
    }

    /// Removes the members that `leaves` selects from a flight that has ended its publish, and returns them.
    pub(crate) fn split_off(&mut self, number: u64, leaves: impl Fn(ItemId) -> bool) -> Vec<ItemId> {
        let Some(flight) = self.get_mut(number) else { return Vec::new() };
        if !flight.rows.iter().any(|id| leaves(*id)) {
            return Vec::new();
        }
        let (gone, left) = core::mem::take(&mut flight.rows).into_iter().partition(|id| leaves(*id));
        flight.rows = left;
        gone
    }
}
