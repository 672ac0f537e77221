//! Commands on their way through the engine, and their answers on the way back.
//!
//! Those from the admin port are numbered, and whoever waits is remembered under the number; those from the
//! ingest queue carry their own address.

use super::answers;
use crate::admin::{CommandRequest, CommandResponse, Status};
use crate::amqp::wire::target;
use crate::amqp::OutgoingReply;
use crate::engine::types::{Asker, Command, Reply};
use serde_json::json;
use std::collections::BTreeMap;
use tokio::sync::oneshot;

/// Commands of the admin port that the engine has not answered yet. More are turned away: a client that has
/// gone does not take back what changes something, so the port's own bound on requests is none on these.
const MOST_PENDING: usize = 256;

/// Who waits for which command.
#[derive(Debug, Default)]
pub(super) struct PendingQueries {
    last: u64,
    waiting: BTreeMap<u64, PendingQuery>,
}

#[derive(Debug)]
struct PendingQuery {
    sender: oneshot::Sender<CommandResponse>,
    /// It changes nothing: without somebody to hear the answer it is for nothing.
    looks: bool,
}

impl PendingQueries {
    /// Numbers a command. `None`: there are too many, and its sender has been answered.
    pub(super) fn admit(
        &mut self,
        request: CommandRequest,
        sender: oneshot::Sender<CommandResponse>,
        store_identity: u64,
    ) -> Option<(Asker, Command)> {
        if self.waiting.len() >= MOST_PENDING {
            let document = json!({ "error": "too many commands wait for their answers" });
            // The sender may have gone.
            let _ = sender.send(CommandResponse { status: Status::Unavailable, document });
            return None;
        }
        self.last += 1;
        let looks = matches!(
            request,
            CommandRequest::List(_)
                | CommandRequest::Count(_)
                | CommandRequest::CountSelected(_)
                | CommandRequest::TimelineQuery(_)
        );
        self.waiting.insert(self.last, PendingQuery { sender, looks });
        Some((Asker::Local(self.last), command(request, store_identity)))
    }

    /// Those that only look and whose clients have gone. They are told again until they are answered, which
    /// one is soon once it has begun.
    pub(super) fn left(&self) -> Vec<u64> {
        let left = self.waiting.iter().filter(|(_, waiting)| waiting.looks && waiting.sender.is_closed());
        left.map(|(number, _)| *number).collect()
    }

    /// No answer comes any more: with `why` open commands hear that, without it the end of the daemon.
    pub(super) fn reject_all(&mut self, why: Option<&str>) {
        for (_, waiting) in std::mem::take(&mut self.waiting) {
            if let Some(why) = why {
                let document = json!({ "error": why });
                // Whoever waits may have gone.
                let _ = waiting.sender.send(CommandResponse { status: Status::Unavailable, document });
            }
        }
    }

    fn resolve(&mut self, number: u64, answered: CommandResponse) {
        if let Some(waiting) = self.waiting.remove(&number) {
            // Whoever waits may have gone.
            let _ = waiting.sender.send(answered);
        }
    }

    /// Gives the local ones their answers; what is left has to be published.
    pub(super) fn sort(&mut self, replies: Vec<Reply>, store_identity: u64) -> Vec<OutgoingReply> {
        let mut outgoing = Vec::new();
        for reply in replies {
            match &reply.asker {
                Asker::Local(number) => self.resolve(*number, answers::answered(&reply, store_identity)),
                Asker::Remote { delivery, reply_to: Some(reply_to), .. } => outgoing.push(OutgoingReply {
                    delivery: *delivery,
                    reply_to: reply_to.clone(),
                    body: answers::document(&reply, store_identity).to_string().into_bytes(),
                }),
                // The engine acks these by itself.
                Asker::Remote { reply_to: None, .. } => {}
            }
        }
        outgoing
    }
}

/// The engine's command of what a client wrote.
fn command(request: CommandRequest, store_identity: u64) -> Command {
    request.naming(|of| target(&of.application, &of.id, store_identity))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::ItemOf;
    use crate::engine::types::{Answer, AssignedId, CustomerOf, Delivery, ReplyTo};

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
        let document = json!({ "result": "flushed", "count": 3 });
        assert_eq!(second_answer.try_recv(), Ok(CommandResponse { status: Status::Known, document }));
        assert_eq!(first_answer.try_recv(), Err(oneshot::error::TryRecvError::Empty));
        // A second answer to the same number finds no sender, and one whose client has gone is no fault.
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
        assert_eq!(answer.try_recv().unwrap().status, Status::Unavailable);
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
        let document = json!({ "error": "ask again" });
        assert_eq!(ended(Some("ask again")), Ok(CommandResponse { status: Status::Unavailable, document }));
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
