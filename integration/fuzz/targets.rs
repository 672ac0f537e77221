//! The fuzz targets. Besides not panicking, each checks its results against the contract.

use lapin::protocol::basic::parse_properties;
use lapin::BasicProperties;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use tidegate::admin::parse;
use tidegate_config::{terms, Config, CopiedProperty, Copies, DelayFrom, Reading, Readings, Redeliver};
use tidegate_store::{ended, fields, queue_rows, record, rows};
use tidegate_types::size::overhead;
use tidegate_types::{Batch, BatchItem, ClosedBy, Command, Format, Identity, Key, NewItem, RequestBody};
use tidegate_wire::{encode, request, Exchanges, Incoming, RequestLimits};

/// 2026-06-01T00:00:00Z.
const NOW: u64 = 1_780_272_000_000;
const STORE: u64 = 0xabcd;
const LIMITS: RequestLimits = RequestLimits {
    max_body: 1 << 20,
    max_envelope_items: 100,
    max_delay_ms: 3650 * 86_400_000,
    frame_max: 128 << 10,
};
const ENVELOPE: &str = "application/vnd.tidegate+json";

fn read(properties: BasicProperties, key: &str, body: &[u8]) -> RequestBody {
    let body = body.to_vec();
    request(
        Incoming { exchange: "tidegate.in", routing_key: key, properties, body, received: NOW },
        &LIMITS,
        &readings(),
        STORE,
    )
}

/// All these fields are copied into batches. Some of them cannot occur together in an event, as may happen
/// after a reload.
fn readings() -> Readings {
    let properties = CopiedProperty::ALL.iter().map(|(_, property)| *property).collect();
    let headers = ["traceparent", "x-tenant", "xtenant", "h", "lang", "id"].map(str::to_owned).to_vec();
    let copies = Arc::new(Copies { properties, headers });
    let redeliver = Arc::new(Redeliver { min: 1_000, ..Redeliver::default() });
    let defaults = Reading { copies, delay_from: DelayFrom::Timestamp, traces: true, redeliver };
    Readings { defaults, ..Readings::default() }
}

/// Every result respects the contract's bounds and can be published in every format.
fn judge(meaning: RequestBody, body: &[u8]) {
    match meaning {
        RequestBody::Items(items) => {
            assert!((1..=LIMITS.max_envelope_items).contains(&items.len()));
            for item in &items {
                assert!((1..=200).contains(&item.application.len()));
                assert!(item.customer.as_ref().is_none_or(|name| (1..=200).contains(&name.len())));
                assert!(item.at.is_none_or(|at| (NOW..=NOW + LIMITS.max_delay_ms).contains(&at)));
            }
            publish(&items);
        }
        RequestBody::Elsewhere(items) => panic!("there are no other shards: {items:?}"),
        RequestBody::Rejected(rejected) => {
            assert_eq!(rejected.content.body, body, "a dead letter carries its body");
            let sentence = &rejected.dead.error;
            assert!(!sentence.is_empty() && sentence.len() <= 512 && !sentence.contains(char::is_control));
        }
        RequestBody::Command(command, _) => match command {
            Command::Cancel(of) | Command::Lookup(of) | Command::Reschedule(of, _) => {
                assert!((1..=200).contains(&of.application.len()) && (1..=255).contains(&of.id.len()));
                assert!(of.identity.is_given(), "under an application of its own");
                if let Some(assigned) = of.assigned {
                    // An id contains the distance to the first item of the window, unless it is that item.
                    let behind = match assigned.seq - assigned.window {
                        0 => String::new(),
                        behind => format!("-{behind:x}"),
                    };
                    let id = format!("{STORE:016x}-{:x}-{:x}{behind}", assigned.seq, assigned.due);
                    assert_eq!(*of.id, *id, "one spelling alone was assigned");
                }
            }
            Command::CancelAll(of)
            | Command::Flush(of)
            | Command::PauseCustomer(of, _)
            | Command::ResumeCustomer(of) => {
                assert!((1..=200).contains(&of.application.len()) && (1..=200).contains(&of.customer.len()));
            }
            Command::Pause(application, _) | Command::Resume(application) => {
                assert!((1..=200).contains(&application.len()));
            }
            Command::CancelSelected(_)
            | Command::CountSelected(_)
            | Command::Count(_)
            | Command::List(_)
            | Command::TimelineQuery(_)
            | Command::FlushAll(_)
            | Command::Slow(..)
            | Command::Retry(_)
            | Command::DropParked(_) => panic!("not by message: {command:?}"),
        },
    }
}

