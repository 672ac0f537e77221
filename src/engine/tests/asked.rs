//! Random requests and commands that name any id under any application, by every route. The store on the disk never
//! reports damage, and each application finds its own items and leaves those of the others alone.

use super::sim::{number, Random};
use super::twin;
use super::world::*;
use std::collections::{BTreeMap, BTreeSet};
use tidegate_types::event::*;
use tidegate_types::*;

const APPS: [&str; 3] = ["a", "b", "c"];

/// Time within which everything is written, ms.
const WRITTEN_MS: u64 = 1_000;

const RULES: [DuplicateRule; 5] = [
    DuplicateRule::Keep,
    DuplicateRule::Replace,
    DuplicateRule::Earliest,
    DuplicateRule::Latest,
    DuplicateRule::Reject,
];

/// An item without an id, as the request parser returns it.
fn nameless(application: &str, customer: &str, payload: &str) -> NewItem {
    NewItem { fingerprint: 0, ..item(application, customer, payload) }
}

/// An id as text, and its content if it has the form of an assigned id.
#[derive(Clone, Debug)]
struct Id {
    text: String,
    assigned: Option<AssignedId>,
}

impl Id {
    fn given(text: &str) -> Self {
        Id { text: text.to_owned(), assigned: None }
    }

    fn assigned(key: Key, accepted_due: u64) -> Self {
        let assigned = AssignedId::of(key, accepted_due);
        Id { text: format!("s{:x}", key.seq), assigned: Some(assigned) }
    }

    /// The target that the request parser makes of it.
    fn under(&self, application: &str) -> Target {
        Target { assigned: self.assigned, ..target(application, &self.text) }
    }
}

/// An item that has not ended.
#[derive(Debug)]
struct Alive {
    application: String,
    given: Option<Identity>,
    assigned: AssignedId,
}

/// A world that compares its store with a real one, and the ids that it knows.
struct Asking {
    w: World,
    random: Random,
    ids: Vec<Id>,
    known: BTreeSet<u64>,
    asked: u64,
}

impl Asking {
    fn new(seed: u64, settings: Settings, real: bool) -> Self {
        let mut w = World::unconnected(settings);
        w.twin = real.then(twin::on_disk);
        w.connect();
        w.drain_jobs();
        let mut ids: Vec<Id> = (0..4).map(|n| Id::given(&n.to_string())).collect();
        // Ids of the right form that belong to no item.
        let last = AssignedId { seq: u64::MAX, due: u64::MAX, window: u64::MAX };
        ids.extend([0, 1].map(|n| Id::assigned(Key::own(0, n), u64::MAX - n)));
        ids.push(Id { text: "last".into(), assigned: Some(last) });
        Asking { w, random: Random(seed), ids, known: BTreeSet::new(), asked: 0 }
    }

    fn pick(&mut self, n: usize) -> usize {
        (self.random.draw() % n as u64) as usize
    }

