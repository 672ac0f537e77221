//! Commands to the engine, and whether each answer is true.

use super::model::{Known, Life, Message, Model, State};
use std::collections::{BTreeMap, BTreeSet};
use tidegate_types::event::FOR_EVER;
use tidegate_types::*;

/// A command on its way, by a number of this world.
pub(super) struct Asked {
    pub(super) command: Command,
    pub(super) local: bool,
    /// The call with which it came, and its moment.
    pub(super) call: usize,
    pub(super) now: Now,
    /// The call in which it was answered, and its moment, UTC ms.
    pub(super) answered: usize,
    answered_at: u64,
    /// Its client no longer waits for the answer.
    pub(super) left: bool,
    /// Tag of its message, if it came by message: it does not apply to messages behind it.
    pub(super) tag: Option<u64>,
    /// Items that it cancelled.
    pub(super) took: BTreeSet<u64>,
    /// Items whose end is not remembered: it cancelled them, or requests behind it replaced them.
    pub(super) perhaps: BTreeSet<u64>,
    /// For a count: the due of each counted item when it came. A window that closes makes a due sooner.
    pub(super) dues: BTreeMap<u64, u64>,
    /// Least and most that a count, or the size of a window, has been since the question.
    pub(super) least: u64,
    pub(super) most: u64,
}

impl Asked {
    /// The call by which it has begun, and its moment, UTC ms: it is queued behind commands that need an answer of the
    /// store.
    fn begun_by(&self, model: &Model) -> (usize, u64) {
        let is_before = |other: &&Asked| {
            let asks =
                matches!(other.command, Command::Cancel(_) | Command::Lookup(_) | Command::Reschedule(..));
            asks && other.local && other.call < self.call && other.answered > self.call
        };
        let all = model.commands.values().chain(model.answered.values());
        let answered = all.filter(is_before).map(|other| (other.answered, other.answered_at));
        answered.fold((self.call, self.now.wall), std::cmp::max)
    }

    /// Whether it is a cancel of a customer that had begun while this item waited for a time that had not come.
    pub(super) fn is_its_own(&self, model: &Model, seq: u64) -> bool {
        let life = &model.lives[&seq];
        let (begun_by, begun_at) = self.begun_by(model);
        let waited = life.accepted < self.call && life.waiting_since < self.call && life.due > begun_at;
        let begun = self.local && begun_by < model.call && !model.stepped;
        let cancels = matches!(self.command, Command::CancelAll(_));
        let own_time = model.own_time(life).is_some() && life.put.is_some() && life.published.is_none();
        cancels && waited && begun && own_time && self.covers(model, seq)
    }

    /// Whether it may cancel this item.
    pub(super) fn covers(&self, model: &Model, seq: u64) -> bool {
        let life = &model.lives[&seq];
        let new = &model.asks[life.ask].new;
        let message = &model.messages[&model.asks[life.ask].message];
        let came = message.delivered.filter(|_| message.taken.contains(&Some(seq)));
        if came.is_some_and(|(call, _, tag, _)| call >= self.call && self.tag.is_some_and(|own| tag > own)) {
            return false;
        }
        match &self.command {
            Command::Cancel(target) => {
                target.identity == life.identity && *target.application == *new.application
            }
            Command::CancelAll(of) => {
                new.customer.as_deref() == Some(&*of.customer) && new.application == of.application
            }
            Command::CancelSelected(selection) => {
                let later = came.is_some_and(|(call, ..)| call > self.begun_by(model).0);
                !later && model.may_be_selected(selection, life, self.call)
            }
            Command::DropParked(application) => {
                // It is no cancel of a customer, behind which the requests of that customer wait.
                let later = self.local && came.is_some_and(|(call, ..)| call > self.begun_by(model).0);
                let app = model.apps.get(&**application);
                let parked = app.is_some_and(|app| app.failing || app.failed_call >= self.call);
                // The item waits for the time that it was given since.
                let parked = parked && (life.retimed_call < self.call || life.due <= model.now.wall);
                *application == new.application && !later && parked
            }
            _ => false,
        }
    }
}

