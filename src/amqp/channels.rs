//! The channels of one publishing connection, each with its own unconfirmed publishes: the main one, one for
//! dead letters, and those for batches that are published alone.
//!
//! A failure on one channel concerns only that channel: another is opened on the same connection. The ends on
//! all channels are taken before the connection is judged: the channel that knows the reason may be the last
//! one read, and an end that is left would wake its owner indefinitely. Four things end the connection: it
//! is lost or closed, a channel cannot be opened in time, lapin opens none any more, or the output exchange
//! is missing or refused, since everything needs it. Dead letters that cannot be published never end it.

use super::alone::{AloneEnd, AlonePool};
use super::connection::Session;
use super::fault::{EndReason, Fault, FaultKind};
use super::liveness::{LivenessProbe, PROBE_AFTER};
use super::message::{confirm_channel, Encoder, TurnOutput};
use super::reopening::ReopeningChannel;
use super::supervise::RateLimitedLog;
use super::suspects::Suspects;
use super::topology::{prepare_dead, Note};
use super::{Handover, Options};
use futures_util::FutureExt;
use lapin::Channel;
use std::sync::Arc;
use std::time::Duration;
use tidegate_types::{Batch, Outcome, ALONE_CHANNELS};
use tokio::task::JoinSet;
use tokio::time::{timeout, timeout_at, Instant};

/// How long a channel that was given up may take to close: as long as a queue may be without its majority.
const CLOSE_PATIENCE: Duration = Duration::from_secs(600);
/// Time limit for closing the separate connection of a batch.
const CLOSE_APART: Duration = Duration::from_secs(2);
/// Most abandoned channels that do not close, before the connection is given up: twice as many as may be
/// given up at one moment.
const MAX_LEFT_BEHIND: usize = 2 * ALONE_CHANNELS;
/// Channels of the connection for other purposes than batches that go alone: the main one, that of the dead
/// letters, that of the liveness probe, and abandoned ones that are being closed.
const OTHER_CHANNELS: u16 = 16;
/// A batch that was published alone is given up after this many times the confirm time-out, also if no other
/// needs its channel. A queue without its majority may well have it again sooner, and then confirms.
const ALONE_FACTOR: u32 = 10;
/// After a limit on channels was met, twice as many are used after this time without a further one. A limit
/// that lasts costs a connection each time.
const MORE_AFTER: Duration = Duration::from_secs(3_600);
/// Interval between checks of a dead exchange that could not be used.
const DEAD_RETRY: Duration = Duration::from_secs(30);

/// Time limit for opening a channel in place of one that is given up. Where a channel hangs because a queue
/// has no majority, RabbitMQ reads nothing more of its connection: the connection must be replaced then, and
/// waiting batches should not wait longer for that.
const REPLACE_WITHIN: Duration = Duration::from_secs(2);

/// Why dead letters cannot be published.
struct DeadTrouble {
    text: String,
    /// Found by a publish, so only a publish can end it.
    by_publish: bool,
    at: Instant,
}

pub(crate) struct EgressChannels {
    session: Arc<Session>,
    options: Arc<Options>,
    encoder: Encoder,
    main: ReopeningChannel,
    dead: ReopeningChannel,
    alone: AlonePool,
    left_behind: JoinSet<()>,
    liveness: LivenessProbe,
    blocked: bool,
    /// Confirm time-outs count from here at the earliest.
    unblocked_at: Instant,
    /// Separate connections of batches, being closed.
    closing: JoinSet<()>,
    dead_trouble: Option<DeadTrouble>,
    /// Found at the last check of the dead exchange; `None`: taken.
    dead_notes: Option<Vec<Note>>,
    carried: Carried,
}

/// State that the next connection takes over.
#[derive(Default)]
pub(crate) struct Carried {
    log: RateLimitedLog,
    suspects: Suspects,
    /// Upper bound on channels for batches that go alone, if the broker has shown that it allows fewer, and
    /// since when it is that.
    most_alone: Option<(usize, Instant)>,
}

/// How many channels of this connection are left for batches that go alone.
fn channels_for_alone(session: &Session) -> usize {
    session.channel_max().saturating_sub(OTHER_CHANNELS).into()
}

