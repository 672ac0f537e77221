//! Checks of every call of the engine: what it wrote, acked, published and answered must fit the state at that moment.
//!
//! Judges every promise.

use super::super::world::*;
use super::asks::ENTRIES;
use super::customers::takes_back;
use super::model::*;
use super::windows::CLOCK_SLACK_MS;
use tidegate_types::event::*;
use tidegate_types::*;

impl Model {
    pub(super) fn call(&mut self, call: Call) {
        self.call += 1;
        // The engine ignores steps of less than a second: windows then close by the old difference of the clocks.
        let expected = self.now.wall + (call.now.mono - self.now.mono);
        if call.now.wall + CLOCK_SLACK_MS < expected {
            (self.stepped, self.stepped_back, self.set_back_at) = (true, self.call, call.now);
            self.last_step = self.call;
            self.windows.doubt_all();
        } else if call.now.wall > expected + CLOCK_SLACK_MS {
            (self.stepped, self.last_step) = (true, self.call);
            self.windows.doubt_all();
        }
        self.now = call.now;
        self.latest_wall = self.latest_wall.max(call.now.wall);
        self.walls.push((self.call, call.now.wall));
        for app in self.apps.values_mut() {
            if app.paused.is_some_and(|until| until <= call.now.wall) {
                (app.paused, app.pause_over) = (None, self.call);
            }
            app.held.tell_time(call.now.wall);
            app.slowed = app.slowed.filter(|slowed| slowed.until > call.now.wall);
        }
        if self.trace {
            self.tell(&call);
        }
        let settings = self.settings.clone();
        self.windows.ripen(&settings, call.behind, call.now);
        self.most_windows =
            self.windows.open.len() + call.ops.iter().filter(|op| matches!(op, Op::Close(_))).count();
        self.hear(call.heard);
        self.leave_alone_until_looked_at();
        self.leave_again();
        self.recount();
        let items = call.publishes.iter().filter(|batch| batch.dead.is_none()).flat_map(|batch| &batch.items);
        let unwritten =
            items.filter_map(|item| Some((self.asks[self.ask_of(&item.content)].new.identity?, item.seq)));
        let unwritten: Vec<(Identity, u64)> = unwritten.collect();
        self.ops(&call.ops, call.token, unwritten);
        self.recount();
        call.publishes.iter().for_each(|batch| self.publish(batch));
        self.windows.close_ripe(self.call, self.now);
        self.windows.tidy(self.now);
        self.note_flushes(call.token.is_some());
        self.recount();
        self.note_safe();
        self.note_over();
        call.replies.iter().for_each(|reply| self.reply(reply));
        call.acks.iter().for_each(|ack| self.ack(*ack));
        self.check_limits();
    }

    /// Prints the call, for the repetition of a world.
    fn tell(&self, call: &Call) {
        eprintln!(
            "{} at {} / {}: {:?}",
            self.call,
            call.now.wall as i64 - T0 as i64,
            call.now.mono,
            call.heard
        );
        if let Heard::Requests(requests) = &call.heard {
            let of = |(number, tag, _): &(usize, u64, bool)| Some((*tag, self.messages[number].command?));
            let commands = requests.iter().filter_map(of);
            commands.for_each(|(tag, command)| eprintln!("    {tag} is {:?}", self.mailed[&command]));
        }
        call.ops.iter().for_each(|op| match op {
            Op::Put { item, indexed } => {
                let payload = item.content.as_ref().map(|content| text(content));
                eprintln!(
                    "    put {payload:?} {:?} of {}/{:?} {:?} {indexed} {:?}",
                    item.key, item.application, item.customer, item.given, item.dead
                );
            }
            op => eprintln!("    {op:?}"),
        });
        call.publishes.iter().for_each(|batch| {
            let items: Vec<(String, u64, u64)> =
                batch.items.iter().map(|i| (name(i), i.seq, i.due)).collect();
            eprintln!(
                "    publish {} of {}/{:?} alone {} {:?} by {:?} {items:?}",
                batch.number, batch.application, batch.customer, batch.alone, batch.dead, batch.closed_by
            );
        });
        call.acks.iter().for_each(|ack| eprintln!("    {ack:?}"));
        call.replies.iter().for_each(|reply| eprintln!("    {reply:?}"));
    }

