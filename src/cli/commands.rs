//! `cancel`, `lookup`, `reschedule`, `flush`, `pause`, `resume`, `rate`, `parked retry`, `parked drop`:
//! commands of one request.

use super::args::{
    ApplicationArgs, CancelArgs, DropArgs, EndArgs, FlushArgs, LookupArgs, Output, PauseArgs, RateArgs,
    RescheduleArgs, ResumeArgs,
};
use super::client::{is_unknown, path, query, Client};
use super::output::{plain, Failure, Out};
use super::{millis, moment};
use serde_json::Value;
use ureq::http::Method;

/// The words of a command's result.
#[derive(Clone, Copy)]
struct Wording {
    /// The texts for `changed`: true and false.
    changed: [&'static str; 2],
    /// What was to be done to an item.
    done: &'static str,
}

const CANCELLED: Wording = Wording { changed: ["done", "nothing to change"], done: "cancelled" };
const RESCHEDULED: Wording = Wording { done: "rescheduled", ..CANCELLED };

/// Runs `cancel`.
///
/// # Errors
/// Failed if the daemon cannot be queried; partial if an item was not cancelled.
pub(super) fn cancel(client: &Client, args: &CancelArgs, output: Output) -> Result<(), Failure> {
    if let Some(id) = &args.id {
        let path = path(&["items", &args.application, id]);
        return conclude(&client.ask(Method::DELETE, &path)?, CANCELLED, output);
    }
    let chosen = chosen(args);
    let path = match (&args.customer, &chosen[..]) {
        (Some(customer), [_]) if !args.dry_run => path(&["customers", &args.application, customer, "items"]),
        (_, []) => return Err(Failure::Usage("give ID, --customer, --all or another selection".to_owned())),
        (_, chosen) => path(&["applications", &args.application, "items"]) + &query(chosen),
    };
    if args.dry_run {
        return would_cancel(&client.ask(Method::GET, &path)?, output);
    }
    conclude(&client.ask(Method::DELETE, &path)?, CANCELLED, output)
}

/// The query parameters that select the items of `cancel`.
fn chosen(args: &CancelArgs) -> Vec<(&'static str, String)> {
    let time = |time: Option<u64>| time.map(|time| time.to_string());
    let all = [
        ("all", args.all.then(|| "true".to_owned())),
        ("customer", args.customer.clone()),
        ("customer_prefix", args.customer_prefix.clone()),
        ("due_after", time(args.due_after)),
        ("due_before", time(args.due_before)),
        ("received_before", time(args.received_before)),
    ];
    all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

/// Prints the number of items that a cancel would select.
fn would_cancel(counts: &Value, output: Output) -> Result<(), Failure> {
    let mut out = Out::lock();
    if output == Output::Json {
        return out.json(counts);
    }
    let [waiting, in_flight, parked] =
        ["waiting", "in_flight", "parked"].map(|stage| counts[stage].as_u64().unwrap_or(0));
    out.line(format_args!(
        "would cancel {}: {waiting} waiting, {in_flight} in flight, {parked} parked",
        items(waiting + in_flight + parked)
    ))
}

/// Runs `lookup`.
///
/// # Errors
/// Failed if the daemon cannot be queried; partial if the item is unknown.
pub(super) fn lookup(client: &Client, args: &LookupArgs, output: Output) -> Result<(), Failure> {
    let answer = client.ask(Method::GET, &path(&["items", &args.application, &args.id]))?;
    let mut out = Out::lock();
    match output {
        Output::Json => out.json(&answer)?,
        Output::Table if is_unknown(&answer) => {}
        Output::Table => out.table(&facts(&answer))?,
    }
    if is_unknown(&answer) {
        return Err(Failure::Partial("unknown: no such item is waiting, and none ended lately".to_owned()));
    }
    Ok(())
}

/// Runs `reschedule`.
///
/// # Errors
/// Failed if the daemon cannot be queried; partial if it refuses the time, or the item no longer waits.
pub(super) fn reschedule(client: &Client, args: &RescheduleArgs, output: Output) -> Result<(), Failure> {
    let time = match (args.at, args.delay) {
        (Some(at), None) => format!("at={at}"),
        (None, Some(delay)) => format!("delay={}", millis(delay)),
        (Some(_), Some(_)) | (None, None) => {
            return Err(Failure::Usage("give either --at or --delay".to_owned()))
        }
    };
    let path = path(&["items", &args.application, &args.id, "reschedule"]);
    conclude(&client.ask(Method::POST, &format!("{path}?{time}"))?, RESCHEDULED, output)
}

/// Runs `flush`.
///
/// # Errors
/// Failed if the daemon cannot be queried; partial if the customer is unknown.
pub(super) fn flush(client: &Client, args: &FlushArgs, output: Output) -> Result<(), Failure> {
    let path = match &args.customer {
        Some(customer) => path(&["customers", &args.application, customer, "flush"]),
        None => path(&["applications", &args.application, "flush"]),
    };
    conclude(&client.ask(Method::POST, &path)?, CANCELLED, output)
}

/// Runs `pause`.
///
/// # Errors
/// As [`flush`].
pub(super) fn pause(client: &Client, args: &PauseArgs, output: Output) -> Result<(), Failure> {
    let end: Vec<(&str, String)> = end(&args.end)?.into_iter().collect();
    let path = held(&args.application, args.customer.as_deref(), "pause") + &query(&end);
    let words = Wording { changed: ["paused", "it was paused already"], ..CANCELLED };
    conclude(&client.ask(Method::POST, &path)?, words, output)
}

/// Runs `rate`.
///
/// # Errors
/// As [`flush`].
pub(super) fn rate(client: &Client, args: &RateArgs, output: Output) -> Result<(), Failure> {
    let path = path(&["applications", &args.application, "rate"]);
    let Some(rate) = args.rate else {
        let changed = ["configured rate restored", "the configured rate was in force already"];
        let words = Wording { changed, ..CANCELLED };
        return conclude(&client.ask(Method::DELETE, &path)?, words, output);
    };
    let rate = ("rate", rate.to_string());
    let pairs: Vec<(&str, String)> = std::iter::once(rate).chain(end(&args.end)?).collect();
    let words = Wording { changed: ["set", "it was set already"], ..CANCELLED };
    conclude(&client.ask(Method::POST, &(path + &query(&pairs)))?, words, output)
}

/// The end of a pause or of a rate.
fn end(args: &EndArgs) -> Result<Option<(&'static str, String)>, Failure> {
    match (args.until, args.for_time) {
        (Some(at), None) => Ok(Some(("until", at.to_string()))),
        (None, Some(time)) => Ok(Some(("for", millis(time).to_string()))),
        (None, None) => Ok(None),
        (Some(_), Some(_)) => Err(Failure::Usage("--for and --until cannot be combined".to_owned())),
    }
}

/// Runs `resume`.
///
/// # Errors
/// As [`flush`].
pub(super) fn resume(client: &Client, args: &ResumeArgs, output: Output) -> Result<(), Failure> {
    let path = held(&args.application, args.customer.as_deref(), "resume");
    let words = Wording { changed: ["resumed", "it was not paused"], ..CANCELLED };
    conclude(&client.ask(Method::POST, &path)?, words, output)
}

/// The path that pauses or resumes an application or a customer.
fn held(application: &str, customer: Option<&str>, verb: &str) -> String {
    match customer {
        Some(customer) => path(&["customers", application, customer, verb]),
        None => path(&["applications", application, verb]),
    }
}

/// Runs `parked retry`.
///
/// # Errors
/// As [`flush`].
pub(super) fn retry(client: &Client, args: &ApplicationArgs, output: Output) -> Result<(), Failure> {
    let path = path(&["applications", &args.application, "retry"]);
    let nothing = "there was nothing to try: it is not parked, or is paused";
    let words = Wording { changed: ["tried now", nothing], ..CANCELLED };
    conclude(&client.ask(Method::POST, &path)?, words, output)
}

/// Runs `parked drop`.
///
/// # Errors
/// As [`flush`]; usage without `--yes`.
pub(super) fn drop_parked(client: &Client, args: &DropArgs, output: Output) -> Result<(), Failure> {
    if !args.yes {
        let answer = client.ask(Method::GET, &path(&["applications", &args.application]))?;
        return Err(unconfirmed(&answer, &args.application));
    }
    let path = path(&["applications", &args.application, "parked"]);
    let words = Wording { changed: ["dropped", "nothing was parked"], ..CANCELLED };
    conclude(&client.ask(Method::DELETE, &path)?, words, output)
}

fn unconfirmed(application: &Value, name: &str) -> Failure {
    if is_unknown(application) {
        return Failure::Partial(unknown());
    }
    let count = application["parked"].as_u64().unwrap_or(0);
    Failure::Usage(format!("{} parked of {}: --yes cancels them permanently", items(count), plain(name)))
}

/// Prints the answer, and decides the result of the command.
fn conclude(answer: &Value, words: Wording, output: Output) -> Result<(), Failure> {
    let (text, done) = tell(answer, words);
    let mut out = Out::lock();
    match output {
        Output::Json => out.json(answer)?,
        Output::Table if done => out.line(&text)?,
        // The sentence goes to standard error.
        Output::Table => {}
    }
    ending(answer, text, done)
}

fn ending(answer: &Value, text: String, done: bool) -> Result<(), Failure> {
    match (done, answer["result"].as_str()) {
        (true, _) => Ok(()),
        (false, Some("rejected")) => Err(Failure::Failed(text)),
        (false, _) => Err(Failure::Partial(text)),
    }
}

/// One sentence, and whether the whole command was carried out.
fn tell(answer: &Value, Wording { changed, done }: Wording) -> (String, bool) {
    let text = |key: &str| plain(answer[key].as_str().unwrap_or_default()).into_owned();
    let count = || items(answer["count"].as_u64().unwrap_or(0));
    let not = |why: String| (format!("not {done}: {why}"), false);
    match answer["result"].as_str() {
        Some("cancelled") if done != "cancelled" => not("it was cancelled".to_owned()),
        Some("cancelled") => match answer["in_flight"].as_u64() {
            None | Some(0) => (format!("cancelled: {}", count()), true),
            Some(left) => (format!("cancelled: {}; in flight, and not cancelled: {left}", count()), false),
        },
        Some("rescheduled") => {
            let (due, before) = (at(&answer["due"]), at(&answer["before"]));
            (format!("rescheduled: due at {due}, before at {before}"), true)
        }
        Some("flushed") => (format!("flushed: {}", count()), true),
        Some("done") => {
            let until = &answer["until"];
            let end = if until.is_null() { String::new() } else { format!(" until {}", at(until)) };
            (format!("{}{end}", changed[usize::from(answer["changed"] == false)]), true)
        }
        Some("sent") => not(format!("sent at {} in batch {}", at(&answer["at"]), text("batch"))),
        Some("expired") => not(format!("expired at {}", at(&answer["at"]))),
        Some("dead") => {
            not(format!("dead since {} ({}): {}", at(&answer["at"]), text("reason"), text("error")))
        }
        Some("in_flight") => not("in flight, and its outcome is not known yet".to_owned()),
        Some("unknown") => (unknown(), false),
        Some("rejected") => (format!("rejected: {}", text("error")), false),
        // The result of a newer daemon.
        Some(_) | None => (plain(&answer.to_string()).into_owned(), false),
    }
}

fn unknown() -> String {
    "unknown: the daemon has nothing of that name".to_owned()
}

fn items(count: u64) -> String {
    format!("{count} item{}", if count == 1 { "" } else { "s" })
}

/// The known facts of an item, one per line.
fn facts(item: &Value) -> Vec<Vec<String>> {
    const KEYS: [&str; 11] = [
        "state",
        "application",
        "id",
        "customer",
        "due",
        "retry",
        "attempts",
        "last_error",
        "batch",
        "at",
        "reason",
    ];
    let known = KEYS.iter().filter(|key| !item[**key].is_null());
    known.map(|key| vec![key.replace('_', " "), cell(key, &item[*key])]).collect()
}

/// A value of this key, formatted for people.
pub(super) fn cell(key: &str, value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::Number(_) if matches!(key, "due" | "received" | "at" | "next_due") => at(value),
        Value::String(text) => plain(text).into_owned(),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            plain(&value.to_string()).into_owned()
        }
    }
}

