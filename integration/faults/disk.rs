//! Rows 42: the store's file system is filled from outside, under load.
//!
//! The daemon reports the full disk, whether a commit or background work meets it, and either waits for room
//! or exits with a message; a supervisor starts it again. Once there is room, every request that was
//! confirmed to a producer arrives.

use crate::scene::{Context, Row, Scene};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tidegate_harness::{Disk, Load, Push, Recipe};

/// Time for the daemon to report it. A store call that does not return is given up sooner.
const SAYS: Duration = Duration::from_secs(90);
/// Time until it is ready again once there is room.
const GOES_ON: Duration = Duration::from_secs(90);
/// The daemon's own sentences; log lines of its libraries do not count.
const SENTENCES: [&str; 5] = [
    "the disk is full",
    "the disk is nearly full",
    "the disk has not kept up",
    "the disk does not answer",
    "the store has failed",
];

/// 200 requests of 20 kB per second, each due within two seconds.
fn load(scene: &Scene<'_>) -> Load {
    let exchange = scene.site.ingest();
    let body = vec![b'x'; 20_000];
    let recipe: Recipe = Box::new(move |n| {
        let delay = 500 + n * 37 % 1500;
        let push = Push::new(&exchange, "shop", body.clone()).id(&format!("d{n}"));
        (push.delay(i64::try_from(delay).unwrap_or(0)), "shop".to_owned(), None, Some(delay))
    });
    Load::start(scene.site.node.uri(), 200, &scene.ledger, recipe)
}

fn says_so(scene: &Scene<'_>) -> bool {
    let log = scene.daemon.log();
    let mut own = log.lines().filter(|line| line.contains(" tidegate::"));
    own.any(|line| SENTENCES.iter().any(|sentence| line.contains(sentence)))
}

/// Restarts the daemon if it has ended, as a supervisor does, without waiting for it to be ready.
fn supervise(scene: &mut Scene<'_>) -> bool {
    let ended = !scene.daemon.running();
    if ended {
        scene.daemon.start_again();
    }
    ended
}

fn filled(scene: &mut Scene<'_>, disk: &Disk) {
    let load = load(scene);
    scene.check_soon("requests flow", Duration::from_secs(20), |s| s.total("confirmed") > 200);
    scene.fault();
    disk.fill();
    let begun = Instant::now();
    while !says_so(scene) && begun.elapsed() < SAYS {
        // Space that was freed in the meantime is filled again.
        disk.fill();
        std::thread::sleep(Duration::from_millis(200));
    }
    let said = says_so(scene);
    scene.check(said, format!("nothing about a full disk in the log after {SAYS:?}"));
    // As a supervisor does, while the disk is still full.
    if supervise(scene) {
        std::thread::sleep(Duration::from_secs(2));
    }
    disk.make_room();
    let end = Instant::now() + GOES_ON;
    let mut ready = false;
    while !ready && Instant::now() < end {
        supervise(scene);
        std::thread::sleep(Duration::from_millis(500));
        ready = scene.daemon.ask("GET", "/readyz").0 == 200;
    }
    scene.check(ready, format!("not ready within {GOES_ON:?} of there being room"));
    scene.healed();
    std::thread::sleep(Duration::from_secs(2));
    load.stop();
}

/// The whole store is on the small file system.
pub fn full_for_all(context: &Context) -> Row {
    let Some(disk) = Disk::mount(300) else { return Row::lacking("mount") };
    let path = disk.path().join("store");
    let change = |c: tidegate_harness::Config| c.text("store.path", &path.to_string_lossy());
    let mut scene = Scene::on(context, &context.node, "full", |_, c| change(c));
    scene.restarted = true;
    scene.start();
    filled(&mut scene, &disk);
    scene.finish()
}

fn below(folder: &Path, name: &str) -> Option<PathBuf> {
    let entries = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    let mut folders = entries.filter(|path| path.is_dir());
    folders.find_map(|path| if path.ends_with(name) { Some(path) } else { below(&path, name) })
}

/// Only flushed tables are on it; the log has room.
pub fn full_for_a_flush(context: &Context) -> Row {
    let small = |c: tidegate_harness::Config| c.text("limits.memory", "32MiB");
    let mut scene = Scene::on(context, &context.node, "flush", |_, c| small(c));
    scene.restarted = true;
    scene.start();
    scene.daemon.term();
    scene.daemon.exit(Duration::from_secs(20));
    let Some(tables) = below(&scene.site.dir.join("store"), "keyspaces") else {
        return Row::lacking("a store whose tables lie in a folder `keyspaces`");
    };
    let Some(disk) = Disk::mount_over(64, &tables) else { return Row::lacking("mount") };
    scene.start();
    filled(&mut scene, &disk);
    let row = scene.finish();
    drop(disk);
    row
}
