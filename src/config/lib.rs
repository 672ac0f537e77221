//! Configuration: TOML text and environment become raw values and then one checked [`Config`], with every
//! fault reported at once.
//!
//! `tree` holds what is written, with its places; `section` reads it key by key through the seeds of `units`;
//! `read`, `login` and `application` know every key, its bounds, and the rules between keys. Defaults are
//! defined here and nowhere else.
//!
//! Deliberately absent: connections to a broker, and access to the store's directory. A configuration is
//! judged by itself and by the files that it names.

pub mod advice;
mod application;
mod copies;
mod database;
mod finding;
mod limits;
mod listen;
mod login;
mod read;
mod reading;
mod reload;
pub mod rfc3339;
mod schema;
mod secret;
mod section;
mod shards;
mod show;
mod surroundings;
pub mod terms;
mod tls;
mod tree;
mod units;
mod uri;

pub use copies::{event_name, is_event_member, CopiedProperty, Copies};
pub use database::USUAL_SCHEMA;
pub use finding::{Faults, Finding, Location};
pub use listen::{Listen, UNIX_SCHEME};
pub use reading::{DelayFrom, Reading, Readings, Redeliver};
pub use reload::needs_restart;
pub use schema::schema;
pub use shards::{shard_path, ShardsConfig};
pub use tls::{Login, OwnCertificate, Tls};
pub use units::span;

use secrecy::SecretString;
use std::collections::BTreeMap;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tidegate_types::{AppSettings, Budget, Settings, Thresholds};

/// A valid configuration and its warnings.
#[derive(Clone, Debug)]
pub struct LoadedConfig {
    /// The valid configuration.
    pub config: Config,
    /// Warnings sorted by line; each one should be logged.
    pub warnings: Vec<Finding>,
}

/// The environment for [`Config::load`]. A variable that is not UTF-8 is marked as such, so that an
/// unreadable override is a fault and not a panic.
pub fn environment() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os().map(|(k, v)| (k.to_string_lossy().into_owned(), v.to_string_lossy().into_owned()))
}

/// A password or token as its file contains it now, without one newline at its end.
///
/// # Errors
/// A sentence that names the file: it cannot be read, is empty, too long, or not one line of text.
pub fn read_secret(path: &Path) -> Result<SecretString, String> {
    secret::read(path).map(|secret| secret.text)
}

/// Every key with its default and meaning; a test compares it with the code.
pub const SAMPLE: &str = include_str!("../../config.example.toml");

/// Paths of all keys, except those of `[applications.NAME]`, which are the ones of `[defaults]`.
pub fn keys() -> Vec<String> {
    shapes().into_keys().collect()
}

/// The same paths with the values that each takes, as JSON Schema.
fn shapes() -> BTreeMap<String, serde_json::Value> {
    let findings = section::Findings::default();
    let _ = read::config(&tree::Table::new(), &findings, &surroundings::Surroundings::default());
    findings.keys.take()
}

impl Config {
    /// Reads the file, applies the `TIDEGATE__SECTION__KEY` variables, and checks the result. Without a file:
    /// defaults and environment. `CREDENTIALS_DIRECTORY` (set by systemd) is read from `env`, too.
    ///
    /// # Errors
    /// Every fault at once. Syntax faults are reported alone, because the text after one cannot be trusted.
    pub fn load(
        path: Option<&Path>,
        env: impl Iterator<Item = (String, String)>,
    ) -> Result<LoadedConfig, Faults> {
        Written::read(path, env, tree::PREFIX)?.judge()
    }

