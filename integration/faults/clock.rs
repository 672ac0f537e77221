//! Rows 24 and 25: the wall clock steps while the daemon runs, by libfaketime. The monotonic clock does not. Or no time
//! passes for the process.

use crate::scene::{Context, Row, Scene, Sending};
use std::time::Duration;
use tidegate_harness::{now_ms, WallClock};

const HOUR_MS: u64 = 3_600_000;

/// A daemon with a wall clock of its own; a wrong row where that cannot be had.
fn faked<'c>(context: &'c Context, name: &str) -> Result<(Scene<'c>, WallClock), Box<Row>> {
    let mut scene = Scene::on(context, &context.node, name, |_, c| c);
    let dir = scene.site.dir.clone();
    let Some(clock) = WallClock::of(&mut scene.daemon, &dir) else {
        return Err(Box::new(Row::lacking("the package faketime")));
    };
    scene.start();
    scene.load(200);
    scene.moments.pause(500, 700);
    Ok((scene, clock))
}

/// Requests with an own time, `in_ms` from now by the real clock. Their earliest moment is left to the row: the
/// daemon goes by another clock.
fn timed(scene: &Scene<'_>, name: &str, count: u64, in_ms: u64) -> Vec<Sending> {
    let when = i64::try_from(now_ms() + in_ms).unwrap_or(i64::MAX);
    let request = |n| {
        let push = scene.site.push("shop", "{}").id(&format!("{name}{n}")).number("x-deliver-at", when);
        (push, "shop".to_owned(), None, None)
    };
    (0..count).map(request).collect()
}

/// What was due within the hour leaves at once, what is due later stays.
pub fn forward(context: &Context) -> Row {
    let (mut scene, clock) = match faked(context, "forward") {
        Ok(faked) => faked,
        Err(row) => return *row,
    };
    // A steady load is early by the real clock once the daemon's is ahead.
    scene.stop_load();
    scene.check_soon("nothing of the load waits", Duration::from_secs(10), |s| s.ledger.missing() == 0);
    scene.send(timed(&scene, "soon", 300, HOUR_MS / 2));
    scene.send(timed(&scene, "later", 50, 2 * HOUR_MS));
    scene.check_soon("they wait", Duration::from_secs(10), |s| s.daemon.items("waiting") == 350);
    let missing = scene.ledger.missing();
    scene.check(missing == 350, format!("VERDICT: {} left before the step", 350 - missing));
    scene.fault();
    clock.set(3_600_000);
    scene.check_soon("what is due leaves", Duration::from_secs(10), |s| s.ledger.missing() == 50);
    scene.healed();
    let told = |s: &Scene<'_>| s.total("clock_forward") == 1;
    scene.check_soon("the step is counted", Duration::from_secs(10), told);
    // What has arrived is let go of a moment later, with its confirm.
    let rest = |s: &Scene<'_>| s.daemon.items("waiting") == 50;
    scene.check_soon("what is due in two hours waits", Duration::from_secs(10), rest);
    let missing = scene.ledger.missing();
    scene.check(missing == 50, format!("VERDICT: {} left hours early", 50 - missing));
    // The load's windows go by the monotonic clock: they are as before.
    let windowed = |n: u64| -> Sending {
        let customer = format!("w{n}");
        let push = scene.site.push("shop", "{}").id(&format!("w{n}")).customer(&customer);
        (push, "shop".to_owned(), Some(customer), None)
    };
    scene.send((0..20).map(windowed));
    scene.check_soon("windows close", Duration::from_secs(10), |s| s.ledger.missing() == 50);
    scene.fault();
    clock.set(7_201_000);
    scene.healed();
    scene.finish()
}

/// Nothing sleeps for an hour, nothing is sent twice; what names a time waits for it.
pub fn backward(context: &Context) -> Row {
    let (mut scene, clock) = match faked(context, "backward") {
        Ok(faked) => faked,
        Err(row) => return *row,
    };
    scene.stop_load();
    scene.check_soon("nothing of the load waits", Duration::from_secs(10), |s| s.ledger.missing() == 0);
    let due = now_ms() + 8_000;
    scene.send(timed(&scene, "timed", 200, 8_000));
    scene.fault();
    clock.set(-3_600_000);
    let told = |s: &Scene<'_>| s.total("clock_backward") == 1;
    scene.check_soon("the step is counted", Duration::from_secs(10), told);
    // Own times by the wall clock, windows and immediate requests as ever.
    let windowed = |n: u64| -> Sending {
        let customer = n.is_multiple_of(2).then(|| format!("w{n}"));
        let push = scene.site.push("shop", "{}").id(&format!("w{n}"));
        let push = match &customer {
            Some(customer) => push.customer(customer),
            None => push,
        };
        (push, "shop".to_owned(), customer, None)
    };
    scene.send((0..100).map(windowed));
    scene.check_soon("windows close", Duration::from_secs(10), |s| s.ledger.missing() == 200);
    let past_due = |_: &Scene<'_>| now_ms() > due + 1_000;
    scene.check_soon("they would be due", Duration::from_secs(20), past_due);
    let missing = scene.ledger.missing();
    scene.check(missing == 200, format!("VERDICT: {} left an hour early", 200 - missing));
    clock.set(0);
    scene.check_soon("what is due leaves", Duration::from_secs(10), |s| s.ledger.missing() == 0);
    scene.healed();
    scene.finish().without_repeats()
}

/// As a suspended machine is: what has become due meanwhile leaves when it goes on, the oldest first, and nothing twice.
pub fn frozen(context: &Context) -> Row {
    let mut scene = Scene::under_load(context, "frozen", 300, |_, c| c);
    for _ in 0..3 {
        scene.moments.pause(300, 600);
        scene.fault();
        scene.daemon.freeze(Duration::from_secs(4));
        scene.healed();
    }
    scene.moments.pause(300, 600);
    let running = scene.daemon.running();
    scene.check(running, "it has not survived");
    scene.finish().without_repeats()
}
