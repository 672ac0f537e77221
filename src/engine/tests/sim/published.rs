//! Checks of batches that leave: whether they may, in which order, and how many items at a time.
//!
//! Judges promise 10.

use super::super::world::batch_id;
use super::model::*;
use tidegate_types::size;
use tidegate_types::*;

/// Batches that may be sent to an application that has been silent for that long, ms.
const MAX_UNANSWERED: usize = 16;
const MAX_SILENCE_MS: u64 = 2_000;

impl Model {
    pub(super) fn publish(&mut self, batch: &Batch) {
        assert_eq!(self.egress, (true, false), "published without a connection, or while it was blocked");
        assert!(!batch.items.is_empty(), "an empty batch");
        let name = batch.application.to_string();
        let suspect = self.was_out_when_parked(batch);
        let mut last = None;
        let mut fresh = false;
        for item in &batch.items {
            let ask = self.ask_of(&item.content);
            assert!(last < Some((item.due, item.seq)), "order within a batch");
            last = Some((item.due, item.seq));
            if !self.lives.contains_key(&item.seq) {
                self.first_seen(ask, item, batch);
            }
            let life = &self.lives[&item.seq];
            assert_eq!(life.ask, ask, "arrival number {} stands for two items", item.seq);
            assert_eq!(item.accepted_due, life.accepted_due, "what its assigned id says");
            assert!(
                (life.attempts.0..=life.attempts.1).contains(&item.attempts),
                "{ask}: {} attempts, not {:?}",
                item.attempts,
                life.attempts
            );
            let new = &self.asks[ask].new;
            assert_eq!(
                (&*new.application, new.customer.as_deref()),
                (&*name, batch.customer.as_deref()),
                "routed elsewhere"
            );
            fresh |= life.published.is_none();
            match &batch.dead {
                Some(dead) => {
                    assert_eq!(batch.items.len(), 1, "one dead letter each");
                    if !self.durable && life.state == State::Waiting {
                        self.check_verdict(ask, Some(item.seq), dead.reason);
                        self.set(item.seq, State::Dead(dead.reason));
                    }
                    let State::Dead(reason) = self.lives[&item.seq].state else {
                        panic!("dead letter of {ask}, which is {:?}", self.lives[&item.seq].state)
                    };
                    assert_eq!(reason, dead.reason);
                    self.check_letter_due(ask, item);
                    self.set(item.seq, State::DeadOut(batch.number, reason));
                    let call = self.call;
                    self.lives.get_mut(&item.seq).expect("there").published.get_or_insert(call);
                }
                None => self.publish_item(ask, item, batch),
            }
        }
        if batch.dead.is_none() {
            self.check_size(batch, fresh);
            if fresh {
                self.check_whole(batch);
            }
            self.check_rate(batch, fresh);
            let app = &self.apps[&name];
            assert!(app.paused.is_none() || app.pausing > 0, "published while paused");
            // A suspect has its own channel, and is still tried.
            let retried =
                self.commands.values().any(|a| matches!(&a.command, Command::Retry(of) if **of == *name));
            let parked = self.now.mono < app.parked_until && !retried;
            assert!(batch.alone && suspect || !parked, "published to {name}, which is parked");
        }
        assert_eq!(batch.due, batch.items[0].due.min(batch.due), "its earliest due");
        self.check_attempt(batch);
        let first = self.check_again(batch);
        self.check_bytes();
        self.check_silence(batch);
        let flight = Flight {
            application: name.clone(),
            items: batch.items.iter().map(|item| item.seq).collect(),
            dead: batch.dead.is_some(),
            alone: batch.alone,
            first,
            sent: self.call,
            at: self.now.mono,
            suspect,
        };
        if !flight.dead {
            self.app(&name).flights.insert(batch.number);
            let all = std::iter::once(&self.settings).chain(&self.before);
            let share = all.map(|whole| (whole.max_in_flight * 3 / 4).max(1)).max().unwrap_or(1);
            let out = self.app(&name).flights.len();
            assert!(out <= share, "{out} batches of {name} are out, {share} of one application may be");
        }
        assert!(self.flights.insert(batch.number, flight).is_none(), "one number, two batches");
        let most =
            self.before.iter().map(|before| before.max_in_flight).fold(self.settings.max_in_flight, Ord::max);
        assert!(self.flights.len() <= most, "{} batches in flight of {most}", self.flights.len());
    }

