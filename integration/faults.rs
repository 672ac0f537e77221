//! The table of faults, against the built binary and a real broker.
//!
//! Without arguments the quick rows run. `--all` runs every row, `--long` uses a million items where the
//! number matters, `--seed N` repeats the random moments of an earlier run. Numbers select rows; so do titles
//! with `--exact`. The program ends with a table and, as libtest does, with the titles of the failed rows;
//! the exit code is 0 only if every row passes.
#![expect(unreachable_pub, reason = "modules of a program: `pub` says what the others use")]
#![expect(clippy::print_stdout, reason = "a program whose result is a table")]

#[path = "faults/backlog.rs"]
mod backlog;
#[path = "faults/broker.rs"]
mod broker;
#[path = "faults/clock.rs"]
mod clock;
#[path = "faults/disk.rs"]
mod disk;
#[path = "faults/kill.rs"]
mod kill;
#[path = "faults/life.rs"]
mod life;
#[path = "faults/network.rs"]
mod network;
#[path = "faults/nodes.rs"]
mod nodes;
#[path = "faults/scene.rs"]
mod scene;
#[path = "faults/shards.rs"]
mod shards;
#[path = "faults/turns.rs"]
mod turns;

use scene::{Context, Fault, Row};
use std::process::ExitCode;
use std::time::Instant;
use tidegate_harness::{external_uri, run_guarded, skip, Node};

const fn fault(number: u32, name: &'static str, quick: bool, run: fn(&Context) -> Row) -> Fault {
    Fault { number, name, quick, run }
}

const FAULTS: &[Fault] = &[
    fault(1, "kill -9 before the commit", false, kill::before_commit),
    fault(2, "kill -9 after the commit", false, kill::after_commit),
    fault(3, "kill -9 after the ack", false, kill::after_ack),
    fault(4, "kill -9 before a publish", false, kill::before_publish),
    fault(5, "kill -9 after a publish", false, kill::after_publish),
    fault(6, "kill -9 after a confirm", false, kill::after_confirm),
    fault(7, "kill -9 at random moments", true, kill::random),
    fault(7, "kill -9, the store in memory", true, kill::random_in_memory),
    fault(9, "a full queue that nacks", false, broker::overflow),
    fault(10, "the binding deleted under load", false, broker::unbound),
    fault(11, "the exchange deleted under load", true, broker::exchange_deleted),
    fault(12, "access refused, then the login", false, broker::refused),
    fault(13, "connections cut by RST and FIN", true, network::cut),
    fault(14, "confirms that never come", true, network::stalled),
    fault(15, "the broker restarted and killed", true, broker::restarted),
    fault(16, "the memory alarm", false, broker::alarm),
    fault(23, "a second process on the store", true, life::second_process),
    fault(24, "the clock steps an hour ahead", true, clock::forward),
    fault(25, "the clock steps an hour back", true, clock::backward),
    fault(25, "the process is frozen for seconds", true, clock::frozen),
    fault(27, "the same request 2 to 5 times", true, life::same_request),
    fault(28, "the consumer timeout", false, broker::consumer_timeout),
    fault(29, "the ingest queue deleted", false, broker::queue_deleted),
    fault(31, "a link of 10 kB/s", false, network::slow),
    fault(32, "a handshake that never ends", true, network::silent),
    fault(34, "a backlog due in one second", false, backlog::one_second),
    fault(35, "a backlog overdue at the start", false, backlog::overdue),
    fault(36, "SIGTERM under load, once and twice", true, life::terminated),
    fault(36, "SIGTERM while a backlog leaves", false, backlog::terminated),
    fault(37, "SIGHUP, bad and good", true, life::reloaded),
    fault(41, "a panic in any thread", false, kill::panics),
    fault(42, "no room on the disk at all", true, disk::full_for_all),
    fault(42, "no room on the disk for a flush", true, disk::full_for_a_flush),
    fault(50, "much of one customer", false, turns::one_customer),
    fault(51, "an application for each item", false, turns::many_applications),
    fault(52, "all due in one millisecond", false, turns::one_millisecond),
    fault(53, "windows that close together", false, turns::windows_together),
    fault(54, "many applications parked", false, turns::many_parked),
    fault(55, "envelopes of 10,000 entries", false, turns::envelopes),
    fault(56, "a customer's items cancelled", false, turns::cancel_of_many),
    fault(57, "the oldest dropped for each new one", false, turns::drops_oldest),
    fault(58, "looks over items of 4 MiB", false, turns::looks_over_large_bodies),
    fault(60, "two daemons, kill -9 at random moments", true, nodes::killed),
    fault(61, "two daemons, kill -9 at named places", false, nodes::killed_at_points),
    fault(62, "two daemons, the owner frozen", true, nodes::frozen),
    fault(63, "two daemons, frozen at named places", false, nodes::frozen_at_points),
    fault(64, "the owner cut from the database", true, nodes::cut_from_database),
    fault(65, "the owner cut from the broker", false, nodes::cut_from_broker),
    fault(66, "the owner cut from both", false, nodes::cut_from_both),
    fault(67, "the database restarted under two", true, nodes::database_restarted),
    fault(68, "the database down for a minute", false, nodes::database_down),
    fault(69, "failover to a synchronous replica", false, nodes::failover),
    fault(70, "the database's disk full", false, nodes::disk_full),
    fault(71, "a transaction that holds old rows", false, nodes::held_snapshot),
    fault(72, "a clock an hour off at the spare", false, nodes::clocks_apart),
    fault(73, "another format of the tables", false, nodes::other_format),
    fault(74, "a request that kills two daemons", false, nodes::poisoned),
    fault(80, "kill -9 after a forward, four shards", false, shards::after_forward),
    fault(81, "second copies of a forward", false, shards::second_copies),
];

