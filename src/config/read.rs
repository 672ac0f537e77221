//! The sections and their keys: the values that each may have, and the rules between them.
//!
//! `login` reads addresses and their logins, `limits` what the daemon accepts and uses, `shards` how many
//! engines it has, `application` the settings of an application.

use super::application::{application, BROKER_USUAL};
use super::database::database;
use super::limits::limits;
use super::login::{amqp, egress as egress_ends, secret_of, Password};
use super::reading::{Reading, Readings};
use super::section::{Findings, Section};
use super::shards::{shards, shards_can_work};
use super::surroundings::Surroundings;
use super::terms::MAX_NAME;
use super::tree::Table;
use super::units::{size, Size, Span, Text, Whole, Words};
use super::{Admin, Config, DeadQueue, DeadQueueKind, Listen, StoreConfig, StoreKind, Timeouts};
use secrecy::{ExposeSecret, SecretString};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tidegate_types::{AppSettings, Format};

/// RabbitMQ's default: it closes the channel of a delivery that stays unacked for longer.
const CONSUMER_TIMEOUT: Duration = Duration::from_secs(30 * 60);
/// The part of the unit's `TimeoutStopSec` that remains for the drain, without closing.
const USUAL_STOP: Duration = Duration::from_secs(50);
/// A longer wait for the broker is no effective bound.
const HOUR: Duration = Duration::from_secs(3_600);

/// Reads the whole tree. A faulty value is replaced by its default; the caller counts the faults.
pub(crate) fn config(tree: &Table<'_>, findings: &Findings, around: &Surroundings) -> Config {
    let d = Config::default();
    let mut root = Section::root(tree, findings);
    let mut amqp_section = root.section("amqp");
    let mut ingest = root.section("ingest");
    let mut egress = root.section("egress");
    let mut dead = root.section("dead");

    let mut config = d.clone();
    config.amqp = amqp(&mut amqp_section, around);
    config.ingest.queue = name(&mut ingest, "queue", d.ingest.queue);
    config.ingest.exchange = name(&mut ingest, "exchange", d.ingest.exchange);
    config.ingest.prefetch = ingest.get("prefetch", d.ingest.prefetch.into(), Whole(1..=65_535)) as u16;
    config.egress.exchange = name(&mut egress, "exchange", d.egress.exchange);
    (config.egress.endpoints, config.egress.tls) = egress_ends(&mut egress, &config.amqp, around);
    let in_flight = egress.get("max_in_flight", d.egress.max_in_flight as u64, Whole(1..=65_535));
    config.egress.max_in_flight = in_flight as usize;
    config.dead.exchange = name(&mut dead, "exchange", d.dead.exchange);
    names_differ(&config, [&mut ingest, &mut egress, &mut dead]);
    config.dead.queue = dead_queue(dead.section("queue"), d.dead.queue, &config);
    let mut ends = config.amqp.endpoints.iter().chain(&config.egress.endpoints);
    if !ends.any(|e| e.tls.is_some()) {
        for (section, tls) in [(&amqp_section, &config.amqp.tls), (&egress, &config.egress.tls)] {
            let named = [("ca_file", tls.ca_file.is_some()), ("certificate_file", tls.own.is_some())];
            for (key, _) in named.into_iter().filter(|(key, given)| *given && section.is_set(key)) {
                section.warn(key, "has no effect: no address begins with amqps://");
            }
        }
    }

    config.store = store(root.section("store"), d.store, around);
    let mut shards_section = root.section("shards");
    config.shards = shards(&mut shards_section, d.shards);
    let mut limits_section = root.section("limits");
    config.limits = limits(&mut limits_section, d.limits, config.store.kind, config.shards);
    shards_can_work(&config, &mut shards_section, &ingest, &limits_section);
    config.admin = admin(root.section("admin"), d.admin, around);
    config.timeouts = timeouts(root.section("timeouts"), d.timeouts);
    config.otlp_endpoint = telemetry(root.section("telemetry"));
    let (defaults, all, readings) = applications(&mut root, &config);
    (config.defaults, config.applications, config.readings) = (defaults, all, Arc::new(readings));
    bodies_fit_the_broker(&config, &root, findings);

    for section in [amqp_section, ingest, egress, dead, shards_section, limits_section, root] {
        section.end();
    }
    config
}

