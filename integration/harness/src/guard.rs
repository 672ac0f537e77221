//! The watchdog: a child process that outlives this one briefly, kills the processes that it started and
//! removes its files.
//!
//! Statics are never dropped, a panic may abort, and Ctrl-C ends a process at once. In all cases the pipes
//! are closed, so the watchdog waits for the end of its standard input.

use crate::bounds;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};

const SCRIPT: &str = r#"
trap '' INT TERM HUP
pids= gentle= dirs=
but() { rest=; for p in $2; do [ "$p" = "$1" ] || rest="$rest $p"; done; }
while read -r verb pid; do
    case $verb in
        add) pids="$pid $pids" ;;
        gentle) gentle="$pid $gentle" ;;
        dir) dirs="$pid $dirs" ;;
        gone) but "$pid" "$pids"; pids=$rest; but "$pid" "$gentle"; gentle=$rest ;;
    esac
done
for p in $gentle; do kill -QUIT "$p" 2>/dev/null; done
for p in $pids; do kill -9 "$p" 2>/dev/null; done
n=0
for p in $pids $gentle; do
    while [ $n -lt 40 ] && kill -0 "$p" 2>/dev/null; do sleep 0.05; n=$((n + 1)); done
done
for p in $gentle; do kill -9 "$p" 2>/dev/null; done
grep -o " $1/[^ ]*" /proc/mounts 2>/dev/null | while read -r m; do umount -l "$m"; done
[ -n "$3" ] || rm -rf -- "$1" "$2" $dirs
"#;

struct Guard {
    watchdog: Option<(Child, ChildStdin)>,
    root: PathBuf,
    nodes: PathBuf,
}

fn temporary(base: &Path) -> PathBuf {
    let made = tempfile::Builder::new().prefix("tidegate-").tempdir_in(base);
    made.unwrap_or_else(|e| panic!("a directory below {}: {e}", base.display())).keep()
}

fn guard() -> &'static Mutex<Guard> {
    static GUARD: OnceLock<Mutex<Guard>> = OnceLock::new();
    GUARD.get_or_init(|| {
        let root = temporary(&std::env::temp_dir());
        let nodes = std::env::var_os("TIDEGATE_TEST_NODES").filter(|base| !base.is_empty());
        let nodes = nodes.map_or_else(|| root.clone(), |base| temporary(Path::new(&base)));
        let keep = std::env::var("TIDEGATE_TEST_KEEP").unwrap_or_default();
        let mut child = Command::new("/bin/sh")
            .args(["-c", SCRIPT, "watchdog"])
            .args([&root, &nodes])
            .arg(keep)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Ctrl-C is sent to the foreground process group; the watchdog must survive it to clean up.
            .process_group(0)
            .spawn()
            .expect("a watchdog process");
        let stdin = child.stdin.take().expect("the watchdog's input");
        Mutex::new(Guard { watchdog: Some((child, stdin)), root, nodes })
    })
}

fn tell(line: &str) {
    let mut guard = guard().lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, stdin)) = &mut guard.watchdog {
        let told = stdin.write_all(line.as_bytes()).and_then(|()| stdin.flush());
        told.expect("the watchdog listens");
    }
}

/// Registers a process to be killed when this one ends, however it ends. The last one started is killed
/// first, because a node that loses its port mapper would start another one, which would remain.
pub(crate) fn watch(pid: u32) {
    tell(&format!("add {pid}\n"));
}

/// The same for a process that must clean up: it gets SIGQUIT first and SIGKILL later.
pub(crate) fn watch_gently(pid: u32) {
    tell(&format!("gentle {pid}\n"));
}

/// Unregisters a process that has been waited for: its id may be reused.
pub(crate) fn forget(pid: u32) {
    tell(&format!("gone {pid}\n"));
}

/// A new directory below this process's temporary root. It is removed after the process has ended, unless
/// `TIDEGATE_TEST_KEEP=1`.
pub fn workdir(name: &str) -> PathBuf {
    let root = guard().lock().unwrap_or_else(PoisonError::into_inner).root.clone();
    dir_below(&root, name)
}

/// A directory for a broker, below `TIDEGATE_TEST_NODES` if that is set: in memory it leaves the disk to the
/// daemons.
pub(crate) fn node_dir() -> PathBuf {
    let nodes = guard().lock().unwrap_or_else(PoisonError::into_inner).nodes.clone();
    dir_below(&nodes, "node")
}

/// A directory for a process of another user, which cannot access the temporary root.
pub(crate) fn open_dir(name: &str) -> PathBuf {
    let base = guard().lock().unwrap_or_else(PoisonError::into_inner).nodes.parent().map(Path::to_owned);
    let made =
        tempfile::Builder::new().prefix(&format!("tidegate-{name}-")).tempdir_in(base.unwrap_or_default());
    let dir = made.expect("a directory for another user").keep();
    tell(&format!("dir {}\n", dir.display()));
    dir
}

fn dir_below(root: &Path, name: &str) -> PathBuf {
    bounds::enter();
    let mut n = 0;
    loop {
        let dir: PathBuf = root.join(format!("{name}-{n}"));
        match std::fs::create_dir(&dir) {
            Ok(()) => return dir,
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => n += 1,
            Err(e) => panic!("cannot create {}: {e}", dir.display()),
        }
    }
}

/// Runs `work`, then kills and removes everything and waits for that: for programs whose last line must not
/// come before the machine is clean.
pub fn run_guarded<T>(work: impl FnOnce() -> T) -> T {
    let result = work();
    let taken = guard().lock().unwrap_or_else(PoisonError::into_inner).watchdog.take();
    if let Some((mut child, stdin)) = taken {
        drop(stdin);
        let _ended = child.wait();
    }
    result
}

/// Whether the process runs; a zombie does not.
pub(crate) fn alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat"));
    stat.is_ok_and(|s| s.rsplit(')').next().is_some_and(|rest| !rest.trim_start().starts_with('Z')))
}
