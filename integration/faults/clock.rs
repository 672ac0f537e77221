//! Rows 24 and 25: libfaketime steps the wall clock while the daemon runs; the monotonic clock does not step.
//! And a process that is frozen for a while.
//!
//! Judges promise 4.

use crate::scene::{Context, Row, Scene, Sending};
use std::time::Duration;
use tidegate_harness::{now_ms, WallClock};

const HOUR_MS: u64 = 3_600_000;

/// A daemon with a separate wall clock; `Err` with a row if libfaketime is missing.
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

/// Requests with an own time, `in_ms` from now by the real clock. The row itself checks the earliest moment,
/// because the daemon uses another clock.
fn timed(scene: &Scene<'_>, name: &str, count: u64, in_ms: u64) -> Vec<Sending> {
    let when = i64::try_from(now_ms() + in_ms).unwrap_or(i64::MAX);
    let request = |n| {
        let push = scene.site.push("shop", "{}").id(&format!("{name}{n}")).number("x-deliver-at", when);
        (push, "shop".to_owned(), None, None)
    };
    (0..count).map(request).collect()
}

/// Items due within the hour leave at once, later ones stay.
pub fn forward(context: &Context) -> Row {
    let (mut scene, clock) = match faked(context, "forward") {
        Ok(faked) => faked,
        Err(row) => return *row,
    };
    // Once the daemon's clock is ahead, a steady load would be early by the real clock.
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
    // A received item is removed shortly after, with its confirm.
    let rest = |s: &Scene<'_>| s.daemon.items("waiting") == 50;
    scene.check_soon("what is due in two hours waits", Duration::from_secs(10), rest);
    let missing = scene.ledger.missing();
    scene.check(missing == 50, format!("VERDICT: {} left hours early", 50 - missing));
    // Windows use the monotonic clock, so the load's windows are unaffected.
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

/// Nothing is delayed by an hour, nothing is sent twice, and an own time is still respected.
pub fn backward(context: &Context) -> Row {
    let (mut scene, clock) = match faked(context, "backward") {
        Ok(faked) => faked,
        Err(row) => return *row,
    };
    scene.stop_load();
    scene.check_soon("nothing of the load waits", Duration::from_secs(10), |s| s.ledger.missing() == 0);
    // Enough for a busy machine to send them and to notice the step.
    let due = now_ms() + 20_000;
    scene.send(timed(&scene, "timed", 200, 20_000));
    scene.fault();
    clock.set(-3_600_000);
    let told = |s: &Scene<'_>| s.total("clock_backward") == 1;
    scene.check_soon("the step is counted", Duration::from_secs(10), told);
    // Own times follow the wall clock; windows and immediate requests are not affected.
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

/// Like a suspended machine: items that became due leave when the process continues, oldest first, and none
/// twice.
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