fn at(value: &Value) -> String {
    let ms = value.as_u64().map(|ms| i64::try_from(ms).unwrap_or(i64::MAX));
    ms.map_or_else(|| "an unknown time".to_owned(), moment)
}

#[cfg(test)]
mod tests {
    use super::super::client::tests::{running, Daemon};
    use super::*;
    use crate::admin::{CommandRequest, CommandResponse, ItemOf, Query, Status};
    use serde_json::json;
    use std::sync::{Arc, Mutex};
    use tidegate_types::{CustomerOf, Moment, Selection};

    const AT: u64 = 1_800_000_000_000;

    #[test]
    fn every_answer_is_a_sentence_and_an_exit_code() {
        for (answer, want, code) in [
            (json!({ "result": "cancelled", "count": 1 }), "cancelled: 1 item", 0),
            (json!({ "result": "cancelled", "count": 0 }), "cancelled: 0 items", 0),
            (
                json!({ "result": "cancelled", "count": 3, "in_flight": 2 }),
                "cancelled: 3 items; in flight, and not cancelled: 2",
                3,
            ),
            (
                json!({ "result": "sent", "batch": "ab", "at": AT }),
                "not cancelled: sent at 2027-01-15T08:00:00Z in batch ab",
                3,
            ),
            (json!({ "result": "expired", "at": AT }), "not cancelled: expired at 2027-01-15T08:00:00Z", 3),
            (
                json!({ "result": "dead", "at": AT, "reason": "attempts", "error": "no\u{1b}" }),
                "not cancelled: dead since 2027-01-15T08:00:00Z (attempts): no\\u{1b}",
                3,
            ),
            (
                json!({ "result": "in_flight" }),
                "not cancelled: in flight, and its outcome is not known yet",
                3,
            ),
            (
                json!({ "result": "rescheduled", "due": AT, "before": AT - 1_000 }),
                "rescheduled: due at 2027-01-15T08:00:00Z, before at 2027-01-15T07:59:59Z",
                0,
            ),
            (json!({ "result": "unknown" }), "unknown: the daemon has nothing of that name", 3),
            (json!({ "result": "flushed", "count": 2 }), "flushed: 2 items", 0),
            (json!({ "result": "done", "changed": true }), "yes", 0),
            (json!({ "result": "done", "changed": false }), "no", 0),
            (json!({ "result": "rejected", "error": "no id" }), "rejected: no id", 1),
            (json!({ "result": "new" }), "{\"result\":\"new\"}", 3),
        ] {
            let (text, done) = tell(&answer, Wording { changed: ["yes", "no"], ..CANCELLED });
            assert_eq!(text, want);
            assert_eq!(ending(&answer, text, done).map_or_else(|f| f.exit_code(), |()| 0), code, "{answer}");
        }
    }

