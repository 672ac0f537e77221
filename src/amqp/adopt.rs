//! `shards adopt`: leads requests on the broker to the queues of the shards, or back to the ingest queue,
//! whatever `amqp.topology` says.
//!
//! The way of requests is changed in steps, which are computed before the first one is done. At no moment
//! is a request without a way; on the way to several shards, none is in two queues either.
//!
//! Deliberately absent: the dead exchange with its queue, which the queues merely name, and deleting queues,
//! which may contain requests.

use super::blueprint::{self, Declared, Names, RequestMap};
use super::connection::Session;
use super::fault::Fault;
use super::topology::Setup;
use std::fmt;
use std::time::Duration;
use tidegate_config::Config;

/// Time limit for an orderly close.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);

/// A change on the broker. Each has no effect where it is done already; its text says what is so afterwards.
#[derive(Clone, Debug, PartialEq, Eq)]
enum BrokerStep {
    /// Creates an object.
    Declare(Declared),
    /// Takes away the way from an exchange to a queue, whichever of these keys it has.
    Unbind { exchange: String, queue: String, keys: [String; 2] },
    /// Takes away the bindings of an application to the queues of other shards than its own.
    Free { exchange: String, application: String, queues: Vec<String> },
    /// Takes away the way from one exchange to another.
    UnbindExchange { source: String, destination: String },
    /// Deletes an exchange with its bindings.
    Delete { exchange: String },
    /// Nothing is to be done about an exchange that does not exist.
    Absent { exchange: String },
    /// Nothing is done about the queues of the shards that there were.
    Keep { queue: String },
}

impl fmt::Display for BrokerStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BrokerStep::Declare(Declared::Queue { name, .. }) => write!(f, "queue '{name}'"),
            BrokerStep::Declare(Declared::Exchange { name, kind, alternate }) => {
                write!(f, "exchange '{name}' ({})", kind.as_str())?;
                alternate.iter().try_for_each(|other| write!(f, " with alternate exchange '{other}'"))
            }
            BrokerStep::Declare(Declared::Binding { exchange, queue, key }) => {
                write!(f, "queue '{queue}' bound to exchange '{exchange}'")?;
                if key.is_empty() {
                    return Ok(());
                }
                write!(f, " by key '{key}'")
            }
            BrokerStep::Declare(Declared::ExchangeBinding { source, destination }) => {
                write!(f, "exchange '{destination}' bound to exchange '{source}'")
            }
            BrokerStep::Unbind { exchange, queue, .. } => {
                write!(f, "queue '{queue}' no longer bound to exchange '{exchange}'")
            }
            BrokerStep::Free { exchange, application, .. } => {
                write!(f, "no queue of another shard bound to exchange '{exchange}' by key '{application}'")
            }
            BrokerStep::UnbindExchange { source, destination } => {
                write!(f, "exchange '{destination}' no longer bound to exchange '{source}'")
            }
            BrokerStep::Delete { exchange } => write!(f, "exchange '{exchange}' deleted"),
            BrokerStep::Absent { exchange } => {
                write!(f, "exchange '{exchange}' does not exist: nothing to do")
            }
            BrokerStep::Keep { queue } => write!(
                f,
                "queues of shards ('{queue}.0' and so on) are left: delete each that exists once it is empty"
            ),
        }
    }
}

/// Makes on the broker what the configured number of shards needs, and leads requests there. Returns a line
/// for each step.
///
/// # Errors
/// One sentence that names the step that the broker refused, or why there is no connection. What was done
/// before stays, and another call continues.
pub async fn adopt(config: &Config) -> Result<Vec<String>, String> {
    let limit = config.timeouts.connect;
    let session = Session::open_any(&config.amqp, limit, "tidegate shards adopt").await?;
    let names = Names::of(config);
    let mut setup = Setup::strict(&session, limit);
    let done = match &names.map {
        Some(map) => run(&mut setup, &to_shards(&names, map)).await,
        None => match left(&mut setup, &names).await {
            Ok(exchanges) => run(&mut setup, &to_one(&names, &exchanges)).await,
            Err(fault) => Err(refused(&fault, None, 0)),
        },
    };
    setup.finish().await;
    session.close(CLOSE_WITHIN).await;
    done
}

