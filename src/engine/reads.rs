//! Changes since reads and look-ups under way were handed over, which their answers may miss.
//!
//! Two kinds. For rows of reads: the arrival numbers whose items ended or moved since the read began
//! ([`Reads`]). For look-ups of an identity: whether its location changed since the question ([`Watch`]).

use super::items::NumberMap;
use super::lookup::Lookup;
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::sync::Arc;
use core::cmp::Ordering;
use tidegate_types::event::{ClosingRow, Loaded, Stored};
use tidegate_types::{ClosedBy, Identity, Key};

/// The present contents of a rewritten row, as far as reads need them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rewritten {
    pub(crate) key: Key,
    pub(crate) due: u64,
    pub(crate) attempts: u32,
    pub(crate) outcome_unknown: bool,
    pub(crate) own_time: bool,
    /// It is in the dead-letter queue.
    pub(crate) dead: bool,
}

/// A sequence of reads that end in the order in which they began. The two sequences are independent.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ReadLine {
    /// Reads of queues, and look-ups of identities.
    Ordered,
    /// Steps of scans.
    Scans,
}

impl ReadLine {
    /// The line of the read with this answer; `None`: it returns no rows.
    pub(crate) fn of(loaded: &Loaded) -> Option<Self> {
        match loaded {
            Loaded::Ranges(_) | Loaded::Found(_) => Some(ReadLine::Ordered),
            Loaded::Scanned { .. } => Some(ReadLine::Scans),
            Loaded::Contents(_) => None,
        }
    }
}

/// Reads of rows under way.
#[derive(Debug)]
pub(crate) struct Reads {
    /// Number of the last read.
    begun: u64,
    /// Numbers of the reads under way, by line.
    open: [VecDeque<u64>; 2],
    /// Scan steps up to this number have been abandoned: their rows are not used.
    given_up: u64,
    /// Arrival numbers whose rows were removed or changed, with the last read begun before.
    changed: NumberMap<u64, RowChange>,
    /// The same in order, so that each is dropped with the last read that may have missed it. Its length is
    /// bounded by ordered reads and, for scans, by
    /// [`Thresholds::noted`](tidegate_types::Thresholds::noted).
    order: VecDeque<(u64, u64)>,
    /// Windows that closed early.
    closed: BTreeMap<WindowName, Closing>,
    /// The same in the order of closing, so that each is dropped with the last read and the last question
    /// that may have missed it.
    closing_order: VecDeque<(Before, WindowName)>,
}

/// A change of a row after reads under way may have read it.
#[derive(Clone, Copy, Debug)]
struct RowChange {
    /// The last read begun before.
    read: u64,
    /// Its present contents; `None`: it is no longer in that queue.
    row: Option<Rewritten>,
}

/// Numbers of the last read and the last question begun before an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Before {
    read: u64,
    question: u64,
}

/// A window: its planned end, its number, its application.
#[derive(Clone, Debug, PartialEq, Eq)]
struct WindowName {
    end: u64,
    window: u64,
    application: Arc<str>,
}

/// How a window closed early.
#[derive(Clone, Copy, Debug)]
struct Closing {
    before: Before,
    /// When it closed, UTC ms.
    due: u64,
    cause: ClosedBy,
}

impl WindowName {
    /// The window of a row, if it is of one.
    fn of(stored: &Stored) -> Option<Self> {
        let Key { due: end, window, .. } = stored.key;
        stored.is_windowed().then(|| WindowName { end, window, application: Arc::clone(&stored.application) })
    }
}

impl Ord for WindowName {
    fn cmp(&self, other: &Self) -> Ordering {
        #[cfg(test)]
        tests::COMPARED.with(|compared| compared.set(compared.get() + 1));
        let numbers = (self.end, self.window).cmp(&(other.end, other.window));
        numbers.then_with(|| self.application.cmp(&other.application))
    }
}

impl PartialOrd for WindowName {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Reads {
    pub(crate) fn new() -> Self {
        Reads {
            begun: 0,
            open: Default::default(),
            given_up: 0,
            changed: Lookup::new(),
            order: VecDeque::new(),
            closed: BTreeMap::new(),
            closing_order: VecDeque::new(),
        }
    }

