//! At rest all answers are exact: lists, counts, timelines and the state agree with the store.
//!
//! Judges promise 15.

use super::Sim;
use std::collections::BTreeMap;
use std::sync::Arc;
use tidegate_types::event::Stored;
use tidegate_types::*;

/// Stretches of a timeline, and the length of one, ms.
const STRETCHES: usize = 6;
const EACH_MS: u64 = 20_000;

/// Number of items per page.
const PAGE: usize = 7;

/// Most items of a world that is asked about all of them.
const MOST: usize = 200;

impl Sim {
    /// Checks the answers if no write is under way and no other command waits.
    pub(super) fn check_told(&mut self) {
        let model = &self.model;
        let unwritten = model.lives.values().any(|life| !life.state.is_over() && life.put.is_none());
        let many = self.world.store.places.len() > MOST;
        if !model.durable
            || unwritten
            || many
            || !model.commands.is_empty()
            || !self.asks.draw().is_multiple_of(3)
        {
            return;
        }
        let mut there: Vec<(Key, u64, Stored)> = Vec::new();
        for item in self.world.store.items.values().filter(|item| item.dead.is_none()) {
            there.push((item.place(), item.due, item.clone()));
        }
        there.sort_by_key(|(key, ..)| *key);
        // After the clock was set back, items of closed windows may be due in memory earlier than in the store.
        if self.model.stepped_back == 0 {
            self.check_timeline(&there);
        }
        self.check_pages(&there);
        self.check_counts(&there);
        self.check_state(&there);
        self.check_flush();
    }

    /// Asks a command at rest.
    fn told(&mut self, command: Command) -> Answer {
        let number = self.ask(command);
        self.come_to_rest();
        self.world.answer_to(number).expect("an answer")
    }

    fn check_timeline(&mut self, there: &[(Key, u64, Stored)]) {
        let timeline = TimelineQuery { application: None, at: None, each_ms: EACH_MS, stretches: STRETCHES };
        let now = self.world.now.wall;
        let Answer::Timeline(told) = self.told(Command::TimelineQuery(timeline)) else {
            panic!("a timeline")
        };
        let from = now / EACH_MS * EACH_MS;
        let until = from + EACH_MS * STRETCHES as u64;
        let (mut counts, mut ahead) = (vec![0; STRETCHES], BTreeMap::<Arc<str>, Ahead>::new());
        for (_, due, item) in there.iter().filter(|(_, due, _)| *due >= now) {
            let of = ahead.entry(Arc::clone(&item.application)).or_default();
            of.next_due = Some(of.next_due.map_or(*due, |next| next.min(*due)));
            if *due < until {
                of.count += 1;
                counts[((due - from) / EACH_MS) as usize] += 1;
            }
        }
        assert_eq!(told.applications, ahead);
        assert_eq!((told.at, told.from, told.each_ms, &told.counts), (now, from, EACH_MS, &counts));
        assert_eq!((told.counted_until, told.applications_truncated), (None, false));
    }

    /// A list, page by page, of all and of one application.
    fn check_pages(&mut self, there: &[(Key, u64, Stored)]) {
        let one = there.first().map(|(.., item)| Arc::clone(&item.application));
        for application in [None, one] {
            let of_it = |item: &Stored| application.as_ref().is_none_or(|name| *name == item.application);
            let stepped_back = self.model.stepped_back > 0;
            let wanted = there.iter().filter(|(.., item)| of_it(item));
            let want: Vec<(Key, u64)> =
                wanted.map(|(key, due, _)| (*key, if stepped_back { 0 } else { *due })).collect();
            let mut got = Vec::new();
            let mut from = Key::default();
            loop {
                let filter =
                    Filter { application: application.clone(), from, limit: PAGE, ..Filter::default() };
                let Answer::Listed { items, next } = self.told(Command::List(filter)) else {
                    panic!("a list")
                };
                let due = |listed: &Listed| if stepped_back { 0 } else { listed.due };
                got.extend(items.iter().map(|listed| (listed.key, due(listed))));
                let Some(next) = next else { break };
                assert!(next > from, "each page goes on behind the last: {next:?}");
                from = next;
            }
            assert_eq!(got, want, "listed of {application:?}");
        }
    }

