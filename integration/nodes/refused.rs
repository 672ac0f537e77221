//! A node that cannot have a part of the shards: it is configured for another number of them, its broker is out of
//! reach, its tables are replaced, or a row of a shard is damaged. And one that can, though another program consumes the ingest queue.

use super::{started, Nodes};
use crate::shards::{applications, end, home, stored, COUNT, LIMIT};
use std::time::{Duration, Instant};
use tidegate_harness::{wait_until, Daemon};

/// The exit code of a configuration that cannot be used.
const CONFIG: i32 = 78;

#[test]
fn another_number_of_shards_over_the_same_tables_does_not_start() {
    let Some(mut nodes) = Nodes::start("nodes-count", 1) else { return };
    let before = nodes.even();
    let schema = nodes.site.schema().to_owned();
    for count in ["1", "2", "8"] {
        let mut other = started(&nodes.config.clone().set("shards.count", count));
        assert_eq!(other.exit(LIMIT).code(), Some(CONFIG), "{count}: {}", other.log_tail());
        let log = other.log();
        let tells = |line: &str| {
            // The name of the schema ends with a number.
            let rest = line.replace(&schema, "");
            let words: Vec<&str> = rest.split(|c: char| !c.is_ascii_alphanumeric()).collect();
            rest.len() < line.len()
                && rest.contains("shards.count")
                && [count, &COUNT.to_string()].iter().all(|number| words.contains(number))
        };
        assert!(log.lines().any(tells), "{count}: {log}");
    }
    assert_eq!(nodes.even(), before, "the node that serves has not noticed");
}

/// Nothing listens at the port of its broker at first.
#[test]
fn a_node_without_its_broker_claims_nothing_and_gets_its_part_once_it_has_one() {
    let Some(mut nodes) = Nodes::stopped("nodes-unable") else { return };
    let mut unable = started(&nodes.config.clone().text("amqp.uri", "amqp://guest:guest@127.0.0.1:1/%2f"));
    nodes.join();
    let claims = nodes.even();
    assert!(claims.iter().all(|claim| claim.epoch == 1), "each is claimed once: {claims:?}");
    let has_claimed = |node: &Daemon| node.log().contains("claimed the store");
    assert!(has_claimed(&nodes.able[0]) && !has_claimed(&unable), "{}", unable.log_tail());
    wait_until("it is not ready", LIMIT, || unable.ask("GET", "/readyz").0 == 503);
    end(&mut unable);
    unable.rewrite(&nodes.config);
    unable.start_again();
    nodes.able.push(unable);
    nodes.even();
}

/// Excluded: what is stored waits for another program that consumes the ingest queue.
#[test]
fn a_node_serves_its_shards_while_another_program_consumes_the_ingest_queue() {
    let Some(mut nodes) = Nodes::start("nodes-foreign", 1) else { return };
    let name = applications(1).remove(0);
    let inbox = nodes.site.inbox(&name);
    nodes.site.client.publish(&nodes.site.push(&name, "{}").id("kept").delay(20_000));
    stored(&nodes.site);
    end(&mut nodes.able[0]);
    let _foreign = nodes.site.client.consume(&nodes.site.ingest_queue());
    nodes.able[0].start_again();
    wait_until("it has all shards", LIMIT, || nodes.claims().is_ok());
    assert_eq!(inbox.batch().ids(), ["kept"]);
    let (status, told) = nodes.able[0].ask("GET", "/readyz");
    assert!(status == 503 && told["missing"].to_string().contains("consumer"), "{status} {told}");
    end(&mut nodes.able[0]);
}

/// Excluded: nodes with different keys, each of which discards what the other one sends it.
#[test]
fn a_node_whose_tables_are_replaced_ends_and_starts_with_the_new_ones() {
    let Some(mut nodes) = Nodes::start("nodes-replaced", 1) else { return };
    let schema = nodes.site.schema().to_owned();
    nodes.server.sql(&format!("UPDATE {schema}.cluster SET key = sha256('another')"));
    let node = &mut nodes.able[0];
    assert_eq!(node.exit(LIMIT).code(), Some(1), "{}", node.log_tail());
    let is_named = |line: &str| line.contains("ERROR") && line.contains(&schema);
    assert!(node.log().lines().any(is_named), "{}", node.log_tail());
    node.start_again();
    nodes.even();
    end(&mut nodes.able[0]);
}

/// Longer than a process has for its end after its store has failed.
const LAST_RESORT: Duration = Duration::from_secs(16);

/// Excluded: a node that ends some seconds after one of its shards has failed, and the next one after it; and one
/// that is ready each second although nobody has the shard.
#[test]
fn a_damaged_row_ends_the_service_of_its_shard_and_no_node() {
    let Some(mut nodes) = Nodes::start("nodes-damaged", 1) else { return };
    let names = applications(2);
    let damaged = home(&names[0]);
    let sound = names.iter().find(|name| home(name) != damaged).expect("an application of another shard");
    let inbox = nodes.site.inbox(sound);
    let client = &nodes.site.client;
    client.publish(&nodes.site.push(&names[0], "{}").id("soon").delay(20_000));
    let schema = nodes.site.schema();
    let items = format!("{schema}.items WHERE shard = {damaged}");
    let sql = |text: String| nodes.server.sql(&text);
    wait_until("it is stored", LIMIT, || sql(format!("SELECT count(*) FROM {items}")) == "1");
    end(&mut nodes.able[0]);
    sql(format!("UPDATE {schema}.items SET head = '\\x00' WHERE shard = {damaged}"));
    let node = &mut nodes.able[0];
    node.start_again();
    wait_until("the shard has failed", LIMIT, || node.log().contains("the store has failed"));
    wait_until("it is not ready", LIMIT, || node.ask("GET", "/readyz").0 == 503);
    let failed = Instant::now();
    let mut sent = 0;
    while failed.elapsed() < LAST_RESORT {
        client.publish(&nodes.site.push(sound, "{}").id(&sent.to_string()).delay(500));
        assert_eq!(inbox.batch().ids(), [sent.to_string()]);
        assert!(node.running(), "{}", node.log_tail());
        let (status, told) = node.ask("GET", "/readyz");
        assert_ne!(status, 200, "as long as nobody has the shard: {told} {}", node.state()["shards"]);
        sent += 1;
    }
    let state = node.state();
    let lines = state["shards"].as_array().expect("a line for each");
    let reason = lines[usize::from(damaged)]["reason"].as_str();
    assert!(reason.is_some_and(|reason| reason.contains("the store is damaged")), "{state}");
    assert_eq!(lines.iter().filter(|line| line["state"] == "running").count(), lines.len() - 1, "{state}");
    let told = node.cli(&["status"]);
    assert!(told.code == 3 && told.out.contains("the store is damaged"), "{told:?}");
    let page = node.ask_whole("GET", "/metrics").expect("an answer").body;
    assert!(page.contains("\ntidegate_shards_unowned 1.0\n"), "{page}");
    end(node);
}
