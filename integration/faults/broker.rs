//! Rows 9 to 12, 15, 16, 28, 29: the broker refuses, closes, deletes or blocks.
//!
//! Judges promises 3 and 6.

use crate::scene::{Bystander, Context, Row, Scene, Sending};
use std::time::Duration;
use tidegate_harness::lapin::types::{AMQPValue, FieldTable};
use tidegate_harness::{now_ms, percentile, text, Node};

/// Bound of the lateness of 95 % of what arrives for the application beside, us.
const LATEST_US: i64 = 1_000_000;

/// Runs a row until the application beside it is in time, three times at most, because other work on the machine
/// delays a run. `run` returns that application's lateness, us, sorted.
fn in_time(run: impl Fn() -> (Row, Vec<i64>)) -> Row {
    let (mut last, mut late_ms) = (Row::default(), Vec::new());
    for _ in 0..3 {
        let (row, lateness_us) = run();
        let late_us = percentile(&lateness_us, 95.0);
        if late_us < LATEST_US || !row.wrong.is_empty() {
            return row;
        }
        late_ms.push(late_us / 1000);
        last = row;
    }
    last.wrong.push(format!("another application was late by {late_ms:?} ms in as many runs"));
    last
}

fn is_parked(scene: &Scene<'_>, application: &str) -> bool {
    let state = scene.daemon.ask("GET", "/api/v1/state").1;
    let mut all = state["applications"].as_array().into_iter().flatten();
    all.any(|a| a["name"] == application && a["state"] == "parked" && a["parked"].as_u64() > Some(0))
}

/// A full queue nacks: its application waits, and another does not.
pub fn overflow(context: &Context) -> Row {
    in_time(|| overflow_once(context))
}

fn overflow_once(context: &Context) -> (Row, Vec<i64>) {
    let mut scene = Scene::under_load(context, "overflow", 200, |_, c| c);
    let mut arguments = FieldTable::default();
    arguments.insert("x-max-length".into(), AMQPValue::LongLongInt(20));
    arguments.insert("x-overflow".into(), text("reject-publish"));
    scene.site.application_with("slow", arguments);
    let bystander = Bystander::start(&scene);
    scene.fault();
    let request = |n: u64| -> Sending {
        (scene.site.push("slow", "{}").id(&format!("s{n}")), "slow".to_owned(), None, None)
    };
    scene.send((0..500).map(request));
    scene.check_soon("the application is parked", Duration::from_secs(10), |s| is_parked(s, "slow"));
    scene.moments.pause(2000, 3000);
    // A classic queue may exceed its limit by a few messages.
    let full = |s: &Scene<'_>| {
        s.site.client.depth(&s.site.queue("slow")).is_some_and(|depth| (20..200).contains(&depth))
    };
    scene.check_soon("the queue is full", Duration::from_secs(10), full);
    scene.check(scene.total("nacked") > 0, "nothing was nacked");
    let lateness_us = bystander.end(&mut scene);
    scene.record("slow");
    scene.healed();
    let ledger = std::sync::Arc::clone(&scene.ledger);
    scene.stop_load();
    scene.check_soon("it drains", Duration::from_secs(60), |_| ledger.missing() == 0);
    (scene.finish().without_repeats(), lateness_us)
}

/// The binding is removed and restored while batches are in flight.
pub fn unbound(context: &Context) -> Row {
    in_time(|| unbound_once(context))
}

fn unbound_once(context: &Context) -> (Row, Vec<i64>) {
    let mut scene = Scene::under_load(context, "unbound", 800, |_, c| c);
    let bystander = Bystander::start(&scene);
    let (queue, out) = (scene.site.queue("shop"), scene.site.out());
    for _ in 0..3 {
        scene.moments.pause(400, 800);
        scene.fault();
        scene.site.client.unbind(&queue, &out, "shop");
        scene.check_soon("the application is parked", Duration::from_secs(10), |s| is_parked(s, "shop"));
        scene.moments.pause(300, 1000);
        scene.site.client.bind(&queue, &out, "shop");
        scene.healed();
    }
    scene.moments.pause(1000, 1500);
    let lateness_us = bystander.end(&mut scene);
    (scene.finish().without_repeats(), lateness_us)
}

