//! Logs on standard error, as text or JSON, for a terminal, a container or the journal; and the report of a
//! panic.
//!
//! Deliberately absent: log files and their rotation (the journal's or the container's work), and colours.

mod stream;

use rustix::fs::fstat;
use std::fmt;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsFd;
use std::panic::PanicHookInfo;
use std::sync::OnceLock;
use std::time::Duration;
use stream::LogStream;
use tracing::{Event, Level, Metadata, Span, Subscriber};
use tracing_subscriber::filter::{filter_fn, FilterExt};
use tracing_subscriber::fmt::format::{self, FormatEvent, FormatFields, JsonFields, Writer};
use tracing_subscriber::fmt::{layer, FmtContext};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

/// The filter that applies unless `TIDEGATE_LOG` sets another.
pub const DEFAULT_FILTER: &str = "info,lapin=off,fjall=warn,lsm_tree=warn";

/// The variable that holds another filter, in the syntax of `tracing_subscriber::EnvFilter`.
pub const FILTER_VARIABLE: &str = "TIDEGATE_LOG";

/// Where the lines of this process go.
static STREAM: OnceLock<LogStream> = OnceLock::new();

/// Time limit for the last lines of the log, whose reader may have stopped reading.
const LAST_LINES_WITHIN: Duration = Duration::from_secs(1);

/// Upper bound on a panic's message, bytes: `unwrap` on an error may print a whole message.
const MAX_PANIC_BYTES: usize = 512;

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// `TIME LEVEL target: message field=value`. The journal records times and levels itself: there, the time
    /// is left out and the level is a `<N>` prefix.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

impl std::str::FromStr for LogFormat {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "text" => Ok(LogFormat::Text),
            "json" => Ok(LogFormat::Json),
            _ => Err("expected text or json"),
        }
    }
}

/// The span of a shard's threads, which names the shard in each of their lines. With one shard there is
/// none.
///
/// A thread enters it once, at its start: that costs a line nothing, and no task can miss it. Its level is
/// the highest, since a span has to be enabled where any line is.
pub(crate) fn shard_span(number: u16, shards: u16) -> Span {
    if shards > 1 {
        tracing::error_span!(target: SHARD_TARGET, "shard", number)
    } else {
        Span::none()
    }
}

/// Target of the spans of shards. No filter turns them off.
const SHARD_TARGET: &str = "tidegate::shard";

/// Sets up logging for this process, once. If `TIDEGATE_LOG` cannot be parsed, the log reports that and the
/// default filter is used: a wrong filter should not keep the daemon from starting.
///
/// # Errors
/// If another subscriber has been set up before.
pub fn init(format: LogFormat) -> Result<(), tracing_subscriber::util::TryInitError> {
    let wanted = std::env::var(FILTER_VARIABLE).ok().filter(|f| !f.trim().is_empty());
    let (filter, error) = match EnvFilter::try_new(wanted.as_deref().unwrap_or(DEFAULT_FILTER)) {
        Ok(filter) => (filter, None),
        Err(e) => (EnvFilter::new(DEFAULT_FILTER), Some(e)),
    };
    let journal = stderr_is_journal(std::env::var("JOURNAL_STREAM").ok().as_deref());
    let (stream, unable) = match stream() {
        Ok(stream) => (Some(stream), None),
        Err(error) => (None, Some(error)),
    };
    let layer = match stream {
        Some(stream) => output(format, journal, move || stream.clone()),
        None => output(format, journal, std::io::stderr),
    };
    tracing_subscriber::registry().with(layer.with_filter(allowed(filter))).try_init()?;
    if let Some(error) = error {
        tracing::warn!(%error, "{FILTER_VARIABLE} is not a filter; the default is used");
    }
    if let Some(error) = unable {
        tracing::warn!(%error, "no thread for the log: if nobody reads standard error, all waits for it");
    }
    Ok(())
}

fn stream() -> std::io::Result<LogStream> {
    let to = File::from(std::io::stderr().as_fd().try_clone_to_owned()?);
    let stream = LogStream::start(to)?;
    Ok(STREAM.get_or_init(|| stream).clone())
}

