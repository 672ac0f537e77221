//! `make demo`: a private broker, the daemon, two applications, and what arrives, with how late it is.
//!
//! Ends with a table; the exit code is 0 only if nothing was lost and nothing came early. Everything it
//! started is gone when it ends, also after an interrupt.
#![expect(clippy::print_stdout, reason = "a program for people to watch")]

#[path = "demo/account.rs"]
mod account;

use std::process::ExitCode;
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_harness::{
    now_ms, run_guarded, Config, Daemon, Inbox, Ledger, Node, Push, Received, Site, Verdict,
};

fn main() -> ExitCode {
    run_guarded(|| {
        println!("A RabbitMQ node of our own starts; nothing else on this machine is touched ..");
        let node = Node::start("", "");
        let site = Site::on(&node, "demo");
        Demo::new(&site).run()
    })
}

struct Demo<'s> {
    site: &'s Site<'s>,
    ledger: Arc<Ledger>,
    screen: Receiver<String>,
    screen_in: Sender<String>,
    start: Instant,
}

impl<'s> Demo<'s> {
    fn new(site: &'s Site<'s>) -> Self {
        let (screen_in, screen) = channel();
        Demo { site, ledger: Ledger::new(), screen, screen_in, start: Instant::now() }
    }

    fn config(&self) -> Config {
        self.site
            .config()
            .text("defaults.window", "1s")
            .text("applications.orders.window", "2s")
            .text("applications.orders.coalesce", "250ms")
    }

    fn run(&mut self) -> ExitCode {
        for application in ["orders", "reminders"] {
            watch(self.site.inbox(application), application, &self.ledger, &self.screen_in);
        }
        let mut daemon = self.site.start(&self.config());
        self.start = Instant::now();
        self.say("tidegate is ready: requests -> ingest queue -> tidegate -> one queue per application");
        self.chapter_windows();
        self.chapter_own_times();
        self.chapter_forms();
        self.chapter_dead();
        self.chapter_kill(&mut daemon);
        let report = self.ledger.settle(Duration::from_secs(8));
        self.show();
        daemon.term();
        let stopped = daemon.exit(Duration::from_secs(15));
        println!("\ntidegate was asked to stop and ended with {stopped}");
        account::account(&report, "the kill")
    }

    /// Prints what arrives within this time.
    fn listen(&self, time: Duration) {
        let end = Instant::now() + time;
        while let Some(left) = end.checked_duration_since(Instant::now()) {
            if let Ok(line) = self.screen.recv_timeout(left) {
                println!("{:>6.2} s    {line}", self.start.elapsed().as_secs_f64());
            }
        }
    }

    fn show(&self) {
        while let Ok(line) = self.screen.try_recv() {
            println!("{:>6.2} s    {line}", self.start.elapsed().as_secs_f64());
        }
    }

    fn say(&self, line: &str) {
        println!("\n{:>6.2} s  * {line}", self.start.elapsed().as_secs_f64());
    }

    fn send(&self, application: &str, customer: Option<&str>, delay: Option<u64>, id: &str, push: Push) {
        let push = match customer {
            Some(customer) => push.customer(customer),
            None => push,
        };
        let push = match delay {
            Some(ms) => push.delay(i64::try_from(ms).unwrap_or(i64::MAX)),
            None => push,
        };
        self.ledger.sending(id, application, customer, delay.map(|d| now_ms() + d));
        if self.site.client.publish(&push.id(id)) == Verdict::Taken {
            self.ledger.confirmed(id);
        }
    }

    fn chapter_windows(&self) {
        self.say("300 requests of 5 customers in a moment: each customer gets one batch when its window ends (2 s)");
        for n in 0..300 {
            let customer = ["anna", "ben", "carla", "dora", "emil"][n % 5];
            let push = self.site.push("orders", format!("{{\"line\":{n}}}")).content_type("application/json");
            self.send("orders", Some(customer), None, &format!("order-{n}"), push);
        }
        self.listen(Duration::from_millis(2700));
    }

    fn chapter_own_times(&self) {
        self.say("reminders with own times, the longest first: a short one does not wait behind a long one");
        for (n, delay) in [4000_u64, 3000, 1000, 2000, 1500].into_iter().enumerate() {
            let push = self.site.push("reminders", format!("in {delay} ms")).content_type("text/plain");
            self.send("reminders", Some("anna"), Some(delay), &format!("reminder-{n}-in-{delay}-ms"), push);
        }
        self.listen(Duration::from_millis(4300));
    }

    fn chapter_forms(&self) {
        self.say("a JSON envelope, and a request without customer, which leaves at once and alone");
        let id = "from-an-envelope";
        let envelope =
            format!(r#"{{"customer":"ben","delay_ms":500,"id":"{id}","payload":{{"total":12.50}}}}"#);
        let push = self.site.push("orders", envelope).content_type("application/vnd.tidegate+json");
        self.ledger.sending(id, "orders", Some("ben"), Some(now_ms() + 500));
        if self.site.client.publish(&push) == Verdict::Taken {
            self.ledger.confirmed(id);
        }
        self.send("orders", None, None, "nobody-in-particular", self.site.push("orders", "at once"));
        self.listen(Duration::from_millis(900));
    }

    fn chapter_dead(&self) {
        self.say(
            "a request that cannot be understood (x-delay: soon) is not dropped: it ends in the dead queue",
        );
        let dead = self.site.dead_inbox();
        self.site.client.publish(&self.site.push("orders", "?").with("x-delay", "soon").id("malformed"));
        match dead.poll(Duration::from_secs(5)) {
            Some(letter) => println!(
                "            dead letter {}: {}: {}",
                letter.id(),
                letter.text("x-tidegate-reason").unwrap_or_default(),
                letter.text("x-tidegate-error").unwrap_or_default()
            ),
            None => println!("            no dead letter came"),
        }
    }

    fn chapter_kill(&self, daemon: &mut Daemon) {
        self.say("500 requests, and kill -9 of tidegate in the middle; started again at once");
        for n in 0..500_u64 {
            let delay = (n % 3 == 0).then_some(500 + n % 7 * 300);
            let customer = format!("customer-{}", n % 10);
            let push = self.site.push("orders", "{}").content_type("application/json");
            self.send("orders", Some(&customer), delay, &format!("survivor-{n}"), push);
            if n == 250 {
                daemon.kill9();
                println!("            killed after {n} confirmed requests");
                daemon.start_again();
            }
        }
        daemon.wait_ready();
        println!("            ready again");
        self.listen(Duration::from_millis(3200));
    }
}

/// Consumes an application's queue until the process ends: records each batch in the ledger and prints a
/// line.
fn watch(inbox: Inbox, application: &str, ledger: &Arc<Ledger>, screen: &Sender<String>) {
    let (application, ledger, screen) = (application.to_owned(), Arc::clone(ledger), screen.clone());
    std::thread::spawn(move || {
        while let Ok(polled) = inbox.try_poll(Duration::from_secs(1)) {
            if let Some(received) = polled {
                let line = describe(&application, &received);
                ledger.received(received);
                if screen.send(line).is_err() {
                    break;
                }
            }
        }
    });
}

fn describe(application: &str, received: &Received) -> String {
    let count = received.number("x-count").unwrap_or(0);
    let customer = received.text("x-customer").unwrap_or_else(|| "-".into());
    let late = received.lateness_us() as f64 / 1000.0;
    let mut text =
        format!("{application:<10} customer {customer:<12} {count:>3} item(s)  {late:>8.2} ms after its due");
    if count == 1 {
        text.push_str("  ");
        text.push_str(&received.clone().batch().ids().join(""));
    }
    text
}
