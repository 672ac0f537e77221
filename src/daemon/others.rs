//! The other nodes that share the shards of a database: this one asks them about theirs, and answers them
//! about its own.
//!
//! A question and its answer are JSON behind a proof by the key that all nodes have from the database: the
//! right to publish to the exchange of the nodes is not enough to command them. A question is for one node
//! and for one time, and an answer is that to one question, so neither can be sent again by who has read it.
//! The node that is asked by a client checks tokens and writes the audit log.
//!
//! A question that no node has received may be asked again, of the shard's next owner. One that was received
//! and is not answered is not: it may have been carried out.

use super::mailbox::{ControlEvent, Inlet, LoopEvent};
use super::members::{SeatBoard, SeatedAt};
use super::part::ShardPart;
use crate::admin::{CommandRequest, ShardLine};
use futures_util::future::BoxFuture;
use futures_util::FutureExt;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tidegate_amqp::{AskFailure, Serve};
use tidegate_common::clock;
use tidegate_types::snapshot::Snapshot;
use tidegate_wire::{ForwardKey, PROOF_BYTES};
use tokio::sync::oneshot::channel;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Time limit for the answer of another node; less than that of a client's request.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_secs(28);
/// The same for its state.
pub(super) const STATE_WITHIN: Duration = Duration::from_secs(3);
/// How often who waits for an answer looks whether the shard has another owner.
const OWNER_LOOK: Duration = Duration::from_secs(1);
/// Purposes of the proofs: a question is no answer.
const QUESTION: &str = "question";
const ANSWER: &str = "answer to ";
/// Difference of the clocks of two nodes that share a database, ms; see `store::postgres::clocks`.
const CLOCKS_APART_MS: u64 = 60_000;
/// A question is received no longer than this before its end, ms.
const FARTHEST_MS: u64 = 180_000;
/// Most changes that are remembered: more than a thousand a second.
const MOST_RECEIVED: usize = 100_000;
/// Most questions to one node at a time.
const MOST_ASKED_OF_ONE: usize = 32;
/// Most nodes of which something is known.
const MOST_NODES: usize = 1_000;

/// A question to the node that has a shard.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeQuestion {
    /// The node that is asked.
    node: String,
    /// The process of that node, as it has told it; 0: it was not asked yet.
    process: u64,
    /// Of this question alone.
    number: u64,
    /// Until when it may be received, UTC ms.
    until: u64,
    shard: u16,
    about: QuestionAbout,
}

/// Changes that were asked for, until when each could be asked for again and by number: whoever has read a
/// question must not be able to repeat it.
#[derive(Default)]
struct ReceivedChanges(BTreeSet<(u64, u64)>);

impl ReceivedChanges {
    /// Whether there is room for more.
    fn has_room(&mut self, now: u64) -> bool {
        while self.0.first().is_some_and(|(until, _)| *until < now) {
            self.0.pop_first();
        }
        self.0.len() < MOST_RECEIVED
    }

    /// Whether it is new.
    fn admits(&mut self, number: u64, until: u64) -> bool {
        self.0.insert((until, number))
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum QuestionAbout {
    Command(Box<CommandRequest>),
    State,
}

/// The answer of that node.
#[derive(Debug, Serialize, Deserialize)]
enum NodeAnswer {
    Part(ShardPart),
    State(Box<SharedState>),
    /// It does not have the shard: nothing was done.
    Elsewhere,
    /// It is this process, and does not know the one that was asked: nothing was done.
    Anew(u64),
}

/// What the state of a node says of a shard that another node has.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SharedState {
    pub(super) line: ShardLine,
    pub(super) snapshot: Snapshot,
}

/// Why there is no answer.
#[derive(Debug, PartialEq, Eq)]
enum NoAnswer {
    /// No node has the shard: nothing was done.
    Nobody,
    /// This node has it, and no queue is bound by its name: nothing was done.
    Unbound(String),
    /// The node that has it does not answer, for this reason.
    Silent(String),
}

/// Sends a question to the node of this name, and waits for the answer.
pub(super) type AskNode =
    Box<dyn Fn(String, Vec<u8>, Duration) -> BoxFuture<'static, Result<Vec<u8>, AskFailure>> + Send + Sync>;

/// See the module.
pub(super) struct OtherNodes {
    board: Arc<SeatBoard>,
    /// Present once the database has told the key.
    link: OnceLock<(AskNode, ForwardKey)>,
    /// What is known of nodes, by their names.
    known: Mutex<BTreeMap<String, KnownNode>>,
}

/// What is known of another node.
#[derive(Clone)]
struct KnownNode {
    /// Its process, as it has told it.
    process: Arc<AtomicU64>,
    /// For questions to it at a time: one that does not answer leaves those to others alone.
    places: Arc<Semaphore>,
}

impl QuestionAbout {
    /// Whether it changes anything.
    fn is_change(&self) -> bool {
        match self {
            QuestionAbout::State => false,
            QuestionAbout::Command(command) => command.is_change(),
        }
    }
}

impl OtherNodes {
    pub(super) fn new(board: Arc<SeatBoard>) -> Self {
        OtherNodes { board, link: OnceLock::new(), known: Mutex::default() }
    }

