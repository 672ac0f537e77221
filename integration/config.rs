//! The configuration as an operator uses it: files, environment, faults with their lines, and the shipped example.
#![expect(clippy::unwrap_used, reason = "a test that fails is to stop")]

mod copies;
mod tls;

use secrecy::ExposeSecret;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;
use tidegate_config::{keys, Config, Faults, LoadedConfig, Location, StoreKind, Topology};
use tidegate_types::{AppSettings, Budget, Format, OnFull, Retry};

/// A directory with a `config.toml` that only its owner may read.
struct Dir(TempDir);

impl Dir {
    fn new(config: &str) -> Dir {
        let dir = Dir(tempfile::tempdir().unwrap());
        dir.file("config.toml", config, 0o600);
        dir
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn file(&self, name: &str, content: &str, mode: u32) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    fn load(&self, env: &[(&str, &str)]) -> Result<LoadedConfig, Faults> {
        Config::load(Some(&self.path("config.toml")), pairs(env).into_iter())
    }

    /// Faults or warnings, one per line, without the directory in their paths.
    fn clean(&self, text: impl ToString) -> String {
        text.to_string().replace(&format!("{}/", self.0.path().display()), "")
    }
}

fn pairs(env: &[(&str, &str)]) -> Vec<(String, String)> {
    env.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect()
}

fn load(config: &str) -> Result<LoadedConfig, Faults> {
    Dir::new(config).load(&[])
}

#[track_caller]
fn good(config: &str) -> Config {
    let loaded = load(config).unwrap_or_else(|f| panic!("{config}: {f}"));
    assert_eq!(loaded.warnings, [], "{config}");
    loaded.config
}

/// The faults of a file, one per line, as an operator reads them.
#[track_caller]
fn faults(config: &str) -> String {
    let dir = Dir::new(config);
    match dir.load(&[]) {
        Err(f) => dir.clean(f),
        Ok(_) => panic!("taken: {config}"),
    }
}

#[track_caller]
fn warnings(dir: &Dir, env: &[(&str, &str)]) -> String {
    let loaded = dir.load(env).unwrap_or_else(|f| panic!("{f}"));
    dir.clean(loaded.warnings.iter().map(|w| format!("{w}\n")).collect::<String>())
}

/// The whole configuration as text, secrets included.
fn whole(c: &Config) -> String {
    let ends = c.amqp.endpoints.iter().chain(&c.egress.endpoints);
    let secrets: Vec<&str> = ends.map(|e| e.password.expose_secret()).collect();
    let tokens = [&c.admin.token, &c.admin.read_token, &c.admin.state_token]
        .map(|t| t.as_ref().map(|t| t.expose_secret()));
    format!("{c:?} {secrets:?} {tokens:?}")
}

fn example() -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("config.example.toml")).unwrap()
}

#[test]
fn nothing_at_all_is_the_defaults() {
    let none = Config::load(None, std::iter::empty()).unwrap();
    assert_eq!(none.warnings, []);
    assert_eq!(whole(&none.config), whole(&Config::default()));
    let empty =
        "[amqp]\n[ingest]\n[egress]\n[dead]\n[store]\n[shards]\n[limits]\n[admin]\n[timeouts]\n[defaults]\n\
                 retry = {}\nredeliver = {}\n[applications]\n";
    assert_eq!(whole(&good(empty)), whole(&Config::default()));
    let c = none.config;
    assert_eq!((c.ingest.prefetch, c.egress.max_in_flight, c.limits.customers), (10_000, 1_000, 100_000));
    assert_eq!((c.limits.memory, c.limits.disk, c.limits.max_body), (256 << 20, 0, 8 << 20));
    assert_eq!(c.limits.max_delay, Duration::from_secs(3_650 * 86_400));
    assert_eq!(c.amqp.endpoints.len(), 1);
    let e = &c.amqp.endpoints[0];
    assert_eq!(
        (e.host.as_str(), e.port, e.vhost.as_str(), e.user.as_str()),
        ("127.0.0.1", 5672, "/", "guest")
    );
}

#[test]
fn the_example_is_the_defaults_and_names_every_key() {
    let example = example();
    assert_eq!(whole(&good(&example)), whole(&Config::default()));
    let mut section = String::new();
    let mut found = BTreeSet::new();
    for line in example.lines() {
        let line = line.strip_prefix('#').filter(|l| !l.starts_with(' ')).unwrap_or(line);
        if let Some(name) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            section = name.to_owned();
        } else if let Some((key, value)) = line.split_once(" = ").filter(|(k, _)| !k.contains(' ')) {
            match value.strip_prefix('{') {
                None => {
                    found.insert(format!("{section}.{key}"));
                }
                Some(inner) => {
                    let inner = inner.split(" = ").filter_map(|part| part.split_whitespace().next_back());
                    let names = inner.filter(|name| name.chars().all(|c| c.is_ascii_lowercase()));
                    found.extend(names.map(|name| format!("{section}.{key}.{name}")));
                }
            }
        }
    }
    let found: Vec<String> = found.into_iter().filter(|k| !k.starts_with("applications.")).collect();
    assert_eq!(found, keys());
    assert!(keys().len() >= 40, "{:?}", keys());
}

