//! Messages to systemd: ready, status, reloading, stopping, and the watchdog's sign of life.
//!
//! Without `NOTIFY_SOCKET` (a shell, a container) everything here does nothing. A message that cannot be sent
//! is logged once and never stops the daemon. The protocol is lines of text in a datagram (sd_notify(3)).
//! Sending has a time limit, because a service manager that hangs must not hang the loop.

use rustix::time::{clock_gettime, ClockId};
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Longest wait for room in systemd's socket.
const SEND_TIMEOUT: Duration = Duration::from_millis(500);

/// Longest status text, bytes; `systemctl status` shows one line.
const MAX_STATUS_BYTES: usize = 256;

/// The connection to the service manager.
#[derive(Debug)]
pub struct Notify {
    socket: Option<UnixDatagram>,
    /// The status text that was sent last.
    status: Mutex<String>,
    failed: AtomicBool,
}

impl Notify {
    /// The service manager named by `NOTIFY_SOCKET`, if any. A socket that cannot be reached is logged.
    pub fn from_env() -> Notify {
        let Some(path) = std::env::var_os("NOTIFY_SOCKET").filter(|p| !p.is_empty()) else {
            return Notify::none();
        };
        Notify::to(&path).unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot reach the service manager");
            Notify::none()
        })
    }

    /// No service manager: all methods do nothing.
    pub fn none() -> Notify {
        Notify { socket: None, status: Mutex::default(), failed: AtomicBool::new(false) }
    }

    /// The socket of this path; a leading `@` stands for the abstract name space.
    pub(crate) fn to(path: &OsStr) -> io::Result<Notify> {
        let address = match path.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(path)?,
        };
        let socket = UnixDatagram::unbound()?;
        socket.connect_addr(&address)?;
        socket.set_write_timeout(Some(SEND_TIMEOUT))?;
        Ok(Notify { socket: Some(socket), ..Notify::none() })
    }

    /// Start-up or a reload is complete.
    pub fn ready(&self) {
        self.send("READY=1\n");
    }

    /// Sends one line for `systemctl status`, unless it equals the previous one.
    pub fn status(&self, text: &str) {
        let mut line = String::new();
        for c in text.chars().map(|c| if c.is_control() { ' ' } else { c }) {
            if line.len() + c.len_utf8() > MAX_STATUS_BYTES {
                break;
            }
            line.push(c);
        }
        let mut last = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        if *last != line {
            self.send(&format!("STATUS={line}\n"));
            *last = line;
        }
    }

    /// A reload begins; [`ready`](Self::ready) ends it, whether or not it succeeds. Systemd 253 and later
    /// require the time in the same datagram.
    pub fn reloading(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        let usec = i128::from(now.tv_sec) * 1_000_000 + i128::from(now.tv_nsec) / 1_000;
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={usec}\n"));
    }

    /// The graceful stop has begun.
    pub fn stopping(&self) {
        self.send("STOPPING=1\n");
    }

    /// Every part of the daemon has made progress or has nothing to do.
    pub fn watchdog(&self) {
        self.send("WATCHDOG=1\n");
    }

    /// Start or stop is still in progress and takes up to `by` from now.
    pub fn extend_timeout(&self, by: Duration) {
        self.send(&format!("EXTEND_TIMEOUT_USEC={}\n", by.as_micros()));
    }

    fn send(&self, text: &str) {
        let Some(socket) = &self.socket else { return };
        match socket.send(text.as_bytes()) {
            Ok(_) => self.failed.store(false, Ordering::Relaxed),
            Err(error) if !self.failed.swap(true, Ordering::Relaxed) => {
                tracing::warn!(%error, "cannot notify the service manager");
            }
            Err(_) => {}
        }
    }
}

/// How often to call [`Notify::watchdog`]: half of the unit's interval. `None` if this process has no
/// watchdog.
pub fn watchdog_interval() -> Option<Duration> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let is_ours = std::env::var_os("WATCHDOG_PID").is_none()
        || number("WATCHDOG_PID") == Some(std::process::id().into());
    let half = Duration::from_micros(number("WATCHDOG_USEC").filter(|_| is_ours)? / 2);
    (!half.is_zero()).then_some(half)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// The service manager's end.
    struct Manager(UnixDatagram);

    impl Manager {
        fn new(socket: UnixDatagram) -> Manager {
            socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            Manager(socket)
        }

        fn next(&self) -> String {
            let mut bytes = [0; 1_024];
            let n = self.0.recv(&mut bytes).unwrap();
            String::from_utf8(bytes[..n].to_vec()).unwrap()
        }

        fn empty(&self) -> bool {
            self.0.set_nonblocking(true).unwrap();
            let empty = self.0.recv(&mut [0; 1]).is_err();
            self.0.set_nonblocking(false).unwrap();
            empty
        }
    }

    #[test]
    fn messages() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let manager = Manager::new(UnixDatagram::bind(&path).unwrap());
        let notify = Notify::to(path.as_os_str()).unwrap();
        notify.ready();
        assert_eq!(manager.next(), "READY=1\n");
        notify.status("waiting\nREADY=0");
        assert_eq!(manager.next(), "STATUS=waiting READY=0\n");
        notify.status("waiting READY=0");
        assert!(manager.empty(), "the same text twice");
        notify.status(&"é".repeat(1_000));
        assert_eq!(manager.next(), format!("STATUS={}\n", "é".repeat(MAX_STATUS_BYTES / 2)));
        notify.reloading();
        let reloading = manager.next();
        let time = reloading.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap();
        assert!(time.trim_end().parse::<u64>().unwrap() > 0, "one datagram: {reloading}");
        notify.watchdog();
        assert_eq!(manager.next(), "WATCHDOG=1\n");
        notify.extend_timeout(Duration::from_secs(5));
        assert_eq!(manager.next(), "EXTEND_TIMEOUT_USEC=5000000\n");
        notify.extend_timeout(Duration::from_secs(10_000));
        assert_eq!(manager.next(), "EXTEND_TIMEOUT_USEC=10000000000\n");
        notify.stopping();
        assert_eq!(manager.next(), "STOPPING=1\n");
        assert!(manager.empty());
    }

    #[test]
    fn without_a_manager_nothing_fails() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Notify::to(dir.path().join("none").as_os_str()).is_err());
        Notify::none().ready();
        let path = dir.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        let notify = Notify::to(path.as_os_str()).unwrap();
        drop(manager);
        notify.ready();
        notify.ready();
        assert!(notify.failed.load(Ordering::Relaxed));
    }

    #[test]
    fn an_abstract_socket_from_the_environment() {
        let name = format!("tidegate-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let manager = Manager::new(UnixDatagram::bind_addr(&address).unwrap());
        let run = |watchdog_pid: &str| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", "notify::tests::child_notifies", "--ignored"]);
            command.env("NOTIFY_SOCKET", format!("@{name}")).env("WATCHDOG_USEC", "30000000");
            if watchdog_pid.is_empty() {
                command.env_remove("WATCHDOG_PID");
            } else {
                command.env("WATCHDOG_PID", watchdog_pid);
            }
            assert!(command.output().unwrap().status.success());
            (manager.next(), manager.next())
        };
        assert_eq!(run(""), ("READY=1\n".into(), "STATUS=Some(15s)\n".into()));
        assert_eq!(run("1"), ("READY=1\n".into(), "STATUS=None\n".into()));
    }

    #[test]
    #[ignore = "run as a process of its own by another test"]
    fn child_notifies() {
        let notify = Notify::from_env();
        notify.ready();
        notify.status(&format!("{:?}", watchdog_interval()));
    }
}
