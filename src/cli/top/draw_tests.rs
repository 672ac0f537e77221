//! Tests of the screen of `top` for several state documents, on a simulated terminal.

use super::*;
use crate::admin::state::tests::example;
use crate::admin::state::{Application, StateInput};
use crate::admin::NodeHealth;
use crate::cli::top::lateness::LatenessBuckets;
use crate::cli::top::view::Order;
use crate::cli::top::SeenState;
use ratatui::backend::TestBackend;
use ratatui::Terminal;

fn heard(view: &mut TopView, input: &StateInput) {
    view.hear(Ok(SeenState {
        document: Box::new(Document::new(input, &NodeHealth::ready_but(&[]))),
        lateness: None,
    }));
}

/// The lines of the screen, without trailing blanks.
fn picture(view: &mut TopView, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, view)).unwrap();
    let buffer = terminal.backend().buffer().clone();
    let line = |y: u16| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    (0..height).map(|y| line(y).trim_end().to_owned()).collect()
}

fn crowd(count: u64) -> StateInput {
    let mut input = example();
    let like = input.snapshot.applications[0].clone();
    let one = |n: u64| Application {
        name: format!("app{n:05}"),
        total: n,
        in_flight: 0,
        parked: 0,
        ..like.clone()
    };
    input.snapshot.applications = (0..count).map(one).collect();
    input.snapshot.applications_total = count;
    input
}

#[test]
fn a_wide_screen_shows_all_of_it_with_rates_between_two_documents() {
    let mut view = TopView::new(false);
    let mut input = example();
    heard(&mut view, &input);
    let first = picture(&mut view, 120, 12);
    assert_eq!(first[0], "tidegate 0.0.0-test  running  up 2h");
    assert_eq!(first[1], "ingest connected 127.0.0.1:5672");
    assert_eq!(first[2], "40 waiting  0 due  0 in flight  9 parked  7 dead");
    assert!(first[3].starts_with("in -  out -  next due in 1.0 s  lateness since the start p50 0.4 ms"));
    assert!(first[4].starts_with("store disk 4.0 KiB"), "{first:?}");
    input.uptime_ms += 2_000;
    input.snapshot.totals.accepted += 30;
    input.snapshot.totals.confirmed += 5;
    input.snapshot.applications[0].confirmed += 5;
    heard(&mut view, &input);
    let then = picture(&mut view, 120, 12);
    assert!(then[3].starts_with("in 15.0/s  out 2.5/s"), "{then:?}");
    let mail = then.iter().find(|line| line.starts_with("mail ")).expect("its line");
    let words: Vec<&str> = mail.split_whitespace().collect();
    assert_eq!(words, ["mail", "open", "3", "2", "9", "2.5", "-"], "{then:?}");
    assert!(then[11].starts_with("q end"), "{then:?}");
    // Another run of the daemon: there is nothing to compare with.
    input.started_at += 1;
    heard(&mut view, &input);
    assert_eq!(view.rates, None);
}

#[test]
fn a_missing_shard_is_named_and_no_rate_spans_its_return() {
    let mut view = TopView::new(false);
    let mut input = example();
    let mut step = |change: &dyn Fn(&mut StateInput)| {
        input.uptime_ms += 1_000;
        change(&mut input);
        heard(&mut view, &input);
        (picture(&mut view, 120, 12)[1].clone(), view.rates.is_some())
    };
    let links = "ingest connected 127.0.0.1:5672".to_owned();
    assert_eq!(step(&|_| ()), (links.clone(), false));
    assert_eq!(step(&|_| ()), (links.clone(), true));
    let missing = "missing shard 1, 3: nobody tells of its items".to_owned();
    assert_eq!(step(&|input| input.missing_shards = vec![1, 3]), (missing.clone(), false));
    assert_eq!(step(&|_| ()), (missing, true));
    assert_eq!(step(&|input| input.missing_shards.clear()), (links.clone(), false));
    assert_eq!(step(&|_| ()), (links.clone(), true));
    assert_eq!(step(&|input| input.shards[0].owner = Some("another".to_owned())), (links.clone(), false));
    assert_eq!(step(&|input| input.shards[0].epoch = Some(9)), (links.clone(), false));
    assert_eq!(step(&|input| input.shards[0].lease_ms = Some(1)), (links, true));
}

#[test]
fn sixty_columns_keep_the_numbers_that_matter() {
    let mut view = TopView::new(false);
    heard(&mut view, &example());
    let lines = picture(&mut view, 60, 16);
    for part in
        ["next due in 1.0 s", "lateness since the start p50 0.4 ms p99 0.9 ms", "payloads in memory 0 B"]
    {
        assert!(lines.iter().any(|line| line == part), "{part}: {lines:?}");
    }
    let head = lines.iter().find(|line| line.starts_with("APPLICATION")).expect("a head");
    assert!(head.ends_with("WAITING    PARKED     OUT/S"), "{lines:?}");
    assert!(!head.contains("IN FLIGHT"), "{lines:?}");
    // It can be drawn at any size.
    for (width, height) in [(1, 1), (10, 3), (200, 2)] {
        assert_eq!(picture(&mut view, width, height).len(), usize::from(height));
    }
}

