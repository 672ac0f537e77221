//! Rates of customers: which items they hold back, where these are kept, and which items they leave alone.

use super::world::*;
use tidegate_types::event::*;
use tidegate_types::*;

fn rated(rate: &str, burst: u32, change: impl FnOnce(&mut AppSettings)) -> Settings {
    with(|app| {
        (app.customer_rate, app.customer_burst) = (rate.parse().ok(), burst);
        change(app);
    })
}

fn timed(customer: &str, due: u64, n: u64) -> NewItem {
    at(T0 + due, item("a", customer, &format!("{customer}{n}")))
}

/// Moments of delivery after [`T0`] and numbers of items, for one customer.
fn moments(w: &World, customer: &str) -> Vec<(u64, usize)> {
    let of = w.delivered.iter().filter(|(_, batch)| batch.customer.as_deref() == Some(customer));
    of.map(|(now, batch)| (now.wall - T0, batch.items.len())).collect()
}

fn names_of(w: &World, customer: &str) -> Vec<String> {
    ends(w).0.into_iter().filter(|name| name.starts_with(customer)).collect()
}

fn in_order(customer: &str, n: u64) -> Vec<String> {
    (0..n).map(|n| format!("{customer}{n}")).collect()
}

/// One customer has many items, one has few, and some items have no customer: each runs at its own pace.
#[test]
fn items_leave_at_the_rate_of_their_customer_and_others_in_their_time() {
    let mut w = World::new(rated("10/s", 3, |app| app.max_items = 1));
    w.send((0..20).map(|n| timed("ann", 0, n)).collect());
    w.send((0..4).map(|n| timed("bob", 20 * n, n)).collect());
    w.send((0..4).map(|n| timed("", 10 * n, n)).collect());
    w.run(150);
    assert_eq!(w.wait(), Some(50), "nothing is to be done before the next may leave");
    let told = w.engine.snapshot(w.now).applications.remove(0);
    assert_eq!((told.held, told.held_until, told.due), (16, Some(T0 + 200), 16));
    w.run(10_000);
    let wanted: Vec<(u64, usize)> = (0..20u64).map(|n| (n.saturating_sub(2) * 100, 1)).collect();
    assert_eq!(moments(&w, "ann"), wanted);
    assert_eq!(names_of(&w, "ann"), in_order("ann", 20));
    assert_eq!(moments(&w, "bob"), [(0, 1), (20, 1), (40, 1), (100, 1)]);
    assert_eq!(w.delivered.iter().filter(|(_, batch)| batch.customer.is_none()).count(), 4);
    let held = w.delivered.iter().filter(|(_, batch)| batch.customer.as_deref() == Some("ann"));
    let held: Vec<[u64; 2]> = held.filter_map(|(_, batch)| batch.held).collect();
    assert_eq!(held, (1..18).map(|n| [T0, T0 + n * 100]).collect::<Vec<_>>(), "what it is late by is told");
    assert_eq!(w.engine.memory_bytes().0, 0);
    w.store.check_empty();
}

/// A window's batch counts its items and stays whole.
#[test]
fn a_batch_counts_its_items_and_stays_whole() {
    let mut w = World::new(rated("10/s", 10, |app| (app.window, app.max_items) = (1_000, 50)));
    for (customer, n) in [("ann", 10), ("bob", 30)] {
        w.send((0..n).map(|n| item("a", customer, &format!("{customer}{n}"))).collect());
    }
    w.run(1_100);
    for (customer, n) in [("ann", 4), ("bob", 1)] {
        w.send((0..n).map(|n| item("a", customer, &format!("{customer}+{n}"))).collect());
    }
    w.run(30_000);
    // Ann's ten items empty her bucket, which has room for four again when the four are due. Bob's thirty owe twenty.
    assert_eq!(moments(&w, "ann"), [(1_000, 10), (2_100, 4)]);
    assert_eq!(moments(&w, "bob"), [(1_000, 30), (3_100, 1)]);
}

/// A long backlog leaves memory except for its head, comes back in portions, and delays no other customer.
#[test]
fn a_backlog_costs_no_memory_beyond_its_head_and_delays_nobody() {
    let mut settings = rated("50/s", 5, |app| app.max_items = 1);
    settings.budget.rows = 2_000;
    let mut w = World::new(settings);
    w.send((0..3_000).map(|n| timed("ann", 30_000 + n / 50, n)).collect());
    w.send((0..60).map(|n| timed("bob", 30_000 + n * 500, n)).collect());
    w.drain_jobs();
    w.run(40_000);
    let (rows, looked, work) = (w.engine.memory_bytes().0, w.store.looked_at, w.engine.work());
    assert!(rows <= 200, "{rows} rows in memory");
    w.run(20_000);
    let (looked, work) = (w.store.looked_at - looked, w.engine.work() - work);
    assert!(looked < 8_000, "{looked} rows looked at for a thousand");
    assert!(work < 30_000, "{work} rows touched for a thousand");
    assert_eq!(names_of(&w, "bob"), in_order("bob", 60));
    let late = |customer: &str| {
        let of = w.delivered.iter().filter(|(_, batch)| batch.customer.as_deref() == Some(customer));
        of.map(|(now, batch)| now.wall - batch.due).max()
    };
    assert_eq!(late("bob"), Some(0), "nobody waits for it");
    w.run(40_000);
    assert_eq!(names_of(&w, "ann"), in_order("ann", 3_000), "in order");
    let all = moments(&w, "ann");
    let wanted = |n: u64| 30_000 + n.saturating_sub(4) * 20;
    let off = all.iter().zip(0..).map(|((at, _), n)| at.abs_diff(wanted(n))).max();
    assert!(off <= Some(200), "as fast as it may: off by {off:?}");
    for (n, (at, _)) in all.iter().enumerate() {
        assert!(*at >= wanted(n as u64), "and no faster: item {n} at {at}");
    }
    w.store.check_empty();
}

