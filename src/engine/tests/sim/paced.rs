//! Rates: how many items may have left, by token buckets of the reference, and effects of commands on rates.

use super::commands::Asked;
use super::model::Model;
use super::Sim;
use tidegate_types::event::{Slowed, FOR_EVER};
use tidegate_types::*;

/// Items that may still leave under this rate, times the length of its span, and the moment of that value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Credit {
    rate: (Rate, u32),
    left: i64,
    at: u64,
}

impl Credit {
    fn full((rate, burst): (Rate, u32), at: u64) -> Self {
        Credit { rate: (rate, burst), left: i64::from(burst) * rate.each_ms as i64, at }
    }

    fn now(self, mono: u64) -> Self {
        let (rate, burst) = self.rate;
        let gained = mono.saturating_sub(self.at) as i64 * i64::from(rate.items);
        Credit { left: (self.left + gained).min(i64::from(burst) * rate.each_ms as i64), at: mono, ..self }
    }

    /// Whether this many items may leave now; more than a burst need a full bucket. Moments are whole milliseconds.
    fn allows(self, items: i64) -> bool {
        let (rate, burst) = self.rate;
        self.left + 2 * i64::from(rate.items) >= items.min(i64::from(burst)) * rate.each_ms as i64
    }

    fn less(self, items: i64) -> Self {
        Credit { left: self.left - items * self.rate.0.each_ms as i64, ..self }
    }
}

impl Sim {
    /// A random rate: temporary, without an end, or that of the settings again.
    pub(super) fn any_rate(&mut self, application: &str) -> Command {
        let rate = ["30/s", "90/s", "4000/min"][(self.looks.draw() % 3) as usize];
        match self.looks.draw() % 4 {
            0 => Command::Slow(application.into(), None, None),
            _ => Command::Slow(application.into(), rate.parse().ok(), self.any_end()),
        }
    }

    /// Whether its due items may wait for its rate.
    pub(super) fn is_paced(&self, name: &str) -> bool {
        let (model, app) = (&self.model, &self.model.apps[name]);
        let short = |credit: Credit| {
            let full = Credit::full(credit.rate, model.now.mono).left;
            credit.now(model.now.mono).left < full
        };
        let unsure = app.slowing > 0 || !model.before.is_empty();
        let of_app = model.rate_of(name).is_some() && (unsure || app.credit.is_some_and(short));
        let of_customers = model.customer_rate(name).is_some()
            && (!model.before.is_empty() || app.credits.values().any(|[_, all]| short(*all)));
        of_app || of_customers
    }
}

impl Model {
    fn rate_of(&self, name: &str) -> Option<(Rate, u32)> {
        let settings = self.settings.of(name);
        let burst = |rate: Rate| if settings.burst == 0 { rate.of_a_second() } else { settings.burst };
        match self.apps.get(name).and_then(|app| app.slowed) {
            Some(slowed) => Some((slowed.rate, slowed.rate.of_a_second())),
            None => settings.rate.map(|rate| (rate, burst(rate))),
        }
    }

    fn customer_rate(&self, name: &str) -> Option<(Rate, u32)> {
        let settings = self.settings.of(name);
        let burst = |rate: Rate| match settings.customer_burst {
            0 => rate.of_a_second(),
            burst => burst,
        };
        settings.customer_rate.map(|rate| (rate, burst(rate)))
    }

    /// A batch leaves, so the rate of its customer must allow it.
    fn check_customer_rate(&mut self, batch: &Batch, fresh: bool) {
        let name = batch.application.to_string();
        let Some(customer) = batch.customer.as_deref() else { return };
        let rate = self.customer_rate(&name).filter(|_| self.before.is_empty());
        let mono = self.now.mono;
        let credits = &mut self.app(&name).credits;
        let Some(rate) = rate else { return credits.clear() };
        let known = credits.get(customer).filter(|[credit, _]| credit.rate == rate);
        let [credit, all] =
            known.map_or([Credit::full(rate, mono); 2], |known| known.map(|credit| credit.now(mono)));
        let items = batch.items.len() as i64;
        // A batch that was in flight waits for no rate of a customer, as others would wait with it.
        let allowed = credit.allows(items) || batch.alone || !fresh;
        assert!(allowed, "{items} of {customer} leave, {credit:?} is left");
        let credit = credit.less(if fresh { items } else { 0 });
        credits.insert(customer.to_owned(), [credit, all.less(items)]);
    }

