//! What `top` shows at a moment: the last document, what has changed since the one before, and where the
//! operator has scrolled to; pure.

use super::lateness::{LatenessBuckets, LatenessNow};
use super::{Look, SeenState};
use crate::admin::state::{Application, Document};
use std::collections::HashMap;

/// What the table is sorted by, the largest first; names the other way round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Name,
    Waiting,
    Rate,
    Late,
    Parked,
}

impl Order {
    /// As it is shown.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Order::Name => "name",
            Order::Waiting => "waiting",
            Order::Rate => "rate",
            Order::Late => "lateness",
            Order::Parked => "parked",
        }
    }
}

/// One application's line.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ShownApplication {
    pub(super) name: String,
    pub(super) state: &'static str,
    pub(super) paused: bool,
    /// Items that have not ended and are neither in flight nor parked.
    pub(super) waiting: u64,
    pub(super) in_flight: u64,
    pub(super) parked: u64,
    /// Items confirmed a second since the document before; `None` where it is the first.
    pub(super) rate: Option<f64>,
    /// Since when its oldest item is due, ms.
    pub(super) late_ms: u64,
}

/// See the module.
pub(super) struct TopView {
    pub(super) colours: bool,
    pub(super) document: Option<Box<Document>>,
    /// Why the last answer did not come.
    pub(super) away: Option<String>,
    pub(super) paused: bool,
    pub(super) order: Order,
    pub(super) applications: Vec<ShownApplication>,
    /// Items accepted and confirmed a second, between the last two documents of one run.
    pub(super) rates: Option<(f64, f64)>,
    /// Of the items that left between the last two looks.
    pub(super) lateness: Option<LatenessNow>,
    buckets: Option<LatenessBuckets>,
    /// First line of the table that is shown.
    pub(super) top: usize,
    /// Lines of the table there is room for: as it was last drawn.
    pub(super) room: usize,
}

impl TopView {
    /// Before the first answer.
    pub(super) fn new(colours: bool) -> Self {
        TopView {
            colours,
            document: None,
            away: None,
            paused: false,
            order: Order::Waiting,
            applications: Vec::new(),
            rates: None,
            lateness: None,
            buckets: None,
            top: 0,
            room: 1,
        }
    }

    /// Takes an answer; a paused display lets it pass.
    pub(super) fn hear(&mut self, answer: Look) {
        if self.paused {
            return;
        }
        let SeenState { document, lateness: buckets } = match answer {
            Ok(heard) => heard,
            Err(why) => {
                self.away = Some(why);
                return;
            }
        };
        self.away = None;
        self.lateness = buckets.as_ref().zip(self.buckets.as_ref()).and_then(|(now, then)| now.since(then));
        self.buckets = buckets;
        // Counters of another run begin anew.
        let before = self.document.take().filter(|b| b.started_at == document.started_at);
        let ms =
            before.as_ref().and_then(|b| document.uptime_ms.checked_sub(b.uptime_ms)).filter(|ms| *ms > 0);
        let rate = |now: u64, then: u64, ms: u64| now.saturating_sub(then) as f64 * 1_000.0 / ms as f64;
        let (mut known, mut passed) = (HashMap::new(), None);
        if let (Some(before), Some(ms)) = (&before, ms) {
            let (now, then) = (&document.snapshot.totals, &before.snapshot.totals);
            self.rates =
                Some((rate(now.accepted, then.accepted, ms), rate(now.confirmed, then.confirmed, ms)));
            known = before.snapshot.applications.iter().map(|a| (&*a.name, a.confirmed)).collect();
            passed = Some(ms);
        } else {
            self.rates = None;
        }
        let one = |a: &Application| ShownApplication {
            name: a.name.clone(),
            state: a.state(),
            paused: a.paused,
            waiting: a.total.saturating_sub(a.in_flight + a.parked),
            in_flight: a.in_flight,
            parked: a.parked,
            // One that was not there before has begun at 0, unless it was merely not shown.
            rate: passed.and_then(|ms| Some(rate(a.confirmed, *known.get(&*a.name)?, ms))),
            late_ms: a.oldest_due_at.map_or(0, |due| document.at.saturating_sub(due)),
        };
        self.applications = document.snapshot.applications.iter().map(one).collect();
        self.document = Some(document);
        self.put_in_order();
    }

    /// Stops what is shown, or lets it go on.
    pub(super) fn pause(&mut self) {
        self.paused = !self.paused;
    }

    /// Sorts the table, and shows its head.
    pub(super) fn sort(&mut self, order: Order) {
        self.order = order;
        self.top = 0;
        self.put_in_order();
    }

    /// Moves the table by lines, within its bounds.
    pub(super) fn scroll(&mut self, lines: isize) {
        self.top = self.top.saturating_add_signed(lines).min(self.last_top());
    }

    /// Moves the table by what fits on the screen.
    pub(super) fn page(&mut self, pages: isize) {
        self.scroll(pages.saturating_mul(isize::try_from(self.room).unwrap_or(isize::MAX)));
    }

    /// The first line, when the last is at the bottom.
    pub(super) fn last_top(&self) -> usize {
        self.applications.len().saturating_sub(self.room)
    }

    fn put_in_order(&mut self) {
        let order = self.order;
        self.applications.sort_by(|a, b| {
            let first = match order {
                Order::Name => std::cmp::Ordering::Equal,
                Order::Waiting => b.waiting.cmp(&a.waiting),
                Order::Rate => b.rate.unwrap_or(0.0).total_cmp(&a.rate.unwrap_or(0.0)),
                Order::Late => b.late_ms.cmp(&a.late_ms),
                Order::Parked => b.parked.cmp(&a.parked),
            };
            // Lines of equal numbers stay where they are.
            first.then_with(|| a.name.cmp(&b.name))
        });
    }
}
