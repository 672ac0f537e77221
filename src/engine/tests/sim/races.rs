//! Coincidences: a command over many items, with items that die in its turn or come behind it; a request that comes again
//! before it is written.

use super::super::world::*;
use super::asks::RULES;
use super::model::{Life, State};
use super::Sim;
use std::sync::Arc;
use tidegate_types::*;

impl Sim {
    /// Draws from its own generator, so that all other draws stay the same.
    pub(super) fn toss(&mut self, n: u64) -> u64 {
        self.races.draw() % n
    }

    /// Starts a command together with the events that it is to meet.
    pub(super) fn race(&mut self) {
        let n = self.toss(self.apps.len() as u64) as usize;
        let parked = self.toss(2) == 0;
        let fails = |name: &&String| self.model.apps.get(name.as_str()).is_some_and(|app| app.failing);
        let found = self.apps.iter().find(|name| parked && fails(name));
        let app = found.unwrap_or(&self.apps[n]).clone();
        let customer = format!("c{}", self.toss(self.plan.customers));
        match self.toss(4) {
            0 => self.race_with_expiry(&app, &customer),
            1 => self.race_with_itself(&app, &customer),
            2 => self.race_with_newcomers(&app, &customer, Command::DropParked(app.as_str().into())),
            _ => {
                let of = CustomerOf { application: app.as_str().into(), customer: customer.as_str().into() };
                self.race_with_newcomers(&app, &customer, Command::CancelAll(of));
            }
        }
    }

    /// A consumer sends back an item and names its batch: at once, later, or when the item has come again since. Now and
    /// then it does so twice.
    pub(super) fn try_again(&mut self) {
        let had = |life: &&Life| {
            let state = matches!(life.state, State::Sent | State::Out(_));
            state && life.identity.is_given() && life.batch.is_some()
        };
        let lately = self.model.lives.values().rev().filter(had).take(20);
        let lately: Vec<_> = lately.map(|life| (life.ask, life.identity, life.batch)).collect();
        if lately.is_empty() {
            return;
        }
        let (ask, identity, batch) = lately[self.toss(lately.len() as u64) as usize];
        let old = self.model.asks[ask].new.clone();
        let customer = old.customer.as_deref().unwrap_or_default();
        for _ in 0..=self.toss(2) {
            let rule = RULES[self.toss(5) as usize];
            let at = (self.toss(2) == 0).then(|| self.world.now.wall + self.toss(5_000));
            let plain = NewItem { at, ..self.plain_item(&old.application, customer) };
            let named = with_id("", rule, plain);
            let tried = Tried { batch, sent_back: true, ..Tried::default() };
            let plain = NewItem { identity: Some(identity), tried, ..named };
            let again = self.counted(&old, plain);
            self.mail_plain(again);
        }
        self.world.deliver(2);
    }

    /// Now and then tries are counted: the item leaves alone, with its own batch id or with the former one. The latter is
    /// the same try if it has the same number.
    fn counted(&mut self, old: &NewItem, plain: NewItem) -> NewItem {
        let (kind, same) = (self.looks.draw() % 4, self.looks.draw().is_multiple_of(4));
        let Some(BatchId(batch)) = plain.tried.batch.filter(|_| kind > 1) else { return plain };
        let same = same && !old.content.properties.is_empty();
        let retry = old.tried.retry + u32::from(!same);
        let at = Some(self.world.now.wall + self.looks.draw() % 5_000);
        let tried = Tried { retry, ..plain.tried };
        let plain = NewItem { at, tried, ..plain };
        if kind == 2 && !same {
            return plain;
        }
        let content = Content { properties: batch.to_vec(), ..(*plain.content).clone() };
        let print = u128::from_be_bytes(batch) as u64 ^ u64::from(retry).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        NewItem { fingerprint: print | 1, content: Arc::new(content), ..plain }
    }

    /// The command comes at the moment at which an item is due and has expired.
    fn race_with_expiry(&mut self, app: &str, customer: &str) {
        let wall = self.world.now.wall;
        for _ in 0..3 {
            let at = wall + 20 + self.toss(60);
            let expiry = at + self.toss(20);
            self.request_of(app, customer, Some(at), Some(expiry));
        }
        self.hand_over_all();
        self.world.pass(120);
        let of = CustomerOf { application: app.into(), customer: customer.into() };
        self.ask(Command::CancelAll(of));
    }

    /// The connection is lost before the items are written, and they come again.
    fn race_with_itself(&mut self, app: &str, customer: &str) {
        for n in 0..3 {
            let id = format!("{}-{n}", self.world.sent);
            let at = Some(self.world.now.wall + 1_000);
            self.mail_plain(with_id(
                &id,
                DuplicateRule::Keep,
                NewItem { at, ..self.plain_item(app, customer) },
            ));
        }
        self.world.deliver(10);
        self.lose_ingest();
        self.world.deliver(10);
    }

    /// While the command scans the store, row by row, more items of the same kind come in.
    fn race_with_newcomers(&mut self, app: &str, customer: &str, command: Command) {
        if matches!(command, Command::DropParked(_)) && self.toss(2) == 0 {
            self.broken.insert(app.into());
        }
        for _ in 0..3 {
            self.request_of(app, customer, Some(self.world.now.wall), None);
        }
        self.hand_over_all();
        self.ask(command);
        for _ in 0..2 {
            self.request_of(app, customer, Some(self.world.now.wall), None);
        }
        self.world.deliver(10);
        for _ in 0..8 {
            self.world.do_job_in_pieces(1);
        }
    }

    pub(super) fn hand_over_all(&mut self) {
        self.world.deliver(10);
        self.world.drain_jobs();
    }

    pub(super) fn request_of(&mut self, app: &str, customer: &str, at: Option<u64>, expiry: Option<u64>) {
        self.mail_plain(NewItem { at, expiry, ..self.plain_item(app, customer) });
    }

    pub(super) fn plain_item(&self, app: &str, customer: &str) -> NewItem {
        item(app, customer, &self.model.asks.len().to_string())
    }

    pub(super) fn mail_plain(&mut self, new: NewItem) {
        let ask = self.plain_ask(self.world.sent + 1, new);
        let asks = vec![self.model.asks.len()];
        let body = RequestBody::Items(vec![ask.new.clone()]);
        self.model.asks.push(ask);
        self.mail(body, asks, None);
    }
}
