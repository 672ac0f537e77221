//! Passes commands to the engine and returns its answers.
//!
//! Commands of the admin port have numbers, and the sender of each is kept under its number. Commands of the
//! ingest queue carry their own reply address.

use super::answers::{self, ShardAnswer};
use crate::admin::CommandRequest;
use std::collections::BTreeMap;
use tidegate_amqp::OutgoingReply;
use tidegate_types::{Asker, Command, Reply};
use tidegate_wire::target;
use tokio::sync::oneshot;

/// Most commands of the admin port without an answer of the engine; more are refused. The port's own bound on
/// requests does not cover them: a command that changes something stays when its client disconnects.
const MOST_PENDING: usize = 256;

/// The sender of each unanswered command.
#[derive(Debug, Default)]
pub(super) struct PendingQueries {
    last: u64,
    waiting: BTreeMap<u64, PendingQuery>,
}

#[derive(Debug)]
struct PendingQuery {
    sender: oneshot::Sender<ShardAnswer>,
    /// It changes nothing, and is useless without a client to receive the answer.
    looks: bool,
}

impl PendingQueries {
    /// Numbers a command. `None`: there are too many, and the sender has its answer; or it would change
    /// nothing, and its client has disconnected.
    pub(super) fn admit(
        &mut self,
        request: CommandRequest,
        sender: oneshot::Sender<ShardAnswer>,
        store_identity: u64,
    ) -> Option<(Asker, Command)> {
        let looks = !request.is_change();
        if looks && sender.is_closed() {
            return None;
        }
        if self.waiting.len() >= MOST_PENDING {
            // The client may have disconnected.
            let _ = sender.send(ShardAnswer::Refused("too many commands wait for their answers".to_owned()));
            return None;
        }
        self.last += 1;
        self.waiting.insert(self.last, PendingQuery { sender, looks });
        Some((Asker::Local(self.last), command(request, store_identity)))
    }

    /// Read-only commands whose clients have disconnected. Each turn reports them again until they are
    /// answered; a command that has begun is answered soon after.
    pub(super) fn left(&self) -> Vec<u64> {
        let left = self.waiting.iter().filter(|(_, waiting)| waiting.looks && waiting.sender.is_closed());
        left.map(|(number, _)| *number).collect()
    }

    /// Ends all open commands. Their answer is `why`; without it, their senders are dropped.
    pub(super) fn reject_all(&mut self, why: Option<&str>) {
        for (_, waiting) in std::mem::take(&mut self.waiting) {
            if let Some(why) = why {
                // The client may have disconnected.
                let _ = waiting.sender.send(ShardAnswer::Refused(why.to_owned()));
            }
        }
    }

    fn resolve(&mut self, number: u64, reply: Reply, store_identity: u64) {
        if let Some(waiting) = self.waiting.remove(&number) {
            // The client may have disconnected.
            let _ = waiting.sender.send(ShardAnswer::Carried { reply: Box::new(reply), store_identity });
        }
    }

    /// Answers the commands of the admin port, and returns the answers to be published.
    pub(super) fn sort(&mut self, replies: Vec<Reply>, store_identity: u64) -> Vec<OutgoingReply> {
        let mut outgoing = Vec::new();
        for reply in replies {
            match &reply.asker {
                Asker::Local(number) => self.resolve(*number, reply, store_identity),
                Asker::Remote { delivery, reply_to: Some(reply_to), .. } => outgoing.push(OutgoingReply {
                    delivery: *delivery,
                    reply_to: reply_to.clone(),
                    body: answers::document(&reply, store_identity).to_string().into_bytes(),
                }),
                // The engine acks these itself.
                Asker::Remote { reply_to: None, .. } => {}
            }
        }
        outgoing
    }
}

