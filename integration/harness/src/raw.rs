//! A minimal AMQP 0-9-1 publisher on a plain socket, for messages that no correct library would send, and for
//! fast load.

use crate::broker::Node;
use std::collections::BTreeSet;
use std::io::{self, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

const FRAME_END: u8 = 0xCE;
const FRAME_MAX: usize = 131_072;

/// Basic properties in wire format; set them in the order of the protocol's flags.
#[derive(Clone, Debug, Default)]
pub struct RawProperties {
    flags: u16,
    bytes: Vec<u8>,
}

impl RawProperties {
    fn put(mut self, bit: u16, bytes: &[u8]) -> Self {
        assert!(
            u32::from(self.flags) & ((2 << bit) - 1) == 0,
            "properties are set in the order of their flags"
        );
        self.flags |= 1 << bit;
        self.bytes.extend_from_slice(bytes);
        self
    }

    fn short(self, bit: u16, value: &[u8]) -> Self {
        let mut bytes = vec![u8::try_from(value.len()).expect("a short string")];
        bytes.extend_from_slice(value);
        self.put(bit, &bytes)
    }

    /// Content type, any bytes.
    #[must_use]
    pub fn content_type(self, value: &[u8]) -> Self {
        self.short(15, value)
    }

    /// The header table: encoded entries, without the length prefix.
    #[must_use]
    pub fn headers(self, entries: &[u8]) -> Self {
        let mut bytes = length(entries.len());
        bytes.extend_from_slice(entries);
        self.put(13, &bytes)
    }

    /// Delivery mode 2.
    #[must_use]
    pub fn persistent(self) -> Self {
        self.put(12, &[2])
    }

    /// Expiration, any bytes.
    #[must_use]
    pub fn expiration(self, value: &[u8]) -> Self {
        self.short(8, value)
    }

    /// Message id, any bytes.
    #[must_use]
    pub fn message_id(self, value: &[u8]) -> Self {
        self.short(7, value)
    }

    /// Type, any bytes.
    #[must_use]
    pub fn kind(self, value: &[u8]) -> Self {
        self.short(5, value)
    }
}

fn length(n: usize) -> Vec<u8> {
    u32::try_from(n).expect("a length of 32 bits").to_be_bytes().to_vec()
}

/// A header entry with nested arrays of this depth: five bytes per level, the deepest nesting that fits into
/// a frame.
pub fn nested_arrays(name: &str, depth: usize) -> Vec<u8> {
    let mut entry = vec![u8::try_from(name.len()).expect("a short name")];
    entry.extend_from_slice(name.as_bytes());
    for level in 0..depth {
        entry.push(b'A');
        entry.extend_from_slice(&length((depth - 1 - level) * 5));
    }
    entry
}

/// An open connection with one channel in confirm mode.
pub struct Raw {
    writer: TcpStream,
    reader: BufReader<TcpStream>,
    sent: u64,
    /// Tags without a confirm.
    unconfirmed: BTreeSet<u64>,
    out: Vec<u8>,
}

impl Raw {
    /// Connects to the node's main virtual host.
    pub fn connect(node: &Node) -> Raw {
        let (address, vhost, user, password) = node.login();
        let writer = TcpStream::connect(address).expect("a connection to the broker");
        writer.set_nodelay(true).expect("TCP_NODELAY");
        writer.set_read_timeout(Some(Duration::from_secs(30))).expect("a read timeout");
        writer.set_write_timeout(Some(Duration::from_secs(30))).expect("a write timeout");
        let reader = BufReader::with_capacity(1 << 16, writer.try_clone().expect("a second handle"));
        let mut raw = Raw { writer, reader, sent: 0, unconfirmed: BTreeSet::new(), out: Vec::new() };
        raw.open(&vhost, &user, &password).expect("the AMQP handshake");
        raw
    }

    fn open(&mut self, vhost: &str, user: &str, password: &str) -> io::Result<()> {
        self.writer.write_all(b"AMQP\x00\x00\x09\x01")?;
        self.expect(10, 10)?;
        let mut start_ok = length(0);
        start_ok.extend_from_slice(b"\x05PLAIN");
        let response = format!("\0{user}\0{password}");
        start_ok.extend(length(response.len()));
        start_ok.extend_from_slice(response.as_bytes());
        start_ok.extend_from_slice(b"\x05en_US");
        self.method(0, 10, 11, &start_ok)?;
        self.expect(10, 30)?;
        // channel-max 16, our frame-max, no heartbeat.
        let mut tune_ok = vec![0, 16];
        tune_ok.extend(length(FRAME_MAX));
        tune_ok.extend_from_slice(&[0, 0]);
        self.method(0, 10, 31, &tune_ok)?;
        let mut open = vec![u8::try_from(vhost.len()).expect("a short string")];
        open.extend_from_slice(vhost.as_bytes());
        open.extend_from_slice(&[0, 0]);
        self.method(0, 10, 40, &open)?;
        self.expect(10, 41)?;
        self.method(1, 20, 10, &[0])?;
        self.expect(20, 11)?;
        self.method(1, 85, 10, &[0])?;
        self.expect(85, 11)
    }

    fn frame(&mut self, kind: u8, channel: u16, payload: &[u8]) {
        self.out.push(kind);
        self.out.extend_from_slice(&channel.to_be_bytes());
        self.out.extend(length(payload.len()));
        self.out.extend_from_slice(payload);
        self.out.push(FRAME_END);
    }

    fn method(&mut self, channel: u16, class: u16, method: u16, arguments: &[u8]) -> io::Result<()> {
        let mut payload = Vec::with_capacity(arguments.len() + 4);
        payload.extend_from_slice(&class.to_be_bytes());
        payload.extend_from_slice(&method.to_be_bytes());
        payload.extend_from_slice(arguments);
        self.frame(1, channel, &payload);
        self.flush()
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.write_all(&self.out)?;
        self.out.clear();
        Ok(())
    }

    /// Reads method frames up to one with this class and method; records confirms on the way.
    fn expect(&mut self, class: u16, method: u16) -> io::Result<()> {
        loop {
            let (found, arguments) = self.read_method()?;
            if found == (class, method) {
                return Ok(());
            }
            self.note(found, &arguments)?;
        }
    }

    fn read_method(&mut self) -> io::Result<((u16, u16), Vec<u8>)> {
        loop {
            let mut head = [0u8; 7];
            self.reader.read_exact(&mut head)?;
            let size = u32::from_be_bytes([head[3], head[4], head[5], head[6]]) as usize;
            let mut payload = vec![0; size + 1];
            self.reader.read_exact(&mut payload)?;
            if head[0] == 1 && size >= 4 {
                let class = u16::from_be_bytes([payload[0], payload[1]]);
                let method = u16::from_be_bytes([payload[2], payload[3]]);
                return Ok(((class, method), payload[4..size].to_vec()));
            }
        }
    }

    fn note(&mut self, found: (u16, u16), arguments: &[u8]) -> io::Result<()> {
        match found {
            (60, 80) if arguments.len() == 9 => {
                let tag = u64::from_be_bytes(arguments[..8].try_into().expect("eight bytes"));
                if arguments[8] & 1 == 1 {
                    self.unconfirmed = self.unconfirmed.split_off(&(tag + 1));
                } else {
                    self.unconfirmed.remove(&tag);
                }
                Ok(())
            }
            (10, 50) | (20, 40) => {
                let text = String::from_utf8_lossy(arguments).into_owned();
                Err(io::Error::other(format!("the broker closed: {text}")))
            }
            (60, 120) => Err(io::Error::other("the broker nacked a message of the test")),
            _ => Ok(()),
        }
    }

    /// Adds one message to the write buffer.
    pub fn put(&mut self, exchange: &str, key: &[u8], properties: &RawProperties, body: &[u8]) {
        let mut publish = vec![0, 60, 0, 40, 0, 0, u8::try_from(exchange.len()).expect("a short string")];
        publish.extend_from_slice(exchange.as_bytes());
        publish.push(u8::try_from(key.len()).expect("a short string"));
        publish.extend_from_slice(key);
        publish.push(0);
        self.frame(1, 1, &publish);
        let mut header = vec![0, 60, 0, 0];
        header.extend_from_slice(&(body.len() as u64).to_be_bytes());
        header.extend_from_slice(&properties.flags.to_be_bytes());
        header.extend_from_slice(&properties.bytes);
        assert!(header.len() + 8 <= FRAME_MAX, "a header frame must fit: {}", header.len());
        self.frame(2, 1, &header);
        for part in body.chunks(FRAME_MAX - 8) {
            self.frame(3, 1, part);
        }
        self.sent += 1;
        self.unconfirmed.insert(self.sent);
    }

    /// Writes the buffer and waits until at most `open` messages are unconfirmed.
    pub fn settle(&mut self, open: usize) {
        self.flush().expect("the broker takes the frames");
        while self.unconfirmed.len() > open {
            let (found, arguments) = self.read_method().expect("a confirm of the broker");
            self.note(found, &arguments).expect("a confirm of the broker");
        }
    }

    /// Publishes one message and waits for its confirm.
    pub fn publish(&mut self, exchange: &str, key: &[u8], properties: &RawProperties, body: &[u8]) {
        self.put(exchange, key, properties, body);
        self.settle(0);
    }

    /// Publishes `count` equal persistent messages, with a thousand or two unconfirmed at a time.
    pub fn flood(&mut self, exchange: &str, key: &str, properties: &RawProperties, body: &[u8], count: u64) {
        for n in 1..=count {
            self.put(exchange, key.as_bytes(), properties, body);
            if n % 500 == 0 {
                self.settle(1500);
            }
        }
        self.settle(0);
    }
}