    /// The configuration of another daemon than that of [`Config::load`]: variables of this process are not
    /// meant for it, except the directory of credentials.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn load_of_another(path: &Path) -> Result<LoadedConfig, Faults> {
        Config::load(Some(path), environment().filter(|(name, _)| name == CREDENTIALS))
    }

    /// The settings that a command needs to query the daemon: `[admin]` alone, so that its user needs no
    /// right to read the broker's password. `with_token`: whether `admin.token_file` is read; otherwise
    /// `token` is `None`. `read_token` is always `None`, since the full token permits reading, too.
    ///
    /// # Errors
    /// Every fault of `[admin]`, or the file's syntax. Other sections are not checked.
    pub fn load_admin(
        path: Option<&Path>,
        env: impl Iterator<Item = (String, String)>,
        with_token: bool,
    ) -> Result<Admin, Faults> {
        let written = Written::read(path, env, "TIDEGATE__ADMIN__")?;
        let findings = section::Findings::default();
        let (tree, around) = written.laid_over(&findings)?;
        let admin = read::admin_of_client(&tree, &findings, &around, with_token);
        let mut faults = findings.faults.take();
        faults.sort();
        if faults.is_empty() {
            Ok(admin)
        } else {
            Err(Faults(faults))
        }
    }

    /// The settings for the engine.
    pub fn engine_settings(&self) -> Settings {
        let hold_max = match self.store.kind {
            StoreKind::Disk | StoreKind::Postgres => None,
            StoreKind::Memory => Some(self.store.hold_max.as_millis() as u64),
        };
        Settings {
            defaults: Arc::new(self.defaults.clone()),
            applications: self.applications.iter().map(|(k, v)| (k.clone(), Arc::new(v.clone()))).collect(),
            hold_max,
            max_delay: self.limits.max_delay.as_millis() as u64,
            budget: Budget::of(self.limits.memory),
            customers: self.limits.customers,
            max_applications: self.limits.applications,
            max_in_flight: self.egress.max_in_flight,
            max_in_flight_bytes: MAX_IN_FLIGHT_BYTES.min(self.limits.memory / 8),
            thresholds: Thresholds::default(),
        }
    }
}

/// Set by systemd: the directory of the service's credentials.
const CREDENTIALS: &str = "CREDENTIALS_DIRECTORY";

/// A configuration as written: the file, and the variables in an order in which they can be applied.
struct Written {
    file: Option<File>,
    env: Vec<(String, String)>,
}

impl Written {
    /// The variables that begin with `prefix`, and the directory of credentials.
    fn read(
        path: Option<&Path>,
        env: impl Iterator<Item = (String, String)>,
        prefix: &str,
    ) -> Result<Self, Faults> {
        let mut env: Vec<(String, String)> =
            env.filter(|(name, _)| name.starts_with(prefix) || name == CREDENTIALS).collect();
        // RETRY sorts before RETRY__MIN, so that a whole table never hides one of its keys.
        env.sort();
        let file = path.map(File::read).transpose().map_err(|fault| Faults(vec![fault]))?;
        Ok(Written { file, env })
    }

    fn judge(&self) -> Result<LoadedConfig, Faults> {
        let findings = section::Findings::default();
        let (tree, around) = self.laid_over(&findings)?;
        let config = read::config(&tree, &findings, &around);
        let (mut faults, mut warnings) = (findings.faults.take(), findings.warnings.take());
        faults.sort();
        warnings.sort();
        if faults.is_empty() {
            Ok(LoadedConfig { config, warnings })
        } else {
            Err(Faults(faults))
        }
    }

    /// The file with the variables applied, and the facts from the rest of the environment.
    fn laid_over(
        &self,
        findings: &section::Findings,
    ) -> Result<(tree::Table<'_>, surroundings::Surroundings), Faults> {
        let mut tree = match &self.file {
            None => tree::Table::new(),
            Some(f) => tree::parse(&f.text, &f.path).map_err(Faults)?,
        };
        let file_exposed = self.file.as_ref().is_some_and(|f| f.exposed);
        let mut around = surroundings::Surroundings { file_exposed, credentials: None };
        for (name, value) in &self.env {
            if name == CREDENTIALS {
                around.credentials = (!value.is_empty()).then(|| value.into());
            } else if let Err(fault) = tree::overlay(&mut tree, name, value) {
                findings.faults.borrow_mut().push(fault);
            }
        }
        Ok((tree, around))
    }
}

/// Most bytes of unconfirmed batches. lapin holds them twice, and a lost connection repeats them.
const MAX_IN_FLIGHT_BYTES: u64 = 32 << 20;

