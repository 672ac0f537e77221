//! A start that ends before it has received a message says nothing about messages.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::time::Duration;
use tidegate_harness::{wait_until, Daemon, Site};

#[test]
fn a_taken_admin_port_is_no_quick_death() {
    let site = Site::new("port");
    let mut daemon = Daemon::stopped(&site.config(), &site.dir);
    let taken = TcpListener::bind(daemon.admin()).expect("a free port");
    for _ in 0..4 {
        daemon.start_again();
        assert_eq!(daemon.exit(Duration::from_secs(20)).code(), Some(1), "{}", daemon.log_tail());
    }
    let starts = fs::read_to_string(site.dir.join("store/STARTS")).unwrap_or_else(|_| "0\n".to_owned());
    assert_eq!(starts, "0\n", "{}", daemon.log_tail());
    drop(taken);
    // A process that another test has just started has a copy of it until it becomes another program.
    wait_until("the port is free", Duration::from_secs(10), || TcpStream::connect(daemon.admin()).is_err());
    daemon.start_again();
    daemon.wait_ready();
    assert!(!daemon.log().contains("quick deaths"), "{}", daemon.log_tail());
}
