//! Limits on arrivals that wait for the outcomes of items in flight, so that others are not delayed.
//!
//! An arrival by message is unacked while it waits, and occupies a place of the prefetch. Since an attempt
//! may never end, only a share of the prefetch may wait, and the rest serves others. A local command occupies
//! its caller.

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

    /// One in `part` of the prefetch: at least one, if that leaves one for others.
    pub(crate) fn share(&self, part: usize) -> usize {
        match self.prefetch {
            None => usize::MAX,
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

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of a thousand may wait, by message or not, for one application or for one each.
    fn most(prefetch: Option<u16>, local: bool, one: bool) -> usize {
        let mut waits = Waits::default();
        let too_many = prefetch.is_some_and(|prefetch| waits.set_prefetch(prefetch));
        assert!(!too_many, "nothing waits yet");
        let may_wait = |number: &u32| {
            let application = if one { "shop".to_owned() } else { number.to_string() };
            waits.begin(Waiter { application: &application, local })
        };
        (0..1_000).take_while(may_wait).count()
    }

    /// Columns: the prefetch; then how many may wait by message: for one application, for all.
    /// Excluded: any number of them; all places of the prefetch, or none although there are two; a share of
    /// one application as large as that of all.
    /// Judges promise 6.
    #[test]
    fn how_many_may_wait() {
        for (prefetch, of_one, of_all) in [
            (Some(1), 0, 0),
            (Some(2), 1, 1),
            (Some(7), 1, 1),
            (Some(8), 1, 2),
            (Some(31), 1, 7),
            (Some(32), 2, 8),
            (Some(1_000), 62, 250),
            (None, 1_000, 1_000),
        ] {
            let found = [true, false].map(|one| most(prefetch, false, one));
            assert_eq!(found, [of_one, of_all], "prefetch {prefetch:?}");
            let local = [true, false].map(|one| most(prefetch, true, one));
            assert_eq!(local, [8, 16], "prefetch {prefetch:?}: local commands have no part in it");
        }
    }

    /// Each line: the event; then whether one more may wait for the applications `a`, `b` and `c`. With a
    /// prefetch of 8 one may wait for each, and two in all.
    /// Excluded: a place that stays taken; a place of one application that another ends.
    /// Judges promise 6.
    #[test]
    fn who_no_longer_waits_makes_room() {
        let mut waits = Waits::default();
        assert!(!waits.set_prefetch(8));
        let waiter = |application| Waiter { application, local: false };
        for (event, application, expected) in [
            ("starts", "", [true, true, true]),
            ("begins", "a", [false, true, true]),
            ("begins", "b", [false, false, false]),
            ("ends", "a", [true, false, true]),
            ("begins", "c", [false, false, false]),
            ("ends", "b", [true, true, false]),
            ("ends", "c", [true, true, true]),
        ] {
            match event {
                "begins" => assert!(waits.begin(waiter(application))),
                "ends" => waits.end(waiter(application)),
                _ => {}
            }
            let found = ["a", "b", "c"].map(|application| waits.may_wait(waiter(application)));
            assert_eq!(found, expected, "{application} {event}");
        }
    }
}
