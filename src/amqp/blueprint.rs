//! The objects that tidegate needs on the broker and the permissions of each login, as data.
//!
//! [`super::topology`] declares them; `tidegate topology print` prints them for operators who let tidegate
//! declare nothing.

use tidegate_config::{Config, DeadLetters, DeadQueueKind, StoreKind, Topology};
use tidegate_wire::home;

const LOCK_PREFIX: &str = "tidegate.lock.";
/// How the names begin that the broker makes up for queues.
pub(crate) const MADE_UP: &str = "amq.gen-";
/// Longest name of a queue or exchange, bytes.
const MAX_NAME: usize = 255;
/// Returns of one message to the ingest queue before the broker moves it to the dead exchange.
const DELIVERY_LIMIT: i64 = 50;
/// The same for dead letters, which return to the queue after each look at them, and which the broker would
/// drop at the limit: more returns than there will ever be. Without a limit RabbitMQ 4 drops after 20
/// returns, and a limit of -1, its word for none, makes 3.10 drop at the first.
const LOOKS_LIMIT: i64 = 1_000_000_000;

/// Value of a queue's argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Argument {
    /// A long string.
    Text(String),
    /// A signed 64-bit number.
    Number(i64),
}

/// The names that both sides use.
#[derive(Clone, Debug)]
pub struct Names {
    /// The ingest queue.
    pub queue: String,
    /// The queues of the shards; empty with a single one.
    pub shards: Vec<String>,
    /// The way of requests to the queues of the shards; `None` with a single one.
    pub map: Option<RequestMap>,
    /// With a single one: what several ones would have on the broker, and may have left there; `None` if that
    /// cannot be, since its names are too long, or those of other objects.
    pub left: Option<RequestMap>,
    /// The exchange by which the nodes of a database ask each other; `None` if there are no others.
    pub control: Option<String>,
    /// With a single shard in a database: the same of several ones, which may have left it.
    pub left_control: Option<String>,
    /// The exchange of requests; empty where none leads to the ingest queue, as with that of one shard.
    pub ingest: String,
    /// The exchange of batches.
    pub egress: String,
    /// Exchange and queue of dead letters.
    pub dead: DeadLetters,
}

/// How requests come to the queues of several shards. The exchange of requests leads to a direct one, which
/// has a binding for each configured application. What it has no binding for goes to its alternate exchange,
/// and so to the ingest queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestMap {
    /// The direct exchange.
    pub exchange: String,
    /// Its alternate exchange.
    pub unmapped: String,
    /// The configured applications, by name.
    pub applications: Vec<String>,
}

impl RequestMap {
    fn of(config: &Config) -> Self {
        RequestMap {
            exchange: config.map_exchange(),
            unmapped: config.unmapped_exchange(),
            applications: config.applications.keys().cloned().collect(),
        }
    }

    /// Whether these two could be the exchanges of several shards of this configuration, with which it is
    /// checked, and with a single one not.
    fn is_possible(&self, config: &Config) -> bool {
        [&self.exchange, &self.unmapped].iter().all(|name| is_free(name, config))
    }
}

/// Whether several shards could have an exchange of this name beside those of the configuration of a node.
fn is_free(name: &str, config: &Config) -> bool {
    let others = [&config.ingest.exchange, &config.egress.exchange, &config.dead.exchange];
    !config.ingest.exchange.is_empty() && name.len() <= MAX_NAME && others.iter().all(|other| **other != name)
}

impl Names {
    /// The names of a configuration: of a node with its shards, or of one shard.
    pub fn of(config: &Config) -> Names {
        let shards = config.shard_queues();
        let control = Some(config.control_exchange());
        let is_left = |name: &String| config.store.kind == StoreKind::Postgres && is_free(name, config);
        Names {
            control: control.clone().filter(|_| !shards.is_empty() && config.is_shared()),
            left_control: control.filter(|name| shards.is_empty() && is_left(name)),
            map: (!shards.is_empty()).then(|| RequestMap::of(config)),
            left: shards.is_empty().then(|| RequestMap::of(config)).filter(|left| left.is_possible(config)),
            shards,
            queue: config.ingest.queue.clone(),
            ingest: config.ingest.exchange.clone(),
            egress: config.egress.exchange.clone(),
            dead: config.dead.clone(),
        }
    }

