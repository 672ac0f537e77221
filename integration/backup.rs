//! Backup and restore: the store of a running and of a stopped daemon is exported, verified and imported, and
//! another daemon continues with it.

use serde_json::{json, Value};
use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use tidegate_harness::{
    binary, bounded, now_ms, wait_until, Config, Daemon, Disk, Inbox, Ledger, Received, Site, Told,
};

/// Delay of own-time items, ms: longer than it takes to move the store. On a busy machine it may take longer; their
/// applications are paused until then.
const AHEAD_MS: u64 = 15_000;
/// The window of `long`, ms.
const LONG_MS: u64 = 30_000;
/// Paused until the store is moved.
const PAUSED: [&str; 2] = ["raw", "shop"];

fn config(site: &Site<'_>) -> Config {
    site.config()
        .set("defaults.retry", r#"{ min = "60s", max = "60s" }"#)
        .text("applications.raw.format", "passthrough")
        // Beyond the horizon, so the window is stored in a separate row.
        .text("applications.long.window", &format!("{LONG_MS}ms"))
}

/// Runs `tidegate store` with these arguments and this file as standard input.
fn store(arguments: &[&str], input: &Path) -> Told {
    store_by(&mut Command::new(binary()), arguments, input)
}

/// The same by this command, which runs the binary.
fn store_by(command: &mut Command, arguments: &[&str], input: &Path) -> Told {
    let input = fs::File::open(input).expect("the input");
    let output = command.arg("store").args(arguments).stdin(Stdio::from(input)).output().expect("the binary");
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("UTF-8");
    Told { code: output.status.code().unwrap_or(-1), out: text(&output.stdout), err: text(&output.stderr) }
}

fn state_of(daemon: &Daemon, application: &str, id: &str) -> String {
    let (_, told) = daemon.ask("GET", &format!("/api/v1/items/{application}/{id}"));
    told["state"].as_str().unwrap_or_default().to_owned()
}

/// Gives an order about each of these applications.
fn order(daemon: &Daemon, applications: &[&str], verb: &str) {
    for name in applications {
        let (status, said) = daemon.ask("POST", &format!("/api/v1/applications/{name}/{verb}"));
        assert_eq!(status, 200, "{name}: {said}");
    }
}

/// Publishes items of every kind and waits until each has reached its waiting place. Returns the moment (UTC
/// ms) before which no item of `raw` and `shop` may leave, and the latest one at which the window of `long` closes.
fn fill(site: &Site<'_>, daemon: &Daemon, shop: &Inbox) -> [u64; 2] {
    site.client.publish(&site.push("shop", "1").id("gone"));
    assert_eq!(shop.batch().ids(), ["gone"]);
    order(daemon, &["held"], "pause");
    order(daemon, &PAUSED, "pause");
    // Without the dead-letter exchange a dead letter stays in the store.
    site.client.delete_exchange(&site.dead());
    let at = now_ms() + AHEAD_MS;
    let due = i64::try_from(at).expect("a date");
    let far = i64::try_from(at + 3_600_000).expect("a date");
    let timed = |n: u32| {
        let push = site.push("shop", format!("{{\"n\":{n}}}")).content_type("application/json");
        push.id(&format!("s{n}")).customer(&format!("c{}", n % 4)).number("x-deliver-at", due)
    };
    let mut pushes: Vec<_> = (0..40).map(timed).collect();
    pushes.push(site.push("shop", "far").id("far").number("x-deliver-at", far));
    pushes
        .push(site.push("raw", vec![0xff, 0, 0xfe]).id("r0").with("lang", "en").number("x-deliver-at", due));
    pushes.push(site.push("raw", "größe").with("lang", "de").customer("c").number("x-deliver-at", due));
    pushes.extend((0..3).map(|n| site.push("long", n.to_string()).id(&format!("w{n}")).customer("anna")));
    pushes.extend((0..5).map(|n| site.push("nobody", "1").id(&format!("n{n}"))));
    pushes.push(site.push("held", "1").id("h0"));
    pushes.push(site.push("shop", "1").id("dead").with("x-delay", "soon"));
    site.client.publish_all(pushes);
    wait_until("all are where they wait", Duration::from_secs(10), || {
        let items = daemon.state()["items"].clone();
        items["parked"] == 5
            && daemon.state()["uncommitted"] == 0
            && daemon.state()["totals"]["accepted"] == 53
    });
    [at, now_ms() + LONG_MS]
}

/// The lines of an export without its header line.
fn body(export: &str) -> Vec<Value> {
    export.lines().skip(1).map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// The same without what another try of the dead letter changes, which may come between two exports.
fn at_rest(lines: &[Value]) -> Vec<Value> {
    let mut lines = lines.to_vec();
    for line in lines.iter_mut().filter(|line| line["state"] == "dead") {
        let members = line.as_object_mut().expect("an object");
        for name in ["due", "was_due", "last_error"] {
            members.remove(name);
        }
    }
    lines
}

fn of_kind<'l>(lines: &'l [Value], kind: &str) -> Vec<&'l Value> {
    lines.iter().filter(|line| line["kind"] == kind).collect()
}

