//! Passes the queries of the admin port to the shards, and joins their answers. No query blocks its asker.
//!
//! A command about an application goes to the shard that is the home of the application. Lists and timelines
//! of all applications are asked of all shards ([`super::joined`]). A shard of another node is asked there
//! ([`super::others`]); one that no node has is named in the answer.

use super::answers::ShardAnswer;
use super::dead_letters;
use super::exports::{self, Exports};
use super::joined::JoinedAnswer;
use super::lasting::facts_at_present;
use super::mailbox::{ControlEvent, Inlet, LoopEvent};
use super::others::{OtherNodes, SharedState};
use super::part::ShardPart;
use super::sharder::SharderView;
use crate::admin::{sum, CommandRequest, CommandResponse, Query, ShardState, StateInput, StateScope};
use futures_util::future::join_all;
use futures_util::{stream, StreamExt as _};
use std::future::Future;
use std::sync::Arc;
use tidegate_amqp::DeadLetterService;
use tidegate_common::clock;
use tidegate_types::snapshot::Snapshot;
use tidegate_types::Now;
use tokio::runtime::Handle;
use tokio::sync::oneshot::{channel, Receiver, Sender};

/// Most shards that are asked for their part of one answer at a time, since a page of a list may have a
/// megabyte in each.
const MOST_ASKED: usize = 16;

/// Where queries go.
pub(super) struct QueryDesk {
    /// Runtime of the tasks that wait for answers.
    pub(super) runtime: Handle,
    pub(super) dead_letters: Arc<DeadLetterService>,
    /// Of each shard, by its number.
    pub(super) shards: Vec<Arc<Inlet>>,
    /// Those that may have some of the shards.
    pub(super) others: Option<Arc<OtherNodes>>,
    /// What there is to tell of the sharder, if there is one.
    pub(super) sharder: Option<SharderView>,
    /// Exports of the database of all shards, if they have one.
    pub(super) database: Option<Exports>,
    /// Start of the process.
    pub(super) started: Now,
}

impl QueryDesk {
    /// Takes a query; its answer follows.
    pub(super) fn ask(&self, query: Query) {
        match query {
            Query::Letters(task, reply) => {
                let carried_out = dead_letters::carry_out(Arc::clone(&self.dead_letters), task, reply);
                self.runtime.spawn(carried_out);
            }
            Query::State(scope, reply) => {
                let others = self.others.clone().filter(|_| scope == StateScope::AllNodes);
                // Where each shard is counted is decided once.
                let is_elsewhere = |shard| others.as_ref().is_some_and(|others| others.is_elsewhere(shard));
                let elsewhere: Vec<bool> = (0..).take(self.shards.len()).map(is_elsewhere).collect();
                let asked = self.asked_of_all(ControlEvent::State).into_iter().zip(elsewhere).collect();
                let state = state(asked, others, self.sharder.clone(), self.started);
                self.runtime.spawn(deliver(reply, state));
            }
            Query::Export(reply) => {
                let asked = match &self.database {
                    Some(exports) => {
                        let (sender, begun) = channel();
                        exports.begin(sender);
                        vec![begun]
                    }
                    None => self.asked_of_all(ControlEvent::Export),
                };
                self.runtime.spawn(deliver(reply, exports::feed(asked, self.runtime.clone())));
            }
            Query::Command(request, reply) => self.command(request, reply),
        }
    }

    /// Posts a query into the mailbox of each shard. The answers follow in the order of the shards' numbers.
    fn asked_of_all<A>(&self, query: fn(Sender<A>) -> ControlEvent) -> Vec<Receiver<A>> {
        let asked = self.shards.iter().map(|shard| {
            let (sender, answer) = channel();
            shard.post(query(sender));
            answer
        });
        asked.collect()
    }

    fn command(&self, request: CommandRequest, reply: Sender<CommandResponse>) {
        let joined = (self.shards.len() > 1).then(|| JoinedAnswer::of(&request, clock::wall_ms())).flatten();
        match joined {
            Some(joined) => {
                let doors = (0..).take(self.shards.len()).filter_map(|shard| self.door(shard)).collect();
                self.runtime.spawn(deliver(reply, of_all(doors, joined)));
            }
            None => {
                let answer = self.home(&request).map(|home| home.command(request));
                let response = async move { Some(answer?.await?.response()) };
                self.runtime.spawn(deliver(reply, response));
            }
        }
    }

    /// The shard that knows everything about the command's application.
    fn home(&self, request: &CommandRequest) -> Option<ShardDoor> {
        let application = request.application(|item| &item.application).unwrap_or_default();
        let count = u16::try_from(self.shards.len()).unwrap_or(u16::MAX);
        self.door(tidegate_wire::home(application, count))
    }

