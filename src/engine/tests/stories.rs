//! Short stories: what was sent, what arrived, and when.

use super::world::*;
use tidegate_types::event::*;
use tidegate_types::*;

#[test]
fn a_window_closes_after_its_time_and_carries_its_customer_alone() {
    let mut w = World::new(settings());
    w.send(vec![item("app", "ann", "1"), item("app", "bob", "2")]);
    w.advance(1_000);
    w.send(vec![item("app", "ann", "3")]);
    w.run(5_000);
    assert_eq!(w.story(), [(3_000, names(&["1", "3"])), (3_000, names(&["2"]))]);
    let (_, batch) = &w.delivered[0];
    assert_eq!((batch.application.as_ref(), batch.customer.as_deref()), ("app", Some("ann")));
    assert_eq!((batch.closed_by, batch.due, batch.attempt), (ClosedBy::Time, T0 + 3_000, 1));
    assert_eq!(w.queue.len(), 0, "all acked");
    w.store.check_empty();
}

/// Judges promise 1.
#[test]
fn nothing_is_acked_before_its_commit() {
    let mut w = World::new(settings());
    w.send(vec![item("app", "ann", "1"), item("app", "ann", "2")]);
    assert_eq!(w.acks, []);
    assert!(w.do_job());
    let delivery = Delivery { generation: 1, tag: 2 };
    assert_eq!(w.acks, [Ack { delivery, multiple: true }]);
}

#[test]
fn count_bytes_and_quiet_close_sooner() {
    let mut w = World::new(with(|app| app.max_items = 2));
    w.send(vec![item("a", "c", "1"), item("a", "c", "2"), item("a", "c", "3")]);
    w.run(10);
    assert_eq!(w.story(), [(0, names(&["1", "2"]))]);
    assert_eq!((w.delivered[0].1.closed_by, w.delivered[0].1.due), (ClosedBy::Count, T0));

    let mut w = World::new(with(|app| app.max_bytes = 1_000));
    w.send((1..=5).map(|n| NewItem { weight: 300, ..item("a", "c", &n.to_string()) }).collect());
    w.run(10);
    assert!(w.delivered.iter().all(|(_, b)| b.closed_by == ClosedBy::Bytes && !b.items.is_empty()));
    assert!(!w.delivered.is_empty());

    let mut w = World::new(with(|app| app.quiet = 200));
    w.send(vec![item("a", "c", "1")]);
    w.run(150);
    w.send(vec![item("a", "c", "2")]);
    w.run(1_000);
    assert_eq!(w.story(), [(350, names(&["1", "2"]))]);
    assert_eq!(w.delivered[0].1.closed_by, ClosedBy::Quiet);
}

#[test]
fn the_first_item_of_a_batch_always_fits() {
    let mut w = World::new(with(|app| app.max_bytes = 1_000));
    w.send(vec![NewItem { weight: 5_000, ..item("a", "c", "big") }, item("a", "c", "small")]);
    w.run(4_000);
    assert_eq!(w.story(), [(0, names(&["big"])), (3_000, names(&["small"]))]);
}

#[test]
fn aligned_windows_end_at_multiples() {
    let mut w = World::new(with(|app| {
        app.window = 10_000;
        app.align = true;
    }));
    w.run(4_321);
    w.send(vec![item("a", "c", "1")]);
    w.run(20_000);
    assert_eq!(w.story(), [(10_000, names(&["1"]))]);
}

/// Judges promise 4.
#[test]
fn the_short_delay_behind_the_long_one_is_not_held_back() {
    let mut w = World::new(settings());
    w.send(vec![at(T0 + 20_000, item("a", "", "long")), at(T0 + 10_000, item("a", "", "short"))]);
    w.run(30_000);
    assert_eq!(w.story(), [(10_000, names(&["short"])), (20_000, names(&["long"]))]);
}

#[test]
fn the_past_is_now_and_nothing_named_is_at_once() {
    let mut w = World::new(settings());
    w.send(vec![at(5, item("a", "c", "past")), item("a", "", "at once")]);
    w.run(10);
    assert_eq!(w.story().len(), 2);
    assert!(w.story().iter().all(|(at, _)| *at == 0));
    assert_eq!(w.delivered[0].1.due, T0);
}

