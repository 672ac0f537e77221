//! Decides whether each part of the daemon makes progress: the one decision that the probes, the watchdog,
//! the metrics and the log use.
//!
//! Each part sets a mark after a complete turn: it took all that was there, or there was nothing. A turn that
//! takes nothing from what is there sets none. A probe reads the marks and asks no part.
//!
//! A wait for the broker is not a standstill: a part that waits keeps setting its mark, and each such wait
//! has its own bound. An application that is parked, paused, slow in its probe or waiting for a confirm is no
//! standstill either; other reports name it. Deliberately absent: why a part stands still.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A part that moves, and can stand still, independently of the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DaemonPart {
    /// The loop that owns all state.
    Loop,
    /// The store's threads, with something to do.
    Store,
    /// The consumer of requests.
    Ingest,
    /// The publisher of batches.
    Egress,
    /// The decision that a batch leaves: an item may leave and could be handed over, but is not.
    Schedule,
}

impl DaemonPart {
    /// All parts, in the order of the report.
    pub const ALL: [DaemonPart; 5] =
        [DaemonPart::Loop, DaemonPart::Store, DaemonPart::Ingest, DaemonPart::Egress, DaemonPart::Schedule];

    /// The part's name in probes, metrics and log.
    pub fn as_str(self) -> &'static str {
        match self {
            DaemonPart::Loop => "loop",
            DaemonPart::Store => "store",
            DaemonPart::Ingest => "ingest",
            DaemonPart::Egress => "egress",
            DaemonPart::Schedule => "schedule",
        }
    }
}

/// How long each part has stood still, ms, in the order of [`DaemonPart::ALL`]; `None`: it moves, or has
/// nothing to do.
pub type Stillness = [Option<u64>; DaemonPart::ALL.len()];

/// The parts that stand still at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProgressVerdict {
    /// Parts that have stood still for longer than `timeouts.stuck_after`, with that time in ms: not ready.
    pub stuck: Vec<(DaemonPart, u64)>,
    /// Those of them that have stood still for twice as long: not live.
    pub dead: Vec<DaemonPart>,
}

impl ProgressVerdict {
    /// The verdict over several sets of parts: a part is stuck if it is in any of them, for the longest of
    /// these times.
    pub fn of_all(all: impl IntoIterator<Item = ProgressVerdict>) -> ProgressVerdict {
        let (mut stuck, mut dead) = (Stillness::default(), [false; DaemonPart::ALL.len()]);
        for verdict in all {
            verdict.stuck.iter().for_each(|(part, age)| {
                stuck[*part as usize] = stuck[*part as usize].max(Some(*age));
            });
            verdict.dead.iter().for_each(|part| dead[*part as usize] = true);
        }
        let stuck = DaemonPart::ALL.into_iter().zip(stuck).filter_map(|(part, age)| Some((part, age?)));
        let dead = DaemonPart::ALL.into_iter().zip(dead).filter(|(_, dead)| *dead).map(|(part, _)| part);
        ProgressVerdict { stuck: stuck.collect(), dead: dead.collect() }
    }

    /// Names of the parts that are stuck.
    pub fn stuck_names(&self) -> Vec<&'static str> {
        self.stuck.iter().map(|(part, _)| part.as_str()).collect()
    }

    /// Names of the parts that call for a restart of the process.
    pub fn dead_names(&self) -> Vec<&'static str> {
        self.dead.iter().map(|part| part.as_str()).collect()
    }
}

/// Decides from these ages. The schedule counts only while no other part is late: otherwise that part is the
/// cause.
pub fn judge(still: Stillness, stuck_after_ms: u64) -> ProgressVerdict {
    let mut verdict = ProgressVerdict::default();
    let mut late = false;
    for (part, age) in DaemonPart::ALL.into_iter().zip(still) {
        let age = age.unwrap_or(0);
        if age > stuck_after_ms && !(part == DaemonPart::Schedule && late) {
            verdict.stuck.push((part, age));
            if age > stuck_after_ms.saturating_mul(2) {
                verdict.dead.push(part);
            }
        }
        late |= age > stuck_after_ms / 2;
    }
    verdict
}

