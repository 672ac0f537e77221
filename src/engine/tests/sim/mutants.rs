//! Wrong behaviour planted in the real engine: the worlds must find each mutant.

use super::*;
use crate::mutant::{mutate, Mutant};
use std::cell::Cell;
use std::io::Write;
use std::panic::UnwindSafe;
use std::sync::atomic::AtomicUsize;
use std::sync::Once;

/// Upper bound on the worlds that are tried against a mutant, from the first on. Each of them holds without a mutant:
/// they are among those of each test run, as are the few later ones that alone find a mutant.
const WORLDS: u64 = 400;

/// Worlds that found a mutant at the last search, where none of the first three did. They are tried first, only to save
/// time: if a world no longer finds its mutant after a change of the engine, the test searches for another and reports
/// it.
const FOUND_BY: &str = "\
    AnswerTooSoon 6, LeaseForgotten 21, Early 33, EarlyAfterStepBack 11, FlushDoesNothing 21, \
    FlushCountsOneMore 14, NewOvertakesFailed 1, PausedIsPublished 217, ParkedStaysInMemory 11, \
    AnswersFromThePast 6, CancelAllTakesLater 7, CancelAllTakesDead 307, DropParkedTakesAll 7, \
    FlushEarlyFlushesNothing 100, WindowsUnlimited 4, MembersCrowdIn 43, DeadCrowdIn 1149, \
    ContentsStay 149, DeadTooSoon 50, BacklogGoesFirst 31, FetchedOvertakesFailed 13, \
    DroppedSuspectCounts 23, CancelAllTakesUnknown 11, PausedSuspectsGo 23, \
    EmptiedSuspectCounts 77, StepUnnoticed 11, StalledForEver 251, PatienceAnew 11, \
    RefusedIdForgotten 100, NewDueIgnoresWindow 139, DeadUncounted 4, PauseUnhurried 90, \
    ClaimTakesUnknown 11, FailedIsNotTakenBack 63, ScanIsImpatient 124, BehindScanKept 127, \
    EvictUntold 49, HeirIsDeferred 9, ClosedRejoins 670, SuspectsStay 11, \
    EndOfAttemptUntold 143, EndOfPatienceUntold 63, AheadForgotten 251, AckWaitsForPrefix 3, \
    DuplicateAckedTooSoon 27, PatienceEndsForAll 58, RescheduledToItsExpiry 15, \
    IdOvertakesItsFirst 893, LowNotTold 23, FetchingOvertaken 11, RejoinsAnother 59, \
    FetchedUnscreened 81, HindranceStays 11, BatchesCrowdOut 23, FirstIsNotReached 117, \
    LaterIsReadFirst 6341, UnindexedForgotten 2, PauseForgotten 9, WindowNotInherited 81, \
    AckBeforeRemembered 4, SuspectsOvertakeRepeats 169, ParkedSuspectsGoBack 2431, \
    HalfGoesLast 2009, SharedRefusalIsKnown 23, ScheduledOvertaken 1500003866, \
    RestoredUncounted 5500003328, LeavingMakesRoom 10500001853, ProbesBehindLater 4331, \
    WindowInParts 24, StaleSplitsMessage 13, PausedToldParked 75, LeavesWithAll 6, \
    RetryInCompany 16, FlushLeavesOne 32, SelectedInMemoryAll 34, SelectedFarAll 34, \
    HeldForEver 6, RateForgotten 95, DebtForgotten 14, HeldForgotten 75, HeldIsPublished 75, \
    PassedOverForgotten 115, PassedOvertaken 67, FillIgnored 311, PauseHasNoEnd 11, ForwardUnawaited 5, RepeatTakesAcked 52, \
    UnavailableCounts 6, ReturnedAhead 7";

thread_local! {
    /// Whether failures are expected and not printed.
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Whether this panics; that is expected, and printed only if `LOUD` is set.
pub(in super::super) fn fails_quietly(run: impl FnOnce() + UnwindSafe) -> bool {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let loud = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                loud(info);
            }
        }));
    });
    QUIET.set(std::env::var_os("LOUD").is_none());
    let failed = std::panic::catch_unwind(run).is_err();
    QUIET.set(false);
    failed
}

fn finds(mutant: Mutant, seed: u64) -> bool {
    mutate(Some(mutant));
    let found = fails_quietly(|| run(Sim::new(seed), STEPS));
    mutate(None);
    found
}

/// Writes to the terminal even if the test passes.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

fn known_finders() -> BTreeMap<&'static str, u64> {
    let pairs = FOUND_BY.split(", ").map(|pair| pair.split_once(' ').expect("a name and a seed"));
    let known: BTreeMap<_, _> = pairs.map(|(name, seed)| (name, seed.parse().expect("a seed"))).collect();
    let names: BTreeSet<String> = Mutant::ALL.iter().map(|mutant| format!("{mutant:?}")).collect();
    assert!(known.keys().all(|name| names.contains(*name)), "only mutants that there are");
    known
}

/// `MUTANT` names a single mutant; `MUTANT_SEED` and `MUTANT_SEEDS` are the first and the number of other worlds to try.
/// Judges every promise.
#[test]
fn every_mutant_is_found() {
    let (first, seeds) = (number("MUTANT_SEED", 1), number("MUTANT_SEEDS", WORLDS));
    let only = std::env::var("MUTANT").ok();
    let known = if first == 1 { known_finders() } else { BTreeMap::new() };
    let next = AtomicUsize::new(0);
    let unseen = Mutex::new(vec![]);
    on_all_cores(|| {
        while let Some(mutant) = Mutant::ALL.get(next.fetch_add(1, Ordering::Relaxed)) {
            let name = format!("{mutant:?}");
            if only.as_ref().is_some_and(|only| *only != name) {
                continue;
            }
            let known = known.get(name.as_str()).copied();
            if known.is_some_and(|seed| finds(*mutant, seed)) {
                continue;
            }
            match (first..first + seeds).find(|seed| finds(*mutant, *seed)) {
                Some(seed) if known.is_some() || seed > 3 => say(&format!("{name} {seed}: not {known:?}")),
                Some(seed) => println!("{name} {seed}"),
                None => unseen.lock().expect("whole").push(name),
            }
        }
    });
    let unseen = unseen.into_inner().expect("whole");
    assert!(unseen.is_empty(), "not found by {seeds} seeds: {unseen:?}");
}
