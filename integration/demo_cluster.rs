//! `make demo-cluster`: three daemons share the shards of one database, under a load. One is killed, and the
//! others take its shards; it comes back; another one is stopped in order. Then the account.
//!
//! A private broker and a private database, with syncs on, are made for it and removed. The exit code is 0
//! only if nothing was lost and nothing came early, and each shard found a node in the promised time.
#![expect(clippy::print_stdout, reason = "a program for people to watch")]

#[path = "demo/account.rs"]
mod account;

use serde_json::Value;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_harness::{
    now_ms, run_guarded, Config, Daemon, Database, Ledger, Load, Node, Push, Recorder, Site,
};

/// Two for each node while all run, three while one is away.
const SHARDS: u16 = 6;
/// Names of the nodes on the screen.
const NODES: [&str; 3] = ["anna", "ben", "carla"];
/// Requests a second.
const RATE: u64 = 300;
/// The lease of a shard: how long the others wait for a node that is silent.
const LEASE_S: u64 = 5;
/// After its lease, a shard has another node within this time.
const TAKEN_WITHIN: Duration = Duration::from_secs(15);
/// Time limit for anything else; a slow machine may need much of it.
const LIMIT: Duration = Duration::from_secs(90);

fn main() -> ExitCode {
    run_guarded(|| {
        println!("A RabbitMQ node and a PostgreSQL server of our own start; nothing else here is touched ..");
        let Some(server) = Database::own("fsync = on\nfull_page_writes = on\n") else {
            println!("PostgreSQL is not installed");
            return ExitCode::FAILURE;
        };
        let node = Node::start("", "");
        let site = Site::on(&node, "cluster").divided(SHARDS);
        Cluster::new(&site, &server).run()
    })
}

/// The nodes, and what was asked of them.
struct Cluster<'s> {
    site: &'s Site<'s>,
    applications: Vec<String>,
    daemons: Vec<Daemon>,
    /// Name of each node, as the database has it; empty before it has had a shard.
    names: Vec<String>,
    ledger: Arc<Ledger>,
    start: Instant,
}

impl<'s> Cluster<'s> {
    fn new(site: &'s Site<'s>, server: &Database) -> Self {
        let of = |shard: u16| {
            let names = (0..).map(|n| format!("shop-{n}"));
            names.filter(move |name| tidegate_wire::home(name, SHARDS) == shard).take(2)
        };
        let applications: Vec<String> = (0..SHARDS).flat_map(of).collect();
        let config: Config = applications.iter().fold(
            site.in_database(site.config(), server).text("store.lease", &format!("{LEASE_S}s")),
            |config, name| config.text(&format!("applications.{name}.window"), "1s"),
        );
        let daemons = NODES.iter().map(|_| Daemon::another(&config)).collect();
        let names = vec![String::new(); NODES.len()];
        Cluster { site, applications, daemons, names, ledger: Ledger::new(), start: Instant::now() }
    }

    fn run(mut self) -> ExitCode {
        self.applications.iter().for_each(|name| self.site.application(name));
        let queues: Vec<String> = self.applications.iter().map(|name| self.site.queue(name)).collect();
        let recorder = Recorder::start(self.site.node.uri(), &queues, &self.ledger);
        self.daemons.iter_mut().for_each(Daemon::start_again);
        self.daemons.iter_mut().for_each(Daemon::wait_ready);
        self.start = Instant::now();
        self.say(&format!(
            "three nodes are ready: {} share {SHARDS} shards, each with a lease of {LEASE_S} s",
            NODES.join(", ")
        ));
        let mut good = self.until_even(&[0, 1, 2], LIMIT);
        let load = self.load();
        self.say(&format!(
            "{RATE} requests a second for {} applications: at once, by time, in windows of 1 s",
            self.applications.len()
        ));
        self.watch(Duration::from_secs(4));

        let victim = self.owner_of(0).unwrap_or(0);
        self.say(&format!(
            "kill -9 of {}: what it had unacked and unsent is the others' to do",
            NODES[victim]
        ));
        self.ledger.fault();
        self.daemons[victim].kill9();
        let others: Vec<usize> = (0..NODES.len()).filter(|node| *node != victim).collect();
        let killed = Instant::now();
        good &= self.until_even(&others, Duration::from_secs(LEASE_S) + TAKEN_WITHIN);
        self.say(&format!(
            "every shard has a node again, {:.1} s after the kill",
            killed.elapsed().as_secs_f64()
        ));
        self.watch(Duration::from_secs(4));
        self.ledger.healed();

        self.say(&format!("{} comes back, and is given its part", NODES[victim]));
        self.daemons[victim].start_again();
        self.daemons[victim].wait_ready();
        good &= self.until_even(&[0, 1, 2], LIMIT);
        self.watch(Duration::from_secs(3));

        let leaver = others[0];
        self.say(&format!(
            "{} is stopped in order, as for an upgrade: it drains, and gives its shards up",
            NODES[leaver]
        ));
        self.daemons[leaver].term();
        let status = self.daemons[leaver].exit(LIMIT);
        println!("            it ended with {status}");
        let left: Vec<usize> = (0..NODES.len()).filter(|node| *node != leaver).collect();
        good &= self.until_even(&left, LIMIT);
        self.watch(Duration::from_secs(3));

        load.stop();
        self.say("the load has ended; what is due later is awaited");
        let report = self.ledger.settle(Duration::from_secs(20));
        drop(recorder);
        for node in left {
            self.daemons[node].term();
            self.daemons[node].exit(LIMIT);
        }
        let verdict = account::account(&report, "the kill and the moves");
        if good {
            verdict
        } else {
            println!("FAILED: the shards were not even in time, see above.");
            ExitCode::FAILURE
        }
    }

