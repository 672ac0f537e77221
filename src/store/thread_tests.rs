//! Tests of the store's threads, with a store that records its calls and waits on request.

#![expect(clippy::wildcard_enum_match_arm, reason = "another event fails the test")]

use super::tests::{delete, group, item, open_at, place, put, put_item, range, whole, APP};
use super::thread::{spawn, CommitFigures, StoreEvent, StoreHandle, ThreadLimits, STORE_CALL_LIMIT};
use super::*;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tidegate_types::event::{Along, Found, Range, RangeRows, Stored, Wanted};
use tidegate_types::{Content, Identity, Key};

pub(crate) const SOON: Duration = Duration::from_secs(20);
/// Limits with which no commit waits for others.
const PROMPT: ThreadLimits =
    ThreadLimits { queued: 64 << 20, call: STORE_CALL_LIMIT, linger: Duration::ZERO };

/// A call of the recording store.
#[derive(Debug, PartialEq)]
enum Call {
    Commit(Vec<Token>),
    Load,
    /// With the number of the only item requested.
    Find(u64),
    Closed,
}

/// Each of its commits waits for a message on `gate`: success, or failure.
struct Recording {
    calls: Sender<Call>,
    gate: Receiver<bool>,
    limit: (usize, u64),
    reader: Option<bool>,
    measured: AtomicU64,
}

impl Store for Recording {
    fn commit(&mut self, groups: &[CommitGroup]) -> Result<(), CommitError> {
        self.calls.send(Call::Commit(groups.iter().map(|g| g.token).collect())).unwrap();
        if self.gate.recv_timeout(SOON).unwrap() {
            Ok(())
        } else {
            Err(CommitError::DiskFull { free: 0, error: "no room".into() })
        }
    }

    fn load(&mut self, load: &Load) -> Result<Loaded, ReadError> {
        if let Load::Find(wanted) = load {
            let number = u64::from_be_bytes(*wanted[0].identity.to_bytes().last_chunk().unwrap());
            self.calls.send(Call::Find(number)).unwrap();
            return Ok(Loaded::Found(vec![Found::default()]));
        }
        self.calls.send(Call::Load).unwrap();
        Ok(match load {
            Load::Contents(wanted) => {
                Loaded::Contents(wanted.iter().map(|w| (w.0, Arc::new(Content::default()))).collect())
            }
            _ => Loaded::Ranges(Vec::new()),
        })
    }

    fn reader(&self) -> Option<Box<dyn Reader>> {
        struct Fixed(bool);
        impl Reader for Fixed {
            fn contents(&self, wanted: &WantedContents) -> Result<Option<Contents>, ReadError> {
                Ok(self.0.then(|| wanted.iter().map(|w| (w.0, Arc::new(Content::default()))).collect()))
            }

            fn ranges(&self, ranges: &[Range], _: usize, _: u64) -> Result<Vec<RangeRows>, ReadError> {
                let none = |range: &Range| RangeRows { queue: range.queue.clone(), rows: vec![], next: None };
                Ok(ranges.iter().map(none).collect())
            }
        }
        self.reader.map(|found| Box::new(Fixed(found)) as Box<dyn Reader>)
    }

    fn usage(&self) -> Result<Usage, UsageError> {
        Ok(Usage { used: 1 + self.measured.fetch_add(1, Ordering::Relaxed), free: 2, total: 3 })
    }

    fn group_limit(&self) -> (usize, u64) {
        self.limit
    }

    fn close(self: Box<Self>) -> Result<(), CloseError> {
        self.calls.send(Call::Closed).unwrap();
        Ok(())
    }
}

struct Bench {
    handle: StoreHandle,
    commits: Arc<CommitFigures>,
    events: Receiver<StoreEvent>,
    calls: Receiver<Call>,
    gate: Sender<bool>,
}

impl Bench {
    fn new(limit: (usize, u64), reader: Option<bool>) -> Self {
        Bench::limited(limit, reader, PROMPT)
    }

