//! `status`: the state document of the running daemon, as a table or unchanged.

use super::args::Output;
use super::client::{path, Client};
use super::commands::cell;
use super::health::names;
use super::output::{plain, Failure, Out};
use crate::admin::state::{unready, Application, Document};
use crate::admin::ShardLine;
use serde::Deserialize;
use serde_json::Value;
use std::time::Duration;
use tidegate_types::Reason;
use ureq::http::Method;

/// Runs the command.
///
/// # Errors
/// Failed if the daemon cannot be queried; partial if it is not ready.
pub(super) fn run(client: &Client, output: Output) -> Result<(), Failure> {
    let report = fetch(client)?;
    let mut out = Out::lock();
    match output {
        Output::Json => out.json(&report.raw)?,
        Output::Table => table(&report.document, &mut out)?,
    }
    match report.unready {
        None => Ok(()),
        Some(unready) => Err(Failure::Partial(format!("not ready: {}", plain(&unready)))),
    }
}

/// The daemon's answers.
#[derive(Debug)]
struct Report {
    /// The unchanged document, with keys that this version does not know.
    raw: Value,
    document: Document,
    /// Why the daemon is not ready.
    unready: Option<String>,
}

fn fetch(client: &Client) -> Result<Report, Failure> {
    // The probe comes first: its answer decides, and it arrives even when the daemon's loop is stuck.
    let (status, ready) = client.exchange(Method::GET, "/readyz")?;
    let unready = match (status, ready.get("ready")) {
        (200, Some(Value::Bool(true))) => None,
        (503, Some(Value::Bool(false))) => Some(unready(&names(&ready["missing"]), &names(&ready["stuck"]))),
        (403, _) => return Err(client.said(status, &ready)),
        _ => return Err(client.not_tidegate()),
    };
    let (status, raw) = client.exchange(Method::GET, &path(&["state"]))?;
    match status {
        200 => {
            let document = Document::deserialize(&raw).map_err(|_| client.not_tidegate())?;
            Ok(Report { raw, document, unready })
        }
        _ => Err(client.said(status, &raw)),
    }
}

fn table(d: &Document, out: &mut Out) -> Result<(), Failure> {
    out.table(&summary(d))?;
    let (named, dead_letters) = (&d.snapshot.applications, d.snapshot.dead_letters.as_ref());
    if !named.is_empty() || dead_letters.is_some() {
        out.line("")?;
        out.table(&applications(named, dead_letters))?;
    }
    if d.applications_truncated {
        out.line("(not all applications are shown)")?;
    }
    Ok(())
}

fn summary(d: &Document) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    let mut add = |key: &str, text: String| rows.push(vec![key.to_owned(), plain(&text).into_owned()]);
    add("tidegate", format!("{}, {}, up {}", d.version, d.state, span(d.uptime_ms)));
    let ready = if d.ready { "yes".to_owned() } else { format!("no: {}", unready(&d.missing, &d.stuck)) };
    add("ready", ready);
    for links in d.link_groups() {
        add(&links.first.side, links.text(": "));
    }
    if let Some(map) = &d.map {
        add("map", map.text());
    }
    let i = &d.snapshot.items;
    add(
        "items",
        format!(
            "{} waiting ({} due, {} in flight), {} parked, {} windows open",
            i.waiting, i.due, i.in_flight, i.parked, i.windows
        ),
    );
    if let Some(next) = i.next_due_at {
        let when = match next.checked_sub(d.at) {
            Some(ahead) => format!("in {}", span(ahead)),
            None => format!("{} ago", span(d.at - next)),
        };
        add("next due", format!("{} ({when})", super::moment(i64::try_from(next).unwrap_or(i64::MAX))));
    }
    if let Some(oldest) = i.oldest_due_at {
        add("oldest due", format!("{} ago", span(d.at.saturating_sub(oldest))));
    }
    let intake = if d.snapshot.intake_paused { "paused, " } else { "" };
    let t = &d.snapshot.totals;
    add(
        "intake",
        format!("{intake}{} received ({} redelivered), {} accepted", t.received, t.redelivered, t.accepted),
    );
    add("sent", format!("{} items in {} batches confirmed", t.confirmed, t.batches_confirmed));
    add(
        "failed",
        format!("{} returned, {} nacked, {} refused, {} unknown", t.returned, t.nacked, t.refused, t.unknown),
    );
    let dead = Reason::ALL.iter().zip(t.dead).filter(|(_, n)| *n > 0);
    let dead: Vec<_> = dead.map(|(reason, n)| format!("{n} {}", reason.as_str())).collect();
    add("dead", if dead.is_empty() { "0".to_owned() } else { dead.join(", ") });
    let l = &d.lateness;
    add(
        "lateness",
        format!(
            "p50 {}, p99 {}, p99.9 {}, max {} of {} items",
            ms(l.p50_us),
            ms(l.p99_us),
            ms(l.p999_us),
            ms(l.max_us),
            l.count
        ),
    );
    add("store", store(d));
    if !d.missing_shards.is_empty() {
        let missing: Vec<String> = d.missing_shards.iter().map(u16::to_string).collect();
        add("missing", format!("shard {}: nobody tells of its items", missing.join(", ")));
    }
    for line in &d.shards {
        add(&format!("shard {}", line.shard), shard(line));
    }
    rows
}

