//! Figures of the engine alone: `make measure`.

use super::world::*;
use crate::engine::event::*;
use crate::engine::table;
use crate::engine::types::*;
use crate::engine::Engine;
use std::sync::Arc;
use std::time::Instant;

#[test]
fn a_row_fits_into_128_bytes() {
    let size = std::mem::size_of::<Option<table::Row>>();
    assert!(size <= 128, "{size}");
}

fn feed(engine: &mut Engine, input: Input, now: Now) -> Effects {
    let fx = engine.handle(input, now);
    if let Some((token, _)) = fx.commit {
        let more = engine.handle(Input::Committed(token), now);
        assert!(more.publishes.is_empty() && more.commit.is_none());
    }
    fx
}

fn measure(waiting: u64, customers: u64) {
    let settings = Settings { budget: Budget::of(1 << 36), max_in_flight: 1_000, ..settings() };
    let mut now = Now { wall: T0, mono: 1_000 };
    let mut engine = Engine::new(settings, &Opened::default(), 1, now);
    feed(&mut engine, Input::IngestReady { generation: 1 }, now);
    feed(&mut engine, Input::EgressReady, now);
    let content = Arc::new(Content { properties: vec![], body: vec![b'x'; 200], json: false });
    let names: Vec<Box<str>> = (0..customers.max(1)).map(|n| format!("customer-{n}").into()).collect();
    let mut insert = 0;
    for first in (0..waiting).step_by(1_000) {
        let requests = (first..first + 1_000)
            .map(|n| {
                let spread = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
                let customer = (customers > 0).then(|| names[(spread % customers) as usize].clone());
                let new = NewItem {
                    customer,
                    content: Arc::clone(&content),
                    ..at(T0 + 1_000 + spread % 18_000, item("app", "", ""))
                };
                Request {
                    delivery: Delivery { generation: 1, tag: n + 1 },
                    redelivered: false,
                    received: now.wall,
                    body: RequestBody::Items(vec![new]),
                }
            })
            .collect();
        let start = Instant::now();
        feed(&mut engine, Input::Requests(requests), now);
        insert += start.elapsed().as_nanos();
    }
    assert_eq!(engine.snapshot(now).items.in_memory, waiting);
    let (mut sent, mut take, mut slowest) = (0, 0, 0);
    while sent < waiting {
        now = Now { wall: now.wall + 1, mono: now.mono + 1 };
        let start = Instant::now();
        let mut out = feed(&mut engine, Input::Tick, now).publishes;
        slowest = slowest.max(start.elapsed().as_micros());
        take += start.elapsed().as_nanos();
        while !out.is_empty() {
            sent += out.iter().map(|batch| batch.items.len() as u64).sum::<u64>();
            let settled = out.iter().map(|b| Settled { number: b.number, outcome: CONFIRMED }).collect();
            let start = Instant::now();
            out = feed(&mut engine, Input::Settled(settled), now).publishes;
            slowest = slowest.max(start.elapsed().as_micros());
            take += start.elapsed().as_nanos();
        }
        assert!(now.mono < 1_000_000);
    }
    let each = |ns: u128| ns as f64 / waiting as f64;
    eprintln!(
        "{waiting} waiting, {customers} customers: insert {:.0} ns, take and settle {:.0} ns an item; slowest turn {slowest} us",
        each(insert),
        each(take),
    );
}

#[test]
fn sequences_that_stay_by_a_pattern_do_not_collide() {
    use std::hash::{BuildHasher, BuildHasherDefault};
    let hash = BuildHasherDefault::<crate::engine::SeqHasher>::default();
    for step in [1u64, 2, 16, 1_000, 1_024, 65_536, 1 << 20] {
        // As a table of 16,384 places sees them: by groups of 16.
        let mut groups = vec![0; 1_024];
        for n in 0..8_192u64 {
            groups[(hash.hash_one(n * step) % 16_384 / 16) as usize] += 1;
        }
        let most = groups.iter().max().copied().unwrap_or(0);
        assert!(most <= 64, "{most} of 8 on average in one place, of every {step}th");
    }
}

#[test]
#[ignore = "minutes: make measure runs it"]
fn insert_and_take() {
    for customers in [0, 1_000] {
        measure(100_000, customers);
        measure(1_000_000, customers);
        measure(10_000_000, customers);
    }
}
