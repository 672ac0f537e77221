//! The store's own thread: writes and reads in the order they were asked for, many commits with one sync.
//!
//! A second thread reads contents beside it, so that a batch never waits behind a sync for payloads that have
//! been on the disk for long. Deliberately absent: decisions, and retries. After a failure nothing more is
//! done, so that nothing can be acked behind a commit that may not have happened; the process stops and opens
//! the store anew.

use super::{Commit, Reader, Store, StoreError, Usage};
use crate::clock;
use crate::engine::event::{Load, Loaded, Op, Place, Token};
use crate::engine::types::{End, Key};
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// Bytes that may be queued before [`Handle::commit`] waits. What the engine can queue is bounded by what it holds
/// in memory and by the prefetch; this is reached only by a disk that has stood still for seconds.
const MAX_QUEUED: u64 = 64 << 20;
/// Jobs that may be queued; as above.
const MAX_JOBS: usize = 65_536;
/// How long [`Handle::commit`] waits at most; then the disk is taken for dead.
const MAX_STALL: Duration = Duration::from_secs(30);
/// Age at which the known [`Usage`] is taken anew, ms.
const USAGE_AGE: u64 = 1_000;

/// What the store reports.
#[derive(Debug)]
pub enum Event {
    /// Every commit up to and including this token is durable.
    Committed(Token),
    /// A read has come back.
    Loaded(Loaded),
    /// The store has failed: the last event of its kind, and nothing is committed or read any more.
    Failed(StoreError),
}

/// Where events go. Called from the store's threads; must not block.
pub type OnEvent = Arc<dyn Fn(Event) + Send + Sync>;

/// How the store is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Calls of [`Store::commit`], each with one sync.
    pub syncs: u64,
    /// Commits made durable by them.
    pub commits: u64,
    /// Duration of the last sync with its writes, ms.
    pub last_commit_ms: u64,
    /// The longest one so far, ms.
    pub max_commit_ms: u64,
    /// Commits and loads that wait to be taken up.
    pub queued: usize,
    /// Their size, bytes, about.
    pub queued_bytes: u64,
    /// Age of the oldest job that waits or is being worked on, ms: for a watchdog.
    pub oldest_ms: Option<u64>,
    /// Room taken and left, as of about a second before the last call of [`Handle::stats`].
    pub usage: Option<Usage>,
    /// [`Event::Failed`] has been reported.
    pub failed: bool,
}

/// Starts the threads. Events go to `on_event`.
///
/// # Errors
///
/// [`StoreError::Thread`].
pub fn spawn(store: Box<dyn Store>, on_event: OnEvent) -> Result<Handle, StoreError> {
    let reader = store.reader();
    let state = State { reader_alive: reader.is_some(), store_alive: true, ..State::default() };
    let usage = store.usage().ok();
    let state = State { has_reader: reader.is_some(), usage, usage_at: clock::now().mono, ..state };
    let shared = Arc::new(Shared {
        state: Mutex::new(state),
        work: Condvar::new(),
        reads: Condvar::new(),
        room: Condvar::new(),
        done: Condvar::new(),
        on_event,
    });
    let mut threads = Vec::new();
    if let Some(reader) = reader {
        threads.push(start("tidegate-reader", &shared, move |shared| read(&*reader, shared))?);
    }
    match start("tidegate-store", &shared, move |shared| serve(store, shared)) {
        Ok(thread) => threads.push(thread),
        Err(error) => {
            // The reader has nobody to serve.
            shared.lock().closing = true;
            shared.reads.notify_all();
            return Err(error);
        }
    }
    Ok(Handle { shared, threads: Arc::new(Mutex::new(threads)) })
}

fn start(
    name: &str,
    shared: &Arc<Shared>,
    run: impl FnOnce(&Shared) + Send + 'static,
) -> Result<JoinHandle<()>, StoreError> {
    let shared = shared.clone();
    Builder::new().name(name.to_owned()).spawn(move || run(&shared)).map_err(StoreError::Thread)
}

