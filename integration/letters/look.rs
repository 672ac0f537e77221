//! Counts, lists, single dead letters, and exports.

use super::{carried_out, died, done, ids, invalid, lie_there, listed, looked, told_in_the_log};
use serde_json::{json, Value};
use tidegate_harness::{now_ms, Site};

/// More looks than a quorum queue of RabbitMQ 4 survives with its default delivery limit.
const LOOKS: usize = 25;

#[test]
fn letters_are_counted_listed_and_shown_and_stay_where_they_are() {
    let site = Site::new("letters-look");
    let daemon = site.start(&site.config());
    assert_eq!(done(&daemon, "GET", "/api/v1/dead/count")["groups"], json!([]));
    let past = i64::try_from(now_ms()).expect("a date") - 1_000;
    let shop = (0..3).map(|n| invalid(&site, "shop", &format!("s{n}")).customer("anna"));
    died(&site, shop, 3);
    died(&site, (0..2).map(|n| invalid(&site, "mail", &format!("m{n}"))), 5);
    died(&site, [site.push("shop", "1").id("late").number("x-deliver-before", past)], 6);
    let counted = done(&daemon, "GET", "/api/v1/dead/count");
    let group = |reason: &str, application: &str, count: usize| json!({ "reason": reason, "application": application, "count": count });
    let want = [group("expired", "shop", 1), group("invalid", "mail", 2), group("invalid", "shop", 3)];
    assert_eq!((&counted["groups"], &counted["depth"]), (&json!(want), &json!(6)));
    let all = listed(&daemon, "");
    assert_eq!(ids(&all), ["s0", "s1", "s2", "m0", "m1", "late"]);
    for _ in 0..LOOKS {
        assert_eq!(listed(&daemon, ""), all, "each at its place, under its key");
    }
    assert_eq!(ids(&listed(&daemon, "?application=mail")), ["m0", "m1"]);
    assert_eq!(ids(&listed(&daemon, "?reason=expired")), ["late"]);
    // `more` reports that the page has no room for the rest.
    for (limit, more) in [(3, true), (4, false)] {
        let page = done(&daemon, "GET", &format!("/api/v1/dead?application=shop&limit={limit}"));
        let letters = page["letters"].as_array().expect("letters");
        assert_eq!((letters.len(), &page["more"]), (limit, &json!(more)), "{page}");
    }
    let key = all[0]["key"].as_str().expect("a key");
    let one = done(&daemon, "GET", &format!("/api/v1/dead/letters/{key}"));
    assert_eq!((&one["body"], &one["headers"]["x-delay"]), (&json!("{\"of\":\"s0\"}"), &json!("soon")));
    assert_eq!((&one["customer"], &one["properties"]["message_id"]), (&json!("anna"), &json!("s0")));
    assert!(one["error"].as_str().is_some_and(|text| text.contains("x-delay")), "{one}");
    let nobody = "0".repeat(32);
    assert_eq!(daemon.ask("GET", &format!("/api/v1/dead/letters/{nobody}")).0, 404);
    assert_eq!(daemon.ask("GET", "/api/v1/dead/letters/12").0, 400);
    assert_eq!(daemon.ask("GET", "/api/v1/dead?colour=red").0, 400);
    lie_there(&site, 6);
}

#[test]
fn the_command_line_lists_shows_saves_and_drops() {
    let site = Site::new("letters-cli");
    let daemon = site.start(&site.config());
    died(&site, (0..3).map(|n| invalid(&site, "shop", &format!("s{n}"))), 3);
    let binary = tidegate_harness::Push { body: vec![0xff, 0], ..invalid(&site, "mail", "raw") };
    died(&site, [binary], 4);
    let cli = |line: &str| looked(&daemon, &line.split(' ').collect::<Vec<_>>());
    let change = |line: &str| carried_out(&daemon, &line.split(' ').collect::<Vec<_>>());
    let told = cli("dead list --count");
    assert_eq!((told.code, told.err.as_str()), (0, ""), "{told:?}");
    assert!(told.out.contains("invalid  shop         3"), "{}", told.out);
    let told = cli("dead list --application shop --limit 2 --output json");
    let page: Value = serde_json::from_str(&told.out).expect("JSON");
    assert_eq!(ids(page["letters"].as_array().expect("letters")), ["s0", "s1"]);
    let key = page["letters"][0]["key"].as_str().expect("a key").to_owned();
    let told = cli(&format!("dead show {key}"));
    assert!(told.out.contains("header x-delay") && told.out.contains("{\"of\":\"s0\"}"), "{}", told.out);
    // One complete JSON document per line.
    let told = cli("dead export");
    assert_eq!(told.code, 0, "{told:?}");
    let lines: Vec<Value> = told.out.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(ids(&lines), ["s0", "s1", "s2", "raw"]);
    assert_eq!((&lines[1]["body"], &lines[3]["body_base64"]), (&json!("{\"of\":\"s1\"}"), &json!("/wA=")));
    // Without --yes nothing is dropped.
    let told = cli("dead drop --application shop");
    assert_eq!((told.code, told.out.as_str()), (2, ""));
    assert!(told.err.starts_with("3 letters: --yes deletes them permanently"), "{}", told.err);
    lie_there(&site, 4);
    assert_eq!(change(&format!("dead drop {key} --yes")).code, 0);
    let told = change(&format!("dead drop {key} --yes"));
    assert_eq!(told.code, 3, "it is gone: {told:?}");
    let told = change("dead drop --application shop --yes");
    assert_eq!(told.out.trim(), "dropped: 2 letters; left in the queue: 1");
    let told = change("dead drop --all --yes --output json");
    let answer: Value = serde_json::from_str(&told.out).expect("JSON");
    assert_eq!((&answer["count"], &answer["left"]), (&json!(1), &json!(0)));
    lie_there(&site, 0);
    told_in_the_log(&daemon, "dead_drop", 4);
    let log = daemon.log();
    assert!(log.contains(&format!("letter=\"{key}\"")), "{log}");
}
