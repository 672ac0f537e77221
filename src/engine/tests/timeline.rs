//! The timeline: each item is counted in its stretch, near or far, and one answer scans a bounded number of rows.

use super::world::*;
use tidegate_types::*;

const MINUTE: TimelineQuery = TimelineQuery { application: None, at: None, each_ms: 1_000, stretches: 60 };

fn told(w: &mut World, timeline: TimelineQuery) -> Timeline {
    match w.ask(Command::TimelineQuery(timeline)) {
        Answer::Timeline(told) => *told,
        other => panic!("{other:?}"),
    }
}

fn ahead(told: &Timeline, name: &str) -> Option<(u64, Option<u64>)> {
    told.applications.get(name).map(|ahead| (ahead.count, ahead.next_due))
}

#[test]
fn each_item_stands_in_its_stretch() {
    let mut w = World::new(with(|app| app.window = 3_000));
    let mut items = vec![
        item("a", "ann", "window"),
        at(T0 + 999, item("a", "", "the first second")),
        at(T0 + 1_000, item("a", "", "the second")),
        at(T0 + 59_999, item("b", "", "the last")),
        at(T0 + 60_000, item("b", "", "beyond")),
        at(T0 + 90_000_000, item("c", "", "far beyond")),
    ];
    // More rows than one step scans, in the store alone.
    items.extend((0..2_500).map(|n| at(T0 + 40_000 + n % 1_000, item("a", "bob", "many"))));
    w.send(items);
    w.drain_jobs();
    let told_of_all = told(&mut w, MINUTE);
    let now = w.now.wall;
    assert_eq!((told_of_all.at, told_of_all.from), (now, now / 1_000 * 1_000));
    assert_eq!((told_of_all.counted_until, told_of_all.applications_truncated), (None, false));
    let stretch = |due: u64| ((due - told_of_all.from) / 1_000) as usize;
    let mut counts = vec![0; 60];
    for due in [T0 + 999, T0 + 1_000, T0 + 3_000, T0 + 59_999] {
        counts[stretch(due)] += 1;
    }
    counts[stretch(T0 + 40_000)] += 2_500;
    assert_eq!(told_of_all.counts, counts);
    assert_eq!(ahead(&told_of_all, "a"), Some((2_503, Some(T0 + 999))));
    assert_eq!(ahead(&told_of_all, "b"), Some((1, Some(T0 + 59_999))));
    assert_eq!(ahead(&told_of_all, "c"), Some((0, Some(T0 + 90_000_000))));
    let told_of_one = told(&mut w, TimelineQuery { application: Some("b".into()), ..MINUTE });
    assert_eq!(told_of_one.counts.iter().sum::<u64>(), 1);
    assert_eq!(told_of_one.applications.len(), 1);
    let nobody = told(&mut w, TimelineQuery { application: Some("nobody".into()), ..MINUTE });
    assert_eq!((nobody.counts, nobody.applications.len()), (vec![0; 60], 0));
    w.run(100_000_000);
    w.store.check_empty();
}

#[test]
fn what_is_due_already_and_what_is_dead_is_not_ahead() {
    let mut w = World::new(settings());
    w.ask(Command::Pause("a".into(), None));
    w.send(vec![at(T0 + 100, item("a", "", "held back")), at(T0 + 30_000, item("a", "", "later"))]);
    let dies = NewItem { expiry: Some(T0 + 100), ..at(T0 + 200, item("b", "", "dies")) };
    w.send(vec![dies]);
    w.run(5_000);
    let told = told(&mut w, MINUTE);
    assert_eq!(told.counts.iter().sum::<u64>(), 1, "{told:?}");
    assert_eq!(ahead(&told, "a"), Some((1, Some(T0 + 30_000))));
    assert_eq!(ahead(&told, "b"), None);
}

/// Excluded: two stores that are asked at different moments and answer with different spans.
#[test]
fn the_query_may_say_from_when_to_count() {
    let mut w = World::new(settings());
    w.send(vec![at(T0 + 5_500, item("a", "", "1")), at(T0 + 61_500, item("a", "", "2"))]);
    w.drain_jobs();
    let told_of = |w: &mut World, at| told(w, TimelineQuery { at: Some(at), ..MINUTE });
    let from = (T0 + 2_500) / 1_000 * 1_000;
    let first = told_of(&mut w, T0 + 2_500);
    w.run(1_000);
    let again = told_of(&mut w, T0 + 2_500);
    assert_eq!((again.at, again.from), (T0 + 2_500, from));
    assert_eq!(first, again);
    let stretch = ((T0 + 5_500 - from) / 1_000) as usize;
    assert_eq!((again.counts[stretch], again.counts.iter().sum::<u64>()), (1, 2));
    let later = told_of(&mut w, T0 + 5_501);
    assert_eq!(later.counts.iter().sum::<u64>(), 1, "{later:?}");
}

#[test]
fn without_a_store_it_is_what_memory_holds() {
    let mut w = World::new(Settings { hold_max: Some(1_500_000), ..settings() });
    w.send(vec![at(T0 + 5_000, item("a", "", "1")), at(T0 + 5_500, item("a", "", "2"))]);
    w.drain_jobs();
    let told = told(&mut w, MINUTE);
    assert_eq!(ahead(&told, "a"), Some((2, Some(T0 + 5_000))), "{told:?}");
}

/// A large backlog hides no other application, and the answer names the part that was not scanned.
#[test]
fn the_rows_of_one_answer_are_bounded() {
    let mut w = World::new(settings());
    for _ in 0..80 {
        w.send((0..1_000).map(|n| at(T0 + 100_000 + n * 3_000, item("large", "", "x"))).collect());
        w.drain_jobs();
        w.delivered.clear();
        w.acks.clear();
    }
    w.send((0..100).map(|n| at(T0 + 200_000 + n, item("small", "", "x"))).collect());
    w.drain_jobs();
    let looked_at = w.store.looked_at;
    let told_of_all =
        told(&mut w, TimelineQuery { application: None, at: None, each_ms: 60_000, stretches: 60 });
    let looked_at = w.store.looked_at - looked_at;
    assert!(looked_at <= 55_000, "{looked_at} rows");
    assert_eq!(ahead(&told_of_all, "small"), Some((100, Some(T0 + 200_000))));
    // Its share is half of the rows.
    let (large, next) = ahead(&told_of_all, "large").expect("its count");
    assert_eq!((large, next), (25_000, Some(T0 + 100_000)));
    let until = told_of_all.counted_until.expect("not all of it");
    let known: u64 = (0..1_000).filter(|n| T0 + 100_000 + n * 3_000 < until).map(|_| 80).sum();
    assert!((24_900..=25_000).contains(&known), "{known} before {until}");
    // A span that ends before them costs a single read.
    let looked_at = w.store.looked_at;
    let minute = told(&mut w, MINUTE);
    assert!(w.store.looked_at - looked_at <= 30, "{} rows", w.store.looked_at - looked_at);
    assert_eq!(minute.counted_until, None);
    assert_eq!(ahead(&minute, "large"), Some((0, Some(T0 + 100_000))));
}
