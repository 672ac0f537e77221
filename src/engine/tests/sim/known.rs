//! The state of items by identity, by application and by customer.

use super::commands::Asked;
use super::model::*;
use tidegate_types::*;

impl Model {
    /// Whether an end that long ago may be remembered, and whether it may not be.
    pub(super) fn remembered(&self, seq: u64, from_wall: u64) -> (bool, bool) {
        let life = &self.lives[&seq];
        let ask = &self.asks[life.ask];
        if !life.identity.is_given() {
            return (true, true);
        }
        let tail = |settings: &Settings| settings.of(&ask.new.application).dedupe_tail;
        let now = std::iter::once(&self.settings).chain(&self.before).map(tail);
        let tails: Vec<u64> = now.chain(life.tail).collect();
        let shortest = tails.iter().min().copied().unwrap_or(0);
        let longest = tails.iter().max().copied().unwrap_or(0);
        let may = longest > 0 && (self.stepped || from_wall <= life.ended_at.saturating_add(longest));
        let may_not = self.stepped
            || shortest == 0
            || self.now.wall >= life.ended_at.saturating_add(shortest)
            || (!self.durable && self.lives_begun > 1);
        (may, may_not)
    }

    /// Number of entries of an application that may have been accepted and are not visible yet.
    pub(super) fn unseen_of(&self, application: &str) -> u64 {
        let parts = self.open.iter().flat_map(|number| {
            let message = &self.messages[number];
            message.asks.iter().zip(&message.taken)
        });
        parts
            .filter(|(ask, taken)| taken.is_none() && *self.asks[**ask].new.application == *application)
            .count() as u64
    }

    /// Whether it was replaced or cancelled before it was written.
    pub(super) fn ended_unseen(&self, identity: Identity, since: usize, known: &[Known]) -> bool {
        let replaces = |known: &Known| match known {
            Known::Nobody => false,
            Known::Waiting(seq) | Known::Out(seq) | Known::Ended(seq) => {
                let life = &self.lives[seq];
                let rule = self.asks[life.ask].new.on_duplicate;
                life.accepted >= since && !matches!(rule, DuplicateRule::Keep | DuplicateRule::Reject)
            }
        };
        let cancels =
            |asked: &Asked| matches!(&asked.command, Command::Cancel(target) if target.identity == identity);
        let answered = self.answered.values().filter(|asked| asked.answered >= since);
        known.iter().any(replaces) || self.commands.values().chain(answered).any(cancels)
    }

    /// Number of items of a customer that were live at any moment since a call.
    pub(super) fn ever_of(&self, of: &CustomerOf, since: usize) -> u64 {
        let is_its = |life: &&Life| {
            let new = &self.asks[life.ask].new;
            // A failed attempt may not have been handled yet, and then the item is still in its flight.
            let unlooked_at = life.superseded && self.may_be_unlooked_at(life.ended_call);
            let live = life.state.is_live() || life.ended_call >= since || unlooked_at;
            live && new.application == of.application && new.customer.as_deref() == Some(&*of.customer)
        };
        self.lives.values().filter(is_its).count() as u64
    }

    /// Items of a customer that may still be sent.
    pub(super) fn of_customer<'a>(
        &'a self,
        application: &'a str,
        customer: &'a str,
    ) -> impl Iterator<Item = &'a Life> {
        self.lives.values().filter(move |life| {
            let new = &self.asks[life.ask].new;
            life.state.is_live()
                && *new.application == *application
                && new.customer.as_deref() == Some(customer)
        })
    }
}
