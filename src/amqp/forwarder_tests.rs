//! Tests of what counts as forwarded, without a broker: parts are published and settled by hand.

use super::*;
use crate::shared::PresentGeneration;
use crate::{MapStats, SharedMap};
use tidegate_config::Config;
use tidegate_types::{BatchId, RequestBody, Settled};
use tidegate_wire::{shared_request, Delivered, Sharing};
use tokio::sync::{mpsc, watch};

const OPEN: Delivery = Delivery { generation: 1, tag: 7 };

/// Two forwarders of one daemon, and a consumer whose events are kept.
struct Site {
    sender: ForwardSender,
    forwarders: Vec<Forwarder>,
    map: Arc<SharedMap>,
    consumer: Arc<Shared>,
    _present: PresentGeneration,
    events: UnboundedReceiver<crate::Event>,
}

fn site() -> Site {
    let (sender, queues) = forward_queues(2);
    let map = Arc::new(SharedMap::default());
    let options = Arc::new(Options::new(&Config::default(), 0, None));
    let forwarders = queues.by_shard().map(|(shard, parts)| {
        let shared = Arc::new(Shared::new(Arc::new(drop), Arc::default(), Arc::default()));
        let mapper = Mapper::new(Arc::clone(&map), Arc::new(options.names.clone()), shard);
        let way = (ForwardKey::new([1; 32]), mapper);
        Forwarder::new(shared, Arc::clone(&options), way, ("q", parts), watch::channel(None).1)
    });
    let forwarders = forwarders.collect();
    let (told, events) = mpsc::unbounded_channel();
    let on_event = Arc::new(move |event| drop(told.send(event)));
    let consumer = Arc::new(Shared::new(on_event, Arc::default(), Arc::default()));
    let _present = consumer.begin_generation(OPEN.generation);
    Site { sender, forwarders, map, consumer, _present, events }
}

/// A request for this shard, as the sharder reads it.
fn part(shard: u16) -> Forward {
    let delivered = Delivered {
        exchange: "tidegate.in".into(),
        routing_key: "shop".into(),
        properties: Default::default(),
        body: b"{}".to_vec(),
        redelivered: false,
        received: 1_800_000_000_000,
    };
    let sharing = Sharing { own: None, count: 2, key: ForwardKey::new([1; 32]) };
    let (config, limits) = (Config::default(), crate::request_limits(&Config::default()));
    let read = shared_request(delivered, &limits, &config.readings, 0, &sharing);
    assert!(matches!(&read.body, RequestBody::Elsewhere(items) if items.is_empty()), "{:?}", read.body);
    let mut part = read.forwards.into_iter().next().unwrap();
    part.shard = shard;
    part
}

impl Site {
    /// Hands over a request with a part for each of these shards.
    fn hand_over(&self, shards: &[u16], came_to: Option<u16>) {
        let parts = shards.iter().copied().map(part).collect();
        self.sender.send(OPEN, parts, (&self.consumer, came_to));
    }

    /// The broker's answer to all that waits for this shard.
    fn answer(&mut self, shard: usize, outcome: &Outcome) {
        let forwarder = &mut self.forwarders[shard];
        while let Ok(part) = forwarder.parts.try_recv() {
            forwarder.take(part);
        }
        let mut output = TurnOutput::default();
        for (number, part) in std::mem::take(&mut forwarder.waiting) {
            forwarder.open_bytes += part.forward.size();
            forwarder.open.insert(number, part);
            output.settle(number, outcome.clone());
        }
        assert_ne!(output.settled, Vec::<Settled>::new(), "nothing waits");
        forwarder.settle(output);
    }

    fn is_reported(&mut self) -> bool {
        match self.events.try_recv() {
            Ok(crate::Event::Broker(BrokerEvent::Forwarded(deliveries))) => deliveries == [OPEN],
            Ok(event) => panic!("{event:?}"),
            Err(_) => false,
        }
    }
}

#[test]
fn a_request_counts_once_when_its_last_part_is_confirmed() {
    let mut site = site();
    let confirmed = Outcome::Confirmed(BatchId([0; 16]));
    site.hand_over(&[0, 1], None);
    site.answer(0, &confirmed);
    for failure in [Outcome::Nacked, Outcome::Returned("NO_ROUTE".into()), Outcome::Unknown] {
        site.answer(1, &failure);
        assert_eq!(site.map.stats(), MapStats::default(), "{failure:?}");
        assert!(!site.is_reported());
    }
    site.answer(1, &confirmed);
    assert_eq!(site.map.stats(), MapStats { forwarded: 1, ..MapStats::default() });
    assert!(site.is_reported());
}

#[test]
fn what_came_to_a_shard_counts_as_misplaced() {
    let mut site = site();
    let confirmed = Outcome::Confirmed(BatchId([0; 16]));
    site.hand_over(&[1], Some(0));
    site.answer(1, &confirmed);
    assert_eq!(site.map.stats(), MapStats { misplaced: 1, ..MapStats::default() });
    assert!(site.is_reported());
    site.hand_over(&[1], None);
    site.answer(1, &confirmed);
    assert_eq!(site.map.stats(), MapStats { forwarded: 1, misplaced: 1, ..MapStats::default() });
}
