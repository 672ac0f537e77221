//! What both ends share: the way to the daemon's loop, and figures for status, metrics and watchdog.

use super::{Event, LinkStatus, Side};
use crate::clock;
use crate::distribution::{Distribution, Recorder};
use std::future::Future;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::MissedTickBehavior;

/// Figures of both ends since the process started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Per item, microseconds: moment of publish minus due; what leaves before its due counts as 0. Dead
    /// letters are not in it.
    pub lateness: Distribution,
    /// Per confirmed batch, microseconds: publish to confirm.
    pub confirm: Distribution,
    /// Per batch, at its first publish: items in it. Dead letters are not in it.
    pub batch_items: Distribution,
    /// The same: length of its body, bytes.
    pub batch_bytes: Distribution,
    /// Connections of the ingest side that ended or did not come about.
    pub ingest_failures: u64,
    /// Connections of the egress side that ended or did not come about.
    pub egress_failures: u64,
    /// When the consumer's task last ran, monotonic ms; at least every second unless it hangs.
    pub ingest_progress_ms: u64,
    /// When the publisher's task last ran, monotonic ms; at least every second unless it hangs.
    pub egress_progress_ms: u64,
    /// Most deliveries asked for in advance at present.
    pub prefetch: u32,
    /// Connections that ended in a frame that cannot be parsed.
    pub parse_errors: u64,
    /// Answers to commands whose reply queue is not there.
    pub answers_unroutable: u64,
    /// Headers that are nearly named like one with a meaning, and so have none.
    pub near_miss_headers: u64,
}

pub(super) struct Shared {
    on_event: Arc<dyn Fn(Event) + Send + Sync>,
    figures: Mutex<Figures>,
    links: Mutex<[Option<LinkStatus>; 2]>,
    failures: [AtomicU64; 2],
    progress: [AtomicU64; 2],
    /// Largest frame of each side's connection, the last one if there is none; before the first, without
    /// limit.
    frame_max: [AtomicU32; 2],
    prefetch: AtomicU32,
    parse_errors: AtomicU64,
    answers_unroutable: AtomicU64,
    near_miss_headers: AtomicU64,
}

pub(super) struct Figures {
    pub(super) lateness: Recorder,
    pub(super) confirm: Recorder,
    pub(super) batch_items: Recorder,
    pub(super) batch_bytes: Recorder,
}

impl Default for Figures {
    fn default() -> Self {
        Figures {
            lateness: Recorder::of_durations(),
            confirm: Recorder::of_durations(),
            batch_items: Recorder::of_items(),
            batch_bytes: Recorder::of_bytes(),
        }
    }
}

impl Shared {
    pub(super) fn new(on_event: Arc<dyn Fn(Event) + Send + Sync>) -> Self {
        let now = clock::now().mono;
        Shared {
            on_event,
            figures: Mutex::default(),
            links: Mutex::default(),
            failures: [AtomicU64::new(0), AtomicU64::new(0)],
            progress: [AtomicU64::new(now), AtomicU64::new(now)],
            frame_max: [AtomicU32::new(u32::MAX), AtomicU32::new(u32::MAX)],
            prefetch: AtomicU32::new(0),
            parse_errors: AtomicU64::new(0),
            answers_unroutable: AtomicU64::new(0),
            near_miss_headers: AtomicU64::new(0),
        }
    }

    pub(super) fn post(&self, event: Event) {
        (self.on_event)(event);
    }

    /// Posts a state if it is another one.
    pub(super) fn link(&self, side: Side, link: LinkStatus) {
        {
            let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
            let last = &mut links[index(side)];
            if last.as_ref() == Some(&link) {
                return;
            }
            *last = Some(link.clone());
        }
        self.post(Event::Link { side, link });
    }

    pub(super) fn failed(&self, side: Side) {
        self.failures[index(side)].fetch_add(1, Relaxed);
    }

    pub(super) fn parse_error(&self) {
        self.parse_errors.fetch_add(1, Relaxed);
    }

    pub(super) fn answers_unroutable(&self, count: u64) {
        self.answers_unroutable.fetch_add(count, Relaxed);
    }

    pub(super) fn near_miss_header(&self) {
        self.near_miss_headers.fetch_add(1, Relaxed);
    }

    pub(super) fn set_frame_max(&self, side: Side, bytes: u32) {
        self.frame_max[index(side)].store(bytes, Relaxed);
    }

    /// Bytes of the largest frame that either side's connection can carry: what comes in by one goes out by
    /// the other.
    pub(super) fn frame_max(&self) -> u32 {
        let [ingest, egress] = &self.frame_max;
        ingest.load(Relaxed).min(egress.load(Relaxed))
    }

    pub(super) fn set_prefetch(&self, prefetch: u16) {
        self.prefetch.store(prefetch.into(), Relaxed);
    }

    pub(super) fn figures(&self) -> MutexGuard<'_, Figures> {
        self.figures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn stats(&self) -> Stats {
        let [lateness, confirm, batch_items, batch_bytes] = {
            let figures = self.figures();
            [&figures.lateness, &figures.confirm, &figures.batch_items, &figures.batch_bytes]
                .map(Recorder::snapshot)
        };
        Stats {
            lateness,
            confirm,
            batch_items,
            batch_bytes,
            ingest_failures: self.failures[0].load(Relaxed),
            egress_failures: self.failures[1].load(Relaxed),
            ingest_progress_ms: self.progress[0].load(Relaxed),
            egress_progress_ms: self.progress[1].load(Relaxed),
            prefetch: self.prefetch.load(Relaxed),
            parse_errors: self.parse_errors.load(Relaxed),
            answers_unroutable: self.answers_unroutable.load(Relaxed),
            near_miss_headers: self.near_miss_headers.load(Relaxed),
        }
    }
}

/// Runs a side's supervisor and stamps its progress each second from within the same task: a task that is
/// stuck in a computation, or a runtime that has stopped, makes no stamps. Waits for the broker do not count
/// as hanging, since each has its own bound.
pub(super) async fn with_heartbeat(shared: Arc<Shared>, side: Side, work: impl Future<Output = ()>) {
    let mut work = std::pin::pin!(work);
    let mut second = tokio::time::interval(Duration::from_secs(1));
    second.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = &mut work => return,
            _ = second.tick() => shared.progress[index(side)].store(clock::now().mono, Relaxed),
        }
    }
}

fn index(side: Side) -> usize {
    match side {
        Side::Ingest => 0,
        Side::Egress => 1,
    }
}
