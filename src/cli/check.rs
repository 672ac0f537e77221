//! `check`: the configuration, the files and directories it names, and with `--connect` the broker.
//!
//! It changes nothing: it makes no directory, takes no lock and declares no queue.

use super::advice::{major, Managed};
use super::args::{CheckArgs, Output};
use super::broker::block_on;
use super::findings::{finding, CheckLine, Level};
use super::management::Management;
use super::output::{plain, Failure, Out};
use rustix::fs::{access, Access};
use serde_json::{json, Value};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use tidegate_config::{Config, Listen, LoadedConfig, StoreKind};

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
                let all: Vec<_> = faults.lines().map(|f| finding(Level::Fail, "config", f)).collect();
                print(path, &all, output)?;
            }
            return Err(Failure::Config(faults));
        }
    };
    let mut findings = vec![config_source(path)];
    findings.extend(loaded.warnings.iter().map(|w| finding(Level::Warn, "config", w.to_string())));
    findings.push(store(&loaded.config));
    findings.push(admin(&loaded.config));
    if args.connect {
        findings.extend(broker(&loaded.config)?);
        findings.extend(managed(&loaded.config, args.management.as_deref())?);
    }
    print(path, &findings, output)?;
    match findings.iter().filter(|f| f.level == Level::Fail).count() {
        0 => Ok(()),
        n => Err(Failure::Failed(format!("check: {n} failed"))),
    }
}

fn print(path: Option<&Path>, findings: &[CheckLine], output: Output) -> Result<(), Failure> {
    let mut out = Out::lock();
    if output == Output::Json {
        let one = |f: &CheckLine| json!({ "level": f.level.as_str(), "subject": f.subject, "text": f.text });
        return out.json(&json!({
            "config": path.map(|p| p.display().to_string()),
            "ok": findings.iter().all(|f| f.level != Level::Fail),
            "findings": findings.iter().map(one).collect::<Vec<Value>>(),
        }));
    }
    let row =
        |f: &CheckLine| vec![f.level.as_str().to_owned(), f.subject.to_owned(), plain(&f.text).into_owned()];
    out.table(&findings.iter().map(row).collect::<Vec<_>>())
}

fn config_source(path: Option<&Path>) -> CheckLine {
    match path {
        Some(path) => finding(Level::Ok, "config", path.display().to_string()),
        None => finding(Level::Ok, "config", "no file: defaults and environment"),
    }
}

/// Checks as the user who runs the command, which should be the daemon's user.
fn store(config: &Config) -> CheckLine {
    let path = &config.store.path;
    let database = match (config.store.kind, &config.store.database) {
        (StoreKind::Memory, _) => return finding(Level::Ok, "store", "memory: nothing is written"),
        (StoreKind::Postgres, Some(db)) => {
            let hosts: Vec<_> = db.hosts.iter().map(|(host, port)| format!("{host}:{port}")).collect();
            let (name, hosts, schema) = (&db.database, hosts.join(", "), &db.schema);
            format!("database `{name}` at {hosts}, schema `{schema}` (not checked); ")
        }
        (StoreKind::Disk, _) | (StoreKind::Postgres, None) => String::new(),
    };
    match directory(path) {
        Ok(text) => finding(Level::Ok, "store", database + &text),
        Err(text) => finding(Level::Fail, "store", text),
    }
}

fn directory(path: &Path) -> Result<String, String> {
    let shown = path.display();
    let meta = match path.symlink_metadata() {
        Ok(meta) => meta,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return creatable(path),
        Err(e) => return Err(format!("{shown}: {e}")),
    };
    // systemd's StateDirectory= makes a link to a directory; a link to nothing is a mistake.
    let is_dir = if meta.is_symlink() { path.is_dir() } else { meta.is_dir() };
    if !is_dir {
        return Err(format!("{shown} is not a directory"));
    }
    writable(path)?;
    Ok(format!("{shown} can be written"))
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
        return finding(Level::Fail, "admin", text);
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
        Listen::Tcp(_) | Listen::Off => finding(Level::Ok, "admin", shown),
    }
}

/// A running daemon may have the socket open, and systemd makes its directory at a start: neither is a fault.
fn socket(path: &Path, shown: String) -> CheckLine {
    if path.symlink_metadata().is_ok_and(|found| !found.file_type().is_socket()) {
        let text = format!("{} exists and is not a socket: the daemon would not replace it", path.display());
        return finding(Level::Fail, "admin", text);
    }
    match path.parent() {
        Some(above) if !above.is_dir() => {
            let text = format!("{shown}; {} must exist at the start", above.display());
            finding(Level::Warn, "admin", text)
        }
        Some(_) | None => finding(Level::Ok, "admin", shown),
    }
}

