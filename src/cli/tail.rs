//! `tail`: prints the batches of one application as they arrive, from a temporary queue beside its own
//! queues.

use super::args::{Output, TailArgs};
use super::broker::{block_on, CliSession};
use super::client::{is_unknown, path, Client};
use super::output::{inert, note, plain, Failure, Out};
use crate::admin::state::Application;
use base64::prelude::{Engine as _, BASE64_STANDARD};
use futures_util::StreamExt;
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicQosOptions, QueueBindOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::Consumer;
use serde::Deserialize as _;
use serde_json::value::RawValue;
use std::time::Duration;
use tidegate_common::clock;
use tidegate_config::Config;
use tidegate_wire::is_embeddable;
use tokio::time::Instant;
use ureq::http::Method;

/// Most batches sent to this process ahead; with slow printing, the others stay at the broker.
const PREFETCH: u16 = 20;
/// Limit of the temporary queue, bytes.
const QUEUE_BYTES: i64 = 64 << 20;
/// Without a delivery for this long, the unbound queue is asked how much it contains. Longer than the broker
/// takes from the choice of a queue for a batch to its arrival there.
const QUIET: Duration = Duration::from_millis(250);
/// Number of such times after which batches that the broker does not deliver are given up.
const QUIET_AT_MOST: u32 = 120;

/// Runs the command.
///
/// # Errors
/// Connection, a missing exchange, the loss of the queue; usage if it would take parked items; partial if it
/// ended before `--count` batches arrived, or before any did, or if nobody read what `--drain` took.
pub(super) fn run(
    config: &Config,
    daemon: impl FnOnce() -> Result<Client, Failure>,
    args: &TailArgs,
    output: Output,
) -> Result<(), Failure> {
    if !args.drain {
        takes_nothing(daemon(), &args.application)?;
    }
    block_on(async {
        // Batches may be published to another broker than requests.
        let session = CliSession::open(config, &config.egress.endpoints, "tidegate tail").await?;
        let outcome = follow(&session, &config.egress.exchange, args, output).await;
        session.close().await;
        outcome
    })
}

/// Checks that the temporary queue is not the only one; it would then take parked items, which would be lost
/// with it.
fn takes_nothing(daemon: Result<Client, Failure>, application: &str) -> Result<(), Failure> {
    let shown = plain(application);
    let unsure = |why: &str| {
        Failure::Failed(format!(
            "the daemon does not report whether items of {shown} are parked, and tail would take them: {why} \
             (--drain listens anyway)"
        ))
    };
    let answer = daemon.and_then(|client| client.ask(Method::GET, &path(&["applications", application])));
    let answer = answer.map_err(|failure| unsure(failure.text()))?;
    if is_unknown(&answer) {
        return Ok(());
    }
    let found = Application::deserialize(&answer).map_err(|_| unsure("its answer is not understood"))?;
    if found.parked > 0 || found.parked_since().is_some() {
        return Err(Failure::Usage(format!(
            "{shown} cannot be delivered to at present, and {} of its items are parked: they would be \
             delivered to this command only and then be lost. Bind a queue for it, or give --drain",
            found.parked
        )));
    }
    Ok(())
}

async fn follow(
    session: &CliSession,
    exchange: &str,
    args: &TailArgs,
    output: Output,
) -> Result<(), Failure> {
    let mut queue = TailQueue::bind(session, exchange, args, output).await?;
    note(format_args!("listening on {} for {}", plain(exchange), plain(&args.application)));
    let ends = args.for_time.and_then(|d| Instant::now().checked_add(d));
    while args.count.is_none_or(|most| queue.seen < most) {
        let next = match ends {
            Some(at) => tokio::time::timeout_at(at, queue.batches.next()).await,
            None => Ok(queue.batches.next().await),
        };
        let Ok(next) = next else { break };
        if !queue.print(next).await? {
            return closed(args, queue.seen);
        }
    }
    // The queue may be the only one: what it has taken has left tidegate.
    if args.drain && !queue.drain(exchange, &args.application).await? {
        return closed(args, queue.seen);
    }
    let seen = queue.seen;
    match args.count {
        Some(wanted) if seen < wanted => {
            Err(Failure::Partial(format!("{seen} of {wanted} batches arrived within the time limit")))
        }
        None if seen == 0 && args.for_time.is_some() => {
            Err(Failure::Partial("no batch arrived within the time limit".to_owned()))
        }
        Some(_) | None => Ok(()),
    }
}

