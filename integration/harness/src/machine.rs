//! The load of the machine by other processes: a measured time means something only if the machine was mostly
//! idle.

use std::fs;

/// Use of the processors since this was created.
#[derive(Debug)]
pub struct Machine {
    idle: u64,
    all: u64,
}

/// Idle ticks of all processors so far, and all ticks.
fn ticks() -> (u64, u64) {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = text.lines().next().unwrap_or_default();
    let fields: Vec<u64> = line.split_whitespace().skip(1).filter_map(|field| field.parse().ok()).collect();
    // user nice system idle iowait irq softirq steal; guest time is part of user time.
    (fields.iter().skip(3).take(2).sum(), fields.iter().take(8).sum())
}

/// Processor time that a process has used so far, user and system, microseconds (in steps of 10 ms).
pub(crate) fn cpu_us(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("its statistics");
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks = |i: usize| fields.get(i).and_then(|f| f.parse::<u64>().ok()).unwrap_or(0);
    // utime and stime are the 14th and 15th field; two of them come before the closing bracket. Linux
    // exposes 100 ticks per second on every platform.
    (ticks(11) + ticks(12)) * 10_000
}

/// Processor time that this process has used so far, user and system, microseconds (in steps of 10 ms).
///
/// # Panics
/// If the system does not report it.
pub fn own_cpu_us() -> u64 {
    cpu_us(std::process::id())
}

impl Machine {
    /// Starts to observe the machine.
    pub fn watched() -> Machine {
        let (idle, all) = ticks();
        Machine { idle, all }
    }

    /// Whether the processors were idle for at least a third of the time; `false` without `/proc/stat`.
    pub fn had_time(&self) -> bool {
        let (idle, all) = ticks();
        let (idle, all) = (idle.saturating_sub(self.idle), all.saturating_sub(self.all));
        all > 0 && idle * 3 >= all
    }
}
