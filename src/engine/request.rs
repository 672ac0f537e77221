//! Commands and answers: what may be asked about items, and what is told of them. Re-exported by
//! [`super::types`].

use super::pace::Rate;
use super::types::{BatchId, Content, Dead, Delivery, Identity, Key};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Where the answer to a command goes: the message's `reply_to` and `correlation_id`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplyTo {
    /// A queue, by the default exchange.
    pub queue: Box<str>,
    /// Sent along with the reply.
    pub correlation_id: Option<Box<str>>,
}

/// One item, as a command names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Name of the application.
    pub application: Box<str>,
    /// The id as it was written; given back in the answer.
    pub id: Box<str>,
    /// Identity of application and id.
    pub identity: Identity,
    /// The id has the form of one that this store assigns: what it says.
    pub assigned: Option<AssignedId>,
}

impl Target {
    /// What is looked for, in this order.
    pub(super) fn identities(&self) -> [Option<Identity>; 2] {
        [Some(self.identity), self.assigned.map(|assigned| Identity::assigned(assigned.seq))]
    }
}

/// What an assigned id says of its item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AssignedId {
    /// Arrival number of the item.
    pub seq: u64,
    /// When it was due as accepted, UTC ms. With the arrival number it is the item's key, unless its window
    /// closed sooner.
    pub due: u64,
    /// Number of the window that it came into; without one, its own.
    pub window: u64,
}

impl AssignedId {
    /// Of an item with this place in the store, which was due then as accepted.
    pub fn of(key: Key, accepted_due: u64) -> Self {
        AssignedId { seq: key.seq, due: accepted_due, window: key.window }
    }

    /// Where its item lies, unless it was moved.
    pub fn key(self) -> Key {
        Key { due: self.due, window: self.window, seq: self.seq }
    }
}

/// All items of one customer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CustomerOf {
    /// Name of the application.
    pub application: Box<str>,
    /// Name of the customer.
    pub customer: Box<str>,
}

/// Items of one application, chosen by what is known of them. Times are UTC ms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// Name of the application.
    pub application: Box<str>,
    /// Of this customer alone.
    pub customer: Option<Box<str>>,
    /// Of customers whose names begin so; empty: also those of nobody.
    pub customer_prefix: Box<str>,
    /// First due wanted.
    pub due_from: u64,
    /// First due not wanted; `u64::MAX`: all.
    pub due_until: u64,
    /// First receipt not wanted; `u64::MAX`: all.
    pub received_until: u64,
}

impl Selection {
    /// All that an application has.
    pub fn all(application: Box<str>) -> Self {
        Selection {
            application,
            customer: None,
            customer_prefix: Box::default(),
            due_from: 0,
            due_until: u64::MAX,
            received_until: u64::MAX,
        }
    }

    /// Whether an item of its application is one of them.
    pub fn takes(&self, customer: Option<&str>, due: u64, received: u64) -> bool {
        let timely = due >= self.due_from
            && (self.due_until == u64::MAX || due < self.due_until)
            && (self.received_until == u64::MAX || received < self.received_until);
        timely && self.takes_customer(customer)
    }

    /// Whether items of this customer may be among them.
    pub fn takes_customer(&self, customer: Option<&str>) -> bool {
        self.customer.as_deref().is_none_or(|name| Some(name) == customer)
            && (self.customer_prefix.is_empty()
                || customer.is_some_and(|name| name.starts_with(&*self.customer_prefix)))
    }
}

/// Which items a list shows. Times are UTC ms.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Of this application alone.
    pub application: Option<Arc<str>>,
    /// Of this customer alone.
    pub customer: Option<Arc<str>>,
    /// In this state alone.
    pub state: Option<ListedStage>,
    /// First place wanted: due not before this, and behind the last page.
    pub from: Key,
    /// First due not wanted.
    pub until: Option<u64>,
    /// Most rows of one page, at least 1.
    pub limit: usize,
}

impl Filter {
    /// Whether the item belongs on a page of this list.
    pub(super) fn takes(&self, item: &Listed) -> bool {
        self.application.as_ref().is_none_or(|name| *name == item.application)
            && self.customer.as_ref().is_none_or(|name| Some(name) == item.customer.as_ref())
            && self.state.is_none_or(|stage| stage == item.stage)
            && item.key >= self.from
            && self.until.is_none_or(|until| item.key.due < until)
    }
}

/// How many items become due when: stretches of time of one length, the first of which is under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimelineQuery {
    /// Of this application alone.
    pub application: Option<Arc<str>>,
    /// Length of a stretch, at least 1 ms. They begin at multiples of it.
    pub each_ms: u64,
    /// Number of stretches, at least 1.
    pub stretches: usize,
}

