//! Passes the queries of the admin port to the shards, and joins their answers. No query blocks its asker.
//!
//! A command about an application goes to the shard that is the home of the application. Lists and timelines
//! of all applications are asked of all shards ([`super::joined`]).

use super::answers::{self, ShardAnswer};
use super::dead_letters;
use super::exports;
use super::joined::JoinedAnswer;
use super::lasting::facts_at_present;
use super::mailbox::{ControlEvent, Inlet, LoopEvent};
use super::sharder::SharderView;
use crate::admin::{sum, CommandRequest, CommandResponse, Query, ShardState, StateInput};
use futures_util::{stream, StreamExt as _};
use std::future::Future;
use std::sync::Arc;
use tidegate_amqp::DeadLetterService;
use tidegate_common::clock;
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
    /// What there is to tell of the sharder, if there is one.
    pub(super) sharder: Option<SharderView>,
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
            Query::State(reply) => {
                let asked = self.asked_of_all(ControlEvent::State);
                self.runtime.spawn(deliver(reply, state(asked, self.sharder.clone(), self.started)));
            }
            Query::Export(reply) => {
                let asked = self.asked_of_all(ControlEvent::Export);
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
                self.runtime.spawn(deliver(reply, of_all(self.shards.clone(), joined)));
            }
            None => {
                let answer = self.home(&request).map(|shard| command_to(shard, request));
                let response = async move { Some(answers::response(&answer?.await.ok()?)) };
                self.runtime.spawn(deliver(reply, response));
            }
        }
    }

    /// The shard that knows everything about the command's application.
    fn home(&self, request: &CommandRequest) -> Option<&Arc<Inlet>> {
        let application = request.application(|item| &item.application).unwrap_or_default();
        let count = u16::try_from(self.shards.len()).unwrap_or(u16::MAX);
        self.shards.get(usize::from(tidegate_wire::home(application, count)))
    }
}

fn command_to(shard: &Inlet, request: CommandRequest) -> Receiver<ShardAnswer> {
    let (sender, answer) = channel();
    shard.post(LoopEvent::Command(request, sender));
    answer
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

/// The sum; `None`: a shard has ended.
async fn state(
    asked: Vec<Receiver<ShardState>>,
    sharder: Option<SharderView>,
    started: Now,
) -> Option<StateInput> {
    let mut states = Vec::with_capacity(asked.len());
    for answer in asked {
        states.push(answer.await.ok()?);
    }
    let mut state = sum(&facts_at_present(started), states);
    sharder.into_iter().for_each(|sharder| sharder.add_to(&mut state));
    Some(state)
}

/// The answer of all shards, or the first one that is no part of it; `None`: a shard has ended.
async fn of_all(shards: Vec<Arc<Inlet>>, mut joined: JoinedAnswer) -> Option<CommandResponse> {
    let parts = (0..).zip(shards).map(|(number, shard)| (number, shard, joined.part(number)));
    let parts: Vec<(u16, Arc<Inlet>, CommandRequest)> = parts.collect();
    let asked = stream::iter(parts).map(|(number, shard, part)| async move {
        let answer = command_to(&shard, part).await;
        (number, answer)
    });
    let mut answers = std::pin::pin!(asked.buffer_unordered(MOST_ASKED));
    while let Some((number, answer)) = answers.next().await {
        if let Err(refusal) = joined.add(number, answer.ok()?) {
            return Some(refusal);
        }
    }
    Some(joined.response())
}

#[cfg(test)]
#[path = "queries_tests.rs"]
mod tests;