/// Checks the broker; nothing else connects to it.
fn broker(config: &Config) -> Result<Vec<CheckLine>, Failure> {
    block_on(inspect(config))
}

async fn inspect(config: &Config) -> Result<Vec<CheckLine>, Failure> {
    let found = tidegate_amqp::inspect(&tidegate_amqp::Options::new(config, 0, None)).await;
    let one = |f: tidegate_amqp::Inspected| {
        let level = match f.severity {
            tidegate_amqp::Severity::Good => Level::Ok,
            tidegate_amqp::Severity::Warning => Level::Warn,
            tidegate_amqp::Severity::Fault => Level::Fail,
        };
        finding(level, f.side.as_str(), f.text)
    };
    Ok(found.into_iter().map(one).collect())
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
        return Ok(vec![finding(Level::Note, subject, text)]);
    };
    let api = Management::at(url, ingest)?;
    let overview = match api.get(&["overview"]) {
        Ok(overview) => overview.unwrap_or_default(),
        Err(text) => return Ok(vec![finding(Level::Warn, subject, text)]),
    };
    let version = overview["rabbitmq_version"].as_str().unwrap_or_default();
    let mut found =
        vec![finding(Level::Ok, subject, format!("{}, RabbitMQ {}", api.place(), plain(version)))];
    let (vhost, name) = (&ingest.vhost, &config.ingest.queue);
    found.extend(judged(&api, "ingest", vhost, name, |queue| {
        Managed::new("ingest", name, queue, major(version)).judge_ingest(&config.dead.exchange)
    }));
    let lock = tidegate_amqp::lock_name(name);
    found.extend(judged(&api, "ingest", vhost, &lock, |queue| {
        Managed::new("ingest", &lock, queue, major(version)).judge_lock()
    }));
    let egress = config.egress.endpoints.first().unwrap_or(ingest);
    if let Some(name) = config.dead.queue_name() {
        if (&egress.host, egress.port) == (&ingest.host, ingest.port) {
            found.extend(judged(&api, "egress", &egress.vhost, name, |queue| {
                Managed::new("egress", name, queue, major(version)).judge_dead()
            }));
        } else {
            let text = format!("queue '{name}' is at another broker than --management: not checked");
            found.push(finding(Level::Note, "egress", text));
        }
    }
    let text = format!(
        "the management API does not show the node's consumer timeout (30 minutes or more are needed) and \
         its largest message ({} bytes of body are allowed here). Run `{NODE_LIMITS}`",
        config.limits.max_body
    );
    found.push(finding(Level::Note, subject, text));
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
        Err(text) => vec![finding(Level::Warn, subject, text)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            (dir.path().to_path_buf(), Level::Ok),
            (dir.path().join("a/b"), Level::Ok),
            (file.clone(), Level::Fail),
            (file.join("below"), Level::Fail),
            (dangling, Level::Fail),
        ] {
            config.store.path = path;
            let found = store(&config);
            assert_eq!(found.level, want, "{found:?}");
        }
        assert!(!dir.path().join("a").exists(), "a check creates nothing");
        config.store.kind = StoreKind::Memory;
        assert_eq!(store(&config).level, Level::Ok);
    }

    #[test]
    fn an_open_listener_needs_a_token() {
        let mut config = config();
        assert_eq!(admin(&config).level, Level::Ok);
        config.admin.listen = Listen::parse("0.0.0.0:9380").unwrap();
        assert_eq!(admin(&config).level, Level::Fail);
        config.admin.token = Some("t".to_owned().into());
        assert_eq!(admin(&config).level, Level::Ok);
    }

    #[test]
    fn a_socket_needs_its_directory_and_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = config();
        for (name, level) in
            [("admin.sock", Level::Ok), ("none/admin.sock", Level::Warn), ("file", Level::Fail)]
        {
            std::fs::write(dir.path().join("file"), "").unwrap();
            config.admin.listen = Listen::Unix(dir.path().join(name));
            assert_eq!(admin(&config).level, level, "{name}");
        }
        config.admin.listen = Listen::Off;
        let found = admin(&config);
        assert!(found.level == Level::Ok && found.text.starts_with("off"), "{found:?}");
    }

    #[test]
    fn faults_are_bad_configuration() {
        let failure = run(None, Err("line 1: no".into()), &CheckArgs::default(), Output::Table).unwrap_err();
        assert_eq!((failure.exit_code(), failure.text()), (78, Some("line 1: no")));
    }
}
