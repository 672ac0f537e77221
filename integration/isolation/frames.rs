//! Frames: the negotiated frame size bounds which requests are accepted. A request accepted earlier is
//! refused alone when the broker negotiates a smaller size.

use std::time::Duration;
use tidegate_harness::{text, wait_until, Node, Site};

const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn what_no_frame_can_carry_is_dead_and_costs_nobody_the_connection() {
    let Some(node) = Node::own("what_no_frame_can_carry", "") else { return };
    for frame in [16_384, 8_192] {
        node.frame_max(131_072);
        let site = Site::on(&node, &format!("frames-{frame}"));
        let (proxy, uri) = node.proxied();
        let config = site.config().text("egress.uri", &uri).text("amqp.uri", &uri);
        let config = config.text("applications.whole.format", "passthrough");
        let daemon = site.start(&config);
        let (whole, other) = (site.inbox("whole"), site.inbox("other"));
        let dead = site.dead_inbox();
        let large = |id: &str, bytes: usize| {
            let push = site.push("whole", "body").header("x-large", text(&"h".repeat(bytes)));
            push.header("x-small", text("kept")).id(id)
        };
        // Less than half of the initial frame size.
        site.client.publish(&large("stored", 40_000).delay(3_600_000));
        site.client.publish(&site.push("whole", "body").id("small").delay(3_600_000));
        wait_until("both are stored", LIMIT, || daemon.items("waiting") == 2);

        node.frame_max(frame);
        proxy.cut(false);
        wait_until("connected anew", LIMIT, || {
            daemon.log().matches(&format!("takes frames of {frame} bytes")).count() == 2
        });
        let failures = || {
            let (_, metrics) = daemon.ask("GET", "/metrics");
            let lines = metrics.as_str().unwrap_or_default().lines().map(str::to_owned);
            lines.filter(|line| line.starts_with("tidegate_connections_failed_total")).collect::<Vec<_>>()
        };
        let lost = failures();
        assert_eq!(lost.len(), 2, "{lost:?}");
        // More than half of the frame size now negotiated: rejected.
        site.client.publish(&large("fresh", frame as usize * 5 / 8));
        // Just below half: accepted, and it leaves with the added headers.
        site.client.publish(&large("fits", frame as usize / 2 - 200));
        let letter = dead.next();
        assert_eq!(
            (letter.id().as_str(), letter.text("x-tidegate-reason").as_deref()),
            ("fresh", Some("too_large"))
        );
        assert_eq!(whole.next().id(), "fits");
        for id in ["stored", "small"] {
            let told = daemon.cli(&["reschedule", "whole", id, "--delay", "1s"]);
            assert_eq!(told.code, 0, "{told:?}");
        }
        for n in 0..30 {
            site.client.publish(&site.push("other", "{}").id(&n.to_string()).delay(n * 100));
        }
        let letter = dead.next();
        assert_eq!(
            (letter.id().as_str(), letter.text("x-tidegate-reason").as_deref()),
            ("stored", Some("refused"))
        );
        let error = letter.text("x-tidegate-error").unwrap_or_default();
        assert!(error.contains("a frame of this connection holds"), "{error}");
        assert_eq!(letter.text("x-small").as_deref(), Some("kept"));
        assert_eq!(letter.header("x-large"), None);
        assert_eq!(letter.body_text(), "body");
        assert_eq!(whole.next().id(), "small");
        let mut ids: Vec<String> = (0..30).map(|_| other.batch().ids()[0].to_owned()).collect();
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), 30, "each once");
        dead.quiet(Duration::from_millis(300));
        whole.quiet(Duration::from_millis(300));
        assert_eq!(failures(), lost, "no connection was lost over it");
    }
}
