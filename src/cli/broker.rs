//! A short-lived connection to the broker, for commands.

use super::output::Failure;
use lapin::{Channel, Connection};
use std::fmt::Display;
use std::future::Future;
use std::time::Duration;
use tidegate_amqp::connect;
use tidegate_config::{Config, Endpoint};

/// Time limit for an orderly close; a blocked connection never answers one.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);

/// An open channel on its own connection.
pub(super) struct CliSession {
    connection: Connection,
    /// The only channel of the connection.
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
    /// If no address answers: one sentence with the error of each.
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

    /// Awaits one exchange with the broker, with a time limit.
    ///
    /// # Errors
    /// The broker's error, after `doing`.
    pub(super) async fn ask<T>(
        &self,
        doing: &str,
        work: impl Future<Output = lapin::Result<T>>,
    ) -> Result<T, Failure> {
        within(self.limit, doing, work).await
    }

    /// The size of frames that both ends have agreed upon, bytes.
    pub(super) fn frame_max(&self) -> u32 {
        self.connection.configuration().frame_max()
    }

    /// Closes the connection. Confirmed messages are safe in any case, so the result does not matter.
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