/// Hands work to the store's threads. Cheap to clone.
#[derive(Clone)]
pub struct Handle {
    shared: Arc<Shared>,
    threads: Arc<Mutex<Vec<JoinHandle<()>>>>,
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

impl Handle {
    /// Queues a commit; [`Event::Committed`] follows. Returns at once, unless so much is queued that the disk must
    /// have stood still for seconds: then it waits for room, at most 30 s, and reports [`StoreError::Stalled`]
    /// after that. Without effect after a failure or [`Handle::close`].
    pub fn commit(&self, commit: Commit) {
        let bytes = commit.ops.iter().map(size).sum();
        self.queue(Job::Commit(commit), bytes);
    }

    /// Queues a read; [`Event::Loaded`] follows, in the order in which reads other than [`Load::Contents`] were
    /// queued. It sees every commit queued before it, and a [`Load::Find`] may see later ones too: it does not part
    /// commits that share a sync.
    ///
    /// Contents are read at once, beside commits that are under way: the engine asks only for contents of items
    /// whose commit is durable. Should one not be there even so, because a move of it is still queued, it is looked
    /// for again behind all that was queued.
    pub fn load(&self, load: Load) {
        let mut state = self.shared.lock();
        let beside = state.has_reader && state.reads.len() < MAX_JOBS;
        let wanted = match load {
            Load::Contents(wanted) if beside => wanted,
            load @ (Load::Time { .. }
            | Load::Lane { .. }
            | Load::Group { .. }
            | Load::Contents(_)
            | Load::Find(_)
            | Load::Walk(_)) => {
                drop(state);
                return self.queue(Job::Load(load), 0);
            }
        };
        if state.open() {
            state.reads.push_back(Queued { since: clock::now().mono, bytes: 0, job: wanted });
            self.shared.reads.notify_one();
        }
    }

