//! Commands go to the home of their application; lists, exports and the state are those of all shards.

use super::{applications, consumed, home, site};
use serde_json::{json, Value};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use tidegate_harness::{Asker, Daemon, Push, Site};

/// One minute, ms.
const LATER: i64 = 60_000;
/// An [`Asker`] that waits for longer than this has asked again.
const ASKS_AGAIN: Duration = Duration::from_secs(15);
/// More pages than a list of these tests has.
const MOST_PAGES: usize = 1_000;

fn later(site: &Site<'_>, application: &str, id: &str) -> Push {
    site.push(application, "1").id(id).delay(LATER)
}

/// Panics unless the answer to this command is `wanted`. The daemon drops an answer that a busy broker does not
/// take. To a command that is sent again, which has had its effect before, only the result is the same.
fn is_answered(asker: &Asker<'_>, kind: &str, push: Push, wanted: &Value) {
    let asked = Instant::now();
    let told = asker.ask(kind, push);
    let is_again = asked.elapsed() >= ASKS_AGAIN && told["result"] == wanted["result"];
    assert!(told == *wanted || is_again, "{kind}: {told} instead of {wanted}");
}

#[test]
fn commands_by_message_reach_the_home_of_their_application() {
    let site = site("shards-asked");
    let applications = consumed(&site);
    let daemon = site.start(&site.config().text("defaults.window", "1h"));
    let asker = Asker::new(&site);
    let (cancelled, flushed) =
        (json!({"result": "cancelled", "count": 1}), json!({"result": "flushed", "count": 1}));
    let changed = json!({"result": "done", "changed": true});
    for (application, inbox) in &applications {
        let about = |id: &str| site.push(application, "").id(id);
        site.client.publish_all([
            later(&site, application, "x"),
            later(&site, application, "y"),
            site.push(application, "1").customer("c").id("w"),
        ]);
        let found = asker.ask("lookup", about("x"));
        assert_eq!(
            (&found["state"], &found["application"]),
            (&json!("waiting"), &json!(application)),
            "{found}"
        );
        is_answered(&asker, "cancel", about("x"), &cancelled);
        assert_eq!(asker.ask("lookup", about("x"))["state"], "cancelled");
        is_answered(&asker, "flush", site.push(application, "").customer("c"), &flushed);
        assert_eq!(inbox.batch().ids(), ["w"]);
        is_answered(&asker, "pause", site.push(application, ""), &changed);
        assert_eq!(daemon.ask("GET", &format!("/api/v1/applications/{application}")).1["paused"], true);
        assert_eq!(asker.ask("reschedule", about("y").delay(0))["result"], "rescheduled");
        is_answered(&asker, "resume", site.push(application, ""), &changed);
        assert_eq!(inbox.batch().ids(), ["y"]);
        assert_eq!(asker.ask("cancel", about("nobody")), json!({"result": "unknown"}));
    }
    // What a body names counts, not the routing key.
    let (application, _) = &applications[3];
    site.client.publish(&later(&site, application, "named"));
    let body = json!({"application": application, "id": "named"}).to_string();
    let push = site.push("elsewhere", body).content_type("application/vnd.tidegate+json");
    is_answered(&asker, "cancel", push, &cancelled);
    site.lies(&site.dead(), 0);
}

#[test]
fn answers_to_commands_come_by_direct_reply_to() {
    let site = site("shards-direct");
    let daemon = site.start(&site.config());
    let asker = Asker::direct(&site);
    for application in &applications(1) {
        site.application(application);
        site.client.publish(&later(&site, application, "x"));
        let about = || site.push(application, "").id("x");
        assert_eq!(asker.ask("lookup", about())["state"], "waiting");
        is_answered(&asker, "cancel", about(), &json!({"result": "cancelled", "count": 1}));
    }
    let refused = asker.ask("dance", site.push(&applications(1)[2], ""));
    assert_eq!(refused["result"], "rejected", "{refused}");
    site.lies(&site.dead(), 1);
    daemon.holds("waiting", 0);
}

/// What a list has told, page by page.
#[derive(Debug, Default)]
pub struct Walk {
    pub rows: Vec<Value>,
    /// Shards that a page has left out, by their numbers.
    pub missing: BTreeSet<u16>,
    /// Of each page, its number of rows, where the next one begins, and what it has left out; for messages.
    pub pages: Vec<String>,
}

