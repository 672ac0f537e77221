//! What the broker does with the batches in flight.

use super::super::world::*;
use super::model::{Excuse, Model};
use super::{DeadExchange, Sim};
use tidegate_types::event::*;
use tidegate_types::*;

impl Sim {
    pub(super) fn lose_egress(&mut self) {
        if !self.connected {
            return;
        }
        self.connected = false;
        self.settle_unknown();
        self.world.input(Input::EgressLost);
        // Published before the engine was informed of the loss.
        self.settle_unknown();
        assert!(self.world.out.is_empty(), "sent without a connection");
    }

    fn settle_unknown(&mut self) {
        let out = std::mem::take(&mut self.world.out);
        let mut settled = Vec::new();
        for (_, batch) in &out {
            // The batch may have arrived, or may not have been published at all.
            let fate = self.pick(3);
            if fate == 0 && self.would_take(batch) {
                self.receive(batch);
            }
            let outcome = if fate == 1 { Outcome::Unsent } else { Outcome::Unknown };
            if fate != 1 {
                self.excuse(batch, Excuse::ConnectionLost);
            }
            settled.push(Settled { number: batch.number, outcome });
        }
        if !settled.is_empty() {
            self.world.input(Input::Settled(settled));
        }
    }

    pub(super) fn excuse(&mut self, batch: &Batch, excuse: Excuse) {
        for item in &batch.items {
            let ask = self.model.ask_of(&item.content);
            self.model.asks[ask].excuses.push(excuse);
        }
    }

    /// A copy has arrived in the consumer's queue or in the dead-letter queue.
    pub(super) fn receive(&mut self, batch: &Batch) {
        // A request accepted in the meantime may excuse a repeat.
        self.judge();
        for item in &batch.items {
            let number = self.model.ask_of(&item.content);
            let ask = &mut self.model.asks[number];
            match batch.dead {
                Some(_) => ask.letters += 1,
                None => ask.arrivals += 1,
            }
            let copies = (ask.arrivals + ask.letters) as usize;
            assert!(
                copies <= 1 + ask.excuses.len(),
                "{number} came {copies} times; {:?} {:?}",
                ask.excuses,
                ask.new
            );
        }
    }

    pub(super) fn is_poisoned(&self, batch: &Batch) -> bool {
        batch.items.iter().any(|item| {
            let ask = &self.model.asks[self.model.ask_of(&item.content)];
            if batch.dead.is_some() {
                ask.poison_dead && !item.content.body.is_empty()
            } else {
                ask.poison
            }
        })
    }

    pub(super) fn hangs(&self, batch: &Batch) -> bool {
        match batch.dead {
            Some(_) => self.dead_exchange == DeadExchange::Hangs,
            None => self.hanging.contains(&*batch.application),
        }
    }

    /// Whether its queue exists and accepts it.
    pub(super) fn would_take(&self, batch: &Batch) -> bool {
        let there = match batch.dead {
            Some(_) => self.dead_exchange == DeadExchange::Takes,
            None => !self.broken.contains(&*batch.application),
        };
        there && !self.hangs(batch) && !self.is_poisoned(batch)
    }

    /// Confirms this batch, the first in flight, or closes the channel because of an item in it.
    pub(super) fn confirm_first(&mut self, batch: &Batch) {
        if self.is_poisoned(batch) {
            self.close_channel(batch);
        } else {
            self.receive(batch);
            self.world.settle(0, CONFIRMED);
        }
    }

    pub(super) fn settle_one(&mut self) {
        if self.world.out.is_empty() {
            return;
        }
        let nth = self.pick(self.world.out.len() as u64) as usize;
        self.settle(if self.plan.calm { 0 } else { nth });
    }

    pub(super) fn settle(&mut self, nth: usize) {
        let batch = self.world.out[nth].1.clone();
        if self.is_poisoned(&batch) {
            return self.close_channel(&batch);
        }
        if self.hangs(&batch) {
            return;
        }
        let missing = batch.dead.is_some() && self.dead_exchange == DeadExchange::Missing;
        let outcome = match self.pick(24) {
            _ if missing => return self.unavailable(&batch),
            _ if !self.would_take(&batch) => Outcome::Returned("312 NO_ROUTE".into()),
            0 if !self.plan.calm => Outcome::Nacked,
            1 if !self.plan.calm => {
                // One of two bound queues has accepted it.
                self.receive(&batch);
                self.excuse(&batch, Excuse::PartlyRefused);
                Outcome::Nacked
            }
            2 if !self.plan.calm && batch.alone => return self.unavailable(&batch),
            _ => CONFIRMED,
        };
        if outcome == CONFIRMED {
            self.receive(&batch);
        }
        self.world.settle(nth, outcome);
    }