/// The name of a queue or exchange: an AMQP short string. RabbitMQ drops line breaks from names silently.
fn name(s: &mut Section<'_, '_>, key: &'static str, default: String) -> String {
    let name = name_if_any(s, key, default);
    if name.is_empty() && !s.failed(&[key]) {
        s.fault(key, "is empty");
    }
    name
}

/// As [`name`], but may be empty.
fn name_if_any(s: &mut Section<'_, '_>, key: &'static str, default: String) -> String {
    let name = s.get(key, default, Text);
    if name.len() > 255 {
        s.fault(key, format!("is {} bytes long: at most 255", name.len()));
    } else if name.chars().any(char::is_control) {
        s.fault(key, "holds a control character");
    }
    name
}

/// Reads `[dead.queue]`. `config` has all other names.
fn dead_queue(mut s: Section<'_, '_>, d: DeadQueue, config: &Config) -> DeadQueue {
    let words = &[
        ("quorum", DeadQueueKind::Quorum),
        ("classic", DeadQueueKind::Classic),
        ("none", DeadQueueKind::None),
    ];
    let kind = s.get("type", d.kind, Words(words));
    let name = name_if_any(&mut s, "name", d.name);
    if !name.is_empty() && name == config.ingest.queue {
        s.fault("name", "is ingest.queue: dead items would come back as requests");
    }
    // RabbitMQ reads both as signed 64-bit numbers.
    let max_length = s.get("max_length", d.max_length, Whole(0..=1 << 53));
    let max_bytes = s.get("max_bytes", d.max_bytes, Size(0..=1 << 53));
    let max_looks = s.get("max_looks", d.max_looks, Whole(0..=1 << 53));
    if kind == DeadQueueKind::None && (s.is_set("max_length") || s.is_set("max_bytes")) {
        s.warn("type", "is \"none\": no queue is declared, and limits of its length have no effect");
    }
    s.end();
    DeadQueue { name, kind, max_length, max_bytes, max_looks }
}

/// Checks names that must differ, because messages would otherwise circulate or arrive where they are not
/// expected. The fault is reported at the key that is written, or at the later one of two.
fn names_differ<'t, 'f>(c: &Config, parts: [&mut Section<'t, 'f>; 3]) {
    let [ingest, egress, dead] = parts;
    if [&*ingest, &*egress, &*dead].iter().any(|s| s.failed(&["exchange", "queue"])) {
        return;
    }
    if c.ingest.exchange == c.egress.exchange {
        let at = if egress.is_set("exchange") { &mut *egress } else { &mut *ingest };
        at.fault(
            "exchange",
            "is both ingest.exchange and egress.exchange: batches would come back as requests",
        );
    } else if c.dead.exchange == c.egress.exchange {
        let at = if dead.is_set("exchange") { &mut *dead } else { egress };
        at.fault("exchange", "is both egress.exchange and dead.exchange: dead items would look like batches");
    }
    if c.dead.exchange == c.ingest.exchange {
        let at = if dead.is_set("exchange") { dead } else { ingest };
        at.fault(
            "exchange",
            "is both ingest.exchange and dead.exchange: dead items would come back as requests",
        );
    } else if c.dead.exchange == c.ingest.queue {
        let (at, key) = if dead.is_set("exchange") { (dead, "exchange") } else { (ingest, "queue") };
        at.fault(
            key,
            "is both ingest.queue and dead.exchange, whose queue has its name: dead items would come back as \
             requests",
        );
    }
}