fn publish(items: &[NewItem]) {
    let Some(first) = items.first() else { return };
    for format in [Format::Json, Format::Ndjson, Format::CloudEvents, Format::Passthrough] {
        let some = if format == Format::Passthrough { 1 } else { items.len() };
        let batch = Batch {
            number: 1,
            application: (*first.application).into(),
            customer: first.customer.as_deref().map(Into::into),
            dead: None,
            format,
            closed_by: ClosedBy::Time,
            attempt: 1,
            due: NOW,
            held: None,
            alone: false,
            items: (1..)
                .zip(&items[..some])
                .map(|(seq, item)| BatchItem {
                    seq,
                    window: seq,
                    accepted_due: NOW,
                    due: NOW,
                    received: NOW,
                    attempts: 0,
                    retry: item.tried.retry,
                    content: item.content.clone(),
                })
                .collect(),
        };
        let outgoing = encode(&batch, &Exchanges::new("out", "dead"), STORE, NOW);
        let whole = match format {
            Format::Json | Format::CloudEvents => parsed(&outgoing.body),
            Format::Ndjson => {
                outgoing.body.split(|byte| *byte == b'\n').filter(|l| !l.is_empty()).all(parsed)
            }
            Format::Passthrough => *outgoing.body == first.content.body[..],
        };
        // A batch that was sent back is published unchanged.
        let as_it_came = first.tried.retry > 0 && *outgoing.body == first.content.body[..];
        assert!(whole || as_it_came, "{format:?}: {}", outgoing.body.escape_ascii());
        let cost = overhead(format, &batch.application, batch.customer.as_deref());
        let bound =
            cost.batch + items[..some].iter().map(|item| u64::from(item.weight) + cost.item).sum::<u64>();
        assert!(outgoing.body.len() as u64 <= bound, "{format:?}: {} of {bound}", outgoing.body.len());
    }
}

/// Whether it is JSON, at any depth: an embedded payload is nested deeper within its batch.
fn parsed(text: &[u8]) -> bool {
    serde_json::from_slice::<serde::de::IgnoredAny>(text).is_ok()
}

/// Properties in wire form, a routing key and a body; the first two with a length prefix (u16, big endian).
pub fn properties(data: &[u8]) {
    let Some((wire, rest)) = part(data) else { return };
    let Some((key, body)) = part(rest) else { return };
    let (Ok((_, properties)), Ok(key)) = (parse_properties(wire), std::str::from_utf8(key)) else { return };
    judge(read(properties, key, body), body);
}

/// The first length-prefixed part of an input, and the rest.
fn part(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = data.split_first_chunk::<2>()?;
    rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))
}

/// The body of an envelope.
pub fn envelope(data: &[u8]) {
    judge(read(BasicProperties::default().with_content_type(ENVELOPE.into()), "shop", data), data);
}

/// A byte that selects the command, and its body.
pub fn command(data: &[u8]) {
    let Some((which, body)) = data.split_first() else { return };
    let kinds = ["cancel", "lookup", "flush", "", "x", "reschedule", "pause", "resume"];
    let kind = format!("tidegate.{}", kinds[usize::from(*which) % kinds.len()]);
    let mut properties =
        BasicProperties::default().with_type(kind.as_str().into()).with_reply_to("answers".into());
    if which & 0x80 == 0 {
        properties = properties.with_content_type(ENVELOPE.into());
    }
    if which & 0x40 != 0 {
        properties = properties.with_message_id("of-the-message".into());
    }
    let meaning = read(properties, "shop", body);
    assert!(!matches!(meaning, RequestBody::Items(_)), "a command is never an item");
    judge(meaning, body);
}

/// A record, as it is and with a valid checksum.
pub fn record(data: &[u8]) {
    let key = Key::own(NOW, 7);
    // A dead item is stored in the dead-letter queue, whose name is empty.
    for queue in ["shop", ""] {
        let row = rows::item_key(queue, key).unwrap();
        let mut sealed = data.to_vec();
        fields::seal(&row, &mut sealed);
        for bytes in [data, &sealed] {
            let Ok(view) = record::decode(&row, bytes) else { continue };
            if view.queue() != queue {
                continue;
            }
            let again = record::encode(&row, &view);
            assert_eq!(record::decode(&row, &again).as_ref(), Ok(&view));
            let (stored, content) = (view.stored(&queue.into()), view.content());
            assert_eq!(record::encode(&row, &record::View::of(&stored, &content)), again);
        }
    }
}

