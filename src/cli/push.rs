//! `push`: publishes one request to the ingest exchange and waits for its confirm.

use super::args::{Output, PushArgs};
use super::broker::{block_on, CliSession};
use super::millis;
use super::output::{note, plain, Failure, Out};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Confirmation};
use serde_json::json;
use std::io::Read;
use tidegate_config::terms::request_header;
use tidegate_config::Config;

/// RabbitMQ's own default limit on one message.
const MAX_INPUT: u64 = 128 << 20;

pub(super) const PERSISTENT: u8 = 2;

/// One request, ready to be published.
#[derive(Debug)]
struct PushMessage {
    application: String,
    id: String,
    content_type: String,
    headers: FieldTable,
    body: Vec<u8>,
}

/// Runs the command.
///
/// # Errors
/// Usage, connection, and any outcome but a confirm without return.
pub(super) fn run(config: &Config, args: PushArgs, output: Output) -> Result<(), Failure> {
    let body = match args.body.as_deref() {
        None | Some("-") => read_input(std::io::stdin().lock())?,
        Some(text) => text.as_bytes().to_vec(),
    };
    if body.len() as u64 > config.limits.max_body {
        note(format_args!(
            "warning: {} bytes exceed limits.max_body ({}): the request will become a dead letter",
            body.len(),
            config.limits.max_body
        ));
    }
    let id = match &args.id {
        Some(id) => id.clone(),
        None => random_id()?,
    };
    let message = PushMessage {
        application: args.application.clone().unwrap_or_default(),
        id,
        content_type: args.content_type.clone().unwrap_or_else(|| guess_type(&body).to_owned()),
        headers: headers(&args)?,
        body,
    };
    // The message names the id: a request with an unknown outcome can be pushed again without becoming a
    // second item.
    block_on(publish(config, &message)).map_err(|failure| name_id(failure, &message.id))?;
    report(config, &args, &message, output)
}

fn name_id(failure: Failure, id: &str) -> Failure {
    if let Failure::Failed(text) = failure {
        Failure::Failed(format!("{text} (id {})", plain(id)))
    } else {
        failure
    }
}

fn read_input(input: impl Read) -> Result<Vec<u8>, Failure> {
    let mut body = Vec::new();
    input
        .take(MAX_INPUT + 1)
        .read_to_end(&mut body)
        .map_err(|e| Failure::Failed(format!("standard input: {e}")))?;
    if body.len() as u64 > MAX_INPUT {
        return Err(Failure::Failed(format!("standard input: more than {MAX_INPUT} bytes")));
    }
    Ok(body)
}

/// 128 random bits. By this id a request with an unknown outcome can be pushed again, looked up or cancelled.
pub(super) fn random_id() -> Result<String, Failure> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|e| Failure::Failed(format!("no random numbers: {e}")))?;
    Ok(format!("{:032x}", u128::from_be_bytes(bytes)))
}

fn guess_type(body: &[u8]) -> &'static str {
    // UTF-8 is checked first: serde_json does not check skipped strings, which would pass with any bytes.
    let text = std::str::from_utf8(body).unwrap_or_default();
    match serde_json::from_str::<serde::de::IgnoredAny>(text) {
        Ok(_) => "application/json",
        Err(_) => "text/plain",
    }
}

fn headers(args: &PushArgs) -> Result<FieldTable, Failure> {
    let mut table = FieldTable::default();
    let mut put = |key: &str, value: AMQPValue| {
        if table.contains_key(key) {
            return Err(Failure::Usage(format!("the header {} is given twice", plain(key))));
        }
        let name = ShortString::try_new(key).map_err(|e| Failure::Usage(e.to_string()))?;
        table.insert(name, value);
        Ok(())
    };
    put(request_header::APPLICATION, text(args.application.as_deref().unwrap_or_default()))?;
    if let Some(customer) = &args.customer {
        put(request_header::CUSTOMER, text(customer))?;
    }
    if let Some(delay) = args.delay {
        put(request_header::DELAY, AMQPValue::LongLongInt(millis(delay)))?;
    }
    if let Some(at) = args.deliver_at {
        put(request_header::DELIVER_AT, AMQPValue::LongLongInt(at))?;
    }
    for (key, value) in &args.headers {
        put(key, text(value))?;
    }
    Ok(table)
}

fn text(value: &str) -> AMQPValue {
    // Never a short string, which inside a table closes the connection.
    AMQPValue::LongString(value.into())
}

async fn publish(config: &Config, message: &PushMessage) -> Result<(), Failure> {
    let session = CliSession::open(config, &config.amqp.endpoints, "tidegate push").await?;
    let outcome = confirmed(&session, &config.ingest.exchange, message).await;
    session.close().await;
    outcome
}

