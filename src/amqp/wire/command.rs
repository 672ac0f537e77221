//! Commands: which messages are one, and what they ask for.
//!
//! A command names its application, and an item or a customer, in the fields of a request, or in a JSON body.
//! The body takes precedence: a client library may set its own `message_id` on every message.

use super::envelope::{given_of, is_array, raw, text_of, ShownJson};
use super::fields;
use super::identity::target;
use super::message::Message;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::borrow::Cow;
use tidegate_config::rfc3339::Rounding;
use tidegate_config::terms::{MAX_ID, MAX_NAME};
use tidegate_types::{Command, CustomerOf, Dead, Moment, ReplyTo, Target};

/// Prefix of the types that are reserved for tidegate: an unknown one would be a command of a later version.
const RESERVED: &str = "tidegate.";

/// The kind of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Cancel,
    Lookup,
    Flush,
    Pause,
    Resume,
    Reschedule,
}

/// The verb of a message of this `type`; `None`: it is no command.
///
/// # Errors
/// Another type that is reserved.
pub(crate) fn verb(kind: Option<&str>) -> Result<Option<Verb>, Dead> {
    let Some(kind) = kind.filter(|kind| is_reserved(kind)) else { return Ok(None) };
    match &kind[RESERVED.len()..] {
        "cancel" => Ok(Some(Verb::Cancel)),
        "lookup" => Ok(Some(Verb::Lookup)),
        "flush" => Ok(Some(Verb::Flush)),
        "pause" => Ok(Some(Verb::Pause)),
        "resume" => Ok(Some(Verb::Resume)),
        "reschedule" => Ok(Some(Verb::Reschedule)),
        _ => Err(fields::invalid(format!(
            "type {} is not a command: types beginning with {RESERVED} are reserved",
            fields::show_text(kind)
        ))),
    }
}

/// Whether a message of this `type` claims to be a command, known or not.
pub(crate) fn is_reserved(kind: &str) -> bool {
    kind.starts_with(RESERVED)
}

/// Where the answer goes; `None`: none is wanted.
pub(crate) fn reply_to(message: &Message<'_>) -> Option<ReplyTo> {
    let queue = message.basic.reply_to.filter(|queue| !queue.is_empty())?;
    Some(ReplyTo { queue: queue.into(), correlation_id: message.basic.correlation_id.map(Into::into) })
}

/// Reads the command that the message contains.
///
/// # Errors
/// A field that is missing or not understood.
pub(crate) fn read(verb: Verb, message: &Message<'_>, body: &[u8]) -> Result<Command, Dead> {
    let mut given = CommandFields::read(message, body)?;
    let application = match given.application.take() {
        Some(name) => name,
        None => message.required_application()?,
    };
    let item = |id: Cow<'_, str>| -> Target { target(&application, &id, message.store_identity) };
    let all_of = |customer: Cow<'_, str>| CustomerOf {
        application: application.as_ref().into(),
        customer: customer.into(),
    };
    let customer = |given: Option<_>| given.map_or_else(|| message.customer(), |name| Ok(Some(name)));
    match verb {
        Verb::Cancel => match (given.id, given.customer) {
            (Some(id), _) => Ok(Command::Cancel(item(id))),
            (None, Some(customer)) => Ok(Command::CancelAll(all_of(customer))),
            (None, None) => match (message.id(), message.customer()?) {
                (Some(id), _) => Ok(Command::Cancel(item(id))),
                (None, Some(customer)) => Ok(Command::CancelAll(all_of(customer))),
                (None, None) => Err(missing("an id (message_id) or a customer (x-customer)")),
            },
        },
        Verb::Lookup => match given.id.or(message.id()) {
            Some(id) => Ok(Command::Lookup(item(id))),
            None => Err(missing("an id (message_id)")),
        },
        Verb::Flush => match customer(given.customer)? {
            Some(customer) => Ok(Command::Flush(all_of(customer))),
            None => Err(missing("a customer (x-customer)")),
        },
        Verb::Pause => {
            let end = given.time(message, &application)?;
            if let Some(at) = end.filter(|at| *at <= message.received) {
                return Err(fields::invalid(format!("the pause is to end at {at}, which has passed")));
            }
            let end = end.map(Moment::At);
            Ok(match customer(given.customer)? {
                Some(customer) => Command::PauseCustomer(all_of(customer), end),
                None => Command::Pause(application.as_ref().into(), end),
            })
        }
        Verb::Resume => Ok(match customer(given.customer)? {
            Some(customer) => Command::ResumeCustomer(all_of(customer)),
            None => Command::Resume(application.as_ref().into()),
        }),
        Verb::Reschedule => {
            let due = given.time(message, &application)?;
            match (given.id.or(message.id()), due) {
                (Some(id), Some(at)) => Ok(Command::Reschedule(item(id), Moment::At(at))),
                (None, _) => Err(missing("an id (message_id)")),
                (_, None) => Err(missing("a time (x-deliver-at, x-delay)")),
            }
        }
    }
}

fn missing(what: &str) -> Dead {
    fields::invalid(format!("neither the fields nor the body of the command name {what}"))
}

/// Fields that the body names.
#[derive(Default)]
struct CommandFields<'a> {
    application: Option<Cow<'a, str>>,
    customer: Option<Cow<'a, str>>,
    id: Option<Cow<'a, str>>,
    deliver_at: Option<&'a RawValue>,
    delay_ms: Option<&'a RawValue>,
}

impl<'a> CommandFields<'a> {
    /// The time that the body names, else the message's, UTC ms; a delay counts from the receipt.
    fn time(&self, message: &Message<'_>, application: &str) -> Result<Option<u64>, Dead> {
        let mut own = message.own_times(application);
        own.at(
            "deliver_at",
            given_of("deliver_at", self.deliver_at, Rounding::Up)?,
            ShownJson(self.deliver_at),
        )?;
        own.after("delay_ms", given_of("delay_ms", self.delay_ms, Rounding::Up)?, ShownJson(self.delay_ms))?;
        match own.moment() {
            Some(at) => Ok(Some(at)),
            None => message.own_time(application),
        }
    }

    /// Reads the body of an envelope; any other body has no meaning in a command.
    fn read(message: &Message<'_>, body: &'a [u8]) -> Result<Self, Dead> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Selector<'a> {
            #[serde(borrow, default, deserialize_with = "raw")]
            application: Option<&'a RawValue>,
            #[serde(borrow, default, deserialize_with = "raw")]
            customer: Option<&'a RawValue>,
            #[serde(borrow, default, deserialize_with = "raw")]
            id: Option<&'a RawValue>,
            #[serde(borrow, default, deserialize_with = "raw")]
            deliver_at: Option<&'a RawValue>,
            #[serde(borrow, default, deserialize_with = "raw")]
            delay_ms: Option<&'a RawValue>,
        }
        if body.is_empty() || !message.is_envelope() {
            return Ok(CommandFields::default());
        }
        let text =
            std::str::from_utf8(body).map_err(|_| fields::invalid("the command's body is not UTF-8"))?;
        if is_array(text) {
            return Err(fields::invalid("a command's body is one object, not an array"));
        }
        let selector: Selector<'a> = serde_json::from_str(text)
            .map_err(|error| fields::invalid(format!("the command's body is not understood: {error}")))?;
        Ok(CommandFields {
            application: text_of("application", selector.application, MAX_NAME)?,
            customer: text_of("customer", selector.customer, MAX_NAME)?,
            id: text_of("id", selector.id, MAX_ID)?,
            deliver_at: selector.deliver_at,
            delay_ms: selector.delay_ms,
        })
    }
}
