//! Rows 80 and 81: the process dies between the broker's confirm of a forward and the ack of its request.
//!
//! Judges promises 3 and 14.

use crate::kill;
use crate::scene::{Context, Row, Scene};
use std::time::Duration;
use tidegate_harness::{Config, Daemon, Push, Site};

/// Number of shards of these daemons.
const COUNT: u16 = 4;
/// The application of all requests.
const APPLICATION: &str = "shop";
/// Time limit of a wait.
const LIMIT: Duration = Duration::from_secs(20);
/// Three hours, ms.
const FAR: i64 = 3 * 3_600_000;

fn divided(_: &Site<'_>, config: Config) -> Config {
    config.set("shards.count", &COUNT.to_string())
}

/// Kills under load, each at a random confirm.
pub fn after_forward(context: &Context) -> Row {
    kill::at(context, "after-forward", (4, false), divided)
}

/// A request whose forward was confirmed as the process died. It comes again, behind what `between` puts into
/// the queue of its home.
fn forwarded_twice<'n>(
    context: &'n Context,
    name: &str,
    rule: &str,
    between: impl FnOnce(&Site<'_>, &str),
) -> Option<Scene<'n>> {
    let binary = context.failpoints.as_ref()?;
    let mut scene = Scene::on(context, &context.node, name, divided);
    scene.restarted = true;
    scene.daemon.use_binary(binary);
    scene.daemon.environment("TIDEGATE_FAILPOINT", Some("after-forward:1"));
    scene.start();
    let request = scene.site.push(APPLICATION, "{}").id("x").with("x-on-duplicate", rule).delay(FAR);
    scene.site.client.publish(&request);
    let status = scene.daemon.exit(LIMIT);
    scene.fault();
    scene.check(status.code().is_none(), format!("it ended by itself: {status}"));
    let queue = format!("{}.{}", scene.site.ingest_queue(), tidegate_wire::home(APPLICATION, COUNT));
    between(&scene.site, &queue);
    scene.daemon.environment("TIDEGATE_FAILPOINT", None);
    scene.start();
    scene.healed();
    let dropped =
        |s: &Scene<'_>| s.daemon.state()["totals"]["duplicates"][rule]["dropped"].as_u64() == Some(1);
    scene.check_soon("the second copy is dropped", LIMIT, dropped);
    Some(scene)
}

fn state_of(daemon: &Daemon) -> String {
    let (_, told) = daemon.ask("GET", &format!("/api/v1/items/{APPLICATION}/x"));
    told["state"].as_str().unwrap_or_default().to_owned()
}

/// A cancel between the copies stays a cancel, and the second copy of a request that refuses duplicates is
/// none.
pub fn second_copies(context: &Context) -> Row {
    let cancel = |site: &Site<'_>, queue: &str| {
        let push =
            Push::new("", queue, "").with("x-application", APPLICATION).id("x").kind("tidegate.cancel");
        site.client.publish(&push);
    };
    let cancelled = forwarded_twice(context, "forward-cancelled", "keep", cancel);
    let rejected = forwarded_twice(context, "forward-rejected", "reject", |_, _| {});
    let (Some(mut cancelled), Some(mut rejected)) = (cancelled, rejected) else {
        return Row::lacking(kill::FAILPOINTS);
    };
    for (scene, wanted, waiting) in [(&mut cancelled, "cancelled", 0), (&mut rejected, "waiting", 1)] {
        let state = state_of(&scene.daemon);
        scene.check(state == wanted, format!("it is {state}, not {wanted}"));
        let items = scene.daemon.items("waiting");
        scene.check(items == waiting, format!("{items} items wait, not {waiting}"));
        let no_letters = |s: &Scene<'_>| s.site.client.depth(&s.site.dead()) == Some(0);
        scene.check_soon("no dead letters", LIMIT, no_letters);
    }
    Row::sum([("cancelled", cancelled.end()), ("rejected", rejected.end())])
}