fn store(mut s: Section<'_, '_>, d: StoreConfig, around: &Surroundings) -> StoreConfig {
    let words =
        &[("disk", StoreKind::Disk), ("memory", StoreKind::Memory), ("postgres", StoreKind::Postgres)];
    let kind = s.get("kind", d.kind, Words(words));
    let path = PathBuf::from(s.get("path", d.path.to_string_lossy().into_owned(), Text));
    let hold_max = s.get("hold_max", d.hold_max, Span::from_ms(1));
    let database = database(&mut s, kind == StoreKind::Postgres, around);
    match kind {
        StoreKind::Disk | StoreKind::Postgres if !path.is_absolute() => {
            s.fault("path", "is not absolute: it must begin with /");
        }
        StoreKind::Memory if hold_max >= CONSUMER_TIMEOUT => {
            s.warn(
                "hold_max",
                "reaches RabbitMQ's usual consumer timeout of 30m, after which the broker takes them back",
            );
        }
        StoreKind::Disk | StoreKind::Postgres | StoreKind::Memory => {}
    }
    s.end();
    StoreConfig { kind, path, hold_max, database }
}

/// Warns of requests that would be accepted here and then refused by the broker.
fn bodies_fit_the_broker(config: &Config, root: &Section<'_, '_>, findings: &Findings) {
    let largest = config.limits.max_body;
    let all = std::iter::once(&config.defaults).chain(config.applications.values());
    // Base64 turns three bytes into four; with its envelope the item must stay below the broker's limit.
    let embeds = all.clone().any(|app| app.format != Format::Passthrough);
    let fits = if embeds { BROKER_USUAL / 4 * 3 } else { BROKER_USUAL };
    if largest > fits {
        let shown = size(largest);
        let text = if embeds {
            format!(
                "{shown} can become more than 16MiB in a batch (base64), which RabbitMQ 4 refuses unless its \
                 max_message_size is raised: such items end as dead letters (refused). At most 12MiB is safe"
            )
        } else {
            format!("{shown} is above 16MiB, which RabbitMQ 4 refuses unless its max_message_size is raised")
        };
        findings.warn(root.place_of("limits", "max_body"), "limits.max_body", text);
    }
}

/// `[admin]` for a command that queries the daemon: the address, and the token if wanted.
pub(crate) fn admin_of_client(
    tree: &Table<'_>,
    findings: &Findings,
    around: &Surroundings,
    with_token: bool,
) -> Admin {
    let mut s = Section::root(tree, findings).section("admin");
    let listen = listen(&mut s, Config::default().admin.listen);
    let token = if with_token {
        match secret_of(&mut s, "token_file", "admin-token", around) {
            Password::Given(token, ..) => Some(token),
            Password::None | Password::Failed => None,
        }
    } else {
        s.get("token_file", String::new(), Text);
        None
    };
    s.get("read_token_file", String::new(), Text);
    s.get("state_token_file", String::new(), Text);
    s.end();
    Admin { listen, token, read_token: None, state_token: None }
}

fn listen(s: &mut Section<'_, '_>, default: Listen) -> Listen {
    let text = s.get("listen", default.to_string(), Text);
    Listen::parse(&text).unwrap_or_else(|why| {
        s.fault("listen", why);
        default
    })
}

fn admin(mut s: Section<'_, '_>, d: Admin, around: &Surroundings) -> Admin {
    let listen = listen(&mut s, d.listen);
    let token = bearer(&mut s, "token_file", "admin-token", around);
    let read_token = bearer(&mut s, "read_token_file", "admin-read-token", around);
    let state_token = bearer(&mut s, "state_token_file", "admin-state-token", around);
    if token.is_none() && !listen.is_local() && !s.failed(&["listen", "token_file"]) {
        s.fault("listen", "is not a loopback address: token_file is needed");
    }
    // Each token grants less than those before it.
    let all = [("token_file", &token), ("read_token_file", &read_token), ("state_token_file", &state_token)];
    for (n, (key, lesser)) in all.iter().enumerate().skip(1) {
        let Some(lesser) = lesser else { continue };
        if token.is_none() && !s.failed(&["token_file"]) {
            s.fault(
                key,
                "needs token_file, too: without a token for everything, every client that reaches the port \
                 may do everything, and this token would restrict none",
            );
        }
        let same = |(_, other): &&(&str, &Option<SecretString>)| {
            other.as_ref().is_some_and(|other| other.expose_secret() == lesser.expose_secret())
        };
        if let Some((other, _)) = all[..n].iter().find(same) {
            s.fault(key, format!("holds the token of {other}, which grants more: use another one"));
        }
    }
    if listen == Listen::Off && !s.failed(&["listen"]) {
        for (key, there) in all.map(|(key, token)| (key, token.is_some())) {
            if there && s.is_set(key) {
                s.warn(key, "has no effect: admin.listen is off");
            }
        }
    }
    s.end();
    Admin { listen, token, read_token, state_token }
}

