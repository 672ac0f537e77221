//! A short-lived connection to the broker, for commands.

use super::output::Failure;
use crate::config::{Config, Endpoint};
use lapin::uri::{AMQPAuthority, AMQPQueryString, AMQPScheme, AMQPUri, AMQPUserInfo};
use lapin::{Channel, Connection, ConnectionProperties};
use secrecy::ExposeSecret;
use std::fmt::Display;
use std::future::Future;
use std::path::Path;
use std::time::Duration;

/// What RabbitMQ offers; bounds the memory that one header frame can take.
const FRAME_MAX: u32 = 131_072;
const HEARTBEAT_S: u16 = 30;
/// How long to be polite when leaving. A blocked connection never answers a close.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);

/// An open channel on a connection of its own.
pub struct Session {
    connection: Connection,
    /// The only channel.
    pub channel: Channel,
    limit: Duration,
}

/// Runs a command's future on a small runtime.
pub fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(|e| Failure::Failed(format!("no threads: {e}")))?;
    let outcome = runtime.block_on(work);
    runtime.shutdown_timeout(Duration::from_secs(1));
    outcome
}

impl Session {
    /// Connects to the first address of `endpoints` that answers.
    ///
    /// # Errors
    /// One sentence with what each address said.
    pub async fn open(config: &Config, endpoints: &[Endpoint], name: &str) -> Result<Self, Failure> {
        let limit = config.timeouts.connect;
        let mut said = Vec::new();
        for endpoint in endpoints {
            match connect(endpoint, config.amqp.ca_file.as_deref(), limit, name).await {
                Ok(connection) => {
                    let channel = within(limit, "opening a channel", connection.create_channel()).await?;
                    return Ok(Session { connection, channel, limit });
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
    pub async fn ask<T>(
        &self,
        doing: &str,
        work: impl Future<Output = lapin::Result<T>>,
    ) -> Result<T, Failure> {
        within(self.limit, doing, work).await
    }

    /// Leaves. What has been confirmed is safe however this ends, so its outcome tells nothing.
    pub async fn close(self) {
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

/// Opens one connection. The whole of it (name look-up, TCP, TLS, AMQP) is bounded by `limit`.
async fn connect(
    endpoint: &Endpoint,
    ca_file: Option<&Path>,
    limit: Duration,
    name: &str,
) -> Result<Connection, String> {
    let Endpoint { tls, host, port, vhost, user, password } = endpoint;
    if *tls && ca_file.is_some() {
        return Err(format!("{host}:{port}: amqp.ca_file is not supported by this command"));
    }
    let uri = AMQPUri {
        scheme: if *tls { AMQPScheme::AMQPS } else { AMQPScheme::AMQP },
        authority: AMQPAuthority {
            userinfo: AMQPUserInfo { username: user.clone(), password: password.expose_secret().to_owned() },
            host: host.clone(),
            port: *port,
        },
        vhost: vhost.clone(),
        query: AMQPQueryString {
            frame_max: Some(FRAME_MAX),
            heartbeat: Some(HEARTBEAT_S),
            ..AMQPQueryString::default()
        },
    };
    let options = ConnectionProperties::default().with_connection_name(name.into());
    match tokio::time::timeout(limit, Connection::connect_uri(uri, options)).await {
        Ok(Ok(connection)) => Ok(connection),
        Ok(Err(error)) => Err(format!("{host}:{port} as {user} on {vhost}: {error}")),
        Err(_) => Err(format!("{host}:{port}: no connection within {} ms", limit.as_millis())),
    }
}
