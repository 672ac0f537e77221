//! Batches that are suspected after the broker has ended a connection over a message, or may have: those
//! unconfirmed then. Pure.
//!
//! A suspect that goes alone is published on a separate connection. A batch keeps its id over its attempts,
//! unless it is split, or its queue is parked in between: so what a culprit's application sends alone is
//! suspected too, until such a batch has been confirmed, and for a while in any case.

use std::collections::HashMap;
use std::time::Duration;
use tidegate_types::BatchId;
use tokio::time::Instant;

/// How long a batch without an answer is suspected.
const SUSPECTED: Duration = Duration::from_secs(600);
/// Most suspects at a time: several times what can be unconfirmed. Beyond it none is added.
const MAX_SUSPECTS: usize = 8_192;

#[derive(Debug, Default)]
pub(crate) struct Suspects {
    batches: HashMap<[u8; 16], Instant>,
    /// With the moment until which a confirm does not acquit them.
    applications: HashMap<Box<str>, Instant>,
}

impl Suspects {
    /// These were unconfirmed when the broker ended their connection, over one of them if over any.
    pub(crate) fn add(&mut self, ids: impl IntoIterator<Item = BatchId>, now: Instant) {
        self.forget(now);
        for id in ids {
            if self.batches.len() < MAX_SUSPECTS {
                self.batches.insert(id.0, now + SUSPECTED);
            }
        }
    }

    /// The broker has ended the separate connection of this batch.
    pub(crate) fn convict(&mut self, id: BatchId, application: &str, now: Instant) {
        self.forget(now);
        self.batches.remove(&id.0);
        if self.applications.len() < MAX_SUSPECTS {
            self.applications.insert(application.into(), now + SUSPECTED);
        }
    }

    /// The broker has answered this batch.
    pub(crate) fn clear(&mut self, id: BatchId) {
        self.batches.remove(&id.0);
    }

    /// The broker has confirmed a batch of this application on a separate connection.
    pub(crate) fn acquit(&mut self, application: &str, now: Instant) {
        if self.applications.get(application).is_some_and(|until| *until <= now) {
            self.applications.remove(application);
        }
    }

    /// Whether the batch should be published on a separate connection.
    pub(crate) fn has(&self, id: BatchId, application: &str, now: Instant) -> bool {
        let is_suspect = || self.batches.get(&id.0).is_some_and(|until| *until > now);
        // Usually there are no suspects.
        !(self.batches.is_empty() && self.applications.is_empty())
            && (is_suspect() || self.has_convicted(application))
    }

    /// Whether a batch of this application has ended a separate connection, and none was confirmed on one
    /// since.
    pub(crate) fn has_convicted(&self, application: &str) -> bool {
        self.applications.contains_key(application)
    }

    fn forget(&mut self, now: Instant) {
        self.batches.retain(|_, until| *until > now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u8) -> BatchId {
        BatchId([number; 16])
    }

    #[test]
    fn who_was_there_is_suspected_until_it_is_answered_and_the_culprits_application_longer() {
        let now = Instant::now();
        let mut suspects = Suspects::default();
        assert!(!suspects.has(id(1), "a", now));
        suspects.add([id(1), id(2), id(3)], now);
        let seen = |suspects: &Suspects, at| [1, 2, 3, 4].map(|n| suspects.has(id(n), "a", at));
        assert_eq!(seen(&suspects, now), [true, true, true, false]);
        suspects.clear(id(1));
        assert_eq!(seen(&suspects, now), [false, true, true, false]);
        suspects.convict(id(2), "a", now);
        assert_eq!(seen(&suspects, now), [true; 4], "its halves have other ids");
        assert!(!suspects.has(id(2), "b", now));
        assert_eq!(["a", "b"].map(|name| suspects.has_convicted(name)), [true, false]);
        suspects.acquit("a", now);
        assert!(suspects.has_convicted("a"), "for a while in any case");
        assert_eq!(seen(&suspects, now + SUSPECTED), [true; 4], "none was confirmed since");
        suspects.acquit("a", now + SUSPECTED);
        assert_eq!(seen(&suspects, now + SUSPECTED), [false; 4]);
        assert!(!suspects.has_convicted("a"));
        suspects.add([id(9)], now + SUSPECTED);
        assert_eq!((suspects.batches.len(), suspects.applications.len()), (1, 0), "nothing is kept");
    }

    #[test]
    fn there_is_a_most() {
        let now = Instant::now();
        let mut suspects = Suspects::default();
        suspects.add((0..20_000_u128).map(|n| BatchId(n.to_be_bytes())), now);
        assert_eq!(suspects.batches.len(), MAX_SUSPECTS);
    }
}
