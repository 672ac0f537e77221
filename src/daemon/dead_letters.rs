//! Carries out the dead-letter actions of the admin port, beside the loops. An action that changes something
//! runs to its end; a read-only one ends when its client disconnects.

use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use tidegate_amqp::DeadLetterService;
use tidegate_wire::dead_letters::{LetterReport, LetterTask, LetterTrouble};
use tokio::sync::oneshot;

/// Carries out one action, and answers.
pub(super) async fn carry_out(
    dead_letters: Arc<DeadLetterService>,
    task: LetterTask,
    mut reply: oneshot::Sender<Result<LetterReport, LetterTrouble>>,
) {
    let gone = Arc::default();
    let mut carrying = pin!(dead_letters.carry_out(&task, &gone));
    let done = tokio::select! {
        done = &mut carrying => done,
        () = reply.closed() => {
            gone.store(true, Ordering::Relaxed);
            carrying.await
        }
    };
    // A read-only action that ended because its client disconnected has not failed.
    let failed = task.job.deed().is_some() || !gone.load(Ordering::Relaxed);
    match &done {
        Ok(LetterReport { stopped: Some(text), .. }) | Err(LetterTrouble::Unavailable(text)) if failed => {
            tracing::warn!(error = text, "a dead-letter action failed or was completed only in part");
        }
        Ok(_) | Err(_) => {}
    }
    // The client may have disconnected.
    let _ = reply.send(done);
}