    /// A batch leaves, so the rate of its application must allow it. One that is larger than a burst needs a full bucket.
    /// If it is `fresh`, its customer must not be held back.
    pub(super) fn check_rate(&mut self, batch: &Batch, fresh: bool) {
        if fresh {
            self.check_held(batch);
        }
        self.check_customer_rate(batch, fresh);
        let name = batch.application.to_string();
        let unsure = self.apps[&name].slowing > 0 || !self.before.is_empty();
        let Some(rate) = self.rate_of(&name).filter(|_| !unsure) else {
            self.app(&name).credit = None;
            return;
        };
        let mono = self.now.mono;
        let known = self.apps[&name].credit.filter(|credit| credit.rate == rate);
        let credit = known.map_or(Credit::full(rate, mono), |credit| credit.now(mono));
        let items = batch.items.len() as i64;
        // A batch that is sent alone because it failed waits for no rate.
        assert!(credit.allows(items) || batch.alone, "{items} of {name} leave, {credit:?} is left");
        self.app(&name).credit = Some(credit.less(items));
    }

    pub(super) fn note_slowing(&mut self, command: &Command) {
        if let Command::Slow(name, ..) = command {
            self.app(name).slowing += 1;
        }
    }

    pub(super) fn judge_slow(&mut self, asked: &Asked, name: &str, rate: Option<Rate>, answer: &Answer) {
        let since = self.walls.iter().rev().take_while(|(call, _)| *call >= asked.call);
        let wall = since.map(|(_, wall)| *wall).max().unwrap_or(0);
        let most = self.settings.max_applications;
        let slowed = match (answer, rate) {
            (Answer::Until { until, .. }, Some(rate)) => {
                Some(Slowed { rate, until: until.unwrap_or(FOR_EVER) })
            }
            (Answer::Done { .. }, None) => None,
            // Its end passed while it was queued, or there are too many rates.
            (Answer::Rejected(_), Some(_)) => self.apps[name].slowed,
            (Answer::Unavailable(_), Some(_)) => {
                assert!(self.apps.len() as u64 >= most, "{answer:?}");
                self.apps[name].slowed
            }
            _ => panic!("{answer:?}"),
        };
        let app = self.app(name);
        app.slowing -= 1;
        app.slowed = slowed.filter(|slowed| slowed.until > wall);
    }

    /// Whether the clock has ever shown this moment.
    pub(super) fn was_over(&self, until: u64) -> bool {
        self.walls.iter().any(|(_, wall)| *wall >= until)
    }

    /// The engine has forgotten as many debts by now, and counts them: any customer may have a full bucket since the
    /// last call.
    pub(super) fn forget_rates(&mut self, forgotten: u64) {
        if std::mem::replace(&mut self.rates_forgotten, forgotten) == forgotten {
            return;
        }
        for [credit, _] in self.apps.values_mut().flat_map(|app| app.credits.values_mut()) {
            *credit = Credit::full(credit.rate, credit.at);
        }
    }

    /// An answered rate is durable, and only a command changes it before its end.
    pub(super) fn restore_rate(&mut self, name: &str, slowed: Option<Slowed>) {
        // Its end may not have been written at the kill, and the clock may have been set back.
        let over = slowed.is_some_and(|slowed| self.was_over(slowed.until));
        let sure = self.durable && self.apps[name].slowing == 0 && !over;
        let wall = self.latest_wall;
        let not_over = |slowed: Option<Slowed>| slowed.filter(|slowed| slowed.until > wall);
        let before = self.apps[name].slowed;
        assert!(!sure || not_over(slowed) == not_over(before), "{name} had {before:?}, now {slowed:?}");
        let app = self.app(name);
        (app.slowed, app.slowing, app.credit) = (slowed, 0, None);
        app.credits.clear();
    }
}