/// What an application has in an [`TimelineQuery`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ahead {
    /// Items that become due within it, as far as they were counted.
    pub count: u64,
    /// When the next one becomes due, also beyond it, UTC ms.
    pub next_due: Option<u64>,
}

/// What becomes due when: the answer to an [`TimelineQuery`]. What was due before is not in it. Times are UTC ms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeline {
    /// From this moment on it was counted.
    pub at: u64,
    /// Begin of the first stretch.
    pub from: u64,
    /// Length of a stretch, ms.
    pub each_ms: u64,
    /// Items of each stretch.
    pub counts: Vec<u64>,
    /// There was more than one answer goes over: what lies from here on was counted in part.
    pub counted_until: Option<u64>,
    /// By name: those that have anything that is not due yet.
    pub applications: BTreeMap<Arc<str>, Ahead>,
    /// There are more applications than one answer goes over.
    pub applications_truncated: bool,
}

/// A time that a command names: of an item from now on, or at which something ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// This moment, UTC ms; one that is over: at once.
    At(u64),
    /// So many ms after the command is executed.
    After(u64),
}

/// What is asked of the daemon, beside requests. `I` is how one item is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command<I = Target> {
    /// Take one item back.
    Cancel(I),
    /// Take back all items of a customer.
    CancelAll(CustomerOf),
    /// Take back all items that a selection takes.
    CancelSelected(Selection),
    /// What has become of an item.
    Lookup(I),
    /// Give an item that waits another time.
    Reschedule(I, Moment),
    /// How many items a customer has.
    Count(CustomerOf),
    /// How many items a selection takes.
    CountSelected(Selection),
    /// Close a customer's open window now.
    Flush(CustomerOf),
    /// Close all open windows of an application now.
    FlushAll(Box<str>),
    /// One page of the items that have not ended, in order of due.
    List(Filter),
    /// How many items become due when.
    TimelineQuery(TimelineQuery),
    /// Hold an application's items back until then, or until [`Command::Resume`].
    Pause(Box<str>, Option<Moment>),
    /// Let a paused application go on.
    Resume(Box<str>),
    /// Hold a customer's items back until then, or until [`Command::ResumeCustomer`].
    PauseCustomer(CustomerOf, Option<Moment>),
    /// Let a customer that is held back go on.
    ResumeCustomer(CustomerOf),
    /// Let an application's items leave so fast, until then or for good; without a rate as fast as it is set.
    Slow(Box<str>, Option<Rate>, Option<Moment>),
    /// Try a parked application now, without waiting for its back-off.
    Retry(Box<str>),
    /// Give up all parked items of an application.
    DropParked(Box<str>),
}

impl<I> Command<I> {
    /// The same command, with its item named another way.
    pub fn naming<J>(self, name: impl FnOnce(I) -> J) -> Command<J> {
        match self {
            Command::Cancel(item) => Command::Cancel(name(item)),
            Command::Lookup(item) => Command::Lookup(name(item)),
            Command::Reschedule(item, due) => Command::Reschedule(name(item), due),
            Command::CancelAll(of) => Command::CancelAll(of),
            Command::CancelSelected(selection) => Command::CancelSelected(selection),
            Command::CountSelected(selection) => Command::CountSelected(selection),
            Command::Count(of) => Command::Count(of),
            Command::Flush(of) => Command::Flush(of),
            Command::FlushAll(application) => Command::FlushAll(application),
            Command::List(filter) => Command::List(filter),
            Command::TimelineQuery(timeline) => Command::TimelineQuery(timeline),
            Command::Pause(application, end) => Command::Pause(application, end),
            Command::Resume(application) => Command::Resume(application),
            Command::PauseCustomer(of, end) => Command::PauseCustomer(of, end),
            Command::ResumeCustomer(of) => Command::ResumeCustomer(of),
            Command::Slow(application, rate, end) => Command::Slow(application, rate, end),
            Command::Retry(application) => Command::Retry(application),
            Command::DropParked(application) => Command::DropParked(application),
        }
    }
}

/// Who gets the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asker {
    /// A caller within this process, by a number of its own.
    Local(u64),
    /// The sender of a message. Without `reply_to` no answer is sent.
    Remote {
        /// Acked once the answer is out.
        delivery: Delivery,
        /// RabbitMQ's mark that it was delivered before.
        redelivered: bool,
        /// Where the reply goes; `None`: no reply is wanted.
        reply_to: Option<ReplyTo>,
    },
}

