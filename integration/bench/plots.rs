//! The plots, and what each shows of a report.

use crate::book::{Case, Spread};
use crate::chart::{Axis, Chart, Line, BLUE, ORANGE, RED, SKY};
use crate::report::{told_whole, Report};
use crate::{backlog, shards, sizes, steady, throughput};
use plotters::style::RGBColor;
use std::path::{Path, PathBuf};

const RATE: Axis = Axis { title: "requests a second", log: true };
const WAITING: Axis = Axis { title: "items waiting", log: true };
const LATE: Axis = Axis { title: "lateness at the consumer, ms", log: true };
const CPU: Axis = Axis { title: "CPU of the daemon a message, us", log: false };

/// Draws each plot that the report has figures for. Returns the files.
pub fn draw(report: &Report, folder: &Path) -> Result<Vec<PathBuf>, String> {
    let charts = [
        lateness_over_rate(report),
        lateness_over_delay(report),
        lateness_over_backlog(report),
        throughput_over_size(report),
        throughput_over_shards(report),
        memory_over_backlog(report),
        start_over_backlog(report),
        cpu_over_rate(report),
        cpu_over_backlog(report),
        cpu_over_customers(report),
    ];
    std::fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut files = Vec::new();
    for mut chart in charts {
        chart.lines.retain(|line| !line.points.is_empty());
        if chart.lines.is_empty() {
            continue;
        }
        let file = folder.join(chart.file).with_extension("svg");
        chart.draw(&file)?;
        files.push(file);
    }
    Ok(files)
}

/// One figure over an axis, for the cases that have a coordinate on it.
fn line<'c>(
    (name, colour): (&'static str, RGBColor),
    axis: &str,
    figure: &str,
    cases: impl Iterator<Item = &'c Case>,
) -> Line {
    let place = |case: &Case| Some((*case.at.get(axis)? as f64, case.spread(figure)?));
    let mut points: Vec<(f64, Spread)> = cases.filter_map(place).collect();
    points.sort_by(|one, other| one.0.total_cmp(&other.0));
    Line { name, colour, points }
}

fn lateness_over_rate(report: &Report) -> Chart {
    let by = |name, group, figure| line(name, "rate", figure, report.group(group));
    Chart {
        file: "lateness-over-rate",
        title: "Lateness over rate: delays of a second and more, mixed".to_owned(),
        x: RATE,
        y: LATE,
        lines: vec![
            by(("tidegate, median", BLUE), steady::RATES, "p50_ms"),
            by(("tidegate, 99 %", SKY), steady::RATES, "p99_ms"),
            by(("RabbitMQ TTL, median", RED), steady::TTL, "p50_ms"),
            by(("RabbitMQ TTL, 99 %", ORANGE), steady::TTL, "p99_ms"),
        ],
    }
}

/// At the highest rate that both were measured at.
fn lateness_over_delay(report: &Report) -> Chart {
    let rates = report.group(steady::TTL).filter_map(|case| case.at.get("rate"));
    let rate = rates.max().copied().unwrap_or(0);
    let by = |(name, colour), group| {
        let case = report.group(group).find(|case| case.at.get("rate") == Some(&rate));
        let classes = case.into_iter().flat_map(|case| {
            let figures = case.runs.first().into_iter().flat_map(|run| run.keys());
            figures.filter_map(move |figure| {
                let delay: f64 = figure.strip_prefix("p50_ms_of_")?.parse().ok()?;
                Some((delay / 1000.0, case.spread(figure)?))
            })
        });
        let mut points: Vec<(f64, Spread)> = classes.collect();
        points.sort_by(|one, other| one.0.total_cmp(&other.0));
        Line { name, colour, points }
    };
    Chart {
        file: "lateness-over-delay",
        title: format!("The head of the line: short delays among long ones, {} a second", told_whole(rate)),
        x: Axis { title: "delay that was asked for, s", log: false },
        y: Axis { title: "median lateness, ms", log: true },
        lines: vec![
            by(("tidegate", BLUE), steady::RATES),
            by(("RabbitMQ TTL with dead-lettering", RED), steady::TTL),
        ],
    }
}

/// The backlog's cases at the rate that every backlog size was measured with.
fn at_each(report: &Report) -> impl Iterator<Item = &Case> {
    let rate = report.plan.waiting_rate;
    report.group(backlog::GROUP).filter(move |case| case.at.get("rate") == Some(&rate))
}

