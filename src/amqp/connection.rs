//! One connection to one address: built from checked parts, bounded in time, and closable in every state.
//!
//! Deliberately absent: recovery. lapin's is off; the holder of a [`Session`] drops it at the first error and
//! opens another.
//!
//! Every session keeps a second handle of its socket. lapin runs a thread for each connection that ends only
//! when the socket does: a handshake that is never answered, or a blocked connection, on which nothing at all
//! is written, would keep the thread indefinitely. Shutting the socket down ends it in every state.

use super::fault::Fault;
use async_rs::traits::{AsyncToSocketAddrs, Reactor};
use async_rs::{Runtime, Tokio};
use lapin::tcp::{AsyncTcpStream, RustlsConnector, RustlsConnectorConfig};
use lapin::uri::{AMQPAuthority, AMQPQueryString, AMQPScheme, AMQPUri, AMQPUserInfo, SASLMechanism};
use lapin::{Channel, Connection, ConnectionProperties};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use secrecy::{ExposeSecret, SecretString};
use std::io;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tidegate_config::advice::explained;
use tidegate_config::terms::is_loopback_host;
use tidegate_config::{Endpoint, Login, Tls};
use tokio::time::timeout;

/// RabbitMQ's default. Few channels are open at a time, but those that have ended are replaced, and lapin
/// (seen with 4.12) opens none under the number of one that the broker has closed
/// (see [`Session::open_channel`]).
const CHANNEL_MAX: u16 = 2_047;
/// Attempts to open a channel. lapin takes the next number for each, and never again one that failed: so a
/// connection on which a few channels were refused lasts.
const OPEN_TRIES: u32 = 16;
const WORN_OUT: &str = "no more channels can be opened on this connection: it is replaced";

/// Why a connection could not be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// TCP, TLS and AMQP handshake did not end in time.
    #[error("{address}: no connection within {limit_ms} ms")]
    Timeout {
        /// Host and port.
        address: String,
        /// Time limit that passed.
        limit_ms: u128,
    },
    /// Refused by the network, TLS or the broker; the reason names the user or the virtual host if that is
    /// the cause.
    #[error("{address} as {account} on virtual host '{vhost}': {reason}")]
    Refused {
        /// Host and port.
        address: String,
        /// The login: the user of the URI, or that of the certificate.
        account: String,
        /// Virtual host of the URI.
        vhost: String,
        /// The broker's or system's text.
        reason: String,
    },
    /// The address cannot be expressed in AMQP.
    #[error("{address}: {reason}")]
    Invalid {
        /// Host and port.
        address: String,
        /// What is wrong.
        reason: String,
    },
}

/// Opens one connection; `name` shows in `rabbitmqctl list_connections`.
///
/// For short-lived commands. `limit` bounds the whole: name look-up, TCP, TLS and AMQP.
///
/// # Errors
/// [`ConnectError`]; its texts never contain the password.
pub async fn connect(
    endpoint: &Endpoint,
    amqp: &tidegate_config::AmqpConfig,
    limit: Duration,
    name: &str,
) -> Result<Connection, ConnectError> {
    let (connection, socket) = dial(endpoint, amqp, limit, name).await?;
    socket.forget();
    Ok(connection)
}