/// Where an item stands that has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListedStage {
    /// For its time, its window, a free slot, or its paused application to go on.
    Waiting,
    /// Published, and not settled.
    InFlight,
    /// Its application cannot be delivered to.
    Parked,
}

impl ListedStage {
    /// The word in answers.
    pub fn as_str(self) -> &'static str {
        match self {
            ListedStage::Waiting => "waiting",
            ListedStage::InFlight => "in_flight",
            ListedStage::Parked => "parked",
        }
    }
}

/// How an item ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// Its batch was confirmed.
    Sent(BatchId),
    /// It was taken back.
    Cancelled,
    /// It was taken back by a command that the broker had delivered before, which may be an old one executed
    /// again: a redelivered request that comes behind it is not the one that it took back.
    CancelledAgain,
    /// It was given up; `expired` is one of the reasons.
    Dead(Arc<Dead>),
}

/// What is remembered of an item that has ended, for the application's `dedupe_tail`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// How it ended.
    pub end: End,
    /// When, UTC ms.
    pub at: u64,
    /// When it was due, UTC ms.
    pub due: u64,
    /// Number of failed attempts.
    pub attempts: u32,
    /// Same as [`super::types::NewItem::fingerprint`].
    pub fingerprint: u64,
    /// Name of the customer.
    pub customer: Option<Arc<str>>,
}

/// One item in a list or a look-up.
#[derive(Clone, Debug, PartialEq)]
pub struct Listed {
    /// Where it stands.
    pub stage: ListedStage,
    /// Its place in the order, and its arrival number.
    pub key: Key,
    /// When it was due as accepted, UTC ms; see [`AssignedId::due`].
    pub accepted_due: u64,
    /// When it is due, UTC ms.
    pub due: u64,
    /// Name of the application.
    pub application: Arc<str>,
    /// Name of the customer.
    pub customer: Option<Arc<str>>,
    /// Receipt, UTC ms.
    pub received: u64,
    /// Number of failed attempts.
    pub attempts: u32,
    /// Same as [`super::types::Tried::retry`].
    pub retry: u32,
    /// Text of the last failure.
    pub last_error: Option<Arc<str>>,
    /// Its properties, where its producer's id is read from; no body. Lists only.
    pub properties: Option<Arc<Content>>,
}

impl Listed {
    /// Bytes that it takes, about.
    pub fn size(&self) -> u64 {
        let text = self.last_error.as_ref().map_or(0, |text| text.len() as u64);
        256 + text + self.properties.as_ref().map_or(0, |properties| properties.size())
    }
}

/// What a command came to.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// Items were cancelled.
    Cancelled {
        /// Number of items cancelled.
        count: u64,
        /// Number of items that could not be, being under way.
        in_flight: u64,
    },
    /// It cannot be taken back: this is how it ended.
    Ended(Box<Ended>),
    /// It is under way, and its outcome did not become known in time.
    InFlight,
    /// No such item waits, and none ended within the tail.
    Unknown,
    /// To a look-up: it has not ended.
    Found(Box<Listed>),
    /// Numbers of items that have not ended, by stage.
    Counted {
        /// Items that wait.
        waiting: u64,
        /// Items in flight.
        in_flight: u64,
        /// Items of parked queues.
        parked: u64,
        /// Earliest due, UTC ms.
        next_due: Option<u64>,
        /// Until when the customer is held back, UTC ms; [`FOR_EVER`]: until a command lets it go on.
        paused: Option<u64>,
    },
    /// The window was closed; number of items in it.
    Flushed(u64),
    /// The item has another time. Both UTC ms.
    Rescheduled {
        /// When it is due now.
        due: u64,
        /// When it was due before.
        before: u64,
    },
    /// One page, and where the next one begins.
    Listed {
        /// In order of due.
        items: Vec<Listed>,
        /// `None`: no more.
        next: Option<Key>,
    },
    /// What becomes due when.
    Timeline(Box<Timeline>),
    /// It is so for a while: paused, or slowed down.
    Until {
        /// Until then, UTC ms; `None`: until a command ends it.
        until: Option<u64>,
        /// It was not before, or to another end.
        changed: bool,
    },
    /// It is so now; `changed`: and was not before.
    Done {
        /// The command made a difference.
        changed: bool,
    },
    /// It was no command that can be understood.
    Rejected(Box<str>),
    /// It cannot be executed at present, and why.
    Unavailable(&'static str),
}

/// One answer on its way.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply {
    /// Who is to be answered.
    pub asker: Asker,
    /// What was asked; `None` where that could not be understood.
    pub command: Option<Box<Command>>,
    /// Answer to the command.
    pub answer: Answer,
}
