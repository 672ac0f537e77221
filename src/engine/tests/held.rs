//! Customers that are held back: their items stay, all others leave, and items that were passed over are found again.

use super::world::*;
use tidegate_types::event::*;
use tidegate_types::*;

fn of(customer: &str) -> CustomerOf {
    CustomerOf { application: "a".into(), customer: customer.into() }
}

fn pause(customer: &str) -> Command {
    Command::PauseCustomer(of(customer), None)
}

const PAUSED: Answer = Answer::Until { until: None, changed: true };

/// Windowed items, items with an own time, and items due at once, of two customers and without a customer.
#[test]
fn what_is_due_of_one_customer_waits_and_leaves_in_order_once_it_goes_on() {
    let mut w = World::new(with(|app| app.window = 500));
    assert_eq!(w.ask(pause("ann")), PAUSED);
    assert_eq!(w.ask(pause("ann")), Answer::Until { until: None, changed: false });
    for n in 0..30u64 {
        let customer = ["ann", "bob", ""][n as usize % 3];
        let name = format!("{customer}{n:02}");
        w.send(vec![
            at(T0 + 1_000 + n, item("a", customer, &name)),
            item("a", customer, &format!("w{name}")),
        ]);
    }
    w.run(5_000);
    let sent = ends(&w).0;
    assert_eq!(sent.len(), 40, "{sent:?}");
    assert!(sent.iter().all(|name| !name.contains("ann")), "{sent:?}");
    assert_eq!(w.engine.memory_bytes().0, 0, "what is held back leaves memory");
    let told = w.engine.snapshot(w.now).applications.remove(0);
    assert_eq!((told.paused_customers, told.total, told.oldest_due_at), (1, 20, None));
    let counted = Answer::Counted {
        waiting: 20,
        in_flight: 0,
        parked: 0,
        next_due: Some(T0 + 500),
        paused: Some(FOR_EVER),
    };
    assert_eq!(w.ask(Command::Count(of("ann"))), counted);
    w.send(vec![at(T0, item("a", "ann", "ann99"))]);
    w.run(1_000);
    assert_eq!(ends(&w).0.len(), 40, "what comes meanwhile waits as well");
    assert_eq!(w.ask(Command::ResumeCustomer(of("ann"))), Answer::Done { changed: true });
    assert_eq!(w.ask(Command::ResumeCustomer(of("ann"))), Answer::Done { changed: false });
    w.run(1_000);
    let sent = ends(&w).0.split_off(40);
    let wanted = |prefix: &str| (0..30).step_by(3).map(|n| format!("{prefix}ann{n:02}")).collect::<Vec<_>>();
    assert_eq!(sent, [wanted("w"), wanted(""), vec!["ann99".to_owned()]].concat());
    w.store.check_empty();
}

/// A long backlog of one customer is in the store before the items of others.
#[test]
fn a_backlog_of_a_customer_that_is_held_back_is_passed_over_once() {
    let mut settings = with(|app| app.window = 500);
    settings.budget.rows = 1_000;
    let mut w = World::new(settings);
    w.send((0..5_000).map(|n| at(T0 + 50_000 + n / 100, item("a", "ann", "ann"))).collect());
    w.send((0..50).map(|n| at(T0 + 50_000 + n * 1_000, item("a", "bob", &n.to_string()))).collect());
    w.drain_jobs();
    assert_eq!(w.ask(pause("ann")), PAUSED);
    w.run(70_000);
    let looked = w.store.looked_at;
    w.run(30_000);
    assert!(w.store.looked_at < looked + 1_000, "{} rows more are looked at", w.store.looked_at - looked);
    assert_eq!(ends(&w).0, (0..50).map(|n| n.to_string()).collect::<Vec<_>>());
    let late = w.delivered.iter().map(|(now, batch)| now.wall - batch.due).max();
    assert_eq!(late, Some(0), "nobody waits for it");
    assert_eq!(w.ask(Command::ResumeCustomer(of("ann"))), Answer::Done { changed: true });
    w.run(10_000);
    assert_eq!(ends(&w).0.len(), 5_050);
    w.store.check_empty();
}