/// The state of the publishing side, as the schedule is judged by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WayOut {
    /// The publishing connection is up.
    pub connected: bool,
    /// The broker blocks the connection at present.
    pub blocked: bool,
    /// An item is due and could be handed over now: its application is not parked or paused, has no slow
    /// probe, and waits for no confirm, slot or channel.
    pub overlooked: bool,
    /// A batch was handed over or settled since the last check.
    pub moved: bool,
}

impl WayOut {
    /// Whether an item may leave, nothing holds it back, and it does not leave.
    pub fn stands_still(self) -> bool {
        self.connected && !self.blocked && self.overlooked && !self.moved
    }
}

/// What a turn of the publisher has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PublishTurn {
    /// It took batches that had been handed over.
    pub took: bool,
    /// It left some of the batches handed over.
    pub left: bool,
    /// It holds a batch that it could publish and has not published.
    pub owes: bool,
    /// It holds no batch, published or not.
    pub idle: bool,
    /// Some batches that were handed over are not settled.
    pub unsettled: bool,
}

impl PublishTurn {
    /// Whether the turn counts: the publisher took what it was given, and each batch it took is published or
    /// waits for a reason. An unsettled batch that the publisher does not hold is lost.
    pub fn is_complete(self) -> bool {
        let left_all = self.left && !self.took;
        let lost = self.idle && !self.left && self.unsettled;
        !(left_all || self.owes || lost)
    }
}

/// The marks of the parts of one shard. Shared as `Arc<ProgressMarks>`.
#[derive(Debug)]
pub struct ProgressMarks {
    epoch: Instant,
    stuck_after_ms: AtomicU64,
    /// By part: since when it has stood still, ms since `epoch`; [`RESTS`]: not at all.
    since: [AtomicU64; DaemonPart::ALL.len()],
    /// By part: when the loop last reported it, ms since `epoch`.
    told_at: [AtomicU64; DaemonPart::ALL.len()],
    /// Items that have not ended, as the loop last reported.
    waiting: AtomicU64,
    /// When [`ProgressMarks::look`] was last called, ms since `epoch`; [`RESTS`]: never.
    looked_at: AtomicU64,
    /// The last look before the latest long gap, ms since `epoch`; [`RESTS`]: there was no such gap.
    frozen_at: AtomicU64,
    /// Until then the parts are judged as of `frozen_at`, ms since `epoch`.
    thawing_until: AtomicU64,
    /// The parts are being ended.
    over: AtomicBool,
}

/// The part has nothing to do.
const RESTS: u64 = u64::MAX;
/// The observer looks each second; after a gap longer than this, the whole process was probably frozen, ms.
/// All parts then get this long to recover.
const FROZEN_MS: u64 = 3_000;

impl Default for ProgressMarks {
    /// Uses the default of `timeouts.stuck_after`.
    fn default() -> Self {
        ProgressMarks::new(Duration::from_secs(30))
    }
}

impl ProgressMarks {
    /// Marks of a process in which no part has begun.
    pub fn new(stuck_after: Duration) -> ProgressMarks {
        ProgressMarks {
            epoch: Instant::now(),
            stuck_after_ms: AtomicU64::new(ms(stuck_after)),
            since: DaemonPart::ALL.map(|_| AtomicU64::new(RESTS)),
            told_at: DaemonPart::ALL.map(|_| AtomicU64::new(0)),
            waiting: AtomicU64::new(0),
            looked_at: AtomicU64::new(RESTS),
            frozen_at: AtomicU64::new(RESTS),
            thawing_until: AtomicU64::new(0),
            over: AtomicBool::new(false),
        }
    }

