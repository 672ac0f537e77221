//! Which requests are safe, and which may be acked.

use super::model::*;
use tidegate_types::*;

impl Model {
    /// Notes when the last part of a message became safe.
    pub(super) fn note_safe(&mut self) {
        let (mono, commands) = (self.now.mono, self.open_commands());
        let is_safe = |number: &usize| {
            let message = &self.messages[number];
            message.safe_since.is_none()
                && message.command.is_none()
                && message.forwarded != Some(false)
                && message.taken.iter().all(|taken| taken.is_some_and(|seq| self.is_safe(seq)))
                && !self.is_behind(*number, &commands)
        };
        for number in self.open.iter().copied().filter(is_safe).collect::<Vec<_>>() {
            self.messages.get_mut(&number).expect("there").safe_since = Some(mono);
        }
    }

    /// The tags of the unacked commands by message, and what they are.
    fn open_commands(&self) -> Vec<(u64, &Command)> {
        let command = |number: &usize| {
            let message = &self.messages[number];
            let (_, _, tag, _) = message.delivered?;
            let asked = message.command.and_then(|n| self.commands.get(&n).or_else(|| self.answered.get(&n)));
            Some((tag, &asked?.command))
        };
        self.open.iter().filter_map(command).collect()
    }

    /// Whether one of these commands came before the message and, if it came again, would change what the message has
    /// brought.
    fn is_behind(&self, number: usize, commands: &[(u64, &Command)]) -> bool {
        let tag = self.messages[&number].delivered.map_or(0, |(_, _, tag, _)| tag);
        let asks = || self.messages[&number].asks.iter().map(|ask| &self.asks[*ask]);
        let news = || asks().filter(|ask| !ask.rejected).map(|ask| &ask.new);
        let changes = |command: &Command| match command {
            Command::Cancel(target) | Command::Reschedule(target, _) => {
                news().any(|new| new.identity.is_some() && target.identities().contains(&new.identity))
            }
            Command::CancelAll(of) => news().any(|new| {
                new.application == of.application && new.customer.as_deref() == Some(&*of.customer)
            }),
            _ => false,
        };
        commands.iter().any(|(before, command)| *before < tag && changes(command))
    }

    pub(super) fn is_safe(&self, seq: u64) -> bool {
        let life = &self.lives[&seq];
        life.durable || life.superseded || life.state.is_over()
    }

    pub(super) fn ack(&mut self, ack: Ack) {
        if ack.delivery.generation != self.generation {
            return;
        }
        let covers = |number: &usize| {
            let (_, _, tag, _) = self.messages[number].delivered.expect("delivered");
            tag == ack.delivery.tag || (ack.multiple && tag < ack.delivery.tag)
        };
        let mut commands = self.open_commands();
        commands.retain(|(tag, _)| *tag > ack.delivery.tag || (*tag < ack.delivery.tag && !ack.multiple));
        if !commands.is_empty() {
            for number in self.open.iter().filter(|number| covers(number)) {
                let alone = self.is_behind(*number, &commands);
                assert!(!alone, "{number} was acked before a command that would take it if it came again");
            }
        }
        for number in self.open.iter().copied().filter(covers).collect::<Vec<_>>() {
            if !self.durable {
                self.end_unseen(number);
            }
            self.end_unwritten(number);
            self.check_ack(number);
            if let Some(command) = self.messages[&number].command {
                // The command has no reply queue.
                let silent = self.commands.remove(&command);
                silent.into_iter().for_each(|asked| drop(self.answered.insert(command, asked)));
            }
            let message = self.messages.get_mut(&number).expect("there");
            message.acked = true;
            let taken = message.taken.clone();
            for seq in taken.into_iter().flatten() {
                self.lives.get_mut(&seq).expect("there").acked = true;
            }
            self.open.remove(&number);
        }
    }