#[test]
fn a_store_that_is_moved_is_lived_on() {
    let site = Site::new("backup");
    let mut daemon = site.start(&config(&site));
    let shop = site.inbox("shop");
    let moments = fill(&site, &daemon, &shop);
    let running = daemon.cli(&["store", "export", "--running"]);
    assert_eq!((running.code, running.err.as_str()), (0, ""), "{running:?}");
    let locked = daemon.cli(&["store", "verify"]);
    assert_eq!(locked.code, 75, "{locked:?}");
    assert!(locked.err.contains(&format!("in use by process {}", daemon.pid())), "{}", locked.err);
    daemon.term();
    assert!(daemon.exit(Duration::from_secs(20)).success());
    let stopped = daemon.cli(&["store", "export"]);
    assert_eq!((stopped.code, stopped.err.as_str()), (0, ""), "{stopped:?}");
    let (lines, live) = (body(&stopped.out), body(&running.out));
    assert_eq!(at_rest(&lines), at_rest(&live), "a running daemon tells the same");
    assert_eq!(of_kind(&lines, "item").len(), 40 + 1 + 2 + 3 + 5 + 1 + 1);
    assert_eq!(of_kind(&lines, "window").len(), 1, "{lines:?}");
    for name in ["held"].iter().chain(&PAUSED) {
        let paused = json!({"kind": "queue", "application": name, "paused": true});
        assert_eq!(lines.iter().filter(|line| **line == paused).count(), 1, "{name}: {lines:?}");
    }
    assert_eq!(of_kind(&lines, "queue").len(), 3, "{lines:?}");
    assert_eq!(lines.iter().filter(|line| line["state"] == "dead").count(), 1);
    let sound = daemon.cli(&["store", "verify", "--output", "json"]);
    assert_eq!((sound.code, sound.err.as_str()), (0, ""), "{sound:?}");
    let sound = sound.json();
    assert_eq!(
        (&sound["items"], &sound["dead_letters"], &sound["windows"]),
        (&json!(52), &json!(1), &json!(1))
    );
    assert_eq!((&sound["faults"], &sound["paused"], &sound["ended_ids"]), (&json!(0), &json!(3), &json!(1)));

    let (file, moved) = (site.dir.join("export.ndjson"), site.dir.join("moved"));
    fs::write(&file, &running.out).expect("a backup");
    let path = moved.to_string_lossy().into_owned();
    let told = store(&["import", &path, "--output", "json"], &file);
    assert_eq!((told.code, told.err.as_str()), (0, ""), "{told:?}");
    assert_eq!((&told.json()["items"], &told.json()["dead_letters"]), (&json!(52), &json!(1)));
    let told = store(&["import", &path, "--output", "json"], &file);
    assert_eq!((told.code, told.out.as_str()), (1, ""), "{told:?}");
    assert!(told.err.contains(&path) && told.err.contains("import into an empty directory"), "{}", told.err);
    let told = store(&["compact", &path, "--output", "json"], &file);
    assert_eq!((told.code, told.json()["after"].as_u64() > Some(0)), (0, true), "{told:?}");
    assert_eq!(store(&["verify", &path], &file).code, 0);

    lived_on(&site, &config(&site).text("store.path", &path), (moments, &shop), &lines);
}

