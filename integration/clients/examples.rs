//! Schedule, batch, cancel and consume in each language.

use super::example;
use serde_json::json;
use std::time::Duration;
use tidegate_harness::{
    external_uri, has_go, has_node, require, require_python, wait_until, Daemon, Program, Site,
};

struct Language {
    interpreter: &'static str,
    /// Folder and file extension of its examples.
    of: (&'static str, &'static str),
}

impl Language {
    fn run(&self, site: &Site<'_>, daemon: &Daemon, name: &str) -> Program {
        let (folder, ending) = self.of;
        let file = example(site, daemon, &format!("{folder}/{name}.{ending}"), &[]);
        let whole = if self.interpreter == "go" { vec!["run", &file] } else { vec![&*file] };
        Program::start(self.interpreter, &whole, &site.dir)
    }

    /// The answer that its `cancel` prints; `None` if it says that there is none.
    fn cancelled(&self, site: &Site<'_>, daemon: &Daemon) -> Option<serde_json::Value> {
        let (has_succeeded, said) = self.run(site, daemon, "cancel").ended();
        // By HTTP, which only the shell uses, a cancel may overtake its request for longer than the example repeats it.
        let is_overtaking = self.interpreter == "sh" && said.contains("unknown");
        if said.contains("no answer") || is_overtaking {
            return None;
        }
        assert!(has_succeeded, "{said}");
        Some(serde_json::from_str(said.trim()).expect("an answer"))
    }

    /// Runs all examples of a language. `told` is what its consumer prints for the batches.
    fn judge(&self, test: &str, told: [&str; 8]) {
        let site = Site::new(test);
        let daemon = site.start(&site.config().text("defaults.window", "600s"));
        if self.interpreter == "sh" {
            // The shell example leaves the binding to others, as its comment says.
            let queue = site.queue("shop-batches");
            site.client.queue(&queue, Default::default());
            site.client.bind(&queue, &site.out(), "shop");
        }
        let consumer = self.run(&site, &daemon, "consume");
        let queue = site.queue("shop-batches");
        let listens = || site.client.depth(&queue) == Some(0);
        wait_until("the consumer has its queue", Duration::from_secs(20), listens);
        self.run(&site, &daemon, "schedule").end();
        self.run(&site, &daemon, "batch").end();
        let mut cancelled = None;
        // Asking again is its own advice: the daemon drops an answer that a busy broker does not take.
        wait_until("it is answered", Duration::from_secs(20), || {
            cancelled = self.cancelled(&site, &daemon);
            cancelled.is_some()
        });
        assert_eq!(cancelled, Some(json!({"count": 1, "result": "cancelled"})));
        // The windows of all six orders end now.
        wait_until("all orders are there", Duration::from_secs(20), || {
            let of = |customer: &str| daemon.ask("GET", &format!("/api/v1/customers/shop/{customer}")).1;
            of("anna")["waiting"] == 3 && of("ben")["waiting"] == 3
        });
        let flushed = daemon.ask("POST", "/api/v1/applications/shop/flush");
        assert_eq!(flushed, (200, json!({"result": "flushed", "count": 6})));
        for text in told {
            consumer.wait_for(text);
        }
        wait_until("two reminders, and a batch for each customer", Duration::from_secs(10), || {
            daemon.state()["totals"]["batches_confirmed"] == 4
        });
        wait_until("nothing is left", Duration::from_secs(10), || daemon.items("waiting") == 0);
        if external_uri().is_none() {
            // A batch is acked shortly after it is printed.
            let acked = || site.node.messages(&queue) == Some(0);
            wait_until("all is acked", Duration::from_secs(30), acked);
        }
        drop(consumer);
        site.lies(&queue, 0);
    }
}

#[test]
fn python() {
    if require_python("pika", "python3-pika") {
        let told = [
            "None reminder-soon {'remind': 'pay'}",
            "None reminder-later {'remind': 'pay'}",
            "anna order-1 {'order': 1}",
            "anna order-2 {'order': 2}",
            "anna order-3 {'order': 3}",
            "ben order-4 {'order': 4}",
            "ben order-5 {'order': 5}",
            "ben order-6 {'order': 6}",
        ];
        Language { interpreter: "python3", of: ("python", "py") }.judge("python", told);
    }
}

#[test]
fn node() {
    if has_node() {
        let told = [
            r#"null reminder-soon {"remind":"pay"}"#,
            r#"null reminder-later {"remind":"pay"}"#,
            r#"anna order-1 {"order":1}"#,
            r#"anna order-2 {"order":2}"#,
            r#"anna order-3 {"order":3}"#,
            r#"ben order-4 {"order":4}"#,
            r#"ben order-5 {"order":5}"#,
            r#"ben order-6 {"order":6}"#,
        ];
        Language { interpreter: "node", of: ("node", "js") }.judge("node", told);
    }
}

#[test]
fn go() {
    if has_go() {
        let told = [
            r#"- reminder-soon {"remind": "pay"}"#,
            r#"- reminder-later {"remind": "pay"}"#,
            r#"anna order-1 {"order":1}"#,
            r#"anna order-2 {"order":2}"#,
            r#"anna order-3 {"order":3}"#,
            r#"ben order-4 {"order":4}"#,
            r#"ben order-5 {"order":5}"#,
            r#"ben order-6 {"order":6}"#,
        ];
        Language { interpreter: "go", of: ("go", "go") }.judge("go", told);
    }
}

#[test]
fn shell() {
    if require("amqp-publish") && require("amqp-consume") && require("curl") {
        let told = [
            r#""id":"reminder-soon""#,
            r#""id":"reminder-later""#,
            r#""id":"order-1""#,
            r#""id":"order-2""#,
            r#""id":"order-3""#,
            r#""id":"order-4""#,
            r#""id":"order-5""#,
            r#""id":"order-6""#,
        ];
        Language { interpreter: "sh", of: ("shell", "sh") }.judge("shell", told);
    }
}
