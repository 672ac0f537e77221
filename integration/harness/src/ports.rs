//! TCP ports for brokers and daemons, unique among the test programs of this machine.
//!
//! Testing whether a port is free is not enough, because its user binds it later. So a program reserves ports
//! in blocks, each by binding the name of an abstract socket, which is released when the program ends in any
//! way. Processes that it has started may live a little longer, so the next program begins with other blocks.

use std::net::TcpStream;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::{Mutex, PoisonError};

/// Below the range of ephemeral ports.
const FIRST: u16 = 20_000;
const BLOCK: u16 = 100;
const BLOCKS: u16 = 120;

#[derive(Debug)]
struct Ports {
    held: Vec<UnixListener>,
    /// Number of blocks tried; next port and end of the block reserved last.
    tried: u16,
    next: u16,
    end: u16,
}

static PORTS: Mutex<Ports> = Mutex::new(Ports { held: Vec::new(), tried: 0, next: 0, end: 0 });

impl Ports {
    /// Reserves one more block.
    fn grow(&mut self) {
        while self.tried < BLOCKS {
            let block = (std::process::id() + u32::from(self.tried)) % u32::from(BLOCKS);
            let first = FIRST + block as u16 * BLOCK;
            self.tried += 1;
            let name = SocketAddr::from_abstract_name(format!("tidegate-test-ports-{first}"));
            if let Ok(listener) = UnixListener::bind_addr(&name.expect("a short name")) {
                self.held.push(listener);
                (self.next, self.end) = (first, first + BLOCK);
                return;
            }
        }
        panic!("no free TCP port between {FIRST} and {}", FIRST + BLOCKS * BLOCK);
    }
}

/// A TCP port without a listener, unique among the tests.
pub(crate) fn free_port() -> u16 {
    let mut ports = PORTS.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        if ports.next == ports.end {
            ports.grow();
        }
        let port = ports.next;
        ports.next += 1;
        // Bound and closed again for a try, it could still be bound: a process that is started at this moment has a
        // copy of every socket until it has become another program.
        if TcpStream::connect(("127.0.0.1", port)).is_err() {
            return port;
        }
    }
}
