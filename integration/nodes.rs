//! Several daemons, the nodes, share the shards of one database and one broker, seen from outside: which node
//! has which shard; that a node which joins, ends or is lost changes no more than it must; and that nothing is
//! lost or repeated meanwhile.
//!
//! Judges promise 11.

mod face;
mod joins;
mod lost;
mod refused;
mod restarted;

use crate::shards::{self, applications, home, load, missing, naming, COUNT, LIMIT};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use tidegate_harness::{holds_within, wait_until, Config, Daemon, Database, Ledger, Load, Recorder, Site};

/// Who has a shard: the node's name, and the number of its claim.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Claim {
    owner: String,
    epoch: u64,
}

/// Lease of these nodes, s: long enough that a machine with other work does not end it.
const LEASE_S: u64 = 12;

/// Nodes that share the shards of a site, with two configured applications at home in each shard.
struct Nodes {
    site: Site<'static>,
    server: &'static Database,
    /// What the nodes have in common.
    config: Config,
    /// Those that run and are able to serve.
    able: Vec<Daemon>,
}

impl Nodes {
    /// None runs yet. `None`, which is reported, if PostgreSQL is missing.
    fn stopped(name: &str) -> Option<Nodes> {
        let server = Database::shared()?;
        let site = shards::site(name);
        let config = naming(site.in_database(site.config(), server), &applications(2));
        Some(Nodes {
            config: config.text("store.lease", &format!("{LEASE_S}s")),
            site,
            server,
            able: Vec::new(),
        })
    }

    /// As many nodes, started at the same time, each with its part of the shards.
    fn start(name: &str, count: usize) -> Option<Nodes> {
        let mut nodes = Nodes::stopped(name)?;
        (0..count).for_each(|_| nodes.join());
        nodes.even();
        Some(nodes)
    }

    /// Starts one more node.
    fn join(&mut self) {
        self.able.push(started(&self.config));
    }

    /// Who has which shard, by its number; or the reason why that is not settled. It is if one node says of
    /// each shard that it serves it, all others name that node, and so does the database.
    fn claims(&self) -> Result<Vec<Claim>, String> {
        let states: Vec<Value> = self.able.iter().map(|node| node.ask("GET", "/api/v1/state").1).collect();
        let told = (0..COUNT).map(|shard| claim(&states, shard)).collect::<Result<Vec<_>, _>>()?;
        let recorded = self.recorded();
        if told == recorded {
            Ok(told)
        } else {
            Err(format!("the nodes tell {told:?}, the database {recorded:?}"))
        }
    }

    /// Who has which shard at present, as the database records it.
    fn recorded(&self) -> Vec<Claim> {
        let schema = self.site.schema();
        let rows = self.server.sql(&format!(
            "SELECT owner, epoch FROM {schema}.shards WHERE expires > clock_timestamp() ORDER BY shard"
        ));
        let claim = |line: &str| {
            let (owner, epoch) = line.rsplit_once('|').expect("two columns");
            Claim { owner: owner.to_owned(), epoch: epoch.parse().expect("a number") }
        };
        rows.lines().map(claim).collect()
    }

    /// Waits until each node that is able to serve is ready and has an even part of the shards. Returns who
    /// has which one.
    ///
    /// # Panics
    /// If they have not within the limit, or one of the nodes has ended.
    fn even(&mut self) -> Vec<Claim> {
        let count = self.able.len();
        let parts: Vec<usize> =
            (0..count).map(|place| (usize::from(COUNT) + count - 1 - place) / count).collect();
        let mut last = Err(String::new());
        holds_within(LIMIT, || {
            assert!(self.able.iter_mut().all(Daemon::running), "a node has ended");
            last = self.claims().and_then(|claims| {
                let ready: Vec<u16> = self.able.iter().map(|node| node.ask("GET", "/readyz").0).collect();
                if parts_of(&claims) == parts && ready.iter().all(|status| *status == 200) {
                    Ok(claims)
                } else {
                    Err(format!("{claims:?}, /readyz: {ready:?}"))
                }
            });
            last.is_ok()
        });
        last.unwrap_or_else(|told| panic!("{count} nodes are to have parts of {parts:?}, but: {told}"))
    }

