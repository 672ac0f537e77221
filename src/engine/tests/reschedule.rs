//! Items that get another time: they leave at that time only, and once, whatever they waited for and wherever they
//! are kept.
//!
//! Judges promise 15.

use super::world::*;
use std::collections::{BTreeMap, BTreeSet};
use tidegate_types::event::*;
use tidegate_types::*;
use DuplicateRule::Keep;

fn named(id: &str, due: u64) -> NewItem {
    with_id(id, Keep, at(due, item("a", "", id)))
}

fn later(id: &str, at: u64) -> Command {
    Command::Reschedule(target("a", id), Moment::At(at))
}

fn done(due: u64, before: u64) -> Answer {
    Answer::Rescheduled { due, before }
}

fn due_of(w: &mut World, id: &str) -> u64 {
    let Answer::Found(found) = w.ask(Command::Lookup(target("a", id))) else { panic!("{id} waits") };
    found.due
}

#[test]
fn one_in_memory_leaves_sooner_or_later_than_it_was_to() {
    let mut w = World::new(settings());
    w.send(vec![named("sooner", T0 + 10_000), named("later", T0 + 5_000), named("other", T0 + 6_000)]);
    w.drain_jobs();
    assert_eq!(w.ask(later("sooner", T0 + 1_000)), done(T0 + 1_000, T0 + 10_000));
    assert_eq!(w.ask(later("later", T0 + 8_000)), done(T0 + 8_000, T0 + 5_000));
    assert_eq!(due_of(&mut w, "later"), T0 + 8_000);
    w.run(20_000);
    let want = [(1_000, names(&["sooner"])), (6_000, names(&["other"])), (8_000, names(&["later"]))];
    assert_eq!(w.story(), want);
    w.store.check_empty();
}

#[test]
fn one_in_the_store_alone_comes_near_and_one_in_memory_goes_far() {
    let mut w = World::new(settings());
    w.send(vec![named("far", T0 + 900_000), named("near", T0 + 5_000), named("off", T0 + 800_000)]);
    w.drain_jobs();
    assert_eq!(w.ask(later("far", T0 + 3_000)), done(T0 + 3_000, T0 + 900_000));
    assert_eq!(w.ask(later("near", T0 + 600_000)), done(T0 + 600_000, T0 + 5_000));
    assert_eq!(w.ask(later("off", T0 + 700_000)), done(T0 + 700_000, T0 + 800_000));
    w.run(1_000_000);
    let want = [(3_000, names(&["far"])), (600_000, names(&["near"])), (700_000, names(&["off"]))];
    assert_eq!(w.story(), want);
    w.store.check_empty();
}

#[test]
fn what_has_no_id_is_named_by_the_one_that_it_was_assigned_also_after_it_has_moved() {
    let mut w = World::new(settings());
    w.send(vec![at(T0 + 600_000, item("a", "", "far")), at(T0 + 5_000, item("a", "", "near"))]);
    w.drain_jobs();
    let Answer::Listed { items, .. } = w.ask(Command::List(Filter { limit: 10, ..Filter::default() })) else {
        panic!("a list")
    };
    let of = |due: u64| items.iter().find(|item| item.accepted_due == due).expect("listed").key.seq;
    let near = assigned("a", Key::own(0, of(T0 + 5_000)), T0 + 5_000);
    let far = assigned("a", Key::own(0, of(T0 + 600_000)), T0 + 600_000);
    for (target, due, before) in [
        (&near, T0 + 700_000, T0 + 5_000),
        (&far, T0 + 4_000, T0 + 600_000),
        // Back to their original time, at which no identity row leads to them any more.
        (&near, T0 + 5_000, T0 + 700_000),
        (&far, T0 + 600_000, T0 + 4_000),
        (&near, T0 + 6_000, T0 + 5_000),
    ] {
        let command = Command::Reschedule(target.clone(), Moment::At(due));
        assert_eq!(w.ask(command), done(due, before));
    }
    w.crash();
    w.run(700_000);
    assert_eq!(w.story(), [(6_000, names(&["near"])), (600_000, names(&["far"]))]);
    w.store.check_empty();
}

