//! Answers are sent to the virtual host of the command.

use std::time::{Duration, Instant};
use tidegate_harness::lapin::types::FieldTable;
use tidegate_harness::{wait_until, Asker, Client, Node, Push, Site};

/// After this time a command is sent again: the daemon drops an answer that a busy broker does not take.
const AGAIN: Duration = Duration::from_secs(10);

#[test]
fn an_answer_reaches_a_queue_of_the_ingest_vhost_while_batches_go_elsewhere() {
    let Some(node) = Node::controlled("an_answer_reaches_a_queue") else { return };
    let site = Site::on(node, "vhosts");
    let elsewhere = Client::connect(&node.uri_of("guest", "plain"));
    let config = site.config().text("egress.uri", &node.uri_of("guest", "plain"));
    let daemon = site.start(&config);
    for asker in [Asker::new(&site), Asker::direct(&site)] {
        let answer = asker.ask("lookup", site.push("shop", "").id("nobody"));
        assert_eq!(answer["state"], "unknown", "{answer}");
    }
    elsewhere.queue("vhosts.shop", FieldTable::default());
    elsewhere.bind("vhosts.shop", &site.out(), "shop");
    site.client.publish(&site.push("shop", "{}").id("x"));
    assert_eq!(elsewhere.consume("vhosts.shop").batch().ids(), ["x"]);
    // An answer whose queue is gone is logged.
    let asker = Asker::new(&site);
    let gone = asker.command(site.push("shop", "").id("y"), "tidegate.lookup", "c");
    let properties = gone.properties.clone().with_reply_to("nobody.here".into());
    let gone = Push { properties, ..gone };
    let mut sent: Option<Instant> = None;
    wait_until("a line about it", Duration::from_secs(10), || {
        if sent.is_none_or(|sent| sent.elapsed() >= AGAIN) {
            site.client.publish(&gone);
            sent = Some(Instant::now());
        }
        daemon.log().contains("reply queue does not exist")
    });
}