    /// Settles all batches of one channel with the same outcome.
    fn settle_channel(&mut self, batch: &Batch, outcome: &Outcome, excuse: Option<Excuse>, arrives: bool) {
        let same = |other: &Batch| {
            if batch.alone {
                other.number == batch.number
            } else {
                !other.alone && other.dead.is_some() == batch.dead.is_some()
            }
        };
        let out = std::mem::take(&mut self.world.out);
        let (gone, left): (Vec<_>, Vec<_>) = out.into_iter().partition(|(_, other)| same(other));
        self.world.out = left;
        let mut settled = vec![];
        for (_, batch) in &gone {
            if arrives && self.pick(2) == 0 && self.would_take(batch) {
                self.receive(batch);
            }
            if let Some(excuse) = excuse {
                self.excuse(batch, excuse);
            }
            settled.push(Settled { number: batch.number, outcome: outcome.clone() });
        }
        self.world.input(Input::Settled(settled));
    }

    /// The broker closes the channel because of a batch.
    pub(super) fn close_channel(&mut self, batch: &Batch) {
        let outcome = Outcome::Refused("406 PRECONDITION_FAILED".into());
        self.settle_channel(batch, &outcome, (!batch.alone).then_some(Excuse::ChannelClosed), !batch.alone);
    }

    /// The exchange does not exist: settles all batches on the channel of the dead letters, or the one that was sent
    /// alone.
    fn unavailable(&mut self, batch: &Batch) {
        self.settle_channel(batch, &Outcome::Unavailable("404 NOT_FOUND".into()), None, false);
    }

    /// Makes confirms overdue on the channel of a batch whose queue hangs.
    pub(super) fn overdue(&mut self) {
        let hangs = |(_, batch): &(u64, Batch)| !batch.alone && self.hangs(batch);
        let Some((since, batch)) = self.world.out.iter().find(|one| hangs(one)).cloned() else { return };
        let due = since + CONFIRM_MS;
        if self.world.now.mono < due {
            self.world.advance(due - self.world.now.mono);
        }
        if self.world.out.iter().any(|(_, other)| other.number == batch.number) {
            self.settle_channel(&batch, &Outcome::Overdue, Some(Excuse::Overdue), true);
        }
    }

    /// Batches that the engine has ordered to do so give up their channels, if they still have them.
    pub(super) fn free_channels(&mut self) {
        for number in std::mem::take(&mut self.world.given_up) {
            let out = self.world.out.iter().find(|(_, batch)| batch.number == number);
            let Some((_, batch)) = out.cloned() else { continue };
            assert!(batch.alone, "it shares its channel");
            self.settle_channel(&batch, &Outcome::Overdue, Some(Excuse::Overdue), true);
        }
    }
}

impl Model {
    /// Number of batches that are alone on their channels.
    pub(super) fn alone(&self) -> usize {
        self.flights.values().filter(|flight| flight.alone).count()
    }

    /// Bound on that number.
    pub(super) fn most_alone(&self) -> usize {
        (self.settings.max_in_flight / 2).clamp(1, ALONE_CHANNELS)
    }

    /// Whether a channel is free for a batch that is sent alone, even one of an application that fails.
    pub(super) fn has_channel(&self) -> bool {
        self.alone() < (self.most_alone() * 3 / 4).max(1)
    }
}

impl Sim {
    /// Once the engine has no work at this moment and all its reads have returned, no batch without a reason to wait may
    /// be left: the daemon takes such a batch as a sign that the engine has stopped.
    pub(super) fn check_overlooked(&self) {
        let world = &self.world;
        let rests = world.jobs.is_empty() && world.late.is_empty() && world.wait() != Some(0);
        if rests && world.egress == (true, false) {
            assert!(!world.engine.is_overlooked(world.now), "overlooked: {}", world.engine.describe());
        }
    }
}
