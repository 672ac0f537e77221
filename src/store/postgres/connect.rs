//! A connection to the database, with prepared statements. Every wait has a bound.
//!
//! One thread uses a connection. Its runtime runs only during a query: between two queries it reads nothing,
//! and the next query notices a lost connection.

use super::settings::ServerSettings;
use super::statements::{prepare_round, Statements};
use crate::OpenError;
use futures_util::future::poll_fn;
use rustls::crypto::ring;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::CertificateDer;
use secrecy::ExposeSecret;
use std::error::Error as _;
use std::fmt;
use std::future::Future;
use std::net::IpAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tidegate_config::DatabaseConfig;
use tokio::runtime::Runtime;
use tokio_postgres::config::{SslMode, TargetSessionAttrs};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{AsyncMessage, Client, Connection, NoTls, Row, SimpleQueryMessage, Socket, Statement};
use tokio_postgres_rustls::MakeRustlsConnect;

/// Time limit for each host, up to the end of the login; a slower host does not delay the next. If its name
/// has several addresses, they share this time.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// Bytes of the body of a row that is written for a trial. The database stores so few beside the key, and
/// does not compress them.
const TRIED_BODY: u64 = 1_900;

/// First statement of each session that computes anything, and of the schema. Without it, whoever may create
/// in a schema of the path, as in `public`, could run code with this role's rights: by a function or an
/// operator that fits the types of a call better than that of PostgreSQL.
pub(super) const OWN_NAMES: &str = "SET search_path = pg_catalog, pg_temp;";

/// An error of the database or of the connection to it. It never contains a row's contents or a password.
#[derive(Debug)]
pub(super) struct DatabaseError {
    text: String,
    code: Option<SqlState>,
    constraint: Option<String>,
}

impl DatabaseError {
    /// The error code, if the database itself has answered.
    pub(super) fn code(&self) -> Option<&SqlState> {
        self.code.as_ref()
    }

    /// The constraint that the error names.
    pub(super) fn constraint(&self) -> Option<&str> {
        self.constraint.as_deref()
    }

    /// Whether the error may pass without a change: a fault of the connection, of the server, or of its disk
    /// space. Any other is a fault of a statement, of a right or of a table.
    pub(super) fn is_passing(&self) -> bool {
        let Some(code) = &self.code else { return true };
        // Connection, rollback, resources, cancelled or shut down; a server that takes no writes. The server
        // ends a transaction whose next statement is late, because this process or the way to the server
        // stood still (25P04 is from PostgreSQL 17 on).
        let classes = ["08", "40", "53", "57"];
        let others = ["25006", "25P03", "25P04", "55P03"];
        classes.contains(&code.code().get(..2).unwrap_or_default()) || others.contains(&code.code())
    }

    /// Whether the database has no room on its disk, or lacks another resource.
    pub(super) fn is_shortage(&self) -> bool {
        self.code.as_ref().is_some_and(|code| code.code().starts_with("53"))
    }

    /// An error that does not come from the database.
    pub(super) fn saying(text: impl Into<String>) -> Self {
        DatabaseError { text: text.into(), code: None, constraint: None }
    }
}

impl fmt::Display for DatabaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<tokio_postgres::Error> for DatabaseError {
    fn from(error: tokio_postgres::Error) -> Self {
        // The details of an error may contain rows.
        if let Some(db) = error.as_db_error() {
            return DatabaseError {
                text: format!("{} ({})", db.message(), db.code().code()),
                code: Some(db.code().clone()),
                constraint: db.constraint().map(str::to_owned),
            };
        }
        let cause = error.source().map_or(String::new(), |cause| format!(": {cause}"));
        DatabaseError::saying(format!("{error}{cause}"))
    }
}

/// Why there is no connection to one host.
#[derive(Debug)]
pub(super) enum LoginError {
    /// The host is not reached, refuses the login, or takes no writes although it should.
    Failed(DatabaseError),
    /// It has not answered within the time limit.
    Silent,
}

