//! The store's threads, with a store that records what it is asked and waits where it is told to.

#![expect(clippy::wildcard_enum_match_arm, reason = "another event fails the test")]

use super::tests::{delete, group, key, open_at, put};
use super::thread::{spawn, Event, Handle};
use super::*;
use crate::engine::event::{Found, Wanted as Sought};
use crate::engine::types::{Content, Identity};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::Mutex;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(20);

/// What the recording store was asked to do.
#[derive(Debug, PartialEq)]
enum Call {
    Commit(Vec<Token>),
    Load,
    /// With the number of the one item asked for.
    Find(u64),
    Closed,
}

/// Its commits wait for a word on `gate` each: go on, or fail.
struct Recording {
    calls: Sender<Call>,
    gate: Receiver<bool>,
    limit: (usize, u64),
    reader: Option<bool>,
}

impl Store for Recording {
    fn commit(&mut self, groups: &[Commit]) -> Result<(), StoreError> {
        self.calls.send(Call::Commit(groups.iter().map(|g| g.token).collect())).unwrap();
        if self.gate.recv_timeout(SOON).unwrap() {
            Ok(())
        } else {
            Err(StoreError::DiskFull { free: 0, error: "no room".into() })
        }
    }

    fn load(&mut self, load: &Load) -> Result<Loaded, StoreError> {
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
            _ => Loaded::Time { rows: Vec::new(), next: None },
        })
    }

    fn reader(&self) -> Option<Box<dyn Reader>> {
        struct Fixed(bool);
        impl Reader for Fixed {
            fn contents(&self, wanted: &Wanted) -> Result<Option<Contents>, StoreError> {
                Ok(self.0.then(|| wanted.iter().map(|w| (w.0, Arc::new(Content::default()))).collect()))
            }
        }
        self.reader.map(|found| Box::new(Fixed(found)) as Box<dyn Reader>)
    }

    fn usage(&self) -> Result<Usage, StoreError> {
        Ok(Usage { used: 1, free: 2, total: 3 })
    }

    fn group_limit(&self) -> (usize, u64) {
        self.limit
    }

    fn close(self: Box<Self>) -> Result<(), StoreError> {
        self.calls.send(Call::Closed).unwrap();
        Ok(())
    }
}

struct Bench {
    handle: Handle,
    events: Receiver<Event>,
    calls: Receiver<Call>,
    gate: Sender<bool>,
}

impl Bench {
    fn new(limit: (usize, u64), reader: Option<bool>) -> Self {
        let (calls_in, calls) = channel();
        let (gate, gate_out) = channel();
        let (handle, events) = start(Box::new(Recording { calls: calls_in, gate: gate_out, limit, reader }));
        Bench { handle, events, calls, gate }
    }

    fn commit(&self, token: Token) {
        self.handle.commit(group(token, vec![delete(token, token)]));
    }

    /// The store is in the middle of the commit of this token.
    fn enter(&self, token: Token) {
        self.commit(token);
        self.called(Call::Commit(vec![token]));
    }

    fn called(&self, call: Call) {
        assert_eq!(self.calls.recv_timeout(SOON).unwrap(), call);
    }

    fn event(&self) -> Event {
        self.events.recv_timeout(SOON).unwrap()
    }

    fn committed(&self, token: Token) {
        assert!(matches!(self.event(), Event::Committed(t) if t == token));
    }

    fn loaded_handles(&self) -> Vec<u64> {
        match self.event() {
            Event::Loaded(Loaded::Contents(found)) => found.iter().map(|f| f.0).collect(),
            other => panic!("{other:?}"),
        }
    }
}

fn start(store: Box<dyn Store>) -> (Handle, Receiver<Event>) {
    let (events_in, events) = channel();
    let events_in = Mutex::new(events_in);
    let on_event = move |event| drop(events_in.lock().unwrap().send(event));
    (spawn(store, Arc::new(on_event)).unwrap(), events)
}

fn time() -> Load {
    Load::Time { from: Key::default(), until: u64::MAX, max_rows: 9, max_bytes: 0 }
}

fn find(number: u64) -> Load {
    let identity = Identity::assigned(number);
    Load::Find(vec![Sought { identity, application: "app".into(), buckets: vec![] }])
}

fn contents(handle: u64) -> Load {
    Load::Contents(vec![(handle, Place::Time, key(1, 1))])
}

