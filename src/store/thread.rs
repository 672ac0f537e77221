//! The store's own thread: writes and reads in the order they were asked for, many commits with one sync.
//!
//! A second thread reads contents beside it, so that a batch never waits behind a sync for payloads that have
//! been on the disk for long. A third looks over many rows for whoever asks about them, so that neither waits
//! for that. A fourth watches that the calls of all come back. A caller never waits.
//! Deliberately absent: decisions, and retries. After a failure nothing more is
//! done, so that nothing can be acked behind a commit that may not have happened; the process stops and opens
//! the store anew.
//!
//! Where commits are few and small, each would be a sync of its own, and wake four threads: one waits for up
//! to [`ThreadLimits::linger`] for the next ones. Only acks wait with it, no delivery; a read, a commit that
//! an answer waits for, and enough operations or bytes end the wait.

mod beside;

pub use super::report::{
    CommitFigures, CommitStats, OnEvent, StoreEvent, StoreStats, ThreadLimits, STORE_CALL_LIMIT,
};

use super::jobs::{size, Job, Jobs, Queued, JOB_COST};
use super::{CloseError, CommitGroup, LookJob, ReadError, SpawnError, Store, StoreFailure, Usage};
use crate::clock;
use crate::engine::event::{Load, Place};
use beside::{look, read, watch};
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// Least time between two attempts to give back room, ms.
const RECLAIM_PAUSE: u64 = 60_000;
/// Age at which the known [`Usage`] is taken anew, ms.
const USAGE_AGE: u64 = 1_000;

/// Starts the threads. Events go to `on_event`, and what commits take is counted in `commits`.
///
/// # Errors
///
/// The system starts no thread.
pub fn spawn(
    store: Box<dyn Store>,
    limits: ThreadLimits,
    commits: Arc<CommitFigures>,
    on_event: OnEvent,
) -> Result<StoreHandle, SpawnError> {
    let reader = store.reader();
    let state = ThreadState {
        has_reader: reader.is_some(),
        reader: Worker { alive: reader.is_some(), ..Worker::default() },
        looker: Worker { alive: true, ..Worker::default() },
        store: Worker { alive: true, ..Worker::default() },
        usage: store.usage().ok(),
        usage_at: clock::now().mono,
        ..ThreadState::default()
    };
    let shared = Arc::new(ThreadShared {
        state: Mutex::new(state),
        work: Condvar::new(),
        reads: Condvar::new(),
        looks: Condvar::new(),
        done: Condvar::new(),
        limits,
        commits,
        on_event,
    });
    let handle = StoreHandle { shared: shared.clone(), threads: Arc::default() };
    let mut started = vec![
        start("tidegate-watch", &shared, |shared| watch(shared)),
        start("tidegate-looker", &shared, |shared| look(shared)),
    ];
    if let Some(reader) = reader {
        started.push(start("tidegate-reader", &shared, move |shared| read(&*reader, shared)));
    }
    started.push(start("tidegate-store", &shared, move |shared| serve(store, shared)));
    let mut threads = handle.threads.lock().unwrap_or_else(PoisonError::into_inner);
    for thread in started {
        match thread {
            Ok(thread) => threads.push(thread),
            Err(error) => {
                // The others have nothing to serve.
                let mut state = shared.lock();
                state.closing = true;
                (state.store.alive, state.reader.alive, state.looker.alive) = (false, false, false);
                shared.notify();
                return Err(error);
            }
        }
    }
    drop(threads);
    Ok(handle)
}

fn start(
    name: &str,
    shared: &Arc<ThreadShared>,
    run: impl FnOnce(&Arc<ThreadShared>) + Send + 'static,
) -> Result<JoinHandle<()>, SpawnError> {
    let shared = shared.clone();
    Ok(Builder::new().name(name.to_owned()).spawn(move || run(&shared))?)
}

/// Hands work to the store's threads. Cheap to clone; no call but [`StoreHandle::close`] waits for anything.
#[derive(Clone)]
pub struct StoreHandle {
    shared: Arc<ThreadShared>,
    threads: Arc<Mutex<Vec<JoinHandle<()>>>>,
}

impl fmt::Debug for StoreHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreHandle").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

