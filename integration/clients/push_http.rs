//! The consumer that pushes each customer's batches by HTTP, against receivers that fail, hang, lose
//! responses and recover.

use super::example;
use serde_json::{json, Value};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;
use tidegate_harness::lapin::types::FieldTable;
use tidegate_harness::{require_python, wait_until, Program, Site};

#[derive(Clone, Copy, PartialEq)]
enum Mode {
    Takes,
    /// Responds 500, with a body.
    Fails,
    /// Reads the request and never responds.
    Hangs,
    /// Takes one request and closes without a response; then it responds.
    LosesAnswer,
}

/// A batch that a customer's receiver took.
#[derive(Clone, Debug, PartialEq)]
struct Taken {
    key: String,
    ids: Vec<String>,
    connection: usize,
}

#[derive(Default)]
struct Book {
    modes: HashMap<String, Mode>,
    taken: HashMap<String, Vec<Taken>>,
    /// The keys of the requests received, taken or not.
    asked: HashMap<String, Vec<String>>,
    connections: usize,
}

/// The receivers of all customers; the path names the customer.
#[derive(Clone)]
struct Receiver {
    book: Arc<(Mutex<Book>, Condvar)>,
    address: SocketAddr,
}

impl Receiver {
    fn start(modes: &[(&str, Mode)]) -> Receiver {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let modes = modes.iter().map(|(customer, mode)| ((*customer).to_owned(), *mode)).collect();
        let book = Arc::new((Mutex::new(Book { modes, ..Book::default() }), Condvar::new()));
        let it = Receiver { book, address: listener.local_addr().expect("an address") };
        let receiver = it.clone();
        // The thread ends with the test program: only the test connects.
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let receiver = receiver.clone();
                receiver.book().connections += 1;
                let number = receiver.book().connections;
                // The client may hang up at any time.
                thread::spawn(move || drop(receiver.serve(stream, number)));
            }
        });
        it
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self, mut stream: TcpStream, connection: usize) -> std::io::Result<()> {
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        let mut reader = BufReader::new(stream.try_clone()?);
        while let Some((customer, key, body)) = request(&mut reader)? {
            self.book().asked.entry(customer.clone()).or_default().push(key.clone());
            let mode = self.book().modes[&customer];
            if mode == Mode::Hangs {
                let end = Duration::from_secs(60);
                let _kept =
                    self.book.1.wait_timeout_while(self.book(), end, |book| book.modes[&customer] == mode);
                return Ok(());
            }
            if mode == Mode::Fails {
                stream.write_all(b"HTTP/1.1 500 No\r\nContent-Length: 5\r\n\r\nsorry")?;
                continue;
            }
            self.take(&customer, key, &body, connection);
            if mode == Mode::LosesAnswer {
                self.set(&customer, Mode::Takes);
                return Ok(());
            }
            stream.write_all(b"HTTP/1.1 204 Taken\r\n\r\n")?;
        }
        Ok(())
    }

    fn take(&self, customer: &str, key: String, body: &[u8], connection: usize) {
        let batch: Value = serde_json::from_slice(body).expect("a batch");
        assert_eq!((&batch["customer"], &batch["batch"]), (&json!(customer), &json!(key)));
        let items = batch["items"].as_array().expect("items");
        let ids = items.iter().map(|item| item["id"].as_str().expect("an id").to_owned()).collect();
        self.book().taken.entry(customer.to_owned()).or_default().push(Taken { key, ids, connection });
    }

    fn set(&self, customer: &str, mode: Mode) {
        self.book().modes.insert(customer.to_owned(), mode);
        self.book.1.notify_all();
    }

    fn taken(&self, customer: &str) -> Vec<Taken> {
        self.book().taken.get(customer).cloned().unwrap_or_default()
    }

    fn asked(&self, customer: &str) -> Vec<String> {
        self.book().asked.get(customer).cloned().unwrap_or_default()
    }

    /// What the consumer reads: the address of each customer.
    fn addresses(&self, customers: &[&str]) -> String {
        let address =
            |customer: &&str| ((*customer).to_owned(), json!(format!("http://{}/{customer}", self.address)));
        json!(customers.iter().map(address).collect::<serde_json::Map<_, _>>()).to_string()
    }

    /// Item ids in the order in which the customer first received them.
    fn items(&self, customer: &str) -> Vec<String> {
        let mut all: Vec<String> = Vec::new();
        for id in self.taken(customer).into_iter().flat_map(|taken| taken.ids) {
            if !all.contains(&id) {
                all.push(id);
            }
        }
        all
    }
}