impl Model {
    pub(super) fn asked(&mut self, number: u64, command: Command, tag: Option<u64>) {
        if let Command::Pause(name, _) | Command::Resume(name) = &command {
            self.app(name).pausing += 1;
        }
        self.note_slowing(&command);
        self.note_holding(&command);
        let dues = match &command {
            Command::Count(of) => {
                let its = self.of_customer(&of.application, &of.customer);
                its.map(|life| (life.seq, life.due)).collect()
            }
            _ => BTreeMap::new(),
        };
        let asked = Asked {
            command,
            dues,
            local: tag.is_none(),
            tag,
            call: self.call,
            now: self.now,
            answered: usize::MAX,
            answered_at: u64::MAX,
            left: false,
            took: BTreeSet::new(),
            perhaps: BTreeSet::new(),
            least: u64::MAX,
            most: 0,
        };
        self.commands.insert(number, asked);
    }

    /// All counts may have changed.
    pub(super) fn recount(&mut self) {
        let mut commands = std::mem::take(&mut self.commands);
        let cancelled = |asked: &Asked| match &asked.command {
            Command::CancelAll(of) => Some(of.clone()),
            _ => None,
        };
        let cancelled: Vec<CustomerOf> = commands.values().filter_map(cancelled).collect();
        let selected = |asked: &Asked| match &asked.command {
            Command::CancelSelected(selection) => Some(selection.application.clone()),
            _ => None,
        };
        let selected: Vec<Box<str>> = commands.values().filter_map(selected).collect();
        let flush = |asked: &Asked| match &asked.command {
            Command::Flush(of) => Some(of.clone()),
            _ => None,
        };
        let flushed: Vec<CustomerOf> = commands.values().filter_map(flush).collect();
        let of_all = |asked: &Asked| match &asked.command {
            Command::FlushAll(name) => Some(name.clone()),
            _ => None,
        };
        let whole: Vec<Box<str>> = commands.values().filter_map(of_all).collect();
        for asked in commands.values_mut() {
            let n = match &asked.command {
                // Items that came behind it do not count, and need not make up for one that has gone.
                Command::Count(of) => {
                    let its = self.of_customer(&of.application, &of.customer);
                    its.filter(|life| life.accepted < asked.call).count() as u64
                }
                // An unsure window may not be open.
                Command::Flush(of) if self.windows.is_unsure(&of.application, &of.customer) => 0,
                // Between the items that a commit cancels and those that it admits.
                Command::Flush(of) if cancelled.contains(of) || selected.contains(&of.application) => 0,
                // The end of the window may come first, or another flush, or a close for lack of room.
                Command::Flush(of) if self.windows.is_ripe(&of.application, &of.customer) => 0,
                Command::Flush(of) if flushed.iter().filter(|other| *other == of).count() > 1 => 0,
                Command::Flush(of) if whole.contains(&of.application) => 0,
                Command::Flush(of) if self.may_lack_room(&of.application, self.windows_at_most()) => 0,
                Command::Flush(of) => self.windows.count(&of.application, &of.customer) as u64,
                _ => continue,
            };
            asked.least = asked.least.min(n);
            asked.most = asked.most.max(n);
        }
        self.commands = commands;
    }

    /// A window has one more member, and a flush may come before the next, or while a member that the same commit
    /// replaces still counts.
    pub(super) fn recount_window(&mut self, application: &str, customer: &str) {
        let n = self.windows.count(application, customer) as u64;
        let replaced = self.windows.replaced_now(application, customer);
        for asked in self.commands.values_mut() {
            let Command::Flush(of) = &asked.command else { continue };
            if *of.application == *application && *of.customer == *customer {
                asked.least = asked.least.min(n);
                asked.most = asked.most.max(n + replaced);
            }
        }
    }

    /// Whether this window may be flushed: by a command, or for lack of room.
    pub(super) fn may_flush(&self, application: &str, customer: &str) -> bool {
        self.may_flush_one_of(application, customer, self.windows_at_most())
    }

