//! Retried dead letters: sent back as the requests they were, at a given time.

use super::{carried_out, changed, died, invalid, lie_there, listed, told_in_the_log};
use serde_json::json;
use std::time::{Duration, Instant};
use tidegate_harness::{now_ms, wait_until, Site};

#[test]
fn one_goes_at_a_new_time_and_the_rest_at_once() {
    let site = Site::new("letters-back");
    let inbox = site.inbox("shop");
    let daemon = site.start(&site.config());
    let past = i64::try_from(now_ms()).expect("a date") - 1_000;
    let expired = site.push("shop", "1").id("late").customer("anna").number("x-deliver-before", past);
    died(&site, [invalid(&site, "shop", "s0").customer("anna"), invalid(&site, "shop", "s1"), expired], 3);
    let key = listed(&daemon, "?limit=1")[0]["key"].as_str().expect("a key").to_owned();
    let sent_at = Instant::now();
    let answer = changed(&daemon, "POST", &format!("/api/v1/dead/retry?key={key}&delay=1500"), None);
    assert_eq!((&answer["count"], &answer["left"]), (&json!(1), &json!(2)));
    let batch = inbox.batch();
    assert_eq!((batch.ids(), batch.customer.as_deref()), (vec!["s0"], Some("anna")));
    assert!(sent_at.elapsed() >= Duration::from_millis(1_500), "{:?}", sent_at.elapsed());
    // Without a new time, and without the expiry that the item has missed.
    let answer = changed(&daemon, "POST", "/api/v1/dead/retry?all=true", None);
    assert_eq!((&answer["count"], &answer["kept"], &answer["more"]), (&json!(2), &json!(0), &json!(false)));
    let mut ids: Vec<String> =
        inbox.items(2, Duration::from_secs(10)).into_iter().map(|item| item.id).collect();
    ids.sort();
    assert_eq!(ids, ["late", "s1"]);
    lie_there(&site, 0);
    assert_eq!(daemon.state()["totals"]["dead_confirmed"], 3, "none died again");
    told_in_the_log(&daemon, "dead_retry", 2);
}

