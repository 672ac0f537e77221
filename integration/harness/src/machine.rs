//! How much of the machine others use: what is measured by the clock means something only where it has time.

use std::fs;

/// The machine's processors since this was made.
#[derive(Debug)]
pub struct Machine {
    idle: u64,
    all: u64,
}

/// Ticks so far in which the processors had nothing to do, and all of them.
fn ticks() -> (u64, u64) {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = text.lines().next().unwrap_or_default();
    let fields: Vec<u64> = line.split_whitespace().skip(1).filter_map(|field| field.parse().ok()).collect();
    // user nice system idle iowait irq softirq steal; what guests use is counted as user already.
    (fields.iter().skip(3).take(2).sum(), fields.iter().take(8).sum())
}

impl Machine {
    /// From now on.
    pub fn watched() -> Machine {
        let (idle, all) = ticks();
        Machine { idle, all }
    }

    /// Whether the processors have had nothing to do for a third of the time and more. `false` where `/proc/stat` does
    /// not tell.
    pub fn had_time(&self) -> bool {
        let (idle, all) = ticks();
        let (idle, all) = (idle.saturating_sub(self.idle), all.saturating_sub(self.all));
        all > 0 && idle * 3 >= all
    }
}
