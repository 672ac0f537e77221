//! The futures of unconfirmed publishes; each is polled only after it was woken.
//!
//! lapin's `basic_publish` waits until its last frame has been written: awaiting it would cost a round trip
//! to lapin's thread for each message. So each publish is a future of its own, polled once to hand its frames
//! over (in the order of the calls, which is the order of the confirm tags), and then whenever it wakes: when
//! it was written, and when it is confirmed. A wake notes its slot in a list, and the first one wakes the
//! task that owns the list. So nothing is scanned, even with a thousand publishes in flight.
//!
//! [`Confirms::drain`] gives a complete round (see [`super::confirm_tracker`]) for this reason: lapin
//! completes confirms on one thread, each with its data set before the next one's, and wakes the future
//! before it goes on; [`Confirms::start`] polls a future that was never polled. So once an answer is seen,
//! the slots of all earlier answers are in the list or have been taken from it, and the list is taken until
//! it is empty.

use futures_util::task::AtomicWaker;
use lapin::Confirmation;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

type Publish = Pin<Box<dyn Future<Output = lapin::Result<Confirmation>> + Send>>;

/// Slots with a future each; a slot is free again once its answer was given.
#[derive(Default)]
pub(crate) struct Confirms {
    slots: Vec<ConfirmSlot>,
    ready: Arc<ReadySlots>,
    /// Slots taken from the list, kept for its memory.
    taken: Vec<usize>,
    /// Answers that [`Confirms::drain`] has not given yet.
    early: Vec<(usize, lapin::Result<Confirmation>)>,
}

struct ConfirmSlot {
    future: Option<Publish>,
    waker: Waker,
}

#[derive(Default)]
struct ReadySlots {
    slots: Mutex<Vec<usize>>,
    task: AtomicWaker,
}

struct SlotWaker {
    slot: usize,
    ready: Arc<ReadySlots>,
}

impl Wake for SlotWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let first = {
            let mut slots = self.ready.slots.lock().unwrap_or_else(PoisonError::into_inner);
            slots.push(self.slot);
            slots.len() == 1
        };
        if first {
            self.ready.task.wake();
        }
    }
}

impl Confirms {
    /// Starts a publish in a free slot: its frames are handed to lapin before this returns.
    pub(crate) fn start(&mut self, slot: usize, future: Publish) {
        while self.slots.len() <= slot {
            let waker =
                Waker::from(Arc::new(SlotWaker { slot: self.slots.len(), ready: self.ready.clone() }));
            self.slots.push(ConfirmSlot { future: None, waker });
        }
        self.slots[slot].future = Some(future);
        self.poll_slot(slot);
    }

    /// Waits until some publish wakes.
    pub(crate) async fn woken(&mut self) {
        std::future::poll_fn(|cx| {
            self.ready.task.register(cx.waker());
            let empty = self.ready.slots.lock().unwrap_or_else(PoisonError::into_inner).is_empty();
            if empty && self.early.is_empty() {
                Poll::Pending
            } else {
                Poll::Ready(())
            }
        })
        .await;
    }

    /// Gives every answer there is.
    pub(crate) fn drain(&mut self, mut answer: impl FnMut(usize, lapin::Result<Confirmation>)) {
        loop {
            for (slot, result) in self.early.drain(..) {
                answer(slot, result);
            }
            let mut taken = std::mem::take(&mut self.taken);
            std::mem::swap(&mut taken, &mut *self.ready.slots.lock().unwrap_or_else(PoisonError::into_inner));
            if taken.is_empty() {
                self.taken = taken;
                return;
            }
            for slot in taken.drain(..) {
                self.poll_slot(slot);
            }
            self.taken = taken;
        }
    }

    /// A slot may be in the list twice, or again after its answer: both are harmless.
    fn poll_slot(&mut self, slot: usize) {
        let Some(ConfirmSlot { future, waker }) = self.slots.get_mut(slot) else { return };
        let Some(publish) = future else { return };
        if let Poll::Ready(result) = publish.as_mut().poll(&mut Context::from_waker(waker)) {
            *future = None;
            self.early.push((slot, result));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;

    fn publish(confirms: &mut Confirms, slot: usize) -> oneshot::Sender<Confirmation> {
        let (sender, receiver) = oneshot::channel();
        confirms.start(slot, Box::pin(async move { Ok(receiver.await.unwrap()) }));
        sender
    }

    fn drained(confirms: &mut Confirms) -> Vec<usize> {
        let mut slots = Vec::new();
        confirms.drain(|slot, result| {
            assert!(result.unwrap().is_ack());
            slots.push(slot);
        });
        slots
    }

    #[tokio::test]
    async fn gives_each_answer_once_and_wakes_for_it() {
        let mut confirms = Confirms::default();
        let mut senders: Vec<_> = (0..4).map(|slot| publish(&mut confirms, slot)).collect();
        assert!(drained(&mut confirms).is_empty());
        senders.remove(2).send(Confirmation::Ack(None)).unwrap();
        senders.remove(0).send(Confirmation::Ack(None)).unwrap();
        confirms.woken().await;
        assert_eq!(drained(&mut confirms), [2, 0]);
        assert!(drained(&mut confirms).is_empty());
        // A slot is used again.
        let again = publish(&mut confirms, 2);
        let late = tokio::spawn(async move {
            tokio::task::yield_now().await;
            again.send(Confirmation::Ack(None)).unwrap();
        });
        confirms.woken().await;
        assert_eq!(drained(&mut confirms), [2]);
        late.await.unwrap();
    }

    #[tokio::test]
    async fn an_answer_at_the_first_poll_is_not_lost() {
        let mut confirms = Confirms::default();
        confirms.start(0, Box::pin(async { Ok(Confirmation::Ack(None)) }));
        confirms.woken().await;
        assert_eq!(drained(&mut confirms), [0]);
    }
}
