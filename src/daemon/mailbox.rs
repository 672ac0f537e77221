//! The mailbox receives all events of one shard; its loop sleeps here.
//!
//! A closed set of events in two queues. Control events (settled publishes, store answers, links, orders,
//! queries) come first in a turn: they free slots and memory. Events of the ingest connection keep their own
//! order and are taken in bounded chunks. Neither queue needs a limit: the prefetch bounds deliveries, the
//! slots bound settled publishes, the requests to the store bound its answers, and the admin port bounds the
//! queries of clients that wait. Those of clients that have gone cost little, since [`answer`] makes no
//! answer to them.
//!
//! The wait is a condition variable and not a tokio timer, which rounds up to whole milliseconds.
//!
//! With little traffic, each event would wake the loop once, which costs more than to handle it. So events
//! that may wait for others ([`LoopEvent::may_wait`]) do not end the sleep while the loop is patient. They
//! are taken at the next wake-up, before what came after them, and at the latest [`LINGER`] after the first.

use super::answers::ShardAnswer;
use super::exports::Begun;
use crate::admin::{CommandRequest, ShardState};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tidegate_amqp::{BrokerEvent, Forwarding};
use tidegate_config::Config;
use tidegate_store::thread::StoreEvent;
use tidegate_types::{Outcome, Request, Settled};
use tokio::sync::oneshot::Sender;

/// Upper bound on the items handled in one turn, some milliseconds of work. The last chunk may exceed it: a
/// chunk is as large as the consumer's bounds, or one envelope.
const TURN_ITEMS: usize = 4_096;

/// Longest wait of events that may wait for others. From some hundred items a second on, the loop wakes more
/// often for what is due. A tenth of [`tidegate_amqp::FAR_MS`].
const LINGER: Duration = Duration::from_millis(5);

/// More items than these do not wait: they would make late what is due just then.
const LINGERING_ITEMS: usize = 64;

/// Whether a sleep of the loop ends with each event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patience {
    /// It ends with each event.
    None,
    /// It goes on with events that may wait for others.
    Lingers,
}

/// What the node orders of a shard.
#[derive(Clone, Debug)]
pub(super) enum ShardOrder {
    /// The admin port answers: the life that has opened the store connects to the broker.
    Serve,
    /// This configuration takes effect.
    Configure(Arc<Config>),
    /// How it passes requests on to the other shards, where that is known only after the start.
    Share(Box<Forwarding>),
    /// Whose turn it is to open the store, where several nodes share the shards; nothing to a shard whose
    /// store is open.
    Turn(ShardTurn),
    /// Due items leave, then the store is left to another node.
    Release,
    /// Due items leave, then the shard ends.
    Stop,
    /// The daemon cannot start, or cannot go on: as a stop, but a store that is not served yet is closed at
    /// once.
    Withdraw,
}

/// What a shard without a store hears of its turn.
#[derive(Clone, Debug)]
pub(super) enum ShardTurn {
    /// It is to open its store.
    Claim,
    /// Another node has the shard, with the rest of its lease, ms.
    Taken { owner: String, left_ms: u64 },
    /// No node has the shard, and it is another node's turn.
    Free,
    /// The database is out of reach, for this reason.
    Unknown(String),
}

/// All events of the loop. Those that the engine takes many at a time are variants here.
#[derive(Debug)]
pub(super) enum LoopEvent {
    Requests { requests: Vec<Request>, may_wait: bool },
    Settled(Vec<Settled>),
    Command(CommandRequest, Sender<ShardAnswer>),
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
    Export(Sender<Begun>),
    /// An attempt to open the store has ended.
    Opened,
}

/// Answers a query with what `make` gives, unless its client has disconnected. The admin port gives the place
/// of such a client to the next one, so nothing bounds how many of these queries wait here.
pub(super) fn answer<A>(reply: Sender<A>, make: impl FnOnce() -> A) {
    if !reply.is_closed() {
        // The client may disconnect at this moment.
        let _ = reply.send(make());
    }
}

