//! `health`: the two probes of the running daemon as one exit code.

use super::args::{HealthArgs, Output};
use super::client::Client;
use super::output::{plain, Failure, Out};
use serde_json::{json, Value};

/// Runs the command.
///
/// # Errors
/// Failed when the daemon is stuck or does not answer; partial when it is not ready.
pub(super) fn run(client: &Client, args: &HealthArgs, output: Output) -> Result<(), Failure> {
    let stuck = match client.probe("/livez", args.timeout)? {
        (200, _) => Vec::new(),
        (503, document) if document["live"] == false => names(&document["stuck"]),
        (403, document) => return Err(client.said(403, &document)),
        _ => return Err(client.not_tidegate()),
    };
    // One that is stuck is not asked on: it is to be started again.
    let missing = if stuck.is_empty() && !args.live { missing(client, args)? } else { Vec::new() };
    if output == Output::Json {
        let mut told = json!({ "live": stuck.is_empty(), "stuck": stuck });
        if stuck.is_empty() && !args.live {
            told["ready"] = json!(missing.is_empty());
            told["missing"] = json!(missing);
        }
        Out::lock().json(&told)?;
    }
    let listed = |names: &[String]| plain(&names.join(", ")).into_owned();
    match (stuck.is_empty(), missing.is_empty()) {
        (false, _) => Err(Failure::Failed(format!("stuck: {}", listed(&stuck)))),
        (true, false) => Err(Failure::Partial(format!("live, not ready: {} missing", listed(&missing)))),
        (true, true) if output == Output::Table => {
            Out::lock().line(if args.live { "live" } else { "live and ready" })
        }
        (true, true) => Ok(()),
    }
}

fn missing(client: &Client, args: &HealthArgs) -> Result<Vec<String>, Failure> {
    match client.probe("/readyz", args.timeout)? {
        (200, document) if document["ready"] == true => Ok(Vec::new()),
        (503, document) if document["ready"] == false => Ok(names(&document["missing"])),
        _ => Err(client.not_tidegate()),
    }
}

fn names(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::super::client::tests::running;
    use super::*;
    use std::sync::Arc;
    use std::time::Duration;

    fn asked(client: &Client, live: bool) -> u8 {
        let args = HealthArgs { live, timeout: Duration::from_secs(5) };
        run(client, &args, Output::Table).map_or_else(|failure| failure.exit_code(), |()| 0)
    }

    #[test]
    fn a_daemon_that_is_not_ready_is_live() {
        let (daemon, config) = running(None, Arc::new(drop));
        let client = Client::new(&config.admin).unwrap();
        assert_eq!((asked(&client, false), asked(&client, true)), (3, 0));
        daemon.stop();
        assert_eq!((asked(&client, false), asked(&client, true)), (1, 1));
    }

    #[test]
    fn what_does_not_answer_is_waited_for_no_longer_than_was_said() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let client = Client::at(&format!("http://{}", listener.local_addr().unwrap()), None).unwrap();
        let args = HealthArgs { live: false, timeout: Duration::from_millis(200) };
        let begun = std::time::Instant::now();
        assert_eq!(run(&client, &args, Output::Table).unwrap_err().exit_code(), 1);
        assert!(begun.elapsed() < Duration::from_secs(5));
    }
}