    fn limited(limit: (usize, u64), reader: Option<bool>, limits: ThreadLimits) -> Self {
        let (calls_in, calls) = channel();
        let (gate, gate_out) = channel();
        let measured = AtomicU64::new(0);
        let store = Box::new(Recording { calls: calls_in, gate: gate_out, limit, reader, measured });
        let commits = Arc::default();
        let (handle, events) = start_counting(store, limits, Arc::clone(&commits));
        Bench { handle, commits, events, calls, gate }
    }

    fn commit(&self, token: Token) {
        self.handle.commit(group(token, vec![delete(token, token)]));
    }

    /// Brings the store into the middle of the commit of this token.
    fn enter(&self, token: Token) {
        self.commit(token);
        self.called(Call::Commit(vec![token]));
    }

    fn called(&self, call: Call) {
        assert_eq!(self.calls.recv_timeout(SOON).unwrap(), call);
    }

    fn called_until(&self, call: Call) {
        while self.calls.recv_timeout(SOON).unwrap() != call {}
    }

    fn event(&self) -> StoreEvent {
        self.events.recv_timeout(SOON).unwrap()
    }

    fn committed(&self, token: Token) {
        assert!(matches!(self.event(), StoreEvent::Committed(t) if t == token));
    }

    fn loaded_handles(&self) -> Vec<u64> {
        match self.event() {
            StoreEvent::Loaded(Loaded::Contents(found)) => found.iter().map(|f| f.0).collect(),
            other => panic!("{other:?}"),
        }
    }
}

pub(crate) fn start(store: Box<dyn Store>, limits: ThreadLimits) -> (StoreHandle, Receiver<StoreEvent>) {
    start_counting(store, limits, Arc::default())
}

fn start_counting(
    store: Box<dyn Store>,
    limits: ThreadLimits,
    commits: Arc<CommitFigures>,
) -> (StoreHandle, Receiver<StoreEvent>) {
    let (events_in, events) = channel();
    let events_in = Mutex::new(events_in);
    let on_event = move |event| drop(events_in.lock().unwrap().send(event));
    (spawn(store, 0, limits, commits, Arc::new(on_event)).unwrap(), events)
}

fn find(number: u64) -> Load {
    let identity = Identity::assigned(number);
    Load::Find(vec![Wanted { identity, application: APP.into(), key: None, buckets: vec![] }])
}

fn contents(handle: u64) -> Load {
    Load::Contents(vec![(handle, place(APP, 1, 1))])
}

#[test]
fn commits_up_to_the_next_load_share_a_sync() {
    let bench = Bench::new((100, 1 << 20), None);
    bench.enter(1);
    (2..=4).for_each(|token| bench.commit(token));
    bench.handle.load(whole(APP));
    (5..=6).for_each(|token| bench.commit(token));
    let stats = bench.handle.stats();
    assert_eq!(stats.queued, 6);
    assert!(stats.still_ms.is_some(), "{stats:?}");
    (0..3).for_each(|_| bench.gate.send(true).unwrap());
    bench.called(Call::Commit(vec![2, 3, 4]));
    bench.called(Call::Load);
    bench.called(Call::Commit(vec![5, 6]));
    bench.committed(1);
    bench.committed(4);
    assert!(matches!(bench.event(), StoreEvent::Loaded(Loaded::Ranges(_))));
    bench.committed(6);
    bench.handle.close(SOON).unwrap();
    bench.called(Call::Closed);
    let stats = bench.handle.stats();
    assert_eq!((bench.commits.stats().commits, stats.queued), (6, 0));
    assert_eq!((stats.still_ms, stats.failed), (None, false));
    assert_eq!(stats.usage, Some(Usage { used: 1, free: 2, total: 3 }));
}

