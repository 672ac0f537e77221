//! `/metrics`, and the dashboard and alerts that use it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tidegate_harness::lapin::ExchangeKind;
use tidegate_harness::{require, wait_until, workdir, Daemon, Site};

fn page(daemon: &Daemon) -> String {
    let (status, page) = daemon.ask("GET", "/metrics");
    assert_eq!(status, 200);
    page.as_str().expect("text").to_owned()
}

fn value(page: &str, sample: &str) -> f64 {
    let line = page.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
    line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{sample} is not in\n{page}"))
}

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(name)
}

/// Names of metrics that occur in a text.
fn named(text: &str) -> BTreeSet<&str> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = text.split(|c: char| !is_name(c));
    words.filter(|word| word.starts_with("tidegate_") || word.starts_with("process_")).collect()
}

#[test]
fn what_has_passed_is_told_also_after_a_reconnect() {
    let site = Site::new("metrics");
    let inbox = site.inbox("shop");
    let daemon = site.start(&site.config());
    for round in 1..=2 {
        site.client.publish_all((0..20).map(|n| site.push("shop", "{}").id(&format!("{round}-{n}"))));
        site.client.publish(&site.push("shop", "{}").with("x-delay", "soon"));
        assert_eq!(inbox.items(20, Duration::from_secs(20)).len(), 20);
        let items = f64::from(20 * round);
        wait_until("the confirms", Duration::from_secs(20), || {
            let page = page(&daemon);
            value(&page, "tidegate_dead_letters_confirmed_total") == f64::from(round)
                && value(&page, "tidegate_items_confirmed_total") >= items
        });
        let page = page(&daemon);
        assert!(value(&page, "tidegate_publish_lateness_seconds_count") >= items, "{page}");
        assert_eq!(value(&page, "tidegate_items_dead_total{reason=\"invalid\"}"), f64::from(round));
        assert_eq!(value(&page, "tidegate_state{state=\"running\"}"), 1.0);
        assert_eq!(value(&page, "tidegate_connection{side=\"egress\",state=\"connected\"}"), 1.0);
        let all = value(&page, "tidegate_publish_lateness_seconds_bucket{le=\"+Inf\"}");
        assert_eq!(all, value(&page, "tidegate_publish_lateness_seconds_count"));
        assert!(value(&page, "process_resident_memory_bytes") > 1e6);
        assert!(page.ends_with("# EOF\n"));
        if round == 1 {
            let failed = "tidegate_connections_failed_total{side=\"egress\"}";
            let before = value(&page, failed);
            site.client.delete_exchange(&site.out());
            site.client.publish(&site.push("shop", "{}"));
            wait_until("a reconnect", Duration::from_secs(20), || {
                value(&self::page(&daemon), failed) > before
            });
            // The next connection declares the exchange again, without its bindings.
            wait_until("the exchange", Duration::from_secs(20), || {
                site.client.has_exchange(&site.out(), ExchangeKind::Direct)
            });
            site.client.bind(&site.queue("shop"), &site.out(), "shop");
            assert_eq!(inbox.items(1, Duration::from_secs(20)).len(), 1);
        }
    }
}

#[test]
fn dashboard_and_alerts_ask_for_what_there_is() {
    let site = Site::new("dashboard");
    let daemon = site.start(&site.config());
    // Needed for a next due time; an item further ahead would be in the store only.
    site.client.publish(&site.push("shop", "{}").number("x-delay", 10_000));
    wait_until("it waits", Duration::from_secs(20), || daemon.items("waiting") == 1);
    let page = page(&daemon);
    let mut told: BTreeSet<&str> = named(&page);
    // Exported only with a database, or only without one; `postgres::` tests the first.
    told.extend(["tidegate_store_lease_remaining_seconds", "tidegate_store_free_bytes"]);
    // Exported only with several shards; a unit test of the metrics has them.
    told.extend(["tidegate_forwarded_requests_total", "tidegate_map_bindings_total"]);
    // Exported only where several nodes share the shards; `nodes::` tests it.
    told.extend(["tidegate_shards_unowned"]);
    let dashboard = std::fs::read_to_string(file("grafana/tidegate.json")).expect("the dashboard");
    let parsed: serde_json::Value = serde_json::from_str(&dashboard).expect("JSON");
    assert!(parsed["panels"].as_array().is_some_and(|panels| panels.len() >= 10));
    let alerts = std::fs::read_to_string(file("prometheus/alerts.yml")).expect("the alerts");
    let guides = std::fs::read_dir(file("operate")).expect("the guides for operators").flatten();
    let described: String =
        guides.map(|guide| std::fs::read_to_string(guide.path()).expect("a guide")).collect();
    for (place, text) in [("the dashboard", &dashboard), ("the alerts", &alerts), ("operate/", &described)] {
        let asked = named(text);
        assert!(!asked.is_empty(), "{place}");
        let missing: Vec<_> = asked.difference(&told).collect();
        assert!(missing.is_empty(), "{place} names {missing:?}, which are not told");
    }
    // Conversely, every exported metric is described.
    let families = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    let words = named(&described);
    let is_described = |family: &&str| words.iter().any(|word| word.starts_with(*family));
    let unsaid: Vec<_> = families.filter(|family| !is_described(family)).collect();
    assert!(unsaid.is_empty(), "docs/operate/ says nothing of {unsaid:?}");
    if require("promtool") {
        let checked =
            Command::new("promtool").args(["check", "rules"]).arg(file("prometheus/alerts.yml")).output();
        let checked = checked.expect("promtool runs");
        assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    }
}

