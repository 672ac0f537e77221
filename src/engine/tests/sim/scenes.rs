//! Situations that take several steps, each in its own application, which no other draws meet.

use super::super::world::*;
use super::model::Excuse;
use super::{Sim, PREFETCH};
use tidegate_types::event::*;
use tidegate_types::*;

/// Most rows that are read for a probe.
const PROBE_ROWS: u64 = 16;

impl Sim {
    pub(super) fn scene(&mut self) {
        self.clear_the_way();
        let app = format!("s{}", self.world.sent);
        if self.plan.forgetful {
            return self.repeated_late(&app);
        }
        match self.toss(if self.plan.steps_of_the_clock { 29 } else { 17 }) {
            0 => self.suspects_of_a_paused(&app),
            1 => self.suspects_of_a_parked(&app),
            2 => self.moved_behind_a_scan(&app),
            3 | 13 => self.due_before_a_scan_comes_to_it(&app),
            4 => self.full_disk(),
            5 => self.waits_for_an_attempt(&app),
            6 => self.patience_with_an_attempt(&app),
            7 | 8 => self.unknown_behind_a_cancel(&app),
            9 => self.patience_of_a_cancel(&app),
            10 => self.one_batch_a_turn(&app),
            11 => self.comes_again_in_flight(&app),
            12 => self.backlog_of_a_parked(&app),
            14 => self.due_at_once_behind_a_backlog(&app),
            15 => self.nothing_confirmed_lately(&app),
            16 => self.falls_silent(&app),
            17..27 => self.waits_for_what_goes(&app),
            27 => self.clock_forward_to_an_expiry(&app),
            _ => self.restart_with_the_clock_set_back(&app),
        }
        self.judge();
    }

    pub(super) fn clear_the_way(&mut self) {
        self.connect_egress();
        self.world.input(Input::EgressBlocked(false));
        self.set_store_full(false);
        self.world.drain_jobs();
    }

    pub(super) fn set_store_full(&mut self, full: bool) {
        self.store_full = full;
        self.world.input(Input::StoreFull(full));
    }

    /// The broker confirms all batches in flight, and no others.
    fn confirm_out(&mut self) {
        self.world.drain_jobs();
        for _ in 0..self.world.out.len() {
            let Some(batch) = self.world.first_out() else { break };
            self.confirm_first(&batch);
        }
        self.world.drain_jobs();
    }

    fn set_back(&mut self, ms: u64) {
        self.world.now.wall -= ms;
        self.world.input(Input::Tick);
    }

    fn at_once(&mut self, app: &str, customer: &str) {
        let now = Some(self.world.now.wall);
        self.request_of(app, customer, now, None);
    }

    /// A channel is closed because of batches of an application that has been paused since they left. They wait, and some
    /// of their items are cancelled.
    fn suspects_of_a_paused(&mut self, app: &str) {
        self.at_once(app, "c0");
        self.hand_over_all();
        self.confirm_out();
        (0..4).for_each(|n| self.at_once(app, &format!("c{n}")));
        self.hand_over_all();
        self.ask(Command::Pause(app.into(), None));
        self.world.drain_jobs();
        let own = |(_, batch): &&(u64, Batch)| *batch.application == *app && !batch.alone;
        if let Some((_, batch)) = self.world.out.iter().find(own).cloned() {
            self.close_channel(&batch);
        }
        self.world.drain_jobs();
        for n in 0..self.toss(5) {
            let customer = format!("c{n}").as_str().into();
            self.ask(Command::CancelAll(CustomerOf { application: app.into(), customer }));
            self.world.drain_jobs();
        }
        self.ask(Command::Resume(app.into()));
        self.confirm_out();
        self.at_once(app, "c0");
        self.hand_over_all();
        self.confirm_out();
        self.rest();
    }

    /// More suspects than channels; one is returned, and one is confirmed.
    fn suspects_of_a_parked(&mut self, app: &str) {
        for round in 0..5 {
            (0..12).for_each(|n| self.at_once(app, &format!("c{n}")));
            self.hand_over_all();
            self.world.deliver(10);
            self.world.drain_jobs();
            if round < 4 {
                self.confirm_out();
            }
        }
        let own = |(_, batch): &&(u64, Batch)| *batch.application == *app && !batch.alone;
        if let Some((_, batch)) = self.world.out.iter().find(own).cloned() {
            self.close_channel(&batch);
        }
        self.world.drain_jobs();
        for outcome in [Outcome::Returned("312 NO_ROUTE".into()), CONFIRMED] {
            let own = |(_, batch): &(u64, Batch)| *batch.application == *app && batch.alone;
            let Some(nth) = self.world.out.iter().position(own) else { break };
            let batch = self.world.out[nth].1.clone();
            if outcome == CONFIRMED {
                self.receive(&batch);
            }
            self.world.settle(nth, outcome);
            self.world.drain_jobs();
        }
        self.judge();
    }

