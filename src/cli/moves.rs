//! `move`: the items of a store that no daemon has open become requests for another daemon.
//!
//! A step publishes up to a thousand messages, awaits the broker's confirms, and then removes the items from
//! the store. A step counts as a whole: if the broker takes one of its messages not, all its items stay, and
//! the next attempt repeats them. The other daemon knows them by their ids, and drops those that it has.
//!
//! A message that makes the broker close the channel would hold up all behind it. So the messages of such a
//! step are published again one by one, and the culprit stays. Dead letters come last and go one by one.
//!
//! A confirm says that some queue has a message, and not which. So the way to the ingest queue is ensured
//! before the first item leaves.

use super::args::{MoveArgs, MoveSource, Output};
use super::broker::{block_on, CliSession};
use super::output::{note, plain, Failure, Out};
use super::progress::Progress;
use super::push::judge;
use super::store::{allow_open_files, label, refused};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::ShortString;
use lapin::{BasicProperties, Confirmation, PublisherConfirm};
use serde_json::{json, Value};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_amqp::{lead_to_ingest, request_limits};
use tidegate_common::clock;
use tidegate_config::{Config, Endpoint, StoreKind};
use tidegate_store::emptying::{EmptyingStore, StepOf};
use tidegate_store::{store_paths, CommitError, OpenError, ReadError, ShardPlace};
use tidegate_types::event::Stored;
use tidegate_types::{AssignedId, Batch, BatchItem, Format};
use tidegate_wire::{encode, fit, item_id, Body, Exchanges, MovedRequest, RequestLimits};
use tokio::task::block_in_place;

/// Name of the connections at the broker.
const CONNECTION: &str = "tidegate move";
/// Time limit from one confirm to the next. A broker in alarm gives none.
const CONFIRM_WITHIN: Duration = Duration::from_secs(60);
/// Interval at which claims of stores are kept meanwhile.
const KEEP_EVERY: Duration = Duration::from_secs(1);
/// Most items for which the reason is told why they stay. All are counted.
const MOST_TOLD: u64 = 1_000;

/// Runs the command. `config` names the broker, and the store unless the arguments name another.
///
/// # Errors
/// Locked if a daemon has the store; failed if the store or the broker fails, and what was not removed by
/// then is there for the next attempt; partial if items stay that could not become requests; usage if
/// something is paused in the store.
pub(super) fn run(config: &Config, args: &MoveArgs, output: Output) -> Result<(), Failure> {
    allow_open_files();
    let tally = block_on(async {
        // Before the stores are claimed: a broker that does not answer takes longer than a lease.
        let mut target = MoveTarget::connect(config).await?;
        let moved = move_from(config, args, &mut target).await;
        target.requests.close().await;
        moved
    })?;
    tally.report(output)
}

async fn move_from(
    config: &Config,
    args: &MoveArgs,
    target: &mut MoveTarget<'_>,
) -> Result<MoveTally, Failure> {
    let mut stores = MoveStores(Vec::new());
    let opened = block_in_place(|| stores.open(config, &args.from));
    let moving = async {
        opened?;
        stores.refuse_held_back(args.despite_pauses)?;
        // Not before: while a daemon has the store, the ways are those that it has made.
        lead_there(config, &mut stores).await?;
        move_all(&mut stores, target).await
    };
    let moved = moving.await;
    let closed = block_in_place(|| stores.close());
    moved.and_then(|tally| closed.map(|()| tally))
}

/// Leads requests to the other daemon's queue: an item that only another queue got would be removed as well.
async fn lead_there(config: &Config, stores: &mut MoveStores) -> Result<(), Failure> {
    let mut leading = pin!(lead_to_ingest(config, CONNECTION));
    let led = loop {
        stores.keep()?;
        if let Ok(led) = tokio::time::timeout(KEEP_EVERY, leading.as_mut()).await {
            break led;
        }
    };
    for text in led.map_err(Failure::Failed)? {
        note(format_args!("warning: {}", plain(&text)));
    }
    Ok(())
}

/// A store to be emptied, and how messages name it.
struct MoveStore {
    /// Names the shard, if there are several.
    label: String,
    store: EmptyingStore,
}

/// The stores of all shards. All are opened before the first item leaves.
struct MoveStores(Vec<MoveStore>);