async fn confirmed(session: &CliSession, exchange: &str, message: &PushMessage) -> Result<(), Failure> {
    let short = |text: &str| ShortString::try_new(text).map_err(|e| Failure::Usage(e.to_string()));
    let properties = BasicProperties::default()
        .with_message_id(short(&message.id)?)
        .with_content_type(short(&message.content_type)?)
        .with_delivery_mode(PERSISTENT)
        .with_headers(message.headers.clone());
    let channel = &session.channel;
    session.ask("asking for confirms", channel.confirm_select(ConfirmSelectOptions::default())).await?;
    let published = channel.basic_publish(
        short(exchange)?,
        short(&message.application)?,
        BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() },
        &message.body,
        properties,
    );
    let confirm = session.ask("publishing", published).await?;
    judge(session.ask("waiting for the confirm", confirm).await?, exchange)
}

/// With a single publish on the channel, a return belongs to that publish.
pub(super) fn judge(confirmation: Confirmation, exchange: &str) -> Result<(), Failure> {
    match confirmation {
        Confirmation::Ack(None) => Ok(()),
        Confirmation::Ack(Some(returned)) | Confirmation::Nack(Some(returned)) => {
            Err(Failure::Failed(format!(
                "the broker returned it: {} {} (no queue is bound to exchange {})",
                returned.reply_code,
                plain(returned.reply_text.as_str()),
                plain(exchange)
            )))
        }
        Confirmation::Nack(None) => {
            Err(Failure::failed("the broker refused it (nack): a queue of the exchange accepts no more"))
        }
        Confirmation::NotRequested => Err(Failure::failed("the broker did not confirm it")),
    }
}

fn report(config: &Config, args: &PushArgs, message: &PushMessage, output: Output) -> Result<(), Failure> {
    let mut out = Out::lock();
    let delay_ms = args.delay.map(millis);
    if output == Output::Json {
        return out.json(&json!({
            "result": "confirmed",
            "id": message.id,
            "application": message.application,
            "customer": args.customer,
            "delay_ms": delay_ms,
            "deliver_at": args.deliver_at,
            "content_type": message.content_type,
            "body_bytes": message.body.len(),
            "exchange": config.ingest.exchange,
        }));
    }
    let mut rows = vec![("id", message.id.clone()), ("application", message.application.clone())];
    rows.extend(args.customer.clone().map(|c| ("customer", c)));
    rows.extend(delay_ms.map(|ms| ("delay", format!("{ms} ms"))));
    rows.extend(args.deliver_at.map(|at| ("deliver at", super::moment(at))));
    rows.push(("content type", message.content_type.clone()));
    rows.push(("body", format!("{} bytes", message.body.len())));
    rows.push(("confirmed by", config.ingest.exchange.clone()));
    let row = |(key, value): &(&str, String)| vec![(*key).to_owned(), plain(value).into_owned()];
    out.table(&rows.iter().map(row).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::{Cli, CliCommand};
    use clap::Parser;

    fn args(line: &str) -> PushArgs {
        let CliCommand::Push(args) = Cli::parse_from(line.split_whitespace()).command else {
            panic!("{line}")
        };
        args
    }

    #[test]
    fn headers_say_what_the_flags_say() {
        let table = headers(&args("t push app --customer 42 --delay 1500us --header x-on-duplicate=replace"))
            .unwrap();
        let get = |key: &str| table.inner().get(key).cloned();
        assert_eq!(get("x-application"), Some(text("app")));
        assert_eq!(get("x-customer"), Some(text("42")));
        assert_eq!(get("x-delay"), Some(AMQPValue::LongLongInt(2)));
        assert_eq!(get("x-on-duplicate"), Some(text("replace")));
        assert_eq!(get("x-deliver-at"), None);
        let table = headers(&args("t push app --deliver-at 1800000000000")).unwrap();
        assert_eq!(table.inner().get("x-deliver-at"), Some(&AMQPValue::LongLongInt(1_800_000_000_000)));
    }

    #[test]
    fn one_header_given_twice_is_a_usage_error() {
        for line in ["t push app --customer a --header x-customer=b", "t push app --header k=1 --header k=2"]
        {
            assert_eq!(headers(&args(line)).unwrap_err().exit_code(), 2, "{line}");
        }
    }

    #[test]
    fn the_content_type_is_guessed_from_the_body() {
        for (body, want) in [
            (&br#"{"a": 1}"#[..], "application/json"),
            (b" 12 ", "application/json"),
            (b"", "text/plain"),
            (b"hello", "text/plain"),
            (b"{} {}", "text/plain"),
            (b"\"\xff\"", "text/plain"),
        ] {
            assert_eq!(guess_type(body), want, "{}", String::from_utf8_lossy(body));
        }
    }

    #[test]
    fn made_up_ids_differ_and_fit() {
        let (a, b) = (random_id().unwrap(), random_id().unwrap());
        assert_eq!(a.len(), 32);
        assert_ne!(a, b);
    }

    #[test]
    fn only_an_ack_without_return_is_success() {
        assert!(judge(Confirmation::Ack(None), "e").is_ok());
        assert_eq!(judge(Confirmation::Nack(None), "e").unwrap_err().exit_code(), 1);
        assert_eq!(judge(Confirmation::NotRequested, "e").unwrap_err().exit_code(), 1);
    }
}