    #[test]
    fn what_was_taken_back_gets_no_other_time() {
        let cancelled = json!({ "result": "cancelled", "count": 1 });
        assert_eq!(tell(&cancelled, RESCHEDULED), ("not rescheduled: it was cancelled".to_owned(), false));
        let in_flight = json!({ "result": "in_flight" });
        let want = "not rescheduled: in flight, and its outcome is not known yet".to_owned();
        assert_eq!(tell(&in_flight, RESCHEDULED), (want, false));
    }

    #[test]
    fn a_look_up_shows_what_is_known() {
        let item = json!({
            "state": "sent", "application": "mail", "id": "i\u{1b}", "customer": null, "due": AT,
            "attempts": 0, "last_error": null, "batch": "ab", "at": AT + 1_000,
        });
        let facts = facts(&item);
        let row = |key: &str| facts.iter().find(|row| row[0] == key).map(|row| row[1].as_str());
        assert_eq!(row("state"), Some("sent"));
        assert_eq!(row("id"), Some("i\\u{1b}"));
        assert_eq!(row("customer"), None);
        assert_eq!(row("due"), Some("2027-01-15T08:00:00Z"));
        assert_eq!(row("attempts"), Some("0"));
        assert_eq!(row("at"), Some("2027-01-15T08:00:01Z"));
    }