    fn any_app(&mut self) -> &'static str {
        APPS[self.pick(APPS.len())]
    }

    fn any_customer(&mut self) -> &'static str {
        ["", "x", "x", "y"][self.pick(4)]
    }

    /// Any known id, often one of the newest.
    fn any_id(&mut self) -> Id {
        let among = if self.pick(2) == 0 { self.ids.len().min(6) } else { self.ids.len() };
        let n = self.ids.len() - 1 - self.pick(among);
        self.ids[n].clone()
    }

    /// Adds the ids that items were assigned.
    fn learn(&mut self) {
        for item in self.w.store.items.values().filter(|item| item.given.is_none()) {
            if self.known.insert(item.key.seq) {
                self.ids.push(Id::assigned(item.key, item.accepted_due));
            }
        }
    }

    fn any_time(&mut self) -> u64 {
        let spread = [1, 3_000, 30_000, 400_000][self.pick(4)];
        (self.w.now.wall + self.pick(spread) as u64).saturating_sub(20)
    }

    /// Any number that a client may write, extremes included.
    fn any_number(&mut self) -> u64 {
        let close = self.any_time();
        [0, 1, i64::MAX as u64, u64::MAX, close, close][self.pick(6)]
    }

    fn push(&mut self) {
        let (application, customer) = (self.any_app(), self.any_customer());
        let mut new = nameless(application, customer, &self.w.sent.to_string());
        if self.pick(2) == 0 {
            new.at = Some(self.any_time());
        }
        if self.pick(40) == 0 {
            new.at = Some(self.w.now.wall + self.w.settings.max_delay);
        }
        if self.pick(8) == 0 {
            // The request parser accepts what fits into a signed number.
            new.expiry = Some(self.any_number().min(i64::MAX as u64));
        }
        if self.pick(3) == 0 {
            let id = self.any_id();
            let rule = RULES[self.pick(5)];
            new = with_id(&id.text, rule, new);
        }
        self.w.send(vec![new]);
    }

    fn any_due(&mut self) -> Moment {
        match self.pick(8) {
            0 => Moment::At(self.any_number()),
            1 => Moment::After(self.any_number()),
            _ => Moment::At(self.any_time()),
        }
    }

    fn any_filter(&mut self, application: &str, customer: &str) -> Filter {
        let states =
            [None, Some(ListedStage::Waiting), Some(ListedStage::InFlight), Some(ListedStage::Parked)];
        Filter {
            application: (self.pick(2) == 0).then(|| application.into()),
            customer: (self.pick(2) == 0).then(|| customer.into()),
            state: states[self.pick(4)],
            from: Key::own(self.any_number(), self.any_number()),
            from_shard: 0,
            until: (self.pick(2) == 0).then(|| self.any_number()),
            limit: 1 + self.pick(1_000),
        }
    }

    fn of_many(&mut self) {
        let (application, customer) = (self.any_app(), self.any_customer());
        let of = CustomerOf { application: application.into(), customer: customer.into() };
        let command = match self.pick(12) {
            0..3 => Command::Flush(of),
            8 | 9 => Command::List(self.any_filter(application, customer)),
            10 => Command::Count(of),
            11 => {
                let each_ms = [1_000, 1_800_000][self.pick(2)];
                Command::TimelineQuery(TimelineQuery { application: None, at: None, each_ms, stretches: 60 })
            }
            3 => Command::CancelAll(of),
            4 => Command::Pause(application.into(), None),
            5 => Command::Resume(application.into()),
            6 => Command::DropParked(application.into()),
            _ => Command::Retry(application.into()),
        };
        self.input(command);
    }

    fn input(&mut self, command: Command) -> u64 {
        self.asked += 1;
        self.w.input(Input::Commands(vec![(Asker::Local(self.asked), command)]));
        self.asked
    }

    /// Lets all earlier work end and be written: later changes belong to later questions.
    fn rest(&mut self) {
        self.w.drain_jobs();
        self.w.advance(WRITTEN_MS);
        for _ in 0..1_000 {
            self.w.drain_jobs();
            if self.w.wait() != Some(0) {
                return;
            }
            self.w.input(Input::Tick);
        }
        panic!("it never rests: {:?}", self.w.engine.next_deadline());
    }

    /// Stored items that have not ended, by arrival number.
    fn alive(&self) -> BTreeMap<u64, Alive> {
        let items = self.w.store.items.values().filter(|item| item.dead.is_none());
        let alive = |item: &Stored| Alive {
            application: item.application.to_string(),
            given: item.given,
            assigned: AssignedId::of(item.key, item.accepted_due),
        };
        items.map(|item| (item.key.seq, alive(item))).collect()
    }

    /// Asks a question by a random route.
    fn ask(&mut self) {
        let (application, id) = (self.any_app(), self.any_id());
        let target = id.under(application);
        let command = match self.pick(4) {
            0 | 1 => Command::Lookup(target),
            2 => Command::Cancel(target),
            _ => Command::Reschedule(target, self.any_due()),
        };
        if self.pick(3) == 0 {
            // Asked while the store has work to do.
            self.input(command);
            return;
        }
        self.rest();
        if self.pick(4) == 0 && !matches!(command, Command::Reschedule(..)) {
            // Earlier requests are settled first: one of them may replace an item.
            self.w.deliver(usize::MAX);
            self.rest();
            let before = self.alive();
            self.w.enqueue(RequestBody::Command(command, None));
            self.w.deliver(usize::MAX);
            self.w.drain_jobs();
            return self.others_are_left(application, &before);
        }
        self.judged(application, &id, command);
    }

    fn others_are_left(&self, application: &str, before: &BTreeMap<u64, Alive>) {
        let after = self.alive();
        for (seq, alive) in before.iter().filter(|(_, alive)| alive.application != application) {
            assert!(after.contains_key(seq), "{seq}, {alive:?}, is gone, and {application} was named");
        }
    }

    fn judged(&mut self, application: &str, id: &Id, command: Command) {
        let before = self.alive();
        let its = || before.iter().filter(|(_, alive)| alive.application == application);
        let given = its().find(|(_, alive)| alive.given == Some(identity(application, &id.text)));
        let is_named = |alive: &Alive| alive.given.is_none() && id.assigned == Some(alive.assigned);
        let assigned = its().find(|(_, alive)| is_named(alive));
        let own = given.or(assigned).map(|(seq, _)| *seq);
        // Items that are not stored are visible to their application only.
        let unstored = !self.w.out.is_empty();
        let asked = format!("{command:?}");
        let number = self.input(command);
        self.w.drain_jobs();
        self.others_are_left(application, &before);
        let after = self.alive();
        match self.w.answer_to(number) {
            // It waits for an outcome.
            None => assert!(own.is_some() || unstored, "{asked} waits for nothing"),
            Some(answer @ (Answer::Unknown | Answer::Ended(_))) => {
                let own = self.w.store.items.values().find(|item| Some(item.key.seq) == own);
                assert_eq!(own, None, "{asked}: {answer:?}");
            }
            Some(Answer::Found(found)) => {
                assert_eq!(&*found.application, application, "{asked}");
                assert!(own == Some(found.key.seq) || unstored, "{asked}: {found:?}, not {own:?}");
            }
            Some(Answer::Cancelled { .. }) => {
                assert!(own.is_some() || unstored, "{asked}");
                assert!(own.is_none_or(|own| !after.contains_key(&own)), "{asked}: {own:?} is there");
            }
            Some(Answer::Rescheduled { .. } | Answer::Rejected(_)) => {
                assert!(own.is_some() || unstored, "{asked}");
                assert!(own.is_none_or(|own| after.contains_key(&own)), "{asked}: {own:?} is gone");
            }
            Some(answer) => panic!("{asked}: {answer:?}"),
        }
    }

    fn settle(&mut self) {
        if self.w.first_out().is_none() {
            return;
        }
        let outcome = match self.pick(8) {
            0 => Outcome::Returned("312 NO_ROUTE".into()),
            1 => Outcome::Overdue,
            2 => Outcome::Nacked,
            _ => CONFIRMED,
        };
        let nth = self.pick(self.w.out.len());
        self.w.settle(nth, outcome);
    }

    fn step(&mut self) {
        match self.pick(24) {
            0..8 => self.push(),
            8..16 => self.ask(),
            16..18 => self.of_many(),
            18 | 19 => self.settle(),
            20 => {
                let ms = [1, 50, 3_000, 40_000][self.pick(4)];
                self.w.advance(ms);
            }
            21 => {
                let commits = self.pick(3);
                self.w.do_read_late(commits);
            }
            22 => self.trouble(),
            _ => drop(self.w.do_job()),
        }
        self.learn();
    }

    /// Loses a connection, or the process.
    fn trouble(&mut self) {
        match self.pick(6) {
            0 => self.w.crash(),
            1 => {
                self.w.lose_ingest();
                self.w.deliver(usize::MAX);
            }
            2 => {
                self.lose_what_is_out();
                self.w.input(Input::EgressLost);
                // Published before the engine was informed of the loss.
                self.lose_what_is_out();
                self.w.input(Input::EgressReady);
            }
            _ => {}
        }
    }

    fn lose_what_is_out(&mut self) {
        for _ in 0..self.w.out.len() {
            self.w.settle(0, Outcome::Unknown);
        }
    }

    /// Ends the world: the items that are left are sent or dead.
    fn end(mut self) {
        self.w.drain_jobs();
        for application in APPS {
            self.input(Command::Resume(application.into()));
        }
        for _ in 0..2 {
            self.w.deliver(usize::MAX);
            self.w.run(2_000_000);
        }
        assert!(self.w.queue.is_empty(), "not acked: {}", self.w.queue.len());
        self.w.store.check_empty();
    }
}