    fn load(&self) -> Load {
        let (exchange, applications) = (self.site.ingest(), self.applications.clone());
        let recipe = move |n: u64| {
            let place = usize::try_from(n).unwrap_or(0) % applications.len();
            let application = applications[place].clone();
            let push = Push::new(&exchange, &application, n.to_string()).id(&format!("request-{n}"));
            let customer = format!("customer-{}", n % 7);
            match n / applications.len() as u64 % 3 {
                0 => (push, application, None, None),
                1 => {
                    let delay = n * 37 % 3_000;
                    (push.delay(delay.cast_signed()), application, None, Some(delay))
                }
                _ => (push.customer(&customer), application, Some(customer), None),
            }
        };
        Load::start(self.site.node.uri(), RATE, &self.ledger, Box::new(recipe))
    }

    fn say(&self, line: &str) {
        println!("\n{:>6.2} s  * {line}", self.start.elapsed().as_secs_f64());
    }

    /// Place of the node that serves each shard; `None`: nobody does.
    fn owners(&mut self) -> Vec<Option<usize>> {
        let mut state = Value::Null;
        for (name, daemon) in self.names.iter_mut().zip(&mut self.daemons) {
            if daemon.running() {
                state = daemon.ask("GET", "/api/v1/state").1;
                // A node has its name with its first shard.
                let told = state["node"].as_str().filter(|told| !told.is_empty());
                told.into_iter().for_each(|told| told.clone_into(name));
            }
        }
        let shards = state["shards"].as_array().cloned().unwrap_or_default();
        let owner = |shard: &Value| {
            let owner = shard["owner"].as_str().filter(|_| shard["state"] == "running")?;
            self.names.iter().position(|name| name == owner)
        };
        shards.iter().map(owner).collect()
    }

    fn owner_of(&mut self, shard: usize) -> Option<usize> {
        self.owners().get(shard).copied().flatten()
    }

    /// One line: who has what, and what has arrived.
    fn line(&mut self, owners: &[Option<usize>]) -> String {
        let of = |node: Option<usize>| {
            let shards = owners.iter().enumerate().filter(|(_, owner)| **owner == node);
            shards.map(|(shard, _)| shard.to_string()).collect::<Vec<_>>().join(" ")
        };
        let nodes: Vec<String> =
            NODES.iter().enumerate().map(|(node, name)| format!("{name}: {:<8}", of(Some(node)))).collect();
        let nobody = of(None);
        let nobody = if nobody.is_empty() { String::new() } else { format!("  nobody: {nobody}") };
        format!("{} | {:>6} arrived{nobody}", nodes.join(" "), self.ledger.arrived_count())
    }

    /// Prints a line now and then, and whenever a shard changes hands, until these nodes have all shards, as
    /// many each. Returns whether that came about in time.
    fn until_even(&mut self, nodes: &[usize], limit: Duration) -> bool {
        let begun = Instant::now();
        let mut last: Option<(Vec<Option<usize>>, Instant)> = None;
        loop {
            let owners = self.owners();
            let each = usize::from(SHARDS) / nodes.len();
            let even = owners.len() == usize::from(SHARDS)
                && nodes
                    .iter()
                    .all(|node| owners.iter().filter(|owner| **owner == Some(*node)).count() == each);
            let is_news =
                last.as_ref().is_none_or(|(before, at)| *before != owners || at.elapsed().as_secs() >= 2);
            if is_news || even {
                let line = self.line(&owners);
                println!("{:>6.2} s    {line}", self.start.elapsed().as_secs_f64());
                last = Some((owners, Instant::now()));
            }
            if even || begun.elapsed() > limit {
                return even;
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Prints a line each second for this time.
    fn watch(&mut self, time: Duration) {
        let end = now_ms() + u64::try_from(time.as_millis()).unwrap_or(0);
        while now_ms() < end {
            std::thread::sleep(Duration::from_secs(1));
            let owners = self.owners();
            let line = self.line(&owners);
            println!("{:>6.2} s    {line}", self.start.elapsed().as_secs_f64());
        }
    }
}
