//! The messages sent to tidegate and to its peers, by a publisher with little overhead.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tidegate_harness::lapin::types::FieldTable;
use tidegate_harness::{now_ms, text, Client, Inbox, Node, Raw, RawProperties};

/// Default body size, bytes.
pub const BODY: usize = 200;
/// Time limit for taking in, or delivering, all messages of a run.
pub const LIMIT: Duration = Duration::from_secs(600);
/// Time limit between two messages.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// The application of all requests.
pub const APPLICATION: &str = "shop";

/// Arguments of a quorum queue.
pub fn quorum() -> FieldTable {
    let mut table = FieldTable::default();
    table.insert("x-queue-type".into(), text("quorum"));
    table
}

fn entry(name: &str, kind: u8, value: &[u8]) -> Vec<u8> {
    let mut bytes = vec![u8::try_from(name.len()).unwrap_or(0)];
    bytes.extend_from_slice(name.as_bytes());
    bytes.push(kind);
    bytes.extend_from_slice(value);
    bytes
}

/// A header with an integer value.
pub fn number(name: &str, value: u64) -> Vec<u8> {
    entry(name, b'l', &value.to_be_bytes())
}

/// Header `x-delay`; none for 0.
pub fn delay(ms: u64) -> Vec<u8> {
    if ms == 0 {
        Vec::new()
    } else {
        number("x-delay", ms)
    }
}

/// Header `x-customer`.
pub fn customer(number: u64) -> Vec<u8> {
    let name = format!("customer-{number}");
    let mut value = u32::try_from(name.len()).unwrap_or(0).to_be_bytes().to_vec();
    value.extend_from_slice(name.as_bytes());
    entry("x-customer", b'S', &value)
}

/// Whether requests have a `message_id`, by which tidegate finds duplicates.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Ids {
    None,
    Each,
}

/// Messages for one exchange and routing key.
#[derive(Clone, Copy)]
pub struct Batch<'a> {
    pub exchange: &'a str,
    pub key: &'a str,
    pub count: u64,
    pub size: usize,
    pub ids: Ids,
}

impl<'a> Batch<'a> {
    /// Requests with the default body for the application.
    pub fn of(exchange: &'a str, count: u64, ids: Ids) -> Batch<'a> {
        Batch { exchange, key: APPLICATION, count, size: BODY, ids }
    }

    /// Messages published directly to a queue.
    pub fn into(queue: &'a str, count: u64) -> Batch<'a> {
        Batch { exchange: "", key: queue, count, size: BODY, ids: Ids::None }
    }

    pub fn size(self, size: usize) -> Batch<'a> {
        Batch { size, ..self }
    }

    /// Publishes them with the headers from `headers(n)`, and waits for all confirms.
    pub fn publish(&self, node: &Node, headers: impl Fn(u64) -> Vec<u8>) {
        self.publish_keyed(node, |n| (self.key, headers(n)));
    }

    /// As [`Batch::publish`], with the routing key and the headers from `message(n)`.
    pub fn publish_keyed(&self, node: &Node, message: impl Fn(u64) -> (&'a str, Vec<u8>)) {
        let mut raw = Raw::connect(node);
        let body = vec![b'x'; self.size];
        // Bounds the unconfirmed bytes too.
        let slice = (2_000_000 / self.size as u64).clamp(10, 500);
        for n in 0..self.count {
            let (key, headers) = message(n);
            let properties = RawProperties::default().headers(&headers).persistent();
            let properties = match self.ids {
                Ids::None => properties,
                Ids::Each => properties.message_id(format!("order-{n:08}").as_bytes()),
            };
            raw.put(self.exchange, key.as_bytes(), &properties, &body);
            if n % slice == slice - 1 {
                raw.settle(usize::try_from(3 * slice).unwrap_or(0));
            }
        }
        raw.settle(0);
    }
}

/// Single requests at a steady rate.
#[derive(Clone, Copy)]
pub struct Steady {
    pub rate: u64,
    pub seconds: u64,
    /// Delays range from one second to one second and this, ms.
    pub spread_ms: u64,
}

impl Steady {
    pub fn count(&self) -> u64 {
        self.rate * self.seconds
    }

    /// Delay of the request with this number, ms. Scattered, because a sequence with steps of equal size makes
    /// many requests due in the same milliseconds at some rates.
    pub fn delay(&self, number: u64) -> u64 {
        1000 + (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % self.spread_ms
    }

    /// Publishes until all are sent or `progress.over` is set. Each body begins with the number of its
    /// request.
    pub fn feed(
        &self,
        node: &Node,
        (exchange, key): (&str, &str),
        progress: &Progress,
        properties: impl Fn(u64, u64) -> RawProperties,
    ) {
        let mut raw = Raw::connect(node);
        let mut body = [b' '; BODY];
        let start = Instant::now();
        let mut n = 0;
        while n < self.count() && !progress.over.load(Ordering::Relaxed) {
            let passed = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
            let target = (passed * self.rate / 1000).min(self.count());
            while n < target {
                body[..20].copy_from_slice(format!("{n:<20}").as_bytes());
                raw.put(exchange, key.as_bytes(), &properties(n, self.delay(n)), &body);
                n += 1;
                progress.sent.store(n, Ordering::Relaxed);
            }
            raw.settle(20_000);
            std::thread::sleep(Duration::from_micros(1_000_000 / self.rate));
        }
        raw.settle(0);
    }
}

/// Progress of a load, and whether it must end.
#[derive(Default)]
pub struct Progress {
    pub sent: AtomicU64,
    pub over: AtomicBool,
}

/// Ends the load when dropped, also by a panic.
pub struct Ends<'a>(pub &'a Progress);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::Relaxed);
    }
}

