//! What the process does while it has no store: it waits, and tells whoever asks why.
//!
//! Nothing is taken and nothing sent meanwhile: there is neither an engine nor a connection to a broker.

use super::mailbox::LoopEvent;
use super::process::Process;
use crate::admin::{CommandResponse, ExportRefusal, LinkState, Query, StateInput, Status};
use crate::config::Config;
use crate::signals::Signal;
use crate::store::{Loss, OpenError};
use serde_json::json;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Between two tries to have the store, at the most: what a stop of the owner costs.
const LONGEST_TRY: Duration = Duration::from_secs(1);
/// After a life that was short; doubled with each in a row. Each life takes requests, and what is given back
/// again and again the broker takes away after some fifty times: where the store can be opened and takes no
/// commits, that must not be soon.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Where the store was left to another daemon: time for that one to have it.
const HEIR_FIRST: Duration = Duration::from_secs(3);
/// A life that lasted so long says nothing about the next one.
const LONG_LIFE: Duration = Duration::from_secs(10);

/// For what the process waits, and until when.
#[derive(Debug, Default)]
pub(super) struct StandbyWaits {
    until: Option<Instant>,
    /// Why there is no store, and whether another daemon has it.
    reason: String,
    is_spare: bool,
    /// What was last logged of it; empty: that it stands by.
    told: Option<String>,
    /// Short lives in a row.
    short: u32,
    /// What came for the next life.
    kept: VecDeque<LoopEvent>,
}

impl StandbyWaits {
    /// The life that has ended had lost its store.
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

    /// The store could not be had.
    pub(super) fn refused(&mut self, error: &OpenError, config: &Config) {
        self.is_spare = matches!(error, OpenError::Claimed { .. });
        self.reason = error.to_string();
        // How long the other one may have it changes each time.
        let told = if self.is_spare { String::new() } else { self.reason.clone() };
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

    /// There is one.
    pub(super) fn over(&mut self) {
        (self.until, self.told) = (None, None);
    }

    /// Signals and the like that are for the next life.
    pub(super) fn take_kept(&mut self) -> VecDeque<LoopEvent> {
        std::mem::take(&mut self.kept)
    }
}

impl Process {
    /// Waits until the next try is due, and answers meanwhile. False: a stop was requested.
    pub(super) fn wait(&mut self, waits: &mut StandbyWaits) -> bool {
        let Some(until) = waits.until else { return true };
        let mut events = VecDeque::new();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            self.inlet.take(left.min(LONGEST_TRY), &mut events);
            while let Some(event) = events.pop_front() {
                match event {
                    LoopEvent::Signal(Signal::Terminate) => {
                        self.notify.stopping();
                        tracing::info!("stopping: there is nothing to finish");
                        return false;
                    }
                    event @ (LoopEvent::Signal(Signal::Reload) | LoopEvent::Reread(_)) => {
                        waits.kept.push_back(event);
                    }
                    LoopEvent::Query(query) => self.answer_without_store(query, waits),
                    // Of the life that has ended.
                    LoopEvent::Amqp(_) | LoopEvent::Store(_) => {}
                }
            }
            let state = if waits.is_spare { "standing by" } else { "waiting for the store" };
            self.notify.status(&format!("{state}: {}", waits.reason));
            if self.watchdog.is_some() {
                self.notify.watchdog();
            }
            if Instant::now() >= until {
                return true;
            }
        }
    }

    fn answer_without_store(&self, query: Query, waits: &StandbyWaits) {
        // Whoever has asked may have gone.
        match query {
            Query::State(reply) => drop(reply.send(self.state_without_store(waits))),
            Query::Command(_, sender) => {
                let error = if waits.is_spare {
                    format!("this daemon stands by: {}; ask that one", waits.reason)
                } else {
                    format!("there is no store at present, ask again: {}", waits.reason)
                };
                let document = json!({ "error": error });
                drop(sender.send(CommandResponse { status: Status::Unavailable, document }));
            }
            Query::Export(reply) => {
                drop(reply.send(Err(ExportRefusal::NotOnDisk("there is no store open at present"))));
            }
            // Done beside the loop; one that came here all the same hears that it is not.
            Query::Letters(_, reply) => drop(reply),
        }
    }

    fn state_without_store(&self, waits: &StandbyWaits) -> StateInput {
        let [_, _, _, standby, _, waiting, _, _] = LinkState::STATES;
        let link = |side: &str| LinkState {
            side: side.to_owned(),
            state: if waits.is_spare { standby } else { waiting }.to_owned(),
            detail: waits.reason.clone(),
        };
        StateInput { links: vec![link("ingest"), link("egress")], ..self.state() }
    }
}
