//! Queries by people do not delay other applications' items, and end when their client disconnects.

use super::FAR;
use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};
use tidegate_harness::{
    alone, best_of_three, is_optimised, percentile, say, wait_until, Client, Daemon, Push, Site,
};

/// Sends a request and disconnects before the answer.
fn ask_and_go(daemon: &Daemon, path: &str) {
    let mut stream = TcpStream::connect(daemon.admin()).expect("the port accepts");
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("the request is sent");
}

fn stored(daemon: &Daemon, count: usize) {
    wait_until("all are taken and stored", Duration::from_secs(300), || {
        let state = daemon.state();
        state["items"]["waiting"].as_u64() == Some(count as u64) && state["uncommitted"] == 0
    });
}

/// Items of `shop` that are in the store only.
fn far<'s>(site: &'s Site<'_>, count: usize, bytes: usize) -> impl Iterator<Item = Push> + 's {
    (0..count).map(move |n| {
        let push = site.push("shop", "x".repeat(bytes)).content_type("text/plain");
        push.customer(&format!("c{}", n % 10)).delay(FAR + n as i64)
    })
}

/// These tests run one at a time, after all others.
mod alone {
    use super::*;

    /// Concurrent queries and their duration: fewer than the port's places for commands.
    const LOOKS: usize = 24;
    const FOR: Duration = Duration::from_secs(3);
    /// Upper bound of another application's lateness, at the 99th percentile, us.
    const LATE_US: i64 = 50_000;

    #[test]
    fn looks_over_large_bodies_make_nobody_late() {
        alone();
        let site = Site::new("looks-large");
        let config = site.config().text("limits.max_body", "8MiB");
        let daemon = site.start(&config);
        let count = if is_optimised() { 200 } else { 40 };
        for push in far(&site, count, 4 << 20) {
            site.client.publish(&push);
        }
        stored(&daemon, count);
        best_of_three(|round| {
            let (_, late) = site.late_beside(&format!("mail{round}"), || {
                std::thread::scope(|scope| {
                    let begun = Instant::now();
                    for n in 0..LOOKS {
                        let daemon = &daemon;
                        scope.spawn(move || {
                            let path = match n % 3 {
                                0 => "/api/v1/timeline?application=shop&span=day".to_owned(),
                                1 => "/api/v1/items?application=shop&limit=1000".to_owned(),
                                _ => format!("/api/v1/customers/shop/c{}", n % 10),
                            };
                            while begun.elapsed() < FOR {
                                let (status, answer) = daemon.ask("GET", &path);
                                assert_eq!(status, 200, "{path}: {answer}");
                            }
                        });
                    }
                });
            });
            let most = percentile(&late, 99.0);
            let told = format!(
                "{LOOKS} looks at a time over {count} items of 4 MiB: {} others meanwhile, late by {} us at the median, {most} us at \
                 the 99th percentile",
                late.len(),
                percentile(&late, 50.0)
            );
            say(&told);
            if most < LATE_US {
                Ok(())
            } else {
                Err(told)
            }
        });
    }

    #[test]
    fn looks_whose_clients_have_gone_cost_nothing_a_second_later() {
        alone();
        let site = Site::new("looks-gone");
        let daemon = site.start(&site.config());
        let count = if is_optimised() { 400_000 } else { 40_000 };
        Client::connect(site.node.uri()).publish_all(far(&site, count, 20));
        stored(&daemon, count);
        let before_us = daemon.cpu_us();
        for _ in 0..80 {
            ask_and_go(&daemon, "/api/v1/items?application=shop&customer=nobody&limit=1000");
        }
        // They do not cause commands to be rejected or delayed.
        let (status, answer) = daemon.ask("GET", "/api/v1/items/shop/nobody");
        assert_eq!(status, 404, "{answer}");
        let still = || {
            let begun_us = daemon.cpu_us();
            std::thread::sleep(Duration::from_millis(500));
            daemon.cpu_us() - begun_us < 50_000
        };
        wait_until("it is at rest", Duration::from_secs(60), still);
        let work_us = daemon.cpu_us() - before_us;
        say(&format!("{work_us} us of work for 80 lists whose clients have gone, over {count} items"));
        assert!(work_us < 1_000_000, "{work_us} us");
    }
}
