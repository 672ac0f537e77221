//! A short-lived connection to the broker, for commands.

use super::output::Failure;
use crate::amqp::connect;
use crate::config::{Config, Endpoint};
use lapin::{Channel, Connection};
use std::fmt::Display;
use std::future::Future;
use std::time::Duration;

/// How long to be polite when leaving. A blocked connection never answers a close.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);

/// An open channel on a connection of its own.
pub(super) struct CliSession {
    connection: Connection,
    /// The only channel.
    pub channel: Channel,
    limit: Duration,
}

/// Runs a command's future on a small runtime.
pub(super) fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(|e| Failure::Failed(format!("no threads: {e}")))?;
    let outcome = runtime.block_on(work);
    runtime.shutdown_timeout(Duration::from_secs(1));
    outcome
}

impl CliSession {
    /// Connects to the first address of `endpoints` that answers.
    ///
    /// # Errors
    /// One sentence with what each address said.
    pub(super) async fn open(config: &Config, endpoints: &[Endpoint], name: &str) -> Result<Self, Failure> {
        let limit = config.timeouts.connect;
        let mut said = Vec::new();
        for endpoint in endpoints {
            match connect(endpoint, &config.amqp, limit, name).await {
                Ok(connection) => {
                    let channel = within(limit, "opening a channel", connection.create_channel()).await?;
                    return Ok(CliSession { connection, channel, limit });
                }
                Err(error) => said.push(error.to_string()),
            }
        }
        Err(Failure::Failed(format!("no connection to the broker: {}", said.join("; "))))
    }

    /// Awaits one exchange with the broker, with a bound.
    ///
    /// # Errors
    /// What the broker says, after `doing`.
    pub(super) async fn ask<T>(
        &self,
        doing: &str,
        work: impl Future<Output = lapin::Result<T>>,
    ) -> Result<T, Failure> {
        within(self.limit, doing, work).await
    }

    /// Leaves. What has been confirmed is safe however this ends, so its outcome tells nothing.
    pub(super) async fn close(self) {
        let _ = tokio::time::timeout(CLOSE_WITHIN, self.connection.close(200, "done".into())).await;
    }
}

async fn within<T, E: Display>(
    limit: Duration,
    doing: &str,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, Failure> {
    match tokio::time::timeout(limit, work).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(error)) => Err(Failure::Failed(format!("{doing}: {error}"))),
        Err(_) => Err(Failure::Failed(format!("{doing}: no answer within {} ms", limit.as_millis()))),
    }
}
