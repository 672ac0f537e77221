//! Checks the storage engine's logs before the engine opens them.
//!
//! The engine ends the replay of a log at the first part that it cannot read, cuts the file there, and
//! continues with the next log: commits in the middle could be lost silently. So this module first reads
//! every log to its end, and changes nothing. Each batch must be complete (its checksum covers its rows). The
//! commit numbers of the batches must be consecutive within a log, over all logs, and up to the number in
//! `COMMITTED`. An incomplete end of a crash, after all of these, is cut off. Anything else is refused, or
//! set aside with `accept_loss`. The next commit then has a number above all lost ones, so that an accepted
//! gap is never filled.
//!
//! Detected: a changed, zeroed or missing stretch anywhere before the last noted commit; a log missing
//! between two others or at the end. Not detected: the oldest log missing as a whole; all logs emptied at
//! once just after all rows went to tables with the last commit; and the loss of the very last commits
//! together with an outdated `COMMITTED`, which a power cut can leave (the file is not synced). The storage
//! engine detects damage in tables, by a checksum for each block.
//!
//! `docs/upstream/fjall-311.md` offers this check to the storage engine, and says what of it can go then.

use super::directory::{Committed, Directory};
use super::log_batch::{read_batch, LogBatch, ParseError, HEAD};
use super::{recount, OpenError};
use rustix::fs::{seek, SeekFrom};
use std::fmt::Display;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, Read, Seek, Write};
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Upper limit of the sequence numbers used between two commits; a flush uses one or two.
const MOST_SEQUENCE: u64 = 1 << 16;
const CHUNK: usize = 64 << 10;

/// One checked log.
struct Log {
    path: PathBuf,
    /// Byte ranges of complete batches.
    whole: Vec<Range<u64>>,
    /// Whether anything but zeros follows the last of them.
    torn: bool,
    /// Whether a complete batch follows a damaged part.
    damaged: bool,
}

impl Log {
    fn end(&self) -> u64 {
        self.whole.last().map_or(0, |run| run.end)
    }

    fn keep(&mut self, batch: Range<u64>) {
        match self.whole.last_mut() {
            Some(run) if run.end == batch.start => run.end = batch.end,
            Some(_) | None => self.whole.push(batch),
        }
    }
}

/// A difference from the expected state.
#[derive(Debug)]
struct LogFinding {
    place: String,
    /// First and last lost commit, if known.
    lost: Option<(u64, u64)>,
    error: String,
}

impl LogFinding {
    fn text(&self) -> String {
        match self.lost {
            Some((first, last)) => {
                format!("commits {first} to {last} had been made durable and are gone: {}", self.error)
            }
            None => self.error.clone(),
        }
    }

    fn refusal(&self) -> OpenError {
        let error = format!(
            "{}; restore the files, or start with --accept-loss to go on without their contents",
            self.text()
        );
        OpenError::Damaged { place: self.place.clone(), error }
    }
}

/// The state of the check over all logs so far.
#[derive(Default)]
struct ScanState {
    /// Number of the last commit.
    number: Option<u64>,
    sequence: Option<u64>,
    /// The last fault (place and error), to be reported with the commits that it cost.
    broken: Option<(String, String)>,
    /// A commit that follows the fault and is unreachable: the fault is not the incomplete end of a crash.
    beyond: Option<u64>,
    findings: Vec<LogFinding>,
    /// First and last commit of each gap that an earlier start accepted.
    accepted: Vec<(u64, u64)>,
}

impl ScanState {
    fn finding(&mut self, place: String, lost: Option<(u64, u64)>, error: String) {
        let (place, error) = self.broken.take().unwrap_or((place, error));
        self.findings.push(LogFinding { place, lost, error });
    }

    /// Records missing commits, unless an earlier start accepted that they are. An accepted gap keeps its
    /// first and its last commit. A part of one is a new loss: earlier builds gave its numbers out again.
    fn gap(&mut self, place: String, first: u64, last: u64) {
        if self.accepted.contains(&(first, last)) {
            self.broken = None;
        } else {
            self.finding(place, Some((first, last)), "missing".to_owned());
        }
    }