/// Scrapes every 15 s: of a process that ends soon after each of its starts, so that one scrape in 24 meets it;
/// of one that is met by one in eight; of one that is down for four minutes; of one that ends for good; of one
/// that is started anew twice. Then dead letters that stay, and some that leave; a shard that no node has, shards
/// that move, and a node that is cut off from the database.
const SCRAPED: &str = r#"
rule_files: [ALERTS_FILE]
evaluation_interval: 15s
tests:
  - interval: 15s
    input_series:
      - series: up{job="tidegate",instance="seldom"}
        values: 1 0x22 1 0x22 1 0x22 1 0x22 1 0x22
      - series: process_start_time_seconds{job="tidegate",instance="seldom"}
        values: 0 _x23 360 _x23 720 _x23 1080 _x23 1440 _x23
      - series: up{job="tidegate",instance="often"}
        values: 1 0x6 1 0x6 1 0x6 1 0x6 1 0x6 1 0x6 1 0x6 1 0x6 1 0x6 1 0x6 1 0x6 1 0x6
      - series: process_start_time_seconds{job="tidegate",instance="often"}
        values: 0 _x7 1 _x7 2 _x7 3 _x7 4 _x7 5 _x7 6 _x7 7 _x7 8 _x7 9 _x7 10 _x7 11 _x7
      - series: up{job="tidegate",instance="down"}
        values: 1x31 0x15 1x72
      - series: process_start_time_seconds{job="tidegate",instance="down"}
        values: 0x31 _x16 720x72
      - series: up{job="tidegate",instance="ended"}
        values: 1x31 0x88
      - series: process_start_time_seconds{job="tidegate",instance="ended"}
        values: 0x31 _x89
      - series: up{job="tidegate",instance="updated"}
        values: 1x9 0 1x19 0 1x90
      - series: process_start_time_seconds{job="tidegate",instance="updated"}
        values: 0x9 _ 160x19 _ 500x90
      - series: tidegate_dead_letters_waiting{instance="full"}
        values: 0x9 2x110
      - series: tidegate_dead_letters_confirmed_total{instance="full"}
        values: 7x119
      - series: tidegate_dead_letters_waiting{instance="emptied"}
        values: 0x9 2x40 0x60
      - series: tidegate_dead_letters_confirmed_total{instance="emptied"}
        values: 7x50 9x60
      - series: tidegate_dead_letters_waiting{instance="flowing"}
        values: 50x119
      - series: tidegate_dead_letters_confirmed_total{instance="flowing"}
        values: 0+3000x119
      - series: tidegate_shards_unowned{job="none",instance="one"}
        values: 0x9 1x110
      - series: tidegate_shards_unowned{job="none",instance="two"}
        values: 0x9 1x110
      - series: tidegate_shards_unowned{job="round",instance="one"}
        values: 1 1 1 0 1 1 1 0 1 1 1 0 1 1 1 0 1 1 1 0 1 1 1 0 1x95
      - series: tidegate_shards_unowned{job="move",instance="one"}
        values: 0x9 2x2 0x108
      - series: tidegate_shards_unowned{job="move",instance="two"}
        values: 0x9 2x2 0x108
      - series: tidegate_shards_unowned{job="cut",instance="one"}
        values: 0x9 4x110
      - series: tidegate_shards_unowned{job="cut",instance="two"}
        values: 0x120
      - series: up{job="tidegate",instance="flapping"}
        values: 1 0 1 0 1 0 1 0 1 0 1 0 1 0 1 0 1x103
      - series: process_start_time_seconds{job="tidegate",instance="flapping"}
        values: 5 _ 5 _ 5 _ 5 _ 5 _ 5 _ 5 _ 5 _ 5x103
    promql_expr_test:
      - expr: count by (instance) (count_over_time(ALERTS{alertname="TidegateRestarts",alertstate="firing"}[23m]))
        eval_time: 23m
        exp_samples: [{labels: '{instance="often"}', value: 1}, {labels: '{instance="seldom"}', value: 1}]
      - expr: count by (instance) (count_over_time(ALERTS{alertname="TidegateInstanceDown",alertstate="firing"}[23m]))
        eval_time: 23m
        exp_samples:
          - {labels: '{instance="down"}', value: 1}
          - {labels: '{instance="ended"}', value: 1}
          - {labels: '{instance="seldom"}', value: 1}
      - expr: >-
          count by (instance) (count_over_time(ALERTS{alertname="TidegateDeadLettersWait",alertstate="firing"}[23m]))
        eval_time: 23m
        exp_samples: [{labels: '{instance="full"}', value: 1}]
      - expr: count by (job) (count_over_time(ALERTS{alertname="TidegateShardUnowned",alertstate="firing"}[23m]))
        eval_time: 23m
        exp_samples: [{labels: '{job="none"}', value: 1}, {labels: '{job="round"}', value: 1}]
"#;

#[test]
fn alerts_fire_for_what_they_name() {
    if !require("promtool") {
        return;
    }
    let scraped = workdir("alerts").join("scraped.yml");
    let text = SCRAPED.replace("ALERTS_FILE", &file("prometheus/alerts.yml").display().to_string());
    std::fs::write(&scraped, text).expect("what was scraped");
    let told = Command::new("promtool").args(["test", "rules"]).arg(&scraped).output();
    let told = told.expect("promtool runs");
    let said = [told.stdout, told.stderr].concat();
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&said));
}
