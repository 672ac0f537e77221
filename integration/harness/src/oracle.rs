//! The oracle: compares what was confirmed to the producers (P) with what the applications received (C).
//!
//! Once the faults have ended, `P \ C` must be empty, nothing may have arrived early, a batch must contain
//! items of one customer of one application, and C may not contain anything that no producer has sent.
//! Repeats are listed: the test decides whether its faults allow them.

use crate::client::{Client, Verdict};
use crate::message::{Push, Received};
use crate::util::now_us;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

#[derive(Debug)]
struct Sent {
    application: String,
    customer: Option<String>,
    not_before_ms: Option<u64>,
    confirmed: bool,
    received: u32,
    sent_us: u64,
    first: Arrival,
}

/// When a message arrived, since when it can have been in the queue, and when it was due, wall clock, us.
#[derive(Clone, Copy, Debug, Default)]
struct Arrival {
    queued_us: u64,
    at_us: u64,
    due_us: u64,
}

/// A fault, from its beginning to its end, wall clock, us.
#[derive(Clone, Copy, Debug)]
struct Span {
    from_us: u64,
    to_us: Option<u64>,
}

/// A repeat is explained if the item first arrived this long before the fault: its confirm was in flight.
const BEFORE_US: u64 = 5_000_000;
/// Or this long after it: its publish was in flight.
const AFTER_US: u64 = 5_000_000;

impl Span {
    /// Whether an item with this first arrival may arrive again like this.
    fn explains(&self, first: Arrival, again: Arrival) -> bool {
        let near = first.at_us + BEFORE_US >= self.from_us;
        let until = self.to_us.map_or(u64::MAX, |to| to + AFTER_US);
        // The process that was about to send it when the fault began may do so long after another one has, or just
        // before: then the other one may have taken its request anew, with a later due.
        let about_to_leave = [first.due_us, again.due_us]
            .into_iter()
            .any(|due_us| due_us <= self.from_us && due_us + BEFORE_US >= self.from_us);
        near && again.at_us >= self.from_us && (first.queued_us <= until || about_to_leave)
    }
}

#[derive(Debug, Default)]
struct Log {
    items: HashMap<String, Sent>,
    /// Ids in the order of their first arrivals.
    arrivals: Vec<String>,
    strangers: Vec<String>,
    mixed: Vec<String>,
    early: Vec<String>,
    batches: u64,
    items_out: u64,
    repeats: Vec<String>,
    unexplained: Vec<String>,
    lateness_us: Vec<i64>,
    faults: Vec<Span>,
}

/// The logs of all producers and consumers of a test.
#[derive(Debug, Default)]
pub struct Ledger {
    log: Mutex<Log>,
}

/// The oracle's findings.
#[derive(Debug)]
pub struct Report {
    /// Requests confirmed to their producers.
    pub confirmed: u64,
    /// Items that arrived, repeats included.
    pub items_out: u64,
    /// Batches that arrived.
    pub batches: u64,
    /// Confirmed but never received.
    pub lost: Vec<String>,
    /// Received more than once.
    pub repeats: Vec<String>,
    /// Received more than once without a fault to explain it (see [`Ledger::fault`]): the id, and when.
    pub unexplained: Vec<String>,
    /// Received before their time.
    pub early: Vec<String>,
    /// Received in the batch of another customer or application.
    pub mixed: Vec<String>,
    /// Received but never sent.
    pub strangers: Vec<String>,
    /// Arrival after `x-due`, microseconds, sorted; one value per batch.
    pub lateness_us: Vec<i64>,
    /// For each fault: from its end to the first arrival of a request sent after it, microseconds. A fault
    /// without later requests has no value.
    pub recovery_us: Vec<u64>,
}