    /// A dead letter tells the due of its item when it died, also after refusals and restarts.
    fn check_letter_due(&mut self, ask: usize, item: &BatchItem) {
        let life = &self.lives[&item.seq];
        if self.is_windowed(life) {
            assert!(item.due <= life.accepted_due, "{ask}: its due when it died");
        } else {
            assert_eq!(item.due, life.due, "{ask}: its due when it died");
        }
        let told = *self.lives.get_mut(&item.seq).expect("there").letter_due.get_or_insert(item.due);
        assert_eq!(item.due, told, "{ask}: its letter told another due before");
    }

    /// The batches in flight to a queue that stopped confirming must be few enough that the broker does not block the
    /// connection of all.
    fn check_silence(&self, batch: &Batch) {
        // A batch that waited for payloads was formed before.
        let judged = batch.dead.is_none() && !batch.alone && !self.contents_read;
        let app = self.apps.get(&*batch.application).filter(|_| judged);
        let Some(app) = app.filter(|app| self.now.mono > app.heard + MAX_SILENCE_MS) else { return };
        let late = |number: &&u64| self.flights[*number].at > app.heard + MAX_SILENCE_MS;
        let out = app.flights.iter().filter(late).count();
        assert!(
            out < MAX_UNANSWERED,
            "{out} have gone out to {}, silent since {}",
            batch.application,
            app.heard
        );
    }

    /// Its attempt number must be right; a batch that was split or formed anew goes on counting.
    fn check_attempt(&mut self, batch: &Batch) {
        let failed = batch.items.iter().map(|item| item.attempts).max().unwrap_or(0);
        let (least, most) = match self.publishes.get(&batch.number) {
            Some((least, most)) => ((least + 1).max(failed + 1), (most + 1).max(failed + 1)),
            None => (failed + 1, u32::MAX),
        };
        let right = (least..=most).contains(&batch.attempt);
        assert!(right, "attempt {}, not {least} to {most}", batch.attempt);
        let known = self
            .publishes
            .get(&batch.number)
            .map_or((1, batch.attempt), |(least, most)| (least + 1, most + 1));
        self.publishes.insert(batch.number, known);
    }

    /// Apart from the largest batch, no more bytes are in flight than allowed: no item costs less than this.
    fn check_bytes(&self) {
        let least = 20;
        let sizes = || self.flights.values().map(|flight| flight.items.len());
        let items = sizes().sum::<usize>() - sizes().max().unwrap_or(0);
        let most = std::iter::once(&self.settings).chain(&self.before).map(|s| s.max_in_flight_bytes).max();
        assert!(items as u64 * least <= most.unwrap_or(0), "{items} items in flight");
    }

    /// Whether all of it was in flight when its application was parked: then it may still be tried again.
    fn was_out_when_parked(&self, batch: &Batch) -> bool {
        let parked = self.apps.get(&*batch.application).map_or(0, |app| app.parked_call);
        batch.items.iter().all(|item| {
            let life = self.lives.get(&item.seq);
            life.is_some_and(|life| {
                life.published.is_some_and(|at| at <= parked) && life.waiting_since > parked
            })
        })
    }

    /// An item that was never written is seen for the first time: it was due at once, or there is no store.
    fn first_seen(&mut self, ask: usize, item: &BatchItem, batch: &Batch) {
        let key = Key { due: item.due, window: item.window, seq: item.seq };
        match &batch.dead {
            Some(dead) => {
                assert!(!self.durable, "a dead letter that was never written");
                self.check_verdict(ask, None, dead.reason);
                self.accept(ask, key, item.accepted_due, State::Dead(dead.reason));
            }
            None if self.durable => {
                // An item that is due at once stays due when the clock is set back.
                let at_once = self.asks[ask].new.at.is_none();
                let wall = if at_once { self.latest_wall } else { self.now.wall };
                assert!(item.due <= wall, "published and not yet due");
                self.accepted(ask, key, item.accepted_due);
            }
            None => {
                self.check_hold(ask);
                self.accept(ask, key, item.accepted_due, State::Waiting);
            }
        }
    }

