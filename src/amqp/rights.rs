//! Finds out what a login may do, without doing it.
//!
//! The broker checks the permission first. The rest of the request fails or is undone in any case: a
//! declaration and a consumer carry an argument that no broker accepts, and a message is published in a
//! transaction that is rolled back. So nothing is created, consumed or sent, whatever the answer.

use super::blueprint::{lock_name, Argument, Declared, Names, MADE_UP};
use super::connection::Session;
use super::fault::{Fault, FaultKind};
use super::Side;
use lapin::options::{
    BasicConsumeOptions, BasicPublishOptions, ExchangeDeclareOptions, ExchangeDeleteOptions,
    QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, ExchangeKind};
use std::time::Duration;
use tidegate_common::check_line::{CheckLine, Severity};
use tokio::time::timeout;

/// Reply code for a missing permission.
pub(crate) const ACCESS_REFUSED: u16 = 403;
/// Reply codes that follow a passed check of the permission: the queue is missing, belongs to another
/// connection, or the argument is refused.
const AFTER_THE_RIGHT: [u16; 3] = [404, 405, 406];

/// Argument of a queue: where the broker moves what it removes.
const DEAD_LETTERS: &str = "x-dead-letter-exchange";

/// Most attempts of one check whose answers are lost (see [`asked`]); each is lost seldom.
const TRIES: u32 = 20;

/// A permission on a queue or an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Permission {
    Configure,
    Write,
    Read,
}

impl Permission {
    /// As RabbitMQ names it.
    fn as_str(self) -> &'static str {
        match self {
            Permission::Configure => "configure",
            Permission::Write => "write",
            Permission::Read => "read",
        }
    }
}

/// A permission that the work needs.
struct Needed<'n> {
    permission: Permission,
    name: &'n str,
    /// How much its absence matters.
    severity: Severity,
    /// What does not work without it.
    without: &'static str,
}

/// Checks each permission that one side needs, whatever the mode of the topology.
pub(crate) async fn inspect_rights(
    session: &Session,
    side: Side,
    names: &Names,
    limit: Duration,
) -> Vec<CheckLine> {
    let locks: Vec<String> = names.request_queues().map(lock_name).collect();
    let needed = match side {
        Side::Ingest => ingest_needs(names, &locks),
        Side::Egress => egress_needs(names),
    };
    let (mut granted, mut found) = (Vec::new(), Vec::new());
    for need in &needed {
        match asked(session, need, limit).await {
            Ok(true) => granted.push(format!("{} '{}'", need.permission.as_str(), shown(need.name))),
            // The check of the exchange has reported it.
            Ok(false) => {}
            Err(fault) if fault.code == Some(ACCESS_REFUSED) => {
                let (permission, name) = (need.permission.as_str(), shown(need.name));
                let text = format!(
                    "the right to {permission} '{name}' is missing: {}. `tidegate topology print` shows the \
                     rabbitmqctl command that grants it",
                    need.without
                );
                found.push(CheckLine::new(need.severity, side.as_str(), text));
            }
            Err(fault) => found.push(CheckLine::new(Severity::Warning, side.as_str(), fault.text)),
        }
    }
    if !granted.is_empty() {
        let text = format!("has the right to {}", granted.join(", "));
        found.insert(0, CheckLine::new(Severity::Good, side.as_str(), text));
    }
    found
}

/// `locks`: the lock of each queue with requests, in their order.
fn ingest_needs<'n>(names: &'n Names, locks: &'n [String]) -> Vec<Needed<'n>> {
    let need =
        |permission, name, severity, without: &'static str| Needed { permission, name, severity, without };
    let mut all = Vec::new();
    for (queue, lock) in names.request_queues().zip(locks) {
        all.push(need(Permission::Read, queue, Severity::Fault, "no request can be consumed"));
        let without = "a second daemon on the same queue is detected late, only by counting consumers";
        all.push(need(Permission::Configure, lock, Severity::Warning, without));
    }
    all.push(if names.shards.is_empty() {
        need(Permission::Write, "", Severity::Warning, "commands by AMQP get no answer")
    } else {
        need(Permission::Write, "", Severity::Fault, "no request can be forwarded to its shard")
    });
    if !names.ingest.is_empty() {
        let without = "dead letters cannot be sent back, and `tidegate push` with this login cannot publish";
        all.push(need(Permission::Write, &names.ingest, Severity::Warning, without));
    }
    if let Some(control) = &names.control {
        let without = "this node can ask no other one";
        all.push(need(Permission::Write, control, Severity::Warning, without));
        let without = "no other node can ask this one";
        all.push(need(Permission::Read, control, Severity::Warning, without));
        for permission in [Permission::Configure, Permission::Write, Permission::Read] {
            all.push(need(permission, MADE_UP, Severity::Warning, without));
        }
    }
    all
}

