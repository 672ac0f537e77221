//! How much may wait for the outcome of what is in flight: nothing that others need.
//!
//! What came by message is unacked while it waits, and counts towards the deliveries that the consumer may
//! have out. An attempt may never end: a share of them may wait, so that the rest serves others. What was
//! asked within this process holds a place of its caller.

use super::mutant::{mutated, Mutant};
use super::types::{Asker, Command};
use std::collections::BTreeMap;

/// Of the deliveries that may be out, this part may wait: one of so many, of all applications and of each.
const PART_OF_ALL: usize = 4;
const PART_OF_ONE: usize = 16;

/// Commands from within this process that may wait: of all applications and of each.
const LOCAL_OF_ALL: usize = 16;
const LOCAL_OF_ONE: usize = 8;

/// One that waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiter<'a> {
    /// Whose item it waits for; empty where it is not one application's.
    pub(super) application: &'a str,
    /// It came from within this process.
    pub(super) local: bool,
}

impl<'a> Waiter<'a> {
    pub(super) fn of(command: &'a Command, asker: &Asker) -> Self {
        let application = match command {
            Command::Cancel(target) | Command::Lookup(target) | Command::Reschedule(target, _) => {
                &target.application
            }
            Command::CancelAll(of)
            | Command::Count(of)
            | Command::Flush(of)
            | Command::PauseCustomer(of, _)
            | Command::ResumeCustomer(of) => &of.application,
            Command::CancelSelected(selection) | Command::CountSelected(selection) => &selection.application,
            Command::Pause(application, _)
            | Command::Resume(application)
            | Command::Slow(application, ..)
            | Command::Retry(application)
            | Command::FlushAll(application)
            | Command::DropParked(application) => application,
            Command::List(_) | Command::TimelineQuery(_) => "",
        };
        Waiter { application, local: matches!(asker, Asker::Local(_)) }
    }
}

/// Of one application, or of all.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    /// Came by message.
    remote: usize,
    local: usize,
}

/// See the module's page.
#[derive(Debug, Default)]
pub(super) struct Waits {
    /// How many deliveries may be out; `None`: nobody has said.
    prefetch: Option<usize>,
    all: Count,
    /// Those of which something waits.
    of: BTreeMap<Box<str>, Count>,
}

impl Waits {
    /// Whether more waits now than may.
    pub(super) fn set_prefetch(&mut self, prefetch: u16) -> bool {
        self.prefetch = Some(usize::from(prefetch));
        let one = self.share(PART_OF_ONE);
        self.all.remote > self.share(PART_OF_ALL) || self.of.values().any(|count| count.remote > one)
    }

    /// At least one, where that leaves one for others.
    fn share(&self, part: usize) -> usize {
        match self.prefetch {
            None => usize::MAX,
            Some(_) if mutated(Mutant::AllMayWait) => usize::MAX,
            Some(prefetch) => (prefetch / part).max(usize::from(prefetch > 1)),
        }
    }

    /// Whether one more may.
    pub(super) fn may_wait(&self, waiter: Waiter<'_>) -> bool {
        let of = self.of.get(waiter.application).copied().unwrap_or_default();
        if waiter.local {
            self.all.local < LOCAL_OF_ALL && of.local < LOCAL_OF_ONE
        } else {
            self.all.remote < self.share(PART_OF_ALL) && of.remote < self.share(PART_OF_ONE)
        }
    }

    /// It waits from now on. Whether it may.
    pub(super) fn begin(&mut self, waiter: Waiter<'_>) -> bool {
        let may = self.may_wait(waiter);
        let of = self.of.entry(waiter.application.into()).or_default();
        for count in [&mut self.all, of] {
            count.remote += usize::from(!waiter.local);
            count.local += usize::from(waiter.local);
        }
        may
    }

    /// It waits no more.
    pub(super) fn end(&mut self, waiter: Waiter<'_>) {
        let Some(of) = self.of.get_mut(waiter.application) else { return };
        for count in [&mut self.all, &mut *of] {
            count.remote -= usize::from(!waiter.local);
            count.local -= usize::from(waiter.local);
        }
        if of.remote + of.local == 0 {
            self.of.remove(waiter.application);
        }
    }

    /// Nothing waits any more.
    pub(super) fn forget(&mut self) {
        (self.all, self.of) = (Count::default(), BTreeMap::new());
    }
}
