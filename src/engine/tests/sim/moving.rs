//! Due items must move although no other event occurs.

use super::model::{Life, State};
use super::windows::{CLOCK_SLACK_MS, EXPIRY_MARGIN_MS};
use super::Sim;

/// Time after which a batch that was sent alone counts as late, ms.
const LATE_MS: u64 = 500;

impl Sim {
    /// Each due item must be in flight, or have a known reason to wait.
    pub(super) fn check_moving(&self) {
        let model = &self.model;
        if model.egress != (true, false) {
            return;
        }
        let few = model.settings.max_in_flight_bytes < 1_000 && !model.flights.is_empty();
        let slots = few || model.flights.len() >= model.settings.max_in_flight;
        let alone = !model.has_channel();
        // Items behind a batch that was sent alone leave memory once that batch is late.
        let in_time =
            model.flights.values().any(|flight| flight.alone && model.now.mono < flight.at + LATE_MS);
        let crowded = in_time && self.world.engine.memory_bytes().0 >= model.settings.budget.rows;
        for life in model.lives.values().filter(|life| life.state == State::Waiting) {
            let name = model.application(life.seq);
            let app = &model.apps[name];
            let hindered = app.paused.is_some()
                || app.pausing > 0
                || app.left_alone_until > model.now.mono
                || self.is_paced(name)
                || model.may_be_held(life)
                || !app.flights.is_empty();
            // Without a store, a dead item is visible again only when its dead letter leaves.
            let expiry = model.asks[life.ask].new.expiry;
            let expired = expiry.is_some_and(|at| at <= model.now.wall);
            let dead = life.refused || expired || model.given_up_unseen(life);
            // A member waits for the others of its window.
            let with_it = || {
                let is_other = |other: &&Life| other.number == life.number && other.state == State::Waiting;
                model.lives.values().filter(is_other)
            };
            let crowded = crowded && with_it().any(|other| !self.world.engine.holds(other.seq));
            let unseen = !life.acked && model.may_have_ended_unseen(life.ask) || dead && !model.durable;
            if slots || alone || hindered || unseen || crowded || !self.is_due(life.seq) {
                continue;
            }
            let engine = self.world.engine.describe();
            let window = model.windows.of(life.seq).map(|win| (win.end, win.closed.as_ref().map(|c| c.due)));
            panic!(
                "{} of {name} is due since {} and does not move at {:?}; {:?}, window {window:?}; {engine}",
                life.ask, life.due, model.now, model.asks[life.ask].new
            );
        }
    }

    fn is_due(&self, seq: u64) -> bool {
        let model = &self.model;
        let life = &model.lives[&seq];
        let new = &model.asks[life.ask].new;
        if !model.is_windowed(life) || life.published.is_some() {
            return life.due <= model.now.wall;
        }
        if life.restored {
            let customer = new.customer.as_deref().unwrap_or_default();
            let joined = model.windows.waits_with_others(&new.application, customer, life.due, model.now);
            // By the monotonic clock, once the clocks differ.
            let past = self.is_a_window_past(&new.application);
            let parted = model.last_step >= model.restarted.0;
            return if life.due <= model.now.wall { (past || !parted) && !joined } else { past && !parted };
        }
        let win = model.windows.of(seq);
        let delivered = model.messages[&model.asks[life.ask].message].delivered;
        let set_back = delivered.is_some_and(|(call, ..)| model.stepped_back >= call);
        if new.expiry.is_some_and(|at| at <= model.now.wall + EXPIRY_MARGIN_MS) {
            // Its window closed early for it. One that had closed before the clock was set back keeps its moment.
            let closed = win.and_then(|win| win.closed.as_ref().map(|close| close.due));
            // It may have closed by the wall clock without a trace.
            let closed = closed.or(set_back.then_some(life.due));
            return closed.is_none_or(|due| due <= model.now.wall);
        }
        let Some(win) = win else { return false };
        // It had closed when the clock was set back, and its rest in the store waits in a window again: for the time that
        // this took then, even if the clock has been set forward since.
        let back = model.set_back_at;
        let again = win.closed.as_ref().is_some_and(|close| close.call <= model.stepped_back);
        if again && model.now.mono <= back.mono + win.end.saturating_sub(back.wall) + CLOCK_SLACK_MS {
            return false;
        }
        let end = win.closed.as_ref().map_or(win.end, |close| close.due);
        // It may have left its window by the wall clock, and wait for that clock, which was set back.
        let left = if set_back && model.latest_wall >= win.end { win.end } else { 0 };
        let end = if model.stepped_back > 0 { end.max(life.due).max(left) } else { end };
        // Its window may be another with the same end, which opened when the item came.
        let may_be_new = win.unsure && model.stepped && !self.is_past(&new.application, life.seen);
        model.windows.is_overripe(seq, model.now) && end <= model.now.wall && !may_be_new
    }

    /// Whether a window of a former life has had its length since the restart.
    fn is_a_window_past(&self, application: &str) -> bool {
        self.is_past(application, self.model.restarted.1)
    }

    /// Whether a window that was open at this moment, monotonic, must be over.
    fn is_past(&self, application: &str, mono: u64) -> bool {
        let model = &self.model;
        let longest = std::iter::once(&model.settings).chain(&model.before).map(|s| s.of(application).window);
        let end = mono + longest.max().unwrap_or(0) + CLOCK_SLACK_MS;
        model.now.mono > end
    }
}
