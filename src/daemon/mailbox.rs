//! The mailbox receives all events of one shard; its loop sleeps here.
//!
//! A closed set of events in two queues. Control events (settled publishes, store answers, links, orders,
//! queries) come first in a turn: they free slots and memory. Events of the ingest connection keep their own
//! order and are taken in bounded chunks. Neither queue needs a limit: the prefetch bounds deliveries, the
//! slots bound settled publishes, the requests to the store bound its answers, and the admin listener bounds
//! queries.
//!
//! The wait is a condition variable and not a tokio timer, which rounds up to whole milliseconds.

use crate::admin::{CommandRequest, CommandResponse, ExportFeed, ExportRefusal, ShardState};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tidegate_amqp::BrokerEvent;
use tidegate_config::Config;
use tidegate_store::thread::StoreEvent;
use tidegate_types::{Request, Settled};
use tokio::sync::oneshot::Sender;

/// Upper bound on the items handled in one turn, some milliseconds of work. The last chunk may exceed it: a
/// chunk is as large as the consumer's bounds, or one envelope.
const TURN_ITEMS: usize = 4_096;

/// What the node orders of a shard.
#[derive(Clone, Debug)]
pub(super) enum ShardOrder {
    /// The admin port answers: the life that has opened the store connects to the broker.
    Serve,
    /// This configuration takes effect.
    Configure(Arc<Config>),
    /// Due items leave, then the shard ends.
    Stop,
    /// The daemon cannot start, or cannot go on: as a stop, but a store that is not served yet is closed at
    /// once.
    Withdraw,
}

/// All events of the loop. Those that the engine takes many at a time are variants here.
#[derive(Debug)]
pub(super) enum LoopEvent {
    Requests(Vec<Request>),
    Settled(Vec<Settled>),
    Command(CommandRequest, Sender<CommandResponse>),
    Control(ControlEvent),
}

/// Events that the loop handles one by one.
#[derive(Debug)]
pub(super) enum ControlEvent {
    Broker(BrokerEvent),
    Store(StoreEvent),
    Order(ShardOrder),
    /// A client asks for the state.
    State(Sender<ShardState>),
    /// A client asks for the whole store.
    Export(Sender<Result<ExportFeed, ExportRefusal>>),
}

impl LoopEvent {
    /// Whether the event concerns the shard, whichever life handles it.
    pub(super) fn is_for_the_shard(&self) -> bool {
        match self {
            LoopEvent::Command(..) => true,
            LoopEvent::Requests(_) | LoopEvent::Settled(_) => false,
            LoopEvent::Control(event) => match event {
                ControlEvent::Order(_) | ControlEvent::State(_) | ControlEvent::Export(_) => true,
                ControlEvent::Broker(_) | ControlEvent::Store(_) => false,
            },
        }
    }

    /// Whether the event keeps its place among the requests.
    fn is_of_ingest(&self) -> bool {
        let ingest =
            |event: &BrokerEvent| matches!(event, BrokerEvent::IngestReady { .. } | BrokerEvent::IngestLost);
        match self {
            LoopEvent::Requests(_) => true,
            LoopEvent::Control(ControlEvent::Broker(event)) => ingest(event),
            LoopEvent::Control(_) | LoopEvent::Settled(_) | LoopEvent::Command(..) => false,
        }
    }
}

impl From<ControlEvent> for LoopEvent {
    fn from(event: ControlEvent) -> Self {
        LoopEvent::Control(event)
    }
}

impl From<tidegate_amqp::Event> for LoopEvent {
    fn from(event: tidegate_amqp::Event) -> Self {
        match event {
            tidegate_amqp::Event::Requests(requests) => LoopEvent::Requests(requests),
            tidegate_amqp::Event::Settled(settled) => LoopEvent::Settled(settled),
            tidegate_amqp::Event::Broker(event) => ControlEvent::Broker(event).into(),
        }
    }
}

#[derive(Debug, Default)]
struct MailboxQueues {
    control: VecDeque<LoopEvent>,
    ingest: VecDeque<LoopEvent>,
}

#[derive(Debug, Default)]
pub(super) struct Mailbox {
    queues: Mutex<MailboxQueues>,
    filled: Condvar,
}

