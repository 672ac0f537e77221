//! More dead letters than one call processes, and larger ones than memory holds: all can be reached by
//! successive calls, and the cost of a look stays bounded.

use super::{carried_out, changed, done, ids, is_broken_off, letter, lie_there, listed, looked};
use serde_json::{json, Value};
use std::io::Write;
use std::net::TcpStream;
use tidegate_harness::{is_optimised, Daemon, Push, Site};

const MIB: u64 = 1 << 20;

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn every_letter_is_reached_however_many_lie_before_it() {
    let site = Site::new("letters-many");
    let daemon = site.start(&site.config());
    const FIRST: usize = 2_100;
    site.client.publish_all((0..FIRST).map(|n| letter(&site, "invalid", &n.to_string())));
    let behind = ["a", "b", "c"];
    site.client.publish_all(behind.map(|id| letter(&site, "expired", id)));
    lie_there(&site, FIRST as u32 + 3);
    let cli = |line: &str| looked(&daemon, &line.split(' ').collect::<Vec<_>>());
    let change = |line: &str| carried_out(&daemon, &line.split(' ').collect::<Vec<_>>());
    let json = |line: &str| -> Value { serde_json::from_str(&cli(line).out).expect("JSON") };
    let counted = json("dead list --count --output json");
    let group =
        |reason: &str, count: usize| json!({ "reason": reason, "application": "shop", "count": count });
    assert_eq!(counted["groups"], json!([group("expired", 3), group("invalid", FIRST)]), "{counted}");
    // A quorum queue does not keep the order of messages that were looked at.
    let sorted = |letters: &[Value]| {
        let mut ids: Vec<String> = ids(letters).into_iter().map(str::to_owned).collect();
        ids.sort_unstable_by_key(|id| (id.len(), id.clone()));
        ids
    };
    let page = json("dead list --reason expired --output json");
    let letters = page["letters"].as_array().expect("letters");
    assert_eq!((sorted(letters), &page["more"]), (behind.map(str::to_owned).to_vec(), &json!(false)));
    let key = page["letters"][2]["key"].as_str().expect("a key").to_owned();
    assert!(cli(&format!("dead show {key}")).out.contains("property message_id"), "by its key");
    assert_eq!(sorted(&lines(&cli("dead export --reason expired").out)), behind);
    let told = change(&format!("dead drop {key} --yes"));
    assert_eq!((told.code, told.out.trim()), (0, "dropped: 1 letter; left in the queue: 2102"), "{told:?}");
    let told = change("dead drop --reason expired --yes");
    assert_eq!((told.code, told.out.trim()), (0, "dropped: 2 letters; left in the queue: 2100"), "{told:?}");
    let seen = sorted(&lines(&cli("dead export").out));
    let all: Vec<String> = (0..FIRST).map(|n| n.to_string()).collect();
    assert_eq!(seen, all, "each once");
    let told = change("dead drop --all --yes");
    assert_eq!((told.code, told.out.trim()), (0, "dropped: 2100 letters; left in the queue: 0"), "{told:?}");
    lie_there(&site, 0);
}

#[test]
fn a_walk_gives_way_to_others_and_says_so() {
    let site = Site::new("letters-walk");
    let daemon = site.start(&site.config());
    site.client.publish_all((0..2_100).map(|n| letter(&site, "invalid", &n.to_string())));
    lie_there(&site, 2_100);
    let counts = walked(&daemon, "GET", "/api/v1/dead/count?", "");
    let looked_at = |page: &Value| page["looked_at"].as_u64().expect("a number");
    assert!(counts.len() > 1 && looked_at(&counts[0]) <= 2_000, "{counts:?}");
    assert_eq!(looked_at(&counts[counts.len() - 1]), 2_100);
    let counted = counts.iter().filter_map(|page| page["groups"][0]["count"].as_u64()).sum::<u64>();
    assert_eq!(counted, 2_100, "each once: {counts:?}");
    let again = done(&daemon, "GET", "/api/v1/dead/count?walk=true");
    let cursor = again["cursor"].as_str().expect("a cursor").to_owned();
    // A new look first requeues what the walk holds.
    assert_eq!(done(&daemon, "GET", "/api/v1/dead/count")["depth"], 2_100);
    let (status, told) = daemon.ask("GET", &format!("/api/v1/dead/count?cursor={cursor}"));
    assert_eq!(status, 409, "{told}");
    assert!(told["error"].as_str().is_some_and(|text| text.contains("this walk has ended")), "{told}");
    // The total never exceeds the requested limit.
    let dropped = walked(&daemon, "DELETE", "/api/v1/dead?all=true&", "1500");
    let counts: Vec<u64> = dropped.iter().filter_map(|page| page["count"].as_u64()).collect();
    assert!(counts.len() > 1 && counts.iter().all(|count| *count <= 1_000), "{counts:?}");
    assert_eq!(counts.iter().sum::<u64>(), 1_500, "what was asked for is done");
    lie_there(&site, 600);
}