/// The end because the reader has closed the output after `seen` batches.
fn closed(args: &TailArgs, seen: u64) -> Result<(), Failure> {
    if args.drain {
        return Err(Failure::Partial(format!(
            "the reader closed standard output after {seen} batches: what else the temporary queue has taken \
             is lost"
        )));
    }
    args.count.map_or(Ok(()), |wanted| {
        let text = format!("{seen} of {wanted} batches were printed: the reader closed standard output");
        Err(Failure::Partial(text))
    })
}

/// The temporary queue, and what has been printed of it.
struct TailQueue<'s> {
    session: &'s CliSession,
    name: ShortString,
    batches: Consumer,
    out: Out,
    output: Output,
    /// Number of batches printed.
    seen: u64,
}

impl<'s> TailQueue<'s> {
    /// Declares the queue, consumes from it, and binds it.
    async fn bind(
        session: &'s CliSession,
        exchange: &str,
        args: &TailArgs,
        output: Output,
    ) -> Result<Self, Failure> {
        let channel = &session.channel;
        let options =
            QueueDeclareOptions { exclusive: true, auto_delete: true, ..QueueDeclareOptions::default() };
        let declare = channel.queue_declare("".into(), options, limits(args.drain));
        let name = session.ask("declaring a temporary queue", declare).await?.name().clone();
        session.ask("basic.qos", channel.basic_qos(PREFETCH, BasicQosOptions::default())).await?;
        let options = BasicConsumeOptions { exclusive: true, ..BasicConsumeOptions::default() };
        let consume = channel.basic_consume(name.clone(), "".into(), options, FieldTable::default());
        let batches = session.ask("consuming", consume).await?;
        let bind = channel.queue_bind(
            name.clone(),
            short(exchange)?,
            short(&args.application)?,
            QueueBindOptions::default(),
            FieldTable::default(),
        );
        session.ask(&format!("binding to exchange {}", plain(exchange)), bind).await?;
        Ok(TailQueue { session, name, batches, out: Out::lock(), output, seen: 0 })
    }

    /// Prints the next batch, and acks it. `false`: the reader has closed the output.
    async fn print(&mut self, next: Option<lapin::Result<Delivery>>) -> Result<bool, Failure> {
        let delivery = match next {
            Some(Ok(delivery)) => delivery,
            Some(Err(error)) => return Err(Failure::Failed(format!("the connection was lost: {error}"))),
            None => return Err(Failure::failed("the broker has ended the temporary queue")),
        };
        let batch = TailedBatch::read(&delivery, clock::wall_ms());
        match self.output {
            Output::Json => self.out.line(batch.json()?)?,
            Output::Table => batch.text().iter().try_for_each(|line| self.out.line(line))?,
        }
        if self.out.is_closed() {
            return Ok(false);
        }
        self.seen += 1;
        let ack = self.session.channel.basic_ack(delivery.delivery_tag, BasicAckOptions::default());
        self.session.ask("basic.ack", ack).await?;
        Ok(true)
    }