    fn with_id_at_once(&mut self, app: &str, id: &str, rule: DuplicateRule) {
        let at = Some(self.world.now.wall);
        self.mail_plain(with_id(id, rule, NewItem { at, ..self.plain_item(app, "c") }));
        self.hand_over_all();
    }

    /// Ids come again just before they may be forgotten, perhaps after a restart.
    fn repeated_late(&mut self, app: &str) {
        let ids: Vec<String> = (0..15).map(|n| format!("{}-{n}", self.world.sent)).collect();
        for id in &ids {
            self.with_id_at_once(app, id, DuplicateRule::Keep);
            self.confirm_out();
            self.pass(100);
        }
        self.world.drain_jobs();
        if self.plan.crashes && self.toss(2) == 0 {
            self.crash();
            self.clear_the_way();
        }
        self.world.advance(3_400);
        for id in &ids {
            self.with_id_at_once(app, id, DuplicateRule::Keep);
            self.pass(100);
        }
    }

    /// A request depends on an item that is in flight when the connection is lost.
    fn waits_for_an_attempt(&mut self, app: &str) {
        let id = self.world.sent.to_string();
        self.with_id_at_once(app, &id, DuplicateRule::Replace);
        self.with_id_at_once(app, &id, DuplicateRule::Replace);
        self.lose_egress();
        self.rest();
        self.connect_egress();
    }

    /// The outcome for which a cancel waits stays unknown, and the batch is tried again and again.
    fn patience_with_an_attempt(&mut self, app: &str) {
        let id = self.world.sent.to_string();
        self.with_id_at_once(app, &id, DuplicateRule::Keep);
        self.ask(Command::Cancel(target(app, &id)));
        for _ in 0..4 {
            self.world.drain_jobs();
            self.world.advance(2_000);
            self.lose_egress();
            self.connect_egress();
        }
        self.rest();
    }

    /// The confirm of an item was overdue, and it has left memory: neither a cancel of its customer nor a later one of
    /// its own ends it.
    fn unknown_behind_a_cancel(&mut self, app: &str) {
        let id = self.world.sent.to_string();
        self.with_id_at_once(app, &id, DuplicateRule::Keep);
        self.request_of(app, "c", Some(self.world.now.wall + 90_000), None);
        self.hand_over_all();
        let own = |(_, batch): &(u64, Batch)| *batch.application == *app && batch.alone;
        let Some(nth) = self.world.out.iter().position(own) else { return };
        let batch = self.world.out[nth].1.clone();
        self.excuse(&batch, Excuse::Overdue);
        self.world.settle(nth, Outcome::Overdue);
        self.world.drain_jobs();
        self.ask(Command::CancelAll(CustomerOf { application: app.into(), customer: "c".into() }));
        self.ask(Command::Cancel(target(app, &id)));
        self.world.drain_jobs();
    }

    /// While a cancel of a customer scans the store, some of its items are loaded and become due.
    fn due_before_a_scan_comes_to_it(&mut self, app: &str) {
        let wall = self.world.now.wall;
        (0..4).for_each(|n| self.request_of(app, "c", Some(wall + 21_000 + n), None));
        self.hand_over_all();
        self.ask(Command::CancelAll(CustomerOf { application: app.into(), customer: "c".into() }));
        self.world.advance(12_000);
        for _ in 0..1 + self.toss(3) {
            self.world.do_job_in_pieces(1);
        }
        self.world.advance(10_000);
        self.judge();
    }

    /// While a cancel of a customer scans the store, its window closes: members are then before the position of the scan,
    /// and are not loaded, because their application is paused.
    fn moved_behind_a_scan(&mut self, app: &str) {
        let wall = self.world.now.wall;
        self.ask(Command::Pause(app.into(), None));
        self.request_of(app, "c", None, Some(wall + 1_500));
        self.request_of(app, "c", None, None);
        (0..3).for_each(|n| self.request_of(app, "c", Some(wall + 21_000 + n), None));
        self.hand_over_all();
        self.ask(Command::CancelAll(CustomerOf { application: app.into(), customer: "c".into() }));
        for _ in 0..1 + self.toss(4) {
            self.world.do_job_in_pieces(1);
        }
        self.world.advance(1_450);
        for _ in 0..12 {
            self.world.do_job_in_pieces(1);
        }
        self.world.drain_jobs();
        self.ask(Command::Resume(app.into()));
        self.world.drain_jobs();
    }

