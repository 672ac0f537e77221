//! `push --ndjson`: many requests from standard input, one entry of the JSON envelope per line.
//!
//! Before a line is published, it is read as the daemon will read it, so that a fault is reported with its
//! line and not by a dead letter. Many requests are unconfirmed at once, within bounds; a request without a
//! confirm is never counted.

use super::args::{Output, PushArgs};
use super::broker::{block_on, CliSession};
use super::output::{plain, Failure, Out};
use super::progress::Progress;
use super::push::{judge, random_id, PERSISTENT};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::ShortString;
use lapin::{BasicProperties, Confirmation, PublisherConfirm};
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::collections::VecDeque;
use std::io::{BufRead, Read};
use tidegate_amqp::Options;
use tidegate_common::clock;
use tidegate_config::terms::{MAX_ID, MAX_NAME};
use tidegate_config::{Config, Readings};
use tidegate_types::RequestBody;
use tidegate_wire::{Incoming, RequestLimits};
use tokio::sync::mpsc::{channel, Receiver};

/// The content type of an envelope.
const ENVELOPE: &str = "application/vnd.tidegate+json";

/// Most unconfirmed requests, and their bytes.
const UNCONFIRMED: usize = 1_000;
const UNCONFIRMED_BYTES: usize = 16 << 20;

/// The parser of the keys would take an array for their values, and name their Rust type for anything else.
const NO_OBJECT: &str =
    "it must be one JSON object with the keys of the envelope: id, customer, delay_ms, payload and so on";

/// Number of lines read ahead.
const AHEAD: usize = 64;

/// One request, ready to be published.
struct PushLine {
    line: u64,
    application: String,
    properties: BasicProperties,
    body: Vec<u8>,
}

/// The keys of an entry that its message needs.
#[derive(Deserialize)]
struct LineKeys<'a> {
    #[serde(borrow)]
    application: Option<&'a RawValue>,
    #[serde(borrow)]
    id: Option<&'a RawValue>,
}

/// The counts of a run.
#[derive(Default)]
struct Tally {
    published: u64,
    confirmed: u64,
    made_up: u64,
}

/// Runs the command.
///
/// # Errors
/// Connection, the first faulty line, and the first request that is not confirmed or is returned.
pub(super) fn run(config: &Config, args: &PushArgs, output: Output) -> Result<(), Failure> {
    let mut tally = Tally::default();
    let done = block_on(async {
        let session = CliSession::open(config, &config.amqp.endpoints, "tidegate push").await?;
        let outcome = publish_all(&session, config, entries(config, args), &mut tally).await;
        session.close().await;
        outcome
    });
    if let Err(failure) = done {
        let Failure::Failed(text) = failure else { return Err(failure) };
        let Tally { published, confirmed, .. } = tally;
        return Err(Failure::Failed(format!(
            "{text} ({confirmed} of {published} published requests were confirmed; those with their own ids \
             can be pushed again)"
        )));
    }
    let mut out = Out::lock();
    if output == Output::Json {
        return out.json(&json!({
            "result": "confirmed",
            "count": tally.confirmed,
            "made_up_ids": tally.made_up,
            "exchange": config.ingest.exchange,
        }));
    }
    let rows = [
        ("requests", tally.confirmed.to_string()),
        ("with an id made up", tally.made_up.to_string()),
        ("confirmed by", plain(&config.ingest.exchange).into_owned()),
    ];
    out.table(&rows.map(|(key, value)| vec![key.to_owned(), value]))
}

/// The entries of standard input, read by a separate thread; nothing follows the first fault.
fn entries(config: &Config, args: &PushArgs) -> Receiver<Result<(PushLine, bool), Failure>> {
    let (sender, receiver) = channel(AHEAD);
    let limits = Options::new(config, 0, None).limits;
    let (application, exchange) = (args.application.clone(), config.ingest.exchange.clone());
    tokio::task::spawn_blocking(move || {
        let mut input = std::io::stdin().lock();
        for line in 1.. {
            let read = read_line(&mut input, limits.max_body);
            let text = match read {
                Ok(None) => return,
                Ok(Some(text)) if text.trim_ascii().is_empty() => continue,
                Ok(Some(text)) => Ok(text),
                Err(error) => Err(error),
            };
            let entry = text.and_then(|text| entry(text, application.as_deref(), &exchange, &limits));
            let entry = entry
                .map(|(entry, made_up)| (PushLine { line, ..entry }, made_up))
                .map_err(|error| Failure::Failed(format!("line {line}: {error}")));
            let ends = entry.is_err();
            // The receiver is gone if publishing has failed.
            if sender.blocking_send(entry).is_err() || ends {
                return;
            }
        }
    });
    receiver
}

fn read_line(input: &mut impl BufRead, max_body: u64) -> Result<Option<Vec<u8>>, String> {
    let mut text = Vec::new();
    let read = input.take(max_body + 2).read_until(b'\n', &mut text);
    read.map_err(|e| format!("standard input: {e}"))?;
    if text.is_empty() {
        return Ok(None);
    }
    if text.last() == Some(&b'\n') {
        text.pop();
    }
    if text.len() as u64 > max_body {
        return Err(format!("more than limits.max_body ({max_body} bytes)"));
    }
    Ok(Some(text))
}