    /// The same, with `open` windows open.
    pub(super) fn may_flush_one_of(&self, application: &str, customer: &str, open: usize) -> bool {
        let asked = self.commands.values().any(|asked| {
            matches!(&asked.command, Command::Flush(of) if *of.application == *application && *of.customer == *customer)
                || matches!(&asked.command, Command::FlushAll(name) if **name == *application)
        });
        asked || self.may_lack_room(application, open)
    }

    /// Whether windows of this application may close for lack of room.
    fn may_lack_room(&self, application: &str, open: usize) -> bool {
        let settings = self.settings.of(application);
        let full = settings.on_full == OnFull::FlushEarly
            && settings.max_waiting > 0
            && self.live(application) + self.unseen_of(application) >= settings.max_waiting.saturating_sub(1);
        let policies = std::iter::once(&self.settings.defaults).chain(self.settings.applications.values());
        let closes = |app: &AppSettings| matches!(app.on_full, OnFull::FlushEarly | OnFull::DropOldest);
        let many = open as u64 + 1 >= self.settings.customers && policies.into_iter().any(|app| closes(app));
        full || many
    }

    /// Attributes a cancelled item to the commands that cover it.
    pub(super) fn taken_back(&mut self, seq: u64) -> bool {
        let found =
            self.commands.iter().filter(|(_, asked)| asked.covers(self, seq)).map(|(number, _)| *number);
        let found: Vec<u64> = found.collect();
        for number in &found {
            self.commands.get_mut(number).expect("found").took.insert(seq);
        }
        !found.is_empty() || self.orphaned.values().any(|asked| asked.covers(self, seq))
    }

    /// Whether a cancel may have ended the item before its replacement came.
    pub(super) fn is_perhaps_taken_back(&self, seq: u64) -> bool {
        self.commands.values().any(|asked| asked.perhaps.contains(&seq))
    }

    /// An item was replaced and its end is not remembered: a cancel may have been first.
    pub(super) fn perhaps_taken_back(&mut self, seq: u64) {
        let is_cancel = |asked: &Asked| matches!(asked.command, Command::Cancel(_));
        let found = self.commands.iter().filter(|(_, asked)| is_cancel(asked) && asked.covers(self, seq));
        for number in found.map(|(number, _)| *number).collect::<Vec<u64>>() {
            self.commands.get_mut(&number).expect("found").perhaps.insert(seq);
        }
    }

    /// Clients leave: the commands are answered earlier without a result, or as usual.
    pub(super) fn leave(&mut self, numbers: &[u64]) {
        for number in numbers {
            self.commands.get_mut(number).into_iter().for_each(|asked| asked.left = true);
        }
    }

    /// Checks an answer against all states between the question and the answer.
    pub(super) fn answered(&mut self, number: u64, answer: &Answer) {
        let Some(mut asked) = self.commands.remove(&number) else {
            panic!("an answer to nobody's question, or a second one: {number} {answer:?}");
        };
        self.judge_answer(&asked, answer);
        self.keep_told(&mut asked, answer);
        (asked.answered, asked.answered_at) = (self.call, self.now.wall);
        self.answered.insert(number, asked);
    }

    /// If the answer reports fewer items than the command may have cancelled, removes those that another may have
    /// cancelled.
    fn keep_told(&self, asked: &mut Asked, answer: &Answer) {
        let Answer::Cancelled { count, .. } = answer else { return };
        if *count < asked.took.len() as u64 {
            let others = || self.commands.values().chain(self.answered.values());
            asked.took.retain(|seq| !others().any(|other| other.took.contains(seq)));
        }
    }