impl LoginError {
    /// Whether the host may accept the login, and only does not take writes.
    pub(super) fn may_be_read_only(&self) -> bool {
        match self {
            LoginError::Failed(error) => error.code().is_none(),
            LoginError::Silent => false,
        }
    }

    /// Whether all connections are used up, if another login has succeeded just before.
    pub(super) fn is_full(&self) -> bool {
        match self {
            LoginError::Failed(error) => error.code() == Some(&SqlState::TOO_MANY_CONNECTIONS),
            LoginError::Silent => true,
        }
    }
}

impl fmt::Display for LoginError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoginError::Failed(error) => error.fmt(f),
            LoginError::Silent => write!(f, "no answer within {} s", CONNECT_LIMIT.as_secs()),
        }
    }
}

/// What the server has said on a connection beside its answers.
#[derive(Default)]
struct Heard {
    /// The counter of [`DatabaseLink::warnings`].
    warnings: AtomicU64,
    /// Why the connection has ended. The server gives a reason that belongs to no query if it ends a session
    /// that rests.
    end: OnceLock<String>,
}

/// See the module.
pub(super) struct DatabaseLink {
    client: Client,
    statements: Option<Statements>,
    heard: Arc<Heard>,
    limit: Duration,
    place: String,
    /// Present until the link is dropped.
    runtime: Option<Runtime>,
}

