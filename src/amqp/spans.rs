//! The span of one attempt to publish, for tracing.

use std::fmt;
use std::sync::Arc;
use tidegate_wire::SpanName;

/// Receives the span of each attempt; must not block.
#[derive(Clone)]
pub struct OnSpan(pub Arc<dyn Fn(PublishSpan) + Send + Sync>);

impl fmt::Debug for OnSpan {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("OnSpan")
    }
}

/// The attempt to publish a batch, from the publish to the broker's answer.
#[derive(Clone, Debug, Default)]
pub struct PublishSpan {
    /// Trace and span.
    pub name: SpanName,
    /// The parent span; `None`: this span is the root of its trace.
    pub parent: Option<[u8; 8]>,
    /// The `tracestate` of the trace, as other tracing systems set it.
    pub state: Option<String>,
    /// Spans of the batch's members, at most [`tidegate_wire::MOST_LINKS`].
    pub links: Vec<SpanName>,
    /// Moment of publish, UTC us.
    pub begun: u64,
    /// Moment of the broker's answer, UTC us.
    pub ended: u64,
    /// The error, if the publish failed.
    pub error: Option<String>,
    /// Exchange and routing key.
    pub destination: (String, String),
    /// The batch id in hex.
    pub batch: String,
    /// Items in it.
    pub items: u64,
    /// Bytes of its body.
    pub bytes: u64,
    /// Publishes of it, from 1.
    pub attempt: u32,
    /// Moment of publish minus the earliest due, us.
    pub lateness: u64,
}
