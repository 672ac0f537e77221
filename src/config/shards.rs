//! `[shards]`: the number of engines in one daemon, and what each of them gets of the configuration.
//!
//! The limits of the whole daemon are divided by the number of shards. So a number that leaves a shard with
//! too little is a fault; each sentence says what to raise, or how many shards are possible.

use super::limits::{LEAST_DISK, LEAST_MEMORY};
use super::section::Section;
use super::units::{size, Whole};
use super::{Config, StoreKind};
use std::path::{Path, PathBuf};

/// Most shards of one daemon.
const MOST_SHARDS: u64 = 256;
/// Longest name of a queue, bytes.
const LONGEST_QUEUE: usize = 255;
const KEY: &str = "count";

/// Section `[shards]`: the engines of one daemon, or of all daemons that share a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardsConfig {
    /// The number of shards, 1 to 256; with a database, that of all daemons together. With 1, the only engine
    /// consumes the ingest queue itself.
    pub count: u16,
}

/// The methods are those of a node's configuration, except where they say otherwise.
/// The directory of a shard's store below that of all shards.
pub fn shard_path(path: &Path, number: u16) -> PathBuf {
    path.join(format!("shard-{number}"))
}

impl Config {
    /// The configuration of one shard, `number` below `shards.count`: its queue and directory, and its part
    /// of the limits of the whole daemon, at least 1 of each. Without other shards, it is the node's own.
    ///
    /// What a reload changes is applied to the node's configuration first ([`Config::reloaded`]).
    pub fn of_shard(&self, number: u16) -> Config {
        let mut shard = self.clone();
        if self.shards.count <= 1 {
            return shard;
        }
        let part = |whole: u64| (whole / u64::from(self.shards.count)).max(1);
        shard.store.path = self.shard_path(number);
        shard.ingest.queue = self.shard_queue(number);
        shard.ingest.exchange = String::new();
        shard.limits.memory = part(self.limits.memory);
        shard.limits.disk = if self.limits.disk == 0 { 0 } else { part(self.limits.disk) };
        shard.limits.customers = part(self.limits.customers);
        shard.limits.applications = part(self.limits.applications);
        shard.egress.max_in_flight = part(self.egress.max_in_flight as u64) as usize;
        shard
    }

    /// Name of the queue that a shard consumes: `<ingest.queue>.<number>`; the ingest queue without other
    /// shards.
    pub fn shard_queue(&self, number: u16) -> String {
        match self.shards.count {
            0 | 1 => self.ingest.queue.clone(),
            _ => format!("{}.{number}", self.ingest.queue),
        }
    }

    /// Name of the exchange that leads requests of configured applications to the queues of their shards. It
    /// follows from the ingest queue, whose last word `ingest` is replaced.
    pub fn map_exchange(&self) -> String {
        self.beside_ingest("apps")
    }

    /// Name of the exchange that leads the requests of all others to the ingest queue.
    pub fn unmapped_exchange(&self) -> String {
        self.beside_ingest("new")
    }

    /// Name of the exchange by which the nodes of a database ask each other.
    pub fn control_exchange(&self) -> String {
        self.beside_ingest("control")
    }

    /// Whether several daemons, the nodes, share the shards: there are several, in a database.
    pub fn is_shared(&self) -> bool {
        self.shards.count > 1 && self.store.kind == StoreKind::Postgres
    }

    fn beside_ingest(&self, word: &str) -> String {
        let queue = &*self.ingest.queue;
        let stem = queue.strip_suffix(".ingest").filter(|stem| !stem.is_empty()).unwrap_or(queue);
        format!("{stem}.{word}")
    }

    /// Directory of a shard's store: `<store.path>/shard-<number>`; `store.path` without other shards.
    pub fn shard_path(&self, number: u16) -> PathBuf {
        match self.shards.count {
            0 | 1 => self.store.path.clone(),
            _ => shard_path(&self.store.path, number),
        }
    }

    /// The queues beside the ingest queue, one for each shard. None with a single shard; none for the
    /// configuration of one shard, which is without an ingest exchange.
    pub fn shard_queues(&self) -> Vec<String> {
        if self.shards.count <= 1 || self.ingest.exchange.is_empty() {
            return Vec::new();
        }
        (0..self.shards.count).map(|number| self.shard_queue(number)).collect()
    }
}

/// Reads the number of shards.
pub(crate) fn shards(s: &mut Section<'_, '_>, d: ShardsConfig) -> ShardsConfig {
    ShardsConfig { count: s.get(KEY, d.count.into(), Whole(1..=MOST_SHARDS)) as u16 }
}

