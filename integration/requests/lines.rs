//! `tidegate push --ndjson`: many requests, one per line.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;
use tidegate_harness::{binary, wait_until, Daemon, Site, Told};

/// Runs the command with these lines as standard input.
fn push(daemon: &Daemon, arguments: &[&str], lines: &str) -> Told {
    let mut child = Command::new(binary())
        .arg("push")
        .args(arguments)
        .arg("--config")
        .arg(daemon.config_file())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command starts");
    let mut input = child.stdin.take().expect("its input");
    let lines = lines.to_owned();
    // The command ends at the first fault and reads no further.
    let writer = std::thread::spawn(move || drop(input.write_all(lines.as_bytes())));
    let output = child.wait_with_output().expect("the command's end");
    writer.join().expect("the lines");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Told { code: output.status.code().unwrap_or(-1), out: text(&output.stdout), err: text(&output.stderr) }
}

#[test]
fn a_line_is_a_request_and_the_same_lines_again_are_dropped() {
    let site = Site::new("lines");
    site.application("shop");
    site.application("mail");
    let daemon = Daemon::start(&site.config().text("defaults.window", "200ms"), &site.dir).ready();
    let line = |n: u32| format!("{{\"id\":\"{n}\",\"customer\":\"c{}\",\"payload\":{{\"n\":{n}}}}}\n", n % 7);
    let lines: String = (0..3_000).map(line).chain(["\n".into()]).collect();
    let told = push(&daemon, &["shop", "--ndjson", "--output", "json"], &lines);
    assert_eq!((told.code, told.err.as_str()), (0, ""), "{told:?}");
    assert_eq!((told.json()["count"].as_u64(), told.json()["made_up_ids"].as_u64()), (Some(3_000), Some(0)));
    let inbox = site.client.consume(&site.queue("shop"));
    let mut ids: Vec<u32> = inbox
        .items(3_000, Duration::from_secs(30))
        .iter()
        .map(|item| item.id.parse().expect("a number"))
        .collect();
    ids.sort_unstable();
    assert!(ids.into_iter().eq(0..3_000), "each of them once");

    let mail = "{\"application\":\"mail\",\"id\":\"last\",\"payload\":null}";
    let told = push(&daemon, &["shop", "--ndjson"], &format!("{lines}{mail}"));
    assert_eq!(told.code, 0, "{told:?}");
    assert!(told.out.contains("3001"), "{told:?}");
    let last = site.client.consume(&site.queue("mail")).items(1, Duration::from_secs(30)).remove(0);
    assert_eq!(last.id, "last");
    // The last line came after all others.
    assert_eq!(daemon.state()["totals"]["duplicates"]["keep"]["dropped"], 3_000, "{}", daemon.state());
}

/// Lines accept the same values as the envelope.
#[test]
fn integers_are_ids_and_applications() {
    let site = Site::new("lineints");
    site.application("7");
    let daemon = site.start(&site.config());
    let told = push(
        &daemon,
        &["shop", "--ndjson", "--output", "json"],
        "{\"application\":7,\"id\":-12345678901234567890123,\"payload\":1}\n{\"application\":7,\"id\":null,\"payload\":2}\n",
    );
    assert_eq!((told.code, told.json()["made_up_ids"].as_u64()), (0, Some(1)), "{told:?}");
    let items = site.client.consume(&site.queue("7")).items(2, Duration::from_secs(30));
    assert!(items.iter().any(|item| item.id == "-12345678901234567890123"), "{items:?}");
    let told = push(&daemon, &["shop", "--ndjson"], "{\"id\":1.5,\"payload\":1}\n");
    assert_eq!(told.code, 1, "{told:?}");
    assert!(told.err.contains("line 1: id must be text or an integer"), "{}", told.err);
}

#[test]
fn the_first_fault_ends_it_and_is_told_with_its_line() {
    let site = Site::new("faults");
    site.application("shop");
    let daemon = Daemon::start(&site.config(), &site.dir).ready();
    let good = "{\"id\":\"a\",\"payload\":1}\n{\"payload\":2}\n";
    for (fault, says) in [
        ("{\"payload\":3,\"delay_ms\":\"soon\"}", "line 3: "),
        ("{\"payload\":3,\"customr\":\"ann\"}", "customr"),
        ("{\"payload\":3", "line 3: "),
        ("not json", "line 3: it must be one JSON object"),
        ("[{\"payload\":3}]", "line 3: it must be one JSON object"),
        ("[3,4]", "line 3: it must be one JSON object"),
        ("\"payload\"", "line 3: it must be one JSON object"),
    ] {
        let told = push(&daemon, &["shop", "--ndjson"], &format!("{good}{fault}\n{good}"));
        assert_eq!(told.code, 1, "{told:?}");
        assert!(told.err.contains(says) && told.err.contains("2 of 2 published requests"), "{told:?}");
    }
    let told = push(&daemon, &["--ndjson"], good);
    assert!(told.code == 1 && told.err.contains("line 1: "), "nobody says which application: {told:?}");
    assert_eq!(push(&daemon, &["shop", "--ndjson", "--id", "x"], good).code, 2);
    assert_eq!(push(&daemon, &["--id", "x"], good).code, 2);
    assert_eq!(daemon.state()["totals"]["rejected"], 0, "{}", daemon.state());
}

#[test]
fn who_writes_slowly_hears_of_a_fault_before_the_next_line() {
    let site = Site::new("slow-lines");
    site.application("shop");
    let daemon = site.start(&site.config());
    // Without a binding, published messages are returned.
    site.client.unbind(&site.ingest_queue(), &site.ingest(), "");
    let mut child = Command::new(binary())
        .args(["push", "--ndjson", "shop", "--config"])
        .arg(daemon.config_file())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command starts");
    let mut input = child.stdin.take().expect("its input");
    input.write_all(b"{\"payload\":1}\n").expect("a line");
    // The input stays open without further lines.
    wait_until("the end of the command", Duration::from_secs(20), || {
        child.try_wait().expect("its status").is_some()
    });
    drop(input);
    let told = child.wait_with_output().expect("its end");
    let text = String::from_utf8_lossy(&told.stderr);
    assert!(told.status.code() == Some(1) && text.contains("line 1"), "{text}");
}
