//! The built binary as a process: configured by a file, observed through its admin port, ended by signals.

use crate::guard;
use crate::http::{self, HttpAnswer};
use crate::machine;
use crate::ports::free_port;
use crate::util::{holds_within, wait_until, LEAST_WAIT};
use rustix::process::{kill_process, Pid, Signal};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::PipeReader;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

/// The binary under test: `TIDEGATE_BIN`, otherwise the one that cargo has built next to the running test or
/// example.
pub fn binary() -> PathBuf {
    if let Some(path) = std::env::var_os("TIDEGATE_BIN").filter(|p| !p.is_empty()) {
        return PathBuf::from(path);
    }
    let own = std::env::current_exe().expect("the path of this program");
    let target = own.parent().and_then(Path::parent).expect("a target directory");
    target.join("tidegate")
}

/// Whether the binary under test is optimised: tests reduce their size for an unoptimised one, but still
/// exceed its memory several times.
pub fn is_optimised() -> bool {
    binary().components().any(|part| part.as_os_str() == "release")
}

/// A configuration file: TOML values by dotted key.
#[derive(Clone, Debug, Default)]
pub struct Config {
    sections: BTreeMap<String, BTreeMap<String, String>>,
}

impl Config {
    /// Sets one key; everything before the last dot is the section, `value` is TOML.
    #[must_use]
    pub fn set(mut self, key: &str, value: &str) -> Self {
        let (section, name) = key.rsplit_once('.').expect("a key with its section");
        self.sections.entry(section.to_owned()).or_default().insert(name.to_owned(), value.to_owned());
        self
    }

    /// Sets one key to a TOML string.
    #[must_use]
    pub fn text(self, key: &str, value: &str) -> Self {
        let quoted = Value::from(value).to_string();
        self.set(key, &quoted)
    }

    /// Removes one key.
    #[must_use]
    pub fn unset(mut self, key: &str) -> Self {
        let (section, name) = key.rsplit_once('.').expect("a key with its section");
        self.sections.entry(section.to_owned()).or_default().remove(name);
        self
    }

    /// The file's content.
    pub fn render(&self) -> String {
        let mut file = String::new();
        for (section, keys) in &self.sections {
            let _written = writeln!(file, "[{section}]");
            for (name, value) in keys {
                let _written = writeln!(file, "{name} = {value}");
            }
        }
        file
    }
}

/// The result of a client command.
#[derive(Debug)]
pub struct Told {
    /// Exit code; -1 if a signal ended it.
    pub code: i32,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl Told {
    /// Standard output as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("no JSON ({e}): {self:?}"))
    }
}

/// Removes environment variables that would override the file.
fn without_overrides(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("TIDEGATE__") {
            command.env_remove(name);
        }
    }
}

/// A daemon, running or not. Killed when dropped.
#[derive(Debug)]
pub struct Daemon {
    child: Option<Child>,
    traced: bool,
    admin: SocketAddr,
    file: PathBuf,
    log: PathBuf,
    binary: PathBuf,
    environment: BTreeMap<String, String>,
    /// What requests to the admin port present.
    token: Option<String>,
}

impl Daemon {
    /// Writes the configuration into `dir`, with a free admin port, and starts the daemon.
    pub fn start(config: &Config, dir: &Path) -> Daemon {
        let mut daemon = Daemon::prepare(config, dir);
        daemon.launch(Command::new(&daemon.binary));
        daemon
    }

    /// A daemon that [`Daemon::start_again`] will start.
    pub fn stopped(config: &Config, dir: &Path) -> Daemon {
        Daemon::prepare(config, dir)
    }

    /// A second daemon with this configuration and a directory of its own, as on another machine. Not
    /// started.
    pub fn another(config: &Config) -> Daemon {
        let dir = guard::workdir("another");
        let config = config.clone().text("store.path", &dir.join("store").to_string_lossy());
        Daemon::stopped(&config, &dir)
    }

    /// Another binary, from the next start on.
    pub fn use_binary(&mut self, path: &Path) {
        path.clone_into(&mut self.binary);
    }

    /// Sets (or with `None` removes) an environment variable, from the next start on.
    pub fn environment(&mut self, name: &str, value: Option<&str>) {
        match value {
            Some(value) => self.environment.insert(name.to_owned(), value.to_owned()),
            None => self.environment.remove(name),
        };
    }