    fn queue(&self, job: Job, bytes: u64) {
        let full = |s: &mut State| {
            let over = s.bytes.saturating_add(bytes) > MAX_QUEUED || s.jobs.len() >= MAX_JOBS;
            s.open() && over && !s.jobs.is_empty()
        };
        let waited = self.shared.room.wait_timeout_while(self.shared.lock(), MAX_STALL, full);
        let (mut state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        if !state.open() {
            return;
        }
        if timeout.timed_out() {
            let queued = state.bytes;
            drop(state);
            self.shared.fail(StoreError::Stalled { queued, waited_s: MAX_STALL.as_secs() });
            return;
        }
        state.bytes += bytes;
        state.jobs.push_back(Queued { since: clock::now().mono, bytes, job });
        self.shared.work.notify_one();
    }

    /// How the store is doing; never waits for it.
    pub fn stats(&self) -> Stats {
        let mut state = self.shared.lock();
        let now = clock::now().mono;
        if now.saturating_sub(state.usage_at) >= USAGE_AGE && state.store_alive {
            state.usage_wanted = true;
            self.shared.work.notify_one();
        }
        let oldest = [
            state.serving,
            state.reading,
            state.jobs.front().map(|q| q.since),
            state.reads.front().map(|q| q.since),
        ];
        Stats {
            queued: state.jobs.len() + state.reads.len(),
            queued_bytes: state.bytes,
            oldest_ms: oldest.into_iter().flatten().min().map(|since| now.saturating_sub(since)),
            usage: state.usage,
            failed: state.failed,
            ..state.stats
        }
    }

    /// Does what is queued, syncs, closes the store and ends its threads; all that within `timeout`.
    ///
    /// # Errors
    ///
    /// [`StoreError::CloseTimeout`], or the error of the last sync. What has been reported as committed is
    /// durable in either case.
    pub fn close(&self, timeout: Duration) -> Result<(), StoreError> {
        let mut state = self.shared.lock();
        state.closing = true;
        self.shared.work.notify_all();
        self.shared.reads.notify_all();
        self.shared.room.notify_all();
        let waited = self.shared.done.wait_timeout_while(state, timeout, |s| s.store_alive || s.reader_alive);
        let (mut state, timed_out) = waited.unwrap_or_else(PoisonError::into_inner);
        if timed_out.timed_out() {
            return Err(StoreError::CloseTimeout(timeout.as_millis()));
        }
        let failed = state.close_error.take();
        drop(state);
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        for thread in threads.drain(..) {
            // Both have said that they are done; a panic has been reported by `Alive`.
            let _ = thread.join();
        }
        failed.map_or(Ok(()), Err)
    }
}

/// Bytes of memory that a queued operation holds, about.
fn size(op: &Op) -> u64 {
    match op {
        Op::Put { item, .. } => 256 + item.content.as_ref().map_or(0, |c| c.size()),
        Op::Delete { .. }
        | Op::Index { .. }
        | Op::Park { .. }
        | Op::PutWindow(_)
        | Op::DeleteWindow { .. }
        | Op::PutLane(_)
        | Op::BeginBucket(_)
        | Op::PutApp(_) => 128,
        Op::Remember { ended, .. } => {
            let error = match &ended.end {
                End::Dead(dead) => dead.error.len(),
                End::Sent(_) | End::Cancelled | End::CancelledAgain => 0,
            };
            256 + error as u64
        }
    }
}

type ContentsWanted = Vec<(u64, Place, Key)>;

enum Job {
    Commit(Commit),
    Load(Load),
}

struct Queued<T> {
    /// Monotonic ms.
    since: u64,
    bytes: u64,
    job: T,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Queued<Job>>,
    reads: VecDeque<Queued<ContentsWanted>>,
    /// Sum over `jobs`.
    bytes: u64,
    /// When the oldest of what the store works on was queued.
    serving: Option<u64>,
    /// The same of the reader.
    reading: Option<u64>,
    has_reader: bool,
    store_alive: bool,
    reader_alive: bool,
    closing: bool,
    failed: bool,
    close_error: Option<StoreError>,
    usage: Option<Usage>,
    usage_at: u64,
    usage_wanted: bool,
    /// Only its counters; the rest is filled in when it is asked for.
    stats: Stats,
}

impl State {
    fn open(&self) -> bool {
        !self.closing && !self.failed
    }
}

struct Shared {
    state: Mutex<State>,
    /// For the store: there is something to do.
    work: Condvar,
    /// For the reader: there is something to do.
    reads: Condvar,
    /// For callers: there is room.
    room: Condvar,
    /// For [`Handle::close`]: a thread has ended.
    done: Condvar,
    on_event: OnEvent,
}

/// What the store does next.
enum Turn {
    /// These commits, and then these [`Load::Find`]s, which were asked between them.
    Commit(Vec<Commit>, Vec<Load>),
    Load(Load),
    Measure,
    End,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports the first failure, and drops all work.
    fn fail(&self, error: StoreError) {
        let mut state = self.lock();
        let first = !std::mem::replace(&mut state.failed, true);
        state.jobs.clear();
        state.reads.clear();
        state.bytes = 0;
        drop(state);
        self.work.notify_all();
        self.reads.notify_all();
        self.room.notify_all();
        if first {
            (self.on_event)(Event::Failed(error));
        }
    }

