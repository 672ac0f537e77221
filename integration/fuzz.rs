//! Decoders against generated input: each target is a function that must return for any input.
//!
//! Inputs are mutated from a corpus (`integration/fuzz/corpus/TARGET`, small files) without coverage
//! feedback. As a test, a target runs for about two seconds; `FUZZ_SECONDS` sets another time (`make fuzz`),
//! `FUZZ_SEED` repeats a run. An input that makes a target panic is written to a file, which the panic names;
//! add it to the corpus.
#![expect(unreachable_pub, reason = "modules of a program: `pub` says what the others use")]
#![expect(clippy::unwrap_used, reason = "a finding is a panic")]
#![expect(clippy::print_stdout, reason = "seeds, figures and findings are to be seen")]

#[path = "fuzz/corpus.rs"]
mod corpus;
#[path = "fuzz/driver.rs"]
mod driver;
#[path = "fuzz/targets.rs"]
mod targets;

use driver::run;

#[test]
fn properties_of_a_request() {
    run("properties", targets::properties);
}

#[test]
fn envelopes() {
    run("envelope", targets::envelope);
}

#[test]
fn commands() {
    run("command", targets::command);
}

#[test]
fn records_of_items() {
    run("record", targets::record);
}

#[test]
fn rows_of_ended_items() {
    run("ended", targets::ended);
}

#[test]
fn small_rows() {
    run("rows", targets::rows);
}

#[test]
fn configurations() {
    run("config", targets::config);
}

#[test]
fn paths_and_queries() {
    run("http", targets::http);
}
