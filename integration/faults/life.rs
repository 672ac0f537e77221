//! Rows 23, 27, 36, 37: second processes, repeated requests, signals.

use crate::scene::{Context, Row, Scene, Sending};
use std::time::Duration;
use tidegate_harness::{workdir, Daemon};

/// Another process on the same store ends at once; the first continues.
pub fn second_process(context: &Context) -> Row {
    let mut scene = Scene::under_load(context, "second", 300, |_, c| c);
    for _ in 0..2 {
        scene.moments.pause(200, 500);
        scene.fault();
        let mut second = Daemon::start(&scene.site.config(), &workdir("second"));
        let status = second.exit(Duration::from_secs(10));
        scene.check(status.code() == Some(75), format!("the second process ended with {status}"));
        let named = second.log().contains(&scene.daemon.pid().to_string());
        scene.check(named, "it does not name the first one's pid");
        scene.healed();
    }
    scene.moments.pause(200, 400);
    scene.finish().without_repeats()
}

/// Requests published two to five times, some of them also redelivered.
pub fn same_request(context: &Context) -> Row {
    let mut scene = Scene::on(context, &context.node, "again", |_, c| c);
    scene.start();
    scene.daemon.term();
    scene.daemon.exit(Duration::from_secs(20));
    let request = |scene: &Scene<'_>, n: u64, delay: u64| -> Sending {
        let customer = format!("c{}", n % 10);
        let push = scene.site.push("shop", "{}").id(&format!("{n}")).customer(&customer).delay(delay as i64);
        (push, "shop".to_owned(), Some(customer), Some(tidegate_harness::now_ms() + delay))
    };
    let first: Vec<Sending> = (0..300).map(|n| request(&scene, n, 600)).collect();
    let mut again = 0;
    scene.send(first.clone());
    for times in 0..4u64 {
        let copies: Vec<_> = first
            .iter()
            .enumerate()
            .filter(|(n, _)| *n as u64 % 4 >= times)
            .map(|(_, r)| r.0.clone())
            .collect();
        again += copies.len();
        scene.site.client.publish_all(copies);
    }
    scene.fault();
    scene.site.client.give_back(&scene.site.ingest_queue(), 700);
    scene.start();
    scene.healed();
    // Once more while they wait, and once after they were sent.
    let copies: Vec<_> = first.iter().map(|r| r.0.clone()).collect();
    scene.site.client.publish_all(copies.clone());
    let ledger = std::sync::Arc::clone(&scene.ledger);
    scene.check_soon("all have arrived", Duration::from_secs(20), |_| ledger.missing() == 0);
    scene.site.client.publish_all(copies.clone());
    again += 2 * copies.len();
    let dropped = |s: &Scene<'_>| {
        let totals = s.daemon.state()["totals"].clone();
        totals["duplicates"]["keep"]["dropped"].as_u64() == Some(again as u64)
    };
    scene.check_soon("every copy is counted as dropped", Duration::from_secs(10), dropped);
    let redelivered = scene.total("redelivered");
    scene.check(redelivered >= 700, format!("{redelivered} redelivered"));
    scene.finish().without_repeats()
}

/// Orderly stops under load, and then one that a second signal cuts short.
pub fn terminated(context: &Context) -> Row {
    // Longer than the row takes to see that it drains, before the second signal.
    let change = |c: tidegate_harness::Config| c.text("timeouts.drain", "120s");
    let mut scene = Scene::under_load(context, "term", 800, |_, c| change(c));
    scene.restarted = true;
    for _ in 0..3 {
        scene.moments.pause(500, 1200);
        scene.fault();
        scene.daemon.term();
        let status = scene.daemon.exit(Duration::from_secs(15));
        scene.check(status.code() == Some(0), format!("it ended with {status}"));
        scene.start();
        scene.healed();
    }
    let repeats = scene.ledger.repeats();
    scene.check(repeats == 0, format!("{repeats} repeats after orderly stops"));
    // Due items cannot leave, so the stop takes a while.
    context.node.memory_alarm(true);
    let blocked = |s: &Scene<'_>| s.daemon.state()["state"] == "blocked";
    scene.check_soon("the state says that the broker blocks", Duration::from_secs(20), blocked);
    scene.fault();
    scene.daemon.term();
    // Two signals in a row could be merged into one.
    let stops = |s: &Scene<'_>| {
        let (status, told) = s.daemon.ask("GET", "/readyz");
        s.daemon.stage() == "draining" && status == 503 && told["missing"].to_string().contains("consumer")
    };
    scene.check_soon("it stops, and is not ready", Duration::from_secs(10), stops);
    scene.daemon.term();
    context.node.memory_alarm(false);
    let status = scene.daemon.exit(Duration::from_secs(15));
    scene.check(status.code() == Some(143), format!("after a second SIGTERM it ended with {status}"));
    scene.start();
    scene.healed();
    scene.moments.pause(300, 600);
    scene.finish()
}

/// A file with faults changes nothing; new and changed applications apply at once; a removed table loses
/// nothing.
pub fn reloaded(context: &Context) -> Row {
    let mut scene = Scene::under_load(context, "reload", 300, |_, c| c);
    let pid = scene.daemon.pid();
    let config = scene.site.config();
    scene.site.application("mail");
    scene.record("mail");
    let told = |s: &Scene<'_>, text: &str| s.daemon.log().matches(text).count();
    let reload = |scene: &mut Scene<'_>, config: &tidegate_harness::Config, says: &str| {
        let before = told(scene, says);
        scene.fault();
        scene.daemon.rewrite(config);
        scene.daemon.hup();
        scene.check_soon(says, Duration::from_secs(10), |s| told(s, says) > before);
        scene.healed();
    };
    let faulty = config.clone().text("defaults.windw", "1s").text("defaults.window", "a while");
    reload(&mut scene, &faulty, "not reloaded");
    let named = scene.daemon.log().contains("windw");
    scene.check(named, "the faulty key is not named");
    let with_mail = config.clone().text("applications.mail.window", "5s");
    reload(&mut scene, &with_mail, "configuration reloaded");
    let mail = |scene: &Scene<'_>, n: u64| -> Sending {
        let push = scene.site.push("mail", "{}").id(&format!("mail{n}")).customer("c");
        (push, "mail".to_owned(), Some("c".to_owned()), None)
    };
    scene.send((0..50).map(|n| mail(&scene, n)));
    let waits = |s: &Scene<'_>| s.daemon.items("windows") > 0 && s.ledger.missing() >= 50;
    scene.check_soon("the new application's window is in force", Duration::from_secs(10), waits);
    reload(&mut scene, &config, "configuration reloaded");
    scene.send((50..60).map(|n| mail(&scene, n)));
    let ready = scene.daemon.ask("GET", "/readyz").0;
    scene.check(ready == 200, "it reconnects after a reload");
    scene.moments.pause(300, 600);
    let same = scene.daemon.running() && scene.daemon.pid() == pid;
    scene.check(same, "it is not the same process");
    scene.finish().without_repeats()
}