/// Waits a second at most until all lines are written. To be called before the process ends.
pub fn finish() {
    if let Some(stream) = STREAM.get() {
        stream.finish(LAST_LINES_WITHIN);
    }
}

/// The filter, without the records that must never be logged under any filter. lapin prints the login at
/// TRACE, and whole bodies under its target for returned messages. tokio-postgres prints statement parameters
/// at DEBUG, and they contain payloads. TRACE of other libraries prints data from the wire, too.
fn allowed<S: Subscriber>(filter: EnvFilter) -> impl tracing_subscriber::layer::Filter<S> {
    // Without this hint, each record of each library would be evaluated, even at a disabled level.
    let most = filter.max_level_hint();
    let harmless = filter_fn(harmless);
    let filter = filter.and(match most {
        Some(level) => harmless.with_max_level_hint(level),
        None => harmless,
    });
    let shards = filter_fn(|meta| meta.is_span() && meta.target() == SHARD_TARGET);
    filter.or(shards.with_max_level_hint(Level::ERROR))
}

fn harmless(meta: &Metadata<'_>) -> bool {
    let within = |module: &str| {
        meta.target().strip_prefix(module).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
    };
    if within("lapin::returned_messages") || *meta.level() > Level::INFO && within("tokio_postgres") {
        return false;
    }
    *meta.level() != Level::TRACE || within("tidegate")
}

/// The layer that writes lines. A line that cannot be written is lost: a report on the same stream would
/// panic.
fn output<S, W>(form: LogFormat, journal: bool, writer: W) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: for<'w> tracing_subscriber::fmt::MakeWriter<'w> + Send + Sync + 'static,
{
    let base = layer().with_writer(writer).with_ansi(false).log_internal_errors(false);
    match (form, journal) {
        (LogFormat::Text, false) => base.event_format(Lines { inner: format::format(), journal }).boxed(),
        (LogFormat::Text, true) => base
            .event_format(Lines { inner: format::format().without_time().with_level(false), journal })
            .boxed(),
        (LogFormat::Json, _) => base
            .fmt_fields(JsonFields::new())
            .event_format(Lines { inner: format::format().json().flatten_event(true), journal })
            .boxed(),
    }
}

/// Writes one event per line: a line break within a value (such as an error text) could pass for another
/// event.
struct Lines<F> {
    inner: F,
    /// The level is a prefix, in the journal's form.
    journal: bool,
}

impl<S, N, F> FormatEvent<S, N> for Lines<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(&self, ctx: &FmtContext<'_, S, N>, mut to: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut line = String::new();
        self.inner.format_event(ctx, Writer::new(&mut line), event)?;
        if self.journal {
            write!(to, "<{}>", priority(*event.metadata().level()))?;
        }
        for c in line.trim_end_matches('\n').chars() {
            match c {
                '\n' => to.write_str("\\n")?,
                '\r' => to.write_str("\\r")?,
                c => to.write_char(c)?,
            }
        }
        to.write_char('\n')
    }
}

/// The syslog number of the level.
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        Level::DEBUG | Level::TRACE => 7,
    }
}

/// Whether standard error is the stream that systemd opened for the journal. The variable alone proves
/// nothing: a child process inherits it even if its output goes elsewhere.
fn stderr_is_journal(stream: Option<&str>) -> bool {
    let Some((device, inode)) = stream.and_then(|s| s.split_once(':')) else { return false };
    fstat(std::io::stderr()).is_ok_and(|s| device == s.st_dev.to_string() && inode == s.st_ino.to_string())
}

/// From now on, a panic in any thread is logged at ERROR and ends the process (by SIGABRT). A daemon that
/// continued with a part missing would hold items unnoticed. A restart loses nothing.
pub fn abort_on_panic() {
    std::panic::set_hook(Box::new(|info| {
        report(info);
        finish();
        std::process::abort();
    }));
}

fn report(info: &PanicHookInfo<'_>) {
    let payload = info.payload();
    let text =
        payload.downcast_ref::<&str>().copied().or(payload.downcast_ref::<String>().map(String::as_str));
    let text = shortened(text.unwrap_or("without a message"));
    let location = info.location().map_or_else(String::new, ToString::to_string);
    let thread = std::thread::current();
    let thread = thread.name().unwrap_or("unnamed");
    if tracing::dispatcher::has_been_set() {
        tracing::error!(location, thread, "panic: {text}");
    } else {
        // Not `eprintln`, which panics when standard error is closed.
        let _ = writeln!(std::io::stderr(), "panic in thread {thread} at {location}: {text}");
    }
}

