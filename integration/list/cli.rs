//! `tidegate list`: tables for people, JSON for programs.

use super::{config, one_of_each};
use serde_json::json;
use tidegate_harness::Site;

/// The first word below this column's title in each line.
fn column(table: &str, name: &str) -> Vec<String> {
    let head = table.lines().next().expect("a head");
    let from = head.find(name).unwrap_or_else(|| panic!("no column {name}: {head}"));
    let cell =
        |line: &str| line.get(from..).and_then(|rest| rest.split_whitespace().next()).map(str::to_owned);
    table.lines().skip(1).filter(|line| !line.starts_with('(')).filter_map(cell).collect()
}

#[test]
fn tables_and_json() {
    let site = Site::new("cli");
    let mut daemon = site.start(&config(&site));
    one_of_each(&site, &daemon);
    let run = |arguments: &str| {
        let told = daemon.cli(&arguments.split(' ').collect::<Vec<_>>());
        assert_eq!((told.code, told.err.as_str()), (0, ""), "{arguments}: {told:?}");
        told
    };
    let all = ["p1", "p2", "p3", "near", "alone", "window", "mail", "far", "farther"];
    let table = run("list").out;
    assert_eq!(column(&table, "ID"), all, "{table}");
    let states = [&["parked"; 3][..], &["waiting"; 6]].concat();
    assert_eq!(column(&table, "STATE"), states, "{table}");
    assert!(column(&table, "DUE").iter().all(|due| due.ends_with('Z')), "{table}");
    for (arguments, wanted) in [
        ("list --application shop --customer a", &["near", "window", "far"][..]),
        ("list --state parked", &["p1", "p2", "p3"]),
        ("list --from 2999-01-01T00:00:00Z", &[]),
        ("list --to 2001-01-01T00:00:00+01:00", &[]),
        ("list --limit 2", &["p1", "p2"]),
    ] {
        let table = run(arguments).out;
        assert_eq!(column(&table, "ID"), wanted, "{arguments}: {table}");
        assert_eq!(table.contains("there are more"), arguments.contains("limit"), "{table}");
    }
    let listed = run("list --output json").json();
    assert_eq!(listed, daemon.ask("GET", "/api/v1/items").1);
    let part = run("list --output json --limit 2").json();
    assert_eq!(part["items"].as_array().map(Vec::len), Some(2));
    assert!(part["next"].is_string(), "{part}");

    let table = run("list --count").out;
    for (name, total) in [("mail", "1"), ("nobody", "3"), ("shop", "5")] {
        let line = table.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{table}"));
        assert!(line.split_whitespace().any(|cell| cell == total), "{line}");
    }
    let all = run("list --count --output json").json();
    let totals: Vec<_> = all["applications"].as_array().expect("all").iter().map(|a| &a["total"]).collect();
    assert_eq!(totals, [&json!(1), &json!(3), &json!(5)], "{all}");
    let one = run("list --count --application shop --output json").json();
    assert_eq!((&one["name"], &one["total"]), (&json!("shop"), &json!(5)));
    let counts = run("list --count --application shop --customer a --output json").json();
    assert_eq!((&counts["waiting"], &counts["customer"]), (&json!(3), &json!("a")));
    let table = run("list --count --application shop --customer a").out;
    let waiting = table.lines().find_map(|line| line.strip_prefix("waiting")).map(str::trim);
    assert_eq!(waiting, Some("3"), "{table}");

    for (arguments, code) in [
        ("list --count --application none", 3),
        ("list --count --customer a", 2),
        ("list --count --state parked", 2),
        ("list --limit 0", 2),
        ("list --state sent", 2),
        ("list --from yesterday", 2),
    ] {
        let told = daemon.cli(&arguments.split(' ').collect::<Vec<_>>());
        assert_eq!((told.code, told.out.as_str()), (code, ""), "{arguments}: {told:?}");
        assert!(!told.err.is_empty(), "{arguments}");
    }
    daemon.kill9();
    assert_eq!(daemon.cli(&["list"]).code, 1);
}