/// The engine's form of a client's request.
fn command(request: CommandRequest, store_identity: u64) -> Command {
    request.naming(|of| target(&of.application, &of.id, store_identity))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::ItemOf;
    use tidegate_types::{Answer, AssignedId, CustomerOf, Delivery, ReplyTo};

    const STORE: u64 = 0xabc;

    fn flush() -> CommandRequest {
        CommandRequest::Flush(CustomerOf { application: "mail".into(), customer: "c".into() })
    }

    fn reply(asker: Asker, command: Command) -> Reply {
        Reply { asker, command: Some(Box::new(command)), answer: Answer::Flushed(3) }
    }

    #[test]
    fn an_answer_finds_its_sender() {
        let mut open = PendingQueries::default();
        let mut ask = || {
            let (sender, answer) = oneshot::channel();
            (open.admit(flush(), sender, STORE).unwrap(), answer)
        };
        let (first, mut first_answer) = ask();
        let (second, mut second_answer) = ask();
        assert_ne!(first.0, second.0);
        assert_eq!(open.sort(vec![reply(second.0.clone(), second.1.clone())], STORE), vec![]);
        let reply_to_second = Box::new(reply(second.0.clone(), second.1.clone()));
        let carried = ShardAnswer::Carried { reply: reply_to_second, store_identity: STORE };
        assert_eq!(second_answer.try_recv(), Ok(carried));
        assert_eq!(first_answer.try_recv(), Err(oneshot::error::TryRecvError::Empty));
        // A second answer to the same number finds no sender. An answer to a client that has disconnected is
        // no error.
        drop(first_answer);
        open.sort(vec![reply(second.0, second.1), reply(first.0, first.1)], STORE);
        assert!(open.waiting.is_empty());
    }

    #[test]
    fn who_looks_and_has_gone_is_told_of_until_there_is_an_answer() {
        let mut open = PendingQueries::default();
        let of = CustomerOf { application: "mail".into(), customer: "c".into() };
        let mut ask = |request| {
            let (sender, answer) = oneshot::channel();
            (open.admit(request, sender, STORE).unwrap(), answer)
        };
        let (looks, _stays) = (ask(CommandRequest::Count(of.clone())), ask(CommandRequest::Count(of)));
        let (_, changes) = ask(flush());
        assert!(open.left().is_empty());
        drop((looks.1, changes));
        assert_eq!(open.left(), [1]);
        open.sort(vec![reply(looks.0 .0, looks.0 .1)], STORE);
        assert!(open.left().is_empty());
    }

    /// Excluded: work of the engine for a client that has disconnected before it; a change that is left out
    /// because its client does not wait for the answer.
    #[test]
    fn who_has_gone_before_is_not_passed_on_unless_it_changes_something() {
        let mut open = PendingQueries::default();
        let mut ask = |request| {
            let (sender, answer) = oneshot::channel();
            drop(answer);
            open.admit(request, sender, STORE).is_some()
        };
        let item = ItemOf { application: "mail".into(), id: "1".into() };
        let of = CustomerOf { application: "mail".into(), customer: "c".into() };
        assert!(!ask(CommandRequest::Lookup(item.clone())) && !ask(CommandRequest::Count(of)));
        assert!(ask(CommandRequest::Cancel(item)) && ask(flush()));
        assert_eq!(open.waiting.len(), 2);
    }

    #[test]
    fn too_many_are_turned_away_and_told() {
        let mut open = PendingQueries::default();
        let mut kept: Vec<_> = (0..MOST_PENDING)
            .map(|_| {
                let (sender, answer) = oneshot::channel();
                (open.admit(flush(), sender, STORE).unwrap(), answer)
            })
            .collect();
        let (sender, mut answer) = oneshot::channel();
        assert_eq!(open.admit(flush(), sender, STORE), None);
        let error = "too many commands wait for their answers".to_owned();
        assert_eq!(answer.try_recv(), Ok(ShardAnswer::Refused(error)));
        let ((asker, command), _) = kept.remove(7);
        open.sort(vec![reply(asker, command)], STORE);
        let (sender, _answer) = oneshot::channel();
        assert!(open.admit(flush(), sender, STORE).is_some(), "there is room again");
    }

    #[test]
    fn whoever_waits_at_the_end_is_let_go() {
        let mut open = PendingQueries::default();
        let mut ended = |why| {
            let (sender, mut answer) = oneshot::channel();
            open.admit(flush(), sender, STORE);
            open.reject_all(why);
            answer.try_recv()
        };
        assert_eq!(ended(None), Err(oneshot::error::TryRecvError::Closed));
        assert_eq!(ended(Some("ask again")), Ok(ShardAnswer::Refused("ask again".to_owned())));
    }

    #[test]
    fn only_what_has_an_address_is_published() {
        let delivery = |tag| Delivery { generation: 1, tag };
        let to = ReplyTo { queue: "answers".into(), correlation_id: Some("9".into()) };
        let flush = command(flush(), STORE);
        let asker = |tag, reply_to| Asker::Remote { delivery: delivery(tag), redelivered: false, reply_to };
        let replies = vec![reply(asker(1, Some(to.clone())), flush.clone()), reply(asker(2, None), flush)];
        let body = br#"{"count":3,"result":"flushed"}"#.to_vec();
        let want = OutgoingReply { delivery: delivery(1), reply_to: to, body };
        assert_eq!(PendingQueries::default().sort(replies, STORE), [want]);
    }

    #[test]
    fn an_item_is_known_by_both_texts_and_an_assigned_id_by_its_number() {
        let of = |application: &str, id: &str| {
            let of = ItemOf { application: application.into(), id: id.into() };
            let Command::Cancel(target) = command(CommandRequest::Cancel(of), STORE) else {
                panic!("no cancel")
            };
            target
        };
        assert_eq!((&*of("a", "b").application, &*of("a", "b").id), ("a", "b"));
        assert_eq!(of("a", "b").identity, of("a", "b").identity);
        assert_ne!(of("a", "b").identity, of("b", "a").identity);
        assert_ne!(of("ab", "c").identity, of("a", "bc").identity);
        assert_eq!(of("a", "b").assigned, None);
        let assigned = Some(AssignedId { seq: 31, due: 42, window: 31 });
        assert_eq!(of("a", "0000000000000abc-1f-2a").assigned, assigned);
        assert_eq!(of("a", "0000000000000abd-1f").assigned, None, "another store's");
    }
}
