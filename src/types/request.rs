//! Commands and their answers. Re-exported by [`super::types`].

use crate::rate::Rate;
use crate::{BatchId, Content, Dead, Delivery, Identity, Key};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// Where the answer to a command goes: the message's `reply_to` and `correlation_id`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplyTo {
    /// Name of a queue; the default exchange routes to it.
    pub queue: Box<str>,
    /// Copied to the reply.
    pub correlation_id: Option<Box<str>>,
}

/// One item, as a command names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Name of the application.
    pub application: Box<str>,
    /// The id as written; the answer repeats it.
    pub id: Box<str>,
    /// Identity of (application, id).
    pub identity: Identity,
    /// Set if the id has the form of one that this store assigns: its contents.
    pub assigned: Option<AssignedId>,
}

impl Target {
    /// Identities to look for, in this order.
    pub fn identities(&self) -> [Option<Identity>; 2] {
        [Some(self.identity), self.assigned.map(|assigned| Identity::assigned(assigned.seq))]
    }
}

/// The contents of an assigned id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AssignedId {
    /// Arrival number of the item.
    pub seq: u64,
    /// Due of the item as accepted, UTC ms. With the arrival number this is the item's key, unless its window
    /// closed sooner.
    pub due: u64,
    /// Number of the window that the item joined; without one, its own.
    pub window: u64,
}

impl AssignedId {
    /// The id of an item with this key in the store and this due as accepted.
    pub fn of(key: Key, accepted_due: u64) -> Self {
        AssignedId { seq: key.seq, due: accepted_due, window: key.window }
    }

    /// Key of its item in the store, unless the item was moved.
    pub fn key(self) -> Key {
        Key { due: self.due, window: self.window, seq: self.seq }
    }
}

/// All items of one customer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CustomerOf {
    /// Name of the application.
    pub application: Box<str>,
    /// Name of the customer.
    pub customer: Box<str>,
}

/// A selection among the items of one application. Times are UTC ms.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Selection {
    /// Name of the application.
    pub application: Box<str>,
    /// Only items of this customer.
    pub customer: Option<Box<str>>,
    /// Prefix of the customer's name; empty: all items, also those without a customer.
    pub customer_prefix: Box<str>,
    /// Inclusive lower bound of the due.
    pub due_from: u64,
    /// Exclusive upper bound of the due; `u64::MAX`: no bound.
    pub due_until: u64,
    /// Exclusive upper bound of the receipt; `u64::MAX`: no bound.
    pub received_until: u64,
}

impl Selection {
    /// Selects all items of an application.
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

    /// Whether the selection takes this item of its application.
    pub fn takes(&self, customer: Option<&str>, due: u64, received: u64) -> bool {
        let timely = due >= self.due_from
            && (self.due_until == u64::MAX || due < self.due_until)
            && (self.received_until == u64::MAX || received < self.received_until);
        timely && self.takes_customer(customer)
    }

    /// Whether the selection may take items of this customer.
    pub fn takes_customer(&self, customer: Option<&str>) -> bool {
        self.customer.as_deref().is_none_or(|name| Some(name) == customer)
            && (self.customer_prefix.is_empty()
                || customer.is_some_and(|name| name.starts_with(&*self.customer_prefix)))
    }
}

/// A place in the list of the items of all shards, which is in the order of their keys. Of several shards
/// with the same key, the one with the lowest number comes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ListPlace {
    /// Key of an item, or a place between two.
    pub key: Key,
    /// Number of its shard; 0 comes before the items of all shards with this key.
    pub shard: u16,
}

/// The items that a list shows. Times are UTC ms.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Filter {
    /// Only items of this application.
    pub application: Option<Arc<str>>,
    /// Only items of this customer.
    pub customer: Option<Arc<str>>,
    /// Only items in this state.
    pub state: Option<ListedStage>,
    /// First place wanted, inclusive: a lower bound of the due, or the place after the previous page.
    pub from: Key,
    /// The first shard whose item with the key `from` is wanted; 0: any. One shard alone does not read it
    /// ([`Filter::of_shard`]).
    pub from_shard: u16,
    /// Exclusive upper bound of the due.
    pub until: Option<u64>,
    /// Maximum number of rows in a page, at least 1.
    pub limit: usize,
}

impl Filter {
    /// The first place wanted in the list of all shards.
    pub fn first(&self) -> ListPlace {
        ListPlace { key: self.from, shard: self.from_shard }
    }

    /// The part of this list that the shard with this number has.
    pub fn of_shard(&self, shard: u16) -> Filter {
        let from = if shard < self.from_shard { self.from.next() } else { self.from };
        Filter { from, from_shard: 0, ..self.clone() }
    }