    fn publish_item(&mut self, ask: usize, item: &BatchItem, batch: &Batch) {
        let (call, now) = (self.call, self.now);
        let life = &self.lives[&item.seq];
        assert_eq!(life.state, State::Waiting, "{ask} was published");
        let new = self.asks[ask].new.clone();
        assert!(!self.asks[ask].rejected, "a rejected request went out");
        let cancelled = self.commands.values().find(|asked| asked.is_its_own(self, item.seq));
        assert!(cancelled.is_none(), "{ask} left behind a cancel of its customer");
        assert_eq!(item.retry, new.tried.retry, "{ask}: how often it was sent back");
        let first = life.published.is_none();
        let attempts = life.attempts.0;
        if let Some(at) = self.own_time(life) {
            // An item that was sent at its time may be sent again, whatever the clock shows.
            let first = first && (life.attempts.1 == 0 || life.retimed.is_some());
            assert!(
                !first || now.wall >= at.min(item.due),
                "{ask} left at {}, before its own time {at}",
                now.wall
            );
            assert!(!first || now.wall >= item.due || item.due < at, "{ask} left before its due");
        }
        assert!(new.expiry.is_none_or(|at| now.wall < at), "{ask} left after its expiry");
        let settings = self.settings.of(&new.application);
        let most = std::iter::once(settings).chain(self.before.iter().map(|b| b.of(&new.application)));
        let most = most.map(|s| if s.retry.attempts == 0 { u32::MAX } else { s.retry.attempts }).max();
        assert!(most.is_none_or(|most| attempts < most), "{ask} was tried {attempts} times already");
        let windowed = self.is_windowed(&self.lives[&item.seq]);
        if windowed && first && self.durable && !life.restored {
            self.windows.close_ripe(call, now);
            let may_flush = self.may_flush(&new.application, new.customer.as_deref().unwrap_or(""));
            self.windows.has_closed(item.seq, item.due, batch.closed_by, may_flush, call);
        }
        if windowed {
            assert!(item.due <= item.accepted_due, "a window that closed after its end");
        } else {
            assert_eq!(item.due, self.lives[&item.seq].due, "{ask}: its due");
        }
        let life = self.lives.get_mut(&item.seq).expect("there");
        (life.due, life.batch) = (item.due, Some(batch_id(batch)));
        if let Some(customer) = &new.customer {
            self.check_order(item, &new.application, customer, windowed, first);
        }
        self.lives.get_mut(&item.seq).expect("there").published.get_or_insert(call);
        self.set(item.seq, State::Out(batch.number));
    }

    /// No later item of its customer may have left since it began to wait.
    fn check_order(
        &mut self,
        item: &BatchItem,
        application: &str,
        customer: &str,
        windowed: bool,
        first: bool,
    ) {
        let key = Key { due: item.due, window: item.window, seq: item.seq };
        let life = &self.lives[&item.seq];
        let closed =
            self.windows.of(item.seq).and_then(|win| win.closed.as_ref()).map_or(0, |close| close.call);
        let since = life.waiting_since.max(life.retimed_call).max(if windowed { closed } else { 0 });
        let unseen = !self.durable && first;
        // Members are stored together, whatever else is due in their millisecond.
        let same_ms = |other: &Key| (windowed || other.window != other.seq) && other.due == key.due;
        let list = self.published.entry((application.into(), customer.into())).or_default();
        for (call, wall, other, other_first) in list.iter().rev() {
            if *call <= since || unseen {
                break;
            }
            // An item that was in flight when another failed may come before it. An own time waits for the wall clock,
            // which may have been set back while a window of another item ended by the monotonic clock.
            let later = (other.due, other.seq) > (key.due, key.seq);
            let overtaken = later && *other_first && (windowed || key.due <= *wall);
            // The length of a window follows another clock than the item that overtakes it. An item that waited for
            // payloads was in a batch before it was given its time.
            let formed = self.contents_read && self.lives[&key.seq].retimed.is_some();
            let hidden = same_ms(other) || self.stepped_back > 0 || windowed && self.stepped || formed;
            assert!(!overtaken || hidden, "{key:?} of {customer} waited when {other:?} left");
        }
        list.push((self.call, self.now.wall, key, first));
    }