    /// Waits for work: all commits up to the next load that must not see later ones, within the limits, or that
    /// load.
    fn next(&self, (max_ops, max_bytes): (usize, u64)) -> Turn {
        let mut state = self.lock();
        state.serving = None;
        loop {
            if state.failed {
                return Turn::End;
            }
            if let Some(first) = state.jobs.front() {
                state.serving = Some(first.since);
                break;
            }
            if std::mem::take(&mut state.usage_wanted) {
                return Turn::Measure;
            }
            // The reader may still hand work back.
            if state.closing && !state.reader_alive {
                return Turn::End;
            }
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let (mut groups, mut finds, mut ops, mut bytes) = (Vec::new(), Vec::new(), 0, 0);
        while let Some(queued) = state.jobs.pop_front() {
            match queued.job {
                Job::Commit(commit) => {
                    ops += commit.ops.len();
                    bytes += queued.bytes;
                    if !groups.is_empty() && (ops > max_ops || bytes > max_bytes) {
                        state.jobs.push_front(Queued { job: Job::Commit(commit), ..queued });
                        break;
                    }
                    state.bytes -= queued.bytes;
                    groups.push(commit);
                }
                Job::Load(load) if groups.is_empty() => return Turn::Load(load),
                Job::Load(load @ Load::Find(_)) => finds.push(load),
                Job::Load(load) => {
                    state.jobs.push_front(Queued { job: Job::Load(load), ..queued });
                    break;
                }
            }
        }
        self.room.notify_all();
        Turn::Commit(groups, finds)
    }

    fn committed(&self, groups: &[Commit], took_ms: u64) {
        let mut state = self.lock();
        state.stats.syncs += 1;
        state.stats.commits += groups.len() as u64;
        state.stats.last_commit_ms = took_ms;
        state.stats.max_commit_ms = state.stats.max_commit_ms.max(took_ms);
    }
}

/// Says that a thread has ended, however it ended.
struct Alive<'a> {
    shared: &'a Shared,
    flag: fn(&mut State) -> &mut bool,
}

impl Drop for Alive<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let error = "it has a fault of its own; see the log".to_owned();
            self.shared.fail(StoreError::Engine { action: "worked", error });
        }
        *(self.flag)(&mut self.shared.lock()) = false;
        self.shared.work.notify_all();
        self.shared.done.notify_all();
    }
}

/// The store's thread.
fn serve(mut store: Box<dyn Store>, shared: &Shared) {
    let _alive = Alive { shared, flag: |s| &mut s.store_alive };
    let limit = store.group_limit();
    loop {
        let result = match shared.next(limit) {
            Turn::Commit(groups, finds) => commit(&mut *store, &groups, shared)
                .and_then(|()| finds.iter().try_for_each(|find| load(&mut *store, find, shared))),
            Turn::Load(wanted) => load(&mut *store, &wanted, shared),
            Turn::Measure => {
                measure(&*store, shared);
                Ok(())
            }
            Turn::End => break,
        };
        if let Err(error) = result {
            shared.fail(error);
        }
    }
    if shared.lock().failed {
        return;
    }
    if let Err(error) = store.close() {
        shared.lock().close_error = Some(error);
    }
}

fn commit(store: &mut dyn Store, groups: &[Commit], shared: &Shared) -> Result<(), StoreError> {
    let started = clock::now().mono;
    failpoint!("before-commit");
    store.commit(groups)?;
    failpoint!("after-commit");
    shared.committed(groups, clock::now().mono.saturating_sub(started));
    if let Some(last) = groups.last() {
        (shared.on_event)(Event::Committed(last.token));
    }
    Ok(())
}

fn load(store: &mut dyn Store, load: &Load, shared: &Shared) -> Result<(), StoreError> {
    store.load(load).map(|loaded| (shared.on_event)(Event::Loaded(loaded)))
}

fn measure(store: &dyn Store, shared: &Shared) {
    let usage = store.usage();
    let mut state = shared.lock();
    state.usage_at = clock::now().mono;
    match usage {
        Ok(usage) => state.usage = Some(usage),
        // The last known one stays; a store that really fails says so at the next commit.
        Err(error) => tracing::warn!(%error, "room on the disk unknown"),
    }
}

/// The reader's thread.
fn read(reader: &dyn Reader, shared: &Shared) {
    let _alive = Alive { shared, flag: |s| &mut s.reader_alive };
    loop {
        let wanted = {
            let idle = |s: &mut State| s.reads.is_empty() && s.open();
            let mut state = shared.lock();
            state.reading = None;
            state = shared.reads.wait_while(state, idle).unwrap_or_else(PoisonError::into_inner);
            let Some(queued) = state.reads.pop_front() else { return };
            state.reading = Some(queued.since);
            queued.job
        };
        match reader.contents(&wanted) {
            Ok(Some(found)) => (shared.on_event)(Event::Loaded(Loaded::Contents(found))),
            Ok(None) => {
                let mut state = shared.lock();
                if !state.failed {
                    let since = state.reading.unwrap_or_default();
                    let job = Job::Load(Load::Contents(wanted));
                    state.jobs.push_back(Queued { since, bytes: 0, job });
                    shared.work.notify_one();
                }
            }
            Err(error) => shared.fail(error),
        }
    }
}