#[test]
fn a_member_leaves_its_window_and_the_others_stay() {
    for window in [3_000, 60_000] {
        let mut w = World::new(with(|app| (app.window, app.max_items) = (window, 3)));
        let member = |id: &str| with_id(id, Keep, item("a", "ann", id));
        w.send(vec![member("one"), member("two")]);
        w.drain_jobs();
        assert_eq!(w.ask(later("two", T0 + 1_000)), done(T0 + 1_000, T0 + window));
        // The item no longer counts for the size of the window.
        w.send(vec![member("three")]);
        w.run(window + 10_000);
        assert_eq!(w.story(), [(1_000, names(&["two"])), (window, names(&["one", "three"]))], "{window}");
        w.store.check_empty();
    }
}

#[test]
fn a_new_time_outlives_the_process() {
    let mut w = World::new(with(|app| app.window = 30_000));
    let member = |id: &str| with_id(id, Keep, item("a", "ann", id));
    w.send(vec![member("member"), member("stays"), named("near", T0 + 4_000), named("far", T0 + 400_000)]);
    w.drain_jobs();
    for (id, due) in [("member", 50_000), ("near", 60_000), ("far", 2_000)] {
        assert!(matches!(w.ask(later(id, T0 + due)), Answer::Rescheduled { .. }), "{id}");
    }
    w.crash();
    w.run(100_000);
    let want = [
        (2_000, names(&["far"])),
        (30_000, names(&["stays"])),
        (50_000, names(&["member"])),
        (60_000, names(&["near"])),
    ];
    assert_eq!(w.story(), want);
    w.store.check_empty();
}

#[test]
fn the_request_that_comes_again_does_not_bring_its_old_time_back() {
    let mut w = World::new(settings());
    w.send(vec![named("x", T0 + 3_000)]);
    w.drain_jobs();
    assert_eq!(w.ask(later("x", T0 + 9_000)), done(T0 + 9_000, T0 + 3_000));
    w.send(vec![named("x", T0 + 3_000)]);
    w.run(20_000);
    assert_eq!(w.story(), [(9_000, names(&["x"]))]);
}

/// The same request, marked as redelivered, carries the old time, whatever its rule says of two requests.
#[test]
fn the_request_that_is_delivered_again_does_not_bring_its_old_time_back_under_any_rule() {
    for rule in
        [Keep, DuplicateRule::Replace, DuplicateRule::Earliest, DuplicateRule::Latest, DuplicateRule::Reject]
    {
        // In memory and in the store alone, sooner and later than before, and out of a window.
        for (old, new) in
            [(3_000, 9_000), (9_000, 3_000), (100_000, 200_000), (200_000, 100_000), (0, 90_000)]
        {
            let mut w = World::new(with(|app| app.window = 60_000));
            w.acks_out = Some(Default::default());
            let request = match old {
                0 => with_id("x", rule, item("a", "ann", "x")),
                _ => with_id("x", rule, at(T0 + old, item("a", "", "x"))),
            };
            w.send(vec![request]);
            w.drain_jobs();
            assert!(matches!(w.ask(later("x", T0 + new)), Answer::Rescheduled { .. }));
            w.lose_ingest();
            w.acks_out = None;
            w.deliver(usize::MAX);
            w.run(300_000);
            assert!(w.queue.is_empty(), "it is acked");
            assert_eq!(w.story(), [(new, names(&["x"]))], "{rule:?}, {old} to {new}");
        }
    }
}

#[test]
fn what_is_over_or_under_way_keeps_its_time_and_the_answer_says_so() {
    let mut w = World::new(settings());
    w.send(vec![named("sent", T0), named("gone", T0 + 9_000)]);
    w.drain_jobs();
    w.input(Input::Commands(vec![(Asker::Local(1), later("sent", T0 + 5_000))]));
    w.drain_jobs();
    assert_eq!(w.answer_to(1), None, "it waits for the outcome");
    w.run(1_000);
    assert!(matches!(w.answer_to(1), Some(Answer::Ended(ended)) if matches!(ended.end, End::Sent(_))));
    w.ask(Command::Cancel(target("a", "gone")));
    assert!(matches!(w.ask(later("gone", T0)), Answer::Ended(ended) if ended.end == End::Cancelled));
    assert_eq!(w.ask(later("nobody", T0)), Answer::Unknown);
    // An item whose attempt fails during the wait is no longer in flight.
    w.send(vec![named("failing", w.now.wall)]);
    w.drain_jobs();
    w.input(Input::Commands(vec![(Asker::Local(2), later("failing", T0 + 60_000))]));
    w.settle(0, Outcome::Returned("312 NO_ROUTE".into()));
    w.drain_jobs();
    assert!(matches!(w.answer_to(2), Some(Answer::Rescheduled { .. })), "{:?}", w.answer_to(2));
    w.run(100_000);
    assert_eq!(w.story().last(), Some(&(60_000, names(&["failing"]))));
}

