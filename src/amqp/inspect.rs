//! `check --connect`: logs in at the broker on both sides and inspects what exists. Creates nothing.

use super::connection::Session;
use super::fault::Fault;
use super::rights::inspect_rights;
use super::topology::{inspect_egress, inspect_ingest, Note};
use super::{Options, Side};
use std::time::Duration;
use tidegate_common::check_line::{CheckLine, Severity};
use tidegate_config::{Endpoint, Login, Topology};

/// Reply code for a missing object.
const NOT_FOUND: u16 = 404;

/// The user that is logged in there.
fn who(endpoint: &Endpoint) -> String {
    match endpoint.login {
        Login::Password => format!("'{}'", endpoint.user),
        Login::External => "the user that the broker maps its certificate to".to_owned(),
    }
}

/// Logs in at every address of both sides. At the first that answers, inspects every queue and exchange in
/// use, and how it differs.
pub async fn inspect(options: &Options) -> Vec<CheckLine> {
    let mut findings = Vec::new();
    for side in [Side::Ingest, Side::Egress] {
        let mut looked = false;
        let endpoints = match side {
            Side::Ingest => &options.amqp.endpoints,
            Side::Egress => &options.egress.endpoints,
        };
        for endpoint in endpoints {
            let limit = options.timeouts.connect;
            match Session::open(endpoint, &options.amqp, limit, "tidegate check").await {
                Ok(session) => {
                    let text = format!("logged in at {} as {}", session.address(), who(endpoint));
                    findings.push(CheckLine::new(Severity::Good, side.as_str(), text));
                    if !std::mem::replace(&mut looked, true) {
                        let found = look(&session, side, options).await;
                        findings.extend(
                            found.into_iter().map(|found| finding(side, options.amqp.topology, found)),
                        );
                        let (names, limit) = (&options.names, options.timeouts.connect);
                        findings.extend(inspect_rights(&session, side, names, limit).await);
                    }
                    session.close(Duration::from_secs(2)).await;
                }
                Err(error) => {
                    findings.push(CheckLine::new(Severity::Fault, side.as_str(), error.to_string()));
                }
            }
        }
    }
    findings
}

async fn look(session: &Session, side: Side, options: &Options) -> Vec<Result<Note, Fault>> {
    let names = &options.names;
    match side {
        Side::Ingest => inspect_ingest(session, options.amqp.topology, names, options.timeouts.connect).await,
        Side::Egress => inspect_egress(session, names, options.timeouts.connect).await,
    }
}

fn finding(side: Side, topology: Topology, found: Result<Note, Fault>) -> CheckLine {
    match found {
        Ok(note) => {
            let severity = if note.risky { Severity::Warning } else { Severity::Good };
            CheckLine::new(severity, side.as_str(), note.text)
        }
        // The start creates it: a fresh broker is no fault.
        Err(fault) if topology == Topology::Declare && fault.code == Some(NOT_FOUND) => {
            let text = format!("{}: it will be created at the start", fault.text);
            CheckLine::new(Severity::Good, side.as_str(), text)
        }
        Err(fault) => CheckLine::new(Severity::Fault, side.as_str(), fault.text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_config::Config;

    #[test]
    fn no_user_is_named_where_a_certificate_says_who_it_is() {
        let mut endpoint = Config::default().amqp.endpoints.remove(0);
        assert_eq!(who(&endpoint), "'guest'");
        endpoint.login = Login::External;
        assert!(!who(&endpoint).contains("guest"), "{}", who(&endpoint));
    }
}
