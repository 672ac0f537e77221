//! State that both ends share: the way to the daemon's loop, and the marks of their progress.

use super::figures::{index, Figures};
use super::{BrokerEvent, Event, LinkStatus, Options, Side};
use std::future::Future;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tidegate_common::progress::{DaemonPart, ProgressMarks, PublishTurn};

/// Interval of the progress marks of an end that waits for the broker.
const WAITING_MARK: Duration = Duration::from_millis(500);

pub(crate) struct Shared {
    on_event: Arc<dyn Fn(Event) + Send + Sync>,
    figures: Arc<Figures>,
    links: Mutex<[Option<LinkStatus>; 2]>,
    /// Largest frame of each side's present or last connection; before the first one, without limit.
    frame_max: [AtomicU32; 2],
    progress: Arc<ProgressMarks>,
    /// Batches handed to the publisher, and settled by it.
    handed: AtomicU64,
    settled: AtomicU64,
    prefetch: AtomicU32,
    /// Of the present consumer; 0: there is none.
    generation: AtomicU32,
}

impl Shared {
    pub(crate) fn new(
        on_event: Arc<dyn Fn(Event) + Send + Sync>,
        progress: Arc<ProgressMarks>,
        figures: Arc<Figures>,
    ) -> Self {
        Shared {
            on_event,
            figures,
            links: Mutex::default(),
            frame_max: [AtomicU32::new(u32::MAX), AtomicU32::new(u32::MAX)],
            progress,
            handed: AtomicU64::new(0),
            settled: AtomicU64::new(0),
            prefetch: AtomicU32::new(0),
            generation: AtomicU32::new(0),
        }
    }

    /// The state of the ends that begin with these options.
    pub(crate) fn of(
        options: Options,
        on_event: Arc<dyn Fn(Event) + Send + Sync>,
    ) -> (Arc<Shared>, Arc<Options>) {
        let (progress, figures) = (Arc::clone(&options.progress), Arc::clone(&options.figures));
        let shared = Arc::new(Shared::new(on_event, progress, figures));
        [Side::Ingest, Side::Egress].into_iter().for_each(|side| shared.moved(side));
        (shared, Arc::new(options))
    }

    pub(crate) fn post(&self, event: impl Into<Event>) {
        let event = event.into();
        if let Event::Settled(settled) = &event {
            self.settled.fetch_add(settled.len() as u64, Relaxed);
        }
        (self.on_event)(event);
    }

    /// Posts a state if it differs from the last one.
    pub(crate) fn link(&self, side: Side, link: LinkStatus) {
        {
            let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
            let last = &mut links[index(side)];
            if last.as_ref() == Some(&link) {
                return;
            }
            *last = Some(link.clone());
        }
        self.post(BrokerEvent::Link { side, link });
    }

    /// Counts batches for the publisher. Called before they are handed over.
    pub(crate) fn handed(&self, batches: usize) {
        self.handed.fetch_add(batches as u64, Relaxed);
    }

    /// The side has completed a turn: it took what there was, or there was nothing.
    pub(crate) fn moved(&self, side: Side) {
        self.progress.moved(part(side));
    }

    /// The publisher has ended a turn, which may count as progress; `turn` does not know whether batches are
    /// unsettled.
    pub(crate) fn publisher_turned(&self, turn: PublishTurn) {
        let unsettled = self.settled.load(Relaxed) < self.handed.load(Relaxed);
        if (PublishTurn { unsettled, ..turn }).is_complete() {
            self.moved(Side::Egress);
        }
    }

    /// The side has ended.
    pub(crate) fn rests(&self, side: Side) {
        self.progress.rests(part(side));
    }

    /// Waits for the broker, or until a pause is over, and marks progress all the time. `wait` must have its
    /// own time limit, and be no loop.
    pub(crate) async fn while_waiting<T>(&self, side: Side, wait: impl Future<Output = T>) -> T {
        let mut wait = std::pin::pin!(wait);
        loop {
            tokio::select! {
                biased;
                done = &mut wait => return done,
                () = tokio::time::sleep(WAITING_MARK) => self.moved(side),
            }
        }
    }

    /// Counters of both ends.
    pub(crate) fn figures(&self) -> &Figures {
        &self.figures
    }

    pub(crate) fn set_frame_max(&self, side: Side, bytes: u32) {
        self.frame_max[index(side)].store(bytes, Relaxed);
    }

    /// Bytes of the largest frame that both sides' connections can carry: what comes in by one goes out by
    /// the other.
    pub(crate) fn frame_max(&self) -> u32 {
        let [ingest, egress] = &self.frame_max;
        ingest.load(Relaxed).min(egress.load(Relaxed))
    }

    pub(crate) fn set_prefetch(&self, prefetch: u16) {
        self.prefetch.store(prefetch.into(), Relaxed);
        self.post(BrokerEvent::Prefetch(prefetch));
    }

    /// Deliveries of this generation can be acked from now on, until the result is dropped.
    pub(crate) fn begin_generation(self: &Arc<Self>, generation: u32) -> PresentGeneration {
        self.generation.store(generation, Relaxed);
        PresentGeneration(Arc::clone(self))
    }

    pub(crate) fn generation(&self) -> u32 {
        self.generation.load(Relaxed)
    }

    pub(crate) fn prefetch(&self) -> u32 {
        self.prefetch.load(Relaxed)
    }
}

fn part(side: Side) -> DaemonPart {
    match side {
        Side::Ingest => DaemonPart::Ingest,
        Side::Egress => DaemonPart::Egress,
    }
}

/// The generation of a consumer, while that lasts. It also ends with a task that is aborted: what was
/// delivered to it is delivered again then, and must not be forwarded any more.
pub(crate) struct PresentGeneration(Arc<Shared>);

impl Drop for PresentGeneration {
    fn drop(&mut self) {
        self.0.generation.store(0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Excluded: requests of a consumer whose task was aborted, as with a lost store, that are still
    /// forwarded.
    #[test]
    fn a_generation_ends_with_its_task_however_that_ends() {
        let shared = Arc::new(Shared::new(Arc::new(drop), Arc::default(), Arc::default()));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let own = Arc::clone(&shared);
        runtime.block_on(async move {
            let consuming = tokio::spawn({
                let shared = Arc::clone(&own);
                async move {
                    let _present = shared.begin_generation(7);
                    std::future::pending::<()>().await;
                }
            });
            while own.generation() == 0 {
                tokio::task::yield_now().await;
            }
            assert_eq!(own.generation(), 7);
            consuming.abort();
            assert!(consuming.await.is_err_and(|ended| ended.is_cancelled()));
            assert_eq!(own.generation(), 0);
        });
        drop(shared.begin_generation(8));
        assert_eq!(shared.generation(), 0);
    }
}