/// The pages of a complete walk; their sizes depend on timing. `limit` applies to all pages together. Where
/// the broker was silent, another walk begins: a look from its beginning, a change with the rest.
fn walked(daemon: &Daemon, method: &str, path: &str, limit: &str) -> Vec<Value> {
    let mut left: Option<u64> = limit.parse().ok();
    let (mut pages, mut step, mut broken_off) = (Vec::new(), "walk=true".to_owned(), 0);
    loop {
        let limit = left.map_or(String::new(), |left| format!("&limit={left}"));
        let told = daemon.ask(method, &format!("{path}{step}{limit}"));
        if is_broken_off(&told) && broken_off < 20 {
            broken_off += 1;
            left = left.map(|left| left - told.1["count"].as_u64().unwrap_or(0));
            match left {
                None => pages.clear(),
                Some(_) => pages.push(told.1),
            }
            if left == Some(0) {
                return pages;
            }
            step = "walk=true".to_owned();
            continue;
        }
        let (status, page) = told;
        assert_eq!(status, 200, "{method} {path}: {page}");
        left = left.map(|left| left - page["count"].as_u64().expect("a count"));
        let cursor = page["cursor"].as_str().map(|cursor| format!("cursor={cursor}"));
        assert_eq!(page["more"] == true && left != Some(0), cursor.is_some(), "{page}");
        pages.push(page);
        match cursor {
            Some(cursor) => step = cursor,
            None => return pages,
        }
    }
}

#[test]
fn letters_with_large_headers_are_looked_at_in_little_memory() {
    let site = Site::new("letters-headers");
    let daemon = site.start(&site.config().text("limits.memory", "64MiB"));
    let count = if is_optimised() { 2_000 } else { 600 };
    let large = "x".repeat(100_000);
    let all = (0..count).map(|n| letter(&site, "invalid", &n.to_string()).with("x-tidegate-error", &large));
    site.client.publish_all(all);
    lie_there(&site, count as u32);
    let before = daemon.peak_rss();
    let cli = |line: &str| looked(&daemon, &line.split(' ').collect::<Vec<_>>());
    let told = cli("dead list --limit 2000 --output json");
    let page: Value = serde_json::from_str(&told.out).expect("JSON");
    assert_eq!(ids(page["letters"].as_array().expect("letters")).len(), count);
    assert!(cli("dead list --count").out.contains(&count.to_string()));
    let told = cli("dead export");
    assert_eq!(told.code, 0, "{}", told.err);
    let saved = lines(&told.out);
    assert_eq!((saved.len(), saved[0]["headers"]["x-tidegate-error"].as_str()), (count, Some(&*large)));
    let peak = daemon.peak_rss();
    assert!(peak < before + 32 * MIB, "{} MiB, {} before", peak / MIB, before / MIB);
}

/// A look ends when its client disconnects, and the next one finds the messages that it held.
#[test]
fn a_look_whose_client_has_gone_holds_up_nobody() {
    let site = Site::new("letters-gone");
    let daemon = site.start(&site.config());
    site.client.publish_all((0..2_000).map(|n| letter(&site, "invalid", &n.to_string())));
    lie_there(&site, 2_000);
    for _ in 0..5 {
        let mut stream = TcpStream::connect(daemon.admin()).expect("the port accepts");
        let request = b"GET /api/v1/dead/count HTTP/1.1\r\nHost: localhost\r\n\r\n";
        stream.write_all(request).expect("the request is sent");
        drop(stream);
        assert_eq!(done(&daemon, "GET", "/api/v1/dead?limit=1")["letters"].as_array().map(Vec::len), Some(1));
    }
    lie_there(&site, 2_000);
}

/// As JSON text each byte would take six.
#[test]
fn readers_that_stand_still_before_a_large_letter_cost_no_more_than_a_few() {
    let site = Site::new("letters-still");
    let daemon = site.start(&site.config().text("limits.memory", "64MiB"));
    let body = vec![1; 7 << 20];
    site.client.publish(&Push { body, ..letter(&site, "invalid", "large") });
    lie_there(&site, 1);
    let before = daemon.peak_rss();
    let still: Vec<TcpStream> = (0..24)
        .map(|_| {
            let mut stream = TcpStream::connect(daemon.admin()).expect("the port accepts");
            let request = b"GET /api/v1/dead/export HTTP/1.1\r\nHost: localhost\r\n\r\n";
            stream.write_all(request).expect("the request is sent");
            stream
        })
        .collect();
    // Others do not wait for these readers: neither a probe nor an action.
    assert_eq!(daemon.ask("GET", "/livez").0, 200);
    let (status, told) = daemon.ask("GET", "/api/v1/dead");
    assert!(status == 200 || status == 503, "{status} {told}");
    drop(still);
    assert_eq!(listed(&daemon, "")[0]["bytes"], 7 << 20);
    let dropped = changed(&daemon, "DELETE", "/api/v1/dead?all=true", None);
    assert_eq!(dropped["count"], 1);
    let peak = daemon.peak_rss();
    assert!(peak < before + 160 * MIB, "{} MiB, {} before", peak / MIB, before / MIB);
}