/// Judges promise 5.
#[test]
fn what_is_due_together_leaves_together_in_order() {
    let mut w = World::new(settings());
    w.send(vec![
        at(T0 + 3_000, item("a", "c", "own, later sequence due at the same time")),
        item("a", "c", "windowed"),
        at(T0 + 2_000, item("a", "c", "own, sooner")),
    ]);
    w.run(4_000);
    let together = names(&["own, later sequence due at the same time", "windowed"]);
    assert_eq!(w.story(), [(2_000, names(&["own, sooner"])), (3_000, together)]);
}

/// Judges promise 4.
#[test]
fn own_times_are_rounded_up_but_never_past_an_expiry() {
    let mut w = World::new(with(|app| app.coalesce = 1_000));
    let hurried = NewItem { expiry: Some(T0 + 1_900), ..at(T0 + 1_500, item("a", "c", "hurried")) };
    w.send(vec![at(T0 + 1_001, item("a", "c", "1")), at(T0 + 1_999, item("a", "c", "2")), hurried]);
    w.run(3_000);
    assert_eq!(w.story(), [(1_500, names(&["hurried"])), (2_000, names(&["1", "2"]))]);
}

#[test]
fn own_time_items_are_only_split_by_the_limits() {
    let mut w = World::new(with(|app| app.max_items = 2));
    w.send((0..5).map(|n| at(T0 + 1_000, item("a", "c", &n.to_string()))).collect());
    w.run(2_000);
    let expected = [names(&["0", "1"]), names(&["2", "3"]), names(&["4"])];
    assert_eq!(w.story(), expected.map(|batch| (1_000, batch)));
}

#[test]
fn expired_items_are_dead_and_windows_hurry_for_the_most_urgent() {
    let mut w = World::new(settings());
    let urgent = NewItem { expiry: Some(T0 + 1_000), ..item("a", "c", "urgent") };
    let late = NewItem { expiry: Some(T0 + 500), ..at(T0 + 600, item("a", "", "late")) };
    w.send(vec![item("a", "c", "patient"), urgent, late]);
    w.run(5_000);
    assert_eq!(w.story(), [(600, names(&["late"])), (900, names(&["patient", "urgent"]))]);
    let dead = w.delivered[0].1.dead.as_ref().expect("to the dead exchange");
    assert_eq!(dead.reason, Reason::Expired);
    assert_eq!(w.delivered[0].1.application.as_ref(), "a");
    assert_eq!(w.delivered[1].1.closed_by, ClosedBy::Expiry);
}

/// Judges promise 6.
#[test]
fn an_undeliverable_application_costs_one_probe_a_backoff_and_delays_nobody() {
    let mut w = World::new(settings());
    w.send((0..50).map(|n| item("bad", "", &n.to_string())).collect());
    w.drain_jobs();
    let mut probes = vec![];
    for _ in 0..20_000 {
        w.advance(1);
        w.drain_jobs();
        while let Some((_, batch)) = w.out.first() {
            if batch.application.as_ref() == "bad" {
                probes.push((w.now.wall - T0, name(&batch.items[0]), batch.attempt));
                w.settle(0, Outcome::Returned("NO_ROUTE".into()));
            } else {
                w.settle(0, CONFIRMED);
            }
        }
        if (w.now.wall - T0).is_multiple_of(1_000) {
            w.send(vec![item("good", "", "g")]);
        }
    }
    assert!(probes.len() >= 4 && probes.len() <= 7, "{probes:?}");
    assert!(probes.iter().all(|(_, id, _)| id == "0"), "the oldest is the probe: {probes:?}");
    assert!(probes.windows(2).all(|p| p[1].2 == p[0].2 + 1), "attempts count up: {probes:?}");
    assert!(w.delivered.len() >= 18, "the good ones flow: {}", w.delivered.len());
    let waiting: Vec<&Stored> = w.store.items.values().filter(|item| *item.application == *"bad").collect();
    assert_eq!(waiting.len(), 50);
    assert_eq!(waiting[0].attempts, probes.len() as u32);
    assert!(
        w.engine.memory_bytes().0 <= 16,
        "what is parked holds a small head: {:?}",
        w.engine.memory_bytes()
    );

    // The application comes back: all items leave by themselves, in order.
    w.delivered.clear();
    w.run(60_000);
    let flat: Vec<String> = w.story().into_iter().flat_map(|(_, n)| n).filter(|n| n != "g").collect();
    assert_eq!(flat, (0..50).map(|n| n.to_string()).collect::<Vec<_>>());
    w.store.check_empty();
}