fn lateness_over_backlog(report: &Report) -> Chart {
    let rate = report.plan.waiting_rate;
    let own = |name, figure| line(name, "waiting", figure, at_each(report));
    let ttl = |name, figure| line(name, "waiting", figure, report.group(steady::TTL));
    Chart {
        file: "lateness-over-backlog",
        title: format!("Lateness over backlog: {} requests a second beside what waits", told_whole(rate)),
        x: WAITING,
        y: LATE,
        lines: vec![
            own(("tidegate, median", BLUE), "p50_ms"),
            own(("tidegate, 99 %", SKY), "p99_ms"),
            ttl(("RabbitMQ TTL, median", RED), "p50_ms"),
            ttl(("RabbitMQ TTL, 99 %", ORANGE), "p99_ms"),
        ],
    }
}

fn throughput_over_size(report: &Report) -> Chart {
    let by = |name, who: &str| {
        let who = format!("{who}-");
        let cases = report.group(sizes::GROUP).filter(move |case| case.name.starts_with(&who));
        line(name, "size", "per_second", cases)
    };
    Chart {
        file: "throughput-over-size",
        title: "Throughput over size: due at once, from a quorum queue into one of each kind".to_owned(),
        x: Axis { title: "bytes of a message", log: true },
        y: Axis { title: "messages a second", log: true },
        lines: vec![
            by(("tidegate, classic", BLUE), "tidegate-classic"),
            by(("bridge, classic", RED), "bridge-classic"),
            by(("tidegate, quorum", SKY), "tidegate-quorum"),
            by(("bridge, quorum", ORANGE), "bridge-quorum"),
        ],
    }
}

fn throughput_over_shards(report: &Report) -> Chart {
    let by = |name, figure| line(name, figure, "per_second", report.group(shards::GROUP));
    Chart {
        file: "throughput-over-shards",
        title: "Throughput over shards: windowed batches, on one machine with broker and load".to_owned(),
        x: Axis { title: "shards", log: true },
        y: Axis { title: "messages a second", log: false },
        lines: vec![
            by(("full queues", BLUE), "full"),
            by(("while producers publish", SKY), "live"),
            by(("a bare drain of as many queues", RED), "queues"),
        ],
    }
}

fn memory_over_backlog(report: &Report) -> Chart {
    let by = |name, figure| line(name, "waiting", figure, at_each(report));
    Chart {
        file: "memory-over-backlog",
        title: "Memory over backlog".to_owned(),
        x: WAITING,
        y: Axis { title: "resident memory, MiB", log: false },
        lines: vec![by(("after a start", SKY), "idle_mib"), by(("most under load", BLUE), "rss_mib")],
    }
}

fn start_over_backlog(report: &Report) -> Chart {
    Chart {
        file: "start-over-backlog",
        title: "Start-up over backlog: from kill -9 and a start to the first delivery".to_owned(),
        x: WAITING,
        y: Axis { title: "milliseconds", log: false },
        lines: vec![line(("tidegate", BLUE), "waiting", "start_ms", at_each(report))],
    }
}

fn cpu_over_rate(report: &Report) -> Chart {
    Chart {
        file: "cpu-over-rate",
        title: "CPU a message over rate".to_owned(),
        x: RATE,
        y: CPU,
        lines: vec![line(("tidegate", BLUE), "rate", "cpu_us", report.group(steady::RATES))],
    }
}

fn cpu_over_backlog(report: &Report) -> Chart {
    let rate = report.plan.waiting_rate;
    Chart {
        file: "cpu-over-backlog",
        title: format!("CPU a message over backlog, {} requests a second", told_whole(rate)),
        x: WAITING,
        y: CPU,
        lines: vec![line(("tidegate", BLUE), "waiting", "cpu_us", at_each(report))],
    }
}

fn cpu_over_customers(report: &Report) -> Chart {
    let cases = report.group(throughput::GROUP);
    Chart {
        file: "cpu-over-customers",
        title: "CPU a message over customers: windowed batches, as fast as it goes".to_owned(),
        x: Axis { title: "customers", log: true },
        y: CPU,
        lines: vec![line(("tidegate", BLUE), "customers", "cpu_us", cases)],
    }
}