    /// A cancel of a customer waits for items in flight, and gives up. Requests that wait because of it then go on.
    fn patience_of_a_cancel(&mut self, app: &str) {
        let id = self.world.sent.to_string();
        self.with_id_at_once(app, &id, DuplicateRule::Keep);
        self.ask(Command::CancelAll(CustomerOf { application: app.into(), customer: "c".into() }));
        self.catch_up();
        self.with_id_at_once(app, &id, DuplicateRule::Keep);
        for _ in 0..60 {
            self.world.advance(100);
            self.world.drain_jobs();
        }
        self.rest();
    }

    /// A connection is lost while an unwritten item is in flight, and its request comes again; then its attempt fails.
    fn comes_again_in_flight(&mut self, app: &str) {
        self.at_once(app, "");
        self.hand_over_all();
        self.confirm_out();
        let id = self.world.sent.to_string();
        let at = Some(self.world.now.wall);
        self.mail_plain(with_id(&id, DuplicateRule::Keep, NewItem { at, ..self.plain_item(app, "") }));
        self.world.deliver(10);
        self.lose_ingest();
        self.world.deliver(PREFETCH);
        self.catch_up();
        let own = |(_, batch): &(u64, Batch)| *batch.application == *app;
        let Some(nth) = self.world.out.iter().position(own) else { return };
        self.world.settle(nth, Outcome::Returned("312 NO_ROUTE".into()));
        self.world.drain_jobs();
        self.rest();
    }

    /// Two applications have more batches than there are slots, or one comes after the other. Where memory has room for
    /// all, each gets one batch per turn.
    fn one_batch_a_turn(&mut self, app: &str) {
        let other = format!("{app}-other");
        let names = [app, other.as_str()];
        for name in names {
            self.at_once(name, "");
            self.hand_over_all();
            self.confirm_out();
        }
        self.catch_up();
        self.judge();
        let budget = self.world.settings.budget;
        let room = self.world.engine.memory_bytes().0 + 20 < budget.rows && budget.contents >= 2_000;
        let channels = self.model.has_channel();
        if !room || !channels || names.iter().any(|name| self.model.live(name) > 0) {
            return;
        }
        self.world.input(Input::EgressBlocked(true));
        for name in names {
            (0..4).for_each(|_| self.at_once(name, ""));
            self.hand_over_all();
            self.catch_up();
        }
        self.judge();
        if names.iter().any(|name| self.model.live(name) < 4) {
            return;
        }
        self.world.input(Input::EgressBlocked(false));
        self.catch_up();
        let mut out = [0_u32; 2];
        // In the order in which they were formed, as some may have had to be read first.
        let mut batches: Vec<&Batch> = self.world.out.iter().map(|(_, batch)| batch).collect();
        batches.sort_by_key(|batch| batch.number);
        for batch in batches.into_iter().filter(|batch| batch.dead.is_none()) {
            let Some(which) = names.iter().position(|name| **name == *batch.application) else { continue };
            out[which] += 1;
            assert!(out[0].abs_diff(out[1]) <= 1, "{app} and {other} have {out:?} of their batches out");
        }
        self.judge();
    }

    /// An item that is due at once comes while older items of its application are due and still to be loaded.
    fn due_at_once_behind_a_backlog(&mut self, app: &str) {
        let wall = self.world.now.wall;
        (0..3).for_each(|n| self.request_of(app, "", Some(wall + 21_000 + n), None));
        self.hand_over_all();
        self.catch_up();
        self.world.advance(17_000);
        self.at_once(app, "");
        self.deliver_only();
        let own = |(_, batch): &(u64, Batch)| *batch.application == *app && batch.dead.is_none();
        let Some(nth) = self.world.out.iter().position(own) else { return };
        let batch = self.world.out[nth].1.clone();
        self.receive(&batch);
        self.world.settle(nth, CONFIRMED);
        self.world.advance(4_100);
        self.judge();
        let live = self.model.live(app);
        self.at_once(app, "");
        self.deliver_only();
        let newest = self.model.asks.len() - 1;
        let out: Vec<usize> = self
            .world
            .out
            .iter()
            .filter(|one| own(one))
            .flat_map(|(_, batch)| &batch.items)
            .map(|item| self.model.ask_of(&item.content))
            .collect();
        let overtakes = out.contains(&newest) && out.len() as u64 <= live;
        assert!(!overtakes, "{newest} of {app} is out while {live} older ones are due, {out:?}");
        self.world.advance(7);
        self.catch_up();
        self.confirm_out();
        self.catch_up();
        self.rest();
    }