    fn check_size(&self, batch: &Batch, fresh: bool) {
        let all = std::iter::once(&self.settings).chain(&self.before);
        let fits = all.into_iter().any(|settings| {
            let app = settings.of(&batch.application);
            let overhead = size::overhead(app.format, &batch.application, batch.customer.as_deref());
            let weight =
                |item: &BatchItem| u64::from(self.asks[self.lives[&item.seq].ask].new.weight) + overhead.item;
            let bytes = overhead.batch + batch.items.iter().map(weight).sum::<u64>();
            let most = if app.format == Format::Passthrough { 1 } else { app.max_items as usize };
            batch.items.len() <= most
                && (batch.items.len() == 1 || bytes <= app.max_bytes || app.format == Format::Passthrough)
        });
        assert!(fits || !fresh, "a batch of {} items is too large", batch.items.len());
        let alone = batch.customer.is_some() || batch.items.len() == 1;
        assert!(alone, "items without customer are grouped with nobody");
        let tried = batch.items.iter().any(|item| item.retry > 0);
        assert!(!tried || batch.items.len() == 1, "what was sent back is grouped with nobody");
        let Some(first) = batch.items.first() else { return };
        let own_time = !self.is_windowed(&self.lives[&first.seq]);
        let told = !fresh || !own_time || batch.closed_by == ClosedBy::Time;
        assert!(told, "{} is of no window, and closed by {:?}", first.seq, batch.closed_by);
        if fresh && self.durable {
            let causes: Vec<ClosedBy> =
                batch.items.iter().filter_map(|i| self.windows.causes(i.seq)).flatten().copied().collect();
            let own = batch.items.iter().any(|i| self.windows.causes(i.seq).is_none());
            let right = causes.contains(&batch.closed_by) || own;
            assert!(right, "closed by {:?}, not {causes:?}: {}", batch.closed_by, first.seq);
        }
    }
    /// A closed window leaves in as few batches as its limits allow, however little memory there is: no member may stay
    /// behind that has waited with those that leave and has room. Whether it leaves in parts for lack of memory is the
    /// engine's decision, which other tests check.
    fn check_whole(&self, batch: &Batch) {
        let Some(last) = batch.items.last().filter(|_| self.durable && !self.stepped) else { return };
        let all = || std::iter::once(&self.settings).chain(&self.before);
        let app = self.settings.of(&batch.application);
        let Some(win) = self.windows.of(last.seq).filter(|win| !win.unsure) else { return };
        let closed = win.closed.as_ref().map_or(usize::MAX, |close| close.call);
        // A batch that waits for payloads was formed before.
        if self.parts.0 != self.parts.1 || self.parts.1 > 0 && self.contents_read {
            return;
        }
        let left_out = win.members.iter().find(|seq| {
            let life = &self.lives[*seq];
            let new = &self.asks[life.ask].new;
            let waits = life.state == State::Waiting && life.published.is_none() && life.retimed.is_none();
            let alive = new.expiry.is_none_or(|at| at > self.now.wall);
            let asked = self.commands.values().any(|asked| asked.covers(self, **seq));
            **seq > last.seq && waits && alive && !asked
        });
        let Some(left_out) = left_out.filter(|_| closed < self.call) else { return };
        // Items that were in the batch and ended before it left had a place in it.
        let ended = |life: &Life| {
            let new = &self.asks[life.ask].new;
            let its = *new.application == *batch.application
                && new.customer.as_deref() == batch.customer.as_deref();
            let died = matches!(life.state, State::Dead(_) | State::DeadOut(..) | State::DeadSent(_));
            its && (died || life.ended_call > closed && life.published.is_none())
        };
        if self.lives.values().any(ended) {
            return;
        }
        // An item with an own time may come first.
        let comes_first = |life: &&Life| {
            let new = &self.asks[life.ask].new;
            let its = *new.application == *batch.application
                && new.customer.as_deref() == batch.customer.as_deref();
            its && life.due == last.due && life.state == State::Waiting
        };
        let next = self.lives.range(last.seq + 1..=*left_out).map(|(_, life)| life).find(comes_first);
        let new = &self.asks[next.unwrap_or(&self.lives[left_out]).ask].new;
        let fits = all().all(|settings| {
            let app = settings.of(&batch.application);
            let overhead = size::overhead(app.format, &batch.application, batch.customer.as_deref());
            let weight = |weight: u32| u64::from(weight) + overhead.item;
            let of = |item: &BatchItem| weight(self.asks[self.lives[&item.seq].ask].new.weight);
            let bytes = overhead.batch + batch.items.iter().map(of).sum::<u64>() + weight(new.weight);
            let failing = self.apps[&*batch.application].failing;
            let probe = if failing { settings.thresholds.probe } else { usize::MAX };
            let in_company = last.retry == 0 && new.tried.retry == 0;
            (app.format != Format::Passthrough && in_company)
                && batch.items.len() < probe.min(app.max_items as usize)
                && bytes <= app.max_bytes
        });
        let (had, of) = (batch.items.len(), win.members.len());
        assert!(
            !fits,
            "{left_out} of window {} of {:?} stays behind {had}, {of} are left, {app:?}",
            last.window, batch.customer
        );
    }
}