impl MoveStores {
    /// Opens all stores. Those that are open when an error ends it stay in the list.
    fn open(&mut self, config: &Config, from: &MoveSource) -> Result<(), Failure> {
        match from {
            MoveSource::Disk(path) => {
                let path = path.as_ref().unwrap_or(&config.store.path);
                let paths = store_paths(path).map_err(|error| not_opened("", &error))?;
                let memory = config.limits.memory / paths.len() as u64;
                let is_divided = paths.len() > 1;
                for (number, path) in (0..).zip(&paths) {
                    self.add(label(is_divided.then_some(number)), EmptyingStore::on_disk(path, memory))?;
                }
            }
            MoveSource::Postgres(path) => {
                let other = path.as_deref().map(Config::load_of_another);
                let other = other.transpose().map_err(|faults| Failure::Config(faults.to_string()))?;
                let config = other.as_ref().map_or(config, |other| &other.config);
                if config.store.database.is_none() {
                    let text = "--from postgres: store.kind of the configuration is not postgres. Name the \
                                configuration of the daemon that had the database: --from postgres:FILE";
                    return Err(Failure::Usage(text.to_owned()));
                }
                let count = config.shards.count;
                for number in 0..count {
                    let (shard, place) = (config.of_shard(number), ShardPlace { number, count });
                    let store = EmptyingStore::in_database(&shard.store, place);
                    self.add(label((count > 1).then_some(number)), store)?;
                }
            }
        }
        Ok(())
    }

    fn add(&mut self, label: String, store: Result<EmptyingStore, OpenError>) -> Result<(), Failure> {
        let store = store.map_err(|error| not_opened(&label, &error))?;
        self.0.push(MoveStore { label, store });
        // Each opening takes a part of the leases of those before.
        self.keep()
    }

    /// A request carries no pause: at the other daemon the items would leave at their time.
    fn refuse_held_back(&self, despite: bool) -> Result<(), Failure> {
        let now = clock::wall_ms();
        let held: Vec<String> =
            self.0.iter().flat_map(|source| source.store.held_back(now)).map(named).collect();
        if despite || held.is_empty() {
            return Ok(());
        }
        Err(Failure::Usage(format!(
            "a command has paused or slowed down {}, and requests carry no pauses and rates: set them at the \
             other daemon first, and move with --despite-pauses",
            held.join(", ")
        )))
    }

    /// Keeps all stores for this process. Cheap unless a lease is to be extended.
    ///
    /// # Errors
    /// A store is another daemon's by now, or out of reach.
    fn keep(&mut self) -> Result<(), Failure> {
        block_in_place(|| {
            let mut all = self.0.iter_mut();
            all.try_for_each(|MoveStore { label, store }| {
                store.keep().map_err(|error| not_written(label, &error))
            })
        })
    }

    fn read(&mut self, place: usize, of: StepOf) -> Result<Option<ReadStep>, Failure> {
        let Some(MoveStore { label, store }) = self.0.get_mut(place) else { return Ok(None) };
        let read = block_in_place(|| store.step(of)).map_err(|error| not_read(label, &error))?;
        let (identity, now) = (store.identity(), clock::wall_ms());
        Ok(read.map(|items| ReadStep { items, identity, now }))
    }

    fn remove(&mut self, place: usize, moved: &[Stored]) -> Result<(), Failure> {
        let Some(MoveStore { label, store }) = self.0.get_mut(place) else { return Ok(()) };
        block_in_place(|| store.remove(moved)).map_err(|error| not_written(label, &error))
    }

    fn close(self) -> Result<(), Failure> {
        let close = |MoveStore { label, store }: MoveStore| {
            store.close().map_err(|error| Failure::Failed(format!("store: {label}{error}")))
        };
        self.0.into_iter().map(close).collect::<Vec<_>>().into_iter().collect()
    }
}

fn not_opened(label: &str, error: &OpenError) -> Failure {
    refused(label, error, "stop every daemon that has it open first")
}

fn named((application, customer): (Arc<str>, Option<Arc<str>>)) -> String {
    match customer {
        Some(customer) => format!("customer {} of {}", plain(&customer), plain(&application)),
        None => format!("application {}", plain(&application)),
    }
}

fn not_read(label: &str, error: &ReadError) -> Failure {
    Failure::Failed(format!("store: {label}{error}"))
}