/// Many customers with more items than they may send share the memory.
#[test]
fn many_with_backlogs_share_what_memory_there_is() {
    let mut settings = rated("5/s", 1, |app| app.max_items = 1);
    settings.budget.rows = 1_000;
    let mut w = World::new(settings);
    let customers: Vec<String> = (0..300).map(|n| format!("c{n:03}-")).collect();
    for n in 0..20 {
        w.send(customers.iter().map(|customer| timed(customer, 25_000, n)).collect());
    }
    w.send((0..40).map(|n| at(T0 + 25_000 + n * 200, item("b", "bob", &format!("bob{n}")))).collect());
    w.run(40_000);
    assert!(w.engine.memory_bytes().0 <= 1_300, "{:?}", w.engine.memory_bytes());
    let late = w.delivered.iter().filter(|(_, batch)| &*batch.application == "b");
    assert_eq!(
        late.map(|(now, batch)| now.wall - batch.due).max(),
        Some(0),
        "another application waits for none"
    );
    for customer in &customers {
        assert_eq!(names_of(&w, customer), in_order(customer, 20));
        let all = moments(&w, customer);
        assert!(all.windows(2).all(|pair| pair[1].0 >= pair[0].0 + 200), "{customer}: {all:?}");
        assert!(all[19].0 < 25_000 + 19 * 200 + 400, "{customer}: {all:?}");
    }
    w.store.check_empty();
}

/// A start costs one burst, and the items held back keep their order. An item ends when it expires.
#[test]
fn over_a_kill_one_burst_more_leaves_and_what_expires_is_judged_when_it_leaves() {
    let mut w = World::new(rated("1/s", 2, |app| app.max_items = 1));
    w.send((0..10).map(|n| timed("ann", 0, n)).collect());
    w.send(vec![NewItem { expiry: Some(T0 + 12_000), ..timed("ann", 1, 10) }, timed("ann", 2, 11)]);
    w.run(2_500);
    assert_eq!(moments(&w, "ann").len(), 4);
    w.crash();
    w.run(60_000);
    let all: Vec<u64> = moments(&w, "ann").into_iter().map(|(at, _)| at).collect();
    assert_eq!(all[4..8], [2_500, 2_500, 3_500, 4_500]);
    assert_eq!(names_of(&w, "ann").len(), 12, "{:?}", ends(&w));
    let mut w = World::new(rated("1/s", 1, |app| app.max_items = 1));
    w.send((0..4).map(|n| timed("ann", 0, n)).collect());
    w.send(vec![NewItem { expiry: Some(T0 + 2_500), ..timed("ann", 0, 4) }, timed("ann", 0, 5)]);
    w.run(10_000);
    assert_eq!(names_of(&w, "ann"), ["ann0", "ann1", "ann2", "ann3", "ann5"]);
    assert_eq!(ends(&w).1.len(), 1, "it expired while it waited");
}

/// What customers owe outlives their last items in memory, and needs neither a row nor a timer of each.
#[test]
fn who_owes_waits_without_a_row() {
    let mut w = World::new(rated("1/min", 1, |app| app.max_items = 1));
    let customers: Vec<String> = (0..500).map(|n| format!("c{n:03}-")).collect();
    let send = |w: &mut World, due: u64, n: u64| {
        w.send(customers.iter().map(|customer| timed(customer, due, n)).collect());
    };
    send(&mut w, 0, 0);
    w.run(1_000);
    assert_eq!((w.engine.customers_in_memory(), w.engine.debts()), (0, 500));
    assert!(w.wait().is_none_or(|ms| ms > 10_000), "nothing is to be done for them: {:?}", w.wait());
    send(&mut w, 2_000, 1);
    w.run(57_000);
    assert_eq!(w.engine.debts(), 0, "all have rows");
    assert!(customers.iter().all(|customer| moments(&w, customer) == [(0, 1)]));
    w.run(4_000);
    assert!(customers.iter().all(|customer| moments(&w, customer) == [(0, 1), (60_000, 1)]));
    assert_eq!(w.engine.debts(), 500);
    w.run(60_000);
    w.send((0..300).map(|n| timed(&format!("d{n}-"), 130_000, n)).collect());
    w.run(10_000);
    assert_eq!(w.engine.debts(), 300, "those that are paid have gone");
    assert_eq!(w.engine.counters().rates_forgotten, 0);
}