/// The payload of 300 arrives after 200 has failed and its pause is over, the batch beside it has been confirmed, and 340
/// is due as well.
/// Judges promise 5.
#[test]
fn what_waits_for_its_payload_does_not_overtake_what_has_failed() {
    let mut settings = with(|app| {
        app.max_items = 1;
        app.retry = Retry { min: 100, max: 100, attempts: 0 };
    });
    settings.budget.contents = 0;
    let mut w = World::new(settings);
    w.send((0..3).map(|n| item("a", "", &format!("before {n}"))).collect());
    w.run(100);
    w.send(vec![item("a", "", "beside"), item("a", "", "too")]);
    w.send([200, 300, 340].map(|ms| at(T0 + ms, item("a", "c", &ms.to_string()))).into());
    w.drain_jobs();
    w.beside = true;
    for _ in 0..2 {
        w.advance(100);
        while w.do_job() {}
    }
    w.do_late();
    let first = w.out.iter().position(|(_, batch)| name(&batch.items[0]) == "200").expect("published");
    w.settle(first, Outcome::Nacked);
    w.advance(150);
    w.settle(0, CONFIRMED);
    w.settle(0, CONFIRMED);
    while w.do_job() {}
    w.run(1_000);
    let (sent, _) = ends(&w);
    assert_eq!(sent[3..], ["beside", "too", "200", "300", "340"]);
}

/// Judges promise 6.
#[test]
fn after_the_last_attempt_items_are_dead() {
    let mut w = World::new(with(|app| app.retry = Retry { min: 100, max: 100, attempts: 3 }));
    w.send(vec![item("a", "", "x")]);
    let mut publishes = 0;
    for _ in 0..1_000 {
        w.advance(1);
        w.drain_jobs();
        while let Some((_, batch)) = w.out.first() {
            let outcome = if batch.dead.is_some() { CONFIRMED } else { Outcome::Nacked };
            publishes += usize::from(batch.dead.is_none());
            w.settle(0, outcome);
        }
    }
    assert_eq!(publishes, 3);
    let (_, batch) = &w.delivered[0];
    assert_eq!(batch.dead.as_ref().map(|d| d.reason), Some(Reason::Attempts));
    assert_eq!((batch.items[0].attempts, batch.application.as_ref()), (3, "a"));
    w.run(100);
    w.store.check_empty();
}

/// Judges promise 3.
#[test]
fn an_unknown_outcome_repeats_the_same_batch_and_counts_no_attempt() {
    let mut w = World::new(settings());
    w.send(vec![item("a", "c", "1"), item("a", "c", "2")]);
    w.drain_jobs();
    w.advance(3_000);
    w.drain_jobs();
    assert_eq!(w.out.len(), 1);
    let first = w.settle(0, Outcome::Unknown);
    w.input(Input::EgressLost);
    w.advance(10_000);
    w.drain_jobs();
    assert_eq!(w.out.len(), 0);
    w.input(Input::EgressReady);
    w.drain_jobs();
    let again = &w.out[0].1;
    assert_eq!(again.items.iter().map(|i| i.seq).collect::<Vec<_>>(), [1, 2]);
    assert_eq!((first.number, first.attempt), (again.number, 1));
    assert_eq!((again.attempt, again.items[0].attempts), (2, 0));
}

