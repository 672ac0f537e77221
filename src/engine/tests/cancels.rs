//! Cancels of one item or of a customer that take time, and requests behind them.

use super::world::*;
use tidegate_types::event::*;
use tidegate_types::*;
use DuplicateRule::Keep;

fn named(rule: DuplicateRule, due: u64, payload: &str) -> NewItem {
    with_id("x", rule, at(due, item("a", "", payload)))
}

const TAKEN: Answer = Answer::Cancelled { count: 1, in_flight: 0 };

fn of(customer: &str) -> CustomerOf {
    CustomerOf { application: "a".into(), customer: customer.into() }
}

#[test]
fn what_is_sent_behind_a_cancel_that_waits_is_not_taken_back() {
    let mut w = World::new(settings());
    w.send(vec![named(Keep, T0, "old")]);
    w.drain_jobs();
    lose_egress(&mut w);
    w.enqueue(RequestBody::Command(Command::Cancel(target("a", "x")), None));
    w.send(vec![named(DuplicateRule::Replace, T0, "new")]);
    w.drain_jobs();
    w.input(Input::EgressReady);
    w.drain_jobs();
    w.settle(0, Outcome::Returned("312 NO_ROUTE".into()));
    w.run(60_000);
    assert_eq!(ends(&w).0.last().map(String::as_str), Some("new"));
    assert!(w.queue.is_empty(), "both are acked");
}

/// The ingest connection is lost while a cancel waits for the outcome of an item in flight. Requests behind it are in the
/// store; what it concerns is unacked, and the rest is acked.
/// Excluded: a repeated cancel that takes an acked request.
/// Judges promise 3.
#[test]
fn a_cancel_that_comes_again_takes_nothing_that_was_acked() {
    let later = |customer: &str, payload: &str| at(T0 + 3_600_000, item("a", customer, payload));
    let with = |payload: &str, id: &str| with_id(id, DuplicateRule::Replace, later("ann", payload));
    for (cancel, new) in [
        (Command::CancelAll(of("ann")), later("ann", "new")),
        (Command::CancelAll(of("ann")), with("new", "y")),
        (Command::Cancel(target("a", "x")), with("new", "x")),
    ] {
        let mut w = World::new(settings());
        w.send(vec![with_id("x", Keep, at(T0, item("a", "ann", "old")))]);
        w.drain_jobs();
        assert_eq!(w.out.len(), 1, "it is in flight");
        w.enqueue(RequestBody::Command(cancel, None));
        w.send(vec![new, later("ben", "other")]);
        w.drain_jobs();
        w.advance(150);
        w.drain_jobs();
        let unacked: Vec<usize> = w.queue.iter().map(|pending| pending.number).collect();
        assert_eq!(unacked, [2, 3], "the command, and what it could take");
        w.lose_ingest();
        w.settle(0, CONFIRMED);
        w.deliver(usize::MAX);
        w.run(3_700_000);
        assert!(w.queue.is_empty(), "all are acked");
        let mut sent = ends(&w).0;
        sent.sort();
        assert_eq!(sent, ["new", "old", "other"]);
        w.store.check_empty();
    }
}

/// The answer to a pause has not been confirmed when the connection is lost: the resume behind it comes again with it.
#[test]
fn a_pause_that_comes_again_does_not_outlast_its_resume() {
    let mut w = World::new(settings());
    w.answers_out = Some(vec![]);
    let reply_to = Some(ReplyTo { queue: "asker".into(), correlation_id: None });
    w.enqueue(RequestBody::Command(Command::Pause("a".into(), None), reply_to));
    w.enqueue(RequestBody::Command(Command::Resume("a".into()), None));
    w.enqueue(RequestBody::Command(Command::Resume("b".into()), None));
    w.deliver(usize::MAX);
    w.drain_jobs();
    w.advance(150);
    w.drain_jobs();
    let unacked: Vec<usize> = w.queue.iter().map(|pending| pending.number).collect();
    assert_eq!(unacked, [1, 2]);
    w.lose_ingest();
    w.answers_out = None;
    w.deliver(usize::MAX);
    w.send(vec![item("a", "", "goes")]);
    w.run(60_000);
    assert!(w.queue.is_empty());
    assert_eq!(ends(&w).0, ["goes"]);
}

