//! What a login may do, found out without doing it.
//!
//! The broker looks at the right first. What comes after is refused or taken back in any case: a declaration
//! and a consumer have an argument that no broker accepts, and a message is published in a transaction that
//! is rolled back. So nothing is made, taken or sent, whatever the answer.

use super::blueprint::Names;
use super::connection::Session;
use super::fault::{Fault, FaultKind};
use super::ingest_lock::lock_name;
use super::inspect::{Inspected, Severity};
use super::Side;
use lapin::options::{BasicConsumeOptions, BasicPublishOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel};
use std::time::Duration;
use tokio::time::timeout;

/// The broker's word for a right that is missing.
const ACCESS_REFUSED: u16 = 403;
/// The queue is missing, belongs to another connection, or the argument is refused: the right was looked at
/// before.
const AFTER_THE_RIGHT: [u16; 3] = [404, 405, 406];

/// Questions whose answer is lost; the next one is lost as seldom as this one.
const TRIES: u32 = 20;

/// What one is allowed to do to a queue or an exchange.
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

/// A right that the work needs.
struct Needed<'n> {
    permission: Permission,
    name: &'n str,
    /// How much its absence matters.
    severity: Severity,
    /// What does not work without it.
    without: &'static str,
}

/// Asks for each right that one side needs, whatever the mode of the topology.
pub(super) async fn inspect_rights(
    session: &Session,
    side: Side,
    names: &Names,
    limit: Duration,
) -> Vec<Inspected> {
    let lock = lock_name(&names.queue);
    let needed = match side {
        Side::Ingest => ingest_needs(names, &lock),
        Side::Egress => egress_needs(names),
    };
    let (mut granted, mut found) = (Vec::new(), Vec::new());
    for need in &needed {
        match asked(session, need, limit).await {
            Ok(true) => granted.push(format!("{} '{}'", need.permission.as_str(), shown(need.name))),
            // Whoever looked at the exchange has said so.
            Ok(false) => {}
            Err(fault) if fault.code == Some(ACCESS_REFUSED) => {
                let (permission, name) = (need.permission.as_str(), shown(need.name));
                let text = format!(
                    "the right to {permission} '{name}' is missing: {}. `tidegate topology print` shows the \
                     rabbitmqctl command that grants it",
                    need.without
                );
                found.push(Inspected { side, severity: need.severity, text });
            }
            Err(fault) => found.push(Inspected { side, severity: Severity::Warning, text: fault.text }),
        }
    }
    if !granted.is_empty() {
        let text = format!("has the right to {}", granted.join(", "));
        found.insert(0, Inspected { side, severity: Severity::Good, text });
    }
    found
}

fn ingest_needs<'n>(names: &'n Names, lock: &'n str) -> Vec<Needed<'n>> {
    let need =
        |permission, name, severity, without: &'static str| Needed { permission, name, severity, without };
    let mut all = vec![
        need(Permission::Read, &*names.queue, Severity::Fault, "no request can be taken"),
        need(
            Permission::Configure,
            lock,
            Severity::Warning,
            "a second daemon on the same queue is noticed late, by counting consumers alone",
        ),
        need(Permission::Write, "", Severity::Warning, "commands by AMQP get no answer"),
    ];
    if !names.ingest.is_empty() {
        let without = "dead letters cannot be sent back, and `tidegate push` with this login cannot publish";
        all.push(need(Permission::Write, &names.ingest, Severity::Warning, without));
    }
    all
}

fn egress_needs(names: &Names) -> Vec<Needed<'_>> {
    let write =
        |name, without| Needed { permission: Permission::Write, name, severity: Severity::Fault, without };
    let mut all = vec![
        write(&*names.egress, "no batch can leave"),
        write(&names.dead.exchange, "what is given up cannot leave, and fills the store"),
    ];
    if let Some(queue) = names.dead.queue_name() {
        all.push(Needed {
            permission: Permission::Read,
            name: queue,
            severity: Severity::Warning,
            without: "`tidegate dead` cannot look at what was given up",
        });
    }
    all
}