/// Judges promise 6.
#[test]
fn a_refused_batch_is_split_until_the_culprit_is_alone() {
    let mut w = World::new(settings());
    w.send((0..5).map(|n| item("a", "c", &n.to_string())).collect());
    w.send(vec![at(T0 + 3_000, item("b", "d", "innocent"))]);
    w.drain_jobs();
    w.advance(3_000);
    w.drain_jobs();
    // The channel is closed with both in flight: neither counts as the culprit yet.
    while let Some(nth) = w.out.iter().position(|(_, b)| !b.alone) {
        w.settle(nth, Outcome::Refused("406 PRECONDITION_FAILED".into()));
    }
    for _ in 0..50 {
        w.drain_jobs();
        let Some((_, batch)) = w.out.first() else { break };
        assert!(batch.alone || batch.dead.is_some());
        let poison = batch.dead.is_none() && batch.items.iter().any(|i| name(i) == "3");
        let outcome = if poison { Outcome::Refused("406 again".into()) } else { CONFIRMED };
        w.settle(0, outcome);
    }
    let mut flat: Vec<(String, Option<Reason>)> = w
        .delivered
        .iter()
        .flat_map(|(_, b)| b.items.iter().map(|i| (name(i), b.dead.as_ref().map(|d| d.reason))))
        .collect();
    flat.sort();
    let refused = ("3".to_string(), Some(Reason::Refused));
    assert!(flat.contains(&refused), "{flat:?}");
    assert_eq!(flat.iter().filter(|(_, dead)| dead.is_none()).count(), 5, "{flat:?}");
}

/// A queue that never confirms blocks the channel that all share; then each batch is tried alone.
#[test]
fn of_one_that_never_confirms_one_at_a_time_is_tried_alone() {
    let mut w = World::new(settings());
    let each = |n: u32| [item("stuck", "", &n.to_string()), item("good", "", &n.to_string())];
    // Enough confirms that both may have any number in flight, except for the silence that follows.
    w.send((0..100).flat_map(each).collect());
    w.run(1_000);
    assert_eq!(w.delivered.len(), 200);
    w.send((100..116).flat_map(each).collect());
    w.drain_jobs();
    assert_eq!(w.out.iter().filter(|(_, batch)| !batch.alone).count(), 2 * 16);
    while let Some(nth) = w.out.iter().position(|(_, batch)| !batch.alone) {
        w.settle(nth, Outcome::Overdue);
    }
    let of = |w: &World, application: &str| {
        w.out.iter().filter(|(_, batch)| &*batch.application == application).count()
    };
    let mut confirmed = 0;
    while let Some(nth) = w.out.iter().position(|(_, batch)| &*batch.application == "good") {
        assert_eq!((of(&w, "stuck"), of(&w, "good")), (1, 1));
        w.settle(nth, CONFIRMED);
        w.drain_jobs();
        confirmed += 1;
    }
    assert_eq!(confirmed, 16, "none waits for a confirm of the other's");
    w.run(120_000);
    assert_eq!(w.delivered.len(), 232);
    w.store.check_empty();
}

/// This holds before its confirms are overdue: with more, the broker would block the connection of all.
/// Judges promise 6.
#[test]
fn of_one_that_confirms_nothing_any_more_few_are_out() {
    let mut w = World::new(settings());
    let of = |w: &World, application: &str| {
        w.out.iter().filter(|(_, batch)| &*batch.application == application).count()
    };
    w.send((0..100).map(|n| item("stuck", "", &n.to_string())).collect());
    w.run(1_000);
    for n in 0..200_u32 {
        w.send(vec![item("stuck", "", &format!("s{n}")), item("good", "", &n.to_string())]);
        w.drain_jobs();
        while let Some(nth) = w.out.iter().position(|(_, batch)| &*batch.application == "good") {
            w.settle(nth, CONFIRMED);
        }
        w.advance(10);
        assert!(of(&w, "stuck") <= 16, "{n}");
    }
    assert_eq!((of(&w, "stuck"), w.delivered.len()), (16, 300));
    w.run(120_000);
    assert_eq!(w.delivered.len(), 500);
    w.store.check_empty();
}

#[test]
fn a_blocked_connection_gets_nothing_and_forgets_nothing() {
    let mut w = World::new(settings());
    w.input(Input::EgressBlocked(true));
    w.send(vec![item("a", "", "1")]);
    w.advance(5_000);
    assert_eq!(w.out.len(), 0);
    w.drain_jobs();
    assert_eq!(w.queue.len(), 0, "durable and acked");
    w.input(Input::EgressBlocked(false));
    w.run(10);
    assert_eq!(w.delivered.len(), 1);
}

