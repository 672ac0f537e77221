//! Answers to counts and cancels of a customer, and to flushes.

use super::commands::Asked;
use super::model::{Life, Model, State};
use tidegate_types::*;

impl Model {
    /// Checks a count; items of the customer may have left, come or moved since the question.
    pub(super) fn judge_count(&self, asked: &Asked, of: &CustomerOf, answer: &Answer) {
        let Answer::Counted { waiting, in_flight, parked, next_due, .. } = answer else {
            panic!("{answer:?}")
        };
        let total = waiting + in_flight + parked;
        if !self.durable {
            return;
        }
        let most = self.ever_of(of, asked.call);
        // Items whose window closed, or that were given another time, may have moved behind the position of the count.
        let has_moved = |(seq, due): &(&u64, &u64)| {
            let life = &self.lives[seq];
            life.due < **due || life.retimed_call >= asked.call
        };
        let moved = asked.dues.iter().filter(has_moved).count() as u64;
        let least = if self.prompt { asked.least.saturating_sub(moved) } else { 0 };
        assert_eq!(next_due.is_some(), total > 0, "{answer:?}");
        let first = self.first_due_of(of, asked).filter(|_| self.prompt);
        assert!(first.is_none_or(|first| next_due.is_none_or(|next| next <= first)), "{answer:?}: {first:?}");
        assert!((least..=most).contains(&total), "{answer:?}: {} to {most}", asked.least);
    }

    /// First due, at the question, of the customer's items that have waited since before it.
    fn first_due_of(&self, of: &CustomerOf, asked: &Asked) -> Option<u64> {
        let waited = |life: &&Life| {
            life.accepted < asked.call && life.waiting_since < asked.call && life.retimed_call < asked.call
        };
        let its = self.of_customer(&of.application, &of.customer).filter(|life| life.state == State::Waiting);
        its.filter(waited).filter_map(|life| asked.dues.get(&life.seq).copied()).min()
    }

    pub(super) fn judge_cancel_all(&mut self, asked: &Asked, of: &CustomerOf, answer: &Answer) {
        let Answer::Cancelled { count, in_flight } = answer else { panic!("{answer:?}") };
        if !self.durable {
            return;
        }
        // Several commands about one customer share the items that they cancel.
        let others = |other: &&Asked| {
            matches!(&other.command, Command::CancelAll(o) if o == of)
                || takes_back(&other.command) && !matches!(other.command, Command::CancelAll(_))
        };
        // A command that went on when its connection was lost may have been first.
        let shared = self.commands.values().chain(self.orphaned.values()).any(|asked| others(&asked))
            || self.answered.values().filter(|a| others(a) && a.call + 200 >= asked.call).count() > 0;
        let took = asked.took.len() as u64;
        // Items that a request behind it replaced were cancelled first.
        let replaced = self
            .lives
            .values()
            .filter(|life| life.state == State::Replaced && life.ended_call >= asked.call)
            .count() as u64;
        assert!(
            (took..=took + replaced).contains(count) || shared,
            "{count} are said to be taken back, {took} were"
        );
        // Because of another cancel, the engine decides at once on a request that waits for the same item.
        let is_another = |command: &Command| match command {
            Command::CancelAll(other) => other.application == of.application,
            Command::CancelSelected(selection) => selection.application == of.application,
            Command::Cancel(target) => target.application == of.application,
            _ => false,
        };
        let answered = self.answered.values().filter(|other| other.answered >= asked.call);
        let others = self.commands.values().chain(answered).chain(self.orphaned.values());
        let another = others.into_iter().any(|other| is_another(&other.command));
        // Behind a command from within the process, the request may have to wait for the store first.
        let hurried = another || self.few_wait || asked.tag.is_none();
        let patient = self.now.mono >= asked.now.mono + 5_000 || hurried;
        assert!(*in_flight == 0 || patient, "it waits 5 s for the outcomes");
        // It also covers items that were in flight and have failed since.
        let waits = |life: &&Life| {
            let failed = life.put.is_some() && life.waiting_since < self.call;
            life.state == State::Waiting && (life.waiting_since < asked.call || failed)
        };
        let its = self.of_customer(&of.application, &of.customer);
        let left = its.filter(|life| life.accepted < asked.call).filter(waits);
        let left: Vec<u64> = left.map(|life| life.seq).collect();
        assert!(
            left.len() as u64 <= *in_flight,
            "left by a cancel of {of:?}: {left:?}, {in_flight} in flight"
        );
    }

    /// No item from before the question may be in an open window of the application.
    pub(super) fn judge_flush_all(&mut self, asked: &Asked, name: &str, answer: &Answer) {
        let Answer::Flushed(_) = answer else { panic!("{answer:?}") };
        if !self.durable {
            return;
        }
        let open = self.windows.open.keys().filter(|(application, _)| **application == *name);
        for (_, customer) in open.cloned().collect::<Vec<_>>() {
            let of = CustomerOf { application: name.into(), customer: customer.as_str().into() };
            self.flushed(asked, &of, 1);
        }
    }

    /// Whether the item may be dropped as parked, whatever the outcome of its last attempt.
    pub(super) fn may_be_given_up(&self, seq: u64) -> bool {
        let asked = self.commands.values().chain(self.answered.values());
        asked
            .filter(|asked| matches!(asked.command, Command::DropParked(_)))
            .any(|asked| asked.covers(self, seq))
    }

    pub(super) fn flushed(&mut self, asked: &Asked, of: &CustomerOf, count: u64) {
        let (app, customer) = (of.application.to_string(), of.customer.to_string());
        if count == 0 {
            return;
        }
        self.windows.flush_ripe((&app, &customer), self.call, self.now);
        // Members from before the question may not be in an open window.
        let Some(id) = self.windows.open.get(&(app, customer)) else { return };
        let win = &self.windows.all[id];
        let old = win.members.iter().filter(|seq| self.lives[seq].accepted < asked.call).count();
        assert!(old == 0 || win.unsure, "{of:?} was flushed, and {old} members are still in an open window");
    }
}

/// Whether a command cancels items.
pub(super) fn takes_back(command: &Command) -> bool {
    matches!(
        command,
        Command::Cancel(_) | Command::CancelAll(_) | Command::CancelSelected(_) | Command::DropParked(_)
    )
}
