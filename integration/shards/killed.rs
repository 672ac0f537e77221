//! The process ends, by a kill and by an orderly stop, under load for all shards.

use super::{applications, consumed, counted, site};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::TryRecvError;
use std::sync::Arc;
use std::time::Duration;
use tidegate_harness::lapin::types::FieldTable;
use tidegate_harness::{wait_until, Client, Ledger, Load, Moments, Push, Recorder, Site};

/// Time limit of a wait for requests on their way.
const LIMIT: Duration = Duration::from_secs(60);
/// Requests per second of all applications together.
const RATE: u64 = 400;

/// Windowed, timed and immediate requests for these applications in turn, with ids that begin with `name`.
pub fn load(site: &Site<'_>, ledger: &Arc<Ledger>, name: &str, applications: &[String]) -> Load {
    let (exchange, name, applications) = (site.ingest(), name.to_owned(), applications.to_vec());
    let recipe = move |n: u64| {
        let turn = n / applications.len() as u64;
        let application = applications[(n % applications.len() as u64) as usize].clone();
        let push = Push::new(&exchange, &application, n.to_string());
        match turn % 4 {
            0 => (push.id(&format!("{name}-now-{n}")), application, None, None),
            1 => {
                let delay = n * 37 % 2_000;
                let push = push.id(&format!("{name}-timed-{n}")).delay(delay.cast_signed()).customer("timed");
                (push, application, Some("timed".to_owned()), Some(delay))
            }
            _ => {
                let customer = format!("c{}", turn % 2);
                let push = push.id(&format!("{name}-{application}-{customer}-{n:06}")).customer(&customer);
                (push, application, Some(customer), None)
            }
        }
    };
    Load::start(site.node.uri(), RATE, ledger, Box::new(recipe))
}

/// Panics unless the windowed items of this load arrived in the order of their requests, for each customer.
pub fn in_order(arrivals: &[String], name: &str) {
    let mut last: BTreeMap<&str, &str> = BTreeMap::new();
    let mut count = 0;
    for id in arrivals.iter().filter(|id| id.starts_with(&format!("{name}-app-"))) {
        let (customer, _) = id.rsplit_once('-').expect("a number");
        if let Some(before) = last.insert(customer, id) {
            assert!(before < id.as_str(), "{id} came behind {before}");
        }
        count += 1;
    }
    assert!(count >= 100, "{count} windowed items of {name}");
}

/// Judges promise 3.
#[test]
fn three_kills_under_load_lose_nothing_and_explain_every_repeat() {
    let site = site("shards-killed");
    let names = applications(2);
    let queues: Vec<String> = names.iter().map(|name| site.queue(name)).collect();
    names.iter().for_each(|name| site.application(name));
    let ledger = Ledger::new();
    let recorder = Recorder::start(site.node.uri(), &queues, &ledger);
    let mut daemon = site.start(&site.config());
    let mut moments = Moments::of("shards-killed");
    let some_more = |count: usize| {
        let sent = ledger.confirmed_count() + count;
        wait_until("some more have come", LIMIT, || ledger.arrived_count() >= sent);
    };
    // When an application gets its binding, requests may overtake those that are still on their way.
    let first = load(&site, &ledger, "first", &names);
    wait_until("all are bound", LIMIT, || counted(&daemon, "bound") == names.len() as u64);
    first.stop();
    assert!(ledger.arrives(LIMIT), "{} have not arrived", ledger.missing());
    let before = load(&site, &ledger, "before", &names);
    some_more(400);
    before.stop();
    assert!(ledger.arrives(LIMIT), "{} have not arrived", ledger.missing());
    let amid = load(&site, &ledger, "amid", &names);
    for _ in 0..3 {
        some_more(100);
        moments.pause(50, 600);
        ledger.fault();
        daemon.kill9();
        daemon.start_again();
        daemon.wait_ready();
        ledger.healed();
    }
    some_more(100);
    amid.stop();
    assert!(ledger.arrives(LIMIT), "{} have not arrived", ledger.missing());
    ledger.past();
    let after = load(&site, &ledger, "after", &names);
    some_more(400);
    after.stop();
    let report = ledger.settle(LIMIT);
    report.assert_clean();
    assert!(report.unexplained.is_empty(), "{:?}", report.unexplained);
    let arrivals = ledger.arrivals();
    in_order(&arrivals, "before");
    in_order(&arrivals, "after");
    drop(recorder);
    for queue in super::queues(&site).chain([site.dead()]) {
        site.lies(&queue, 0);
    }
}

/// The queues are classic ones. A quorum queue of RabbitMQ ignores some of the acks that it gets right before
/// their channel is closed.
#[test]
fn an_orderly_stop_under_load_repeats_nothing_even_without_ids() {
    let site = site("shards-stopped");
    super::queues(&site).for_each(|queue| site.client.queue(&queue, FieldTable::default()));
    let applications = consumed(&site);
    let mut daemon = site.start(&site.config());
    let sent = AtomicUsize::new(0);
    let (stop, stopping) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let (sent, site, names) = (&sent, &site, super::applications(2));
        // Dropped on a failed round too, so that the producer ends.
        let stop = stop;
        scope.spawn(move || {
            let client = Client::connect(site.node.uri());
            while stopping.try_recv() == Err(TryRecvError::Empty) {
                let first = sent.load(Ordering::Relaxed);
                let push = |n: usize| {
                    let push = site.push(&names[n % 8], n.to_string()).content_type("application/json");
                    if n % 16 < 8 {
                        push
                    } else {
                        push.customer("c")
                    }
                };
                sent.fetch_add(client.publish_all((first..first + 40).map(push)), Ordering::Relaxed);
            }
        });
        for _ in 0..3 {
            let before = sent.load(Ordering::Relaxed);
            wait_until("more is sent", LIMIT, || sent.load(Ordering::Relaxed) >= before + 1_000);
            daemon.term();
            let status = daemon.exit(LIMIT);
            assert!(status.success(), "{status}: {}", daemon.log_tail());
            daemon.start_again();
            daemon.wait_ready();
        }
        drop(stop);
    });
    let sent = sent.load(Ordering::Relaxed);
    for (place, (application, inbox)) in applications.iter().enumerate() {
        let wanted: Vec<usize> = (0..sent).filter(|n| n % 8 == place).collect();
        let payload = |item: tidegate_harness::Item| item.payload.and_then(|p| p.as_u64()).expect("a number");
        let items = inbox.items(wanted.len(), LIMIT).into_iter();
        let mut came: Vec<usize> = items.map(|item| payload(item) as usize).collect();
        came.sort_unstable();
        let again: Vec<usize> =
            came.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]).collect();
        assert!(again.is_empty(), "{application}: {again:?} came twice");
        assert!(came == wanted, "VERDICT: {application}: something is lost");
    }
    daemon.holds("waiting", 0);
    for (_, inbox) in &applications {
        inbox.quiet(Duration::from_millis(50));
    }
}
