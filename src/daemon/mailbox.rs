//! Where everything that happens to the daemon arrives, and where its loop sleeps.
//!
//! A closed set of events in two queues. Control (settled publishes, store answers, links, signals, queries)
//! comes first in a turn: it frees slots and memory. What the ingest connection sends keeps an order of its
//! own and is taken in bounded helpings. Neither queue needs a limit: deliveries are bounded by the prefetch,
//! settled publishes by the slots, store answers by what was asked, queries by the admin listener.
//!
//! The wait is a condition variable and not a tokio timer, which rounds up to whole milliseconds.

use super::reload::ReadConfig;
use crate::admin::Query;
use crate::engine::types::Request;
use crate::signals::Signal;
use crate::{amqp, store};
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Upper bound on the items handled in one turn, a last chunk apart (of the consumer's bounds, or one
/// envelope): some milliseconds of work.
const TURN_ITEMS: usize = 4_096;

/// Everything that can happen.
#[derive(Debug)]
pub(super) enum LoopEvent {
    Amqp(amqp::Event),
    Store(store::thread::StoreEvent),
    Signal(Signal),
    /// The configuration has been read again.
    Reread(ReadConfig),
    Query(Query),
}

impl LoopEvent {
    /// Whichever life it comes to.
    pub(super) fn is_for_the_process(&self) -> bool {
        matches!(self, LoopEvent::Signal(_) | LoopEvent::Reread(_) | LoopEvent::Query(_))
    }
}

#[derive(Debug, Default)]
struct MailboxQueues {
    control: VecDeque<LoopEvent>,
    ingest: VecDeque<amqp::Event>,
}

#[derive(Debug, Default)]
pub(super) struct Mailbox {
    queues: Mutex<MailboxQueues>,
    filled: Condvar,
}

impl Mailbox {
    /// From any thread; never blocks for long.
    pub(super) fn post(&self, event: LoopEvent) {
        let mut queues = self.lock();
        match event {
            LoopEvent::Amqp(
                event
                @ (amqp::Event::Requests(_) | amqp::Event::IngestReady { .. } | amqp::Event::IngestLost),
            ) => queues.ingest.push_back(event),
            event @ (LoopEvent::Amqp(_)
            | LoopEvent::Store(_)
            | LoopEvent::Signal(_)
            | LoopEvent::Reread(_)
            | LoopEvent::Query(_)) => {
                queues.control.push_back(event);
            }
        }
        drop(queues);
        self.filled.notify_one();
    }

    /// Waits until something is there, `timeout` at most, and moves one turn's events to `out`.
    pub(super) fn take(&self, timeout: Duration, out: &mut VecDeque<LoopEvent>) {
        let mut queues = self.lock();
        if queues.control.is_empty() && queues.ingest.is_empty() && !timeout.is_zero() {
            let waited = self.filled.wait_timeout_while(queues, timeout, |queues| {
                queues.control.is_empty() && queues.ingest.is_empty()
            });
            queues = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        out.extend(queues.control.drain(..));
        let mut items = 0;
        while items < TURN_ITEMS {
            let Some(event) = queues.ingest.pop_front() else { break };
            if let amqp::Event::Requests(chunk) = &event {
                items += chunk.iter().map(Request::item_count).sum::<usize>();
            }
            out.push_back(LoopEvent::Amqp(event));
        }
    }

    fn lock(&self) -> MutexGuard<'_, MailboxQueues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn control_comes_first_and_ingest_keeps_its_order() {
        let mailbox = Mailbox::default();
        mailbox.post(LoopEvent::Amqp(amqp::Event::IngestReady { generation: 1 }));
        mailbox.post(LoopEvent::Amqp(amqp::Event::IngestLost));
        mailbox.post(LoopEvent::Signal(Signal::Reload));
        let mut out = VecDeque::new();
        mailbox.take(Duration::ZERO, &mut out);
        assert!(
            matches!(
                out.make_contiguous(),
                [
                    LoopEvent::Signal(Signal::Reload),
                    LoopEvent::Amqp(amqp::Event::IngestReady { generation: 1 }),
                    LoopEvent::Amqp(amqp::Event::IngestLost)
                ]
            ),
            "{out:?}"
        );
    }

    #[test]
    fn a_post_ends_the_wait() {
        let mailbox = Arc::new(Mailbox::default());
        let poster = Arc::clone(&mailbox);
        let thread = std::thread::spawn(move || poster.post(LoopEvent::Signal(Signal::Terminate)));
        let mut out = VecDeque::new();
        mailbox.take(Duration::from_secs(30), &mut out);
        assert_eq!(out.len(), 1);
        thread.join().unwrap();
    }
}