    /// Whether the item belongs on a page of this list.
    pub fn takes(&self, item: &Listed) -> bool {
        self.application.as_ref().is_none_or(|name| *name == item.application)
            && self.customer.as_ref().is_none_or(|name| Some(name) == item.customer.as_ref())
            && self.state.is_none_or(|stage| stage == item.stage)
            && item.key >= self.from
            && self.until.is_none_or(|until| item.key.due < until)
    }
}

/// A question for the numbers of items that become due in each of several time spans of one length. The first
/// span contains the moment from which they are counted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimelineQuery {
    /// Only items of this application.
    pub application: Option<Arc<str>>,
    /// The moment from which items are counted, UTC ms; `None`: the moment at which the count begins.
    pub at: Option<u64>,
    /// Length of a span, at least 1 ms. Spans begin at multiples of it.
    pub each_ms: u64,
    /// Number of spans, at least 1.
    pub stretches: usize,
}

/// The part of one application in a [`Timeline`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ahead {
    /// Items that become due within the timeline, as far as they were counted.
    pub count: u64,
    /// Due of the next item, also if it is beyond the timeline, UTC ms.
    pub next_due: Option<u64>,
}

/// The answer to a [`TimelineQuery`]. Items that are due already are not counted. Times are UTC ms.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timeline {
    /// The moment from which items were counted.
    pub at: u64,
    /// Begin of the first span.
    pub from: u64,
    /// Length of a span, ms.
    pub each_ms: u64,
    /// Number of items in each span.
    pub counts: Vec<u64>,
    /// Set if there are more items than one answer counts: counts from this moment on are incomplete.
    pub counted_until: Option<u64>,
    /// By name: the applications with items that are not due yet.
    pub applications: BTreeMap<Arc<str>, Ahead>,
    /// There are more applications than one answer covers.
    pub applications_truncated: bool,
}

/// A time in a command: a new due of an item, or the end of a pause or rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Moment {
    /// This moment, UTC ms; a past moment means at once.
    At(u64),
    /// This many ms after the command is executed.
    After(u64),
}

/// A command to the daemon. `I` is the type that names one item.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command<I = Target> {
    /// Cancel one item.
    Cancel(I),
    /// Cancel all items of a customer.
    CancelAll(CustomerOf),
    /// Cancel all items that a selection takes.
    CancelSelected(Selection),
    /// Report the state or the end of an item.
    Lookup(I),
    /// Set another time for a waiting item.
    Reschedule(I, Moment),
    /// Count the items of a customer.
    Count(CustomerOf),
    /// Count the items that a selection takes.
    CountSelected(Selection),
    /// Close the open window of a customer now.
    Flush(CustomerOf),
    /// Close all open windows of an application now.
    FlushAll(Box<str>),
    /// Return one page of the items that have not ended, in order of due.
    List(Filter),
    /// Count items by the time at which they become due.
    TimelineQuery(TimelineQuery),
    /// Hold back an application's items until this moment, or until [`Command::Resume`].
    Pause(Box<str>, Option<Moment>),
    /// End the pause of an application.
    Resume(Box<str>),
    /// Hold back a customer's items until this moment, or until [`Command::ResumeCustomer`].
    PauseCustomer(CustomerOf, Option<Moment>),
    /// End the pause of a customer.
    ResumeCustomer(CustomerOf),
    /// Limit an application to this rate, until this moment or until another command; without a rate, the
    /// configured one applies again.
    Slow(Box<str>, Option<Rate>, Option<Moment>),
    /// Probe a parked application now, without waiting for its back-off.
    Retry(Box<str>),
    /// Dead-letter all parked items of an application.
    DropParked(Box<str>),
}

impl<I> Command<I> {
    /// The application that the command is about; `None`: all of them. `of_item` gives that of an item.
    pub fn application<'c>(&'c self, of_item: impl FnOnce(&'c I) -> &'c str) -> Option<&'c str> {
        match self {
            Command::Cancel(item) | Command::Lookup(item) | Command::Reschedule(item, _) => {
                Some(of_item(item))
            }
            Command::CancelAll(of)
            | Command::Count(of)
            | Command::Flush(of)
            | Command::PauseCustomer(of, _)
            | Command::ResumeCustomer(of) => Some(&of.application),
            Command::CancelSelected(selection) | Command::CountSelected(selection) => {
                Some(&selection.application)
            }
            Command::FlushAll(application)
            | Command::Pause(application, _)
            | Command::Resume(application)
            | Command::Slow(application, _, _)
            | Command::Retry(application)
            | Command::DropParked(application) => Some(application),
            Command::List(filter) => filter.application.as_deref(),
            Command::TimelineQuery(timeline) => timeline.application.as_deref(),
        }
    }

    /// Whether it changes anything; else only its answer is of use.
    pub fn is_change(&self) -> bool {
        !matches!(
            self,
            Command::Lookup(_)
                | Command::Count(_)
                | Command::CountSelected(_)
                | Command::List(_)
                | Command::TimelineQuery(_)
        )
    }

    /// The same command with another type of item name.
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

