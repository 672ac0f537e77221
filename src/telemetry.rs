//! Spans of published batches, sent to a collector by OTLP (OpenTelemetry protocol 1.x, JSON over HTTP).
//!
//! The exporter never delays publishing: spans go into a bounded queue. A span that finds no room, or no
//! collector, is lost and counted.

use serde_json::{json, Value};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{sync_channel, Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tidegate_amqp::PublishSpan;
use tidegate_common::log_limit::LogLimit;
use tidegate_wire::SpanName;

/// Most spans that wait for the sender.
const QUEUE_CAPACITY: usize = 4_096;
/// Most spans of one request, and the longest wait of the first one for others.
const MAX_BATCH: usize = 128;
const BATCH_DELAY: Duration = Duration::from_secs(1);
/// Time limit of one request.
const REQUEST_WITHIN: Duration = Duration::from_secs(2);
/// Time limit for all waiting spans when the process ends, without the request under way.
const ENDING_WITHIN: Duration = Duration::from_secs(2);

/// Queue and thread that send spans to the collector.
#[derive(Debug)]
pub struct SpanExporter {
    line: Option<SyncSender<PublishSpan>>,
    lost: Arc<AtomicU64>,
    ending: Arc<AtomicBool>,
    sender: Mutex<Option<JoinHandle<()>>>,
}

impl SpanExporter {
    /// Starts the sender's thread. `endpoint` is the configured one, `http://HOST:PORT`, without a path.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(endpoint: &str) -> std::io::Result<SpanExporter> {
        let (line, spans) = sync_channel(QUEUE_CAPACITY);
        let lost = Arc::new(AtomicU64::new(0));
        let address = format!("{}/v1/traces", endpoint.trim_end_matches('/'));
        let ending = Arc::new(AtomicBool::new(false));
        let limit = LogLimit::default();
        let sender = SpanSender { address, lost: Arc::clone(&lost), ending: Arc::clone(&ending), limit };
        let thread = std::thread::Builder::new().name("tidegate-otlp".to_owned());
        let sender = thread.spawn(move || sender.run(&spans))?;
        Ok(SpanExporter { line: Some(line), lost, ending, sender: Mutex::new(Some(sender)) })
    }

    /// Hands a span to the sender; a span that finds no room is lost.
    pub fn export(&self, span: PublishSpan) {
        let taken = self.line.as_ref().is_some_and(|line| line.try_send(span).is_ok());
        if !taken {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for SpanExporter {
    /// Sends the waiting spans if the collector takes them. After the first failed request, or some seconds,
    /// the rest is lost.
    fn drop(&mut self) {
        self.ending.store(true, Ordering::Relaxed);
        self.line = None;
        let sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(sender) = sender {
            // A panic of the thread has already been logged.
            let _ = sender.join();
        }
    }
}

/// Sends spans from the queue to the collector.
struct SpanSender {
    address: String,
    lost: Arc<AtomicU64>,
    ending: Arc<AtomicBool>,
    /// Of the warnings; lost spans are counted where they are lost.
    limit: LogLimit<1>,
}

impl SpanSender {
    fn run(mut self, spans: &Receiver<PublishSpan>) {
        let mut ending_until = None;
        while let Ok(first) = spans.recv() {
            let mut batch = vec![first];
            let until = Instant::now() + BATCH_DELAY;
            while batch.len() < MAX_BATCH {
                match spans.recv_timeout(until.saturating_duration_since(Instant::now())) {
                    Ok(span) => batch.push(span),
                    Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
                }
            }
            let sent = self.send(&batch);
            if sent.is_err() {
                self.lost.fetch_add(batch.len() as u64, Ordering::Relaxed);
            }
            if self.lost.load(Ordering::Relaxed) > 0 {
                let why = sent.as_ref().err().map_or("it takes them too slowly", String::as_str);
                self.warn(why);
            }
            if self.ending.load(Ordering::Relaxed) {
                let until = *ending_until.get_or_insert_with(|| Instant::now() + ENDING_WITHIN);
                if sent.is_err() || Instant::now() >= until {
                    return;
                }
            }
        }
    }

    fn send(&self, spans: &[PublishSpan]) -> Result<(), String> {
        // The configuration names the collector. A server at that address must not redirect the request
        // elsewhere, for instance to a port of this machine.
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(REQUEST_WITHIN))
            .proxy(None)
            .max_redirects(0)
            .build();
        let agent: ureq::Agent = config.into();
        let asked = agent.post(&self.address).content_type("application/json");
        // Not `send_json`, which inserts line breaks.
        let answer = asked.send(request(spans).to_string()).map_err(|error| error.to_string())?;
        match answer.status() {
            status if status.is_success() => Ok(()),
            status => Err(format!("it answers {status}")),
        }
    }

    fn warn(&mut self, error: &str) {
        if self.limit.admit(0, Instant::now()).is_some() {
            let lost = self.lost.swap(0, Ordering::Relaxed);
            tracing::warn!(endpoint = self.address, lost, error, "spans do not reach the collector");
        }
    }
}

/// The request that carries these spans.
fn request(spans: &[PublishSpan]) -> Value {
    let spans: Vec<Value> = spans.iter().map(span_json).collect();
    json!({ "resourceSpans": [{
        "resource": { "attributes": [
            attribute("service.name", "tidegate".into()),
            attribute("service.version", env!("CARGO_PKG_VERSION").into()),
        ]},
        "scopeSpans": [{ "scope": { "name": "tidegate" }, "spans": spans }],
    }]})
}

/// One span; attribute names follow the semantic conventions for messaging.
fn span_json(span: &PublishSpan) -> Value {
    const PRODUCER: u8 = 4;
    let (exchange, key) = &span.destination;
    let nanos = |us: u64| us.saturating_mul(1_000).to_string();
    let link = |(trace, id): &SpanName| json!({ "traceId": hex(trace), "spanId": hex(id) });
    let status = match &span.error {
        Some(error) => json!({ "code": 2, "message": error }),
        None => json!({}),
    };
    let mut told = json!({
        "traceId": hex(&span.name.0),
        "spanId": hex(&span.name.1),
        "name": format!("send {exchange}"),
        "kind": PRODUCER,
        "startTimeUnixNano": nanos(span.begun),
        "endTimeUnixNano": nanos(span.ended),
        "attributes": [
            attribute("messaging.system", "rabbitmq".into()),
            attribute("messaging.operation.type", "send".into()),
            attribute("messaging.operation.name", "publish".into()),
            attribute("messaging.destination.name", exchange.as_str().into()),
            attribute("messaging.rabbitmq.destination.routing_key", key.as_str().into()),
            attribute("messaging.message.id", span.batch.as_str().into()),
            attribute("messaging.message.body.size", span.bytes.into()),
            attribute("messaging.batch.message_count", span.items.into()),
            attribute("tidegate.attempt", span.attempt.into()),
            attribute("tidegate.lateness_us", span.lateness.into()),
        ],
        "links": span.links.iter().map(link).collect::<Vec<_>>(),
        "status": status,
    });
    if let Some(parent) = &span.parent {
        told["parentSpanId"] = hex(parent).into();
    }
    if let Some(state) = &span.state {
        told["traceState"] = state.as_str().into();
    }
    told
}

/// The protocol's JSON writes integers as text, because they have 64 bits.
fn attribute(key: &str, value: Value) -> Value {
    let value = match value.as_u64() {
        Some(number) => json!({ "intValue": number.to_string() }),
        None => json!({ "stringValue": value }),
    };
    json!({ "key": key, "value": value })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    #[test]
    fn a_span_is_told_as_the_protocol_has_it() {
        let span = PublishSpan {
            name: ([1; 16], [2; 8]),
            parent: Some([3; 8]),
            links: vec![([4; 16], [5; 8])],
            begun: 1_500,
            ended: 2_500,
            error: Some("nacked".to_owned()),
            destination: ("tidegate.out".to_owned(), "shop".to_owned()),
            items: 3,
            attempt: 1,
            ..PublishSpan::default()
        };
        let told = &request(&[span])["resourceSpans"][0]["scopeSpans"][0]["spans"][0];
        assert_eq!(told["traceId"], "01".repeat(16));
        assert_eq!(
            (&told["spanId"], &told["parentSpanId"]),
            (&"02".repeat(8).into(), &"03".repeat(8).into())
        );
        assert_eq!(told["startTimeUnixNano"], "1500000");
        assert_eq!((&told["kind"], &told["status"]["code"]), (&4.into(), &2.into()));
        assert_eq!(told["links"][0]["spanId"], "05".repeat(8));
        let attributes = told["attributes"].as_array().unwrap();
        let of = |key: &str| attributes.iter().find(|a| a["key"] == key).map(|a| a["value"].clone());
        assert_eq!(of("messaging.batch.message_count"), Some(json!({ "intValue": "3" })));
        assert_eq!(of("messaging.system"), Some(json!({ "stringValue": "rabbitmq" })));
        assert!(told.get("traceState").is_none());
    }

    /// A collector for this many requests, and their number; it answers each with `answer`, after `pause`.
    fn collector(requests: usize, answer: String, pause: Duration) -> (String, JoinHandle<usize>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let at = format!("http://{}", listener.local_addr().unwrap());
        let serve = move || {
            let mut came = 0;
            let quiet = |since: Instant| since.elapsed() > Duration::from_secs(5);
            let mut since = Instant::now();
            while came < requests && !quiet(since) {
                let Ok((mut stream, _)) = listener.accept() else {
                    std::thread::sleep(Duration::from_millis(5));
                    continue;
                };
                (came, since) = (came + 1, Instant::now());
                stream.set_nonblocking(false).unwrap();
                let mut seen = Vec::new();
                let mut some = [0; 65_536];
                // The last bytes of the document.
                while !seen.windows(6).any(|some| some == b"]}]}]}") {
                    let read = stream.read(&mut some).unwrap_or(0);
                    if read == 0 {
                        break;
                    }
                    seen.extend_from_slice(&some[..read]);
                }
                std::thread::sleep(pause);
                let _ = stream.write_all(answer.as_bytes());
            }
            came
        };
        (at, std::thread::spawn(serve))
    }

    #[test]
    fn a_collector_that_points_elsewhere_is_not_followed() {
        let (elsewhere, came) =
            collector(1, "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".to_owned(), Duration::ZERO);
        for code in [302, 307, 308] {
            let answer =
                format!("HTTP/1.1 {code} There\r\nlocation: {elsewhere}\r\ncontent-length: 0\r\n\r\n");
            let (at, told) = collector(1, answer, Duration::ZERO);
            let sender = SpanSender {
                address: at,
                lost: Arc::default(),
                ending: Arc::default(),
                limit: LogLimit::default(),
            };
            let error = sender.send(&[PublishSpan::default()]).unwrap_err();
            assert!(error.contains(&code.to_string()), "{error}");
            assert_eq!(told.join().unwrap(), 1);
        }
        assert_eq!(came.join().unwrap(), 0);
    }

    /// Each answer comes within its time limit, but all together take far longer than a stop may.
    #[test]
    fn a_slow_collector_holds_up_no_stop() {
        let answer = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".to_owned();
        let (at, came) = collector(30, answer, Duration::from_millis(1_500));
        let exporter = SpanExporter::start(&at).unwrap();
        for _ in 0..30 * MAX_BATCH {
            exporter.export(PublishSpan::default());
        }
        drop(exporter);
        let came = came.join().unwrap();
        assert!((1..=5).contains(&came), "{came} requests, two of them for spans that waited at the end");
    }

    #[test]
    fn what_finds_no_room_is_lost_and_nobody_waits() {
        // A sender that takes no span.
        let (line, _spans) = sync_channel(1);
        let lost = Arc::new(AtomicU64::new(0));
        let exporter = SpanExporter {
            line: Some(line),
            lost: Arc::clone(&lost),
            ending: Arc::default(),
            sender: Mutex::new(None),
        };
        for _ in 0..3 {
            exporter.export(PublishSpan::default());
        }
        assert_eq!(lost.load(Ordering::Relaxed), 2);
    }
}