/// What is unknown or does not apply is left out.
fn shard(line: &ShardLine) -> String {
    let ShardLine { shard: _, state, owner, epoch, lease_ms, reason, life, queue, waiting } = line;
    let owner = owner.as_ref().map(|owner| format!("owner {owner}"));
    let epoch = epoch.map(|epoch| format!("epoch {epoch}"));
    let lease = lease_ms.map(|lease| format!("lease {lease} ms"));
    let rest = format!("queue {queue}  life {life}  {waiting} waiting");
    let parts = [Some(state.clone()), owner, epoch, lease, Some(rest), reason.clone()];
    parts.into_iter().flatten().collect::<Vec<_>>().join("  ")
}

fn store(d: &Document) -> String {
    let s = &d.store;
    let free = s.free_bytes.map_or(String::new(), |free| format!("{} free, ", bytes(free)));
    let lost: u64 = s.lives_ended.values().sum();
    let lost = if lost > 0 { format!(", lost {lost} times since the start") } else { String::new() };
    format!(
        "{}, {} used, {free}{} commits (last {} ms, longest {} ms), {} commits and reads queued{lost}",
        s.kind,
        bytes(s.bytes),
        s.commits,
        s.last_commit_ms,
        s.max_commit_ms,
        s.queue
    )
}

/// One line per application below a head.
pub(super) fn applications(all: &[Application], dead_letters: Option<&Application>) -> Vec<Vec<String>> {
    let head = ["APPLICATION", "STATE", "ITEMS", "DUE", "IN FLIGHT", "PARKED", "WINDOWS", "CONFIRMED", ""];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(all.iter().map(|a| application(&a.name, a)));
    rows.extend(dead_letters.into_iter().map(|a| application("(dead letters)", a)));
    rows
}

fn application(name: &str, a: &Application) -> Vec<String> {
    let mut state = a.state().to_owned();
    if a.paused {
        state = format!("{state}, {}", paused(a));
    }
    if let Some(rate) = &a.rate {
        let held = if a.held > 0 { format!(", {} held back", a.held) } else { String::new() };
        state = format!("{state}, {rate}{held}");
    }
    if a.paused_customers > 0 {
        state = format!("{state}, {} of its customers paused", a.paused_customers);
    }
    let mut row = vec![plain(name).into_owned(), plain(&state).into_owned()];
    row.extend([a.total, a.due, a.in_flight, a.parked, a.windows, a.confirmed].map(|n| n.to_string()));
    if let Some(parked) = a.parked_since() {
        row.push(format!("{}; next try in {}", plain(parked.last_error), span(parked.next_try_in_ms)));
    }
    row
}