/// Customer, idempotency key and body of the next request; `None` when the connection has ended.
fn request(reader: &mut BufReader<TcpStream>) -> std::io::Result<Option<(String, String, Vec<u8>)>> {
    let (mut customer, mut key, mut length) = (String::new(), String::new(), 0);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let line = line.trim_end();
        if let Some(rest) = line.strip_prefix("POST /") {
            customer = rest.split(' ').next().unwrap_or_default().to_owned();
        } else if let Some((name, value)) = line.split_once(": ") {
            match name.to_ascii_lowercase().as_str() {
                "idempotency-key" => value.clone_into(&mut key),
                "content-length" => length = value.parse().expect("a length"),
                _ => {}
            }
        } else if line.is_empty() {
            let mut body = vec![0; length];
            reader.read_exact(&mut body)?;
            return Ok(Some((customer, key, body)));
        }
    }
}

const CUSTOMERS: [&str; 4] = ["good", "fails", "hangs", "loses"];
const ITEMS: usize = 10;

fn ids(customer: &str) -> Vec<String> {
    (0..ITEMS).map(|n| format!("{customer}-{n}")).collect()
}

#[test]
fn every_customer_gets_all_in_order_and_none_waits_for_another() {
    if !require_python("pika", "python3-pika") {
        return;
    }
    let site = Site::new("push-http");
    let daemon = site.start(&site.config().set("defaults.max_items", "2"));
    let modes = [Mode::Takes, Mode::Fails, Mode::Hangs, Mode::LosesAnswer];
    let receiver = Receiver::start(&CUSTOMERS.into_iter().zip(modes).collect::<Vec<_>>());
    std::fs::write(site.dir.join("addresses.json"), receiver.addresses(&CUSTOMERS)).expect("the addresses");
    // Its time limit stays: a busy machine may not answer for "good" within a second.
    let quick = [("PAUSE = 0.5 ", "PAUSE = 0.1 "), ("MAX_PAUSE = 60", "MAX_PAUSE = 1")];
    let quick = quick.map(|(theirs, ours)| (theirs, ours.to_owned()));
    let script = example(&site, &daemon, "python/push_http.py", &quick);
    let start = || Program::start("python3", &[&script, "addresses.json"], &site.dir);
    let pusher = start();
    let (queue, failed) = (site.queue("shop-push"), format!("{}-failed", site.queue("shop-push")));
    wait_until("it has its queues", Duration::from_secs(20), || site.client.depth(&failed) == Some(0));
    let push = |customer: &str, id: &str| site.push("shop", "1").customer(customer).id(id);
    let pushes =
        CUSTOMERS.into_iter().flat_map(|customer| ids(customer).into_iter().map(move |id| (customer, id)));
    site.client.publish_all(pushes.map(|(customer, id)| push(customer, &id)));
    site.client.publish(&push("stranger", "stranger-0"));

    let has_all = |customer: &str| {
        wait_until(customer, Duration::from_secs(20), || receiver.items(customer).len() == ITEMS);
        assert_eq!(receiver.items(customer), ids(customer), "{}", pusher.said());
    };
    // Two customers take nothing, and the others receive everything.
    has_all("good");
    has_all("loses");
    wait_until("the others are tried again", Duration::from_secs(20), || {
        receiver.asked("fails").len() > 2 && receiver.asked("hangs").len() > 1
    });
    assert_eq!((receiver.taken("fails").len(), receiver.taken("hangs").len()), (0, 0));
    let good = receiver.taken("good");
    assert!(
        good.len() >= ITEMS / 2 && good.iter().all(|taken| taken.connection == good[0].connection),
        "{good:?}"
    );
    let lost = receiver.taken("loses");
    assert_eq!((&lost[0].key, &lost[0].ids), (&lost[1].key, &lost[1].ids), "the repeat is known by its key");
    site.lies(&failed, 1);

    // After a kill and a restart it continues with the unacked messages.
    drop(pusher);
    wait_until("the broker has it back", Duration::from_secs(10), || {
        site.client.depth(&queue).is_some_and(|depth| depth >= 10)
    });
    receiver.set("fails", Mode::Takes);
    let pusher = start();
    let fails = || receiver.items("fails") == ids("fails");
    wait_until("who failed has all in order", Duration::from_secs(20), fails);
    assert_eq!(receiver.taken("hangs").len(), 0);
    receiver.set("hangs", Mode::Takes);
    let hung = || receiver.items("hangs") == ids("hangs");
    wait_until("who hung has all in order", Duration::from_secs(20), hung);
    assert_eq!(receiver.items("good"), ids("good"));
    pusher.wait_for("again in");
    let acked = || site.node.messages(&queue) == Some(0);
    wait_until("all is acked", Duration::from_secs(20), acked);
}