/// Does the steps, up to the first that fails.
async fn run(setup: &mut Setup<'_>, steps: &[BrokerStep]) -> Result<Vec<String>, String> {
    let mut lines = Vec::with_capacity(steps.len());
    for step in steps {
        take(setup, step).await.map_err(|fault| refused(&fault, Some(step), lines.len()))?;
        // The note names the object.
        let notes: Vec<String> = setup.take_notes().into_iter().map(|note| note.text).collect();
        lines.push(if notes.is_empty() { step.to_string() } else { notes.join("; ") });
    }
    Ok(lines)
}

async fn take(setup: &mut Setup<'_>, step: &BrokerStep) -> Result<(), Fault> {
    match step {
        BrokerStep::Declare(declared) => setup.declare(declared).await,
        BrokerStep::Unbind { exchange, queue, keys } => {
            for key in keys {
                setup.unbind(queue, exchange, key).await?;
            }
            Ok(())
        }
        BrokerStep::Free { exchange, application, queues } => {
            for queue in queues {
                setup.unbind(queue, exchange, application).await?;
            }
            Ok(())
        }
        BrokerStep::UnbindExchange { source, destination } => {
            setup.unbind_exchange(destination, source).await
        }
        BrokerStep::Delete { exchange } => setup.delete_exchange(exchange).await,
        BrokerStep::Absent { .. } | BrokerStep::Keep { .. } => Ok(()),
    }
}

/// The sentence about a step that failed after so many others; `None`: what was to be done was not clear.
fn refused(fault: &Fault, step: Option<&BrokerStep>, done: usize) -> String {
    let right = match fault.code {
        Some(403) => "; the login needs the rights for several shards with topology = \"declare\"",
        Some(_) | None => "",
    };
    let before = match done {
        0 => "nothing was changed before".to_owned(),
        1 => "the step before stays done, and another call continues".to_owned(),
        _ => format!("the {done} steps before stay done, and another call continues"),
    };
    let meanwhile = match step {
        Some(BrokerStep::UnbindExchange { .. }) => {
            "; requests of bound applications come to two queues until then"
        }
        Some(_) | None => "",
    };
    format!("{}{right}; {before}{meanwhile}", fault.text)
}

/// The steps to several shards: the new way first, then the direct one to the ingest queue is taken away, and
/// only then applications are bound.
fn to_shards(names: &Names, map: &RequestMap) -> Vec<BrokerStep> {
    let of_all = std::iter::once(blueprint::request_queue(names, None))
        .chain(blueprint::request_exchange(names))
        .chain(blueprint::map_way(names, map));
    let mut steps: Vec<BrokerStep> = of_all.map(BrokerStep::Declare).collect();
    let (exchange, queue) = (names.ingest.clone(), names.queue.clone());
    let keys = blueprint::direct_keys(names).map(str::to_owned);
    steps.push(BrokerStep::Unbind { exchange, queue, keys });
    let shards = 0..u16::try_from(names.shards.len()).unwrap_or(u16::MAX);
    // A queue that is missing has no bindings, and none can be made to it.
    steps.extend(
        shards.clone().map(|shard| BrokerStep::Declare(blueprint::request_queue(names, Some(shard)))),
    );
    for shard in shards {
        let own = names.queue_of(Some(shard));
        let others: Vec<String> = names.shards.iter().filter(|queue| *queue != own).cloned().collect();
        for (application, _) in names.mapped_to(shard).filter(|(_, is_own)| *is_own) {
            steps.push(BrokerStep::Free {
                exchange: map.exchange.clone(),
                application: application.to_owned(),
                queues: others.clone(),
            });
            steps.push(BrokerStep::Declare(blueprint::mapped(names, map, shard, application)));
        }
    }
    steps.extend(names.control.as_deref().map(blueprint::control).map(BrokerStep::Declare));
    steps
}

/// The exchanges that several shards have left, with whether they exist: first that from which requests come,
/// last that of the nodes, if it is there.
///
/// # Errors
/// One of them is not as several shards need it, and so is none of theirs, or the login has no right to it.
async fn left(setup: &mut Setup<'_>, names: &Names) -> Result<Vec<(String, bool)>, Fault> {
    let mut exchanges = Vec::new();
    for declared in names.left.iter().flat_map(|left| blueprint::map_way(names, left)) {
        let Declared::Exchange { name, .. } = &declared else { continue };
        let exists = match setup.check_exchange(name).await {
            // The declaration compares it.
            Ok(()) => setup.declare(&declared).await.map(|()| true).map_err(|fault| foreign(name, fault))?,
            Err(fault) if fault.code == Some(404) => false,
            Err(fault) => return Err(fault),
        };
        exchanges.push((name.clone(), exists));
    }
    // What is deleted comes in the reverse order of creation.
    exchanges.reverse();
    if let Some(name) = &names.left_control {
        // Without any right to it there were no nodes.
        match setup.check_exchange(name).await {
            Ok(()) => {
                setup.declare(&blueprint::control(name)).await.map_err(|fault| foreign(name, fault))?;
                exchanges.push((name.clone(), true));
            }
            Err(fault) if matches!(fault.code, Some(403 | 404)) => {}
            Err(fault) => return Err(fault),
        }
    }
    Ok(exchanges)
}

