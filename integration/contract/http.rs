//! The OpenAPI document, as the daemon serves it: every operation is called, and every response must match
//! the document.

use serde_json::{json, Value};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::time::Duration;
use tidegate_harness::{schema_faults, wait_until, Daemon, HttpAnswer, Site};

/// A daemon, its document, and the operations called so far.
struct Told<'d> {
    daemon: &'d Daemon,
    document: Value,
    asked: RefCell<BTreeSet<String>>,
}

impl<'d> Told<'d> {
    fn by(daemon: &'d Daemon) -> Self {
        let answer = daemon.ask_whole("GET", "/api/v1/openapi.json").expect("an answer");
        assert_eq!((answer.status, answer.kind.as_str()), (200, "application/json"));
        let document: Value = serde_json::from_str(&answer.body).expect("JSON");
        assert_eq!(document["openapi"], "3.1.0");
        Told { daemon, document, asked: RefCell::default() }
    }

    /// The answer to an operation. Looks are repeated while the daemon, or its broker, is too busy to answer, and so is
    /// what concerns dead letters: with 503 nothing was done.
    fn answer(&self, method: &str, path: &str, status: u16) -> HttpAnswer {
        let mut last = None;
        wait_until("an answer other than 503", Duration::from_secs(10), || {
            last = self.daemon.ask_whole(method, path);
            let is_busy = last.as_ref().is_some_and(|answer| answer.status == 503) && status != 503;
            let may_repeat = method == "GET" || path.starts_with("/api/v1/dead");
            !(may_repeat && is_busy)
        });
        last.expect("an answer")
    }

    /// Calls an operation and checks the response against the document. Returns the body.
    fn ask(&self, method: &str, template: &str, path: &str, status: u16) -> Value {
        self.asked.borrow_mut().insert(format!("{method} {template}"));
        let operation = &self.document["paths"][template][method.to_lowercase()];
        assert!(operation.is_object(), "the document does not tell of {method} {template}");
        let answer = self.answer(method, path, status);
        assert_eq!(answer.status, status, "{method} {path}: {}", answer.body);
        let of_status = operation["responses"].get(status.to_string());
        let response = self.followed(of_status.unwrap_or(&operation["responses"]["default"]));
        let place = response["content"].get(&answer.kind);
        let schema = place.unwrap_or_else(|| panic!("{method} {path}: {} is not told of", answer.kind));
        let is_json = answer.kind.ends_with("json") && answer.kind != "application/x-ndjson";
        let body = if is_json {
            serde_json::from_str(&answer.body).unwrap_or_else(|e| panic!("{method} {path}: {e}"))
        } else {
            Value::String(answer.body)
        };
        let mut root = self.document.clone();
        root["judged"] = schema["schema"].clone();
        let faults = schema_faults(&root, "#/judged", &body);
        assert_eq!(faults, [""; 0], "{method} {path}: {body:#}");
        if answer.kind == "application/problem+json" {
            assert_eq!((&body["status"], &body["error"]), (&json!(status), &body["detail"]), "{path}");
        }
        body
    }

    fn followed<'v>(&'v self, value: &'v Value) -> &'v Value {
        let reference = value["$ref"].as_str();
        reference.map_or(value, |place| self.document.pointer(&place[1..]).expect("what it refers to"))
    }

    fn get(&self, template: &str, path: &str, status: u16) -> Value {
        self.ask("GET", template, path, status)
    }

    /// Panics unless every operation of the document was called.
    fn assert_complete(&self) {
        let asked = self.asked.borrow();
        for (path, operations) in self.document["paths"].as_object().expect("paths") {
            for method in
                operations.as_object().expect("operations").keys().filter(|key| *key != "parameters")
            {
                let name = format!("{} {path}", method.to_uppercase());
                assert!(asked.contains(&name), "nothing asks for {name}: let this test do it");
            }
        }
    }
}

const ITEM: &str = "/api/v1/items/{application}/{id}";
const CUSTOMER: &str = "/api/v1/customers/{application}/{customer}";
const APPLICATION: &str = "/api/v1/applications/{application}";