    /// What is known of a node.
    fn known(&self, node: &str) -> KnownNode {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        // Names change seldom, so those of nodes that have gone are few.
        if known.len() > MOST_NODES {
            known.clear();
        }
        let new =
            || KnownNode { process: Arc::default(), places: Arc::new(Semaphore::new(MOST_ASKED_OF_ONE)) };
        known.entry(node.to_owned()).or_insert_with(new).clone()
    }

    /// The others can be asked in this way from now on.
    pub(super) fn connect(&self, key: ForwardKey, ask: AskNode) {
        // There is one key, and one way.
        let _ = self.link.set((ask, key));
    }

    /// Whether another node, or nobody, has this shard.
    pub(super) fn is_elsewhere(&self, shard: u16) -> bool {
        self.board.seat(shard) != SeatedAt::Here
    }

    /// The answer of the node that has this shard to a command.
    pub(super) async fn part(&self, shard: u16, request: CommandRequest) -> ShardPart {
        let about = QuestionAbout::Command(Box::new(request));
        match self.asked(shard, about, ANSWER_WITHIN).await {
            Ok(NodeAnswer::Part(part)) => part,
            Ok(NodeAnswer::State(_) | NodeAnswer::Elsewhere | NodeAnswer::Anew(_))
            | Err(NoAnswer::Nobody) => ShardPart::Missing { shard, owner: None },
            Err(NoAnswer::Unbound(owner)) => ShardPart::Missing { shard, owner: Some(owner) },
            Err(NoAnswer::Silent(reason)) => ShardPart::unavailable(&reason),
        }
    }

    /// The state of this shard at the node that has it; `None`: nobody tells.
    pub(super) async fn state(&self, shard: u16) -> Option<SharedState> {
        // With the wait for a place among the questions to that node, since it may have many shards.
        let asked = timeout(STATE_WITHIN, self.asked(shard, QuestionAbout::State, STATE_WITHIN));
        match asked.await {
            Ok(Ok(NodeAnswer::State(state))) => Some(*state),
            Ok(Ok(NodeAnswer::Part(_) | NodeAnswer::Elsewhere | NodeAnswer::Anew(_)) | Err(_)) | Err(_) => {
                None
            }
        }
    }

    /// Waits for an answer as long as the shard belongs to this node, and a moment longer: it may answer
    /// while it gives the shard up. `None`: it has come to belong to no node, or to another one.
    async fn while_owner<A>(&self, shard: u16, owner: &str, answer: impl Future<Output = A>) -> Option<A> {
        let mut answer = std::pin::pin!(answer);
        let is_owner = || matches!(self.board.seat(shard), SeatedAt::At(now) if now == owner);
        loop {
            let was_owner = is_owner();
            match timeout(OWNER_LOOK, &mut answer).await {
                Ok(answer) => return Some(answer),
                Err(_) if was_owner => {}
                Err(_) => return None,
            }
        }
    }

    /// Asks the owner, and once more the next one if the first has not received it.
    async fn asked(&self, shard: u16, about: QuestionAbout, limit: Duration) -> Result<NodeAnswer, NoAnswer> {
        let until = clock::wall_ms() + limit.as_millis() as u64 + CLOCKS_APART_MS;
        let mut question = NodeQuestion { node: String::new(), process: 0, number: 0, until, shard, about };
        let (mut former, mut is_unbound) = (None, false);
        // One for each of two owners, and one for a process that is not known.
        for _ in 0..3 {
            let SeatedAt::At(owner) = self.board.seat(shard) else { break };
            if former.as_ref() == Some(&owner) {
                return Err(if is_unbound { NoAnswer::Unbound(owner) } else { NoAnswer::Nobody });
            }
            is_unbound = false;
            let Some((ask, key)) = self.link.get() else { break };
            let silent = |reason: &str| {
                Err(NoAnswer::Silent(format!("shard {shard} belongs to node {owner}, which {reason}")))
            };
            let KnownNode { process, places } = self.known(&owner);
            let Ok(Ok(_place)) = timeout(limit, places.acquire_owned()).await else {
                return silent("does not answer at present: nothing was done");
            };
            question.node.clone_from(&owner);
            question.process = process.load(Ordering::Relaxed);
            question.number = getrandom::u64().unwrap_or(until);
            let sent = sealed(key, QUESTION, &serde_json::to_vec(&question).unwrap_or_default());
            let is_change = question.about.is_change();
            let answer = ask(owner.clone(), sent.clone(), limit);
            let Some(answer) = self.while_owner(shard, &owner, answer).await else {
                // Its queue may be gone with the question in it.
                if is_change {
                    return silent("has gone meanwhile: a change may have been made");
                }
                former = Some(owner);
                continue;
            };
            match answer {
                Ok(bytes) => {
                    let json = opened(key, &answer_to(&sent), &bytes);
                    match json.and_then(|json| serde_json::from_slice(json).ok()) {
                        Some(NodeAnswer::Elsewhere) => {}
                        Some(NodeAnswer::Anew(present)) => {
                            process.store(present, Ordering::Relaxed);
                            continue;
                        }
                        Some(answer) => return Ok(answer),
                        None => return silent("answers in another way: is it of this version?"),
                    }
                }
                Err(AskFailure::NoNode) => is_unbound = true,
                Err(AskFailure::Unsent(reason)) => return silent(&format!("cannot be asked: {reason}")),
                Err(AskFailure::Unanswered) => {
                    return silent("did not answer in time: a change may have been made");
                }
            }
            former = Some(owner);
        }
        Err(NoAnswer::Nobody)
    }
}

/// The purpose of an answer: it answers this question and no other.
fn answer_to(question: &[u8]) -> String {
    let proof = question.iter().take(PROOF_BYTES);
    proof.fold(ANSWER.to_owned(), |purpose, byte| purpose + &format!("{byte:02x}"))
}

/// A body behind its proof.
fn sealed(key: &ForwardKey, purpose: &str, json: &[u8]) -> Vec<u8> {
    [&key.prove(purpose, json)[..], json].concat()
}

/// The body, if the proof before it is right.
fn opened<'b>(key: &ForwardKey, purpose: &str, bytes: &'b [u8]) -> Option<&'b [u8]> {
    let (proof, json) = bytes.split_first_chunk::<PROOF_BYTES>()?;
    key.proves(purpose, json, *proof).then_some(json)
}