    /// The queue of a shard, or of the consumer of the ingest queue.
    pub(crate) fn queue_of(&self, own: Option<u16>) -> &str {
        own.and_then(|own| self.shards.get(usize::from(own))).unwrap_or(&self.queue)
    }

    /// The configured applications of this shard, with true, and of all others.
    pub(crate) fn mapped_to(&self, shard: u16) -> impl Iterator<Item = (&str, bool)> {
        let count = u16::try_from(self.shards.len()).unwrap_or(u16::MAX);
        let all = self.map.iter().flat_map(|map| &map.applications);
        all.map(move |application| (application.as_str(), home(application, count) == shard))
    }

    /// All queues with requests: the ingest queue, then those of the shards.
    pub fn request_queues(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.queue).chain(&self.shards).map(String::as_str)
    }
}

/// How an exchange routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routing {
    /// By routing key.
    Direct,
    /// To every bound queue.
    Fanout,
}

impl Routing {
    /// As RabbitMQ names it.
    pub fn as_str(self) -> &'static str {
        match self {
            Routing::Direct => "direct",
            Routing::Fanout => "fanout",
        }
    }
}

/// A durable object on the broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Declared {
    /// A durable exchange.
    Exchange {
        /// Its name on the broker.
        name: String,
        /// How it routes.
        kind: Routing,
        /// The exchange of the messages that it has no binding for.
        alternate: Option<String>,
    },
    /// A durable queue.
    Queue {
        /// Its name on the broker.
        name: String,
        /// The arguments of its declaration.
        arguments: Vec<(&'static str, Argument)>,
    },
    /// A binding to a queue.
    Binding {
        /// The exchange it leads from.
        exchange: String,
        /// The queue it leads to.
        queue: String,
        /// Its routing key; empty where the exchange has no use for one.
        key: String,
    },
    /// A binding of one exchange to another, without a routing key.
    ExchangeBinding {
        /// The exchange it leads from.
        source: String,
        /// The exchange it leads to.
        destination: String,
    },
}

/// An exchange without an alternate one.
fn exchange(name: &str, kind: Routing) -> Declared {
    Declared::Exchange { name: name.to_owned(), kind, alternate: None }
}

/// A binding without a routing key.
fn binding(exchange: &str, queue: &str) -> Declared {
    let (exchange, queue) = (exchange.to_owned(), queue.to_owned());
    Declared::Binding { exchange, queue, key: String::new() }
}

/// Permissions of a login in its virtual host, as regular expressions over names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rights {
    /// What it may declare.
    pub configure: String,
    /// Where it may publish.
    pub write: String,
    /// What it may consume and bind.
    pub read: String,
}

/// Requests: where they are published, and where they are consumed from. In the order of creation, as are all
/// lists here.
pub fn ingest(names: &Names) -> Vec<Declared> {
    let mut all = vec![request_queue(names, None)];
    all.extend(request_exchange(names));
    match &names.map {
        None => all.extend(direct_way(names)),
        Some(map) => {
            all.extend(map_way(names, map));
            for shard in 0..u16::try_from(names.shards.len()).unwrap_or(u16::MAX) {
                all.push(request_queue(names, Some(shard)));
                let own = names.mapped_to(shard).filter(|(_, is_own)| *is_own);
                all.extend(own.map(|(application, _)| mapped(names, map, shard, application)));
            }
        }
    }
    all.extend(names.control.as_deref().map(control));
    all
}

/// Where the nodes of a database ask each other. Each binds a queue of its own connection by its name.
pub(crate) fn control(name: &str) -> Declared {
    exchange(name, Routing::Direct)
}

/// The queue of a shard, or of the consumer of the ingest queue.
pub(crate) fn request_queue(names: &Names, own: Option<u16>) -> Declared {
    let text = |value: &str| Argument::Text(value.to_owned());
    let arguments = vec![
        ("x-queue-type", text("quorum")),
        ("x-dead-letter-exchange", text(&names.dead.exchange)),
        ("x-dead-letter-strategy", text("at-least-once")),
        ("x-overflow", text("reject-publish")),
        ("x-delivery-limit", Argument::Number(DELIVERY_LIMIT)),
    ];
    Declared::Queue { name: names.queue_of(own).to_owned(), arguments }
}