/// The clock is rounded down, and no item leaves before its delay is over.
#[test]
fn a_delay_counts_from_the_next_whole_millisecond() {
    let mut w = World::new(Settings { max_delay: 100_000, ..settings() });
    w.send(vec![named("x", T0 + 5_000)]);
    w.drain_jobs();
    for delay in [7_000, 100_000, 0] {
        let before = due_of(&mut w, "x");
        let after = Command::Reschedule(target("a", "x"), Moment::After(delay));
        assert_eq!(w.ask(after), done(T0 + delay + 1, before), "{delay}");
    }
}

#[test]
fn times_that_cannot_be_are_refused_and_change_nothing() {
    let mut w = World::new(Settings { max_delay: 100_000, ..settings() });
    let expiring = NewItem { expiry: Some(T0 + 20_000), ..named("x", T0 + 5_000) };
    w.send(vec![expiring]);
    w.drain_jobs();
    for wrong in [T0 + 100_001, T0 + 20_000, T0 + 30_000] {
        let answer = w.ask(later("x", wrong));
        let Answer::Rejected(text) = &answer else { panic!("{answer:?}") };
        assert!(text.contains("max_delay") || text.contains("x-deliver-before"), "{text}");
    }
    for wrong in [100_001, u64::MAX] {
        let after = Command::Reschedule(target("a", "x"), Moment::After(wrong));
        assert!(matches!(w.ask(after), Answer::Rejected(_)), "{wrong}");
    }
    let after = Command::Reschedule(target("a", "x"), Moment::After(u64::MAX));
    assert!(matches!(w.ask(after), Answer::Rejected(_)));
    assert_eq!(due_of(&mut w, "x"), T0 + 5_000);
    // A moment in the past means at once.
    w.run(1_000);
    assert_eq!(w.ask(later("x", T0 - 5)), done(T0 + 1_000, T0 + 5_000));
    w.run(10_000);
    assert_eq!(w.story(), [(1_000, names(&["x"]))]);
    let mut memory = World::new(Settings { hold_max: Some(100_000), ..settings() });
    memory.send(vec![named("x", T0 + 5_000)]);
    assert!(matches!(memory.ask(later("x", T0 + 6_000)), Answer::Unavailable(_)));
}

/// The item failed at its old time, and its new time has come. Then the clock goes back before it could leave.
#[test]
fn one_that_has_failed_before_waits_for_its_new_time_though_the_clock_goes_back() {
    let mut w = World::new(settings());
    w.send(vec![named("x", T0)]);
    w.drain_jobs();
    w.settle(0, Outcome::Returned("312 NO_ROUTE".into()));
    w.drain_jobs();
    assert_eq!(w.ask(later("x", T0 + 5_000)), done(T0 + 5_000, T0));
    w.input(Input::EgressBlocked(true));
    w.run(5_000);
    w.now.wall -= 3_000;
    w.input(Input::EgressBlocked(false));
    w.run(2_999);
    assert_eq!(w.story(), [], "it is not due any more");
    w.run(1);
    assert_eq!(w.story(), [(5_000, names(&["x"]))]);
}

fn do_jobs(w: &mut World, count: u64) {
    for _ in 0..count {
        w.do_job();
    }
}

/// Five items of one customer in the store alone, scanned one row at a time.
fn five_far() -> World {
    let thresholds = Thresholds { step: 1, step_looked_at: 1, ..Thresholds::default() };
    let mut w = World::new(Settings { thresholds, ..settings() });
    let far = |n: u64| with_id(&n.to_string(), Keep, at(T0 + 100_000 + n, item("a", "ann", "x")));
    w.send((0..5).map(far).collect());
    w.drain_jobs();
    w
}