/// Makes a directory for the stores of this many shards.
fn divided(path: &Path, count: u16) {
    fs::create_dir(path).expect("a directory");
    let layout = format!("tidegate-shards 1 {count} {}\n", "5a".repeat(32));
    fs::write(path.join("SHARDS"), layout).expect("its layout");
}

#[test]
fn a_store_that_went_through_several_shards_is_lived_on() {
    let site = Site::new("backup-shards");
    let mut daemon = site.start(&config(&site));
    let shop = site.inbox("shop");
    let moments = fill(&site, &daemon, &shop);
    daemon.term();
    assert!(daemon.exit(Duration::from_secs(20)).success());
    let file = site.dir.join("export.ndjson");
    let [four, one] = ["four", "one"].map(|name| site.dir.join(name));
    divided(&four, 4);
    let mut way = daemon.cli(&["store", "export"]);
    let lines = body(&way.out);
    for path in [four, one.clone()] {
        fs::write(&file, &way.out).expect("an export");
        let path = path.to_string_lossy().into_owned();
        let told = store(&["import", &path, "--output", "json"], &file);
        assert_eq!((told.code, told.err.as_str()), (0, ""), "{told:?}");
        assert_eq!((&told.json()["items"], &told.json()["windows"]), (&json!(52), &json!(1)));
        way = store(&["export", &path], &file);
    }
    let path = one.to_string_lossy().into_owned();
    lived_on(&site, &config(&site).text("store.path", &path), (moments, &shop), &lines);
}

#[test]
fn a_daemon_for_one_store_does_not_start_where_several_shards_are() {
    let site = Site::new("backup-divided");
    let path = site.dir.join("divided");
    divided(&path, 4);
    let path = path.to_string_lossy().into_owned();
    let mut daemon = Daemon::start(&config(&site).text("store.path", &path), &site.dir);
    assert_eq!(daemon.exit(Duration::from_secs(20)).code(), Some(78), "{}", daemon.log_tail());
    assert!(daemon.log().contains("shards") && daemon.log().contains(&path), "{}", daemon.log_tail());
    assert_eq!(fs::read_dir(&path).expect("it is there").count(), 1, "nothing is made");
}