#[test]
fn every_answer_is_as_the_document_tells() {
    let site = Site::new("openapi");
    let inbox = site.inbox("shop");
    let config = site.config().text("defaults.window", "60s").text("defaults.retry.min", "60s");
    let daemon = site.start(&config);
    let told = Told::by(&daemon);
    site.client.publish_all([
        site.push("shop", "1").id("late").delay(60_000),
        site.push("shop", "1").id("late-2").delay(60_000).customer("b"),
        site.push("shop", "1").id("now"),
        site.push("shop", "1").id("windowed").customer("a"),
        site.push("shop", "1").id("over").with("x-deliver-before", "2020-01-01T00:00:00Z"),
        site.push("nowhere", "1").id("stranded"),
    ]);
    assert_eq!(inbox.next().batch().ids(), ["now"]);
    wait_until("the application without a queue is parked", Duration::from_secs(10), || {
        daemon.ask("GET", "/api/v1/items/nowhere/stranded").1["state"] == "parked"
    });
    wait_until("the end is known", Duration::from_secs(10), || {
        daemon.ask("GET", "/api/v1/items/shop/over").1["state"] == "expired"
            && daemon.ask("GET", "/api/v1/items/shop/now").1["state"] == "sent"
    });
    let export = told.get("/api/v1/export", "/api/v1/export", 200);
    exported(&told, export.as_str().expect("lines"));
    told.get("/api/v1/export", "/api/v1/export?limit=1", 400);
    items(&told);
    customers(&told);
    applications(&told);
    letters(&told);
    for path in ["/", "/page.css", "/page.js", "/livez", "/readyz", "/metrics", "/api/v1/openapi.json"] {
        told.get(path, path, 200);
    }
    let state = told.get("/api/v1/state", "/api/v1/state", 200);
    assert_eq!(state["ready"], true);
    told.assert_complete();
}

fn items(told: &Told<'_>) {
    for (id, status, state) in
        [("late", 200, "waiting"), ("now", 200, "sent"), ("over", 200, "expired"), ("none", 404, "unknown")]
    {
        assert_eq!(told.get(ITEM, &format!("/api/v1/items/shop/{id}"), status)["state"], state);
    }
    let parked = told.get(ITEM, "/api/v1/items/nowhere/stranded", 200);
    assert!(parked["last_error"].is_string(), "{parked}");
    let page = told.get("/api/v1/items", "/api/v1/items?limit=1", 200);
    assert!(page["next"].is_string(), "{page}");
    told.get("/api/v1/items", "/api/v1/items?state=parked", 200);
    told.get("/api/v1/items", "/api/v1/items?limit=0", 400);
    let timeline = told.get("/api/v1/timeline", "/api/v1/timeline?span=day&application=shop", 200);
    assert_eq!(timeline["applications"][0]["name"], "shop", "{timeline}");
    told.get("/api/v1/timeline", "/api/v1/timeline?span=year", 400);
    let reschedule = format!("{ITEM}/reschedule");
    let new_time = |id: &str, time: &str, status: u16| {
        told.ask("POST", &reschedule, &format!("/api/v1/items/shop/{id}/reschedule?{time}"), status)
    };
    assert_eq!(new_time("late", "delay=90000", 200)["result"], "rescheduled");
    assert_eq!(new_time("now", "at=2030-01-01T00:00:00Z", 200)["result"], "sent");
    assert_eq!(new_time("over", "delay=0", 200)["result"], "expired");
    assert_eq!(new_time("none", "delay=0", 404)["result"], "unknown");
    assert_eq!(new_time("late", "at=2199-12-31T23:59:59Z", 409)["result"], "rejected");
    for wrong in ["", "at=tomorrow", "delay=-1", "delay=1&at=2030-01-01T00:00:00Z", "until=1"] {
        new_time("late", wrong, 400);
    }
    for (id, status, result) in
        [("late", 200, "cancelled"), ("now", 200, "sent"), ("over", 200, "expired"), ("none", 404, "unknown")]
    {
        let answer = told.ask("DELETE", ITEM, &format!("/api/v1/items/shop/{id}"), status);
        assert_eq!(answer["result"], result, "{id}");
    }
    told.ask("DELETE", ITEM, "/api/v1/items/shop/%zz", 400);
}

fn customers(told: &Told<'_>) {
    assert_eq!(told.get(CUSTOMER, "/api/v1/customers/shop/a", 200)["waiting"], 1);
    let flushed = told.ask("POST", &format!("{CUSTOMER}/flush"), "/api/v1/customers/shop/a/flush", 200);
    assert_eq!(flushed["count"], 1);
    let pause = |path: &str| told.ask("POST", &format!("{CUSTOMER}/pause"), path, 200);
    assert_eq!(pause("/api/v1/customers/shop/b/pause?for=600000")["changed"], true);
    let counts = told.get(CUSTOMER, "/api/v1/customers/shop/b", 200);
    assert!(counts["paused"] == true && counts["paused_until"].is_u64(), "{counts}");
    let resume = format!("{CUSTOMER}/resume");
    assert_eq!(told.ask("POST", &resume, "/api/v1/customers/shop/b/resume", 200)["changed"], true);
    told.ask("POST", &resume, "/api/v1/customers/shop/b/resume?for=1", 400);
    told.ask("POST", &format!("{CUSTOMER}/pause"), "/api/v1/customers/shop/b/pause?for=1&until=9", 400);
    let path = "/api/v1/customers/shop/b/items";
    assert_eq!(told.ask("DELETE", &format!("{CUSTOMER}/items"), path, 200)["count"], 1);
    told.ask("DELETE", &format!("{CUSTOMER}/items"), "/api/v1/customers/shop/b/items?state=parked", 400);
}