#[test]
fn a_cancel_of_all_leaves_what_may_have_arrived_though_its_row_was_read_before() {
    let mut w = World::new(settings());
    w.send(vec![at(T0 + 50_000, item("a", "ann", "unknown")), at(T0 + 900_000, item("a", "ann", "far"))]);
    w.run(49_000);
    w.send(vec![at(T0, item("a", "", "first"))]);
    w.run(100);
    w.send(vec![at(T0, item("a", "", "probe"))]);
    w.advance(900);
    w.drain_jobs();
    assert_eq!(w.out.len(), 2);
    lose_egress(&mut w);
    w.run(60_000);
    w.input(Input::EgressReady);
    w.drain_jobs();
    assert_eq!(w.out.len(), 1, "one is tried alone");
    w.input(Input::Commands(vec![(Asker::Local(1), Command::CancelAll(of("ann")))]));
    w.settle(0, Outcome::Returned("312 NO_ROUTE".into()));
    w.drain_jobs();
    w.run(60_000);
    assert_eq!(ends(&w).0, ["first", "probe", "unknown"]);
    assert_eq!(w.answer_to(1), Some(TAKEN), "what is far");
}

/// Three items in one batch whose outcome is not known.
fn of_unknown_outcome(unknown: &Outcome) -> World {
    let mut w = World::new(settings());
    let named = |id: &str| with_id(id, Keep, at(T0, item("a", "ann", id)));
    w.send(vec![named("x"), named("y"), named("z")]);
    w.drain_jobs();
    assert_eq!((w.out.len(), w.out[0].1.items.len()), (1, 3));
    w.settle(0, unknown.clone());
    w.drain_jobs();
    if *unknown == Outcome::Overdue {
        // The item is parked, and may have been delivered.
        w.input(Input::Commands(vec![(Asker::Local(1), Command::Cancel(target("a", "x")))]));
        w.drain_jobs();
        assert_eq!(w.answer_to(1), None);
        w.ask(Command::Retry("a".into()));
        w.drain_jobs();
    }
    assert_eq!(w.out.len(), 1, "{unknown:?}");
    w
}

/// The broker fails over a batch: its application is parked, and no attempt counts.
/// Excluded: an item that can be cancelled, moved or dropped no more, so that its application is held for ever.
/// Judges promises 3 and 6.
#[test]
fn what_the_broker_fails_over_is_parked_and_may_be_taken_back() {
    let moved = Answer::Rescheduled { due: T0 + 900_000, before: T0 + 10 };
    for (command, answer) in [
        (Command::Cancel(target("a", "x")), TAKEN),
        (Command::CancelAll(of("ann")), TAKEN),
        (Command::DropParked("a".into()), TAKEN),
        (Command::Reschedule(target("a", "x"), Moment::At(T0 + 900_000)), moved),
    ] {
        let attempts = Retry { attempts: 1, ..AppSettings::default().retry };
        let mut w = World::new(with(|app| app.retry = attempts));
        let named = |id: &str| with_id(id, Keep, at(T0, item("a", "ann", id)));
        w.send(vec![named("w")]);
        w.run(10);
        w.send(vec![named("x")]);
        w.drain_jobs();
        // The connection is lost while it is out with others, and it is tried alone.
        w.settle(0, Outcome::Overdue);
        w.drain_jobs();
        assert!(w.out[0].1.alone);
        w.settle(0, Outcome::Failed("541 INTERNAL_ERROR".into()));
        w.drain_jobs();
        let Answer::Found(found) = w.ask(Command::Lookup(target("a", "x"))) else { panic!("it waits") };
        assert_eq!((found.stage, found.attempts), (ListedStage::Parked, 0), "{found:?}");
        assert!(found.last_error.as_deref().is_some_and(|text| text.contains("541")), "{found:?}");
        assert_eq!(w.ask(command.clone()), answer, "{command:?}");
    }
}