    /// A confirm proves a queue for a limited time only: after a rest, one batch is sent first, alone.
    fn nothing_confirmed_lately(&mut self, app: &str) {
        self.at_once(app, "");
        self.hand_over_all();
        self.confirm_out();
        self.catch_up();
        self.world.advance(6_000);
        self.catch_up();
        (0..3).for_each(|_| self.at_once(app, ""));
        self.hand_over_all();
        self.catch_up();
        let own = |(_, batch): &&(u64, Batch)| *batch.application == *app && batch.dead.is_none();
        let out: Vec<bool> = self.world.out.iter().filter(own).map(|(_, batch)| batch.alone).collect();
        assert!(
            out.is_empty() || out == [true],
            "{out:?} of {app} are out, of which nothing was confirmed lately"
        );
        self.judge();
    }

    /// Confirms stop coming under load.
    fn falls_silent(&mut self, app: &str) {
        for round in 0..10 {
            (0..10).for_each(|_| self.at_once(app, ""));
            self.hand_over_all();
            self.world.drain_jobs();
            if round < 5 {
                self.confirm_out();
            } else {
                self.pass(2_100);
            }
            self.judge();
        }
    }

    /// Requests come, and the store executes nothing.
    fn deliver_only(&mut self) {
        self.world.deliver(PREFETCH);
        for _ in 0..200 {
            if !self.world.engine.is_behind() {
                break;
            }
            self.world.input(Input::Tick);
        }
        self.judge();
    }

    /// Due items that wait for a probe are not in memory.
    fn backlog_of_a_parked(&mut self, app: &str) {
        for _ in 0..5 {
            (0..10).for_each(|n| self.at_once(app, &format!("c{}", n % 3)));
            self.hand_over_all();
            self.catch_up();
        }
        let own = |(_, batch): &(u64, Batch)| *batch.application == *app;
        let Some(nth) = self.world.out.iter().position(own) else { return };
        self.world.settle(nth, Outcome::Returned("312 NO_ROUTE".into()));
        self.catch_up();
        let rows = self.world.engine.rows_in_memory(app);
        assert!(rows <= PROBE_ROWS || !self.model.durable, "{rows} rows of {app}, which is parked");
        self.judge();
    }

    /// Lets the engine do all the work that it has left for later calls.
    fn catch_up(&mut self) {
        self.world.drain_jobs();
        for _ in 0..200 {
            if !self.world.engine.is_behind() {
                return;
            }
            self.world.input(Input::Tick);
            self.world.drain_jobs();
        }
    }

    /// Requests that were handed over when the disk was full wait.
    fn full_disk(&mut self) {
        self.set_store_full(true);
        (0..3).for_each(|_| self.request());
        self.world.hand_over(3);
        self.world.drain_jobs();
        self.world.advance(30);
        self.world.drain_jobs();
        self.judge();
        self.set_store_full(false);
    }

    /// Due items wait for one that a step back of the clock has put before them, and that one is cancelled.
    fn waits_for_what_goes(&mut self, app: &str) {
        self.world.input(Input::EgressBlocked(true));
        let first = self.model.asks.len();
        self.request_of(app, "c", None, None);
        self.hand_over_all();
        self.ask(Command::Flush(CustomerOf { application: app.into(), customer: "c".into() }));
        self.world.drain_jobs();
        let taken = self.world.queue.is_empty();
        self.set_back(60_000);
        let id = self.world.sent.to_string();
        let at = Some(self.world.now.wall + 30_000);
        self.mail_plain(with_id(&id, DuplicateRule::Keep, NewItem { at, ..self.plain_item(app, "") }));
        self.hand_over_all();
        self.world.input(Input::EgressBlocked(false));
        self.world.drain_jobs();

        self.ask(Command::Cancel(target(app, &id)));
        for _ in 0..4 {
            self.confirm_out();
            self.judge();
        }
        let arrivals = self.model.asks[first].arrivals;

        assert!(
            !taken || arrivals > 0,
            "{first} of {app} was due, and has not left: nothing is before it any more"
        );
        self.pass(61_000);
        self.confirm_out();
        self.rest();
    }

    /// After a step of the clock a window has to close early for an expiry.
    fn clock_forward_to_an_expiry(&mut self, app: &str) {
        let expiry = self.world.now.wall + 10_000;
        self.request_of(app, "c", None, Some(expiry));
        self.request_of(app, "c", None, None);
        self.hand_over_all();
        self.world.now.wall += 9_900 + self.toss(200);
        self.world.input(Input::Tick);
        self.rest();
    }

    /// A window has at most its length left, whatever the clock shows.
    fn restart_with_the_clock_set_back(&mut self, app: &str) {
        if !self.plan.crashes {
            return;
        }
        self.request_of(app, "c", None, None);
        self.hand_over_all();
        self.set_back(80_000);
        self.world.drain_jobs();
        self.crash();
        self.clear_the_way();
        let window = self.world.settings.of(app).window;
        for _ in 0..4 {
            self.pass(window / 4 + 10);
            self.confirm_out();
        }
        self.rest();
    }
}
