//! TCP ports for brokers and daemons, of which no other test program of this machine takes the same.
//!
//! A port is free a moment ago at best: whoever asked for it listens later. So a program takes ports by blocks, and holds
//! each block by the name of an abstract socket, which ends with the program however that ends. What such a program has
//! started may live a moment longer: so the next one begins with other blocks.

use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::{Mutex, PoisonError};

/// Below the range from which outgoing connections take theirs.
const FIRST: u16 = 20_000;
const BLOCK: u16 = 100;
const BLOCKS: u16 = 120;

#[derive(Debug)]
struct Ports {
    held: Vec<UnixListener>,
    /// Blocks that have been tried, and the next port of the one that is held last, up to its end.
    tried: u16,
    next: u16,
    end: u16,
}

static PORTS: Mutex<Ports> = Mutex::new(Ports { held: Vec::new(), tried: 0, next: 0, end: 0 });

impl Ports {
    /// Holds one more block.
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

/// A TCP port on which nobody listens, and which nobody else of the tests is given.
pub(crate) fn free_port() -> u16 {
    let mut ports = PORTS.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        if ports.next == ports.end {
            ports.grow();
        }
        let port = ports.next;
        ports.next += 1;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
