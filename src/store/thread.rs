//! The store's thread: makes writes and reads in the order of their requests, and many commits with one sync.
//!
//! A second thread reads contents concurrently, so that a batch never waits behind a sync for payloads that
//! have long been on the disk; and queues, as long as no commit that has not ended concerns their answer, so
//! that items that are due do not wait for the removal of those that have left. A third thread scans many
//! rows for listings, so that neither of the others waits for a scan. A fourth watches that all calls return.
//! A caller never waits. Deliberately absent: decisions, and retries. After a failure the threads do nothing
//! more, so that no ack follows a commit that may not have happened; the process stops and opens the store
//! again.
//!
//! When commits are few and small, each would cost its own sync and wake four threads. So a commit waits up
//! to [`ThreadLimits::linger`] for the next ones. Only acks wait with it, and no delivery does. A read, a
//! commit for which an answer waits, or enough operations or bytes end the wait.

mod beside;

pub use super::report::{
    CommitFigures, CommitStats, OnEvent, StoreEvent, StoreStats, ThreadLimits, STORE_CALL_LIMIT,
};

use super::jobs::{size, Job, Jobs, Queued, JOB_COST};
use super::{CloseError, CommitGroup, LookJob, ReadError, SpawnError, Store, StoreFailure, Usage};
use beside::{look, read, watch};
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;
use tidegate_common::clock;
use tidegate_common::threads::thread_name;
use tidegate_types::event::{Footprint, Load};
use tracing::Span;

/// Minimum time between two attempts to reclaim space, ms.
const RECLAIM_PAUSE: u64 = 60_000;
/// Age at which [`Usage`] is measured again, ms.
const USAGE_AGE: u64 = 1_000;

