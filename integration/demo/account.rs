//! The end of a demonstration: what was confirmed, what arrived, and the verdict.

use std::process::ExitCode;
use tidegate_harness::{percentile, Report};

/// Prints the account. The exit code is 0 only if nothing was lost and nothing came early. `faults`: what may
/// have caused repeats and lateness.
pub(crate) fn account(report: &Report, faults: &str) -> ExitCode {
    let ms = |us: i64| us as f64 / 1000.0;
    println!("\n  requests confirmed   {:>8}", report.confirmed);
    println!("  items out            {:>8}", report.items_out);
    println!("  batches              {:>8}", report.batches);
    println!("  lost                 {:>8}", report.lost.len());
    println!("  early                {:>8}", report.early.len());
    println!("  in a wrong batch     {:>8}", report.mixed.len() + report.strangers.len());
    println!("  repeats              {:>8}     (by {faults})", report.repeats.len());
    println!("  lateness, median     {:>8.2} ms", ms(percentile(&report.lateness_us, 50.0)));
    println!(
        "  lateness, largest    {:>8.2} ms  ({faults} included)",
        ms(percentile(&report.lateness_us, 100.0))
    );
    let clean = report.lost.is_empty()
        && report.early.is_empty()
        && report.mixed.is_empty()
        && report.strangers.is_empty()
        && report.confirmed > 0;
    println!("\n{}", if clean { "Nothing lost, nothing early." } else { "FAILED: see the table." });
    if clean {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
