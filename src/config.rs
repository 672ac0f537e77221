//! Configuration: TOML text and environment to raw values to one checked [`Config`], every fault at once.

use crate::engine::types::AppSettings;
use secrecy::SecretString;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// The whole configuration, checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// `[amqp]`.
    pub amqp: Amqp,
    /// `[ingest]`.
    pub ingest: Ingest,
    /// `[egress]`.
    pub egress: Egress,
    /// `[dead]`.
    pub dead: DeadLetters,
    /// `[store]`.
    pub store: Store,
    /// `[limits]`.
    pub limits: Limits,
    /// `[admin]`.
    pub admin: Admin,
    /// `[timeouts]`.
    pub timeouts: Timeouts,
    /// `[defaults]`.
    pub defaults: AppSettings,
    /// `[applications.NAME]`, each laid over the defaults.
    pub applications: BTreeMap<String, AppSettings>,
}

/// One broker address with its login. Never formatted as a URI: a URI type's `Debug` would print the password.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// `amqps`.
    pub tls: bool,
    /// Host name or address, IPv6 without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// Virtual host, decoded.
    pub vhost: String,
    /// User name, decoded.
    pub user: String,
    /// Password, decoded. `SecretString` prints as redacted.
    pub password: SecretString,
}

/// What tidegate does about queues and exchanges at each connect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Topology {
    /// Create what is missing.
    #[default]
    Declare,
    /// Check that it is there.
    Passive,
    /// Neither.
    Off,
}

/// `[amqp]`.
#[derive(Clone, Debug)]
pub struct Amqp {
    /// At least one; tried in turn.
    pub endpoints: Vec<Endpoint>,
    /// See [`Topology`].
    pub topology: Topology,
    /// PEM file with the only CA to trust; `None` = the platform's.
    pub ca_file: Option<PathBuf>,
}

/// `[ingest]`.
#[derive(Clone, Debug)]
pub struct Ingest {
    /// Queue that requests are taken from.
    pub queue: String,
    /// Fanout exchange bound to it.
    pub exchange: String,
    /// Most unacked deliveries.
    pub prefetch: u16,
}

/// `[egress]`.
#[derive(Clone, Debug)]
pub struct Egress {
    /// Direct exchange that batches go to.
    pub exchange: String,
    /// Addresses of the publishing connection: `egress.uri`, else those of `[amqp]`.
    pub endpoints: Vec<Endpoint>,
    /// Most unconfirmed batches.
    pub max_in_flight: usize,
}

/// `[dead]`.
#[derive(Clone, Debug)]
pub struct DeadLetters {
    /// Fanout exchange, with a durable queue of the same name.
    pub exchange: String,
}

/// `store.kind`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoreKind {
    /// Durable, in `store.path`.
    #[default]
    Disk,
    /// Nothing is kept: the broker's unacked message is the copy.
    Memory,
}

/// `[store]`.
#[derive(Clone, Debug)]
pub struct Store {
    /// See [`StoreKind`].
    pub kind: StoreKind,
    /// Directory of the disk store.
    pub path: PathBuf,
    /// Memory: longest own time it takes.
    pub hold_max: Duration,
}

/// `[limits]`.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Bytes.
    pub memory: u64,
    /// Bytes; 0 = no limit of its own.
    pub disk: u64,
    /// Open windows.
    pub customers: u64,
    /// Bytes.
    pub max_body: u64,
    /// Entries of one JSON array.
    pub max_envelope_items: usize,
    /// Furthest own time.
    pub max_delay: Duration,
}

/// `[admin]`.
#[derive(Clone, Debug)]
pub struct Admin {
    /// HTTP listener.
    pub listen: SocketAddr,
    /// Bearer token, read from `token_file`.
    pub token: Option<SecretString>,
}

/// `[timeouts]`: bounds on waits for the broker and on shutdown.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// TCP, TLS and AMQP handshake together, for each address.
    pub connect: Duration,
    /// Oldest unconfirmed publish; then the connection is given up.
    pub confirm: Duration,
    /// Whole budget of a graceful shutdown.
    pub drain: Duration,
}

/// A configuration that may be run, and what is doubtful about it.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// Checked.
    pub config: Config,
    /// Sentences.
    pub warnings: Vec<String>,
}

/// Everything that is wrong with a configuration.
#[derive(Clone, Debug)]
pub struct Faults(Vec<String>);

impl std::fmt::Display for Faults {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

impl Config {
    /// Defaults alone; a file is refused.
    ///
    /// # Errors
    /// When a path is given.
    pub fn load(
        path: Option<&std::path::Path>,
        _env: impl Iterator<Item = (String, String)>,
    ) -> Result<Loaded, Faults> {
        if let Some(path) = path {
            return Err(Faults(vec![format!("{}: files are not read yet", path.display())]));
        }
        let endpoint = Endpoint {
            tls: false,
            host: "127.0.0.1".to_owned(),
            port: 5672,
            vhost: "/".to_owned(),
            user: "guest".to_owned(),
            password: SecretString::from("guest".to_owned()),
        };
        let config = Config {
            amqp: Amqp { endpoints: vec![endpoint.clone()], topology: Topology::Declare, ca_file: None },
            ingest: Ingest {
                queue: "tidegate.ingest".to_owned(),
                exchange: "tidegate.in".to_owned(),
                prefetch: 10_000,
            },
            egress: Egress {
                exchange: "tidegate.out".to_owned(),
                endpoints: vec![endpoint],
                max_in_flight: 1_000,
            },
            dead: DeadLetters { exchange: "tidegate.dead".to_owned() },
            store: Store {
                kind: StoreKind::Disk,
                path: PathBuf::from("/var/lib/tidegate"),
                hold_max: Duration::from_secs(25 * 60),
            },
            limits: Limits {
                memory: 256 << 20,
                disk: 0,
                customers: 100_000,
                max_body: 8 << 20,
                max_envelope_items: 10_000,
                max_delay: Duration::from_secs(3_650 * 86_400),
            },
            admin: Admin { listen: SocketAddr::from(([127, 0, 0, 1], 9380)), token: None },
            timeouts: Timeouts {
                connect: Duration::from_secs(10),
                confirm: Duration::from_secs(60),
                drain: Duration::from_secs(30),
            },
            defaults: AppSettings::default(),
            applications: BTreeMap::new(),
        };
        Ok(Loaded { config, warnings: Vec::new() })
    }
}