impl StoreHandle {
    /// Queues a commit; [`StoreEvent::Committed`] follows. More than [`ThreadLimits::queued`], the largest
    /// job apart, is reported as [`StoreFailure::Stalled`]. Without effect after a failure or
    /// [`StoreHandle::close`].
    pub fn commit(&self, commit: CommitGroup) {
        let bytes = commit.ops.iter().map(size).sum();
        self.queue(Job::Commit(commit), bytes);
    }

    /// Queues a read; [`StoreEvent::Loaded`] follows. It sees every commit queued before it, and a
    /// [`Load::Find`] may see later ones too: it does not part commits that share a sync. Reads of ranges and
    /// finds are answered in the order in which they were queued, and so are scans, apart from the others.
    ///
    /// Contents are read at once, beside commits that are under way: the engine asks only for contents of
    /// items whose commit is durable. Should one not be there even so, because a move of it is still queued,
    /// it is looked for again behind all that was queued.
    pub fn load(&self, load: Load) {
        let mut state = self.shared.lock();
        let wanted = match load {
            Load::Contents(wanted) if state.has_reader => wanted,
            load @ (Load::Ranges { .. } | Load::Contents(_) | Load::Find(_) | Load::Scan(_)) => {
                drop(state);
                return self.queue(Job::Load(load), 0);
            }
        };
        if state.open() {
            state.reader.waiting.push_back(Queued { since: clock::now().mono, bytes: 0, job: wanted });
            self.shared.reads.notify_one();
        }
    }

    fn queue(&self, job: Job, bytes: u64) {
        let now = clock::now().mono;
        let bytes = bytes.saturating_add(JOB_COST);
        let mut state = self.shared.lock();
        if !state.open() {
            return;
        }
        let first = state.store.waiting.since();
        let all = state.store.waiting.bytes().saturating_add(bytes);
        let limit = self.shared.limits.queued;
        let over = all > limit && state.store.waiting.bytes_beside_the_largest(bytes) > limit;
        if let Some(first) = first.filter(|_| over) {
            drop(state);
            let stalled = StoreFailure::Stalled { bytes: all, waited_ms: now.saturating_sub(first) };
            return self.shared.fail(stalled);
        }
        state.store.waiting.push(Queued { since: now, bytes, job });
        if !state.lingers || state.store.waiting.is_pressing() {
            self.shared.work.notify_one();
        }
    }

    /// How the store is doing.
    pub fn stats(&self) -> StoreStats {
        let mut state = self.shared.lock();
        let now = clock::now().mono;
        if now.saturating_sub(state.usage_at) >= USAGE_AGE && state.store.alive {
            state.usage_wanted = true;
            self.shared.work.notify_one();
        }
        let age = |oldest: Option<u64>| oldest.map(|since| now.saturating_sub(since));
        let ThreadState { store, reader, looker, .. } = &*state;
        let still = [
            store.still(store.waiting.since()),
            reader.still(reader.waiting.front().map(|queued| queued.since)),
            looker.still(looker.waiting.front().map(|queued| queued.since)),
        ];
        StoreStats {
            queued: store.waiting.len() + reader.waiting.len() + looker.waiting.len(),
            still_ms: age(still.into_iter().flatten().min()),
            usage: state.usage,
            failed: state.failed,
        }
    }

    /// Gives back the room of what was deleted, once the store is idle: for a store that takes nothing
    /// because it is full, and in which nothing would be compacted else. To be called as long as it is;
    /// without effect within a minute of the last time that it was begun. [`StoreStats::usage`] tells what
    /// came of it.
    pub fn reclaim(&self) {
        let now = clock::now().mono;
        let mut state = self.shared.lock();
        let lately = state.reclaimed_at.is_some_and(|at| now.saturating_sub(at) < RECLAIM_PAUSE);
        if state.open() && !state.reclaiming && !lately {
            state.reclaimed_at = Some(now);
            state.reclaim_wanted = true;
            self.shared.work.notify_one();
        }
    }

    /// Extends the lease of a store that has one, before what is queued.
    pub fn renew(&self) {
        let mut state = self.shared.lock();
        if state.open() {
            state.renew_wanted = true;
            self.shared.work.notify_one();
        }
    }