impl LoopEvent {
    /// Whether the event concerns the shard, whichever life handles it.
    pub(super) fn is_for_the_shard(&self) -> bool {
        match self {
            LoopEvent::Command(..) => true,
            LoopEvent::Requests { .. } | LoopEvent::Settled(_) => false,
            LoopEvent::Control(event) => match event {
                ControlEvent::Order(_) | ControlEvent::State(_) | ControlEvent::Export(_) => true,
                ControlEvent::Broker(_) | ControlEvent::Store(_) | ControlEvent::Opened => false,
            },
        }
    }

    /// Whether nothing is late if the loop, which waits for nothing at the broker, handles the event somewhat
    /// later: it frees slots and memory, or brings what is due much later.
    fn may_wait(&self) -> bool {
        match self {
            LoopEvent::Requests { may_wait, .. } => *may_wait,
            LoopEvent::Settled(settled) => {
                settled.iter().all(|settled| matches!(settled.outcome, Outcome::Confirmed(_)))
            }
            LoopEvent::Command(..) | LoopEvent::Control(_) => false,
        }
    }

    /// Units of work to judge its requests.
    fn item_count(&self) -> usize {
        match self {
            LoopEvent::Requests { requests, .. } => requests.iter().map(Request::item_count).sum(),
            LoopEvent::Settled(_) | LoopEvent::Command(..) | LoopEvent::Control(_) => 0,
        }
    }

    /// Whether the event keeps its place among the requests.
    fn is_of_ingest(&self) -> bool {
        let ingest = |event: &BrokerEvent| {
            // A forward may be reported right after its delivery was handed over.
            matches!(
                event,
                BrokerEvent::IngestReady { .. } | BrokerEvent::IngestLost | BrokerEvent::Forwarded(_)
            )
        };
        match self {
            LoopEvent::Requests { .. } => true,
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
            tidegate_amqp::Event::Requests { requests, may_wait } => {
                LoopEvent::Requests { requests, may_wait }
            }
            tidegate_amqp::Event::Settled(settled) => LoopEvent::Settled(settled),
            tidegate_amqp::Event::Broker(event) => ControlEvent::Broker(event).into(),
        }
    }
}

#[derive(Debug, Default)]
struct MailboxQueues {
    /// Events that may wait and came before all others, in order.
    lingering: VecDeque<LoopEvent>,
    /// Items of their requests.
    lingering_items: usize,
    control: VecDeque<LoopEvent>,
    ingest: VecDeque<LoopEvent>,
    /// The events may not wait.
    is_pressing: bool,
    /// How long the first of the lingering events waits.
    lingers_until: Option<Instant>,
    /// The loop sleeps: until when, and how.
    sleep: Option<(Instant, Patience)>,
}

impl MailboxQueues {
    fn is_empty(&self) -> bool {
        self.lingering.is_empty() && self.control.is_empty() && self.ingest.is_empty()
    }

    /// Adds an event. Whether the loop has to be woken for it.
    fn push(&mut self, event: LoopEvent) -> bool {
        if event.may_wait() && !self.is_pressing {
            self.lingers_until.get_or_insert_with(|| Instant::now() + LINGER);
            self.lingering_items += event.item_count();
            self.is_pressing = self.lingering_items > LINGERING_ITEMS;
            self.lingering.push_back(event);
        } else {
            self.is_pressing = true;
            let queue = if event.is_of_ingest() { &mut self.ingest } else { &mut self.control };
            queue.push_back(event);
        }
        self.sleep.is_some_and(|(until, patience)| self.due(patience).is_none_or(|due| due < until))
    }

    /// When the loop has to take the events; `None`: at once.
    fn due(&self, patience: Patience) -> Option<Instant> {
        self.lingers_until.filter(|_| patience == Patience::Lingers && !self.is_pressing)
    }
}

#[derive(Debug, Default)]
pub(super) struct Mailbox {
    queues: Mutex<MailboxQueues>,
    filled: Condvar,
}

impl Mailbox {
    /// Adds an event, from any thread; never blocks for long.
    pub(super) fn post(&self, event: impl Into<LoopEvent>) {
        let wakes = self.lock().push(event.into());
        if wakes {
            self.filled.notify_one();
        }
    }

    /// Puts back events that were taken, before all that came since.
    fn put_back(&self, events: VecDeque<LoopEvent>) {
        let mut queues = self.lock();
        queues.is_pressing |= !events.is_empty();
        events.into_iter().rev().for_each(|event| queues.control.push_front(event));
        drop(queues);
        self.filled.notify_one();
    }

