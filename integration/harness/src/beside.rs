//! How late another application is while something goes on.

use crate::client::Client;
use crate::site::Site;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Due so long after it is published: ms.
const DELAY_MS: i64 = 20;
/// Whatever goes on has a bound of its own that is lower.
const LONGEST: Duration = Duration::from_secs(600);

impl Site<'_> {
    /// Has items of this application delivered, one after the other, as long as `work` goes on: what that came to, and
    /// how late each was, us, in order. None of them is early, and each arrives.
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
            // A panic of it would else be waited out.
            let done = Over(&over);
            let came_to = work();
            drop(done);
            (came_to, beside.join().expect("what is delivered beside it"))
        })
    }
}

/// Ends what goes on beside it, however it ends.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}