    /// As [`Daemon::start`] under `strace`, which traces `calls` to the returned file.
    pub fn start_traced(config: &Config, dir: &Path, calls: &str) -> (Daemon, PathBuf) {
        let mut daemon = Daemon::prepare(config, dir);
        let trace = daemon.launch_traced(&[&format!("trace={calls}")]);
        (daemon, trace)
    }

    /// Starts it under `strace` with these expressions, which select what is traced to the returned file and
    /// what is injected into calls.
    pub fn launch_traced(&mut self, expressions: &[&str]) -> PathBuf {
        let trace = self.log.with_file_name("trace");
        let mut command = Command::new("strace");
        command.args(["-f", "-xx", "-s", "65536"]);
        command.args(expressions.iter().flat_map(|expression| ["-e", expression]));
        command.arg("-o").arg(&trace).arg(&self.binary);
        self.traced = true;
        self.launch(command);
        trace
    }

    fn prepare(config: &Config, dir: &Path) -> Daemon {
        let admin = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let config = config.clone().text("admin.listen", &admin.to_string());
        let file = dir.join("tidegate.toml");
        fs::write(&file, config.render()).expect("the configuration file");
        Daemon {
            child: None,
            traced: false,
            admin,
            file,
            log: dir.join("log"),
            binary: binary(),
            environment: BTreeMap::new(),
            token: None,
        }
    }

    fn launch(&mut self, command: Command) {
        let log = OpenOptions::new().create(true).append(true).open(&self.log).expect("the log file");
        let errors = log.try_clone().expect("a second handle");
        self.launch_to(command, log, errors);
    }

    /// Starts it with a pipe as standard error, whose other end is returned: nobody may read it.
    pub fn start_into_pipe(&mut self) -> PipeReader {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        self.launch_to(Command::new(&self.binary), Stdio::null(), writer);
        reader
    }

    fn launch_to(&mut self, mut command: Command, out: impl Into<Stdio>, errors: impl Into<Stdio>) {
        without_overrides(&mut command);
        let child = command
            .arg("run")
            .arg("--config")
            .arg(&self.file)
            // The daemon must set its stack size itself, however it is started.
            .env_remove("RUST_MIN_STACK")
            .envs(&self.environment)
            .stdin(Stdio::null())
            .stderr(errors)
            .stdout(out)
            .process_group(0)
            .spawn();
        let child = child.unwrap_or_else(|e| panic!("cannot start {}: {e}", self.binary.display()));
        guard::watch(child.id());
        self.child = Some(child);
    }

    /// Starts it again after its end, with the same store, configuration and log.
    pub fn start_again(&mut self) {
        assert!(self.child.is_none(), "it still runs");
        self.traced = false;
        self.launch(Command::new(&self.binary));
    }

    /// Rewrites the configuration file; the admin port stays.
    pub fn rewrite(&self, config: &Config) {
        let config = config.clone().text("admin.listen", &self.admin.to_string());
        fs::write(&self.file, config.render()).expect("the configuration file");
    }

    /// Waits for `/readyz`; panics with the log if that takes more than 60 s.
    #[must_use]
    pub fn ready(mut self) -> Self {
        self.wait_ready();
        self
    }

