//! The JSON of an answer, the same by AMQP and by HTTP; pure.

use crate::admin::parse::cursor_text;
use crate::admin::{CommandResponse, Status};
use serde_json::{json, Map, Value};
use std::sync::Arc;
use tidegate_types::event::FOR_EVER;
use tidegate_types::{
    Ahead, Answer, Asker, AssignedId, Command, CustomerOf, End, Ended, ListPlace, Listed, Reason, Reply,
    Target, Timeline,
};
use tidegate_wire::item_id;

/// What a shard answers to a command of the admin port.
#[derive(Debug, PartialEq)]
pub(super) enum ShardAnswer {
    /// The engine's answer.
    Carried {
        reply: Box<Reply>,
        /// Part of each id that the shard's store has assigned.
        store_identity: u64,
    },
    /// The command does not reach an engine, for this reason.
    Refused(String),
}

/// What a look-up reports of an item; `None` is null in JSON.
struct Reported<'a> {
    state: &'a str,
    customer: Option<&'a str>,
    due: Option<u64>,
    attempts: Option<u32>,
    last_error: Option<&'a str>,
    /// Number of times its consumer has sent it back.
    retry: u32,
}

/// The answer of an engine to a command of the admin port.
pub(super) fn answered(reply: &Reply, store_identity: u64) -> CommandResponse {
    let status = match &reply.answer {
        Answer::Unavailable(_) => Status::Unavailable,
        Answer::Rejected(_) => Status::Refused,
        answer if is_unknown(answer) => Status::Unknown,
        Answer::Cancelled { .. }
        | Answer::Ended(_)
        | Answer::InFlight
        | Answer::Unknown
        | Answer::Found(_)
        | Answer::Counted { .. }
        | Answer::Flushed(_)
        | Answer::Rescheduled { .. }
        | Answer::Listed { .. }
        | Answer::Timeline(_)
        | Answer::Until { .. }
        | Answer::Done { .. } => Status::Known,
    };
    CommandResponse { status, document: document(reply, store_identity) }
}

/// Whether the target of the command does not exist.
pub(super) fn is_unknown(answer: &Answer) -> bool {
    matches!(answer, Answer::Unknown)
}

/// The complete answer. `store_identity` is part of each assigned id.
pub(super) fn document(reply: &Reply, store_identity: u64) -> Value {
    let looked_up =
        if let Some(Command::Lookup(target)) = reply.command.as_deref() { Some(target) } else { None };
    match (&reply.answer, looked_up) {
        (Answer::Cancelled { count, in_flight: 0 }, _) => json!({ "result": "cancelled", "count": count }),
        (Answer::Cancelled { count, in_flight }, _) => {
            json!({ "result": "cancelled", "count": count, "in_flight": in_flight })
        }
        (Answer::Ended(ended), Some(target)) => ended_item(target, ended),
        (Answer::Ended(ended), None) => cancel_of_ended(ended),
        (Answer::InFlight, Some(target)) => item(target, &Reported::nothing("in_flight")),
        (Answer::InFlight, None) => json!({ "result": "in_flight" }),
        (Answer::Unknown, Some(target)) => item(target, &Reported::nothing("unknown")),
        (Answer::Unknown, None) => json!({ "result": "unknown" }),
        (Answer::Found(found), Some(target)) => item(target, &Reported::of(found)),
        (Answer::Found(found), None) => row(found, store_identity),
        (Answer::Counted { waiting, in_flight, parked, next_due, paused }, _) => {
            let counts = json!({
                "waiting": waiting, "in_flight": in_flight, "parked": parked, "next_due": next_due
            });
            of_counted(reply.command.as_deref(), counts, *paused)
        }
        (Answer::Flushed(count), _) => json!({ "result": "flushed", "count": count }),
        (Answer::Rescheduled { due, before }, _) => {
            json!({ "result": "rescheduled", "due": due, "before": before })
        }
        (Answer::Listed { items, next }, _) => {
            let next = next.map(|key| ListPlace { key, shard: 0 });
            page(items.iter().map(|listed| row(listed, store_identity)), next)
        }
        (Answer::Timeline(told), _) => timeline(told),
        (Answer::Until { until: Some(until), changed }, _) => {
            json!({ "result": "done", "changed": changed, "until": until })
        }
        (Answer::Until { until: None, changed }, _) => json!({ "result": "done", "changed": changed }),
        (Answer::Done { changed }, _) => json!({ "result": "done", "changed": changed }),
        (Answer::Rejected(text), _) => json!({ "result": "rejected", "error": text }),
        (Answer::Unavailable(text), _) => match reply.asker {
            // The HTTP status carries the rest.
            Asker::Local(_) => json!({ "error": text }),
            Asker::Remote { .. } => json!({ "result": "unavailable", "error": text }),
        },
    }
}

