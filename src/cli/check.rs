//! `check`: the configuration, the files and directories it names, and with `--connect` the broker and the
//! database.
//!
//! It changes nothing: it makes no directory, takes no lock, declares no queue and makes no table.

use super::advice::{major, Managed};
use super::args::{CheckArgs, Output};
use super::broker::block_on;
use super::management::Management;
use super::output::{plain, Failure, Out};
use rustix::fs::{access, Access};
use serde_json::{json, Value};
use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use tidegate_amqp::blueprint::Names;
use tidegate_common::check_line::{CheckLine, Severity};
use tidegate_config::{Config, Listen, LoadedConfig, StoreKind};
use tidegate_store::ShardLayout;

/// Runs the command on a loaded configuration, or on the faults (one per line) that prevented loading it.
///
/// # Errors
/// Bad configuration; failed if any check fails.
pub(super) fn run(
    path: Option<&Path>,
    loaded: Result<LoadedConfig, String>,
    args: &CheckArgs,
    output: Output,
) -> Result<(), Failure> {
    let loaded = match loaded {
        Ok(loaded) => loaded,
        Err(faults) => {
            if output == Output::Json {
                let all: Vec<_> =
                    faults.lines().map(|f| CheckLine::new(Severity::Fault, "config", f)).collect();
                print(path, &all, output)?;
            }
            return Err(Failure::Config(faults));
        }
    };
    let mut findings = vec![config_source(path)];
    findings
        .extend(loaded.warnings.iter().map(|w| CheckLine::new(Severity::Warning, "config", w.to_string())));
    findings.extend(shards(&loaded.config));
    findings.push(store(&loaded.config, args.connect));
    findings.push(admin(&loaded.config));
    if args.connect {
        if let (StoreKind::Postgres, Some(database)) =
            (loaded.config.store.kind, &loaded.config.store.database)
        {
            findings.extend(tidegate_store::inspect_database(database, loaded.config.shards.count));
        }
        findings.extend(broker(&loaded.config)?);
        findings.extend(managed(&loaded.config, args.management.as_deref())?);
    }
    print(path, &findings, output)?;
    match findings.iter().filter(|f| f.severity == Severity::Fault).count() {
        0 => Ok(()),
        n => Err(Failure::Failed(format!("check: {n} failed"))),
    }
}

fn print(path: Option<&Path>, findings: &[CheckLine], output: Output) -> Result<(), Failure> {
    let mut out = Out::lock();
    if output == Output::Json {
        let one =
            |f: &CheckLine| json!({ "level": f.severity.as_str(), "subject": f.subject, "text": f.text });
        return out.json(&json!({
            "config": path.map(|p| p.display().to_string()),
            "ok": findings.iter().all(|f| f.severity != Severity::Fault),
            "findings": findings.iter().map(one).collect::<Vec<Value>>(),
        }));
    }
    let row = |f: &CheckLine| {
        vec![f.severity.as_str().to_owned(), f.subject.to_owned(), plain(&f.text).into_owned()]
    };
    out.table(&findings.iter().map(row).collect::<Vec<_>>())
}

fn config_source(path: Option<&Path>) -> CheckLine {
    match path {
        Some(path) => CheckLine::new(Severity::Good, "config", path.display().to_string()),
        None => CheckLine::new(Severity::Good, "config", "no file: defaults and environment"),
    }
}

/// The number of shards, if there are several, with their queues and stores.
fn shards(config: &Config) -> Option<CheckLine> {
    let last = config.shards.count.checked_sub(1).filter(|last| *last > 0)?;
    let stores = match config.store.kind {
        StoreKind::Postgres => "shared by all daemons over the same database".to_owned(),
        StoreKind::Disk | StoreKind::Memory => {
            let [first, last] = [0, last].map(|number| config.shard_path(number));
            format!("and stores in {} to {}", first.display(), last.display())
        }
    };
    let [first, last] = [0, last].map(|number| config.shard_queue(number));
    let text = format!("{}, with the queues '{first}' to '{last}' {stores}", config.shards.count);
    Some(CheckLine::new(Severity::Good, "shards", text))
}

