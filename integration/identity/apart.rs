//! Concurrent duplicates become one item; different ids, applications and customers are never confused.

use super::duplicates;
use std::collections::BTreeSet;
use std::time::Duration;
use tidegate_harness::{wait_until, Client, Site};

#[test]
fn the_same_id_of_another_application_is_another_item() {
    let site = Site::new("apps");
    let (shop, mail) = (site.inbox("shop"), site.inbox("mail"));
    let _daemon = site.start(&site.config());
    site.client.publish_all([site.push("shop", "1").id("x"), site.push("mail", "2").id("x")]);
    assert_eq!((shop.batch().ids(), mail.batch().ids()), (vec!["x"], vec!["x"]));
}

#[test]
fn two_producers_with_the_same_ids_in_the_same_milliseconds() {
    let site = Site::new("race");
    let inbox = site.inbox("shop");
    let daemon = site.start(&site.config());
    // At once, windowed and timed, so that every kind of waiting meets a duplicate.
    let pushes: Vec<_> = (0..300)
        .map(|n| {
            let push = site.push("shop", "1").id(&format!("{n}"));
            match n % 3 {
                0 => push,
                1 => push.customer(&format!("c{}", n % 5)),
                _ => push.customer(&format!("c{}", n % 5)).delay(300),
            }
        })
        .collect();
    let producers: Vec<Client> = (0..3).map(|_| Client::connect(site.node.uri())).collect();
    std::thread::scope(|scope| {
        for producer in &producers {
            scope.spawn(|| producer.publish_all(pushes.iter().cloned()));
        }
    });
    let ids: BTreeSet<String> =
        inbox.items(300, Duration::from_secs(10)).into_iter().map(|item| item.id).collect();
    assert_eq!(ids.len(), 300);
    wait_until("the others are dropped", Duration::from_secs(5), || {
        duplicates(&daemon, "keep", "dropped") == 600
    });
    inbox.quiet(Duration::from_millis(500));
    assert_eq!(daemon.state()["totals"]["accepted"], 300);
}

#[test]
fn what_only_looks_alike_is_not_the_same() {
    let site = Site::new("alike");
    let names = ["a", "ab", "A"];
    let inboxes = names.map(|name| site.inbox(name));
    // Each window closes by its last item.
    let config = site.config().text("defaults.window", "10m").set("defaults.max_items", "8");
    let daemon = site.start(&config);
    let ids = ["c", "bc", "C", "c ", " c", "c/0", "ç", "c\u{327}"];
    let customers = ["k", "K", "k ", "kk", "k\u{301}"];
    let mut wanted = BTreeSet::new();
    for name in names {
        for customer in customers {
            for id in ids {
                let id = format!("{customer}|{id}");
                site.client.publish(&site.push(name, "1").id(&id).customer(customer));
                wanted.insert((name.to_owned(), customer.to_owned(), id));
            }
        }
    }
    let mut got = BTreeSet::new();
    for (name, inbox) in names.into_iter().zip(&inboxes) {
        for _ in customers {
            let batch = inbox.batch();
            let customer = batch.customer.clone().expect("a customer");
            assert_eq!((batch.application.as_str(), batch.items.len()), (name, ids.len()), "{customer:?}");
            got.extend(batch.items.into_iter().map(|item| (name.to_owned(), customer.clone(), item.id)));
        }
    }
    assert_eq!(got, wanted);
    assert_eq!(duplicates(&daemon, "keep", "dropped"), 0);
}
