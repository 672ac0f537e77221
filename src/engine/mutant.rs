//! Wrong decisions, one at a time, to show that the simulator finds them. Outside of tests there are none,
//! and nothing of this is left in the program.

/// Declares the wrong decisions, and the list of all of them.
macro_rules! mutants {
    ($($(#[$what:meta])* $name:ident,)*) => {
        /// A wrong decision.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Mutant {
            $($(#[$what])* $name,)*
        }

        impl Mutant {
            /// All of them.
            #[cfg(test)]
            pub(in crate::engine) const ALL: &[Mutant] = &[$(Mutant::$name,)*];
        }
    };
}

mutants! {
    /// A request is acked when its item is written, not when the commit is durable.
    AckBeforeCommit,
    /// What is safe is acked in order alone: a single unsafe delivery holds back all behind it for ever.
    AckWaitsForPrefix,
    /// A dropped duplicate is acked before the item that it was dropped for is durable.
    DuplicateAckedTooSoon,
    /// An answer does not wait for its commit.
    AnswerTooSoon,
    /// Arrival numbers begin where the last commit's items ended, not behind the lease.
    LeaseForgotten,
    /// A lease of arrival numbers that is used up is not renewed: nothing is taken in any more.
    LeaseNotRenewed,
    /// A batch whose outcome is unknown counts as delivered.
    UnknownIsDelivered,
    /// A returned batch counts as delivered.
    ReturnedIsDelivered,
    /// A nacked batch counts as delivered.
    NackedIsDelivered,
    /// A batch whose confirm is overdue counts as delivered.
    OverdueIsDelivered,
    /// An exchange that is missing counts as a failed attempt.
    UnavailableCounts,
    /// An overdue confirm counts as a failed attempt.
    OverdueCounts,
    /// A returned batch does not count as an attempt of its items.
    AttemptForgotten,
    /// `retry.attempts` is never looked at.
    AttemptsIgnored,
    /// An item is given up one attempt too soon.
    AttemptsOneTooFew,
    /// After a load `near_until` stands one place too far: one row more than was read counts as being in
    /// memory.
    NearUntilOffByOne,
    /// What a load brings is believed, though it ended or moved meanwhile.
    LoadFromThePast,
    /// A row that went to the store alone while its queue was being read is not read again: `near_until`
    /// passes it.
    BehindForgotten,
    /// `unindexed_until` of a queue is not raised when an item without customer row is put.
    UnindexedForgotten,
    /// An item leaves memory without its customer row.
    IndexForgotten,
    /// The store is not told of a window that closed early.
    ClosingForgotten,
    /// A row that went to the store is believed to be there though it has gone since.
    RowStaysKnown,
    /// Whatever waits for an outcome may.
    AllMayWait,
    /// A batch that is never confirmed keeps its channel though others wait for one.
    HungKeepChannels,
    /// Items of an own time leave some milliseconds before it.
    Early,
    /// When the clock was set back, what had become due still leaves.
    EarlyAfterStepBack,
    /// Expiry is not looked at when a batch is formed.
    ExpiryIgnored,
    /// An item is judged expired a second before its expiry.
    ExpiredTooSoon,
    /// A window does not hurry for the most urgent expiry in it.
    WindowIgnoresExpiry,
    /// `quiet` is never looked at.
    QuietIgnored,
    /// A window is not closed by `max_items`.
    CountIgnored,
    /// A window is not closed by `max_bytes`.
    BytesIgnored,
    /// Batches are not split by `max_items` and `max_bytes`.
    BatchUnbounded,
    /// `coalesce` rounds past an expiry.
    CoalesceIgnoresExpiry,
    /// `flush` answers and closes nothing.
    FlushDoesNothing,
    /// `flush` answers one item more than the window held.
    FlushCountsOneMore,
    /// A customer's due items are not brought into order of (due, arrival).
    OrderForgotten,
    /// Items in memory are dispatched though older ones of their queue are far.
    FarOvertaken,
    /// After a failed attempt new items go before those that failed.
    NewOvertakesFailed,
    /// While a batch is a suspect, later items of its customer go on.
    SuspectsOvertaken,
    /// A paused application is published.
    PausedIsPublished,
    /// A pause is not written: it does not outlive the process.
    PauseForgotten,
    /// After a failed probe the next batch goes at once, without a back-off.
    ParkedIsDrained,
    /// A back-off that has ended is not noticed: no further probe goes.
    ParkedForEver,
    /// Rows of parked queues do not leave memory.
    ParkedStaysInMemory,
    /// While a batch sent alone waits for its confirm, nothing else is sent alone.
    HungBatchHindersAll,
    /// Rule keep does what replace does.
    KeepReplaces,
    /// Rules replace, earliest, latest and reject do what keep does.
    RulesDoKeep,
    /// Rule earliest keeps the later one.
    EarliestIsLatest,
    /// Any redelivered request whose id has ended is dropped, whatever its fingerprint.
    MarkAloneDrops,
    /// A redelivered request equal to the ended one is accepted as new.
    FingerprintForgotten,
    /// A request under rule replace takes the place of an item in flight, without awaiting the outcome.
    InFlightIsReplaced,
    /// A request that names the batch in which its item was sent is a duplicate like any other.
    TryIgnored,
    /// Whatever batch a request names, it is another try.
    AnyBatchIsATry,
    /// Another try is judged while the item that it is one of is in flight.
    TryNotAwaited,
    /// How items ended is not remembered.
    TailForgotten,
    /// An end is forgotten after half of `dedupe_tail`.
    TailHalf,
    /// What the store said of an identity is believed though it changed since it was asked.
    AnswersFromThePast,
    /// Every look-up of an item that waits answers `unknown`.
    LookupUnknown,
    /// A count of a customer leaves its far items out.
    CountsOneTooFew,
    /// A page of a list leaves out its first row that came from the store.
    ListSkips,
    /// A cancel of an item answers and takes nothing back.
    CancelAnswersOnly,
    /// A cancel of a customer counts its far items and takes none back.
    CancelAllAnswersOnly,
    /// A cancel of a customer, or of what is parked, takes what arrived behind it as well.
    CancelAllTakesLater,
    /// A cancel of a customer swallows items that died meanwhile.
    CancelAllTakesDead,
    /// `parked drop` takes items that are not due, of an application that is not parked.
    DropParkedTakesAll,
    /// What is due of a customer that is held back leaves all the same.
    HeldIsPublished,
    /// That a customer is held back does not outlive the process.
    HeldForgotten,
    /// What was passed over of a customer that is held back is not read once it goes on.
    PassedOverForgotten,
    /// A rate holds nothing back.
    RateIgnored,
    /// A batch counts as one item against its application's rate.
    BatchCountsOnce,
    /// Batches that have waited for payloads leave together, whatever the rate says.
    FetchedOutrunsRate,
    /// What a rate holds back is not looked at again.
    HeldForEver,
    /// A rate that a command gave does not outlive the process.
    RateForgotten,
    /// A customer's rate bounds nothing.
    CustomerRateIgnored,
    /// What comes behind something that was passed over leaves before it.
    PassedOvertaken,
    /// What is passed over while others of its customer are read back is taken for read.
    ReadBackForgets,
    /// Memory holds what it likes of a customer that waits for its rate.
    FillIgnored,
    /// A cancel of a selection takes all that memory has of its application.
    SelectedInMemoryAll,
    /// A cancel or count of a selection takes all that the store alone has.
    SelectedFarAll,
    /// An application is full at a third of `max_waiting`.
    FullTooSoon,
    /// An application takes one item more than `max_waiting`.
    FullTooLate,
    /// Policy drop-oldest gives up the newcomer.
    DropOldestDropsNewest,
    /// Policy drop-oldest gives up two items for one newcomer.
    DropOldestKillsTwo,
    /// Policy flush-early closes no window.
    FlushEarlyFlushesNothing,
    /// `limits.applications` is never looked at.
    ApplicationsUnlimited,
    /// `limits.customers` is never looked at.
    WindowsUnlimited,
    /// Rows come into memory whether there is room or not.
    MembersCrowdIn,
    /// Dead letters stay in memory whether there is room or not.
    DeadCrowdIn,
    /// Payloads stay in memory whatever the budget.
    ContentsStay,
    /// An item that ended stays in its queue's count.
    CountForgotten,
    /// An item is remembered as dead before the commit that makes its dead letter safe.
    DeadTooSoon,
    /// A dead item is deleted instead of being moved to the dead letters.
    DeadForgotten,
    /// `coalesce` rounds own times down.
    CoalesceRoundsDown,
    /// An application with more to send goes again before the others.
    BacklogGoesFirst,
    /// Each back-off is as long as the first.
    BackoffNotDoubled,
    /// A confirm of what was out before a failure ends the back-off.
    StragglerProves,
    /// After a long rest batches go as if the queue had been confirmed just now.
    ProofForEver,
    /// The row of a long window does not tell of its most urgent expiry.
    RowWithoutExpiry,
    /// A replacement opens a window of full length.
    WindowNotInherited,
    /// Windows that begin close to each other have the same number.
    WindowsShareANumber,
    /// A batch that waited for payloads goes before what failed meanwhile.
    FetchedOvertakesFailed,
    /// A request that was confirmed before it was written is acked before its id is remembered.
    AckBeforeRemembered,
    /// A count of a customer tells the last due as the next.
    NextDueIsTheLast,
    /// What waited for an outcome or a scan goes before whatever is in line, whenever it came.
    ReturnedAhead,
    /// A suspect of which nothing is left holds its queue up.
    DroppedSuspectCounts,
    /// A cancel of a customer takes back what may have been delivered, where it is in the store alone.
    CancelAllTakesUnknown,
    /// Suspects of a paused application are published.
    PausedSuspectsGo,
    /// A suspect whose members were all taken back holds its queue up.
    EmptiedSuspectCounts,
    /// What is remembered of an item that has ended tells of no attempts.
    EndedAttemptsWrong,
    /// After a step of the wall clock windows are not looked at anew.
    StepUnnoticed,
    /// After a restart a window may be longer than `window`.
    ReopenedUnbounded,
    /// What waited for a row of the store waits on when that has been taken back.
    StalledForEver,
    /// What is to be probed is read behind what is due later.
    ProbesBehindLater,
    /// What has been read of a window leaves without what has not.
    WindowInParts,
    /// What could leave makes room for what the first of its customer waits for.
    LeavingMakesRoom,
    /// To a queue that confirms nothing any more as much goes as to a healthy one.
    SilenceUnheard,
    /// Requests are taken in though the disk is full.
    StoreFullIgnored,
    /// A command that has waited for an outcome waits for the next one as long again.
    PatienceAnew,
    /// The id of a request for which there was no room is not remembered.
    RefusedIdForgotten,
    /// A later request is held against the waiting one as if it opened a window.
    NewDueIgnoresWindow,
    /// What dies after it was accepted is not counted by its reason.
    DeadUncounted,
    /// A request is dropped for an item that the broker delivers again.
    OrphanKeeps,
    /// The memory store takes what waits for longer than the broker does.
    HoldMaxIgnored,
    /// A pause is answered before it is written.
    PauseUnhurried,
    /// What comes behind a cancel of a customer takes back what may have been delivered.
    ClaimTakesUnknown,
    /// What comes into memory during a cancel of its customer is not its own.
    RestoredUnclaimed,
    /// What comes into memory during a count of its customer is not counted.
    RestoredUncounted,
    /// A cancel of a customer leaves what was in flight and failed.
    FailedIsNotTakenBack,
    /// A cancel of a customer does not wait for the outcome of what is in flight.
    ScanIsImpatient,
    /// A page of a list does not tell of the next.
    ListEndsTooSoon,
    /// What waits for a cancel of its customer stays when the broker has it back.
    BehindScanKept,
    /// Reads under way do not learn of what ended in the store alone.
    FarGoneUntold,
    /// Questions under way do not learn of what has left memory.
    EvictUntold,
    /// What has become unknown is asked for in the middle of its message.
    StaleSplitsMessage,
    /// One that takes another's place is written later than that is deleted.
    HeirIsDeferred,
    /// A member of a window that closed early joins an open one.
    ClosedRejoins,
    /// What was read before its window closed is due when that was to end.
    ClosedSinceUnknown,
    /// With a read of a queue also that is forgotten which changed since an older scan began.
    ScansForgotten,
    /// What changed while a scan goes on counts as changed for reads that began since.
    CurrentForNobody,
    /// What a scan has brought that was given up is believed.
    GivenUpIsBelieved,
    /// A flush of an application leaves one of its windows open.
    FlushLeavesOne,
    /// A pause is ended by a command alone.
    PauseHasNoEnd,
    /// How often a consumer has sent an item back is forgotten with a restart.
    RetryNotRestored,
    /// What a consumer has sent back leaves together with others.
    RetryInCompany,
    /// A try that has been sent is taken once more.
    SameTryTwice,
    /// Whoever leaves takes others' answers along.
    LeavesWithAll,
    /// The row of a long window does not tell of members that have left.
    RowNotRenewed,
    /// A member that comes back into memory is counted once more.
    RejoinCountsTwice,
    /// The oldest bucket of ended ids is not asked.
    OldestBucketUnasked,
    /// After a restart the bucket filled first is the present one.
    OldestIsCurrent,
    /// An id for which a filter has no room is not found.
    FullFilterForgets,
    /// What was never published counts as a publish of its batch.
    UnsentCounts,
    /// A batch that is formed anew of what has failed tells of a first attempt.
    AttemptAnew,
    /// Suspects of a queue that is given up are not recalled.
    SuspectsStay,
    /// A confirm does not end the count of failures.
    FailuresKept,
    /// The bytes in flight are never looked at.
    BytesIgnoredInFlight,
    /// Whoever waits for an attempt is not told that it is to be made again.
    EndOfAttemptUntold,
    /// What waits for an attempt because a cancel does goes on when that has lost its patience.
    EndOfPatienceUntold,
    /// A start whose clock is behind brings nothing back.
    AheadForgotten,
    /// Once one command has waited long enough for an outcome, all that wait for the same one are
    /// answered.
    PatienceEndsForAll,
    /// A request goes on though an earlier one with its id waits behind a cancel of that one's customer.
    IdOvertakesItsFirst,
    /// Of a message with more entries than are asked for ahead of their turn the last are never asked
    /// for.
    LongMessageUnasked,
    /// What is due and waits because its application is paused is told as parked.
    PausedToldParked,
    /// Every item in the store alone of a parked application is told as parked, due or not.
    FarToldParked,
    /// A page of a list that had more than its limit goes on where its reading ended, not behind its
    /// last.
    CursorSkipsAhead,
    /// A cancel of a customer does not count what others have met or loaded before it came there.
    ClaimedUncounted,
    /// An item may be given the very moment of its expiry as its new time.
    RescheduledToItsExpiry,
    /// An item that is given a time of its own still tells what closed the window that it was in.
    RescheduledKeepsItsCause,
    /// That an item may have been delivered is forgotten when it comes back into memory.
    DoubtNotRestored,
    /// An item with a time of its own comes back from the store as one without.
    OwnTimeNotRestored,
    /// The bucket that a former life was filling gets a filter, which knows of this life's ends alone.
    FormerEndsUnasked,
    /// While dead letters wait, one application fewer may have something waiting.
    LettersCountAsApplication,
    /// Arrival numbers of a new lease are given out as soon as its commit has been handed over.
    LeaseUsedTooSoon,
    /// A window with an urgent expiry in it waits for that, though it has been quiet for long enough.
    ExpirySilencesQuiet,
    /// `quiet` counts from the first item of a window, whatever comes behind it.
    QuietFromTheFirst,
    /// A window whose last member is taken back while it is in the store alone stays open.
    EmptiedFarWindowStays,
    /// The row of a long window outlives the window.
    WindowRowStays,
    /// A member of a former life's window joins whatever window of its customer is open.
    RejoinsAnother,
    /// When an item leaves memory under an earlier key, its queue's row does not tell of it.
    LowNotTold,
    /// A batch whose payloads are there goes before one of its queue that waits for payloads.
    FetchingOvertaken,
    /// What expires, or becomes early by a step of the clock, while its payload is read is sent all the
    /// same.
    FetchedUnscreened,
    /// A queue whose hung probe ends without a confirm and without a failure stays hindered.
    HindranceStays,
    /// A new egress connection counts as blocked where the one before was.
    BlockedForEver,
    /// One application may have all slots.
    OneTakesAllSlots,
    /// A read that turned out to be of no use keeps its place in memory.
    VoidReadKeepsItsPlace,
    /// What is in batches counts against the rows that others may bring in beyond the bound of memory.
    BatchesCrowdOut,
    /// What is to be given up, in memory and the first of its queue, has to be read once more.
    FirstIsNotReached,
    /// Queues are read in the order in which they were looked at, and not those first that are due.
    LaterIsReadFirst,
    /// What is to be sent again goes behind those that go alone, though it went before them.
    SuspectsOvertakeRepeats,
    /// Of what goes alone though its queue is parked, only what lacks payloads goes back to it.
    ParkedSuspectsGoBack,
    /// The second half of a refused batch goes behind what was formed later.
    HalfGoesLast,
    /// What is refused for another on its channel cannot have arrived.
    SharedRefusalIsKnown,
    /// What is due and has been read leaves before what was due sooner and is still in the schedule.
    ScheduledOvertaken,
}

#[cfg(not(test))]
#[inline(always)]
pub(super) const fn mutated(_: Mutant) -> bool {
    false
}

#[cfg(test)]
pub(super) use tests::{mutate, mutated};

#[cfg(test)]
mod tests {
    use super::Mutant;
    use std::cell::Cell;

    thread_local! {
        static MUTANT: Cell<Option<Mutant>> = const { Cell::new(None) };
    }

    /// Puts one in for this thread, or takes it out.
    pub(in crate::engine) fn mutate(mutant: Option<Mutant>) {
        MUTANT.set(mutant);
    }

    pub(in crate::engine) fn mutated(mutant: Mutant) -> bool {
        MUTANT.get() == Some(mutant)
    }
}