    /// Without a store, a cancel or a replacement shows only in the ack of the item that it ended.
    fn end_unseen(&mut self, number: usize) {
        let message = &self.messages[&number];
        let taken: Vec<(usize, u64)> = message
            .asks
            .iter()
            .copied()
            .zip(message.taken.clone())
            .filter_map(|(ask, seq)| Some((ask, seq?)))
            .collect();
        for (ask, seq) in taken {
            let out = matches!(self.lives[&seq].state, State::Out(_));
            if out && self.is_hurried(ask) && self.may_have_ended_unseen(ask) {
                self.lives.get_mut(&seq).expect("there").superseded = true;
            }
            if self.lives[&seq].state == State::Waiting && self.may_have_ended_unseen(ask) {
                let cancelled = self.may_be_cancelled(ask);
                self.set(seq, if cancelled { State::Cancelled } else { State::Replaced });
            }
        }
    }

    /// Without a store, a command or another item of its id may have ended it, and the ack waits for the rest of its
    /// message.
    pub(super) fn may_have_ended_unseen(&self, ask: usize) -> bool {
        let identity = self.asks[ask].new.identity;
        let met = || identity.is_some_and(|identity| self.met_unseen(ask, identity));
        !self.durable && (self.may_be_cancelled(ask) || met())
    }

    /// An item that was published and never written leaves no delete when another replaces it, or when it is cancelled
    /// before the answer is given; that is safe.
    fn end_unwritten(&mut self, number: usize) {
        let taken = self.messages[&number].taken.clone();
        for seq in taken.into_iter().flatten() {
            let life = &self.lives[&seq];
            if life.put.is_some() || life.state != State::Waiting {
                continue;
            }
            if life.identity.is_given() && self.has_safe_heir(life) {
                self.set(seq, State::Replaced);
            } else if self.durable && self.taken_back(seq) {
                self.set(seq, State::Cancelled);
            }
        }
    }

    /// Another item of its id is written: an item in flight that was never written exists in its flight only from now on.
    pub(super) fn supersede_unwritten(&mut self, ask: usize, heir: u64) {
        let Some(identity) = self.asks[ask].new.identity.filter(|_| self.is_hurried(ask)) else { return };
        let before =
            self.lives.range_mut(..heir).map(|(_, life)| life).filter(|life| life.identity == identity);
        for life in before.filter(|life| life.put.is_none() && matches!(life.state, State::Out(_))) {
            life.superseded = true;
        }
    }

    fn has_safe_heir(&self, life: &Life) -> bool {
        let is_heir = |heir: &&Life| heir.identity == life.identity && heir.seq > life.seq;
        // The broker still has the request of an item that is not acked.
        self.lives.values().filter(is_heir).any(|heir| self.is_safe(heir.seq) || !heir.acked)
    }

    /// Only the remembered end of an item that was never written shows that its id was known.
    fn check_end_is_known(&self, life: &Life) {
        let tail = self.settings.of(self.application(life.seq)).dedupe_tail;
        let told = self.durable && tail > 0 && self.before.is_empty() && life.identity.is_given();
        if told && life.state == State::Sent && life.put.is_none() && !life.superseded {
            let with = self.remembered_with.get(&(life.identity, self.asks[life.ask].new.fingerprint));
            assert!(
                with.is_some_and(|token| *token <= self.committed),
                "{} is acked, and its end with {with:?} is not durable",
                life.ask
            );
        }
    }

    fn check_ack(&mut self, number: usize) {
        let message = &self.messages[&number];
        if let Some(command) = message.command {
            let silent = !self.replies_to.contains(&command);
            assert!(
                silent || self.answered.contains_key(&command),
                "a command is acked before it was executed"
            );
            return;
        }
        assert_ne!(message.forwarded, Some(false), "{number} was acked before its other parts were safe");
        let parts: Vec<_> = message.asks.iter().copied().zip(message.taken.clone()).collect();
        for (ask, taken) in parts {
            match taken {
                None => self.judge_dropped(ask),
                Some(seq) => {
                    let life = &self.lives[&seq];
                    assert!(self.is_safe(seq), "{ask} was acked while {:?} and not durable", life.state);
                    self.check_end_is_known(life);
                }
            }
        }
    }
}
