//! Passes the queries of the admin port to the shards, and joins their answers. No query blocks its asker.

use super::dead_letters;
use super::lasting::facts_at_present;
use super::mailbox::{ControlEvent, Inlet, LoopEvent};
use super::sharder::{link_states, SharderLinks};
use crate::admin::{sum, Query, ShardState, StateInput};
use std::sync::Arc;
use tidegate_amqp::DeadLetterService;
use tidegate_types::Now;
use tokio::runtime::Handle;
use tokio::sync::oneshot::{channel, Receiver, Sender};

/// Where queries go.
pub(super) struct QueryDesk {
    /// Runtime of the tasks that wait for several answers.
    pub(super) runtime: Handle,
    pub(super) dead_letters: Arc<DeadLetterService>,
    /// Of each shard, by its number.
    pub(super) shards: Vec<Arc<Inlet>>,
    /// The links of the sharder, if there is one.
    pub(super) sharder: Option<SharderLinks>,
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
                let asked = self.shards.iter().map(|shard| {
                    let (sender, answer) = channel();
                    shard.post(ControlEvent::State(sender));
                    answer
                });
                let sharder = self.sharder.clone();
                self.runtime.spawn(answer_state(asked.collect(), sharder, self.started, reply));
            }
            Query::Export(reply) => self.to_its_shard(ControlEvent::Export(reply)),
            Query::Command(request, reply) => self.to_its_shard(LoopEvent::Command(request, reply)),
        }
    }

    /// All items are in the first shard.
    fn to_its_shard(&self, event: impl Into<LoopEvent>) {
        if let Some(shard) = self.shards.first() {
            shard.post(event);
        }
    }
}

/// Answers with the sum, unless a shard has ended or the client has disconnected.
async fn answer_state(
    asked: Vec<Receiver<ShardState>>,
    sharder: Option<SharderLinks>,
    started: Now,
    mut reply: Sender<StateInput>,
) {
    let answers = async {
        let mut states = Vec::with_capacity(asked.len());
        for answer in asked {
            states.push(answer.await.ok()?);
        }
        Some(states)
    };
    let states = tokio::select! {
        states = answers => states,
        () = reply.closed() => None,
    };
    let Some(states) = states else { return };
    let mut state = sum(&facts_at_present(started), states);
    state.links.extend(sharder.iter().flat_map(link_states));
    // The client may have disconnected.
    let _ = reply.send(state);
}