    pub(crate) fn begin(&mut self, line: ReadLine) {
        self.begun += 1;
        self.open[line as usize].push_back(self.begun);
    }

    pub(crate) fn end(&mut self, line: ReadLine) {
        let ended = self.open[line as usize].pop_front();
        debug_assert!(ended.is_some(), "only what has begun ends");
        self.forget(self.oldest());
    }

    /// Drops changes made before the read `oldest` began; `None`: all changes.
    fn forget(&mut self, oldest: Option<u64>) {
        while let Some((read, seq)) = self.order.front().copied() {
            if oldest.is_some_and(|oldest| oldest <= read) {
                break;
            }
            self.order.pop_front();
            self.changed.remove_if(&seq, |last| last.read == read);
        }
    }

    /// Number of the oldest read under way whose rows will be used.
    fn oldest(&self) -> Option<u64> {
        let oldest = [ReadLine::Ordered, ReadLine::Scans].map(|line| self.oldest_of(line));
        oldest.into_iter().flatten().min()
    }

    fn oldest_of(&self, line: ReadLine) -> Option<u64> {
        let mut open = self.open[line as usize].iter().copied();
        match line {
            ReadLine::Ordered => open.next(),
            ReadLine::Scans => open.find(|read| *read > self.given_up),
        }
    }

    /// Number of notes kept.
    #[cfg(test)]
    pub(crate) fn noted(&self) -> usize {
        self.order.len().max(self.changed.len()).max(self.closing_order.len())
    }

    /// Whether the oldest scan step was abandoned, and has to be read again.
    pub(crate) fn is_given_up(&self) -> bool {
        let oldest = self.open[ReadLine::Scans as usize].front();
        oldest.is_some_and(|read| *read <= self.given_up)
    }

    /// Drops notes of changes that no open read can conflict with. Abandons open scan steps if more than
    /// `most` notes are kept: a scan may wait for a stalled disk indefinitely, while all other work
    /// continues. So may requests wait for room with their answers: these become stale, and are asked for
    /// again. Reads of queues need no such bound: few other reads and one commit go before them.
    pub(crate) fn tidy(&mut self, watch: &mut Watch, most: usize) {
        if self.scans_cost(watch, most) {
            let last = self.open[ReadLine::Scans as usize].back();
            self.given_up = last.map_or(self.given_up, |last| *last);
            self.forget(self.oldest());
        }
        self.forget_closed(watch);
        let first = self.oldest();
        let kept = self.closing_order.front().filter(|_| self.closing_order.len() > most);
        if kept.is_some_and(|(before, _)| first.is_none_or(|first| first > before.read)) {
            watch.give_up();
            self.forget_closed(watch);
        }
    }

    /// Drops notes of windows that no open read or question can conflict with.
    fn forget_closed(&mut self, watch: &Watch) {
        let (first, question) = (self.oldest(), watch.oldest());
        let is_over = |before: Before| {
            first.is_none_or(|first| first > before.read)
                && question.is_none_or(|oldest| oldest > before.question)
        };
        while self.closing_order.front().is_some_and(|(before, _)| is_over(*before)) {
            let Some((before, window)) = self.closing_order.pop_front() else { break };
            if self.closed.get(&window).is_some_and(|closing| closing.before == before) {
                self.closed.remove(&window);
            }
        }
    }

    /// Whether more than `most` notes are kept, the oldest of them for scans only. Else repeated scan steps
    /// would be abandoned too, as long as another answer is outstanding.
    fn scans_cost(&self, watch: &Watch, most: usize) -> bool {
        let ordered = self.oldest_of(ReadLine::Ordered);
        let of_scans = |read: u64| ordered.is_none_or(|oldest| oldest > read);
        let change = self.order.front().filter(|_| self.order.len() > most);
        let closed = self.closing_order.front().filter(|_| self.closing_order.len() > most);
        change.is_some_and(|(read, _)| of_scans(*read))
            || closed.is_some_and(|(before, _)| {
                of_scans(before.read) && watch.oldest().is_none_or(|oldest| oldest > before.question)
            })
    }