#[test]
fn the_examples_in_the_example_work() {
    let example = example();
    let uncommented: Vec<String> = example
        .lines()
        .filter(|l| !l.starts_with("uri = \"amqp"))
        .map(|l| match l.strip_prefix('#') {
            Some(code) if code.starts_with(|c: char| c.is_ascii_lowercase() || c == '[') => code.to_owned(),
            _ => l.to_owned(),
        })
        .collect();
    let dir = Dir::new(&uncommented.join("\n"));
    let secret = dir.file("secret", "hush", 0o600);
    let secret = secret.to_str().unwrap();
    let files =
        ["TIDEGATE__AMQP__PASSWORD_FILE", "TIDEGATE__EGRESS__PASSWORD_FILE"].map(|name| (name, secret));
    let loaded = dir.load(&files).unwrap();
    assert_eq!(loaded.warnings, []);
    assert_eq!(loaded.config.amqp.endpoints.len(), 2);
    assert_eq!(loaded.config.applications["shop"].window, 10_000);
}

#[test]
fn every_key_is_read() {
    let c = good(
        r#"
        amqp = { uri = "amqps://u:p@h:1/v", topology = "passive" }
        dead.exchange = "d"
        [ingest]
        queue = "q"
        exchange = "i"
        prefetch = 1
        [egress]
        exchange = "e"
        uri = "amqp://w:x@localhost"
        max_in_flight = 65535
        [store]
        kind = "memory"
        path = "relative, and ignored"
        hold_max = "1h30m"
        "#
        .replace("1h30m", "29m")
        .as_str(),
    );
    assert_eq!((c.amqp.topology, c.store.kind), (Topology::Passive, StoreKind::Memory));
    assert_eq!((c.ingest.queue.as_str(), c.ingest.exchange.as_str(), c.ingest.prefetch), ("q", "i", 1));
    assert_eq!((c.egress.exchange.as_str(), c.egress.max_in_flight), ("e", 65_535));
    assert_eq!((c.egress.endpoints[0].user.as_str(), c.amqp.endpoints[0].user.as_str()), ("w", "u"));
    assert_eq!((c.dead.exchange.as_str(), c.store.hold_max), ("d", Duration::from_secs(29 * 60)));
    let c = good(
        r#"
        [shards]
        count = 1
        [limits]
        memory = "16MiB"
        disk = "800MB"
        applications = 5
        customers = 7
        max_body = "1B"
        max_envelope_items = 1
        max_delay = "36500d"
        [admin]
        listen = "[::1]:0"
        [timeouts]
        connect = "1ms"
        confirm = "1h"
        drain = "2s"
        [defaults]
        window = "1ms"
        align = true
        coalesce = "1s"
        max_items = 1
        max_bytes = "1B"
        format = "ndjson"
        dedupe_tail = "0s"
        retry = { min = "1ms", max = "1ms", attempts = 3 }
        on_full = "drop-oldest"
        max_waiting = 9
        rate = "90/min"
        burst = 7
        customer_rate = "5/s"
        customer_burst = 2
        [applications.shop]
        window = "1m"
        quiet = "59s"
        retry.attempts = 8
        rate = "off"
        customer_rate = "off"
        customer_burst = 0
        [applications."a b"]
        format = "passthrough"
        on_full = "flush-early"
        "#,
    );
    let l = &c.limits;
    assert_eq!(
        (l.memory, l.disk, l.customers, l.applications, l.max_body, l.max_envelope_items),
        (16 << 20, 800_000_000, 7, 5, 1, 1)
    );
    assert_eq!(
        (c.timeouts.connect, c.timeouts.confirm),
        (Duration::from_millis(1), Duration::from_secs(3_600))
    );
    assert_eq!((c.timeouts.drain, c.admin.listen.to_string().as_str()), (Duration::from_secs(2), "[::1]:0"));
    let defaults = AppSettings {
        window: 1,
        quiet: 0,
        align: true,
        coalesce: 1_000,
        max_items: 1,
        max_bytes: 1,
        format: Format::Ndjson,
        dedupe_tail: 0,
        retry: Retry { min: 1, max: 1, attempts: 3 },
        on_full: OnFull::DropOldest,
        max_waiting: 9,
        rate: "90/min".parse().ok(),
        burst: 7,
        customer_rate: "5/s".parse().ok(),
        customer_burst: 2,
    };
    assert_eq!(c.defaults, defaults);
    let shop = AppSettings {
        window: 60_000,
        quiet: 59_000,
        retry: Retry { attempts: 8, ..defaults.retry },
        rate: None,
        customer_rate: None,
        customer_burst: 0,
        ..defaults.clone()
    };
    assert_eq!(c.applications["shop"], shop);
    let other = AppSettings { format: Format::Passthrough, on_full: OnFull::FlushEarly, ..defaults };
    assert_eq!(c.applications["a b"], other);
}

