//! Limits and failures: a full queue, queues with other arguments, an unavailable broker.

use super::{carried_out, changed, died, ids, invalid, is_silence, lie_there, listed, looked};
use lapin::types::{AMQPValue, FieldTable};
use lapin::ExchangeKind;
use serde_json::{json, Value};
use std::time::{Duration, Instant};
use tidegate_harness::{wait_until, Daemon, Site};

const LIMIT: Duration = Duration::from_secs(20);

/// The status and the error sentence of a request that must be refused.
fn refused(daemon: &Daemon, method: &str, path: &str) -> (u16, String) {
    let (status, answer) = daemon.ask(method, path);
    (status, answer["error"].as_str().unwrap_or_default().to_owned())
}

#[test]
fn a_call_keeps_to_its_limit_and_nothing_is_meant_by_default() {
    let site = Site::new("letters-limit");
    let daemon = site.start(&site.config());
    died(&site, (0..5).map(|n| invalid(&site, "shop", &n.to_string())), 5);
    let answer = changed(&daemon, "DELETE", "/api/v1/dead?reason=invalid", Some(2));
    assert_eq!((&answer["count"], &answer["left"], &answer["more"]), (&json!(2), &json!(3), &json!(true)));
    assert_eq!(ids(&listed(&daemon, "")), ["2", "3", "4"]);
    for (method, path) in [
        ("DELETE", "/api/v1/dead"),
        ("DELETE", "/api/v1/dead?reason="),
        ("DELETE", "/api/v1/dead?all=true&reason=invalid"),
        ("DELETE", "/api/v1/dead?all=true&limit=1001"),
        ("POST", "/api/v1/dead/retry"),
        ("POST", "/api/v1/dead/retry?all=true&at=2030-01-01T00:00:00Z&delay=5"),
        ("POST", "/api/v1/dead/retry?all=true&delay=soon"),
    ] {
        assert_eq!(daemon.ask(method, path).0, 400, "{method} {path}");
    }
    lie_there(&site, 3);
}

#[test]
fn no_name_stands_for_what_could_not_be_read() {
    let site = Site::new("letters-dash");
    let daemon = site.start(&site.config());
    died(&site, ["-", "", "shop"].map(|application| invalid(&site, application, "x")), 3);
    let of = |letters: &[Value]| -> Vec<String> {
        letters.iter().map(|letter| letter["application"].as_str().unwrap_or("none").to_owned()).collect()
    };
    assert_eq!(of(&listed(&daemon, "?unreadable=true")), [""]);
    let told = carried_out(&daemon, &["dead", "drop", "--application", "-", "--yes"]);
    assert_eq!((told.code, told.out.trim()), (0, "dropped: 1 letter; left in the queue: 2"), "{told:?}");
    assert_eq!(of(&listed(&daemon, "")), ["", "shop"]);
    let told = carried_out(&daemon, &["dead", "drop", "--unreadable", "--yes"]);
    assert_eq!((told.code, told.out.trim()), (0, "dropped: 1 letter; left in the queue: 1"), "{told:?}");
    assert_eq!(of(&listed(&daemon, "")), ["shop"]);
}

#[test]
fn all_means_all() {
    let site = Site::new("letters-all");
    let daemon = site.start(&site.config());
    died(&site, (0..1_300).map(|n| invalid(&site, "shop", &n.to_string())), 1_300);
    let told = looked(&daemon, &["dead", "drop", "--all"]);
    assert_eq!(told.code, 2, "{told:?}");
    assert!(told.err.contains("1300 letters: --yes deletes them permanently"), "{}", told.err);
    let some = ["dead", "drop", "--reason", "invalid", "--limit", "100", "--yes"];
    let told = carried_out(&daemon, &some);
    assert_eq!(
        (told.code, told.out.trim()),
        (0, "dropped: 100 letters; left in the queue: 1200"),
        "{told:?}"
    );
    let told = carried_out(&daemon, &["dead", "drop", "--all", "--yes"]);
    assert_eq!((told.code, told.out.trim()), (0, "dropped: 1200 letters; left in the queue: 0"), "{told:?}");
    lie_there(&site, 0);
}