/// Host and port as text, with brackets around IPv6.
pub fn address(endpoint: &Endpoint) -> String {
    let Endpoint { host, port, .. } = endpoint;
    if host.contains(':') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

/// Whether passwords and messages cross a network in the clear.
pub fn is_exposed(endpoint: &Endpoint) -> bool {
    endpoint.tls.is_none() && !is_loopback_host(&endpoint.host)
}

/// An open connection that is shut down, at the latest, when it is dropped.
#[derive(Debug)]
pub(crate) struct Session {
    connection: Connection,
    socket: Socket,
    endpoint: Endpoint,
    address: String,
    /// No channel can be opened on it any more.
    is_worn_out: AtomicBool,
}

impl Session {
    /// Logs in at the first ingest address that answers, for a command.
    ///
    /// # Errors
    /// One sentence: what each address has said.
    pub(crate) async fn open_any(
        amqp: &tidegate_config::AmqpConfig,
        limit: Duration,
        name: &str,
    ) -> Result<Session, String> {
        let mut said = Vec::new();
        for endpoint in &amqp.endpoints {
            match Session::open(endpoint, amqp, limit, name).await {
                Ok(session) => return Ok(session),
                Err(error) => said.push(error.to_string()),
            }
        }
        Err(format!("no connection to the broker: {}", said.join("; ")))
    }

    pub(crate) async fn open(
        endpoint: &Endpoint,
        amqp: &tidegate_config::AmqpConfig,
        limit: Duration,
        name: &str,
    ) -> Result<Session, ConnectError> {
        let (connection, socket) = dial(endpoint, amqp, limit, name).await?;
        Ok(Session {
            connection,
            socket,
            endpoint: endpoint.clone(),
            address: address(endpoint),
            is_worn_out: AtomicBool::new(false),
        })
    }

    /// Opens another connection to the same address, with the same login.
    pub(crate) async fn another(
        &self,
        amqp: &tidegate_config::AmqpConfig,
        limit: Duration,
        name: &str,
    ) -> Result<Session, Fault> {
        let opening = Session::open(&self.endpoint, amqp, limit, name);
        opening.await.map_err(|error| Fault::setup(error.to_string()))
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// It can be used: its connection lasts, and channels can be opened on it.
    pub(crate) fn is_connected(&self) -> bool {
        self.connection.status().connected() && self.ensure_channels().is_ok()
    }

    /// # Errors
    /// No channel can be opened on it any more: another connection is needed.
    pub(crate) fn ensure_channels(&self) -> Result<(), Fault> {
        if self.is_worn_out.load(Ordering::Relaxed) {
            return Err(Fault::lost(WORN_OUT));
        }
        Ok(())
    }

    /// Bytes of the largest frame that both ends have agreed upon.
    pub(crate) fn frame_max(&self) -> u32 {
        self.connection.configuration().frame_max()
    }

    /// Channels that both ends have agreed upon.
    pub(crate) fn channel_max(&self) -> u16 {
        match self.connection.configuration().channel_max() {
            0 => u16::MAX,
            most => most,
        }
    }

    /// The broker blocks the connection at present.
    pub(crate) fn is_blocked(&self) -> bool {
        self.connection.status().blocked()
    }

    pub(crate) async fn channel(&self, limit: Duration) -> Result<Channel, Fault> {
        match timeout(limit, self.open_channel()).await {
            Ok(done) => done,
            Err(_) => Err(Fault::timeout("opening a channel", limit)),
        }
    }

    /// Opens a channel, without a time limit.
    ///
    /// For the number of a channel that the broker has closed, lapin answers with the reason of that close,
    /// and asks the broker nothing. So such an error tells nothing of an exchange, a queue or a right, which
    /// may be as they should by now.
    ///
    /// # Errors
    /// The connection is lost, or no channel can be opened on it any more, which it then shows.
    pub(crate) async fn open_channel(&self) -> Result<Channel, Fault> {
        for _ in 0..OPEN_TRIES {
            match self.connection.create_channel().await {
                Err(error) if self.connection.status().connected() => {
                    tracing::debug!(address = %self.address, %error, "lapin opens no channel");
                }
                done => return Ok(done?),
            }
        }
        self.is_worn_out.store(true, Ordering::Relaxed);
        Err(Fault::lost(WORN_OUT))
    }

    /// Shuts the socket down at once, without closing the connection first.
    pub(crate) fn abandon(&self) {
        self.socket.shut_down();
    }

    /// Closes the connection, so that the broker requeues unacked messages at once. Bounded: on a blocked
    /// connection lapin's close never ends.
    pub(crate) async fn close(&self, limit: Duration) {
        if self.connection.status().connected() && !self.connection.status().blocked() {
            let closing = self.connection.close(200, "OK".into());
            if matches!(timeout(limit, closing).await, Ok(Ok(()))) {
                // lapin's thread ends by itself now.
                self.socket.forget();
                return;
            }
            let message = "connection not closed properly, shutting its socket down";
            tracing::debug!(address = %self.address, "{message}");
        }
        self.socket.shut_down();
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.socket.shut_down();
    }
}

/// Shared between the session and the closure that lapin calls on its own thread.
#[derive(Clone, Debug, Default)]
struct Socket(Arc<Mutex<SocketState>>);

#[derive(Debug, Default)]
enum SocketState {
    #[default]
    Unopened,
    Open(TcpStream),
    Ended,
}

impl Socket {
    fn register(&self, stream: TcpStream) -> io::Result<()> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*state, SocketState::Ended) {
            return Err(io::Error::from(io::ErrorKind::TimedOut));
        }
        *state = SocketState::Open(stream);
        Ok(())
    }

    fn shut_down(&self) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let SocketState::Open(stream) = std::mem::replace(&mut *state, SocketState::Ended) {
            // The peer may have closed it already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn forget(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = SocketState::Ended;
    }
}