    /// A window closed before its planned end.
    pub(crate) fn note_closed(&mut self, watch: &Watch, closed: &ClosingRow) {
        if self.oldest().is_some() || watch.oldest().is_some() {
            let before = Before { read: self.begun, question: watch.begun };
            let ClosingRow { application, end, window, due, cause } = closed.clone();
            let window = WindowName { end, window, application };
            self.closed.insert(window.clone(), Closing { before, due, cause });
            self.closing_order.push_back((before, window));
        }
    }

    /// Brings a row of a read or look-up up to date: the last change of each number is known as long as a
    /// read is under way that began before it. False: the row is no longer there.
    pub(crate) fn renew(&self, stored: &mut Stored) -> bool {
        if let Some(changed) = self.changed.get(&stored.key.seq) {
            // An item that was dead-lettered since has a new row in another queue than the one that was read.
            let row = changed.row.filter(|row| row.dead == stored.dead.is_some());
            if let Some(row) = row {
                (stored.key, stored.due, stored.attempts) = (row.key, row.due, row.attempts);
                (stored.outcome_unknown, stored.own_time) = (row.outcome_unknown, row.own_time);
            }
            return row.is_some();
        }
        // Most rows are of no window, and mostly no window has closed.
        let window = if self.closed.is_empty() { None } else { WindowName::of(stored) };
        if let Some(closing) = window.and_then(|window| self.closed.get(&window)) {
            (stored.due, stored.closed_by) = (closing.due, closing.cause);
        }
        true
    }

    /// The row with this arrival number has left its queue.
    pub(crate) fn note_gone(&mut self, seq: u64) {
        self.note(seq, None);
    }

    /// A row was rewritten, perhaps under a new key.
    pub(crate) fn note_rewritten(&mut self, row: Rewritten) {
        self.note(row.key.seq, Some(row));
    }

    fn note(&mut self, seq: u64, row: Option<Rewritten>) {
        if self.oldest().is_some() {
            self.changed.insert(seq, RowChange { read: self.begun, row });
            self.order.push_back((self.begun, seq));
        }
    }

    /// Whether a row of the oldest read of its line is still as it was read.
    pub(crate) fn is_current(&self, line: ReadLine, seq: u64) -> bool {
        let Some(changed) = self.changed.get(&seq) else { return true };
        // A read that began after the change has read its result.
        let began = self.open[line as usize].front();
        began.is_some_and(|began| *began > changed.read)
    }
}

/// Identities that the store has been asked about.
#[derive(Debug)]
pub(crate) struct Watch {
    asked: NumberMap<Identity, Questions>,
    /// Number of changes so far to watched identities.
    changes: u64,
    /// Number of questions so far, and those that are under way, or answered and not used.
    begun: u64,
    open: BTreeSet<u64>,
    /// Answers to questions up to this number are stale.
    given_up: u64,
}

/// The validity of an answer when it is used.
#[derive(Debug)]
pub(crate) enum Worth {
    /// It is valid.
    True,
    /// An item of that identity has left memory since: this is its row in the store, without content.
    Row(Box<Stored>),
    /// It is stale: the store has to be asked again.
    Nothing,
}

/// One question, and when it was asked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) identity: Identity,
    since: u64,
    /// Unique number of the question.
    number: u64,
}

#[derive(Debug, Default)]
struct Questions {
    /// Number of questions under way, or answered and not used.
    count: u32,
    /// The last change.
    changed: u64,
    /// The row that the last change left in the store, if it did.
    row: Option<Box<Stored>>,
}

impl Watch {
    pub(crate) fn new() -> Self {
        Watch { asked: Lookup::new(), changes: 0, begun: 0, open: BTreeSet::new(), given_up: 0 }
    }

    /// Number of the oldest question whose answer has not been used and is not stale for all of them.
    fn oldest(&self) -> Option<u64> {
        self.open.range(self.given_up + 1..).next().copied()
    }