#[test]
fn what_does_not_fit_waits_and_follows() {
    let site = Site::new("letters-full");
    let config = site
        .config()
        .set("dead.queue.max_length", "2")
        .set("defaults.retry", r#"{ min = "100ms", max = "200ms" }"#);
    let daemon = site.start(&config);
    site.client.publish_all((0..20).map(|n| invalid(&site, "shop", &n.to_string())));
    // The limit is approximate: a few dead letters may be in flight when it is reached.
    wait_until("the queue is full", LIMIT, || {
        daemon.state()["dead_letters"]["state"]["parked"].is_object()
            || daemon.state()["dead_letters"]["parked"] != 0
    });
    let mut dropped = 0;
    wait_until("all have come by", LIMIT, || {
        let answer = changed(&daemon, "DELETE", "/api/v1/dead?all=true", None);
        dropped += answer["count"].as_u64().expect("a count");
        dropped >= 20
    });
    assert_eq!(dropped, 20);
}

/// The queue of an earlier version: classic, without limits.
#[test]
fn a_queue_of_another_making_is_used_as_it_is() {
    let site = Site::new("letters-classic");
    site.client.exchange(&site.dead(), ExchangeKind::Fanout);
    site.client.queue(&site.dead(), FieldTable::default());
    let daemon = site.start(&site.config());
    died(&site, [invalid(&site, "shop", "s0")], 1);
    assert_eq!(ids(&listed(&daemon, "")), ["s0"]);
    let log = daemon.log();
    assert!(
        log.contains("is used as it is") && log.contains("name another queue in dead.queue.name"),
        "{log}"
    );
    drop(daemon);
    // With a configuration that describes the queue there is no warning.
    let described = site
        .config()
        .text("dead.queue.type", "classic")
        .set("dead.queue.max_length", "0")
        .text("dead.queue.max_bytes", "0B");
    let mut daemon = Daemon::start(&described, &site.dir);
    daemon.wait_ready();
    // The first daemon may have ended before its confirm, so the dead letter may be there twice, as another try.
    let letters = listed(&daemon, "");
    let mut all = ids(&letters);
    all.dedup();
    assert_eq!(all, ["s0"]);
    let notes: Vec<String> = daemon.state()["links"]
        .as_array()
        .expect("links")
        .iter()
        .filter_map(|link| Some(link["notes"].to_string()).filter(|text| text.contains("used as it is")))
        .collect();
    assert_eq!(notes, Vec::<String>::new(), "{}", daemon.log_tail());
}

#[test]
fn without_a_queue_of_ours_that_is_said_and_anothers_is_not_worn_out() {
    let site = Site::new("letters-none");
    let none = site.config().text("dead.queue.type", "none");
    let daemon = site.start(&none);
    let (status, text) = refused(&daemon, "GET", "/api/v1/dead");
    assert!(status == 409 && text.contains("dead.queue.type is \"none\""), "{status} {text}");
    assert!(!site.client.has_queue(&site.dead()), "none is declared");
    drop(daemon);
    // The operator's queue, with an unknown delivery limit.
    let own = site.queue("graveyard");
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    site.client.queue(&own, arguments);
    site.client.bind(&own, &site.dead(), "");
    let mut daemon = Daemon::start(&none.text("dead.queue.name", &own), &site.dir);
    daemon.wait_ready();
    site.client.publish(&invalid(&site, "shop", "s0"));
    wait_until("the letter", LIMIT, || site.client.depth(&own) == Some(1));
    is_not_worn_out(&site, &daemon);
    site.lies(&own, 1);
}

/// More looks than a queue with the broker's delivery limit survives.
const LOOKS: usize = 25;

/// Looks at the dead letter until a look is refused.
fn is_not_worn_out(site: &Site<'_>, daemon: &Daemon) {
    let mut looks = 0;
    let mut told = None;
    while told.is_none() && looks < LOOKS {
        let (mut status, mut text) = (0, String::new());
        wait_until("an answer", LIMIT, || {
            (status, text) = refused(daemon, "GET", "/api/v1/dead");
            status != 503
        });
        if status == 200 {
            looks += 1;
        } else {
            assert_eq!(status, 409, "{text}");
            told = Some(text);
        }
    }
    match told {
        Some(text) => assert!(text.contains("have been returned") && looks >= 5, "after {looks}: {text}"),
        // From 4.3 on, returning an unread message does not count as a delivery.
        None => assert!(site.node.release() >= Some((4, 3)), "RabbitMQ 4.0 would have dropped it"),
    }
}

/// Others declare the queue, so its delivery limit is unknown unless the configuration says that there is
/// none.
#[test]
fn where_others_make_the_queue_no_look_costs_a_letter() {
    for mode in ["passive", "off"] {
        let site = Site::new(&format!("letters-{mode}"));
        drop(site.start(&site.config()));
        site.client.delete_queue(&site.dead());
        let mut arguments = FieldTable::default();
        arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
        site.client.queue(&site.dead(), arguments);
        site.client.bind(&site.dead(), &site.dead(), "");
        let config = site.config().text("amqp.topology", mode);
        let mut daemon = Daemon::start(&config, &site.dir);
        daemon.wait_ready();
        died(&site, [invalid(&site, "shop", "s0")], 1);
        is_not_worn_out(&site, &daemon);
        lie_there(&site, 1);
        if site.node.release() >= Some((4, 0)) {
            continue;
        }
        // In RabbitMQ 3.10 such a queue has no delivery limit.
        daemon.rewrite(&config.set("dead.queue.max_looks", "0"));
        daemon.term();
        assert!(daemon.exit(LIMIT).success(), "{}", daemon.log_tail());
        daemon.start_again();
        daemon.wait_ready();
        for _ in 0..LOOKS {
            assert_eq!(ids(&listed(&daemon, "")), ["s0"]);
        }
    }
}

/// Another queue is bound to the ingest exchange, and the ingest queue is not.
#[test]
fn what_is_sent_back_reaches_the_ingest_queue_and_not_just_another() {
    let site = Site::new("letters-unbound");
    let inbox = site.inbox("shop");
    let past = i64::try_from(tidegate_harness::now_ms()).expect("a date") - 1_000;
    let daemon = site.start(&site.config());
    died(&site, [site.push("shop", "1").id("late").number("x-deliver-before", past)], 1);
    let tap = site.queue("tap");
    site.client.queue(&tap, FieldTable::default());
    site.client.bind(&tap, &site.ingest(), "");
    site.client.unbind(&site.ingest_queue(), &site.ingest(), "");
    assert_eq!(changed(&daemon, "POST", "/api/v1/dead/retry?all=true", None)["count"], 1);
    assert_eq!(inbox.batch().ids(), ["late"]);
    site.lies(&tap, 1);
}

#[test]
fn a_broker_that_is_away_is_named_and_letters_are_untouched() {
    let site = Site::new("letters-away");
    let (proxy, uri) = site.node.proxied();
    let daemon = site.start(&site.config().text("amqp.uri", &uri));
    died(&site, [invalid(&site, "shop", "s0")], 1);
    drop(proxy);
    let asked = Instant::now();
    for (method, path) in [("GET", "/api/v1/dead"), ("POST", "/api/v1/dead/retry?all=true")] {
        let (status, text) = refused(&daemon, method, path);
        assert!(status == 503 && !text.is_empty(), "{status} {text}");
    }
    assert!(asked.elapsed() < LIMIT, "{:?}", asked.elapsed());
    let told = daemon.cli(&["dead", "list"]);
    assert!(told.code == 1 && told.err.contains("HTTP 503"), "{told:?}");
    lie_there(&site, 1);
}

/// The requests are unroutable and the daemon may not bind the queue: they are returned, and the dead letters
/// stay.
#[test]
fn a_letter_that_nobody_takes_stays() {
    let site = Site::new("letters-nowhere");
    drop(site.start(&site.config()));
    let mut daemon = Daemon::start(&site.config().text("amqp.topology", "passive"), &site.dir);
    daemon.wait_ready();
    died(&site, (0..3).map(|n| invalid(&site, "shop", &n.to_string())), 3);
    site.client.unbind(&site.ingest_queue(), &site.ingest(), "");
    let (mut status, mut text) = (0, String::new());
    wait_until("an answer", LIMIT, || {
        (status, text) = refused(&daemon, "POST", "/api/v1/dead/retry?all=true");
        !is_silence(&text)
    });
    assert!(
        status == 503 && text.contains("312 NO_ROUTE") && text.contains(&site.ingest()),
        "{status} {text}"
    );
    lie_there(&site, 3);
    site.client.bind(&site.ingest_queue(), &site.ingest(), "");
    assert_eq!(changed(&daemon, "POST", "/api/v1/dead/retry?all=true", None)["count"], 3);
}