    #[test]
    fn a_drop_that_is_not_confirmed_says_how_many() {
        let failure = unconfirmed(&json!({ "name": "sms", "parked": 9 }), "sms");
        assert_eq!(failure.exit_code(), 2);
        assert_eq!(failure.text(), "9 items parked of sms: --yes cancels them permanently");
        assert_eq!(unconfirmed(&json!({ "result": "unknown" }), "sms").exit_code(), 3);
    }

    /// A daemon that answers every command with this, and records the commands.
    fn answering(status: Status, document: Value) -> (Daemon, Client, Arc<Mutex<Vec<CommandRequest>>>) {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let asked = Arc::clone(&heard);
        let (daemon, config) = running(
            None,
            Arc::new(move |query| match query {
                Query::State(..) | Query::Letters(..) | Query::Export(_) => {}
                Query::Command(command, reply) => {
                    asked.lock().unwrap().push(command);
                    drop(reply.send(CommandResponse { status, document: document.clone() }));
                }
            }),
        );
        (daemon, Client::new(&config.admin).unwrap(), heard)
    }

    fn cancel_args(id: Option<&str>, customer: Option<&str>) -> CancelArgs {
        let text = |text: Option<&str>| text.map(str::to_owned);
        CancelArgs {
            application: "a/b".to_owned(),
            id: text(id),
            customer: text(customer),
            all: false,
            customer_prefix: None,
            due_after: None,
            due_before: None,
            received_before: None,
            dry_run: false,
        }
    }