#[test]
fn questions_by_identity_do_not_part_commits() {
    let bench = Bench::new((1_000, 1 << 20), None);
    bench.enter(1);
    for token in 2..=100 {
        bench.commit(token);
        bench.handle.load(find(token));
    }
    bench.handle.load(whole(APP));
    bench.handle.load(find(101));
    bench.commit(102);
    bench.handle.load(find(102));
    (0..3).for_each(|_| bench.gate.send(true).unwrap());
    // One commit of all; then the answers to the finds, in order, before the answer to any other load.
    bench.called(Call::Commit((2..=100).collect()));
    (2..=100).for_each(|number| bench.called(Call::Find(number)));
    bench.called(Call::Load);
    bench.called(Call::Find(101));
    bench.called(Call::Commit(vec![102]));
    bench.called(Call::Find(102));
    bench.committed(1);
    bench.committed(100);
    (2..=100).for_each(|_| assert!(matches!(bench.event(), StoreEvent::Loaded(Loaded::Found(_)))));
    assert!(matches!(bench.event(), StoreEvent::Loaded(Loaded::Ranges(_))));
    assert!(matches!(bench.event(), StoreEvent::Loaded(Loaded::Found(_))));
    bench.committed(102);
    assert!(matches!(bench.event(), StoreEvent::Loaded(Loaded::Found(_))));
    bench.handle.close(SOON).unwrap();
    let stats = bench.handle.stats();
    assert_eq!((bench.commits.stats().commits, stats.queued), (101, 0));
}

#[test]
fn usage_is_measured_while_the_queue_never_runs_empty() {
    let bench = Bench::new((1, 1 << 20), None);
    bench.enter(1);
    bench.commit(2);
    let (began, mut last) = (Instant::now(), 2);
    while bench.handle.stats().usage.unwrap().used < 2 {
        bench.commit(last + 1);
        bench.gate.send(true).unwrap();
        bench.called(Call::Commit(vec![last]));
        last += 1;
        assert!(began.elapsed() < SOON, "no measurement in {last} commits");
    }
    (0..2).for_each(|_| bench.gate.send(true).unwrap());
    bench.handle.close(SOON).unwrap();
}

#[test]
fn questions_by_identity_heed_the_limits_of_a_group() {
    let bench = Bench::new((2, 1 << 20), None);
    bench.enter(1);
    for token in 2..=4 {
        bench.commit(token);
        bench.handle.load(find(token));
    }
    (0..3).for_each(|_| bench.gate.send(true).unwrap());
    bench.called(Call::Commit(vec![2, 3]));
    bench.called(Call::Find(2));
    bench.called(Call::Find(3));
    bench.called(Call::Commit(vec![4]));
    bench.called(Call::Find(4));
    bench.handle.close(SOON).unwrap();
}

#[test]
fn a_failed_commit_leaves_questions_unanswered() {
    let bench = Bench::new((100, 1 << 20), None);
    bench.enter(1);
    bench.commit(2);
    bench.handle.load(find(2));
    bench.commit(3);
    bench.gate.send(true).unwrap();
    bench.gate.send(false).unwrap();
    bench.called(Call::Commit(vec![2, 3]));
    bench.committed(1);
    assert!(matches!(bench.event(), StoreEvent::Failed(StoreFailure::Commit(CommitError::DiskFull { .. }))));
    bench.handle.close(SOON).unwrap();
    assert_eq!(bench.calls.try_iter().collect::<Vec<_>>(), vec![]);
    assert!(bench.events.try_recv().is_err());
}

#[test]
fn a_group_has_its_limits_but_takes_one_commit_in_any_case() {
    for limit in [(2, 1 << 20), (100, 600)] {
        let bench = Bench::new(limit, None);
        bench.enter(1);
        (2..=4).for_each(|token| bench.commit(token));
        bench.handle.commit(group(5, (0..9).map(|n| delete(n, n)).collect()));
        (0..4).for_each(|_| bench.gate.send(true).unwrap());
        bench.called(Call::Commit(vec![2, 3]));
        bench.called(Call::Commit(vec![4]));
        bench.called(Call::Commit(vec![5]));
        bench.handle.close(SOON).unwrap();
    }
}

#[test]
fn after_a_failed_commit_nothing_more_is_done() {
    let bench = Bench::new((100, 1 << 20), Some(true));
    bench.enter(1);
    bench.commit(2);
    bench.handle.load(whole(APP));
    bench.gate.send(false).unwrap();
    assert!(matches!(bench.event(), StoreEvent::Failed(StoreFailure::Commit(CommitError::DiskFull { .. }))));
    bench.commit(3);
    bench.handle.load(whole(APP));
    bench.handle.load(contents(4));
    bench.handle.close(SOON).unwrap();
    assert!(bench.handle.stats().failed);
    // There is neither a call nor an event, not even a close with its sync.
    assert_eq!(bench.calls.try_iter().collect::<Vec<_>>(), vec![]);
    assert!(bench.events.try_recv().is_err());
}