/// The exchange is deleted, which closes the publishing channel; intake continues.
pub fn exchange_deleted(context: &Context) -> Row {
    let mut scene = Scene::under_load(context, "exchange", 300, |_, c| c);
    scene.restarted = true;
    let out = scene.site.out();
    scene.moments.pause(400, 800);
    scene.fault();
    scene.site.client.delete_exchange(&out);
    scene.moments.pause(400, 800);
    scene.site.application("shop");
    scene.healed();
    scene.daemon.wait_ready();
    scene.moments.pause(400, 800);
    scene.stop_load();
    scene.daemon.term();
    scene.daemon.exit(Duration::from_secs(20));
    // Otherwise the daemon would create the exchange again at once.
    scene.daemon.rewrite(&scene.config.clone().text("amqp.topology", "passive"));
    scene.start();
    scene.load(800);
    for _ in 0..3 {
        scene.moments.pause(400, 800);
        let accepted = scene.total("accepted");
        scene.fault();
        scene.site.client.delete_exchange(&out);
        let goes_on = |s: &Scene<'_>| s.total("accepted") > accepted + 400;
        scene.check_soon("requests are taken meanwhile", Duration::from_secs(10), goes_on);
        scene.site.application("shop");
        scene.healed();
        scene.daemon.wait_ready();
    }
    scene.moments.pause(400, 800);
    scene.finish()
}

/// Evaluates an expression, and closes the connections of the user `other`, because channels cache
/// permissions.
fn and_disconnect(node: &Node, expression: &str) {
    let close = "[rabbit_networking:close_connection(P, \"test\") || [{pid, P}, {user, <<\"other\">>}] <- \
                 rabbit_networking:connection_info_all([pid, user])]";
    node.eval(&format!("{expression}, {close}."));
}

fn permit(write: &str) -> String {
    format!(
        "rabbit_auth_backend_internal:set_permissions(<<\"other\">>, <<\"/\">>, <<\".*\">>, <<\"{write}\">>, \
         <<\".*\">>, <<\"test\">>)"
    )
}

fn password(word: &str) -> String {
    format!("rabbit_auth_backend_internal:change_password(<<\"other\">>, <<\"{word}\">>, <<\"test\">>)")
}

/// The account loses the permission to write, and later cannot log in: no hot loop, and the status names the
/// cause.
pub fn refused(context: &Context) -> Row {
    let node = &context.node;
    let mut scene =
        Scene::under_load(context, "refused", 300, |_, c| c.text("egress.uri", &node.uri_of("other", "%2f")));
    for (revoke, restore) in [(permit("^$"), permit(".*")), (password("changed"), password("other"))] {
        scene.moments.pause(400, 800);
        let lines = scene.daemon.log().lines().count();
        scene.fault();
        and_disconnect(node, &revoke);
        let told = |s: &Scene<'_>| {
            let state = s.daemon.ask("GET", "/api/v1/state").1;
            let text = format!("{} {}", state["links"], state["applications"]).to_lowercase();
            text.contains("access_refused") || text.contains("access refused")
        };
        scene.check_soon("the status names what is refused", Duration::from_secs(10), told);
        scene.moments.pause(3000, 4000);
        let written = scene.daemon.log().lines().count() - lines;
        scene.check(written < 60, format!("a hot loop: {written} lines of log in a few seconds"));
        and_disconnect(node, &restore);
        scene.healed();
        scene.daemon.wait_ready();
        let open = |s: &Scene<'_>| !is_parked(s, "shop");
        scene.check_soon("it is delivered again", Duration::from_secs(15), open);
    }
    scene.moments.pause(400, 800);
    scene.finish()
}

/// Kills and stops of the node, and stops of the broker application within it, under load.
pub fn restarted(context: &Context) -> Row {
    let node = Node::start("", "");
    let mut scene = Scene::on(context, &node, "broker", |_, c| c);
    scene.start();
    scene.load(500);
    let pid = scene.daemon.pid();
    let rounds = match context {
        Context { long: true, .. } => 10,
        Context { quick: true, .. } => 3,
        _ => 4,
    };
    for round in 0..rounds {
        scene.moments.pause(1000, 2000);
        scene.fault();
        match round % 3 {
            0 => {
                node.kill9();
                node.start_again();
            }
            1 => {
                node.ctl(&["stop_app"]);
                scene.moments.pause(100, 500);
                node.ctl(&["start_app"]);
            }
            _ => {
                node.stop();
                scene.moments.pause(100, 500);
                node.start_again();
            }
        }
        scene.healed();
        scene.daemon.wait_ready();
    }
    scene.moments.pause(1000, 1500);
    let same = scene.daemon.running() && scene.daemon.pid() == pid;
    scene.check(same, "it is not the same process");
    scene.reconnect();
    scene.finish()
}