/// Later the broker refuses the item: it is parked like any other, also after a restart.
#[test]
fn what_was_unknown_once_and_returned_later_may_be_taken_back_moved_and_dropped() {
    for (outcome, restarts) in [
        (Outcome::Returned("312 NO_ROUTE".into()), false),
        (Outcome::Returned("312 NO_ROUTE".into()), true),
        (Outcome::Nacked, false),
        (Outcome::Nacked, true),
    ] {
        let mut w = of_unknown_outcome(&Outcome::Unknown);
        w.settle(0, outcome.clone());
        w.drain_jobs();
        if restarts {
            // The engine publishes nothing without a connection.
            w.kill();
            w.drain_jobs();
            w.consume();
        }
        let moved = w.ask(Command::Reschedule(target("a", "y"), Moment::At(T0 + 900_000)));
        assert_eq!(moved, Answer::Rescheduled { due: T0 + 900_000, before: T0 }, "{outcome:?}, {restarts}");
        assert_eq!(w.ask(Command::Cancel(target("a", "x"))), TAKEN, "{outcome:?}, {restarts}");
        let rest = if restarts { Command::CancelAll(of("ann")) } else { Command::DropParked("a".into()) };
        let count = if restarts { 2 } else { 1 };
        assert_eq!(w.ask(rest), Answer::Cancelled { count, in_flight: 0 }, "{outcome:?}, {restarts}");
    }
    // The outcome answers the cancel that waits for it.
    let mut w = of_unknown_outcome(&Outcome::Overdue);
    w.settle(0, Outcome::Returned("312 NO_ROUTE".into()));
    w.drain_jobs();
    assert_eq!(w.answer_to(1), Some(TAKEN));
    assert_eq!(w.ask(Command::Cancel(target("a", "y"))), TAKEN);
    // One of the two halves waits for the other.
    let mut w = of_unknown_outcome(&Outcome::Overdue);
    w.settle(0, Outcome::Refused("406 PRECONDITION_FAILED".into()));
    w.drain_jobs();
    assert_eq!(w.answer_to(1), Some(TAKEN));
    assert_eq!((w.out.len(), w.out[0].1.items.len()), (1, 2));
    w.settle(0, Outcome::Refused("406 PRECONDITION_FAILED".into()));
    w.drain_jobs();
    assert_eq!((w.out.len(), w.out[0].1.items.len()), (1, 1));
    assert_eq!(w.ask(Command::Cancel(target("a", "z"))), TAKEN);
}

/// The broker closed the channel because of another batch in flight: the confirm of this one went with the channel.
#[test]
fn what_was_out_with_a_refused_one_is_taken_back_once_it_is_known_not_to_have_arrived() {
    let mut w = World::new(settings());
    w.send(vec![item("a", "", "first")]);
    w.run(100);
    let now = w.now.wall;
    let named = |name: &str| with_id(name, Keep, at(now, item("a", name, name)));
    w.send(vec![named("culprit"), named("x")]);
    w.drain_jobs();
    assert!(w.out.len() == 2 && w.out.iter().all(|(_, batch)| !batch.alone));
    let refused = || Outcome::Refused("406 PRECONDITION_FAILED".into());
    // The refused batch is sent alone at once.
    w.settle(0, refused());
    w.settle(0, refused());
    w.drain_jobs();
    w.input(Input::Commands(vec![(Asker::Local(1), Command::Cancel(target("a", "x")))]));
    w.drain_jobs();
    assert_eq!((w.answer_to(1), w.out.len()), (None, 1), "the culprit is out alone");
    w.settle(0, refused());
    w.drain_jobs();
    assert_eq!(w.answer_to(1), None);
    let x = w.out.iter().position(|(_, batch)| batch.dead.is_none()).expect("it is out alone");
    w.settle(x, Outcome::Returned("312 NO_ROUTE".into()));
    w.drain_jobs();
    assert_eq!(w.answer_to(1), Some(TAKEN));
}

/// An item whose outcome stays unknown is neither lost nor reported as cancelled.
#[test]
fn what_is_unknown_stays_in_flight_where_nothing_is_known_later() {
    let mut w = of_unknown_outcome(&Outcome::Unknown);
    w.settle(0, Outcome::Unavailable("404 NOT_FOUND".into()));
    w.drain_jobs();
    w.input(Input::Commands(vec![(Asker::Local(9), Command::Cancel(target("a", "x")))]));
    w.advance(400);
    w.drain_jobs();
    assert_eq!(w.answer_to(9), None);
    w.run(60_000);
    assert_eq!(ends(&w).0, ["x", "y", "z"]);
    assert!(matches!(w.answer_to(9), Some(Answer::Ended(_))), "{:?}", w.answer_to(9));
}

