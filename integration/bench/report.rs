//! The result of a benchmark: a file with every figure, and Markdown tables for people.

use crate::book::{Case, Spread};
use crate::machine::Machine;
use crate::plan::Plan;
use crate::{backlog, bursts, database, kills, shards, sizes, steady, throughput};
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::path::Path;

/// The result of one run of the program.
#[derive(Debug, Serialize, Deserialize)]
pub struct Report {
    pub machine: Machine,
    pub plan: Plan,
    /// Duration of the run.
    pub seconds: u64,
    pub cases: Vec<Case>,
}

/// Name of a figure, title of its column, and number of decimals.
type Column = (&'static str, &'static str, usize);

/// A group, the title of its first column, and the other columns.
type Table = (&'static str, &'static str, &'static [Column]);

/// Ratios come first, because they are comparable between machines.
const TABLES: [Table; 9] = [
    (
        throughput::GROUP,
        "throughput",
        &[
            ("per_second", "messages/s", 0),
            ("cpu_us", "CPU a message, us", 1),
            ("broker_cpu_us", "the broker's, us", 1),
            ("rss_mib", "most memory, MiB", 0),
        ],
    ),
    (
        shards::GROUP,
        "shards",
        &[
            ("per_second", "messages/s", 0),
            ("cpu_us", "CPU a message, us", 1),
            ("broker_cpu_us", "the broker's, us", 1),
            ("daemon_cores", "cores of the daemon", 2),
            ("broker_cores", "of the broker", 2),
            ("load_cores", "of the load", 2),
            ("by_sharder", "through the sharder", 0),
            ("rss_mib", "most memory, MiB", 0),
        ],
    ),
    (
        database::GROUP,
        "store in a database",
        &[
            ("per_second", "messages/s", 0),
            ("cpu_us", "CPU a message, us", 1),
            ("commit_p50_ms", "commit p50, ms", 1),
            ("commit_p99_ms", "commit p99, ms", 1),
            ("rss_mib", "most memory, MiB", 0),
            ("takeover_p50_s", "takeover p50, s", 1),
            ("takeover_most_s", "longest, s", 1),
            ("repeats", "repeats", 0),
            ("lost", "lost", 0),
        ],
    ),
    (
        bursts::GROUP,
        "due together",
        &[("seconds", "delivered in, s", 2), ("bare_seconds", "bare publisher, s", 2)],
    ),
    (
        sizes::GROUP,
        "size of a message",
        &[
            ("per_second", "messages/s", 0),
            ("cpu_us", "CPU a message, us", 1),
            ("broker_cpu_us", "the broker's, us", 1),
        ],
    ),
    (
        steady::RATES,
        "steady rate, nothing else waiting",
        &[
            ("p50_ms", "late p50, ms", 1),
            ("p99_ms", "late p99, ms", 1),
            ("early", "early", 0),
            ("cpu_us", "CPU a message, us", 0),
            ("wakeups", "wake-ups a message", 1),
        ],
    ),
    (steady::TTL, "RabbitMQ's own way", &[("p50_ms", "late p50, ms", 1), ("p99_ms", "late p99, ms", 1)]),
    (
        backlog::GROUP,
        "backlog",
        &[
            ("p50_ms", "late p50, ms", 1),
            ("p99_ms", "late p99, ms", 1),
            ("early", "early", 0),
            ("cpu_us", "CPU a message, us", 0),
            ("rss_mib", "most memory, MiB", 0),
            ("start_ms", "start to first delivery, ms", 0),
            ("disk_bytes", "disk, B an item", 0),
        ],
    ),
    (
        kills::GROUP,
        "kills",
        &[
            ("seconds", "level after the last, s", 2),
            ("highest", "most behind", 0),
            ("repeats", "repeats", 0),
        ],
    ),
];

impl Report {
    pub fn group<'r>(&'r self, group: &'r str) -> impl Iterator<Item = &'r Case> {
        self.cases.iter().filter(move |case| case.group == group)
    }

    /// Number of runs without figures.
    pub fn failed(&self) -> usize {
        self.cases.iter().map(|case| case.failed.len()).sum()
    }

    /// Writes the report as JSON.
    pub fn write(&self, file: &Path) -> Result<(), String> {
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
        folder.map_or(Ok(()), std::fs::create_dir_all).map_err(|e| e.to_string())?;
        let text = serde_json::to_string_pretty(self).map_err(|e| e.to_string())?;
        std::fs::write(file, text + "\n").map_err(|e| format!("{}: {e}", file.display()))
    }

    /// Every table that has at least one row.
    pub fn tables(&self) -> String {
        let mut out = format!("{}\n\n{}, {} s\n", self.machine, self.plan, self.seconds);
        out.push_str("\nMedians, with the smallest and the largest of all rounds:\n");
        out.push_str(&self.ratios());
        for (group, head, columns) in TABLES {
            let heads = [head].into_iter().chain(columns.iter().map(|(_, head, _)| *head));
            let cells = |case: &Case| {
                let of = |(figure, _, decimals): &Column| told(case.spread(figure), *decimals);
                [case.title.clone()].into_iter().chain(columns.iter().map(of)).collect()
            };
            let table = markdown(heads.collect(), self.group(group).map(cells).collect());
            if !table.is_empty() {
                let _written = writeln!(out, "\n{}", self.heading(group, head));
            }
            out.push_str(&table);
            for limit in self.group(group).filter_map(|case| shards::limit(case, self.machine.cores)) {
                let _written = writeln!(out, "\n{limit}");
            }
        }
        for case in &self.cases {
            for wrong in &case.failed {
                let _written = writeln!(out, "\nFAILED: {}: {wrong}", case.title);
            }
        }
        out
    }

    /// What a table shows: its number of rounds, and the peers of its rows.
    fn heading(&self, group: &str, head: &str) -> String {
        let rounds = self.group(group).map(|case| case.runs.len()).max().unwrap_or(0);
        let mut peers: Vec<&str> = Vec::new();
        for peer in self.group(group).filter_map(|case| case.beside.as_deref()) {
            let title = self.title_of(peer);
            if !peers.contains(&title) {
                peers.push(title);
            }
        }
        let rounds = format!("{rounds} round{}", if rounds == 1 { "" } else { "s" });
        match peers.as_slice() {
            [] => format!("{head}: {rounds}, beside nothing"),
            peers => format!("{head}: {rounds}, in turn with {}", peers.join("; ")),
        }
    }

    /// The title of the case with this name, or the name of a peer that has no case of its own.
    fn title_of<'a>(&'a self, name: &'a str) -> &'a str {
        self.cases.iter().find(|case| case.name == name).map_or(name, |case| case.title.as_str())
    }

    fn ratios(&self) -> String {
        let rows = self.cases.iter().filter_map(|case| {
            let ratio = case.spread("ratio")?;
            let goal = case.goal.map_or(String::new(), |goal| format!("{goal:.2}"));
            let other = case.beside.as_deref().map_or("", |name| self.title_of(name)).to_owned();
            let cpu = told(case.spread("cpu_us"), 1);
            Some(vec![case.title.clone(), other, told(Some(ratio), 2), goal, cpu])
        });
        markdown(vec!["what", "beside", "ratio", "to reach", "CPU a message, us"], rows.collect())
    }
}

/// The median with its spread, or nothing.
fn told(spread: Option<Spread>, decimals: usize) -> String {
    let Some(Spread { median, low, high }) = spread else { return String::new() };
    let figure = |figure: f64| grouped(&format!("{figure:.decimals$}"));
    let (median, low, high) = (figure(median), figure(low), figure(high));
    if low == high {
        median
    } else {
        format!("{median} ({low} to {high})")
    }
}

/// An integer for a title.
pub fn told_whole(number: u64) -> String {
    grouped(&number.to_string())
}

/// Separates thousands by commas.
fn grouped(figure: &str) -> String {
    let (whole, rest) = figure.split_at(figure.find('.').unwrap_or(figure.len()));
    let mut out = String::new();
    for (at, digit) in whole.char_indices() {
        let left = whole.len() - at;
        if at > 0 && left.is_multiple_of(3) && !out.ends_with('-') {
            out.push(',');
        }
        out.push(digit);
    }
    out + rest
}

/// A table with columns of equal width; empty without rows.
fn markdown(heads: Vec<&str>, rows: Vec<Vec<String>>) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let width = |at: usize| {
        let cells = rows.iter().map(|row| row[at].chars().count());
        cells.chain([heads[at].chars().count(), 3]).max().unwrap_or(3)
    };
    let widths: Vec<usize> = (0..heads.len()).map(width).collect();
    let line = |cells: Vec<String>| {
        let padded = cells.iter().zip(&widths).map(|(cell, width)| format!(" {cell:<width$} |"));
        format!("|{}\n", padded.collect::<String>())
    };
    let rule = widths.iter().map(|width| format!(" {} |", "-".repeat(*width))).collect::<String>();
    let head = line(heads.into_iter().map(str::to_owned).collect());
    let body: String = rows.into_iter().map(line).collect();
    format!("\n{head}|{rule}\n{body}")
}
