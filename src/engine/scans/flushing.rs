//! Closes the windows of an application that were open when the command was judged, some in each call.

use crate::core::Core;
use crate::ids::CustomerId;
use crate::mutant::{mutated, Mutant};
use alloc::collections::VecDeque;
use tidegate_types::{Answer, Asker, ClosedBy, Command, Now};

/// One flush of an application under way.
#[derive(Debug)]
pub(super) struct Flushing {
    asker: Asker,
    command: Command,
    /// Customers whose windows are still to be closed, and the numbers of these windows.
    left: VecDeque<(CustomerId, u64)>,
    /// Number of items in the closed windows.
    count: u64,
}

impl Flushing {
    pub(super) fn new(core: &Core, application: &str, command: Command, asker: Asker) -> Self {
        let queue = core.live.queues.find(application);
        let active = queue.and_then(|queue| core.live.queues[queue].active());
        let open = active.map(|active| active.windows().iter().copied()).into_iter().flatten();
        let number = |id: CustomerId| Some((id, core.live.customers().window(id)?.place().window));
        let mut left: VecDeque<_> = open.filter_map(number).collect();
        if mutated(Mutant::FlushLeavesOne) {
            left.pop_back();
        }
        Flushing { asker, command, left, count: 0 }
    }

    /// Closes windows within the limits `windows` and `items`; the last one may exceed `items`.
    pub(super) fn advance(&mut self, core: &mut Core, (windows, items): (&mut usize, &mut usize), now: Now) {
        while *windows > 0 && *items > 0 {
            let Some((id, number)) = self.left.pop_front() else { return };
            *windows -= 1;
            let window = core.live.customers().window(id).filter(|window| window.place().window == number);
            // A window that has closed since is skipped.
            let Some(members) = window.map(|window| window.count()) else { continue };
            *items = items.saturating_sub(members as usize);
            self.count += u64::from(members);
            core.live.close_window(id, ClosedBy::Flush, now);
        }
    }

    pub(super) fn is_through(&self) -> bool {
        self.left.is_empty()
    }

    pub(super) fn done(self) -> super::Done {
        (self.asker, self.command, Answer::Flushed(self.count))
    }
}
