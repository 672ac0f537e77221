//! One life of the store after the other, until a stop is requested.
//!
//! If the store belongs to another daemon or is out of reach, the admin port answers during the wait
//! ([`super::standby`]). A store that is only lost ends a life, and the next life opens it again.

use super::guard::PartWatch;
use super::lasting::Lasting;
use super::life::{Ending, FoundItems, Life, OpenLife};
use super::standby::{self, StandbyWaits};
use super::starts::Starts;
use super::RunError;
use crate::admin;
use std::sync::Arc;
use std::time::Instant;
use tidegate_config::StoreKind;
use tidegate_store::OpenError;

/// Runs one life after the other while the store is only lost, until a stop is requested.
pub(super) fn live(lasting: &mut Lasting) -> Result<Ending, RunError> {
    let (store, limits) = (&lasting.config.store, &lasting.config.limits);
    let mut opener = tidegate_store::Opener::new(store, limits.memory, lasting.accept_loss)?;
    let mut waits = StandbyWaits::default();
    let mut admin = None;
    let (mut starts, mut quarantine) = (None, None);
    let ending = loop {
        let opened = open_life(lasting, &mut opener, &mut waits, &mut admin)?;
        let Some(life) = opened else { break Ending::Stopped };
        if admin.is_none() {
            admin = Some(lasting.serve_admin()?);
        }
        // Only now, because a start that ends before its first message says nothing about messages.
        let starts = starts.get_or_insert_with(|| {
            let (starts, most) = note_start(lasting);
            quarantine = most;
            starts
        });
        if let Some(admin) = &admin {
            let (admin, store) = (admin.listens_at(), lasting.config.store.kind.as_str());
            let FoundItems { queues, waiting } = life.found;
            let version = env!("CARGO_PKG_VERSION");
            tracing::info!(version, store, %admin, queues, waiting, "started");
        }
        let watch = PartWatch::start(Arc::clone(&lasting.progress)).map_err(RunError::Runtime)?;
        let begun = Instant::now();
        let ending = life.begin(lasting, quarantine, starts).run();
        drop(watch);
        let Ending::Lost(loss, failure) = ending else { break ending };
        lasting.readiness.reset(false);
        lasting.tally.lost(loss);
        tracing::info!("opening the lost store again");
        waits.lost(begun.elapsed(), loss, failure.to_string());
    };
    if let Some(starts) = &mut starts {
        starts.settle();
    }
    lasting.inlet.close();
    if let Some(admin) = admin {
        lasting.waits.block_on(admin.stop());
    }
    Ok(ending)
}

/// Records this start. After several quick deaths, returns how many deliveries may be taken at a time.
fn note_start(lasting: &Lasting) -> (Starts, Option<u16>) {
    let store = &lasting.config.store;
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
    lasting: &mut Lasting,
    opener: &mut tidegate_store::Opener,
    waits: &mut StandbyWaits,
    admin: &mut Option<admin::Server>,
) -> Result<Option<OpenLife>, RunError> {
    loop {
        if !standby::wait(lasting, waits) {
            return Ok(None);
        }
        let error = match Life::open(lasting, opener) {
            Ok(life) => {
                waits.over();
                waits.take_kept().into_iter().for_each(|event| lasting.inlet.post(event));
                return Ok(Some(life));
            }
            Err(RunError::Open(error)) if error.is_passing() => error,
            Err(error) => return Err(error),
        };
        if admin.is_none() {
            *admin = Some(lasting.serve_admin()?);
            lasting.notify.ready();
        }
        lasting.readiness.reset(matches!(error, OpenError::Claimed { .. }));
        waits.refused(&error, &lasting.config);
    }
}
