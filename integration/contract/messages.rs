//! `docs/asyncapi.yaml` and `docs/schemas`: they are consistent, and real messages match them.

use serde_json::{json, Value};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tidegate_harness::lapin::types::AMQPValue;
use tidegate_harness::{
    correlation_of, holds_within, schema_faults, schema_references, wait_until, Asker, Push, Received, Site,
};

const ENVELOPE: &str = "application/vnd.tidegate+json";

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs")
}

fn asyncapi() -> Value {
    let text = fs::read_to_string(docs().join("asyncapi.yaml")).expect("the document");
    serde_saphyr::from_str(&text).expect("YAML")
}

/// A schema below `docs`, with the referenced files included.
fn schema(path: &str) -> Value {
    let file = docs().join(path);
    let text = fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    let mut schema = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{path}: {e}"));
    include(&mut schema);
    schema
}

fn include(value: &mut Value) {
    let other = value["$ref"].as_str().filter(|place| !place.starts_with('#')).map(ToOwned::to_owned);
    if let Some(other) = other {
        *value = schema(&format!("schemas/{other}"));
    } else if let Some(inner) = value.as_array_mut() {
        inner.iter_mut().for_each(include);
    } else if let Some(inner) = value.as_object_mut() {
        inner.values_mut().for_each(include);
    }
}

fn faults(path: &str, value: &Value) -> Vec<String> {
    schema_faults(&schema(path), "#", value)
}

fn names() -> Vec<String> {
    let files = fs::read_dir(docs().join("schemas")).expect("the schemas");
    let name = |file: fs::DirEntry| format!("schemas/{}", file.file_name().to_string_lossy());
    files.map(|file| name(file.expect("an entry"))).collect()
}

#[test]
fn every_reference_leads_somewhere_and_every_schema_is_used() {
    let document = asyncapi();
    let named = schema_references(&document);
    for reference in &named {
        match reference.strip_prefix('#') {
            Some(place) => assert!(document.pointer(place).is_some(), "{reference} leads nowhere"),
            None => assert!(docs().join(reference).is_file(), "{reference} is not there"),
        }
    }
    for schema in names() {
        assert!(named.contains(&schema), "no message is of docs/{schema}");
    }
    for (name, operation) in document["operations"].as_object().expect("operations") {
        let channel = operation["channel"]["$ref"].as_str().expect("a channel");
        for message in operation["messages"].as_array().into_iter().flatten() {
            let message = message["$ref"].as_str().expect("a message");
            assert!(message.starts_with(&format!("{channel}/messages/")), "{name}: {message}");
        }
    }
}

/// Names of exchanges and queues are the defaults of the sample configuration.
#[test]
fn the_names_are_those_of_the_sample() {
    let sample = fs::read_to_string(docs().join("../config.example.toml")).expect("the sample");
    let sample: toml::Table = toml::from_str(&sample).expect("TOML");
    let document = asyncapi();
    for (place, section, key) in [
        ("requests/bindings/amqp/exchange/name", "ingest", "exchange"),
        ("batches/bindings/amqp/exchange/name", "egress", "exchange"),
        ("deadLetters/bindings/amqp/queue/name", "dead", "exchange"),
        ("deadLetters/address", "dead", "exchange"),
    ] {
        let told = document.pointer(&format!("/channels/{place}")).expect(place);
        assert_eq!(told.as_str(), sample[section][key].as_str(), "{place}");
    }
}

/// Schemas that also occur in the document of the admin port are equal.
#[test]
fn answers_by_amqp_and_by_http_have_one_schema() {
    let http: Value = serde_json::from_str(include_str!("../../src/admin/openapi.json")).expect("JSON");
    let answer = schema("schemas/answer.json");
    for name in ["Item", "Cancelled", "Unknown", "Flushed"] {
        assert_eq!(answer["$defs"][name], http["components"]["schemas"][name], "{name}");
    }
}

#[test]
fn examples_are_right_and_what_is_wrong_is_told() {
    for name in names() {
        let examples = schema(&name)["examples"].as_array().cloned().unwrap_or_default();
        assert!(!examples.is_empty(), "{name} has no examples");
        for example in examples {
            assert_eq!(faults(&name, &example), [""; 0], "{name}: {example}");
        }
    }
    let item = |more: Value| {
        let mut item = json!({"id": "a", "due": 1, "received": 1, "content_type": null});
        item.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        item
    };
    for (name, wrong) in [
        ("command", json!([])),
        ("command", json!({"customer": true})),
        ("command", json!({"ids": ["a"]})),
        ("answer", json!({"result": "gone"})),
        ("answer", json!({"result": "sent", "at": 1})),
        ("answer", json!({"state": "waiting", "application": "shop"})),
        ("item", item(json!({}))),
        ("item", item(json!({"payload": 1, "payload_base64": ""}))),
        ("item", item(json!({"payload": 1, "due": "1"}))),
        ("batch", json!({"application": "shop", "customer": null, "batch": "ab", "items": []})),
        ("cloudevents", json!([{"specversion": "1.0", "id": "a", "data": 1, "data_base64": ""}])),
        ("request-headers", json!({"x-customer": true})),
        ("request-headers", json!({"x-on-duplicate": "maybe"})),
        ("batch-headers", json!({"x-count": 0})),
        ("passthrough-headers", json!({"x-due": 1})),
        ("dead-headers", json!({"x-tidegate-reason": "tired"})),
    ] {
        assert!(!faults(&format!("schemas/{name}.json"), &wrong).is_empty(), "{name}: {wrong}");
    }
}

