//! One paused customer: all others' items leave, and the pause is remembered.

use super::{application, run};
use serde_json::json;
use std::time::Duration;
use tidegate_harness::{now_ms, wait_until, Asker, Site};

/// Windowed, timed and due-at-once items of two customers, across a kill; by command line, HTTP and AMQP.
#[test]
fn one_customer_is_held_back_over_a_kill_and_others_are_not() {
    let site = Site::new("heldone");
    let shop = site.inbox("shop");
    let config = site.config().text("defaults.window", "200ms").text("limits.memory", "16MiB");
    let mut daemon = site.start(&config);
    assert_eq!(run(&daemon, "pause shop --customer anna"), "paused\n");
    assert_eq!(run(&daemon, "pause shop --customer anna"), "it was paused already\n");
    let some = |customer: &'static str, from: u64| {
        let client = &site;
        (from..from + 300).map(move |n| {
            let push = client.push("shop", "1").id(&format!("{customer}{n}")).customer(customer);
            if n.is_multiple_of(2) {
                push
            } else {
                push.delay((n % 500) as i64)
            }
        })
    };
    site.client.publish_all(some("anna", 0).chain(some("ben", 0)));
    shop.items(300, Duration::from_secs(60));
    for round in 1..3 {
        shop.quiet(Duration::from_millis(300));
        // Else what has left would come again after the kill below.
        wait_until("only what is held is stored", Duration::from_secs(10), || {
            let state = daemon.state();
            let items = ["waiting", "in_flight"].map(|key| state["items"][key].as_u64());
            items == [Some(300), Some(0)] && state["uncommitted"] == 0
        });
        let told = daemon.ask("GET", "/api/v1/customers/shop/anna").1;
        assert_eq!((&told["paused"], &told["waiting"]), (&json!(true), &json!(300)), "{round}: {told}");
        let told = application(&daemon, "shop");
        assert_eq!((&told["paused"], &told["paused_customers"]), (&json!(false), &json!(1)), "{told}");
        assert_eq!(daemon.ask("GET", "/api/v1/customers/shop/ben").1["paused"], false);
        daemon.kill9();
        daemon.start_again();
        daemon.wait_ready();
        site.client.publish_all(some("ben", round * 300));
        let of_ben = shop.items(300, Duration::from_secs(60));
        assert!(of_ben.iter().all(|item| item.id.starts_with("ben")), "{round}");
    }
    let asker = Asker::new(&site);
    let of_anna = || site.push("shop", "").customer("anna");
    assert_eq!(asker.ask("resume", of_anna()), json!({"result": "done", "changed": true}));
    let back = shop.items(300, Duration::from_secs(60));
    assert!(back.iter().all(|item| item.id.starts_with("anna")));
    assert_eq!(asker.ask("resume", of_anna()), json!({"result": "done", "changed": false}));
    let until = now_ms() + 15_000;
    let end = json!({"result": "done", "changed": true, "until": until});
    let path = format!("/api/v1/customers/shop/anna/pause?until={until}");
    assert_eq!(daemon.ask("POST", &path), (200, end));
    site.client.publish_all(some("anna", 300));
    let last = shop.items(300, Duration::from_secs(60));
    assert!(last.iter().all(|item| item.id.starts_with("anna")) && now_ms() >= until, "not before its end");
    wait_until("it goes on", Duration::from_secs(10), || {
        daemon.ask("GET", "/api/v1/customers/shop/anna").1["paused"] == false
    });
    let later = asker.ask("pause", of_anna().number("x-delay", 600_000));
    assert!(later["until"].as_u64().is_some_and(|until| until > now_ms() + 300_000), "{later}");
    assert_eq!(run(&daemon, "resume shop --customer anna"), "resumed\n");
}