    /// The way to a shard at this moment.
    fn door(&self, shard: u16) -> Option<ShardDoor> {
        let inlet = Arc::clone(self.shards.get(usize::from(shard))?);
        let elsewhere = self.others.clone().filter(|others| others.is_elsewhere(shard));
        Some(ShardDoor { shard, inlet, elsewhere })
    }
}

/// The way to a shard.
struct ShardDoor {
    shard: u16,
    /// If it is here.
    inlet: Arc<Inlet>,
    /// If it is not.
    elsewhere: Option<Arc<OtherNodes>>,
}

impl ShardDoor {
    /// Hands over a command, at once if the shard is here. The answer is `None` if the shard has ended.
    fn command(self, request: CommandRequest) -> impl Future<Output = Option<ShardPart>> {
        let ShardDoor { shard, inlet, elsewhere } = self;
        let asked = match elsewhere {
            Some(others) => Err((others, request)),
            None => {
                let (sender, answer): (Sender<ShardAnswer>, _) = channel();
                inlet.post(LoopEvent::Command(request, sender));
                Ok(answer)
            }
        };
        async move {
            match asked {
                Ok(answer) => Some(answer.await.ok()?.into()),
                Err((others, request)) => Some(others.part(shard, request).await),
            }
        }
    }
}

/// Sends the answer, unless there is none. If the client disconnects before, the shards see that nobody waits
/// for their answers any more.
async fn deliver<A>(mut reply: Sender<A>, answer: impl Future<Output = Option<A>>) {
    let answer = tokio::select! {
        answer = answer => answer,
        () = reply.closed() => None,
    };
    if let Some(answer) = answer {
        // The client may have disconnected.
        let _ = reply.send(answer);
    }
}

/// The sum; `None`: a shard has ended. `asked`: by shard, with whether it is elsewhere.
async fn state(
    asked: Vec<(Receiver<ShardState>, bool)>,
    others: Option<Arc<OtherNodes>>,
    sharder: Option<SharderView>,
    started: Now,
) -> Option<StateInput> {
    let elsewhere = (0..).zip(&asked).filter(|(_, (_, elsewhere))| *elsewhere).map(|(shard, _)| shard);
    let of_others = others.iter().flat_map(|others| {
        elsewhere.clone().map(move |shard| async move { (shard, others.state(shard).await) })
    });
    let of_others: Vec<(u16, Option<SharedState>)> = join_all(of_others).await;
    let (mut states, mut missing) = (Vec::with_capacity(asked.len()), Vec::new());
    for (shard, (answer, is_elsewhere)) in (0..).zip(asked) {
        let mut state = answer.await.ok()?;
        if is_elsewhere {
            // It may have come here since.
            state.snapshot = Snapshot::default();
        } else if others.is_some() && state.line.epoch.is_none() {
            // It has left since.
            missing.push(shard);
        }
        states.push(state);
    }
    let mut state = sum(&facts_at_present(started), states);
    for (shard, told) in of_others {
        match told {
            Some(SharedState { line, snapshot }) => state.add_elsewhere(line, snapshot),
            None => missing.push(shard),
        }
    }
    missing.sort_unstable();
    state.missing_shards = missing;
    sharder.into_iter().for_each(|sharder| sharder.add_to(&mut state));
    Some(state)
}

/// The answer of all shards, or the first one that is no part of it; `None`: a shard has ended. Shards that
/// no node has, or whose node has no queue for questions, are named.
async fn of_all(doors: Vec<ShardDoor>, mut joined: JoinedAnswer) -> Option<CommandResponse> {
    let parts = doors.into_iter().map(|door| {
        let part = joined.part(door.shard);
        (door, part)
    });
    let parts: Vec<(ShardDoor, CommandRequest)> = parts.collect();
    let asked = stream::iter(parts).map(|(door, part)| async move {
        let number = door.shard;
        (number, door.command(part).await)
    });
    let mut missing = Vec::new();
    let mut answers = std::pin::pin!(asked.buffer_unordered(MOST_ASKED));
    while let Some((number, answer)) = answers.next().await {
        let part = answer?;
        if let ShardPart::Missing { shard, owner: _ } = part {
            missing.push(shard);
        } else if let Err(refusal) = joined.add(number, part) {
            return Some(refusal);
        }
    }
    let mut response = joined.response();
    if !missing.is_empty() {
        missing.sort_unstable();
        response.document["missing_shards"] = missing.into();
    }
    Some(response)
}

#[cfg(test)]
#[path = "queries_tests.rs"]
mod tests;
