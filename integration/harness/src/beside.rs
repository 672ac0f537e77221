//! The lateness of another application during some work.

use crate::client::Client;
use crate::site::Site;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Delay of each item, ms.
const DELAY_MS: i64 = 20;
/// Upper bound; the work itself has a lower one.
const LONGEST: Duration = Duration::from_secs(600);

impl Site<'_> {
    /// While `work` runs, publishes items of this application one after the other. Returns the result of
    /// `work` and the lateness of the items, us, sorted. Panics if one is early or does not arrive.
    pub fn late_beside<T>(&self, application: &str, work: impl FnOnce() -> T) -> (T, Vec<i64>) {
        let over = AtomicBool::new(false);
        let (producer, inbox) = (Client::connect(self.node.uri()), self.inbox(application));
        let over_yet = &over;
        std::thread::scope(|scope| {
            let beside = scope.spawn(move || {
                let (begun, mut late) = (Instant::now(), Vec::new());
                while !over_yet.load(Relaxed) && begun.elapsed() < LONGEST {
                    producer.publish(&self.push(application, "1").delay(DELAY_MS));
                    let received = inbox.next();
                    received.is_not_early();
                    late.push(received.lateness_us());
                }
                late.sort_unstable();
                late
            });
            // Ends the thread even if `work` panics.
            let done = Over(&over);
            let came_to = work();
            drop(done);
            (came_to, beside.join().expect("what is delivered beside it"))
        })
    }
}

/// Ends the thread beside it when dropped.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}
