//! Queues, exchanges and bindings: created, checked, or left alone at each connect.
//!
//! Each side handles the objects that it uses, since the two may have different logins or even brokers.
//! Deliberately absent: deleting or changing an existing object, which only [`super::adopt`] does, with the
//! steps from here. A queue with other arguments is used as it is.

use super::blueprint::{self, Argument, Declared, Names, RequestMap, Routing};
use super::connection::Session;
use super::declaring::in_turn;
use super::fault::{Fault, FaultKind};
use lapin::options::{
    ExchangeBindOptions, ExchangeDeclareOptions, ExchangeDeleteOptions, ExchangeUnbindOptions,
    QueueBindOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{Channel, ExchangeKind};
use std::time::Duration;
use tidegate_config::{DeadLetters, Topology};
use tokio::time::timeout;

/// Something an operator should know, though it does not stop the work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Note {
    /// Requests can be lost because of it.
    pub(crate) risky: bool,
    pub(crate) text: String,
}

/// Prepares what a consumer needs before it has its turn: its queue, and the dead exchange that the queue
/// names. `own`: its shard; `None`: it consumes the ingest queue.
pub(crate) async fn prepare_ingest(
    session: &Session,
    mode: Topology,
    (names, own): (&Names, Option<u16>),
    limit: Duration,
) -> Result<Vec<Note>, Fault> {
    let mut setup = Setup::new(session, limit);
    match mode {
        Topology::Off => {}
        Topology::Passive => {
            let dead = setup.check_exchange(&names.dead.exchange).await;
            setup.tolerate_dead(&names.dead.exchange, dead)?;
            setup.check_queue(names.queue_of(own)).await?;
            if own.is_none() {
                setup.check_exchange(&names.ingest).await?;
            }
        }
        Topology::Declare => {
            let dead = setup.declare_dead(&names.dead).await;
            setup.tolerate_dead(&names.dead.exchange, dead)?;
            setup.declare(&blueprint::request_queue(names, None)).await?;
            if own.is_some() {
                setup.declare(&blueprint::request_queue(names, own)).await?;
            }
        }
    }
    Ok(setup.finish().await)
}

/// How requests come to a consumer.
#[derive(Default)]
pub(crate) struct LedRequests {
    pub(crate) notes: Vec<Note>,
    /// The map stands, and the direct way to the ingest queue is gone: applications may be bound. Ways that
    /// others have made by keys of their own are not known.
    pub(crate) is_mapped: bool,
}

/// Leads requests to a consumer that has its turn: creates the exchange that they are published to, and the
/// ways from there. A daemon that stands by changes no way: its number of shards may be another one.
/// `is_first`: another number of shards may have left bindings to its queue.
pub(crate) async fn lead_requests(
    session: &Session,
    mode: Topology,
    (names, own): (&Names, Option<u16>),
    is_first: bool,
    limit: Duration,
) -> Result<LedRequests, Fault> {
    if mode != Topology::Declare {
        return Ok(LedRequests::default());
    }
    let mut setup = Setup::new(session, limit);
    let is_mapped = setup.lead_requests(names, own, is_first).await?;
    Ok(LedRequests { notes: setup.finish().await, is_mapped })
}

/// Prepares what a node needs so that others can ask it: the exchange, and a queue of this connection that is
/// bound by its name. Returns the queue's name.
pub(crate) async fn prepare_control(
    session: &Session,
    mode: Topology,
    (exchange, node): (&str, &str),
    limit: Duration,
) -> Result<(String, Vec<Note>), Fault> {
    let mut setup = Setup::new(session, limit);
    match mode {
        Topology::Off => {}
        Topology::Passive => setup.check_exchange(exchange).await?,
        Topology::Declare => setup.declare(&blueprint::control(exchange)).await?,
    }
    let notes = setup.finish().await;
    let queue = declare_exclusive(session, "", limit).await?;
    bind_control(session, &queue, (exchange, node), limit).await?;
    Ok((queue, notes))
}