/// RabbitMQ counts the time for an ack from the delivery. If a batch had its whole time only after those before
/// it, RabbitMQ would close the channel, for all customers.
#[test]
fn what_waits_behind_a_failing_batch_is_given_up_soon_after_it() {
    if !require_python("pika", "python3-pika") {
        return;
    }
    let site = Site::new("push-late");
    let daemon = site.start(&site.config().set("defaults.max_items", "1"));
    let customers = ["fails", "hangs"];
    let receiver = Receiver::start(&[("fails", Mode::Fails), ("hangs", Mode::Hangs)]);
    std::fs::write(site.dir.join("addresses.json"), receiver.addresses(&customers)).expect("the addresses");
    let quick = [
        ("TIMEOUT = 10 ", "TIMEOUT = 1 "),
        ("PAUSE = 0.5 ", "PAUSE = 0.1 "),
        ("MAX_PAUSE = 60", "MAX_PAUSE = 0.1"),
        ("GIVE_UP = 20 * 60 ", "GIVE_UP = 4 "),
        ("NO_TRY = 25 * 60 ", "NO_TRY = 6 "),
    ];
    let quick = quick.map(|(theirs, ours)| (theirs, ours.to_owned()));
    let script = example(&site, &daemon, "python/push_http.py", &quick);
    // All batches are there when the consumer comes, so it has them at one time.
    let (queue, failed) = (site.queue("shop-push"), format!("{}-failed", site.queue("shop-push")));
    site.client.queue(&queue, FieldTable::default());
    site.client.bind(&queue, &site.out(), "shop");
    let push = |customer: &str, id: &str| site.push("shop", "1").customer(customer).id(id);
    for customer in customers {
        site.client.publish_all(ids(customer).iter().map(|id| push(customer, id)));
    }
    site.lies(&queue, 20);
    let pusher = Program::start("python3", &[&script, "addresses.json"], &site.dir);

    wait_until("all are given up", Duration::from_secs(20), || site.client.depth(&failed) == Some(20));
    let given_up = site.client.consume(&failed).take(20, Duration::from_secs(20));
    let given_up: Vec<Value> = given_up.iter().map(|batch| batch.json()).collect();
    for customer in customers {
        let of_customer = given_up.iter().filter(|batch| batch["customer"] == customer);
        let order: Vec<&str> = of_customer.filter_map(|batch| batch["items"][0]["id"].as_str()).collect();
        assert_eq!(order, ids(customer), "{}", pusher.said());
    }
    // One with a time of its own would be tried some forty times.
    let asked = receiver.asked("fails");
    let last = asked.last().expect("a request");
    let of_last = asked.iter().filter(|key| *key == last).count();
    assert!(of_last <= 10, "{of_last} of {} tries: {}", asked.len(), pusher.said());
    // One after the other, with a second for each, ten batches would take longer than any may stay.
    let mut tried = receiver.asked("hangs");
    tried.dedup();
    assert!(!tried.is_empty() && tried.len() < ITEMS, "{tried:?}: {}", pusher.said());

    // Later batches have their own time.
    receiver.set("fails", Mode::Takes);
    site.client.publish(&push("fails", "fails-later"));
    let later = || receiver.items("fails") == ["fails-later"];
    wait_until("a receiver that works again gets the next", Duration::from_secs(20), later);
}