/// Judges promise 3.
#[test]
fn what_is_due_at_once_is_not_stored_when_its_confirm_is_quick() {
    let mut w = World::new(settings());
    w.send(vec![item("a", "", "proof")]);
    w.run(100);
    let commits = w.engine.counters().commits;
    w.send(vec![item("a", "", "quick")]);
    assert_eq!(w.jobs.len(), 0);
    w.confirm_all();
    assert_eq!(w.queue.len(), 0, "acked by its confirm");
    w.run(100);
    assert_eq!(w.engine.counters().commits, commits);

    w.send(vec![item("a", "", "slow")]);
    w.advance(50);
    w.drain_jobs();
    assert_eq!((w.queue.len(), w.store.items.len()), (0, 1), "stored, since nobody confirmed it");
    w.run(100);
    w.store.check_empty();
}

/// Of 90 items that are due at once, at most 75 are in flight at a time.
/// Excluded: large ones written because others are before them; each written late, where confirms are late, instead of at
/// once; all later ones written after one was late.
/// Judges promises 1 and 3.
#[test]
fn what_is_large_and_due_at_once_is_stored_where_confirms_are_late() {
    let mut w =
        World::new(Settings { thresholds: Thresholds { large: 5, ..Thresholds::default() }, ..settings() });
    let many = || (0..90).map(|n| item("a", "", &format!("large {n}"))).collect::<Vec<_>>();
    let confirm = |w: &mut World| {
        while !w.out.is_empty() {
            w.settle(0, CONFIRMED);
        }
    };
    w.send(many());
    w.run(1);
    confirm(&mut w);
    w.run(200);
    let commits = w.engine.counters().commits;
    for _ in 0..2 {
        w.send(many());
        assert_eq!((w.out.len() < 90, w.queue.len(), w.jobs.len()), (true, 90, 0));
        w.advance(499);
        assert_eq!((w.queue.len(), w.jobs.len()), (90, 0), "not acked, and not stored");
        confirm(&mut w);
        assert_eq!((w.queue.len(), w.jobs.len()), (0, 0), "acked by their confirms");
    }
    assert_eq!(w.engine.counters().commits, commits);

    w.send(many());
    w.advance(500);
    w.drain_jobs();
    assert_eq!((w.queue.len(), w.store.items.len()), (0, 90), "late");
    w.send(vec![item("a", "", "behind them")]);
    w.drain_jobs();
    assert_eq!((w.queue.len(), w.store.items.len()), (0, 91), "stored at once");
    confirm(&mut w);
    w.run(200);
    w.store.check_empty();

    w.send(many());
    assert_eq!(w.jobs.len(), 0, "nothing of it is in flight any more");
    confirm(&mut w);
    assert_eq!(w.queue.len(), 0);
}

#[test]
fn an_ack_waits_for_the_memory_of_an_id_less_long_than_a_removal_waits() {
    let mut w = World::new(settings());
    w.send(vec![item("a", "", "proof")]);
    w.run(200);
    w.send(vec![with_id("x", DuplicateRule::Keep, item("a", "", "quick"))]);
    w.drain_jobs();
    assert_eq!((w.out.len(), w.store.items.len()), (1, 0), "published, and not stored");
    w.confirm_all();
    assert_eq!(w.queue.len(), 1, "its id is not remembered yet");
    w.advance(10);
    w.drain_jobs();
    assert_eq!(w.queue.len(), 0, "acked");
}

/// Judges promise 1.
#[test]
fn without_a_store_the_ack_is_the_confirm() {
    let memory = Settings { hold_max: Some(60_000), ..settings() };
    let mut w = World::new(memory);
    w.send(vec![item("a", "c", "1"), item("a", "", "2"), at(T0 + 61_000, item("a", "", "too far"))]);
    assert_eq!(w.jobs.len(), 0, "nothing is stored");
    w.confirm_all();
    assert_eq!(w.queue.len(), 1);
    w.run(4_000);
    assert_eq!(w.queue.len(), 0);
    let dead: Vec<Reason> =
        w.delivered.iter().filter_map(|(_, b)| b.dead.as_ref().map(|d| d.reason)).collect();
    assert_eq!(dead, [Reason::Unsupported]);
}