/// The id that was assigned to the item with this payload.
fn id_of(w: &World, payload: &str) -> Id {
    let is_it = |item: &&Stored| item.content.as_ref().is_some_and(|content| text(content) == payload);
    let item = w.store.items.values().find(is_it).expect("stored");
    Id::assigned(item.key, item.accepted_due)
}

/// One item was rescheduled, and one was flushed while its application is paused: index rows lead to both.
#[test]
fn an_item_with_another_key_than_it_came_with_is_unknown_to_another_application() {
    let mut w = World::unconnected(with(|app| app.window = 60_000));
    w.twin = Some(twin::on_disk());
    w.connect();
    w.drain_jobs();
    assert_eq!(w.ask(Command::Pause("a".into(), None)), Answer::Until { until: None, changed: true });
    // The other application has items in the store alone, so the store is asked about it.
    let far = |application: &str, payload: &str| at(T0 + 600_000, nameless(application, "", payload));
    w.send(vec![far("b", "b's"), far("a", "moved"), nameless("a", "ann", "flushed")]);
    w.drain_jobs();
    let (moved, flushed) = (id_of(&w, "moved"), id_of(&w, "flushed"));
    let later = Command::Reschedule(moved.under("a"), Moment::At(T0 + 700_000));
    assert!(matches!(w.ask(later), Answer::Rescheduled { .. }));
    let of = |application: &str| CustomerOf { application: application.into(), customer: "ann".into() };
    w.advance(1_000);
    assert_eq!(w.ask(Command::Flush(of("a"))), Answer::Flushed(1));
    w.drain_jobs();
    let led = [&moved, &flushed]
        .map(|id| Identity::assigned(id.assigned.expect("its form").seq))
        .map(|identity| w.store.identities.contains_key(&identity));
    assert_eq!(led, [true, false], "a row leads to what was moved; what was flushed lies where it lay");
    for life in 0..2 {
        for id in [&moved, &flushed] {
            let now = Moment::At(w.now.wall);
            for application in ["b", "nobody"] {
                let target = id.under(application);
                assert_eq!(w.ask(Command::Lookup(target.clone())), Answer::Unknown, "{life}");
                assert_eq!(w.ask(Command::Reschedule(target.clone(), now)), Answer::Unknown);
                assert_eq!(w.ask(Command::Cancel(target.clone())), Answer::Unknown);
                // A command by message is answered and acked.
                let reply_to = Some(ReplyTo { queue: "asker".into(), correlation_id: None });
                w.enqueue(RequestBody::Command(Command::Lookup(target), reply_to));
                w.deliver(usize::MAX);
                w.drain_jobs();
                let answer = w.replies.last().expect("an answer");
                assert!(matches!(answer.asker, Asker::Remote { .. }) && answer.answer == Answer::Unknown);
                assert!(w.queue.is_empty(), "acked");
            }
            assert!(matches!(w.ask(Command::Lookup(id.under("a"))), Answer::Found(_)), "{life}: {id:?}");
        }
        assert_eq!(w.ask(Command::Flush(of("b"))), Answer::Flushed(0));
        w.crash();
        w.drain_jobs();
    }
    // A request with such an id is an item of the other application, under every rule.
    let [b, a] = ["b", "a"].map(|name| w.store.items.keys().filter(|(queue, _)| **queue == *name).count());
    for (rule, due) in RULES.into_iter().zip(T0 + 610_000..) {
        let id = format!("{rule:?}");
        w.send(vec![with_id(&id, rule, at(due, item("b", "", "named")))]);
        w.drain_jobs();
    }
    w.send(vec![with_id(&moved.text, DuplicateRule::Replace, far("b", "same"))]);
    w.drain_jobs();
    let count = |name: &str| w.store.items.keys().filter(|(queue, _)| **queue == *name).count();
    assert_eq!((count("b"), count("a")), (b + RULES.len() + 1, a));
    let Answer::Found(found) = w.ask(Command::Lookup(moved.under("b"))) else { panic!("its own") };
    assert_eq!((&*found.application, found.due), ("b", T0 + 600_000));
    w.ask(Command::Resume("a".into()));
    w.run(1_000_000);
    let arrived = w
        .delivered
        .iter()
        .flat_map(|(_, batch)| &batch.items)
        .filter(|item| ["moved", "flushed"].contains(&name(item).as_str()));
    assert_eq!(arrived.count(), 2);
    w.store.check_empty();
}