/// Shuts the socket down when the attempt is abandoned, by time-out or by cancellation.
struct Attempt(Option<Socket>);

impl Drop for Attempt {
    fn drop(&mut self) {
        if let Some(socket) = self.0.take() {
            socket.shut_down();
        }
    }
}

async fn dial(
    endpoint: &Endpoint,
    amqp: &tidegate_config::AmqpConfig,
    limit: Duration,
    name: &str,
) -> Result<(Connection, Socket), ConnectError> {
    let uri = uri(endpoint, amqp)?;
    let socket = Socket::default();
    let mut attempt = Attempt(Some(socket.clone()));
    let tls = endpoint.tls.clone();
    let properties = ConnectionProperties::default().with_connection_name(name.into());
    let registered = socket.clone();
    let connecting = Connection::connector(
        uri,
        Runtime::tokio_current(),
        async move |uri: AMQPUri, runtime: Runtime<Tokio>| {
            let AMQPAuthority { host, port, .. } = uri.authority;
            // lapin calls this on its own thread, which cannot be cancelled: so it needs its own time limit.
            let transport = transport((host, port), tls.as_deref(), limit, &runtime, &registered);
            match timeout(limit, transport).await {
                Ok(stream) => Ok(stream?),
                Err(_) => Err(io::Error::from(io::ErrorKind::TimedOut).into()),
            }
        },
        properties,
    );
    match timeout(limit, connecting).await {
        Ok(Ok(connection)) => {
            attempt.0 = None;
            Ok((connection, socket))
        }
        Ok(Err(error)) => Err(ConnectError::Refused {
            address: address(endpoint),
            account: account(endpoint),
            vhost: endpoint.vhost.clone(),
            reason: explained(Fault::from(error).text, endpoint),
        }),
        Err(_) => Err(ConnectError::Timeout { address: address(endpoint), limit_ms: limit.as_millis() }),
    }
}

type Transport = AsyncTcpStream<<Tokio as Reactor>::TcpStream>;

/// TCP and, if asked for, TLS.
async fn transport(
    (host, port): (String, u16),
    tls: Option<&Tls>,
    limit: Duration,
    runtime: &Runtime<Tokio>,
    socket: &Socket,
) -> io::Result<Transport> {
    let addresses = runtime.to_socket_addrs((host.clone(), port)).to_socket_addrs().await?;
    let stream = first_of(&addresses.collect::<Vec<_>>(), limit, runtime).await?;
    if let AsyncTcpStream::Plain(plain) = &stream {
        socket.register(TcpStream::from(plain.get_ref().as_fd().try_clone_to_owned()?))?;
    }
    match tls {
        None => Ok(stream),
        Some(tls) => stream.into_rustls(&tls_connector(tls)?, &host).await,
    }
}