/// Starts the threads of this shard. `on_event` receives the events, `commits` the duration of commits.
///
/// # Errors
///
/// The system cannot start a thread.
pub fn spawn(
    store: Box<dyn Store>,
    shard: u16,
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
        shard,
        limits,
        commits,
        on_event,
    });
    // A store with a lease is at the end of a connection.
    let rest = store.lease().map(|lease| Duration::from_millis(lease.length_ms() / 3));
    let handle = StoreHandle { shared: shared.clone(), threads: Arc::default() };
    let mut started = vec![
        start("tidegate-watch", &shared, |shared| watch(shared)),
        start("tidegate-looker", &shared, |shared| look(shared)),
    ];
    if let Some(reader) = reader {
        started.push(start("tidegate-reader", &shared, move |shared| read(&*reader, rest, shared)));
    }
    started.push(start("tidegate-store", &shared, move |shared| serve(store, shared)));
    let mut threads = handle.threads.lock().unwrap_or_else(PoisonError::into_inner);
    for thread in started {
        match thread {
            Ok(thread) => threads.push(thread),
            Err(error) => {
                // The threads that did start have no store to serve.
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
    kind: &str,
    shared: &Arc<ThreadShared>,
    run: impl FnOnce(&Arc<ThreadShared>) + Send + 'static,
) -> Result<JoinHandle<()>, SpawnError> {
    // Its lines are those of the shard that starts it.
    let (shared, span) = (shared.clone(), Span::current());
    let name = thread_name(kind, shared.shard);
    Ok(Builder::new().name(name).spawn(move || span.in_scope(|| run(&shared)))?)
}

/// Passes work to the store's threads. Cheap to clone; only [`StoreHandle::close`] waits.
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
    /// Queues a commit; [`StoreEvent::Committed`] follows. If the queue, without its largest job, exceeds
    /// [`ThreadLimits::queued`], the store fails with [`StoreFailure::Stalled`]. No effect after a failure or
    /// after [`StoreHandle::close`].
    pub fn commit(&self, commit: CommitGroup) {
        let bytes = commit.ops.iter().map(size).sum();
        let footprint = Footprint::of(&commit.ops);
        self.queue(Job::Commit(commit, footprint), bytes);
    }

    /// Queues a read; [`StoreEvent::Loaded`] follows. The read sees every commit queued before it that
    /// concerns its answer; a read of queues does not wait for other commits. It and a [`Load::Find`] may
    /// see later commits too.
    /// Reads of ranges and finds are answered in the order of their requests; so are scans among themselves.
    ///
    /// Contents are read at once, concurrently with commits: the engine asks only for contents of items whose
    /// commit is durable. If a content is missing because a move of its item is still queued, the read is
    /// repeated behind everything that was queued.
    pub fn load(&self, load: Load) {
        let mut state = self.shared.lock();
        let passes = state.has_reader && state.may_pass(&load);
        if !passes {
            drop(state);
            return self.queue(Job::Load(load), 0);
        }
        if state.open() {
            let is_contents = |load: &Load| matches!(load, Load::Contents(_));
            let (behind, waiting) = (state.reader.waiting.len(), &state.reader.waiting);
            let ahead = waiting.iter().take_while(|queued| is_contents(&queued.job)).count();
            // Batches wait for contents; of queues it reads what leaves later. But batches that leave without
            // end must not keep a queue from being read.
            let overtakes = is_contents(&load) && ahead < behind && !state.overtaken;
            state.overtaken |= overtakes;
            state.passing += usize::from(!is_contents(&load));
            let queued = Queued { since: clock::now().mono, bytes: 0, job: load };
            state.reader.waiting.insert(if overtakes { ahead } else { behind }, queued);
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

    /// Current figures of the store.
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

    /// Reclaims the space of deleted rows once the store is idle. This is for a full store that accepts no
    /// items, which the storage engine would not compact otherwise. The caller repeats the call while the
    /// store is full; calls within a minute after the last start have no effect. [`StoreStats::usage`] shows
    /// the result.
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

    /// Extends the lease of a store that has one, ahead of the queue.
    pub fn renew(&self) {
        let mut state = self.shared.lock();
        if state.open() {
            state.renew_wanted = true;
            self.shared.work.notify_one();
        }
    }

    /// Closes the store and fails with [`StoreFailure::GivenAway`], if another daemon stands by and would
    /// take the store over. Queued jobs are dropped.
    pub fn give_away(&self) {
        let mut state = self.shared.lock();
        if state.open() {
            state.heir_wanted = true;
            self.shared.work.notify_one();
        }
    }

    /// Finishes the queued jobs, syncs, closes the store and ends its threads, all within `timeout`.
    ///
    /// # Errors
    ///
    /// [`CloseError::Timeout`], or the error of the last sync. In both cases all commits reported so far are
    /// durable.
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
            // All threads have reported their end; `Alive` has reported any panic.
            let _ = thread.join();
        }
        failed.map_or(Ok(()), Err)
    }
}

/// A call of the storage engine that has not returned.
#[derive(Clone, Copy)]
struct Call {
    what: &'static str,
    /// Distinguishes this call from the next.
    number: u64,
    /// When the call began, monotonic ms.
    begun_at: u64,
}

/// A thread that calls the storage engine, with its queue.
#[derive(Default)]
struct Worker<W> {
    waiting: W,
    /// The call in progress.
    call: Option<Call>,
    /// When its last call ended, monotonic ms.
    idle_since: u64,
    /// The thread has not ended.
    alive: bool,
}

impl<W> Worker<W> {
    /// The thread has finished its call.
    fn rests(&mut self) {
        (self.call, self.idle_since) = (None, clock::now().mono);
    }

    /// Since when it makes no progress: since its call began, or since it could have taken up a waiting job.
    fn still(&self, waits: Option<u64>) -> Option<u64> {
        self.call.map(|call| call.begun_at).or_else(|| waits.map(|since| since.max(self.idle_since)))
    }
}

/// What the store's thread is doing, as far as it concerns reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum UnderWay {
    #[default]
    Nothing,
    /// Commits with these changes.
    Commit(Footprint),
    Read,
}