/// Checks that each shard can work with its part of everything else. `ingest` and `limits` are those
/// sections, with the faults of their own keys.
pub(crate) fn shards_can_work(
    config: &Config,
    s: &mut Section<'_, '_>,
    ingest: &Section<'_, '_>,
    limits: &Section<'_, '_>,
) {
    let count = u64::from(config.shards.count);
    if count <= 1 {
        return;
    }
    match config.store.kind {
        StoreKind::Disk | StoreKind::Postgres => {}
        StoreKind::Memory => s.fault(
            KEY,
            format!(
                "{count} shards need store.kind = \"disk\" or \"postgres\": with \"memory\", set count to 1"
            ),
        ),
    }
    let limit = &config.limits;
    let mut sizes = vec![("memory", limit.memory, LEAST_MEMORY)];
    // 0 is no limit, for each shard as well. In a database the limit has no effect.
    let is_limited = limit.disk > 0 && config.store.kind == StoreKind::Disk;
    sizes.extend(is_limited.then_some(("disk", limit.disk, LEAST_DISK)));
    for (key, whole, least) in sizes {
        if whole / count < least && !limits.failed(&[key]) {
            s.fault(
                KEY,
                format!(
                    "{count} shards need limits.{key} of at least {} ({} each): raise it, or set count to at \
                     most {}",
                    size(least * count),
                    size(least),
                    whole / least
                ),
            );
        }
    }
    for (key, whole) in [
        ("egress.max_in_flight", config.egress.max_in_flight as u64),
        ("limits.customers", limit.customers),
        ("limits.applications", limit.applications),
    ] {
        if whole < count {
            s.fault(
                KEY,
                format!(
                    "{count} shards need {key} of at least {count} (1 each): raise it, or set count to at \
                     most {whole}"
                ),
            );
        }
    }
    if !ingest.failed(&["queue"]) {
        queues_are_possible(config, s);
        exchanges_are_possible(config, s);
    }
}

/// Checks the names of the shards' queues.
fn queues_are_possible(config: &Config, s: &mut Section<'_, '_>) {
    let queues = config.shard_queues();
    if let Some(queue) = queues.last().filter(|queue| queue.len() > LONGEST_QUEUE) {
        // The exchanges are named after it as well.
        let own = config.ingest.queue.len();
        let longest = longest_exchange(config).len().saturating_sub(own);
        let most = LONGEST_QUEUE - (queue.len() - own).max(longest);
        s.fault(
            KEY,
            format!(
                "the queue of the last shard, ingest.queue and .{}, has a name of {} bytes, and \
                 {LONGEST_QUEUE} are possible: shorten ingest.queue to {most} bytes",
                queues.len() - 1,
                queue.len()
            ),
        );
    }
    let dead = [("dead.exchange", &config.dead.exchange), ("dead.queue.name", &config.dead.queue.name)];
    for (key, name) in dead.into_iter().filter(|(_, name)| queues.contains(name)) {
        s.fault(
            KEY,
            format!(
                "the queue of a shard has the name '{name}', which is {key}: dead items would come back as \
                 requests. Rename one of the two"
            ),
        );
    }
}

/// Names of the exchanges beside the ingest queue.
fn exchanges(config: &Config) -> impl Iterator<Item = String> + use<> {
    let control = config.is_shared().then(|| config.control_exchange());
    [config.map_exchange(), config.unmapped_exchange()].into_iter().chain(control)
}

fn longest_exchange(config: &Config) -> String {
    exchanges(config).max_by_key(String::len).unwrap_or_default()
}

