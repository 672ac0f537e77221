//! Planted wrong decisions, enabled one at a time, to show that the simulator finds them. They exist in tests
//! only; the program contains none.
//!
//! Deliberately absent: wrong rules of one part alone, a function or a structure. Its own tests exclude them
//! by a table of inputs and exact results, and name them after `Excluded:`.

/// Declares the wrong decisions and the list of them.
macro_rules! mutants {
    ($($(#[$what:meta])* $name:ident breaks $($promise:literal)+,)*) => {
        /// A planted wrong decision.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Mutant {
            $($(#[$what])* $name,)*
        }

        impl Mutant {
            /// All of them.
            #[cfg(test)]
            pub(crate) const ALL: &[Mutant] = &[$(Mutant::$name,)*];
        }
    };
}

mutants! {
    /// A request is acked when its item is written, not when the commit is durable.
    AckBeforeCommit breaks 1,
    /// A message of which parts went to other shards is acked before these have arrived there.
    ForwardUnawaited breaks 1,
    /// Safe deliveries are acked in order only: a single unsafe delivery holds back all later ones
    /// indefinitely.
    AckWaitsForPrefix breaks 13,
    /// A dropped duplicate is acked before the item that it was dropped for is durable.
    DuplicateAckedTooSoon breaks 1,
    /// An answer leaves before its commit is durable.
    AnswerTooSoon breaks 15,
    /// Arrival numbers begin after those of the last commit's items, not after the lease.
    LeaseForgotten breaks 9,
    /// A batch whose outcome is unknown counts as delivered.
    UnknownIsDelivered breaks 2,
    /// A returned batch counts as delivered.
    ReturnedIsDelivered breaks 2,
    /// A nacked batch counts as delivered.
    NackedIsDelivered breaks 2,
    /// A batch whose confirm is overdue counts as delivered.
    OverdueIsDelivered breaks 2,
    /// A publish to a missing exchange counts as a failed attempt.
    UnavailableCounts breaks 6,
    /// An overdue confirm counts as a failed attempt.
    OverdueCounts breaks 6,
    /// A returned batch does not count as an attempt of its items.
    AttemptForgotten breaks 6,
    /// After a load `near_until` is one place too far: one row that was not read counts as being in memory.
    NearUntilOffByOne breaks 3,
    /// Rows of a load are used although their items ended or moved during the read.
    LoadFromThePast breaks 3,
    /// An item that left memory while its queue was being read is not read again: `near_until` passes it.
    BehindForgotten breaks 3,
    /// `unindexed_until` of a queue is not raised when an item without customer row is put.
    UnindexedForgotten breaks 15,
    /// An item leaves memory without its customer row.
    IndexForgotten breaks 15,
    /// The early close of a window is not written to the store.
    ClosingForgotten breaks 10,
    /// Items with an own time leave some milliseconds early.
    Early breaks 4,
    /// After a step back of the clock, items that had become due still leave.
    EarlyAfterStepBack breaks 4,
    /// Expiry is ignored when a batch is formed.
    ExpiryIgnored breaks 4,
    /// An item is judged expired a second before its expiry.
    ExpiredTooSoon breaks 4,
    /// Batches are not split by `max_items` and `max_bytes`.
    BatchUnbounded breaks 10,
    /// `flush` answers and closes nothing.
    FlushDoesNothing breaks 15,
    /// `flush` reports one item more than the window contained.
    FlushCountsOneMore breaks 15,
    /// Items in memory are sent although older ones of their queue are far.
    FarOvertaken breaks 5,
    /// After a failed attempt new items go before those that failed.
    NewOvertakesFailed breaks 5,
    /// While a batch is a suspect, later items of its customer are sent.
    SuspectsOvertaken breaks 5,
    /// Items of a paused application are published.
    PausedIsPublished breaks 15,
    /// A pause is not written, and ends with the process.
    PauseForgotten breaks 15,
    /// The end of a back-off is not noticed: no further probe is sent.
    ParkedForEver breaks 6,
    /// Items of parked queues are not evicted from memory.
    ParkedStaysInMemory breaks 6,
    /// Rules `replace`, `earliest`, `latest` and `reject` act as `keep`.
    RulesDoKeep breaks 14,
    /// A request with rule `replace` replaces an item in flight without waiting for the outcome.
    InFlightIsReplaced breaks 14,
    /// The store's answer about an identity is used although the identity changed since the question.
    AnswersFromThePast breaks 14,
    /// Every look-up of a waiting item answers `unknown`.
    LookupUnknown breaks 15,
    /// A count of a customer omits its far items.
    CountsOneTooFew breaks 15,
    /// A page of a list omits its first row from the store.
    ListSkips breaks 15,
    /// A cancel of an item answers and cancels nothing.
    CancelAnswersOnly breaks 15,
    /// A cancel of a customer counts its far items and cancels none.
    CancelAllAnswersOnly breaks 15,
    /// A cancel of a customer, or of parked items, also cancels items that arrived after it.
    CancelAllTakesLater breaks 15,
    /// A cancel of a customer removes items that were dead-lettered since.
    CancelAllTakesDead breaks 15,
    /// `parked drop` removes items that are not due, of an application that is not parked.
    DropParkedTakesAll breaks 15,
    /// Due items of a paused customer leave.
    HeldIsPublished breaks 15,
    /// The pause of a customer ends with the process.
    HeldForgotten breaks 15,
    /// Passed-over items of a paused customer are not read after its pause.
    PassedOverForgotten breaks 3,
    /// Batches held back by a rate are never checked again.
    HeldForEver breaks 3,
    /// A rate set by a command ends with the process.
    RateForgotten breaks 15,
    /// What a customer owes its rate is forgotten with its last item in memory.
    DebtForgotten breaks 15,
    /// Items that come after a passed-over one leave before it.
    PassedOvertaken breaks 5,
    /// The number of items in memory of a customer that waits for its rate is not bounded.
    FillIgnored breaks 7,
    /// A cancel of a selection takes all items in memory of its application.
    SelectedInMemoryAll breaks 15,
    /// A cancel or count of a selection takes all far items of its application.
    SelectedFarAll breaks 15,
    /// Policy `drop-oldest` dead-letters two items for one new item.
    DropOldestKillsTwo breaks 8,
    /// Policy `flush-early` closes no window.
    FlushEarlyFlushesNothing breaks 12,
    /// `limits.customers` is ignored.
    WindowsUnlimited breaks 7,
    /// Items are loaded into memory without regard to its bound.
    MembersCrowdIn breaks 7,
    /// Dead letters stay in memory without regard to its bound.
    DeadCrowdIn breaks 7,
    /// Payloads stay in memory without regard to the budget.
    ContentsStay breaks 7,
    /// An item that ended stays in its queue's count.
    CountForgotten breaks 8,
    /// An item is remembered as dead before the commit that makes its dead letter safe.
    DeadTooSoon breaks 14,
    /// A dead item is deleted instead of moved to the dead-letter queue.
    DeadForgotten breaks 2,
    /// An application with more to send is served again before the others.
    BacklogGoesFirst breaks 6,
    /// A replacement opens a window of full length.
    WindowNotInherited breaks 14,
    /// Windows that open in succession have the same number.
    WindowsShareANumber breaks 10,
    /// A batch that waited for payloads is sent before batches that failed in the meantime.
    FetchedOvertakesFailed breaks 5,
    /// A request that was confirmed before it was written is acked before its end is remembered.
    AckBeforeRemembered breaks 1,
    /// A count of a customer reports the last due as the next.
    NextDueIsTheLast breaks 15,
    /// Arrivals that waited for an outcome or a scan are judged before all others, whatever their order.
    ReturnedAhead breaks 5 14,
    /// A suspect without members that may be sent still blocks its queue.
    DroppedSuspectCounts breaks 6,
    /// A cancel of a customer cancels far items that may have been delivered.
    CancelAllTakesUnknown breaks 15,
    /// Suspects of a paused application are published.
    PausedSuspectsGo breaks 15,
    /// A suspect whose members were all cancelled still blocks its queue.
    EmptiedSuspectCounts breaks 6,
    /// The remembered end of an item has no attempts.
    EndedAttemptsWrong breaks 15,
    /// After a step of the wall clock windows are not checked again.
    StepUnnoticed breaks 10,
    /// Items that waited for a row of the store still wait after that item was cancelled.
    StalledForEver breaks 6,
    /// Rows for a probe are read after rows that are due later.
    ProbesBehindLater breaks 6,
    /// The loaded members of a window leave without those that are still in the store.
    WindowInParts breaks 10,
    /// Items that could leave are evicted for the rows that their customer's first item waits for.
    LeavingMakesRoom breaks 3 7,
    /// Requests are taken in although the disk is full.
    StoreFullIgnored breaks 7,
    /// A command that has waited for an outcome waits for the next one for the full time again.
    PatienceAnew breaks 15,
    /// The id of a request for which there was no room is not remembered.
    RefusedIdForgotten breaks 14,
    /// The due of a new request is compared as if it opened a window, though one is open.
    NewDueIgnoresWindow breaks 14,
    /// An item that is dead-lettered after it was accepted is not counted by its reason.
    DeadUncounted breaks 8,
    /// A pause does not hurry its commit.
    PauseUnhurried breaks 15,
    /// A request or command after a cancel of a customer cancels an item that may have been delivered.
    ClaimTakesUnknown breaks 15,
    /// Items loaded during a cancel of their customer are not cancelled by it.
    RestoredUnclaimed breaks 15,
    /// Items loaded during a count of their customer are not counted.
    RestoredUncounted breaks 15,
    /// A cancel of a customer omits items that were in flight and failed.
    FailedIsNotTakenBack breaks 15,
    /// A cancel of a customer does not wait for the outcomes of items in flight.
    ScanIsImpatient breaks 15,
    /// A page of a list does not name the next one.
    ListEndsTooSoon breaks 15,
    /// Requests that wait for a cancel of their customer stay although the broker redelivers them.
    BehindScanKept breaks 3,
    /// Reads under way are not informed of far items that ended.
    FarGoneUntold breaks 3 15,
    /// Look-ups under way are not informed of items that left memory.
    EvictUntold breaks 14,
    /// A stale answer is asked for again in the middle of its message.
    StaleSplitsMessage breaks 14,
    /// A replacement is written later than the replaced item is deleted.
    HeirIsDeferred breaks 14,
    /// A member of a window that closed early joins an open one.
    ClosedRejoins breaks 10,
    /// A flush of an application leaves one of its windows open.
    FlushLeavesOne breaks 15,
    /// A pause ends by a command only.
    PauseHasNoEnd breaks 15,
    /// An item that its consumer has sent back leaves in a batch with others.
    RetryInCompany breaks 14,
    /// A caller that leaves ends the commands of other callers.
    LeavesWithAll breaks 15,
    /// The row of a long window is not updated when members leave.
    RowNotRenewed breaks 10,
    /// A failed hand-over counts as a publish of its batch.
    UnsentCounts breaks 6,
    /// A batch formed anew of failed items reports a first attempt.
    AttemptAnew breaks 6,
    /// Suspects of a parked queue are not recalled.
    SuspectsStay breaks 6,
    /// Requests and commands that wait for an attempt are not informed that it will be repeated.
    EndOfAttemptUntold breaks 14 15,
    /// Requests that wait for an attempt because a cancel does still wait after the cancel has timed out.
    EndOfPatienceUntold breaks 15,
    /// A start with a clock that is behind does not restore windows ahead of it.
    AheadForgotten breaks 10,
    /// When the wait of one command for an outcome ends, all commands that wait for it are answered.
    PatienceEndsForAll breaks 15,
    /// A request is judged although an earlier one with its id waits for a cancel of that one's customer.
    IdOvertakesItsFirst breaks 14,
    /// The last entries of a message with more entries than are asked for ahead are never asked for.
    LongMessageUnasked breaks 3,
    /// Due items of a paused application are reported as parked.
    PausedToldParked breaks 15,
    /// All far items of a parked application are reported as parked, due or not.
    FarToldParked breaks 15,
    /// After a page with more rows than its limit, the next page begins where the reading ended, not after
    /// the last row.
    CursorSkipsAhead breaks 15,
    /// A cancel of a customer does not count items that were cancelled for it before its scan reached them.
    ClaimedUncounted breaks 15,
    /// An item may be rescheduled to the moment of its expiry.
    RescheduledToItsExpiry breaks 15,
    /// The row of a long window outlives the window.
    WindowRowStays breaks 10,
    /// A member of a former life's window joins any open window of its customer.
    RejoinsAnother breaks 10,
    /// When an item leaves memory under an earlier key, its queue's row is not updated.
    LowNotTold breaks 3,
    /// A batch with complete payloads is sent before an earlier one of its queue that waits for payloads.
    FetchingOvertaken breaks 5,
    /// An item that expires, or becomes early by a step of the clock, while its payload is read is sent.
    FetchedUnscreened breaks 4,
    /// A queue stays marked as slow after its hung probe has ended without a confirm or a failure.
    HindranceStays breaks 6,
    /// A read whose rows are not used keeps its reserved memory.
    VoidReadKeepsItsPlace breaks 7,
    /// Items in batches count against the rows that others may load beyond the bound of memory.
    BatchesCrowdOut breaks 6 7,
    /// The first item of a queue, in memory and to be dead-lettered, is read again.
    FirstIsNotReached breaks 7,
    /// Queues are read in the order of checking, not in the order of due.
    LaterIsReadFirst breaks 7,
    /// A repeat is sent after the suspects, although it was sent before them.
    SuspectsOvertakeRepeats breaks 5,
    /// A suspect of a parked queue that lacks payloads returns to the queue, while others are sent.
    ParkedSuspectsGoBack breaks 5,
    /// The second half of a refused batch is sent after batches that were formed later.
    HalfGoesLast breaks 5,
    /// A batch refused because of another on its channel counts as not delivered.
    SharedRefusalIsKnown breaks 15,
    /// A request is acked while a command before it may come again and take it.
    RepeatTakesAcked breaks 3,
    /// Loaded due items leave before items in the schedule that were due sooner.
    ScheduledOvertaken breaks 5,
}

#[cfg(not(test))]
#[inline(always)]
pub(crate) const fn mutated(_: Mutant) -> bool {
    false
}

#[cfg(test)]
pub(crate) use tests::{mutate, mutated};

#[cfg(test)]
mod tests {
    use super::Mutant;
    use std::cell::Cell;

    thread_local! {
        static MUTANT: Cell<Option<Mutant>> = const { Cell::new(None) };
    }

    /// Enables one for this thread, or none.
    pub(crate) fn mutate(mutant: Option<Mutant>) {
        MUTANT.set(mutant);
    }

    pub(crate) fn mutated(mutant: Mutant) -> bool {
        MUTANT.get() == Some(mutant)
    }
}