/// Checks as the user who runs the command, which should be the daemon's user. `is_connecting`: the check of
/// the database follows.
fn store(config: &Config, is_connecting: bool) -> CheckLine {
    let path = &config.store.path;
    let database = match (config.store.kind, &config.store.database) {
        (StoreKind::Memory, _) => return memory(path),
        (StoreKind::Postgres, Some(db)) => {
            let hosts: Vec<_> = db.hosts.iter().map(|(host, port)| format!("{host}:{port}")).collect();
            let (name, hosts, schema) = (&db.database, hosts.join(", "), &db.schema);
            let aside = if is_connecting { "" } else { " (not checked; --connect checks it)" };
            format!("database `{name}` at {hosts}, schema `{schema}`{aside}; ")
        }
        (StoreKind::Disk, _) | (StoreKind::Postgres, None) => String::new(),
    };
    let of_shards = |text| {
        let mut all = (0..config.shards.count).map(|number| directory(&config.shard_path(number)));
        all.try_for_each(|one| one.map(drop)).map(|()| text)
    };
    let suitable = directory(path).and_then(of_shards).and_then(|text| match config.store.kind {
        StoreKind::Postgres => {
            tidegate_store::refuse_disk_store(path).map(|()| text).map_err(|e| e.to_string())
        }
        StoreKind::Disk => {
            ShardLayout::check(path, config.shards.count).map(|()| text).map_err(|e| e.to_string())
        }
        StoreKind::Memory => Ok(text),
    });
    match suitable {
        Ok(text) => CheckLine::new(Severity::Good, "store", database + &text),
        Err(text) => CheckLine::new(Severity::Fault, "store", text),
    }
}

/// A start opens a store on the disk that was left in the path, and counts its items. A check opens none.
fn memory(path: &Path) -> CheckLine {
    let Some(left) = tidegate_store::left_behind(path) else {
        return CheckLine::new(Severity::Good, "store", "memory: nothing is written");
    };
    let text = format!(
        "memory: nothing is written; but {} holds a store on the disk: if items wait in it, the daemon does \
         not start, since they would not be delivered. Run it with store.kind = \"disk\" until nothing waits",
        left.display()
    );
    CheckLine::new(Severity::Warning, "store", text)
}

fn directory(path: &Path) -> Result<String, String> {
    let shown = path.display();
    let meta = match path.symlink_metadata() {
        Ok(meta) => meta,
        Err(e) if e.kind() == ErrorKind::NotFound => return creatable(path),
        Err(e) => return Err(uninspected(path, &e)),
    };
    // systemd's StateDirectory= makes a link to a directory; a link to nothing is a mistake.
    let found = if meta.is_symlink() { std::fs::metadata(path) } else { Ok(meta) };
    if !found.map_err(|e| uninspected(path, &e))?.is_dir() {
        return Err(format!("{shown} is not a directory"));
    }
    writable(path)?;
    Ok(format!("{shown} can be written"))
}

/// The text about a path of which this process cannot see what it is.
fn uninspected(path: &Path, error: &std::io::Error) -> String {
    let shown = path.display();
    if error.kind() == ErrorKind::NotFound {
        return format!("{shown} is a link to nothing");
    }
    if error.kind() != ErrorKind::PermissionDenied {
        return format!("{shown}: {error}");
    }
    // The link of StateDirectory= leads into a directory that root alone may enter, and the daemon.
    format!(
        "{shown} cannot be inspected by this user: {error}; run the check as root or as the daemon's user"
    )
}

fn creatable(path: &Path) -> Result<String, String> {
    let mut above = path.to_path_buf();
    while above.pop() {
        let parent = if above.as_os_str().is_empty() { PathBuf::from(".") } else { above.clone() };
        if parent.is_dir() {
            writable(&parent)?;
            return Ok(format!("{} will be created", path.display()));
        }
        if parent.exists() {
            return Err(format!("{} is not a directory", parent.display()));
        }
    }
    Err(format!("{}: no directory above it exists", path.display()))
}

fn writable(path: &Path) -> Result<(), String> {
    access(path, Access::WRITE_OK | Access::EXEC_OK)
        .map_err(|e| format!("{} cannot be written by this user: {e}", path.display()))
}