/// The pause of an application in words.
fn paused(a: &Application) -> String {
    match a.paused_until {
        Some(until) => format!("paused until {}", cell("at", &Value::from(until))),
        None => "paused".to_owned(),
    }
}

/// A duration in its two largest units.
pub(super) fn span(ms: u64) -> String {
    if ms < 10_000 {
        return format!("{}.{} s", ms / 1_000, ms % 1_000 / 100);
    }
    let text = humantime::format_duration(Duration::from_secs(ms / 1_000)).to_string();
    text.split(' ').take(2).collect::<Vec<_>>().join(" ")
}

/// Microseconds as milliseconds.
pub(super) fn ms(us: u64) -> String {
    format!("{}.{} ms", us / 1_000, us % 1_000 / 100)
}

/// A size in the largest unit that keeps it above 1.
pub(super) fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = n as f64;
    let mut unit = 0;
    while value >= 1_024.0 && unit < UNITS.len() - 1 {
        value /= 1_024.0;
        unit += 1;
    }
    if unit == 0 {
        format!("{n} B")
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::super::client::tests::{running, Daemon};
    use super::*;
    use crate::admin::state::tests::{example, with_map};
    use crate::admin::{Latch, LinkState, NodeHealth, Query};
    use std::sync::Arc;
    use tidegate_config::Config;

    fn daemon(token: Option<&str>) -> (Daemon, Config) {
        let ask = Arc::new(|query| match query {
            Query::State(_, reply) => drop(reply.send(example())),
            Query::Letters(..) | Query::Export(_) => panic!("neither was asked for"),
            Query::Command(..) => {}
        });
        running(token, ask)
    }

    #[test]
    fn a_daemon_tells_its_state_ready_or_not() {
        for token in [None, Some("canary")] {
            let (daemon, config) = daemon(token);
            let report = fetch(&Client::new(&config.admin).unwrap()).unwrap();
            assert_eq!(report.unready.as_deref(), Some("store, ingest, egress, topology, consumer missing"));
            assert_eq!(report.document.state, "not_ready");
            Latch::ALL.into_iter().for_each(|latch| {
                daemon.readiness.set(latch, true);
            });
            let report = fetch(&Client::new(&config.admin).unwrap()).unwrap();
            assert_eq!(report.unready, None);
            assert_eq!(report.raw["state"], "running");
            assert_eq!(report.document.snapshot.items.waiting, 40);
        }
    }

    #[test]
    fn a_wrong_token_and_a_dead_daemon_are_told_apart() {
        let (daemon, mut config) = daemon(Some("canary"));
        config.admin.token = None;
        let failure = fetch(&Client::new(&config.admin).unwrap()).unwrap_err();
        assert_eq!(failure.exit_code(), 1);
        assert!(failure.text().contains("token"), "{failure:?}");
        daemon.stop();
        let failure = fetch(&Client::new(&config.admin).unwrap()).unwrap_err();
        assert_eq!(failure.exit_code(), 1);
        assert!(failure.text().contains("no daemon answers at http://127.0.0.1:"), "{failure:?}");
    }

    #[test]
    fn the_summary_says_what_an_operator_asks() {
        let mut input = example();
        input.snapshot.totals.dead[0] = 2;
        let rows = summary(&Document::new(&input, &NodeHealth::ready_but(&["egress"])));
        let row = |key: &str| rows.iter().find(|r| r[0] == key).map(|r| r[1].as_str());
        assert_eq!(row("tidegate"), Some("0.0.0-test, not_ready, up 2h"));
        assert_eq!(row("ready"), Some("no: egress missing"));
        assert_eq!(row("ingest"), Some("connected: 127.0.0.1:5672"));
        assert_eq!(row("next due"), Some("2027-01-15T08:00:01Z (in 1.0 s)"));
        assert_eq!(row("dead"), Some("2 invalid, 7 expired"));
        let owned = "not_ready  owner machine/name  epoch 3  lease 8000 ms  ";
        let served = "queue tidegate.ingest  life 2  40 waiting";
        assert_eq!(row("shard 0"), Some(&*format!("{owned}{served}")));
        let memory =
            ShardLine { state: "running".into(), queue: "q".into(), life: 1, ..ShardLine::default() };
        assert_eq!(super::shard(&memory), "running  queue q  life 1  0 waiting");
        let free = ShardLine { state: "waiting".into(), reason: Some("no such table".into()), ..memory };
        assert_eq!(super::shard(&free), "waiting  queue q  life 1  0 waiting  no such table");
        assert_eq!(row("lateness"), Some("p50 0.4 ms, p99 0.9 ms, p99.9 0.9 ms, max 1.0 ms of 5 items"));
    }

    #[test]
    fn the_connections_of_several_shards_are_counted() {
        let mut input = example();
        let link = |side: &str, state: &str, detail: &str| LinkState {
            side: side.to_owned(),
            state: state.to_owned(),
            detail: detail.to_owned(),
            notes: if detail.is_empty() { vec!["no more requests are taken".to_owned()] } else { vec![] },
        };
        input.links = vec![
            link("ingest", "connected", "127.0.0.1:5672"),
            link("egress", "connected", "127.0.0.1:5672"),
            link("ingest", "down", "refused"),
            link("egress", "connected", "127.0.0.1:5672"),
            link("ingest", "down", "reset"),
            link("egress", "connected", "127.0.0.1:5672"),
            link("ingest", "paused", ""),
            link("egress", "connected", "127.0.0.1:5672"),
        ];
        let rows = summary(&Document::new(&input, &NodeHealth::ready_but(&[])));
        let of = |key: &str| -> Vec<&str> {
            rows.iter().filter(|row| row[0] == key).map(|row| row[1].as_str()).collect()
        };
        let ingest = [
            "connected (1 of 4): 127.0.0.1:5672",
            "down (2 of 4): refused",
            "paused (1 of 4): no more requests are taken",
        ];
        assert_eq!(of("ingest"), ingest);
        assert_eq!(of("egress"), ["connected (4 of 4): 127.0.0.1:5672"]);
    }

    #[test]
    fn the_map_has_a_line_with_several_shards_only() {
        let lines = |input| -> Vec<String> {
            let rows = summary(&Document::new(&input, &NodeHealth::ready_but(&[])));
            rows.into_iter().filter(|row| row[0] == "map").map(|row| row[1].clone()).collect()
        };
        assert_eq!(lines(example()), [""; 0]);
        let map = "forwarded: 40 by the sharder, 3 by shards; bindings: 5 made, 2 corrected, 1 failed";
        assert_eq!(lines(with_map()), [map]);
    }

    #[test]
    fn parked_applications_say_why_and_until_when() {
        let mut input = example();
        input.snapshot.applications[0].name = "m\u{1b}[2J".into();
        let document = Document::new(&input, &NodeHealth::ready_but(&[]));
        let rows = applications(&document.snapshot.applications, document.snapshot.dead_letters.as_ref());
        assert_eq!(rows[1][0], "m\\u{1b}[2J");
        assert_eq!(rows[2].last().map(String::as_str), Some("NO_ROUTE; next try in 1.5 s"));
        assert_eq!(rows[3][0], "(dead letters)");
    }

    #[test]
    fn an_overdue_item_is_told_as_past() {
        let mut input = example();
        input.snapshot.items.next_due_at = Some(input.at - 90_000);
        let rows = summary(&Document::new(&input, &NodeHealth::ready_but(&[])));
        assert!(rows.iter().any(|r| r[1].ends_with("(1m 30s ago)")), "{rows:?}");
    }

    #[test]
    fn numbers_for_people() {
        assert_eq!(
            (span(0), span(9_999), span(90_061_000)),
            ("0.0 s".into(), "9.9 s".into(), "1day 1h".into())
        );
        assert_eq!(
            (bytes(1_023), bytes(1_536), bytes(u64::MAX)),
            ("1023 B".into(), "1.5 KiB".into(), "16777216.0 TiB".into())
        );
    }
}