/// Binds the queue of a node by a name of it.
pub(crate) async fn bind_control(
    session: &Session,
    queue: &str,
    (exchange, node): (&str, &str),
    limit: Duration,
) -> Result<(), Fault> {
    let mut setup = Setup::strict(session, limit);
    setup.bind(queue, exchange, node).await?;
    setup.finish().await;
    Ok(())
}

/// Takes away the bindings of the queue of a node: what others ask it from then on is returned to them.
pub(crate) async fn unbind_control(
    session: &Session,
    queue: &str,
    (exchange, names): (&str, &[String]),
    limit: Duration,
) -> Result<(), Fault> {
    let mut setup = Setup::strict(session, limit);
    for node in names {
        setup.unbind(queue, exchange, node).await?;
    }
    setup.finish().await;
    Ok(())
}

/// Prepares what batches need: the output exchange.
pub(crate) async fn prepare_egress(
    session: &Session,
    mode: Topology,
    exchange: &str,
    limit: Duration,
) -> Result<Vec<Note>, Fault> {
    let mut setup = Setup::new(session, limit);
    match mode {
        Topology::Off => {}
        Topology::Passive => {
            setup.check_exchange(exchange).await?;
            // A passive declaration does not compare the type.
            setup.note(
                false,
                format!(
                    "exchange '{exchange}' exists; its type cannot be checked with topology = \"passive\", \
                     and must be direct: another type would deliver batches to every application, or to none"
                ),
            );
        }
        Topology::Declare => {
            setup.declare(&blueprint::egress(exchange)).await?;
        }
    }
    Ok(setup.finish().await)
}

/// Prepares what dead letters need: their exchange, and a queue behind it.
///
/// # Errors
/// The exchange is missing and cannot be created ([`FaultKind::Setup`]), or the connection fails. A queue or
/// binding that cannot be created, or whose queue is busy and does not answer, is a note: only a returned
/// dead letter proves that it is missing.
pub(crate) async fn prepare_dead(
    session: &Session,
    mode: Topology,
    dead: &DeadLetters,
    limit: Duration,
) -> Result<Vec<Note>, Fault> {
    let mut setup = Setup::new(session, limit);
    match mode {
        Topology::Off => {}
        Topology::Passive => setup.check_exchange(&dead.exchange).await?,
        Topology::Declare => {
            setup.declare(&blueprint::dead_exchange(&dead.exchange)).await?;
            if let Err(fault) = setup.declare_dead_queue(dead).await {
                if fault.kind != FaultKind::Setup && !session.is_connected() {
                    return Err(fault);
                }
                setup.note(true, format!("dead letters may have no queue: {}", fault.text));
            }
        }
    }
    Ok(setup.finish().await)
}

/// Whether the dead-letter queue is known to be exactly as it would be declared. The limits of a queue that
/// others have made are unknown.
pub(crate) async fn is_own_dead_queue(
    session: &Session,
    mode: Topology,
    dead: &DeadLetters,
    limit: Duration,
) -> Result<bool, Fault> {
    let mut setup = Setup::new(session, limit);
    let own = match (mode, blueprint::dead_queue(dead).as_slice()) {
        (Topology::Passive | Topology::Off, _) | (Topology::Declare, []) => false,
        (Topology::Declare, [queue, rest @ ..]) => {
            // A difference or a refused declaration adds a note.
            setup.declare(queue).await?;
            let own = setup.notes.is_empty();
            // A queue that was deleted has lost its binding as well.
            setup.declare_all(rest).await?;
            own
        }
    };
    setup.finish().await;
    Ok(own)
}

/// Consumers and ready messages of a queue at present.
pub(crate) async fn count_queue(
    session: &Session,
    queue: &str,
    limit: Duration,
) -> Result<QueueCounts, Fault> {
    let mut setup = Setup::new(session, limit);
    let counts = setup.check_queue(queue).await?;
    setup.finish().await;
    Ok(counts)
}

/// Counts a queue repeatedly on one channel, since lapin's channel numbers are limited (see `connection`).
pub(crate) struct QueueWatch<'a>(Setup<'a>);

impl<'a> QueueWatch<'a> {
    pub(crate) fn new(session: &'a Session, limit: Duration) -> Self {
        QueueWatch(Setup::new(session, limit))
    }

