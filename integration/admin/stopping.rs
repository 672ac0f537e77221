//! What the daemon tells when it stops: to probes, and to the service manager; and what it tells the latter when a part
//! of it stalls.

use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};
use tidegate_harness::{has_disk_store, wait_until, Daemon, Node, Site};

/// The watchdog interval: longer than a busy machine delays a healthy daemon.
const WATCHDOG: Duration = Duration::from_secs(4);
const WATCHDOG_US: &str = "4000000";

/// The service manager's end of the notify socket.
struct Manager(UnixDatagram);

impl Manager {
    /// Receives messages up to and including the first that begins with `start`.
    fn until(&self, start: &str) -> Vec<String> {
        let end = Instant::now() + Duration::from_secs(60);
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

impl Manager {
    /// A manager for this daemon, used from its next start on.
    fn of(daemon: &mut Daemon, site: &Site<'_>) -> Manager {
        let path = site.dir.join("notify");
        let manager = Manager(UnixDatagram::bind(&path).expect("a socket"));
        manager.0.set_read_timeout(Some(Duration::from_secs(1))).expect("a time limit");
        daemon.environment("NOTIFY_SOCKET", Some(&path.to_string_lossy()));
        manager
    }

    /// The messages received so far.
    fn told(&self) -> Vec<String> {
        self.0.set_nonblocking(true).expect("a mode");
        let mut bytes = [0; 1_024];
        let told = std::iter::from_fn(|| self.0.recv(&mut bytes).ok().map(|n| bytes[..n].to_vec()));
        let told = told.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).collect();
        self.0.set_nonblocking(false).expect("a mode");
        told
    }
}

/// The disk does not answer for half a minute: the daemon sees only a call that does not return.
#[test]
fn a_part_that_stalls_keeps_the_watchdog_from_being_fed() {
    if !has_disk_store() {
        return;
    }
    let site = Site::new("stalled");
    site.application("shop");
    let mut daemon = Daemon::stopped(&site.config().text("timeouts.stuck_after", "4s"), &site.dir);
    let manager = Manager::of(&mut daemon, &site);
    daemon.environment("WATCHDOG_USEC", Some(WATCHDOG_US));
    daemon.launch_traced(&["trace=fdatasync", "inject=fdatasync:delay_enter=30000000:when=40"]);
    daemon.wait_ready();
    manager.until("WATCHDOG=1");
    let mut sent = 0;
    wait_until("a call that does not come back", Duration::from_secs(60), || {
        sent += 1;
        site.client.publish(&site.push("shop", "{}").with("x-delay", "1h").id(&sent.to_string()));
        daemon.log().contains("stuck: this part has work")
    });
    assert!(daemon.log().contains("part=\"store\""), "{}", daemon.log_tail());
    manager.told();
    // Only status messages may arrive within the watchdog interval.
    std::thread::sleep(WATCHDOG);
    let told = manager.told();
    assert!(!told.iter().any(|text| text.starts_with("WATCHDOG=1")), "{told:?}");
    manager.until("WATCHDOG=1");
    let log = daemon.log();
    assert_eq!(log.matches("stuck: this part has work").count(), 1, "a line for the change: {log}");
    wait_until("a line for its end", Duration::from_secs(10), || daemon.log().contains("not stuck any more"));
}

/// The threads of the connections, and the loop's thread: each is stopped alone for longer than the watchdog
/// interval.
#[test]
fn each_part_that_stands_still_trips_the_watchdog() {
    let site = Site::new("stands-still");
    site.application("shop");
    let mut daemon = Daemon::stopped(&site.config().text("timeouts.stuck_after", "4s"), &site.dir);
    let manager = Manager::of(&mut daemon, &site);
    daemon.environment("WATCHDOG_USEC", Some(WATCHDOG_US));
    daemon.start_again();
    daemon.wait_ready();
    for (thread, part) in [("tidegate-in", "ingest"), ("tidegate-out", "egress"), ("tidegate-loop", "loop")] {
        manager.until("WATCHDOG=1");
        let named = format!("part=\"{part}\"");
        let is_said = |line: &&str| line.contains("stuck: this part has") && line.contains(&named);
        let lines = || daemon.log().lines().filter(is_said).count();
        let before = lines();
        let held = daemon.hold_thread(thread, Duration::from_secs(60));
        // A separate thread notices the stalled part and logs it.
        wait_until("a line", Duration::from_secs(30), || lines() > before);
        manager.told();
        std::thread::sleep(WATCHDOG);
        let told = manager.told();
        assert!(!told.iter().any(|text| text.starts_with("WATCHDOG=1")), "{thread}: {told:?}");
        drop(held);
    }
    manager.until("WATCHDOG=1");
}

/// Excluded: a daemon that is taken for ready although it takes no more requests.
#[test]
fn a_daemon_that_drains_is_not_ready() {
    const LIMIT: Duration = Duration::from_secs(60);
    let Some(node) = Node::lent("a_daemon_that_drains_is_not_ready") else { return };
    let site = Site::on(&node, "drains");
    site.application("shop");
    let mut daemon = site.start(&site.config().text("timeouts.drain", "90s"));
    let order = |verb: &str| daemon.ask("POST", &format!("/api/v1/applications/shop/{verb}")).0;
    assert_eq!(order("pause"), 200);
    site.client.publish(&site.push("shop", "{}").id("due"));
    wait_until("it is held", LIMIT, || daemon.ask("GET", "/api/v1/applications/shop").1["total"] == 1);
    // What is due cannot leave, so the stop takes a while.
    node.memory_alarm(true);
    assert_eq!(order("resume"), 200);
    wait_until("the state says so", LIMIT, || daemon.stage() == "blocked");
    assert_eq!(daemon.ask("GET", "/readyz").0, 200);
    daemon.term();
    wait_until("it drains, and is not ready", LIMIT, || {
        let (status, told) = daemon.ask("GET", "/readyz");
        daemon.stage() == "draining" && status == 503 && told["missing"].to_string().contains("consumer")
    });
    node.memory_alarm(false);
    assert!(daemon.exit(LIMIT).success(), "{}", daemon.log_tail());
}

#[test]
fn the_time_of_the_drain_is_asked_for_at_its_begin() {
    let site = Site::new("drain");
    // Longer than the unit's `TimeoutStopSec`.
    let mut daemon = Daemon::stopped(&site.config().text("timeouts.drain", "90s"), &site.dir);
    let manager = Manager::of(&mut daemon, &site);
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