fn egress_needs(names: &Names) -> Vec<Needed<'_>> {
    let write =
        |name, without| Needed { permission: Permission::Write, name, severity: Severity::Fault, without };
    let mut all = vec![
        write(&*names.egress, "no batch can leave"),
        write(&names.dead.exchange, "dead letters cannot be published, and fill the store"),
    ];
    if let Some(queue) = names.dead.queue_name() {
        all.push(Needed {
            permission: Permission::Read,
            name: queue,
            severity: Severity::Warning,
            without: "`tidegate dead` cannot read dead letters",
        });
    }
    all
}

/// The name in permissions; only there the default exchange has one.
fn shown(name: &str) -> &str {
    if name.is_empty() {
        "amq.default"
    } else {
        name
    }
}

/// Asks until there is an answer. A refusal that arrives between the message and the end of its transaction
/// closes the channel without a reason.
async fn asked(session: &Session, need: &Needed<'_>, limit: Duration) -> Result<bool, Fault> {
    let mut tries = 1;
    loop {
        match asked_once(session, need, limit).await {
            Err(fault) if fault.kind == FaultKind::AfterEnd && tries < TRIES => tries += 1,
            answer => return answer,
        }
    }
}

/// Whether the permission is granted; `false`: unknown, because the exchange is missing.
///
/// # Errors
/// Code 403: it is not granted. Any other: the broker did not answer as expected.
async fn asked_once(session: &Session, need: &Needed<'_>, limit: Duration) -> Result<bool, Fault> {
    let what = format!("asking for the right to {} '{}'", need.permission.as_str(), shown(need.name));
    // The broker makes such a name up where none is given, and refuses one that a client chooses.
    let is_made_up = need.name == MADE_UP;
    let name = if is_made_up && need.permission == Permission::Configure { "" } else { need.name };
    let name = ShortString::try_new(name)
        .map_err(|_| Fault::setup(format!("the name '{}' is longer than 255 bytes", need.name)))?;
    // A refusal closes the channel, so each question uses a new one.
    let channel = session.channel(limit).await?;
    let answer = match need.permission {
        Permission::Configure => timeout(limit, declared(&channel, name, None)).await,
        Permission::Write => timeout(limit, published(&channel, name)).await,
        Permission::Read => timeout(limit, consumed(&channel, name)).await,
    };
    let fault = match answer {
        Ok(Ok(())) => {
            // The end of the session closes it at the latest.
            let _ = timeout(limit, channel.close(200, "OK".into())).await;
            return Ok(true);
        }
        Ok(Err(error)) => Fault::from(error).while_doing(&what),
        Err(_) => Fault::timeout(&what, limit),
    };
    match fault.code {
        Some(404) if need.permission == Permission::Write => Ok(is_made_up),
        Some(code) if need.permission != Permission::Write && AFTER_THE_RIGHT.contains(&code) => Ok(true),
        Some(_) | None => Err(fault),
    }
}

/// Whether this login may create a queue or an exchange that does not exist.
///
/// # Errors
/// Code 403: it may not, in the broker's words. Any other: the broker did not answer as expected.
pub(crate) async fn may_create(session: &Session, object: &Declared, limit: Duration) -> Result<(), Fault> {
    let (name, of_queue) = match object {
        Declared::Queue { name, arguments } => (name, Some(dead_letters_of(arguments))),
        Declared::Exchange { name, .. } => (name, None),
        Declared::Binding { .. } | Declared::ExchangeBinding { .. } => return Ok(()),
    };
    let name = ShortString::try_new(name.as_str())
        .map_err(|_| Fault::setup(format!("the name '{name}' is longer than 255 bytes")))?;
    let channel = session.channel(limit).await?;
    let answer = match of_queue {
        Some(dead_letters) => timeout(limit, declared(&channel, name, dead_letters)).await,
        None => timeout(limit, declared_exchange(&channel, name)).await,
    };
    let fault = match answer {
        Ok(Ok(())) => {
            // The end of the session closes it at the latest.
            let _ = timeout(limit, channel.close(200, "OK".into())).await;
            return Ok(());
        }
        Ok(Err(error)) => Fault::from(error),
        Err(_) => Fault::timeout("a declaration that is to be refused", limit),
    };
    match fault.code {
        Some(code) if AFTER_THE_RIGHT.contains(&code) => Ok(()),
        Some(_) | None => Err(fault),
    }
}