    /// A command that came by message is not refused: its sender may take no answer.
    fn judge_answer(&mut self, asked: &Asked, answer: &Answer) {
        let full = asked.local && self.commands.len() >= self.settings.thresholds.scans;
        match &asked.command {
            Command::CancelAll(_)
            | Command::CancelSelected(_)
            | Command::Count(_)
            | Command::CountSelected(_)
            | Command::DropParked(_)
            | Command::List(_)
            | Command::TimelineQuery(_)
                if full && matches!(answer, Answer::Unavailable(_)) => {}
            Command::Count(_) | Command::CountSelected(_) | Command::List(_) | Command::TimelineQuery(_)
                if asked.left && matches!(answer, Answer::Unavailable(_)) => {}
            Command::Cancel(target) => self.judge_cancel(asked, target, answer),
            Command::Lookup(target) => self.judge_lookup(asked, target, answer),
            Command::CancelAll(of) => self.judge_cancel_all(asked, of, answer),
            Command::CancelSelected(selection) => self.judge_cancel_selected(asked, selection, answer),
            Command::Count(of) => self.judge_count(asked, of, answer),
            Command::CountSelected(selection) => self.judge_count_selected(asked, selection, answer),
            Command::Flush(of) => {
                let Answer::Flushed(count) = answer else { panic!("{answer:?}") };
                if !self.durable {
                    return;
                }
                let unsure = self.windows.is_unsure(&of.application, &of.customer) || asked.least == 0;
                let right = (asked.least..=asked.most).contains(count);
                assert!(right || unsure, "{answer:?}: {} to {}", asked.least, asked.most);
                self.flushed(asked, of, *count);
            }
            Command::FlushAll(_) if full && matches!(answer, Answer::Unavailable(_)) => {}
            Command::FlushAll(name) => self.judge_flush_all(asked, name, answer),
            Command::List(filter) => self.judge_list(asked, filter, answer),
            Command::Reschedule(target, to) => self.judge_reschedule(asked, target, *to, answer),
            Command::TimelineQuery(_) => assert!(matches!(answer, Answer::Timeline(_)), "{answer:?}"),
            Command::Pause(name, _) if matches!(answer, Answer::Unavailable(_)) => {
                let all = std::iter::once(&self.settings).chain(&self.before);
                let most = all.map(|whole| whole.max_applications).min().unwrap_or(0);
                let paused =
                    self.apps.values().filter(|app| app.paused.is_some() || app.pausing > 0).count() as u64;
                // The pause of this command itself is under way.
                assert!(paused > most, "{paused} applications are paused, {most} may be");
                self.app(name).pausing -= 1;
            }
            // Its end passed while it was queued.
            Command::Pause(name, Some(_)) if matches!(answer, Answer::Rejected(_)) => {
                self.app(name).pausing -= 1;
            }
            Command::Pause(name, _) | Command::Resume(name) => {
                let (until, changed) = match answer {
                    Answer::Until { until, changed } => (Some(until.unwrap_or(FOR_EVER)), *changed),
                    Answer::Done { changed } => (None, *changed),
                    _ => panic!("{answer:?}"),
                };
                assert_eq!(until.is_some(), matches!(asked.command, Command::Pause(..)));
                let since = self.walls.iter().rev().take_while(|(call, _)| *call >= asked.call);
                let wall = since.map(|(_, wall)| *wall).max().unwrap_or(0);
                let app = self.app(name);
                app.pausing -= 1;
                // The pause may have ended since.
                let over = app.paused.is_some_and(|until| until <= wall) || app.pause_over >= asked.call;
                if app.pausing == 0 && !over {
                    assert_eq!(changed, app.paused != until, "{:?}", asked.command);
                }
                app.paused = until.filter(|until| *until > wall);
            }
            Command::PauseCustomer(of, _) | Command::ResumeCustomer(of) => self.judge_hold(asked, of, answer),
            Command::Slow(name, rate, _) => self.judge_slow(asked, name, *rate, answer),
            Command::Retry(name) => {
                let Answer::Done { changed } = answer else { panic!("{answer:?}") };
                let app = self.app(name);
                // An attempt may have succeeded before the answer was durable.
                let failed = app.failing || app.failed_call >= asked.call;
                assert!(!changed || failed, "tried again what is not parked");
                if *changed {
                    app.parked_until = 0;
                }
                // An attempt may have failed again before the answer was durable.
                if *changed && app.failure < asked.call {
                    app.left_alone_until = 0;
                }
            }
            Command::DropParked(name) => {
                let Answer::Cancelled { count, in_flight } = answer else { panic!("{answer:?}") };
                let _ = in_flight;
                if self.durable {
                    assert!(*count <= asked.took.len() as u64, "parked items of {name} taken back");
                }
            }
        }
    }