#[test]
fn contents_do_not_wait_for_a_sync() {
    let bench = Bench::new((100, 1 << 20), Some(true));
    bench.enter(1);
    bench.commit(2);
    bench.handle.load(contents(7));
    assert_eq!(bench.loaded_handles(), vec![7]);
    (0..2).for_each(|_| bench.gate.send(true).unwrap());
    bench.committed(1);
    bench.committed(2);
    bench.handle.close(SOON).unwrap();
}

/// Removals are queued at keys 1 and 2. A read from key 3 on passes them; one from key 2 on follows them, and
/// the reads that come after it stay behind it.
/// Excluded: a read that waits for commits that do not concern it; one that passes a commit or a read that it
/// has to follow.
#[test]
fn a_read_of_a_queue_passes_commits_that_do_not_concern_it() {
    let behind = |seq| {
        let ranges = vec![range(APP, Key::own(seq, seq), 100, 9)];
        Load::Ranges { ranges, max_rows: 9, max_bytes: 0 }
    };
    let bench = Bench::new((100, 1 << 20), Some(true));
    let answers = || match bench.event() {
        StoreEvent::Loaded(Loaded::Ranges(answers)) => answers.len(),
        other => panic!("{other:?}"),
    };
    bench.enter(1);
    bench.commit(2);
    for _ in 0..2 {
        bench.handle.load(behind(3));
        assert_eq!(answers(), 1, "by the reader");
    }
    bench.handle.load(behind(2));
    bench.handle.load(behind(3));
    bench.handle.commit(group(3, vec![put(50, 50)]));
    bench.handle.load(behind(3));
    (0..3).for_each(|_| bench.gate.send(true).unwrap());
    (1..=2).for_each(|token| bench.committed(token));
    assert_eq!([answers(), answers()], [0; 2], "by the store's thread");
    bench.committed(3);
    assert_eq!(answers(), 0);
    // Its removals are too many to pass.
    bench.handle.commit(group(4, (0..10_001).map(|_| delete(1, 1)).collect()));
    bench.called_until(Call::Commit(vec![4]));
    bench.handle.commit(group(5, (0..10_001).map(|_| delete(1, 1)).collect()));
    bench.handle.load(behind(3));
    (0..2).for_each(|_| bench.gate.send(true).unwrap());
    (4..=5).for_each(|token| bench.committed(token));
    assert_eq!(answers(), 0);
    bench.handle.load(find(7));
    bench.handle.load(behind(3));
    assert!(matches!(bench.event(), StoreEvent::Loaded(Loaded::Found(_))));
    answers();
    bench.handle.close(SOON).unwrap();
}

#[test]
fn contents_not_found_are_looked_for_behind_the_writes() {
    let bench = Bench::new((100, 1 << 20), Some(false));
    bench.enter(1);
    bench.commit(2);
    bench.handle.load(contents(7));
    (0..2).for_each(|_| bench.gate.send(true).unwrap());
    bench.committed(1);
    bench.committed(2);
    assert_eq!(bench.loaded_handles(), vec![7]);
    // Work that the reader returns during the close is still done.
    bench.handle.load(contents(8));
    bench.handle.close(SOON).unwrap();
    assert_eq!(bench.loaded_handles(), vec![8]);
}

#[test]
fn closing_does_what_is_queued_or_gives_up_in_time() {
    let bench = Bench::new((1, 1), None);
    bench.enter(1);
    (2..=3).for_each(|token| bench.commit(token));
    assert!(matches!(bench.handle.close(Duration::from_millis(1)), Err(CloseError::Timeout(1))));
    bench.commit(4);
    (0..3).for_each(|_| bench.gate.send(true).unwrap());
    bench.handle.close(SOON).unwrap();
    (1..=3).for_each(|token| bench.committed(token));
    bench.called(Call::Commit(vec![2]));
    bench.called(Call::Commit(vec![3]));
    // Commit 4 was queued after the close.
    bench.called(Call::Closed);
}