    /// Lets go of the store, and fails as [`StoreFailure::GivenAway`], if another daemon stands by that would
    /// have it. What is queued is dropped.
    pub fn give_away(&self) {
        let mut state = self.shared.lock();
        if state.open() {
            state.heir_wanted = true;
            self.shared.work.notify_one();
        }
    }

    /// Does what is queued, syncs, closes the store and ends its threads; all that within `timeout`.
    ///
    /// # Errors
    ///
    /// [`CloseError::Timeout`], or the error of the last sync. What has been reported as committed is durable
    /// in either case.
    pub fn close(&self, timeout: Duration) -> Result<(), CloseError> {
        let mut state = self.shared.lock();
        state.closing = true;
        self.shared.notify();
        let waited = self.shared.done.wait_timeout_while(state, timeout, |s| s.any_alive() || s.reclaiming);
        let (mut state, timed_out) = waited.unwrap_or_else(PoisonError::into_inner);
        if timed_out.timed_out() {
            return Err(CloseError::Timeout(timeout.as_millis()));
        }
        let failed = state.close_error.take();
        drop(state);
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        for thread in threads.drain(..) {
            // All have said that they are done; a panic has been reported by `Alive`.
            let _ = thread.join();
        }
        failed.map_or(Ok(()), Err)
    }
}

type ContentsWanted = Vec<(u64, Place)>;

/// A call of the storage engine that has not come back.
#[derive(Clone, Copy)]
struct Call {
    what: &'static str,
    /// Tells one call from the next.
    number: u64,
    /// When it began, monotonic ms.
    begun_at: u64,
}

/// A thread that makes calls, and what waits for it.
#[derive(Default)]
struct Worker<W> {
    waiting: W,
    /// What it works on.
    call: Option<Call>,
    /// When it was last done with a call, monotonic ms.
    idle_since: u64,
    /// It has not ended.
    alive: bool,
}

impl<W> Worker<W> {
    /// It is done with its call.
    fn rests(&mut self) {
        (self.call, self.idle_since) = (None, clock::now().mono);
    }

    /// Since when it comes no further: since its call began, or since it could have taken up what waits.
    fn still(&self, waits: Option<u64>) -> Option<u64> {
        self.call.map(|call| call.begun_at).or_else(|| waits.map(|since| since.max(self.idle_since)))
    }
}

#[derive(Default)]
struct ThreadState {
    store: Worker<Jobs>,
    reader: Worker<VecDeque<Queued<ContentsWanted>>>,
    looker: Worker<VecDeque<Queued<LookJob>>>,
    /// The store's thread waits for company of the jobs that it knows.
    lingers: bool,
    /// Number of calls so far.
    calls: u64,
    has_reader: bool,
    closing: bool,
    failed: bool,
    close_error: Option<CloseError>,
    usage: Option<Usage>,
    usage_at: u64,
    usage_wanted: bool,
    reclaim_wanted: bool,
    renew_wanted: bool,
    heir_wanted: bool,
    /// A thread gives back room.
    reclaiming: bool,
    /// It has, and the store is to let go of the files.
    reclaimed: bool,
    /// When space was last reclaimed, monotonic ms.
    reclaimed_at: Option<u64>,
}

impl ThreadState {
    fn open(&self) -> bool {
        !self.closing && !self.failed
    }

    /// A thread that makes calls has not ended.
    fn any_alive(&self) -> bool {
        self.store.alive || self.reader.alive || self.looker.alive
    }

    fn call(&mut self, what: &'static str) -> Option<Call> {
        self.calls += 1;
        Some(Call { what, number: self.calls, begun_at: clock::now().mono })
    }
}

struct ThreadShared {
    state: Mutex<ThreadState>,
    /// For the store: there is something to do.
    work: Condvar,
    /// For the reader: there is something to do.
    reads: Condvar,
    /// For the looker: there is something to do.
    looks: Condvar,
    /// For [`StoreHandle::close`] and [`watch`]: a thread has ended.
    done: Condvar,
    limits: ThreadLimits,
    commits: Arc<CommitFigures>,
    on_event: OnEvent,
}

