//! The prefetch, bounded by memory and by the configured number. Where a message is suspected of ending the
//! process, [`super::quarantine`] sets it. Pure.
//!
//! A prefetch counts what its own consumer has unacked. What earlier consumers have left may stay unacked for
//! long, so the prefetch of each consumer is what fits beside that, in bytes and in number. If only little
//! fits, it consumes with little; it rests only while nothing fits.
//!
//! What is on the way when a consumer is replaced comes again, and each return counts towards the queue's
//! delivery limit. So only memory replaces a consumer before it has used up its prefetch, and thereafter the
//! prefetch grows with the number of deliveries ([`CAUTION`]).

use super::unacked::UnackedLoad;

/// The first prefetch of a channel: the sizes of the messages in the queue are unknown.
const START: u16 = 16;
/// Growth factor of one step. The last one to what fits may be as long as two.
const GROWTH: u16 = 4;
/// Assumed cost of a request where none is known, on a queue without a backlog, bytes.
const ORDINARY_COST: u64 = 4 << 10;
/// Smaller requests count as this much.
const LEAST_COST: u64 = 1 << 10;
/// Deliveries and seconds after which a period of observation ends; the most expensive request of this
/// period and of the one before it counts.
const PERIOD: u32 = 256;
const PERIOD_SECONDS: u32 = 30;
/// After a consumer was replaced with deliveries on the way, the prefetch stays below one in this many of the
/// deliveries since. So a request comes again a few times at most, however small and large ones alternate:
/// the distance to it falls to a fifth between two returns.
const CAUTION: u32 = 4;

/// Keeps what is unacked and what may come below a quarter of `limits.memory`, and begins small.
#[derive(Debug)]
pub(crate) struct Prefetch {
    configured: u16,
    quarter: u64,
    /// Bytes of the largest body that is taken.
    max_body: u64,
    /// Of the present or last consumer.
    current: u16,
    /// Upper bound for the next one.
    aim: u16,
    /// Deliveries since a consumer was replaced with others on the way; at first as if there were many.
    since_return: u32,
    in_period: u32,
    seconds: u32,
    dearest_now: u64,
    dearest_before: u64,
}

impl Prefetch {
    /// `memory` (`limits.memory`) and `max_body` (`limits.max_body`) in bytes.
    pub(crate) fn new(configured: u16, memory: u64, max_body: u64) -> Self {
        let mut prefetch = Prefetch {
            configured: configured.max(1),
            quarter: memory / 4,
            max_body,
            current: 1,
            aim: 1,
            since_return: u32::MAX,
            in_period: 0,
            seconds: 0,
            dearest_now: 0,
            dearest_before: 0,
        };
        prefetch.restart(u32::MAX);
        prefetch
    }

    pub(crate) fn current(&self) -> u16 {
        self.current
    }

    /// Most unacked requests.
    pub(crate) fn configured(&self) -> u16 {
        self.configured
    }

    /// Bytes that unacked requests may cost.
    pub(crate) fn quarter(&self) -> u64 {
        self.quarter
    }

    pub(crate) fn set_limits(&mut self, memory: u64, max_body: u64) {
        self.quarter = memory / 4;
        self.max_body = max_body;
    }

    /// Sets the value that a quarantine demands.
    pub(crate) fn set(&mut self, prefetch: u16) -> u16 {
        (self.current, self.aim) = (prefetch, prefetch);
        prefetch
    }

    /// A new channel, on a queue with this many messages ready. They may have any size, so with more than a
    /// few the prefetch begins small. With fewer, requests are assumed to cost as much as recent ones, or the
    /// ordinary cost.
    pub(crate) fn restart(&mut self, ready: u32) -> u16 {
        let fits = whole(self.budget() / self.max_body.max(1)).max(1);
        let ordinary = whole(self.budget() / ORDINARY_COST).max(1);
        let start = if ready <= u32::from(fits.min(START)) { ordinary } else { fits.min(START) };
        self.set(start.min(self.allowed()))
    }