/// Envelopes that the schema accepts, and some that it rejects.
fn envelopes() -> (Vec<Value>, Vec<Value>) {
    let mut right = schema("schemas/envelope.json")["examples"].as_array().cloned().expect("examples");
    right.extend([
        json!({"customer": 42, "payload": 1}),
        json!({"customer": "", "id": null, "payload": null}),
        json!({"delay_ms": "1.5", "payload": 1}),
        json!({"delay_ms": -1, "payload": 1}),
        json!({"deliver_at": "2020-01-31T09:00:00.5Z", "payload": 1}),
        json!({"deliver_at": 1_600_000_000_000_u64, "payload": 1}),
        json!({"content_type": "text/plain", "payload": "text", "payload_base64": null}),
        json!({"payload_base64": ""}),
    ]);
    let wrong = vec![
        json!([]),
        json!("text"),
        json!({}),
        json!({"payload": 1, "payload_base64": "AA=="}),
        json!({"payload_base64": "AA"}),
        json!({"payload_base64": null}),
        json!({"payload_base64": 5}),
        json!({"payload": 1, "delay": 5}),
        json!({"payload": 1, "customer": true}),
        json!({"payload": 1, "customer": 1.5}),
        json!({"payload": 1, "customer": "c".repeat(201)}),
        json!({"payload": 1, "delay_ms": "soon"}),
        json!({"payload": 1, "delay_ms": "2030-01-31T09:00:00Z"}),
        json!({"payload": 1, "deliver_at": 1_800_000_000}),
        json!({"payload": 1, "deliver_at": "2030-01-31T09:00:00"}),
        json!({"payload": 1, "deliver_at": true}),
        json!({"payload": 1, "on_duplicate": "maybe"}),
        json!([{"payload": 1}, 5]),
        json!([{"payload": 1}, {}]),
    ];
    (right, wrong)
}

#[test]
fn the_daemon_takes_the_envelopes_that_the_schema_takes() {
    let site = Site::new("schema-envelope");
    let daemon = site.start(&site.config());
    let (right, wrong) = envelopes();
    let push = |body: &Value| site.push("shop", body.to_string()).content_type(ENVELOPE);
    for envelope in &right {
        assert_eq!(faults("schemas/envelope.json", envelope), [""; 0], "{envelope}");
    }
    site.client.publish_all(right.iter().map(push));
    let entries = right.iter().map(|envelope| envelope.as_array().map_or(1, Vec::len) as u64).sum::<u64>();
    wait_until("all are accepted", Duration::from_secs(10), || {
        let totals = &daemon.state()["totals"];
        totals["accepted"] == entries && totals["rejected"] == 0
    });
    let dead = site.dead_inbox();
    for envelope in &wrong {
        assert!(!faults("schemas/envelope.json", envelope).is_empty(), "the schema takes {envelope}");
        site.client.publish(&push(envelope));
        let letter = dead.next();
        assert_eq!(letter.body_text(), envelope.to_string());
        assert_eq!(faults("schemas/dead-headers.json", &headers(&letter)), [""; 0], "{envelope}");
    }
}

/// Headers as JSON; only the types that these tests use.
fn headers(received: &Received) -> Value {
    let table = received.properties.headers().clone().unwrap_or_default();
    let value = |value: &AMQPValue| {
        let text = value.as_long_string().map(|text| String::from_utf8_lossy(text.as_bytes()).into_owned());
        text.map(Value::String)
            .or_else(|| value.as_long_long_int().map(Value::from))
            .unwrap_or_else(|| panic!("no header of these tests: {value:?}"))
    };
    let pairs = table.inner().iter().map(|(name, found)| (name.to_string(), value(found)));
    Value::Object(pairs.collect())
}