#[test]
fn all_of_a_customer_are_taken_back_and_nobody_elses() {
    let mut w = World::new(with(|app| app.window = 3_000));
    let mut items = vec![item("a", "bob", "bob"), item("b", "ann", "other application")];
    for n in 0..3_000 {
        items.push(at(T0 + 100_000 + n, item("a", "ann", "far")));
    }
    items.extend([item("a", "ann", "window"), at(T0 + 1_000, item("a", "ann", "near"))]);
    w.send(items);
    w.drain_jobs();
    let counted =
        Answer::Counted { waiting: 3_002, in_flight: 0, parked: 0, next_due: Some(T0 + 1_000), paused: None };
    assert_eq!(w.ask(Command::Count(of("ann"))), counted);
    let taken = w.ask(Command::CancelAll(of("ann")));
    assert_eq!(taken, Answer::Cancelled { count: 3_002, in_flight: 0 });
    assert_eq!(w.ask(Command::CancelAll(of("ann"))), Answer::Cancelled { count: 0, in_flight: 0 });
    w.run(200_000);
    let mut sent = ends(&w).0;
    sent.sort();
    assert_eq!(sent, ["bob", "other application"]);
    w.store.check_empty();
}

/// Judges promise 15.
#[test]
fn what_is_sent_behind_a_cancel_of_all_is_not_taken_back() {
    let mut w = World::new(settings());
    w.send((0..2_500).map(|n| at(T0 + 100_000 + n, item("a", "ann", "old"))).collect());
    w.drain_jobs();
    w.enqueue(RequestBody::Command(Command::CancelAll(of("ann")), None));
    w.send(vec![at(T0 + 100_000, item("a", "ann", "new"))]);
    w.run(200_000);
    assert_eq!(ends(&w).0, ["new"]);
    assert!(w.queue.is_empty(), "the command is acked");
}

#[test]
fn what_waits_behind_a_cancel_of_all_is_not_overtaken_when_that_makes_room() {
    let mut w = World::new(with(|app| app.max_waiting = 2));
    w.send(vec![at(T0 + 100_000, item("a", "ann", "old")), at(T0 + 100_000, item("a", "ann", "older"))]);
    w.drain_jobs();
    w.enqueue(RequestBody::Command(Command::CancelAll(of("ann")), None));
    let due = |customer: &str, name: &str| at(T0 + 1_000, item("a", customer, name));
    w.send(vec![due("ann", "1"), due("bob", "waits for room"), due("ann", "2")]);
    w.run(200_000);
    let of_ann = ends(&w).0.into_iter().filter(|name| name.len() == 1).collect::<Vec<_>>();
    assert_eq!(of_ann, ["1", "2"], "in the order of arrival");
}

#[test]
fn what_a_former_life_left_without_a_row_is_taken_back_though_a_window_closes_meanwhile() {
    let mut w = World::new(with(|app| (app.window, app.align, app.quiet) = (15_000, true, 1_000)));
    w.send(vec![item("a", "ann", "1")]);
    w.drain_jobs();
    w.settings.budget.rows = 0;
    w.crash();
    w.send(vec![item("a", "ann", "2")]);
    w.drain_jobs();
    w.input(Input::Commands(vec![(Asker::Local(1), Command::CancelAll(of("ann")))]));
    w.advance(1_000);
    w.run(60_000);
    assert_eq!(ends(&w).0, names(&[]));
    assert_eq!(w.answer_to(1), Some(Answer::Cancelled { count: 2, in_flight: 0 }));
    w.store.check_empty();
}

/// The first request waits for a cancel of its customer; the second would not have to.
#[test]
fn of_two_with_one_id_the_first_to_come_is_judged_first_whatever_their_customers() {
    let mut w = World::new(settings());
    w.send((0..3_000).map(|n| at(T0 + 400_000 + n, item("a", "ann", "far"))).collect());
    w.drain_jobs();
    let request = |customer: &str| with_id("x", Keep, at(T0 + 5_000, item("a", customer, customer)));
    w.input(Input::Commands(vec![(Asker::Local(101), Command::CancelAll(of("ann")))]));
    w.send(vec![request("ann"), request("bob")]);
    w.send(vec![with_id("y", Keep, at(T0 + 6_000, item("a", "bob", "another")))]);
    w.run(500_000);
    assert_eq!(ends(&w).0, ["ann", "another"], "what was delivered after the cancel is not its");
    w.store.check_empty();
    assert!(w.queue.is_empty());
}