    pub(crate) async fn count(&mut self, queue: &str) -> Result<QueueCounts, Fault> {
        self.0.check_queue(queue).await
    }

    pub(crate) async fn end(self) {
        self.0.finish().await;
    }
}

/// Makes bindings of the map, on one channel as long as the broker refuses none.
pub(crate) struct MapSetup<'a>(Setup<'a>);

impl<'a> MapSetup<'a> {
    pub(crate) fn new(session: &'a Session, limit: Duration) -> Self {
        MapSetup(Setup::strict(session, limit))
    }

    /// Leads an application to this shard, after it leads no longer to the queue of a `wrong` one.
    ///
    /// # Errors
    /// What the broker refused, or did not answer in time.
    pub(crate) async fn lead(
        &mut self,
        names: &Names,
        shard: u16,
        application: &str,
        wrong: Option<u16>,
    ) -> Result<(), String> {
        let Some(map) = &names.map else { return Ok(()) };
        let done = async {
            if wrong.is_some() {
                self.0.unbind(names.queue_of(wrong), &map.exchange, application).await?;
            }
            self.0.declare(&blueprint::mapped(names, map, shard, application)).await
        };
        done.await.map_err(|fault: Fault| fault.text)
    }
}

/// Counts of a queue, as the broker answers a passive declaration.
pub(crate) struct QueueCounts {
    pub(crate) consumers: u32,
    pub(crate) ready: u32,
}

/// Declares a queue that only this connection may use, and that is deleted with it. A queue of this name that
/// belongs to another connection is a fault with code 405. The broker makes up a name that is empty, and the
/// real one is returned.
pub(crate) async fn declare_exclusive(
    session: &Session,
    name: &str,
    limit: Duration,
) -> Result<String, Fault> {
    let mut setup = Setup::new(session, limit);
    let name = setup.declare_exclusive(name).await?;
    setup.finish().await;
    Ok(name)
}

/// Inspects everything that the ingest side uses without creating anything: a declaration is tried only where
/// the object exists, so that the broker reports how it differs.
pub(crate) async fn inspect_ingest(
    session: &Session,
    mode: Topology,
    names: &Names,
    limit: Duration,
) -> Vec<Result<Note, Fault>> {
    let mut setup = Setup::new(session, limit);
    let mut found = Vec::new();
    for declared in blueprint::ingest(names) {
        match (&declared, &names.map) {
            // Without it, all else goes on.
            (Declared::Exchange { name, .. }, _)
                if mode != Topology::Declare && names.control.as_ref() == Some(name) =>
            {
                match setup.check_exchange(name).await {
                    Err(fault) if fault.code == Some(404) => {
                        let text = format!("{}: no node can ask another one, or be asked", fault.text);
                        found.push(Ok(Note { risky: true, text }));
                    }
                    Ok(()) | Err(_) => setup.inspect(&mut found, &declared).await,
                }
            }
            // Without them, requests come through the ingest queue.
            (Declared::Exchange { name, .. }, Some(map))
                if mode != Topology::Declare && [&map.exchange, &map.unmapped].contains(&name) =>
            {
                match setup.check_exchange(name).await {
                    Err(fault) if fault.code == Some(404) => {
                        let text = format!("{}: all requests go through queue '{}'", fault.text, names.queue);
                        found.push(Ok(Note { risky: false, text }));
                    }
                    Ok(()) | Err(_) => setup.inspect(&mut found, &declared).await,
                }
            }
            _ => setup.inspect(&mut found, &declared).await,
        }
    }
    if let Some(left) = &names.left {
        setup.inspect_left(&mut found, names, left).await;
    }
    let before = found.len();
    setup.inspect_dead(&mut found, &names.dead).await;
    found[before..].iter_mut().for_each(tolerate_unseen);
    setup.finish().await;
    found
}

/// The ingest end publishes nothing to the dead exchange, so its user need not have any right to it. Since
/// RabbitMQ 4.3 one without any right cannot see whether an exchange or a queue exists.
fn tolerate_unseen(found: &mut Result<Note, Fault>) {
    if let Err(fault) = found {
        if fault.code == Some(403) {
            let text = format!(
                "{}: this end cannot see whether it exists, and works without. The publishing end checks it \
                 too",
                fault.text
            );
            *found = Ok(Note { risky: true, text });
        }
    }
}