/// Starts another daemon on the moved store: every item must leave once, when it is due, and unchanged.
fn lived_on(site: &Site<'_>, config: &Config, (moments, shop): ([u64; 2], &Inbox), lines: &[Value]) {
    let [at, closed] = moments;
    let (raw, long) = (site.inbox("raw"), site.inbox("long"));
    let daemon = site.start(config);
    shop.quiet(Duration::from_millis(50));
    order(&daemon, &PAUSED, "resume");
    assert_eq!(state_of(&daemon, "shop", "gone"), "sent", "the end of an id is remembered");
    assert_eq!(state_of(&daemon, "shop", "far"), "waiting");
    // One id that waits and one that has been sent: both must be dropped as duplicates.
    site.client.publish_all(["s0", "gone"].map(|id| site.push("shop", "again").id(id)));
    wait_until("both are dropped", Duration::from_secs(10), || {
        daemon.state()["totals"]["duplicates"]["keep"]["dropped"] == 2
    });
    let dead = site.dead_inbox().next();
    assert_eq!((dead.id().as_str(), dead.text("x-tidegate-reason").as_deref()), ("dead", Some("invalid")));

    let mut shopped = BTreeMap::new();
    while shopped.len() < 40 {
        let batch = shop.batch();
        batch.message.is_not_early();
        for item in batch.items {
            let before = shopped.insert(item.id.clone(), item.payload);
            assert_eq!(before, None, "{} came twice", item.id);
        }
    }
    assert!(now_ms() >= at);
    for n in 0..40 {
        assert_eq!(shopped.get(&format!("s{n}")), Some(&Some(json!({ "n": n }))));
    }
    let came: Vec<Received> = raw.take(2, Duration::from_secs(10));
    let of = |lang: &str| came.iter().find(|one| one.text("lang").as_deref() == Some(lang)).expect("it came");
    assert_eq!((of("en").id().as_str(), of("en").body.as_slice()), ("r0", &[0xff, 0, 0xfe][..]));
    assert_eq!(of("de").body_text(), "größe");
    let mut items = of_kind(lines, "item").into_iter();
    let assigned = items.find(|line| line["application"] == "raw" && line["identity"].is_null());
    assert_eq!(assigned.map(|line| line["id"].clone()), Some(json!(of("de").id())), "the id that it had");
    came.iter().for_each(Received::is_not_early);
    let batch = long.batch();
    assert_eq!((batch.ids(), batch.customer.as_deref()), (vec!["w0", "w1", "w2"], Some("anna")));
    let due = batch.message.number("x-due").and_then(|due| u64::try_from(due).ok());
    assert!(due.is_some_and(|due| due <= closed), "the window had begun before: {due:?}, {closed}");

    let (nobody, held) = (site.inbox("nobody"), site.inbox("held"));
    held.quiet(Duration::from_millis(300));
    order(&daemon, &["nobody"], "retry");
    order(&daemon, &["held"], "resume");
    assert_eq!(nobody.items(5, Duration::from_secs(10)).len(), 5);
    assert_eq!(held.batch().ids(), ["h0"]);
    wait_until("nothing but the far one is left", Duration::from_secs(10), || {
        let items = daemon.state()["items"].clone();
        (items["waiting"].as_u64(), items["parked"].as_u64()) == (Some(1), Some(0))
    });
    shop.quiet(Duration::from_millis(300));
}

