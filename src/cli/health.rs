//! `health`: the two probes of the running daemon as one exit code.

use super::args::{HealthArgs, Output};
use super::client::Client;
use super::output::{plain, Failure, Out};
use crate::admin::state::unready;
use serde_json::{json, Value};

/// Runs the command.
///
/// # Errors
/// Failed if the daemon is stuck or does not answer; partial if it is not ready.
pub(super) fn run(client: &Client, args: &HealthArgs, output: Output) -> Result<(), Failure> {
    let stuck = match client.probe("/livez", args.timeout)? {
        (200, _) => Vec::new(),
        (503, document) if document["live"] == false => names(&document["stuck"]),
        (403, document) => return Err(client.said(403, &document)),
        _ => return Err(client.not_tidegate()),
    };
    // A daemon that is not live needs a restart: readiness does not matter.
    let live = stuck.is_empty();
    let (missing, stuck) = if live && !args.live { lacks(client, args)? } else { (Vec::new(), stuck) };
    let ready = missing.is_empty() && stuck.is_empty();
    if output == Output::Json {
        let mut told = json!({ "live": live, "stuck": stuck });
        if live && !args.live {
            told["ready"] = json!(ready);
            told["missing"] = json!(missing);
        }
        Out::lock().json(&told)?;
    }
    match (live, ready) {
        (false, _) => Err(Failure::Failed(format!("stuck: {}", plain(&stuck.join(", "))))),
        (true, false) => {
            let why = unready(&missing, &stuck);
            Err(Failure::Partial(format!("live, not ready: {}", plain(&why))))
        }
        (true, true) if output == Output::Table => {
            Out::lock().line(if args.live { "live" } else { "live and ready" })
        }
        (true, true) => Ok(()),
    }
}

/// Names of the missing conditions and of the stuck parts.
fn lacks(client: &Client, args: &HealthArgs) -> Result<(Vec<String>, Vec<String>), Failure> {
    match client.probe("/readyz", args.timeout)? {
        (200, document) if document["ready"] == true => Ok((Vec::new(), Vec::new())),
        (503, document) if document["ready"] == false => {
            Ok((names(&document["missing"]), names(&document["stuck"])))
        }
        _ => Err(client.not_tidegate()),
    }
}

pub(super) fn names(list: &Value) -> Vec<String> {
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