impl Drop for DatabaseLink {
    /// Does not wait for a pending address look-up.
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl DatabaseLink {
    /// Connects to the first address that takes writes, and sets up the session for a daemon.
    ///
    /// # Errors
    ///
    /// [`OpenError::Database`].
    pub(super) fn open(config: &DatabaseConfig) -> Result<Self, OpenError> {
        let mut errors = Vec::new();
        for host in &config.hosts {
            match DatabaseLink::at(config, host, TargetSessionAttrs::ReadWrite) {
                Ok(link) => {
                    link.begin(config).map_err(|e| link.failed(&e))?;
                    return Ok(link);
                }
                Err(error) => errors.push(error_at(host, &error)),
            }
        }
        Err(not_reached(config, &errors))
    }

    /// Connects to one host. The session is as the server has set it up. `wanted`: what of its addresses is
    /// used.
    ///
    /// # Errors
    ///
    /// Why there is no connection.
    pub(super) fn at(
        config: &DatabaseConfig,
        (host, port): &(String, u16),
        wanted: TargetSessionAttrs,
    ) -> Result<Self, LoginError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|e| DatabaseError::saying(format!("no runtime: {e}")));
        let runtime = runtime.map_err(LoginError::Failed)?;
        let heard = Arc::default();
        match runtime.block_on(connect(config, (host, *port), wanted, &heard)) {
            Ok(client) => {
                let (limit, place, runtime) = (config.lease, place_of(config), Some(runtime));
                Ok(DatabaseLink { client, statements: None, heard, limit, place, runtime })
            }
            Err(error) => {
                // An address look-up may still be pending.
                runtime.shutdown_background();
                Err(error)
            }
        }
    }

    /// Sets up the session, and checks that this database is suitable.
    fn begin(&self, config: &DatabaseConfig) -> Result<(), DatabaseError> {
        self.set_up(config)?;
        let settings = self.settings()?;
        if let Some(refusal) = settings.refusal(config.allow_async) {
            return Err(DatabaseError::saying(refusal));
        }
        if !config.allow_async {
            // Also where it is safe already: a reload of the server's configuration changes it in every
            // session that has not set it.
            self.execute(&format!("SET synchronous_commit = '{}'", settings.safe_commit()))?;
        }
        Ok(())
    }

    /// Sets up the session: every wait has a bound; statements are prepared once, and must not scan whole
    /// tables because the tables were empty at that time. The server does not end a session that rests, if it
    /// knows such a limit (from PostgreSQL 14 on). Functions and operators are those of PostgreSQL, see
    /// [`OWN_NAMES`].
    ///
    /// # Errors
    ///
    /// As [`DatabaseLink::run`].
    pub(super) fn set_up(&self, config: &DatabaseConfig) -> Result<(), DatabaseError> {
        let ms = config.lease.as_millis();
        self.execute(&format!(
            "{OWN_NAMES} \
             SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET jit = off; \
             SET statement_timeout = {ms}; \
             SET lock_timeout = 1000; SET idle_in_transaction_session_timeout = {}; \
             SET client_min_messages = warning; SET default_transaction_isolation = 'read committed'; \
             SELECT set_config(name, '0', false) FROM pg_settings WHERE name = 'idle_session_timeout'",
            ms / 2
        ))
    }

    /// The settings of the server and of this session.
    ///
    /// # Errors
    ///
    /// As [`DatabaseLink::run`].
    pub(super) fn settings(&self) -> Result<ServerSettings, DatabaseError> {
        let rows = self.words(ServerSettings::QUERY)?;
        let settings = rows.into_iter().next().and_then(ServerSettings::of);
        settings.ok_or_else(|| DatabaseError::saying("the server reports no settings"))
    }

    /// The database's place, without a password.
    pub(super) fn place(&self) -> &str {
        &self.place
    }

    /// The error of a start that fails with `error`.
    pub(super) fn failed(&self, error: &DatabaseError) -> OpenError {
        OpenError::Database { place: self.place.clone(), error: error.to_string() }
    }

    /// The client, for use within [`DatabaseLink::run`].
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// The prepared statements.
    ///
    /// # Errors
    ///
    /// No statements are prepared.
    pub(super) fn statements(&self) -> Result<&Statements, DatabaseError> {
        self.statements.as_ref().ok_or_else(|| DatabaseError::saying("no statements are prepared"))
    }

    /// How often the database has reported that it no longer waits for a replica.
    pub(super) fn warnings(&self) -> u64 {
        self.heard.warnings.load(Ordering::Acquire)
    }

    /// Checks that the database has not reported this since the count `since`. In that case it still reports
    /// a commit as a success, although the commit may be on one machine only.
    ///
    /// # Errors
    ///
    /// The database has reported it.
    pub(super) fn unwarned(&self, since: u64) -> Result<(), DatabaseError> {
        if self.warnings() == since {
            return Ok(());
        }
        Err(DatabaseError::saying("the database no longer waits for its synchronous replica"))
    }

    /// Runs `work` within the length of the lease: a later result is of no use.
    ///
    /// # Errors
    ///
    /// The error of the work; the time limit.
    pub(super) fn run<T>(
        &self,
        work: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, DatabaseError> {
        let within = async { tokio::time::timeout(self.limit, work).await };
        let Some(runtime) = &self.runtime else {
            return Err(DatabaseError::saying("the connection is closed"));
        };
        match runtime.block_on(within) {
            Ok(done) => done.map_err(|error| match self.heard.end.get() {
                Some(reason) if error.is_closed() => DatabaseError::saying(reason),
                _ => error.into(),
            }),
            Err(_) => Err(DatabaseError::saying(format!("no answer within {} ms", self.limit.as_millis()))),
        }
    }

    /// Runs statements without a result.
    ///
    /// # Errors
    ///
    /// As [`DatabaseLink::run`].
    pub(super) fn execute(&self, text: &str) -> Result<(), DatabaseError> {
        self.run(self.client.batch_execute(text))
    }

    /// Runs one query.
    ///
    /// # Errors
    ///
    /// As [`DatabaseLink::run`].
    pub(super) fn ask(&self, text: &str) -> Result<Vec<Row>, DatabaseError> {
        self.run(self.client.query(text, &[]))
    }

    /// Runs statements without preparing one, which a pooler can pass on whatever it pools. Returns the
    /// columns of all rows as text; NULL is empty.
    ///
    /// # Errors
    ///
    /// As [`DatabaseLink::run`].
    pub(super) fn words(&self, text: &str) -> Result<Vec<Vec<String>>, DatabaseError> {
        let mut rows = Vec::new();
        for message in self.run(self.client.simple_query(text))? {
            let SimpleQueryMessage::Row(row) = message else { continue };
            let columns = (0..row.len()).map(|n| row.get(n).unwrap_or_default().to_owned());
            rows.push(columns.collect());
        }
        Ok(rows)
    }

    /// Runs one prepared query.
    ///
    /// # Errors
    ///
    /// As [`DatabaseLink::run`].
    pub(super) fn query(
        &self,
        statement: &Statement,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, DatabaseError> {
        self.run(self.client.query(statement, parameters))
    }

    /// Size of the tables in bytes, and whether the server does not wait for its disk at all, which a reload
    /// of its configuration may have changed.
    ///
    /// # Errors
    ///
    /// As [`DatabaseLink::run`].
    pub(super) fn size(&self, schema: &str) -> Result<(u64, bool), DatabaseError> {
        let table = |name| format!("pg_total_relation_size('\"{schema}\".{name}')");
        let all = ["items", "rows", "ended", "shards", "nodes"].map(table).join(" + ");
        let rows = self.ask(&format!("SELECT {all}, current_setting('fsync') = 'off'"))?;
        Ok(rows.first().map_or((0, false), |row| (row.get::<_, i64>(0).unsigned_abs(), row.get(1))))
    }

    /// Writes items of about so many bytes, in a transaction that is undone: bodies that stay in their rows,
    /// and one that does not.
    ///
    /// # Errors
    ///
    /// As [`DatabaseLink::run`].
    pub(super) fn try_write(&self, schema: &str, bytes: u64) -> Result<(), DatabaseError> {
        let rows = bytes / TRIED_BODY + 1;
        // No shard has this number, and no other connection these keys.
        let tried = self.execute(&format!(
            "BEGIN; INSERT INTO \"{schema}\".items (shard, key, head, rest) \
             SELECT -1, int4send(pg_backend_pid()) || int4send(n), ''::bytea, \
             convert_to(repeat('x', {TRIED_BODY}), 'UTF8') FROM generate_series(1, {rows}) n UNION ALL \
             SELECT -1, int4send(pg_backend_pid()) || int4send(0), ''::bytea, \
             string_agg(sha512(int4send(n)), ''::bytea) FROM generate_series(1, 1024) n; ROLLBACK"
        ));
        if tried.is_err() {
            self.execute("ROLLBACK")?;
        }
        tried
    }

    /// Removes some rows of a bucket's earlier epochs, as long as this claim owns the store. Returns their
    /// number.
    ///
    /// # Errors
    ///
    /// As [`DatabaseLink::run`].
    pub(super) fn sweep(
        &self,
        token: &[u8],
        (bucket, epoch): (i16, u64),
        most: i64,
    ) -> Result<u64, DatabaseError> {
        let statements = self.statements()?;
        self.run(self.client.execute(&statements.sweep, &[&bucket, &(epoch as i64), &most, &token]))
    }

    /// Prepares the statement of one round of a membership; see [`prepare_round`].
    ///
    /// # Errors
    ///
    /// [`OpenError::Database`].
    pub(super) fn prepare_round(&self, schema: &str) -> Result<Statement, OpenError> {
        self.run(prepare_round(&self.client, schema)).map_err(|e| self.failed(&e))
    }

    /// Prepares the repeated statements for one shard in the tables of this schema.
    ///
    /// # Errors
    ///
    /// [`OpenError::Database`].
    pub(super) fn prepare(&mut self, schema: &str, shard: u16) -> Result<(), OpenError> {
        let prepared = self.run(Statements::prepare(&self.client, schema, shard));
        self.statements = Some(prepared.map_err(|e| self.failed(&e))?);
        Ok(())
    }
}

/// The error of a start that reaches no host. `errors`: those of [`error_at`].
pub(super) fn not_reached(config: &DatabaseConfig, errors: &[String]) -> OpenError {
    OpenError::Database { place: place_of(config), error: errors.join("; ") }
}

/// An error with the host's name and port.
pub(super) fn error_at((host, port): &(String, u16), error: &LoginError) -> String {
    format!("{host}:{port}: {error}")
}

/// Database and addresses, for messages.
fn place_of(config: &DatabaseConfig) -> String {
    let hosts: Vec<_> = config.hosts.iter().map(|(host, port)| format!("{host}:{port}")).collect();
    format!("`{}` at {}", config.database, hosts.join(", "))
}

/// Connects to one host within [`CONNECT_LIMIT`].
async fn connect(
    config: &DatabaseConfig,
    (host, port): (&str, u16),
    wanted: TargetSessionAttrs,
    heard: &Arc<Heard>,
) -> Result<Client, LoginError> {
    let by = Instant::now() + CONNECT_LIMIT;
    if host.starts_with('/') {
        // The directory of a socket.
        return connect_to(config, (host, port), (&[None], by), wanted, heard).await;
    }
    let found = tokio::time::timeout(CONNECT_LIMIT, tokio::net::lookup_host((host, port))).await;
    let found = found.map_err(|_| LoginError::Silent)?;
    let found = found.map_err(|e| failed_login(format!("error connecting to server: {e}")))?;
    let addresses: Vec<Option<IpAddr>> = found.map(|address| Some(address.ip())).collect();
    connect_to(config, (host, port), (&addresses, by), wanted, heard).await
}

fn failed_login(text: impl Into<String>) -> LoginError {
    LoginError::Failed(DatabaseError::saying(text))
}

/// Connects to the first of a host's addresses that takes the login. Each has an equal part of the time that
/// is left until `by`: the client library tries the next one only after an error, and a silent address gives
/// none.
async fn connect_to(
    config: &DatabaseConfig,
    host: (&str, u16),
    (addresses, by): (&[Option<IpAddr>], Instant),
    wanted: TargetSessionAttrs,
    heard: &Arc<Heard>,
) -> Result<Client, LoginError> {
    let login = login(config, host, wanted);
    let tls = config.tls.then(|| trusting(config.ca_file.as_deref())).transpose();
    let tls = tls.map_err(LoginError::Failed)?;
    let mut error = None;
    for (tried, address) in addresses.iter().enumerate() {
        let mut login = login.clone();
        if let Some(address) = address {
            login.hostaddr(*address);
        }
        let share = by.saturating_duration_since(Instant::now()) / (addresses.len() - tried) as u32;
        let logging_in = log_in(&login, tls.clone(), Arc::clone(heard));
        match tokio::time::timeout(share, logging_in).await {
            Ok(Ok(client)) => return Ok(client),
            Ok(Err(failed)) => error = Some(LoginError::Failed(failed)),
            // A reason says more than silence.
            Err(_) => error = error.or(Some(LoginError::Silent)),
        }
    }
    Err(error.unwrap_or_else(|| failed_login("the host has no address")))
}

/// What a login needs, except for the address.
fn login(
    config: &DatabaseConfig,
    (host, port): (&str, u16),
    wanted: TargetSessionAttrs,
) -> tokio_postgres::Config {
    let mut login = tokio_postgres::Config::new();
    login.host(host).port(port);
    login
        .user(&config.user)
        .dbname(&config.database)
        .application_name("tidegate")
        .target_session_attrs(wanted)
        .tcp_user_timeout(config.lease)
        .keepalives_idle(config.lease)
        .ssl_mode(if config.tls { SslMode::Require } else { SslMode::Disable });
    if let Some(password) = password(config) {
        login.password(password.expose_secret());
    }
    login
}

async fn log_in(
    login: &tokio_postgres::Config,
    tls: Option<ClientConfig>,
    heard: Arc<Heard>,
) -> Result<Client, DatabaseError> {
    if let Some(tls) = tls {
        let (client, connection) = login.connect(MakeRustlsConnect::new(tls)).await?;
        tokio::spawn(drive(connection, heard));
        return Ok(client);
    }
    let (client, connection) = login.connect(NoTls).await?;
    tokio::spawn(drive(connection, heard));
    Ok(client)
}

/// PostgreSQL's function that waits for its synchronous replica: a warning from it means that it no longer
/// waits.
const REPLICA_WAIT: &str = "SyncRepWaitForLSN";
/// Minimum time between two logged warnings; some occur with each transaction.
const WARNING_PAUSE: Duration = Duration::from_secs(60);

/// Drives a connection until it ends, which the next query notices, and keeps the reason. Logs and counts
/// warnings.
async fn drive<T>(mut connection: Connection<Socket, T>, heard: Arc<Heard>)
where
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    let mut logged: Option<Instant> = None;
    while let Some(message) = poll_fn(|context| connection.poll_message(context)).await {
        let notice = match message {
            Ok(AsyncMessage::Notice(notice)) => notice,
            Ok(_) => continue,
            Err(error) => {
                // Before the connection is dropped, at which its queries fail.
                let _first = heard.end.set(DatabaseError::from(error).to_string());
                return;
            }
        };
        let is_doubt = notice.routine() == Some(REPLICA_WAIT);
        if is_doubt {
            heard.warnings.fetch_add(1, Ordering::Release);
        }
        if is_doubt || logged.is_none_or(|at| at.elapsed() >= WARNING_PAUSE) {
            logged = Some(Instant::now());
            tracing::warn!(code = notice.code().code(), "the database warns: {}", notice.message());
        }
    }
}

