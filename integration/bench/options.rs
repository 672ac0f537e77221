//! The command line.

use crate::plan::Plan;
use crate::throughput;
use std::path::PathBuf;

/// Rows that can be named besides those of `throughput`.
const OTHERS: [(&str, &str); 9] = [
    ("shards", "1, 2, 4 and 8 shards: throughput, and which process limits it, beside bare drains"),
    ("database", "a store in PostgreSQL: beside one on the disk, at a steady rate, and kills of its owner"),
    ("sizes", "messages of 100 B to 100 kB, output queues of both kinds, beside two bridges"),
    ("rates", "what steady rates cost and how late the consumer sees them"),
    ("ttl", "the same rates by RabbitMQ's own way: TTL with dead-lettering"),
    ("millisecond", "many items due in one millisecond, beside a bare publisher"),
    ("second", "many items from the store due in one second, beside a bare publisher"),
    ("kills", "kill -9 every 2 s under load: until the backlog is level again"),
    ("waiting", "lateness, memory, start and disk over a growing backlog"),
];

/// Options of a run.
#[derive(Clone, Debug)]
pub struct Options {
    pub plan: Plan,
    /// Rows to run; empty: all.
    pub names: Vec<String>,
    pub json: PathBuf,
    pub plots: PathBuf,
    /// Results of an earlier run, to draw tables and plots from instead of measuring.
    pub draw: Option<PathBuf>,
}

/// The request of the command line.
pub enum Asked {
    Run(Box<Options>),
    Help,
}

/// An unknown option or row is an error, because a typing error could otherwise cost half an hour.
pub fn read(arguments: impl IntoIterator<Item = String>) -> Result<Asked, String> {
    let mut options = Options {
        plan: Plan::usual(),
        names: Vec::new(),
        json: PathBuf::from("target/bench/bench.json"),
        plots: PathBuf::from("target/bench/plots"),
        draw: None,
    };
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        let mut path = || arguments.next().map(PathBuf::from).ok_or(format!("{argument} needs a path"));
        match argument.as_str() {
            "--help" | "-h" => return Ok(Asked::Help),
            "--short" => options.plan = Plan::short(),
            "--long" => options.plan = Plan::long(),
            "--json" => options.json = path()?,
            "--plots" => options.plots = path()?,
            "--draw" => options.draw = Some(path()?),
            name if names().any(|(known, _)| known == name) => options.names.push(argument),
            other => return Err(format!("no such option or row: {other}")),
        }
    }
    Ok(Asked::Run(Box::new(options)))
}

fn names() -> impl Iterator<Item = (&'static str, &'static str)> {
    throughput::ROWS.iter().map(|row| (row.name, row.title)).chain(OTHERS)
}

pub fn help() -> String {
    let rows: String = names().map(|(name, what)| format!("  {name:<18} {what}\n")).collect();
    format!(
        "bench [OPTION ..] [ROW ..]\n\n\
         Measures tidegate beside what it can be compared with, on a private RabbitMQ node.\n\
         TIDEGATE_BIN names another binary than the one beside this program.\n\n\
         \x20 --short            within three minutes: few messages, one round\n\
         \x20 --long             a million messages a row, five rounds, ten million waiting\n\
         \x20 --json FILE        figures of every run (target/bench/bench.json)\n\
         \x20 --plots DIR        plots as SVG (target/bench/plots)\n\
         \x20 --draw FILE        measures nothing: tables and plots of an earlier run's figures\n\
         \x20 --help             this\n\n\
         Rows, all where none is named:\n\n{rows}"
    )
}
