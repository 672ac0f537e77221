//! Several shards in one daemon, seen from outside: which shard has what, that nothing is lost or repeated on
//! the way between the queues, that a request arrives as with one shard, commands, lists and exports over all
//! shards, faults of the broker, and the directory of the stores.

mod apart;
mod arrives;
mod as_with_one;
mod broker;
mod commands;
mod directory;
mod killed;
mod map;
mod two;

use tidegate_harness::{Inbox, Site};

/// Number of shards of these daemons.
const COUNT: u16 = 4;

/// A site whose daemon has several shards.
pub(super) fn site(name: &str) -> Site<'static> {
    Site::new(name).divided(COUNT)
}

/// The shard that an application belongs to.
fn home(application: &str) -> u16 {
    tidegate_wire::home(application, COUNT)
}

/// Applications, as many in each shard, in the order of their homes.
fn applications(each: usize) -> Vec<String> {
    let of = |shard: u16| {
        let names = (0..).map(|n| format!("app-{n}"));
        names.filter(move |name| home(name) == shard).take(each)
    };
    (0..COUNT).flat_map(of).collect()
}

/// The same, two in each shard, with consumers.
fn consumed(site: &Site<'_>) -> Vec<(String, Inbox)> {
    applications(2).into_iter().map(|name| (name.clone(), site.inbox(&name))).collect()
}

/// The ingest queue, and that of each shard.
fn queues<'s>(site: &'s Site<'_>) -> impl Iterator<Item = String> + 's {
    std::iter::once(site.ingest_queue()).chain((0..COUNT).map(|shard| site.shard_queue(shard)))
}
