//! Arrivals, the lines that hold them, and what is known of each.

use super::{Knowledge, Line, LineEntry, Placed};
use crate::live::Origin;
use crate::mutant::{mutated, Mutant};
use crate::reads::Watch;
use crate::waits::Waiter;
use alloc::boxed::Box;
use tidegate_types::event::Found;
use tidegate_types::{Asker, Command, Delivery, Identity, NewItem, Rejected};

/// A request or command that has not been judged.
#[derive(Debug)]
pub(crate) enum Arrival {
    Item(Box<NewItem>, Origin),
    Rejected(Box<Rejected>, Origin),
    Command { command: Command, asker: Asker },
}

impl Arrival {
    /// The application and the identities that it concerns, in the order of looking.
    pub(crate) fn subject(&self) -> Option<(&str, [Option<Identity>; 2])> {
        match self {
            Arrival::Item(item, _) => Some((&item.application, [item.identity, None])),
            Arrival::Command {
                command: Command::Cancel(target) | Command::Lookup(target) | Command::Reschedule(target, _),
                ..
            } => Some((&target.application, target.identities())),
            Arrival::Command { .. } | Arrival::Rejected(..) => None,
        }
    }

    /// The message that it came with; the message may have other entries.
    pub(crate) fn delivery(&self) -> Option<Delivery> {
        match self {
            Arrival::Item(_, origin) | Arrival::Rejected(_, origin) => Some(origin.delivery),
            Arrival::Command { .. } => None,
        }
    }

    /// The application and customer that it concerns.
    pub(crate) fn customer(&self) -> Option<(&str, &str)> {
        match self {
            Arrival::Item(item, _) => Some((&item.application, item.customer.as_deref()?)),
            Arrival::Command {
                command: Command::Flush(of) | Command::CancelAll(of) | Command::Count(of),
                ..
            } => Some((&of.application, &of.customer)),
            Arrival::Command { .. } | Arrival::Rejected(..) => None,
        }
    }

    /// How it is counted while it waits for an outcome.
    pub(super) fn waiter(&self) -> Waiter<'_> {
        let application = self.subject().map_or("", |(application, _)| application);
        Waiter { application, local: self.is_local() }
    }

    /// Whether it is a request that this later command cancels.
    pub(super) fn is_meant_by(&self, command: &Command) -> bool {
        let Arrival::Item(item, _) = self else { return false };
        match command {
            Command::Cancel(target) => {
                item.identity.is_some() && target.identities().contains(&item.identity)
            }
            Command::CancelAll(of) => self.customer() == Some((&*of.application, &*of.customer)),
            Command::CancelSelected(selection) => {
                item.application == selection.application
                    && selection.takes_customer(item.customer.as_deref())
            }
            Command::Lookup(_)
            | Command::Reschedule(..)
            | Command::Count(_)
            | Command::CountSelected(_)
            | Command::Flush(_)
            | Command::FlushAll(_)
            | Command::Pause(..)
            | Command::Resume(_)
            | Command::PauseCustomer(..)
            | Command::ResumeCustomer(_)
            | Command::Slow(..)
            | Command::Retry(_)
            | Command::DropParked(_)
            | Command::List(_)
            | Command::TimelineQuery(_) => false,
        }
    }

    pub(super) fn is_item(&self) -> bool {
        matches!(self, Arrival::Item(..))
    }

    pub(super) fn is_local(&self) -> bool {
        matches!(self, Arrival::Command { asker: Asker::Local(_), .. })
    }
}

/// Whether requests that came before this command may be meant by it.
pub(super) fn cancels(command: &Command) -> bool {
    matches!(command, Command::Cancel(_) | Command::CancelAll(_) | Command::CancelSelected(_))
}

impl LineEntry {
    pub(super) fn new(placed: Placed) -> Self {
        LineEntry { placed, knowledge: Knowledge::Unasked, at_once: false }
    }

    /// Records that the store need not be asked. This is valid until the identity changes: else changes that
    /// earlier entries make to other items of its application would cause a question.
    pub(super) fn keep_knowledge(&mut self, watch: &mut Watch) {
        let (Knowledge::Unasked, Arrival::Item(item, _)) = (&self.knowledge, &self.placed.arrival) else {
            return;
        };
        if let Some(identity) = item.identity {
            self.knowledge = Knowledge::Known(vec![watch.begin(identity)], vec![Found::default()]);
        }
    }

    /// Drops answers that have become stale.
    pub(super) fn forget_if_stale(&mut self, watch: &mut Watch) {
        let Knowledge::Known(asked, _) = &self.knowledge else { return };
        if asked.iter().any(|one| !watch.is_worth(one)) {
            asked.iter().for_each(|one| {
                watch.end(*one);
            });
            self.knowledge = Knowledge::Unasked;
        }
    }
}

impl Line {
    /// Inserts an entry by its place, nearly always close to the head.
    pub(super) fn insert(&mut self, entry: LineEntry) {
        let index = match mutated(Mutant::ReturnedAhead) {
            true => 0,
            false => self.entries.partition_point(|other| other.placed.place < entry.placed.place),
        };
        self.ahead = self.ahead.min(index);
        self.entries.insert(index, entry);
    }

    pub(super) fn at(&mut self, place: u64) -> Option<&mut LineEntry> {
        let index = self.entries.binary_search_by_key(&place, |entry| entry.placed.place).ok()?;
        self.entries.get_mut(index)
    }
}

/// Name of one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineName {
    /// Arrivals that have waited for an outcome; judged before new ones.
    Returned,
    Requests,
    Local,
}
