//! The environment of one test: broker names that no other test uses, its directory, its configuration.

use crate::broker::Node;
use crate::client::{Client, Inbox};
use crate::daemon::{Config, Daemon};
use crate::database::{self, Database};
use crate::guard::workdir;
use crate::message::Push;
use crate::oracle::{Ledger, Load};
use lapin::types::FieldTable;
use lapin::ExchangeKind;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

/// See the module. Queues and exchanges remain until the node ends.
pub struct Site<'n> {
    /// The broker.
    pub node: &'n Node,
    /// A client for the test.
    pub client: Client,
    /// The test's directory, with the store in `store`.
    pub dir: PathBuf,
    prefix: String,
    schema: String,
    shards: u16,
}

impl<'n> Site<'n> {
    /// A site on the shared broker.
    pub fn new(name: &str) -> Site<'static> {
        Site::on(Node::shared(), name)
    }

    /// A site on this broker.
    pub fn on(node: &'n Node, name: &str) -> Site<'n> {
        crate::bounds::enter();
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("tgt.{}.{n}.{name}", std::process::id());
        let schema = format!("site_{}_{n}", std::process::id());
        Site { node, client: Client::connect(node.uri()), dir: workdir(name), prefix, schema, shards: 1 }
    }

    /// The same, with this number of shards in its configuration.
    #[must_use]
    pub fn divided(self, shards: u16) -> Self {
        Site { shards, ..self }
    }

    /// Name of the ingest queue.
    pub fn ingest_queue(&self) -> String {
        format!("{}.ingest", self.prefix)
    }

    /// Name of the queue of a shard.
    pub fn shard_queue(&self, shard: u16) -> String {
        format!("{}.{shard}", self.ingest_queue())
    }

    /// Name of the exchange whose bindings lead each application to its shard.
    pub fn map_exchange(&self) -> String {
        format!("{}.apps", self.prefix)
    }

    /// Name of the exchange of what that one has no binding for.
    pub fn unmapped_exchange(&self) -> String {
        format!("{}.new", self.prefix)
    }

    /// Name of the exchange by which the nodes of a database ask each other.
    pub fn control_exchange(&self) -> String {
        format!("{}.control", self.prefix)
    }

    /// Name of the ingest exchange.
    pub fn ingest(&self) -> String {
        format!("{}.in", self.prefix)
    }

    /// Name of the output exchange.
    pub fn out(&self) -> String {
        format!("{}.out", self.prefix)
    }

    /// Name of the dead-letter exchange and queue.
    pub fn dead(&self) -> String {
        format!("{}.dead", self.prefix)
    }

    /// Name of an application's queue.
    pub fn queue(&self, application: &str) -> String {
        format!("{}.app.{application}", self.prefix)
    }

    /// The configuration with the site's names, broker, store and shards, a window of 200 ms, and otherwise the
    /// defaults. The store is on disk, or in the shared database if `TIDEGATE_TEST_STORE` says so.
    pub fn config(&self) -> Config {
        let config = self.plain_config();
        match database::is_meant().then(Database::shared) {
            None => config,
            Some(server) => self.in_database(config, server.expect("a database for the tests' stores")),
        }
    }

    /// The configuration with the store in the site's schema of this database.
    pub fn in_database(&self, config: Config, server: &Database) -> Config {
        config
            .text("store.kind", "postgres")
            .text("store.uri", &server.uri())
            .text("store.schema", &self.schema)
            .set("store.allow_async", "true")
    }

    /// Name of the site's schema.
    pub fn schema(&self) -> &str {
        &self.schema
    }

    fn plain_config(&self) -> Config {
        let config = Config::default()
            .text("amqp.uri", self.node.uri())
            .text("ingest.queue", &self.ingest_queue())
            .text("ingest.exchange", &self.ingest())
            .text("egress.exchange", &self.out())
            .text("dead.exchange", &self.dead())
            .text("store.path", &self.dir.join("store").to_string_lossy())
            .text("defaults.window", "200ms");
        match self.shards {
            1 => config,
            count => config.set("shards.count", &count.to_string()),
        }
    }

    /// Starts a daemon with this configuration and waits until it is ready.
    pub fn start(&self, config: &Config) -> Daemon {
        Daemon::start(config, &self.dir).ready()
    }

    /// Declares an application's queue and binds it to the output exchange, which is created if needed.
    pub fn application(&self, application: &str) {
        self.application_with(application, FieldTable::default());
    }

    /// As [`Site::application`], with queue arguments.
    pub fn application_with(&self, application: &str, arguments: FieldTable) {
        self.client.exchange(&self.out(), ExchangeKind::Direct);
        self.client.queue(&self.queue(application), arguments);
        self.client.bind(&self.queue(application), &self.out(), application);
    }

    /// Declares an application's queue and consumes it.
    pub fn inbox(&self, application: &str) -> Inbox {
        self.application(application);
        self.client.consume(&self.queue(application))
    }

    /// Waits until the queue has this many ready messages; see [`Client::lies`].
    pub fn lies(&self, queue: &str, count: u32) {
        self.client.lies(queue, count);
    }

    /// Consumes the dead-letter queue, which the daemon has declared.
    pub fn dead_inbox(&self) -> Inbox {
        self.client.consume(&self.dead())
    }

    /// A request for an application, named by the routing key.
    pub fn push(&self, application: &str, body: impl Into<Vec<u8>>) -> Push {
        Push::new(&self.ingest(), application, body)
    }

    /// Windowed, timed (up to 2 s) and immediate requests for the application `shop`, at a steady rate.
    pub fn load(&self, ledger: &Arc<Ledger>, per_second: u64) -> Load {
        self.load_named("r", ledger, per_second)
    }

    /// The same, with ids that begin with `name`.
    pub fn load_named(&self, name: &str, ledger: &Arc<Ledger>, per_second: u64) -> Load {
        let (exchange, name) = (self.ingest(), name.to_owned());
        let recipe = move |n: u64| {
            let push = Push::new(&exchange, "shop", n.to_string()).id(&format!("{name}{n}"));
            let customer = format!("c{}", n % 40);
            match n % 4 {
                0 => (push, "shop".to_owned(), None, None),
                1 => {
                    let delay = n * 37 % 2000;
                    let push = push.delay(i64::try_from(delay).unwrap_or(0)).customer(&customer);
                    (push, "shop".to_owned(), Some(customer), Some(delay))
                }
                _ => (push.customer(&customer), "shop".to_owned(), Some(customer), None),
            }
        };
        Load::start(self.node.uri(), per_second, ledger, Box::new(recipe))
    }
}