    pub(super) fn judge_cancel(&mut self, asked: &Asked, target: &Target, answer: &Answer) {
        let known = self.known_since(target.identity, asked.call);
        let named = |known: &Known| match known {
            Known::Waiting(seq) | Known::Out(seq) | Known::Ended(seq) => {
                self.application(*seq) == &*target.application
            }
            Known::Nobody => true,
        };
        let known: Vec<Known> = known.into_iter().filter(named).collect();
        match answer {
            Answer::Cancelled { count, in_flight } => {
                assert_eq!((*count, *in_flight), (1, 0));
                let waited = known.iter().any(|k| matches!(k, Known::Waiting(_)));
                if self.durable {
                    // The item may have ended before it was ever written.
                    let unwritten = self.end_unwritten_by_cancel(asked, &known);
                    let pending = asked.took.is_empty() && self.met_pending(usize::MAX, target.identity);
                    let unseen = unwritten || pending || self.was_taken_back_since(asked, target);
                    assert!(
                        !asked.took.is_empty() || !asked.perhaps.is_empty() || unseen,
                        "{target:?} is said to be cancelled, and was not taken out: {known:?}"
                    );
                    for seq in &asked.took {
                        assert_eq!(self.lives[seq].state, State::Cancelled, "cancelled and then not");
                    }
                } else {
                    let unseen = self.may_wait_unseen(target.identity);
                    assert!(waited || unseen, "nothing of {target:?} was there to cancel: {known:?}");
                }
            }
            Answer::Ended(ended) => {
                let right =
                    known.iter().any(|k| matches!(k, Known::Ended(seq) if self.ended_so(*seq, ended)));
                let unseen = self.ended_unwritten(target, &known, ended);
                let before = self.ended_before(asked, target, &known, ended);
                assert!(right || unseen || before || !self.durable, "{ended:?}: {known:?}");
            }
            Answer::InFlight => {
                let undecided = |k: &Known| match k {
                    Known::Out(_) => true,
                    // The broker has not reported since whether it took the item.
                    Known::Waiting(seq) => {
                        let life = &self.lives[seq];
                        // The item may be in a batch that waits for payloads.
                        let lately = life.waiting_since >= asked.call || self.contents_read;
                        life.undecided || lately || self.may_be_unlooked_at(life.waiting_since)
                    }
                    Known::Ended(_) | Known::Nobody => false,
                };
                assert!(known.iter().any(undecided), "{target:?} is said to be in flight: {known:?}");
                // The engine may have decided on a request behind it, because of a cancel behind that.
                let is_id = |ask: &usize| self.asks[*ask].new.identity == Some(target.identity);
                let hurried = || (0..self.asks.len()).filter(is_id).any(|ask| self.is_hurried(ask));
                let impatient = self.few_wait || self.many_wait(asked) || hurried();
                let patient = self.now.mono >= asked.now.mono + 5_000 || impatient;
                assert!(patient, "it waits 5 s for the outcome");
            }
            Answer::Unknown => assert!(self.may_be_unknown(asked, &known), "unknown {target:?}: {known:?}"),
            _ => panic!("no answer to a cancel: {answer:?}"),
        }
    }

    /// Its end has been written, and its request returned to the broker with the connection before the answer.
    fn was_taken_back_since(&self, asked: &Asked, target: &Target) -> bool {
        let ends = self.unwritten_ends.get(&target.identity);
        let is_its = |ended: &Ended| ended.end == End::Cancelled && ended.at >= asked.now.wall;
        ends.is_some_and(|ends| ends.iter().any(is_its))
    }

    /// An item that was published, certainly not delivered, and never written leaves no delete.
    fn end_unwritten_by_cancel(&mut self, asked: &Asked, known: &[Known]) -> bool {
        let Some(Known::Waiting(seq)) = known.last().filter(|_| asked.took.is_empty()) else { return false };
        let life = &self.lives[seq];
        let unwritten = life.state == State::Waiting && life.put.is_none() && life.published.is_some();
        if unwritten {
            assert!(!life.undecided, "{} was taken back, and may have been delivered", life.ask);
            self.set(*seq, State::Cancelled);
        }
        unwritten
    }