/// The cancel came first, and cancels its item once the attempt has failed.
#[test]
fn what_is_sent_behind_a_cancel_of_its_customer_that_waits_is_not_taken_for_its_item() {
    let mut w = World::new(settings());
    let request = |payload: &str| with_id("x", DuplicateRule::Keep, at(T0, item("a", "ann", payload)));
    w.send(vec![request("old")]);
    w.drain_jobs();
    assert_eq!(w.out.len(), 1, "it is in flight");
    let of = CustomerOf { application: "a".into(), customer: "ann".into() };
    w.enqueue(RequestBody::Command(Command::CancelAll(of), None));
    w.deliver(usize::MAX);
    w.drain_jobs();
    w.send(vec![request("new")]);
    w.drain_jobs();
    w.settle(0, Outcome::Returned("312 NO_ROUTE".into()));
    w.run(60_000);
    assert_eq!(ends(&w).0, ["new"], "its own request is another one");
    assert!(w.queue.is_empty(), "all are acked");
    w.store.check_empty();
}

/// Both acks were lost, and both messages come again: the cancel takes the item of the request behind it, which is
/// then a new request.
#[test]
fn what_a_repeated_cancel_takes_back_is_taken_anew_when_it_comes_again() {
    for cancel in [Command::Cancel(target("a", "x")), Command::CancelAll(of("ann"))] {
        let mut w = World::new(settings());
        w.acks_out = Some(Default::default());
        w.enqueue(RequestBody::Command(cancel.clone(), None));
        w.send(vec![with_id("x", Keep, at(T0 + 1_000, item("a", "ann", "new")))]);
        w.drain_jobs();
        assert!(w.acks_out.as_ref().is_some_and(|acks| !acks.is_empty()), "{cancel:?}");
        w.lose_ingest();
        w.acks_out = None;
        w.deliver(usize::MAX);
        w.run(60_000);
        assert_eq!(ends(&w).0, ["new"], "{cancel:?}");
        assert!(w.queue.is_empty(), "{cancel:?}");
        w.store.check_empty();
    }
}

/// The request arrived before the cancel, although it is not an item yet.
#[test]
fn a_cancel_of_all_takes_what_waits_for_the_outcome_of_another() {
    for outcome in [CONFIRMED, Outcome::Returned("312 NO_ROUTE".into())] {
        let mut w = World::new(settings());
        let request = |payload: &str| with_id("x", DuplicateRule::Replace, at(T0, item("a", "ann", payload)));
        w.send(vec![request("old")]);
        w.drain_jobs();
        assert_eq!(w.out.len(), 1, "it is in flight");
        w.send(vec![request("new")]);
        w.enqueue(RequestBody::Command(Command::CancelAll(of("ann")), None));
        w.deliver(usize::MAX);
        w.drain_jobs();
        w.settle(0, outcome.clone());
        w.run(60_000);
        let sent = if outcome == CONFIRMED { names(&["old"]) } else { names(&[]) };
        assert_eq!(ends(&w).0, sent, "{outcome:?}");
        assert!(w.queue.is_empty(), "{outcome:?}");
        w.store.check_empty();
    }
}

/// Neither the cancel nor the requests behind it wait longer than its answer may take.
#[test]
fn what_waits_with_a_cancel_of_its_customer_waits_no_longer_than_that() {
    let mut w = World::new(settings());
    let request = |payload: &str| with_id("x", DuplicateRule::Keep, at(T0, item("a", "ann", payload)));
    w.send(vec![request("old")]);
    w.drain_jobs();
    assert_eq!(w.out.len(), 1, "it is in flight");
    w.input(Input::Commands(vec![(Asker::Local(1), Command::CancelAll(of("ann")))]));
    w.drain_jobs();
    w.send(vec![request("new")]);
    w.drain_jobs();
    assert_eq!(w.queue.len(), 1, "it may find another item, or none");
    for _ in 0..70 {
        w.advance(100);
        w.drain_jobs();
    }
    assert_eq!(w.answer_to(1), Some(Answer::Cancelled { count: 0, in_flight: 1 }));
    assert!(w.queue.is_empty(), "it is dropped for what is in flight");
    w.settle(0, CONFIRMED);
    w.run(60_000);
    assert_eq!(ends(&w).0, ["old"]);
}