/// More than any configuration has; a device or log given by mistake is not read whole.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// The configuration file.
struct File {
    path: Arc<Path>,
    text: String,
    /// Users other than the owner may read the file.
    exposed: bool,
}

impl File {
    fn read(path: &Path) -> Result<File, Finding> {
        let shared: Arc<Path> = path.into();
        let fault = |line: usize, text: String| Finding {
            place: Location::File { line, path: shared.clone() },
            key: String::new(),
            text,
        };
        let unreadable = |e: std::io::Error| fault(0, format!("cannot be read: {e}"));
        let file = std::fs::File::open(path).map_err(unreadable)?;
        let mode = file.metadata().map_err(unreadable)?.permissions().mode();
        let mut bytes = Vec::new();
        file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)?;
        if bytes.len() as u64 > MAX_FILE_BYTES {
            return Err(fault(0, format!("holds more than {}", units::size(MAX_FILE_BYTES))));
        }
        let text = String::from_utf8(bytes).map_err(|e| {
            let good = &e.as_bytes()[..e.utf8_error().valid_up_to()];
            fault(1 + good.iter().filter(|&&b| b == b'\n').count(), "is not UTF-8".into())
        })?;
        Ok(File { path: shared, text, exposed: mode & 0o044 != 0 })
    }
}

/// The complete, checked configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// Addresses, topology and heartbeat.
    pub amqp: AmqpConfig,
    /// Source of the requests.
    pub ingest: IngestConfig,
    /// Destination of the batches.
    pub egress: EgressConfig,
    /// Destination of dead letters.
    pub dead: DeadLetters,
    /// Kind and place of the store.
    pub store: StoreConfig,
    /// Number of engines.
    pub shards: ShardsConfig,
    /// Limits of the whole daemon; in the configuration of one shard, its part of them.
    pub limits: LimitsConfig,
    /// Listener and tokens of the admin port.
    pub admin: Admin,
    /// Time limits of single operations.
    pub timeouts: Timeouts,
    /// Settings of applications without their own table.
    pub defaults: AppSettings,
    /// `[applications.NAME]`, each on top of the defaults.
    pub applications: BTreeMap<String, AppSettings>,
    /// Collector of the spans of published batches: an OTLP endpoint, `http://HOST:PORT`.
    pub otlp_endpoint: Option<String>,
    /// How requests are read, by application.
    pub readings: Arc<Readings>,
}

/// One broker address with its login. It is never formatted as a URI: the `Debug` of a URI type would print
/// the password.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// The scheme is `amqps`, with these trust settings; `None`: it is `amqp`.
    pub tls: Option<Arc<Tls>>,
    /// How tidegate authenticates.
    pub login: Login,
    /// Host name or address, IPv6 without brackets.
    pub host: String,
    /// TCP port; 5672 or 5671 unless given.
    pub port: u16,
    /// Virtual host, decoded.
    pub vhost: String,
    /// User name, decoded.
    pub user: String,
    /// Password, decoded. `SecretString` prints as redacted.
    pub password: SecretString,
    /// The file with the password, which is read again at each connect.
    pub password_file: Option<PathBuf>,
}

/// What tidegate does about queues and exchanges at each connect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Topology {
    /// Creates what is missing.
    #[default]
    Declare,
    /// Checks that everything exists.
    Passive,
    /// Neither checks nor declares.
    Off,
}

/// Section `[amqp]`: the connection to the brokers.
#[derive(Clone, Debug)]
pub struct AmqpConfig {
    /// At least one address; tried in turn.
    pub endpoints: Vec<Endpoint>,
    /// What is declared or checked at each connect.
    pub topology: Topology,
    /// Trust settings for addresses that begin with `amqps`.
    pub tls: Arc<Tls>,
    /// Whole seconds, 1 to 600. Both sides close a connection that is silent for about twice as long.
    pub heartbeat: Duration,
    /// Largest frame to request, bytes; a header table has to fit in one. The broker may allow less.
    pub frame_max: u32,
}

