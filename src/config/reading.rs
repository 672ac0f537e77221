//! What decides how the requests of an application are read: what of them is passed on, from when a delay
//! counts, and when what its consumers send back is delivered again. Defaults stand here.

use super::copies::Copies;
use std::collections::BTreeMap;
use std::sync::Arc;

/// From which moment a delay counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DelayFrom {
    /// When tidegate took the request from its queue.
    #[default]
    Received,
    /// When the producer says that it made the request; without that, as [`DelayFrom::Received`].
    Timestamp,
}

impl DelayFrom {
    /// Both, with their names.
    pub(super) const ALL: &'static [(&'static str, DelayFrom)] =
        &[("received", DelayFrom::Received), ("timestamp", DelayFrom::Timestamp)];
}

/// When what the consumers of an application send back is delivered again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redeliver {
    /// Before the first try again, ms; doubled with each. 0: nothing of this holds, and what comes back is a
    /// request like any other.
    pub min: u64,
    /// Longest pause, ms.
    pub max: u64,
    /// Most tries again; 0 = for ever.
    pub attempts: u32,
    /// Headers in which consumers say why, the first that is there counts.
    pub reasons: Vec<String>,
    /// Largest batch, bytes: `max_bytes`.
    pub largest: u64,
}

impl Redeliver {
    /// The pause before the next try, after so many, ms.
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
    /// What of them goes into their entries of batches.
    pub copies: Arc<Copies>,
    /// From when their delays count.
    pub delay_from: DelayFrom,
    /// Their trace contexts go on: into their entries, and into the context of the batch.
    pub traces: bool,
    /// Of what its consumers send back.
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
    /// For every application that has no table of its own.
    pub defaults: Reading,
    /// By application name.
    pub applications: BTreeMap<String, Reading>,
}

impl Readings {
    /// Those of one application.
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
