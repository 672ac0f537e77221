//! A scripted AMQP 0-9-1 broker on a loopback port: real sockets, frames made by hand, answers in any order.
//!
//! It speaks just enough for a client to connect, set up, publish and consume; the script decides the rest.
//! One thread for each connection, blocking, every read bounded. Deliberately absent: queues, routing,
//! memory.

#![expect(
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "a test fails by panicking; scripts skip the rest"
)]

pub mod harness;

use amq_protocol::frame::{gen_frame, parse_frame, AMQPContentHeader, AMQPFrame, WriteContext};
use amq_protocol::protocol::{
    basic, channel, confirm, connection, exchange, queue, AMQPClass, BasicProperties,
};
use amq_protocol::types::{AMQPValue, FieldTable};
use std::collections::{HashMap, HashSet};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// The longest wait of a script for its client.
const PATIENCE: Duration = Duration::from_secs(60);
const BASIC: u16 = 60;

/// The behaviour of one connection; the number counts the connections of its side from 0.
pub type Script = Box<dyn Fn(Peer, usize) + Send + Sync>;

/// A listening broker; it ends with the test process.
pub struct FakeBroker {
    pub port: u16,
}

/// Actions of the client that a script may react to. [`Peer::next`] answers the rest.
#[derive(Debug)]
pub enum Seen {
    Consume {
        channel: u16,
        tag: String,
        prefetch: u16,
    },
    Cancelled,
    Published(Box<Published>),
    Ack {
        tag: u64,
        multiple: bool,
    },
    /// A declaration was refused.
    Refused,
    /// The consumers of a queue, set by [`Peer::consumers`], were counted.
    Counted,
    /// The client opens a channel, which waits for [`Peer::open_held`].
    Held,
    /// The client closed a channel.
    Closed,
    /// The client is gone, or sent nothing within the patience.
    Gone,
}

#[derive(Clone, Debug)]
pub struct Published {
    pub channel: u16,
    /// Confirm tag: counts the publishes of the channel from 1.
    pub tag: u64,
    pub exchange: String,
    pub routing_key: String,
    pub mandatory: bool,
    pub properties: BasicProperties,
    pub body: Vec<u8>,
}

/// One connection of a client, as the broker sees it.
pub struct Peer {
    stream: TcpStream,
    /// `connection_name` of the client.
    pub name: String,
    unread: Vec<u8>,
    prefetch: u16,
    /// Declarations of these names close their channel, with this code and text.
    refused: HashMap<String, (u16, String)>,
    /// Declarations of these queues are not answered.
    silent: HashSet<String>,
    /// Consumer counts of these queues.
    consumers: HashMap<String, u32>,
    /// Channels whose opening is not answered so far; `None`: each is answered at once.
    held: Option<Vec<u16>>,
    /// Open channels, and how many there may be.
    open: HashSet<u16>,
    most_open: usize,
    published: HashMap<u16, u64>,
    /// Number of `confirm.select` received.
    selects: u32,
    /// Deliveries are marked as redelivered.
    redelivers: bool,
    /// A publish whose header or body is incomplete, and the size of that body.
    partial: Option<(Published, Option<u64>)>,
}

impl FakeBroker {
    /// Listens. Connections whose name begins with `tidegate egress` run the second script, all others the
    /// first.
    pub fn start(host: &str, ingest: Script, egress: Script) -> FakeBroker {
        FakeBroker::answering(host, ingest, egress, idle())
    }

