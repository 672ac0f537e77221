//! The AMQP layer under test: started against a scripted broker, observed by its events, shut down at the
//! end.

use super::{Peer, Seen};
use lapin::BasicProperties;
use std::collections::{BTreeMap, VecDeque};
use std::io::Write;
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::{Arc, Mutex, Once};
use std::time::{Duration, Instant};
use tidegate_amqp::{Amqp, BrokerEvent, Event, LinkStatus, Options, Side};
use tidegate_config::{Endpoint, Readings, Timeouts};
use tidegate_types::event::Intake;
use tidegate_types::{Batch, BatchItem, ClosedBy, Format, Outcome, Request, RequestBody, Settled};
use tidegate_wire::{encode, request, Exchanges, Incoming, RequestLimits};

/// Part of the login of every test; it must not appear in any output.
pub const PASSWORD: &str = "canary-password";
/// The store's identity.
pub const STORE: u64 = 7;
/// The longest wait of a test for an event.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Both sides of the AMQP layer on a separate runtime, and their events.
pub struct Daemon {
    pub amqp: Amqp,
    events: Receiver<Event>,
    /// Requests that arrived in one chunk with a requested one.
    requests: Mutex<VecDeque<Request>>,
    pub runtime: tokio::runtime::Runtime,
}

impl Daemon {
    pub fn start(options: Options) -> Daemon {
        // Several times PATIENCE, because a test waits for several events.
        tidegate_harness::bounded(PATIENCE * 5);
        log();
        let runtime = runtime();
        let (sender, events) = channel();
        let on_event = Arc::new(move |event| {
            // The test may have ended.
            let _ = sender.send(event);
        });
        let amqp = Amqp::start((runtime.handle(), runtime.handle()), options, on_event);
        amqp.intake(Intake::Resume);
        Daemon { amqp, events, requests: Mutex::default(), runtime }
    }

    /// The first event that `pick` accepts; earlier ones are dropped.
    pub fn wait<T>(&self, what: &str, mut pick: impl FnMut(Event) -> Option<T>) -> T {
        let end = Instant::now() + PATIENCE;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let event =
                self.events.recv_timeout(left).unwrap_or_else(|_| panic!("waited in vain for {what}"));
            if let Some(found) = pick(event) {
                return found;
            }
        }
    }

    pub fn ready(&self) {
        self.wait("EgressReady", |event| {
            matches!(event, Event::Broker(BrokerEvent::EgressReady)).then_some(())
        });
    }

    /// The next `count` outcomes; fails if a batch is settled twice.
    pub fn settled(&self, count: usize) -> BTreeMap<u64, Outcome> {
        let mut all = BTreeMap::new();
        while all.len() < count {
            for (number, outcome) in self.settled_next() {
                assert_eq!(all.insert(number, outcome), None, "batch {number} settled twice");
            }
        }
        assert_eq!(all.len(), count);
        all
    }

    /// The outcomes of the next event.
    pub fn settled_next(&self) -> Vec<(u64, Outcome)> {
        let settled: Vec<Settled> = self.wait("outcomes", |event| match event {
            Event::Settled(settled) => Some(settled),
            _ => None,
        });
        settled.into_iter().map(|Settled { number, outcome }| (number, outcome)).collect()
    }

    pub fn request(&self) -> Request {
        let mut requests = self.requests.lock().unwrap();
        if requests.is_empty() {
            requests.extend(self.wait("a request", |event| match event {
                Event::Requests { requests, .. } => Some(requests),
                _ => None,
            }));
        }
        requests.pop_front().unwrap()
    }

    pub fn quiet_for(&self, time: Duration, unwanted: impl Fn(&Event) -> bool) {
        let end = Instant::now() + time;
        while let Ok(event) = self.events.recv_timeout(end.saturating_duration_since(Instant::now())) {
            assert!(!unwanted(&event), "{event:?}");
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.runtime.block_on(self.amqp.shutdown(Duration::from_secs(2)));
    }
}

pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

pub fn endpoint(host: &str, port: u16) -> Endpoint {
    Endpoint {
        tls: None,
        login: tidegate_config::Login::Password,
        host: host.to_owned(),
        port,
        vhost: "/".to_owned(),
        user: "tester".to_owned(),
        password: PASSWORD.into(),
        password_file: None,
    }
}

