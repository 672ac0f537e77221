//! Sizes of a benchmark: short, usual and long.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// All sizes, and the number of rounds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    pub name: String,
    pub rounds: usize,
    /// Messages of a row of `throughput`.
    pub messages: u64,
    /// Numbers of customers for windowed requests, besides the 1,000 of the row.
    pub customers: Vec<u64>,
    /// Body sizes, and the maximum total of the bodies of a run, both in bytes.
    pub sizes: Vec<u64>,
    pub size_bytes: u64,
    /// Requests per second.
    pub rates: Vec<u64>,
    /// Those rates at which RabbitMQ's TTL is measured too.
    pub ttl_rates: Vec<u64>,
    /// Numbers of messages ahead of the load in RabbitMQ's TTL queue.
    pub ttl_waiting: Vec<u64>,
    /// Duration of a steady rate, s, and spread of its delays, which start at one second, ms.
    pub seconds: u64,
    pub spread_ms: u64,
    /// Items due within one millisecond, and within one second (fewer than a million: in less time).
    pub millisecond: u64,
    pub second: u64,
    /// Consecutive kills.
    pub kills: u64,
    /// Consecutive kills of the owner of a store that another daemon takes over.
    #[serde(default)]
    pub takeovers: u64,
    /// Backlog sizes, and the rate of requests at each.
    pub waiting: Vec<u64>,
    pub waiting_rate: u64,
    /// A second rate, at one backlog size.
    pub fast_rate: u64,
    pub fast_waiting: u64,
}

impl Plan {
    pub fn short() -> Plan {
        Plan {
            name: "short".to_owned(),
            rounds: 1,
            messages: 20_000,
            customers: vec![1, 20_000],
            sizes: vec![100, 10_000, 100_000],
            size_bytes: 30_000_000,
            rates: vec![200, 1_000, 5_000],
            ttl_rates: vec![200, 5_000],
            ttl_waiting: vec![1_000],
            seconds: 2,
            spread_ms: 2_000,
            millisecond: 20_000,
            second: 20_000,
            kills: 2,
            takeovers: 2,
            waiting: vec![1_000, 20_000, 200_000],
            waiting_rate: 5_000,
            fast_rate: 10_000,
            fast_waiting: 200_000,
        }
    }

    pub fn usual() -> Plan {
        Plan {
            name: "default".to_owned(),
            rounds: 3,
            messages: 100_000,
            customers: vec![1, 100_000],
            sizes: vec![100, 1_000, 10_000, 100_000],
            size_bytes: 100_000_000,
            rates: vec![200, 1_000, 5_000, 10_000],
            ttl_rates: vec![200, 1_000, 5_000],
            ttl_waiting: vec![1_000, 50_000],
            seconds: 8,
            spread_ms: 4_000,
            millisecond: 100_000,
            second: 500_000,
            kills: 5,
            takeovers: 7,
            waiting: vec![1_000, 10_000, 100_000, 200_000, 1_000_000],
            fast_waiting: 1_000_000,
            ..Plan::short()
        }
    }

    pub fn long() -> Plan {
        Plan {
            name: "long".to_owned(),
            rounds: 5,
            messages: 1_000_000,
            size_bytes: 400_000_000,
            seconds: 30,
            second: 1_000_000,
            kills: 15,
            takeovers: 20,
            waiting: vec![1_000, 10_000, 100_000, 200_000, 1_000_000, 10_000_000],
            ..Plan::usual()
        }
    }

    /// Time limit of one run. A run that exceeds it is named and ends the program.
    pub fn limit(&self) -> Duration {
        Duration::from_secs(match self.name.as_str() {
            "long" => 3_600,
            _ => 900,
        })
    }

    /// Messages of this size: as many as fit into `size_bytes`, at most `messages`.
    pub fn count_of(&self, size: u64) -> u64 {
        (self.size_bytes / size).min(self.messages)
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Plan { name, rounds, messages, .. } = self;
        write!(f, "plan {name}: {messages} messages a row, {rounds} rounds in turn")
    }
}
