//! Several shards: what a daemon takes in with each number of them, what it costs, and which process limits it.
//!
//! Requests of several dozen applications, as many at home in each shard, go to the ingest exchange; which
//! queues they pass is up to daemon and broker. Each number is measured with queues that are full before the
//! daemon starts, and with producers that publish meanwhile. Both are timed until all requests are durable,
//! as in `throughput`; so are the cores in use.

use crate::book::{Bench, Book, Case, Cpu, Run};
use crate::load::{customer, Batch, Ids, APPLICATION};
use crate::peers::drain;
use crate::throughput::{arrive, clean, measured, refilled, taken_in};
use std::time::Instant;
use tidegate_harness::{wait_until, Daemon, Inbox, Node, Push, Site};

pub const GROUP: &str = "shards";
const COUNTS: [u16; 4] = [1, 2, 4, 8];
/// A multiple of each number of shards.
const APPLICATIONS: u16 = 48;
/// A multiple of the number of applications: each customer has one.
const CUSTOMERS: u64 = 960;
/// Each has a connection of its own.
const PRODUCERS: u64 = 4;
/// The part of all cores from which on the machine is in full use.
const FULL: f64 = 0.9;

pub fn run(bench: &Bench, book: &mut Book) {
    if !bench.wants(GROUP) {
        return;
    }
    let (node, messages) = (&bench.node, bench.plan.messages);
    for _ in 0..bench.plan.rounds {
        for count in COUNTS {
            let bare = format!("shards-bare-{count}");
            let s = if count == 1 { "" } else { "s" };
            let title = match count {
                1 => "a bare drain of 1 queue".to_owned(),
                _ => format!("bare drains of {count} queues together"),
            };
            let case = Case::new(GROUP, &bare, title).at("queues", u64::from(count));
            book.measure(case, || drain(node, count, messages));
            let case = |way: &str, title: &str| {
                let title = format!("{count} shard{s}, {title}");
                let case = Case::new(GROUP, format!("shards-{way}-{count}"), title);
                case.at(way, u64::from(count)).beside(&bare)
            };
            book.measure(case("full", "full queues"), || Load::new(node, count, messages).full());
            book.measure(case("live", "while producers publish"), || Load::new(node, count, messages).live());
        }
    }
}

/// Applications, as many in each of these shards.
fn applications(shards: u16) -> Vec<String> {
    let of = |shard: u16| {
        let names = (0..).map(|n| format!("app-{n}"));
        let home = names.filter(move |name| tidegate_wire::home(name, shards) == shard);
        home.take(usize::from(APPLICATIONS / shards))
    };
    (0..shards).flat_map(of).collect()
}

/// A number of requests for a daemon with a number of shards. All batches go to one queue.
struct Load<'n> {
    site: Site<'n>,
    /// The ingest queue, and those of shards.
    queues: Vec<String>,
    applications: Vec<String>,
    /// Header of each customer.
    customers: Vec<Vec<u8>>,
    inbox: Inbox,
    count: u64,
}