/// The memory alarm blocks publishers: requests are still accepted and acked, and nothing is sent again.
pub fn alarm(context: &Context) -> Row {
    let mut scene = Scene::under_load(context, "alarm", 300, |_, c| c.text("timeouts.confirm", "10s"));
    scene.moments.pause(500, 800);
    scene.stop_load();
    scene.check_soon("nothing of the load waits", Duration::from_secs(10), |s| s.ledger.missing() == 0);
    // Due only after the alarm is on: on a busy machine raising it takes some seconds.
    let request = |n: u64| -> Sending {
        let push = scene.site.push("shop", "{}").id(&format!("a{n}")).delay(8_000);
        (push, "shop".to_owned(), None, Some(now_ms() + 8_000))
    };
    scene.send((0..3000).map(request));
    scene.fault();
    context.node.memory_alarm(true);
    let blocked = |s: &Scene<'_>| s.daemon.state()["state"] == "blocked";
    scene.check_soon("the state says blocked", Duration::from_secs(20), blocked);
    let queue = scene.site.ingest_queue();
    let taken =
        |s: &Scene<'_>| s.site.client.depth(&queue) == Some(0) && s.daemon.state()["uncommitted"] == 0;
    scene.check_soon("what waits in the queue is taken", Duration::from_secs(10), taken);
    // The time until they are due, and more than the confirm timeout, which does not run while the broker blocks.
    std::thread::sleep(Duration::from_secs(if context.long { 300 } else { 21 }));
    let unknown = scene.total("unknown");
    scene.check(unknown == 0, format!("{unknown} publishes were given up while blocked"));
    context.node.memory_alarm(false);
    scene.healed();
    scene.load(300);
    scene.moments.pause(500, 800);
    scene.finish().without_repeats()
}

/// The broker closes the channel of a consumer that acks too late; the memory store does so by design.
pub fn consumer_timeout(context: &Context) -> Row {
    let set = |timeout: u32, tick: u32| {
        context.node.eval(&format!(
            "application:set_env(rabbit, consumer_timeout, {timeout}), \
             application:set_env(rabbit, channel_tick_interval, {tick})."
        ));
    };
    set(4_000, 1_000);
    let mut scene = Scene::on(context, &context.node, "timeout", |_, c| c.text("store.kind", "memory"));
    scene.start();
    let when = now_ms() + 15_000;
    let header = i64::try_from(when).unwrap_or(i64::MAX);
    let request = |n: u64| -> Sending {
        let push = scene.site.push("shop", "{}").id(&format!("held{n}")).number("x-deliver-at", header);
        (push, "shop".to_owned(), None, Some(when))
    };
    scene.send((0..20).map(request));
    scene.fault();
    scene.load(100);
    let closed = |s: &Scene<'_>| s.daemon.log().contains("PRECONDITION_FAILED");
    scene.check_soon("the broker closes the channel", Duration::from_secs(13), closed);
    let begun = std::time::Instant::now();
    scene.daemon.wait_ready();
    let took = begun.elapsed();
    scene.check(took < Duration::from_secs(30), format!("consuming again only after {took:?}"));
    scene.stop_load();
    let arrived = |s: &Scene<'_>| s.ledger.missing() == 0;
    scene.check_soon("what was held arrives", Duration::from_secs(20), arrived);
    set(1_800_000, 60_000);
    scene.healed();
    scene.load(100);
    scene.moments.pause(500, 800);
    scene.finish()
}

/// The ingest queue is deleted, which cancels the consumer; both are restored.
pub fn queue_deleted(context: &Context) -> Row {
    let mut scene = Scene::under_load(context, "queue", 300, |_, c| c);
    let queue = scene.site.ingest_queue();
    for _ in 0..2 {
        scene.moments.pause(500, 800);
        // A deleted queue loses its messages: only those that the daemon has accepted survive.
        scene.stop_load();
        let taken = |s: &Scene<'_>| s.ledger.missing() == 0;
        scene.check_soon("nothing of the load waits", Duration::from_secs(10), taken);
        let request = |n: u64| -> Sending {
            let push = scene.site.push("shop", "{}").id(&format!("w{n}-{}", now_ms())).delay(2000);
            (push, "shop".to_owned(), None, Some(now_ms() + 2000))
        };
        let accepted = scene.total("accepted");
        scene.send((0..100).map(request));
        scene.check_soon("they are taken", Duration::from_secs(10), |s| {
            let state = s.daemon.state();
            s.total("accepted") >= accepted + 100 && state["uncommitted"] == 0
        });
        scene.moments.pause(100, 200);
        scene.fault();
        scene.site.client.delete_queue(&queue);
        let back = |s: &Scene<'_>| s.site.client.depth(&queue).is_some();
        scene.check_soon("the queue is back", Duration::from_secs(10), back);
        scene.daemon.wait_ready();
        scene.healed();
        scene.load(300);
    }
    scene.moments.pause(500, 800);
    scene.finish()
}
