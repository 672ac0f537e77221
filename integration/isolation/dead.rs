//! Dead letters that cannot be published delay only dead letters.
//!
//! Judges promise 6.

use std::time::{Duration, Instant};
use tidegate_harness::{wait_until, Daemon, Node, Site};

const GOOD: u64 = 600;
const LIMIT: Duration = Duration::from_secs(30);

/// One malformed request, then good ones at a steady rate; each must arrive exactly once.
fn good_ones_arrive(site: &Site<'_>, daemon: &Daemon, first: u64) {
    let inbox = site.inbox("shop");
    site.client.publish(&site.push("shop", "{}").with("x-delay", "soon").id(&format!("bad{first}")));
    let began = Instant::now();
    for chunk in 0..6 {
        let numbers = first + chunk * GOOD / 6..first + (chunk + 1) * GOOD / 6;
        site.client.publish_all(numbers.map(|n| site.push("shop", "{}").id(&n.to_string())));
        std::thread::sleep(Duration::from_millis(300));
    }
    let mut ids: Vec<String> = (0..GOOD).map(|_| inbox.batch().ids()[0].to_owned()).collect();
    assert!(began.elapsed() < LIMIT, "{:?}\n{}", began.elapsed(), daemon.log_tail());
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len() as u64, GOOD, "each once");
    let links = daemon.state()["links"].to_string();
    assert!(links.contains("dead letters cannot be published"), "{links}");
    assert_eq!(daemon.ask("GET", "/readyz").0, 200);
}

#[test]
fn a_dead_exchange_that_is_missing_holds_up_dead_letters_alone() {
    let site = Site::new("dead-missing");
    let daemon = site.start(&site.config());
    site.client.delete_exchange(&site.dead());
    // Each connection declares it again, so passive topology is needed for a longer absence.
    drop(daemon);
    let mut daemon = Daemon::start(&site.config().text("amqp.topology", "passive"), &site.dir);
    daemon.wait_ready();
    good_ones_arrive(&site, &daemon, 0);
    // Once the exchange exists, the dead letter is published.
    site.client.exchange(&site.dead(), tidegate_harness::lapin::ExchangeKind::Fanout);
    site.client.bind(&site.dead(), &site.dead(), "");
    let dead = site.dead_inbox();
    assert_eq!(dead.next().text("x-tidegate-reason").as_deref(), Some("invalid"));
}

#[test]
fn a_dead_exchange_that_may_not_be_written_to_holds_up_dead_letters_alone() {
    let Some(node) = Node::controlled("a_dead_exchange_that_may_not_be_written_to") else { return };
    let site = Site::on(node, "dead-forbidden");
    drop(site.start(&site.config()));
    let user = "writer";
    node.ctl(&["add_user", user, user]);
    let write = format!("^({}|amq\\.default)$", site.out().replace('.', "\\."));
    node.ctl(&["set_permissions", "-p", "/", user, ".*", &write, ".*"]);
    let config = site.config().text("egress.uri", &node.uri_of(user, "%2f"));
    let mut daemon = Daemon::start(&config, &site.dir);
    daemon.wait_ready();
    good_ones_arrive(&site, &daemon, 0);
    let log = daemon.log();
    let told =
        log.lines().filter(|line| line.contains("WARN") && line.contains("dead letters cannot")).count();
    assert!((1..10).contains(&told), "said, and not again and again: {told} times");
}

/// The broker accepts messages of up to 20 kB: a larger dead letter is refused, smaller ones pass.
///
/// The engine's tests cover that every small one leaves although the large one was refused first.
#[test]
fn a_dead_letter_that_the_broker_refuses_does_not_hold_up_the_small_ones() {
    let Some(node) = Node::own("a_dead_letter_that_the_broker_refuses", "") else { return };
    let site = Site::on(&node, "dead-large");
    let inbox = site.inbox("shop");
    let config = site.config().set("defaults.retry", r#"{ min = "100ms", max = "500ms" }"#);
    drop(site.start(&config));
    site.client.publish(&site.push("shop", vec![b'x'; 30_000]).with("x-delay", "soon").id("large"));
    // It applies to channels opened later. RabbitMQ 4 uses the second setting.
    node.eval("application:set_env(rabbit, max_message_size, 20000).");
    node.eval("persistent_term:put(max_message_size, 20000).");
    let daemon = site.start(&config);
    wait_until("the refusal", LIMIT, || daemon.state()["totals"]["refused"].as_u64() >= Some(1));
    for n in 0..5 {
        site.client.publish(&site.push("shop", "{}").with("x-delay", "soon").id(&format!("small{n}")));
        site.client.publish(&site.push("shop", "{}").id(&format!("good{n}")));
    }
    let mut good: Vec<String> = (0..5).map(|_| inbox.batch().ids()[0].to_owned()).collect();
    good.sort();
    assert_eq!(good, ["good0", "good1", "good2", "good3", "good4"]);
    wait_until("the small dead letters", LIMIT, || site.client.depth(&site.dead()) == Some(5));
    assert_eq!(daemon.ask("GET", "/readyz").0, 200);
}
