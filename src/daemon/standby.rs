//! What the process does without a store: it waits, and answers queries with the reason.
//!
//! It takes no requests and sends nothing, since it has no engine and no connection to a broker.

use super::lasting::Lasting;
use super::mailbox::{ControlEvent, LoopEvent};
use crate::admin::{CommandResponse, ExportRefusal, LinkState, StateInput, Status};
use crate::signals::Signal;
use serde_json::json;
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use tidegate_config::Config;
use tidegate_store::{Loss, OpenError};
use tokio::sync::oneshot::Sender;

/// Longest time between two attempts to open the store, and so the gap after a stop of its owner.
const LONGEST_TRY: Duration = Duration::from_secs(1);
/// Pause after a short life, doubled with each one in a row. Each life takes requests, and the broker
/// dead-letters a request after some fifty returns. That must not happen soon where a store can be opened but
/// takes no commits.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Pause after this daemon left the store to another one, which needs time to take it.
const HEIR_FIRST: Duration = Duration::from_secs(3);
/// A life of this length says nothing about the next one.
const LONG_LIFE: Duration = Duration::from_secs(10);

/// Why and until when the process waits.
#[derive(Debug, Default)]
pub(super) struct StandbyWaits {
    until: Option<Instant>,
    /// Why there is no store; `is_spare`: whether another daemon has it.
    reason: String,
    is_spare: bool,
    /// What was last logged of it; empty: that this daemon stands by.
    told: Option<String>,
    /// Number of short lives in a row.
    short: u32,
    /// Events for the next life.
    kept: VecDeque<ControlEvent>,
}

impl StandbyWaits {
    /// The life that ended had lost its store.
    pub(super) fn lost(&mut self, lived: Duration, loss: Loss, reason: String) {
        self.short = if lived >= LONG_LIFE { 0 } else { self.short.saturating_add(1) };
        let pause = match loss {
            Loss::GivenAway => HEIR_FIRST,
            Loss::Fenced | Loss::LeaseOver | Loss::Database => {
                FIRST_PAUSE * 2_u32.saturating_pow(self.short.min(10))
            }
        };
        (self.until, self.reason, self.is_spare) =
            (Some(Instant::now() + pause.min(LONGEST_PAUSE)), reason, false);
    }

    /// The store could not be opened.
    pub(super) fn refused(&mut self, error: &OpenError, config: &Config) {
        self.is_spare = matches!(error, OpenError::Claimed { .. });
        self.reason = error.to_string();
        // The remaining time of the other daemon's lease, and the difference of clocks, vary with each try.
        let told = if self.is_spare {
            String::new()
        } else if let OpenError::ClockApart { place, .. } = error {
            format!("clock: {place}")
        } else {
            self.reason.clone()
        };
        if self.told.replace(told.clone()) != Some(told) {
            if self.is_spare {
                tracing::info!("standing by: {error}");
            } else {
                tracing::warn!("waiting for the store: {error}");
            }
        }
        let lease = config.store.database.as_ref().map_or(LONGEST_TRY, |database| database.lease);
        self.until = Some(Instant::now() + (lease / 3).min(LONGEST_TRY));
    }

    /// The store is open.
    pub(super) fn over(&mut self) {
        (self.until, self.told) = (None, None);
    }

    /// Takes the events kept for the next life.
    pub(super) fn take_kept(&mut self) -> VecDeque<ControlEvent> {
        std::mem::take(&mut self.kept)
    }
}

/// Waits until the next attempt is due, and answers queries. False: a stop was requested.
pub(super) fn wait(lasting: &Lasting, waits: &mut StandbyWaits) -> bool {
    let Some(until) = waits.until else { return true };
    let mut events = VecDeque::new();
    loop {
        let left = until.saturating_duration_since(Instant::now());
        lasting.inlet.take(left.min(LONGEST_TRY), &mut events);
        while let Some(event) = events.pop_front() {
            if !handle(lasting, waits, event) {
                return false;
            }
        }
        let state = if waits.is_spare { "standing by" } else { "waiting for the store" };
        lasting.notify.status(&format!("{state}: {}", waits.reason));
        if lasting.watchdog.is_some() {
            lasting.notify.watchdog();
        }
        if Instant::now() >= until {
            return true;
        }
    }
}

/// False: a stop was requested.
fn handle(lasting: &Lasting, waits: &mut StandbyWaits, event: LoopEvent) -> bool {
    match event {
        LoopEvent::Control(ControlEvent::Signal(Signal::Terminate)) => {
            lasting.notify.stopping();
            tracing::info!("stopping: there is nothing to finish");
            return false;
        }
        LoopEvent::Control(event @ (ControlEvent::Signal(Signal::Reload) | ControlEvent::Reread(_))) => {
            waits.kept.push_back(event);
        }
        // Clients may have disconnected.
        LoopEvent::Control(ControlEvent::State(reply)) => drop(reply.send(state(lasting, waits))),
        LoopEvent::Control(ControlEvent::Export(reply)) => {
            drop(reply.send(Err(ExportRefusal::NotOnDisk("there is no store open at present"))));
        }
        LoopEvent::Command(_, reply) => refuse(waits, reply),
        // Events of the life that has ended.
        LoopEvent::Control(ControlEvent::Broker(_) | ControlEvent::Store(_))
        | LoopEvent::Requests(_)
        | LoopEvent::Settled(_) => {}
    }
    true
}

fn refuse(waits: &StandbyWaits, reply: Sender<CommandResponse>) {
    let error = if waits.is_spare {
        format!("this daemon stands by: {}; ask that one", waits.reason)
    } else {
        format!("there is no store at present, ask again: {}", waits.reason)
    };
    let document = json!({ "error": error });
    // The client may have disconnected.
    drop(reply.send(CommandResponse { status: Status::Unavailable, document }));
}

fn state(lasting: &Lasting, waits: &StandbyWaits) -> StateInput {
    let [_, _, _, standby, _, waiting, _, _] = LinkState::STATES;
    let link = |side: &str| LinkState {
        side: side.to_owned(),
        state: if waits.is_spare { standby } else { waiting }.to_owned(),
        detail: waits.reason.clone(),
    };
    StateInput { links: vec![link("ingest"), link("egress")], ..lasting.state() }
}
