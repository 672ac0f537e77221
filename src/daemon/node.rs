//! The start of the daemon.
//!
//! The order of start-up matters. Signals come first, so that a start can be stopped. The store is next,
//! because only its owner may do anything at all. Then the admin port, so that probes can ask for readiness.
//! The broker is last, and the start does not wait for it.

use super::guard::GRACE;
use super::lasting::Lasting;
use super::life::Ending;
use super::mailbox::ControlEvent;
use super::shard_thread::live;
use super::{RunError, RunOptions};
use crate::signals::{self, Signal};
use std::sync::Arc;
use std::time::Duration;

/// Runs until a stop is requested or the daemon cannot continue.
pub(super) fn run(options: RunOptions) -> Result<(), RunError> {
    let mut lasting = Lasting::new(options)?;
    let entered = lasting.runtime.handle().clone();
    let _entered = entered.enter();
    let (inlet, last_resort) = (Arc::clone(&lasting.inlet), lasting.last_resort.clone());
    let limit = lasting.config.timeouts.drain + GRACE;
    let on_signal = move |signal| {
        if signal == Signal::Terminate {
            // Before the loop receives the signal, since a stuck loop never does.
            last_resort.arm(limit);
        }
        inlet.post(ControlEvent::Signal(signal));
    };
    let listening = signals::listen(on_signal).map_err(RunError::Signals)?;
    let ended = live(&mut lasting);
    drop(listening);
    lasting.runtime.shutdown_timeout(Duration::from_secs(1));
    lasting.outward.shutdown_timeout(Duration::from_secs(1));
    match ended? {
        Ending::Stopped => Ok(()),
        Ending::Lost(_, error) | Ending::Failed(error) => Err(error.into()),
    }
}