    fn hear(&mut self, heard: Heard) {
        match heard {
            Heard::Requests(requests) => {
                for (number, tag, redelivered) in requests {
                    let at = Some((self.call, self.now.mono, tag, redelivered));
                    let message = self.messages.get_mut(&number).expect("sent");
                    (message.delivered, message.acked) = (at, false);
                    self.open.insert(number);
                    if let Some(command) = message.command {
                        self.answered.remove(&command);
                        self.asked(command, self.mailed[&command].clone(), Some(tag));
                    }
                }
            }
            Heard::Committed(token) => {
                self.committed = token;
                let lives = &mut self.lives;
                self.fresh.retain(|seq| {
                    let life = lives.get_mut(seq).expect("there");
                    life.durable = life.put.is_some_and(|put| put <= token);
                    !life.durable && !life.state.is_over()
                });
            }
            Heard::Settled(settled) => settled.into_iter().for_each(|one| self.settled(one)),
            Heard::Commands(commands) => {
                for (asker, command) in commands {
                    if let Asker::Local(number) = asker {
                        self.asked(number, command, None);
                    }
                }
            }
            Heard::Left(numbers) => self.leave(&numbers),
            Heard::Answered(deliveries) => {
                for delivery in deliveries.iter().filter(|delivery| delivery.generation == self.generation) {
                    if let Some(number) = self.by_tag(delivery.tag) {
                        self.messages.get_mut(&number).expect("there").answered = true;
                    }
                }
            }
            Heard::Forwarded(deliveries) => {
                for delivery in deliveries.iter().filter(|delivery| delivery.generation == self.generation) {
                    if let Some(number) = self.by_tag(delivery.tag) {
                        self.messages.get_mut(&number).expect("there").forwarded = Some(true);
                    }
                }
            }
            Heard::IngestReady(generation) => {
                self.ingest_gone();
                self.generation = generation;
            }
            Heard::IngestLost => self.ingest_gone(),
            Heard::Egress { ready, blocked } => self.egress = (ready, blocked),
            Heard::Configure(settings) => {
                self.windows.doubt_all();
                self.before.push(std::mem::replace(&mut self.settings, *settings));
            }
            Heard::StoreFull(full) => {
                let since = self.full_since.unwrap_or(self.call);
                self.full_since = full.then_some(since);
                self.was_full |= full;
            }
            Heard::Crash | Heard::Other => {}
        }
    }

    /// Requests that need room are decided before the windows close whose time has come.
    pub(super) fn windows_at_most(&self) -> usize {
        self.windows.open.len().max(self.most_windows)
    }

    fn note_flushes(&mut self, written: bool) {
        let open = self.windows_at_most();
        let mut windows = std::mem::take(&mut self.windows);
        windows.note_flushes(written, self.call, self.now.wall, |(application, customer)| {
            self.may_flush_one_of(application, customer, open)
        });
        self.windows = windows;
    }

