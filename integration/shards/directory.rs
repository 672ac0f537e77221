//! The directory of the stores belongs to one number of shards; a reload is in force in each of them.

use super::{consumed, site, COUNT};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;
use tidegate_harness::{wait_until, Daemon};

/// Time limit of a wait.
const LIMIT: Duration = Duration::from_secs(60);
/// The exit code of a configuration that cannot be used.
const CONFIG: i32 = 78;

#[test]
fn another_number_of_shards_over_the_same_directory_does_not_start() {
    let site = site("shards-count");
    let mut daemon = site.start(&site.config());
    let application = &super::applications(1)[1];
    site.client.publish(&site.push(application, "1").id("kept").delay(3_600_000));
    daemon.holds("waiting", 1);
    daemon.term();
    assert!(daemon.exit(LIMIT).success(), "{}", daemon.log_tail());
    let (store, layout) = (site.dir.join("store"), site.dir.join("store/SHARDS"));
    let mode = fs::metadata(&layout).expect("its layout").permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "the key is a secret");
    assert!((0..COUNT).all(|shard| store.join(format!("shard-{shard}")).is_dir()));
    let text = fs::read_to_string(&layout).expect("its layout");
    for count in ["1", "2", "8"] {
        let mut other = Daemon::start(&site.config().set("shards.count", count), &site.dir);
        assert_eq!(other.exit(LIMIT).code(), Some(CONFIG), "{count}: {}", other.log_tail());
        let log = other.log_tail();
        let path = store.display().to_string();
        assert!(
            log.contains("shards") && log.contains(&path) && log.contains("shards.count = 4"),
            "{count}: {log}"
        );
    }
    assert_eq!(fs::read_to_string(&layout).expect("its layout"), text, "it is unchanged");
    daemon.rewrite(&site.config());
    daemon.start_again();
    daemon.wait_ready();
    daemon.holds("waiting", 1);
}

#[test]
fn several_shards_do_not_start_over_the_store_of_one() {
    let site = site("shards-over-one");
    let mut daemon = site.start(&site.config().unset("shards.count"));
    daemon.term();
    assert!(daemon.exit(LIMIT).success(), "{}", daemon.log_tail());
    daemon.rewrite(&site.config());
    daemon.start_again();
    assert_eq!(daemon.exit(LIMIT).code(), Some(CONFIG), "{}", daemon.log_tail());
    assert!(daemon.log_tail().contains("shards.count = 1"), "{}", daemon.log_tail());
    assert!(!site.dir.join("store/SHARDS").exists());
}

#[test]
fn a_reload_is_in_force_in_every_shard() {
    let site = site("shards-reload");
    let applications = consumed(&site);
    let config = site.config().text("defaults.window", "1h");
    let daemon = site.start(&config);
    let dead = site.dead_inbox();
    let large = |(application, _): &(String, _)| site.push(application, vec![b'x'; 2_000]).id("large");
    site.client.publish_all(applications.iter().map(large));
    for (_, inbox) in &applications {
        assert_eq!(inbox.batch().ids(), ["large"]);
    }
    daemon.rewrite(&config.text("limits.max_body", "1KiB").text("defaults.window", "100ms"));
    daemon.hup();
    wait_until("it is reloaded", LIMIT, || daemon.log().contains("configuration reloaded"));
    site.client.publish_all(applications.iter().map(|each| large(each).id("too-large")));
    for letter in dead.take(applications.len(), LIMIT) {
        assert_eq!(
            (letter.id().as_str(), letter.text("x-tidegate-reason").as_deref()),
            ("too-large", Some("too_large"))
        );
    }
    // A window of an hour would not close.
    site.client.publish_all(
        applications.iter().map(|(application, _)| site.push(application, "1").id("windowed").customer("c")),
    );
    for (_, inbox) in &applications {
        assert_eq!(inbox.batch().ids(), ["windowed"]);
    }
}