    #[test]
    fn names_reach_the_daemon_as_they_were_written() {
        let (_daemon, client, heard) = answering(Status::Unknown, json!({ "result": "unknown" }));
        let ended = |outcome: Result<(), Failure>| outcome.unwrap_err().exit_code();
        assert_eq!(ended(cancel(&client, &cancel_args(Some(".."), None), Output::Table)), 3);
        assert_eq!(ended(cancel(&client, &cancel_args(None, Some("c d?#")), Output::Table)), 3);
        let some = CancelArgs { due_before: Some(5_000_000_000_000), ..cancel_args(None, Some("c d?#")) };
        assert_eq!(ended(cancel(&client, &some, Output::Table)), 3);
        let all = CancelArgs { all: true, ..cancel_args(None, None) };
        assert_eq!(ended(cancel(&client, &all, Output::Table)), 3);
        let sms = ApplicationArgs { application: "%sms".to_owned() };
        assert_eq!(ended(retry(&client, &sms, Output::Table)), 3);
        let mut held = PauseArgs { application: "%sms".to_owned(), customer: None, end: EndArgs::default() };
        assert_eq!(ended(pause(&client, &held, Output::Table)), 3);
        held.customer = Some("c d".to_owned());
        assert_eq!(ended(pause(&client, &held, Output::Table)), 3);
        let goes_on = ResumeArgs { application: "%sms".to_owned(), customer: held.customer.take() };
        assert_eq!(ended(resume(&client, &goes_on, Output::Table)), 3);
        held.end.for_time = Some(std::time::Duration::from_secs(90));
        assert_eq!(ended(pause(&client, &held, Output::Table)), 3);
        let mut slow = RateArgs {
            application: "%sms".to_owned(),
            rate: "10/s".parse().ok(),
            end: EndArgs { for_time: Some(std::time::Duration::from_secs(90)), until: None },
            clear: false,
        };
        assert_eq!(ended(rate(&client, &slow, Output::Table)), 3);
        (slow.rate, slow.end, slow.clear) = (None, EndArgs::default(), true);
        assert_eq!(ended(rate(&client, &slow, Output::Table)), 3);
        let yes = DropArgs { application: "%sms".to_owned(), yes: true };
        assert_eq!(ended(drop_parked(&client, &yes, Output::Table)), 3);
        let later = RescheduleArgs {
            application: "a/b".to_owned(),
            id: "i?".to_owned(),
            at: None,
            delay: Some(std::time::Duration::from_micros(89_999_500)),
        };
        assert_eq!(ended(reschedule(&client, &later, Output::Table)), 3);
        let at = RescheduleArgs { at: Some(AT), delay: None, ..later };
        assert_eq!(ended(reschedule(&client, &at, Output::Table)), 3);
        let other = ItemOf { application: "a/b".into(), id: "i?".into() };
        let want = [
            CommandRequest::Cancel(ItemOf { application: "a/b".into(), id: "..".into() }),
            CommandRequest::CancelAll(CustomerOf { application: "a/b".into(), customer: "c d?#".into() }),
            CommandRequest::CancelSelected(Selection {
                customer: Some("c d?#".into()),
                due_until: 5_000_000_000_000,
                ..Selection::all("a/b".into())
            }),
            CommandRequest::CancelSelected(Selection::all("a/b".into())),
            CommandRequest::Retry("%sms".into()),
            CommandRequest::Pause("%sms".into(), None),
            CommandRequest::PauseCustomer(
                CustomerOf { application: "%sms".into(), customer: "c d".into() },
                None,
            ),
            CommandRequest::ResumeCustomer(CustomerOf { application: "%sms".into(), customer: "c d".into() }),
            CommandRequest::Pause("%sms".into(), Some(Moment::After(90_000))),
            CommandRequest::Slow("%sms".into(), "10/s".parse().ok(), Some(Moment::After(90_000))),
            CommandRequest::Slow("%sms".into(), None, None),
            CommandRequest::DropParked("%sms".into()),
            CommandRequest::Reschedule(other.clone(), Moment::After(90_000)),
            CommandRequest::Reschedule(other, Moment::At(AT)),
        ];
        assert_eq!(*heard.lock().unwrap(), want);
    }

    #[test]
    fn a_daemon_that_cannot_now_is_a_failure() {
        let (_daemon, client, _) = answering(Status::Unavailable, json!({ "error": "starting" }));
        let failure = cancel(&client, &cancel_args(Some("1"), None), Output::Table).unwrap_err();
        assert_eq!(failure.exit_code(), 1);
        assert!(failure.text().ends_with("HTTP 503: starting"), "{failure:?}");
    }

    #[test]
    fn a_drop_without_yes_drops_nothing() {
        let (_daemon, client, heard) = answering(Status::Known, json!({ "result": "cancelled", "count": 9 }));
        let no = DropArgs { application: "sms".to_owned(), yes: false };
        assert!(drop_parked(&client, &no, Output::Table).is_err());
        assert_eq!(*heard.lock().unwrap(), []);
    }
}