    /// Unbinds the queue, and prints what it has taken. `false`: the reader has closed the output.
    async fn drain(&mut self, exchange: &str, application: &str) -> Result<bool, Failure> {
        let channel = &self.session.channel;
        let unbind = channel.queue_unbind(
            self.name.clone(),
            short(exchange)?,
            short(application)?,
            FieldTable::default(),
        );
        self.session.ask("unbinding the temporary queue", unbind).await?;
        let (mut is_empty, mut quiet) = (false, 0);
        loop {
            let next = tokio::time::timeout(QUIET, self.batches.next()).await;
            if let Ok(next) = next {
                (is_empty, quiet) = (false, 0);
                if !self.print(next).await? {
                    return Ok(false);
                }
                continue;
            }
            // The broker's answer may overtake its last deliveries, so it counts after a quiet time only.
            if is_empty {
                return Ok(true);
            }
            let left = self.left().await?;
            is_empty = left == 0;
            quiet += 1;
            if quiet > QUIET_AT_MOST {
                return Err(Failure::Failed(format!(
                    "the broker does not deliver {left} more batches of the temporary queue: they are lost"
                )));
            }
        }
    }

    /// Number of batches in the queue that the broker has not delivered.
    async fn left(&self) -> Result<u32, Failure> {
        let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let declare = self.session.channel.queue_declare(self.name.clone(), options, FieldTable::default());
        Ok(self.session.ask("asking what is in the temporary queue", declare).await?.message_count())
    }
}

/// The limits of the queue. Beside other queues it loses the oldest batch if the reader is slow, and fails no
/// publish. As the only one it refuses the newest: the broker nacks the publish, and tidegate keeps the items
/// and tries again.
fn limits(is_only_one: bool) -> FieldTable {
    let overflow = if is_only_one { "reject-publish" } else { "drop-head" };
    let mut arguments = FieldTable::default();
    arguments.insert("x-max-length-bytes".into(), AMQPValue::LongLongInt(QUEUE_BYTES));
    arguments.insert("x-overflow".into(), AMQPValue::LongString(overflow.into()));
    arguments
}

fn short(text: &str) -> Result<ShortString, Failure> {
    ShortString::try_new(text).map_err(|e| Failure::Usage(e.to_string()))
}

/// One message of the output exchange, in any format.
struct TailedBatch<'a> {
    application: &'a str,
    content_type: &'a str,
    id: Option<String>,
    customer: Option<String>,
    closed_by: Option<String>,
    count: Option<i64>,
    attempt: Option<i64>,
    due: Option<i64>,
    received: u64,
    body: &'a [u8],
}

impl<'a> TailedBatch<'a> {
    fn read(delivery: &'a Delivery, received: u64) -> Self {
        let properties = &delivery.properties;
        let header = |key: &str| properties.headers().as_ref().and_then(|table| table.inner().get(key));
        let text = |key: &str| header(key).and_then(as_text);
        let number = |key: &str| header(key).and_then(as_number);
        TailedBatch {
            application: delivery.routing_key.as_str(),
            content_type: properties.content_type().as_ref().map_or("", |t| t.as_str()),
            id: text("x-batch"),
            customer: text("x-customer"),
            closed_by: text("x-closed-by"),
            count: number("x-count"),
            attempt: number("x-attempt"),
            due: number("x-due"),
            received,
            body: &delivery.data,
        }
    }

    /// Time of receipt minus due; it includes the way through the broker.
    fn lateness_ms(&self) -> Option<i64> {
        self.due.map(|due| i64::try_from(self.received).unwrap_or(i64::MAX).saturating_sub(due))
    }

    /// A line of JSON. A body that is JSON stands in it as it came, except for what a terminal acts on:
    /// reading its numbers would round them.
    fn json(&self) -> Result<String, Failure> {
        let text = std::str::from_utf8(self.body).ok();
        let json = text.filter(|_| is_embeddable(Some("application/json"), None, self.body));
        // In JSON a line break stands only between tokens.
        let json = json.and_then(|json| RawValue::from_string(json.replace(['\n', '\r'], " ")).ok());
        let line = TailedLine {
            batch: self.id.as_deref(),
            application: self.application,
            customer: self.customer.as_deref(),
            count: self.count,
            due: self.due,
            received: self.received,
            lateness_ms: self.lateness_ms(),
            closed_by: self.closed_by.as_deref(),
            attempt: self.attempt,
            content_type: self.content_type,
            body: json.as_deref(),
            body_text: text.filter(|_| json.is_none()),
            body_base64: text.is_none().then(|| BASE64_STANDARD.encode(self.body)),
        };
        serde_json::to_string(&line).map(|text| inert(&text).into_owned()).map_err(Failure::failed)
    }