    fn settled(&mut self, settled: Settled) {
        let flight = self.flights.remove(&settled.number).expect("settled what is out");
        let confirmed = matches!(settled.outcome, Outcome::Confirmed(_));
        let (sure, may) = match &settled.outcome {
            Outcome::Nacked | Outcome::Returned(_) => (1, 1),
            Outcome::Refused(_) => (0, 1),
            _ => (0, 0),
        };
        for seq in &flight.items {
            let life = self.lives.get_mut(seq).expect("there");
            let refused = matches!(settled.outcome, Outcome::Refused(_));
            life.refused |= refused && flight.alone && flight.items.len() == 1;
            if !flight.dead {
                life.attempts = (life.attempts.0 + sure, life.attempts.1 + may);
            }
            // An attempt that did not leave proves nothing.
            let left = !matches!(settled.outcome, Outcome::Unsent | Outcome::Unavailable(_));
            // On a channel that is closed because of another batch, earlier batches may have arrived.
            let undecided =
                matches!(settled.outcome, Outcome::Unknown | Outcome::Overdue) || refused && !flight.alone;
            // The outcome of a dead letter proves nothing about the former item.
            life.undecided = if left && !flight.dead { undecided } else { life.undecided };
            life.perhaps_sent |= life.undecided;
            life.failed = sure > 0;
            let state = match (life.state, confirmed) {
                (State::DeadOut(_, reason), true) => State::DeadSent(reason),
                (State::DeadOut(..), false) if life.orphaned => State::Forgotten,
                (State::DeadOut(_, reason), false) => State::Dead(reason),
                (_, true) => State::Sent,
                // The broker redelivers its request.
                (_, false) if life.orphaned => State::Forgotten,
                (_, false) if life.superseded => State::Replaced,
                (_, false) => State::Waiting,
            };
            match state {
                State::Forgotten => self.give_back(*seq),
                state => self.set(*seq, state),
            }
        }
        if matches!(settled.outcome, Outcome::Unsent | Outcome::Unavailable(_)) {
            let (least, most) = self.publishes.get_mut(&settled.number).expect("published");
            (*least, *most) = (*least - 1, *most - 1);
        }
        self.ended(settled.number, &flight, &settled.outcome);
        let until = self.now.mono + self.longest_pause(&flight.application);
        let fails = match settled.outcome {
            Outcome::Nacked | Outcome::Returned(_) | Outcome::Failed(_) | Outcome::Unavailable(_) => true,
            Outcome::Overdue => true,
            // A culprit that is found may also park its application.
            Outcome::Refused(_) => flight.alone,
            Outcome::Confirmed(_) | Outcome::Unknown | Outcome::Unsent => false,
        };
        if flight.dead && (fails || matches!(settled.outcome, Outcome::Refused(_))) {
            (self.dead_left_alone_until, self.dead_failure) = (until, self.call);
        }
        let call = self.call;
        let retry = self.settings.of(&flight.application).retry;
        let parks = match settled.outcome {
            Outcome::Nacked | Outcome::Returned(_) | Outcome::Failed(_) | Outcome::Unavailable(_) => true,
            Outcome::Overdue => flight.alone,
            Outcome::Confirmed(_) | Outcome::Refused(_) | Outcome::Unknown | Outcome::Unsent => false,
        };
        let now = self.now.mono;
        let app = self.app(&flight.application);
        app.flights.remove(&settled.number);
        // The application was not parked when this batch left, nor has it been since.
        let was_free = flight.sent > app.parked_call && !flight.suspect;
        if !flight.dead && parks {
            if was_free {
                app.failures += 1;
                let doubled = retry.min << (app.failures - 1).min(20);
                app.parked_until = now + doubled.min(retry.max) * 3 / 4;
            }
            app.parked_call = call;
        } else if !flight.dead && confirmed {
            app.failures = 0;
            app.heard = now;
            // Batches that left before the failure prove nothing.
            app.parked_until = if was_free { 0 } else { app.parked_until };
        }
        if app.failing {
            app.failed_call = call;
        }
        if !flight.dead && fails {
            (app.failing, app.left_alone_until, app.failure) = (true, until, call);
        } else if !flight.dead && confirmed && flight.alone && flight.sent >= app.failure && !flight.suspect {
            // Batches that left before the failure prove nothing, nor do suspects among them.
            (app.failing, app.left_alone_until) = (false, 0);
        }
    }

    /// Items that were replaced in flight: each exists in its flight only.
    pub(super) fn heirs(&self, application: &str) -> u64 {
        let has_heir = |life: &&Life| {
            life.superseded && life.state.is_live() && self.application(life.seq) == application
        };
        self.lives.values().filter(has_heir).count() as u64
    }

    fn longest_pause(&self, application: &str) -> u64 {
        let all = std::iter::once(&self.settings).chain(&self.before);
        all.map(|whole| whole.of(application).retry.max).max().unwrap_or(0)
    }