/// Under load, while windows close early and are evicted from memory, each export is a consistent snapshot:
/// an import finds every row in order. The store that a kill leaves behind is consistent too.
#[test]
fn an_export_under_load_is_sound_and_so_is_what_a_kill_leaves() {
    let site = Site::new("backup-load");
    site.application("shop");
    let config = config(&site)
        .set("applications.shop.max_items", "5")
        .set("applications.long.max_items", "7")
        .set("applications.long.retry", r#"{ min = "20ms", max = "50ms" }"#)
        .text("limits.memory", "64MiB");
    let mut daemon = site.start(&config);
    let ledger = Ledger::new();
    let load = site.load(&ledger, 1_500);
    let path = |name: &str| site.dir.join(name).to_string_lossy().into_owned();
    let brought_back = |name: &str, export: &Told| {
        assert_eq!((export.code, export.err.as_str()), (0, ""), "{name}");
        let file = site.dir.join(format!("{name}.ndjson"));
        fs::write(&file, &export.out).expect("a backup");
        let told = store(&["import", &path(name), "--output", "json"], &file);
        assert_eq!((told.code, told.err.as_str()), (0, ""), "{told:?}");
        let sound = store(&["verify", &path(name), "--output", "json"], &file);
        assert_eq!((sound.code, &sound.json()["damaged"]), (0, &json!([])), "{sound:?}");
        let items = of_kind(&body(&export.out), "item").len() as u64;
        assert_eq!(sound.json()["items"].as_u64(), Some(items), "{name}");
        items
    };
    let mut most = 0;
    for round in 0..4 {
        // `long` has no queue: full windows are published, returned, and wait with the others.
        let long = |n: u32| {
            let push = site.push("long", "1").id(&format!("l{round}-{n}"));
            push.customer(&format!("c{}", n % 30))
        };
        site.client.publish_all((0..400).map(long));
        most =
            brought_back(&format!("live{round}"), &daemon.cli(&["store", "export", "--running"])).max(most);
    }
    assert!(most >= 1_200, "{most} items of at least three rounds");
    wait_until("all of `long` are stored", Duration::from_secs(10), || {
        let told = daemon.cli(&["store", "export", "--running"]);
        let lines = body(&told.out);
        told.code == 0
            && lines.iter().filter(|line| line["application"] == "long" && line["kind"] == "item").count()
                == 1_600
    });
    daemon.kill9();
    load.stop();
    let sound = daemon.cli(&["store", "verify", "--output", "json"]);
    assert_eq!((sound.code, &sound.json()["damaged"]), (0, &json!([])), "{sound:?}");
    assert!(sound.json()["items"].as_u64() >= Some(1_600), "{sound:?}");
    brought_back("killed", &daemon.cli(&["store", "export"]));
    daemon.start_again();
    daemon.wait_ready();
    // A reader that disconnects frees the place for the next one.
    drop(daemon.ask_whole("HEAD", "/api/v1/export"));
    wait_until("another export may begin", Duration::from_secs(10), || {
        daemon.cli(&["store", "export", "--running"]).code == 0
    });
    daemon.term();
    assert!(daemon.exit(Duration::from_secs(30)).success());
}

#[test]
fn a_reader_that_stands_still_holds_nothing_up() {
    let site = Site::new("backup-still");
    let shop = site.inbox("shop");
    let mut daemon = site.start(&config(&site));
    // More than the kernel buffers for one connection.
    let large = "x".repeat(20_000);
    let push = |n: u32| site.push("shop", large.as_str()).id(&n.to_string()).delay(3_600_000);
    site.client.publish_all((0..1_500).map(push));
    wait_until("all are stored", Duration::from_secs(20), || {
        daemon.items("waiting") == 1_500 && daemon.state()["uncommitted"] == 0
    });
    let mut reader = TcpStream::connect(daemon.admin()).expect("it listens");
    reader.set_read_timeout(Some(Duration::from_secs(10))).expect("a time limit");
    reader.write_all(b"GET /api/v1/export HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").expect("it reads");
    let mut head = [0; 64];
    reader.read_exact(&mut head).expect("it has begun");
    assert!(head.starts_with(b"HTTP/1.1 200 OK"), "{}", String::from_utf8_lossy(&head));
    let second = daemon.cli(&["store", "export", "--running"]);
    assert_eq!((second.code, second.out.as_str()), (1, ""), "{second:?}");
    assert!(second.err.contains("another export is under way"), "{}", second.err);
    site.client.publish(&site.push("shop", "1").id("now"));
    assert_eq!(shop.batch().ids(), ["now"]);
    daemon.term();
    assert!(daemon.exit(Duration::from_secs(20)).success(), "{}", daemon.log_tail());
    assert!(daemon.log().contains("an export was ended early"), "{}", daemon.log_tail());
    let sound = daemon.cli(&["store", "verify", "--output", "json"]);
    assert_eq!((sound.code, &sound.json()["items"]), (0, &json!(1_500)), "{sound:?}");
    drop(reader);
}

/// The lines of an export with this many own-time items, whose bodies do not compress.
fn written(items: u64) -> String {
    let first = json!({
        "kind": "store", "format": "tidegate-store", "version": 1, "export": format!("{:032x}", 7),
        "store": format!("{:016x}", 9), "next_number": items + 1, "clock": 0, "items": items,
    });
    let mut lines = format!("{first}\n");
    let mut state = 1_u64;
    for number in 1..=items {
        let mut body = String::new();
        while body.len() < 2_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            body.push_str(&format!("{:016x}", state ^ (state >> 29)));
        }
        let item = json!({
            "kind": "item", "state": "waiting", "application": "shop", "number": number, "own_time": true,
            "due": 1_900_000_000_000_u64 + number, "received": 1, "weight": 2_100, "properties": "AAA=", "body": body,
        });
        lines.push_str(&format!("{item}\n"));
    }
    lines + &format!("{}\n", json!({ "kind": "end", "lines": items + 1, "items": items }))
}

