//! `check --connect`: logs in at the broker on both sides and inspects what exists. Creates nothing.

use super::blueprint::{self, Declared, Names};
use super::connection::Session;
use super::fault::Fault;
use super::rights::{inspect_rights, may_create, ACCESS_REFUSED};
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
                        let created = created_at_start(side, options);
                        for found in look(&session, side, options).await {
                            let object = created.iter().find(|object| is_missing(object, &found));
                            findings.push(match (object, found) {
                                (Some(object), Err(fault)) => {
                                    creation(&session, (side, options), object, &fault.text).await
                                }
                                (_, found) => finding(side, found),
                            });
                        }
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

/// The objects that a start of this side creates if they are missing.
fn created_at_start(side: Side, options: &Options) -> Vec<Declared> {
    let Options { names, amqp, .. } = options;
    if amqp.topology != Topology::Declare {
        return Vec::new();
    }
    let mut all = match side {
        Side::Ingest => blueprint::ingest(names),
        Side::Egress => vec![blueprint::egress(&names.egress)],
    };
    all.extend(blueprint::dead(&names.dead));
    all
}

/// Whether a check has not found this object.
fn is_missing(object: &Declared, found: &Result<Note, Fault>) -> bool {
    let checking = match object {
        Declared::Queue { name, .. } => format!("checking queue '{name}': "),
        Declared::Exchange { name, .. } => format!("checking exchange '{name}': "),
        Declared::Binding { .. } | Declared::ExchangeBinding { .. } => return false,
    };
    found.as_ref().is_err_and(|fault| fault.code == Some(NOT_FOUND) && fault.text.starts_with(&checking))
}

/// Whether the start can create what is missing: a fresh broker is no fault, and a login without the right
/// would try for ever. `missing`: the text about the object.
async fn creation(
    session: &Session,
    (side, options): (Side, &Options),
    object: &Declared,
    missing: &str,
) -> CheckLine {
    let (severity, text) = match may_create(session, object, options.timeouts.connect).await {
        Ok(()) => (Severity::Good, format!("{missing}: it will be created at the start")),
        Err(refusal) if refusal.code == Some(ACCESS_REFUSED) => {
            let text = format!(
                "{missing}, and this login may not create it: {refusal}. `tidegate topology print` shows the \
                 rabbitmqctl command that grants the right"
            );
            (severity_without(object, &options.names), text)
        }
        Err(fault) => {
            (Severity::Warning, format!("{missing}; whether this login may create it is not known: {fault}"))
        }
    };
    CheckLine::new(severity, side.as_str(), text)
}

/// How much it matters that an end may not create an object. The other end may create what dead letters need,
/// and both work without it; requests find the ingest queue without the map, and a node works without the
/// exchange of the nodes.
fn severity_without(object: &Declared, names: &Names) -> Severity {
    let map = names.map.iter().flat_map(|map| [&map.exchange, &map.unmapped]);
    let spared: Vec<&String> = map.chain(&names.control).chain([&names.dead.exchange]).collect();
    let is_spared = match object {
        Declared::Exchange { name, .. } => spared.contains(&name),
        Declared::Queue { name, .. } => names.dead.queue_name() == Some(name.as_str()),
        Declared::Binding { .. } | Declared::ExchangeBinding { .. } => true,
    };
    if is_spared {
        Severity::Warning
    } else {
        Severity::Fault
    }
}

fn finding(side: Side, found: Result<Note, Fault>) -> CheckLine {
    match found {
        Ok(note) => {
            let severity = if note.risky { Severity::Warning } else { Severity::Good };
            CheckLine::new(severity, side.as_str(), note.text)
        }
        Err(fault) => CheckLine::new(Severity::Fault, side.as_str(), fault.text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_config::{Config, ShardsConfig, StoreKind};

    /// Excluded: an object whose absence the check mentions without asking whether the start may create it.
    #[test]
    fn each_object_that_is_missing_is_known_by_the_text_about_it() {
        let mut config = Config::default();
        let created = |config: &Config, side| created_at_start(side, &Options::new(config, 0, None));
        let missing = |text: &str| Err(Fault { code: Some(NOT_FOUND), ..Fault::setup(text) });
        let objects = created(&config, Side::Ingest);
        for (text, known) in [
            ("checking queue 'tidegate.ingest': 404 NOT_FOUND", 1),
            ("checking exchange 'tidegate.in': 404 NOT_FOUND", 1),
            ("checking exchange 'tidegate.dead': 404 NOT_FOUND", 1),
            ("checking queue 'tidegate.dead': 404 NOT_FOUND", 1),
            ("checking queue 'tidegate.ingest.0': 404 NOT_FOUND", 0),
            ("checking queue 'ours': 404 NOT_FOUND", 0),
        ] {
            let all = objects.iter().filter(|object| is_missing(object, &missing(text)));
            assert_eq!(all.count(), known, "{text}");
        }
        let text = "checking queue 'tidegate.ingest': ";
        for other in [Err(Fault::setup(text)), Ok(Note { risky: true, text: text.to_owned() })] {
            assert!(!objects.iter().any(|object| is_missing(object, &other)), "{other:?}");
        }
        config.amqp.topology = Topology::Passive;
        assert!([Side::Ingest, Side::Egress].iter().all(|side| created(&config, *side).is_empty()));
    }

    #[test]
    fn only_what_no_end_can_do_without_is_a_fault_if_it_can_never_be_created() {
        let mut config = Config { shards: ShardsConfig { count: 2 }, ..Config::default() };
        config.store.kind = StoreKind::Postgres;
        let options = Options::new(&config, 0, None);
        let faults = |side| -> Vec<String> {
            let all = created_at_start(side, &options);
            let weigh = |object: &&Declared| severity_without(object, &options.names);
            let faults = all.iter().filter(|object| weigh(object) == Severity::Fault);
            let name = |object: &Declared| match object {
                Declared::Queue { name, .. } => Some(format!("queue {name}")),
                Declared::Exchange { name, .. } => Some(format!("exchange {name}")),
                Declared::Binding { .. } | Declared::ExchangeBinding { .. } => None,
            };
            faults.filter_map(name).collect()
        };
        let ingest = [
            "queue tidegate.ingest",
            "exchange tidegate.in",
            "queue tidegate.ingest.0",
            "queue tidegate.ingest.1",
        ];
        assert_eq!(faults(Side::Ingest), ingest);
        assert_eq!(faults(Side::Egress), ["exchange tidegate.out"]);
    }

    #[test]
    fn no_user_is_named_where_a_certificate_says_who_it_is() {
        let mut endpoint = Config::default().amqp.endpoints.remove(0);
        assert_eq!(who(&endpoint), "'guest'");
        endpoint.login = Login::External;
        assert!(!who(&endpoint).contains("guest"), "{}", who(&endpoint));
    }
}