#[derive(Default)]
struct Asked {
    all: bool,
    long: bool,
    seed: Option<u64>,
    numbers: Vec<u32>,
    /// The arguments are titles.
    exact: bool,
    titles: Vec<String>,
    /// Arguments for other tests: `cargo test NAME` passes its filter to every test binary.
    foreign: bool,
}

fn asked() -> Asked {
    let mut asked = Asked::default();
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--all" => asked.all = true,
            "--exact" => asked.exact = true,
            "--long" => asked.long = true,
            "--seed" => asked.seed = arguments.next().and_then(|n| n.parse().ok()),
            other if other.starts_with('-') => {}
            title if asked.exact => asked.titles.push(title.to_owned()),
            other => match other.parse() {
                Ok(number) => asked.numbers.push(number),
                Err(_) => asked.foreign = true,
            },
        }
    }
    asked
}

fn main() -> ExitCode {
    let asked = asked();
    let chosen: Vec<&Fault> = FAULTS
        .iter()
        .filter(|f| {
            if asked.exact {
                asked.titles.contains(&f.title())
            } else if asked.numbers.is_empty() {
                asked.all || f.quick
            } else {
                asked.numbers.contains(&f.number)
            }
        })
        .collect();
    if asked.foreign || chosen.is_empty() {
        return ExitCode::SUCCESS;
    }
    if external_uri().is_some() {
        skip("TIDEGATE_TEST_AMQP names a broker that the rows cannot control");
        return ExitCode::SUCCESS;
    }
    run_guarded(|| run(&asked, &chosen))
}

fn run(asked: &Asked, chosen: &[&Fault]) -> ExitCode {
    let seed = asked.seed.unwrap_or_else(tidegate_harness::seed);
    println!("faults: {} rows, seed {seed}", chosen.len());
    let failpoints = std::env::var_os("TIDEGATE_FAILPOINT_BIN").filter(|p| !p.is_empty()).map(Into::into);
    let context =
        Context { node: Node::start("", ""), seed, long: asked.long, quick: !asked.all, failpoints };
    let mut rows = Vec::new();
    for fault in chosen {
        let begun = Instant::now();
        let mut row = fault.judge(&context);
        let lacking = row.lacking.as_ref().map(|what| format!("needs {what}"));
        // With `--all`, a row that cannot run is a failure.
        row.wrong.extend(lacking.clone().filter(|_| asked.all));
        let verdict = match (&row.wrong[..], &lacking) {
            ([], None) => "ok",
            ([], Some(what)) => what,
            _ => "WRONG",
        };
        println!("{:>3} {} .. {verdict}, {:.1} s", fault.number, fault.name, begun.elapsed().as_secs_f64());
        for wrong in &row.wrong {
            println!("      {wrong}");
        }
        rows.push((fault, row));
    }
    table(&rows);
    let wrong = rows.iter().filter(|(_, row)| !row.wrong.is_empty()).count();
    println!("{wrong} of {} rows are wrong; seed {seed}", rows.len());
    tell_as_libtest(&rows);
    if wrong == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Same output as libtest, so that one parser reads all test programs.
fn tell_as_libtest(rows: &[(&&Fault, Row)]) {
    let wrong: Vec<_> = rows.iter().filter(|(_, row)| !row.wrong.is_empty()).collect();
    let ignored = rows.iter().filter(|(_, row)| row.wrong.is_empty() && row.lacking.is_some()).count();
    if !wrong.is_empty() {
        println!("\nfailures:\n");
        for (fault, row) in &wrong {
            println!("---- {} stdout ----\n{}\n", fault.title(), row.wrong.join("\n"));
        }
        println!("\nfailures:");
        wrong.iter().for_each(|(fault, _)| println!("    {}", fault.title()));
    }
    println!(
        "\ntest result: {}. {} passed; {} failed; {ignored} ignored; 0 measured; 0 filtered out",
        if wrong.is_empty() { "ok" } else { "FAILED" },
        rows.len() - wrong.len() - ignored,
        wrong.len(),
    );
}

fn table(rows: &[(&&Fault, Row)]) {
    println!();
    println!(
        "{:>3} {:<40} {:>6} {:>9} {:>5} {:>8} {:>6} {:>10} {:>10} {:>8}",
        "#", "fault", "times", "requests", "lost", "repeats", "early", "worst late", "recovery", "turn"
    );
    for (fault, row) in rows {
        let turn = row.longest_turn_us.map_or_else(|| "-".to_owned(), |us| format!("{} ms", us / 1000));
        let recovery = row.recovery_ms.map_or_else(|| "-".to_owned(), |ms| format!("{ms} ms"));
        let mark = match (&row.wrong[..], &row.lacking) {
            ([], None) => "",
            ([], Some(_)) => "  not run",
            _ => "  WRONG",
        };
        println!(
            "{:>3} {:<40} {:>6} {:>9} {:>5} {:>8} {:>6} {:>7} ms {:>10} {:>8}{mark}",
            fault.number,
            fault.name,
            row.injections,
            row.requests,
            row.lost,
            row.repeats,
            row.early,
            row.worst_ms,
            recovery,
            turn
        );
    }
}
