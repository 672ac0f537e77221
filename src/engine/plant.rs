//! Bugs put in on purpose, one at a time, to show that the simulator finds them. Outside of tests there are none, and
//! nothing of this is left in the program.

/// A bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plant {
    /// A request is acked when its item is written, not when the commit is durable.
    AckBeforeCommit,
    /// A batch whose outcome is unknown counts as delivered.
    UnknownIsDelivered,
    /// A returned batch counts as delivered.
    ReturnedIsDelivered,
    /// After a load the cursor stands one place too far.
    CursorOffByOne,
    /// What a load brings is believed, though it was finished meanwhile.
    LoadFromThePast,
    /// The first mark in the time index is not kept for what arrives below it.
    BareMarkForgotten,
    /// Items leave some milliseconds before their time.
    Early,
    /// Expiry is not looked at when a batch is formed.
    ExpiryIgnored,
    /// A customer's due items are not brought back into order.
    OrderForgotten,
    /// What is parked while its lane is being read is not read again.
    LaneForgetsBehind,
    /// A duplicate is acked before the item that it was dropped for is durable.
    DuplicateAckedTooSoon,
    /// How items ended is not remembered.
    TailForgotten,
    /// An item leaves memory without a row by which its identity is found.
    IdentityNotIndexed,
    /// An answer does not wait for its commit.
    AnswerTooSoon,
    /// A dead item is remembered as dead before its letter is safe.
    DeadTooSoon,
    /// An item that ended stays in its application's number.
    CountForgotten,
    /// Members of closed windows come into memory whether there is room or not.
    MembersCrowdIn,
    /// Dead letters stay in memory whether there is room or not.
    DeadCrowdIn,
}

#[cfg(not(test))]
#[inline(always)]
pub(super) fn planted(_: Plant) -> bool {
    false
}

#[cfg(test)]
pub(super) use tests::{plant, planted};

#[cfg(test)]
mod tests {
    use super::Plant;
    use std::cell::Cell;

    thread_local! {
        static PLANTED: Cell<Option<Plant>> = const { Cell::new(None) };
    }

    impl Plant {
        /// All of them.
        pub(in crate::engine) const ALL: [Plant; 18] = [
            Plant::AckBeforeCommit,
            Plant::UnknownIsDelivered,
            Plant::ReturnedIsDelivered,
            Plant::CursorOffByOne,
            Plant::LoadFromThePast,
            Plant::BareMarkForgotten,
            Plant::Early,
            Plant::ExpiryIgnored,
            Plant::OrderForgotten,
            Plant::LaneForgetsBehind,
            Plant::DuplicateAckedTooSoon,
            Plant::TailForgotten,
            Plant::IdentityNotIndexed,
            Plant::AnswerTooSoon,
            Plant::DeadTooSoon,
            Plant::CountForgotten,
            Plant::MembersCrowdIn,
            Plant::DeadCrowdIn,
        ];
    }

    /// Puts one in for this thread, or takes it out.
    pub(in crate::engine) fn plant(bug: Option<Plant>) {
        PLANTED.set(bug);
    }

    pub(in crate::engine) fn planted(bug: Plant) -> bool {
        PLANTED.get() == Some(bug)
    }
}