#[derive(Default)]
struct ThreadState {
    store: Worker<Jobs>,
    reader: Worker<VecDeque<Queued<Load>>>,
    looker: Worker<VecDeque<Queued<LookJob>>>,
    /// The store's thread waits for more jobs to share a sync with those it knows.
    lingers: bool,
    /// The commits that the store's thread is making, or the read, with which no other read is to overlap.
    under_way: UnderWay,
    /// Reads of queues that passed commits and are not answered: the next read of the store's thread follows
    /// them.
    passing: usize,
    /// A read of contents has gone ahead of the first of them, and none does so again.
    overtaken: bool,
    /// The number of calls so far.
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
    /// A thread is reclaiming space.
    reclaiming: bool,
    /// The space was reclaimed, and the store has to release the files.
    reclaimed: bool,
    /// When space was last reclaimed, monotonic ms.
    reclaimed_at: Option<u64>,
}

impl ThreadState {
    fn open(&self) -> bool {
        !self.closing && !self.failed
    }

    /// Whether the reader may answer: at once, or without those reads of queues that came before.
    fn may_pass(&self, load: &Load) -> bool {
        let ranges = match load {
            Load::Contents(_) => return true,
            Load::Ranges { ranges, .. } => ranges,
            Load::Find(_) | Load::Scan(_) => return false,
        };
        let is_apart = match self.under_way {
            UnderWay::Nothing => true,
            UnderWay::Commit(footprint) => !footprint.concerns(ranges),
            UnderWay::Read => false,
        };
        is_apart && self.store.waiting.may_pass(ranges)
    }

    /// Whether any thread that calls the storage engine has not ended.
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
    /// For the store's thread: there is work.
    work: Condvar,
    /// For the reader: there is work.
    reads: Condvar,
    /// For the looker, which runs scans: there is work.
    looks: Condvar,
    /// For [`StoreHandle::close`] and [`watch`]: a thread has ended.
    done: Condvar,
    /// Number of the shard, for the names of the threads.
    shard: u16,
    limits: ThreadLimits,
    commits: Arc<CommitFigures>,
    on_event: OnEvent,
}

/// The next work of the store's thread.
enum ThreadTurn {
    /// These commits, and then these [`Load::Find`]s, which were requested between them.
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

    /// Reports an event, unless the store has failed.
    fn report(&self, event: StoreEvent) {
        let failed = self.lock().failed;
        if !failed {
            (self.on_event)(event);
        }
    }

    /// Reports the first failure, and drops all queued jobs.
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