    /// Without a store, an item is first visible when it is published.
    pub(super) fn may_wait_unseen(&self, identity: Identity) -> bool {
        let is_it = |ask: &super::model::Ask| ask.new.identity == Some(identity) && !ask.rejected;
        !self.durable && self.asks.iter().any(is_it)
    }

    pub(super) fn ended_so(&self, seq: u64, ended: &Ended) -> bool {
        let life = &self.lives[&seq];
        let new = &self.asks[life.ask].new;
        let (least, most) = life.attempts;
        let due = match (life.retimed, new.at) {
            (Some(due), _) => ended.due == due,
            (None, Some(_)) => ended.due == life.accepted_due,
            (None, None) => ended.due <= life.accepted_due,
        };
        let told = (least..=most).contains(&ended.attempts);
        let waited = matches!(life.state, State::Sent | State::Cancelled);
        if !told || waited && !due || ended.customer.as_deref() != new.customer.as_deref() {
            return false;
        }
        match (&ended.end, life.state) {
            (End::Sent(_), State::Sent) => true,
            (End::Cancelled | End::CancelledAgain, State::Cancelled) => true,
            (End::Dead(dead), State::Dead(is) | State::DeadOut(_, is) | State::DeadSent(is)) => {
                dead.reason == is
            }
            _ => false,
        }
    }

    /// Its last end was not remembered, as the tail was 0 then: an earlier end is reported, within the present tail.
    pub(super) fn ended_before(
        &self,
        asked: &Asked,
        target: &Target,
        known: &[Known],
        ended: &Ended,
    ) -> bool {
        let Some(Known::Ended(last)) = known.last() else { return false };
        let told = |seq: u64| self.ended_so(seq, ended) && self.remembered(seq, asked.now.wall).0;
        self.end_before(target.identity, *last).is_some_and(told)
    }

    /// It was cancelled before it was written: the end remembered then is reported, within the tail.
    pub(super) fn ended_unwritten(&self, target: &Target, known: &[Known], ended: &Ended) -> bool {
        let ends = self.unwritten_ends.get(&target.identity);
        let told = self.may_be_told(&target.application, ended, self.now.wall);
        told && known.contains(&Known::Nobody) && ends.is_some_and(|ends| ends.contains(ended))
    }

    fn may_be_told(&self, application: &str, ended: &Ended, wall: u64) -> bool {
        let tail = self.settings.of(application).dedupe_tail;
        self.stepped || !self.before.is_empty() || wall <= ended.at + tail
    }

    /// It was cancelled before it was ever written, and comes back within the tail. The moment of delivery counts, as its
    /// ack waits for the rest of its message.
    pub(super) fn comes_back_unwritten(&self, new: &NewItem, delivered: u64, known: &[Known]) -> bool {
        let wall = self.now.wall.saturating_sub(self.now.mono - delivered);
        let ends = new.identity.and_then(|identity| self.unwritten_ends.get(&identity));
        let is_it = |ended: &Ended| {
            ended.fingerprint == new.fingerprint && self.may_be_told(&new.application, ended, wall)
        };
        known.contains(&Known::Nobody) && ends.is_some_and(|ends| ends.iter().any(is_it))
    }