    /// Waits for an event, `timeout` at most, and moves one turn's events to `out`.
    pub(super) fn take(&self, timeout: Duration, patience: Patience, out: &mut VecDeque<LoopEvent>) {
        let mut queues = self.lock();
        if !timeout.is_zero() {
            queues = self.sleep(queues, Instant::now() + timeout, patience);
        }
        out.extend(queues.lingering.drain(..));
        out.extend(queues.control.drain(..));
        let mut items = std::mem::take(&mut queues.lingering_items);
        while items < TURN_ITEMS {
            let Some(event) = queues.ingest.pop_front() else { break };
            items += event.item_count();
            out.push_back(event);
        }
        (queues.is_pressing, queues.lingers_until) = (!queues.ingest.is_empty(), None);
    }

    /// Sleeps until there are events to take, at most until `end`.
    fn sleep<'q>(
        &'q self,
        mut queues: MutexGuard<'q, MailboxQueues>,
        end: Instant,
        patience: Patience,
    ) -> MutexGuard<'q, MailboxQueues> {
        loop {
            let due = if queues.is_empty() { Some(end) } else { queues.due(patience) };
            let Some(until) = due.map(|due| due.min(end)) else { return queues };
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return queues;
            }
            queues.sleep = Some((until, patience));
            queues = self.filled.wait_timeout(queues, left).unwrap_or_else(PoisonError::into_inner).0;
            queues.sleep = None;
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
            present.take(timeout, Patience::None, out);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<Mailbox>>> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends open queries without an answer, and all later ones.
    pub(super) fn close(&self) {
        if let Some(last) = self.lock().take() {
            last.take(Duration::ZERO, Patience::None, &mut VecDeque::new());
        }
    }

    /// A new mailbox for the next life. Events that the connections and the store of the last life still send
    /// stay in the old one. Orders and queries that came between the two lives are moved.
    pub(super) fn renew(&self) -> Arc<Mailbox> {
        let new = Arc::new(Mailbox::default());
        let mut present = self.lock();
        let mut left = VecDeque::new();
        if let Some(present) = &*present {
            present.take(Duration::ZERO, Patience::None, &mut left);
        }
        left.into_iter().filter(LoopEvent::is_for_the_shard).for_each(|event| new.post(event));
        *present = Some(Arc::clone(&new));
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_types::RequestBody;
    use tokio::sync::oneshot::channel;

    #[test]
    fn control_comes_first_and_ingest_keeps_its_order() {
        let mailbox = Mailbox::default();
        mailbox.post(ControlEvent::Broker(BrokerEvent::IngestReady { generation: 1 }));
        mailbox.post(ControlEvent::Broker(BrokerEvent::IngestLost));
        mailbox.post(ControlEvent::Order(ShardOrder::Serve));
        let mut out = VecDeque::new();
        mailbox.take(Duration::ZERO, Patience::None, &mut out);
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

    /// Excluded: answers made for clients that have disconnected, as many as somebody likes to ask for.
    #[test]
    fn no_answer_is_made_for_a_client_that_has_gone() {
        let (reply, client) = channel();
        answer(reply, || 1);
        assert_eq!(client.blocking_recv(), Ok(1));
        let (reply, client) = channel();
        drop(client);
        answer(reply, || -> u8 { panic!("nobody waits for it") });
    }

    fn confirmed() -> LoopEvent {
        let outcome = Outcome::Confirmed(tidegate_types::BatchId::default());
        LoopEvent::Settled(vec![Settled { number: 1, outcome }])
    }

    fn requests(may_wait: bool) -> LoopEvent {
        LoopEvent::Requests { requests: Vec::new(), may_wait }
    }

    /// Excluded: a wake-up for each event; an event that must not wait and does; a wait anew with each event.
    #[test]
    fn who_sleeps_is_woken_for_what_cannot_wait() {
        let asleep = |left: Duration, patience| MailboxQueues {
            sleep: Some((Instant::now() + left, patience)),
            ..MailboxQueues::default()
        };
        let long = Duration::from_secs(30);
        assert!(!MailboxQueues::default().push(confirmed()), "nobody sleeps");
        assert!(asleep(long, Patience::None).push(confirmed()), "impatient");
        assert!(!asleep(Duration::ZERO, Patience::Lingers).push(confirmed()), "it wakes soon by itself");
        let refused = Settled { number: 2, outcome: Outcome::Nacked };
        for pressing in
            [LoopEvent::Settled(vec![refused]), requests(false), ControlEvent::Order(ShardOrder::Stop).into()]
        {
            assert!(asleep(Duration::ZERO, Patience::Lingers).push(pressing));
        }
        let mut queues = asleep(long, Patience::Lingers);
        assert!(queues.push(requests(true)), "it has to sleep less long");
        let first = queues.due(Patience::Lingers).unwrap();
        queues.sleep = Some((first, Patience::Lingers));
        assert!(!queues.push(confirmed()), "taken with the first one");
        assert_eq!(
            queues.due(Patience::Lingers),
            Some(first),
            "the first one waits no longer for the second"
        );
        assert!(queues.push(requests(false)));
        assert_eq!(queues.due(Patience::Lingers), None, "all are taken at once");
    }

    /// Excluded: events that may wait, taken before their time or not at all; what cannot wait does.
    #[test]
    fn a_patient_loop_takes_what_may_wait_with_the_rest() {
        let mailbox = Mailbox::default();
        let mut out = VecDeque::new();
        mailbox.post(confirmed());
        mailbox.take(Duration::from_secs(30), Patience::None, &mut out);
        assert_eq!(out.len(), 1, "an impatient loop takes it at once");
        let posted = Instant::now();
        mailbox.post(confirmed());
        mailbox.post(requests(true));
        mailbox.take(Duration::from_secs(30), Patience::Lingers, &mut out);
        assert_eq!(out.len(), 3);
        assert!(posted.elapsed() >= LINGER, "{:?}", posted.elapsed());
        mailbox.post(confirmed());
        mailbox.post(ControlEvent::Order(ShardOrder::Stop));
        mailbox.take(Duration::from_secs(30), Patience::Lingers, &mut out);
        assert_eq!(out.len(), 5, "one of them does not wait");
        mailbox.post(confirmed());
        mailbox.take(Duration::from_micros(1), Patience::Lingers, &mut out);
        assert_eq!(out.len(), 6, "something is due sooner");
    }

    /// Excluded: a command that overtakes a request whose publisher has its confirm; an ingest event that
    /// overtakes another one; many items that wait together.
    #[test]
    fn what_has_waited_comes_before_what_came_after_it() {
        let request = |_| Request {
            delivery: tidegate_types::Delivery { generation: 1, tag: 1 },
            redelivered: false,
            received: 0,
            body: RequestBody::Items(Vec::new()),
        };
        let of = |items: usize| {
            let requests = (0..items).map(request).collect();
            LoopEvent::Requests { requests, may_wait: true }
        };
        let mailbox = Mailbox::default();
        let mut out = VecDeque::new();
        mailbox.post(of(1));
        mailbox.post(ControlEvent::Order(ShardOrder::Stop));
        mailbox.post(requests(false));
        mailbox.post(of(2));
        mailbox.post(confirmed());
        mailbox.take(Duration::ZERO, Patience::Lingers, &mut out);
        let told: Vec<String> = out
            .drain(..)
            .map(|event| match event {
                LoopEvent::Requests { requests, .. } => {
                    format!("{} items", requests.iter().map(Request::item_count).sum::<usize>())
                }
                LoopEvent::Settled(_) => "settled".to_owned(),
                LoopEvent::Control(_) | LoopEvent::Command(..) => "an order".to_owned(),
            })
            .collect();
        assert_eq!(told, ["1 items", "an order", "settled", "0 items", "2 items"]);
        mailbox.post(of(LINGERING_ITEMS));
        assert!(!mailbox.lock().is_pressing);
        mailbox.post(of(1));
        assert!(mailbox.lock().is_pressing, "they would take too long");
    }

    #[test]
    fn a_post_ends_the_wait() {
        let mailbox = Arc::new(Mailbox::default());
        let poster = Arc::clone(&mailbox);
        let thread = std::thread::spawn(move || poster.post(ControlEvent::Order(ShardOrder::Stop)));
        let mut out = VecDeque::new();
        mailbox.take(Duration::from_secs(30), Patience::None, &mut out);
        assert_eq!(out.len(), 1);
        thread.join().unwrap();
    }
}