    /// A line for the batch, then one for each item or line of the body.
    fn text(&self) -> Vec<String> {
        let mut head = super::moment(i64::try_from(self.received).unwrap_or(i64::MAX));
        let mut add = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                head.push_str(&format!("  {name}={}", plain(&value)));
            }
        };
        add("customer", self.customer.clone());
        add("count", self.count.map(|n| n.to_string()));
        add("late", self.lateness_ms().map(|ms| format!("{ms}ms")));
        add("closed_by", self.closed_by.clone());
        add("attempt", self.attempt.map(|n| n.to_string()));
        add("batch", self.id.clone());
        let mut lines = vec![head];
        match serde_json::from_slice::<TailedItems<'_>>(self.body) {
            Ok(TailedItems { items }) => {
                lines.extend(items.iter().map(|item| format!("  {}", plain(item.get()))))
            }
            Err(_) => {
                let body = String::from_utf8_lossy(self.body);
                lines.extend(body.lines().map(|line| format!("  {}", plain(line))));
            }
        }
        lines
    }
}

/// A batch as one line of JSON; its body is one of the last three.
#[derive(serde::Serialize)]
struct TailedLine<'a> {
    batch: Option<&'a str>,
    application: &'a str,
    customer: Option<&'a str>,
    count: Option<i64>,
    due: Option<i64>,
    received: u64,
    lateness_ms: Option<i64>,
    closed_by: Option<&'a str>,
    attempt: Option<i64>,
    content_type: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body_text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body_base64: Option<String>,
}

/// The items of a body in format `json`, unchanged.
#[derive(serde::Deserialize)]
struct TailedItems<'a> {
    #[serde(borrow)]
    items: Vec<&'a RawValue>,
}