    /// Makes the answers to all open questions stale: what has changed since need not be known for them.
    fn give_up(&mut self) {
        self.given_up = self.begun;
    }

    pub(crate) fn begin(&mut self, identity: Identity) -> Asked {
        self.asked.get_or_insert_with(identity, Questions::default).count += 1;
        self.begun += 1;
        self.open.insert(self.begun);
        Asked { identity, since: self.changes, number: self.begun }
    }

    /// Ends a question. Returns the validity of its answer.
    pub(crate) fn end(&mut self, asked: Asked) -> Worth {
        self.open.remove(&asked.number);
        let Some(questions) = self.asked.get_mut(&asked.identity) else {
            debug_assert!(false, "only what was asked is answered");
            return Worth::Nothing;
        };
        let worth = match &questions.row {
            _ if asked.number <= self.given_up => Worth::Nothing,
            _ if questions.changed <= asked.since => Worth::True,
            Some(row) => Worth::Row(row.clone()),
            None => Worth::Nothing,
        };
        questions.count -= 1;
        if questions.count == 0 {
            self.asked.remove(&asked.identity);
        }
        worth
    }

    /// Whether an answer to this open question is usable.
    pub(crate) fn is_worth(&self, asked: &Asked) -> bool {
        let questions = self.asked.get(&asked.identity);
        asked.number > self.given_up
            && questions.is_some_and(|questions| questions.changed <= asked.since || questions.row.is_some())
    }

    /// The location of an identity has changed.
    pub(crate) fn changed(&mut self, identity: Identity) {
        if let Some(questions) = self.asked.get_mut(&identity) {
            self.changes += 1;
            questions.changed = self.changes;
            questions.row = None;
        }
    }