    /// Waits for work. Returns all commits, within the limits, up to the next load that must not see later
    /// ones, or that load.
    fn next(&self, (max_ops, max_bytes): (usize, u64)) -> ThreadTurn {
        let mut state = self.lock();
        state.store.rests();
        state.under_way = UnderWay::Nothing;
        loop {
            if state.failed {
                return ThreadTurn::End;
            }
            // Ahead of the queue: it may contain only reads, which do not extend the lease.
            if std::mem::take(&mut state.renew_wanted) {
                state.store.call = state.call("renewal of the lease");
                return ThreadTurn::Renew;
            }
            if std::mem::take(&mut state.heir_wanted) && !state.closing {
                state.store.call = state.call("check for a standby daemon");
                return ThreadTurn::GiveAway;
            }
            // Also ahead: the queue may never be empty, and the disk fills then. It is wanted once a second.
            if std::mem::take(&mut state.usage_wanted) {
                state.store.call = state.call("measurement of the disk usage");
                return ThreadTurn::Measure;
            }
            // Answers come in the order of the reads.
            if state.passing > 0 && state.store.waiting.begins_with_read() {
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
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
            if std::mem::take(&mut state.reclaim_wanted) && !state.closing {
                state.store.call = state.call("compaction");
                return ThreadTurn::Reclaim;
            }
            if std::mem::take(&mut state.reclaimed) && !state.closing {
                state.store.call = state.call("compaction");
                return ThreadTurn::EndReclaim;
            }
            // The reader may still return work.
            if state.closing && !state.reader.alive {
                return ThreadTurn::End;
            }
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let (mut groups, mut finds, mut ops, mut bytes) = (Vec::new(), Vec::new(), 0, 0);
        let mut footprint = Footprint::default();
        while let Some(queued) = state.store.waiting.pop() {
            match queued.job {
                Job::Commit(commit, its) => {
                    ops += commit.ops.len();
                    bytes += queued.bytes;
                    if !groups.is_empty() && (ops > max_ops || bytes > max_bytes) {
                        state.store.waiting.put_back(Queued { job: Job::Commit(commit, its), ..queued });
                        break;
                    }
                    footprint = footprint.and(its);
                    groups.push(commit);
                }
                Job::Load(load @ Load::Find(_)) if !groups.is_empty() && state.passing == 0 => {
                    finds.push(load);
                }
                Job::Load(load) if !groups.is_empty() => {
                    state.store.waiting.put_back(Queued { job: Job::Load(load), ..queued });
                    break;
                }
                Job::Load(load) => {
                    state.store.call = state.call("read");
                    state.under_way = UnderWay::Read;
                    return ThreadTurn::Load(load);
                }
            }
        }
        state.store.call = state.call("commit");
        state.under_way = if finds.is_empty() { UnderWay::Commit(footprint) } else { UnderWay::Read };
        ThreadTurn::Commit(groups, finds)
    }
}

/// Reports that a thread has ended, also by a panic.
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

/// The body of the store's thread.
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
    // From here on nothing is reported, and so nothing is acked, before another daemon can own the store.
    shared.fail(StoreFailure::GivenAway { heir });
    if let Err(error) = store.close() {
        tracing::warn!(%error, "the lease was not released: another daemon has to wait until it expires");
    }
}

fn commit(
    store: &mut dyn Store,
    groups: &[CommitGroup],
    finds: &[Load],
    shared: &ThreadShared,
) -> Result<(), StoreFailure> {
    let started_us = clock::mono_us();
    tidegate_common::failpoint!("before-commit");
    store.commit(groups)?;
    tidegate_common::failpoint!("after-commit");
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

/// Passes a scan to the looker when it reaches the head of the queue. False: the store's thread has to run
/// it.
fn hand_over(store: &dyn Store, load: &Load, shared: &ThreadShared) -> bool {
    let Load::Scan(scan) = load else { return false };
    let Some(job) = store.look(scan) else { return false };
    let mut state = shared.lock();
    // While the store closes, the looker may already have ended.
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
        // The last known figures stay; a store that has failed reports it at the next commit.
        Err(error) => tracing::warn!("{error}"),
    }
    Ok(())
}

/// Runs the slow part on a separate thread.
fn reclaim(store: &mut dyn Store, shared: &Arc<ThreadShared>) -> Result<(), StoreFailure> {
    let Some(job) = store.begin_reclaim()? else {
        // The next call of [`StoreHandle::reclaim`] may begin at once.
        shared.lock().reclaimed_at = None;
        return Ok(());
    };
    shared.lock().reclaiming = true;
    let run = move |shared: &Arc<ThreadShared>| {
        let _alive = Alive { shared, flag: |s| &mut s.reclaiming };
        // A compaction changes nothing unless it succeeds.
        if let Err(error) = job() {
            tracing::warn!("no disk space was reclaimed: {error}");
        }
        shared.lock().reclaimed = true;
    };
    if let Err(error) = start("tidegate-compact", shared, run) {
        shared.lock().reclaiming = false;
        tracing::warn!("no disk space was reclaimed: {error}");
    }
    Ok(())
}