/// The first request waits for an attempt; the second would wait longer, for a cancel of its customer.
#[test]
fn of_two_with_one_id_the_first_to_come_is_judged_first_whatever_they_wait_for() {
    let mut w = World::new(settings());
    let request = |customer: &str, due: u64| {
        with_id("x", DuplicateRule::Replace, at(due, item("a", customer, customer)))
    };
    w.send((0..3_000).map(|n| at(T0 + 400_000 + n, item("a", "carl", "far"))).collect());
    w.send(vec![request("ann", T0)]);
    w.drain_jobs();
    assert_eq!(w.out.len(), 1, "it is in flight");
    w.input(Input::Commands(vec![(Asker::Local(101), Command::CancelAll(of("carl")))]));
    w.send(vec![request("bob", T0 + 5_000), request("carl", T0 + 5_000)]);
    w.settle(0, Outcome::Returned("312 NO_ROUTE".into()));
    w.run(500_000);
    assert_eq!(ends(&w).0, ["carl"], "the last to come");
    assert!(w.queue.is_empty());
    w.store.check_empty();
}

/// The disk is behind and no more requests are accepted; commands from within the daemon still run.
#[test]
fn a_cancel_from_within_waits_for_no_disk() {
    let thresholds = Thresholds { uncommitted_ops: 2, ..Thresholds::default() };
    let mut w = World::new(Settings { thresholds, ..settings() });
    w.send(vec![at(T0 + 1_000, item("a", "ann", "soon"))]);
    w.run(100);
    for n in 0..8 {
        w.send(vec![at(T0 + 60_000 + n, item("a", "bob", "later"))]);
    }
    assert!(!w.intake_open, "the disk is behind");
    let all = CustomerOf { application: "a".into(), customer: "ann".into() };
    w.input(Input::Commands(vec![(Asker::Local(7), Command::CancelAll(all))]));
    w.advance(2_000);
    assert!(w.out.is_empty(), "it was taken back in time");
    w.run(1_000);
    assert_eq!(w.answer_to(7), Some(TAKEN));
    assert!(w.delivered.is_empty());
}

/// A producer gave another item the id that was assigned to an item that waits.
#[test]
fn who_waits_under_an_assigned_id_is_found_though_another_has_ended_under_it() {
    let mut w = World::new(settings());
    w.send(vec![at(T0 + 50_000, item("a", "", "waits"))]);
    w.drain_jobs();
    let named = assigned("a", Key::own(0, 1), T0 + 50_000);
    w.send(vec![NewItem { identity: Some(named.identity), ..item("a", "", "other") }]);
    w.run(100);
    assert_eq!(ends(&w).0, ["other"]);
    assert_eq!(w.ask(Command::Cancel(named)), TAKEN);
}

/// Two counts scan the store, and the client of the first is gone. A cancel goes on.
#[test]
fn what_nobody_waits_for_ends_and_what_changes_something_goes_on() {
    let thresholds = Thresholds { step: 1, step_looked_at: 1, ..Thresholds::default() };
    let mut w = World::new(Settings { thresholds, ..with(|app| app.window = 600_000) });
    w.beside = true;
    w.send((0..6).map(|_| item("a", "ann", "far")).collect());
    w.drain_jobs();
    let asked = [Command::Count(of("ann")), Command::Count(of("ann")), Command::CancelAll(of("ann"))];
    let asked = (1..).map(Asker::Local).zip(asked).collect();
    w.input(Input::Commands(asked));
    for _ in 0..2 {
        w.do_job();
        w.do_late();
    }
    w.input(Input::Left(vec![1, 3]));
    // A step of it is under way, and it keeps its place until that returns.
    assert_eq!(w.answer_to(1), None);
    for _ in 0..12 {
        if w.answer_to(1).is_none() {
            w.do_job();
            w.do_late();
        }
    }
    assert!(matches!(w.answer_to(1), Some(Answer::Unavailable(_))), "{:?}", w.answer_to(1));
    assert_eq!((w.answer_to(2), w.answer_to(3)), (None, None));
    w.drain_jobs();
    assert!(matches!(w.answer_to(2), Some(Answer::Counted { .. })), "{:?}", w.answer_to(2));
    assert_eq!(w.answer_to(3), Some(Answer::Cancelled { count: 6, in_flight: 0 }));
}