/// A line as a message, and whether its id was generated.
fn entry(
    body: Vec<u8>,
    application: Option<&str>,
    exchange: &str,
    limits: &RequestLimits,
) -> Result<(PushLine, bool), String> {
    if body.trim_ascii_start().first() != Some(&b'{') {
        return Err(NO_OBJECT.to_owned());
    }
    let known: LineKeys<'_> = serde_json::from_slice(&body).map_err(|e| e.to_string())?;
    let text = |name, value, most| {
        let text = tidegate_wire::envelope_text(name, value, most);
        text.map_err(|dead| plain(&dead.error).into_owned()).map(|text| text.map(Cow::into_owned))
    };
    let own = text("application", known.application, MAX_NAME)?;
    let application = own.or_else(|| application.map(str::to_owned)).unwrap_or_default();
    let id = text("id", known.id, MAX_ID)?;
    let made_up = id.is_none();
    let id = match id {
        Some(id) => id,
        None => random_id().map_err(|failure| failure.text().to_owned())?,
    };
    let short = |text: &str| ShortString::try_new(text).map_err(|e| e.to_string());
    let properties = BasicProperties::default()
        .with_message_id(short(&id)?)
        .with_content_type(short(ENVELOPE)?)
        .with_delivery_mode(PERSISTENT);
    let incoming = Incoming {
        exchange,
        routing_key: &application,
        properties: properties.clone(),
        body: body.clone(),
        received: clock::wall_ms_up(),
    };
    match tidegate_wire::request(incoming, limits, &Readings::default(), 0) {
        RequestBody::Rejected(rejected) => Err(plain(&rejected.dead.error).into_owned()),
        RequestBody::Items(_) | RequestBody::Command(..) | RequestBody::Elsewhere(_) => {
            Ok((PushLine { line: 0, application, properties, body }, made_up))
        }
    }
}

/// A published request, with what it waits for.
struct UnconfirmedLine {
    line: u64,
    bytes: usize,
    confirm: PublisherConfirm,
}

async fn publish_all(
    session: &CliSession,
    config: &Config,
    mut entries: Receiver<Result<(PushLine, bool), Failure>>,
    tally: &mut Tally,
) -> Result<(), Failure> {
    let channel = &session.channel;
    session.ask("asking for confirms", channel.confirm_select(ConfirmSelectOptions::default())).await?;
    let exchange = ShortString::try_new(&*config.ingest.exchange).map_err(Failure::failed)?;
    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    let (mut unconfirmed, mut bytes) = (VecDeque::<UnconfirmedLine>::new(), 0);
    let progress = Progress::new();
    let mut fault = None;
    loop {
        // While no line arrives, confirms are awaited: with a slow input, a fault is reported soon.
        let next = match unconfirmed.front_mut() {
            None => entries.recv().await,
            Some(UnconfirmedLine { line, bytes: size, confirm }) => tokio::select! {
                biased;
                entry = entries.recv() => entry,
                confirmation = confirm => {
                    let confirmation = confirmation.map_err(|error| {
                        Failure::Failed(format!("line {line}: waiting for the confirm: {error}"))
                    })?;
                    confirmed(confirmation, *line, config, tally)?;
                    bytes -= *size;
                    unconfirmed.pop_front();
                    continue;
                }
            },
        };
        let Some(entry) = next else { break };
        let (entry, made_up) = match entry {
            Ok(entry) => entry,
            Err(failure) => {
                fault = Some(failure);
                break;
            }
        };
        let key = ShortString::try_new(&*entry.application).map_err(Failure::failed)?;
        let publishing = channel.basic_publish(exchange.clone(), key, options, &entry.body, entry.properties);
        let confirm = session.ask(&format!("line {}: publishing", entry.line), publishing).await?;
        tally.published += 1;
        tally.made_up += u64::from(made_up);
        bytes += entry.body.len();
        unconfirmed.push_back(UnconfirmedLine { line: entry.line, bytes: entry.body.len(), confirm });
        while unconfirmed.len() >= UNCONFIRMED || bytes > UNCONFIRMED_BYTES && !unconfirmed.is_empty() {
            bytes -= settle(session, config, &mut unconfirmed, tally).await?;
        }
        progress.at("requests confirmed", tally.confirmed, None);
    }
    while !unconfirmed.is_empty() {
        settle(session, config, &mut unconfirmed, tally).await?;
    }
    fault.map_or(Ok(()), Err)
}

/// Waits for the first one, and returns its bytes.
async fn settle(
    session: &CliSession,
    config: &Config,
    unconfirmed: &mut VecDeque<UnconfirmedLine>,
    tally: &mut Tally,
) -> Result<usize, Failure> {
    let Some(UnconfirmedLine { line, bytes, confirm }) = unconfirmed.pop_front() else { return Ok(0) };
    let waiting = format!("line {line}: waiting for the confirm");
    let confirmation = session.ask(&waiting, confirm).await?;
    confirmed(confirmation, line, config, tally)?;
    Ok(bytes)
}

fn confirmed(
    confirmation: Confirmation,
    line: u64,
    config: &Config,
    tally: &mut Tally,
) -> Result<(), Failure> {
    judge(confirmation, &config.ingest.exchange).map_err(|failure| {
        let said = failure.text();
        Failure::Failed(format!("line {line}, or one near it: {said}"))
    })?;
    tally.confirmed += 1;
    Ok(())
}