#[test]
fn an_import_that_was_cut_keeps_a_daemon_from_starting_until_it_is_begun_anew() {
    let site = Site::new("backup-cut");
    let (file, restored) = (site.dir.join("export.ndjson"), site.dir.join("restored"));
    let path = restored.to_string_lossy().into_owned();
    let whole = written(3_000);
    let (cut, _) = whole.split_at(whole.len() / 2);
    fs::write(&file, cut).expect("half an export");
    let told = store(&["import", &path], &file);
    assert!(told.code == 3 && told.err.contains("the export is incomplete"), "{told:?}");
    let refused = "was interrupted, and what is in it is incomplete";
    let mut daemon = Daemon::start(&config(&site).text("store.path", &path), &site.dir);
    assert_eq!(daemon.exit(Duration::from_secs(20)).code(), Some(78), "{}", daemon.log_tail());
    assert!(daemon.log().contains(refused), "{}", daemon.log_tail());
    fs::write(&file, &whole).expect("an export");
    for command in ["import", "verify", "export"] {
        let told = store(&[command, &path], &file);
        assert!(told.code == 1 && told.err.contains(refused), "{told:?}");
        assert!(told.err.contains(&path) && told.out.is_empty(), "{told:?}");
    }
    fs::remove_dir_all(&restored).expect("it goes");
    assert_eq!(store(&["import", &path], &file).code, 0);
    daemon.start_again();
    daemon.wait_ready();
    daemon.holds("waiting", 3_000);
}

#[test]
fn an_import_that_fills_the_disk_is_begun_anew_when_there_is_room() {
    bounded(Duration::from_secs(180));
    let Some(disk) = Disk::mount(192) else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("export.ndjson");
    fs::write(&file, written(20_000)).expect("an export");
    let filler = disk.path().join("other");
    fs::write(&filler, vec![1; 168 << 20]).expect("most of the room");
    let path = disk.path().join("store").to_string_lossy().into_owned();
    let told = store(&["import", &path], &file);
    assert_eq!(told.code, 1, "{told:?}");
    assert!(told.err.contains("the disk is full"), "{}", told.err);
    fs::remove_file(&filler).expect("room");
    let told = store(&["import", &path], &file);
    assert!(told.code == 1 && told.err.contains("remove the directory"), "{told:?}");
    fs::remove_dir_all(&path).expect("it goes");
    let told = store(&["import", &path, "--output", "json"], &file);
    assert_eq!((told.code, told.err.as_str()), (0, ""), "{told:?}");
    let sound = store(&["verify", &path, "--output", "json"], &file);
    assert_eq!((sound.code, &sound.json()["items"]), (0, &json!(20_000)), "{sound:?}");
    let again = store(&["export", &path], &file);
    assert_eq!(of_kind(&body(&again.out), "item").len(), 20_000);
}

/// The document of `store verify` for a directory whose rows are all sound.
fn sound(path: &str, input: &Path) -> Value {
    let told = store(&["verify", path, "--output", "json"], input);
    assert_eq!((told.code, told.err.as_str()), (0, ""), "{told:?}");
    told.json()
}