fn admin(config: &Config) -> CheckLine {
    let admin = &config.admin;
    let listen = &admin.listen;
    if admin.token.is_none() && !listen.is_local() {
        let text = format!("{listen} is not a loopback address: this needs admin.token_file");
        return CheckLine::new(Severity::Fault, "admin", text);
    }
    let others = [("reading", &admin.read_token), ("the state", &admin.state_token)];
    let others = others.iter().filter(|(_, token)| token.is_some());
    let others: String = others.map(|(what, _)| format!(", and one for {what}")).collect();
    let shown = match (&admin.token, listen) {
        (_, Listen::Off) => "off: no probes, and commands by AMQP only".to_owned(),
        (Some(_), _) => format!("{listen}, with token{others}"),
        (None, Listen::Tcp(_)) => format!("{listen}, without token, for every user of this machine"),
        (None, Listen::Unix(_)) => format!("{listen}, without token, for its user and group"),
    };
    match listen {
        Listen::Unix(path) => socket(path, shown),
        Listen::Tcp(_) | Listen::Off => CheckLine::new(Severity::Good, "admin", shown),
    }
}

/// A running daemon may have the socket open, and systemd makes its directory at a start: neither is a fault.
fn socket(path: &Path, shown: String) -> CheckLine {
    if path.symlink_metadata().is_ok_and(|found| !found.file_type().is_socket()) {
        let text = format!("{} exists and is not a socket: the daemon would not replace it", path.display());
        return CheckLine::new(Severity::Fault, "admin", text);
    }
    match path.parent() {
        Some(above) if !above.is_dir() => {
            let text = format!("{shown}; {} must exist at the start", above.display());
            CheckLine::new(Severity::Warning, "admin", text)
        }
        Some(_) | None => CheckLine::new(Severity::Good, "admin", shown),
    }
}

/// Checks the broker; nothing else connects to it.
fn broker(config: &Config) -> Result<Vec<CheckLine>, Failure> {
    let options = tidegate_amqp::Options::new(config, 0, None);
    block_on(async { Ok(tidegate_amqp::inspect(&options).await) })
}

/// A command that shows the limits that neither AMQP nor the management API reports.
const NODE_LIMITS: &str = "rabbitmqctl environment | grep -E 'consumer_timeout|max_message_size'";

/// What AMQP does not report, read from the management API if it is named; for the first address of each
/// side.
fn managed(config: &Config, url: Option<&str>) -> Result<Vec<CheckLine>, Failure> {
    let Some(ingest) = config.amqp.endpoints.first() else { return Ok(Vec::new()) };
    let subject = "management";
    let Some(url) = url else {
        let text = format!(
            "AMQP does not show policies, nor the arguments of a queue that may not be declared. Give \
             --management URL, or run `rabbitmqctl list_queues -p '{}' name type arguments policy \
             operator_policy effective_policy_definition state`; and run `{NODE_LIMITS}`",
            ingest.vhost
        );
        return Ok(vec![CheckLine::new(Severity::Note, subject, text)]);
    };
    let api = Management::at(url, ingest)?;
    let overview = match api.get(&["overview"]) {
        Ok(overview) => overview.unwrap_or_default(),
        Err(text) => return Ok(vec![CheckLine::new(Severity::Warning, subject, text)]),
    };
    let version = overview["rabbitmq_version"].as_str().unwrap_or_default();
    let mut found = vec![CheckLine::new(
        Severity::Good,
        subject,
        format!("{}, RabbitMQ {}", api.place(), plain(version)),
    )];
    let vhost = &ingest.vhost;
    for name in Names::of(config).request_queues() {
        found.extend(judged(&api, "ingest", vhost, name, |queue| {
            Managed::new("ingest", name, queue, major(version)).judge_ingest(&config.dead.exchange)
        }));
        let lock = tidegate_amqp::lock_name(name);
        found.extend(judged(&api, "ingest", vhost, &lock, |queue| {
            Managed::new("ingest", &lock, queue, major(version)).judge_lock()
        }));
    }
    let egress = config.egress.endpoints.first().unwrap_or(ingest);
    if let Some(name) = config.dead.queue_name() {
        if (&egress.host, egress.port) == (&ingest.host, ingest.port) {
            found.extend(judged(&api, "egress", &egress.vhost, name, |queue| {
                Managed::new("egress", name, queue, major(version)).judge_dead()
            }));
        } else {
            let text = format!("queue '{name}' is at another broker than --management: not checked");
            found.push(CheckLine::new(Severity::Note, "egress", text));
        }
    }
    let text = format!(
        "the management API does not show the node's consumer timeout (30 minutes or more are needed) and \
         its largest message ({} bytes of body are allowed here). Run `{NODE_LIMITS}`",
        config.limits.max_body
    );
    found.push(CheckLine::new(Severity::Note, subject, text));
    Ok(found)
}