/// Answers other nodes about the shards that this one has.
pub(super) fn serve(key: ForwardKey, board: Arc<SeatBoard>, inlets: Vec<Arc<Inlet>>) -> Serve {
    let received: Arc<Mutex<ReceivedChanges>> = Arc::default();
    // Another one for each process: what was asked of an earlier one is not known here.
    let own = getrandom::u64().unwrap_or_else(|_| clock::wall_ms()).max(1);
    Arc::new(move |bytes| {
        let (key, board, inlets) = (key.clone(), Arc::clone(&board), inlets.clone());
        let received = Arc::clone(&received);
        async move {
            let Some(json) = opened(&key, QUESTION, &bytes) else {
                tracing::debug!("a message to this node proves nothing, and is ignored");
                return None;
            };
            let answer = match serde_json::from_slice(json) {
                Ok(question) => answered(question, own, (&board, &inlets), &received).await?,
                Err(error) => {
                    tracing::debug!(%error, "another node asks for something that this one does not know");
                    let text = "the node that has the shard is of another version: nothing was done";
                    NodeAnswer::Part(ShardPart::unavailable(text))
                }
            };
            Some(sealed(&key, &answer_to(&bytes), &serde_json::to_vec(&answer).ok()?))
        }
        .boxed()
    })
}

/// The answer to a question that a node has asked; `None`: it is not for this one, or not for this time.
async fn answered(
    question: NodeQuestion,
    own: u64,
    (board, inlets): (&SeatBoard, &[Arc<Inlet>]),
    received: &Mutex<ReceivedChanges>,
) -> Option<NodeAnswer> {
    let NodeQuestion { node, process, number, until, shard, about } = question;
    let now = clock::wall_ms();
    if !board.is_own_name(&node) || !(now..=now + FARTHEST_MS).contains(&until) {
        tracing::debug!(number, "a question comes late, or is for another node, and is ignored");
        return None;
    }
    if process != own {
        return Some(NodeAnswer::Anew(own));
    }
    if about.is_change() {
        let mut received = received.lock().unwrap_or_else(PoisonError::into_inner);
        if !received.has_room(now) {
            let text = "the node that has the shard is asked too much: nothing was done";
            return Some(NodeAnswer::Part(ShardPart::unavailable(text)));
        }
        if !received.admits(number, until) {
            tracing::debug!(number, "a question comes again, and is ignored");
            return None;
        }
    }
    timeout(ANSWER_WITHIN, answer(board, inlets.get(usize::from(shard)), shard, about)).await.ok()
}

/// The answer of a shard that is here.
async fn answer(
    board: &SeatBoard,
    inlet: Option<&Arc<Inlet>>,
    shard: u16,
    about: QuestionAbout,
) -> NodeAnswer {
    let Some(inlet) = inlet.filter(|_| board.holds(shard)) else { return NodeAnswer::Elsewhere };
    match about {
        QuestionAbout::Command(request) => {
            let (sender, answer) = channel();
            inlet.post(LoopEvent::Command(*request, sender));
            let ends = || ShardPart::unavailable("the node that has the shard is stopping; ask again");
            NodeAnswer::Part(answer.await.map_or_else(|_| ends(), Into::into))
        }
        QuestionAbout::State => {
            let (sender, answer) = channel();
            inlet.post(ControlEvent::State(sender));
            match answer.await {
                // Without a claim it has just ended here.
                Ok(state) if state.line.epoch.is_some() => {
                    NodeAnswer::State(Box::new(SharedState { line: state.line, snapshot: state.snapshot }))
                }
                Ok(_) | Err(_) => NodeAnswer::Elsewhere,
            }
        }
    }
}

#[cfg(test)]
#[path = "others_tests.rs"]
mod tests;