impl EgressChannels {
    /// `main` is open already.
    pub(crate) fn new(
        session: Arc<Session>,
        main: Channel,
        encoder: Encoder,
        options: Arc<Options>,
        carried: Carried,
    ) -> Self {
        let channels = channels_for_alone(&session);
        let most_alone = carried.most_alone.map_or(channels, |(most, _)| most.min(channels));
        let mut channels = EgressChannels {
            session,
            options,
            encoder,
            main: ReopeningChannel::of(main),
            dead: ReopeningChannel::closed(),
            alone: AlonePool::new(most_alone),
            left_behind: JoinSet::new(),
            liveness: LivenessProbe::default(),
            blocked: false,
            unblocked_at: Instant::now(),
            closing: JoinSet::new(),
            dead_trouble: None,
            dead_notes: None,
            carried,
        };
        channels.open_dead();
        channels
    }

    pub(crate) fn session(&self) -> &Session {
        &self.session
    }

    /// Nothing is unconfirmed or waits to be published.
    pub(crate) fn is_idle(&self) -> bool {
        self.is_quiet() && self.main.is_empty() && self.dead.is_empty() && self.alone.is_empty()
    }

    /// It holds a batch that it could publish now: nothing at the broker prevents that.
    pub(crate) fn owes(&self) -> bool {
        if self.blocked {
            return false;
        }
        // Dead letters wait until their exchange has been checked, which has its own time limits.
        !self.main.is_empty() || (!self.dead.is_empty() && self.dead.is_open()) || self.alone.owes()
    }

    /// Nothing is unconfirmed.
    fn is_quiet(&self) -> bool {
        self.main.is_quiet() && self.dead.is_quiet() && self.alone.is_quiet()
    }

    /// Returns true if that changes the state.
    pub(crate) fn set_blocked(&mut self, blocked: bool) -> bool {
        if !blocked && self.blocked {
            self.unblocked_at = Instant::now();
        }
        std::mem::replace(&mut self.blocked, blocked) != blocked
    }

    /// Why dead letters cannot be published at present.
    pub(crate) fn dead_trouble(&self) -> Option<&str> {
        self.dead_trouble.as_ref().map(|trouble| trouble.text.as_str())
    }

    /// All notes of the last check of the dead exchange; `None`: it was not checked since the last call.
    pub(crate) fn take_dead_notes(&mut self) -> Option<Vec<Note>> {
        self.dead_notes.take()
    }

    /// Waits until there is something to do. Safe to cancel.
    pub(crate) async fn woken(&mut self) {
        let EgressChannels { main, dead, alone, liveness, .. } = self;
        tokio::select! {
            () = main.woken() => {}
            () = dead.woken() => {}
            () = alone.woken() => {}
            () = liveness.woken() => {}
        }
    }

    /// Takes every answer, gives up what is to be given up, then publishes what has arrived and what can be
    /// published now.
    ///
    /// # Errors
    /// What ends the connection. What has arrived is then settled; all else is left to
    /// [`EgressChannels::fail`].
    pub(crate) fn turn(&mut self, arrived: Handover, output: &mut TurnOutput) -> Result<(), Fault> {
        let Handover { batches, give_up } = arrived;
        if let Err(fault) = self.collect(output) {
            // They have nothing to do with the end of this connection.
            output.unsent(batches);
            return Err(fault);
        }
        give_up.into_iter().for_each(|number| self.give_up(number, output));
        let any = !batches.is_empty();
        for batch in batches {
            match (batch.dead.is_some(), batch.alone) {
                // A dead letter that goes alone waits there too, until its exchange has been checked.
                (true, _) => self.dead.queue(batch),
                (false, true) => self.alone.queue(batch),
                (false, false) => self.main.queue(batch),
            }
        }
        self.advance(output);
        if any {
            self.collect(output)?;
        }
        Ok(())
    }