    /// As [`Daemon::ready`], in place.
    pub fn wait_ready(&mut self) {
        let end = Instant::now() + LEAST_WAIT;
        loop {
            let answer = self.ask_whole("GET", "/readyz");
            if answer.as_ref().is_some_and(|answer| answer.status == 200) {
                return;
            }
            if let Some(status) = self.ended() {
                panic!("the daemon ended at its start, {status}:\n{}", self.log_tail());
            }
            assert!(Instant::now() < end, "not ready within {LEAST_WAIT:?}: {answer:?}\n{}", self.log_tail());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn ended(&mut self) -> Option<ExitStatus> {
        let status = self.child.as_mut()?.try_wait().expect("the daemon's status")?;
        let child = self.child.take()?;
        guard::forget(child.id());
        Some(status)
    }

    /// Process id of the daemon itself (not of `strace`).
    pub fn pid(&self) -> u32 {
        let child = self.child.as_ref().expect("a running daemon").id();
        if !self.traced {
            return child;
        }
        let path = format!("/proc/{child}/task/{child}/children");
        let children = fs::read_to_string(path).expect("strace's children");
        children.split_whitespace().next().and_then(|p| p.parse().ok()).expect("a traced daemon")
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw).expect("a process id");
        kill_process(pid, signal).expect("the signal is sent");
    }

    /// SIGTERM.
    pub fn term(&self) {
        self.signal(Signal::TERM);
    }

    /// SIGHUP.
    pub fn hup(&self) {
        self.signal(Signal::HUP);
    }

    /// Stops the process for this time, like a suspended machine.
    pub fn freeze(&self, time: Duration) {
        self.halt();
        std::thread::sleep(time);
        self.thaw();
    }

    /// SIGSTOP, until [`Daemon::thaw`].
    pub fn halt(&self) {
        self.signal(Signal::STOP);
    }

    /// SIGCONT: a stopped process goes on.
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// Whether the process is stopped by a signal.
    pub fn is_frozen(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap_or_default();
        // The name before the state is in parentheses and may contain any character.
        stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T'))
    }

    /// Stops the thread of this name for this time at its next system call; other threads continue. Returns
    /// once the thread is held.
    pub fn hold_thread(&self, name: &str, time: Duration) -> HeldThread {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid())).expect("the daemon's threads");
        let named =
            |path: &PathBuf| fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.trim_end() == name);
        let mut paths = tasks.map(|entry| entry.expect("a thread").path());
        let path = paths.find(named).unwrap_or_else(|| panic!("no thread {name}"));
        let thread = path.file_name().expect("its number").to_string_lossy().into_owned();
        let delay = format!("inject=all:delay_enter={}:when=1", time.as_micros());
        let mut command = Command::new("strace");
        command.args(["-qq", "-o", "/dev/null", "-e", "trace=all", "-e", &delay, "-p", &thread]);
        let child = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().expect("strace");
        guard::watch(child.id());
        let held = HeldThread(child);
        let status = path.join("status");
        // A busy machine may start the tracer seconds later.
        wait_until(&format!("the tracer holds {name}"), LEAST_WAIT, || {
            fs::read_to_string(&status).is_ok_and(|status| status.contains("(tracing stop)"))
        });
        held
    }

    /// SIGKILL, and waits for the end.
    pub fn kill9(&mut self) {
        self.signal(Signal::KILL);
        self.exit(LEAST_WAIT);
    }

    /// Waits for the end of the process; panics with the log after `limit`, which is at least `LEAST_WAIT`.
    pub fn exit(&mut self, limit: Duration) -> ExitStatus {
        let limit = limit.max(LEAST_WAIT);
        let end = Instant::now() + limit;
        loop {
            if let Some(status) = self.ended() {
                return status;
            }
            assert!(Instant::now() < end, "still running after {limit:?}\n{}", self.log_tail());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Whether the process runs.
    pub fn running(&mut self) -> bool {
        self.child.is_some() && self.ended().is_none()
    }

    /// Asks the admin port. Returns the status, and the body as JSON (or as a JSON string if it is not JSON);
    /// `(0, null)` without an answer.
    pub fn ask(&self, method: &str, path: &str) -> (u16, Value) {
        self.ask_with(self.token.as_deref(), method, path)
    }

    /// As [`Daemon::ask`], with this token, or without one.
    pub fn ask_with(&self, token: Option<&str>, method: &str, path: &str) -> (u16, Value) {
        let Some(answer) = http::request(method, self.admin, path, token) else {
            return (0, Value::Null);
        };
        let value = serde_json::from_str(&answer.body).unwrap_or(Value::String(answer.body));
        (answer.status, value)
    }

    /// Requests to the admin port present this token from now on, unless they name another one.
    pub fn present(&mut self, token: &str) {
        self.token = Some(token.to_owned());
    }

    /// As [`Daemon::ask`], with the media type and the unparsed body; `None` without an answer.
    pub fn ask_whole(&self, method: &str, path: &str) -> Option<HttpAnswer> {
        http::request(method, self.admin, path, self.token.as_deref())
    }

    /// `/api/v1/state`. Asks again while there is no answer, or 503: a busy daemon may answer too late.
    ///
    /// # Panics
    /// If it answers otherwise, does not answer within `LEAST_WAIT`, or has ended.
    pub fn state(&self) -> Value {
        let end = Instant::now() + LEAST_WAIT;
        loop {
            let (status, state) = self.ask("GET", "/api/v1/state");
            let runs = self.child.as_ref().is_some_and(|child| guard::alive(child.id()));
            if ![0, 503].contains(&status) || !runs || Instant::now() >= end {
                assert_eq!(status, 200, "/api/v1/state: {state}");
                return state;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The word of the state document: `running`, `standby` and so on; empty if the daemon does not answer.
    pub fn stage(&self) -> String {
        self.ask("GET", "/api/v1/state").1["state"].as_str().unwrap_or_default().to_owned()
    }

    /// Runs the binary with these arguments and this daemon's configuration, and waits for its end.
    pub fn cli(&self, arguments: &[&str]) -> Told {
        self.told(Command::new(&self.binary), arguments)
    }

    /// The same with the daemon's environment, which may have a clock of its own.
    pub fn cli_there(&self, arguments: &[&str]) -> Told {
        let mut command = Command::new(&self.binary);
        command.envs(&self.environment);
        self.told(command, arguments)
    }

    /// The same with a standard output whose reader has closed it: the exit code.
    pub fn cli_unread(&self, arguments: &[&str]) -> i32 {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        self.run(Command::new(&self.binary).stdout(writer), arguments).status.code().unwrap_or(-1)
    }

    /// Runs this command of the binary with this daemon's configuration.
    fn run(&self, command: &mut Command, arguments: &[&str]) -> Output {
        without_overrides(command);
        command.args(arguments).arg("--config").arg(&self.file).stdin(Stdio::null());
        command.output().unwrap_or_else(|e| panic!("{}: {e}", self.binary.display()))
    }

    fn told(&self, mut command: Command, arguments: &[&str]) -> Told {
        let output = self.run(&mut command, arguments);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Told {
            code: output.status.code().unwrap_or(-1),
            out: text(&output.stdout),
            err: text(&output.stderr),
        }
    }

    /// A number of items in `/api/v1/state` (`waiting`, `parked`, ..); 0 without an answer.
    pub fn items(&self, key: &str) -> u64 {
        self.ask("GET", "/api/v1/state").1["items"][key].as_u64().unwrap_or(0)
    }

    /// Waits until it has this many items of a kind (see [`Daemon::items`]); panics with its number after
    /// `LEAST_WAIT`. The daemon may count an event shortly after a client has seen it.
    pub fn holds(&self, key: &str, count: u64) {
        let held = holds_within(Duration::from_secs(20), || self.items(key) == count);
        assert!(held, "{count} items are to be {key}, but: {}", self.items(key));
    }

    /// Address of the admin port.
    pub fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// The configuration file.
    pub fn config_file(&self) -> &Path {
        &self.file
    }

    /// Its whole log so far, across restarts.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The last 4 KiB of the log.
    pub fn log_tail(&self) -> String {
        let log = self.log();
        let mut from = log.len().saturating_sub(4096);
        while !log.is_char_boundary(from) {
            from += 1;
        }
        log[from..].to_owned()
    }

    /// Resident memory now, bytes.
    pub fn rss(&self) -> u64 {
        self.status_kib("VmRSS:") * 1024
    }

    /// Highest resident memory of this process so far, bytes.
    pub fn peak_rss(&self) -> u64 {
        self.status_kib("VmHWM:") * 1024
    }

    fn status_kib(&self, field: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("its status");
        let line = status.lines().find_map(|l| l.strip_prefix(field)).expect("the status field");
        line.split_whitespace().next().and_then(|n| n.parse().ok()).expect("a number of KiB")
    }

    /// Number of times that its current threads have gone to sleep and were woken.
    pub fn wakeups(&self) -> u64 {
        let threads = fs::read_dir(format!("/proc/{}/task", self.pid())).expect("its threads");
        let switches = |thread: fs::DirEntry| {
            // A thread that has just ended counts as 0.
            let status = fs::read_to_string(thread.path().join("status")).unwrap_or_default();
            let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            line.and_then(|count| count.trim().parse::<u64>().ok()).unwrap_or(0)
        };
        threads.flatten().map(switches).sum()
    }

    /// Processor time used so far, user and system, microseconds (in steps of 10 ms).
    pub fn cpu_us(&self) -> u64 {
        machine::cpu_us(self.pid())
    }
}

impl Drop for Daemon {
    #[expect(clippy::print_stderr, reason = "the log belongs to the report of a failed test")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- end of the daemon's log ---\n{}\n---", self.log_tail());
        }
        if self.running() {
            self.signal(Signal::KILL);
            if let Some(mut child) = self.child.take() {
                let _killed = child.kill();
                let _reaped = child.wait();
                guard::forget(child.id());
            }
        }
    }
}

/// A stopped thread; dropping this resumes it.
pub struct HeldThread(Child);

impl Drop for HeldThread {
    fn drop(&mut self) {
        guard::forget(self.0.id());
        let pid = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw).expect("a process id");
        // On SIGTERM strace resumes the thread; SIGKILL might leave it stopped.
        let _ = kill_process(pid, Signal::TERM);
        let _ = self.0.wait();
    }
}
