//! The way of requests to the queues of several shards: straight there for configured applications, through
//! the ingest queue for all others, and never by two ways.

use super::{applications, home, queues, site, COUNT};
use std::time::Duration;
use tidegate_harness::{Config, Daemon, Site};

/// Time limit of the end of a daemon.
const LIMIT: Duration = Duration::from_secs(60);
/// Nobody configures it.
const OTHER: &str = "not-configured";

/// The configuration with these applications.
fn naming(config: Config, applications: &[String]) -> Config {
    applications.iter().fold(config, |config, name| config.text(&format!("applications.{name}.window"), "1s"))
}

fn end(mut daemon: Daemon) {
    daemon.term();
    assert!(daemon.exit(LIMIT).success(), "{}", daemon.log_tail());
}

/// Publishes three requests for each of these and of one more application, while no daemon runs.
fn publish(site: &Site<'_>, applications: &[String]) {
    let all = applications.iter().map(String::as_str).chain([OTHER]);
    site.client.publish_all(all.flat_map(|name| (0..3).map(|_| site.push(name, "{}")).collect::<Vec<_>>()));
}

/// Each lies in one queue: those of the applications in the queues of their homes.
fn lie_at_home(site: &Site<'_>, applications: &[String]) {
    for shard in 0..COUNT {
        let of_it = applications.iter().filter(|name| home(name) == shard).count();
        site.lies(&site.shard_queue(shard), 3 * u32::try_from(of_it).expect("few"));
    }
    site.lies(&site.ingest_queue(), 3);
}

#[test]
fn requests_of_configured_applications_go_straight_home_and_all_others_through_the_ingest_queue() {
    let site = site("shards-map");
    let names = applications(2);
    end(site.start(&naming(site.config(), &names)));
    publish(&site, &names);
    lie_at_home(&site, &names);
    let inboxes: Vec<_> = names.iter().map(|name| site.inbox(name)).chain([site.inbox(OTHER)]).collect();
    let _daemon = site.start(&naming(site.config(), &names));
    for inbox in &inboxes {
        assert_eq!(inbox.items(3, LIMIT).len(), 3);
    }
    queues(&site).for_each(|queue| site.lies(&queue, 0));
    for inbox in &inboxes {
        inbox.quiet(Duration::from_millis(50));
    }
    site.lies(&site.dead(), 0);
}

#[test]
fn the_broker_of_a_single_shard_serves_several_and_no_request_goes_two_ways() {
    let single = Site::new("shards-from-one");
    let names = applications(2);
    end(single.start(&naming(single.config(), &names)));
    publish(&single, &names);
    single.lies(&single.ingest_queue(), 27);
    let site = single.divided(COUNT);
    let several =
        naming(site.config(), &names).text("store.path", &site.dir.join("several").to_string_lossy());
    let inboxes: Vec<_> = names.iter().map(|name| site.inbox(name)).chain([site.inbox(OTHER)]).collect();
    let daemon = site.start(&several);
    for inbox in &inboxes {
        assert_eq!(inbox.items(3, LIMIT).len(), 3);
        inbox.quiet(Duration::from_millis(50));
    }
    end(daemon);
    publish(&site, &names);
    lie_at_home(&site, &names);
}

#[test]
fn another_number_of_shards_takes_away_the_bindings_of_the_former_one() {
    let site = Site::new("shards-renumbered").divided(3);
    let names = applications(2);
    end(site.start(&naming(site.config(), &names)));
    let site = site.divided(COUNT);
    let several =
        naming(site.config(), &names).text("store.path", &site.dir.join("several").to_string_lossy());
    end(site.start(&several));
    publish(&site, &names);
    lie_at_home(&site, &names);
}
