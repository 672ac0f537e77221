//! Allocations of one message on its way through the wire code and the engine, without broker and store: a
//! cost that no other load on the machine moves. The figures are in `integration/allocations.toml`; one that
//! grows by more than a hundredth, or falls by more than a twentieth, fails until the file says so, too
//! (`WRITE_ALLOCATIONS=1` writes it).
//!
//! `make allocations` runs it; it is part of `make test-long`.
#![expect(clippy::unwrap_used, reason = "a test")]

use allocation_counter::measure;
use amq_protocol::types::{AMQPValue, FieldTable};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use tidegate_config::{Config, Readings};
use tidegate_engine::{Engine, Seeds};
use tidegate_types::event::{Found, Input, Load, Loaded, Opened};
use tidegate_types::{Batch, Delivery, Now, Outcome, Request, RequestBody, Settled};
use tidegate_wire::{encode, request, Exchanges, Incoming, RequestLimits};

/// 2026-06-01T00:00:00Z.
const START: u64 = 1_780_272_000_000;
const STORE: u64 = 0xabcd;
/// Messages before the ones that count, so that tables have their size; messages that count; a turn's messages.
const WARM: u64 = 20_000;
const COUNT: u64 = 20_000;
const CHUNK: u64 = 100;
const CUSTOMERS: u64 = 1_000;
const DELAY_MS: u64 = 2_000;
/// A figure may grow and fall by these parts before the file has to change.
const GROWS: f64 = 0.01;
const FALLS: f64 = 0.05;

/// What a load of messages looks like.
struct Shape {
    name: &'static str,
    environment: &'static [(&'static str, &'static str)],
    has_ids: bool,
    has_customers: bool,
}

const SHAPES: [Shape; 3] = [
    Shape {
        name: "passthrough",
        environment: &[("TIDEGATE__DEFAULTS__FORMAT", "passthrough")],
        has_ids: false,
        has_customers: false,
    },
    Shape {
        name: "passthrough-ids",
        environment: &[("TIDEGATE__DEFAULTS__FORMAT", "passthrough")],
        has_ids: true,
        has_customers: false,
    },
    Shape {
        name: "windows",
        environment: &[("TIDEGATE__DEFAULTS__WINDOW", "1s")],
        has_ids: false,
        has_customers: true,
    },
];

/// Allocations of one message, by the stage that makes them.
type Figures = BTreeMap<String, f64>;

fn properties(shape: &Shape, number: u64) -> amq_protocol::protocol::BasicProperties {
    let mut headers = FieldTable::default();
    if shape.has_customers {
        let customer = format!("customer-{}", number % CUSTOMERS);
        headers.insert("x-customer".into(), AMQPValue::LongString(customer.into()));
    } else {
        headers.insert("x-delay".into(), AMQPValue::LongLongInt(i64::try_from(DELAY_MS).unwrap()));
    }
    let properties = amq_protocol::protocol::BasicProperties::default().with_delivery_mode(2);
    let properties = properties.with_headers(headers);
    if shape.has_ids {
        properties.with_message_id(format!("order-{number:08}").into())
    } else {
        properties
    }
}

/// The wire code and the engine, with a store that has everything durable at once and finds nothing.
struct Chain {
    engine: Engine,
    limits: RequestLimits,
    exchanges: Exchanges,
    now: Now,
    /// Allocations by stage since the last reset.
    spent: BTreeMap<&'static str, u64>,
}

impl Chain {
    fn new(shape: &Shape) -> Chain {
        let environment = shape.environment.iter().map(|(name, value)| ((*name).into(), (*value).into()));
        let config = Config::load(None, environment).unwrap().config;
        let now = Now { wall: START, mono: 1_000 };
        let seeds = Seeds { jitter: 1, names: 1 };
        let mut chain = Chain {
            engine: Engine::new(config.engine_settings(), &Opened::default(), seeds, now),
            limits: RequestLimits {
                max_body: 1 << 20,
                max_envelope_items: 100,
                max_delay_ms: 86_400_000,
                frame_max: 128 << 10,
            },
            exchanges: Exchanges::new("out", "dead"),
            now,
            spent: BTreeMap::new(),
        };
        for input in [Input::Tick, Input::IngestReady { generation: 1 }, Input::EgressReady] {
            chain.feed("in", input);
        }
        chain
    }

    fn counted<T>(&mut self, stage: &'static str, work: impl FnOnce(&mut Chain) -> T) -> T {
        let mut result = None;
        let info = measure(|| result = Some(work(self)));
        *self.spent.entry(stage).or_default() += info.count_total;
        result.unwrap()
    }

