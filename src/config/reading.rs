//! What decides how the requests of an application are read: what of them is passed on, and from when a delay
//! counts. Defaults stand here.

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

/// How the requests of one application are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// What of them goes into their entries of batches.
    pub copies: Arc<Copies>,
    /// From when their delays count.
    pub delay_from: DelayFrom,
    /// Their trace contexts go on: into their entries, and into the context of the batch.
    pub traces: bool,
}

impl Default for Reading {
    fn default() -> Self {
        Reading { copies: Arc::default(), delay_from: DelayFrom::default(), traces: true }
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
