//! The base of the black-box tests: a private RabbitMQ node, the built daemon, AMQP clients, and the oracle,
//! which compares what was confirmed to the producers with what reached the applications.
//!
//! Nothing here uses the daemon's code: it is started as a process, configured by a file, and observed from
//! outside. A fault of the harness ends the test with a panic that says what was expected.

mod asker;
mod authority;
mod beside;
mod bounds;
mod broker;
mod browser;
mod client;
mod daemon;
mod database;
mod disk;
mod guard;
mod http;
mod machine;
mod message;
mod moments;
mod oracle;
mod pooler;
mod ports;
mod program;
mod proxy;
mod raw;
mod require;
mod schema;
mod site;
mod util;
mod wall_clock;

pub use asker::{correlation_of, Asker};
pub use authority::{Authority, Signed};
pub use bounds::{alone, best_of_three, bounded, processor_share};
pub use broker::{external_uri, LentNode, Node};
pub use browser::Browser;
pub use client::{Client, Ended, Inbox, Verdict};
pub use daemon::{binary, is_optimised, Config, Daemon, HeldThread, Told};
pub use database::{has_disk_store, is_on_disk, Database, HeldTransaction, Shutdown};
pub use disk::Disk;
pub use guard::{run_guarded, workdir};
pub use http::HttpAnswer;
pub use lapin;
pub use machine::{own_cpu_us, Machine};
pub use message::{text, Batch, Item, Push, Received};
pub use moments::{seed, Moments};
pub use oracle::{Ledger, Load, Recipe, Recorder, Report};
pub use pooler::Pooler;
pub use program::{has_go, has_node, require_python, Program};
pub use proxy::{Proxy, Way, Welcome};
pub use raw::{nested_arrays, Raw, RawProperties};
pub use require::{lacks, require, skip};
pub use schema::{schema_faults, schema_references};
pub use site::Site;
pub use util::{block_on, holds_within, now_ms, now_us, percentile, runtime, say, wait_until};
pub use wall_clock::WallClock;
