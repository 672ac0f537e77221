//! `make bench`: measures tidegate and its peers in one run on one machine.
//!
//! Absolute figures differ between machines; the ratios count. A case and its peer are measured alternately
//! over several rounds; the report gives the median of each figure with its minimum and maximum. `--help`
//! lists the options; `docs/PERFORMANCE.md` explains the figures.
#![expect(unreachable_pub, reason = "modules of a program: `pub` says what the others use")]
#![expect(clippy::print_stdout, reason = "a program for people to read")]
#![expect(clippy::print_stderr, reason = "a program for people to read")]

mod backlog;
mod book;
mod bursts;
mod chart;
mod database;
mod kills;
mod load;
mod machine;
mod options;
mod peers;
mod plan;
mod plots;
mod report;
mod shards;
mod sizes;
mod steady;
mod throughput;

use book::{Bench, Book};
use machine::Machine;
use options::{Asked, Options};
use report::Report;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;
use tidegate_harness::{binary, run_guarded, Node};

fn main() -> ExitCode {
    let options = match options::read(std::env::args().skip(1)) {
        Ok(Asked::Run(options)) => options,
        Ok(Asked::Help) => {
            println!("{}", options::help());
            return ExitCode::SUCCESS;
        }
        Err(wrong) => {
            eprintln!("{wrong}; --help tells what there is");
            return ExitCode::from(2);
        }
    };
    let report = match &options.draw {
        Some(file) => read(file),
        None => run_guarded(|| measure(&options)),
    };
    match report.and_then(|report| show(&report, &options).map(|()| report.failed())) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(failed) => {
            eprintln!("{failed} runs failed");
            ExitCode::FAILURE
        }
        Err(wrong) => {
            eprintln!("{wrong}");
            ExitCode::FAILURE
        }
    }
}

fn measure(options: &Options) -> Result<Report, String> {
    let daemon = binary();
    if !daemon.exists() {
        return Err(format!("{} is not there: build it, or name one by TIDEGATE_BIN", daemon.display()));
    }
    let begun = Instant::now();
    let bench = Bench { node: Node::start("", ""), plan: options.plan.clone(), names: options.names.clone() };
    let machine = Machine::of(&bench.node);
    println!("{machine}\n{}", bench.plan);
    let mut report = Report { machine, plan: bench.plan.clone(), seconds: 0, cases: Vec::new() };
    let mut book = Book::new(bench.plan.limit());
    let groups = [
        throughput::run,
        shards::run,
        database::run,
        sizes::run,
        steady::run,
        bursts::run,
        kills::run,
        backlog::run,
    ];
    for group in groups {
        group(&bench, &mut book);
        // Saved after each group, so a failure of the next one loses no results.
        report.cases = book.cases().to_vec();
        report.seconds = begun.elapsed().as_secs();
        report.write(&options.json)?;
    }
    Ok(report)
}

fn read(file: &Path) -> Result<Report, String> {
    let text = std::fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
    serde_json::from_str(&text).map_err(|e| format!("{}: {e}", file.display()))
}

fn show(report: &Report, options: &Options) -> Result<(), String> {
    println!("\n{}", report.tables());
    if options.draw.is_none() {
        println!("figures of every run: {}", options.json.display());
    }
    for plot in plots::draw(report, &options.plots)? {
        println!("plot: {}", plot.display());
    }
    Ok(())
}