    /// Marks as if all parts had last moved `age` ago, for tests of what reads them.
    pub fn of_age(age: Duration) -> ProgressMarks {
        let epoch = Instant::now().checked_sub(age).unwrap_or_else(Instant::now);
        let progress = ProgressMarks { epoch, ..ProgressMarks::default() };
        progress.since.iter().for_each(|since| since.store(0, Ordering::Release));
        progress
    }

    /// Sets another `timeouts.stuck_after`.
    pub fn configure(&self, stuck_after: Duration) {
        self.stuck_after_ms.store(ms(stuck_after), Ordering::Release);
    }

    /// The value of `timeouts.stuck_after`, ms.
    pub fn stuck_after_ms(&self) -> u64 {
        self.stuck_after_ms.load(Ordering::Acquire)
    }

    /// The part has completed a turn.
    pub fn moved(&self, part: DaemonPart) {
        self.mark(part, self.now());
    }

    /// The part has ended, or has nothing to do until its next mark.
    pub fn rests(&self, part: DaemonPart) {
        self.mark(part, RESTS);
    }

    /// Records how long another part has stood still, as the loop reports it, ms; `None`: it has not. The age
    /// counts up to the loop's last turn only. It grows at most by the time since the previous report: the
    /// clock behind the report continues during a suspend, and no part is late because of that.
    pub fn told(&self, part: DaemonPart, still_ms: Option<u64>) {
        let now = self.now();
        let told_at = self.told_at.get(part as usize).map_or(0, |at| at.swap(now, Ordering::AcqRel));
        let before = self.read(part).unwrap_or(told_at);
        self.mark(part, still_ms.map_or(RESTS, |age| now.saturating_sub(age).max(before.min(now))));
    }

    /// Records the number of items that have not ended.
    pub fn tell_waiting(&self, items: u64) {
        self.waiting.store(items, Ordering::Release);
    }