fn not_written(label: &str, error: &CommitError) -> Failure {
    let text = format!("store: {label}{error}");
    if matches!(error, CommitError::Fenced) {
        return Failure::Locked(text);
    }
    Failure::Failed(text)
}

/// One message to be published.
struct Moving {
    exchange: ShortString,
    routing_key: ShortString,
    properties: BasicProperties,
    body: Body,
}

/// The broker, and what the other daemon will make of requests.
struct MoveTarget<'c> {
    config: &'c Config,
    requests: CliSession,
    limits: RequestLimits,
    exchanges: Exchanges,
}

impl<'c> MoveTarget<'c> {
    async fn connect(config: &'c Config) -> Result<Self, Failure> {
        let requests = confirming(config, &config.amqp.endpoints).await?;
        let limits = request_limits(config);
        let limits = RequestLimits { frame_max: limits.frame_max.min(requests.frame_max()), ..limits };
        let exchanges = Exchanges::new(&config.egress.exchange, &config.dead.exchange);
        Ok(MoveTarget { config, requests, limits, exchanges })
    }

    /// A new connection, since the channel of the present one is closed.
    async fn connect_again(&mut self) -> Result<(), Failure> {
        let new = confirming(self.config, &self.config.amqp.endpoints).await?;
        std::mem::replace(&mut self.requests, new).close().await;
        Ok(())
    }

    /// The message for an item.
    ///
    /// # Errors
    /// Why it stays, as a sentence.
    fn message(&self, item: &Stored, identity: u64, now: u64) -> Result<Moving, String> {
        let (store, away) = (&self.config.store, Duration::from_millis(item.due.saturating_sub(now)));
        if store.kind == StoreKind::Memory && away > store.hold_max {
            return Err("it is due later than store.hold_max of the memory store takes".to_owned());
        }
        let moved = MovedRequest::of(item, identity).ok_or("its content cannot be read")?;
        moved.check(item, &self.limits, &self.config.readings, now)?;
        let MovedRequest { properties, body } = moved;
        Ok(Moving {
            exchange: short(&self.config.ingest.exchange)?,
            routing_key: short(&item.application)?,
            properties,
            body: Body::Built(body),
        })
    }

    /// The message for a dead letter on its way, as the daemon would have published it.
    fn letter(&self, item: &Stored, identity: u64, now: u64) -> Result<Moving, String> {
        let content = item.content.clone().ok_or("its content cannot be read")?;
        let batch = Batch {
            number: 0,
            application: Arc::clone(&item.application),
            customer: item.customer.clone(),
            dead: item.dead.clone(),
            format: Format::Passthrough,
            closed_by: item.closed_by,
            attempt: 1,
            due: item.due,
            held: None,
            alone: false,
            items: vec![BatchItem {
                seq: item.key.seq,
                window: item.key.window,
                accepted_due: item.accepted_due,
                due: item.due,
                received: item.received,
                attempts: item.attempts,
                retry: item.retry,
                content,
            }],
        };
        let mut outgoing = encode(&batch, &self.exchanges, identity, now);
        fit(&mut outgoing, &batch, self.limits.frame_max)?;
        let tidegate_wire::Outgoing { exchange, routing_key, properties, body, .. } = outgoing;
        Ok(Moving { exchange, routing_key, properties, body })
    }
}

/// A connection whose channel confirms.
async fn confirming(config: &Config, endpoints: &[Endpoint]) -> Result<CliSession, Failure> {
    let session = CliSession::open(config, endpoints, CONNECTION).await?;
    let confirms = session.channel.confirm_select(ConfirmSelectOptions::default());
    session.ask("asking for confirms", confirms).await?;
    Ok(session)
}

/// Why messages were not taken.
enum NotTaken {
    /// The broker closed the channel over one of them.
    Closed(String),
    /// It refused or returned one.
    Refused(String),
    /// It gave no confirm, or a store is another daemon's by now.
    Over(Failure),
}

impl NotTaken {
    fn into_failure(self) -> Failure {
        match self {
            NotTaken::Closed(text) | NotTaken::Refused(text) => Failure::Failed(text),
            NotTaken::Over(failure) => failure,
        }
    }
}