/// While a command scans the store, another gives an item, already scanned or not, a time after all others or before
/// them.
/// Judges promise 15.
#[test]
fn what_moves_meanwhile_is_told_once() {
    let asked = || {
        let of = CustomerOf { application: "a".into(), customer: "ann".into() };
        let timeline = TimelineQuery { application: None, at: None, each_ms: 1_000_000, stretches: 1 };
        let list = Filter { application: Some("a".into()), limit: 100, ..Filter::default() };
        [Command::Count(of), Command::TimelineQuery(timeline), Command::List(list)]
    };
    for (kind, steps, which, to) in (0..3).flat_map(|kind| {
        (0..6).flat_map(move |steps| {
            (0..5).flat_map(move |id| [99_000, 200_000].map(|to| (kind, steps, id, to)))
        })
    }) {
        let mut w = five_far();
        w.input(Input::Commands(vec![(Asker::Local(1), asked()[kind].clone())]));
        do_jobs(&mut w, steps);
        w.input(Input::Commands(vec![(Asker::Local(2), later(&which.to_string(), T0 + to))]));
        w.drain_jobs();
        let told = match w.answer_to(1).expect("an answer") {
            Answer::Counted { waiting, .. } => waiting,
            Answer::Timeline(timeline) => timeline.counts.iter().sum(),
            Answer::Listed { items, .. } => {
                let numbers: BTreeSet<u64> = items.iter().map(|item| item.key.seq).collect();
                assert_eq!(numbers.len(), items.len(), "{which} to {to} after {steps}: each once");
                items.len() as u64
            }
            other => panic!("{other:?}"),
        };
        // The command does not find an item that moves behind its position.
        let missing = u64::from(to == 99_000);
        assert!((5 - missing..=5).contains(&told), "{which} to {to} after {steps} steps of {kind}: {told}");
    }
}

#[test]
fn what_was_parked_and_has_another_time_is_not_dropped_with_what_is_parked() {
    for steps in 0..12 {
        let thresholds = Thresholds { step: 1, step_looked_at: 1, looked_at: 1, ..Thresholds::default() };
        let budget = Budget { rows: 4, ..settings().budget };
        let mut w = World::new(Settings { thresholds, budget, ..settings() });
        w.send((0..8).map(|n: u64| named(&n.to_string(), T0 + n)).collect());
        w.drain_jobs();
        w.settle(0, Outcome::Returned("312 NO_ROUTE".into()));
        w.drain_jobs();
        w.advance(20);
        w.drain_jobs();
        w.input(Input::Commands(vec![(Asker::Local(1), Command::DropParked("a".into()))]));
        do_jobs(&mut w, steps);
        w.input(Input::Commands(vec![(Asker::Local(2), later("7", T0 + 60_000))]));
        w.drain_jobs();
        let moved = matches!(w.answer_to(2), Some(Answer::Rescheduled { .. }));
        w.run(100_000);
        let sent: Vec<String> = w.story().into_iter().flat_map(|(_, names)| names).collect();
        assert_eq!(sent.contains(&"7".to_string()), moved, "after {steps} steps: {:?}", w.answer_to(2));
    }
}

/// Pseudo-random numbers, the same for each seed.
struct Draw(u64);