impl Mailbox {
    /// Adds an event, from any thread; never blocks for long.
    pub(super) fn post(&self, event: impl Into<LoopEvent>) {
        let event = event.into();
        let mut queues = self.lock();
        if event.is_of_ingest() {
            queues.ingest.push_back(event);
        } else {
            queues.control.push_back(event);
        }
        drop(queues);
        self.filled.notify_one();
    }

    /// Puts back events that were taken, before all that came since.
    fn put_back(&self, events: VecDeque<LoopEvent>) {
        let mut queues = self.lock();
        events.into_iter().rev().for_each(|event| queues.control.push_front(event));
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
            if let LoopEvent::Requests(chunk) = &event {
                items += chunk.iter().map(Request::item_count).sum::<usize>();
            }
            out.push_back(event);
        }
    }

    fn lock(&self) -> MutexGuard<'_, MailboxQueues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Passes orders and queries to the current life.
#[derive(Debug)]
pub(super) struct Inlet {
    /// `None`: no further life follows.
    present: Mutex<Option<Arc<Mailbox>>>,
}

impl Default for Inlet {
    fn default() -> Self {
        Inlet { present: Mutex::new(Some(Arc::default())) }
    }
}

impl Inlet {
    pub(super) fn post(&self, event: impl Into<LoopEvent>) {
        // The lock is held during the post: an event for a mailbox that is being replaced would be lost.
        if let Some(present) = &*self.lock() {
            present.post(event);
        }
    }

    /// Puts back events for the next life, before all that came since: of two configurations the later one
    /// stays in force.
    pub(super) fn put_back(&self, mut events: VecDeque<LoopEvent>) {
        events.retain(LoopEvent::is_for_the_shard);
        if let Some(present) = &*self.lock() {
            present.put_back(events);
        }
    }

    /// Waits for events between two lives, `timeout` at most.
    pub(super) fn take(&self, timeout: Duration, out: &mut VecDeque<LoopEvent>) {
        let present = self.lock().clone();
        if let Some(present) = present {
            present.take(timeout, out);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<Mailbox>>> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends open queries without an answer, and all later ones.
    pub(super) fn close(&self) {
        if let Some(last) = self.lock().take() {
            last.take(Duration::ZERO, &mut VecDeque::new());
        }
    }

    /// A new mailbox for the next life. Events that the connections and the store of the last life still send
    /// stay in the old one. Orders and queries that came between the two lives are moved.
    pub(super) fn renew(&self) -> Arc<Mailbox> {
        let new = Arc::new(Mailbox::default());
        let mut present = self.lock();
        let mut left = VecDeque::new();
        if let Some(present) = &*present {
            present.take(Duration::ZERO, &mut left);
        }
        left.into_iter().filter(LoopEvent::is_for_the_shard).for_each(|event| new.post(event));
        *present = Some(Arc::clone(&new));
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_comes_first_and_ingest_keeps_its_order() {
        let mailbox = Mailbox::default();
        mailbox.post(ControlEvent::Broker(BrokerEvent::IngestReady { generation: 1 }));
        mailbox.post(ControlEvent::Broker(BrokerEvent::IngestLost));
        mailbox.post(ControlEvent::Order(ShardOrder::Serve));
        let mut out = VecDeque::new();
        mailbox.take(Duration::ZERO, &mut out);
        assert!(
            matches!(
                out.make_contiguous(),
                [
                    LoopEvent::Control(ControlEvent::Order(ShardOrder::Serve)),
                    LoopEvent::Control(ControlEvent::Broker(BrokerEvent::IngestReady { generation: 1 })),
                    LoopEvent::Control(ControlEvent::Broker(BrokerEvent::IngestLost))
                ]
            ),
            "{out:?}"
        );
    }

    #[test]
    fn a_post_ends_the_wait() {
        let mailbox = Arc::new(Mailbox::default());
        let poster = Arc::clone(&mailbox);
        let thread = std::thread::spawn(move || poster.post(ControlEvent::Order(ShardOrder::Stop)));
        let mut out = VecDeque::new();
        mailbox.take(Duration::from_secs(30), &mut out);
        assert_eq!(out.len(), 1);
        thread.join().unwrap();
    }
}