/// The default exchange has a name in permissions alone.
fn shown(name: &str) -> &str {
    if name.is_empty() {
        "amq.default"
    } else {
        name
    }
}

/// Asks until there is an answer. A refusal that comes between the message and the end of its transaction
/// ends the channel, and nothing then says why.
async fn asked(session: &Session, need: &Needed<'_>, limit: Duration) -> Result<bool, Fault> {
    let mut tries = 1;
    loop {
        match asked_once(session, need, limit).await {
            Err(fault) if fault.kind == FaultKind::AfterEnd && tries < TRIES => tries += 1,
            answer => return answer,
        }
    }
}

/// Whether the right is there: `false` where that cannot be told, because the exchange is missing.
///
/// # Errors
/// Code 403: it is not. All else: the broker does not answer as it should.
async fn asked_once(session: &Session, need: &Needed<'_>, limit: Duration) -> Result<bool, Fault> {
    let what = format!("asking for the right to {} '{}'", need.permission.as_str(), shown(need.name));
    let name = ShortString::try_new(need.name)
        .map_err(|_| Fault::setup(format!("the name '{}' is longer than 255 bytes", need.name)))?;
    // The refusal costs the channel: each question has one of its own.
    let channel = session.channel(limit).await?;
    let answer = match need.permission {
        Permission::Configure => timeout(limit, declared(&channel, name)).await,
        Permission::Write => timeout(limit, published(&channel, name)).await,
        Permission::Read => timeout(limit, consumed(&channel, name)).await,
    };
    let fault = match answer {
        Ok(Ok(())) => {
            // The session ends it at the latest.
            let _ = timeout(limit, channel.close(200, "OK".into())).await;
            return Ok(true);
        }
        Ok(Err(error)) => Fault::from(error).while_doing(&what),
        Err(_) => Fault::timeout(&what, limit),
    };
    match fault.code {
        Some(404) if need.permission == Permission::Write => Ok(false),
        Some(code) if need.permission != Permission::Write && AFTER_THE_RIGHT.contains(&code) => Ok(true),
        Some(_) | None => Err(fault),
    }
}

/// Should a broker take it all the same: it is this connection's own, and ends with it.
async fn declared(channel: &Channel, name: ShortString) -> lapin::Result<()> {
    let options = QueueDeclareOptions { exclusive: true, auto_delete: true, ..Default::default() };
    channel.queue_declare(name, options, unacceptable("x-expires")).await.map(drop)
}

/// Should a broker take it all the same: what it delivers goes back when the channel is closed next.
async fn consumed(channel: &Channel, name: ShortString) -> lapin::Result<()> {
    // Then at most one goes back.
    channel.basic_qos(1, Default::default()).await?;
    channel
        .basic_consume(name, "".into(), BasicConsumeOptions::default(), unacceptable("x-priority"))
        .await
        .map(drop)
}

async fn published(channel: &Channel, name: ShortString) -> lapin::Result<()> {
    channel.tx_select().await?;
    let options = BasicPublishOptions::default();
    // No queue has this name: at most an exchange that copies everything would have a place for it.
    let key = "tidegate.check".into();
    // In a transaction there is no confirm to wait for.
    let _unconfirmed = channel.basic_publish(name, key, options, &[], BasicProperties::default()).await?;
    channel.tx_rollback().await
}

/// Text where the broker takes numbers alone.
fn unacceptable(argument: &'static str) -> FieldTable {
    let mut table = FieldTable::default();
    table.insert(argument.into(), AMQPValue::LongString("none".into()));
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn what_is_needed_is_what_the_least_rights_grant() {
        let mut config = Config::default();
        config.amqp.topology = crate::config::Topology::Passive;
        let names = Names::of(&config.ingest, &config.egress, &config.dead);
        let lock = lock_name(&names.queue);
        for (needs, rights) in [
            (ingest_needs(&names, &lock), super::super::blueprint::ingest_rights(&config)),
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