/// Section `[ingest]`: the source of requests.
#[derive(Clone, Debug)]
pub struct IngestConfig {
    /// The queue that is consumed.
    pub queue: String,
    /// Fanout exchange bound to it. Empty in the configuration of one shard of several, and never otherwise:
    /// no exchange leads to a shard's queue.
    pub exchange: String,
    /// Most unacked deliveries.
    pub prefetch: u16,
}

/// Section `[egress]`: the destination of batches.
#[derive(Clone, Debug)]
pub struct EgressConfig {
    /// The direct exchange for batches.
    pub exchange: String,
    /// Addresses of the publishing connection: `egress.uri`, else those of `[amqp]`.
    pub endpoints: Vec<Endpoint>,
    /// Trust settings for this connection.
    pub tls: Arc<Tls>,
    /// Most unconfirmed batches.
    pub max_in_flight: usize,
}

/// Section `[dead]`: the destination of dead letters.
#[derive(Clone, Debug)]
pub struct DeadLetters {
    /// Name of the fanout exchange.
    pub exchange: String,
    /// The queue that holds dead letters.
    pub queue: DeadQueue,
}

impl DeadLetters {
    /// Name of the dead-letter queue; `None` if it is not known.
    pub fn queue_name(&self) -> Option<&str> {
        match (&*self.queue.name, self.queue.kind) {
            ("", DeadQueueKind::None) => None,
            ("", DeadQueueKind::Quorum | DeadQueueKind::Classic) => Some(&self.exchange),
            (name, _) => Some(name),
        }
    }
}

/// Section `[dead.queue]`: the queue bound to the dead exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadQueue {
    /// The name; empty: that of the exchange.
    pub name: String,
    /// The type to declare.
    pub kind: DeadQueueKind,
    /// Most dead letters in it; 0: no limit.
    pub max_length: u64,
    /// Most bytes of bodies in it; 0: no limit.
    pub max_bytes: u64,
    /// For a queue that tidegate did not declare: most returns after which a dead letter may still be read;
    /// 0: any number.
    pub max_looks: u64,
}

/// Values of `dead.queue.type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeadQueueKind {
    /// Replicated on the nodes of a cluster.
    Quorum,
    /// On one node.
    Classic,
    /// None is declared; an operator has bound one.
    None,
}

/// Values of `store.kind`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoreKind {
    /// Durable, in `store.path`.
    #[default]
    Disk,
    /// Nothing is stored: the broker's unacked message is the copy.
    Memory,
    /// Durable, in a database that may be on another machine.
    Postgres,
}

impl StoreKind {
    /// The value of `store.kind`.
    pub fn as_str(self) -> &'static str {
        match self {
            StoreKind::Disk => "disk",
            StoreKind::Memory => "memory",
            StoreKind::Postgres => "postgres",
        }
    }
}

/// Section `[store]`: the place of items.
#[derive(Clone, Debug)]
pub struct StoreConfig {
    /// Disk, database, or memory only.
    pub kind: StoreKind,
    /// Directory of the disk store; with a database, of the files that identify this daemon.
    pub path: PathBuf,
    /// Memory store: the longest own time that it accepts.
    pub hold_max: Duration,
    /// Present with [`StoreKind::Postgres`] only.
    pub database: Option<DatabaseConfig>,
}

/// The database that holds the store.
#[derive(Clone, Debug)]
pub struct DatabaseConfig {
    /// Host name, address or directory of a socket, each with its port; tried in turn. At least one.
    pub hosts: Vec<(String, u16)>,
    /// Name of the role.
    pub user: String,
    /// Password of the role. `SecretString` prints as redacted.
    pub password: Option<SecretString>,
    /// The file with the password, which is read again at each connect.
    pub password_file: Option<PathBuf>,
    /// Name of the database.
    pub database: String,
    /// Whether the connection is encrypted and the server's certificate checked.
    pub tls: bool,
    /// PEM file with trusted authorities; `None`: those of the operating system.
    pub ca_file: Option<PathBuf>,
    /// Schema of the tables: a plain name.
    pub schema: String,
    /// How long the store belongs to this daemon after each commit.
    pub lease: Duration,
    /// Accepts that commits may be lost with the database's machine.
    pub allow_async: bool,
}