#[test]
fn a_load_sees_every_write_queued_before_it() {
    let dir = tempfile::tempdir().unwrap();
    let (handle, events) = start(open_at(dir.path()).store, ThreadLimits::of(0));
    for n in 1..=50 {
        handle.commit(group(n, vec![put(n, n)]));
        handle.load(whole(APP));
    }
    let mut committed = 0;
    let mut seen = 0;
    while seen < 50 {
        match events.recv_timeout(SOON).unwrap() {
            StoreEvent::Committed(token) => {
                assert!(token > committed);
                committed = token;
            }
            StoreEvent::Loaded(Loaded::Ranges(answers)) => {
                seen += 1;
                assert_eq!(answers[0].rows.len(), seen, "the {seen}th load comes behind the {seen}th commit");
            }
            other => panic!("{other:?}"),
        }
    }
    handle.load(contents(5));
    match events.recv_timeout(SOON).unwrap() {
        StoreEvent::Loaded(Loaded::Contents(found)) => {
            assert_eq!((found[0].0, &*found[0].1.body), (5, &b"body 1"[..]))
        }
        other => panic!("{other:?}"),
    }
    handle.close(SOON).unwrap();
    // After the close the directory is unlocked.
    assert_eq!(open_at(dir.path()).opened.marks.next_seq, 51);
}

/// The store fails at once, and the caller never waits.
#[test]
fn more_than_may_be_queued_is_a_failure() {
    let limits = ThreadLimits { queued: 2_000, ..PROMPT };
    let bench = Bench::limited((100, 1 << 20), None, limits);
    bench.enter(1);
    // One job is accepted at any size, as an array of many entries may be large, with others that fit beside
    // it.
    bench.handle.commit(group(2, (0..99).map(|n| delete(n, n)).collect()));
    bench.commit(3);
    assert!(bench.events.try_recv().is_err(), "all is well");
    bench.handle.commit(group(4, (0..20).map(|n| delete(n, n)).collect()));
    match bench.event() {
        StoreEvent::Failed(StoreFailure::Stalled { bytes, .. }) => assert!(bytes > 2_000, "{bytes}"),
        other => panic!("{other:?}"),
    }
    bench.commit(5);
    bench.gate.send(true).unwrap();
    bench.handle.close(SOON).unwrap();
    assert!(bench.events.try_recv().is_err(), "nothing is reported behind a failure");
}

