//! Counts by application, and for a customer.

use super::{config, one_of_each, FAR};
use serde_json::{json, Value};
use std::time::Duration;
use tidegate_harness::{now_ms, wait_until, Daemon, Site};

fn application(daemon: &Daemon, name: &str) -> Value {
    daemon.ask("GET", &format!("/api/v1/applications/{name}")).1
}

fn customer(daemon: &Daemon, application: &str, name: &str) -> Value {
    let (status, counts) = daemon.ask("GET", &format!("/api/v1/customers/{application}/{name}"));
    assert_eq!(status, 200, "{counts}");
    counts
}

#[test]
fn by_application_and_of_a_customer() {
    let site = Site::new("counts");
    let mut daemon = site.start(&config(&site));
    let before = now_ms();
    one_of_each(&site, &daemon);
    let check = |daemon: &Daemon, windows: u64| {
        let (status, all) = daemon.ask("GET", "/api/v1/applications");
        let told: Vec<_> = all["applications"]
            .as_array()
            .expect("applications")
            .iter()
            .map(|a| (a["name"].clone(), a["total"].clone(), a["parked"].clone()))
            .collect();
        let row = |name: &str, total: u64, parked: u64| (json!(name), json!(total), json!(parked));
        assert_eq!((status, told), (200, vec![row("mail", 1, 0), row("nobody", 3, 3), row("shop", 5, 0)]));
        assert_eq!(application(daemon, "shop")["windows"], windows);
        for (name, who, waiting, parked) in
            [("shop", "a", 3, 0), ("shop", "b", 1, 0), ("mail", "a", 1, 0), ("nobody", "a", 0, 1)]
        {
            let counts = customer(daemon, name, who);
            let told =
                ["application", "customer", "waiting", "in_flight", "parked"].map(|k| counts[k].clone());
            assert_eq!(json!(told), json!([name, who, waiting, 0, parked]), "{counts}");
            assert!(counts["next_due"].as_u64().is_some_and(|due| due >= before), "{counts}");
        }
        let none = customer(daemon, "shop", "z");
        assert_eq!((&none["waiting"], &none["next_due"]), (&json!(0), &Value::Null));
        assert_eq!(daemon.ask("GET", "/api/v1/applications/none"), (404, json!({"result": "unknown"})));
    };
    check(&daemon, 1);
    daemon.kill9();
    daemon.start_again();
    daemon.wait_ready();
    wait_until("the parked ones are known again", Duration::from_secs(10), || daemon.items("parked") == 3);
    check(&daemon, 1);
}

#[test]
fn they_follow_what_happens() {
    let site = Site::new("follow");
    let inbox = site.inbox("shop");
    let daemon = site.start(&config(&site));
    let total = || application(&daemon, "shop")["total"].clone();
    site.client.publish_all((0..40).map(|n| {
        let push = site.push("shop", "1").id(&format!("{n}")).customer("c");
        if n < 30 {
            push.delay(FAR + n)
        } else {
            push
        }
    }));
    wait_until("all are counted", Duration::from_secs(10), || total() == 40);
    assert_eq!(customer(&daemon, "shop", "c")["waiting"], 40);
    daemon.ask("DELETE", "/api/v1/items/shop/7");
    assert_eq!((total(), &customer(&daemon, "shop", "c")["waiting"]), (json!(39), &json!(39)));
    site.client.publish(&site.push("shop", "1").id("8").customer("d").with("x-on-duplicate", "replace"));
    wait_until("it has another customer", Duration::from_secs(10), || {
        customer(&daemon, "shop", "d")["waiting"] == 1 && customer(&daemon, "shop", "c")["waiting"] == 38
    });
    assert_eq!(total(), 39);
    daemon.ask("POST", "/api/v1/customers/shop/c/flush");
    assert_eq!(inbox.batch().items.len(), 10);
    wait_until("ten have left", Duration::from_secs(10), || {
        total() == 29 && customer(&daemon, "shop", "c")["waiting"] == 28
    });
    let cancelled = daemon.ask("DELETE", "/api/v1/customers/shop/c/items");
    assert_eq!(cancelled, (200, json!({"result": "cancelled", "count": 28})));
    assert_eq!((total(), daemon.items("waiting")), (json!(1), 1));
}
