//! The mailbox receives all events of the daemon; its loop sleeps here.
//!
//! A closed set of events in two queues. Control events (settled publishes, store answers, links, signals,
//! queries) come first in a turn: they free slots and memory. Events of the ingest connection keep their own
//! order and are taken in bounded chunks. Neither queue needs a limit: the prefetch bounds deliveries, the
//! slots bound settled publishes, the requests to the store bound its answers, and the admin listener bounds
//! queries.
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

/// Upper bound on the items handled in one turn, some milliseconds of work. The last chunk may exceed it: a
/// chunk is as large as the consumer's bounds, or one envelope.
const TURN_ITEMS: usize = 4_096;

/// All events of the loop.
#[derive(Debug)]
pub(super) enum LoopEvent {
    Amqp(amqp::Event),
    Store(store::thread::StoreEvent),
    Signal(Signal),
    /// A reload has read the configuration.
    Reread(ReadConfig),
    Query(Query),
}

impl LoopEvent {
    /// Whether the event concerns the process, whichever life handles it.
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
    /// Adds an event, from any thread; never blocks for long.
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

    /// Waits for an event, `timeout` at most, and moves one turn's events to `out`.
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
