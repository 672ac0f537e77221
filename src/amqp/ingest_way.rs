//! The way of requests to the ingest queue, for what publishes requests beside the consumer.
//!
//! A request that only another queue of the ingest exchange takes (a tap, an archive) is confirmed as well,
//! and not returned. So the way is ensured before the first one is published, as at each connect of the
//! consumer. In the modes `passive` and `off` the operator ensures it: AMQP does not show bindings.

use super::blueprint::Names;
use super::connection::Session;
use super::fault::Fault;
use super::topology::{lead_requests, prepare_ingest, Note};
use std::time::Duration;
use tidegate_config::{Config, Topology};

/// Time limit for an orderly close.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);

/// Ensures the way. `limit`: for each answer of the broker.
///
/// # Errors
/// A queue or an exchange of the way is missing and may not be created, or the connection fails.
pub(crate) async fn ensure_way(
    session: &Session,
    mode: Topology,
    names: &Names,
    limit: Duration,
) -> Result<Vec<Note>, Fault> {
    let mut notes = prepare_ingest(session, mode, (names, None), limit).await?;
    notes.extend(lead_requests(session, mode, (names, None), false, limit).await?.notes);
    Ok(notes)
}

/// The same on a connection of its own with this name, for a command. Returns what an operator should know,
/// such as a binding that this login may not make, and that is assumed to exist.
///
/// # Errors
/// One sentence: what is missing or refused, or why there is no connection.
pub async fn lead_to_ingest(config: &Config, name: &str) -> Result<Vec<String>, String> {
    let (mode, limit, names) = (config.amqp.topology, config.timeouts.connect, Names::of(config));
    if mode == Topology::Off {
        return Ok(Vec::new());
    }
    let session = Session::open_any(&config.amqp, limit, name).await?;
    let led = ensure_way(&session, mode, &names, limit).await;
    session.close(CLOSE_WITHIN).await;
    let notes = led.map_err(|fault| format!("leading requests to queue '{}': {fault}", names.queue))?;
    Ok(notes.into_iter().map(|note| note.text).collect())
}