#[test]
fn a_database_is_named_whole_or_not_at_all() {
    let with = |rest: &str| format!("[store]\nkind = \"postgres\"\n{rest}");
    let loaded = load(&with("uri = \"postgres://u@db-1,db-2:6432/t?sslmode=require\"\nlease = \"30s\"\n"));
    let db = loaded.expect("a configuration").config.store.database.expect("a database");
    let hosts = [("db-1".to_owned(), 5432), ("db-2".to_owned(), 6432)];
    assert_eq!((&*db.hosts, &*db.user, &*db.database, &*db.schema), (&hosts[..], "u", "t", "tidegate"));
    assert_eq!((db.tls, db.lease, db.allow_async), (true, Duration::from_secs(30), false));
    for (rest, fault) in [
        ("", "store.uri: is empty: write postgres://user@host/database?sslmode=require"),
        ("uri = \"postgres://u@db/t\"\n", "store.uri: does not say whether the connection is encrypted"),
        ("uri = \"postgres://u@localhost/t\"\nschema = \"My\"\n", "store.schema: is not a plain name"),
        ("uri = \"postgres://u@localhost/t\"\nlease = \"1s\"\n", "store.lease: "),
        ("uri = \"postgres://u@localhost/t\"\npath = \"var\"\n", "store.path: is not absolute"),
    ] {
        let told = faults(&with(rest));
        assert!(told.contains(fault) && told.lines().count() == 1, "{rest}: {told}");
    }
    let elsewhere = load("[store]\nuri = \"postgres://u@localhost/t\"\n").expect("a configuration");
    assert!(elsewhere.config.store.database.is_none());
    let told: Vec<String> = elsewhere.warnings.iter().map(ToString::to_string).collect();
    assert!(told.len() == 1 && told[0].ends_with("store.kind is not \"postgres\""), "{told:?}");
}

#[test]
fn all_faults_at_once_by_line_and_key() {
    let text = r#"
[ingest]
prefech = 5
queue = ""
prefetch = 65536
[store]
kind = "dsik"
path = "var"
[limits]
memory = 1024
max_delay = 30
[admin]
listen = "localhost:9380"
[defaults]
quiet = "1m"
align = "yes"
retry = { min = "1h", mx = "5m" }
[applications.shop]
windwo = "3s"
format = ["json"]
[egres]
[colour]
red = 1
"#;
    assert_eq!(
        faults(text),
        r#"config.toml:3: ingest.prefech: unknown key, did you mean `prefetch`?
config.toml:4: ingest.queue: is empty
config.toml:5: ingest.prefetch: 65536 is not a whole number from 1 to 65535
config.toml:7: store.kind: "dsik" is not one of "disk", "memory", "postgres"; did you mean `disk`?
config.toml:8: store.path: is not absolute: it must begin with /
config.toml:10: limits.memory: 1024 has no unit: write "1024B" or "1024MiB", in quotes
config.toml:11: limits.max_delay: 30 has no unit: write "30s" or "30ms", in quotes
config.toml:13: admin.listen: is not an address and port, such as 127.0.0.1:9380 or [::1]:9380, nor a socket, such as unix:/run/tidegate/admin.sock, nor off
config.toml:15: defaults.quiet: quiet (1m) must be shorter than window (3s), or "0s" for off
config.toml:16: defaults.align: invalid type: string "yes", expected true or false, without quotes
config.toml:17: defaults.retry.min: retry.min (1h) must not be longer than retry.max (5m)
config.toml:17: defaults.retry.mx: unknown key, did you mean `max`?
config.toml:19: applications.shop.windwo: unknown key, did you mean `window`?
config.toml:20: applications.shop.format: is a list; expected a single value
config.toml:21: egres: unknown section, did you mean `egress`?
config.toml:22: colour: unknown section, known here: amqp, ingest, egress, dead, store, shards, limits, admin, timeouts, telemetry, defaults, applications"#
    );
}

