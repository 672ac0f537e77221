//! Several shards in one daemon, seen from outside: which shard has what, that nothing is lost or repeated on
//! the way between the queues, that a request arrives as with one shard, commands, lists and exports over all
//! shards, faults of the broker, the bindings there, and the directory of the stores.

mod adopt;
mod apart;
mod arrives;
mod as_with_one;
mod broker;
mod commands;
mod counted;
mod directory;
mod killed;
mod map;
mod two;

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use tidegate_harness::{binary, holds_within, wait_until, Config, Daemon, Inbox, Site};

pub use commands::{listed, missing, walk, Walk};
pub use killed::{in_order, load};

/// Number of shards of these daemons.
pub(super) const COUNT: u16 = 4;
/// Time limit of a wait here.
pub(super) const LIMIT: Duration = Duration::from_secs(60);

/// A binding: where it leads, and its key.
type Binding = (String, String);

/// A site whose daemon has several shards.
pub(super) fn site(name: &str) -> Site<'static> {
    Site::new(name).divided(COUNT)
}

/// The shard that an application belongs to.
pub(super) fn home(application: &str) -> u16 {
    tidegate_wire::home(application, COUNT)
}

/// Applications, as many in each shard, in the order of their homes.
pub(super) fn applications(each: usize) -> Vec<String> {
    let of = |shard: u16| {
        let names = (0..).map(|n| format!("app-{n}"));
        names.filter(move |name| home(name) == shard).take(each)
    };
    (0..COUNT).flat_map(of).collect()
}

/// The same, two in each shard, with consumers.
pub(super) fn consumed(site: &Site<'_>) -> Vec<(String, Inbox)> {
    applications(2).into_iter().map(|name| (name.clone(), site.inbox(&name))).collect()
}

/// The ingest queue, and that of each shard.
fn queues<'s>(site: &'s Site<'_>) -> impl Iterator<Item = String> + 's {
    std::iter::once(site.ingest_queue()).chain((0..COUNT).map(|shard| site.shard_queue(shard)))
}

/// Waits until the broker has no request any more: the stores have them all. Before, what a daemon holds may be
/// in its memory alone, and is redelivered to the next owner of the shard.
pub(super) fn stored(site: &Site<'_>) {
    for queue in queues(site) {
        wait_until(&format!("{queue} is empty and acked"), LIMIT, || site.node.messages(&queue) == Some(0));
    }
}

/// The configuration with a section for each of these applications.
pub(super) fn naming<'n>(config: Config, applications: impl IntoIterator<Item = &'n String>) -> Config {
    applications
        .into_iter()
        .fold(config, |config, name| config.text(&format!("applications.{name}.window"), "200ms"))
}

/// The configuration with this number of shards, over another store than before.
fn elsewhere(site: &Site<'_>, config: Config, count: u16) -> Config {
    let path = site.dir.join(format!("store-of-{count}"));
    config.set("shards.count", &count.to_string()).text("store.path", &path.to_string_lossy())
}

/// Stops the daemon in order.
pub(super) fn end(daemon: &mut Daemon) {
    daemon.term();
    assert!(daemon.exit(LIMIT).success(), "{}", daemon.log_tail());
}

/// Moves the items of a stopped daemon into the store of another configuration, which it has from now on.
fn moves(daemon: &Daemon, config: &Config, dir: &Path) {
    let told = daemon.cli(&["store", "export"]);
    assert_eq!(told.code, 0, "{}", told.err);
    let file = dir.join("export.ndjson");
    fs::write(&file, &told.out).expect("the export's file");
    daemon.rewrite(config);
    let mut import = Command::new(binary());
    import.args(["store", "import", "--config"]).arg(daemon.config_file());
    import.stdin(Stdio::from(File::open(&file).expect("the export's file")));
    let output = import.output().expect("the binary");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Waits until an exchange has exactly these bindings, sorted.
fn leads(site: &Site<'_>, exchange: &str, wanted: &[Binding]) {
    let mut found = Vec::new();
    let held = holds_within(LIMIT, || {
        found = site.node.bindings(exchange);
        found == wanted
    });
    assert!(held, "{exchange} has the bindings {found:?}, not {wanted:?}");
}

/// Waits until the map leads each of these applications to its home, and no other one anywhere.
fn maps<'n>(site: &Site<'_>, applications: impl IntoIterator<Item = &'n String>) {
    let bound = |name: &String| (site.shard_queue(home(name)), name.clone());
    let mut homes: Vec<Binding> = applications.into_iter().map(bound).collect();
    homes.sort();
    leads(site, &site.map_exchange(), &homes);
}

/// Waits until requests go through the map alone, which leads each of these applications to its home.
fn leads_home<'n>(site: &Site<'_>, applications: impl IntoIterator<Item = &'n String>) {
    leads(site, &site.ingest(), &[(site.map_exchange(), String::new())]);
    leads(site, &site.unmapped_exchange(), &[(site.ingest_queue(), String::new())]);
    maps(site, applications);
}

/// A number of `map` in the state document.
pub(super) fn counted(daemon: &Daemon, key: &str) -> u64 {
    let state = daemon.state();
    state["map"][key].as_u64().unwrap_or_else(|| panic!("no map.{key}: {}", state["map"]))
}

/// Waits until a number of `map` is as large as this, and not larger: what has arrived is counted a moment later.
fn counts(daemon: &Daemon, key: &str, number: u64) {
    wait_until(&format!("{number} are {key}"), LIMIT, || counted(daemon, key) >= number);
    assert_eq!(counted(daemon, key), number, "{key}");
}

/// Publishes a request with this id for each application, which arrives once.
fn arrives(site: &Site<'_>, applications: &[(String, Inbox)], id: &str) {
    site.client.publish_all(applications.iter().map(|(name, _)| site.push(name, "{}").id(id)));
    for (name, inbox) in applications {
        assert_eq!(inbox.batch().ids(), [id], "{name}");
    }
}

/// Panics if anything more arrives for one of them.
pub(super) fn nothing_more(applications: &[(String, Inbox)]) {
    applications.iter().for_each(|(_, inbox)| inbox.quiet(Duration::from_millis(50)));
}