/// What the store does next.
enum ThreadTurn {
    /// These commits, and then these [`Load::Find`]s, which were asked between them.
    Commit(Vec<CommitGroup>, Vec<Load>),
    Load(Load),
    Renew,
    GiveAway,
    Measure,
    Reclaim,
    EndReclaim,
    End,
}

impl ThreadShared {
    fn lock(&self) -> MutexGuard<'_, ThreadState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes all threads.
    fn notify(&self) {
        self.work.notify_all();
        self.reads.notify_all();
        self.looks.notify_all();
        self.done.notify_all();
    }

    /// Reports what has been done; after a failure nothing is.
    fn report(&self, event: StoreEvent) {
        let failed = self.lock().failed;
        if !failed {
            (self.on_event)(event);
        }
    }

    /// Reports the first failure, and drops all work.
    fn fail(&self, error: StoreFailure) {
        let mut state = self.lock();
        let first = !std::mem::replace(&mut state.failed, true);
        state.store.waiting.clear();
        state.reader.waiting.clear();
        state.looker.waiting.clear();
        drop(state);
        self.notify();
        if first {
            (self.on_event)(StoreEvent::Failed(error));
        }
    }

    /// Waits for work: all commits up to the next load that must not see later ones, within the limits, or
    /// that load.
    fn next(&self, (max_ops, max_bytes): (usize, u64)) -> ThreadTurn {
        let mut state = self.lock();
        state.store.rests();
        loop {
            if state.failed {
                return ThreadTurn::End;
            }
            // Before what waits: that may be reads alone, which extend nothing.
            if std::mem::take(&mut state.renew_wanted) {
                state.store.call = state.call("renewal of the lease");
                return ThreadTurn::Renew;
            }
            if std::mem::take(&mut state.heir_wanted) && !state.closing {
                state.store.call = state.call("question for another daemon");
                return ThreadTurn::GiveAway;
            }
            if let Some(since) = state.store.waiting.since() {
                let age = Duration::from_millis(clock::now().mono.saturating_sub(since));
                let left = self.limits.linger.saturating_sub(age);
                if left.is_zero() || state.store.waiting.is_pressing() || state.closing {
                    break;
                }
                state.lingers = true;
                state = self.work.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
                state.lingers = false;
                continue;
            }
            if std::mem::take(&mut state.usage_wanted) {
                state.store.call = state.call("measurement of the room taken");
                return ThreadTurn::Measure;
            }
            if std::mem::take(&mut state.reclaim_wanted) && !state.closing {
                state.store.call = state.call("compaction");
                return ThreadTurn::Reclaim;
            }
            if std::mem::take(&mut state.reclaimed) && !state.closing {
                state.store.call = state.call("compaction");
                return ThreadTurn::EndReclaim;
            }
            // The reader may still hand work back.
            if state.closing && !state.reader.alive {
                return ThreadTurn::End;
            }
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let (mut groups, mut finds, mut ops, mut bytes) = (Vec::new(), Vec::new(), 0, 0);
        while let Some(queued) = state.store.waiting.pop() {
            match queued.job {
                Job::Commit(commit) => {
                    ops += commit.ops.len();
                    bytes += queued.bytes;
                    if !groups.is_empty() && (ops > max_ops || bytes > max_bytes) {
                        state.store.waiting.put_back(Queued { job: Job::Commit(commit), ..queued });
                        break;
                    }
                    groups.push(commit);
                }
                Job::Load(load @ Load::Find(_)) if !groups.is_empty() => finds.push(load),
                Job::Load(load) if !groups.is_empty() => {
                    state.store.waiting.put_back(Queued { job: Job::Load(load), ..queued });
                    break;
                }
                Job::Load(load) => {
                    state.store.call = state.call("read");
                    return ThreadTurn::Load(load);
                }
            }
        }
        state.store.call = state.call("commit");
        ThreadTurn::Commit(groups, finds)
    }
}

/// Says that a thread has ended, however it ended.
struct Alive<'a> {
    shared: &'a ThreadShared,
    flag: fn(&mut ThreadState) -> &mut bool,
}

impl Drop for Alive<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.shared.fail(StoreFailure::Panicked);
        }
        *(self.flag)(&mut self.shared.lock()) = false;
        self.shared.notify();
    }
}