    fn batch(&mut self, log: &Log, at: u64, batch: &LogBatch) {
        let place = || format!("{}, byte {at}", log.path.display());
        // After a gap the sequence number may have grown by any amount.
        let most = if batch.number == self.number.map(|last| last + 1) { MOST_SEQUENCE } else { u64::MAX };
        let step = self.sequence.map(|last| batch.sequence.checked_sub(last));
        if step.is_some_and(|step| !step.is_some_and(|step| (1..most).contains(&step))) {
            self.finding(place(), None, format!("sequence number {} is out of order", batch.sequence));
        }
        self.sequence = Some(batch.sequence);
        let Some(number) = batch.number else { return };
        match self.number.map(|last| (last + 1, number.checked_sub(last + 1))) {
            None | Some((_, Some(0))) => {
                // No loss is known, but a complete batch follows: the fault is not the end of the logs.
                let here = log.path.display().to_string();
                let here = self.broken.as_ref().is_some_and(|(at, _)| at.starts_with(&here));
                if here || self.beyond.is_some() {
                    self.finding(String::new(), None, String::new());
                }
                self.broken = None;
            }
            Some((next, Some(_))) => self.gap(place(), next, number - 1),
            Some((next, None)) => {
                self.finding(place(), None, format!("found commit {number} in place of commit {next}"));
            }
        }
        self.number = Some(number);
        self.beyond = None;
    }

    /// Ends the check. `noted`: the number of the last commit in `COMMITTED`.
    fn end(&mut self, data: &Path, noted: Option<u64>) {
        let place = format!("{}/*.jnl", data.display());
        let known = noted.max(self.beyond).unwrap_or(0);
        match self.number {
            // Never accepted earlier: a start that accepts it goes on with a commit behind it.
            Some(last) if last < known => {
                self.finding(place, Some((last + 1, known)), "the logs end before them".to_owned());
            }
            Some(_) | None if self.beyond.is_some() => {
                self.finding(place, None, "the readable commits are out of order".to_owned());
            }
            Some(_) | None => {}
        }
    }

    /// Records an unreadable place.
    fn broken(&mut self, log: &Log, at: u64, error: &dyn Display) {
        self.broken.get_or_insert_with(|| (format!("{}, byte {at}", log.path.display()), error.to_string()));
    }
}

/// Checks all logs of a store, cuts off the incomplete end of a crash, and refuses damage. With
/// `accept_loss`, a damaged log is set aside in a separate file (its name plus `.damaged`), the losses are
/// recorded for the next start, and the store is marked for [`recount`]. Returns the last commit that was
/// ever accepted as lost, 0 if there is none.
///
/// # Errors
///
/// [`OpenError::Damaged`], which names file, place and lost commits; in that case nothing was changed.
/// [`OpenError::Io`].
pub(crate) fn check(directory: &Directory, accept_loss: bool) -> Result<u64, OpenError> {
    let mut seen = ScanState { accepted: read_accepted(&directory.accepted())?, ..ScanState::default() };
    let mut logs = Vec::new();
    for path in list(&directory.data())? {
        let log = look_through(&path, &mut seen);
        logs.push(log.map_err(OpenError::io("read", &path))?);
    }
    let noted = Committed::noted(directory)?;
    seen.end(&directory.data(), noted);
    if let Some(first) = seen.findings.first().filter(|_| !accept_loss) {
        return Err(first.refusal());
    }
    for finding in &seen.findings {
        tracing::warn!(
            place = finding.place,
            loss = finding.text(),
            "the store is damaged: --accept-loss allows it"
        );
    }
    let lost: Vec<_> = seen.findings.iter().filter_map(|finding| finding.lost).collect();
    if !seen.findings.is_empty() {
        // First: once the damaged log is set aside, nothing shows the loss to a later start.
        recount::mark(directory)?;
        note_accepted(directory, &lost)?;
    }
    for log in &logs {
        let set_aside = log.damaged || (log.torn && accept_loss);
        if set_aside {
            tracing::warn!(path = %log.path.display(), "damaged: only its readable commits stay");
            replace(log).map_err(OpenError::io("set aside", &log.path))?;
        } else if log.torn && noted.is_some() && seen.number.is_some() {
            // The storage engine would cut most shapes of such an end itself, but fails at others.
            cut(&log.path, log.end()).map_err(OpenError::io("cut", &log.path))?;
        }
    }
    Ok(seen.accepted.iter().chain(&lost).map(|(_, last)| *last).max().unwrap_or(0))
}

/// Lists the logs, oldest first.
fn list(data: &Path) -> Result<Vec<PathBuf>, OpenError> {
    let entries = match fs::read_dir(data) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(OpenError::io("list", data)(error)),
    };
    let mut logs = Vec::new();
    for entry in entries {
        let path = entry.map_err(OpenError::io("list", data))?.path();
        let name = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_suffix(".jnl"));
        // A log with another name is left to the storage engine, which refuses it.
        if let Some(number) = name.and_then(|name| name.parse::<u64>().ok()) {
            logs.push((number, path));
        }
    }
    logs.sort();
    Ok(logs.into_iter().map(|(_, path)| path).collect())
}