    /// A delivery that costs this many bytes once it is read.
    pub(crate) fn seen(&mut self, cost: u64) {
        self.dearest_now = self.dearest_now.max(cost);
        self.since_return = self.since_return.saturating_add(1);
        self.in_period += 1;
        if self.in_period >= PERIOD {
            self.end_period();
        }
    }

    /// A second has passed: an expensive request is forgotten also where few come.
    pub(crate) fn second(&mut self) {
        self.seconds += 1;
        if self.seconds >= PERIOD_SECONDS {
            self.end_period();
        }
    }

    fn end_period(&mut self) {
        (self.in_period, self.seconds) = (0, 0);
        self.dearest_before = std::mem::take(&mut self.dearest_now);
    }

    /// Whether memory demands another consumer, with a smaller prefetch: too much may come. A change by less
    /// than a quarter is not worth the redeliveries.
    pub(crate) fn shrink(&mut self, load: UnackedLoad) -> bool {
        let room = self.room(load);
        // With nothing on the way, nothing comes again; but there is no hurry either.
        let (kept, coming) = match load.on_the_way {
            0 if room == 0 => return false,
            0 => (0, self.current),
            coming => (load.cost, coming),
        };
        let most = self.dearest().saturating_mul(coming.into()).saturating_add(kept);
        if most <= self.quarter || u32::from(room) * 4 >= u32::from(coming) * 3 {
            return false;
        }
        if load.on_the_way > 0 {
            self.since_return = 0;
        }
        // A row of larger and larger requests replaces consumers a few times only.
        self.aim = (self.current / 2).max(1);
        true
    }

    /// Whether a consumer that has used up its prefetch gets a successor at once: one with at least twice as
    /// much.
    pub(crate) fn grow(&mut self, load: UnackedLoad) -> bool {
        let next = self.step(load);
        let is_worth = u32::from(next) >= 2 * u32::from(self.current);
        if is_worth {
            self.aim = next;
        }
        is_worth
    }

    /// Whether a consumer that has used up its prefetch, and gets no acks, gets a successor: for whatever
    /// fits.
    pub(crate) fn renew(&mut self, load: UnackedLoad) -> bool {
        self.aim = self.step(load);
        self.aim > 0
    }

    /// The prefetch of the next consumer; `None`: nothing fits.
    pub(crate) fn next(&mut self, load: UnackedLoad) -> Option<u16> {
        let next = self.room(load).min(self.aim.max(1));
        (next > 0).then(|| self.set(next))
    }

    /// How many requests fit beside what is unacked, each as expensive as any recent one; at least one while
    /// little is unacked.
    pub(crate) fn room(&self, load: UnackedLoad) -> u16 {
        let budget = self.budget();
        let least = u64::from(load.cost <= budget / 4);
        let fits = (budget.saturating_sub(load.cost) / self.dearest()).max(least);
        self.free(load).min(whole(fits))
    }

    /// How many more requests may be unacked, whatever they cost.
    pub(crate) fn free(&self, load: UnackedLoad) -> u16 {
        self.configured.saturating_sub(whole(load.count as u64))
    }

    /// Most deliveries that memory allows.
    pub(crate) fn allowed(&self) -> u16 {
        whole(self.budget() / self.dearest()).clamp(1, self.configured)
    }

    /// The next step towards what fits.
    fn step(&self, load: UnackedLoad) -> u16 {
        let room = self.room(load);
        let step = self.current.saturating_mul(GROWTH);
        let step = if step.saturating_mul(GROWTH) > room { room } else { step };
        step.min(self.current.max(whole((self.since_return / CAUTION).into())))
    }

    fn dearest(&self) -> u64 {
        match self.dearest_now.max(self.dearest_before) {
            0 => ORDINARY_COST,
            dearest => dearest.max(LEAST_COST),
        }
    }

    /// What a new consumer may bring unacked requests to: a quarter of the memory, less a quarter of that, so
    /// that a request that is a little more expensive needs no other consumer.
    fn budget(&self) -> u64 {
        self.quarter / 4 * 3
    }
}