impl<'n> Load<'n> {
    fn new(node: &'n Node, shards: u16, count: u64) -> Load<'n> {
        let site = Site::on(node, GROUP).divided(shards);
        let of_shards = (0..shards).filter(|_| shards > 1).map(|shard| site.shard_queue(shard));
        let queues = std::iter::once(site.ingest_queue()).chain(of_shards).collect();
        let applications = applications(shards);
        site.application(APPLICATION);
        for application in &applications {
            site.client.bind(&site.queue(APPLICATION), &site.out(), application);
        }
        let inbox = site.client.consume(&site.queue(APPLICATION));
        Load { site, queues, applications, customers: (0..CUSTOMERS).map(customer).collect(), inbox, count }
    }

    /// Starts the daemon. One request of each application arrives before anything is measured: from then on
    /// its way is known.
    fn start(&self) -> Daemon {
        // Those in the configuration have bindings from the start on, where the daemon makes any.
        let config = self.applications.iter().fold(self.site.config(), |config, application| {
            config.text(&format!("applications.{application}.window"), "1s")
        });
        let daemon = self.site.start(&config);
        let first = |application: &String| Push::new(&self.site.ingest(), application, "first");
        self.site.client.publish_all(self.applications.iter().map(first));
        arrive(&self.inbox, u64::from(APPLICATIONS));
        self.acked();
        daemon
    }

    fn acked(&self) {
        wait_until("all of it is acked", crate::load::PATIENCE, || {
            self.queues.iter().all(|queue| self.site.node.messages(queue) == Some(0))
        });
    }

    /// Publishes all requests, and waits for all confirms.
    fn publish(&self) {
        let (node, exchange) = (self.site.node, self.site.ingest());
        let (applications, customers) = (&self.applications, &self.customers);
        std::thread::scope(|scope| {
            for producer in 0..PRODUCERS {
                let share = (self.count + PRODUCERS - 1 - producer) / PRODUCERS;
                let batch = Batch::of(&exchange, share, Ids::None);
                scope.spawn(move || {
                    batch.publish_keyed(node, |n| {
                        let customer = usize::try_from((n * PRODUCERS + producer) % CUSTOMERS).unwrap_or(0);
                        let application = &applications[customer % applications.len()];
                        (application, customers[customer].clone())
                    });
                });
            }
        });
    }

    /// The daemon starts with full queues. Requests in the ingest queue are those that the sharder forwards.
    fn full(&self) -> Run {
        let mut by_sharder = None;
        let (daemon, start, before) = refilled(&self.site, self.start(), &self.queues, || {
            self.publish();
            by_sharder = self.site.client.depth(&self.site.ingest_queue());
        });
        let mut run = self.taken(daemon, self.count, start, before);
        if let Some(requests) = by_sharder.filter(|_| self.queues.len() > 1) {
            run.insert("by_sharder".to_owned(), f64::from(requests));
        }
        run
    }

    /// The daemon runs while the requests are published.
    fn live(&self) -> Run {
        let daemon = self.start();
        let (start, before) = (Instant::now(), Cpu::of(self.site.node, Some(&daemon)));
        self.publish();
        self.taken(daemon, u64::from(APPLICATIONS) + self.count, start, before)
    }

    /// The figures, once the daemon has accepted this many requests and all have arrived.
    fn taken(&self, daemon: Daemon, accepted: u64, start: Instant, before: Cpu) -> Run {
        let took = taken_in(&daemon, accepted).duration_since(start);
        let cores = Cpu::of(self.site.node, Some(&daemon)).since(before).cores(took);
        self.acked();
        arrive(&self.inbox, self.count);
        let mut run = measured(&self.site, &daemon, self.count, took, before);
        run.extend(cores);
        clean(&self.site, daemon);
        self.queues.iter().for_each(|queue| self.site.client.delete_queue(queue));
        run
    }
}

/// Which process uses most of this number of cores, and whether all together use the machine up. `None` for a
/// case of another group.
pub fn limit(case: &Case, cores: usize) -> Option<String> {
    if case.group != GROUP {
        return None;
    }
    let parts = [("the daemon", "daemon_cores"), ("the broker", "broker_cores"), ("the load", "load_cores")];
    let used = parts.map(|(name, figure)| (name, case.spread(figure).map_or(0.0, |spread| spread.median)));
    let all: f64 = used.iter().map(|(_, used)| used).sum();
    let (most, used) = used.into_iter().max_by(|one, other| one.1.total_cmp(&other.1))?;
    let limit = if all >= FULL * cores as f64 {
        "the machine is in full use"
    } else {
        "the machine has more: one thread, or waiting for the disk or each other, is the limit"
    };
    Some(format!(
        "{}: {most} uses most, {used:.2} of {cores} cores; all together {all:.2}: {limit}.",
        case.title
    ))
}
