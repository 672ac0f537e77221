//! `store`: operations on a disk store that no daemon has open, or on those of all shards; exports of a
//! database too.

use super::args::{Output, StoreCommand, StoreDirArgs, StoreExportArgs};
use super::client::{path, Client};
use super::moment;
use super::output::{inert, note, plain, Failure, Out};
use super::progress::Progress;
use crate::daemon::NAMING;
use serde_json::{json, Value};
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use tidegate_common::clock;
use tidegate_common::open_files::raise_file_limit;
use tidegate_config::{Config, DatabaseConfig, StoreKind};
use tidegate_store::compact::{self, CompactError, Compacted};
use tidegate_store::export::{begin_of_database, Export, Exporter};
use tidegate_store::import::{self, ImportError, ImportTarget, Imported};
use tidegate_store::joined::Joined;
use tidegate_store::verify::{self, RowFault, StoreSummary, WalkStep, Watcher};
use tidegate_store::{store_paths, OpenError};
use tidegate_wire::{home, item_id};

/// Most faults that a JSON document names; all are counted.
const MOST_FAULTS: usize = 100_000;

/// Runs one of the subcommands. `config` reads the configuration, and `daemon` returns a client of the
/// running daemon; both are called only if needed.
///
/// # Errors
/// Locked if a daemon has the store; failed if the store does not exist, cannot be read or is damaged;
/// partial if an export is incomplete.
pub(super) fn run(
    command: &StoreCommand,
    config: impl FnOnce() -> Result<Config, Failure>,
    daemon: impl FnOnce() -> Result<Client, Failure>,
    output: Output,
) -> Result<(), Failure> {
    match command {
        StoreCommand::Export(StoreExportArgs { running: true, .. }) => export_running(&daemon()?),
        StoreCommand::Verify(args) => verify(&Meant::of(args, config)?, output),
        StoreCommand::Export(StoreExportArgs { store, .. }) => match &store.directory {
            Some(directory) => export(&Meant::at(directory)),
            None => {
                let config = config()?;
                match &config.store.database {
                    Some(database) => export_database(database, config.shards.count),
                    None => export(&Meant::configured(config)?),
                }
            }
        },
        StoreCommand::Import(args) => import(&Meant::of(args, config)?, output),
        StoreCommand::Compact(args) => compact(&Meant::of(args, config)?, output),
    }
}

/// The directory of the store, or of the stores of all shards.
struct Meant {
    path: PathBuf,
    /// The memory that may be used while they are open, bytes.
    memory: u64,
    /// Number of shards, if it is configured.
    shards: Option<u16>,
}

impl Meant {
    fn of(args: &StoreDirArgs, config: impl FnOnce() -> Result<Config, Failure>) -> Result<Self, Failure> {
        args.directory.as_deref().map_or_else(|| Meant::configured(config()?), |path| Ok(Meant::at(path)))
    }

    /// Those in this directory.
    fn at(path: &Path) -> Self {
        Meant { path: path.to_owned(), memory: Config::default().limits.memory, shards: None }
    }

    fn configured(config: Config) -> Result<Self, Failure> {
        let elsewhere = match config.store.kind {
            StoreKind::Disk => None,
            StoreKind::Memory => Some("memory: this configuration stores nothing on a disk"),
            StoreKind::Postgres => Some("postgres: the items are in the database, not on this disk"),
        };
        if let Some(elsewhere) = elsewhere {
            return Err(Failure::Usage(format!("store.kind is {elsewhere}. Name a directory")));
        }
        let count = config.shards.count;
        Ok(Meant { path: config.store.path, memory: config.limits.memory, shards: Some(count) })
    }

    /// The directories of the stores that are there: of all shards, or of the only store.
    fn stores(&self) -> Result<Stores, Failure> {
        let paths = store_paths(&self.path).map_err(|error| not_opened("", &error))?;
        let is_divided = paths.len() > 1;
        let memory = self.memory / paths.len() as u64;
        let numbered = (0..).zip(paths);
        let all =
            numbered.map(|(number, path)| OneStore { shard: is_divided.then_some(number), path, memory });
        Ok(Stores { is_divided, all: all.collect() })
    }
}

/// The stores that a command is about.
struct Stores {
    /// There is one for each shard.
    is_divided: bool,
    all: Vec<OneStore>,
}

/// A single store of a command.
struct OneStore {
    /// Number of its shard, if there are several.
    shard: Option<u16>,
    path: PathBuf,
    /// The memory that may be used while it is open, bytes.
    memory: u64,
}

impl OneStore {
    /// Names its shard before an error, if there are several.
    fn label(&self) -> String {
        label(self.shard)
    }

