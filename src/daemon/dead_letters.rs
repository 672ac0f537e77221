//! Runs the dead-letter actions of the admin port in their own tasks, beside the loop. An action that changes
//! something runs to its end; a read-only one ends when its client disconnects.

use super::mailbox::{ControlEvent, LoopEvent};
use crate::admin::Query;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use tidegate_amqp::DeadLetterService;
use tidegate_wire::dead_letters::{LetterReport, LetterTask, LetterTrouble};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// Runs dead-letter actions, and passes all other queries to the loop.
pub(super) fn beside(
    runtime: Handle,
    dead_letters: Arc<DeadLetterService>,
    to_the_loop: impl Fn(LoopEvent) + Send + Sync + 'static,
) -> impl Fn(Query) + Send + Sync {
    move |query| match query {
        Query::Letters(task, reply) => {
            runtime.spawn(carried_out(Arc::clone(&dead_letters), task, reply));
        }
        Query::State(reply) => to_the_loop(ControlEvent::State(reply).into()),
        Query::Export(reply) => to_the_loop(ControlEvent::Export(reply).into()),
        Query::Command(request, reply) => to_the_loop(LoopEvent::Command(request, reply)),
    }
}

async fn carried_out(
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
