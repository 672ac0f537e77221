//! The audit log, under its own target: one line for each command that changes something, and for each such
//! action on dead letters, with its caller and result; one for each read of payloads. Refused requests have
//! lines too, bounded in number: those without a right, and those that would have changed something.
//!
//! Names are data of producers: they are quoted, and limited to the lengths of the contract. No token, header
//! or body is ever written.

use super::accept::Peer;
use super::command::{CommandRequest, CommandResponse};
use super::guard::Grant;
use axum::http::{Method, StatusCode};
use serde_json::Value;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;
use tidegate_common::log_limit::LogLimit;
use tidegate_types::{Command, Rate, Selection};
use tidegate_wire::dead_letters::{LetterFilter, LetterKey};

/// Most lines about refused requests in a minute: a client without rights must not fill the log.
const REFUSED_LINES: u32 = 20;
/// Longest quoted part of a path, characters. Every path of the contract fits unless all of it is escaped.
const MAX_PATH: usize = 512;

/// A client and its right.
#[derive(Clone, Copy, Debug)]
pub(super) struct Caller {
    /// `None`: the request did not come by a connection.
    pub(super) peer: Option<Peer>,
    pub(super) grant: Grant,
}

/// Marks the answer to a command that has its own line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Audited;

/// A command in progress. Its line is written at its end, or when this is dropped: a client that disconnects
/// early does not revoke its command.
#[derive(Debug)]
pub(super) struct Audit<'c> {
    caller: Caller,
    action: &'static str,
    subject: Subject<'c>,
    ended: bool,
}

impl<'c> Audit<'c> {
    pub(super) fn begin(caller: Caller, command: &'c CommandRequest) -> Audit<'c> {
        let (action, subject) = told(command);
        Audit { caller, action, subject, ended: false }
    }

    /// `action` and `filter` belong to a [`tidegate_wire::dead_letters::LetterJob`] that changes something.
    pub(super) fn of_letters(caller: Caller, action: &'static str, filter: &'c LetterFilter) -> Audit<'c> {
        let subject = Subject {
            application: filter.application.as_deref(),
            reason: filter.reason.as_deref(),
            letter: filter.key.as_ref().map(LetterKey::as_str),
            ..Subject::default()
        };
        Audit { caller, action, subject, ended: false }
    }

    /// Writes the line, with the answer that the client gets.
    pub(super) fn end(mut self, status: StatusCode, answered: &CommandResponse) {
        self.ended = true;
        let told = &answered.document;
        let result = told["result"].as_str().unwrap_or("unavailable");
        self.write(Some(status.as_u16()), result, told);
    }

    fn write(&self, status: Option<u16>, result: &str, told: &Value) {
        let (count, changed) = (told["count"].as_u64(), told["changed"].as_bool());
        let (due, before, until) = (told["due"].as_u64(), told["before"].as_u64(), told["until"].as_u64());
        let Subject { application, id, customer, reason, letter, among, rate } = self.subject;
        let customer_prefix = among.map(|s| &*s.customer_prefix).filter(|prefix| !prefix.is_empty());
        let due_after = among.map(|s| s.due_from).filter(|at| *at > 0);
        let bound = |at: fn(&Selection) -> u64| among.map(at).filter(|at| *at < u64::MAX);
        let (due_before, received_before) = (bound(|s| s.due_until), bound(|s| s.received_until));
        let rate = rate.map(tracing::field::display);
        let action = self.action;
        let peer = self.caller.peer.map(tracing::field::display);
        let token = self.caller.grant.as_str();
        tracing::info!(
            target: "tidegate::audit",
            action, application, id, customer, customer_prefix, due_after, due_before, received_before,
            reason, letter, rate, peer, token, status, result, count, changed, due, before, until,
            "admin action"
        );
    }
}

/// Logs a read of payloads, of the kind `what`, so that the log shows which clients have seen payloads.
pub(super) fn payloads_read(caller: Caller, what: &'static str) {
    let peer = caller.peer.map(tracing::field::display);
    let token = caller.grant.as_str();
    tracing::info!(target: "tidegate::audit", action = what, peer, token, "admin read of payloads");
}

impl Drop for Audit<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.write(None, "unanswered", &Value::Null);
        }
    }
}

/// The target of a command.
#[derive(Clone, Copy, Debug, Default)]
struct Subject<'c> {
    application: Option<&'c str>,
    id: Option<&'c str>,
    customer: Option<&'c str>,
    /// Reason of the selected dead letters.
    reason: Option<&'c str>,
    /// The key of one dead letter.
    letter: Option<&'c str>,
    /// The selection among the items of the application.
    among: Option<&'c Selection>,
    /// The new rate of the application.
    rate: Option<Rate>,
}