#[test]
fn each_bound_is_kept() {
    for (config, fault) in [
        ("ingest.prefetch = 0", "0 is not a whole number from 1 to 65535"),
        ("ingest.prefetch = -1", "-1 is not a whole number from 1 to 65535"),
        ("ingest.prefetch = 99999999999999999999999999999999999999999", "overflow"),
        ("ingest.prefetch = 1.5", "expected a whole number from 1 to 65535"),
        ("ingest.exchange = \"a\\nb\"", "holds a control character"),
        ("ingest = 3", "is a section: write [ingest]"),
        ("prefetch = 3", "prefetch: unknown key"),
        ("[[applications]]", "applications: is a section"),
        ("applications.x = 3", "applications.x: is a section"),
        ("egress.max_in_flight = 65536", "from 1 to 65535"),
        ("egress.exchange = \"\"", "is empty"),
        ("egress.exchange = \"tidegate.in\"", "egress.exchange: is both ingest.exchange and egress.exchange"),
        (
            "ingest.exchange = \"tidegate.out\"",
            "ingest.exchange: is both ingest.exchange and egress.exchange",
        ),
        ("dead.exchange = \"tidegate.out\"", "dead.exchange: is both egress.exchange and dead.exchange"),
        ("dead.exchange = \"tidegate.in\"", "dead.exchange: is both ingest.exchange and dead.exchange"),
        ("dead.queue.name = \"tidegate.ingest\"", "dead.queue.name: is ingest.queue"),
        ("dead.queue.type = \"lazy\"", "dead.queue.type: \"lazy\" is not one of"),
        ("dead.queue = \"none\"", "dead.queue: is a section"),
        ("dead.exchange = \"tidegate.ingest\"", "dead.exchange: is both ingest.queue and dead.exchange"),
        ("ingest.queue = \"tidegate.dead\"", "ingest.queue: is both ingest.queue and dead.exchange"),
        ("store.hold_max = \"0s\"", "0s is too short: at least 1ms"),
        ("shards.count = 0", "0 is not a whole number from 1 to 256"),
        ("shards.count = 257", "257 is not a whole number from 1 to 256"),
        ("limits.memory = \"15MiB\"", "15MiB is too small: at least 16MiB"),
        (
            "limits.memory = \"16MiB\"\nlimits.max_body = \"17MiB\"",
            "would not fit into limits.memory (16MiB)",
        ),
        ("limits.max_body = \"0B\"", "at least 1B"),
        ("limits.disk = \"1MiB\"", "limits.disk: 1MiB is too small: 0B for none, or at least 256MiB"),
        ("limits.customers = 0", "from 1 to"),
        ("limits.max_envelope_items = 0", "from 1 to"),
        ("limits.max_delay = \"36501d\"", "36501d is too long: at most 36500d"),
        ("limits.max_delay = \"200years\"", "at most 36500d"),
        ("admin.listen = \"0.0.0.0:9380\"", "is not a loopback address: token_file is needed"),
        ("admin.token_file = \"/nonexistent\"", "/nonexistent cannot be read: No such file"),
        ("admin.read_token_file = \"/nonexistent\"", "/nonexistent cannot be read: No such file"),
        ("admin.listen = \"unix:admin.sock\"", "admin.listen: names no socket by an absolute path"),
        ("timeouts.confirm = \"0s\"", "at least 1ms"),
        ("timeouts.drain = \"2h\"", "at most 1h"),
        ("defaults.window = \"0s\"", "0s is too short: at least 1ms"),
        ("defaults.window = \"3 bananas\"", "is not a duration in quotes"),
        ("defaults.quiet = \"3s\"", "quiet (3s) must be shorter than window (3s)"),
        ("defaults.max_items = 0", "from 1 to 4294967295"),
        ("defaults.max_bytes = \"0B\"", "at least 1B"),
        ("defaults.retry.min = \"0s\"", "0s is too short: at least 1ms"),
        ("defaults.retry = \"1s\"", "defaults.retry: is a section"),
        (
            "applications.x.retry.max = \"500ms\"",
            "applications.x.retry.max: retry.min (1s) must not be longer",
        ),
        (
            "applications.x.window = \"1s\"\ndefaults.quiet = \"2s\"",
            "applications.x.window: quiet (2s) must be",
        ),
        ("applications.\"\".align = true", "applications.\"\": has a name of 0 bytes"),
        ("amqp.uris = []", "is empty: give at least one address"),
        ("amqp.uris = \"amqp://h\"", "is not a list"),
        (
            "amqp.uri = \"amqp://h\"\namqp.uris = [\"amqp://h\"]",
            "amqp.uris: give either `uri` or `uris`, not both",
        ),
        ("amqp.uri = \"\"", "amqp.uri: is empty"),
        ("amqp.uri = \"amqp://u@h\"", "names a user and no password"),
        ("amqp.uri = \"amqp://h?heartbeat=5\"", "has query parameters (heartbeat)"),
        ("amqp.ca_file = \"/nonexistent\"", "/nonexistent cannot be read"),
        ("amqp.topology = \"none\"", "is not one of \"declare\", \"passive\", \"off\""),
        ("egress.password_file = \"/x\"", "belongs to egress.uri"),
    ] {
        let found = faults(config);
        assert!(found.contains(fault), "{config}:\n{found}");
        assert_eq!(found.lines().count(), 1, "one fault, one line: {config}:\n{found}");
    }
    let long = "x".repeat(256);
    assert!(faults(&format!("ingest.queue = \"{long}\"")).contains("is 256 bytes long: at most 255"));
    assert!(
        faults(&format!("applications.{}.align = true", &long[..201])).contains("has a name of 201 bytes")
    );
    assert!(good(&format!("applications.{}.align = true", &long[..200])).applications.len() == 1);
}