impl Draw {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// Expectation for one item of a random world.
struct Promise {
    target: Target,
    /// It leaves at one of these moments; there are several where an answer was lost with the process.
    due: Vec<u64>,
    windowed: bool,
}

struct Random {
    w: World,
    draw: Draw,
    promises: BTreeMap<String, Promise>,
    gone: usize,
    /// Commands without an answer so far: their number, and the item.
    asked: Vec<(u64, String)>,
    /// Items that had arrived when the process was last killed: their ends need not have been durable.
    perhaps_again: BTreeSet<String>,
}

impl Random {
    fn new(seed: u64) -> Self {
        let mut draw = Draw(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let window = [2_000, 15_000, 60_000][draw.below(3) as usize];
        let rows = [4, 40, 4_000][draw.below(3) as usize];
        let mut settings = with(|app| app.window = window);
        settings.budget.rows = rows;
        Random {
            w: World::new(settings),
            draw,
            promises: BTreeMap::new(),
            gone: 0,
            asked: vec![],
            perhaps_again: BTreeSet::new(),
        }
    }

    fn spread(&mut self) -> u64 {
        let spread = [50, 3_000, 40_000, 300_000][self.draw.below(4) as usize];
        self.draw.below(spread)
    }

    fn send(&mut self) {
        let number = self.promises.len();
        let (payload, wall) = (number.to_string(), self.w.now.wall);
        let customer = ["", "ann", "ben"][self.draw.below(3) as usize];
        let mut new = item("a", customer, &payload);
        let windowed = !customer.is_empty() && self.draw.below(2) == 0;
        let due = wall + self.spread();
        if !windowed {
            new = at(due, new);
        }
        let has_id = self.draw.below(3) > 0;
        if has_id {
            new = with_id(&payload, Keep, new);
        }
        let longest = wall + self.w.settings.defaults.window;
        self.w.send(vec![new]);
        self.w.drain_jobs();
        let target = if has_id { target("a", &payload) } else { self.assigned_to(&payload) };
        let due = if windowed { (wall..=longest).step_by(1).collect() } else { vec![due] };
        self.promises.insert(payload, Promise { target, due, windowed });
    }

    /// Names the newest item by its assigned id, as a list shows it. If it has left already, the target names no
    /// item.
    fn assigned_to(&mut self, payload: &str) -> Target {
        let filter = Filter { limit: 1_000, ..Filter::default() };
        let Answer::Listed { items, .. } = self.w.ask(Command::List(filter)) else { panic!("a list") };
        let newest = items.iter().max_by_key(|item| item.key.seq);
        newest.map_or(target("a", payload), |item| assigned("a", item.key, item.accepted_due))
    }

    fn reschedule(&mut self) {
        if self.promises.is_empty() {
            return;
        }
        let number = self.draw.below(self.promises.len() as u64).to_string();
        let at = self.w.now.wall + self.spread();
        let target = self.promises[&number].target.clone();
        let asker = 1_000_000 + (self.w.replies.len() + self.asked.len()) as u64;
        let command = Command::Reschedule(target, Moment::At(at));
        self.w.input(Input::Commands(vec![(Asker::Local(asker), command)]));
        self.promises.get_mut(&number).expect("there").due.push(at);
        self.asked.push((asker, number));
        match self.draw.below(8) {
            // The process is killed; the command may have been durable.
            0 => {
                for _ in 0..self.draw.below(3) {
                    self.w.do_job();
                }
                self.heed_all();
                self.asked.clear();
                self.w.crash();
            }
            // The store is behind: its reads are out of date when they return.
            1..5 => {
                for _ in 0..self.draw.below(3) {
                    self.w.do_job();
                }
            }
            _ => self.w.drain_jobs(),
        }
        self.heed_all();
    }

    fn heed_all(&mut self) {
        for (asker, number) in std::mem::take(&mut self.asked) {
            if self.w.answer_to(asker).is_some() {
                self.heed(&number, asker);
            } else {
                self.asked.push((asker, number));
            }
        }
    }

    fn heed(&mut self, number: &str, asker: u64) {
        match self.w.answer_to(asker) {
            Some(Answer::Rescheduled { due, .. }) => {
                let promise = self.promises.get_mut(number).expect("there");
                (promise.due, promise.windowed) = (vec![due], false);
            }
            Some(Answer::Ended(_) | Answer::Unknown) | None => {}
            Some(other) => panic!("{number}: {other:?}"),
        }
    }

    /// Checks that all arrivals since the last check came at their time, and once.
    fn judge(&mut self, seed: u64, all: &mut BTreeSet<String>) {
        for (now, batch) in &self.w.delivered[self.gone..] {
            for item in &batch.items {
                if self.perhaps_again.remove(&name(item)) {
                    continue;
                }
                let promise = &self.promises[&name(item)];
                let arrived = now.wall;
                assert!(
                    promise.due.contains(&arrived),
                    "seed {seed}: {} came at {arrived}: windowed {}, due {:?}",
                    name(item),
                    promise.windowed,
                    promise.due.first()
                );
                let first = all.insert(name(item));
                assert!(first, "seed {seed}: {} came twice", name(item));
            }
        }
        self.gone = self.w.delivered.len();
    }
}

#[test]
fn in_random_worlds_each_leaves_once_at_the_last_time_that_it_was_given() {
    for seed in 1..=150 {
        let mut world = Random::new(seed);
        let mut arrived = BTreeSet::new();
        for _ in 0..60 {
            let lives = world.w.lives;
            match world.draw.below(10) {
                0..4 => world.send(),
                4..8 => world.reschedule(),
                8 => {
                    let ms = world.spread();
                    world.w.run(ms);
                }
                _ => {
                    world.w.drain_jobs();
                    world.w.crash();
                }
            }
            world.heed_all();
            if world.w.lives != lives {
                world.asked.clear();
                world.perhaps_again.clone_from(&arrived);
            }
            // Due items leave at this moment, unless the store is left behind.
            if world.draw.below(2) == 0 {
                world.w.run(0);
                world.heed_all();
            }
            world.w.engine.check_invariants();
            world.judge(seed, &mut arrived);
        }
        world.w.run(1_000_000);
        world.judge(seed, &mut arrived);
        assert_eq!(arrived.len(), world.promises.len(), "seed {seed}: each of them arrives");
        world.w.store.check_empty();
    }
}
