//! The message around the answer to a command.

use super::batch::APP_ID;
use super::properties::{short, Basic};
use lapin::types::{FieldTable, ShortString};
use lapin::BasicProperties;
use tidegate_types::ReplyTo;

const ANSWER_TYPE: &str = "tidegate.answer";

/// Routing key (for the default exchange) and properties of an answer; its body is JSON. `now_ms` (UTC)
/// becomes the timestamp.
pub fn answer(to: &ReplyTo, now_ms: u64) -> (ShortString, BasicProperties) {
    let basic = Basic {
        content_type: Some("application/json"),
        correlation_id: to.correlation_id.as_deref(),
        timestamp: Some(now_ms / 1000),
        kind: Some(ANSWER_TYPE),
        app_id: Some(APP_ID),
        ..Basic::default()
    };
    (short(&to.queue), basic.to_amqp(FieldTable::default()))
}