/// Time limits that a busy machine does not exceed: a test that is about one sets its own.
pub fn options(port: u16) -> Options {
    let endpoints = vec![endpoint("127.0.0.1", port)];
    Options {
        lease: None,
        figures: Arc::default(),
        amqp: tidegate_config::AmqpConfig {
            endpoints: endpoints.clone(),
            // The scripted broker sends none: the library ends a connection on which nothing comes for twice as long.
            heartbeat: Duration::from_secs(60),
            ..tidegate_config::AmqpConfig::default()
        },
        ingest: tidegate_config::IngestConfig {
            queue: "tidegate.ingest".into(),
            exchange: "tidegate.in".into(),
            prefetch: 1_000,
        },
        names: tidegate_amqp::blueprint::Names::of(&tidegate_config::Config::default()),
        forwarding: None,
        egress: tidegate_config::EgressConfig {
            exchange: "tidegate.out".into(),
            endpoints,
            tls: Arc::default(),
            max_in_flight: 1_000,
        },
        dead: tidegate_config::Config::default().dead,
        limits: limits(),
        readings: Arc::default(),
        spans: None,
        progress: Arc::default(),
        memory: 1 << 30,
        timeouts: Timeouts {
            connect: Duration::from_secs(60),
            confirm: Duration::from_secs(60),
            drain: Duration::from_secs(5),
            stuck_after: Duration::from_secs(30),
        },
        store_identity: STORE,
        quarantine: None,
        held_limit: Duration::from_secs(1_500),
        answer_limit: Duration::from_secs(5),
    }
}

pub fn limits() -> RequestLimits {
    RequestLimits { max_body: 8 << 20, max_envelope_items: 100, max_delay_ms: 1 << 40, frame_max: 128 << 10 }
}

/// A batch of one item; its application is `app` and its number.
pub fn batch(number: u64) -> Batch {
    let incoming = Incoming {
        exchange: "tidegate.in",
        routing_key: "app",
        properties: BasicProperties::default(),
        body: number.to_string().into_bytes(),
        received: 1_000,
    };
    let RequestBody::Items(items) = request(incoming, &limits(), &Readings::default(), STORE) else {
        panic!("a plain request is understood")
    };
    Batch {
        number,
        application: format!("app{number}").into(),
        customer: None,
        dead: None,
        format: Format::Json,
        closed_by: ClosedBy::Time,
        attempt: 1,
        due: 1_000,
        held: None,
        alone: false,
        items: vec![BatchItem {
            seq: number,
            window: number,
            accepted_due: 1_000,
            due: 1_000,
            received: 1_000,
            attempts: 0,
            retry: 0,
            content: items[0].content.clone(),
        }],
    }
}

/// Confirmed, with the id of [`batch`] with this number.
pub fn confirmed(number: u64) -> Outcome {
    let names = Exchanges::new("tidegate.out", "tidegate.dead");
    Outcome::Confirmed(encode(&batch(number), &names, STORE, 0).id)
}

/// Sends each ack to `acked`: connection, tag, multiple.
pub fn acks_into(peer: &mut Peer, n: usize, acked: &Sender<(usize, u64, bool)>) {
    loop {
        match peer.next() {
            Seen::Ack { tag, multiple } => acked.send((n, tag, multiple)).unwrap(),
            Seen::Gone => return,
            _ => {}
        }
    }
}

pub fn down_of(side: Side) -> impl FnMut(Event) -> Option<(String, Duration)> {
    move |event| match event {
        Event::Broker(BrokerEvent::Link { side: s, link: LinkStatus::Down { error, retry_in } })
            if s == side =>
        {
            Some((error, retry_in))
        }
        _ => None,
    }
}

pub fn up_of(side: Side) -> impl FnMut(Event) -> Option<String> {
    move |event| match event {
        Event::Broker(BrokerEvent::Link { side: s, link: LinkStatus::Up { address, .. } }) if s == side => {
            Some(address)
        }
        _ => None,
    }
}

/// A property list with only headers: nested tables of this depth.
pub fn nested_headers(depth: usize) -> Vec<u8> {
    let mut table: Vec<u8> = Vec::new();
    for _ in 0..depth {
        // Written backwards: content, length, type, name, length of the name.
        let length = u32::try_from(table.len()).unwrap();
        table.extend(length.to_be_bytes().iter().rev());
        table.extend([b'F', b'n', 1]);
    }
    let length = u32::try_from(table.len()).unwrap();
    table.extend(length.to_be_bytes().iter().rev());
    table.reverse();
    let mut properties = vec![0x20, 0x00];
    properties.extend(table);
    properties
}

/// The debug log of all threads of this process.
pub fn log() -> Arc<Mutex<Vec<u8>>> {
    static LOG: Mutex<Option<Arc<Mutex<Vec<u8>>>>> = Mutex::new(None);
    static ONCE: Once = Once::new();
    struct Sink(Arc<Mutex<Vec<u8>>>);
    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let log = LOG.lock().unwrap().get_or_insert_with(Arc::default).clone();
    ONCE.call_once(|| {
        let sink = log.clone();
        tracing_subscriber::fmt()
            .with_max_level(tracing::Level::DEBUG)
            .with_ansi(false)
            .with_writer(move || Sink(sink.clone()))
            .init();
    });
    log
}