#[test]
fn a_number_of_shards_that_cannot_work_is_refused_with_what_it_needs() {
    let with = |count: u16, rest: &str| format!("shards.count = {count}\n{rest}\n");
    for (count, rest, fault) in [
        (2, "store.kind = \"memory\"", "2 shards need store.kind = \"disk\" or \"postgres\": with \"memory\", set count to 1"),
        (
            17,
            "",
            "17 shards need limits.memory of at least 272MiB (16MiB each): raise it, or set count to at most 16",
        ),
        (
            4,
            "limits.disk = \"800MiB\"",
            "4 shards need limits.disk of at least 1GiB (256MiB each): raise it, or set count to at most 3",
        ),
        (4, "egress.max_in_flight = 3", "4 shards need egress.max_in_flight of at least 4 (1 each): raise it, or"),
        (4, "limits.customers = 3", "need limits.customers of at least 4 (1 each): raise it, or set count to at most 3"),
        (4, "limits.applications = 2", "need limits.applications of at least 4 (1 each): raise it, or set count to"),
        (2, "dead.exchange = \"tidegate.ingest.1\"", "the name 'tidegate.ingest.1', which is dead.exchange"),
        (2, "dead.queue.name = \"tidegate.ingest.0\"", "the name 'tidegate.ingest.0', which is dead.queue.name"),
    ] {
        let found = faults(&with(count, rest));
        assert!(found.starts_with("config.toml:1: shards.count: ") && found.contains(fault), "{rest}: {found}");
        assert_eq!(found.lines().count(), 1, "{rest}: {found}");
    }
    let queue = |bytes: usize| format!("ingest.queue = \"{}\"\nlimits.memory = \"1GiB\"", "q".repeat(bytes));
    let found = faults(&with(11, &queue(253)));
    assert!(
        found.contains("has a name of 256 bytes, and 255 are possible: shorten ingest.queue to 250 bytes"),
        "{found}"
    );
    let found = faults(&with(11, &queue(251)));
    assert!(
        found.contains(
            ".apps' of several shards has a name of 256 bytes, and 255 are possible: shorten ingest.queue"
        ),
        "{found}"
    );
    assert_eq!(good(&with(11, &queue(250))).map_exchange().len(), 255);
    for key in ["ingest", "egress", "dead"] {
        let found = faults(&with(2, &format!("{key}.exchange = \"tidegate.new\"")));
        let wanted = format!("an exchange 'tidegate.new' of their own, and {key}.exchange has this name");
        assert!(found.contains(&wanted), "{found}");
    }
    // Nodes have an exchange of their own.
    let uri = "postgres://u@localhost/t?sslmode=disable";
    let shared = |rest: &str| with(2, &format!("{rest}\nstore = {{ kind = \"postgres\", uri = \"{uri}\" }}"));
    for key in ["ingest", "egress", "dead"] {
        let named = format!("{key}.exchange = \"tidegate.control\"");
        let found = faults(&shared(&named));
        let wanted = format!("an exchange 'tidegate.control' of their own, and {key}.exchange has this name");
        assert!(found.contains(&wanted) && found.lines().count() == 1, "{found}");
        good(&with(2, &named));
    }
    let found = faults(&shared(&queue(248)));
    assert!(
        found.contains(
            ".control' of several shards has a name of 256 bytes, and 255 are possible: shorten \
                        ingest.queue to 247 bytes"
        ),
        "{found}"
    );
    assert_eq!(load(&shared(&queue(247))).expect("a good one").config.control_exchange().len(), 255);
    // A body has to fit into the memory of one shard.
    let found = faults(&with(4, "limits.memory = \"64MiB\"\nlimits.max_body = \"17MiB\""));
    assert!(found.ends_with("would not fit into a shard's part of limits.memory (16MiB)"), "{found}");
    // The default of another key proves nothing.
    assert_eq!(faults(&with(17, "limits.memory = 3")).lines().count(), 1);
    let most = good(&with(256, "limits = { memory = \"8GiB\", disk = \"64GiB\" }"));
    assert_eq!((most.shards.count, most.limits.memory), (256, 8 << 30));
    // What a database contains is not limited.
    let in_database = format!("limits.disk = \"800MiB\"\nstore = {{ kind = \"postgres\", uri = \"{uri}\" }}");
    assert_eq!(load(&with(4, &in_database)).expect("a good one").config.shards.count, 4);
    let shard = most.of_shard(255);
    assert_eq!(
        (shard.limits.memory, shard.limits.disk, shard.egress.max_in_flight),
        (32 << 20, 256 << 20, 3)
    );
}

#[test]
fn a_fault_is_not_followed_by_false_ones() {
    // With the default in place of the faulty value, each of these would contradict another key.
    for config in [
        "[defaults]\nwindow = 60\nquiet = \"10s\"",
        "[defaults]\nwindow = 60\n[applications.x]\nquiet = \"10s\"",
        "[defaults.retry]\nmax = 60\nmin = \"10m\"",
        "[admin]\nlisten = \"0.0.0.0:1\"\ntoken_file = \"/nonexistent\"",
        "[limits]\nmemory = 1\nmax_body = \"500MiB\"",
        "[amqp]\nuri = \"amqp://u@localhost\"\npassword_file = \"/nonexistent\"",
        "ingest.exchange = \"\"\ndead.exchange = \"tidegate.in\"",
        "[defaults]\nquiet = \"1h\"\n[applications.x]\nalign = true",
    ] {
        let found = faults(config);
        assert_eq!(found.lines().count(), 1, "{config}:\n{found}");
    }
}

#[test]
fn syntax_faults_have_lines_and_no_text_of_the_file() {
    let found = faults("[amqp]\nuri = \"amqp://u:canary@h\n[ingest]\nqueue = canary\nqueue = 3\n");
    assert!(found.starts_with("config.toml:2: not valid TOML: "), "{found}");
    assert!(found.lines().any(|l| l.starts_with("config.toml:4: not valid TOML: ")), "{found}");
    assert!(!found.contains("canary"), "{found}");
    assert!(faults("[a]\nx = 1\nx = 2").starts_with("config.toml:3: not valid TOML: duplicate key"));
    let deep = format!("a = {}", "[".repeat(100_000));
    assert!(faults(&deep).contains("not valid TOML"));
}

#[test]
fn files_that_cannot_be_read() {
    let dir = Dir::new("");
    let missing = Config::load(Some(&dir.path("none.toml")), std::iter::empty()).unwrap_err();
    assert_eq!(dir.clean(missing), "none.toml: cannot be read: No such file or directory (os error 2)");
    fs::write(dir.path("config.toml"), b"[amqp]\n\xff").unwrap();
    assert_eq!(dir.clean(dir.load(&[]).unwrap_err()), "config.toml:2: is not UTF-8");
    fs::write(dir.path("config.toml"), vec![b'#'; (4 << 20) + 1]).unwrap();
    assert_eq!(dir.clean(dir.load(&[]).unwrap_err()), "config.toml: holds more than 4MiB");
    assert!(Config::load(Some(dir.0.path()), std::iter::empty()).is_err());
}