fn applications(told: &Told<'_>) {
    let all = told.get("/api/v1/applications", "/api/v1/applications", 200);
    assert!(all["applications"].as_array().is_some_and(|all| !all.is_empty()), "{all}");
    let parked = told.get("/api/v1/parked", "/api/v1/parked", 200);
    assert_eq!(parked["applications"][0]["state"], "parked", "{parked}");
    assert_eq!(told.get(APPLICATION, "/api/v1/applications/nowhere", 200)["parked"], 1);
    told.get(APPLICATION, "/api/v1/applications/none", 404);
    told.get(APPLICATION, "/api/v1/applications/%ff", 400);
    let (items, path) = (format!("{APPLICATION}/items"), "/api/v1/applications/nowhere/items");
    assert_eq!(told.get(&items, &format!("{path}?all=true"), 200)["parked"], 1);
    assert_eq!(
        told.get(&items, &format!("{path}?customer_prefix=x&due_after=0"), 200)["next_due"],
        Value::Null
    );
    let none = format!("{path}?received_before=2020-01-01T00:00:00Z");
    assert_eq!(told.ask("DELETE", &items, &none, 200)["count"], 0);
    told.ask("DELETE", &items, path, 400);
    let (rate, path) = (format!("{APPLICATION}/rate"), "/api/v1/applications/nowhere/rate");
    assert_eq!(told.ask("POST", &rate, &format!("{path}?rate=5/min&for=600000"), 200)["changed"], true);
    assert_eq!(told.get(APPLICATION, "/api/v1/applications/nowhere", 200)["rate"], "5/min");
    told.ask("POST", &rate, &format!("{path}?rate=fast"), 400);
    told.ask("POST", &rate, &format!("{path}?rate=1/s&until=2020-01-01T00:00:00Z"), 409);
    assert_eq!(told.ask("DELETE", &rate, path, 200)["changed"], true);
    let flush = format!("{APPLICATION}/flush");
    assert_eq!(told.ask("POST", &flush, "/api/v1/applications/none/flush", 200)["count"], 0);
    for verb in ["retry", "pause", "resume"] {
        let path = format!("/api/v1/applications/nowhere/{verb}");
        assert_eq!(told.ask("POST", &format!("{APPLICATION}/{verb}"), &path, 200)["result"], "done");
    }
    wait_until("it is parked again", Duration::from_secs(10), || {
        told.daemon.ask("GET", "/api/v1/parked").1["applications"][0]["state"] == "parked"
    });
    let path = "/api/v1/applications/nowhere/parked";
    assert_eq!(told.ask("DELETE", &format!("{APPLICATION}/parked"), path, 200)["count"], 1);
    told.ask("DELETE", &format!("{APPLICATION}/parked"), path, 200);
}

/// The lines of an export with waiting and ended items.
fn exported(told: &Told<'_>, lines: &str) {
    let mut kinds = BTreeSet::new();
    for line in lines.lines() {
        let line: Value = serde_json::from_str(line).expect("JSON");
        let faults = schema_faults(&told.document, "#/components/schemas/ExportLine", &line);
        assert_eq!(faults, [""; 0], "{line:#}");
        kinds.insert(line["kind"].as_str().expect("a kind").to_owned());
    }
    assert!(["store", "item", "ended", "end"].into_iter().all(|kind| kinds.contains(kind)), "{kinds:?}");
}

/// The queue contains one expired dead letter.
fn letters(told: &Told<'_>) {
    const DEAD: &str = "/api/v1/dead";
    let count = || told.get("/api/v1/dead/count", "/api/v1/dead/count", 200);
    wait_until("the letter lies in its queue", Duration::from_secs(20), || count()["depth"] == 1);
    assert_eq!(count()["groups"][0]["reason"], "expired");
    let page = told.get(DEAD, "/api/v1/dead?reason=expired&whole=true", 200);
    let key = page["letters"][0]["key"].as_str().expect("a key").to_owned();
    told.get(DEAD, "/api/v1/dead?limit=0", 400);
    let one = "/api/v1/dead/letters/{key}";
    assert_eq!(told.get(one, &format!("/api/v1/dead/letters/{key}"), 200)["key"], key);
    told.get(one, &format!("/api/v1/dead/letters/{}", "0".repeat(32)), 404);
    told.get(one, "/api/v1/dead/letters/none", 400);
    told.get("/api/v1/dead/export", "/api/v1/dead/export", 200);
    let retry = "/api/v1/dead/retry";
    told.ask("POST", retry, retry, 400);
    assert_eq!(told.ask("POST", retry, "/api/v1/dead/retry?reason=none", 200)["count"], 0);
    told.ask("DELETE", DEAD, DEAD, 400);
    assert_eq!(told.ask("DELETE", DEAD, &format!("{DEAD}?key={key}"), 200)["count"], 1);
}