/// Connects to the first of the addresses of a name that accepts. Each has an equal part of the time: one
/// that drops all packets would use up that of the others, at each attempt.
async fn first_of(
    addresses: &[SocketAddr],
    limit: Duration,
    runtime: &Runtime<Tokio>,
) -> io::Result<Transport> {
    let each = limit / u32::try_from(addresses.len()).unwrap_or(u32::MAX).max(1);
    let mut last = io::Error::new(io::ErrorKind::AddrNotAvailable, "the name has no address");
    for address in addresses {
        last = match timeout(each, AsyncTcpStream::connect(runtime, *address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => error,
            Err(_) => io::ErrorKind::TimedOut.into(),
        };
        if addresses.len() > 1 {
            last = io::Error::new(last.kind(), format!("{address}: {last}"));
        }
    }
    Err(last)
}

/// With a CA file only that CA is trusted, unless the system's are wanted as well; lapin's own configuration
/// would always add it to those. All files are read at each connect.
fn tls_connector(tls: &Tls) -> io::Result<RustlsConnector> {
    let system = tls.system_cas || tls.ca_file.is_none();
    let mut trusted = RustlsConnectorConfig::default();
    if system {
        trusted = trusted.with_native_certs()?;
    }
    if let Some(path) = &tls.ca_file {
        trusted = trusted.with_parsable_certificates(certificates("ca_file", path)?);
    }
    let Some(own) = &tls.own else { return trusted.connector_with_no_client_auth() };
    let chain = certificates("certificate_file", &own.certificate_file)?;
    let key = PrivateKeyDer::from_pem_file(&own.key_file)
        .map_err(|e| unusable("key_file", &own.key_file, &e.to_string()))?;
    // The library's own text would blame the broker's certificate.
    trusted.connector_with_single_cert(chain, key).map_err(|e| {
        let reason = format!("is not the certificate of key_file {}: {e}", own.key_file.display());
        unusable("certificate_file", &own.certificate_file, &reason)
    })
}

fn certificates(key: &str, path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let certificates = read.map_err(|e| unusable(key, path, &e.to_string()))?;
    if certificates.is_empty() {
        return Err(unusable(key, path, "no certificate in it"));
    }
    Ok(certificates)
}

fn unusable(key: &str, path: &Path, reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{key} {}: {reason}", path.display()))
}

/// Builds the URI field by field: lapin's parser takes `[::1]` for localhost, an absent user for guest, and a
/// trailing slash for the virtual host `""`. Never formatted: its `Debug` prints the password.
fn uri(endpoint: &Endpoint, amqp: &tidegate_config::AmqpConfig) -> Result<AMQPUri, ConnectError> {
    // lapin panics on names that do not fit an AMQP short string.
    if endpoint.vhost.len() > 255 {
        return Err(ConnectError::Invalid {
            address: address(endpoint),
            reason: "the virtual host's name is longer than 255 bytes".to_owned(),
        });
    }
    Ok(AMQPUri {
        scheme: if endpoint.tls.is_some() { AMQPScheme::AMQPS } else { AMQPScheme::AMQP },
        authority: AMQPAuthority {
            userinfo: AMQPUserInfo {
                username: endpoint.user.clone(),
                password: password(endpoint).expose_secret().to_owned(),
            },
            host: endpoint.host.clone(),
            port: endpoint.port,
        },
        vhost: endpoint.vhost.clone(),
        query: AMQPQueryString {
            frame_max: Some(amqp.frame_max),
            channel_max: Some(CHANNEL_MAX),
            heartbeat: Some(u16::try_from(amqp.heartbeat.as_secs()).unwrap_or(u16::MAX)),
            connection_timeout: None,
            auth_mechanism: (endpoint.login == Login::External).then_some(SASLMechanism::External),
        },
    })
}

fn account(endpoint: &Endpoint) -> String {
    match endpoint.login {
        Login::Password => format!("user '{}'", endpoint.user),
        Login::External => "the user of its certificate".to_owned(),
    }
}

/// The password as its file contains it now: it may have been changed since the start.
fn password(endpoint: &Endpoint) -> SecretString {
    let Some(path) = &endpoint.password_file else { return endpoint.password.clone() };
    tidegate_config::read_secret(path).unwrap_or_else(|error| {
        tracing::warn!(
            address = %address(endpoint),
            error,
            "the password file cannot be read again; the password read last is used"
        );
        endpoint.password.clone()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn endpoint(host: &str, tls: bool) -> Endpoint {
        Endpoint {
            tls: tls.then(Arc::default),
            login: Login::Password,
            host: host.to_owned(),
            port: 5672,
            vhost: "/".to_owned(),
            user: "u".to_owned(),
            password: "canary".into(),
            password_file: None,
        }
    }

    /// One address of a name drops packets: the backlog of its listener is full.
    #[test]
    fn an_address_without_an_answer_leaves_time_for_the_next() {
        let listen = || TcpListener::bind("127.0.0.1:0").unwrap();
        let (full, live) = (listen(), listen());
        let [silent, answers] = [&full, &live].map(|at| at.local_addr().unwrap());
        let short = Duration::from_millis(300);
        let waiting: Vec<_> =
            std::iter::from_fn(|| TcpStream::connect_timeout(&silent, short).ok()).take(10_000).collect();
        assert!(waiting.len() < 10_000);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let runtime = Runtime::tokio_current();
            first_of(&[silent, answers], Duration::from_secs(2), &runtime).await.unwrap();
            live.accept().unwrap();
            let error = first_of(&[silent, silent], short, &runtime).await.map(drop).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            assert!(error.to_string().starts_with(&silent.to_string()), "{error}");
            assert!(first_of(&[], short, &runtime).await.map(drop).is_err());
        });
    }

    #[test]
    fn only_a_plain_connection_to_elsewhere_is_exposed() {
        for (host, tls, exposed) in [
            ("localhost", false, false),
            ("127.0.0.1", false, false),
            ("127.8.0.1", false, false),
            ("::1", false, false),
            ("rabbit", false, true),
            ("10.0.0.1", false, true),
            ("rabbit", true, false),
        ] {
            assert_eq!(is_exposed(&endpoint(host, tls)), exposed, "{host} {tls}");
        }
    }

    #[test]
    fn an_ipv6_address_is_kept_as_it_is_and_shown_in_brackets() {
        let endpoint = endpoint("::1", false);
        assert_eq!(address(&endpoint), "[::1]:5672");
        assert_eq!(uri(&endpoint, &tidegate_config::AmqpConfig::default()).unwrap().authority.host, "::1");
    }

    #[test]
    fn a_password_file_is_read_at_each_connect() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("password");
        let endpoint = Endpoint { password_file: Some(path.clone()), ..endpoint("localhost", false) };
        for text in ["first", "second"] {
            std::fs::write(&path, format!("{text}\n")).unwrap();
            assert_eq!(
                uri(&endpoint, &tidegate_config::AmqpConfig::default()).unwrap().authority.userinfo.password,
                text
            );
        }
        std::fs::remove_file(&path).unwrap();
        assert_eq!(password(&endpoint).expose_secret(), "canary", "the one read last");
    }

    #[test]
    fn a_vhost_that_lapin_would_panic_on_is_refused() {
        let mut endpoint = endpoint("localhost", false);
        endpoint.vhost = "v".repeat(256);
        assert!(matches!(
            uri(&endpoint, &tidegate_config::AmqpConfig::default()),
            Err(ConnectError::Invalid { .. })
        ));
    }
}