fn as_text(value: &AMQPValue) -> Option<String> {
    if let AMQPValue::LongString(text) = value {
        Some(text.to_string())
    } else {
        as_number(value).map(|n| n.to_string())
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "every other type is no integer")]
fn as_number(value: &AMQPValue) -> Option<i64> {
    match value {
        AMQPValue::LongLongInt(n) => Some(*n),
        AMQPValue::LongInt(n) => Some(i64::from(*n)),
        AMQPValue::ShortInt(n) => Some(i64::from(*n)),
        AMQPValue::Timestamp(n) => i64::try_from(*n).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{json, Value};

    fn batch(body: &[u8]) -> TailedBatch<'_> {
        TailedBatch {
            application: "app",
            content_type: "application/json",
            id: Some("b1".into()),
            customer: Some("c\u{1b}".into()),
            closed_by: Some("time".into()),
            count: Some(2),
            attempt: Some(1),
            due: Some(1_800_000_000_000),
            received: 1_800_000_000_004,
            body,
        }
    }

    fn line(batch: &TailedBatch<'_>) -> Value {
        serde_json::from_str(&batch.json().unwrap()).unwrap()
    }

    #[test]
    fn a_parked_application_is_left_alone() {
        let ask = |state: &'static str| {
            let ask = std::sync::Arc::new(move |query| {
                let crate::admin::Query::State(_, reply) = query else { panic!("no command was expected") };
                let mut input = crate::admin::state::tests::example();
                let parked = input.snapshot.applications.pop().expect("the parked one");
                match state {
                    "parked" => input.snapshot.applications.push(parked),
                    "open" => input.snapshot.applications[0].name = "sms".into(),
                    _ => {}
                }
                input.snapshot.applications_total = input.snapshot.applications.len() as u64;
                input
                    .snapshot
                    .applications
                    .iter_mut()
                    .for_each(|a| a.parked = 9 * u64::from(state == "parked"));
                let _ = reply.send(input);
            });
            let (daemon, config) = super::super::client::tests::running(None, ask);
            let judged = takes_nothing(Client::new(&config.admin), "sms");
            daemon.stop();
            judged
        };
        let refused = ask("parked").unwrap_err();
        assert_eq!(refused.exit_code(), 2);
        assert!(refused.text().contains("9 of its items are parked"), "{refused:?}");
        ask("open").unwrap();
        ask("unknown").unwrap();
        let silent = takes_nothing(Err(Failure::failed("no daemon answers")), "sms").unwrap_err();
        assert_eq!(silent.exit_code(), 1);
        assert!(silent.text().contains("no daemon answers (--drain"), "{silent:?}");
    }

    #[test]
    fn the_only_queue_refuses_what_another_one_would_drop() {
        let overflow = |is_only_one: bool| limits(is_only_one).inner().get("x-overflow").and_then(as_text);
        assert_eq!(overflow(true).as_deref(), Some("reject-publish"));
        assert_eq!(overflow(false).as_deref(), Some("drop-head"));
    }

    #[test]
    fn a_batch_is_a_line_and_its_items() {
        let lines = batch(br#"{"batch": "b1", "items": [{"id": "1"}, {"id": "2"}]}"#).text();
        let head =
            "2027-01-15T08:00:00.004Z  customer=c\\u{1b}  count=2  late=4ms  closed_by=time  attempt=1  \
                    batch=b1";
        assert_eq!(lines, [head, r#"  {"id": "1"}"#, r#"  {"id": "2"}"#]);
    }

    #[test]
    fn other_bodies_are_shown_line_by_line() {
        assert_eq!(batch(b"one\ntwo\x07").text()[1..], ["  one", "  two\\u{7}"]);
        assert_eq!(batch(b"").text().len(), 1);
    }

    #[test]
    fn as_json_a_body_is_itself_or_text_or_base64() {
        let value = line(&batch(b"[1]"));
        assert_eq!((&value["body"], &value["lateness_ms"]), (&json!([1]), &json!(4)));
        assert_eq!((&value["batch"], &value["attempt"]), (&json!("b1"), &json!(1)));
        assert_eq!(line(&batch(b"x"))["body_text"], "x");
        assert_eq!(line(&batch(b"\xff"))["body_base64"], "/w==");
        // A strict reader could not read the line.
        assert_eq!(line(&batch(br#""\ud800""#))["body_text"], r#""\ud800""#);
        let raw = "{\r\n  \"n\": 12345678901234567890123,\n  \"price\": 19.10,\n  \"n\": \"a\\nb\"\n}";
        let text = batch(raw.as_bytes()).json().unwrap();
        assert!(!text.contains(['\n', '\r']), "one line: {text}");
        assert!(text.contains(&raw.replace(['\n', '\r'], " ")), "as it came: {text}");
    }

    #[test]
    fn as_json_a_batch_cannot_drive_the_terminal() {
        let acting = "\u{9b}2J\u{7f}\u{202e}";
        let body = format!("[\"{acting}\"]");
        let mut it = batch(body.as_bytes());
        it.customer = Some(acting.to_owned());
        let text = it.json().unwrap();
        assert!(text.contains(r#""body":["\u009b2J\u007f\u202e"]"#), "{text}");
        assert!(!text.contains(['\u{9b}', '\u{7f}', '\u{202e}']), "{text:?}");
        let value = line(&it);
        assert_eq!((&value["customer"], &value["body"]), (&json!(acting), &json!([acting])));
    }

    #[test]
    fn lateness_may_be_negative_and_may_be_unknown() {
        let mut it = batch(b"");
        it.due = Some(1_800_000_000_005);
        assert_eq!(it.lateness_ms(), Some(-1));
        it.due = None;
        assert_eq!(it.lateness_ms(), None);
        assert_eq!(line(&it)["lateness_ms"], Value::Null);
    }
}
