//! Tests of which bindings are ordered, and when, without a broker.

use super::*;
use crate::{request_limits, MapStats};
use tidegate_config::{Config, ShardsConfig};
use tidegate_wire::{home, shared_request, Delivered, ForwardKey, Sharing};

const COUNT: u16 = 2;

/// The mapper of shard 0, and the ends of what would carry out its orders.
struct Site {
    mapper: Mapper,
    map: Arc<SharedMap>,
    orders: Receiver<MapOrder>,
    now: Instant,
}

fn site() -> Site {
    let map = Arc::new(SharedMap::default());
    map.prepared(true);
    let config = Config { shards: ShardsConfig { count: COUNT }, ..Config::default() };
    let mut mapper = Mapper::new(Arc::clone(&map), Arc::new(Names::of(&config)), 0);
    let (_, orders) = mapper.opened();
    Site { mapper, map, orders, now: Instant::now() }
}

/// The name of an application whose home is shard 0.
fn name(n: usize) -> String {
    (0..).map(|n| format!("app-{n}")).filter(|name| home(name, COUNT) == 0).nth(n).unwrap()
}

/// A request of this application with this key, as the sharder or another shard reads it.
fn request(application: &str, key: &str, came_to: Option<u16>) -> Forward {
    let mut headers = lapin::types::FieldTable::default();
    headers.insert("x-application".into(), lapin::types::AMQPValue::LongString(application.into()));
    let delivered = Delivered {
        exchange: "tidegate.in".into(),
        routing_key: ShortString::try_new(key).unwrap(),
        properties: lapin::BasicProperties::default().with_headers(headers),
        body: b"{}".to_vec(),
        redelivered: false,
        received: 1_800_000_000_000,
    };
    let sharing = Sharing { own: came_to, count: COUNT, key: ForwardKey::new([1; 32]) };
    let (config, limits) = (Config::default(), request_limits(&Config::default()));
    let read = shared_request(delivered, &limits, &config.readings, 0, &sharing);
    read.forwards.into_iter().next().unwrap()
}

impl Site {
    /// A request of this application has come through the ingest queue.
    fn meets(&mut self, application: &str) {
        self.comes(&request(application, application, None), None);
    }

    fn comes(&mut self, request: &Forward, came_to: Option<u16>) {
        self.mapper.meet(request, came_to, self.now);
    }

    /// The order that is given after so many milliseconds.
    fn after(&mut self, ms: u64) -> Option<(String, Option<u16>)> {
        self.now += Duration::from_millis(ms);
        self.mapper.order(self.now);
        let order = self.orders.try_recv().ok()?;
        Some((order.application.to_string(), order.wrong))
    }

    fn answer(&mut self, answer: Result<(), &str>) {
        self.mapper.settle(answer.map_err(str::to_owned), self.now);
    }

    fn counts(&self) -> [u64; 3] {
        let MapStats { bound, corrected, bind_failures, .. } = self.map.stats();
        [bound, corrected, bind_failures]
    }
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap()
}

#[test]
fn an_application_is_bound_in_a_quiet_moment_and_again_if_its_requests_still_come() {
    let mut site = site();
    let (shop, mail) = (name(0), name(1));
    site.meets(&shop);
    assert_eq!(site.after(99), None);
    site.meets(&shop);
    assert_eq!(site.after(99), None, "its last request counts");
    assert_eq!(site.after(1), Some((shop.clone(), None)));
    site.meets(&mail);
    assert_eq!((site.after(100), site.counts()), (None, [0, 0, 0]), "one at a time");
    site.answer(Ok(()));
    assert_eq!((site.after(0), site.counts()), (Some((mail, None)), [1, 0, 0]));
    site.answer(Ok(()));
    site.now += AGAIN - Duration::from_millis(101);
    site.meets(&shop);
    assert_eq!(site.after(1_000), None, "it waited in the ingest queue");
    site.meets(&shop);
    assert_eq!(site.after(100), Some((shop, None)), "somebody has taken its binding away");
    site.answer(Ok(()));
    assert_eq!(site.counts(), [3, 0, 0]);
}

#[test]
fn an_application_that_is_never_quiet_is_bound_after_a_second() {
    let mut site = site();
    let shop = name(0);
    for _ in 0..20 {
        site.meets(&shop);
        assert_eq!(site.after(49), None);
    }
    site.meets(&shop);
    assert_eq!(site.after(20), Some((shop, None)));
}

#[test]
fn after_a_failure_none_is_tried_for_a_minute() {
    let mut site = site();
    let (shop, mail) = (name(0), name(1));
    site.meets(&shop);
    assert_eq!(site.after(100), Some((shop, None)));
    site.answer(Err("ACCESS_REFUSED"));
    site.meets(&mail);
    assert_eq!((site.after(ms(REST) - 1), site.counts()), (None, [0, 0, 1]));
    assert_eq!(site.after(1), Some((mail.clone(), None)));
    // Its connection is lost: nobody has answered.
    let (answers, orders) = site.mapper.opened();
    assert_eq!((site.after(ms(REST)), site.counts()), (None, [0, 0, 1]));
    site.meets(&mail);
    drop((answers, orders));
    assert_eq!(site.after(100), None, "there is no connection");
    (_, site.orders) = site.mapper.opened();
    assert_eq!(site.after(0), Some((mail, None)));
}

#[test]
fn a_binding_to_a_wrong_shard_is_taken_away_where_the_request_proves_it() {
    let mut site = site();
    let (shop, mail) = (name(0), name(1));
    site.comes(&request(&shop, &shop, Some(1)), Some(1));
    assert_eq!(site.after(100), Some((shop.clone(), Some(1))));
    site.answer(Ok(()));
    assert_eq!(site.counts(), [1, 1, 0]);
    for came_to in [None, Some(1)] {
        let foreign = name(2);
        site.comes(&request(&mail, &foreign, came_to), came_to);
    }
    assert_eq!(site.after(1_000), None, "by another key");
    site.map.prepared(false);
    // Another way may lead to the ingest queue.
    site.meets(&mail);
    assert_eq!((site.after(1_000), site.counts()), (None, [1, 1, 0]));
}

#[test]
fn no_more_applications_are_bound_than_there_is_room_for() {
    let mut site = site();
    while site.map.admits() {}
    site.meets(&name(0));
    assert_eq!(site.after(1_000), None);
}