/// Where producers publish, if anything leads from there to the queue.
pub(crate) fn request_exchange(names: &Names) -> Option<Declared> {
    (!names.ingest.is_empty()).then(|| exchange(&names.ingest, Routing::Fanout))
}

/// The way of all requests to the ingest queue.
pub(crate) fn direct_way(names: &Names) -> Option<Declared> {
    (!names.ingest.is_empty()).then(|| binding(&names.ingest, &names.queue))
}

/// The keys with which the direct way may have been bound: some clients take the name of the queue where none
/// is given.
pub(crate) fn direct_keys(names: &Names) -> [&str; 2] {
    ["", &names.queue]
}

/// The ways by the map. At no moment of their creation is a request without a way, or in two queues: a queue
/// gets a message once, whatever number of ways lead to it.
pub(crate) fn map_way(names: &Names, map: &RequestMap) -> Vec<Declared> {
    vec![
        exchange(&map.unmapped, Routing::Fanout),
        binding(&map.unmapped, &names.queue),
        Declared::Exchange {
            name: map.exchange.clone(),
            kind: Routing::Direct,
            alternate: Some(map.unmapped.clone()),
        },
        Declared::ExchangeBinding { source: names.ingest.clone(), destination: map.exchange.clone() },
    ]
}

/// The way of an application's requests to the queue of its shard.
pub(crate) fn mapped(names: &Names, map: &RequestMap, shard: u16, application: &str) -> Declared {
    Declared::Binding {
        exchange: map.exchange.clone(),
        queue: names.queue_of(Some(shard)).to_owned(),
        key: application.to_owned(),
    }
}

/// Where batches are published.
pub fn egress(exchange: &str) -> Declared {
    self::exchange(exchange, Routing::Direct)
}

/// Dead letters: their exchange, which both sides name.
pub fn dead_exchange(name: &str) -> Declared {
    exchange(name, Routing::Fanout)
}

/// Dead letters: the queue behind the exchange, and its binding; empty if none is to be declared. A full
/// queue rejects publishes: a rejected dead letter waits in the store, while one dropped at the head of the
/// queue would be lost.
pub fn dead_queue(dead: &DeadLetters) -> Vec<Declared> {
    let text = |value: &str| Argument::Text(value.to_owned());
    let mut arguments = match dead.queue.kind {
        DeadQueueKind::None => return Vec::new(),
        DeadQueueKind::Quorum => {
            vec![("x-queue-type", text("quorum")), ("x-delivery-limit", Argument::Number(LOOKS_LIMIT))]
        }
        DeadQueueKind::Classic => vec![("x-queue-type", text("classic"))],
    };
    let limits = [("x-max-length", dead.queue.max_length), ("x-max-length-bytes", dead.queue.max_bytes)];
    for (name, limit) in limits.into_iter().filter(|(_, limit)| *limit > 0) {
        arguments.push((name, Argument::Number(limit.cast_signed())));
    }
    if arguments.iter().any(|(name, _)| name.starts_with("x-max-")) {
        arguments.push(("x-overflow", text("reject-publish")));
    }
    let name = dead.queue_name().unwrap_or_default().to_owned();
    let bound = binding(&dead.exchange, &name);
    vec![Declared::Queue { name, arguments }, bound]
}

/// All that dead letters need, in the order of creation.
pub fn dead(dead: &DeadLetters) -> Vec<Declared> {
    let mut all = vec![dead_exchange(&dead.exchange)];
    all.extend(dead_queue(dead));
    all
}

/// Names of what [`dead`] declares; a single one if queue and exchange share theirs.
fn dead_names(dead: &DeadLetters) -> Vec<&str> {
    let mut names = vec![&*dead.exchange];
    names.extend(
        dead.queue_name().filter(|name| dead.queue.kind != DeadQueueKind::None && *name != dead.exchange),
    );
    names
}

