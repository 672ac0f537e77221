//! The examples of `docs/clients`, as they stand there, but for the names of the test's own corner of the broker.

mod examples;
mod push_http;

use std::fs;
use std::path::Path;
use tidegate_harness::{Daemon, Site};

/// Puts an example into the test's directory, with the names of this broker, and gives its file name.
fn example(site: &Site<'_>, daemon: &Daemon, path: &str, others: &[(&str, &str)]) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/clients").join(path);
    let mut text = fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    let admin = format!("http://{}", daemon.admin());
    let own = [
        ("amqp://guest:guest@127.0.0.1:5672/%2f", site.node.uri().to_owned()),
        ("http://127.0.0.1:9380", admin),
        ("tidegate.in", site.ingest()),
        ("tidegate.out", site.out()),
        ("shop-batches", site.queue("shop-batches")),
        ("shop-push", site.queue("shop-push")),
    ];
    for (theirs, ours) in own {
        text = text.replace(theirs, &ours);
    }
    for (theirs, ours) in others {
        assert!(text.contains(theirs), "{path} does not say {theirs}");
        text = text.replace(theirs, ours);
    }
    let name = file.file_name().expect("a name").to_string_lossy().into_owned();
    fs::write(site.dir.join(&name), text).expect("the example");
    name
}