    /// The document about this store, with the number of its shard in front.
    fn numbered(&self, document: Value) -> Value {
        match (self.shard, document) {
            (Some(shard), Value::Object(mut members)) => {
                members.insert("shard".to_owned(), shard.into());
                Value::Object(members)
            }
            (_, document) => document,
        }
    }
}

/// Names the shard before an error, if there are several.
pub(super) fn label(shard: Option<u16>) -> String {
    shard.map(|shard| format!("shard {shard}: ")).unwrap_or_default()
}

/// The failure for an error of a store with this label.
fn not_opened(label: &str, error: &OpenError) -> Failure {
    refused(label, error, "stop the daemon that has it open first, or export from it: store export --running")
}

/// The same with another advice for a store that a daemon has.
pub(super) fn refused(label: &str, error: &OpenError, advice: &str) -> Failure {
    let text = format!("store: {label}{error}");
    if matches!(error, OpenError::Locked { .. } | OpenError::Claimed { .. }) {
        return Failure::Locked(format!("{text}; {advice}"));
    }
    if matches!(
        error,
        OpenError::OtherCount { .. } | OpenError::Undivided { .. } | OpenError::OtherShards { .. }
    ) {
        return Failure::Config(text);
    }
    Failure::Failed(text)
}

/// For a command that has the stores of all shards open together.
pub(super) fn allow_open_files() {
    if let Err(error) = raise_file_limit() {
        note(format_args!("warning: the number of open files cannot be raised: {error}"));
    }
}

/// Shows the progress and the findings of a verification.
struct Shown {
    progress: Progress,
    output: Output,
    /// Number of the shard whose store is read, if there are several.
    shard: Option<u16>,
    faults: Vec<RowFault>,
    /// The error of printing a fault, reported at the end.
    broken: Option<Failure>,
}

impl Shown {
    fn new(output: Output, shard: Option<u16>) -> Self {
        Shown { progress: Progress::new(), output, shard, faults: Vec::new(), broken: None }
    }
}

impl Watcher for Shown {
    fn step(&mut self, step: WalkStep) {
        self.progress.at(step.keyspace, step.done, Some(step.total));
    }

    fn fault(&mut self, fault: RowFault) {
        if self.output == Output::Json {
            if self.faults.len() < MOST_FAULTS {
                self.faults.push(fault);
            }
            return;
        }
        let RowFault { keyspace, key, error } = fault;
        let shard = self.shard.map(|shard| format!("shard {shard}, ")).unwrap_or_default();
        let line = format!("damaged: {shard}keyspace {keyspace}, {}: {}", plain(&key), plain(&error));
        let printed = self.progress.aside(|| Out::lock().line(line));
        self.broken = self.broken.take().or(printed.err());
    }
}

fn verify(meant: &Meant, output: Output) -> Result<(), Failure> {
    let stores = meant.stores()?;
    let (mut documents, mut faults) = (Vec::new(), 0);
    for one in &stores.all {
        let (document, found) = verify_one(one, output)?;
        documents.extend(document.map(|document| one.numbered(document)));
        faults += found;
    }
    let mut out = Out::lock();
    match output {
        Output::Json if stores.is_divided => out.json(&json!({
            "result": verdict(faults),
            "path": meant.path.display().to_string(),
            "count": stores.all.len(),
            "shards": documents,
            "faults": faults,
        }))?,
        Output::Json => documents.iter().try_for_each(|document| out.json(document))?,
        Output::Table if stores.is_divided => {
            let rows = [("shards", stores.all.len() as u64), ("damaged rows of all", faults)];
            out.table(&rows.map(|(name, count)| vec![name.to_owned(), count.to_string()]))?;
        }
        Output::Table => {}
    }
    match faults {
        0 => Ok(()),
        1 => Err(Failure::failed("1 row is damaged")),
        n => Err(Failure::Failed(format!("{n} rows are damaged"))),
    }
}

/// Verifies one store. Prints its table, or returns its document, and the number of damaged rows.
fn verify_one(one: &OneStore, output: Output) -> Result<(Option<Value>, u64), Failure> {
    let mut shown = Shown::new(output, one.shard);
    let summary = verify::verify(&one.path, one.memory, &mut shown);
    let summary = summary.map_err(|error| not_opened(&one.label(), &error))?;
    let Shown { progress, faults, broken, .. } = shown;
    drop(progress);
    broken.map_or(Ok(()), Err)?;
    let document = match output {
        Output::Json => Some(document(&one.path, &summary, &faults)),
        Output::Table => {
            let mut out = Out::lock();
            out.table(&table(&one.path, &summary))?;
            one.shard.map_or(Ok(()), |_| out.line(""))?;
            None
        }
    };
    Ok((document, summary.faults))
}