/// The least permissions of the login that consumes requests, forwards them to the queues of shards, answers
/// commands, sends dead letters back and asks other nodes. Declaring needs more than using what exists. The
/// configuration is that of the node, whose login the shards use as well.
pub fn ingest_rights(config: &Config) -> Rights {
    let names = Names::of(config);
    let (exchange, dead) = (&*names.ingest, dead_names(&config.dead));
    let queues: Vec<&str> = names.request_queues().collect();
    let locks: Vec<String> = queues.iter().map(|queue| lock_name(queue)).collect();
    let locks: Vec<&str> = locks.iter().map(String::as_str).collect();
    let map: Vec<&str> = names.map.iter().flat_map(|map| [&*map.exchange, &*map.unmapped]).collect();
    let shards: Vec<&str> = names.shards.iter().map(String::as_str).collect();
    let control: Vec<&str> = names.control.iter().map(String::as_str).collect();
    let mut rights = match config.amqp.topology {
        Topology::Declare => Rights {
            configure: any_of(&[&*locks, &*queues, &[exchange], &*map, &*control, &*dead].concat()),
            // A binding needs the permission to write to what it leads to and to read from the exchange;
            // naming a dead-letter or alternate exchange needs that to read from what names it and to write
            // to the exchange.
            write: any_of(
                &[&["amq.default", &*names.queue, exchange], &*shards, &*map, &*control, &*dead].concat(),
            ),
            read: any_of(&[&*queues, &[exchange], &*map, &*control, &*dead].concat()),
        },
        Topology::Passive | Topology::Off => Rights {
            configure: any_of(&locks),
            write: any_of(&[&["amq.default", exchange], &*control].concat()),
            read: any_of(&[&*queues, &*control].concat()),
        },
    };
    if names.control.is_some() {
        // The broker makes up the name of the queue that a node binds: it is declared, bound and consumed.
        for right in [&mut rights.configure, &mut rights.write, &mut rights.read] {
            right.push_str(&format!("|^{}", MADE_UP.replace('.', r"\.")));
        }
    }
    rights
}

/// The least permissions of the login that publishes batches and dead letters, and reads the dead-letter
/// queue.
pub fn egress_rights(config: &Config) -> Rights {
    let (exchange, dead) = (&*config.egress.exchange, dead_names(&config.dead));
    match config.amqp.topology {
        Topology::Declare => {
            let write = any_of(&[&[exchange], &*dead].concat());
            let mut read = dead;
            read.extend(config.dead.queue_name().filter(|_| config.dead.queue.kind == DeadQueueKind::None));
            Rights { configure: write.clone(), write, read: any_of(&read) }
        }
        Topology::Passive | Topology::Off => Rights {
            configure: any_of(&[]),
            write: any_of(&[exchange, &config.dead.exchange]),
            read: any_of(config.dead.queue_name().as_slice()),
        },
    }
}

/// The permissions of a login that does the work of both sides.
pub fn rights_of_both(config: &Config) -> Rights {
    let (one, other) = (ingest_rights(config), egress_rights(config));
    let both = |a: String, b: String| match (&*a, &*b) {
        (_, "^$") => a,
        ("^$", _) => b,
        (a, b) => format!("{a}|{b}"),
    };
    Rights {
        configure: both(one.configure, other.configure),
        write: both(one.write, other.write),
        read: both(one.read, other.read),
    }
}

/// A regular expression for these names and no others; RabbitMQ gives the default exchange the name
/// `amq.default` in permissions.
pub fn any_of(names: &[&str]) -> String {
    match names {
        [] => "^$".to_owned(),
        [name] => format!("^{}$", escaped(name)),
        names => format!("^({})$", names.iter().map(|name| escaped(name)).collect::<Vec<_>>().join("|")),
    }
}

fn escaped(name: &str) -> String {
    let mut text = String::with_capacity(name.len() + 8);
    for c in name.chars() {
        if r"\.+*?()|[]{}^$#&-~".contains(c) {
            text.push('\\');
        }
        text.push(c);
    }
    text
}

