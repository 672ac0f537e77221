//! What the service manager is told when the daemon stops.

use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};
use tidegate_harness::{Daemon, Site};

/// The service manager's end of the line.
struct Manager(UnixDatagram);

impl Manager {
    /// Messages up to and including the first that begins so.
    fn until(&self, start: &str) -> Vec<String> {
        let end = Instant::now() + Duration::from_secs(30);
        let mut all: Vec<String> = vec![];
        while !all.last().is_some_and(|text| text.starts_with(start)) {
            assert!(Instant::now() < end, "no {start}: {all:?}");
            let mut bytes = [0; 1_024];
            if let Ok(length) = self.0.recv(&mut bytes) {
                all.push(String::from_utf8_lossy(&bytes[..length]).into_owned());
            }
        }
        all
    }
}

#[test]
fn the_time_of_the_drain_is_asked_for_at_its_begin() {
    let site = Site::new("drain");
    let path = site.dir.join("notify");
    let manager = Manager(UnixDatagram::bind(&path).expect("a socket"));
    manager.0.set_read_timeout(Some(Duration::from_secs(1))).expect("a time limit");
    // Longer than the unit's TimeoutStopSec.
    let mut daemon = Daemon::stopped(&site.config().text("timeouts.drain", "90s"), &site.dir);
    daemon.environment("NOTIFY_SOCKET", Some(&path.to_string_lossy()));
    daemon.start_again();
    manager.until("READY=1");
    daemon.wait_ready();
    daemon.term();
    manager.until("STOPPING=1");
    let asked = manager.until("EXTEND_TIMEOUT_USEC=");
    let micros = asked.last().and_then(|text| text.trim_end().split_once('=')?.1.parse::<u64>().ok());
    assert!(micros >= Some(90_000_000), "{asked:?}");
    assert!(daemon.exit(Duration::from_secs(30)).success());
}