/// Checks a message against the document: type, content type, headers and body.
fn judge(document: &Value, name: &str, received: &Received) {
    let told = &document["components"]["messages"][name];
    let properties = &received.properties;
    let kind = properties.kind().as_ref().map(|kind| kind.as_str());
    if let Some(wanted) = told["bindings"]["amqp"]["messageType"].as_str() {
        assert_eq!(kind, Some(wanted), "{name}");
    }
    if let Some(wanted) = told["contentType"].as_str() {
        let content_type = properties.content_type().as_ref().map(|kind| kind.as_str());
        assert_eq!(content_type, Some(wanted), "{name}");
    }
    if let Some(path) = told["headers"]["$ref"].as_str() {
        let headers = headers(received);
        assert_eq!(faults(path, &headers), [""; 0], "{name}: {headers}");
    }
    let Some(path) = told["payload"]["$ref"].as_str() else { return };
    let lines = told["contentType"] == "application/x-ndjson";
    let text = received.body_text();
    let parts = if lines { text.lines().collect() } else { vec![text.as_str()] };
    for part in parts {
        let part: Value = serde_json::from_str(part).expect("JSON");
        assert_eq!(faults(path, &part), [""; 0], "{name}: {part}");
    }
}

#[test]
fn messages_are_as_the_documents_tell() {
    let site = Site::new("asyncapi");
    let document = asyncapi();
    let formats =
        [("batch", "json"), ("lines", "ndjson"), ("events", "cloudevents"), ("passthrough", "passthrough")];
    let mut config = site.config();
    for (name, format) in formats {
        config = config
            .text(&format!("applications.{name}.format"), format)
            .set(&format!("applications.{name}.copy_headers"), r#"["tenant"]"#)
            .set(&format!("applications.{name}.copy_properties"), r#"["correlation_id", "priority"]"#);
    }
    let inboxes = formats.map(|(name, _)| site.inbox(name));
    let daemon = site.start(&config);
    for (name, _) in formats {
        let push = |id: &str, body: &str, kind: &str| {
            let mut push = site.push(name, body).customer("c").id(id).content_type(kind).with("tenant", "t");
            push.properties = push.properties.with_correlation_id("c-9".into()).with_priority(3);
            push
        };
        let bare = site.push(name, "bare").customer("c");
        site.client.publish_all([push("a", "{}", "application/json"), push("b", "x", "text/plain"), bare]);
    }
    for ((name, format), inbox) in formats.into_iter().zip(&inboxes) {
        let messages = if format == "passthrough" { 3 } else { 1 };
        inbox.take(messages, Duration::from_secs(10)).iter().for_each(|got| judge(&document, name, got));
    }
    let dead = site.dead_inbox();
    site.client.publish(&site.push("shop", "1").customer("c").with("x-delay", "soon"));
    judge(&document, "deadLetter", &dead.next());
    let rejected = 1 + commands(&site, &document);
    wait_until("all are counted", Duration::from_secs(10), || {
        daemon.state()["totals"]["rejected"] == rejected
    });
}

/// Sends a command until it is answered: the daemon drops an answer that a busy broker does not take. Returns
/// the answer, and how often it was sent.
fn ask(site: &Site<'_>, asker: &Asker<'_>, command: &Push, correlation: &str) -> (Received, u64) {
    let (mut answer, mut sent) = (None, 0);
    let answered = holds_within(Duration::from_secs(10), || {
        site.client.publish(command);
        sent += 1;
        // A command that was sent twice may have two answers, the second among those to the next one.
        while let Some(found) = asker.poll(Duration::from_secs(15)) {
            if correlation_of(&found) == correlation {
                answer = Some(found);
                return true;
            }
        }
        false
    });
    assert!(answered, "no answer to {correlation}");
    (answer.expect("an answer"), sent)
}

/// Returns how often the last command was sent, which is rejected.
fn commands(site: &Site<'_>, document: &Value) -> u64 {
    let asker = Asker::new(site);
    let mut number = 0;
    let mut asked = |kind: &str, push: Push, key: &str, value: &str| {
        number += 1;
        let correlation = format!("q{number}");
        let (answer, sent) = ask(site, &asker, &asker.command(push, kind, &correlation), &correlation);
        judge(document, "answer", &answer);
        assert_eq!(answer.json()[key], value, "{kind}: {}", answer.body_text());
        sent
    };
    let selector = |body: Value| {
        assert_eq!(faults("schemas/command.json", &body), [""; 0]);
        site.push("shop", body.to_string()).content_type(ENVELOPE)
    };
    site.client.publish(&site.push("shop", "1").id("x").customer("c").delay(60_000));
    let item = || selector(json!({"application": "shop", "id": "x"}));
    let customer = || selector(json!({"customer": "c"}));
    asked("tidegate.lookup", item(), "state", "waiting");
    asked("tidegate.flush", customer(), "result", "flushed");
    asked("tidegate.cancel", customer(), "result", "cancelled");
    asked("tidegate.cancel", item(), "result", "cancelled");
    asked("tidegate.lookup", item(), "state", "cancelled");
    asked("tidegate.cancel", selector(json!({"id": "none"})), "result", "unknown");
    asked("tidegate.lookup", site.push("batch", "").id("a"), "state", "sent");
    asked("tidegate.cancel", site.push("batch", "").id("a"), "result", "sent");
    asked("tidegate.lookup", site.push("shop", ""), "result", "rejected")
}
