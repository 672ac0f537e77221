//! A TCP proxy in front of the broker that does to connections what networks do: cut, stall or slow them.
//!
//! Two threads per connection, one for each direction. A stalled direction is not read either, so the sender
//! sees full buffers as on a real link.

use rustix::net::sockopt::set_socket_linger;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Interval at which a thread that waits for bytes checks its orders.
const GLANCE: Duration = Duration::from_millis(10);

/// Direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the client to the broker.
    Up,
    /// From the broker to the client.
    Down,
}

/// Treatment of new connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Welcome {
    /// They are forwarded.
    #[default]
    Forward,
    /// Connections are refused.
    Refuse,
    /// Connections are accepted, but nothing is forwarded.
    Silent,
}

#[derive(Debug, Default)]
struct Orders {
    welcome: Welcome,
    stalled: [bool; 2],
    /// Bytes per second, for each direction of each connection; 0: no limit.
    rate: u32,
    /// Connections with a lower number must end; `reset`: by RST.
    cut_below: u64,
    reset: bool,
    stop: bool,
}

#[derive(Debug, Default)]
struct Shared {
    orders: Mutex<Orders>,
    accepted: Mutex<u64>,
}

impl Shared {
    fn orders(&self) -> MutexGuard<'_, Orders> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn accepted(&self) -> MutexGuard<'_, u64> {
        self.accepted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running proxy; dropping it ends its connections.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Listens on a free port of the loopback address, and forwards to `target`.
    pub fn start(target: SocketAddr) -> Proxy {
        let address = SocketAddr::from(([127, 0, 0, 1], crate::ports::free_port()));
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let listener = listen(address);
        let thread = std::thread::spawn(move || serve(address, Some(listener), target, &theirs));
        Proxy { address, shared, thread: Some(thread) }
    }

    /// AMQP URI of the broker through this proxy.
    pub fn uri(&self, user: &str, vhost: &str) -> String {
        format!("amqp://{user}:{user}@{}/{vhost}", self.address)
    }

    /// Its listening address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Connections accepted so far.
    pub fn accepted(&self) -> u64 {
        *self.shared.accepted()
    }

    /// Ends all connections by RST or by FIN; new ones are treated as before.
    pub fn cut(&self, reset: bool) {
        let below = self.accepted() + 1;
        let mut orders = self.shared.orders();
        orders.cut_below = below;
        orders.reset = reset;
    }

    /// Forwards nothing in either direction; connections stay open, and new ones are accepted.
    pub fn stall(&self) {
        self.shared.orders().stalled = [true, true];
    }

    /// Forwards nothing in one direction.
    pub fn stall_one(&self, way: Way) {
        self.shared.orders().stalled[usize::from(way == Way::Down)] = true;
    }

    /// Limits the rate of each direction of each connection, in bytes per second.
    pub fn slow(&self, bytes_per_second: u32) {
        self.shared.orders().rate = bytes_per_second;
    }

    /// Sets the treatment of new connections.
    pub fn welcome(&self, welcome: Welcome) {
        self.shared.orders().welcome = welcome;
    }

    /// Restores the initial state. Connections that met silence end, because they have none to the broker.
    pub fn heal(&self) {
        let mut orders = self.shared.orders();
        *orders = Orders { cut_below: orders.cut_below, reset: orders.reset, ..Orders::default() };
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.orders().stop = true;
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join();
        }
    }
}

fn listen(address: SocketAddr) -> TcpListener {
    let end = Instant::now() + Duration::from_secs(10);
    let listener = loop {
        match TcpListener::bind(address) {
            // A process that was being started when the former listener was closed has a copy of it for a moment.
            Err(error) if error.kind() == ErrorKind::AddrInUse && Instant::now() < end => {
                std::thread::sleep(GLANCE);
            }
            other => break other.expect("the proxy's port"),
        }
    };
    listener.set_nonblocking(true).expect("a listener that does not block");
    listener
}