/// Little memory has room for the debts of few customers. The others' rates begin anew, which is counted.
#[test]
fn more_debts_than_memory_has_room_for_are_forgotten_and_counted() {
    let mut settings = rated("1/h", 1, |app| app.max_items = 1);
    settings.budget.rows = 50;
    let mut w = World::new(settings);
    w.send((0..1_000).map(|n| timed(&format!("c{n}-"), 30_000 + n, n)).collect());
    w.run(40_000);
    assert_eq!(w.delivered.len(), 1_000);
    let (debts, forgotten) = (w.engine.debts() as u64, w.engine.counters().rates_forgotten);
    assert!((80..=150).contains(&debts), "{debts}");
    assert_eq!(debts + forgotten, 1_000);
    assert_eq!(w.engine.customers_in_memory(), 0);
}

/// The queue cannot be delivered to, is paused, and is reconfigured, each while a backlog waits.
#[test]
fn a_backlog_outlives_what_becomes_of_its_queue() {
    let mut w = World::new(rated("20/s", 1, |app| app.max_items = 1));
    w.send((0..400).map(|n| timed("ann", n / 10, n)).collect());
    w.send((0..30).map(|n| timed("bob", n * 1_000, n)).collect());
    w.run(2_000);
    for _ in 0..50 {
        w.advance(100);
        w.drain_jobs();
        while !w.out.is_empty() {
            w.settle(0, Outcome::Returned("NO_ROUTE".into()));
            w.drain_jobs();
        }
    }
    w.run(3_000);
    assert_eq!(w.ask(Command::Pause("a".into(), None)), Answer::Until { until: None, changed: true });
    w.run(3_000);
    assert_eq!(w.ask(Command::Resume("a".into())), Answer::Done { changed: true });
    w.run(2_000);
    let of = CustomerOf { application: "a".into(), customer: "ann".into() };
    assert_eq!(w.ask(Command::PauseCustomer(of.clone(), None)), Answer::Until { until: None, changed: true });
    let before = names_of(&w, "ann").len();
    w.run(3_000);
    assert_eq!(names_of(&w, "ann").len(), before);
    assert_eq!(w.ask(Command::ResumeCustomer(of)), Answer::Done { changed: true });
    w.run(1_000);
    w.settings = rated("off", 0, |app| app.max_items = 1);
    let settings = w.settings.clone();
    w.input(Input::Configure(Box::new(settings)));
    w.run(20_000);
    assert_eq!(names_of(&w, "ann"), in_order("ann", 400), "all at once, and in order");
    w.run(20_000);
    assert_eq!(names_of(&w, "bob"), in_order("bob", 30));
    w.store.check_empty();
}

/// Without a store all items stay in memory.
#[test]
fn with_the_memory_store_it_waits_in_memory() {
    let mut w =
        World::new(Settings { hold_max: Some(1_000_000), ..rated("10/s", 1, |app| app.max_items = 1) });
    w.send((0..50).map(|n| timed("ann", 0, n)).collect());
    w.run(10_000);
    assert_eq!(names_of(&w, "ann"), in_order("ann", 50));
    assert_eq!(moments(&w, "ann")[49].0, 4_900);
}

/// An item that waits long waits no longer than its rate requires, although other items of its customer are sent
/// again, and although the batch becomes smaller.
#[test]
fn what_waits_is_looked_at_when_its_time_has_changed() {
    let mut w = World::new(rated("1/min", 10, |app| app.max_items = 1));
    w.send(vec![timed("bob", 0, 0)]);
    w.run(1_000);
    w.send((0..11).map(|n| timed("ann", 2_000, n)).collect());
    w.advance(2_000);
    w.drain_jobs();
    assert!(w.out.len() > 1, "{}", w.out.len());
    lose_egress(&mut w);
    w.input(Input::EgressReady);
    w.run(12 * 60_000);
    assert_eq!(names_of(&w, "ann").len(), 11, "ten and ten repeats are owed, less a burst");
    // A batch that waits for a full bucket, and shrinks to a single item.
    let mut w = World::new(rated("1/s", 10, |app| (app.window, app.max_items) = (1_000, 10)));
    let named = |n: u64| with_id(&n.to_string(), DuplicateRule::Keep, item("a", "ann", &format!("ann{n}")));
    w.send((0..20).map(named).collect());
    w.run(1_500);
    assert_eq!(moments(&w, "ann"), [(0, 10)]);
    for n in 11..20 {
        let cancel = Command::Cancel(target("a", &n.to_string()));
        assert_eq!(w.ask(cancel), Answer::Cancelled { count: 1, in_flight: 0 });
    }
    w.run(1_000);
    assert_eq!(moments(&w, "ann").len(), 2, "{:?}", moments(&w, "ann"));
}