/// As [`inspect_ingest`], for the publishing side.
pub(crate) async fn inspect_egress(
    session: &Session,
    names: &Names,
    limit: Duration,
) -> Vec<Result<Note, Fault>> {
    let mut setup = Setup::new(session, limit);
    let mut found = Vec::new();
    setup.inspect(&mut found, &blueprint::egress(&names.egress)).await;
    setup.inspect_dead(&mut found, &names.dead).await;
    setup.finish().await;
    found
}

/// Arguments of a queue, as the protocol carries them.
fn field_table(arguments: &[(&'static str, Argument)]) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in arguments {
        let value = match value {
            Argument::Text(text) => AMQPValue::LongString(text.as_str().into()),
            Argument::Number(number) => AMQPValue::LongLongInt(*number),
        };
        table.insert((*name).into(), value);
    }
    table
}

/// The arguments as text, for the note about a queue that has others.
fn named(arguments: &[(&'static str, Argument)]) -> String {
    if arguments.is_empty() {
        return "durable, no arguments".to_owned();
    }
    let one = |(name, value): &(&str, Argument)| match value {
        Argument::Text(text) => format!("{name}={text}"),
        Argument::Number(number) => format!("{name}={number}"),
    };
    arguments.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn short(name: &str) -> Result<ShortString, Fault> {
    ShortString::try_new(name)
        .map_err(|_| Fault::setup(format!("the name '{name}' is longer than 255 bytes")))
}

/// Runs each step on a channel, which the broker may close over the step.
pub(crate) struct Setup<'a> {
    session: &'a Session,
    channel: Option<Channel>,
    limit: Duration,
    notes: Vec<Note>,
    /// What is missing or differs is a fault, and not a note; except for the arguments of a queue.
    is_strict: bool,
}

impl<'a> Setup<'a> {
    fn new(session: &'a Session, limit: Duration) -> Self {
        Setup { session, channel: None, limit, notes: Vec::new(), is_strict: false }
    }

    /// Refused permissions and exchanges that differ are faults, which name the broker's own reason.
    pub(crate) fn strict(session: &'a Session, limit: Duration) -> Self {
        Setup { is_strict: true, ..Setup::new(session, limit) }
    }

    /// Takes the notes of the steps so far.
    pub(crate) fn take_notes(&mut self) -> Vec<Note> {
        std::mem::take(&mut self.notes)
    }

    pub(crate) async fn finish(self) -> Vec<Note> {
        if let Some(channel) = self.channel {
            // The end of the session closes it at the latest.
            let _ = timeout(self.limit, channel.close(200, "OK".into())).await;
        }
        self.notes
    }

    async fn channel(&mut self) -> Result<Channel, Fault> {
        if let Some(channel) = self.channel.as_ref().filter(|channel| channel.status().connected()) {
            return Ok(channel.clone());
        }
        let channel = self.session.channel(self.limit).await?;
        self.channel = Some(channel.clone());
        Ok(channel)
    }

    /// Takes the result of a step. A refused step has closed its channel.
    fn done<T>(
        &mut self,
        what: &str,
        result: Result<lapin::Result<T>, tokio::time::error::Elapsed>,
    ) -> Result<T, Fault> {
        let fault = match result {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) => Fault::from(error).while_doing(what),
            Err(_) => Fault::timeout(what, self.limit),
        };
        self.channel = None;
        Err(fault)
    }

    async fn check_queue(&mut self, name: &str) -> Result<QueueCounts, Fault> {
        let channel = self.channel().await?;
        let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let call = channel.queue_declare(short(name)?, options, FieldTable::default());
        let result = timeout(self.limit, call).await;
        let queue = self.done(&format!("checking queue '{name}'"), result)?;
        Ok(QueueCounts { consumers: queue.consumer_count(), ready: queue.message_count() })
    }

    async fn declare_exclusive(&mut self, name: &str) -> Result<String, Fault> {
        let channel = self.channel().await?;
        let options =
            QueueDeclareOptions { exclusive: true, auto_delete: true, ..QueueDeclareOptions::default() };
        let call = channel.queue_declare(short(name)?, options, FieldTable::default());
        let result = timeout(self.limit, call).await;
        let what = match name {
            "" => format!("declaring a queue '{}...'", blueprint::MADE_UP),
            name => format!("declaring queue '{name}'"),
        };
        self.done(&what, result).map(|queue| queue.name().to_string())
    }

    pub(crate) async fn check_exchange(&mut self, name: &str) -> Result<(), Fault> {
        // The default exchange always exists, and may not be declared.
        if name.is_empty() {
            return Ok(());
        }
        let channel = self.channel().await?;
        let options = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
        let call =
            channel.exchange_declare(short(name)?, ExchangeKind::Direct, options, FieldTable::default());
        let result = timeout(self.limit, call).await;
        self.done(&format!("checking exchange '{name}'"), result)
    }

    async fn declare_dead(&mut self, dead: &DeadLetters) -> Result<(), Fault> {
        self.declare(&blueprint::dead_exchange(&dead.exchange)).await?;
        self.declare_dead_queue(dead).await
    }

    async fn declare_dead_queue(&mut self, dead: &DeadLetters) -> Result<(), Fault> {
        let before = self.notes.len();
        self.declare_all(&blueprint::dead_queue(dead)).await?;
        // A queue of an earlier configuration remains usable. The note tells the operator what it lacks and
        // how to replace it.
        for note in self.notes.iter_mut().skip(before).filter(|note| note.risky) {
            note.text.push_str(
                ". To get the wanted queue: empty it (tidegate dead retry, export, drop), delete it and \
                 restart; or name another queue in dead.queue.name, or describe this one in [dead.queue]",
            );
        }
        Ok(())
    }

    async fn declare_all(&mut self, all: &[Declared]) -> Result<(), Fault> {
        for declared in all {
            self.declare(declared).await?;
        }
        Ok(())
    }

    pub(crate) async fn declare(&mut self, declared: &Declared) -> Result<(), Fault> {
        match declared {
            Declared::Queue { name, arguments } => self.declare_queue(name, arguments).await,
            Declared::Exchange { name, kind, alternate } => {
                self.declare_exchange(name, *kind, alternate.as_deref()).await
            }
            Declared::Binding { exchange, queue, key } => self.bind(queue, exchange, key).await,
            Declared::ExchangeBinding { source, destination } => {
                self.bind_exchange(destination, source).await
            }
        }
    }

    /// See [`lead_requests`]. Whether applications may be bound.
    async fn lead_requests(
        &mut self,
        names: &Names,
        own: Option<u16>,
        is_first: bool,
    ) -> Result<bool, Fault> {
        let Some(map) = &names.map else {
            let ways = blueprint::request_exchange(names).into_iter().chain(blueprint::direct_way(names));
            self.declare_all(&ways.collect::<Vec<_>>()).await?;
            return Ok(false);
        };
        let before = self.notes.len();
        let is_mapped = self.lead_by_map(names, map).await?;
        let Some(own) = own else { return Ok(is_mapped) };
        // The consumer of the ingest queue tells of them.
        self.notes.truncate(before);
        if is_mapped {
            self.map_applications(names, map, own, is_first).await?;
        }
        Ok(is_mapped)
    }

    /// Leads the requests through the map. Whether that is certain: only then no way but the map leads to the
    /// ingest queue, and applications may be bound. A request that two ways lead to two queues would arrive
    /// twice.
    ///
    /// # Errors
    /// The connection fails, or there are exchanges of these names that would lose requests.
    async fn lead_by_map(&mut self, names: &Names, map: &RequestMap) -> Result<bool, Fault> {
        let before = self.notes.len();
        self.declare_all(&blueprint::request_exchange(names).into_iter().collect::<Vec<_>>()).await?;
        // An exchange of another type routes by rules of its own.
        let is_plain = self.notes.len() == before;
        let made = match is_plain {
            true => self.make_map(names, map).await,
            false => Err(Fault::setup(format!("exchange '{}' is used as it is", names.ingest))),
        };
        match made {
            Ok(()) if self.notes.len() == before => {
                for key in blueprint::direct_keys(names) {
                    self.unbind(&names.queue, &names.ingest, key).await?;
                }
                Ok(self.notes.len() == before)
            }
            // What may not be changed is the operator's, and assumed to be complete.
            Ok(()) => Ok(false),
            Err(fault) if !is_plain || matches!(fault.code, Some(403 | 404)) => {
                if self.check_exchange(&map.exchange).await.is_ok() {
                    // Beside the map, the direct way would lead each request to two queues.
                    self.note(false, format!("requests go the ways that there are: {}", fault.text));
                    return Ok(false);
                }
                self.note(false, format!("all requests go through queue '{}': {}", names.queue, fault.text));
                self.declare_all(&blueprint::direct_way(names).into_iter().collect::<Vec<_>>()).await?;
                Ok(false)
            }
            Err(fault) => Err(fault),
        }
    }

    /// Creates the ways of the map, the one from the producers last: none leads to an exchange that would
    /// lose requests.
    async fn make_map(&mut self, names: &Names, map: &RequestMap) -> Result<(), Fault> {
        for declared in blueprint::map_way(names, map) {
            let before = self.notes.len();
            self.declare(&declared).await?;
            if let Some(note) = self.notes.get(before).filter(|note| note.risky) {
                let text = format!(
                    "{}. But requests would be lost there: delete it while nothing is published, and it will \
                     be created",
                    note.text
                );
                return Err(Fault::setup(text));
            }
        }
        Ok(())
    }

    /// Binds the configured applications of this shard, and takes away the bindings of others to its queue,
    /// which another number of shards has left.
    async fn map_applications(
        &mut self,
        names: &Names,
        map: &RequestMap,
        own: u16,
        is_first: bool,
    ) -> Result<(), Fault> {
        let before = self.notes.len();
        for (application, is_own) in names.mapped_to(own) {
            if is_own {
                self.declare(&blueprint::mapped(names, map, own, application)).await?;
            } else if is_first {
                self.unbind(names.queue_of(Some(own)), &map.exchange, application).await?;
            }
            // Without the permission, the first refusal tells of all.
            if self.notes.len() > before {
                break;
            }
        }
        Ok(())
    }

    /// Requests are consumed without the dead exchange too, and while its queue is busy and does not answer:
    /// only what the broker itself dead-letters from the ingest queue needs them.
    fn tolerate_dead(&mut self, name: &str, checked: Result<(), Fault>) -> Result<(), Fault> {
        match checked {
            Err(fault) if fault.kind == FaultKind::Setup || self.session.is_connected() => {
                let text = format!(
                    "dead exchange '{name}': {}. Messages that the broker itself dead-letters from the \
                     ingest queue may have no place to go",
                    fault.text
                );
                self.note(true, text);
                Ok(())
            }
            other => other,
        }
    }

    async fn declare_queue(
        &mut self,
        name: &str,
        arguments: &[(&'static str, Argument)],
    ) -> Result<(), Fault> {
        let channel = self.channel().await?;
        let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        let call = channel.queue_declare(short(name)?, options, field_table(arguments));
        let declaring = timeout(self.limit, call);
        let result = match arguments.iter().any(|(name, _)| *name == "x-dead-letter-strategy") {
            true => in_turn(declaring).await,
            false => declaring.await,
        };
        let Err(fault) = self.done(&format!("declaring queue '{name}'"), result) else { return Ok(()) };
        match fault.code {
            Some(406) => {
                self.note(
                    true,
                    format!(
                        "queue '{name}' has other arguments and is used as it is; messages can be lost where \
                         they differ. The broker says: {}. Wanted: {}",
                        fault.text,
                        named(arguments)
                    ),
                );
                self.check_queue(name).await.map(drop)
            }
            Some(403) if !self.is_strict => {
                let checked = self.check_queue(name).await.map(drop);
                self.instead(checked, fault)
            }
            Some(_) | None => Err(fault),
        }
    }

    async fn declare_exchange(
        &mut self,
        name: &str,
        routing: Routing,
        alternate: Option<&str>,
    ) -> Result<(), Fault> {
        if name.is_empty() {
            return Ok(());
        }
        let channel = self.channel().await?;
        let argument = alternate.map(|other| ("alternate-exchange", Argument::Text(other.to_owned())));
        let arguments: Vec<_> = argument.into_iter().collect();
        let wanted = format!("{}, {}", routing.as_str(), named(&arguments));
        let kind = match routing {
            Routing::Direct => ExchangeKind::Direct,
            Routing::Fanout => ExchangeKind::Fanout,
        };
        let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
        let call = channel.exchange_declare(short(name)?, kind, options, field_table(&arguments));
        let result = timeout(self.limit, call).await;
        let Err(mut fault) = self.done(&format!("declaring exchange '{name}'"), result) else {
            return Ok(());
        };
        match fault.code {
            _ if self.is_strict => Err(fault),
            // Batches would go to the wrong queues.
            Some(406) if routing == Routing::Direct && fault.text.contains("'type'") => {
                fault.kind = FaultKind::Setup;
                fault.text =
                    format!("exchange '{name}' is of another type. {}. Wanted: {wanted}", fault.text);
                Err(fault)
            }
            // Requests of applications without a binding would be lost.
            Some(406) if alternate.is_some() && !fault.text.contains("'durable'") => {
                fault.kind = FaultKind::Setup;
                fault.text = format!(
                    "exchange '{name}' has another alternate exchange. {}. Wanted: {wanted}. Requests would \
                     be lost there: delete it while nothing is published, and it will be created",
                    fault.text
                );
                Err(fault)
            }
            Some(406) => {
                self.note(
                    fault.text.contains("'durable'") || fault.text.contains("'type'"),
                    format!(
                        "exchange '{name}' differs and is used as it is. The broker says: {}. \
                         Wanted: {wanted}",
                        fault.text
                    ),
                );
                self.check_exchange(name).await
            }
            Some(403) => {
                let checked = self.check_exchange(name).await;
                self.instead(checked, fault)
            }
            Some(_) | None => Err(fault),
        }
    }

    async fn bind(&mut self, queue: &str, exchange: &str, key: &str) -> Result<(), Fault> {
        if exchange.is_empty() {
            return Ok(());
        }
        let channel = self.channel().await?;
        let (options, arguments) = (QueueBindOptions::default(), FieldTable::default());
        let call = channel.queue_bind(short(queue)?, short(exchange)?, short(key)?, options, arguments);
        let result = timeout(self.limit, call).await;
        let done = self.done(&format!("binding queue '{queue}' to exchange '{exchange}'"), result);
        self.tolerate_refusal(done, "the binding is assumed to exist")
    }

    async fn bind_exchange(&mut self, destination: &str, source: &str) -> Result<(), Fault> {
        let channel = self.channel().await?;
        let (options, arguments) = (ExchangeBindOptions::default(), FieldTable::default());
        let call = channel.exchange_bind(short(destination)?, short(source)?, "".into(), options, arguments);
        let result = timeout(self.limit, call).await;
        let done = self.done(&format!("binding exchange '{destination}' to exchange '{source}'"), result);
        self.tolerate_refusal(done, "the binding is assumed to exist")
    }

    /// Takes a binding away, if there is one.
    pub(crate) async fn unbind(&mut self, queue: &str, exchange: &str, key: &str) -> Result<(), Fault> {
        let channel = self.channel().await?;
        let call = channel.queue_unbind(short(queue)?, short(exchange)?, short(key)?, FieldTable::default());
        let result = timeout(self.limit, call).await;
        let done = self.done(&format!("unbinding queue '{queue}' from exchange '{exchange}'"), result);
        self.tolerate_refusal(done, "it is assumed that there is no binding")
    }

    /// Takes a binding between exchanges away, if there is one.
    pub(crate) async fn unbind_exchange(&mut self, destination: &str, source: &str) -> Result<(), Fault> {
        let channel = self.channel().await?;
        let (options, arguments) = (ExchangeUnbindOptions::default(), FieldTable::default());
        let call =
            channel.exchange_unbind(short(destination)?, short(source)?, "".into(), options, arguments);
        let result = timeout(self.limit, call).await;
        let done = self.done(&format!("unbinding exchange '{destination}' from exchange '{source}'"), result);
        self.tolerate_refusal(done, "it is assumed that there is no binding")
    }

    /// Deletes an exchange with its bindings, if there is one.
    pub(crate) async fn delete_exchange(&mut self, name: &str) -> Result<(), Fault> {
        let channel = self.channel().await?;
        let call = channel.exchange_delete(short(name)?, ExchangeDeleteOptions::default());
        let result = timeout(self.limit, call).await;
        self.done(&format!("deleting exchange '{name}'"), result)
    }

    /// Bindings cannot be checked. Without the permission to change one, it is assumed to be as it should.
    fn tolerate_refusal(&mut self, done: Result<(), Fault>, assumed: &str) -> Result<(), Fault> {
        match done {
            Err(fault) if fault.code == Some(403) && !self.is_strict => {
                self.note(false, format!("{}; {assumed}", fault.text));
                Ok(())
            }
            other => other,
        }
    }

    /// The permission to declare is missing: it is enough that the object exists.
    fn instead(&mut self, checked: Result<(), Fault>, declared: Fault) -> Result<(), Fault> {
        match checked {
            Ok(()) => {
                self.note(false, format!("{}; it exists and is used as it is", declared.text));
                Ok(())
            }
            Err(mut fault) if fault.code.is_some() => {
                fault.text =
                    format!("{}, and the permission to create it is missing: {}", fault.text, declared.text);
                Err(fault)
            }
            Err(fault) => Err(fault),
        }
    }

    fn note(&mut self, risky: bool, text: String) {
        self.notes.push(Note { risky, text });
    }

    async fn exists(&mut self, found: &mut Vec<Result<Note, Fault>>, name: &str, queue: bool) -> bool {
        let checked =
            if queue { self.check_queue(name).await.map(drop) } else { self.check_exchange(name).await };
        match checked {
            Ok(()) => {
                let what = if queue { "queue" } else { "exchange" };
                found.push(Ok(Note { risky: false, text: format!("{what} '{name}' exists") }));
                true
            }
            Err(fault) => {
                found.push(Err(fault));
                false
            }
        }
    }

    /// Reports whether an object exists, and how it differs. Bindings cannot be inspected.
    async fn inspect(&mut self, found: &mut Vec<Result<Note, Fault>>, declared: &Declared) {
        let (name, queue) = match declared {
            Declared::Queue { name, .. } => (name, true),
            Declared::Exchange { name, .. } => (name, false),
            Declared::Binding { .. } | Declared::ExchangeBinding { .. } => return,
        };
        if self.exists(found, name, queue).await {
            let outcome = self.declare(declared).await;
            self.compared(found, outcome);
        }
    }

    /// Reports an exchange that an earlier number of shards has left. Without any right to it, nobody knows.
    async fn inspect_left(&mut self, found: &mut Vec<Result<Note, Fault>>, names: &Names, left: &RequestMap) {
        match self.check_exchange(&left.exchange).await {
            Ok(()) => {
                let text = format!(
                    "exchange '{}' of several shards exists: what it has bindings for goes to queues other \
                     than '{}', which a single shard does not consume; `tidegate shards adopt` leads \
                     requests back",
                    left.exchange, names.queue
                );
                found.push(Ok(Note { risky: true, text }));
            }
            Err(fault) if matches!(fault.code, Some(403 | 404)) => {}
            Err(fault) => found.push(Err(fault)),
        }
    }

    async fn inspect_dead(&mut self, found: &mut Vec<Result<Note, Fault>>, dead: &DeadLetters) {
        self.exists(found, &dead.exchange, false).await;
        match blueprint::dead_queue(dead).first() {
            Some(queue) => self.inspect(found, queue).await,
            None => {
                if let Some(name) = dead.queue_name() {
                    self.exists(found, name, true).await;
                }
            }
        }
    }

    fn compared(&mut self, found: &mut Vec<Result<Note, Fault>>, outcome: Result<(), Fault>) {
        found.extend(self.notes.drain(..).map(Ok));
        found.extend(outcome.err().map(Err));
    }
}