fn serve(address: SocketAddr, mut listener: Option<TcpListener>, target: SocketAddr, shared: &Arc<Shared>) {
    let mut silent = Vec::new();
    loop {
        let welcome = {
            let orders = shared.orders();
            if orders.stop {
                return;
            }
            orders.welcome
        };
        if welcome != Welcome::Silent {
            silent.clear();
        }
        if welcome == Welcome::Refuse {
            listener = None;
            std::thread::sleep(GLANCE);
            continue;
        }
        let socket = listener.get_or_insert_with(|| listen(address)).accept();
        let Ok((client, _)) = socket else {
            std::thread::sleep(GLANCE / 5);
            continue;
        };
        let number = {
            let mut accepted = shared.accepted();
            *accepted += 1;
            *accepted
        };
        if welcome == Welcome::Silent {
            silent.push(client);
            continue;
        }
        // If the broker is down the client is dropped, as a load balancer does.
        let Ok(broker) = TcpStream::connect_timeout(&target, Duration::from_secs(5)) else { continue };
        forward(number, client, broker, shared);
    }
}

/// Both sockets of one connection. They close when both threads have ended.
struct Pair {
    number: u64,
    client: TcpStream,
    broker: TcpStream,
    ended: AtomicBool,
}

fn forward(number: u64, client: TcpStream, broker: TcpStream, shared: &Arc<Shared>) {
    for socket in [&client, &broker] {
        let set = socket
            .set_nonblocking(false)
            .and_then(|()| socket.set_nodelay(true))
            .and_then(|()| socket.set_read_timeout(Some(GLANCE)))
            .and_then(|()| socket.set_write_timeout(Some(GLANCE)));
        set.expect("options of a socket");
    }
    let pair = Arc::new(Pair { number, client, broker, ended: AtomicBool::new(false) });
    for way in [Way::Up, Way::Down] {
        let (pair, shared) = (Arc::clone(&pair), Arc::clone(shared));
        std::thread::spawn(move || pump(&pair, way, &shared));
    }
}

/// The current order for a direction (stalled, rate); `None`: end.
fn order(pair: &Pair, way: Way, shared: &Shared) -> Option<(bool, u32)> {
    let orders = shared.orders();
    if pair.ended.load(Ordering::Relaxed) || orders.stop {
        return None;
    }
    if pair.number < orders.cut_below {
        if orders.reset {
            for socket in [&pair.client, &pair.broker] {
                let _closes_by_reset = set_socket_linger(socket, Some(Duration::ZERO));
            }
        }
        return None;
    }
    Some((orders.stalled[usize::from(way == Way::Down)], orders.rate))
}

fn pump(pair: &Pair, way: Way, shared: &Shared) {
    let (mut from, mut to) = match way {
        Way::Up => (&pair.client, &pair.broker),
        Way::Down => (&pair.broker, &pair.client),
    };
    let mut buffer = vec![0; 1 << 16];
    let waits = |e: &std::io::Error| {
        matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
    };
    'reading: while let Some((stalled, rate)) = order(pair, way, shared) {
        if stalled {
            std::thread::sleep(GLANCE);
            continue;
        }
        let limit = if rate == 0 { buffer.len() } else { (rate as usize / 20).clamp(1, buffer.len()) };
        let count = match from.read(&mut buffer[..limit]) {
            Ok(0) => break,
            Ok(count) => count,
            Err(e) if waits(&e) => continue,
            Err(_) => break,
        };
        let mut written = 0;
        while written < count {
            let Some((stalled, _)) = order(pair, way, shared) else { break 'reading };
            if stalled {
                std::thread::sleep(GLANCE);
                continue;
            }
            match to.write(&buffer[written..count]) {
                Ok(n) => written += n,
                Err(e) if waits(&e) => {}
                Err(_) => break 'reading,
            }
        }
        if rate > 0 {
            std::thread::sleep(Duration::from_secs_f64(count as f64 / f64::from(rate)));
        }
    }
    pair.ended.store(true, Ordering::Relaxed);
    let reset = {
        let orders = shared.orders();
        orders.reset && pair.number < orders.cut_below
    };
    // After the linger option, closing both sockets sends a RST; a shutdown would send a FIN first.
    if !reset {
        let _gone = pair.client.shutdown(Shutdown::Both);
        let _gone = pair.broker.shutdown(Shutdown::Both);
    }
}