#[test]
fn no_application_and_ten_thousand() {
    let mut view = TopView::new(false);
    heard(&mut view, &crowd(0));
    assert!(picture(&mut view, 100, 20)[6].starts_with("APPLICATION (0, by waiting)"));
    view.scroll(isize::MAX);
    assert_eq!(view.top, 0);
    heard(&mut view, &crowd(10_000));
    let lines = picture(&mut view, 100, 20);
    assert!(lines[6].starts_with("APPLICATION (10000, by waiting)"), "{lines:?}");
    assert!(lines[7].starts_with("app09999"), "the most first: {lines:?}");
    view.page(1);
    assert!(picture(&mut view, 100, 20)[7].starts_with("app09987"), "twelve lines fit");
    view.scroll(isize::MAX);
    let lines = picture(&mut view, 100, 20);
    assert!(lines[18].starts_with("app00000"), "the last at the bottom: {lines:?}");
    view.scroll(-1);
    assert!(picture(&mut view, 100, 20)[18].starts_with("app00001"));
    view.sort(Order::Name);
    assert!(picture(&mut view, 100, 20)[7].starts_with("app00000"));
    heard(&mut view, &crowd(3));
    view.scroll(isize::MAX);
    assert!(picture(&mut view, 100, 20)[7].starts_with("app00000"), "most have gone");
}

#[test]
fn the_table_is_sorted_by_what_was_asked_for() {
    let mut view = TopView::new(false);
    let mut input = crowd(3);
    heard(&mut view, &input);
    input.uptime_ms += 1_000;
    input.snapshot.applications[0].confirmed += 9;
    input.snapshot.applications[1].oldest_due_at = Some(input.at - 60_000);
    input.snapshot.applications[2].parked = 2;
    heard(&mut view, &input);
    for (order, first) in [
        (Order::Rate, "app00000"),
        (Order::Late, "app00001"),
        (Order::Parked, "app00002"),
        (Order::Name, "app00000"),
    ] {
        view.sort(order);
        assert_eq!(view.applications[0].name, first, "{order:?}");
    }
}

#[test]
fn a_name_cannot_drive_the_terminal_and_a_wide_one_keeps_its_columns() {
    let mut view = TopView::new(false);
    let mut input = example();
    input.snapshot.applications[0].name = "m\u{1b}[2J\u{202e}x".into();
    input.snapshot.applications[1].name = "漢字の長い名前".into();
    heard(&mut view, &input);
    let mut terminal = Terminal::new(TestBackend::new(100, 12)).unwrap();
    terminal.draw(|frame| draw(frame, &mut view)).unwrap();
    let buffer = terminal.backend().buffer();
    let symbols: String = buffer.content().iter().map(|cell| cell.symbol()).collect();
    assert!(symbols.contains("m\\u{1b}[2J\\u{202e}x"), "{symbols}");
    assert!(!symbols.contains(|c: char| c.is_control() || c == '\u{202e}'), "{symbols}");
    assert!(symbols.contains("漢"), "{symbols}");
    // The last column ends at the border in each line of the table.
    for y in 6..9 {
        assert_ne!(buffer[(99, y)].symbol(), " ", "line {y}: {symbols}");
    }
}

#[test]
fn a_daemon_that_is_away_is_told_and_what_was_known_stays() {
    let mut view = TopView::new(true);
    view.hear(Err("no daemon answers at http://127.0.0.1:1\u{1b}".into()));
    assert_eq!(picture(&mut view, 100, 12)[0], "NO ANSWER: no daemon answers at http://127.0.0.1:1\\u{1b}");
    heard(&mut view, &example());
    view.hear(Err("gone".into()));
    let lines = picture(&mut view, 100, 12);
    assert_eq!(lines[0], "NO ANSWER (the values below are older): gone");
    assert!(lines[1].starts_with("tidegate 0.0.0-test"), "{lines:?}");
    view.pause();
    heard(&mut view, &example());
    assert!(view.away.is_some(), "a paused display stays");
    assert!(picture(&mut view, 100, 12)[1].ends_with("DISPLAY PAUSED (p)"));
    view.pause();
    heard(&mut view, &example());
    assert!(view.away.is_none());
}

#[test]
fn colour_is_used_only_where_it_is_wanted() {
    for colours in [false, true] {
        let mut view = TopView::new(colours);
        heard(&mut view, &example());
        let mut terminal = Terminal::new(TestBackend::new(100, 12)).unwrap();
        terminal.draw(|frame| draw(frame, &mut view)).unwrap();
        let coloured = terminal.backend().buffer().content().iter().any(|cell| cell.fg != Color::Reset);
        assert_eq!(coloured, colours);
    }
}

#[test]
fn lateness_is_that_of_the_last_interval_where_items_left_in_it() {
    let mut view = TopView::new(false);
    let mut line = |left: u64| {
        let metrics = format!("tidegate_publish_lateness_seconds_bucket{{le=\"0.001\"}} {left}\n");
        let document = Box::new(Document::new(&example(), &NodeHealth::ready_but(&[])));
        view.hear(Ok(SeenState { document, lateness: LatenessBuckets::read(&metrics) }));
        picture(&mut view, 120, 12)[3].clone()
    };
    let of_the_start = "lateness since the start p50 0.4 ms p99 0.9 ms";
    assert!(line(5).ends_with(of_the_start));
    assert!(line(7).ends_with("lateness now p50 <=1.0 ms p99 <=1.0 ms"));
    assert!(line(7).ends_with(of_the_start));
}
