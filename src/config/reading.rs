//! The settings for reading the requests of an application: what is passed on, from when a delay counts, and
//! when returned items are delivered again. Defaults are defined here.

use super::copies::Copies;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The moment from which a delay counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DelayFrom {
    /// When tidegate takes the request from its queue.
    #[default]
    Received,
    /// When the producer created the request, by its own account; without that, as [`DelayFrom::Received`].
    Timestamp,
}

impl DelayFrom {
    /// Both values with their names.
    pub(crate) const ALL: &'static [(&'static str, DelayFrom)] =
        &[("received", DelayFrom::Received), ("timestamp", DelayFrom::Timestamp)];
}

/// When items that an application's consumers send back are delivered again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redeliver {
    /// Pause before the next try, ms; doubled with each one. 0: this is off, and a returned message is a
    /// request like any other.
    pub min: u64,
    /// Longest pause, ms.
    pub max: u64,
    /// Most further tries; 0: without limit.
    pub attempts: u32,
    /// Headers that contain the consumer's reason; the first one present counts.
    pub reasons: Vec<String>,
    /// Largest batch, bytes: `max_bytes`.
    pub largest: u64,
}

impl Redeliver {
    /// The pause before the next try, after `tries` tries, ms.
    pub fn pause(&self, tries: u32) -> u64 {
        self.min.saturating_mul(1 << tries.min(40)).min(self.max)
    }
}

impl Default for Redeliver {
    fn default() -> Self {
        let reasons = ["x-exception", "x-error"].map(str::to_owned).into();
        Redeliver { min: 0, max: 3_600_000, attempts: 5, reasons, largest: 1 << 20 }
    }
}

/// How the requests of one application are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The parts that go into their entries of batches.
    pub copies: Arc<Copies>,
    /// From when their delays count.
    pub delay_from: DelayFrom,
    /// Trace contexts are passed on: into the entries, and into the context of the batch.
    pub traces: bool,
    /// Redelivery of what consumers send back.
    pub redeliver: Arc<Redeliver>,
}

impl Default for Reading {
    fn default() -> Self {
        Reading {
            copies: Arc::default(),
            delay_from: DelayFrom::default(),
            traces: true,
            redeliver: Arc::default(),
        }
    }
}

/// How requests are read, by application.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Readings {
    /// For every application without its own table.
    pub defaults: Reading,
    /// By application name.
    pub applications: BTreeMap<String, Reading>,
}

impl Readings {
    /// The settings of one application.
    pub fn of(&self, application: &str) -> &Reading {
        self.applications.get(application).unwrap_or(&self.defaults)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let redeliver = Redeliver { min: 10_000, max: 50_000, ..Redeliver::default() };
        assert_eq!(
            [0, 1, 2, 3, 9].map(|tries| redeliver.pause(tries)),
            [10_000, 20_000, 40_000, 50_000, 50_000]
        );
        assert_eq!(redeliver.pause(u32::MAX), 50_000);
    }
}