/// The receiver of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asker {
    /// A caller within this process, by its number.
    Local(u64),
    /// The sender of a command message. Without `reply_to` no answer is sent.
    Remote {
        /// Acked once the answer has been sent.
        delivery: Delivery,
        /// RabbitMQ's redelivered flag.
        redelivered: bool,
        /// Destination of the reply; `None`: no reply is wanted.
        reply_to: Option<ReplyTo>,
    },
}

/// State of an item that has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ListedStage {
    /// It waits for its time, its window, a free slot, or the end of its application's pause.
    Waiting,
    /// Published and not settled.
    InFlight,
    /// Its application cannot be delivered to.
    Parked,
}

impl ListedStage {
    /// The state's name in answers.
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
    /// It was cancelled.
    Cancelled,
    /// It was cancelled by a redelivered command, which may be an old one executed again: a redelivered
    /// request that comes after the command is not the one that it cancelled.
    CancelledAgain,
    /// It was dead-lettered; `expired` is one of the reasons.
    Dead(Arc<Dead>),
}

/// The facts kept about an ended item, for the application's `dedupe_tail`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// How it ended.
    pub end: End,
    /// When it ended, UTC ms.
    pub at: u64,
    /// When it was due, UTC ms.
    pub due: u64,
    /// Number of failed attempts.
    pub attempts: u32,
    /// Same as [`crate::NewItem::fingerprint`].
    pub fingerprint: u64,
    /// Name of the customer.
    pub customer: Option<Arc<str>>,
}

/// One item in a list or a look-up.
#[derive(Clone, Debug, PartialEq)]
pub struct Listed {
    /// State of the item.
    pub stage: ListedStage,
    /// Its place in the order; contains its arrival number.
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
    /// Same as [`crate::Tried::retry`].
    pub retry: u32,
    /// Text of the last failure.
    pub last_error: Option<Arc<str>>,
    /// Its properties without its body; the producer's id is read from them. Set in lists only.
    pub properties: Option<Arc<Content>>,
}

impl Listed {
    /// Approximate size in bytes.
    pub fn size(&self) -> u64 {
        let text = self.last_error.as_ref().map_or(0, |text| text.len() as u64);
        256 + text + self.properties.as_ref().map_or(0, |properties| properties.size())
    }
}

/// The result of a command.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// Items were cancelled.
    Cancelled {
        /// Number of items cancelled.
        count: u64,
        /// Number of items that could not be cancelled, since they are in flight.
        in_flight: u64,
    },
    /// The item has ended, in this way.
    Ended(Box<Ended>),
    /// The item is in flight, and its outcome did not become known in time.
    InFlight,
    /// No item of this id waits, and none ended within the tail.
    Unknown,
    /// To a look-up: the item has not ended.
    Found(Box<Listed>),
    /// Numbers of items that have not ended, by state.
    Counted {
        /// Items that wait.
        waiting: u64,
        /// Items in flight.
        in_flight: u64,
        /// Items of parked queues.
        parked: u64,
        /// Earliest due, UTC ms.
        next_due: Option<u64>,
        /// When the customer's pause ends, UTC ms; [`FOR_EVER`]: when a command ends it.
        paused: Option<u64>,
    },
    /// The window was closed. Number of items in it.
    Flushed(u64),
    /// The item has another due. Both UTC ms.
    Rescheduled {
        /// The new due.
        due: u64,
        /// The previous due.
        before: u64,
    },
    /// One page of a list.
    Listed {
        /// In order of due.
        items: Vec<Listed>,
        /// Begin of the next page; `None`: there is none.
        next: Option<Key>,
    },
    /// Answer to [`Command::TimelineQuery`].
    Timeline(Box<Timeline>),
    /// A pause or a rate is in effect.
    Until {
        /// When it ends, UTC ms; `None`: when a command ends it.
        until: Option<u64>,
        /// Whether the command changed anything: it was not in effect before, or had another end.
        changed: bool,
    },
    /// The requested state is in effect.
    Done {
        /// Whether the command changed anything.
        changed: bool,
    },
    /// The command could not be understood; the text names the fault.
    Rejected(Box<str>),
    /// It cannot be executed at present, for this reason.
    Unavailable(&'static str),
}

/// One answer and its receiver.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply {
    /// Receiver of the answer.
    pub asker: Asker,
    /// The command; `None` if it could not be understood.
    pub command: Option<Box<Command>>,
    /// Answer to the command.
    pub answer: Answer,
}