fn verdict(faults: u64) -> &'static str {
    if faults == 0 {
        "sound"
    } else {
        "damaged"
    }
}

fn document(path: &Path, summary: &StoreSummary, faults: &[RowFault]) -> Value {
    let named: Vec<Value> = faults
        .iter()
        .map(|RowFault { keyspace, key, error }| json!({ "keyspace": keyspace, "key": key, "error": error }))
        .collect();
    json!({
        "result": verdict(summary.faults),
        "path": path.display().to_string(),
        "store": format!("{:016x}", summary.identity),
        "commit": summary.commit,
        "rows": summary.rows,
        "items": summary.items,
        "dead_letters": summary.dead_letters,
        "queues": summary.queues,
        "paused": summary.paused,
        "ids": summary.ids,
        "ended_ids": summary.ended_ids,
        "windows": summary.windows,
        "closings": summary.closings,
        "oldest_due": summary.oldest_due,
        "newest_due": summary.newest_due,
        "bytes": summary.bytes,
        "faults": summary.faults,
        "damaged": named,
        "damaged_truncated": summary.faults > faults.len() as u64,
    })
}

fn table(path: &Path, summary: &StoreSummary) -> Vec<Vec<String>> {
    let due = |due: Option<u64>| {
        let ms = due.map(|ms| i64::try_from(ms).unwrap_or(i64::MAX));
        ms.map_or_else(|| "-".to_owned(), moment)
    };
    let rows = [
        ("store", plain(&path.display().to_string()).into_owned()),
        ("identity", format!("{:016x}", summary.identity)),
        ("last commit", summary.commit.to_string()),
        ("rows", summary.rows.to_string()),
        ("items", summary.items.to_string()),
        ("dead letters to be sent", summary.dead_letters.to_string()),
        ("queues", format!("{} ({} paused)", summary.queues, summary.paused)),
        ("ids of items", summary.ids.to_string()),
        ("ids that have ended", summary.ended_ids.to_string()),
        ("long windows", summary.windows.to_string()),
        ("windows closed early", summary.closings.to_string()),
        ("oldest due", due(summary.oldest_due)),
        ("newest due", due(summary.newest_due)),
        ("bytes on the disk", summary.bytes.to_string()),
        ("damaged rows", summary.faults.to_string()),
    ];
    rows.map(|(name, value)| vec![name.to_owned(), value]).to_vec()
}

fn compact(meant: &Meant, output: Output) -> Result<(), Failure> {
    let stores = meant.stores()?;
    let (mut documents, mut all) = (Vec::new(), Compacted::default());
    for one in &stores.all {
        let mut shown = Shown::new(output, one.shard);
        let done = compact::compact(&one.path, one.memory, &mut shown);
        drop(shown);
        let Compacted { before, after } = done.map_err(|error| {
            if let CompactError::Open(error) = error {
                return not_opened(&one.label(), &error);
            }
            Failure::Failed(format!("store: {}{error}", one.label()))
        })?;
        (all.before, all.after) = (all.before + before, all.after + after);
        documents.push(one.numbered(json!({
            "result": "done", "path": one.path.display().to_string(), "before": before, "after": after,
        })));
    }
    let mut out = Out::lock();
    let Compacted { before, after } = all;
    if output == Output::Json && stores.is_divided {
        let path = meant.path.display().to_string();
        return out.json(&json!({
            "result": "done", "path": path, "count": documents.len(), "shards": documents,
            "before": before, "after": after,
        }));
    }
    if output == Output::Json {
        return documents.iter().try_for_each(|document| out.json(document));
    }
    let rows = [("bytes before", before), ("bytes after", after)];
    out.table(&rows.map(|(name, bytes)| vec![name.to_owned(), bytes.to_string()]))
}

/// Bytes of lines written at a time.
const WRITE_BYTES: usize = 256 << 10;

/// Prints lines, whatever the output format.
fn export(meant: &Meant) -> Result<(), Failure> {
    allow_open_files();
    let damaged = |error: tidegate_store::ReadError| Failure::Failed(format!("store: {error}"));
    // All stores are locked before the first one is read.
    let stores = meant.stores()?.all;
    let opened = stores
        .iter()
        .map(|one| Exporter::open(&one.path, one.memory).map_err(|error| not_opened(&one.label(), &error)));
    let exporters: Vec<Exporter> = opened.collect::<Result<_, _>>()?;
    let begun = exporters.iter().map(|exporter| exporter.begin(item_id));
    write(begun.collect::<Result<_, _>>().map_err(damaged)?)
}

/// Prints the lines of all shards in a database, which daemons may be using.
fn export_database(config: &DatabaseConfig, count: u16) -> Result<(), Failure> {
    allow_open_files();
    write(begin_of_database(config, count, item_id).map_err(|error| not_opened("", &error))?)
}