/// Findings about a queue; the check over AMQP has already reported a missing queue.
fn judged(
    api: &Management,
    subject: &'static str,
    vhost: &str,
    name: &str,
    judge: impl FnOnce(&Value) -> Vec<CheckLine>,
) -> Vec<CheckLine> {
    match api.get(&["queues", vhost, name]) {
        Ok(Some(queue)) => judge(&queue),
        Ok(None) => Vec::new(),
        Err(text) => vec![CheckLine::new(Severity::Warning, subject, text)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    fn config() -> Config {
        Config::load(None, std::iter::empty()).unwrap().config
    }

    #[test]
    fn a_store_path_must_be_a_directory_or_become_one() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        let dangling = dir.path().join("dangling");
        std::os::unix::fs::symlink(dir.path().join("nothing"), &dangling).unwrap();
        let mut config = config();
        for (path, want) in [
            (dir.path().to_path_buf(), Severity::Good),
            (dir.path().join("a/b"), Severity::Good),
            (file.clone(), Severity::Fault),
            (file.join("below"), Severity::Fault),
            (dangling, Severity::Fault),
        ] {
            config.store.path = path;
            let found = store(&config, false);
            assert_eq!(found.severity, want, "{found:?}");
        }
        assert!(!dir.path().join("a").exists(), "a check creates nothing");
        config.store.kind = StoreKind::Memory;
        assert_eq!(store(&config, false).severity, Severity::Good);
    }

    /// As root, every directory is seen.
    #[test]
    fn a_directory_that_this_user_may_not_see_is_not_said_to_be_none() {
        let denied = std::io::Error::from_raw_os_error(13);
        let told =
            "/var/lib/tidegate cannot be inspected by this user: Permission denied (os error 13); run \
                    the check as root or as the daemon's user";
        assert_eq!(uninspected(Path::new("/var/lib/tidegate"), &denied), told);
        let dir = tempfile::tempdir().unwrap();
        let [private, link] = ["private", "store"].map(|name| dir.path().join(name));
        std::fs::create_dir_all(private.join("store")).unwrap();
        std::os::unix::fs::symlink("private/store", &link).unwrap();
        let mode = |mode| std::fs::set_permissions(&private, Permissions::from_mode(mode)).unwrap();
        mode(0);
        let found = directory(&link);
        mode(0o700);
        if rustix::process::geteuid().is_root() {
            assert_eq!(found, Ok(format!("{} can be written", link.display())));
        } else {
            assert_eq!(found, Err(told.replace("/var/lib/tidegate", &link.display().to_string())));
        }
    }

    #[test]
    fn several_shards_are_told_and_each_directory_must_be_one() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = config();
        assert_eq!(shards(&config), None);
        (config.shards.count, config.store.path) = (3, dir.path().to_path_buf());
        let (told, at) = (shards(&config).unwrap(), dir.path().display());
        let text = format!(
            "3, with the queues 'tidegate.ingest.0' to 'tidegate.ingest.2' and stores in {at}/shard-0 to \
             {at}/shard-2"
        );
        assert_eq!(told, CheckLine::new(Severity::Good, "shards", text));
        std::fs::create_dir(config.shard_path(0)).unwrap();
        assert_eq!(store(&config, false).severity, Severity::Good);
        std::fs::write(config.shard_path(2), "").unwrap();
        let found = store(&config, false);
        assert_eq!(
            found,
            CheckLine::new(Severity::Fault, "store", format!("{at}/shard-2 is not a directory"))
        );
    }

    /// Excluded: a directory that `check` finds good and a start refuses, by its kind or by the number of its
    /// stores; a check that makes or locks something.
    #[test]
    fn a_directory_that_a_start_refuses_is_a_fault() {
        let dir = tempfile::tempdir().unwrap();
        let [link, single, shards, importing] =
            ["link", "single", "shards", "importing"].map(|name| dir.path().join(name));
        for path in [&single, &importing] {
            std::fs::create_dir(path).unwrap();
        }
        std::os::unix::fs::symlink(&single, &link).unwrap();
        std::fs::create_dir(single.join("db")).unwrap();
        std::fs::write(single.join("db/version"), "").unwrap();
        ShardLayout::claim(&shards, 4).unwrap();
        std::fs::write(importing.join("IMPORTING"), "").unwrap();
        let mut config = config();
        for (path, count, said) in [
            (&single, 1, None),
            (&shards, 4, None),
            (&link, 1, Some("is a symbolic link")),
            (&single, 4, Some("holds a store that is not divided into shards")),
            (&shards, 2, Some("holds the items of 4 shards, and shards.count is 2")),
            (&shards, 1, Some("holds the items of 4 shards, and shards.count is 1")),
            (&importing, 4, Some("was interrupted")),
        ] {
            (config.store.path, config.shards.count) = (path.clone(), count);
            let found = store(&config, false);
            match said {
                None => assert_eq!(found.severity, Severity::Good, "{found:?}"),
                Some(said) => {
                    assert_eq!(
                        (found.severity, found.text.contains(said)),
                        (Severity::Fault, true),
                        "{found:?}"
                    );
                }
            }
        }
        (config.store.path, config.store.kind) = (link, StoreKind::Postgres);
        let found = store(&config, false);
        assert!(found.severity == Severity::Fault && found.text.contains("symbolic link"), "{found:?}");
        config.store.kind = StoreKind::Memory;
        let found = store(&config, false);
        let left = format!("but {} holds a store on the disk", single.canonicalize().unwrap().display());
        assert!(found.severity == Severity::Warning && found.text.contains(&left), "{found:?}");
        let entries = |path| std::fs::read_dir(path).unwrap().count();
        assert_eq!((entries(&single), entries(&shards), entries(&importing)), (1, 5, 1), "nothing is made");
    }

    #[test]
    fn shards_in_a_database_are_told_without_stores_on_the_disk() {
        let dir = tempfile::tempdir().unwrap();
        let variables = [
            ("SHARDS__COUNT", "2".to_owned()),
            ("STORE__KIND", "postgres".to_owned()),
            ("STORE__URI", "postgres://u@localhost/t?sslmode=disable".to_owned()),
            ("STORE__PATH", dir.path().display().to_string()),
        ];
        let variables = variables.map(|(key, value)| (format!("TIDEGATE__{key}"), value));
        let config = Config::load(None, variables.into_iter()).unwrap().config;
        let text =
            "2, with the queues 'tidegate.ingest.0' to 'tidegate.ingest.1' shared by all daemons over the \
                    same database";
        assert_eq!(shards(&config), Some(CheckLine::new(Severity::Good, "shards", text)));
        assert_eq!(store(&config, false).severity, Severity::Good);
        std::fs::create_dir_all(dir.path().join("shard-1/db")).unwrap();
        std::fs::write(dir.path().join("shard-1/db/version"), "").unwrap();
        let found = store(&config, false);
        let start = format!("{}/shard-1 holds a store on the disk", dir.path().display());
        assert!(found.severity == Severity::Fault && found.text.starts_with(&start), "{found:?}");
    }

    #[test]
    fn an_open_listener_needs_a_token() {
        let mut config = config();
        assert_eq!(admin(&config).severity, Severity::Good);
        config.admin.listen = Listen::parse("0.0.0.0:9380").unwrap();
        assert_eq!(admin(&config).severity, Severity::Fault);
        config.admin.token = Some("t".to_owned().into());
        assert_eq!(admin(&config).severity, Severity::Good);
    }

    #[test]
    fn a_socket_needs_its_directory_and_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = config();
        for (name, level) in [
            ("admin.sock", Severity::Good),
            ("none/admin.sock", Severity::Warning),
            ("file", Severity::Fault),
        ] {
            std::fs::write(dir.path().join("file"), "").unwrap();
            config.admin.listen = Listen::Unix(dir.path().join(name));
            assert_eq!(admin(&config).severity, level, "{name}");
        }
        config.admin.listen = Listen::Off;
        let found = admin(&config);
        assert!(found.severity == Severity::Good && found.text.starts_with("off"), "{found:?}");
    }

    #[test]
    fn faults_are_bad_configuration() {
        let failure = run(None, Err("line 1: no".into()), &CheckArgs::default(), Output::Table).unwrap_err();
        assert_eq!((failure.exit_code(), failure.text()), (78, "line 1: no"));
    }
}