#[test]
fn variables_go_before_the_file() {
    let dir = Dir::new("[ingest]\nqueue = \"file\"\nprefetch = 5\n[applications.Shop]\nquiet = \"1s\"\n");
    let c = dir
        .load(&[
            ("TIDEGATE__INGEST__QUEUE", "variable"),
            ("TIDEGATE__LIMITS__MEMORY", "64MiB"),
            ("TIDEGATE__DEFAULTS__ALIGN", "true"),
            ("TIDEGATE__DEFAULTS__RETRY__MIN", "2s"),
            ("TIDEGATE__DEFAULTS__RETRY", "{ max = '9s', attempts = 4 }"),
            ("TIDEGATE__APPLICATIONS__Shop__WINDOW", "10s"),
            ("TIDEGATE__APPLICATIONS__two__words__MAX_ITEMS", "3"),
            ("TIDEGATE__AMQP__URIS", "['amqp://a:b@localhost', \"amqp://c:d@[::1]/v\"]"),
            ("TIDEGATE__EGRESS__URI", ""),
            ("TIDEGATE_LOG", "debug"),
            ("tidegate__ingest__nothing", "x"),
            ("PATH", "/bin"),
        ])
        .unwrap()
        .config;
    assert_eq!((c.ingest.queue.as_str(), c.ingest.prefetch, c.limits.memory), ("variable", 5, 64 << 20));
    assert_eq!(c.defaults.retry, Retry { min: 2_000, max: 9_000, attempts: 4 });
    let shop = &c.applications["Shop"];
    assert_eq!((shop.window, shop.quiet, shop.align), (10_000, 1_000, true));
    assert_eq!(c.applications["two__words"].max_items, 3);
    assert_eq!(c.amqp.endpoints.len(), 2);
    assert_eq!((c.amqp.endpoints[1].host.as_str(), c.amqp.endpoints[1].vhost.as_str()), ("::1", "v"));

    // A variable overrides the file, so it also replaces the other key of an exclusive pair.
    let dir = Dir::new("[amqp]\nuris = [\"amqp://file-1.example\", \"amqp://file-2.example\"]\n");
    let c = dir.load(&[("TIDEGATE__AMQP__URI", "amqp://u:p@localhost")]).unwrap().config;
    assert_eq!((c.amqp.endpoints.len(), c.amqp.endpoints[0].host.as_str()), (1, "localhost"));
}

#[test]
fn a_variable_is_text_where_text_is_wanted() {
    let dir = Dir::new("");
    let text = |value: &str| dir.load(&[("TIDEGATE__INGEST__QUEUE", value)]).unwrap().config.ingest.queue;
    for name in ["123", "1.5", "true", "2026-01-01", "-7", "[a", "plain"] {
        assert_eq!(text(name), name);
    }
    assert_eq!(text("\"in quotes\""), "in quotes");
    // In the file, text still needs quotes.
    assert!(load("[ingest]\nqueue = 123\n").is_err());
}

#[test]
fn what_asks_the_daemon_reads_its_section_alone() {
    let config = "[amqp]\nuri = \"amqp://tidegate@rabbit.example\"\n[limits]\nmemory = \"1B\"\n\
                  [admin]\nlisten = \"0.0.0.0:1\"\ntoken_file = \"/none\"\nread_token_file = \"/none\"\n";
    let dir = Dir::new(config);
    let path = dir.path("config.toml");
    let load = |env: &[(&str, &str)], token| Config::load_admin(Some(&path), pairs(env).into_iter(), token);
    assert_eq!(load(&[], false).unwrap().listen.to_string(), "0.0.0.0:1");
    assert!(load(&[], true).unwrap_err().to_string().contains("/none cannot be read"));
    let token = dir.file("token", "canary\n", 0o600);
    let env = [("TIDEGATE__ADMIN__TOKEN_FILE", token.to_str().unwrap()), ("TIDEGATE__NOTHING", "1")];
    assert_eq!(load(&env, true).unwrap().token.unwrap().expose_secret(), "canary");
    assert!(load(&[("TIDEGATE__ADMIN__LISTEM", "x")], false)
        .unwrap_err()
        .to_string()
        .contains("did you mean"));
}

#[test]
fn loopback_has_one_meaning() {
    // Bind these addresses too: the server must classify them as the configuration does.
    for listen in ["127.0.0.1:0", "[::1]:0", "[::ffff:127.0.0.1]:0"] {
        let config = good(&format!("admin.listen = {listen:?}")).admin;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let served = runtime.block_on(tidegate::admin::serve(
            (&config).into(),
            std::sync::Arc::new(tidegate::admin::NodeHealth::of(Vec::new())),
            std::sync::Arc::new(drop),
        ));
        assert!(!matches!(served, Err(tidegate::admin::ServeError::TokenNeeded(_))), "{listen}");
    }
    assert!(faults("admin.listen = \"[::ffff:10.0.0.1]:1\"").contains("token_file is needed"));
}

