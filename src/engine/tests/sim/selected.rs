//! Cancels and counts of selected items: the commands, and checks of their answers.

use super::commands::Asked;
use super::customers::takes_back;
use super::model::{Life, Model, State};
use super::Sim;
use tidegate_types::*;

impl Sim {
    /// A selection of an application: all items, or some by customer, due or receipt.
    pub(super) fn any_selection(&mut self, application: &str, customer: &str) -> Selection {
        let mut selection = Selection::all(application.into());
        let (wall, mut draw) = (self.world.now.wall, || self.looks.draw());
        let around = (wall + draw() % 4_000).saturating_sub(1_000);
        match draw() % 8 {
            0 => selection.customer = Some(customer.into()),
            1 => selection.customer_prefix = customer.into(),
            2 => selection.due_until = around,
            3 => selection.due_from = around,
            4 => (selection.due_from, selection.due_until) = (wall.saturating_sub(500), around),
            5 => selection.received_until = wall.saturating_sub(draw() % 2_000),
            _ => {}
        }
        selection
    }
}

impl Model {
    fn is_of_selection(&self, selection: &Selection, life: &Life) -> bool {
        let new = &self.asks[life.ask].new;
        new.application == selection.application && selection.takes_customer(new.customer.as_deref())
    }

    /// Whether its due has not changed since before this call.
    fn has_its_time(&self, life: &Life, since: usize) -> bool {
        self.own_time(life).is_some() && life.retimed_call < since
    }

    /// Whether it may be selected: its moment of receipt is not known.
    pub(super) fn may_be_selected(&self, selection: &Selection, life: &Life, since: usize) -> bool {
        let timely = selection.due_from <= life.due && life.due < selection.due_until;
        self.is_of_selection(selection, life) && (timely || !self.has_its_time(life, since))
    }

    /// Whether it is certainly selected: it has waited since before the question.
    fn is_selected(&self, selection: &Selection, life: &Life, asked: &Asked) -> bool {
        let timely = selection.due_from <= life.due && life.due < selection.due_until;
        let of_any_time = (selection.due_from, selection.due_until) == (0, u64::MAX);
        let waited =
            life.state == State::Waiting && life.waiting_since < asked.call && life.accepted < asked.call;
        let timely = of_any_time || timely && self.has_its_time(life, asked.call);
        waited && timely && selection.received_until == u64::MAX && self.is_of_selection(selection, life)
    }

    pub(super) fn judge_cancel_selected(&self, asked: &Asked, selection: &Selection, answer: &Answer) {
        let Answer::Cancelled { count, in_flight } = answer else { panic!("{answer:?}") };
        if !self.durable {
            return;
        }
        let lately = self.answered.values().filter(|other| other.call + 200 >= asked.call);
        let others = self.commands.values().chain(self.orphaned.values()).chain(lately);
        let shared = others.into_iter().any(|other| takes_back(&other.command));
        // Items that a request behind it replaced were cancelled first.
        let replaced = |life: &&Life| life.state == State::Replaced && life.ended_call >= asked.call;
        let (took, more) = (asked.took.len() as u64, self.lives.values().filter(replaced).count() as u64);
        assert!(
            (took..=took + more).contains(count) || shared,
            "{count} are said to be taken back, {took} were"
        );
        let left = self.lives.values().filter(|life| self.is_selected(selection, life, asked));
        let left: Vec<u64> = left.map(|life| life.seq).collect();
        assert!(
            left.len() as u64 <= *in_flight,
            "left by a cancel of {selection:?}: {left:?}, {in_flight} in flight"
        );
    }

    pub(super) fn judge_count_selected(&self, asked: &Asked, selection: &Selection, answer: &Answer) {
        let Answer::Counted { waiting, in_flight, parked, next_due, .. } = answer else {
            panic!("{answer:?}")
        };
        let total = waiting + in_flight + parked;
        assert_eq!(next_due.is_some(), total > 0, "{answer:?}");
        if !self.durable {
            return;
        }
        let ever = |life: &&Life| {
            let unlooked_at = life.superseded && self.may_be_unlooked_at(life.ended_call);
            let live = life.state.is_live() || life.ended_call >= asked.call || unlooked_at;
            live && self.may_be_selected(selection, life, asked.call)
        };
        // Items that may be confirmed before they are written have come in unseen.
        let most = self.lives.values().filter(ever).count() as u64 + self.unseen_of(&selection.application);
        // Items whose window closed since may have moved behind the position of the count.
        let least =
            |life: &&Life| self.has_its_time(life, asked.call) && self.is_selected(selection, life, asked);
        let least = self.lives.values().filter(least).count() as u64;
        assert!((least..=most).contains(&total), "{answer:?} to {selection:?}: {least} to {most}");
    }
}