/// An id may be dead-lettered and used again any number of times. The message arrives unchanged except for
/// the header that says so.
#[test]
fn what_was_given_up_goes_out_once_its_queue_is_there() {
    let site = Site::new("letters-again");
    let config = site
        .config()
        .set("defaults.retry", r#"{ min = "50ms", max = "100ms", attempts = 1 }"#)
        .text("defaults.format", "passthrough");
    let daemon = site.start(&config);
    let pushes = (0..5).map(|n| site.push("nobody", "{}").id(&format!("n{n}")).with("lang", "en"));
    died(&site, pushes, 5);
    // No queue is bound yet: they are dead-lettered again under the same ids, and not dropped as duplicates.
    let answer = changed(&daemon, "POST", "/api/v1/dead/retry?reason=attempts", None);
    assert_eq!(answer["count"], 5);
    wait_until("all have died twice", Duration::from_secs(20), || {
        daemon.state()["totals"]["dead_confirmed"] == 10
    });
    lie_there(&site, 5);
    let inbox = site.inbox("nobody");
    let told = carried_out(&daemon, &["dead", "retry", "--application", "nobody", "--yes"]);
    assert_eq!((told.code, told.out.trim()), (0, "sent back: 5 letters; left in the queue: 0"), "{told:?}");
    let mut ids = Vec::new();
    for message in inbox.take(5, Duration::from_secs(20)) {
        assert_eq!(message.text("lang").as_deref(), Some("en"));
        assert!(
            message.header("x-tidegate-reason").is_none() && message.header("x-tidegate-error").is_none()
        );
        assert!(message.text("x-tidegate-retried").is_some(), "it says that it was sent back");
        ids.push(message.id());
    }
    ids.sort();
    assert_eq!(ids, ["n0", "n1", "n2", "n3", "n4"]);
    assert_eq!(daemon.state()["totals"]["duplicates"]["keep"]["dropped"], 0);
}

#[test]
fn an_envelope_takes_no_new_time() {
    let site = Site::new("letters-envelope");
    let daemon = site.start(&site.config());
    let broken = site.push("shop", "[]").id("e").content_type("application/vnd.tidegate+json");
    died(&site, [broken, invalid(&site, "shop", "plain")], 2);
    let told = carried_out(&daemon, &["dead", "retry", "--all", "--delay", "1h", "--yes"]);
    assert_eq!((told.code, told.out.trim()), (3, "sent back: 1 letter; left in the queue: 1"), "{told:?}");
    assert!(told.err.contains("an envelope contains its times"), "{}", told.err);
    wait_until("the other waits", Duration::from_secs(10), || {
        daemon.ask("GET", "/api/v1/items/shop/plain").1["state"] == "waiting"
    });
    lie_there(&site, 1);
}

/// Excluded: dead letters that become other ones, whose reasons say nothing of the former fault; a limit of a
/// former configuration.
#[test]
fn a_time_that_no_request_may_have_leaves_them_as_they_are() {
    let site = Site::new("letters-beyond");
    let config = site.config().text("limits.max_delay", "60m");
    let daemon = site.start(&config);
    died(&site, ["s0", "s1"].map(|id| invalid(&site, "shop", id)), 2);
    for (terms, named) in [
        (["--delay", "61m"], "limits.max_delay"),
        (["--at", "2199-12-31T23:59:59Z"], "limits.max_delay"),
        (["--deliver-before", "2020-01-01T00:00:00Z"], "x-deliver-before"),
    ] {
        let told = daemon.cli(&["dead", "retry", "--all", "--yes", terms[0], terms[1]]);
        let says = told.err.contains("not done: ") && told.err.contains(named);
        assert!(told.code == 3 && says, "{terms:?}: {told:?}");
    }
    let beyond = "/api/v1/dead/retry?all=true&delay=9223372036854775807";
    let (status, answer) = daemon.ask("POST", beyond);
    assert_eq!((status, &answer["result"]), (409, &json!("rejected")), "{answer}");
    let letters = listed(&daemon, "");
    assert_eq!(letters.len(), 2, "{letters:?}");
    let is_as_it_was = |letter: &serde_json::Value| {
        letter["reason"] == "invalid" && letter["error"].to_string().contains("x-delay is not a number")
    };
    assert!(letters.iter().all(is_as_it_was), "{letters:?}");
    daemon.rewrite(&config.text("limits.max_delay", "120m"));
    daemon.hup();
    wait_until("the other limit", Duration::from_secs(10), || {
        daemon.log().contains("configuration reloaded")
    });
    let told = carried_out(&daemon, &["dead", "retry", "--all", "--delay", "61m", "--yes"]);
    assert_eq!((told.code, told.out.trim()), (0, "sent back: 2 letters; left in the queue: 0"), "{told:?}");
    wait_until("they wait", Duration::from_secs(10), || daemon.items("waiting") == 2);
    lie_there(&site, 0);
}

/// More acks at once than RabbitMQ passes on to a quorum queue.
#[test]
fn many_are_sent_back_once_and_gone() {
    const MANY: u32 = 128;
    let site = Site::new("letters-back-many");
    let daemon = site.start(&site.config());
    died(&site, (0..MANY).map(|n| invalid(&site, "shop", &n.to_string())), MANY);
    wait_until("a call that comes to its end", Duration::from_secs(60), || {
        let (status, answer) = daemon.ask("POST", "/api/v1/dead/retry?all=true&delay=600000");
        // On a machine with other work the broker may be silent for 5 s, and the call says that it has stopped.
        assert!(matches!(status, 200 | 503), "{status}: {answer}");
        status == 200 && answer["stopped"].is_null()
    });
    lie_there(&site, 0);
    wait_until("they wait", Duration::from_secs(20), || daemon.items("waiting") == u64::from(MANY));
}
