//! The daemon is killed while it sends many letters back.

use super::{died, done, invalid};
use std::collections::BTreeSet;
use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;
use tidegate_harness::{wait_until, Site};

const MANY: u32 = 600;

#[test]
fn a_kill_in_the_midst_of_a_retry_loses_none() {
    let site = Site::new("letters-kill");
    let inbox = site.inbox("shop");
    let mut daemon = site.start(&site.config());
    died(&site, (0..MANY).map(|n| invalid(&site, "shop", &n.to_string())), MANY);
    // It gets no answer: its daemon is killed.
    let mut asking = TcpStream::connect(daemon.admin()).expect("the admin port");
    let head = format!(
        "POST /api/v1/dead/retry?all=true HTTP/1.1\r\nHost: {}\r\nContent-Length: 0\r\n\r\n",
        daemon.admin()
    );
    asking.write_all(head.as_bytes()).expect("it is asked");
    // Some have come through as requests: others are unconfirmed, and more are merely held.
    let mut seen: BTreeSet<String> = BTreeSet::new();
    seen.extend(inbox.items(1, Duration::from_secs(20)).into_iter().map(|item| item.id));
    daemon.kill9();
    daemon.start_again();
    daemon.wait_ready();
    wait_until("what was held is back", Duration::from_secs(20), || {
        daemon.ask("GET", "/api/v1/dead/count").0 == 200
    });
    let answer = done(&daemon, "POST", "/api/v1/dead/retry?all=true");
    let first = MANY - u32::try_from(answer["depth"].as_u64().expect("a depth")).expect("small");
    while let Some(message) = inbox.poll(Duration::from_secs(if seen.len() < MANY as usize { 15 } else { 1 }))
    {
        seen.extend(message.batch().items.into_iter().map(|item| item.id));
    }
    assert_eq!(seen.len(), MANY as usize, "{first} had been taken away before the kill");
    assert_eq!(site.client.depth(&site.dead()), Some(0));
}
