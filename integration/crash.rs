//! A kill while the daemon starts. Kills and restarts under load are rows of the table of faults (`faults/kill.rs`,
//! `faults/broker.rs`), which run in each `make test`.

use std::fs;
use std::time::Duration;
use tidegate_harness::{wait_until, Raw, RawProperties, Site};

/// Judges promise 3.
#[test]
fn kill_9_right_after_the_start_does_not_lose_the_backlog() {
    let site = Site::new("kill-start");
    let inbox = site.inbox("shop");
    let mut daemon = site.start(&site.config());
    site.client.publish_all((0..2000).map(|n| {
        let push = site.push("shop", "{}").id(&format!("{n}")).delay(4000);
        if n % 2 == 0 {
            push.customer(&format!("c{}", n % 10))
        } else {
            push
        }
    }));
    for pause in [0, 30, 90, 200, 400] {
        daemon.kill9();
        daemon.start_again();
        std::thread::sleep(Duration::from_millis(pause));
    }
    daemon.wait_ready();
    let mut seen = std::collections::BTreeSet::new();
    while seen.len() < 2000 {
        let received = inbox.next();
        received.is_not_early();
        seen.extend(received.batch().items.into_iter().map(|i| i.id));
    }
}

#[test]
fn after_quick_deaths_what_came_back_is_taken_with_care_and_ends_the_suspicion() {
    const REQUESTS: u64 = 20_000;
    let site = Site::new("quick-deaths");
    let mut daemon = site.start(&site.config());
    daemon.term();
    daemon.exit(Duration::from_secs(20));
    let day = [b"\x07x-delayl".as_slice(), &86_400_000_i64.to_be_bytes()].concat();
    let mut raw = Raw::connect(site.node);
    for n in 0..REQUESTS {
        let id = format!("request-{n}");
        let properties = RawProperties::default().headers(&day).persistent().message_id(id.as_bytes());
        raw.put(&site.ingest(), b"shop", &properties, b"{}");
        if n % 500 == 0 {
            raw.settle(1500);
        }
    }
    raw.settle(0);
    let accepted = |daemon: &tidegate_harness::Daemon| daemon.state()["totals"]["accepted"].as_u64();
    for _ in 0..3 {
        daemon.start_again();
        daemon.wait_ready();
        // Some requests must have been taken when it is killed.
        wait_until("some are taken", Duration::from_secs(20), || accepted(&daemon) > Some(0));
        daemon.kill9();
    }
    daemon.start_again();
    daemon.wait_ready();
    wait_until("all are taken", Duration::from_secs(20), || {
        let state = daemon.state();
        state["items"]["waiting"] == REQUESTS && state["uncommitted"] == 0
    });
    let starts = site.dir.join("store/STARTS");
    // Afterwards only this start counts.
    wait_until("the suspicion is over", Duration::from_secs(20), || {
        fs::read_to_string(&starts).is_ok_and(|text| text == "1\n")
    });
    let log = daemon.log();
    for said in ["taken one at a time at first", "taken in quarantine", "the ordinary prefetch again"] {
        assert!(log.contains(said), "{said}: {}", daemon.log_tail());
    }
}