    /// A call handles few ended attempts, and one that was reported then may still be queued.
    pub(super) fn may_be_unlooked_at(&self, call: usize) -> bool {
        self.settings.thresholds.ended < 10 && call > self.rested
    }

    /// A failure may be handled no sooner than now.
    fn leave_alone_until_looked_at(&mut self) {
        if self.may_be_unlooked_at(self.dead_failure) {
            self.dead_left_alone_until = self.now.mono + self.longest_pause("");
        }
        let unlooked_at = |app: &App| app.failing && self.may_be_unlooked_at(app.failure);
        let failing = self.apps.iter().filter(|(_, app)| unlooked_at(app));
        for name in failing.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
            let until = self.now.mono + self.longest_pause(&name);
            self.app(&name).left_alone_until = until;
        }
    }

    fn reply(&mut self, reply: &Reply) {
        match &reply.asker {
            Asker::Local(number) => self.answered(*number, &reply.answer),
            // An answer to a delivery that comes again: the client may get two answers.
            Asker::Remote { delivery, .. } if delivery.generation != self.generation => {}
            Asker::Remote { delivery, .. } => {
                // The connection may be lost, and the command forgotten.
                let Some(number) = self.by_tag(delivery.tag) else { return };
                let command = self.messages[&number].command.expect("a command");
                self.answered(command, &reply.answer);
            }
        }
    }

    fn by_tag(&self, tag: u64) -> Option<usize> {
        let has = |number: &&usize| self.messages[number].delivered.is_some_and(|(_, _, t, _)| t == tag);
        self.open.iter().find(has).copied()
    }

    /// Items whose successor with the same id was published before the commit that deletes them, or that were never
    /// written, so that no commit deletes them.
    fn succeeded(&self, application: &str) -> u64 {
        let of_ids = || self.lives.values().filter(|life| life.identity.is_given());
        let is_heir = |heir: &Life, life: &Life| {
            let gone_already = heir.published.is_some() || life.put.is_none() && life.state == State::Waiting;
            heir.identity == life.identity && heir.seq > life.seq && gone_already
        };
        of_ids()
            .filter(|life| life.state.is_live() && self.application(life.seq) == application)
            .filter(|life| of_ids().any(|heir| is_heir(heir, life)))
            .count() as u64
    }

    /// Customers with members of a former life: their windows are open again, however many there are, and then make room
    /// for as many others.
    fn reopened(&self) -> u64 {
        let left = self.lives.values().filter(|life| life.restored && self.is_windowed(life));
        let names = left.map(|life| &self.asks[life.ask].new).map(|new| (&new.application, &new.customer));
        names.collect::<std::collections::BTreeSet<_>>().len() as u64
    }

    fn check_limits(&self) {
        if !self.durable {
            return;
        }
        for (name, app) in &self.apps {
            let settings = self.settings.of(name);
            let limited = settings.max_waiting > 0 && settings.on_full != OnFull::DropOldest;
            let asked = self.commands.values().any(|asked| takes_back(&asked.command));
            let over = limited && app.live > settings.max_waiting;
            if over && self.before.is_empty() && self.lives_begun == 1 && !asked {
                let waiting = (app.live - self.succeeded(name)).saturating_sub(self.heirs(name));
                // All entries of a message are let in if there is room for one.
                assert!(
                    waiting < settings.max_waiting + ENTRIES,
                    "{waiting} items of {name} wait, {} may",
                    settings.max_waiting
                );
            }
        }
        let open = self.windows.certain() as u64;
        let over = open.saturating_sub(self.settings.customers);
        let excused = over < ENTRIES || over <= self.reopened() || !self.before.is_empty();
        assert!(excused, "{open} windows are open");
        if self.before.is_empty() && self.lives_begun == 1 {
            let names = self.apps.values().filter(|app| app.live > 0).count() as u64;
            assert!(names <= self.settings.max_applications, "{names} applications have something waiting");
        }
    }
}