    pub(super) fn may_be_unknown(&self, asked: &Asked, known: &[Known]) -> bool {
        let forgotten = |k: &Known| match k {
            Known::Nobody => true,
            Known::Ended(seq) => {
                // Without a store, its death is remembered once its dead letter has been confirmed.
                let letter = matches!(self.lives[seq].state, State::Dead(_) | State::DeadOut(..));
                let unconfirmed = letter && !self.durable;
                unconfirmed || self.remembered(*seq, asked.now.wall).1 || self.heir_is_back(*seq)
            }
            // Without a store, its death is not visible until its dead letter leaves, nor its cancel until its message is
            // acked.
            Known::Waiting(seq) => {
                let life = &self.lives[seq];
                let expiry = self.asks[life.ask].new.expiry;
                let expired = expiry.is_some_and(|at| at <= self.now.wall);
                let died = life.refused || expired || self.given_up_unseen(life);
                !self.durable && (died || self.taken_back_unseen(*seq) || self.heir_is_forgotten(*seq))
            }
            // Without a store, its replacement may have been cancelled, or have returned to the broker, without a trace.
            Known::Out(seq) => {
                let life = &self.lives[seq];
                let replaced = || self.is_hurried(life.ask) && self.may_have_ended_unseen(life.ask);
                !self.durable && (life.superseded || replaced())
            }
        };
        // An item without an id was in flight at the question, and the store could answer at once: the command waits for
        // its outcome, but another command may come first, or the item may be gone because its request comes again.
        let passes = |k: &Known| match k {
            Known::Nobody => true,
            Known::Waiting(seq) => self.lives[seq].state != State::Sent,
            Known::Out(_) | Known::Ended(_) => false,
        };
        let out = matches!(known.first(), Some(Known::Out(seq)) if !self.lives[seq].identity.is_given());
        let awaited = out && self.prompt && asked.local && self.durable && !known.iter().any(passes);
        !awaited && (known.is_empty() || known.iter().any(forgotten))
    }

    /// Without a store: so many items may have been admitted since that the oldest was given up, and its dead letter has
    /// not left.
    pub(super) fn given_up_unseen(&self, life: &Life) -> bool {
        self.apps[self.application(life.seq)].over >= life.accepted
    }

    /// Without a store: notes applications of which more items may have been admitted than may wait.
    pub(super) fn note_over(&mut self) {
        if self.durable {
            return;
        }
        let is_over = |name: &&String| {
            let settings = self.settings.of(name);
            let drops = settings.on_full == OnFull::DropOldest && settings.max_waiting > 0;
            drops && self.live(name) + self.unseen_of(name) > settings.max_waiting
        };
        let over: Vec<String> = self.apps.keys().filter(is_over).cloned().collect();
        for name in over {
            self.app(&name).over = self.call;
        }
    }

    /// Cancelled by a command since its present wait began: an answered one, or any where ends are not remembered.
    fn taken_back_unseen(&self, seq: u64) -> bool {
        let (life, name) = (&self.lives[&seq], self.application(seq));
        let forgets = self.settings.of(name).dedupe_tail == 0;
        let took = |asked: &&Asked| asked.answered >= life.waiting_since && asked.covers(self, seq);
        self.answered.values().any(|asked| took(&asked))
            || (forgets && self.commands.values().any(|asked| took(&asked)))
    }

    /// Without a store: it was not cancelled but replaced without a trace, and the message of its replacement is with the
    /// broker again.
    fn heir_is_back(&self, seq: u64) -> bool {
        let life = &self.lives[&seq];
        let is_heir = |ask: &usize| *ask != life.ask && self.asks[*ask].new.identity == Some(life.identity);
        let waits = |message: &Message| {
            !message.acked && message.delivered.is_none() && message.asks.iter().any(is_heir)
        };
        !self.durable && life.state == State::Cancelled && self.messages.values().any(waits)
    }

    /// Without a store: it was replaced without a trace while the rest of its message was not safe, and the replacement
    /// was cancelled so long ago that its id is forgotten.
    fn heir_is_forgotten(&self, seq: u64) -> bool {
        let life = &self.lives[&seq];
        let name = &self.asks[life.ask].new.application;
        let tails = std::iter::once(&self.settings).chain(&self.before).map(|s| s.of(name).dedupe_tail);
        let tail = tails.min().unwrap_or(0);
        let cancels = |asked: &Asked| {
            let it = matches!(&asked.command, Command::Cancel(target) if target.identity == life.identity);
            it && asked.answered > life.accepted && self.now.wall >= asked.now.wall.saturating_add(tail)
        };
        let heir = !life.acked && self.met_unseen(life.ask, life.identity);
        heir && self.answered.values().any(cancels)
    }
}