#[test]
fn a_call_that_does_not_come_back_is_a_failure_with_its_name() {
    // So long that none of the first calls takes as long on a busy machine.
    let limits = ThreadLimits { call: Duration::from_secs(6), ..PROMPT };
    let bench = Bench::limited((100, 1 << 20), None, limits);
    // As long as each call returns in time, there is no failure, however long all of them take together.
    for token in 1..=16 {
        bench.enter(token);
        std::thread::sleep(Duration::from_millis(400));
        bench.gate.send(true).unwrap();
        bench.committed(token);
    }
    bench.enter(17);
    match bench.event() {
        StoreEvent::Failed(error @ StoreFailure::NoAnswer { call: "commit", age_ms }) => {
            assert!((5_900..60_000).contains(&age_ms), "{age_ms}");
            assert!(error.to_string().contains("the disk does not answer: a commit"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    assert!(bench.handle.stats().still_ms.is_some_and(|age| age >= 5_900));
    assert!(matches!(bench.handle.close(Duration::from_millis(10)), Err(CloseError::Timeout(10))));
    bench.gate.send(true).unwrap();
    bench.handle.close(SOON).unwrap();
    assert!(bench.events.try_recv().is_err(), "nothing is reported behind a failure");
}

/// Each of its reads waits for a message, or until the sender is dropped; its commits do not wait.
#[derive(Clone)]
struct Stuck {
    word: Arc<Mutex<Receiver<()>>>,
    reader: bool,
}

impl Stuck {
    fn new(reader: bool) -> (Box<Self>, Sender<()>) {
        let (sender, word) = channel();
        (Box::new(Stuck { word: Arc::new(Mutex::new(word)), reader }), sender)
    }

    fn wait(&self) {
        let _ = self.word.lock().unwrap().recv();
    }
}

impl Store for Stuck {
    fn commit(&mut self, _: &[CommitGroup]) -> Result<(), CommitError> {
        Ok(())
    }
    fn load(&mut self, _: &Load) -> Result<Loaded, ReadError> {
        self.wait();
        Ok(Loaded::Ranges(Vec::new()))
    }
    fn reader(&self) -> Option<Box<dyn Reader>> {
        self.reader.then(|| Box::new(self.clone()) as Box<dyn Reader>)
    }
    fn look(&self, scan: &Scan) -> Option<LookJob> {
        let (store, number) = (self.clone(), scan.number);
        Some(Box::new(move || {
            store.wait();
            Ok(Loaded::Scanned { number, rows: Vec::new(), next: None })
        }))
    }
    fn usage(&self) -> Result<Usage, UsageError> {
        Ok(Usage { used: 1, free: 2, total: 3 })
    }
    fn close(self: Box<Self>) -> Result<(), CloseError> {
        Ok(())
    }
}

impl Reader for Stuck {
    fn contents(&self, _: &WantedContents) -> Result<Option<Contents>, ReadError> {
        self.wait();
        Ok(None)
    }

    fn ranges(&self, _: &[Range], _: usize, _: u64) -> Result<Vec<RangeRows>, ReadError> {
        self.wait();
        Ok(Vec::new())
    }
}

fn scan(number: u64) -> Load {
    let (from, until, along) = (Key::default(), u64::MAX, Along::Queue(APP.into()));
    let (max_rows, max_looked_at) = (9, 9);
    Load::Scan(Scan {
        number,
        along,
        from,
        until,
        customer: None,
        max_rows,
        max_looked_at,
        properties: false,
    })
}

#[test]
fn a_look_holds_up_no_commit_and_comes_in_order_with_others() {
    let (store, word) = Stuck::new(false);
    let (handle, events) = start(store, PROMPT);
    let event = || events.recv_timeout(SOON).unwrap();
    (1..=2).for_each(|number| handle.load(scan(number)));
    handle.commit(group(1, vec![delete(1, 1)]));
    assert!(matches!(event(), StoreEvent::Committed(1)));
    let stats = handle.stats();
    assert!(stats.still_ms.is_some(), "{stats:?}");
    for wanted in 1..=2 {
        word.send(()).unwrap();
        match event() {
            StoreEvent::Loaded(Loaded::Scanned { number, .. }) => assert_eq!(number, wanted),
            other => panic!("{other:?}"),
        }
    }
    drop(word);
    handle.close(SOON).unwrap();
}

/// A store whose calls are told, and whose reader waits for a message in each of them.
#[derive(Clone)]
struct Told {
    calls: Sender<String>,
    word: Arc<Mutex<Receiver<()>>>,
}

impl Told {
    fn read(&self, what: String) {
        self.calls.send(what).unwrap();
        self.word.lock().unwrap().recv_timeout(SOON).unwrap();
    }
}

impl Store for Told {
    fn commit(&mut self, _: &[CommitGroup]) -> Result<(), CommitError> {
        Ok(())
    }
    fn load(&mut self, _: &Load) -> Result<Loaded, ReadError> {
        self.calls.send("a question".to_owned()).unwrap();
        Ok(Loaded::Found(vec![Found::default()]))
    }
    fn renew(&mut self) -> Result<(), CommitError> {
        self.calls.send("a renewal".to_owned()).unwrap();
        Ok(())
    }
    fn reader(&self) -> Option<Box<dyn Reader>> {
        Some(Box::new(self.clone()))
    }
    fn usage(&self) -> Result<Usage, UsageError> {
        Ok(Usage { used: 1, free: 2, total: 3 })
    }
    fn close(self: Box<Self>) -> Result<(), CloseError> {
        Ok(())
    }
}

impl Reader for Told {
    fn contents(&self, wanted: &WantedContents) -> Result<Option<Contents>, ReadError> {
        self.read(format!("contents {}", wanted[0].0));
        Ok(Some(vec![]))
    }
    fn ranges(&self, _: &[Range], _: usize, _: u64) -> Result<Vec<RangeRows>, ReadError> {
        self.read("a queue".to_owned());
        Ok(vec![])
    }
}

/// Excluded: batches that leave without end, and keep a queue from being read; a question that is answered
/// before the read of the queue that came first; a lease that is not renewed meanwhile.
#[test]
fn a_queue_is_read_behind_one_read_of_contents_and_what_follows_it_keeps_nothing_else_waiting() {
    let (calls_in, calls) = channel();
    let (word, word_out) = channel();
    let store = Told { calls: calls_in, word: Arc::new(Mutex::new(word_out)) };
    let (handle, _events) = start(Box::new(store), PROMPT);
    let called = || calls.recv_timeout(SOON).unwrap();
    handle.load(contents(1));
    assert_eq!(called(), "contents 1");
    handle.load(whole(APP));
    (2..=4).for_each(|number| handle.load(contents(number)));
    handle.load(find(7));
    handle.renew();
    assert_eq!(called(), "a renewal");
    for next in ["contents 2", "a queue"] {
        word.send(()).unwrap();
        assert_eq!(called(), next);
    }
    handle.load(whole(APP));
    handle.renew();
    assert_eq!(called(), "a renewal", "the question still waits");
    (0..3).for_each(|_| word.send(()).unwrap());
    let mut rest = [(); 4].map(|()| called());
    rest.sort();
    // The second queue is read by the store's thread: it follows the question.
    assert_eq!(rest, ["a question", "a question", "contents 3", "contents 4"]);
    handle.close(SOON).unwrap();
}

/// Reads by the store's thread, by the reader, and by the looker.
#[test]
fn a_read_that_does_not_come_back_is_a_failure_too() {
    let limits = ThreadLimits { call: Duration::from_millis(200), ..PROMPT };
    let reads = [
        (true, contents(1), "read beside commits"),
        (true, whole(APP), "read beside commits"),
        (false, contents(1), "read"),
        (true, scan(1), "scan of rows"),
    ];
    for (reader, load, name) in reads {
        let (store, free) = Stuck::new(reader);
        let (handle, events) = start(store, limits);
        handle.load(load);
        match events.recv_timeout(SOON).unwrap() {
            StoreEvent::Failed(StoreFailure::NoAnswer { call, .. }) => assert_eq!(call, name),
            other => panic!("{other:?}"),
        }
        drop(free);
        handle.close(SOON).unwrap();
    }
}

#[test]
fn few_small_commits_wait_for_others_and_share_a_sync() {
    let patient = ThreadLimits { linger: SOON * 10, ..PROMPT };
    let ops = |from: u64, count: u64| (from..from + count).map(|n| delete(n, n)).collect();
    // Enough operations end the wait,
    let bench = Bench::limited((10_000, 1 << 20), None, patient);
    bench.commit(1);
    bench.commit(2);
    bench.handle.commit(group(3, ops(3, 62)));
    bench.called(Call::Commit(vec![1, 2, 3]));
    bench.gate.send(true).unwrap();
    // so does a read,
    bench.commit(4);
    bench.handle.load(find(4));
    bench.called(Call::Commit(vec![4]));
    bench.gate.send(true).unwrap();
    bench.called(Call::Find(4));
    // so does a commit for which an answer waits,
    bench.commit(5);
    bench.handle.commit(CommitGroup { hurried: true, ..group(6, ops(6, 1)) });
    bench.called(Call::Commit(vec![5, 6]));
    bench.gate.send(true).unwrap();
    // so do enough bytes,
    let large = Content { body: vec![0; 40_000], ..Content::default() };
    bench.commit(7);
    bench
        .handle
        .commit(group(8, vec![put_item(Stored { content: Some(Arc::new(large)), ..item(8, 8) }, false)]));
    bench.called(Call::Commit(vec![7, 8]));
    bench.gate.send(true).unwrap();
    // and so does a close.
    bench.commit(9);
    let handle = bench.handle.clone();
    let closing = std::thread::spawn(move || handle.close(SOON));
    bench.called(Call::Commit(vec![9]));
    bench.gate.send(true).unwrap();
    closing.join().unwrap().unwrap();
}

#[test]
fn a_commit_alone_waits_no_longer_than_it_may() {
    let bench =
        Bench::limited((10_000, 1 << 20), None, ThreadLimits { linger: Duration::from_millis(2), ..PROMPT });
    bench.enter(1);
    bench.gate.send(true).unwrap();
}