/// The fault about an exchange that is in use for something else.
fn foreign(name: &str, mut fault: Fault) -> Fault {
    if fault.code == Some(406) {
        let text = fault.text;
        fault.text =
            format!("exchange '{name}' is not as several shards make it, and is not deleted: {text}");
    }
    fault
}

/// The steps back to a single shard. `exchanges`: those of several shards, with whether they exist.
fn to_one(names: &Names, exchanges: &[(String, bool)]) -> Vec<BrokerStep> {
    let mut steps: Vec<BrokerStep> =
        blueprint::direct_way(names).into_iter().map(BrokerStep::Declare).collect();
    for (exchange, exists) in exchanges {
        let exchange = exchange.clone();
        if !exists {
            steps.push(BrokerStep::Absent { exchange });
            continue;
        }
        if names.left.as_ref().is_some_and(|left| left.exchange == exchange) {
            let (source, destination) = (names.ingest.clone(), exchange.clone());
            steps.push(BrokerStep::UnbindExchange { source, destination });
        }
        steps.push(BrokerStep::Delete { exchange });
    }
    steps.push(BrokerStep::Keep { queue: names.queue.clone() });
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_config::{ShardsConfig, StoreKind};
    use tidegate_wire::home;

    /// An application for each of two shards.
    fn of_two() -> (Config, [String; 2]) {
        let mut config = Config { shards: ShardsConfig { count: 2 }, ..Config::default() };
        let of = |shard: u16| (0..).map(|n| format!("app-{n}")).find(|name| home(name, 2) == shard).unwrap();
        let applications = [of(0), of(1)];
        for application in &applications {
            config.applications.insert(application.clone(), config.defaults.clone());
        }
        (config, applications)
    }

    fn lines(steps: &[BrokerStep]) -> Vec<String> {
        steps.iter().map(BrokerStep::to_string).collect()
    }

    #[test]
    fn the_new_way_stands_before_the_direct_one_goes_and_applications_are_bound_last() {
        let (config, [one, other]) = of_two();
        let names = Names::of(&config);
        let steps = to_shards(&names, names.map.as_ref().unwrap());
        let none = "no queue of another shard bound to exchange 'tidegate.apps' by key";
        assert_eq!(
            lines(&steps),
            [
                "queue 'tidegate.ingest'",
                "exchange 'tidegate.in' (fanout)",
                "exchange 'tidegate.new' (fanout)",
                "queue 'tidegate.ingest' bound to exchange 'tidegate.new'",
                "exchange 'tidegate.apps' (direct) with alternate exchange 'tidegate.new'",
                "exchange 'tidegate.apps' bound to exchange 'tidegate.in'",
                "queue 'tidegate.ingest' no longer bound to exchange 'tidegate.in'",
                "queue 'tidegate.ingest.0'",
                "queue 'tidegate.ingest.1'",
                &format!("{none} '{one}'"),
                &format!("queue 'tidegate.ingest.0' bound to exchange 'tidegate.apps' by key '{one}'"),
                &format!("{none} '{other}'"),
                &format!("queue 'tidegate.ingest.1' bound to exchange 'tidegate.apps' by key '{other}'"),
            ]
        );
        let freed = |step: &BrokerStep| match step {
            BrokerStep::Free { application, queues, .. } => Some((application.clone(), queues.clone())),
            BrokerStep::Declare(_)
            | BrokerStep::Unbind { .. }
            | BrokerStep::UnbindExchange { .. }
            | BrokerStep::Delete { .. }
            | BrokerStep::Absent { .. }
            | BrokerStep::Keep { .. } => None,
        };
        let wanted = [(one, "tidegate.ingest.1"), (other, "tidegate.ingest.0")];
        let wanted = wanted.map(|(application, queue)| (application, vec![queue.to_owned()]));
        assert_eq!(steps.iter().filter_map(freed).collect::<Vec<_>>(), wanted);
    }

    #[test]
    fn what_is_printed_for_several_shards_is_declared_and_nothing_else() {
        let mut config = of_two().0;
        config.store.kind = StoreKind::Postgres;
        let names = Names::of(&config);
        let steps = to_shards(&names, names.map.as_ref().unwrap());
        assert_eq!(steps.last().unwrap().to_string(), "exchange 'tidegate.control' (direct)");
        let printed = blueprint::ingest(&names);
        for declared in &printed {
            assert_eq!(
                steps.iter().filter(|step| **step == BrokerStep::Declare(declared.clone())).count(),
                1
            );
        }
        assert_eq!(steps.iter().filter(|step| matches!(step, BrokerStep::Declare(_))).count(), printed.len());
    }

    #[test]
    fn the_direct_way_stands_before_the_exchanges_of_several_shards_go() {
        let names = Names::of(&Config::default());
        let steps = |apps: bool, new: bool| {
            let exchanges = [("tidegate.apps", apps), ("tidegate.new", new)];
            lines(&to_one(&names, &exchanges.map(|(name, exists)| (name.to_owned(), exists))))
        };
        let first = "queue 'tidegate.ingest' bound to exchange 'tidegate.in'";
        let unbound = "exchange 'tidegate.apps' no longer bound to exchange 'tidegate.in'";
        let deleted = |name: &str| format!("exchange 'tidegate.{name}' deleted");
        let absent = |name: &str| format!("exchange 'tidegate.{name}' does not exist: nothing to do");
        let last =
            "queues of shards ('tidegate.ingest.0' and so on) are left: delete each that exists once it \
                    is empty";
        assert_eq!(steps(true, true), [first, unbound, &deleted("apps"), &deleted("new"), last]);
        assert_eq!(steps(false, true), [first, &absent("apps"), &deleted("new"), last]);
        assert_eq!(steps(false, false), [first, &absent("apps"), &absent("new"), last]);
    }

    #[test]
    fn exchanges_that_a_single_shard_uses_itself_are_none_of_several_shards() {
        let exchanges = |config: &Config| Names::of(config).left.map(|left| (left.exchange, left.unmapped));
        let mut config = Config::default();
        let both = ("tidegate.apps".to_owned(), "tidegate.new".to_owned());
        assert_eq!(exchanges(&config), Some(both));
        for used in ["tidegate.apps", "tidegate.new"] {
            let mut others = [config.clone(), config.clone(), config.clone()];
            others[0].ingest.exchange = used.to_owned();
            others[1].egress.exchange = used.to_owned();
            others[2].dead.exchange = used.to_owned();
            assert!(others.iter().all(|other| exchanges(other).is_none()), "{used}");
        }
        for (bytes, possible) in [(250, true), (251, false)] {
            config.ingest.queue = "q".repeat(bytes);
            assert_eq!(exchanges(&config).is_some(), possible, "{bytes}");
        }
        let several = of_two().0;
        assert_eq!((exchanges(&several), exchanges(&several.of_shard(1))), (None, None));
    }

    #[test]
    fn a_failure_says_what_is_lacking_and_what_stays() {
        let unbind = BrokerStep::UnbindExchange { source: "in".to_owned(), destination: "apps".to_owned() };
        let refusal = Fault { code: Some(403), ..Fault::setup("doing it: refused") };
        let right = "doing it: refused; the login needs the rights for several shards with topology = \
                     \"declare\"";
        assert_eq!(refused(&refusal, None, 0), format!("{right}; nothing was changed before"));
        assert_eq!(
            refused(&refusal, Some(&unbind), 1),
            format!(
                "{right}; the step before stays done, and another call continues; requests of bound \
                 applications come to two queues until then"
            )
        );
        let keep = BrokerStep::Keep { queue: "q".to_owned() };
        assert_eq!(
            refused(&Fault::lost("gone"), Some(&keep), 4),
            "gone; the 4 steps before stay done, and another call continues"
        );
        let told = foreign("apps", Fault { code: Some(406), ..Fault::setup("differs") }).text;
        assert_eq!(told, "exchange 'apps' is not as several shards make it, and is not deleted: differs");
        assert_eq!(foreign("apps", refusal.clone()), refusal);
    }
}
