//! `store`: operations on a disk store that no daemon has open.

use super::args::{Output, StoreCommand, StoreDirArgs, StoreExportArgs};
use super::client::{path, Client};
use super::moment;
use super::output::{plain, Failure, Out};
use super::progress::Progress;
use serde_json::{json, Value};
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use tidegate_common::clock;
use tidegate_config::{Config, StoreKind};
use tidegate_store::compact::{self, CompactError, Compacted};
use tidegate_store::export::Exporter;
use tidegate_store::import::{self, ImportError, Imported};
use tidegate_store::verify::{self, RowFault, StoreSummary, WalkStep, Watcher};
use tidegate_store::OpenError;
use tidegate_wire::{identity, item_id};

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
        StoreCommand::Export(args) => export(&Meant::of(&args.store, config)?),
        StoreCommand::Import(args) => import(&Meant::of(args, config)?, output),
        StoreCommand::Compact(args) => compact(&Meant::of(args, config)?, output),
    }
}

/// The directory of the store, and the memory that may be used while it is open, bytes.
struct Meant {
    path: PathBuf,
    memory: u64,
}

impl Meant {
    fn of(args: &StoreDirArgs, config: impl FnOnce() -> Result<Config, Failure>) -> Result<Self, Failure> {
        if let Some(path) = &args.directory {
            return Ok(Meant { path: path.clone(), memory: Config::default().limits.memory });
        }
        let config = config()?;
        let elsewhere = match config.store.kind {
            StoreKind::Disk => None,
            StoreKind::Memory => Some("memory: this configuration stores nothing on a disk"),
            StoreKind::Postgres => Some("postgres: the items are in the database, not on this disk"),
        };
        if let Some(elsewhere) = elsewhere {
            return Err(Failure::Usage(format!("store.kind is {elsewhere}. Name a directory")));
        }
        Ok(Meant { path: config.store.path, memory: config.limits.memory })
    }
}

fn not_opened(error: OpenError) -> Failure {
    if matches!(error, OpenError::Locked { .. }) {
        return Failure::Locked(format!(
            "store: {error}; stop the daemon that has it open first, or export from it: store export \
             --running"
        ));
    }
    Failure::Failed(format!("store: {error}"))
}

/// Shows the progress and the findings of a verification.
struct Shown {
    progress: Progress,
    output: Output,
    faults: Vec<RowFault>,
    /// The error of printing a fault, reported at the end.
    broken: Option<Failure>,
}

impl Shown {
    fn new(output: Output) -> Self {
        Shown { progress: Progress::new(), output, faults: Vec::new(), broken: None }
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
        let line = format!("damaged: keyspace {keyspace}, {}: {}", plain(&key), plain(&error));
        let printed = self.progress.aside(|| Out::lock().line(line));
        self.broken = self.broken.take().or(printed.err());
    }
}

fn verify(meant: &Meant, output: Output) -> Result<(), Failure> {
    let mut shown = Shown::new(output);
    let summary = verify::verify(&meant.path, meant.memory, &mut shown).map_err(not_opened)?;
    let Shown { progress, faults, broken, .. } = shown;
    drop(progress);
    broken.map_or(Ok(()), Err)?;
    let mut out = Out::lock();
    match output {
        Output::Json => out.json(&document(&meant.path, &summary, &faults))?,
        Output::Table => out.table(&table(&meant.path, &summary))?,
    }
    match summary.faults {
        0 => Ok(()),
        1 => Err(Failure::failed("1 row is damaged")),
        n => Err(Failure::Failed(format!("{n} rows are damaged"))),
    }
}

fn document(path: &Path, summary: &StoreSummary, faults: &[RowFault]) -> Value {
    let named: Vec<Value> = faults
        .iter()
        .map(|RowFault { keyspace, key, error }| json!({ "keyspace": keyspace, "key": key, "error": error }))
        .collect();
    json!({
        "result": if summary.faults == 0 { "sound" } else { "damaged" },
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
    let mut shown = Shown::new(output);
    let done = compact::compact(&meant.path, meant.memory, &mut shown);
    drop(shown);
    let Compacted { before, after } = done.map_err(|error| {
        if let CompactError::Open(error) = error {
            return not_opened(error);
        }
        Failure::Failed(format!("store: {error}"))
    })?;
    let mut out = Out::lock();
    if output == Output::Json {
        let path = meant.path.display().to_string();
        return out.json(&json!({ "result": "done", "path": path, "before": before, "after": after }));
    }
    let rows = [("bytes before", before), ("bytes after", after)];
    out.table(&rows.map(|(name, bytes)| vec![name.to_owned(), bytes.to_string()]))
}

/// Bytes of lines written at a time.
const WRITE_BYTES: usize = 256 << 10;

/// Prints lines, whatever the output format.
fn export(meant: &Meant) -> Result<(), Failure> {
    let progress = Progress::new();
    let damaged = |error: tidegate_store::ReadError| Failure::Failed(format!("store: {error}"));
    let exporter = Exporter::open(&meant.path, meant.memory).map_err(not_opened)?;
    let mut export = exporter.begin(item_id).map_err(damaged)?;
    let mut out = BufWriter::with_capacity(WRITE_BYTES, std::io::stdout().lock());
    let mut lines = Vec::new();
    loop {
        let more = export.next(&mut lines).map_err(damaged)?;
        out.write_all(&lines)?;
        lines.clear();
        progress.at("items", export.told().items, Some(export.items()));
        if !more {
            break;
        }
    }
    Ok(out.flush()?)
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
        out.write_all(&line)?;
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
    let progress = Progress::new();
    let mut input = BufReader::with_capacity(WRITE_BYTES, std::io::stdin().lock());
    let mut tell = |step: import::ImportStep| progress.at("items", step.items, Some(step.total));
    let done = import::import(&meant.path, meant.memory, &mut input, identity, clock::wall_ms(), &mut tell);
    drop(progress);
    let told = done.map_err(|error| match error {
        ImportError::Open(error) => not_opened(error),
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
