//! Rows 1 to 7 and 41: the process dies, at a named place or at a random moment.
//!
//! Judges promise 3.

use crate::scene::{Context, Row, Scene};
use std::time::{Duration, Instant};
use tidegate_harness::{Config, Site};

/// What the rows of named places need.
pub const FAILPOINTS: &str = "TIDEGATE_FAILPOINT_BIN, a daemon built with the feature failpoints";

/// Kills at one failpoint, each at a random visit to it, under load. Instead of being killed, the process may
/// panic there.
pub fn at(
    context: &Context,
    point: &str,
    (kills, panics): (u32, bool),
    change: impl FnOnce(&Site<'_>, Config) -> Config,
) -> Row {
    let Some(binary) = &context.failpoints else {
        return Row::lacking(FAILPOINTS);
    };
    let mut scene = Scene::on(context, &context.node, point, change);
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
    at(context, "before-commit", (4, false), |_, c| c)
}

pub fn after_commit(context: &Context) -> Row {
    at(context, "after-commit", (4, false), |_, c| c)
}

pub fn after_ack(context: &Context) -> Row {
    at(context, "after-ack", (4, false), |_, c| c)
}

pub fn before_publish(context: &Context) -> Row {
    at(context, "before-publish", (4, false), |_, c| c)
}

pub fn after_publish(context: &Context) -> Row {
    at(context, "after-publish", (4, false), |_, c| c)
}

pub fn after_confirm(context: &Context) -> Row {
    at(context, "after-confirm", (4, false), |_, c| c)
}

/// A panic in the store's thread, the loop, and the tasks of both connections: each ends the process.
pub fn panics(context: &Context) -> Row {
    let points = ["before-commit", "turn", "after-ack", "before-publish"];
    Row::sum(points.map(|point| (point, at(context, point, (1, true), |_, c| c))))
}

/// Kills at random moments.
fn at_random(context: &Context, kind: &str, per_second: u64, kills: u32) -> Row {
    let mut scene = Scene::under_load(context, kind, per_second, |_, c| c.text("store.kind", kind));
    scene.restarted = true;
    let mut starts = Vec::new();
    for _ in 0..kills {
        scene.moments.pause(200, 2500);
        scene.fault();
        scene.daemon.kill9();
        let begun = Instant::now();
        scene.start();
        starts.push(begun.elapsed());
        scene.healed();
    }
    scene.moments.pause(300, 600);
    // The best of all, because a store that is slow to open would delay every start.
    let best = starts.iter().min().copied().unwrap_or_default();
    scene.check(best < Duration::from_secs(30), format!("each start took {best:?} or more"));
    let mut row = scene.finish();
    // Messages in flight, and messages not acked yet.
    if row.repeats > kills as usize * 4_000 {
        row.wrong.push("more repeats than what can have been in flight".to_owned());
    }
    row
}

pub fn random(context: &Context) -> Row {
    let kills = match context {
        Context { long: true, .. } => 60,
        Context { quick: true, .. } => 8,
        _ => 20,
    };
    at_random(context, "disk", if context.quick { 800 } else { 2000 }, kills)
}

/// With the memory store, requests stay in the ingest queue until their items have left.
pub fn random_in_memory(context: &Context) -> Row {
    at_random(context, "memory", 800, if context.long { 20 } else { 4 })
}