fn look_through(path: &Path, seen: &mut ScanState) -> io::Result<Log> {
    let file = File::open(path)?;
    let size = file.metadata()?.len();
    let mut reader = BufReader::with_capacity(CHUNK, &file);
    let mut log = Log { path: path.to_owned(), whole: Vec::new(), torn: false, damaged: false };
    let mut at = 0;
    while at < size {
        match read_batch(&mut reader, size - at) {
            Ok(batch) if batch.whole => {
                log.damaged |= log.torn;
                seen.batch(&log, at, &batch);
                log.keep(at..at + batch.len);
                at += batch.len;
            }
            Ok(batch) => {
                seen.broken(&log, at, &"checksum mismatch");
                log.torn = true;
                at += batch.len;
            }
            Err(ParseError::Io(error)) => return Err(error),
            Err(ParseError::Shape(error)) => {
                if is_zero(&file, at, size)? {
                    break;
                }
                log.torn = true;
                seen.broken(&log, at, &error);
                // A payload may look like a batch, so a match is only a hint to look closer.
                seen.beyond = find_batch(&file, at + 1, seen.sequence)?;
                log.damaged |= seen.beyond.is_some();
                break;
            }
        }
    }
    log.torn = log.torn || log.damaged;
    Ok(log)
}

/// Whether only zeros follow: a log is made at its full size and then filled.
fn is_zero(file: &File, from: u64, size: u64) -> io::Result<bool> {
    let mut chunk = vec![0; CHUNK];
    let zeros = vec![0; CHUNK];
    let mut at = from;
    while at < size {
        // Skips holes; a file system without holes reports everything as data.
        match seek(file, SeekFrom::Data(at)) {
            Ok(data) => at = data,
            Err(rustix::io::Errno::NXIO) => return Ok(true),
            Err(error) => return Err(error.into()),
        }
        let read = std::os::unix::fs::FileExt::read_at(file, &mut chunk, at)?;
        if read == 0 {
            return Ok(true);
        }
        if chunk.get(..read) != zeros.get(..read) {
            return Ok(false);
        }
        at += read as u64;
    }
    Ok(true)
}

/// The number of the next complete commit anywhere after `from`. Only for damage, as it reads the rest of the
/// file into memory.
fn find_batch(mut file: &File, from: u64, after: Option<u64>) -> io::Result<Option<u64>> {
    let mut rest = Vec::new();
    file.seek(io::SeekFrom::Start(from))?;
    file.read_to_end(&mut rest)?;
    // Zeros at the end contain no batch.
    rest.truncate(rest.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1));
    for start in 0..rest.len() {
        let Some(bytes @ [1, ..]) = rest.get(start..) else { continue };
        let row = bytes.get(HEAD as usize);
        if !matches!(row, Some(2 | 4)) {
            continue;
        }
        if let Ok(batch) = read_batch(bytes, bytes.len() as u64) {
            let later = after.is_none_or(|after| batch.sequence > after);
            if batch.whole && later && batch.number.is_some() {
                return Ok(batch.number);
            }
        }
    }
    Ok(None)
}

fn cut(path: &Path, len: u64) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(path)?;
    file.set_len(len)?;
    file.sync_all()
}

/// Replaces a log by one with only its complete batches, and keeps the old one beside it.
fn replace(log: &Log) -> io::Result<()> {
    let beside = |ending: &str| {
        let mut name = log.path.clone().into_os_string();
        name.push(ending);
        PathBuf::from(name)
    };
    let (new, old) = (beside(".new"), beside(".damaged"));
    let mut from = File::open(&log.path)?;
    let mut to = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    for run in &log.whole {
        from.seek(io::SeekFrom::Start(run.start))?;
        io::copy(&mut (&from).take(run.end - run.start), &mut to)?;
    }
    to.sync_all()?;
    // After a crash in between, the damaged log is still in place and is refused again.
    if !old.exists() {
        fs::hard_link(&log.path, &old)?;
    }
    fs::rename(&new, &log.path)?;
    log.path.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())
}

/// Accepted losses: one line with first and last commit for each. They remain gaps in the logs until the
/// engine deletes those logs.
fn read_accepted(path: &Path) -> Result<Vec<(u64, u64)>, OpenError> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(OpenError::io("read", path)(error)),
    };
    let line = |line: &str| {
        let (first, last) = line.split_once(' ')?;
        Some((first.parse().ok()?, last.parse().ok()?))
    };
    Ok(text.lines().filter_map(line).collect())
}

/// Notes losses as accepted, each with its first and last commit.
///
/// # Errors
///
/// [`OpenError::Io`].
pub(crate) fn note_accepted(directory: &Directory, lost: &[(u64, u64)]) -> Result<(), OpenError> {
    let path = directory.accepted();
    let known = read_accepted(&path)?;
    let append = || {
        let mut file = OpenOptions::new().append(true).create(true).mode(0o600).open(&path)?;
        for (first, last) in lost.iter().filter(|gap| !known.contains(gap)) {
            writeln!(file, "{first} {last}")?;
        }
        file.sync_all()
    };
    append().map_err(OpenError::io("write to", &path))
}
