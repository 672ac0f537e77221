//! What dead letters say of the due of their items.

use super::world::*;
use tidegate_types::event::*;
use tidegate_types::*;
use DuplicateRule::Keep;

const HOUR: u64 = 3_600_000;

fn refused() -> Outcome {
    Outcome::Refused("406 PRECONDITION_FAILED".into())
}

/// Lets the world go on until the dead letter is out, which is not settled. Items before it are refused, each alone.
fn letter(w: &mut World) -> Batch {
    for _ in 0..1_000 {
        w.drain_jobs();
        match w.out.first() {
            Some((_, batch)) if batch.dead.is_some() => return batch.clone(),
            Some(_) => drop(w.settle(0, refused())),
            None => w.advance(w.wait().unwrap_or(1_000).clamp(1, 1_000)),
        }
    }
    panic!("no dead letter: {}", w.engine.describe());
}

fn named(item: NewItem) -> NewItem {
    with_id("x", Keep, item)
}

/// An item of an hour gets two hours, and is refused.
fn rescheduled() -> World {
    let mut w = World::new(settings());
    w.send(vec![named(at(T0 + HOUR, item("a", "", "x")))]);
    w.drain_jobs();
    w.ask(Command::Reschedule(target("a", "x"), Moment::At(T0 + 2 * HOUR)));
    w.run(2 * HOUR - 1);
    w
}

/// The same, and it expires before it can leave.
fn expired() -> World {
    let mut w = World::new(settings());
    let expiry = Some(T0 + 2 * HOUR + 500);
    w.send(vec![named(NewItem { expiry, ..at(T0 + HOUR, item("a", "", "x")) })]);
    w.drain_jobs();
    w.ask(Command::Reschedule(target("a", "x"), Moment::At(T0 + 2 * HOUR)));
    w.run(2 * HOUR - 1);
    w.input(Input::EgressBlocked(true));
    w.run(1_000);
    w.input(Input::EgressBlocked(false));
    w
}

/// A member of a window that is flushed is refused.
fn flushed() -> World {
    let mut w = World::new(with(|app| app.window = HOUR));
    w.send(vec![named(item("a", "ann", "x"))]);
    w.run(700);
    w.input(Input::EgressBlocked(true));
    w.ask(Command::Flush(CustomerOf { application: "a".into(), customer: "ann".into() }));
    w.advance(50);
    w.input(Input::EgressBlocked(false));
    w
}

fn immediate() -> World {
    let mut w = World::new(settings());
    w.input(Input::EgressBlocked(true));
    w.send(vec![named(item("a", "", "x"))]);
    w.run(1_000);
    w.input(Input::EgressBlocked(false));
    w
}

fn rejected() -> World {
    let mut w = World::new(settings());
    w.enqueue(rejected_request());
    w.deliver(1);
    w
}

/// An item is given up before its time, as it is one too many.
fn dropped() -> World {
    let mut w = World::new(with(|app| (app.max_waiting, app.on_full) = (1, OnFull::DropOldest)));
    w.send(vec![named(at(T0 + HOUR, item("a", "", "x")))]);
    w.drain_jobs();
    w.send(vec![at(T0 + 2 * HOUR, item("a", "", "other"))]);
    w
}

/// Columns: how an item dies, and its due then. Its letter is refused twice, the second time after a restart; and its
/// end is looked up.
/// Excluded: the due as accepted, though it has another by now; the moment of the death or of a try.
#[test]
fn a_dead_letter_tells_when_its_item_was_due() {
    let stories: [(&str, fn() -> World, u64); 6] = [
        ("rescheduled", rescheduled, 2 * HOUR),
        ("expired", expired, 2 * HOUR),
        ("flushed", flushed, 700),
        ("immediate", immediate, 0),
        ("rejected", rejected, 0),
        ("dropped", dropped, HOUR),
    ];
    for (name, story, due) in stories {
        let mut w = story();
        for of in ["the first try", "after a refusal", "after a restart"] {
            let letter = letter(&mut w);
            assert_eq!(
                (letter.due, letter.items[0].due),
                (T0 + due, T0 + due),
                "{name}, {of}, at {}",
                w.now.wall - T0
            );
            w.settle(0, refused());
            w.drain_jobs();
            if of == "after a refusal" {
                w.crash();
            }
        }
        if name != "rejected" {
            let Answer::Ended(ended) = w.ask(Command::Lookup(target("a", "x"))) else { panic!("{name}") };
            assert_eq!(ended.due, T0 + due, "{name}");
        }
        assert_eq!(letter(&mut w).due, T0 + due, "{name}");
        w.settle(0, CONFIRMED);
    }
}