/// Name of the lock queue of an ingest queue; one that would be too long ends in a hash.
pub fn lock_name(queue: &str) -> String {
    let name = format!("{LOCK_PREFIX}{queue}");
    if name.len() <= MAX_NAME {
        return name;
    }
    format!("{LOCK_PREFIX}{}", blake3::hash(queue.as_bytes()).to_hex())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_config::ShardsConfig;

    #[test]
    fn the_lock_has_a_name_that_fits() {
        assert_eq!(lock_name("tidegate.ingest"), "tidegate.lock.tidegate.ingest");
        let long = [lock_name(&"q".repeat(255)), lock_name(&format!("{}r", "q".repeat(254)))];
        assert!(long.iter().all(|name| name.len() == LOCK_PREFIX.len() + 64), "{long:?}");
        assert_ne!(long[0], long[1]);
    }

    #[test]
    fn rights_name_what_is_used_and_no_more() {
        let mut config = Config::default();
        config.amqp.topology = Topology::Passive;
        let rights = |configure: &str, write: &str, read: &str| Rights {
            configure: configure.to_owned(),
            write: write.to_owned(),
            read: read.to_owned(),
        };
        let lock = r"^tidegate\.lock\.tidegate\.ingest$";
        assert_eq!(
            ingest_rights(&config),
            rights(lock, r"^(amq\.default|tidegate\.in)$", r"^tidegate\.ingest$")
        );
        let letters = r"^tidegate\.dead$";
        assert_eq!(egress_rights(&config), rights("^$", r"^(tidegate\.out|tidegate\.dead)$", letters));
        assert_eq!(
            rights_of_both(&config),
            rights(
                lock,
                r"^(amq\.default|tidegate\.in)$|^(tidegate\.out|tidegate\.dead)$",
                r"^tidegate\.ingest$|^tidegate\.dead$"
            )
        );
        config.dead.queue.kind = DeadQueueKind::None;
        assert_eq!(egress_rights(&config).read, "^$", "no queue is configured");
        assert_eq!(dead(&config.dead).len(), 1, "the exchange alone");
        config.dead.queue.name = "ours".to_owned();
        config.amqp.topology = Topology::Declare;
        assert_eq!(egress_rights(&config).read, r"^(tidegate\.dead|ours)$");
        assert_eq!(egress_rights(&config).configure, r"^(tidegate\.out|tidegate\.dead)$");
        config.dead.queue.kind = DeadQueueKind::Quorum;
        assert_eq!(egress_rights(&config).configure, r"^(tidegate\.out|tidegate\.dead|ours)$");
    }

    #[test]
    fn a_node_declares_the_queue_of_each_shard_like_its_own_and_a_shard_its_queue_alone() {
        let mut config = Config { shards: ShardsConfig { count: 2 }, ..Config::default() };
        let of = |shard: u16| (0..).map(|n| format!("app-{n}")).find(|name| home(name, 2) == shard);
        let applications = [of(0).unwrap(), of(1).unwrap()];
        for application in &applications {
            config.applications.insert(application.clone(), config.defaults.clone());
        }
        let names = |all: &[Declared]| -> Vec<String> {
            let name = |declared: &Declared| match declared {
                Declared::Queue { name, .. } => format!("queue {name}"),
                Declared::Exchange { name, alternate, .. } => match alternate {
                    None => format!("exchange {name}"),
                    Some(other) => format!("exchange {name}, else {other}"),
                },
                Declared::Binding { exchange, queue, key } => format!("{exchange} to {queue} by '{key}'"),
                Declared::ExchangeBinding { source, destination } => format!("{source} to {destination}"),
            };
            all.iter().map(name).collect()
        };
        let node = ingest(&Names::of(&config));
        let home_of = |name: &str| format!("tidegate.apps to tidegate.ingest.{} by '{name}'", home(name, 2));
        let of_both = ["queue tidegate.ingest".to_owned(), "exchange tidegate.in".to_owned()];
        let mut wanted = of_both.to_vec();
        wanted.extend(
            [
                "exchange tidegate.new",
                "tidegate.new to tidegate.ingest by ''",
                "exchange tidegate.apps, else tidegate.new",
                "tidegate.in to tidegate.apps",
            ]
            .map(str::to_owned),
        );
        for (shard, name) in applications.iter().enumerate() {
            wanted.extend([format!("queue tidegate.ingest.{shard}"), home_of(name)]);
        }
        assert_eq!(names(&node), wanted);
        let single = names(&ingest(&Names::of(&Config::default())));
        assert_eq!(single, [&of_both[..], &["tidegate.in to tidegate.ingest by ''".to_owned()]].concat());
        let shard = ingest(&Names::of(&config.of_shard(1)));
        assert_eq!(names(&shard), ["queue tidegate.ingest.1"]);
        let [Declared::Queue { arguments: own, .. }, .., Declared::Queue { arguments, .. }, _] = &*node
        else {
            panic!("{node:?}")
        };
        assert_eq!(own, arguments);
        assert!(node.contains(&shard[0]), "both sides declare the same queue");
    }

    #[test]
    fn the_rights_of_a_node_reach_the_queues_and_locks_of_its_shards() {
        let mut config = Config { shards: ShardsConfig { count: 2 }, ..Config::default() };
        let queues = r"tidegate\.ingest|tidegate\.ingest\.0|tidegate\.ingest\.1";
        let locks = queues.replace("tidegate", r"tidegate\.lock\.tidegate");
        let (exchanges, dead) = (r"amq\.default|tidegate\.ingest|tidegate\.in", r"tidegate\.dead");
        let (shards, map) = (r"tidegate\.ingest\.0|tidegate\.ingest\.1", r"tidegate\.apps|tidegate\.new");
        let declare = Rights {
            configure: format!(r"^({locks}|{queues}|tidegate\.in|{map}|{dead})$"),
            write: format!("^({exchanges}|{shards}|{map}|{dead})$"),
            read: format!(r"^({queues}|tidegate\.in|{map}|{dead})$"),
        };
        assert_eq!(ingest_rights(&config), declare);
        config.amqp.topology = Topology::Passive;
        let passive = Rights {
            configure: format!("^({locks})$"),
            write: r"^(amq\.default|tidegate\.in)$".to_owned(),
            read: format!("^({queues})$"),
        };
        assert_eq!(ingest_rights(&config), passive);
    }

    #[test]
    fn nodes_have_an_exchange_more_and_the_rights_to_ask_by_it() {
        let mut config = Config { shards: ShardsConfig { count: 2 }, ..Config::default() };
        let alone = ingest(&Names::of(&config));
        config.store.kind = StoreKind::Postgres;
        let names = Names::of(&config);
        assert_eq!((names.control.as_deref(), &names.left_control), (Some("tidegate.control"), &None));
        assert_eq!(Names::of(&config.of_shard(1)).control, None, "it is the node that asks");
        let shared = ingest(&names);
        let Some((Declared::Exchange { name, kind: Routing::Direct, alternate: None }, others)) =
            shared.split_last()
        else {
            panic!("{shared:?}")
        };
        assert_eq!((name.as_str(), others), ("tidegate.control", &*alone));
        let own = r"|^amq\.gen-";
        let declare = ingest_rights(&config);
        for right in [&declare.configure, &declare.write, &declare.read] {
            assert!(right.contains(r"|tidegate\.control|") && right.ends_with(own), "{right}");
        }
        config.amqp.topology = Topology::Passive;
        let passive = ingest_rights(&config);
        assert!(!passive.configure.contains("control") && passive.configure.ends_with(own), "{passive:?}");
        assert_eq!(passive.write, format!(r"^(amq\.default|tidegate\.in|tidegate\.control)${own}"));
        assert!(passive.read.ends_with(&format!(r"\.1|tidegate\.control)${own}")), "{passive:?}");
        config.shards.count = 1;
        let single = Names::of(&config);
        assert_eq!((single.control, single.left_control.as_deref()), (None, Some("tidegate.control")));
        config.egress.exchange = "tidegate.control".to_owned();
        assert_eq!(Names::of(&config).left_control, None, "it is in use for something else");
    }

    #[test]
    fn a_full_dead_queue_refuses_and_looks_are_not_counted() {
        let mut letters = Config::default().dead;
        let arguments = |letters: &DeadLetters| {
            let all = dead_queue(letters);
            let Declared::Queue { arguments, .. } = &all[0] else { panic!("{all:?}") };
            arguments.clone()
        };
        let of = |all: &[(&'static str, Argument)], name: &str| {
            all.iter().find(|(known, _)| *known == name).map(|(_, value)| value.clone())
        };
        let quorum = arguments(&letters);
        assert_eq!(of(&quorum, "x-delivery-limit"), Some(Argument::Number(LOOKS_LIMIT)));
        assert_eq!(of(&quorum, "x-max-length"), Some(Argument::Number(1_000_000)));
        assert_eq!(of(&quorum, "x-overflow"), Some(Argument::Text("reject-publish".to_owned())));
        letters.queue.kind = DeadQueueKind::Classic;
        (letters.queue.max_length, letters.queue.max_bytes) = (0, 0);
        assert_eq!(arguments(&letters), [("x-queue-type", Argument::Text("classic".to_owned()))]);
    }

    #[test]
    fn a_name_is_no_pattern() {
        assert_eq!(any_of(&["a.b", "c|d"]), r"^(a\.b|c\|d)$");
        assert_eq!(any_of(&["größe"]), "^größe$");
    }
}