/// Checks the names of the exchanges beside the ingest queue.
fn exchanges_are_possible(config: &Config, s: &mut Section<'_, '_>) {
    let others = [
        ("ingest.exchange", &config.ingest.exchange),
        ("egress.exchange", &config.egress.exchange),
        ("dead.exchange", &config.dead.exchange),
    ];
    let (longest, own) = (longest_exchange(config), config.ingest.queue.len());
    let is_told = config.shard_queues().last().is_some_and(|queue| queue.len() > LONGEST_QUEUE);
    if longest.len() > LONGEST_QUEUE && !is_told {
        let most = LONGEST_QUEUE - longest.len().saturating_sub(own);
        s.fault(
            KEY,
            format!(
                "the exchange '{longest}' of several shards has a name of {} bytes, and {LONGEST_QUEUE} are \
                 possible: shorten ingest.queue to {most} bytes",
                longest.len()
            ),
        );
    }
    for name in exchanges(config) {
        for (key, _) in others.into_iter().filter(|(_, other)| **other == name) {
            s.fault(
                KEY,
                format!(
                    "several shards need an exchange '{name}' of their own, and {key} has this name: rename \
                     it, or the ingest queue"
                ),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn node(count: u16) -> Config {
        Config { shards: ShardsConfig { count }, ..Config::default() }
    }

    #[test]
    fn the_only_shard_has_the_configuration_of_its_node() {
        let node = node(1);
        assert_eq!(format!("{:?}", node.of_shard(0)), format!("{node:?}"));
        assert_eq!((node.shard_queue(0), node.shard_queues()), ("tidegate.ingest".to_owned(), vec![]));
        assert_eq!(node.shard_path(0), node.store.path);
    }

    #[test]
    fn a_shard_has_its_own_places_and_its_part_of_each_limit_and_nothing_else_differs() {
        let mut node = node(3);
        node.limits.disk = 1 << 30;
        let shard = node.of_shard(2);
        assert_eq!(shard.store.path, Path::new("/var/lib/tidegate/shard-2"));
        assert_eq!((&*shard.ingest.queue, &*shard.ingest.exchange), ("tidegate.ingest.2", ""));
        let limits = &shard.limits;
        assert_eq!((limits.memory, limits.disk), ((256 << 20) / 3, (1 << 30) / 3));
        assert_eq!(
            (limits.customers, limits.applications, shard.egress.max_in_flight),
            (33_333, 33_333, 333)
        );
        let mut same = shard.clone();
        (same.store.path, same.ingest) = (node.store.path.clone(), node.ingest.clone());
        (same.limits.memory, same.limits.disk) = (node.limits.memory, node.limits.disk);
        (same.limits.customers, same.limits.applications) = (node.limits.customers, node.limits.applications);
        same.egress.max_in_flight = node.egress.max_in_flight;
        assert_eq!(format!("{same:?}"), format!("{node:?}"));
        assert_eq!(shard.ingest.prefetch, node.ingest.prefetch);
    }

    #[test]
    fn a_part_is_never_nothing_and_no_limit_stays_none() {
        let mut node = node(256);
        (node.limits.customers, node.limits.applications, node.egress.max_in_flight) = (3, 1, 255);
        let shard = node.of_shard(255);
        let limits = &shard.limits;
        assert_eq!((limits.customers, limits.applications, shard.egress.max_in_flight), (1, 1, 1));
        assert_eq!(limits.disk, 0);
    }

    #[test]
    fn what_a_reload_changes_reaches_a_shard_as_its_part() {
        let (running, mut new) = (node(4), node(8));
        (new.limits.customers, new.limits.memory, new.defaults.window) = (40, 1 << 30, 7);
        let shard = running.reloaded(&new).of_shard(1);
        assert_eq!((shard.limits.customers, shard.limits.memory, shard.defaults.window), (10, 64 << 20, 7));
        assert_eq!((shard.shards.count, &*shard.ingest.queue), (4, "tidegate.ingest.1"));
    }

    #[test]
    fn the_exchanges_are_named_after_the_ingest_queue() {
        let mut node = node(2);
        let names = |node: &Config| [node.map_exchange(), node.unmapped_exchange(), node.control_exchange()];
        assert_eq!(names(&node), ["tidegate.apps", "tidegate.new", "tidegate.control"]);
        for (queue, stem) in
            [("q", "q"), (".ingest", ".ingest"), ("a.ingest.b", "a.ingest.b"), ("ä.ingest", "ä")]
        {
            node.ingest.queue = queue.to_owned();
            assert_eq!(names(&node), ["apps", "new", "control"].map(|word| format!("{stem}.{word}")));
        }
    }

    #[test]
    fn nodes_share_several_shards_in_a_database_and_nothing_else() {
        let of = |count: u16, kind: StoreKind| {
            let mut node = node(count);
            node.store.kind = kind;
            (node.is_shared(), exchanges(&node).count())
        };
        assert_eq!(of(2, StoreKind::Postgres), (true, 3));
        assert_eq!([of(1, StoreKind::Postgres), of(2, StoreKind::Disk)], [(false, 2); 2]);
    }

    #[test]
    fn a_node_has_the_queues_of_its_shards_and_a_shard_has_no_others() {
        let node = node(3);
        assert_eq!(node.shard_queues(), ["tidegate.ingest.0", "tidegate.ingest.1", "tidegate.ingest.2"]);
        assert_eq!(node.of_shard(0).shard_queues(), [""; 0]);
    }
}