/// A step of a scan takes long, and more rows change during it than are remembered for it.
#[test]
fn what_changed_during_a_long_step_is_not_remembered_without_bound_and_the_step_is_put_again() {
    let thresholds = Thresholds { noted: 8, ..Thresholds::default() };
    let mut w = World::new(Settings { thresholds, ..settings() });
    w.beside = true;
    let far = |n: u64| at(T0 + 900_000, item("a", "ann", &n.to_string()));
    w.send((0..40).map(|n| with_id(&n.to_string(), Keep, far(n))).collect());
    w.drain_jobs();
    let list = Command::List(Filter { application: Some("a".into()), limit: 100, ..Filter::default() });
    let asked = [Command::Count(of("ann")), list];
    w.input(Input::Commands((1..).map(Asker::Local).zip(asked).collect()));
    while w.do_job() {}
    assert_eq!(w.late.len(), 2, "both are read and not handed back");
    for n in 0..30 {
        w.input(Input::Commands(vec![(Asker::Local(3 + n), Command::Cancel(target("a", &n.to_string())))]));
        while w.do_job() {}
        assert!(w.engine.noted_for_reads() <= 8 + 1, "{}", w.engine.noted_for_reads());
    }
    w.drain_jobs();
    assert!(matches!(w.answer_to(1), Some(Answer::Counted { waiting: 10, .. })), "{:?}", w.answer_to(1));
    let Some(Answer::Listed { items, next: None }) = w.answer_to(2) else { panic!("{:?}", w.answer_to(2)) };
    assert_eq!(items.len(), 10);
    assert_eq!(w.engine.noted_for_reads(), 0);
}

/// Items of a former life without rows under their customer: a cancel that follows the queue has passed the moment at
/// which their window closes. They are not loaded, because their application is paused.
#[test]
fn a_cancel_goes_back_to_what_is_due_sooner_than_where_it_has_come_to() {
    let thresholds = Thresholds { step_looked_at: 1, ..Thresholds::default() };
    let mut w = World::new(Settings { thresholds, ..with(|app| app.window = 30_000) });
    let member = |payload: &str, expiry| NewItem { expiry, ..item("a", "ann", payload) };
    w.send(vec![member("first", None)]);
    w.drain_jobs();
    w.run(24_000);
    let wall = w.now.wall;
    // The first is in memory again; these are from the beginning.
    w.send(vec![member("urgent", Some(wall + 2_500))]);
    w.send((0..4).map(|n| at(wall + 3_000 + n, item("a", "bob", "bob's"))).collect());
    w.drain_jobs();
    assert_eq!(w.ask(Command::Pause("a".into(), None)), Answer::Until { until: None, changed: true });
    w.drain_jobs();
    w.crash();
    w.drain_jobs();
    w.input(Input::Commands(vec![(Asker::Local(1), Command::CancelAll(of("ann")))]));
    for _ in 0..3 {
        w.do_job();
    }
    w.advance(2_450);
    w.drain_jobs();
    assert_eq!(w.answer_to(1), Some(Answer::Cancelled { count: 2, in_flight: 0 }));
    assert_eq!(w.ask(Command::Resume("a".into())), Answer::Done { changed: true });
    w.run(100_000);
    assert_eq!(ends(&w).0, ["bob's"; 4]);
    w.store.check_empty();
}

/// More cancels of customers come by message than may have a step over the store under way. One turn judges 4,096.
/// Excluded: a cancel that is refused, and acked without a word because its sender takes no answer; an item that is
/// due in that turn and leaves before its cancel.
/// Judges promise 3.
#[test]
fn no_cancel_by_message_is_refused() {
    let (far, soon) = (T0 + 3_600_000, T0 + 10);
    for (count, due) in [(65, far), (65, soon), (10_000, far), (4_000, soon)] {
        let mut w = World::new(settings());
        let names: Vec<String> = (0..count).map(|number| format!("c{number}")).collect();
        w.send(names.iter().map(|name| at(due, item("a", name, name))).collect());
        w.send(vec![at(due, item("a", "other", "other"))]);
        w.drain_jobs();
        for name in &names {
            w.enqueue(RequestBody::Command(Command::CancelAll(of(name)), None));
        }
        w.pass(10);
        w.deliver(usize::MAX);
        w.run(3_600_000);
        assert_eq!(w.engine.counters().cancelled, count, "due {due}");
        assert_eq!(ends(&w).0, ["other"], "{count} due {due}");
        assert!(w.queue.is_empty(), "all are acked");
    }
}
