//! The examples of `docs/clients`, verbatim except for the names of the test's own queues and exchanges.

mod examples;
mod push_http;
mod recipes;

use std::fs;
use std::path::Path;
use tidegate_harness::{Daemon, Site};

/// Replaces the default names in the code by those of this broker and daemon, and by `others`.
fn example_of(site: &Site<'_>, daemon: &Daemon, text: &str, others: &[(&str, String)]) -> String {
    let own = [
        ("amqp://guest:guest@127.0.0.1:5672/%2f", site.node.uri().to_owned()),
        ("http://127.0.0.1:9380", format!("http://{}", daemon.admin())),
        ("tidegate.in", site.ingest()),
        ("tidegate.out", site.out()),
        ("shop-batches", site.queue("shop-batches")),
        ("shop-push", site.queue("shop-push")),
    ];
    let mut text = text.to_owned();
    for (theirs, ours) in own {
        text = text.replace(theirs, &ours);
    }
    for (theirs, ours) in others {
        assert!(text.contains(theirs), "it does not say {theirs}:\n{text}");
        text = text.replace(theirs, ours);
    }
    text
}

/// Writes an example into the test's directory and returns its file name.
fn example(site: &Site<'_>, daemon: &Daemon, path: &str, others: &[(&str, String)]) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/clients").join(path);
    let text = fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    let name = file.file_name().expect("a name").to_string_lossy().into_owned();
    fs::write(site.dir.join(&name), example_of(site, daemon, &text, others)).expect("the example");
    name
}