/// Reads a list to its end, each page at the next one of these daemons. `filter` is a part of the query.
///
/// # Errors
/// An answer is no page.
///
/// # Panics
/// If the list does not end.
pub fn walk(daemons: &[&Daemon], filter: &str) -> Result<Walk, (u16, Value)> {
    let (mut told, mut cursor) = (Walk::default(), String::new());
    for daemon in daemons.iter().cycle().take(MOST_PAGES) {
        let (status, page) = daemon.ask("GET", &format!("/api/v1/items?{filter}&cursor={cursor}"));
        let Some(rows) = page["items"].as_array().filter(|_| status == 200) else {
            return Err((status, page));
        };
        told.rows.extend(rows.iter().cloned());
        told.pages.push(format!("{} rows, next {}, without {:?}", rows.len(), page["next"], missing(&page)));
        told.missing.append(&mut missing(&page));
        match page["next"].as_str() {
            Some(next) => cursor = next.to_owned(),
            None => return Ok(told),
        }
    }
    panic!("the list has more than {MOST_PAGES} pages: {told:?}");
}

/// Shards that a document names as left out.
pub fn missing(document: &Value) -> BTreeSet<u16> {
    let named = &document["missing_shards"];
    let numbers = named.as_array().cloned().unwrap_or_default();
    assert!(named.is_null() || named.is_array(), "{named}");
    let number = |number: &Value| number.as_u64().and_then(|number| u16::try_from(number).ok());
    numbers.iter().map(|told| number(told).unwrap_or_else(|| panic!("no shards: {named}"))).collect()
}

/// All rows of a list that leaves nothing out.
pub fn listed(daemons: &[&Daemon], filter: &str) -> Vec<Value> {
    let told = walk(daemons, filter).unwrap_or_else(|(status, said)| panic!("{filter}: {status} {said}"));
    assert_eq!(told.missing, BTreeSet::new(), "{filter}");
    told.rows
}

#[test]
fn what_is_shown_and_exported_is_that_of_all_shards() {
    let site = site("shards-shown");
    let applications = consumed(&site);
    let daemon = site.start(&site.config());
    // Many are due in the same millisecond, in all shards.
    let due = i64::try_from(tidegate_harness::now_ms()).expect("a date") + 3 * 3_600_000;
    site.client.publish_all((0..200).map(|n: i64| {
        let push = site.push(&applications[n as usize % 8].0, "1").number("x-deliver-at", due + n / 50);
        // Some have no id, and get one.
        if n < 160 {
            push.id(&format!("i{n}"))
        } else {
            push
        }
    }));
    daemon.holds("waiting", 200);
    let ids = |rows: &[Value]| -> BTreeSet<String> {
        rows.iter().map(|row| format!("{} {}", row["application"], row["id"])).collect()
    };
    let rows = listed(&[&daemon], "limit=7");
    let all = ids(&rows);
    assert_eq!((rows.len(), all.len()), (200, 200), "each once");
    assert_eq!(ids(&listed(&[&daemon], "limit=1000")), all);
    let moments: Vec<u64> = rows.iter().map(|row| row["due"].as_u64().expect("due")).collect();
    assert!(moments.is_sorted(), "{moments:?}");

    for row in rows.iter().filter(|row| !row["id"].as_str().is_some_and(|id| id.starts_with('i'))) {
        let (application, id) =
            (row["application"].as_str().expect("a name"), row["id"].as_str().expect("an id"));
        let path = format!("/api/v1/items/{application}/{id}");
        assert_eq!(daemon.ask("GET", &path).1["state"], "waiting", "{path}");
        assert_eq!(daemon.ask("DELETE", &path), (200, json!({"result": "cancelled", "count": 1})));
    }
    daemon.holds("waiting", 160);

    let export = daemon.ask_whole("GET", "/api/v1/export").expect("an export");
    assert_eq!(export.status, 200, "{}", export.body);
    let lines: Vec<Value> =
        export.body.lines().map(|line| serde_json::from_str(line).expect("a JSON line")).collect();
    let exported: BTreeSet<&str> =
        lines.iter().filter(|line| line["kind"] == "item").filter_map(|line| line["id"].as_str()).collect();
    assert_eq!(
        exported,
        (0..160).map(|n| format!("i{n}")).collect::<BTreeSet<_>>().iter().map(String::as_str).collect()
    );

    let told = daemon.cli(&["status"]);
    let of_shards: Vec<&str> = told.out.lines().filter(|line| line.starts_with("shard ")).collect();
    assert_eq!((told.code, of_shards.len()), (0, 4), "{told:?}");
    for (number, line) in of_shards.iter().enumerate() {
        let number = u16::try_from(number).expect("a number");
        assert!(line.starts_with(&format!("shard {number} ")), "{line}");
        assert!(line.contains(&site.shard_queue(number)) && line.contains("40 waiting"), "{line}");
    }
    for (application, _) in &applications {
        let told = daemon.cli(&["cancel", application, "--all", "--dry-run"]);
        assert!(
            told.code == 0 && told.out.contains("would cancel 20 items"),
            "{}: {told:?}",
            home(application)
        );
    }
}
