//! Figures of the engine alone: `make measure`. Store, broker and network are not included.

use super::world::*;
use crate::{Engine, Seeds};
use std::sync::Arc;
use std::time::Instant;
use tidegate_types::event::*;
use tidegate_types::*;

/// Number of requests per call.
const CHUNK: u64 = 1_000;

/// Calls the engine and answers for the store: every write is durable at once, and no look-up finds anything.
fn feed(engine: &mut Engine, input: Input, now: Now) -> Vec<Batch> {
    let mut fx = engine.handle(input, now);
    let mut publishes = std::mem::take(&mut fx.publishes);
    loop {
        let nothing = |_| Found { item: None, ended: None };
        let answers = fx.loads.iter().filter_map(|load| match load {
            Load::Find(wanted) => Some(Loaded::Found(wanted.iter().map(nothing).collect())),
            Load::Ranges { .. } | Load::Contents(_) | Load::Scan(_) => None,
        });
        let mut next: Vec<Input> = answers.map(Input::Loaded).collect();
        next.extend(fx.commit.map(|(token, _)| Input::Committed(token)));
        if next.is_empty() {
            return publishes;
        }
        for input in next {
            fx = engine.handle(input, now);
            publishes.append(&mut fx.publishes);
        }
    }
}

fn requests(first: u64, names: &[Box<str>], with_ids: bool, content: &Arc<Content>, now: Now) -> Input {
    let request = |n: u64| {
        let spread = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let customer = (!names.is_empty()).then(|| names[spread as usize % names.len()].clone());
        let new = NewItem {
            customer,
            content: Arc::clone(content),
            ..at(T0 + 1_000 + spread % 18_000, item("app", "", ""))
        };
        let new = if with_ids { with_id(&n.to_string(), DuplicateRule::Keep, new) } else { new };
        Request {
            delivery: Delivery { generation: 1, tag: n + 1 },
            redelivered: false,
            received: now.wall,
            body: RequestBody::Items(vec![new]),
        }
    };
    Input::Requests((first..first + CHUNK).map(request).collect())
}

fn measure(waiting: u64, customers: u64, with_ids: bool) {
    let settings = Settings { budget: Budget::of(1 << 36), max_in_flight: 1_000, ..settings() };
    let mut now = Now { wall: T0, mono: 1_000 };
    let mut engine = Engine::new(settings, &Opened::default(), Seeds { jitter: 1, names: 1 }, now);
    feed(&mut engine, Input::Tick, now);
    feed(&mut engine, Input::IngestReady { generation: 1 }, now);
    feed(&mut engine, Input::EgressReady, now);
    let content = Arc::new(Content { properties: vec![], body: vec![b'x'; 200], json: false });
    let names: Vec<Box<str>> = (0..customers).map(|n| format!("customer-{n}").into()).collect();
    let (mut insert, mut slowest_in) = (0, 0);
    for first in (0..waiting).step_by(CHUNK as usize) {
        let input = requests(first, &names, with_ids, &content, now);
        let start = Instant::now();
        feed(&mut engine, input, now);
        insert += start.elapsed().as_nanos();
        slowest_in = slowest_in.max(start.elapsed().as_micros());
    }
    let (mut sent, mut take, mut slowest) = (0, 0, 0);
    while sent < waiting {
        now = Now { wall: now.wall + 1, mono: now.mono + 1 };
        let mut input = Some(Input::Tick);
        while let Some(next) = input.take() {
            let start = Instant::now();
            let out = feed(&mut engine, next, now);
            slowest = slowest.max(start.elapsed().as_micros());
            take += start.elapsed().as_nanos();
            sent += out.iter().map(|batch| batch.items.len() as u64).sum::<u64>();
            let settled: Vec<Settled> =
                out.iter().map(|b| Settled { number: b.number, outcome: CONFIRMED }).collect();
            input = (!settled.is_empty()).then_some(Input::Settled(settled));
        }
        assert!(now.mono < 1_000_000, "{sent} of {waiting} have left");
    }
    let each = |ns: u128| ns as f64 / waiting as f64;
    let ids = if with_ids { "with" } else { "without" };
    eprintln!(
        "{waiting} waiting, {customers} customers, {ids} ids: in {:.0} ns, out and settled {:.0} ns an item; \
         slowest call {slowest_in} us in, {slowest} us out",
        each(insert),
        each(take),
    );
}

#[test]
#[ignore = "minutes: make measure runs it"]
fn measure_in_and_out() {
    for with_ids in [false, true] {
        for customers in [0, 1, 1_000] {
            measure(100_000, customers, with_ids);
            measure(1_000_000, customers, with_ids);
        }
    }
    measure(10_000_000, 1_000, false);
}

/// A hundred thousand applications with one item each: the state, and twenty lists that are asked for at once.
#[test]
#[ignore = "a minute: make measure runs it"]
fn measure_looks_over_many_applications() {
    let settings = Settings { max_applications: 1_000_000, ..settings() };
    let mut w = World::new(settings);
    for first in (0..100_000).step_by(1_000) {
        w.send(
            (first..first + 1_000).map(|n| at(T0 + 100_000 + n, item(&format!("a{n}"), "", "x"))).collect(),
        );
        w.drain_jobs();
    }
    let start = Instant::now();
    let state = w.engine.snapshot(w.now);
    let took = start.elapsed().as_micros();
    assert_eq!(state.applications_total, 100_000);
    let filter = Filter { limit: 10, ..Filter::default() };
    let lists = (0..20).map(|number| (Asker::Local(number), Command::List(filter.clone()))).collect();
    let start = Instant::now();
    w.input(Input::Commands(lists));
    let mut slowest = start.elapsed().as_micros();
    while w.engine.is_behind() {
        let start = Instant::now();
        w.input(Input::Tick);
        slowest = slowest.max(start.elapsed().as_micros());
    }
    eprintln!("100000 applications: a state {took} us; slowest call of 20 lists {slowest} us");
}
