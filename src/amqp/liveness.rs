//! Checks whether the broker still answers on a connection whose publishes wait for their confirms.
//!
//! A slow queue confirms slowly, which concerns only the batches for that queue. But where more than a few
//! publishes wait for a quorum queue without majority, RabbitMQ stops their channel, and its flow control
//! then reads nothing more of the whole connection. A round trip on a separate channel distinguishes the two.

use super::connection::Session;
use super::fault::Fault;
use futures_util::future::BoxFuture;
use futures_util::FutureExt;
use lapin::options::ConfirmSelectOptions;
use lapin::Channel;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// A publish that waits for longer than this starts a probe of the connection; a further one follows after as
/// long.
pub(crate) const PROBE_AFTER: Duration = Duration::from_secs(1);
/// How long a probe may go unanswered before the connection is given up, ten seconds after the publish in
/// all: a broker that pauses for a few seconds causes no retries.
const PATIENCE: Duration = Duration::from_secs(9);
/// Upper bound on the time that counts between two looks: a process that was itself stopped for long must
/// read the answer first.
const LOOK: Duration = Duration::from_millis(500);

#[derive(Default)]
pub(crate) struct LivenessProbe {
    /// Carries nothing but the probes.
    channel: Option<Channel>,
    asking: Option<BoxFuture<'static, Result<Channel, Fault>>>,
    /// Time without an answer that counts, and the moment of the last look.
    waited: Duration,
    looked: Option<Instant>,
    answered: Option<Instant>,
}

impl LivenessProbe {
    /// The channel of the probes, to be closed.
    pub(crate) fn take_channel(&mut self) -> Option<Channel> {
        self.channel.take()
    }

    /// Waits for the answer. Safe to cancel.
    pub(crate) async fn woken(&mut self) {
        match &mut self.asking {
            Some(asking) => {
                // Without the channel the next probe opens another. A failure is no answer.
                self.channel = asking.await.ok();
                self.asking = None;
                if self.channel.is_some() {
                    self.answered = Some(Instant::now());
                }
            }
            None => std::future::pending().await,
        }
    }

    /// Takes a look, and starts a probe if one is needed. `waits`: publishes have been waiting for longer
    /// than [`PROBE_AFTER`].
    ///
    /// # Errors
    /// No answer came: the broker reads nothing of the connection.
    pub(crate) fn look(&mut self, session: &Arc<Session>, waits: bool) -> Result<(), Fault> {
        let now = Instant::now();
        let since = self.looked.replace(now).map_or(Duration::ZERO, |looked| now - looked);
        if self.asking.is_some() {
            self.waited += since.min(LOOK);
            if self.waited < PATIENCE {
                return Ok(());
            }
            return Err(Fault::lost("the broker has stopped reading this connection"));
        }
        if waits && self.answered.is_none_or(|at| at.elapsed() >= PROBE_AFTER) {
            self.waited = Duration::ZERO;
            self.asking = Some(ask(Arc::clone(session), self.channel.take()).boxed());
        }
        Ok(())
    }
}

/// Probes the connection. [`LivenessProbe::look`] enforces the time limit.
async fn ask(session: Arc<Session>, channel: Option<Channel>) -> Result<Channel, Fault> {
    let channel = match channel.filter(|channel| channel.status().connected()) {
        Some(channel) => channel,
        None => session.open_channel().await?,
    };
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    Ok(channel)
}