    /// An item of this identity is in the store only from now on, with this row. Earlier questions use the
    /// row: else each of many requests with one id would wait for another read.
    pub(crate) fn put(&mut self, identity: Identity, row: impl FnOnce() -> Stored) {
        self.changed(identity);
        if let Some(questions) = self.asked.get_mut(&identity) {
            questions.row = Some(Box::new(Stored { content: None, ..row() }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::Cell;
    use tidegate_types::{Dead, Reason};

    std::thread_local! {
        /// Comparisons of windows so far.
        pub(super) static COMPARED: Cell<usize> = const { Cell::new(0) };
    }

    #[test]
    fn what_ended_while_a_read_was_under_way_is_known_until_it_has_ended() {
        let mut reads = Reads::new();
        reads.note_gone(1);
        let is_current = |reads: &Reads, seq| reads.is_current(ReadLine::Ordered, seq);
        assert!(is_current(&reads, 1), "no read is under way");
        reads.begin(ReadLine::Ordered);
        reads.note_gone(2);
        reads.begin(ReadLine::Ordered);
        reads.note_gone(3);
        reads.note_gone(2);
        assert!(!is_current(&reads, 2) && !is_current(&reads, 3) && is_current(&reads, 1));
        reads.note_rewritten(Rewritten {
            key: Key::own(9, 4),
            due: 9,
            attempts: 2,
            outcome_unknown: true,
            own_time: false,
            dead: false,
        });
        let read = |seq| present_key(&reads, Key::own(5, seq));
        assert_eq!([read(1), read(2), read(4)], [Some(Key::own(5, 1)), None, Some(Key::own(9, 4))]);
        reads.end(ReadLine::Ordered);
        assert!(!is_current(&reads, 2) && !is_current(&reads, 3), "the second may have begun before");
        reads.end(ReadLine::Ordered);
        assert!(is_current(&reads, 2) && is_current(&reads, 3));
    }

    /// A change during a scan is known until the scan ends; a read that begins after a change has read its
    /// result.
    /// Excluded: changes forgotten with the end of a read of a queue, though a scan needs them; a change that
    /// counts for reads begun after it.
    /// Judges promises 3 and 15.
    #[test]
    fn a_scan_that_takes_long_makes_nobody_doubt_what_was_read_since() {
        let mut reads = Reads::new();
        reads.begin(ReadLine::Scans);
        reads.note_gone(1);
        reads.begin(ReadLine::Ordered);
        reads.note_gone(2);
        let current = |reads: &Reads| [1, 2].map(|seq| reads.is_current(ReadLine::Ordered, seq));
        assert_eq!(current(&reads), [true, false]);
        reads.end(ReadLine::Ordered);
        assert_eq!(
            [1, 2, 3].map(|seq| present_key(&reads, Key::own(5, seq)).is_some()),
            [false, false, true]
        );
        reads.begin(ReadLine::Ordered);
        assert_eq!(current(&reads), [true, true]);
        reads.end(ReadLine::Scans);
        assert!(reads.changed.is_empty() && reads.order.is_empty());
    }

    /// Excluded: rows of a scan step used although changes since are not known; a read of a queue given up.
    /// Judges promise 15.
    #[test]
    fn a_scan_during_which_too_much_changes_is_given_up_and_no_other_read() {
        let (mut reads, mut watch) = (Reads::new(), Watch::new());
        let kept = |reads: &Reads| reads.order.len();
        reads.begin(ReadLine::Scans);
        (0..2).for_each(|seq| reads.note_gone(seq));
        reads.tidy(&mut watch, 2);
        assert!(!reads.is_given_up() && kept(&reads) == 2);
        reads.begin(ReadLine::Ordered);
        reads.note_gone(2);
        reads.tidy(&mut watch, 2);
        assert!(reads.is_given_up());
        assert!(reads.changed.len() == 1 && kept(&reads) == 1, "the read of a queue began behind the others");
        assert!(!reads.is_current(ReadLine::Ordered, 2));
        // The next scan step begins after all these changes.
        reads.begin(ReadLine::Scans);
        reads.end(ReadLine::Scans);
        assert!(!reads.is_given_up());
        reads.note_gone(3);
        reads.end(ReadLine::Ordered);
        assert_eq!([2, 3].map(|seq| present_key(&reads, Key::own(5, seq)).is_some()), [true, false]);
        reads.end(ReadLine::Scans);
        assert!(reads.changed.is_empty() && kept(&reads) == 0);
    }

    /// Notes kept for a question do not abandon scans: else scans would be abandoned as long as the question
    /// is open.
    #[test]
    fn what_others_have_remembered_ends_no_scan() {
        let (mut reads, mut watch) = (Reads::new(), Watch::new());
        let asked = watch.begin(Identity::assigned(1));
        let closed = |window| ClosingRow {
            application: "shop".into(),
            end: 100,
            window,
            due: 70,
            cause: ClosedBy::Flush,
        };
        reads.begin(ReadLine::Scans);
        (0..3).for_each(|window| reads.note_closed(&watch, &closed(window)));
        reads.tidy(&mut watch, 2);
        assert!(!reads.is_given_up() && reads.closing_order.len() == 3);
        watch.end(asked);
        reads.tidy(&mut watch, 2);
        assert!(reads.is_given_up() && reads.closed.is_empty());
    }

    /// Members of a window that closed, and of a later one with the same planned end.
    /// Excluded: a row due at the planned end, or when another window closed.
    /// Judges promise 10.
    #[test]
    fn a_row_that_was_read_before_its_window_closed_is_due_when_it_did() {
        let mut reads = Reads::new();
        let note = |reads: &mut Reads, window, due| {
            let closed =
                ClosingRow { application: "shop".into(), end: 100, window, due, cause: ClosedBy::Flush };
            reads.note_closed(&Watch::new(), &closed);
        };
        note(&mut reads, 3, 70);
        assert!(reads.closed.is_empty(), "no read is under way");
        reads.begin(ReadLine::Ordered);
        for (window, due) in [(3, 50), (11, 80)] {
            note(&mut reads, window, due);
        }
        let renewed = |own_time, window, seq| {
            let key = Key { due: 100, window, seq };
            let mut stored = Stored { own_time, ..row(key) };
            assert!(reads.renew(&mut stored));
            assert_eq!(stored.key, key, "it lies where it lay");
            (stored.due, stored.closed_by)
        };
        assert_eq!(renewed(false, 3, 7), (50, ClosedBy::Flush));
        assert_eq!(renewed(true, 3, 8), (100, ClosedBy::Time));
        assert_eq!(renewed(false, 11, 15), (80, ClosedBy::Flush));
        assert_eq!(renewed(false, 16, 25), (100, ClosedBy::Time));
        reads.end(ReadLine::Ordered);
        reads.tidy(&mut Watch::new(), 1);
        assert!(reads.closed.is_empty());
    }

    /// Requests wait for room with their answers.
    /// Excluded: notes kept without bound for a question; an answer used although a window closed since.
    #[test]
    fn an_answer_that_is_not_used_in_time_is_stale_and_its_notes_are_dropped() {
        let (mut reads, mut watch) = (Reads::new(), Watch::new());
        let mut close = |watch: &mut Watch, window| {
            let closed =
                ClosingRow { application: "shop".into(), end: 100, window, due: 70, cause: ClosedBy::Flush };
            reads.note_closed(watch, &closed);
            reads.tidy(watch, 2);
            reads.closing_order.len()
        };
        let one = Identity::assigned(1);
        let asked = watch.begin(one);
        assert_eq!((close(&mut watch, 1), close(&mut watch, 2)), (1, 2));
        assert!(watch.is_worth(&asked));
        assert_eq!(close(&mut watch, 3), 0);
        assert!(!watch.is_worth(&asked));
        let again = watch.begin(one);
        assert_eq!(close(&mut watch, 4), 1);
        assert!(matches!(watch.end(asked), Worth::Nothing));
        assert!(watch.is_worth(&again) && matches!(watch.end(again), Worth::True));
        assert_eq!(close(&mut watch, 5), 0, "nothing is asked");
    }

    /// Many windows have closed while a question is open, and rows are read meanwhile: of these windows, of
    /// other windows, and of none.
    /// Excluded: a row compared with each window that has closed, or looked up although it is of no window; a
    /// note kept after its question.
    /// Judges promise 7.
    #[test]
    fn a_row_that_was_read_is_compared_with_few_of_the_windows_that_closed() {
        const ROWS: u64 = 1_000;
        for windows in [100, 1_000, 10_000] {
            let (mut reads, mut watch) = (Reads::new(), Watch::new());
            let asked = watch.begin(Identity::assigned(1));
            for window in 0..windows {
                let (application, end) = ("shop".into(), 1_000 + window / 10);
                reads.note_closed(
                    &watch,
                    &ClosingRow { application, end, window, due: 70, cause: ClosedBy::Flush },
                );
            }
            let compared = |own_time: bool, first: u64| {
                let before = COMPARED.with(Cell::get);
                for window in (first..first + ROWS).map(|row| if row < windows { row } else { row + windows })
                {
                    let key = Key { due: 1_000 + window / 10, window, seq: window + 1 };
                    let mut stored = Stored { own_time, ..row(key) };
                    assert!(reads.renew(&mut stored));
                    let is_closed = window < windows && !own_time;
                    assert_eq!(stored.due, if is_closed { 70 } else { key.due }, "{window} of {windows}");
                }
                COMPARED.with(Cell::get) - before
            };
            for first in [0, windows / 2, windows] {
                let each = compared(false, first) as u64 / ROWS;
                assert!(each <= 40, "{each} comparisons for each row, {windows} windows");
            }
            assert_eq!(compared(true, 0), 0, "of no window");
            watch.end(asked);
            reads.tidy(&mut watch, 1);
            assert!(reads.closed.is_empty() && reads.closing_order.is_empty());
        }
    }

    /// The same window is noted twice, the second time for a later read.
    #[test]
    fn a_closing_is_known_as_long_as_its_last_note() {
        let (mut reads, mut watch) = (Reads::new(), Watch::new());
        let closed =
            |due| ClosingRow { application: "shop".into(), end: 100, window: 3, due, cause: ClosedBy::Flush };
        let due = |reads: &Reads| {
            let mut stored = row(Key { due: 100, window: 3, seq: 4 });
            reads.renew(&mut stored);
            stored.due
        };
        reads.begin(ReadLine::Ordered);
        reads.note_closed(&watch, &closed(70));
        reads.begin(ReadLine::Ordered);
        reads.note_closed(&watch, &closed(60));
        reads.end(ReadLine::Ordered);
        reads.tidy(&mut watch, 1);
        assert_eq!((due(&reads), reads.closing_order.len()), (60, 1));
        reads.end(ReadLine::Ordered);
        reads.tidy(&mut watch, 1);
        assert_eq!((due(&reads), reads.closed.len()), (100, 0));
    }

    /// Excluded: a row used although it has changed since it was written.
    /// Judges promise 14.
    #[test]
    fn who_has_asked_before_hears_of_the_row_that_went_to_the_store_since() {
        let (mut watch, one) = (Watch::new(), Identity::assigned(1));
        let put = |watch: &mut Watch, seq| watch.put(one, || row(Key::own(5, seq)));
        let asked = [watch.begin(one), watch.begin(one), watch.begin(one)];
        put(&mut watch, 1);
        let of_now = watch.begin(one);
        assert!(matches!(watch.end(asked[0]), Worth::Row(row) if row.key.seq == 1));
        put(&mut watch, 2);
        assert!(watch.is_worth(&of_now) && matches!(watch.end(of_now), Worth::Row(row) if row.key.seq == 2));
        watch.changed(one);
        assert!(!watch.is_worth(&asked[1]) && matches!(watch.end(asked[1]), Worth::Nothing));
        put(&mut watch, 3);
        let last = watch.begin(one);
        assert!(matches!(watch.end(asked[2]), Worth::Row(row) if row.key.seq == 3));
        assert!(matches!(watch.end(last), Worth::True), "it was asked behind it");
    }

    fn present_key(reads: &Reads, key: Key) -> Option<Key> {
        let mut stored = row(key);
        reads.renew(&mut stored).then_some(stored.key)
    }

    #[test]
    fn a_row_that_was_read_before_its_attempt_ended_tells_of_it() {
        let mut reads = Reads::new();
        reads.begin(ReadLine::Ordered);
        let key = Key::own(5, 4);
        reads.note_rewritten(Rewritten {
            key,
            due: key.due,
            attempts: 2,
            outcome_unknown: true,
            own_time: false,
            dead: false,
        });
        let mut stored = row(key);
        assert!(reads.renew(&mut stored));
        assert_eq!((stored.attempts, stored.outcome_unknown), (2, true));
    }

    #[test]
    fn a_row_that_was_read_before_its_item_died_is_gone_though_the_letter_was_written_since() {
        let mut reads = Reads::new();
        reads.begin(ReadLine::Ordered);
        let key = Key::own(5, 4);
        reads.note_gone(4);
        reads.note_rewritten(Rewritten {
            key,
            due: key.due,
            attempts: 1,
            outcome_unknown: false,
            own_time: false,
            dead: true,
        });
        assert!(!reads.renew(&mut row(key)));
        let dead = Dead { reason: Reason::Expired, error: "late".into() };
        let mut letter = Stored { dead: Some(dead.into()), ..row(key) };
        assert!(reads.renew(&mut letter));
        assert_eq!(letter.attempts, 1);
    }

    fn row(key: Key) -> Stored {
        Stored { customer: Some("c".into()), ..tidegate_fake_store::blank("shop", key) }
    }

    #[test]
    fn an_answer_is_stale_once_anything_changed_since_the_question() {
        let (mut watch, one, other) = (Watch::new(), Identity::assigned(1), Identity::assigned(2));
        watch.changed(one);
        let (first, beside) = (watch.begin(one), watch.begin(other));
        watch.changed(one);
        let second = watch.begin(one);
        let still_true = |worth| matches!(worth, Worth::True);
        assert!(!still_true(watch.end(first)) && still_true(watch.end(beside)));
        assert!(still_true(watch.end(second)), "a new question begins anew, whoever else asks");
        watch.changed(one);
        assert_eq!(watch.oldest(), None);
    }
}