    /// Handles lost and overdue channels. While the connection is blocked no answer can be overdue.
    ///
    /// # Errors
    /// What ends the connection.
    pub(crate) fn check(&mut self, output: &mut TurnOutput) -> Result<(), Fault> {
        self.allow_more();
        self.session.ensure_channels()?;
        if !self.session.is_connected() {
            return Err(Fault {
                kind: FaultKind::AfterEnd,
                ..Fault::lost("the publishing connection was lost")
            });
        }
        if self.blocked {
            return Ok(());
        }
        let limit = self.options.timeouts.confirm;
        let (unblocked_at, now) = (self.unblocked_at, Instant::now());
        let has_waited = |oldest: Option<Instant>, limit: Duration| {
            oldest.is_some_and(|at| now - at.max(unblocked_at) >= limit)
        };
        let overdue = |oldest| has_waited(oldest, limit);
        let waits =
            has_waited(self.main.oldest(), PROBE_AFTER) || has_waited(self.dead.oldest(), PROBE_AFTER);
        if let Err(fault) = self.liveness.look(&self.session, waits) {
            // One of these batches may be the cause: as overdue ones, each is tried alone.
            self.main.leave(&Outcome::Overdue, output);
            self.dead.leave(&Outcome::Overdue, output);
            self.session.abandon();
            return Err(fault);
        }
        if overdue(self.main.oldest()) {
            self.log_overdue("output", limit);
            let channel = self.main.leave(&Outcome::Overdue, output);
            self.leave_behind(channel);
        }
        if overdue(self.dead.oldest()) {
            self.log_overdue("dead letters", limit);
            let channel = self.dead.leave(&Outcome::Overdue, output);
            self.leave_behind(channel);
        }
        let at_most = limit.saturating_mul(ALONE_FACTOR);
        while let Some(number) = self.alone.overdue(at_most, unblocked_at) {
            self.log_overdue("alone", at_most);
            self.give_up(number, output);
        }
        while let Some(number) = self.alone.oldest_apart(unblocked_at) {
            self.give_up(number, output);
            self.advance(output);
        }
        // The engine counts on more channels than this broker allows.
        if !self.alone.is_empty() && !self.alone.has_room() {
            let oldest = self.alone.oldest(limit, unblocked_at);
            oldest.into_iter().for_each(|number| self.give_up(number, output));
        }
        let surplus = self.alone.take_surplus();
        self.leave_behind(surplus);
        let again = self.dead_trouble.as_ref().is_some_and(|trouble| {
            !trouble.by_publish && self.dead.is_closed() && trouble.at.elapsed() >= DEAD_RETRY
        });
        if again {
            self.open_dead();
        }
        self.advance(output);
        while self.left_behind.try_join_next().is_some() {}
        while self.closing.try_join_next().is_some() {}
        if self.left_behind.len() > MAX_LEFT_BEHIND {
            return Err(Fault::lost(format!("{MAX_LEFT_BEHIND} channels without confirms do not close")));
        }
        Ok(())
    }

    /// Tries more channels again: others may have used them when the broker allowed fewer.
    fn allow_more(&mut self) {
        let Some((most, since)) = self.carried.most_alone else { return };
        if since.elapsed() >= MORE_AFTER {
            let more = most * 2;
            self.alone.allow(more.min(channels_for_alone(&self.session)));
            self.carried.most_alone = (more < ALONE_CHANNELS).then(|| (more, Instant::now()));
        }
    }

    /// Gives up a batch: another one needs its channel, or its place among those that wait for one, or it has
    /// waited for too long.
    fn give_up(&mut self, number: u64, output: &mut TurnOutput) {
        if !self.dead.give_up(number, output) {
            let channel = self.alone.give_up(number, output);
            self.leave_behind(channel);
        }
    }

    /// The connection has ended: settles every unanswered batch, and unpublished ones as unsent. If a message
    /// is, or may be, the cause, all that was unconfirmed is suspected.
    pub(crate) fn fail(&mut self, fault: Option<&Fault>, output: &mut TurnOutput) {
        let outcome = match fault {
            Some(Fault { kind: FaultKind::ContentFatal, text, .. }) => Outcome::Refused(text.as_str().into()),
            // As overdue ones, each is tried alone, and none is taken for refused.
            Some(fault) if fault.is_crash() => Outcome::Overdue,
            Some(_) | None => Outcome::Unknown,
        };
        if fault.is_some_and(Fault::has_suspects) {
            let main = self.main.unconfirmed();
            let others = [self.dead.unconfirmed(), self.alone.unconfirmed()].concat();
            self.carried.suspects.add(main.into_iter().chain(others), Instant::now());
        }
        self.main.leave(&outcome, output);
        self.dead.leave(&outcome, output);
        // If the broker has ended the connection over a message, a batch that is alone on its channel must
        // not be taken for the culprit: there were others on the connection.
        self.alone.fail(&Outcome::Unknown, output);
        self.main.settle_waiting(&Outcome::Unsent, output);
        self.dead.settle_waiting(&Outcome::Unsent, output);
        if let Some(most) = self.alone.fewer(fault.is_some_and(Fault::is_over_limit)) {
            self.carried.most_alone = Some((most, Instant::now()));
            let text = format!("at most {most} channels for batches that go alone, for the time being");
            let message = "the broker allows fewer channels than were being opened";
            self.carried.log.warn("channels", &text, message);
        }
    }