    /// The same, with a script for connections named `tidegate answers`.
    pub fn answering(host: &str, ingest: Script, egress: Script, answers: Script) -> FakeBroker {
        let listener = TcpListener::bind((host, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let scripts = Arc::new([ingest, egress, answers].map(|script| (script, AtomicUsize::new(0))));
        thread::spawn(move || {
            for stream in listener.incoming() {
                let scripts = scripts.clone();
                thread::spawn(move || {
                    let Some(peer) = Peer::welcome(stream.unwrap()) else { return };
                    let side = match peer.name.as_str() {
                        "tidegate answers" => 2,
                        name if name.starts_with("tidegate egress") => 1,
                        _ => 0,
                    };
                    let (script, count) = &scripts[side];
                    script(peer, count.fetch_add(1, Ordering::Relaxed));
                });
            }
        });
        FakeBroker { port }
    }
}

/// A script that only answers.
pub fn idle() -> Script {
    Box::new(|mut peer, _| peer.serve())
}

impl Peer {
    fn welcome(stream: TcpStream) -> Option<Peer> {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        let mut peer = Peer {
            stream,
            name: String::new(),
            unread: Vec::new(),
            prefetch: 0,
            refused: HashMap::new(),
            silent: HashSet::new(),
            consumers: HashMap::new(),
            held: None,
            open: HashSet::new(),
            most_open: usize::MAX,
            published: HashMap::new(),
            selects: 0,
            redelivers: false,
            partial: None,
        };
        peer.read_frame()?;
        peer.method(
            0,
            AMQPClass::Connection(connection::AMQPMethod::Start(connection::Start {
                version_major: 0,
                version_minor: 9,
                server_properties: FieldTable::default(),
                mechanisms: "PLAIN".into(),
                locales: "en_US".into(),
            })),
        );
        if let AMQPFrame::Method(0, AMQPClass::Connection(connection::AMQPMethod::StartOk(ok))) =
            peer.read_frame()?
        {
            if let Some(AMQPValue::LongString(name)) = ok.client_properties.inner().get("connection_name") {
                peer.name = name.to_string();
            }
        }
        peer.method(
            0,
            AMQPClass::Connection(connection::AMQPMethod::Tune(connection::Tune {
                channel_max: 2047,
                frame_max: 131_072,
                heartbeat: 60,
            })),
        );
        peer.read_frame()?; // tune-ok
        peer.read_frame()?; // open
        peer.method(0, AMQPClass::Connection(connection::AMQPMethod::OpenOk(connection::OpenOk {})));
        Some(peer)
    }

    /// Answers until the client is gone.
    pub fn serve(&mut self) {
        while !matches!(self.next(), Seen::Gone) {}
    }

    /// The next action that concerns a script.
    pub fn next(&mut self) -> Seen {
        loop {
            let Some(frame) = self.read_frame() else { return Seen::Gone };
            let seen = match frame {
                AMQPFrame::Method(channel, method) => self.answer(channel, method),
                AMQPFrame::Header(_, header) => self.content(Some(header), Vec::new()),
                AMQPFrame::Body(_, body) => self.content(None, body),
                AMQPFrame::Heartbeat | AMQPFrame::InvalidHeartbeat(_) | AMQPFrame::ProtocolHeader(_) => None,
            };
            if let Some(seen) = seen {
                return seen;
            }
        }
    }

    /// From now on one channel more than this ends the connection, as the login may open no more.
    pub fn allow_channels(&mut self, most: usize) {
        self.most_open = most;
    }

    /// Answers no opening of a channel from now on.
    pub fn hold_opens(&mut self) {
        self.held = Some(Vec::new());
    }

    /// Answers all openings of channels, those that were held too. Returns how many these were.
    pub fn open_held(&mut self) -> usize {
        let held = self.held.take().unwrap_or_default();
        for id in &held {
            self.method(*id, AMQPClass::Channel(channel::AMQPMethod::OpenOk(channel::OpenOk {})));
        }
        held.len()
    }

    /// Answers until `count` `confirm.select` have arrived in total. Returns false if the client is gone.
    pub fn answer_selects(&mut self, count: u32) -> bool {
        while self.selects < count {
            match self.read_frame() {
                Some(AMQPFrame::Method(channel, method)) => drop(self.answer(channel, method)),
                Some(_) => {}
                None => return false,
            }
        }
        true
    }

    /// Whether no frame arrives within this time.
    pub fn is_quiet(&mut self, time: Duration) -> bool {
        self.stream.set_read_timeout(Some(time)).unwrap();
        let nothing = self.read_frame().is_none();
        self.stream.set_read_timeout(Some(PATIENCE)).unwrap();
        nothing
    }

    /// The next publish; panics if the client is gone before.
    pub fn next_publish(&mut self) -> Published {
        loop {
            match self.next() {
                Seen::Published(published) => return *published,
                Seen::Gone => panic!("gone before the publish"),
                _ => {}
            }
        }
    }

    /// Channel, consumer tag and prefetch of the next `basic.consume`; `None` if the client is gone before.
    pub fn next_consume(&mut self) -> Option<(u16, String, u16)> {
        loop {
            match self.next() {
                Seen::Consume { channel, tag, prefetch } => return Some((channel, tag, prefetch)),
                Seen::Gone => return None,
                _ => {}
            }
        }
    }

    pub fn ack(&mut self, channel: u16, tag: u64, multiple: bool) {
        let ack = basic::Ack { delivery_tag: tag, multiple };
        self.method(channel, AMQPClass::Basic(basic::AMQPMethod::Ack(ack)));
    }

    pub fn nack(&mut self, channel: u16, tag: u64) {
        let nack = basic::Nack { delivery_tag: tag, multiple: false, requeue: false };
        self.method(channel, AMQPClass::Basic(basic::AMQPMethod::Nack(nack)));
    }

    /// Returns a publish by `basic.return`, with its content.
    pub fn give_back(&mut self, published: &Published) {
        let method = AMQPClass::Basic(basic::AMQPMethod::Return(basic::Return {
            reply_code: 312,
            reply_text: "NO_ROUTE".into(),
            exchange: published.exchange.as_str().into(),
            routing_key: published.routing_key.as_str().into(),
        }));
        self.method(published.channel, method);
        self.payload(published.channel, published.properties.clone(), &published.body);
    }

    /// Whether deliveries are marked as redelivered from now on.
    pub fn redeliver(&mut self, redelivers: bool) {
        self.redelivers = redelivers;
    }

    pub fn deliver(
        &mut self,
        channel: u16,
        consumer: &str,
        tag: u64,
        properties: BasicProperties,
        body: &[u8],
    ) {
        self.announce(channel, consumer, tag);
        self.payload(channel, properties, body);
    }

    /// `basic.deliver` with the raw bytes of a property list (flags first) and an empty body.
    pub fn deliver_raw(&mut self, channel: u16, consumer: &str, tag: u64, properties: &[u8]) {
        self.announce(channel, consumer, tag);
        let mut payload = Vec::new();
        payload.extend(BASIC.to_be_bytes());
        payload.extend(0u16.to_be_bytes());
        payload.extend(0u64.to_be_bytes());
        payload.extend(properties);
        let mut frame = vec![2];
        frame.extend(channel.to_be_bytes());
        frame.extend(u32::try_from(payload.len()).unwrap().to_be_bytes());
        frame.extend(payload);
        frame.push(0xCE);
        self.write(&frame);
    }

    /// From now on a declaration of this queue or exchange is refused.
    pub fn refuse(&mut self, name: &str, code: u16, text: &str) {
        self.refused.insert(name.to_owned(), (code, text.to_owned()));
    }

    /// From now on a declaration of this queue is not answered, as by a busy queue.
    pub fn silence(&mut self, queue: &str) {
        self.silent.insert(queue.to_owned());
    }

    /// From now on this queue has `count` consumers, whatever the client does.
    pub fn consumers(&mut self, queue: &str, count: u32) {
        self.consumers.insert(queue.to_owned(), count);
    }

    /// Declarations of this name are accepted again.
    pub fn accept(&mut self, name: &str) {
        self.refused.remove(name);
    }

    /// The broker closes a channel.
    pub fn close_channel(&mut self, channel: u16, code: u16, text: &str) {
        let close = channel::Close { reply_code: code, reply_text: text.into(), class_id: 0, method_id: 0 };
        self.method(channel, AMQPClass::Channel(channel::AMQPMethod::Close(close)));
    }

    /// Closes the connection, and waits until the client is gone. From then on nothing is answered, as the
    /// protocol requires: an answer would be a fault to the client and arrive before the reason.
    pub fn close_connection(&mut self, code: u16, text: &str) {
        let close =
            connection::Close { reply_code: code, reply_text: text.into(), class_id: 0, method_id: 0 };
        self.method(0, AMQPClass::Connection(connection::AMQPMethod::Close(close)));
        while self.read_frame().is_some() {}
    }

    pub fn blocked(&mut self, reason: &str) {
        let blocked = connection::Blocked { reason: reason.into() };
        self.method(0, AMQPClass::Connection(connection::AMQPMethod::Blocked(blocked)));
    }

    pub fn unblocked(&mut self) {
        self.method(0, AMQPClass::Connection(connection::AMQPMethod::Unblocked(connection::Unblocked {})));
    }

    fn announce(&mut self, channel: u16, consumer: &str, tag: u64) {
        let method = AMQPClass::Basic(basic::AMQPMethod::Deliver(basic::Deliver {
            consumer_tag: consumer.into(),
            delivery_tag: tag,
            redelivered: self.redelivers,
            exchange: "tidegate.in".into(),
            routing_key: "app".into(),
        }));
        self.method(channel, method);
    }

    fn payload(&mut self, channel: u16, properties: BasicProperties, body: &[u8]) {
        let header = AMQPContentHeader { class_id: BASIC, body_size: body.len() as u64, properties };
        self.send(&AMQPFrame::Header(channel, header));
        if !body.is_empty() {
            self.send(&AMQPFrame::Body(channel, body.to_vec()));
        }
    }

    /// Confirms every method; returns those that concern a script.
    fn answer(&mut self, id: u16, method: AMQPClass) -> Option<Seen> {
        let reply = match method {
            AMQPClass::Channel(channel::AMQPMethod::Open(_)) => {
                if self.open.len() >= self.most_open {
                    let text = format!("NOT_ALLOWED - the maximum is ({})", self.most_open);
                    self.close_connection(530, &text);
                    return Some(Seen::Gone);
                }
                self.open.insert(id);
                self.published.insert(id, 0);
                if let Some(held) = &mut self.held {
                    held.push(id);
                    return Some(Seen::Held);
                }
                AMQPClass::Channel(channel::AMQPMethod::OpenOk(channel::OpenOk {}))
            }
            AMQPClass::Channel(channel::AMQPMethod::CloseOk(_)) => {
                self.open.remove(&id);
                return None;
            }
            AMQPClass::Channel(channel::AMQPMethod::Close(_)) => {
                self.open.remove(&id);
                self.method(id, AMQPClass::Channel(channel::AMQPMethod::CloseOk(channel::CloseOk {})));
                return Some(Seen::Closed);
            }
            AMQPClass::Connection(connection::AMQPMethod::Close(_)) => {
                self.method(
                    0,
                    AMQPClass::Connection(connection::AMQPMethod::CloseOk(connection::CloseOk {})),
                );
                return None;
            }
            AMQPClass::Exchange(exchange::AMQPMethod::Declare(declare))
                if self.refused.contains_key(declare.exchange.as_str()) =>
            {
                return self.refusal(id, declare.exchange.as_str());
            }
            AMQPClass::Queue(queue::AMQPMethod::Declare(declare))
                if self.refused.contains_key(declare.queue.as_str()) =>
            {
                return self.refusal(id, declare.queue.as_str());
            }
            AMQPClass::Queue(queue::AMQPMethod::Declare(declare))
                if self.silent.contains(declare.queue.as_str()) =>
            {
                return None;
            }
            AMQPClass::Exchange(exchange::AMQPMethod::Declare(_)) => {
                AMQPClass::Exchange(exchange::AMQPMethod::DeclareOk(exchange::DeclareOk {}))
            }
            AMQPClass::Queue(queue::AMQPMethod::Declare(declare)) => {
                let consumers = self.consumers.get(declare.queue.as_str()).copied();
                let declared = queue::DeclareOk {
                    queue: declare.queue,
                    // A backlog, so that a consumer starts with a small prefetch.
                    message_count: 1_000,
                    consumer_count: consumers.unwrap_or(0),
                };
                self.method(id, AMQPClass::Queue(queue::AMQPMethod::DeclareOk(declared)));
                return (declare.passive && consumers.is_some()).then_some(Seen::Counted);
            }
            AMQPClass::Queue(queue::AMQPMethod::Bind(_)) => {
                AMQPClass::Queue(queue::AMQPMethod::BindOk(queue::BindOk {}))
            }
            AMQPClass::Confirm(confirm::AMQPMethod::Select(_)) => {
                self.selects += 1;
                AMQPClass::Confirm(confirm::AMQPMethod::SelectOk(confirm::SelectOk {}))
            }
            AMQPClass::Basic(method) => return self.basic(id, method),
            _ => return None,
        };
        self.method(id, reply);
        None
    }

    fn refusal(&mut self, id: u16, name: &str) -> Option<Seen> {
        let (code, text) = self.refused[name].clone();
        self.close_channel(id, code, &text);
        Some(Seen::Refused)
    }

    fn basic(&mut self, id: u16, method: basic::AMQPMethod) -> Option<Seen> {
        match method {
            basic::AMQPMethod::Qos(qos) => {
                self.prefetch = qos.prefetch_count;
                self.method(id, AMQPClass::Basic(basic::AMQPMethod::QosOk(basic::QosOk {})));
                None
            }
            basic::AMQPMethod::Consume(consume) => {
                let tag = consume.consumer_tag;
                let ok = basic::ConsumeOk { consumer_tag: tag.clone() };
                self.method(id, AMQPClass::Basic(basic::AMQPMethod::ConsumeOk(ok)));
                Some(Seen::Consume { channel: id, tag: tag.to_string(), prefetch: self.prefetch })
            }
            basic::AMQPMethod::Cancel(cancel) => {
                let ok = basic::CancelOk { consumer_tag: cancel.consumer_tag };
                self.method(id, AMQPClass::Basic(basic::AMQPMethod::CancelOk(ok)));
                Some(Seen::Cancelled)
            }
            basic::AMQPMethod::Ack(ack) => Some(Seen::Ack { tag: ack.delivery_tag, multiple: ack.multiple }),
            basic::AMQPMethod::Publish(publish) => {
                let tag = self.published.entry(id).or_default();
                *tag += 1;
                let published = Published {
                    channel: id,
                    tag: *tag,
                    exchange: publish.exchange.to_string(),
                    routing_key: publish.routing_key.to_string(),
                    mandatory: publish.mandatory,
                    properties: BasicProperties::default(),
                    body: Vec::new(),
                };
                self.partial = Some((published, None));
                None
            }
            _ => None,
        }
    }

    fn content(&mut self, header: Option<AMQPContentHeader>, body: Vec<u8>) -> Option<Seen> {
        let (mut published, mut size) = self.partial.take().unwrap();
        if let Some(header) = header {
            published.properties = header.properties;
            size = Some(header.body_size);
        }
        published.body.extend(body);
        if size == Some(published.body.len() as u64) {
            return Some(Seen::Published(Box::new(published)));
        }
        self.partial = Some((published, size));
        None
    }

    fn method(&mut self, channel: u16, method: AMQPClass) {
        self.send(&AMQPFrame::Method(channel, method));
    }

    fn send(&mut self, frame: &AMQPFrame) {
        let bytes = gen_frame(frame)(WriteContext::from(Vec::new())).unwrap().into_inner().0;
        self.write(&bytes);
    }

    /// The client may be gone; the next read notices.
    fn write(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    fn read_frame(&mut self) -> Option<AMQPFrame> {
        loop {
            if let Ok((rest, frame)) = parse_frame(self.unread.as_slice()) {
                let used = self.unread.len() - rest.len();
                self.unread.drain(..used);
                return Some(frame);
            }
            let mut buffer = [0; 65_536];
            match self.stream.read(&mut buffer) {
                Ok(0) | Err(_) => return None,
                Ok(read) => self.unread.extend(&buffer[..read]),
            }
        }
    }
}