/// What has arrived of a load of [`Steady::feed`].
#[derive(Default)]
pub struct Arrivals {
    distinct: AtomicU64,
    repeats: AtomicU64,
}

impl Arrivals {
    /// Notes what arrives until `over`.
    pub fn note(&self, inbox: &mut Inbox, over: &AtomicBool) {
        let mut known = HashSet::new();
        while !over.load(Ordering::Relaxed) {
            let Some(received) = inbox.poll(Duration::from_millis(100)) else { continue };
            let counter =
                if known.insert(number_in(&received.body)) { &self.distinct } else { &self.repeats };
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Requests that have arrived, repeats not counted.
    pub fn distinct(&self) -> u64 {
        self.distinct.load(Ordering::Relaxed)
    }

    /// Repeats of them.
    pub fn repeats(&self) -> u64 {
        self.repeats.load(Ordering::Relaxed)
    }
}

/// Properties of a request with an id that is due at the planned time, however late tidegate receives it.
pub fn timed(request: u64, delay_ms: u64) -> RawProperties {
    RawProperties::default()
        .headers(&number("x-deliver-at", now_ms() + delay_ms))
        .persistent()
        .message_id(format!("request-{request}").as_bytes())
}

/// The number at the beginning of a body from [`Steady::feed`].
pub fn number_in(body: &[u8]) -> u64 {
    let digits = body.iter().take_while(|byte| byte.is_ascii_digit());
    digits.fold(0, |number, digit| number * 10 + u64::from(digit - b'0'))
}

/// Properties of a request with a delay.
pub fn delayed(_number: u64, delay_ms: u64) -> RawProperties {
    RawProperties::default().headers(&delay(delay_ms)).persistent()
}

/// Properties of a message that expires after the delay; `x-due` holds that moment.
pub fn expiring(_number: u64, delay_ms: u64) -> RawProperties {
    let due = number("x-due", now_ms() + delay_ms);
    RawProperties::default().headers(&due).persistent().expiration(delay_ms.to_string().as_bytes())
}

/// Waits until a queue has this many ready messages.
pub fn wait_for_depth(client: &Client, queue: &str, count: u64) {
    let end = Instant::now() + LIMIT;
    while u64::from(client.depth(queue).unwrap_or(0)) < count {
        assert!(Instant::now() < end, "not all arrive: {:?} of {count}", client.depth(queue));
        std::thread::sleep(Duration::from_millis(5));
    }
}
