//! Limits on arrivals that wait for the outcomes of items in flight, so that others are not delayed.
//!
//! An arrival by message is unacked while it waits, and occupies a place of the prefetch. Since an attempt
//! may never end, only a share of the prefetch may wait, and the rest serves others. A local command occupies
//! its caller.

use super::mutant::{mutated, Mutant};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use tidegate_types::{Asker, Command};

/// The share of the prefetch that may wait is one in this many, for all applications together and for each.
const PART_OF_ALL: usize = 4;
const PART_OF_ONE: usize = 16;

/// Maximum number of waiting local commands, for all applications together and for each.
const LOCAL_OF_ALL: usize = 16;
const LOCAL_OF_ONE: usize = 8;

/// One waiting arrival or command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiter<'a> {
    /// Application of the item that it waits for; empty if there is not one application.
    pub(crate) application: &'a str,
    /// It is a local command.
    pub(crate) local: bool,
}

impl<'a> Waiter<'a> {
    pub(crate) fn of(command: &'a Command, asker: &Asker) -> Self {
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

/// Waiting ones of one application, or of all.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    /// Those that came by message.
    remote: usize,
    local: usize,
}

/// See the module's page.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    /// Prefetch of the consumer; `None`: not known.
    prefetch: Option<usize>,
    all: Count,
    /// Counts of the applications for which something waits.
    of: BTreeMap<Box<str>, Count>,
}

impl Waits {
    /// Sets the prefetch. Whether more wait now than may.
    pub(crate) fn set_prefetch(&mut self, prefetch: u16) -> bool {
        self.prefetch = Some(usize::from(prefetch));
        let one = self.share(PART_OF_ONE);
        self.all.remote > self.share(PART_OF_ALL) || self.of.values().any(|count| count.remote > one)
    }

    /// The part of the prefetch that may wait: at least one, if that leaves one for others.
    fn share(&self, part: usize) -> usize {
        match self.prefetch {
            None => usize::MAX,
            Some(_) if mutated(Mutant::AllMayWait) => usize::MAX,
            Some(prefetch) => (prefetch / part).max(usize::from(prefetch > 1)),
        }
    }

    /// Whether one more may wait.
    pub(crate) fn may_wait(&self, waiter: Waiter<'_>) -> bool {
        let of = self.of.get(waiter.application).copied().unwrap_or_default();
        if waiter.local {
            self.all.local < LOCAL_OF_ALL && of.local < LOCAL_OF_ONE
        } else {
            self.all.remote < self.share(PART_OF_ALL) && of.remote < self.share(PART_OF_ONE)
        }
    }

    /// Counts one that waits from now on. Whether it may.
    pub(crate) fn begin(&mut self, waiter: Waiter<'_>) -> bool {
        let may = self.may_wait(waiter);
        let of = self.of.entry(waiter.application.into()).or_default();
        for count in [&mut self.all, of] {
            count.remote += usize::from(!waiter.local);
            count.local += usize::from(waiter.local);
        }
        may
    }

    /// Counts one that no longer waits.
    pub(crate) fn end(&mut self, waiter: Waiter<'_>) {
        let Some(of) = self.of.get_mut(waiter.application) else {
            debug_assert!(false, "only what has begun to wait ends");
            return;
        };
        for count in [&mut self.all, &mut *of] {
            count.remote -= usize::from(!waiter.local);
            count.local -= usize::from(waiter.local);
        }
        if of.remote + of.local == 0 {
            self.of.remove(waiter.application);
        }
    }

    /// Resets all counts.
    pub(crate) fn forget(&mut self) {
        (self.all, self.of) = (Count::default(), BTreeMap::new());
    }
}