/// Prints the lines of these shards.
fn write(exports: Vec<Export>) -> Result<(), Failure> {
    let progress = Progress::new();
    let damaged = |error: tidegate_store::ReadError| Failure::Failed(format!("store: {error}"));
    let mut export = Joined::of(exports, NAMING).map_err(damaged)?;
    let mut out = BufWriter::with_capacity(WRITE_BYTES, std::io::stdout().lock());
    let mut lines = Vec::new();
    loop {
        let more = export.next(&mut lines).map_err(damaged)?;
        write_lines(&mut out, &lines)?;
        lines.clear();
        progress.at("items", export.told().items, Some(export.items()));
        if !more {
            break;
        }
    }
    Ok(out.flush()?)
}

/// Writes lines of JSON, safe for a terminal. Only the end of an answer that was cut off may be no text.
fn write_lines(out: &mut impl Write, lines: &[u8]) -> std::io::Result<()> {
    out.write_all(inert(&String::from_utf8_lossy(lines)).as_bytes())
}

/// Exports from the daemon that has the store open.
fn export_running(client: &Client) -> Result<(), Failure> {
    let progress = Progress::new();
    let mut answer = client.stream(&path(&["export"]))?;
    let mut out = BufWriter::with_capacity(WRITE_BYTES, std::io::stdout().lock());
    let (mut line, mut lines, mut items, mut total, mut whole) = (Vec::new(), 0_u64, 0, None, false);
    let broken = loop {
        line.clear();
        match answer.read_until(b'\n', &mut line) {
            Ok(0) => break String::new(),
            Ok(_) => {}
            Err(error) => break format!(": {error}"),
        }
        write_lines(&mut out, &line)?;
        lines += 1;
        items += u64::from(line.starts_with(b"{\"kind\":\"item\""));
        if lines == 1 {
            total = serde_json::from_slice::<Value>(&line).ok().and_then(|first| first["items"].as_u64());
        }
        whole = line.starts_with(b"{\"kind\":\"end\"") && line.ends_with(b"\n");
        progress.at("items", items, total);
    };
    out.flush()?;
    if whole {
        return Ok(());
    }
    Err(Failure::Partial(format!(
        "the export ended early after line {lines}{}: it is incomplete",
        plain(&broken)
    )))
}

fn import(meant: &Meant, output: Output) -> Result<(), Failure> {
    allow_open_files();
    let progress = Progress::new();
    let mut input = BufReader::with_capacity(WRITE_BYTES, std::io::stdin().lock());
    let mut tell = |step: import::ImportStep| progress.at("items", step.items, Some(step.total));
    let target =
        ImportTarget { path: &meant.path, shards: meant.shards, home_of: home, memory_limit: meant.memory };
    let done = import::import(&target, &mut input, NAMING, clock::wall_ms(), &mut tell);
    drop(progress);
    let told = done.map_err(|error| match error {
        ImportError::Open(error) => not_opened("", &error),
        ImportError::Commit(_) | ImportError::Read(_) | ImportError::Close(_) => {
            Failure::Failed(format!("store: {error}"))
        }
        ImportError::Cut { .. } => Failure::Partial(error.to_string()),
        ImportError::Input(_) | ImportError::Line { .. } | ImportError::NotEmpty { .. } => {
            Failure::Failed(plain(&error.to_string()).into_owned())
        }
    })?;
    let mut out = Out::lock();
    match output {
        Output::Json => out.json(&imported_document(&meant.path, &told)),
        Output::Table => out.table(&imported_table(&told)),
    }
}

fn imported_document(path: &Path, told: &Imported) -> Value {
    json!({
        "result": "done",
        "path": path.display().to_string(),
        "items": told.items,
        "dead_letters": told.dead_letters,
        "ended_ids": told.ended_ids,
        "windows": told.windows,
        "paused": told.paused,
    })
}

fn imported_table(told: &Imported) -> Vec<Vec<String>> {
    let rows = [
        ("items", told.items),
        ("dead letters", told.dead_letters),
        ("ids that have ended", told.ended_ids),
        ("long windows", told.windows),
        ("queues paused", told.paused),
    ];
    rows.map(|(name, count)| vec![name.to_owned(), count.to_string()]).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_cannot_drive_the_terminal() {
        let mut out = Vec::new();
        write_lines(&mut out, "{\"id\":\"\u{9b}2J\"}\n{\"id\":\"é\"}\n".as_bytes()).unwrap();
        assert_eq!(out, "{\"id\":\"\\u009b2J\"}\n{\"id\":\"é\"}\n".as_bytes());
    }
}