/// Publishes messages, and awaits the confirms of all.
async fn publish(session: &CliSession, messages: &[Moving], stores: &mut MoveStores) -> Result<(), NotTaken> {
    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    let mut confirms = Vec::with_capacity(messages.len());
    for Moving { exchange, routing_key, properties, body } in messages {
        stores.keep().map_err(NotTaken::Over)?;
        let (name, key) = (exchange.clone(), routing_key.clone());
        let published = session.channel.basic_publish(name, key, options, body, properties.clone());
        let doing = format!("publishing to exchange {}", plain(exchange.as_str()));
        let confirm = session.ask(&doing, published).await;
        let confirm: PublisherConfirm = confirm.map_err(|failure| NotTaken::Closed(text_of(&failure)))?;
        confirms.push((exchange, confirm));
    }
    let (mut end, mut fault) = (Instant::now() + CONFIRM_WITHIN, None);
    for (exchange, mut confirm) in confirms {
        let waiting = || format!("waiting for a confirm of exchange {}", plain(exchange.as_str()));
        let confirmation: Confirmation = loop {
            stores.keep().map_err(NotTaken::Over)?;
            match tokio::time::timeout(KEEP_EVERY, &mut confirm).await {
                Ok(Ok(confirmation)) => break confirmation,
                Ok(Err(error)) => return Err(NotTaken::Closed(format!("{}: {error}", waiting()))),
                Err(_) if Instant::now() < end => {}
                Err(_) => {
                    let seconds = CONFIRM_WITHIN.as_secs();
                    let text = format!("{}: none within {seconds} s", waiting());
                    return Err(NotTaken::Over(Failure::Failed(text)));
                }
            }
        };
        end = Instant::now() + CONFIRM_WITHIN;
        // A return may be attached to the confirm of another message of the step, so all are awaited.
        fault = fault.or(judge(confirmation, exchange.as_str()).err());
    }
    fault.map_or(Ok(()), |failure| Err(NotTaken::Refused(text_of(&failure))))
}

fn text_of(failure: &Failure) -> String {
    failure.text().to_owned()
}

fn short(text: &str) -> Result<ShortString, String> {
    ShortString::try_new(text).map_err(|error| error.to_string())
}

/// What was done.
#[derive(Debug, Default)]
struct MoveTally {
    items: u64,
    dead_letters: u64,
    left: u64,
    /// One document for each of the first items that are left.
    told: Vec<Value>,
}

/// Moves what can be moved.
async fn move_all(stores: &mut MoveStores, target: &mut MoveTarget<'_>) -> Result<MoveTally, Failure> {
    let progress = Progress::new();
    let total = stores.0.iter().map(|source| source.store.items()).sum();
    let mut tally = MoveTally::default();
    for of in [StepOf::Items, StepOf::Letters] {
        for place in 0..stores.0.len() {
            loop {
                let moved = match of {
                    StepOf::Items => move_some(stores, place, target, &mut tally).await,
                    StepOf::Letters => move_letters(stores, place, target, &mut tally).await,
                };
                if !moved.map_err(|failure| tally.so_far(failure))? {
                    break;
                }
                progress.at("items", tally.items + tally.dead_letters + tally.left, Some(total));
            }
        }
    }
    Ok(tally)
}

/// One step with items. False: this store has no more.
async fn move_some(
    stores: &mut MoveStores,
    place: usize,
    target: &mut MoveTarget<'_>,
    tally: &mut MoveTally,
) -> Result<bool, Failure> {
    let Some(read) = stores.read(place, StepOf::Items)? else { return Ok(false) };
    let (mut moving, mut messages) = (Vec::with_capacity(read.items.len()), Vec::new());
    for item in read.items {
        match target.message(&item, read.identity, read.now) {
            Ok(message) => {
                messages.push(message);
                moving.push(item);
            }
            Err(reason) => tally.leave(&item, read.identity, &reason),
        }
    }
    match publish(&target.requests, &messages, stores).await {
        Ok(()) => {}
        Err(NotTaken::Closed(_)) => {
            let mut taken = Vec::with_capacity(moving.len());
            target.connect_again().await?;
            for (item, message) in moving.into_iter().zip(messages) {
                match publish(&target.requests, &[message], stores).await {
                    Ok(()) => taken.push(item),
                    Err(NotTaken::Closed(reason)) => {
                        tally.leave(&item, read.identity, &reason);
                        target.connect_again().await?;
                    }
                    Err(other) => return Err(other.into_failure()),
                }
            }
            moving = taken;
        }
        Err(other) => return Err(other.into_failure()),
    }
    stores.remove(place, &moving)?;
    tally.items += moving.len() as u64;
    Ok(true)
}

