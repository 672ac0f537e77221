//! The threads beside the store's own: the reader of contents and queues, the looker for scans, and the watch
//! over calls.

use super::{Alive, ThreadShared, ThreadState, Worker};
use crate::jobs::{Job, Queued, JOB_COST};
use crate::report::StoreEvent;
use crate::{ReadError, Reader, StoreFailure};
use std::collections::VecDeque;
use std::sync::{Condvar, PoisonError};
use std::time::Duration;
use tidegate_common::clock;
use tidegate_types::event::{Load, Loaded};

/// Number of checks after which a call counts as hung. The thread counts checks instead of reading a clock,
/// so that a process that was frozen, or a machine that slept, gets its full time.
const LOOKS: u32 = 12;

/// The next job of one of these threads; `None`: there is none, and none will come.
fn next<T>(
    shared: &ThreadShared,
    of: fn(&mut ThreadState) -> &mut Worker<VecDeque<Queued<T>>>,
    awake: &Condvar,
    what: &'static str,
) -> Option<Queued<T>> {
    let mut state = shared.lock();
    of(&mut state).rests();
    let idle = |s: &mut ThreadState| s.open() && of(s).waiting.is_empty();
    state = awake.wait_while(state, idle).unwrap_or_else(PoisonError::into_inner);
    let next = of(&mut state).waiting.pop_front()?;
    of(&mut state).call = state.call(what);
    Some(next)
}

/// Waits until the reader has a job, or will have none. Reads nothing over its connection after each `rest`
/// without a job: servers and networks cut a connection that nobody uses, and the next read would find out.
fn keep(reader: &dyn Reader, rest: Duration, shared: &ThreadShared) {
    loop {
        let mut state = shared.lock();
        state.reader.rests();
        let idle = |s: &mut ThreadState| s.open() && s.reader.waiting.is_empty();
        let waited = shared.reads.wait_timeout_while(state, rest, idle);
        let (state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        drop(state);
        if !timeout.timed_out() {
            return;
        }
        if let Err(error) = reader.contents(&[]) {
            return shared.fail(error.into());
        }
    }
}

/// The body of the reader's thread. `rest`: for how long its connection may rest, if it has one.
pub(super) fn read(reader: &dyn Reader, rest: Option<Duration>, shared: &ThreadShared) {
    let _alive = Alive { shared, flag: |s| &mut s.reader.alive };
    let next = || {
        if let Some(rest) = rest {
            keep(reader, rest, shared);
        }
        next(shared, |s| &mut s.reader, &shared.reads, "read beside commits")
    };
    while let Some(Queued { since, job: load, .. }) = next() {
        match answer(reader, &load) {
            Ok(Some(loaded)) => shared.report(StoreEvent::Loaded(loaded)),
            Ok(None) => {
                let mut state = shared.lock();
                if !state.failed {
                    state.store.waiting.push(Queued { since, bytes: JOB_COST, job: Job::Load(load) });
                    shared.work.notify_one();
                }
                continue;
            }
            Err(error) => shared.fail(error.into()),
        }
        if matches!(load, Load::Ranges { .. }) {
            let mut state = shared.lock();
            state.passing = state.passing.saturating_sub(1);
            state.overtaken = false;
            shared.work.notify_one();
        }
    }
}

/// The answer to a read; `None`: only the store's thread can give it.
fn answer(reader: &dyn Reader, load: &Load) -> Result<Option<Loaded>, ReadError> {
    match load {
        Load::Contents(wanted) => Ok(reader.contents(wanted)?.map(Loaded::Contents)),
        Load::Ranges { ranges, max_rows, max_bytes } => {
            reader.ranges(ranges, *max_rows, *max_bytes).map(|read| Some(Loaded::Ranges(read)))
        }
        Load::Find(_) | Load::Scan(_) => Ok(None),
    }
}

/// The body of the looker's thread: it runs steps of scans. Each step sees the rows as they were when it
/// reached the head of the store's queue. Commits and deliveries wait for no scan.
pub(super) fn look(shared: &ThreadShared) {
    let _alive = Alive { shared, flag: |s| &mut s.looker.alive };
    while let Some(Queued { job, .. }) = next(shared, |s| &mut s.looker, &shared.looks, "scan of rows") {
        match job() {
            Ok(loaded) => shared.report(StoreEvent::Loaded(loaded)),
            Err(error) => shared.fail(error.into()),
        }
    }
}

/// The body of the watch thread, which detects a call that does not return: a disk can hang without an error,
/// and a caller would then wait indefinitely.
pub(super) fn watch(shared: &ThreadShared) {
    // For each thread: the last call seen, and how many times in a row.
    let mut seen = [(0, 0); 3];
    loop {
        let alive = |s: &mut ThreadState| s.any_alive() && !s.failed;
        let waited = shared.done.wait_timeout_while(shared.lock(), shared.limits.call / LOOKS, alive);
        let (state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        if !timeout.timed_out() {
            return;
        }
        let calls = [state.store.call, state.reader.call, state.looker.call];
        drop(state);
        for (call, (number, looks)) in calls.into_iter().zip(&mut seen) {
            let Some(call) = call else { continue };
            *looks = if call.number == *number { *looks + 1 } else { 0 };
            *number = call.number;
            if *looks >= LOOKS {
                let age_ms = clock::now().mono.saturating_sub(call.begun_at);
                shared.fail(StoreFailure::NoAnswer { call: call.what, age_ms });
                return;
            }
        }
    }
}