/// A consumer sends an item back under its assigned id before the confirm has come. The id then names the request
/// that was made with it.
#[test]
fn an_id_that_was_assigned_and_given_names_the_one_it_was_given_to() {
    let mut w = World::unconnected(settings());
    w.twin = Some(twin::on_disk());
    w.connect();
    w.drain_jobs();
    w.send(vec![at(T0 + 1_000, nameless("a", "", "first"))]);
    w.drain_jobs();
    let id = id_of(&w, "first");
    w.advance(1_000);
    w.drain_jobs();
    assert_eq!(w.out.len(), 1);
    w.send(vec![with_id(&id.text, DuplicateRule::Keep, at(T0 + 90_000, item("a", "", "again")))]);
    w.drain_jobs();
    let Answer::Found(found) = w.ask(Command::Lookup(id.under("a"))) else { panic!("it waits") };
    assert_eq!(found.due, T0 + 90_000);
    assert_eq!(w.ask(Command::Cancel(id.under("a"))), Answer::Cancelled { count: 1, in_flight: 0 });
    w.run(200_000);
    assert_eq!(w.story(), [(1_000, names(&["first"]))]);
    w.store.check_empty();
}

fn settings_drawn(random: &mut Random) -> Settings {
    let mut one_of = |list: &[u64]| list[(random.draw() % list.len() as u64) as usize];
    let (window, tail, rows) =
        (one_of(&[50, 3_000, 60_000]), one_of(&[0, 5_000, 600_000]), one_of(&[4, 30, 10_000]));
    let with = with(|app| {
        app.window = window;
        app.dedupe_tail = tail;
        app.max_items = one_of(&[2, 1_000]) as u32;
    });
    // When a world ends, even the item that waits longest has left.
    Settings { budget: Budget { rows: rows as usize, ..with.budget }, max_delay: 1_000_000, ..with }
}

/// Runs `share` of four hundred worlds, the default number of the simulator.
fn worlds(share: u64, steps: usize, real: bool) {
    let (first, seeds) = (number("SEED", 1), number("SEEDS", 400));
    for seed in first..first + (seeds * share).div_ceil(400) {
        println!("seed {seed}");
        let mut random = Random(seed << 32);
        let mut asking = Asking::new(seed, settings_drawn(&mut random), real);
        (0..steps).for_each(|_| asking.step());
        asking.end();
    }
}

#[test]
fn no_question_is_taken_for_damage_by_the_store_on_the_disk() {
    worlds(6, 300, true);
}

#[test]
fn no_question_reaches_the_items_of_another_application() {
    worlds(100, 300, false);
}
