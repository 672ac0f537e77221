//! Rows 13, 14, 31, 32: network faults, made by a proxy in front of the broker.

use crate::scene::{proxy, through, Context, Row, Scene};
use std::time::{Duration, Instant};
use tidegate_harness::{Way, Welcome};

/// Both connections are cut repeatedly, by RST and by FIN, with hundreds of batches unconfirmed.
pub fn cut(context: &Context) -> Row {
    let proxy = proxy(&context.node);
    let mut scene = Scene::under_load(context, "cut", 1500, |_, c| c.text("amqp.uri", &through(&proxy)));
    for n in 0..10 {
        scene.moments.pause(200, 900);
        scene.fault();
        let before = proxy.accepted();
        proxy.cut(n % 2 == 0);
        let both = |_: &Scene<'_>| proxy.accepted() >= before + 2;
        scene.check_soon("both connect again", Duration::from_secs(20), both);
        scene.healed();
        scene.daemon.wait_ready();
    }
    scene.moments.pause(300, 600);
    scene.finish()
}

/// The connection stays open but confirms do not arrive; then nothing passes in either direction.
pub fn stalled(context: &Context) -> Row {
    let (ingest, egress) = (proxy(&context.node), proxy(&context.node));
    let mut scene = Scene::under_load(context, "stall", 500, |_, c| {
        c.text("amqp.uri", &through(&ingest))
            .text("egress.uri", &through(&egress))
            // A confirm that a busy machine delays for longer would be given up without a fault.
            .text("timeouts.confirm", "8s")
            .text("timeouts.connect", "5s")
    });
    scene.moments.pause(500, 800);
    for one_way in [true, false] {
        let unknown = scene.total("unknown");
        scene.fault();
        if one_way {
            egress.stall_one(Way::Down);
        } else {
            egress.stall();
        }
        let given_up = |s: &Scene<'_>| s.total("unknown") > unknown;
        scene.check_soon("confirms are given up", Duration::from_secs(10), given_up);
        scene.moments.pause(200, 1200);
        egress.heal();
        scene.healed();
        scene.daemon.wait_ready();
        scene.moments.pause(500, 800);
    }
    scene.finish()
}

/// 10 kB per second each way under a higher load: intake stops, memory stays bounded, nothing is sent twice.
pub fn slow(context: &Context) -> Row {
    let proxy = proxy(&context.node);
    let mut scene = Scene::under_load(context, "slow", 300, |_, c| c.text("amqp.uri", &through(&proxy)));
    scene.moments.pause(800, 1000);
    let before = scene.daemon.rss();
    scene.fault();
    proxy.slow(10_000);
    std::thread::sleep(Duration::from_secs(10));
    let after = scene.daemon.rss();
    proxy.heal();
    scene.healed();
    scene.check(after < before + (64 << 20), format!("memory grew from {before} to {after} bytes"));
    scene.moments.pause(800, 1000);
    let unknown = scene.total("unknown");
    scene.check(unknown == 0, format!("{unknown} publishes were given up on a link that works"));
    scene.finish().without_repeats()
}

/// A host that accepts connections and never answers is skipped for the next one.
pub fn silent(context: &Context) -> Row {
    let proxy = proxy(&context.node);
    proxy.welcome(Welcome::Silent);
    let direct = context.node.uri();
    let mut scene = Scene::on(context, &context.node, "silent", |_, c| {
        c.unset("amqp.uri")
            .set("amqp.uris", &format!("[{:?}, {direct:?}]", through(&proxy)))
            .text("timeouts.connect", "1s")
    });
    scene.fault();
    let begun = Instant::now();
    scene.start();
    scene.healed();
    let took = begun.elapsed();
    scene.check(took < Duration::from_secs(60), format!("ready only after {took:?}"));
    scene.check(proxy.accepted() > 0, "the silent host was not asked");
    scene.load(300);
    scene.moments.pause(800, 1200);
    scene.finish()
}
