//! Throughput over message size, into classic and quorum queues, compared with the tuned bridge and with the
//! one that sends the broker what tidegate sends it.

use crate::book::{Bench, Book, Case};
use crate::load::{quorum, Batch, Ids, APPLICATION};
use crate::peers::Bridge;
use crate::report::told_whole;
use crate::throughput::through;
use tidegate_harness::lapin::types::FieldTable;
use tidegate_harness::Site;

pub const GROUP: &str = "sizes";

pub fn run(bench: &Bench, book: &mut Book) {
    if !bench.wants(GROUP) {
        return;
    }
    for _ in 0..bench.plan.rounds {
        for size in &bench.plan.sizes {
            for kind in ["classic", "quorum"] {
                trio(bench, book, *size, kind);
            }
        }
    }
}

/// Both bridges, then tidegate with the same messages.
fn trio(bench: &Bench, book: &mut Book, size: u64, kind: &str) {
    let count = bench.plan.count_of(size);
    let bytes = usize::try_from(size).unwrap_or(0);
    let output = || if kind == "quorum" { quorum() } else { FieldTable::default() };
    let case = |who: &str, title: &str| {
        let title = format!("{title}, {} B into a {kind} queue", told_whole(size));
        Case::new(GROUP, format!("{who}-{kind}-{size}"), title).at("size", size)
    };
    let beside = format!("bridge-{kind}-{size}");
    book.measure(case("bridge", "tuned bridge"), || Bridge::TUNED.run(&bench.node, count, bytes, output()));
    book.measure(case("alike", "bridge that sends the same").beside(&beside), || {
        Bridge::ALIKE.run(&bench.node, count, bytes, output())
    });
    book.measure(case("tidegate", "passthrough, due at once").beside(&beside), || {
        let site = Site::on(&bench.node, "size");
        site.application_with(APPLICATION, output());
        let run = through(&site, Batch::of(&site.ingest(), count, Ids::None).size(bytes), 0);
        site.client.delete_queue(&site.queue(APPLICATION));
        run
    });
}
