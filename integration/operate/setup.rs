//! `topology print`: the printed topology and permissions are sufficient.

use std::fs;
use std::process::Command;
use std::time::Duration;
use tidegate_harness::{wait_until, Client, Config, Daemon, Node, Push, Site};

/// Why findings about permissions are not tested with RabbitMQ 4.3 and later.
pub(super) const ASKS_FOR_RIGHTS: &str =
    "from RabbitMQ 4.3 on it takes a right to see whether an exchange or a queue is there, which these do not give";

/// The arguments of a `rabbitmqctl` line, as the shell splits them.
fn arguments(line: &str) -> Vec<String> {
    let words = line.strip_prefix("rabbitmqctl ").expect("a command");
    let script = format!("printf '%s\\n' {words}");
    let output = Command::new("sh").arg("-c").arg(script).output().expect("sh runs");
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

/// Passes the arguments of `rabbitmqctl` to a node.
pub(super) type Order = fn(&Node, &[&str]) -> String;

/// Creates the accounts of the printed script, all with one password, and grants access to the test's
/// account.
pub(super) fn make_accounts(node: &Node, daemon: &Daemon, vhost: &str, order: Order) -> Client {
    let told = daemon.cli(&["topology", "print"]);
    assert_eq!((told.code, told.err.as_str()), (0, ""), "{told:?}");
    for line in told.out.lines().filter(|line| line.starts_with("rabbitmqctl ")) {
        let words = arguments(line);
        order(node, &words.iter().map(String::as_str).collect::<Vec<_>>());
    }
    let (_, _, user, _) = node.login();
    node.ctl(&["set_permissions", "-p", vhost, &user, ".*", ".*", ".*"]);
    Client::connect(&node.uri_of(&user, vhost))
}

/// A message passes through, and a dead letter is sent back: both logins have what they need.
pub(super) fn works(site: &Site<'_>, client: &Client, daemon: Daemon) {
    let mut daemon = daemon;
    daemon.start_again();
    let daemon = daemon.ready();
    let queue = site.queue("shop");
    client.queue(&queue, lapin::types::FieldTable::default());
    client.bind(&queue, &site.out(), "shop");
    let inbox = client.consume(&queue);
    client.publish(&Push::new(&site.ingest(), "shop", "1").id("least"));
    let item = inbox.items(1, Duration::from_secs(20)).remove(0);
    assert_eq!(item.id, "least");
    let state = daemon.state();
    assert_eq!(state["ready"], true, "{state}");
    client.publish(&Push::new(&site.ingest(), "shop", "1").with("x-delay", "soon").id("wrong"));
    wait_until("the dead letter", Duration::from_secs(20), || client.depth(&site.dead()) == Some(1));
    // A broker that does not answer in time is asked again.
    let mut told = (503, serde_json::Value::Null);
    wait_until("the broker answers", Duration::from_secs(20), || {
        told = daemon.ask("POST", "/api/v1/dead/retry?reason=invalid");
        told.0 != 503
    });
    let (status, answer) = told;
    assert_eq!((status, &answer["count"]), (200, &1.into()), "{answer}");
    assert_eq!(inbox.items(1, Duration::from_secs(20)).remove(0).id, "wrong");
    // Without permission for the lock the daemon would count consumers.
    assert!(!daemon.log().contains("are counted instead"), "{}", daemon.log_tail());
    let log = daemon.log();
    let refused: Vec<&str> = log.lines().filter(|line| line.contains("ACCESS_REFUSED")).collect();
    // Without any right to the dead exchange, the ingest user cannot see it since RabbitMQ 4.3.
    let is_unseen = |line: &&str| site.node.is_since(4, 3) && line.contains("WARN") && line.contains("dead");
    assert!(refused.iter().all(is_unseen), "{refused:?}");
    let told = daemon.cli(&["check", "--connect"]);
    assert_eq!(told.code, 0, "{told:?}");
}

fn configured(site: &Site<'_>, node: &Node, vhost: &str, users: [&str; 2], topology: &str) -> Config {
    let (address, ..) = node.login();
    let uri = |user: &str| format!("amqp://{user}:PASSWORD@{address}/{vhost}");
    site.config()
        .text("amqp.uri", &uri(users[0]))
        .text("egress.uri", &uri(users[1]))
        .text("amqp.topology", topology)
}

#[test]
fn the_printed_rights_are_enough() {
    let Some(node) = Node::controlled("the_printed_rights_are_enough") else { return };
    // The first case runs `rabbitmqctl` itself, as a user would; each call starts an Erlang VM, so the others
    // do not.
    for (vhost, users, topology, order) in [
        ("least-passive", ["passive-in", "passive-out"], "passive", Node::rabbitmqctl as Order),
        ("least-one", ["passive-one", "passive-one"], "passive", Node::ctl),
        ("least-declare", ["declare-in", "declare-out"], "declare", Node::ctl),
        ("least-both", ["declare-one", "declare-one"], "declare", Node::ctl),
    ] {
        let site = Site::on(node, vhost);
        let daemon = Daemon::stopped(&configured(&site, node, vhost, users, topology), &site.dir);
        let client = make_accounts(node, &daemon, vhost, order);
        if topology == "passive" {
            let told = daemon.cli(&["topology", "print", "--output", "json"]);
            let file = site.dir.join("definitions.json");
            fs::write(&file, &told.out).expect("the definitions' file");
            node.ctl(&["import_definitions", file.to_str().expect("a path of text")]);
        }
        works(&site, &client, daemon);
    }
}
