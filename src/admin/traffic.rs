//! The figures that the metrics show beyond the state document.

use tidegate_common::distribution::Distribution;

/// The figures that the metrics show beyond the state document, since the start of the process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Per item: moment of publish minus due, or minus the end of its wait for a rate.
    pub lateness: Distribution,
    /// Per item held back by a rate: the time held back.
    pub held: Distribution,
    /// Per batch: publish to confirm.
    pub confirm: Distribution,
    /// Per batch, at its first publish: number of items.
    pub batch_items: Distribution,
    /// Per batch, at its first publish: length of the body, bytes.
    pub batch_bytes: Distribution,
    /// Per commit: time to write and sync.
    pub commits: Distribution,
    /// Connections that ended or could not be opened, by side.
    pub connections_failed: [(&'static str, u64); 2],
    /// Current prefetch of the consumer.
    pub prefetch: u32,
    /// Connections that ended in a frame that cannot be parsed.
    pub parse_errors: u64,
    /// Answers to commands whose reply queue does not exist.
    pub answers_unroutable: u64,
    /// Headers whose name is close to one that tidegate reads.
    pub near_miss_headers: u64,
}
