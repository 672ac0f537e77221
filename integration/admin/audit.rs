//! The log records who changed what, and refused requests do not flood it.

use std::time::Duration;
use tidegate_harness::{wait_until, Daemon, Site};

/// Log lines so far that contain this text.
pub fn lines(daemon: &Daemon, text: &str) -> Vec<String> {
    let log = daemon.log();
    log.lines()
        .filter(|line| line.contains("tidegate::audit") && line.contains(text))
        .map(str::to_owned)
        .collect()
}

#[test]
fn what_changes_something_is_logged_with_who_and_how_it_ended() {
    let site = Site::new("audit");
    let daemon = site.start(&site.config());
    site.client.publish_all((0..3).map(|n| {
        site.push("shop", "payload-canary").id(&n.to_string()).customer("ann \"a\"").delay(600_000)
    }));
    wait_until("all wait", Duration::from_secs(10), || daemon.items("waiting") == 3);
    assert_eq!(daemon.ask("GET", "/api/v1/state").0, 200);
    assert_eq!(daemon.ask("GET", "/api/v1/items/shop/0").0, 200);
    for (method, path, status) in [
        ("DELETE", "/api/v1/items/shop/0", 200),
        ("DELETE", "/api/v1/items/shop/a%0Ab", 404),
        ("POST", "/api/v1/customers/shop/ann%20%22a%22/flush", 200),
        ("DELETE", "/api/v1/customers/shop/ann%20%22a%22/items", 200),
        ("DELETE", "/api/v1/applications/shop/items?customer_prefix=b&due_before=1900000000000", 200),
        ("DELETE", "/api/v1/applications/shop/items?all=true", 200),
        ("POST", "/api/v1/applications/shop/rate?rate=5/min&until=1900000000000", 200),
        ("POST", "/api/v1/applications/shop/pause", 200),
        ("POST", "/api/v1/applications/shop/resume", 200),
        ("POST", "/api/v1/applications/shop/retry", 200),
        ("DELETE", "/api/v1/applications/shop/parked", 200),
    ] {
        assert_eq!(daemon.ask(method, path).0, status, "{method} {path}");
    }
    wait_until("the lines", Duration::from_secs(5), || lines(&daemon, "admin action").len() == 11);
    let told = lines(&daemon, "admin action");
    for (line, parts) in told.iter().zip([
        &[r#"action="cancel" application="shop" id="0""#, "status=200", r#"result="cancelled" count=1"#][..],
        &[r#"action="cancel""#, r#"id="a\nb""#, "status=404", r#"result="unknown""#],
        &[r#"action="flush""#, r#"customer="ann \"a\"""#, r#"result="flushed" count=0"#],
        &[r#"action="cancel_customer""#, r#"customer="ann \"a\"""#, r#"result="cancelled" count=2"#],
        &[r#"application="shop" customer_prefix="b" due_before=1900000000000 peer"#, "count=0"],
        &[r#"action="cancel_selected" application="shop" peer"#, "count=0"],
        &[r#"action="rate" application="shop" rate=5/min"#, "until=1900000000000"],
        &[r#"action="pause" application="shop""#, r#"result="done" changed=true"#],
        &[r#"action="resume""#, "changed=true"],
        &[r#"action="retry""#, "changed=false"],
        &[r#"action="drop_parked""#, r#"result="cancelled" count=0"#],
    ]) {
        for part in parts.iter().chain(&["INFO", "peer=127.0.0.1:", r#"token="none""#]) {
            assert!(line.contains(part), "{part}: {line}");
        }
    }
    assert!(!daemon.log().contains("payload-canary"));
}

#[test]
fn what_is_turned_away_is_logged_within_bounds() {
    let site = Site::new("refused");
    let daemon = site.start(&site.config());
    assert_eq!(daemon.ask("DELETE", "/api/v1/items/shop/%ff").0, 400);
    assert_eq!(daemon.ask("POST", "/api/v1/nothing").0, 404);
    for _ in 0..60 {
        assert_eq!(daemon.ask("DELETE", "/api/v1/items/shop").0, 404);
    }
    let told = lines(&daemon, "admin request refused");
    for part in ["peer=127.0.0.1:", "method=DELETE", "path=\"/api/v1/items/shop/%ff\"", "status=400"] {
        assert!(told[0].contains(part), "{part}: {}", told[0]);
    }
    assert_eq!(told.len(), 20, "{told:#?}");
    // They do not use up the bound for lines about actions.
    assert_eq!(daemon.ask("POST", "/api/v1/applications/shop/pause").0, 200);
    wait_until("the line", Duration::from_secs(5), || lines(&daemon, "admin action").len() == 1);
}