    /// The place in `able` of the node that has an application's shard.
    fn place_of(&self, application: &str, claims: &[Claim]) -> usize {
        let owner = &claims[usize::from(home(application))].owner;
        let place = self.able.iter().position(|node| node.state()["node"] == **owner);
        place.unwrap_or_else(|| panic!("{owner} is none of the nodes"))
    }
}

/// A node with this configuration and a directory of its own, which is about to start.
fn started(config: &Config) -> Daemon {
    let mut node = Daemon::another(config);
    node.start_again();
    node
}

/// A node's answer about all shards. A node that is busy is left out for a moment, and then it is asked again.
fn whole(node: &Daemon, path: &str) -> Value {
    let mut told = Value::Null;
    wait_until(&format!("{path} leaves out no shard"), LIMIT, || {
        let (status, answer) = node.ask("GET", path);
        told = answer;
        status == 200 && missing(&told).is_empty()
    });
    told
}

/// The node that serves this shard, by the states of all nodes; or what they tell, if they do not agree.
fn claim(states: &[Value], shard: u16) -> Result<Claim, String> {
    let lines: Vec<(&Value, &Value)> =
        states.iter().map(|state| (&state["node"], &state["shards"][usize::from(shard)])).collect();
    let told = || format!("of shard {shard} the nodes tell {lines:?}");
    let serves = |(node, line): &&(&Value, &Value)| line["state"] == "running" && line["owner"] == **node;
    let mut serving = lines.iter().filter(serves);
    let (Some((owner, line)), None) = (serving.next(), serving.next()) else { return Err(told()) };
    let is_agreed = lines.iter().all(|(_, line)| line["shard"] == shard && line["owner"] == **owner);
    let named = owner.as_str().zip(line["epoch"].as_u64()).filter(|_| is_agreed);
    named.map(|(owner, epoch)| Claim { owner: owner.to_owned(), epoch }).ok_or_else(told)
}

/// Numbers of shards of the nodes that have any, the largest first.
fn parts_of(claims: &[Claim]) -> Vec<usize> {
    let mut parts = BTreeMap::new();
    for claim in claims {
        *parts.entry(claim.owner.as_str()).or_insert(0) += 1;
    }
    let mut parts: Vec<usize> = parts.into_values().collect();
    parts.sort_unstable_by(|one, other| other.cmp(one));
    parts
}

/// Requests of all applications at a steady rate, and what arrives of them.
struct Flow {
    ledger: Arc<Ledger>,
    recorder: Recorder,
    load: Load,
}

impl Flow {
    /// Begins with ids that begin with `name`, and waits until some have arrived.
    fn begin(nodes: &Nodes, name: &str) -> Flow {
        let (site, names) = (&nodes.site, applications(2));
        names.iter().for_each(|name| site.application(name));
        let queues: Vec<String> = names.iter().map(|name| site.queue(name)).collect();
        let ledger = Ledger::new();
        let recorder = Recorder::start(site.node.uri(), &queues, &ledger);
        let load = load(site, &ledger, name, &names);
        let flow = Flow { ledger, recorder, load };
        flow.goes_on();
        flow
    }

    /// Waits until some more have arrived.
    fn goes_on(&self) {
        let before = self.ledger.arrived_count();
        wait_until("some more arrive", LIMIT, || self.ledger.arrived_count() > before + 400);
    }

    /// Ends it, and waits until all has arrived. Returns the records.
    fn end(self) -> Arc<Ledger> {
        self.load.stop();
        assert!(self.ledger.arrives(LIMIT), "VERDICT: {} have not arrived", self.ledger.missing());
        drop(self.recorder);
        self.ledger
    }
}