/// One step with dead letters, which a daemon publishes with the login of its batches. What hinders a letter
/// is told, and the letter stays. False: this store has no more, or the broker does not answer.
async fn move_letters(
    stores: &mut MoveStores,
    place: usize,
    target: &MoveTarget<'_>,
    tally: &mut MoveTally,
) -> Result<bool, Failure> {
    let Some(read) = stores.read(place, StepOf::Letters)? else { return Ok(false) };
    let (mut moved, mut session, mut silent) = (Vec::new(), None, None);
    for letter in read.items {
        if session.is_none() && silent.is_none() {
            match confirming(target.config, &target.config.egress.endpoints).await {
                Ok(opened) => session = Some(opened),
                Err(failure) => silent = Some(text_of(&failure)),
            }
        }
        let published = match (&session, &silent, target.letter(&letter, read.identity, read.now)) {
            (_, _, Err(reason)) => Err(reason),
            (_, Some(reason), Ok(_)) => Err(reason.clone()),
            (None, None, Ok(_)) => Err("there is no connection to the broker".to_owned()),
            (Some(open), None, Ok(message)) => match publish(open, &[message], stores).await {
                Ok(()) => Ok(()),
                Err(NotTaken::Refused(reason)) => Err(reason),
                Err(NotTaken::Closed(reason)) => {
                    session = None;
                    Err(reason)
                }
                Err(NotTaken::Over(failure)) => {
                    stores.keep()?;
                    silent = Some(text_of(&failure));
                    Err(text_of(&failure))
                }
            },
        };
        match published {
            Ok(()) => moved.push(letter),
            Err(reason) => tally.leave(&letter, read.identity, &reason),
        }
    }
    if let Some(session) = session {
        session.close().await;
    }
    stores.remove(place, &moved)?;
    tally.dead_letters += moved.len() as u64;
    Ok(silent.is_none())
}

/// What a step has read.
struct ReadStep {
    items: Vec<Stored>,
    /// Of the store.
    identity: u64,
    /// When it was read, UTC ms.
    now: u64,
}

impl MoveTally {
    fn leave(&mut self, item: &Stored, identity: u64, reason: &str) {
        self.left += 1;
        if self.left <= MOST_TOLD {
            let assigned = AssignedId::of(item.key, item.accepted_due);
            let id = item.content.as_ref().map(|content| item_id(content, identity, assigned));
            self.told.push(json!({ "application": &*item.application, "id": id, "reason": reason }));
        }
    }

    /// Adds to a failure what was done before.
    fn so_far(&self, failure: Failure) -> Failure {
        let Failure::Failed(text) = failure else { return failure };
        let MoveTally { items, dead_letters, .. } = self;
        Failure::Failed(format!(
            "{text}. {items} items and {dead_letters} dead letters were moved. Run the command again for the \
             rest, within dedupe_tail: what was published already is then dropped by its id"
        ))
    }

    fn report(self, output: Output) -> Result<(), Failure> {
        let MoveTally { items, dead_letters, left, told } = self;
        let mut out = Out::lock();
        match output {
            Output::Json => out.json(&json!({
                "result": if left == 0 { "moved" } else { "partial" },
                "items": items,
                "dead_letters": dead_letters,
                "left": left,
                "stay": told,
                "stay_truncated": left > MOST_TOLD,
            }))?,
            Output::Table => {
                for stay in &told {
                    let text = |name: &str| plain(stay[name].as_str().unwrap_or("-")).into_owned();
                    let [application, id, reason] = ["application", "id", "reason"].map(text);
                    out.line(format!("stays: application {application}, id {id}: {reason}"))?;
                }
                let rows = [
                    ("items moved", items),
                    ("dead letters published", dead_letters),
                    ("items that stay", left),
                ];
                out.table(&rows.map(|(name, count)| vec![name.to_owned(), count.to_string()]))?;
            }
        }
        match left {
            0 => Ok(()),
            1 => Err(Failure::Partial("1 item stays in the store".to_owned())),
            n => Err(Failure::Partial(format!("{n} items stay in the store"))),
        }
    }
}