    /// Gives the engine an input, and the store's answers to what it asks. Returns the batches.
    fn feed(&mut self, stage: &'static str, input: Input) -> Vec<Batch> {
        let mut inputs = vec![input];
        let mut batches = Vec::new();
        while let Some(input) = inputs.pop() {
            let now = self.now;
            let effects = self.counted(stage, |chain| chain.engine.handle(input, now));
            batches.extend(effects.publishes);
            inputs.extend(effects.commit.map(|(token, _)| Input::Committed(token)));
            for load in effects.loads {
                match load {
                    Load::Find(wanted) => {
                        let found = wanted.iter().map(|_| Found { item: None, ended: None });
                        inputs.push(Input::Loaded(Loaded::Found(found.collect())));
                    }
                    Load::Ranges { .. } | Load::Contents(_) | Load::Scan(_) => {
                        panic!("all is in memory: {load:?}")
                    }
                }
            }
        }
        batches
    }

    /// Takes in messages from `first` on.
    fn takes(&mut self, shape: &Shape, first: u64) {
        let received = self.now.wall;
        let messages: Vec<_> =
            (first..first + CHUNK).map(|n| (n, properties(shape, n), vec![b'x'; 200])).collect();
        let limits = self.limits;
        let readings = Readings::default();
        let read = |(n, properties, body): (u64, _, Vec<u8>)| {
            let incoming =
                Incoming { exchange: "tidegate.in", routing_key: "shop", properties, body, received };
            let delivery = Delivery { generation: 1, tag: n + 1 };
            let body = request(incoming, &limits, &readings, STORE);
            assert!(matches!(body, RequestBody::Items(_)), "{body:?}");
            Request { delivery, redelivered: false, received, body }
        };
        let requests = self.counted("read", |_| messages.into_iter().map(read).collect::<Vec<_>>());
        assert!(self.feed("in", Input::Requests(requests)).is_empty(), "nothing is due yet");
    }

    /// Lets everything that is due leave, confirmed. Returns the number of items.
    fn leaves(&mut self) -> u64 {
        let mut items = 0;
        let mut batches = self.feed("out", Input::Tick);
        while !batches.is_empty() {
            items += batches.iter().map(|batch| batch.items.len() as u64).sum::<u64>();
            let settled = batches.iter().map(|batch| {
                let now = self.now.wall;
                let outgoing = self.counted("encode", |chain| encode(batch, &chain.exchanges, STORE, now));
                Settled { number: batch.number, outcome: Outcome::Confirmed(outgoing.id) }
            });
            let settled: Vec<Settled> = settled.collect();
            batches = self.feed("out", Input::Settled(settled));
        }
        items
    }
}

fn figures(shape: &Shape) -> Figures {
    let mut chain = Chain::new(shape);
    let mut left = 0;
    for first in (0..WARM + COUNT).step_by(CHUNK as usize) {
        if first == WARM {
            chain.spent.clear();
            left = 0;
        }
        chain.takes(shape, first);
        chain.now = Now { wall: chain.now.wall + 10, mono: chain.now.mono + 10 };
        left += chain.leaves();
    }
    assert!(left > COUNT * 8 / 10, "as many leave as come: {left}");
    let figure = |(stage, count): (&&'static str, &u64)| {
        let messages = if matches!(*stage, "out" | "encode") { left } else { COUNT };
        ((*stage).to_owned(), (*count as f64 / messages as f64 * 100.0).round() / 100.0)
    };
    chain.spent.iter().map(figure).collect()
}

#[test]
fn a_message_allocates_what_the_file_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("integration/allocations.toml");
    let now: BTreeMap<String, Figures> =
        SHAPES.iter().map(|shape| (shape.name.to_owned(), figures(shape))).collect();
    println!("{}", toml::to_string(&now).unwrap());
    if std::env::var_os("WRITE_ALLOCATIONS").is_some() {
        let head =
            "# Allocations of one message by shape and stage: WRITE_ALLOCATIONS=1 make allocations\n\n";
        fs::write(&path, head.to_owned() + &toml::to_string(&now).unwrap()).unwrap();
        return;
    }
    let known: BTreeMap<String, Figures> = toml::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    let mut wrong = Vec::new();
    for (shape, stages) in &now {
        for (stage, figure) in stages {
            let known = known.get(shape).and_then(|stages| stages.get(stage)).copied().unwrap_or(0.0);
            if *figure > known * (1.0 + GROWS) || *figure < known * (1.0 - FALLS) {
                wrong.push(format!(
                    "{shape}, {stage}: {figure} allocations a message, and the file says {known}"
                ));
            }
        }
    }
    assert_eq!(known.keys().collect::<Vec<_>>(), now.keys().collect::<Vec<_>>(), "the shapes");
    assert!(wrong.is_empty(), "{wrong:#?}\nIf it is meant: WRITE_ALLOCATIONS=1 make allocations");
}
