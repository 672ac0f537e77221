//! Rows 1 to 7 and 41: the process dies, at a named place or at a random moment.

use crate::scene::{Context, Row, Scene};
use std::time::{Duration, Instant};

/// Deaths at one place, each at a later visit to it, under load.
fn at(context: &Context, point: &str, kills: u32, panics: bool) -> Row {
    let Some(binary) = &context.failpoints else {
        return Row::lacking("TIDEGATE_FAILPOINT_BIN, a daemon built with the feature failpoints");
    };
    let mut scene = Scene::on(context, &context.node, point, |_, c| c);
    scene.restarted = true;
    scene.daemon.use_binary(binary);
    scene.load(1000);
    let how = if panics { ":panic" } else { "" };
    for _ in 0..kills {
        let nth = scene.moments.pick(1, 120);
        scene.daemon.environment("TIDEGATE_FAILPOINT", Some(&format!("{point}:{nth}{how}")));
        scene.daemon.start_again();
        let status = scene.daemon.exit(Duration::from_secs(20));
        scene.fault();
        scene.check(status.code().is_none(), format!("it ended by itself at {point}: {status}"));
    }
    scene.daemon.environment("TIDEGATE_FAILPOINT", None);
    scene.start();
    scene.healed();
    scene.moments.pause(500, 1000);
    scene.finish()
}

pub fn before_commit(context: &Context) -> Row {
    at(context, "before-commit", 4, false)
}

pub fn after_commit(context: &Context) -> Row {
    at(context, "after-commit", 4, false)
}

pub fn after_ack(context: &Context) -> Row {
    at(context, "after-ack", 4, false)
}

pub fn before_publish(context: &Context) -> Row {
    at(context, "before-publish", 4, false)
}

pub fn after_publish(context: &Context) -> Row {
    at(context, "after-publish", 4, false)
}

pub fn after_confirm(context: &Context) -> Row {
    at(context, "after-confirm", 4, false)
}

/// A panic in the store's thread, the loop, and the tasks of both connections: each ends the whole process.
pub fn panics(context: &Context) -> Row {
    let mut sum = Row::default();
    for point in ["before-commit", "turn", "after-ack", "before-publish"] {
        let row = at(context, point, 1, true);
        sum.injections += row.injections;
        sum.requests += row.requests;
        sum.lost += row.lost;
        sum.repeats += row.repeats;
        sum.early += row.early;
        sum.worst_ms = sum.worst_ms.max(row.worst_ms);
        sum.recovery_ms = sum.recovery_ms.max(row.recovery_ms);
        sum.lacking = row.lacking;
        sum.wrong.extend(row.wrong.into_iter().map(|w| format!("{point}: {w}")));
    }
    sum
}

/// Any moment will do.
pub fn random(context: &Context) -> Row {
    let mut scene = Scene::under_load(context, "kill", 2000, |_, c| c);
    scene.restarted = true;
    let kills = if context.long { 60 } else { 20 };
    let mut longest = Duration::ZERO;
    for _ in 0..kills {
        scene.moments.pause(200, 2500);
        scene.fault();
        scene.daemon.kill9();
        let begun = Instant::now();
        scene.start();
        longest = longest.max(begun.elapsed());
        scene.healed();
    }
    scene.moments.pause(300, 600);
    scene.check(longest < Duration::from_secs(5), format!("a start took {longest:?}"));
    scene.finish()
}