#[test]
fn a_store_goes_into_several_shards_and_is_made_one_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
    let file = dir.path().join("export.ndjson");
    let brought = |name: &str, text: &str| {
        fs::write(&file, text).expect("an export");
        let told = store(&["import", &path(name), "--output", "json"], &file);
        assert_eq!((told.code, told.err.as_str()), (0, ""), "{told:?}");
        assert_eq!(told.json()["items"], 200);
    };
    let exported = |name: &str| {
        let told = store(&["export", &path(name)], &file);
        assert_eq!((told.code, told.err.as_str()), (0, ""), "{told:?}");
        told.out
    };
    // By application and number: what is in the items, and not where they are.
    let items = |text: &str| {
        let lines = body(text);
        let mut items: Vec<Value> = of_kind(&lines, "item").into_iter().cloned().collect();
        for item in &mut items {
            let members = item.as_object_mut().expect("an object");
            for place in ["number", "identity", "fingerprint", "properties"] {
                members.remove(place);
            }
        }
        items.sort_by_key(|item| item["due"].as_u64());
        items
    };
    let applications = |line: &str| {
        let mut line: Value = serde_json::from_str(line).expect("JSON");
        if let Some(number) = line["number"].as_u64() {
            line["application"] = format!("app-{}", number % 9).into();
        }
        format!("{line}\n")
    };
    brought("one", &written(200).lines().map(applications).collect::<String>());
    let one = exported("one");

    let four = dir.path().join("four");
    divided(&four, 4);
    brought("four", &one);
    let whole = sound(&path("four"), &file);
    assert_eq!(
        (&whole["result"], &whole["count"], &whole["faults"]),
        (&json!("sound"), &json!(4), &json!(0))
    );
    let shards = whole["shards"].as_array().expect("all shards");
    assert_eq!(shards.iter().filter_map(|shard| shard["items"].as_u64()).sum::<u64>(), 200);
    for (number, shard) in shards.iter().enumerate() {
        assert_eq!(shard["shard"], number);
        let alone = sound(&path(&format!("four/shard-{number}")), &file);
        assert_eq!((&alone["store"], &alone["items"]), (&shard["store"], &shard["items"]));
        for item in items(&exported(&format!("four/shard-{number}"))) {
            let home = tidegate_wire::home(item["application"].as_str().unwrap_or_default(), 4);
            assert_eq!(usize::from(home), number, "{item}");
        }
    }
    let told = store(&["verify", &path("four")], &file);
    assert!(told.code == 0 && told.out.contains("damaged rows of all  0"), "{told:?}");
    let told = store(&["compact", &path("four"), "--output", "json"], &file);
    assert_eq!((told.code, told.json()["shards"][3]["shard"].as_u64()), (0, Some(3)), "{told:?}");
    let joined = exported("four");
    let first: Value = serde_json::from_str(joined.lines().next().expect("a first line")).expect("JSON");
    assert_eq!((&first["shards"], &first["items"]), (&json!(4), &json!(200)));
    assert_eq!(items(&joined), items(&one));
    brought("again", &joined);
    assert_eq!(items(&exported("again")), items(&one));
    assert_eq!(sound(&path("again"), &file)["items"], 200);

    // What is there is not written over, and what is not there is named.
    let whole = store(&["import", &path("four")], &file);
    assert!(whole.code == 1 && whole.err.contains("contains a store already"), "{whole:?}");
    fs::remove_dir_all(four.join("shard-2")).expect("it goes");
    let lost = store(&["export", &path("four")], &file);
    assert!(lost.code == 1 && lost.out.is_empty(), "{lost:?}");
    assert!(lost.err.contains("shard 2: there is no store in"), "{}", lost.err);
    fs::write(four.join("SHARDS"), "tidegate-shards 2\n").expect("another text");
    for command in ["verify", "export", "compact", "import"] {
        let told = store(&[command, &path("four")], &file);
        assert!(told.code == 1 && told.err.contains("four/SHARDS: it is not one line"), "{told:?}");
    }
}

/// Excluded: a command that opens all stores under the limit that it was started with.
#[test]
fn more_stores_than_files_may_be_open_are_imported_and_exported() {
    let dir = tempfile::tempdir().expect("a directory");
    let (file, eight) = (dir.path().join("export.ndjson"), dir.path().join("eight"));
    let path = eight.to_string_lossy().into_owned();
    // The home of an item depends on its application, and it keeps its id over several stores.
    let named = |(at, line): (usize, &str)| {
        let id = format!("{{\"id\":\"id {at}\",");
        format!("{}\n", if line.contains("own_time") { line.replacen('{', &id, 1) } else { line.to_owned() })
    };
    fs::write(&file, written(20).lines().enumerate().map(named).collect::<String>()).expect("an export");
    divided(&eight, 8);
    // Each open store has three files open, or more.
    let limited = |command: &str| {
        let mut shell = Command::new("sh");
        shell.args(["-c", "ulimit -S -n 20 && exec \"$@\"", "sh"]).arg(binary());
        store_by(&mut shell, &[command, &path], &file)
    };
    let [imported, exported] = ["import", "export"].map(limited);
    for told in [&imported, &exported] {
        assert_eq!((told.code, told.err.as_str()), (0, ""), "{told:?}");
    }
    assert_eq!(of_kind(&body(&exported.out), "item").len(), 20);
}