/// Reads a bearer token, which must fit into a header.
fn bearer(
    s: &mut Section<'_, '_>,
    key: &'static str,
    credential: &str,
    around: &Surroundings,
) -> Option<SecretString> {
    let Password::Given(token, _) = secret_of(s, key, credential, around) else { return None };
    if !token.expose_secret().bytes().all(|b| b.is_ascii_graphic()) {
        s.fault(key, "holds a token with other characters than visible ASCII: no client could send it");
    } else if token.expose_secret().len() < 16 {
        s.warn(key, "holds a token of less than 16 characters, which may be guessed");
    }
    Some(token)
}

fn timeouts(mut s: Section<'_, '_>, d: Timeouts) -> Timeouts {
    let span = || Span(Duration::from_millis(1)..=HOUR);
    let timeouts = Timeouts {
        connect: s.get("connect", d.connect, span()),
        confirm: s.get("confirm", d.confirm, span()),
        drain: s.get("drain", d.drain, span()),
        stuck_after: s.get("stuck_after", d.stuck_after, Span(Duration::from_secs(3)..=HOUR)),
    };
    if timeouts.drain > USUAL_STOP {
        s.warn(
            "drain",
            "is longer than supervisors wait by default (the unit's TimeoutStopSec is 60s, Kubernetes gives \
             30s): tidegate asks systemd for more time, any other needs a longer limit",
        );
    }
    s.end();
    timeouts
}

/// `[telemetry]`: the destination of spans; empty: none.
fn telemetry(mut s: Section<'_, '_>) -> Option<String> {
    let endpoint = s.get("otlp_endpoint", String::new(), Text);
    let host = endpoint.strip_prefix("http://").map(|rest| rest.trim_end_matches('/'));
    let plain = |host: &str| !host.is_empty() && host.bytes().all(|b| b.is_ascii_graphic() && b != b'@');
    let fault = match host {
        _ if endpoint.is_empty() => None,
        None if endpoint.starts_with("https://") => {
            Some("begins with https://, which is not supported: name a collector on this machine or network")
        }
        Some(host) if plain(host) && !host.contains('?') => None,
        Some(_) | None => Some("is not http://HOST:PORT"),
    };
    fault.into_iter().for_each(|text| s.fault("otlp_endpoint", text));
    s.end();
    Some(endpoint).filter(|endpoint| !endpoint.is_empty())
}

fn applications(
    root: &mut Section<'_, '_>,
    config: &Config,
) -> (AppSettings, BTreeMap<String, AppSettings>, Readings) {
    let hold_max = match config.store.kind {
        StoreKind::Disk | StoreKind::Postgres => None,
        StoreKind::Memory => Some(config.store.hold_max),
    };
    let base = (&config.defaults, &config.readings.defaults);
    let ((defaults, reading), sound) = application(root.section("defaults"), base, None, hold_max);
    let mut all = BTreeMap::new();
    let mut readings = Readings { defaults: reading, applications: BTreeMap::new() };
    for (name, section) in root.section("applications").named() {
        if name.is_empty() || name.len() > MAX_NAME {
            section.fault_here(format!("has a name of {} bytes: 1 to {MAX_NAME}", name.len()));
        }
        let base = (&defaults, &readings.defaults);
        let ((settings, reading), _) = application(section, base, Some(sound), hold_max);
        readings.applications.insert(name.to_owned(), without_waste(&settings, reading));
        all.insert(name.to_owned(), settings);
    }
    readings.defaults = without_waste(&defaults, readings.defaults);
    (defaults, all, readings)
}

/// With passthrough, nothing is selected: each message leaves as it came.
fn without_waste(settings: &AppSettings, reading: Reading) -> Reading {
    match settings.format {
        Format::Json | Format::Ndjson | Format::CloudEvents => reading,
        Format::Passthrough => Reading { copies: Arc::default(), traces: false, ..reading },
    }
}
