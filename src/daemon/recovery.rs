//! What a shard does while its store opens: it reports, so that the node asks for more time, and tells its
//! state. The opening may take long after a crash, or where a database does not answer.
//!
//! CPU time of the process counts as progress. While the only shard opens its store for the first time,
//! nothing else runs: a start that hangs uses none, gets no more time, and is ended by the manager's own
//! limit. Later openings are not judged so exactly, and no start depends on them.

use super::lasting::Lasting;
use super::mailbox::{answer, ControlEvent, Inlet, LoopEvent};
use super::reports::ShardReport;
use super::standby::{self, StandbyWaits};
use rustix::time::{clock_gettime, ClockId};
use std::collections::VecDeque;
use std::panic::resume_unwind;
use std::time::{Duration, Instant};
use tracing::Span;

/// Interval between two checks of progress.
pub(super) const CHECK_EVERY: Duration = Duration::from_secs(10);

/// CPU time between two checks that counts as progress. A thread that only waits and checks uses far less.
const PROGRESS: Duration = Duration::from_millis(10);

/// How long the opening is a sign of life for the watchdog: each wait for a database is shorter.
const FED_FOR: Duration = Duration::from_secs(150);

/// Runs `open` on a thread of its own. Meanwhile reports after each period of `every` (after one with
/// progress the opening may take three more), and answers questions about the state with the last reason of
/// `waits`. Orders and other questions stay for what follows.
pub(super) fn opening<T: Send>(
    lasting: &Lasting,
    waits: &StandbyWaits,
    every: Duration,
    open: impl FnOnce() -> T + Send,
) -> T {
    let (span, runtime, inlet) = (Span::current(), lasting.runtime.handle(), &lasting.inlet);
    std::thread::scope(|scope| {
        let opening = scope.spawn(move || {
            let _entered = (span.entered(), runtime.enter());
            let _ended = EndOfAttempt(inlet);
            open()
        });
        let begun = Instant::now();
        let (mut report_at, mut cpu_before) = (begun + every, cpu_time());
        let (mut events, mut kept) = (VecDeque::new(), VecDeque::new());
        let mut is_open = false;
        while !is_open {
            inlet.take(report_at.saturating_duration_since(Instant::now()), &mut events);
            for event in events.drain(..) {
                match event {
                    LoopEvent::Control(ControlEvent::Opened) => is_open = true,
                    LoopEvent::Control(ControlEvent::State(reply)) => {
                        answer(reply, || standby::state(lasting, waits));
                    }
                    event @ (LoopEvent::Control(_)
                    | LoopEvent::Command(..)
                    | LoopEvent::Requests { .. }
                    | LoopEvent::Settled(_)) => kept.push_back(event),
                }
            }
            if !is_open && Instant::now() >= report_at {
                let cpu = cpu_time();
                let progress = cpu.saturating_sub(cpu_before) >= PROGRESS;
                tracing::info!(
                    seconds = begun.elapsed().as_secs(),
                    progress,
                    "the store is still being opened"
                );
                // The limit matters in a running process whose database does not respond.
                let is_alive = begun.elapsed() < FED_FOR;
                let more = progress.then_some(every * 3);
                lasting.reports.send(ShardReport::Opening { more, is_alive });
                (report_at, cpu_before) = (Instant::now() + every, cpu);
            }
        }
        inlet.put_back(kept);
        opening.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}

/// Posts that the attempt has ended, also if it panics.
struct EndOfAttempt<'i>(&'i Inlet);

impl Drop for EndOfAttempt<'_> {
    fn drop(&mut self) {
        self.0.post(ControlEvent::Opened);
    }
}

/// CPU time of all threads.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let (seconds, nanos) = (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec));
    Duration::new(seconds.unwrap_or(0), nanos.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::super::mailbox::ShardOrder;
    use super::super::reports::{NodeEvent, Reports};
    use super::*;
    use std::sync::mpsc::{channel, Receiver};
    use std::sync::Arc;
    use tidegate_common::clock;
    use tidegate_config::Config;
    use tokio::sync::oneshot;

    fn shard() -> (Lasting, Receiver<NodeEvent>) {
        let (sender, events) = channel();
        let reports = Reports::new(3, sender);
        let config = Arc::new(Config::default());
        (Lasting::new((3, None), config, reports, None, clock::now()).unwrap(), events)
    }

    #[test]
    fn more_time_is_asked_for_while_work_goes_on() {
        let (lasting, events) = shard();
        let every = Duration::from_millis(50);
        // Stays busy until more time was requested.
        let (sender, asked) = channel();
        let more = std::thread::scope(|scope| {
            scope.spawn(move || loop {
                match events.recv_timeout(Duration::from_secs(20)) {
                    // More time only if the machine has given this process some of its own.
                    Ok(NodeEvent::Shard(3, ShardReport::Opening { more: None, is_alive: true })) => {}
                    Ok(NodeEvent::Shard(3, ShardReport::Opening { more, is_alive: true })) => {
                        sender.send(more).unwrap();
                        return;
                    }
                    Ok(event) => panic!("{event:?}"),
                    Err(_) => panic!("no report came"),
                }
            });
            opening(&lasting, &StandbyWaits::new(false), every, move || loop {
                if let Ok(more) = asked.try_recv() {
                    return more;
                }
            })
        });
        assert_eq!(more, Some(every * 3));
    }

    /// Excluded: a question that waits for a database that does not answer; an order that is lost meanwhile.
    #[test]
    fn the_state_is_told_while_the_store_opens_and_orders_wait() {
        let (lasting, _events) = shard();
        let (sender, state) = oneshot::channel();
        lasting.inlet.post(ControlEvent::Order(ShardOrder::Serve));
        lasting.inlet.post(ControlEvent::State(sender));
        lasting.inlet.post(ControlEvent::Order(ShardOrder::Stop));
        let every = Duration::from_secs(60);
        let told = opening(&lasting, &StandbyWaits::new(false), every, || state.blocking_recv().unwrap());
        assert_eq!((told.line.shard, told.line.state.as_str()), (3, "waiting"));
        assert_eq!(told.links[0].detail, "the store is being opened");
        let mut left = VecDeque::new();
        lasting.inlet.take(Duration::ZERO, &mut left);
        let orders: Vec<String> = left.iter().map(|event| format!("{event:?}")).collect();
        assert_eq!(orders, ["Control(Order(Serve))", "Control(Order(Stop))"]);
    }
}