    /// Closes the channels that are open: lapin reports the end of a connection with half-closed channels as
    /// an error. Returns the state for the next connection.
    pub(crate) async fn close(mut self, limit: Duration) -> Carried {
        let mut output = TurnOutput::default();
        let mut open = self.alone.take_channels();
        open.extend(self.main.leave(&Outcome::Unknown, &mut output));
        open.extend(self.dead.leave(&Outcome::Unknown, &mut output));
        open.extend(self.liveness.take_channel().map(Arc::new));
        debug_assert!(output.settled.is_empty(), "failed before it is closed");
        let connected = open.into_iter().filter(|channel| channel.status().connected());
        if !self.session.is_blocked() {
            let closing = connected.map(|channel| async move {
                // The connection's end closes it at the latest.
                let _ = channel.close(200, "OK".into()).await;
            });
            let _ = timeout(limit, futures_util::future::join_all(closing)).await;
        }
        self.carried
    }

    /// Finds the reason why a connection was closed. Unconfirmed publishes report it, perhaps a little later,
    /// and the search ends after `limit`. `None`: none of them reported it.
    pub(crate) async fn reason_of_end(&mut self, limit: Duration, output: &mut TurnOutput) -> Option<Fault> {
        let end = Instant::now() + limit;
        loop {
            match self.collect(output) {
                Err(fault) if fault.kind != FaultKind::AfterEnd => return Some(fault),
                Err(_) | Ok(()) => {}
            }
            let over = self.is_quiet() || end <= Instant::now();
            if over || timeout_at(end, self.woken()).await.is_err() {
                return None;
            }
        }
    }

    /// Takes what has ended, on every channel.
    fn collect(&mut self, output: &mut TurnOutput) -> Result<(), Fault> {
        let mut reason = EndReason::default();
        reason.hear_of(self.collect_main(output));
        reason.hear_of(self.collect_dead(output));
        for end in self.alone.take_ended() {
            reason.hear_of(self.alone_ended(end, output));
        }
        reason.result()
    }

    fn collect_main(&mut self, output: &mut TurnOutput) -> Result<(), Fault> {
        // Its exchange was checked with the connection.
        self.main.take_opened()?;
        match self.main.collect(output) {
            Ok(()) => Ok(()),
            Err(fault) => self.main_ended(fault, output),
        }
    }

    fn collect_dead(&mut self, output: &mut TurnOutput) -> Result<(), Fault> {
        match self.dead.take_opened() {
            Ok(Some(notes)) => {
                self.dead_notes = Some(notes);
                if self.dead_trouble.as_ref().is_some_and(|trouble| !trouble.by_publish) {
                    self.dead_works();
                }
            }
            Ok(None) => {}
            Err(fault) => return self.dead_unopened(fault, output),
        }
        let before = output.settled.len();
        let result = self.dead.collect(output);
        if output.settled.iter().skip(before).any(|settled| matches!(settled.outcome, Outcome::Confirmed(_)))
        {
            self.dead_works();
        }
        match result {
            Ok(()) => Ok(()),
            Err(fault) => self.dead_ended(fault, output),
        }
    }

    /// 403 and 404 end the connection, so that the topology is checked again; any other reason ends only the
    /// channel.
    fn main_ended(&mut self, fault: Fault, output: &mut TurnOutput) -> Result<(), Fault> {
        let outcome = match self.outcome_of(&fault) {
            Some(Outcome::Unavailable(_)) | None => return Err(fault),
            Some(outcome) => outcome,
        };
        self.carried.log.warn(
            "output channel",
            &fault.text,
            "the publishing channel was closed; another is opened",
        );
        self.main.leave(&outcome, output);
        Ok(())
    }

    fn dead_ended(&mut self, fault: Fault, output: &mut TurnOutput) -> Result<(), Fault> {
        let Some(outcome) = self.outcome_of(&fault) else { return Err(fault) };
        if matches!(outcome, Outcome::Unavailable(_)) {
            self.dead_fails(fault.text, true);
        } else {
            let message = "the channel of the dead letters was closed; another is opened";
            self.carried.log.warn("dead channel", &fault.text, message);
        }
        self.dead.leave(&outcome, output);
        Ok(())
    }

    /// Outcome of what was unconfirmed on an ended channel; `None`: the connection has ended.
    fn outcome_of(&self, fault: &Fault) -> Option<Outcome> {
        let text = || fault.text.as_str().into();
        if !self.session.is_connected() {
            None
        } else if fault.is_unavailable() {
            Some(Outcome::Unavailable(text()))
        } else if fault.closes_channel_only() {
            Some(Outcome::Refused(text()))
        } else if fault.kind == FaultKind::AfterEnd {
            Some(Outcome::Unknown)
        } else {
            None
        }
    }

    fn dead_unopened(&mut self, fault: Fault, output: &mut TurnOutput) -> Result<(), Fault> {
        if !self.session.is_connected() {
            return Err(fault);
        }
        self.dead.settle_waiting(&Outcome::Unavailable(fault.text.as_str().into()), output);
        self.dead_fails(fault.text, false);
        Ok(())
    }