#[test]
fn without_a_store_a_lost_connection_forgets_what_comes_back() {
    let memory = Settings { hold_max: Some(60_000), ..settings() };
    let mut w = World::new(memory);
    w.send(vec![item("a", "c", "1"), at(T0 + 5_000, item("a", "", "2"))]);
    w.advance(1_000);
    w.lose_ingest();
    assert_eq!(w.engine.memory_bytes(), (0, 0));
    w.deliver(10);
    w.run(10_000);
    assert_eq!(w.story(), [(4_000, names(&["1"])), (5_000, names(&["2"]))]);
    assert_eq!(w.queue.len(), 0);
}

/// Judges promise 1.
#[test]
fn a_rejected_request_is_acked_when_its_dead_letter_is_durable_and_goes_out() {
    let mut w = World::new(settings());
    w.enqueue(rejected_request());
    w.deliver(1);
    assert_eq!(w.queue.len(), 1);
    w.run(100);
    assert_eq!(w.queue.len(), 0);
    let (_, batch) = &w.delivered[0];
    assert_eq!(batch.dead.as_ref().map(|d| d.reason), Some(Reason::Invalid));
    assert_eq!(batch.application.as_ref(), "a");
    assert_eq!(w.engine.counters().dead[Reason::Invalid as usize], 1);
}

/// Judges promise 6.
#[test]
fn one_application_does_not_take_all_slots() {
    let mut w = World::new(settings());
    w.send(vec![item("greedy", "", "0"), item("small", "", "0")]);
    w.run(10);
    w.send((0..500).map(|n| item("greedy", "", &n.to_string())).collect());
    for _ in 0..7 {
        w.settle(0, CONFIRMED);
        w.settle(0, CONFIRMED);
    }
    assert!(w.out.iter().filter(|(_, b)| b.application.as_ref() == "greedy").count() <= 75);
    w.send(vec![item("small", "", "1")]);
    assert!(w.out.iter().any(|(_, b)| b.application.as_ref() == "small"));
}

/// Judges promise 12.
#[test]
fn a_pause_keeps_what_was_handed_over_and_takes_it_later() {
    let mut w = World::new(with(|app| app.max_waiting = 2));
    w.send((1..=4).map(|n| at(T0 + 1_000 * n, item("a", "", &n.to_string()))).collect());
    w.drain_jobs();
    assert!(!w.intake_open);
    assert_eq!((w.queue.len(), w.store.items.len()), (2, 2), "exactly as many as may wait");
    let generation = w.generation;
    w.run(10_000);
    assert!(w.intake_open);
    assert_eq!((w.queue.len(), w.generation), (0, generation), "nothing was given back");
    let flat: Vec<String> = w.story().into_iter().flat_map(|(_, n)| n).collect();
    assert_eq!(flat, names(&["1", "2", "3", "4"]));
}

/// Judges promise 6.
#[test]
fn a_probe_that_expires_does_not_hold_its_application_up() {
    let mut w = World::new(settings());
    let urgent = NewItem { expiry: Some(T0 + 500), ..item("a", "", "urgent") };
    w.send(vec![urgent]);
    w.drain_jobs();
    w.settle(0, Outcome::Returned("NO_ROUTE".into()));
    w.drain_jobs();
    w.advance(10);
    w.send(vec![item("a", "", "patient")]);
    w.run(20_000);
    let flat: Vec<String> = w.story().into_iter().flat_map(|(_, n)| n).collect();
    assert_eq!(flat, names(&["urgent", "patient"]));
    assert_eq!(w.delivered[0].1.dead.as_ref().map(|d| d.reason), Some(Reason::Expired));
    w.store.check_empty();
}

