//! Measurements: cases, their runs, and the figures of each run.

use crate::plan::Plan;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tidegate_harness::{bounded, own_cpu_us, Daemon, Node};

/// Broker and plan, shared by all rows.
pub struct Bench {
    pub node: Node,
    pub plan: Plan,
    pub names: Vec<String>,
}

impl Bench {
    /// Whether this row was named, or no row was.
    pub fn wants(&self, name: &str) -> bool {
        self.names.is_empty() || self.names.iter().any(|n| n == name)
    }
}

/// The figures of one run by name; the name ends with the unit (`cpu_us`).
pub type Run = BTreeMap<String, f64>;

/// A run of these figures.
pub fn run<const N: usize>(figures: [(&str, f64); N]) -> Run {
    figures.into_iter().map(|(name, figure)| (name.to_owned(), figure)).collect()
}

/// Processor time of all that takes part, microseconds.
#[derive(Clone, Copy)]
pub struct Cpu {
    /// 0 without a daemon.
    pub daemon_us: u64,
    pub broker_us: u64,
    /// Of this program, which publishes and consumes.
    pub load_us: u64,
}

impl Cpu {
    /// Used so far.
    pub fn of(node: &Node, daemon: Option<&Daemon>) -> Cpu {
        let daemon_us = daemon.map_or(0, Daemon::cpu_us);
        Cpu { daemon_us, broker_us: node.cpu_us(), load_us: own_cpu_us() }
    }

    /// Used since this earlier moment.
    pub fn since(self, before: Cpu) -> Cpu {
        Cpu {
            daemon_us: self.daemon_us - before.daemon_us,
            broker_us: self.broker_us - before.broker_us,
            load_us: self.load_us - before.load_us,
        }
    }

    /// The number of cores that each has kept busy for this time; none of the daemon where there is none.
    pub fn cores(self, time: Duration) -> Run {
        let cores = |us: u64| us as f64 / 1e6 / time.as_secs_f64();
        let mut run = run([
            ("daemon_cores", cores(self.daemon_us)),
            ("broker_cores", cores(self.broker_us)),
            ("load_cores", cores(self.load_us)),
        ]);
        run.retain(|name, _| name != "daemon_cores" || self.daemon_us > 0);
        run
    }
}

/// One measured thing, with one run per round.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Case {
    /// The table it belongs to.
    pub group: String,
    /// Unique over all groups.
    pub name: String,
    /// Title for people.
    pub title: String,
    /// Coordinates on the axes of its group: `rate`, `waiting`, `size`, ..
    pub at: BTreeMap<String, u64>,
    /// The peer case: the reference of `ratio`.
    pub beside: Option<String>,
    /// The target of `ratio`.
    pub goal: Option<f64>,
    pub runs: Vec<Run>,
    /// Errors of the runs that gave no figures.
    pub failed: Vec<String>,
}

impl Case {
    pub fn new(group: &str, name: impl Into<String>, title: impl Into<String>) -> Case {
        Case { group: group.to_owned(), name: name.into(), title: title.into(), ..Case::default() }
    }

    pub fn at(mut self, axis: &str, place: u64) -> Case {
        self.at.insert(axis.to_owned(), place);
        self
    }

    pub fn beside(mut self, other: &str) -> Case {
        self.beside = Some(other.to_owned());
        self
    }

    /// Median, smallest and largest of one figure over the runs.
    pub fn spread(&self, figure: &str) -> Option<Spread> {
        let mut all: Vec<f64> = self.runs.iter().filter_map(|run| run.get(figure)).copied().collect();
        all.sort_by(f64::total_cmp);
        Some(Spread { median: *all.get(all.len() / 2)?, low: *all.first()?, high: *all.last()? })
    }
}

/// One figure over several runs.
#[derive(Clone, Copy, Debug)]
pub struct Spread {
    pub median: f64,
    pub low: f64,
    pub high: f64,
}

/// All cases, in the order in which they were first measured.
pub struct Book {
    cases: Vec<Case>,
    /// Time limit of one run.
    pub limit: Duration,
}

impl Book {
    pub fn new(limit: Duration) -> Book {
        Book { cases: Vec::new(), limit }
    }

    pub fn cases(&self) -> &[Case] {
        &self.cases
    }

    /// Makes one more run of this case. A panic is recorded as a failed run, and the other cases continue.
    pub fn measure(&mut self, case: Case, work: impl FnOnce() -> Run + Send) {
        let begun = Instant::now();
        let ended = guarded(&case.name, self.limit, work);
        let at = self.place(case);
        let took = begun.elapsed().as_secs_f64();
        match ended {
            Ok(mut run) => {
                self.share(at, &mut run);
                let told = run.iter().filter(|(name, _)| !name.contains("_of_"));
                let figures: Vec<String> = told.map(|(name, f)| format!("{name} {f:.2}")).collect();
                println!("{:<24} {} [{took:.1} s]", self.cases[at].name, figures.join("  "));
                self.cases[at].runs.push(run);
            }
            Err(wrong) => {
                println!("{:<24} FAILED: {wrong} [{took:.1} s]", self.cases[at].name);
                self.cases[at].failed.push(wrong);
            }
        }
    }

    /// Records a run that could not be made.
    pub fn fail(&mut self, case: Case, wrong: String) {
        println!("{:<24} FAILED: {wrong}", case.name);
        let at = self.place(case);
        self.cases[at].failed.push(wrong);
    }

    fn place(&mut self, case: Case) -> usize {
        self.cases.iter().position(|known| known.name == case.name).unwrap_or_else(|| {
            self.cases.push(case);
            self.cases.len() - 1
        })
    }

    /// The run's rate as a share of the peer's rate in the same round.
    fn share(&self, at: usize, run: &mut Run) {
        let Some(beside) = &self.cases[at].beside else { return };
        let other = self.cases.iter().find(|case| case.name == *beside).and_then(|case| case.runs.last());
        let rates = (run.get("per_second"), other.and_then(|other| other.get("per_second")));
        if let (Some(own), Some(other)) = rates {
            let ratio = own / other;
            run.insert("ratio".to_owned(), ratio);
        }
    }
}

/// Runs `work` within a time limit, in a thread whose name the harness prints if it hangs.
pub fn guarded<T: Send>(name: &str, limit: Duration, work: impl FnOnce() -> T + Send) -> Result<T, String> {
    let ended = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name(name.to_owned());
        let running = thread.spawn_scoped(scope, || {
            bounded(limit);
            work()
        });
        running.expect("a thread").join()
    });
    ended.map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("panicked");
        text.lines().next().unwrap_or_default().to_owned()
    })
}