    fn alone_ended(&mut self, end: AloneEnd, output: &mut TurnOutput) -> Result<(), Fault> {
        let AloneEnd { number, id, application, dead, answer } = end;
        if dead && answer.is_confirmed() {
            self.dead_works();
        }
        let suspects = &mut self.carried.suspects;
        if answer.is_culprit() {
            suspects.convict(id, &application, Instant::now());
        } else if answer.is_known() {
            suspects.clear(id);
            if answer.apart.is_some() && answer.is_confirmed() {
                suspects.acquit(&application, Instant::now());
            }
        } else if answer.outcome != Outcome::Unsent && answer.fault.as_ref().is_some_and(Fault::has_suspects)
        {
            suspects.add([id], Instant::now());
        }
        if let Outcome::Failed(text) = &answer.outcome {
            let message =
                "the broker fails over a batch: its application is parked; the broker's log says more";
            self.carried.log.warn("crash", &format!("application {application}: {text}"), message);
        }
        output.settle(number, answer.outcome);
        if let Some(text) = answer.no_connection {
            let message =
                "a batch that may have ended the connection gets no separate one: it waits, and everything \
                 else goes on";
            self.carried.log.warn("apart", &text, message);
        }
        if let Some(apart) = answer.apart {
            self.closing.spawn(async move { apart.close(CLOSE_APART).await });
        }
        match answer.fault {
            None => Ok(()),
            Some(fault) if dead && fault.is_unavailable() => {
                self.dead_fails(fault.text, true);
                // The next dead letter checks the exchange again.
                if self.dead.is_quiet() {
                    let channel = self.dead.leave(&Outcome::Unknown, output);
                    self.leave_behind(channel);
                }
                Ok(())
            }
            Some(fault) => Err(fault),
        }
    }

    /// Publishes what can be published now, and opens what is needed for the rest.
    fn advance(&mut self, output: &mut TurnOutput) {
        if self.main.is_closed() {
            let limit = self.options.timeouts.connect.min(REPLACE_WITHIN);
            let session = Arc::clone(&self.session);
            self.main.open(async move { Ok((confirm_channel(&session, limit).await?, Vec::new())) }.boxed());
        }
        if self.dead.is_closed() && !self.dead.is_empty() {
            self.open_dead();
        }
        let EgressChannels { session, options, encoder, main, dead, alone, carried, .. } = self;
        if dead.is_open() {
            // Once one has ended a connection, it would end this one with each further try.
            let is_suspect = |batch: &Batch| carried.suspects.has_convicted(&batch.application);
            dead.take_alone(is_suspect).into_iter().for_each(|batch| alone.queue(batch));
        }
        main.publish_waiting(encoder, output);
        dead.publish_waiting(encoder, output);
        alone.publish_waiting(session, options, encoder, &carried.suspects, output);
    }

    fn open_dead(&mut self) {
        let (session, options) = (Arc::clone(&self.session), Arc::clone(&self.options));
        if let Some(trouble) = &mut self.dead_trouble {
            trouble.at = Instant::now();
        }
        let opening = async move {
            let limit = options.timeouts.connect;
            let notes = prepare_dead(&session, options.amqp.topology, &options.dead, limit).await?;
            Ok((confirm_channel(&session, limit).await?, notes))
        };
        self.dead.open(opening.boxed());
    }

    fn dead_fails(&mut self, text: String, by_publish: bool) {
        let message = "dead letters cannot be published: they wait, and everything else goes on";
        self.carried.log.warn("dead letters", &text, message);
        self.dead_trouble = Some(DeadTrouble { text, by_publish, at: Instant::now() });
    }

    fn dead_works(&mut self) {
        if self.dead_trouble.take().is_some() {
            tracing::info!(exchange = %self.options.dead.exchange, "dead letters can be published again");
        }
    }

    fn log_overdue(&mut self, channel: &'static str, limit: Duration) {
        let text = format!("no confirm within {} ms", limit.as_millis());
        self.carried.log.warn(channel, &text, "a publishing channel is given up, and another is opened");
    }

    /// Closes a channel without waiting for it.
    fn leave_behind(&mut self, channel: Option<Arc<Channel>>) {
        if let Some(channel) = channel.filter(|channel| channel.status().connected()) {
            self.left_behind.spawn(async move {
                // The connection's end closes it at the latest.
                let _ = timeout(CLOSE_PATIENCE, channel.close(200, "OK".into())).await;
            });
        }
    }
}
