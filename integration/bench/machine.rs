//! The machine and the time of a run: without them the figures mean little.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs;
use std::process::Command;
use tidegate_harness::{binary, now_ms, Node};

/// Facts that the figures depend on.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Machine {
    /// RFC 3339, UTC.
    pub date: String,
    pub cores: usize,
    pub processor: String,
    pub memory_mib: u64,
    pub kernel: String,
    pub rabbitmq: String,
    pub tidegate: String,
    /// Load average of the minute before the run: below 0.5 the machine was idle.
    pub load: f64,
}

impl Machine {
    pub fn of(node: &Node) -> Machine {
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let field = |path: &str, name: &str| {
            let text = text(path);
            let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
            line.split_once(':').map_or("", |(_, value)| value.trim()).to_owned()
        };
        let memory = field("/proc/meminfo", "MemTotal");
        let kib = memory.split_whitespace().next().and_then(|n| n.parse::<u64>().ok());
        let at = i64::try_from(now_ms()).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
        let version = Command::new(binary()).arg("--version").output();
        let version = version.map(|out| String::from_utf8_lossy(&out.stdout).trim().to_owned());
        Machine {
            date: at.map_or(String::new(), |at| at.to_string()),
            cores: std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
            processor: field("/proc/cpuinfo", "model name"),
            memory_mib: kib.unwrap_or(0) / 1024,
            kernel: text("/proc/sys/kernel/osrelease").trim().to_owned(),
            rabbitmq: node.eval("rabbit_misc:version().").trim_matches('"').to_owned(),
            tidegate: version.unwrap_or_default(),
            load: text("/proc/loadavg").split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0.0),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, {} cores ({}), {} GiB, Linux {}, RabbitMQ {}, {}, load {}",
            self.date,
            self.cores,
            self.processor,
            self.memory_mib.div_ceil(1024),
            self.kernel,
            self.rabbitmq,
            self.tidegate,
            self.load
        )
    }
}
