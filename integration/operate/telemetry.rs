//! Spans of published batches, as received by a collector.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tidegate_harness::{wait_until, Site};

/// Receives OTLP over HTTP and keeps the spans.
struct Collector {
    endpoint: String,
    spans: Arc<Mutex<Vec<Value>>>,
}

impl Collector {
    fn start() -> Collector {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
        let spans = Arc::new(Mutex::new(vec![]));
        let kept = Arc::clone(&spans);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let taken = take(&stream.expect("a connection"));
                let told = &taken["resourceSpans"][0]["scopeSpans"][0]["spans"];
                kept.lock().expect("the spans").extend(told.as_array().expect("spans").clone());
            }
        });
        Collector { endpoint, spans }
    }

    fn spans(&self) -> Vec<Value> {
        self.spans.lock().expect("the spans").clone()
    }
}

/// Reads one request and answers it with success; the connection then ends.
fn take(mut stream: &TcpStream) -> Value {
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a time limit");
    let mut from = BufReader::new(stream);
    let (mut line, mut length) = (String::new(), 0);
    from.read_line(&mut line).expect("a request");
    assert!(line.starts_with("POST /v1/traces "), "{line}");
    loop {
        line.clear();
        from.read_line(&mut line).expect("a header");
        let header = line.trim_end().to_ascii_lowercase();
        if header.is_empty() {
            break;
        }
        if let Some(text) = header.strip_prefix("content-length:") {
            length = text.trim().parse().expect("a length");
        }
    }
    let mut body = vec![0; length];
    from.read_exact(&mut body).expect("the body");
    let answer = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}";
    stream.write_all(answer.as_bytes()).expect("an answer");
    serde_json::from_slice(&body).expect("JSON")
}

fn context(trace: u32, span: u32, flags: u8) -> String {
    format!("00-{trace:032x}-{span:016x}-{flags:02x}")
}

/// Repeated if a busy machine does not take the spans in time: the daemon gives them up after two seconds, and says so.
#[test]
fn a_sampled_batch_is_a_span_that_goes_on_or_links() {
    assert!((0..4).any(|_| spans_reach_the_collector()), "the spans do not reach the collector");
}

/// Whether the spans of some batches reach the collector; if so, they are as they must be.
fn spans_reach_the_collector() -> bool {
    let site = Site::new("telemetry");
    let inbox = site.inbox("shop");
    let collector = Collector::start();
    let config = site.config().text("telemetry.otlp_endpoint", &collector.endpoint);
    let daemon = site.start(&config.text("defaults.window", "600s"));
    let push = |customer: &str, id: &str, context: &str| {
        site.push("shop", "1").customer(customer).id(id).with("traceparent", context)
    };
    let mut batches = std::collections::BTreeMap::new();
    site.client.publish_all([
        push("one", "a", &context(7, 1, 1)),
        push("two", "b", &context(8, 2, 1)),
        push("two", "c", &context(9, 3, 0)),
        push("unsampled", "d", &context(10, 4, 0)),
        site.push("shop", "1").customer("none").id("e"),
    ]);
    daemon.holds("waiting", 5);
    let (_, flushed) = daemon.ask("POST", "/api/v1/applications/shop/flush");
    assert_eq!(flushed["count"], 5, "{flushed}");
    for _ in 0..4 {
        let batch = inbox.next();
        batches.insert(batch.text("x-customer").expect("a customer"), batch);
    }
    let are_lost = || daemon.log().contains("do not reach the collector");
    wait_until("both spans", Duration::from_secs(20), || collector.spans().len() >= 2 || are_lost());
    if are_lost() {
        return false;
    }
    let spans = collector.spans();
    let of = |customer: &str| {
        let parent = batches[customer].text("traceparent").expect("a context");
        let (trace, id) = (parent[3..35].to_owned(), parent[36..52].to_owned());
        let found = spans.iter().find(|span| span["traceId"] == trace && span["spanId"] == id);
        found.unwrap_or_else(|| panic!("no span {parent} in {spans:?}"))
    };
    let (one, two) = (of("one"), of("two"));
    assert_eq!(
        (&one["traceId"], &one["parentSpanId"]),
        (&format!("{:032x}", 7).into(), &format!("{:016x}", 1).into())
    );
    assert_eq!(two.get("parentSpanId"), None, "the root of a trace of its own");
    let links: Vec<&str> =
        two["links"].as_array().expect("links").iter().filter_map(|l| l["traceId"].as_str()).collect();
    assert_eq!(links, [format!("{:032x}", 8), format!("{:032x}", 9)]);
    assert_eq!(one["name"], format!("send {}", site.out()));
    let number = |span: &Value, key: &str| span[key].as_str().and_then(|text| text.parse::<u64>().ok());
    assert!(number(one, "startTimeUnixNano") < number(one, "endTimeUnixNano"), "{one}");
    assert!(one["status"].get("code").is_none(), "it was confirmed");
    assert_eq!(spans.len(), 2, "what nobody samples is nobody's: {spans:?}");
    assert!(!are_lost(), "{}", daemon.log_tail());
    true
}

#[test]
fn without_its_collector_everything_goes_on_and_the_log_says_so() {
    let site = Site::new("no-collector");
    let inbox = site.inbox("shop");
    let nobody = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
    let config = site.config().text("telemetry.otlp_endpoint", &format!("http://{nobody}"));
    let mut daemon = site.start(&config);
    site.client.publish_all(
        (0..100)
            .map(|n| site.push("shop", "1").id(&n.to_string()).with("traceparent", &context(n + 1, 1, 1))),
    );
    assert_eq!(inbox.items(100, Duration::from_secs(20)).len(), 100);
    wait_until("a line", Duration::from_secs(20), || {
        daemon.log().contains("spans do not reach the collector")
    });
    daemon.term();
    assert!(daemon.exit(Duration::from_secs(30)).success());
}