/// The present password in its file: it may have changed since the start.
fn password(config: &DatabaseConfig) -> Option<secrecy::SecretString> {
    let Some(path) = &config.password_file else { return config.password.clone() };
    match tidegate_config::read_secret(path) {
        Ok(password) => Some(password),
        Err(error) => {
            tracing::warn!(error, "the password file cannot be read again; the password read last is used");
            config.password.clone()
        }
    }
}

/// A TLS configuration; with a CA file it trusts only that CA.
fn trusting(ca_file: Option<&Path>) -> Result<ClientConfig, DatabaseError> {
    let mut roots = RootCertStore::empty();
    let given = match ca_file {
        Some(path) => {
            let unusable = |e: &dyn fmt::Display| {
                DatabaseError::saying(format!("store.ca_file {}: {e}", path.display()))
            };
            let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
            read.map_err(|e| unusable(&e))?
        }
        None => rustls_native_certs::load_native_certs().certs,
    };
    if let (0, _) = roots.add_parsable_certificates(given) {
        return Err(DatabaseError::saying("no certificate authority is trusted: set store.ca_file"));
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions();
    let builder = builder.map_err(|e| DatabaseError::saying(e.to_string()))?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::{Ground, GroundKind};
    use std::net::{Ipv4Addr, TcpListener};

    #[test]
    fn a_silent_address_does_not_keep_the_others_of_its_host_from_being_tried() {
        let Ground::Postgres(ground) = GroundKind::Postgres.bare() else { unreachable!("another ground") };
        let config = ground.config().database.unwrap();
        let port = config.hosts[0].1;
        let address = |last: u8| IpAddr::from(Ipv4Addr::new(127, 0, 0, last));
        // The database listens at the first address. At the second one connections are made, and nothing is
        // said; there is nothing at the third one.
        let _silent = TcpListener::bind((address(2), port)).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let tried = |lasts: [u8; 2]| {
            let addresses = lasts.map(|last| Some(address(last)));
            let (host, by) = (("db.invalid", port), Instant::now() + CONNECT_LIMIT);
            let heard = Arc::default();
            let connecting =
                connect_to(&config, host, (&addresses, by), TargetSessionAttrs::ReadWrite, &heard);
            runtime.block_on(connecting).map(drop)
        };
        assert!(tried([2, 1]).is_ok() && tried([3, 1]).is_ok());
        for nowhere in [[2, 3], [3, 2]] {
            let error = tried(nowhere).expect_err("there is no database");
            assert!(matches!(error, LoginError::Failed(_)), "{nowhere:?}: {error}");
        }
    }
}
