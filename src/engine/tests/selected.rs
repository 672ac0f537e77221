//! Cancels and counts of selected items.

use super::bounded::{begin, end, fill, flat, roomy, SIZES};
use super::world::*;
use tidegate_types::event::*;
use tidegate_types::*;

fn all() -> Selection {
    Selection::all("a".into())
}

fn counted(w: &mut World, selection: Selection) -> (u64, Option<u64>) {
    let Answer::Counted { waiting, in_flight: 0, parked: 0, next_due, .. } =
        w.ask(Command::CountSelected(selection))
    else {
        panic!("no count")
    };
    (waiting, next_due)
}

fn cancelled(w: &mut World, selection: Selection) -> u64 {
    let answer = w.ask(Command::CancelSelected(selection));
    let Answer::Cancelled { count, in_flight: 0 } = answer else { panic!("{answer:?}") };
    count
}

#[test]
fn a_selection_takes_what_it_names_wherever_that_lies() {
    let mut w = World::new(with(|app| app.window = 3_000));
    let near_and_far = |customer: &str| {
        [T0 + 1_500, T0 + 4_000, T0 + 100_000, T0 + 200_000].map(|due| at(due, item("a", customer, customer)))
    };
    w.send(["eu-1", "eu-2", "us", ""].into_iter().flat_map(near_and_far).collect());
    w.send(vec![item("a", "eu-3", "window"), at(T0 + 1_500, item("b", "eu-1", "other application"))]);
    w.drain_jobs();
    w.advance(1_000);
    w.send(vec![at(T0 + 100_000, item("a", "us", "later"))]);
    w.drain_jobs();
    let eu = || Selection { customer_prefix: "eu-".into(), ..all() };
    for (selection, count, next_due) in [
        (all(), 18, Some(T0 + 1_500)),
        (eu(), 9, Some(T0 + 1_500)),
        (Selection { customer_prefix: "x".into(), ..all() }, 0, None),
        (Selection { customer: Some("us".into()), ..all() }, 5, Some(T0 + 1_500)),
        (Selection { due_from: T0 + 4_000, ..eu() }, 6, Some(T0 + 4_000)),
        (Selection { due_until: T0 + 4_000, ..all() }, 5, Some(T0 + 1_500)),
        (Selection { due_from: T0 + 100_000, due_until: T0 + 100_001, ..all() }, 5, Some(T0 + 100_000)),
        (Selection { due_from: T0 + 300_000, ..all() }, 0, None),
        (Selection { due_from: 9, due_until: 9, ..all() }, 0, None),
        (Selection { received_until: T0 + 1_000, ..all() }, 17, Some(T0 + 1_500)),
        (Selection { received_until: T0, ..all() }, 0, None),
    ] {
        assert_eq!(counted(&mut w, selection.clone()), (count, next_due), "{selection:?}");
    }
    assert_eq!(cancelled(&mut w, Selection { due_until: T0 + 100_000, ..eu() }), 5, "with the window");
    assert_eq!(cancelled(&mut w, Selection { due_until: T0 + 100_000, ..eu() }), 0);
    assert_eq!(
        cancelled(&mut w, Selection { received_until: T0 + 1_000, customer: Some("us".into()), ..all() }),
        4
    );
    w.run(100_000);
    let mut sent = ends(&w).0;
    sent.sort();
    assert_eq!(sent, ["", "", "", "eu-1", "eu-2", "later", "other application"]);
    assert_eq!(cancelled(&mut w, all()), 3, "what is left");
    w.run(200_000);
    assert_eq!(ends(&w).0.len(), 7);
    w.store.check_empty();
}

#[test]
fn with_the_memory_store_a_selection_takes_what_it_names() {
    let mut w = World::new(Settings { hold_max: Some(1_000_000), ..settings() });
    w.send(vec![at(T0 + 1_000, item("a", "eu-1", "near")), at(T0 + 900_000, item("a", "us", "far"))]);
    w.drain_jobs();
    assert_eq!(counted(&mut w, all()), (2, Some(T0 + 1_000)));
    assert_eq!(cancelled(&mut w, Selection { due_from: T0 + 2_000, ..all() }), 1);
    w.run(1_000_000);
    assert_eq!(ends(&w).0, ["near"]);
}

/// A request behind the cancel has the id of an item that the cancel has not reached, and finds it cancelled.
#[test]
fn what_comes_behind_a_cancel_of_a_selection_waits_for_nothing_and_is_not_taken_back() {
    let mut w = World::new(settings());
    w.send((0..2_500).map(|n| at(T0 + 100_000 + n, item("a", "ann", "old"))).collect());
    let named = |due: u64, name: &str| with_id("x", DuplicateRule::Keep, at(due, item("a", "bob", name)));
    w.send(vec![named(T0 + 900_000, "old x")]);
    w.drain_jobs();
    w.input(Input::Commands(vec![(Asker::Local(1), Command::CancelSelected(all()))]));
    w.send(vec![at(T0 + 50, item("a", "ann", "new")), named(T0 + 60, "new x")]);
    w.deliver(1);
    for _ in 0..4 {
        w.do_job_in_pieces(1);
    }
    assert_eq!(w.answer_to(1), None, "it goes on");
    w.run(1_000_000);
    assert_eq!(ends(&w).0, ["new", "new x"]);
    assert_eq!(w.answer_to(1), Some(Answer::Cancelled { count: 2_501, in_flight: 0 }));
    w.store.check_empty();
}

#[test]
fn a_cancel_of_an_application_with_a_million_items() {
    flat("cancel of all", &SIZES, |n| {
        let mut w = World::new(roomy());
        fill(
            &mut w,
            (0..n).map(|i| at(T0 + 100_000 + i, item("a", ["ann", "bob", ""][i as usize % 3], "x"))),
        );
        let looked = begin(&mut w);
        assert_eq!(cancelled(&mut w, all()), n);
        end(&w, n, looked)
    });
}