#[test]
fn it_is_remembered_over_a_kill_and_ends_by_itself() {
    let mut w = World::new(with(|app| app.window = 500));
    let end = Some(Moment::At(T0 + 5_000));
    let answer = Answer::Until { until: Some(T0 + 5_000), changed: true };
    assert_eq!(w.ask(Command::PauseCustomer(of("ann"), end)), answer);
    w.send(vec![at(T0 + 100, item("a", "ann", "ann")), at(T0 + 200, item("a", "bob", "bob"))]);
    w.drain_jobs();
    w.crash();
    w.run(3_000);
    assert_eq!(ends(&w).0, ["bob"]);
    w.crash();
    w.run(3_000);
    let last = w.delivered.last().map(|(now, _)| now.wall);
    assert_eq!((ends(&w).0, last), (names(&["bob", "ann"]), Some(T0 + 5_000)));
    assert!(w.store.held.is_empty(), "{:?}", w.store.held);
    w.store.check_empty();
}

/// The first items of all are to be given up, and items of a customer that is held back are among them.
#[test]
fn the_oldest_are_given_up_though_they_are_held_back() {
    let mut w = World::new(with(|app| (app.max_waiting, app.on_full) = (10, OnFull::DropOldest)));
    assert_eq!(w.ask(pause("ann")), PAUSED);
    w.send((0..10).map(|n| at(T0, item("a", "ann", &format!("ann{n}")))).collect());
    w.run(1_000);
    // Some are in memory, and some are due far ahead.
    for (n, due) in [5_000, 5_000, 60_000, 60_000].into_iter().enumerate() {
        w.send(vec![at(T0 + due, item("a", "bob", &format!("bob{n}")))]);
        w.run(100);
    }
    let dead: Vec<String> = ends(&w).1.into_iter().map(|(name, _)| name).collect();
    assert_eq!(dead, ["ann0", "ann1", "ann2", "ann3"]);
    assert_eq!(w.ask(Command::ResumeCustomer(of("ann"))), Answer::Done { changed: true });
    w.run(1_000);
    assert_eq!(ends(&w).0, ["ann4", "ann5", "ann6", "ann7", "ann8", "ann9"]);
}

/// A batch that was formed before its customer was held back, and has never left, waits with the customer.
#[test]
fn a_batch_that_has_never_been_out_waits_with_its_customer() {
    let mut w = World::new(with(|app| app.window = 500));
    w.send(vec![item("a", "bob", "first")]);
    w.run(1_000);
    lose_egress(&mut w);
    w.send(vec![at(T0, item("a", "ann", "ann")), at(T0, item("a", "bob", "bob"))]);
    w.drain_jobs();
    w.input(Input::EgressReady);
    w.drain_jobs();
    while !w.out.is_empty() {
        w.settle(0, Outcome::Unsent);
    }
    lose_egress(&mut w);
    assert_eq!(w.ask(pause("ann")), PAUSED);
    w.input(Input::EgressReady);
    w.run(5_000);
    assert_eq!(ends(&w).0, ["first", "bob"]);
    assert_eq!(w.ask(Command::ResumeCustomer(of("ann"))), Answer::Done { changed: true });
    w.run(5_000);
    assert_eq!(ends(&w).0, ["first", "bob", "ann"]);
    w.store.check_empty();
}

#[test]
fn with_the_memory_store_it_waits_in_memory() {
    let mut w = World::new(Settings { hold_max: Some(1_000_000), ..with(|app| app.window = 500) });
    assert_eq!(w.ask(pause("ann")), PAUSED);
    w.send(vec![item("a", "ann", "ann"), item("a", "bob", "bob")]);
    w.run(5_000);
    assert_eq!(ends(&w).0, ["bob"]);
    assert_eq!(w.ask(Command::ResumeCustomer(of("ann"))), Answer::Done { changed: true });
    w.run(1_000);
    assert_eq!(ends(&w).0, ["bob", "ann"]);
}

/// A cancel finds all items, in memory and in the store.
#[test]
fn what_is_held_back_is_cancelled_with_its_customer() {
    let mut w = World::new(settings());
    assert_eq!(w.ask(pause("ann")), PAUSED);
    w.send((0..50).map(|n| at(T0 + n * 500, item("a", "ann", "ann"))).collect());
    w.run(10_000);
    w.crash();
    w.run(1_000);
    assert_eq!(w.ask(Command::CancelAll(of("ann"))), Answer::Cancelled { count: 50, in_flight: 0 });
    assert_eq!(w.ask(Command::ResumeCustomer(of("ann"))), Answer::Done { changed: true });
    w.run(60_000);
    assert_eq!(ends(&w).0, names(&[]));
    w.store.check_empty();
}
