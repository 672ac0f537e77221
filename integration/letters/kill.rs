//! The daemon is killed while it sends dead letters back.

use super::{changed, died, invalid, is_broken_off, letter, lie_there};
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;
use tidegate_harness::{wait_until, Daemon, Push, Site};

const MANY: u32 = 600;

#[test]
fn a_kill_in_the_midst_of_a_retry_loses_none() {
    let site = Site::new("letters-kill");
    let inbox = site.inbox("shop");
    let mut daemon = site.start(&site.config());
    died(&site, (0..MANY).map(|n| invalid(&site, "shop", &n.to_string())), MANY);
    // It gets no answer, because the daemon is killed.
    let head = format!(
        "POST /api/v1/dead/retry?all=true HTTP/1.1\r\nHost: {}\r\nContent-Length: 0\r\n\r\n",
        daemon.admin()
    );
    let (mut asking, mut first) = (Vec::new(), None);
    wait_until("one has come", Duration::from_secs(120), || {
        let mut stream = TcpStream::connect(daemon.admin()).expect("the admin port");
        stream.write_all(head.as_bytes()).expect("it is asked");
        asking.push(stream);
        // Longer than a call takes, which sends none back if the broker is silent.
        first = inbox.poll(Duration::from_secs(40));
        first.is_some()
    });
    // Some requests have been accepted; others are unconfirmed, and the remaining dead letters are only held.
    let mut seen: BTreeSet<String> = BTreeSet::new();
    seen.extend(first.into_iter().flat_map(|message| message.batch().items).map(|item| item.id));
    daemon.kill9();
    daemon.start_again();
    daemon.wait_ready();
    wait_until("what was held is back", Duration::from_secs(20), || {
        daemon.ask("GET", "/api/v1/dead/count").0 == 200
    });
    // Messages published just before the kill, dead letters included, may be published again. Requests that
    // the daemon had not acked are delivered again later and are dead-lettered once more.
    wait_until("all have come, and no letter is left", Duration::from_secs(180), || {
        let answer = changed(&daemon, "POST", "/api/v1/dead/retry?all=true", None);
        while let Some(message) = inbox.poll(Duration::from_millis(200)) {
            seen.extend(message.batch().items.into_iter().map(|item| item.id));
        }
        let none_comes = daemon.state()["dead_letters"]["total"].as_u64().unwrap_or(0) == 0;
        let none_lies = site.client.depth(&site.dead()) == Some(0);
        answer["left"] == 0 && none_comes && none_lies && seen.len() == MANY as usize
    });
}

/// The first answer of a walk that drops dead letters. Where the broker was silent the walk has ended; those
/// that it has dropped are replaced, and another begins.
fn walk_begun(site: &Site<'_>, daemon: &Daemon, letter: &impl Fn(u32) -> Push) -> Value {
    let mut next = 10_000;
    let mut told = (0, Value::Null);
    wait_until("a walk", Duration::from_secs(60), || {
        told = daemon.ask("DELETE", "/api/v1/dead?reason=invalid&walk=true&limit=1100");
        if !is_broken_off(&told) {
            return true;
        }
        let count = told.1["count"].as_u64().and_then(|count| u32::try_from(count).ok()).unwrap_or(0);
        lie_there(site, 1_101 - count);
        site.client.publish_all((next..next + count).map(letter));
        next += count;
        lie_there(site, 1_101);
        false
    });
    assert_eq!(told.0, 200, "{told:?}\n{}", daemon.log_tail());
    told.1
}

/// The walk is idle with its connection open; only its answer has confirmed what it dropped.
#[test]
fn what_a_walk_says_that_it_dropped_stays_dropped() {
    let site = Site::new("letters-kill-drop");
    let mut daemon = site.start(&site.config());
    site.client.publish_all([letter(&site, "rejected", "kept")]);
    lie_there(&site, 1);
    let mut new = 1_100;
    for round in 1..=3 {
        let of_round = |n| letter(&site, "invalid", &format!("{round}-{n}"));
        site.client.publish_all((0..new).map(of_round));
        lie_there(&site, 1_101);
        let told = walk_begun(&site, &daemon, &of_round);
        daemon.kill9();
        // A thousand; or fewer, on a machine with other work, where the call ends by its time.
        let dropped = told["count"].as_u64().and_then(|count| u32::try_from(count).ok()).unwrap_or(0);
        assert!((1..=1_000).contains(&dropped) && told["cursor"].is_string(), "{told}");
        // The kept dead letters are requeued with all others that were not acked.
        let left = 1_101 - dropped;
        wait_until("what is left", Duration::from_secs(20), || {
            site.client.depth(&site.dead()).is_some_and(|depth| depth >= left)
        });
        lie_there(&site, left);
        daemon.start_again();
        daemon.wait_ready();
        new = dropped;
    }
}