/// Section `[limits]`: limits of the whole daemon.
#[derive(Clone, Debug)]
pub struct LimitsConfig {
    /// Upper bound on items in memory, bytes.
    pub memory: u64,
    /// Disk space in bytes; 0: no limit.
    pub disk: u64,
    /// Upper bound on open windows.
    pub customers: u64,
    /// Most applications with items.
    pub applications: u64,
    /// Upper bound on a message's body, bytes.
    pub max_body: u64,
    /// Most entries of one JSON array.
    pub max_envelope_items: usize,
    /// The furthest own time.
    pub max_delay: Duration,
}

/// Section `[admin]`: the HTTP listener.
#[derive(Clone, Debug)]
pub struct Admin {
    /// Address of the HTTP listener, if there is one.
    pub listen: Listen,
    /// Bearer token for everything, read from `token_file`.
    pub token: Option<SecretString>,
    /// Bearer token for reading, read from `read_token_file`; only beside `token`.
    pub read_token: Option<SecretString>,
    /// Bearer token for the state and the metrics, read from `state_token_file`; only beside `token`.
    pub state_token: Option<SecretString>,
}

/// `[timeouts]`: bounds on waits for the broker and on shutdown.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// TCP, TLS and AMQP handshake together, for each address.
    pub connect: Duration,
    /// Age of the oldest unconfirmed publish at which its channel is given up; ten times this for one that is
    /// alone on its channel.
    pub confirm: Duration,
    /// Time limit of a graceful stop.
    pub drain: Duration,
    /// A part with work that makes no progress for this long is stuck; after twice this time it is dead.
    pub stuck_after: Duration,
}

impl Default for Config {
    /// The built-in defaults, which an empty file gives.
    fn default() -> Self {
        let amqp = AmqpConfig::default();
        Config {
            egress: EgressConfig {
                exchange: "tidegate.out".into(),
                endpoints: amqp.endpoints.clone(),
                tls: Arc::default(),
                max_in_flight: 1_000,
            },
            amqp,
            ingest: IngestConfig {
                queue: "tidegate.ingest".into(),
                exchange: "tidegate.in".into(),
                prefetch: 10_000,
            },
            dead: DeadLetters {
                exchange: "tidegate.dead".into(),
                queue: DeadQueue {
                    name: String::new(),
                    kind: DeadQueueKind::Quorum,
                    max_length: 1_000_000,
                    max_bytes: 4 << 30,
                    max_looks: 10,
                },
            },
            store: StoreConfig {
                kind: StoreKind::Disk,
                path: "/var/lib/tidegate".into(),
                hold_max: Duration::from_secs(25 * 60),
                database: None,
            },
            shards: ShardsConfig { count: 1 },
            limits: LimitsConfig {
                memory: 256 << 20,
                disk: 0,
                customers: 100_000,
                applications: 100_000,
                max_body: 8 << 20,
                max_envelope_items: 10_000,
                max_delay: Duration::from_secs(3_650 * 86_400),
            },
            admin: Admin {
                listen: Listen::Tcp(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9380)),
                token: None,
                read_token: None,
                state_token: None,
            },
            timeouts: Timeouts {
                connect: Duration::from_secs(10),
                confirm: Duration::from_secs(30),
                drain: Duration::from_secs(20),
                stuck_after: Duration::from_secs(30),
            },
            defaults: AppSettings::default(),
            applications: BTreeMap::new(),
            otlp_endpoint: None,
            readings: Arc::default(),
        }
    }
}

impl Default for AmqpConfig {
    fn default() -> Self {
        let guest = Endpoint {
            tls: None,
            login: Login::Password,
            host: "127.0.0.1".into(),
            port: 5672,
            vhost: "/".into(),
            user: "guest".into(),
            password: "guest".to_owned().into(),
            password_file: None,
        };
        AmqpConfig {
            endpoints: vec![guest],
            topology: Topology::Declare,
            tls: Arc::default(),
            heartbeat: Duration::from_secs(10),
            frame_max: 128 << 10,
        }
    }
}