#[test]
fn a_token_for_reading_stands_beside_one_for_everything() {
    let dir = Dir::new("");
    let full = dir.file("full", "a-token-for-everything\n", 0o600);
    let read = dir.file("read", "a-token-for-reading\n", 0o600);
    let [full, read] = [&full, &read].map(|path| path.to_str().unwrap());
    let keys = |listen: &str, full: &str, read: &str| {
        format!("[admin]\nlisten = {listen:?}\ntoken_file = {full:?}\nread_token_file = {read:?}\n")
    };
    let admin = good(&keys("127.0.0.1:1", full, read)).admin;
    assert_eq!(admin.read_token.unwrap().expose_secret(), "a-token-for-reading");
    // A read token alone would protect nothing, on any address.
    for listen in ["127.0.0.1:1", "unix:/run/admin.sock"] {
        let found = faults(&keys(listen, "", read));
        assert!(found.contains("admin.read_token_file: needs token_file, too"), "{found}");
        assert_eq!(found.lines().count(), 1, "{found}");
    }
    let found = faults(&keys("127.0.0.1:1", full, full));
    assert!(found.contains("admin.read_token_file: holds the token of token_file"), "{found}");
    let third = |state: &str| format!("{}state_token_file = {state:?}\n", keys("127.0.0.1:1", full, read));
    let state = dir.file("state", "a-token-for-the-state\n", 0o600);
    let admin = good(&third(state.to_str().unwrap())).admin;
    assert_eq!(admin.state_token.unwrap().expose_secret(), "a-token-for-the-state");
    let found = faults(&third(read));
    assert!(found.contains("admin.state_token_file: holds the token of read_token_file"), "{found}");
    let found = faults(&keys("127.0.0.1:1", "/nonexistent", read));
    assert_eq!(found.lines().count(), 1, "{found}");
    let dir = Dir::new(&keys("off", full, read));
    let found = warnings(&dir, &[]);
    assert_eq!(found.matches("has no effect: admin.listen is off").count(), 2, "{found}");
    assert_eq!(warnings(&Dir::new("admin.listen = \"off\""), &[]), "");
}

#[test]
fn faults_of_variables_name_them() {
    let dir = Dir::new("[ingest]\nprefetch = 0\n");
    let found = dir
        .load(&[
            ("TIDEGATE__INGEST__PREFECH", "5"),
            ("TIDEGATE__INGRESS__QUEUE", "x"),
            ("TIDEGATE__DEFAULTS", "x"),
            ("TIDEGATE__DEFAULTS__window", "1s"),
            ("TIDEGATE__APPLICATIONS__shop", "1s"),
            ("TIDEGATE__STORE__PATH", "\u{fffd}"),
            ("TIDEGATE__LIMITS__CUSTOMERS", "many"),
        ])
        .unwrap_err();
    assert!(matches!(found.iter().next().unwrap().place, Location::File { line: 2, .. }), "{found}");
    assert_eq!(
        dir.clean(&found),
        "config.toml:2: ingest.prefetch: 0 is not a whole number from 1 to 65535
TIDEGATE__APPLICATIONS__shop: names no key: write TIDEGATE__APPLICATIONS__NAME__KEY
TIDEGATE__DEFAULTS: names no key: write TIDEGATE__SECTION__KEY
TIDEGATE__DEFAULTS__window: unknown variable: sections and keys are written in upper case, with two underscores between
TIDEGATE__INGEST__PREFECH: ingest.prefech: unknown key, did you mean `prefetch`?
TIDEGATE__INGRESS__QUEUE: ingress: unknown section, did you mean `ingest`?
TIDEGATE__LIMITS__CUSTOMERS: limits.customers: invalid type: string \"many\", expected a whole number from 1 to 1000000000
TIDEGATE__STORE__PATH: its value is not UTF-8"
    );
}

#[test]
fn passwords_come_from_files_and_credentials() {
    let dir = Dir::new("[amqp]\nuri = \"amqp://u@localhost\"\n[egress]\nuri = \"amqp://w@localhost\"\n");
    let [a, b] = ["one", "two"].map(|s| dir.file(s, &format!("{s} \n"), 0o600));
    let c = dir
        .load(&[
            ("TIDEGATE__AMQP__PASSWORD_FILE", a.to_str().unwrap()),
            ("TIDEGATE__EGRESS__PASSWORD_FILE", b.to_str().unwrap()),
        ])
        .unwrap()
        .config;
    assert_eq!(c.amqp.endpoints[0].password.expose_secret(), "one ");
    assert_eq!(c.egress.endpoints[0].password.expose_secret(), "two ");

    for name in ["amqp-password", "egress-password", "admin-token", "admin-read-token", "admin-state-token"] {
        dir.file(name, &format!("{name}-credential\n"), 0o400);
    }
    let credentials = ("CREDENTIALS_DIRECTORY", dir.0.path().to_str().unwrap());
    let c = dir.load(&[credentials]).unwrap().config;
    assert_eq!(c.amqp.endpoints[0].password.expose_secret(), "amqp-password-credential");
    assert_eq!(c.egress.endpoints[0].password.expose_secret(), "egress-password-credential");
    assert_eq!(c.admin.token.unwrap().expose_secret(), "admin-token-credential");
    assert_eq!(c.admin.read_token.unwrap().expose_secret(), "admin-read-token-credential");
    assert_eq!(c.admin.state_token.unwrap().expose_secret(), "admin-state-token-credential");

    let loaded = dir.load(&[credentials, ("TIDEGATE__AMQP__PASSWORD_FILE", a.to_str().unwrap())]).unwrap();
    assert_eq!(loaded.config.amqp.endpoints[0].password.expose_secret(), "one ");
    assert_eq!(loaded.warnings.len(), 1, "{:?}", loaded.warnings);

    let listening = dir.load(&[credentials, ("TIDEGATE__ADMIN__LISTEN", "0.0.0.0:80")]).unwrap();
    assert_eq!(listening.config.admin.listen.to_string(), "0.0.0.0:80");
}