    /// Items that had not ended at the loop's last report.
    pub fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::Acquire)
    }

    /// The parts are ending: none is expected to move.
    pub fn end(&self) {
        self.over.store(true, Ordering::Release);
    }

    /// Whether [`ProgressMarks::end`] was called since the last begin.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// A life begins: no part has moved so far.
    pub fn begin(&self) {
        DaemonPart::ALL.into_iter().for_each(|part| self.rests(part));
        self.over.store(false, Ordering::Release);
    }

    /// Whether to stop the sign of life to a service manager that waits for `patience` after the last one, so
    /// that it restarts a process with a dead part: after twice `timeouts.stuck_after`, or after once that
    /// time plus `patience` if that is longer.
    pub fn is_late_for(&self, patience: Duration) -> bool {
        self.is_late_at(self.now(), patience)
    }

    fn is_late_at(&self, now: u64, patience: Duration) -> bool {
        let limit = self.stuck_after_ms();
        let most = limit.max(limit.saturating_mul(2).saturating_sub(ms(patience)));
        self.verdict_at(now).stuck.iter().any(|(_, age)| *age > most)
    }

    /// Called by the observer each second. A late call means that the observer was held up, and probably all
    /// other parts with it.
    pub fn look(&self) {
        self.look_at(self.now());
    }

    fn look_at(&self, now: u64) {
        // First, so that no other thread takes this look for the one before the gap.
        self.judged_at(now);
        self.looked_at.store(now, Ordering::Release);
    }

    /// The decision at this moment. Takes no lock and asks no part. It does not depend on the observer, which
    /// a stuck reader of the log may hold up.
    ///
    /// A process that was frozen is judged only after it has recovered: until then, a part is stuck if it was
    /// so before and has not moved since.
    pub fn verdict(&self) -> ProgressVerdict {
        self.verdict_at(self.now())
    }

    fn verdict_at(&self, now: u64) -> ProgressVerdict {
        if self.is_over() {
            return ProgressVerdict::default();
        }
        judge(self.still(self.judged_at(now)), self.stuck_after_ms())
    }

    /// The moment as of which the parts are judged: the present one; or, for some time after a long gap in
    /// the looks is first noticed, the last look before it. A part that has moved since then has no age. Each
    /// gap counts once, so an observer that does not come back hides nothing for longer.
    fn judged_at(&self, now: u64) -> u64 {
        let looked_at = self.looked_at.load(Ordering::Acquire);
        let is_gap = looked_at != RESTS && now.saturating_sub(looked_at) > FROZEN_MS;
        if is_gap && self.frozen_at.load(Ordering::Acquire) != looked_at {
            // In this order: another thread that finds the gap noticed finds the time set.
            self.thawing_until.store(now + FROZEN_MS, Ordering::Release);
            self.frozen_at.store(looked_at, Ordering::Release);
        }
        if now < self.thawing_until.load(Ordering::Acquire) {
            now.min(self.frozen_at.load(Ordering::Acquire))
        } else {
            now
        }
    }

    /// Names of the parts that have not moved for two seconds, whatever `timeouts.stuck_after` is: for the
    /// report on a process that does not end.
    pub fn stillest(&self) -> Vec<&'static str> {
        let late = |age: Option<u64>| age.is_some_and(|age| age > 2_000);
        let still = DaemonPart::ALL.into_iter().zip(self.still(self.now()));
        still.filter(|(_, age)| late(*age)).map(|(part, _)| part.as_str()).collect()
    }

    fn still(&self, now: u64) -> Stillness {
        let turned = self.read(DaemonPart::Loop).unwrap_or(now).min(now);
        DaemonPart::ALL.map(|part| {
            let seen = match part {
                DaemonPart::Store | DaemonPart::Schedule => turned,
                DaemonPart::Loop | DaemonPart::Ingest | DaemonPart::Egress => now,
            };
            self.read(part).map(|since| seen.saturating_sub(since))
        })
    }

    fn read(&self, part: DaemonPart) -> Option<u64> {
        let since = self.since.get(part as usize)?.load(Ordering::Acquire);
        (since != RESTS).then_some(since)
    }

    fn mark(&self, part: DaemonPart, since: u64) {
        if let Some(mark) = self.since.get(part as usize) {
            mark.store(since, Ordering::Release);
        }
    }

    fn now(&self) -> u64 {
        ms(self.epoch.elapsed())
    }
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The present moment in these tests, ms since the epoch; it is later than any that a test meets.
    const PRESENT: u64 = 1_000_000;

    /// A process in which all parts had moved for the last time so long before the last look of its observer,
    /// and which has stood still since then, for 100 s.
    fn frozen(still: Duration) -> ProgressMarks {
        let progress = ProgressMarks::default();
        let looked_at = PRESENT - 100_000;
        progress.looked_at.store(looked_at, Ordering::Release);
        DaemonPart::ALL.into_iter().for_each(|part| progress.mark(part, looked_at - ms(still)));
        progress
    }

    /// Excluded: a part reported, or the process restarted, for the time in which all of it was frozen,
    /// whether a probe or the observer comes first; an observer that does not come back and hides what is
    /// stuck.
    #[test]
    fn a_process_that_was_frozen_is_not_judged_before_it_has_come_to_itself() {
        for looks in [false, true] {
            let progress = frozen(Duration::from_secs(1));
            if looks {
                progress.look_at(PRESENT);
            }
            for now in [PRESENT, PRESENT + FROZEN_MS - 1] {
                assert_eq!(progress.verdict_at(now), ProgressVerdict::default(), "looks: {looks}");
                assert!(!progress.is_late_at(now, Duration::ZERO));
            }
            let thawed = PRESENT + FROZEN_MS;
            let dead = ["loop", "ingest", "egress"];
            assert_eq!(progress.verdict_at(thawed).dead_names(), dead, "looks: {looks}");
            progress.look_at(thawed);
            assert_eq!(progress.verdict_at(thawed).dead_names(), dead, "it is the same gap");
        }
        let never_looked_at = ProgressMarks::of_age(Duration::from_secs(600));
        assert_eq!(never_looked_at.verdict().dead_names(), ["loop", "ingest", "egress"]);
    }

    /// Excluded: a part that was stuck before the process was frozen, and is taken for one that moves again;
    /// one that is called dead for the time in which all of it was frozen; one that has moved, and is stuck
    /// still.
    #[test]
    fn what_was_stuck_before_a_freeze_is_stuck_until_it_moves() {
        let progress = frozen(Duration::from_secs(40));
        progress.look_at(PRESENT);
        let stuck = [(DaemonPart::Loop, 40_000), (DaemonPart::Ingest, 40_000), (DaemonPart::Egress, 40_000)];
        assert_eq!(progress.verdict_at(PRESENT), ProgressVerdict { stuck: stuck.to_vec(), dead: vec![] });
        progress.mark(DaemonPart::Ingest, PRESENT);
        assert_eq!(progress.verdict_at(PRESENT).stuck_names(), ["loop", "egress"]);
        progress.rests(DaemonPart::Egress);
        assert_eq!(progress.verdict_at(PRESENT).stuck_names(), ["loop"]);
        assert_eq!(progress.verdict_at(PRESENT + FROZEN_MS).dead_names(), ["loop"]);
    }

    #[test]
    fn what_is_told_grows_no_faster_than_time_goes_on() {
        let progress = ProgressMarks::of_age(Duration::from_secs(600));
        let age = || progress.read(DaemonPart::Store).map(|since| progress.now() - since);
        progress.told(DaemonPart::Store, None);
        assert_eq!(age(), None);
        progress.told(DaemonPart::Store, Some(3_600_000));
        assert!(age() < Some(1_000), "the machine has slept for an hour: {:?}", age());
        progress.told_at[DaemonPart::Store as usize].store(progress.now() - 5_000, Ordering::Release);
        progress.rests(DaemonPart::Store);
        progress.told(DaemonPart::Store, Some(4_000));
        assert!((4_000..5_000).contains(&age().unwrap()), "{:?}", age());
        progress.told(DaemonPart::Store, Some(3_600_000));
        assert!((4_000..5_000).contains(&age().unwrap()), "{:?}", age());
    }

    #[test]
    fn of_several_the_one_that_stands_still_longest_counts() {
        use DaemonPart::{Egress, Loop, Store};
        let of = |stuck: &[(DaemonPart, u64)], dead: &[DaemonPart]| ProgressVerdict {
            stuck: stuck.to_vec(),
            dead: dead.to_vec(),
        };
        let (one, other) = (of(&[(Store, 5), (Egress, 9)], &[Egress]), of(&[(Loop, 3), (Store, 7)], &[]));
        let both = of(&[(Loop, 3), (Store, 7), (Egress, 9)], &[Egress]);
        assert_eq!(ProgressVerdict::of_all([one.clone(), other.clone()]), both);
        assert_eq!(ProgressVerdict::of_all([other, one.clone()]), both);
        assert_eq!(ProgressVerdict::of_all([one.clone()]), one);
        assert_eq!(ProgressVerdict::of_all([]), ProgressVerdict::default());
    }

    #[test]
    fn a_part_is_stuck_after_one_span_and_dead_after_another() {
        let none: Stillness = Default::default();
        let of = |ages: &[(DaemonPart, u64)]| {
            let mut still = none;
            ages.iter().for_each(|(part, age)| still[*part as usize] = Some(*age));
            let verdict = judge(still, 30_000);
            (verdict.stuck_names(), verdict.dead_names())
        };
        let nothing: Vec<&str> = vec![];
        assert_eq!(of(&[]), (nothing.clone(), nothing.clone()));
        for part in DaemonPart::ALL {
            let name = vec![part.as_str()];
            assert_eq!(of(&[(part, 30_000)]), (nothing.clone(), nothing.clone()), "{part:?}");
            assert_eq!(of(&[(part, 30_001)]), (name.clone(), nothing.clone()), "{part:?}");
            assert_eq!(of(&[(part, 60_000)]), (name.clone(), nothing.clone()), "{part:?}");
            assert_eq!(of(&[(part, 60_001)]), (name.clone(), name), "{part:?}");
        }
        let both = of(&[(DaemonPart::Loop, 70_000), (DaemonPart::Egress, 40_000)]);
        assert_eq!(both, (vec!["loop", "egress"], vec!["loop"]));
    }

    #[test]
    fn the_schedule_is_named_where_every_other_part_moves() {
        for (store, stuck) in [(0, vec!["schedule"]), (15_000, vec!["schedule"]), (15_001, vec![])] {
            let still = [Some(10), Some(store), None, Some(200), Some(31_000)];
            assert_eq!(judge(still, 30_000).stuck_names(), stuck, "{store}");
        }
    }

    #[test]
    fn what_is_kept_by_somebody_else_does_not_stand_still() {
        let free = WayOut { connected: true, blocked: false, overlooked: true, moved: false };
        for (what, way, still) in [
            ("something is due, could go, and does not", free, true),
            ("no connection", WayOut { connected: false, ..free }, false),
            ("an alarm of the broker", WayOut { blocked: true, ..free }, false),
            (
                "parked, paused, slow probe, awaiting, or nothing due",
                WayOut { overlooked: false, ..free },
                false,
            ),
            ("others leave meanwhile", WayOut { moved: true, ..free }, false),
        ] {
            assert_eq!(way.stands_still(), still, "{what}");
        }
    }

    #[test]
    fn a_turn_of_the_publisher_counts_when_all_it_was_given_is_on_its_way() {
        let idle = PublishTurn { idle: true, ..PublishTurn::default() };
        let awaits = PublishTurn { unsettled: true, ..PublishTurn::default() };
        for (what, turn, complete) in [
            ("nothing to do", idle, true),
            ("confirms are awaited, or the broker blocks", awaits, true),
            ("took some", PublishTurn { took: true, ..awaits }, true),
            ("took some, and more has come", PublishTurn { took: true, left: true, ..awaits }, true),
            ("left what it was given", PublishTurn { left: true, ..awaits }, false),
            (
                "left it, and has nothing else to do",
                PublishTurn { left: true, unsettled: true, ..idle },
                false,
            ),
            ("holds what it could publish", PublishTurn { owes: true, ..awaits }, false),
            (
                "took some, and holds what it could publish",
                PublishTurn { took: true, owes: true, ..awaits },
                false,
            ),
            ("lost one", PublishTurn { unsettled: true, ..idle }, false),
        ] {
            assert_eq!(turn.is_complete(), complete, "{what}");
        }
    }

    #[test]
    fn what_the_loop_tells_is_as_old_as_the_loops_last_turn() {
        let progress = ProgressMarks::of_age(Duration::from_secs(100));
        progress.rests(DaemonPart::Ingest);
        progress.rests(DaemonPart::Egress);
        progress.rests(DaemonPart::Schedule);
        // The store was not late at the loop's last turn.
        assert_eq!(progress.verdict().stuck_names(), ["loop"]);
        progress.moved(DaemonPart::Loop);
        assert_eq!(progress.verdict().stuck_names(), ["store"], "as the loop reported it");
        progress.told(DaemonPart::Store, Some(29_000));
        assert_eq!(progress.verdict(), ProgressVerdict::default());
        progress.configure(Duration::from_secs(20));
        assert_eq!(progress.verdict().stuck_names(), ["store"]);
        progress.told(DaemonPart::Store, None);
        assert_eq!(progress.verdict(), ProgressVerdict::default());
    }

    #[test]
    fn nobody_is_expected_to_move_before_the_begin_and_after_the_end() {
        let progress = ProgressMarks::of_age(Duration::from_secs(100));
        assert_eq!(progress.verdict().dead_names(), ["loop", "ingest", "egress"]);
        progress.end();
        assert_eq!(progress.verdict(), ProgressVerdict::default());
        progress.begin();
        assert_eq!(progress.verdict(), ProgressVerdict::default());
    }
}