/// Judges promise 6.
#[test]
fn a_parked_application_costs_one_probe_a_backoff_after_a_restart_too() {
    let mut w = World::new(settings());
    w.send((0..50).map(|n| item("bad", "", &n.to_string())).collect());
    w.drain_jobs();
    w.settle(0, Outcome::Returned("NO_ROUTE".into()));
    w.drain_jobs();
    assert_eq!(w.store.items.len(), 50);
    w.crash();
    let (mut probes, mut ops) = (vec![], 0);
    for _ in 0..20_000 {
        w.advance(1);
        ops += w
            .jobs
            .iter()
            .map(|job| if let Job::Commit(ops, ..) = job { ops.len() } else { 0 })
            .sum::<usize>();
        w.drain_jobs();
        while !w.out.is_empty() {
            probes.push(name(&w.out[0].1.items[0]));
            w.settle(0, Outcome::Returned("NO_ROUTE".into()));
        }
    }
    assert!(probes.len() >= 4 && probes.len() <= 7, "{probes:?}");
    assert!(probes.iter().all(|id| id == "0"), "{probes:?}");
    assert!(ops < 100, "what does not change is not written again: {ops}");
    w.run(60_000);
    assert_eq!(w.delivered.len(), 50);
}

/// Judges promise 12.
#[test]
fn what_is_beyond_the_pause_is_not_acked_and_not_lost() {
    let mut w = World::new(with(|app| app.max_waiting = 1));
    w.send(vec![at(T0 + 5_000, item("a", "", "1"))]);
    w.drain_jobs();
    assert!(!w.intake_open || w.queue.is_empty());
    // Deliveries that were on their way when the consumer was paused.
    for n in 2..=3 {
        w.enqueue(RequestBody::Items(vec![at(T0 + 5_000, item("a", "", &n.to_string()))]));
    }
    w.acks.clear();
    w.hand_over(2);
    w.drain_jobs();
    assert_eq!((w.queue.len(), w.acks.len()), (2, 0));
    w.run(20_000);
    assert!(w.queue.is_empty());
    assert_eq!(w.story().len(), 3);
}

/// A batch that waits for a reported reason is not overlooked. A batch without one is gone after the turn, unless egress
/// is closed.
#[test]
fn nothing_is_overlooked_but_what_could_be_handed_over() {
    let overlooked = |w: &World| w.engine.is_overlooked(w.now);
    let mut w = World::new(settings());
    assert!(!overlooked(&w), "nothing there");
    w.send(vec![at(T0 + 3_600_000, item("later", "", "1"))]);
    w.drain_jobs();
    assert!(!overlooked(&w), "nothing due");
    w.send(vec![item("silent", "", "1"), item("silent", "", "2")]);
    w.drain_jobs();
    assert_eq!(w.out.len(), 1);
    assert!(!overlooked(&w), "it waits for its confirm");
    w.advance(5_000);
    assert!(!overlooked(&w), "and has for long");
    w.settle(0, Outcome::Returned("312 NO_ROUTE".into()));
    assert!(!overlooked(&w), "it is parked");
    w.input(Input::EgressBlocked(true));
    w.send(vec![item("good", "", "1")]);
    w.drain_jobs();
    assert!(overlooked(&w), "the connection's word is another's to know");
    w.ask(Command::Pause("good".into(), None));
    assert!(!overlooked(&w), "it is paused");
    w.ask(Command::Resume("good".into()));
    assert!(overlooked(&w));
    w.input(Input::EgressBlocked(false));
    assert!(!overlooked(&w), "it has gone out");
    w.run(120_000);
    assert!(!overlooked(&w));
}

/// Batches that wait for their confirms take all slots, and all channels on which a batch is sent alone.
#[test]
fn what_waits_for_a_slot_or_a_channel_is_not_overlooked() {
    let overlooked = |w: &World| w.engine.is_overlooked(w.now);
    let mut w = World::new(Settings { max_in_flight: 1, ..settings() });
    w.send(vec![item("a", "", "1"), item("b", "", "1")]);
    w.drain_jobs();
    assert_eq!(w.out.len(), 1);
    assert!(!overlooked(&w), "no slot");
    let mut w = World::new(Settings { max_in_flight: 1_000, ..settings() });
    w.send((0..=ALONE_CHANNELS).map(|n| item(&format!("a{n}"), "", "1")).collect());
    w.drain_jobs();
    assert_eq!(w.out.len(), ALONE_CHANNELS);
    assert!(!overlooked(&w), "no channel");
}