#[test]
fn warnings_say_what_is_doubtful() {
    let dir = Dir::new("[amqp]\nuri = \"amqp://rabbit.example/\"\n[egress]\nuri = \"amqps://u:secret@h\"\n");
    assert_eq!(
        warnings(&dir, &[]),
        "config.toml:2: amqp.uri: ends in a bare /, which is taken as the vhost /: write /%2f, or leave the slash out
config.toml:2: amqp.uri: names no user for rabbit.example: tidegate uses guest, which RabbitMQ accepts only from its own machine
config.toml:2: amqp.uri: sends password and payloads to rabbit.example unencrypted: use amqps:// unless the network is trusted
"
    );
    for mode in [0o640, 0o604] {
        dir.file("config.toml", "[amqp]\nuri = \"amqps://u:secret@h\"", mode);
        let found = warnings(&dir, &[]);
        assert!(
            found.starts_with("config.toml:2: amqp.uri: holds a password in a file that others may read"),
            "{found}"
        );
    }
    // The well-known password is no secret, and a variable is not part of the file.
    dir.file("config.toml", "[amqp]\nuri = \"amqp://guest:guest@localhost\"", 0o644);
    assert_eq!(warnings(&dir, &[]), "");
    assert_eq!(warnings(&dir, &[("TIDEGATE__AMQP__URI", "amqps://u:secret@h")]), "");

    let secret = dir.file("secret", "s", 0o644);
    let env = [("TIDEGATE__AMQP__PASSWORD_FILE", secret.to_str().unwrap())];
    assert!(warnings(&dir, &env).contains("secret may be read by every user"));
    for (config, part) in [
        ("limits.memory = \"16MiB\"", "limits.memory: limits.max_body is more than a quarter"),
        ("defaults.max_bytes = \"17MiB\"", "defaults.max_bytes: is above 16MiB"),
        (
            "defaults = { format = \"passthrough\", copy_headers = [\"a\"] }",
            "defaults.copy_headers: has no effect with format = \"passthrough\", which carries everything",
        ),
        (
            "limits.max_body = \"13MiB\"",
            "limits.max_body: 13MiB can become more than 16MiB in a batch (base64)",
        ),
        (
            "limits.max_body = \"17MiB\"\ndefaults.format = \"passthrough\"",
            "limits.max_body: 17MiB is above 16MiB",
        ),
        ("timeouts.drain = \"90s\"", "timeouts.drain: is longer than supervisors wait by default"),
        ("store = { kind = \"memory\", hold_max = \"30m\" }", "store.hold_max: reaches RabbitMQ's usual"),
        (
            "store = { kind = \"memory\", hold_max = \"1s\" }",
            "defaults: defaults.window: is longer than store.hold_max",
        ),
    ] {
        let dir = Dir::new(config);
        let found = warnings(&dir, &[]);
        assert!(found.contains(part) && found.lines().count() == 1, "{config}: {found}");
    }
    let dir = Dir::new("");
    let ca = dir.file("ca.pem", "-----BEGIN CERTIFICATE-----\n", 0o644);
    let found = warnings(&dir, &[("TIDEGATE__AMQP__CA_FILE", ca.to_str().unwrap())]);
    assert!(found.contains("amqp.ca_file: has no effect"), "{found}");
    fs::write(&ca, "something else").unwrap();
    let fault = dir.load(&[("TIDEGATE__AMQP__CA_FILE", ca.to_str().unwrap())]).unwrap_err();
    assert!(fault.to_string().ends_with("ca.pem holds no PEM certificate"), "{fault}");
}

#[test]
fn no_secret_is_ever_printed() {
    let dir = Dir::new("");
    let token = dir.file("token", "canary-canary-canary", 0o600);
    let secret = dir.file("secret", "canary", 0o600);
    let (token, secret) = (token.to_str().unwrap(), secret.to_str().unwrap());
    let good = format!(
        "[amqp]\nuri = \"amqp://u:canary@h/\"\n[egress]\nuri = \"amqp://u:canary@h2/\"\npassword_file = {secret:?}\n\
         [admin]\ntoken_file = {token:?}\n"
    );
    dir.file("config.toml", &good, 0o644);
    let loaded = dir.load(&[]).unwrap();
    assert!(loaded.warnings.len() >= 4);
    assert!(!format!("{loaded:?}").contains("canary"), "{loaded:?}");
    for bad in [
        "[amqp]\nuri = \"amqp://u:canary@h:port/\"",
        "[amqp]\nuri = \"amqp://u:1/canary@h\"",
        "[amqp]\nuris = [\"amqp://u:canary@\", \"canary\", [\"canary\"]]",
        "[amqp]\nuri = { password = \"canary\" }",
        "[amqp]\nuri = [\"canary\"]",
        "[amqp]\nuri = 3\npassword = \"canary\"",
        "[egress]\nuri = \"amqp://u:canary%@h\"",
    ] {
        let found = faults(bad);
        assert!(!found.contains("canary"), "{found}");
    }
}

#[test]
fn the_engine_is_told() {
    let c = good("limits.memory = \"64MiB\"\nlimits.customers = 5\negress.max_in_flight = 9\napplications.a.align = true");
    let s = c.engine_settings();
    assert_eq!(s.budget, Budget::of(64 << 20));
    assert_eq!((s.customers, s.max_in_flight, s.max_in_flight_bytes), (5, 9, 8 << 20));
    assert_eq!(s.hold_max, None);
    assert!(s.of("a").align && !s.of("b").align);
    let s = good("limits.memory = \"1GiB\"\nstore.kind = \"memory\"").engine_settings();
    assert_eq!((s.hold_max, s.max_in_flight_bytes), (Some(25 * 60 * 1_000), 32 << 20));
}