fn told(command: &CommandRequest) -> (&'static str, Subject<'_>) {
    let of = |application, id, customer| Subject {
        application: Some(application),
        id,
        customer,
        ..Subject::default()
    };
    let selected = |s| Subject { among: Some(s), ..of(&s.application, None, s.customer.as_deref()) };
    match command {
        Command::Cancel(item) => ("cancel", of(&item.application, Some(&item.id), None)),
        Command::Reschedule(item, _) => ("reschedule", of(&item.application, Some(&item.id), None)),
        Command::Lookup(item) => ("lookup", of(&item.application, Some(&item.id), None)),
        Command::CancelAll(c) => ("cancel_customer", of(&c.application, None, Some(&c.customer))),
        Command::CancelSelected(s) => ("cancel_selected", selected(s)),
        Command::CountSelected(s) => ("count_selected", selected(s)),
        Command::Flush(c) => ("flush", of(&c.application, None, Some(&c.customer))),
        Command::FlushAll(application) => ("flush_application", of(application, None, None)),
        Command::Count(c) => ("count", of(&c.application, None, Some(&c.customer))),
        Command::List(_) => ("list", Subject::default()),
        Command::TimelineQuery(_) => ("timeline", Subject::default()),
        Command::Pause(application, _) => ("pause", of(application, None, None)),
        Command::Resume(application) => ("resume", of(application, None, None)),
        Command::PauseCustomer(c, _) => ("pause_customer", of(&c.application, None, Some(&c.customer))),
        Command::ResumeCustomer(c) => ("resume_customer", of(&c.application, None, Some(&c.customer))),
        Command::Slow(application, rate, _) => {
            ("rate", Subject { rate: *rate, ..of(application, None, None) })
        }
        Command::Retry(application) => ("retry", of(application, None, None)),
        Command::DropParked(application) => ("drop_parked", of(application, None, None)),
    }
}

/// Refused requests: those without a right, and those that would have changed something but reached no
/// command, because they were invalid or found no place.
#[derive(Debug, Default)]
pub(super) struct RefusedLog {
    limit: Mutex<LogLimit<REFUSED_LINES>>,
    /// Number since the start of the process.
    all: AtomicU64,
}

impl RefusedLog {
    /// Number of refused requests since the start of the process.
    pub(super) fn count(&self) -> u64 {
        self.all.load(Ordering::Relaxed)
    }

    pub(super) fn note(&self, peer: Option<Peer>, method: &Method, path: &str, status: StatusCode) {
        self.all.fetch_add(1, Ordering::Relaxed);
        let line = self.limit.lock().unwrap_or_else(PoisonError::into_inner).admit(1, Instant::now());
        let Some(left_out) = line else { return };
        let peer = peer.map(tracing::field::display);
        // The path stays encoded, as it came.
        let path: String = path.chars().take(MAX_PATH).collect();
        let status = status.as_u16();
        tracing::info!(
            target: "tidegate::audit",
            peer, %method, path, status, left_out,
            "admin request refused"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::{ItemOf, Status};
    use crate::logging::LogMemory;
    use serde_json::json;
    use tracing_subscriber::layer::SubscriberExt;

    /// The lines logged during `work`, without times.
    fn logged(work: impl FnOnce()) -> Vec<Value> {
        let lines = LogMemory::default();
        let to = lines.clone();
        let layer = tracing_subscriber::fmt::layer()
            .json()
            .flatten_event(true)
            .without_time()
            .with_writer(move || to.clone());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), work);
        lines.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn caller() -> Caller {
        let peer = Some(Peer::Process { uid: 1_000, pid: Some(77) });
        Caller { peer, grant: Grant::Full }
    }

    #[test]
    fn a_line_says_who_did_what_and_how_it_ended() {
        let item = ItemOf { application: "shop".into(), id: "a\n\"b".into() };
        let command = CommandRequest::Cancel(item);
        let document = json!({ "result": "cancelled", "count": 1 });
        let answered = CommandResponse { status: Status::Known, document };
        let lines = logged(|| Audit::begin(caller(), &command).end(StatusCode::OK, &answered));
        let want = json!({
            "level": "INFO", "target": "tidegate::audit", "message": "admin action",
            "action": "cancel", "application": "shop", "id": "a\n\"b", "peer": "uid:1000,pid:77",
            "token": "full", "status": 200, "result": "cancelled", "count": 1,
        });
        assert_eq!(lines, [want]);
    }

    #[test]
    fn a_command_whose_client_has_gone_is_told_as_well() {
        let command = CommandRequest::DropParked("shop".into());
        let lines = logged(|| drop(Audit::begin(caller(), &command)));
        let want = json!({
            "level": "INFO", "target": "tidegate::audit", "message": "admin action",
            "action": "drop_parked", "application": "shop", "peer": "uid:1000,pid:77", "token": "full",
            "result": "unanswered",
        });
        assert_eq!(lines, [want]);
    }

    #[test]
    fn refusals_do_not_fill_the_log() {
        let log = RefusedLog::default();
        let path = "/".repeat(2 * MAX_PATH);
        let lines = logged(|| {
            for _ in 0..100 {
                log.note(None, &Method::DELETE, &path, StatusCode::UNAUTHORIZED);
            }
        });
        assert_eq!((lines.len(), log.count()), (REFUSED_LINES as usize, 100));
        assert_eq!(lines[0]["path"].as_str().unwrap().len(), MAX_PATH);
    }
}
