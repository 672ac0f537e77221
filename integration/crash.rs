//! A kill while the daemon starts. Kills and restarts under load are rows of the table of faults (`faults/kill.rs`,
//! `faults/broker.rs`), which run in each `make test`.

use std::time::Duration;
use tidegate_harness::Site;

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
        assert!(received.lateness_us() >= 0, "early");
        seen.extend(received.batch().items.into_iter().map(|i| i.id));
    }
}
