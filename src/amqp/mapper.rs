//! Bindings of the map for applications that are met: made by the forwarder of their shard, on a channel of
//! its connection, beside the forwards.
//!
//! A request whose key is its application, and that came through the ingest queue, had no binding. One that
//! came to another shard had a wrong one, which is taken away first: meanwhile its requests come through the
//! ingest queue, and never by two ways. Both are what the request shows of a past moment, so a binding may be
//! made that exists: the broker knows one of them.
//!
//! What is published after the binding overtakes what is still on its way through the sharder. So the
//! binding waits until no request of the application has come for [`QUIET`], if there is such a moment
//! within [`AT_THE_LATEST`]. Made before the first forward, it would let each command overtake the request
//! that it is about, if it is published right after it.
//!
//! Bounds: one binding is made at a time, for each application at most once in [`AGAIN`]; after a failure
//! none is made for [`REST`]. No request waits for one.

use super::blueprint::Names;
use super::connection::Session;
use super::shared_map::{SharedMap, MOST_MET};
use super::supervise::RateLimitedLog;
use super::topology::MapSetup;
use lapin::types::ShortString;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tidegate_wire::Forward;
use tokio::sync::mpsc::{channel, Receiver, Sender};
use tokio::time::Instant;

/// Longer than a request takes from the ingest queue to the queue of its shard.
const QUIET: Duration = Duration::from_millis(100);
/// For an application whose requests come all the time.
const AT_THE_LATEST: Duration = Duration::from_secs(1);
/// What waits in the ingest queue shows that there was no binding, long after there is one.
const AGAIN: Duration = Duration::from_secs(10);
/// A refusal costs a channel.
const REST: Duration = Duration::from_secs(60);

/// A binding to be made.
struct MapOrder {
    application: ShortString,
    /// The shard that its requests come to.
    wrong: Option<u16>,
}

/// An application without the right binding.
#[derive(Clone, Copy)]
struct Unbound {
    /// Its first request, and its last one.
    since: Instant,
    last: Instant,
    /// The shard that the last one came to; `None`: it came through the ingest queue.
    came_to: Option<u16>,
}

/// What is known of an application that was met.
enum Meeting {
    Unbound(Unbound),
    /// A binding was tried, and is not tried again before this moment.
    Tried(Instant),
}

/// Which bindings a forwarder orders.
pub(crate) struct Mapper {
    map: Arc<SharedMap>,
    names: Arc<Names>,
    shard: u16,
    /// Applications that were met, by name.
    met: BTreeMap<ShortString, Meeting>,
    /// The order under way: its application, and the wrong shard.
    open: Option<(ShortString, Option<u16>)>,
    rests_until: Option<Instant>,
    orders: Sender<MapOrder>,
    answers: Receiver<Result<(), String>>,
    log: RateLimitedLog,
}

impl Mapper {
    /// For the forwarder of this shard. `names`: those of the node.
    pub(crate) fn new(map: Arc<SharedMap>, names: Arc<Names>, shard: u16) -> Self {
        // Closed, until there is a connection.
        let ((orders, _), (_, answers)) = (channel(1), channel(1));
        Mapper {
            map,
            names,
            shard,
            met: BTreeMap::new(),
            open: None,
            rests_until: None,
            orders,
            answers,
            log: RateLimitedLog::default(),
        }
    }

    /// What is counted of the map.
    pub(crate) fn map(&self) -> &SharedMap {
        &self.map
    }

    /// There is a new connection. Returns what carries out the orders on it, without an end. `limit`: for one
    /// answer of the broker.
    pub(crate) fn connected<'s>(
        &mut self,
        session: &'s Session,
        limit: Duration,
    ) -> impl Future<Output = Infallible> + Send + use<'s> {
        let (answer, orders) = self.opened();
        let (names, shard) = (Arc::clone(&self.names), self.shard);
        async move {
            let mut orders = orders;
            let mut setup = MapSetup::new(session, limit);
            while let Some(MapOrder { application, wrong }) = orders.recv().await {
                let done = setup.lead(&names, shard, application.as_str(), wrong).await;
                // Without its reader the connection is ending.
                let _ = answer.send(done).await;
            }
            std::future::pending().await
        }
    }

    /// The ends of whoever carries out the orders.
    fn opened(&mut self) -> (Sender<Result<(), String>>, Receiver<MapOrder>) {
        let ((orders, orders_out), (answers_in, answers)) = (channel(1), channel(1));
        (self.orders, self.answers, self.open) = (orders, answers, None);
        (answers_in, orders_out)
    }

    /// A request is to be forwarded. `came_to`: the shard that it came to; `None`: it came through the ingest
    /// queue.
    pub(crate) fn meet(&mut self, request: &Forward, came_to: Option<u16>, now: Instant) {
        let Some(application) = request.keyed_application().filter(|_| self.map.leads()) else { return };
        let unbound = |since| Meeting::Unbound(Unbound { since, last: now, came_to });
        match self.met.get_mut(application) {
            Some(Meeting::Tried(until)) if now < *until => {}
            Some(known @ Meeting::Tried(_)) => *known = unbound(now),
            Some(Meeting::Unbound(of_it)) => *of_it = Unbound { last: now, came_to, ..*of_it },
            None if self.map.admits() => drop(self.met.insert(application.clone(), unbound(now))),
            None => {
                let detail = format!("{MOST_MET} applications have been met in this run");
                self.log.warn("met", &detail, "requests of others go through the ingest queue");
            }
        }
    }

    /// Orders a binding whose moment has come, if none is under way.
    pub(crate) fn order(&mut self, now: Instant) {
        if self.open.is_some() || self.rests_until.is_some_and(|until| now < until) {
            return;
        }
        let ripe = self.met.iter_mut().find_map(|(application, known)| match known {
            Meeting::Unbound(Unbound { since, last, came_to })
                if now >= *last + QUIET || now >= *since + AT_THE_LATEST =>
            {
                Some((application, *came_to, known))
            }
            Meeting::Unbound(_) | Meeting::Tried(_) => None,
        });
        let Some((application, wrong, known)) = ripe else { return };
        let order = MapOrder { application: application.clone(), wrong };
        // It has room if there is a connection: there is one order at a time.
        if self.orders.try_send(order).is_ok() {
            self.open = Some((application.clone(), wrong));
            *known = Meeting::Tried(now + AGAIN);
        }
    }

    /// Waits for the end of an order. Safe to cancel.
    pub(crate) async fn answered(&mut self) {
        match self.answers.recv().await {
            Some(answer) => self.settle(answer, Instant::now()),
            // There is no connection.
            None => std::future::pending().await,
        }
    }

    fn settle(&mut self, answer: Result<(), String>, now: Instant) {
        let Some((application, wrong)) = self.open.take() else { return };
        match answer {
            Ok(()) => {
                self.map.bound();
                if let Some(wrong) = wrong {
                    self.map.corrected();
                    let queue = self.names.queue_of(Some(wrong));
                    let detail = format!("application '{application}', queue '{queue}'");
                    self.log.warn("corrected", &detail, "a binding to the queue of a wrong shard is removed");
                }
            }
            Err(fault) => {
                self.map.bind_failed();
                self.rests_until = Some(now + REST);
                let detail = format!("application '{application}': {fault}");
                self.log.warn("failed", &detail, "no binding is made; requests go through the ingest queue");
            }
        }
    }
}

#[cfg(test)]
#[path = "mapper_tests.rs"]
mod tests;