#[test]
fn commits_up_to_the_next_load_share_a_sync() {
    let bench = Bench::new((100, 1 << 20), None);
    bench.enter(1);
    (2..=4).for_each(|token| bench.commit(token));
    bench.handle.load(time());
    (5..=6).for_each(|token| bench.commit(token));
    let stats = bench.handle.stats();
    assert_eq!((stats.queued, stats.syncs), (6, 0));
    assert!(stats.queued_bytes > 0 && stats.oldest_ms.is_some(), "{stats:?}");
    (0..3).for_each(|_| bench.gate.send(true).unwrap());
    bench.called(Call::Commit(vec![2, 3, 4]));
    bench.called(Call::Load);
    bench.called(Call::Commit(vec![5, 6]));
    bench.committed(1);
    bench.committed(4);
    assert!(matches!(bench.event(), Event::Loaded(Loaded::Time { .. })));
    bench.committed(6);
    bench.handle.close(SOON).unwrap();
    bench.called(Call::Closed);
    let stats = bench.handle.stats();
    assert_eq!((stats.syncs, stats.commits, stats.queued, stats.queued_bytes), (3, 6, 0, 0));
    assert_eq!((stats.oldest_ms, stats.failed), (None, false));
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
    bench.handle.load(time());
    bench.handle.load(find(101));
    bench.commit(102);
    bench.handle.load(find(102));
    (0..3).for_each(|_| bench.gate.send(true).unwrap());
    // All at once; then the answers, in the order of the questions, before that of any other load.
    bench.called(Call::Commit((2..=100).collect()));
    (2..=100).for_each(|number| bench.called(Call::Find(number)));
    bench.called(Call::Load);
    bench.called(Call::Find(101));
    bench.called(Call::Commit(vec![102]));
    bench.called(Call::Find(102));
    bench.committed(1);
    bench.committed(100);
    (2..=100).for_each(|_| assert!(matches!(bench.event(), Event::Loaded(Loaded::Found(_)))));
    assert!(matches!(bench.event(), Event::Loaded(Loaded::Time { .. })));
    assert!(matches!(bench.event(), Event::Loaded(Loaded::Found(_))));
    bench.committed(102);
    assert!(matches!(bench.event(), Event::Loaded(Loaded::Found(_))));
    bench.handle.close(SOON).unwrap();
    let stats = bench.handle.stats();
    assert_eq!((stats.syncs, stats.commits, stats.queued, stats.queued_bytes), (3, 101, 0, 0));
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
    assert!(matches!(bench.event(), Event::Failed(StoreError::DiskFull { .. })));
    bench.handle.close(SOON).unwrap();
    assert_eq!(bench.calls.try_iter().collect::<Vec<_>>(), vec![]);
    assert!(bench.events.try_recv().is_err());
}

#[test]
fn a_group_has_its_limits_but_takes_one_commit_in_any_case() {
    for limit in [(2, 1 << 20), (100, 300)] {
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
    bench.handle.load(time());
    bench.gate.send(false).unwrap();
    assert!(matches!(bench.event(), Event::Failed(StoreError::DiskFull { .. })));
    bench.commit(3);
    bench.handle.load(time());
    bench.handle.load(contents(4));
    bench.handle.close(SOON).unwrap();
    assert!(bench.handle.stats().failed);
    // Neither a call nor an event, not even a close with its sync.
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
    // What the reader hands back while everything closes is still done.
    bench.handle.load(contents(8));
    bench.handle.close(SOON).unwrap();
    assert_eq!(bench.loaded_handles(), vec![8]);
}

#[test]
fn closing_does_what_is_queued_or_gives_up_in_time() {
    let bench = Bench::new((1, 1), None);
    bench.enter(1);
    (2..=3).for_each(|token| bench.commit(token));
    assert!(matches!(bench.handle.close(Duration::from_millis(1)), Err(StoreError::CloseTimeout(1))));
    bench.commit(4);
    (0..3).for_each(|_| bench.gate.send(true).unwrap());
    bench.handle.close(SOON).unwrap();
    (1..=3).for_each(|token| bench.committed(token));
    bench.called(Call::Commit(vec![2]));
    bench.called(Call::Commit(vec![3]));
    // Number 4 came too late.
    bench.called(Call::Closed);
}

#[test]
fn a_load_sees_every_write_queued_before_it() {
    let dir = tempfile::tempdir().unwrap();
    let (handle, events) = start(open_at(dir.path()).store);
    for n in 1..=50 {
        handle.commit(group(n, vec![put(n, n)]));
        handle.load(Load::Time { from: Key::default(), until: u64::MAX, max_rows: 99, max_bytes: 0 });
    }
    let mut committed = 0;
    let mut seen = 0;
    while seen < 50 {
        match events.recv_timeout(SOON).unwrap() {
            Event::Committed(token) => {
                assert!(token > committed);
                committed = token;
            }
            Event::Loaded(Loaded::Time { rows, .. }) => {
                seen += 1;
                assert_eq!(rows.len(), seen, "the {seen}th load comes behind the {seen}th commit");
            }
            other => panic!("{other:?}"),
        }
    }
    handle.load(contents(5));
    match events.recv_timeout(SOON).unwrap() {
        Event::Loaded(Loaded::Contents(found)) => {
            assert_eq!((found[0].0, &*found[0].1.body), (5, &b"body 1"[..]))
        }
        other => panic!("{other:?}"),
    }
    handle.close(SOON).unwrap();
    // Closed means that the directory is free again.
    assert_eq!(open_at(dir.path()).opened.marks.next_seq, 51);
}
