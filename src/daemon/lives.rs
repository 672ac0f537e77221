//! The run of the daemon: one life of the store after the other, until a stop is requested.
//!
//! The order of start-up matters. Signals come first, so that a start can be stopped. The store is next,
//! because only its owner may do anything at all. Then the admin port, so that probes can ask for readiness.
//! The broker is last, and the start does not wait for it. If the store belongs to another daemon or is out
//! of reach, the admin port answers during the wait ([`super::standby`]). A store that is only lost ends a
//! life, and the next life opens it again.

use super::guard::{PartWatch, GRACE};
use super::life::{Ending, FoundItems, Life, OpenLife};
use super::mailbox::ControlEvent;
use super::process::Process;
use super::standby::{self, StandbyWaits};
use super::starts::Starts;
use super::{RunError, RunOptions};
use crate::admin;
use crate::signals::{self, Signal};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_config::StoreKind;
use tidegate_store::OpenError;

/// Runs until a stop is requested or the daemon cannot continue.
pub(super) fn run(options: RunOptions) -> Result<(), RunError> {
    let mut process = Process::new(options)?;
    let entered = process.runtime.handle().clone();
    let _entered = entered.enter();
    let (inlet, last_resort) = (Arc::clone(&process.inlet), process.last_resort.clone());
    let limit = process.config.timeouts.drain + GRACE;
    let on_signal = move |signal| {
        if signal == Signal::Terminate {
            // Before the loop receives the signal, since a stuck loop never does.
            last_resort.arm(limit);
        }
        inlet.post(ControlEvent::Signal(signal));
    };
    let listening = signals::listen(on_signal).map_err(RunError::Signals)?;
    let ended = live(&mut process);
    drop(listening);
    process.runtime.shutdown_timeout(Duration::from_secs(1));
    process.outward.shutdown_timeout(Duration::from_secs(1));
    match ended? {
        Ending::Stopped => Ok(()),
        Ending::Lost(_, error) | Ending::Failed(error) => Err(error.into()),
    }
}

/// Runs one life after the other while the store is only lost, until a stop is requested.
fn live(process: &mut Process) -> Result<Ending, RunError> {
    let (store, limits) = (&process.config.store, &process.config.limits);
    let mut opener = tidegate_store::Opener::new(store, limits.memory, process.accept_loss)?;
    let mut waits = StandbyWaits::default();
    let mut admin = None;
    let (mut starts, mut quarantine) = (None, None);
    let ending = loop {
        let opened = open_life(process, &mut opener, &mut waits, &mut admin)?;
        let Some(life) = opened else { break Ending::Stopped };
        if admin.is_none() {
            admin = Some(process.serve_admin()?);
        }
        // Only now, because a start that ends before its first message says nothing about messages.
        let starts = starts.get_or_insert_with(|| {
            let (starts, most) = note_start(process);
            quarantine = most;
            starts
        });
        if let Some(admin) = &admin {
            let (admin, store) = (admin.listens_at(), process.config.store.kind.as_str());
            let FoundItems { queues, waiting } = life.found;
            let version = env!("CARGO_PKG_VERSION");
            tracing::info!(version, store, %admin, queues, waiting, "started");
        }
        let watch = PartWatch::start(Arc::clone(&process.progress)).map_err(RunError::Runtime)?;
        let begun = Instant::now();
        let ending = life.begin(process, quarantine, starts).run();
        drop(watch);
        let Ending::Lost(loss, failure) = ending else { break ending };
        process.readiness.reset(false);
        process.tally.lost(loss);
        tracing::info!("opening the lost store again");
        waits.lost(begun.elapsed(), loss, failure.to_string());
    };
    if let Some(starts) = &mut starts {
        starts.settle();
    }
    process.inlet.close();
    if let Some(admin) = admin {
        process.waits.block_on(admin.stop());
    }
    Ok(ending)
}

/// Records this start. After several quick deaths, returns how many deliveries may be taken at a time.
fn note_start(process: &Process) -> (Starts, Option<u16>) {
    let store = &process.config.store;
    let (starts, quarantine) = Starts::note((store.kind != StoreKind::Memory).then_some(&store.path));
    if let Some(most) = quarantine {
        tracing::warn!(
            most,
            "several quick deaths in a row: redelivered requests are taken one at a time at first, then \
             more with each that passes"
        );
    }
    (starts, quarantine)
}

/// Opens the store, and waits while it belongs to another daemon or is out of reach. `None`: a stop was
/// requested during the wait.
fn open_life(
    process: &mut Process,
    opener: &mut tidegate_store::Opener,
    waits: &mut StandbyWaits,
    admin: &mut Option<admin::Server>,
) -> Result<Option<OpenLife>, RunError> {
    loop {
        if !standby::wait(process, waits) {
            return Ok(None);
        }
        let error = match Life::open(process, opener) {
            Ok(life) => {
                waits.over();
                waits.take_kept().into_iter().for_each(|event| process.inlet.post(event));
                return Ok(Some(life));
            }
            Err(RunError::Open(error)) if error.is_passing() => error,
            Err(error) => return Err(error),
        };
        if admin.is_none() {
            *admin = Some(process.serve_admin()?);
            process.notify.ready();
        }
        process.readiness.reset(matches!(error, OpenError::Claimed { .. }));
        waits.refused(&error, &process.config);
    }
}