fn whole(number: u64) -> u16 {
    u16::try_from(number).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::unacked::Unacked;
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    const MIB: u64 = 1 << 20;
    const SMALL: u64 = 1_200;

    /// A queue, its broker, which sends all that it may at once, and a consumer.
    struct Model {
        prefetch: Prefetch,
        unacked: Unacked,
        /// Of the present consumer; `None`: it rests.
        consumer: Option<u16>,
        tag: u64,
        /// What each waiting message costs, and how often it was returned.
        queue: VecDeque<(u64, u32)>,
        on_the_way: VecDeque<(u64, u32)>,
        /// Prefetches of all consumers.
        consumers: Vec<u16>,
        most_returns: u32,
        most_count: usize,
        most_cost: u64,
    }

    impl Model {
        fn new(configured: u16, memory: u64, ready: u32) -> Self {
            let mut prefetch = Prefetch::new(configured, memory, MIB);
            let first = prefetch.restart(ready);
            Model {
                prefetch,
                unacked: Unacked::default(),
                consumer: Some(first),
                tag: 0,
                queue: VecDeque::new(),
                on_the_way: VecDeque::new(),
                consumers: vec![first],
                most_returns: 0,
                most_count: 0,
                most_cost: 0,
            }
        }

        fn publish(&mut self, count: usize, cost: u64) {
            self.queue.extend(std::iter::repeat_n((cost, 0), count));
        }

        fn load(&self) -> UnackedLoad {
            let left = self.consumer.map_or(0, |prefetch| usize::from(prefetch) - self.unacked.of_consumer());
            UnackedLoad { count: self.unacked.len(), cost: self.unacked.cost(), on_the_way: left as u16 }
        }

        /// Some of what the broker has sent arrives. Returns how many.
        fn arrive(&mut self, most: usize) -> usize {
            let may_send = usize::from(self.load().on_the_way) - self.on_the_way.len();
            let sent = may_send.min(self.queue.len());
            self.on_the_way.extend(self.queue.drain(..sent));
            let count = most.min(self.on_the_way.len());
            for (cost, returns) in self.on_the_way.drain(..count) {
                self.tag += 1;
                self.unacked.delivered(self.tag, cost);
                self.prefetch.seen(cost);
                self.most_returns = self.most_returns.max(returns);
            }
            self.most_count = self.most_count.max(self.unacked.len());
            self.most_cost = self.most_cost.max(self.unacked.cost());
            self.adapt(false);
            count
        }

        /// Takes all that is delivered until nothing more comes without acks.
        fn take_all(&mut self) {
            for _ in 0..100_000 {
                if self.arrive(512) == 0 && !self.second() {
                    return;
                }
            }
            panic!("it never ends");
        }

        fn ack(&mut self, tag: u64, multiple: bool) {
            if self.unacked.ack(tag, multiple).is_some() {
                self.adapt(false);
            }
        }

        /// A second without acks. Whether there is another consumer.
        fn second(&mut self) -> bool {
            self.prefetch.second();
            let before = self.consumers.len();
            self.adapt(true);
            self.consumers.len() > before
        }

        fn adapt(&mut self, has_waited: bool) {
            self.consume();
            let load = self.load();
            let is_exhausted = self.consumer.is_some() && load.on_the_way == 0;
            let grows = |prefetch: &mut Prefetch| prefetch.grow(load) || (has_waited && prefetch.renew(load));
            let has_shrunk = self.consumer.is_some() && self.prefetch.shrink(load);
            if has_shrunk || (is_exhausted && grows(&mut self.prefetch)) {
                self.consumer = None;
                for (cost, returns) in self.on_the_way.drain(..).rev() {
                    self.queue.push_front((cost, returns + 1));
                }
                self.consume();
                assert!(has_shrunk || self.consumer.is_some(), "growth leads to a rest");
            }
        }

        fn consume(&mut self) {
            if self.consumer.is_some() {
                return;
            }
            if let Some(next) = self.prefetch.next(self.load()) {
                self.consumer = Some(next);
                self.consumers.push(next);
                self.unacked.begin_consumer();
            }
        }
    }

    #[test]
    fn begins_small_and_is_at_what_fits_after_a_few_rounds() {
        let mut model = Model::new(10_000, 256 * MIB, u32::MAX);
        model.publish(100_000, SMALL);
        for _ in 0..40 {
            model.arrive(512);
        }
        assert_eq!(model.consumers, [16, 64, 256, 1_024, 8_640]);
        assert_eq!((model.most_count, model.most_returns), (10_000, 0));
        assert_eq!(model.prefetch.restart(u32::MAX), 16, "another channel begins anew");
        assert_eq!(model.prefetch.restart(0), 10_000, "nothing waits");
        assert_eq!(Prefetch::new(10_000, 256 * MIB, 8 * MIB).current(), 6, "bodies of 8 MiB");
        assert_eq!(Prefetch::new(5, 256 * MIB, MIB).current(), 5);
        assert_eq!(Prefetch::new(10_000, 16 * MIB, 8 * MIB).current(), 1);
        assert_eq!(Prefetch::new(0, 0, 0).current(), 1);
    }

    /// Two thousand small items wait unacked, and one large request comes: it costs the others nothing but
    /// their prefetch, and that not for long.
    /// Excluded: a rest until most of what waits is acked, which may take as long as the items wait.
    #[test]
    fn one_large_request_does_not_stop_the_intake_while_others_stay_unacked() {
        let mut model = Model::new(10_000, 256 * MIB, 0);
        model.publish(2_000, SMALL);
        model.take_all();
        assert_eq!((model.unacked.len(), &*model.consumers), (2_000, &[10_000][..]));
        model.publish(1, 64 << 10);
        model.arrive(1);
        // 48 MiB less what is unacked, divided by 64 KiB.
        assert_eq!(model.consumers, [10_000, 730]);
        model.publish(9_000, SMALL);
        model.arrive(512);
        assert_eq!(model.unacked.len(), 2_513, "at once");
        model.take_all();
        assert_eq!((model.unacked.len(), model.most_count), (10_000, 10_000), "as many as may wait");
        assert!(model.consumers.len() < 20, "{:?}", model.consumers);
        assert_eq!(model.most_returns, 0, "nothing was on the way when the large one came");
        // Whatever is acked makes room.
        model.ack(1, false);
        model.second();
        assert_eq!(model.arrive(10), 1);
    }

    /// Bodies of 17 KB, of which some 2,900 fit.
    /// Excluded: a larger prefetch that does not fit beside what is unacked.
    #[test]
    fn growth_never_leads_to_a_rest_and_takes_what_fits() {
        let mut model = Model::new(10_000, 256 * MIB, u32::MAX);
        model.publish(10_000, 17_000);
        model.take_all();
        assert_eq!(model.unacked.len() as u64, 48 * MIB / 17_000);
        assert_eq!(model.most_returns, 0);
        // As many come again as are acked.
        model.ack(1_000, true);
        model.take_all();
        assert_eq!(model.unacked.len() as u64, 48 * MIB / 17_000);
    }

    #[test]
    fn a_dear_request_counts_at_once_and_is_forgotten_after_two_periods() {
        let dear = |prefetch: &mut Prefetch| {
            prefetch.seen(8 * MIB);
            prefetch.allowed()
        };
        let mut prefetch = Prefetch::new(10_000, 256 * MIB, MIB);
        assert_eq!(dear(&mut prefetch), 6);
        (0..2 * PERIOD - 1).for_each(|_| prefetch.seen(200));
        assert_eq!(prefetch.allowed(), 10_000);
        assert_eq!(dear(&mut prefetch), 6);
        (0..PERIOD_SECONDS).for_each(|_| prefetch.second());
        assert_eq!(prefetch.allowed(), 6);
        (0..PERIOD_SECONDS).for_each(|_| prefetch.second());
        assert_eq!(prefetch.allowed(), 10_000, "also if nothing else comes");
    }

    /// Excluded: a rest that outlasts what it waits for, however dear one request is.
    #[test]
    fn it_rests_only_while_nothing_fits_and_one_always_fits_beside_little() {
        let mut prefetch = Prefetch::new(1_000, 64 * MIB, MIB);
        // More than everything together may cost.
        prefetch.seen(20 * MIB);
        let beside = |cost| UnackedLoad { count: 3, cost, on_the_way: 0 };
        assert_eq!((prefetch.room(beside(0)), prefetch.room(beside(3 * MIB))), (1, 1));
        assert_eq!((prefetch.room(beside(4 * MIB)), prefetch.next(beside(4 * MIB))), (0, None));
        assert_eq!(prefetch.next(beside(3 * MIB)), Some(1));
        let full = UnackedLoad { count: 1_000, ..beside(0) };
        assert_eq!((prefetch.free(full), prefetch.room(full)), (0, 0), "as many as may be unacked");
        (0..2 * PERIOD_SECONDS).for_each(|_| prefetch.second());
        assert!(prefetch.next(beside(4 * MIB)).is_some(), "it is forgotten");
    }

    #[test]
    fn small_changes_are_not_worth_it() {
        let mut model = Model::new(60_000, 256 * MIB, u32::MAX);
        model.publish(100_000, 10_000);
        for _ in 0..100 {
            model.arrive(100_000);
            model.ack(model.tag, true);
        }
        let consumers = model.consumers.clone();
        let settled = u64::from(*consumers.last().unwrap());
        assert!((2_500..=48 * MIB / 10_000).contains(&settled), "{settled}");
        for cost in [11_000, 7_000, 9_000] {
            model.queue.clear();
            model.publish(20_000, cost);
            for _ in 0..100 {
                model.arrive(100_000);
                model.ack(model.tag, true);
            }
        }
        assert_eq!(model.consumers, consumers);
    }

    /// After a return, the prefetch grows with what has come since.
    /// Excluded: one large request in some hundred small ones, which returns thousands each time, and so the
    /// same ones again and again.
    #[test]
    fn small_and_large_ones_in_turns_return_nothing_often() {
        for (every, large) in [2, 100, 520, 740, 800, 1_500, 3_000]
            .into_iter()
            .flat_map(|every| [64 << 10, 512 << 10].map(|large| (every, large)))
        {
            for is_acked in [true, false] {
                let mut model = Model::new(10_000, 256 * MIB, 0);
                for n in 0..60_000 {
                    model.publish(1, if n % every == every - 1 { large } else { SMALL });
                }
                for _ in 0..2_000 {
                    model.arrive(1_000);
                    if is_acked {
                        model.ack(model.tag, true);
                    } else {
                        // Some leave all the time.
                        model.ack(model.tag.saturating_sub(5_000), true);
                        model.second();
                    }
                }
                let most = model.most_returns;
                assert!(most <= 2, "one of {large} bytes in {every}: {most}");
            }
        }
    }

    proptest! {
        #[test]
        fn whatever_comes_all_of_it_is_taken_and_nothing_is_returned_often(
            configured in 1..20_000u16,
            sizes in prop::collection::vec((1..3_000usize, prop::sample::select(
                vec![300, SMALL, 9_000, 30_000, 120_000, MIB, 9 * MIB])), 1..20),
            steps in prop::collection::vec((1..600usize, any::<prop::sample::Index>(), any::<bool>()), 1..40),
        ) {
            let mut model = Model::new(configured, 256 * MIB, 0);
            let total: usize = sizes.iter().map(|(count, _)| count).sum();
            sizes.into_iter().for_each(|(count, cost)| model.publish(count, cost));
            for (count, place, multiple) in steps.iter().cycle() {
                model.arrive(*count);
                if model.tag > 0 {
                    let tag = place.index(model.tag as usize) as u64 + 1;
                    model.ack(tag, *multiple);
                }
                model.second();
                if model.arrive(1) == 0 {
                    // Nothing more came: all that waits leaves sooner or later.
                    model.ack(model.tag, true);
                }
                if model.tag as usize == total {
                    break;
                }
            }
            prop_assert!(model.most_count <= usize::from(configured));
            prop_assert!(model.most_returns <= 6, "{}", model.most_returns);
        }
    }
}