/// A row of an ended item, as it is and with a valid checksum.
pub fn ended(data: &[u8]) {
    let identity = Identity::given([7; 16]);
    let mut sealed = data.to_vec();
    fields::seal(&identity.to_bytes(), &mut sealed);
    for bytes in [data, &sealed] {
        let Ok((epoch, row)) = ended::decode(identity, bytes) else { continue };
        assert_eq!(ended::decode(identity, &ended::encode(identity, epoch, &row)), Ok((epoch, row)));
    }
}

/// Key and value of a small row, the key with a length prefix; the value as it is and with a valid checksum.
pub fn rows(data: &[u8]) {
    let Some((key, value)) = part(data) else { return };
    let identity = Identity::assigned(7);
    for under in [key, rows::META_MARKS, rows::META_FORMAT, rows::BUCKET, &identity.to_bytes()] {
        let mut sealed = value.to_vec();
        fields::seal(under, &mut sealed);
        for value in [value, &sealed] {
            if let Ok(row) = rows::read_window(under, value) {
                let (key, value) = rows::window_row(&row).unwrap();
                assert_eq!(rows::read_window(&key, &value), Ok(row));
            }
            if let Ok(row) = queue_rows::read_held(under, value) {
                let (key, value) = queue_rows::held_row(&row).unwrap();
                assert_eq!(queue_rows::read_held(&key, &value.unwrap()), Ok(row));
            }
            if let Ok(row) = queue_rows::read_queue(under, value) {
                let (key, value) = queue_rows::queue_row(&row).unwrap();
                assert_eq!(queue_rows::read_queue(&key, &value), Ok(row));
            }
            if let Ok(row) = rows::read_closed_by_due(under, value) {
                let [by_end, by_due] = rows::closing_rows(&row).unwrap();
                assert_eq!(rows::read_closed_by_end(&by_end.0, &by_end.1), Ok((row.due, row.cause)));
                assert_eq!(rows::read_closed_by_due(&by_due.0, &by_due.1), Ok(row));
            }
            let _ = (rows::read_closed_by_end(under, value), rows::read_closing_key(under));
            if let Ok((number, marks)) = rows::read_marks(value) {
                assert_eq!(rows::marks_row(number, &marks), value);
            }
            let _ = (rows::read_bucket(0, value), rows::read_identity(identity, value));
            let _ = (rows::read_number(under, value), rows::read_item_key(under));
        }
    }
}

/// A file, then a NUL and the environment: `NAME=VALUE` lines without the prefix.
pub fn config(data: &[u8]) {
    let (file, environment) = match data.iter().position(|byte| *byte == 0) {
        Some(at) => (&data[..at], &data[at + 1..]),
        None => (data, &data[..0]),
    };
    let environment = String::from_utf8_lossy(environment);
    let lines = environment.lines().filter_map(|line| line.split_once('='));
    let pairs = lines.map(|(name, value)| (format!("TIDEGATE__{name}"), value.to_owned()));
    let path = scratch();
    fs::write(&path, file).unwrap();
    match Config::load(Some(&path), pairs) {
        Ok(loaded) => {
            // An accepted configuration must convert to engine settings and print.
            let _ = loaded.config.engine_settings();
            let _ = format!("{:?} {:?}", loaded.config, loaded.warnings);
        }
        Err(faults) => assert!(!faults.to_string().is_empty()),
    }
}

/// A file of this thread, in memory if possible.
fn scratch() -> PathBuf {
    thread_local! {
        static DIR: tempfile::TempDir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    }
    DIR.with(|dir| dir.path().join("config.toml"))
}

/// A path and a query.
pub fn http(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (path, query) = text.split_once('?').map_or((text, None), |(path, query)| (path, Some(query)));
    for (name, most) in [
        (parse::application(path).map(String::from), terms::MAX_NAME),
        (parse::customer(path).map(|of| of.customer.into()), terms::MAX_NAME),
        (parse::item(path).map(|of| of.id.into()), terms::MAX_ID),
    ] {
        match name {
            Ok(name) => assert!((1..=most).contains(&name.len())),
            Err(fault) => assert!(!fault.to_string().is_empty()),
        }
    }
    if parse::no_query(query).is_ok() {
        assert!(query.unwrap_or_default().bytes().all(|byte| byte == b'&'));
    }
    if let Ok(filter) = parse::filter(query) {
        assert!((1..=parse::MAX_PAGE).contains(&filter.limit));
        assert_eq!(parse::cursor(&parse::cursor_text(filter.first())), Some(filter.first()));
    }
    if let Ok(timeline) = parse::timeline(query) {
        assert!(timeline.each_ms > 0 && (1..=60).contains(&timeline.stretches));
    }
    let _ = (parse::moment(text), parse::stage(text), parse::cursor(text));
}