fn shortened(text: &str) -> &str {
    let mut end = text.len().min(MAX_PANIC_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Keeps the log in memory, for tests.
#[cfg(test)]
#[derive(Clone, Default)]
pub(crate) struct LogMemory(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);

#[cfg(test)]
impl LogMemory {
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

#[cfg(test)]
impl std::io::Write for LogMemory {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// The output for these events.
    fn written(form: LogFormat, journal: bool, filter: &str, events: fn()) -> String {
        let memory = LogMemory::default();
        let to = memory.clone();
        let layer = output(form, journal, move || to.clone()).with_filter(allowed(EnvFilter::new(filter)));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), events);
        memory.text()
    }

    #[test]
    fn lines_for_the_journal() {
        let text = written(LogFormat::Text, true, "trace", || {
            tracing::error!(target: "tidegate::x", "a");
            tracing::warn!(target: "tidegate::x", n = 5, "b");
            tracing::info!(target: "tidegate::x", error = %"first\nsecond\r", "c");
            tracing::debug!(target: "tidegate::x", "d");
            tracing::trace!(target: "tidegate::x", "e");
        });
        let x = "tidegate::x:";
        let c = "c error=first\\nsecond\\r";
        assert_eq!(text, format!("<3>{x} a\n<4>{x} b n=5\n<6>{x} {c}\n<7>{x} d\n<7>{x} e\n"));
    }

    #[test]
    fn lines_elsewhere() {
        let text =
            written(LogFormat::Text, false, "info", || tracing::info!(target: "tidegate", n = 1, "up"));
        let (time, rest) = text.split_once(' ').unwrap();
        assert_eq!(rest.trim_start(), "INFO tidegate: up n=1\n");
        assert!(time.starts_with("20") && time.ends_with('Z'), "{time}");
        let text =
            written(LogFormat::Json, false, "info", || tracing::info!(target: "tidegate", n = 1, "up"));
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&json["level"], &json["message"], &json["n"]), (&"INFO".into(), &"up".into(), &1.into()));
    }

    #[test]
    fn a_line_names_its_shard_where_there_are_several() {
        fn events() {
            shard_span(1, 2).in_scope(|| tracing::warn!(target: "tidegate::x", n = 5, "a"));
            shard_span(0, 1).in_scope(|| tracing::warn!(target: "tidegate::x", "b"));
            let entered = shard_span(0, 2).entered();
            tracing::warn!(target: "tidegate::x", "c");
            // As the threads of the store: they belong to the shard that starts them.
            let inherited = Span::current();
            drop(entered);
            inherited.in_scope(|| tracing::warn!(target: "tidegate::x", "d"));
            tracing::warn!(target: "tidegate::x", "e");
        }
        let want = "<4>shard{number=1}: tidegate::x: a n=5\n<4>tidegate::x: b\n\
                    <4>shard{number=0}: tidegate::x: c\n<4>shard{number=0}: tidegate::x: d\n\
                    <4>tidegate::x: e\n";
        for filter in [DEFAULT_FILTER, "warn", "tidegate::x=warn", "trace"] {
            assert_eq!(written(LogFormat::Text, true, filter, events), want, "{filter}");
        }
        let text = written(LogFormat::Text, false, "info", events);
        assert!(text.lines().next().unwrap().ends_with("WARN shard{number=1}: tidegate::x: a n=5"), "{text}");
        let text = written(LogFormat::Json, false, "info", events);
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let told: Vec<_> = lines.iter().map(|line| line["span"]["number"].as_u64()).collect();
        assert_eq!(told, [Some(1), None, Some(0), Some(0), None], "{text}");
        assert_eq!((&lines[0]["span"]["name"], &lines[0]["n"]), (&"shard".into(), &5.into()));
        assert_eq!(written(LogFormat::Text, true, "off", events), "");
    }

    #[test]
    fn what_leaks_is_never_logged() {
        fn events() {
            tracing::warn!(target: "lapin::returned_messages", "canary");
            tracing::error!(target: "lapin::returned_messages::inner", "canary");
            tracing::debug!(target: "tokio_postgres::query", "canary");
            tracing::trace!(target: "lapin", "canary");
            tracing::trace!(target: "lapin::internal_rpc", "canary");
            tracing::trace!(target: "amq_protocol_tcp", "canary");
            tracing::trace!(target: "tidegate_not", "canary");
            tracing::warn!(target: "lapin::channel", "shown");
        }
        for filter in [
            "trace",
            "lapin=trace",
            "info,lapin::returned_messages=trace,lapin::internal_rpc=trace",
            "warn,[{canary}]=trace,lapin::returned_messages=warn",
            DEFAULT_FILTER,
        ] {
            let text = written(LogFormat::Text, true, filter, events);
            // The default filter leaves out lapin's own records: its errors return to the caller, which logs
            // them once.
            let expected = if filter == DEFAULT_FILTER { "" } else { "<4>lapin::channel: shown\n" };
            assert_eq!(text, expected, "{filter}");
        }
    }

    #[test]
    fn the_default_filter() {
        let text = written(LogFormat::Text, true, DEFAULT_FILTER, || {
            tracing::info!(target: "lapin::channel", "hidden");
            tracing::debug!(target: "tidegate", "hidden");
            tracing::info!(target: "tidegate", "shown");
        });
        assert_eq!(text, "<6>tidegate: shown\n");
    }

    /// Otherwise each of the many records that libraries make per message would be evaluated.
    #[test]
    fn what_no_part_of_a_filter_wants_is_not_even_looked_at() {
        use tracing_subscriber::filter::LevelFilter;
        use tracing_subscriber::layer::Filter;
        let most = |filter: &str| {
            let allowed = allowed::<tracing_subscriber::Registry>(EnvFilter::new(filter));
            Filter::<tracing_subscriber::Registry>::max_level_hint(&allowed)
        };
        assert_eq!(most(DEFAULT_FILTER), Some(LevelFilter::INFO));
        assert_eq!(most("warn,tidegate=debug"), Some(LevelFilter::DEBUG));
    }

    #[test]
    fn the_journal_is_recognised_by_its_stream() {
        let s = fstat(std::io::stderr()).unwrap();
        assert!(stderr_is_journal(Some(&format!("{}:{}", s.st_dev, s.st_ino))));
        for other in [None, Some(""), Some("1"), Some("0:0"), Some("x:y")] {
            assert!(!stderr_is_journal(other), "{other:?}");
        }
    }

    #[test]
    fn panic_messages_are_cut_between_characters() {
        assert_eq!(shortened("short"), "short");
        let long = format!("{}é", "x".repeat(MAX_PANIC_BYTES - 1));
        assert_eq!(shortened(&long), &long[..MAX_PANIC_BYTES - 1]);
    }

    /// Runs the test of that name in its own process.
    fn child(name: &str) -> std::process::Output {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--ignored", "--nocapture"])
            .env_remove("JOURNAL_STREAM")
            .env_remove(FILTER_VARIABLE)
            .output()
            .unwrap()
    }

    #[test]
    fn a_panic_in_any_thread_ends_the_process() {
        use std::os::unix::process::ExitStatusExt;
        let output = child("logging::tests::child_panics");
        assert_eq!(output.status.signal(), Some(6), "{output:?}");
        let log = String::from_utf8(output.stderr).unwrap();
        assert!(log.contains("ERROR") && log.contains("panic: gone wrong"), "{log}");
        assert!(log.contains("src/logging/mod.rs:") && log.contains("thread=\"worker\""), "{log}");
    }

    #[test]
    #[ignore = "run as a process of its own by `a_panic_in_any_thread_ends_the_process`"]
    fn child_panics() {
        init(LogFormat::Text).unwrap();
        abort_on_panic();
        let worker = std::thread::Builder::new().name("worker".into()).spawn(|| panic!("gone {}", "wrong"));
        let _ = worker.unwrap().join();
        // Reached only if the hook failed; the parent then finds a clean exit.
    }
}