impl Report {
    /// Panics unless nothing is lost, early, mixed or unknown, with a verdict that no second run excuses.
    pub fn assert_clean(&self) {
        let few = |ids: &[String]| ids.iter().take(5).cloned().collect::<Vec<_>>().join(", ");
        for (what, ids) in [
            ("lost", &self.lost),
            ("early", &self.early),
            ("mixed", &self.mixed),
            ("unknown", &self.strangers),
        ] {
            let all = self.confirmed;
            assert!(ids.is_empty(), "VERDICT: {} of {all} items {what}: {} ..", ids.len(), few(ids));
        }
        assert!(self.confirmed > 0, "the load has confirmed nothing");
    }

    /// As [`Report::assert_clean`], and no item may have arrived twice.
    pub fn assert_exact(&self) {
        self.assert_clean();
        assert!(self.repeats.is_empty(), "{} repeats: {:?}", self.repeats.len(), self.repeats.first());
    }
}

impl Ledger {
    /// An empty ledger, shared between threads.
    pub fn new() -> Arc<Ledger> {
        Arc::default()
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a request before it is published.
    pub fn sending(&self, id: &str, application: &str, customer: Option<&str>, not_before_ms: Option<u64>) {
        let sent = Sent {
            application: application.to_owned(),
            customer: customer.map(ToOwned::to_owned),
            not_before_ms,
            confirmed: false,
            received: 0,
            sent_us: now_us(),
            first: Arrival::default(),
        };
        assert!(self.log().items.insert(id.to_owned(), sent).is_none(), "the load uses id {id} twice");
    }

    /// A fault begins, which explains repeats from now on.
    pub fn fault(&self) {
        self.log().faults.push(Span { from_us: now_us(), to_us: None });
    }

    /// The fault has ended.
    pub fn healed(&self) {
        if let Some(span) = self.log().faults.last_mut() {
            span.to_us = Some(now_us());
        }
    }

    /// The fault has ended and everything it may have delayed has arrived, so it explains no later repeat.
    pub fn past(&self) {
        if let Some(span) = self.log().faults.last_mut() {
            span.to_us = Some(now_us().saturating_sub(AFTER_US));
        }
    }

    /// Records the broker's confirm.
    pub fn confirmed(&self, id: &str) {
        self.log().items.get_mut(id).expect("an id that was sent").confirmed = true;
    }

    /// Records the arrival of a batch of format `json`.
    pub fn received(&self, message: Received) {
        let queued_us = message.at_us;
        self.received_since(message, queued_us);
    }

    /// As [`Ledger::received`], for a message that can have been in the queue since `queued_us`, because nobody
    /// consumed the queue in between.
    pub fn received_since(&self, message: Received, queued_us: u64) {
        let repeated_by_broker = message.redelivered;
        let at_us = message.at_us;
        let attempt = message.number("x-attempt").unwrap_or(0);
        let lateness = message.lateness_us();
        let key = message.key.clone();
        let batch = message.batch();
        let mut log = self.log();
        log.batches += 1;
        log.lateness_us.push(lateness);
        for item in &batch.items {
            log.items_out += 1;
            let Some(sent) = log.items.get_mut(&item.id) else {
                log.strangers.push(item.id.clone());
                continue;
            };
            sent.received += 1;
            let due_us = u64::try_from(item.due).unwrap_or(0) * 1000;
            let arrival = Arrival { queued_us, at_us, due_us };
            if sent.received == 1 {
                sent.first = arrival;
            }
            let first = sent.first;
            let is_first = sent.received == 1;
            let again = sent.received > 1 && !repeated_by_broker;
            let stray = sent.application != batch.application
                || sent.application != key
                || sent.customer != batch.customer;
            let early = sent.not_before_ms.is_some_and(|t| at_us < t * 1000 || at_us < due_us);
            if is_first {
                log.arrivals.push(item.id.clone());
            }
            if again {
                log.repeats.push(item.id.clone());
                if !log.faults.iter().any(|span| span.explains(first, arrival)) {
                    let ms_ago = |us: u64| at_us.saturating_sub(us) / 1000;
                    let since = log.faults.iter().rev().find(|span| span.from_us <= at_us);
                    let begun = since.map(|span| ms_ago(span.from_us));
                    let healed = since.and_then(|span| span.to_us).map(ms_ago);
                    log.unexplained.push(format!(
                        "{} (publish {attempt}; due {} ms before, first {} ms before, due {} ms before, queued {} ms before, last fault begun {begun:?} and healed {healed:?} ms before)",
                        item.id,
                        ms_ago(due_us),
                        ms_ago(first.at_us),
                        ms_ago(first.due_us),
                        ms_ago(first.queued_us),
                    ));
                }
            }
            if stray {
                log.mixed.push(item.id.clone());
            }
            if early {
                log.early.push(item.id.clone());
            }
        }
    }

    /// Confirmed requests that have not arrived yet.
    pub fn missing(&self) -> usize {
        self.log().items.values().filter(|s| s.confirmed && s.received == 0).count()
    }

    /// Repeated arrivals so far.
    pub fn repeats(&self) -> usize {
        self.log().repeats.len()
    }

    /// Requests confirmed so far.
    pub fn confirmed_count(&self) -> usize {
        self.log().items.values().filter(|s| s.confirmed).count()
    }

    /// Confirmed requests that have arrived.
    pub fn arrived_count(&self) -> usize {
        self.log().items.values().filter(|s| s.confirmed && s.received > 0).count()
    }

    /// The ids of what has arrived, in the order of the first arrivals. Only that of one queue means anything.
    pub fn arrivals(&self) -> Vec<String> {
        self.log().arrivals.clone()
    }

    /// Waits until every confirmed request has arrived, or none has for `limit`, because slow is not lost.
    /// Returns whether all have arrived.
    pub fn arrives(&self, limit: Duration) -> bool {
        let (mut missing, mut end) = (usize::MAX, Instant::now() + limit);
        loop {
            let now = self.missing();
            if now < missing {
                (missing, end) = (now, Instant::now() + limit);
            }
            if missing == 0 || Instant::now() >= end {
                return missing == 0;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits as in [`Ledger::arrives`], and a moment longer for repeats and unknown items. Returns the
    /// report.
    pub fn settle(&self, limit: Duration) -> Report {
        self.arrives(limit);
        std::thread::sleep(Duration::from_millis(500));
        let log = self.log();
        let mut lost: Vec<String> = log
            .items
            .iter()
            .filter(|(_, s)| s.confirmed && s.received == 0)
            .map(|(id, _)| id.clone())
            .collect();
        lost.sort();
        let recovery_us = log
            .faults
            .iter()
            .filter_map(|span| {
                let after = |s: &&Sent| s.received > 0 && span.to_us.is_some_and(|to| s.sent_us >= to);
                let first = log.items.values().filter(after).map(|s| s.first.at_us).min()?;
                Some(first.saturating_sub(span.to_us?))
            })
            .collect();
        let mut lateness_us = log.lateness_us.clone();
        lateness_us.sort_unstable();
        Report {
            confirmed: log.items.values().filter(|s| s.confirmed).count() as u64,
            items_out: log.items_out,
            batches: log.batches,
            lost,
            repeats: log.repeats.clone(),
            unexplained: log.unexplained.clone(),
            early: log.early.clone(),
            mixed: log.mixed.clone(),
            strangers: log.strangers.clone(),
            lateness_us,
            recovery_us,
        }
    }
}

/// Consumes several queues into a ledger, and connects again after faults.
pub struct Recorder {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Recorder {
    /// Starts to consume, with one thread per queue.
    pub fn start(uri: &str, queues: &[String], ledger: &Arc<Ledger>) -> Recorder {
        let stop = Arc::new(AtomicBool::new(false));
        let threads = queues
            .iter()
            .map(|queue| {
                let (uri, queue) = (uri.to_owned(), queue.clone());
                let (stop, ledger) = (Arc::clone(&stop), Arc::clone(ledger));
                std::thread::spawn(move || record(&uri, &queue, &ledger, &stop))
            })
            .collect();
        Recorder { stop, threads }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "a recorder met a malformed batch");
        }
    }
}

/// Interval at which a recorder without messages checks its queue.
const SILENCE: Duration = Duration::from_secs(5);

fn record(uri: &str, queue: &str, ledger: &Ledger, stop: &AtomicBool) {
    // Until here, everything that was in the queue has arrived.
    let mut complete_us = now_us();
    while !stop.load(Ordering::Relaxed) {
        let Ok(client) = Client::try_connect(uri) else {
            std::thread::sleep(Duration::from_millis(200));
            continue;
        };
        // What lies there now came while nobody consumed, at any moment since the last arrival.
        let Some(mut backlog) = client.depth(queue) else { continue };
        let Ok(inbox) = client.try_consume(queue, 500) else { continue };
        let (mut heard, mut forgotten) = (Instant::now(), 0);
        // A broker that goes down may forget a consumer without notice, and the messages in its queue are not
        // lost. If two checks in a row find messages and none arrived in between, the recorder connects
        // again.
        while !stop.load(Ordering::Relaxed) && forgotten < 2 {
            match inbox.try_poll(Duration::from_millis(100)) {
                Ok(Some(message)) => {
                    (heard, forgotten) = (Instant::now(), 0);
                    let at_us = message.at_us;
                    if backlog > 0 {
                        // What the broker delivers again may have come in front of what it has counted.
                        backlog -= u32::from(!message.redelivered);
                        ledger.received_since(message, complete_us);
                    } else {
                        complete_us = at_us;
                        ledger.received(message);
                    }
                }
                Ok(None) if backlog > 0 && client.depth(queue) == Some(0) => backlog = 0,
                Ok(None) if heard.elapsed() >= SILENCE => {
                    let waits = client.depth(queue) != Some(0);
                    forgotten = if waits { forgotten + 1 } else { 0 };
                    heard = Instant::now();
                }
                Ok(None) => {}
                Err(_ended) => break,
            }
        }
    }
}

/// A producer at a steady rate that records in a ledger and connects again after faults. A request without a
/// confirm is not sent again: it may or may not arrive.
pub struct Load {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Returns the n-th request: message, application, customer, delay in ms.
pub type Recipe = Box<dyn FnMut(u64) -> (Push, String, Option<String>, Option<u64>) + Send>;

impl Load {
    /// Publishes `per_second` requests per second until stopped. Each must have a unique message id.
    pub fn start(uri: &str, per_second: u64, ledger: &Arc<Ledger>, recipe: Recipe) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let (uri, ledger) = (uri.to_owned(), Arc::clone(ledger));
        let stopping = Arc::clone(&stop);
        let thread = std::thread::spawn(move || produce(&uri, per_second, &ledger, recipe, &stopping));
        Load { stop, thread: Some(thread) }
    }

    /// Ends the load. When it returns, no further confirm will arrive.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the load has failed");
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.end();
    }
}

fn produce(uri: &str, per_second: u64, ledger: &Ledger, mut recipe: Recipe, stop: &AtomicBool) {
    let start = Instant::now();
    let mut n = 0;
    while !stop.load(Ordering::Relaxed) {
        let Ok(client) = Client::try_connect(uri) else {
            std::thread::sleep(Duration::from_millis(200));
            continue;
        };
        let mut working = true;
        while working && !stop.load(Ordering::Relaxed) {
            // In slices of 10 ms. A backlog that a fault has caused is not sent at once.
            let target = u64::try_from(start.elapsed().as_millis()).unwrap_or(0) * per_second / 1000;
            n = n.max(target.saturating_sub(per_second));
            let mut ids = Vec::new();
            let mut slice = Vec::new();
            while n < target && slice.len() < 500 {
                let (push, application, customer, delay) = recipe(n);
                n += 1;
                let id = push.properties.message_id().as_ref().map(ToString::to_string).unwrap_or_default();
                let not_before = delay.map(|d| crate::util::now_ms() + d);
                ledger.sending(&id, &application, customer.as_deref(), not_before);
                ids.push(id);
                slice.push(push);
            }
            let verdicts = client.publish_window(&slice);
            working = verdicts.len() == slice.len();
            for (id, verdict) in ids.iter().zip(verdicts) {
                if verdict == Verdict::Taken {
                    ledger.confirmed(id);
                }
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