/// The answer to a cancel of an ended item.
fn cancel_of_ended(ended: &Ended) -> Value {
    match &ended.end {
        End::Sent(batch) => json!({ "result": "sent", "batch": batch.to_string(), "at": ended.at }),
        End::Cancelled | End::CancelledAgain => json!({ "result": "cancelled", "count": 1 }),
        End::Dead(dead) if dead.reason == Reason::Expired => json!({ "result": "expired", "at": ended.at }),
        End::Dead(dead) => json!({
            "result": "dead", "at": ended.at, "reason": dead.reason.as_str(), "error": dead.error
        }),
    }
}

/// The answer to a look-up of an ended item.
fn ended_item(target: &Target, ended: &Ended) -> Value {
    let (state, last_error) = match &ended.end {
        End::Sent(_) => ("sent", None),
        End::Cancelled | End::CancelledAgain => ("cancelled", None),
        End::Dead(dead) if dead.reason == Reason::Expired => ("expired", Some(&*dead.error)),
        End::Dead(dead) => ("dead", Some(&*dead.error)),
    };
    let reported = Reported {
        state,
        customer: ended.customer.as_deref(),
        due: Some(ended.due),
        attempts: Some(ended.attempts),
        last_error,
        retry: 0,
    };
    let more = match &ended.end {
        End::Sent(batch) => json!({ "at": ended.at, "batch": batch.to_string() }),
        End::Dead(dead) if state == "dead" => json!({ "at": ended.at, "reason": dead.reason.as_str() }),
        End::Dead(_) | End::Cancelled | End::CancelledAgain => json!({ "at": ended.at }),
    };
    with(item(target, &reported), more)
}

/// The answer to a look-up: every key of the contract, null where nothing is known.
fn item(target: &Target, reported: &Reported<'_>) -> Value {
    let said = json!({
        "state": reported.state,
        "application": target.application,
        "id": target.id,
        "customer": reported.customer,
        "due": reported.due,
        "attempts": reported.attempts,
        "last_error": reported.last_error,
    });
    with_retry(said, reported.retry)
}

/// Adds `retry` only where it is not 0: few items have it.
fn with_retry(said: Value, retry: u32) -> Value {
    if retry == 0 {
        return said;
    }
    with(said, json!({ "retry": retry }))
}

impl<'a> Reported<'a> {
    fn nothing(state: &'a str) -> Self {
        Reported { state, customer: None, due: None, attempts: None, last_error: None, retry: 0 }
    }

    fn of(found: &'a Listed) -> Self {
        Reported {
            state: found.stage.as_str(),
            customer: found.customer.as_deref(),
            due: Some(found.due),
            attempts: Some(found.attempts),
            last_error: found.last_error.as_deref(),
            retry: found.retry,
        }
    }
}

/// One page of a list: its rows, and where the next page begins.
pub(super) fn page(rows: impl Iterator<Item = Value>, next: Option<ListPlace>) -> Value {
    let rows: Vec<Value> = rows.collect();
    json!({ "items": rows, "next": next.map(cursor_text) })
}

/// One row of a list. A row without its properties does not show whether the producer gave an id. Its id is
/// null then, and not the id that would have been assigned.
pub(super) fn row(listed: &Listed, store_identity: u64) -> Value {
    let assigned = AssignedId::of(listed.key, listed.accepted_due);
    let id = listed.properties.as_deref().map(|content| item_id(content, store_identity, assigned));
    let said = json!({
        "state": listed.stage.as_str(),
        "application": &*listed.application,
        "id": id,
        "customer": listed.customer.as_deref(),
        "due": listed.due,
        "received": listed.received,
        "attempts": listed.attempts,
        "last_error": listed.last_error.as_deref(),
    });
    with_retry(said, listed.retry)
}

/// The JSON of a timeline.
pub(super) fn timeline(told: &Timeline) -> Value {
    let row = |(name, ahead): (&Arc<str>, &Ahead)| {
        let Ahead { count, next_due } = ahead;
        json!({ "name": &**name, "count": count, "next_due": next_due })
    };
    let applications: Vec<Value> = told.applications.iter().map(row).collect();
    json!({
        "at": told.at,
        "from": told.from,
        "bucket_ms": told.each_ms,
        "counts": told.counts,
        "counted_until": told.counted_until,
        "applications": applications,
        "applications_truncated": told.applications_truncated,
    })
}

/// Counts, with the names of what was counted.
fn of_counted(command: Option<&Command>, counts: Value, paused: Option<u64>) -> Value {
    let names = match command {
        Some(Command::Count(CustomerOf { application, customer })) => {
            let who = json!({
                "application": application, "customer": customer, "paused": paused.is_some()
            });
            match paused.filter(|until| *until < FOR_EVER) {
                Some(until) => with(who, json!({ "paused_until": until })),
                None => who,
            }
        }
        Some(Command::CountSelected(selection)) => json!({ "application": selection.application }),
        _ => return counts,
    };
    with(names, counts)
}

/// Joins two objects.
fn with(first: Value, second: Value) -> Value {
    let keys = [first, second].into_iter().filter_map(|value| match value {
        Value::Object(keys) => Some(keys),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => None,
    });
    Value::Object(keys.flatten().collect::<Map<_, _>>())
}

#[cfg(test)]
#[path = "answers_tests.rs"]
mod tests;