    fn check_counts(&mut self, there: &[(Key, u64, Stored)]) {
        let mut of: BTreeMap<(Arc<str>, Arc<str>), (u64, u64)> = BTreeMap::new();
        for (_, due, item) in there {
            let Some(customer) = item.customer.clone() else { continue };
            let known = of.entry((Arc::clone(&item.application), customer)).or_insert((0, u64::MAX));
            *known = (known.0 + 1, known.1.min(*due));
        }
        for ((application, customer), (count, first)) in of.into_iter().take(3) {
            let asked = CustomerOf { application: (*application).into(), customer: (*customer).into() };
            let out = self.out_of(&application, Some(&*customer));
            let heirs =
                self.model.of_customer(&application, &customer).filter(|life| life.superseded).count();
            let Answer::Counted { waiting, in_flight, parked, next_due, .. } =
                self.told(Command::Count(asked))
            else {
                panic!("a count")
            };
            assert_eq!(waiting + in_flight + parked, count + heirs as u64, "{application}/{customer}");
            // A replaced item in flight has a due that the store no longer has.
            let sooner = heirs > 0 && next_due.is_some_and(|due| due < first);
            let right = next_due == Some(first) || sooner || self.model.stepped_back > 0;
            assert!(right, "{application}/{customer}: {next_due:?}, not {first}");
            assert!(in_flight >= out, "{in_flight} of {application}/{customer} in flight, {out} are");
        }
    }

    /// Flushes a window that is certainly open: the answer must report the number of its items.
    fn check_flush(&mut self) {
        let Some((application, customer)) = self.model.windows.any_certain() else { return };
        if !self.asks.draw().is_multiple_of(4) {
            return;
        }
        let members = self.model.windows.count(&application, &customer) as u64;
        let asked = CustomerOf { application: (*application).into(), customer: (*customer).into() };
        let told = self.told(Command::Flush(asked));
        assert_eq!(told, Answer::Flushed(members), "{application}/{customer}");
    }

    /// Number of its items in flight.
    fn out_of(&self, application: &str, customer: Option<&str>) -> u64 {
        let batches = self.world.out.iter().map(|(_, batch)| batch).filter(|batch| batch.dead.is_none());
        let its = batches.filter(|batch| {
            *batch.application == *application
                && customer.is_none_or(|name| batch.customer.as_deref() == Some(name))
        });
        its.map(|batch| batch.items.len() as u64).sum()
    }

    fn check_state(&self, there: &[(Key, u64, Stored)]) {
        let state = self.world.engine.snapshot(self.world.now);
        // These include dead letters that wait, and replaced items in flight.
        let heirs = self.model.lives.values().filter(|life| life.superseded && life.state.is_live());
        let all = (self.world.store.items.len() + heirs.count()) as u64;
        let items = &state.items;
        assert_eq!(items.waiting + items.parked, all, "{items:?}");
        let mut of: BTreeMap<&str, u64> = BTreeMap::new();
        there.iter().for_each(|(.., item)| *of.entry(&item.application).or_default() += 1);
        for app in &state.applications {
            let its = || there.iter().filter(|(.., item)| *item.application == *app.name);
            let heirs = self.model.heirs(&app.name);
            assert_eq!(app.total, of.remove(&*app.name).unwrap_or(0) + heirs, "{app:?}");
            assert_eq!(app.waiting + app.due + app.in_flight + app.parked, app.total, "{app:?}");
            assert!(app.in_flight >= self.out_of(&app.name, None), "{app:?}");
            // A clock that is set back by less than a step does not make due items wait again.
            let latest = self.model.latest_wall;
            let due = its().filter(|(_, due, _)| *due <= latest).count() as u64;
            let ahead = app.total - due;
            // All items in the store alone of a parked application count as parked, once the first of them is due.
            let told =
                self.model.stepped || app.parked > 0 || app.waiting >= ahead.saturating_sub(app.in_flight);
            assert!(told, "{ahead} are not due: {app:?}");
            let parks = self.model.apps.get(&app.name).is_some_and(|known| known.failing);
            assert!(app.parked == 0 || parks, "nothing of it has failed: {app:?}");
        }
        assert!(of.is_empty(), "{of:?} are not told of");
    }
}
