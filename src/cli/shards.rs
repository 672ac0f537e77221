//! `shards adopt`: leads requests on the broker to the queues of the configured shards.

use super::args::Output;
use super::broker::block_on;
use super::output::{plain, Failure, Out};
use serde_json::json;
use tidegate_config::Config;

/// Runs the command: prints a line for each step, once all are done.
///
/// # Errors
/// Failed if the broker cannot be reached or refuses a step, or standard output cannot be written.
pub(super) fn adopt(config: &Config, output: Output) -> Result<(), Failure> {
    let steps = block_on(async { tidegate_amqp::adopt(config).await.map_err(Failure::Failed) })?;
    let mut out = Out::lock();
    match output {
        Output::Json => out.json(&json!({ "steps": steps })),
        Output::Table => steps.iter().try_for_each(|step| out.line(plain(step))),
    }
}