/// The dead-letter exchange that a queue names, which takes further rights.
fn dead_letters_of<'a>(arguments: &'a [(&'static str, Argument)]) -> Option<&'a str> {
    arguments.iter().find_map(|(name, value)| match value {
        Argument::Text(exchange) if *name == DEAD_LETTERS => Some(exchange.as_str()),
        Argument::Text(_) | Argument::Number(_) => None,
    })
}

/// If a broker accepts it nevertheless, the queue is exclusive to this connection and ends with it.
async fn declared(channel: &Channel, name: ShortString, dead_letters: Option<&str>) -> lapin::Result<()> {
    let options = QueueDeclareOptions { exclusive: true, auto_delete: true, ..Default::default() };
    let mut arguments = unacceptable("x-expires");
    if let Some(exchange) = dead_letters {
        arguments.insert(DEAD_LETTERS.into(), AMQPValue::LongString(exchange.into()));
    }
    channel.queue_declare(name, options, arguments).await.map(drop)
}

/// If a broker accepts it nevertheless, the exchange is deleted at once. One that others have made meanwhile
/// is durable, so that the declaration is refused.
async fn declared_exchange(channel: &Channel, name: ShortString) -> lapin::Result<()> {
    let (options, mut arguments) = (ExchangeDeclareOptions::default(), FieldTable::default());
    // A number where the broker accepts only a name.
    arguments.insert("alternate-exchange".into(), AMQPValue::LongInt(0));
    channel.exchange_declare(name.clone(), ExchangeKind::Direct, options, arguments).await?;
    let unused = ExchangeDeleteOptions { if_unused: true, ..Default::default() };
    channel.exchange_delete(name, unused).await
}

/// If a broker accepts it nevertheless, its deliveries return to the queue when the channel is closed next.
async fn consumed(channel: &Channel, name: ShortString) -> lapin::Result<()> {
    // At most one delivery returns then.
    channel.basic_qos(1, Default::default()).await?;
    channel
        .basic_consume(name, "".into(), BasicConsumeOptions::default(), unacceptable("x-priority"))
        .await
        .map(drop)
}

async fn published(channel: &Channel, name: ShortString) -> lapin::Result<()> {
    channel.tx_select().await?;
    let options = BasicPublishOptions::default();
    // No queue has this name; only an exchange that routes every key would find a queue.
    let key = "tidegate.check".into();
    // In a transaction there is no confirm to wait for.
    let _unconfirmed = channel.basic_publish(name, key, options, &[], BasicProperties::default()).await?;
    channel.tx_rollback().await
}

/// An argument with text where the broker accepts only numbers.
fn unacceptable(argument: &'static str) -> FieldTable {
    let mut table = FieldTable::default();
    table.insert(argument.into(), AMQPValue::LongString("none".into()));
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_config::{Config, ShardsConfig, StoreKind};

    #[test]
    fn what_is_needed_is_what_the_least_rights_grant() {
        for (count, kind) in [(1, StoreKind::Disk), (3, StoreKind::Disk), (3, StoreKind::Postgres)] {
            let mut config = Config { shards: ShardsConfig { count }, ..Config::default() };
            config.store.kind = kind;
            config.amqp.topology = tidegate_config::Topology::Passive;
            let names = Names::of(&config);
            let locks: Vec<String> = names.request_queues().map(lock_name).collect();
            for (needs, rights) in [
                (ingest_needs(&names, &locks), super::super::blueprint::ingest_rights(&config)),
                (egress_needs(&names), super::super::blueprint::egress_rights(&config)),
            ] {
                assert!(!needs.is_empty());
                for need in needs {
                    let granted = match need.permission {
                        Permission::Configure => &rights.configure,
                        Permission::Write => &rights.write,
                        Permission::Read => &rights.read,
                    };
                    let name = shown(need.name).replace('.', r"\.");
                    assert!(granted.contains(&name), "{:?} {name}: {granted}", need.permission);
                }
            }
        }
    }

    #[test]
    fn several_shards_need_each_queue_each_lock_and_the_default_exchange_and_nodes_their_own_as_well() {
        let mut config = Config { shards: ShardsConfig { count: 2 }, ..Config::default() };
        config.store.kind = StoreKind::Postgres;
        let names = Names::of(&config);
        let locks: Vec<String> = names.request_queues().map(lock_name).collect();
        let needed: Vec<_> = ingest_needs(&names, &locks)
            .iter()
            .map(|need| (need.permission.as_str(), shown(need.name).to_owned(), need.severity))
            .collect();
        let mut wanted = Vec::new();
        for queue in ["tidegate.ingest", "tidegate.ingest.0", "tidegate.ingest.1"] {
            wanted.push(("read", queue.to_owned(), Severity::Fault));
            wanted.push(("configure", format!("tidegate.lock.{queue}"), Severity::Warning));
        }
        wanted.push(("write", "amq.default".to_owned(), Severity::Fault));
        wanted.push(("write", "tidegate.in".to_owned(), Severity::Warning));
        for (right, name) in [
            ("write", "tidegate.control"),
            ("read", "tidegate.control"),
            ("configure", "amq.gen-"),
            ("write", "amq.gen-"),
            ("read", "amq.gen-"),
        ] {
            wanted.push((right, name.to_owned(), Severity::Warning));
        }
        assert_eq!(needed, wanted);
    }
}