/// The store's thread.
fn serve(mut store: Box<dyn Store>, shared: &Arc<ThreadShared>) {
    let _alive = Alive { shared, flag: |s| &mut s.store.alive };
    let limit = store.group_limit();
    loop {
        let result = match shared.next(limit) {
            ThreadTurn::Commit(groups, finds) => commit(&mut *store, &groups, &finds, shared),
            ThreadTurn::Load(wanted) if hand_over(&*store, &wanted, shared) => Ok(()),
            ThreadTurn::Load(wanted) => load(&mut *store, &wanted, shared).map_err(StoreFailure::from),
            ThreadTurn::Renew => store.renew().map_err(StoreFailure::from),
            ThreadTurn::GiveAway => match store.heir() {
                Ok(Some(heir)) => return give_away(store, heir, shared),
                Ok(None) => Ok(()),
                Err(error) => Err(error.into()),
            },
            ThreadTurn::Measure => measure(&*store, shared),
            ThreadTurn::Reclaim => reclaim(&mut *store, shared),
            ThreadTurn::EndReclaim => store.end_reclaim().map_err(StoreFailure::from),
            ThreadTurn::End => break,
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

fn give_away(store: Box<dyn Store>, heir: String, shared: &ThreadShared) {
    // Nothing more is reported from here on, and so nothing acked, before it can be the other one's.
    shared.fail(StoreFailure::GivenAway { heir });
    if let Err(error) = store.close() {
        tracing::warn!(%error, "another daemon has the store after the lease");
    }
}

fn commit(
    store: &mut dyn Store,
    groups: &[CommitGroup],
    finds: &[Load],
    shared: &ThreadShared,
) -> Result<(), StoreFailure> {
    let started_us = clock::mono_us();
    failpoint!("before-commit");
    store.commit(groups)?;
    failpoint!("after-commit");
    shared.commits.committed(groups.len() as u64, clock::mono_us().saturating_sub(started_us));
    if let Some(last) = groups.last() {
        shared.report(StoreEvent::Committed(last.token));
    }
    for find in finds {
        let mut state = shared.lock();
        state.store.call = state.call("read");
        drop(state);
        load(store, find, shared)?;
    }
    Ok(())
}

fn load(store: &mut dyn Store, load: &Load, shared: &ThreadShared) -> Result<(), ReadError> {
    store.load(load).map(|loaded| shared.report(StoreEvent::Loaded(loaded)))
}

/// A scan's turn has come: the looker takes the step. False: it is done here.
fn hand_over(store: &dyn Store, load: &Load, shared: &ThreadShared) -> bool {
    let Load::Scan(scan) = load else { return false };
    let Some(job) = store.look(scan) else { return false };
    let mut state = shared.lock();
    // While the store closes the looker may have gone.
    if state.open() {
        state.looker.waiting.push_back(Queued { since: clock::now().mono, bytes: JOB_COST, job });
        shared.looks.notify_one();
        return true;
    }
    false
}

fn measure(store: &dyn Store, shared: &ThreadShared) -> Result<(), StoreFailure> {
    store.health()?;
    let usage = store.usage();
    let mut state = shared.lock();
    state.usage_at = clock::now().mono;
    match usage {
        Ok(usage) => state.usage = Some(usage),
        // The last known one stays; a store that really fails says so at the next commit.
        Err(error) => tracing::warn!("{error}"),
    }
    Ok(())
}

/// Lets a thread of its own do what takes long.
fn reclaim(store: &mut dyn Store, shared: &Arc<ThreadShared>) -> Result<(), StoreFailure> {
    let Some(job) = store.begin_reclaim()? else {
        // The next call is the first.
        shared.lock().reclaimed_at = None;
        return Ok(());
    };
    shared.lock().reclaiming = true;
    let run = move |shared: &Arc<ThreadShared>| {
        let _alive = Alive { shared, flag: |s| &mut s.reclaiming };
        // A compaction changes nothing unless it succeeds.
        if let Err(error) = job() {
            tracing::warn!("no room was given back: {error}");
        }
        shared.lock().reclaimed = true;
    };
    if let Err(error) = start("tidegate-compact", shared, run) {
        shared.lock().reclaiming = false;
        tracing::warn!("no room was given back: {error}");
    }
    Ok(())
}
