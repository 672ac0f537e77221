//! The model behind `top`: the last document, the changes since the previous one, and the operator's scroll
//! position. Pure.

use super::lateness::{LatenessBuckets, LatenessNow};
use super::{Look, SeenState};
use crate::admin::state::{Application, Document};
use std::collections::HashMap;

/// Sort key of the table: largest first, names in alphabetical order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Name,
    Waiting,
    Rate,
    Late,
    Parked,
}

impl Order {
    /// The word that is shown.
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

/// One line of the table.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ShownApplication {
    pub(super) name: String,
    pub(super) state: &'static str,
    pub(super) paused: bool,
    /// Items that have not ended and are neither in flight nor parked.
    pub(super) waiting: u64,
    pub(super) in_flight: u64,
    pub(super) parked: u64,
    /// Items confirmed per second since the previous document; `None` for the first one.
    pub(super) rate: Option<f64>,
    /// How long its oldest item has been due, ms.
    pub(super) late_ms: u64,
}

/// The state of the display.
pub(super) struct TopView {
    pub(super) colours: bool,
    pub(super) document: Option<Box<Document>>,
    /// Why the last query has no answer.
    pub(super) away: Option<String>,
    pub(super) paused: bool,
    pub(super) order: Order,
    pub(super) applications: Vec<ShownApplication>,
    /// Items accepted and confirmed per second, between the last two documents, if they are comparable.
    pub(super) rates: Option<(f64, f64)>,
    /// Lateness of the items that left between the last two queries.
    pub(super) lateness: Option<LatenessNow>,
    buckets: Option<LatenessBuckets>,
    /// First visible line of the table.
    pub(super) top: usize,
    /// Number of lines that fit, as of the last drawing.
    pub(super) room: usize,
}

/// Whether the counters of two documents are of the same: those of another run start at 0, and those of a
/// shard jump when it comes or goes.
fn is_comparable(before: &Document, now: &Document) -> bool {
    let claims = |d: &Document| -> Vec<_> {
        d.shards.iter().map(|line| (line.shard, line.owner.clone(), line.epoch)).collect()
    };
    before.started_at == now.started_at
        && before.missing_shards == now.missing_shards
        && claims(before) == claims(now)
}

impl TopView {
    /// A display before the first answer.
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

    /// Takes an answer; a paused display ignores it.
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
        let before = self.document.take().filter(|before| is_comparable(before, &document));
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
            // An application that was not in the previous document started at 0, unless the document left it
            // out.
            rate: passed.and_then(|ms| Some(rate(a.confirmed, *known.get(&*a.name)?, ms))),
            late_ms: a.oldest_due_at.map_or(0, |due| document.at.saturating_sub(due)),
        };
        self.applications = document.snapshot.applications.iter().map(one).collect();
        self.document = Some(document);
        self.put_in_order();
    }

    /// Freezes or continues the display.
    pub(super) fn pause(&mut self) {
        self.paused = !self.paused;
    }

    /// Sorts the table, and scrolls to its head.
    pub(super) fn sort(&mut self, order: Order) {
        self.order = order;
        self.top = 0;
        self.put_in_order();
    }

    /// Scrolls by lines, within the table.
    pub(super) fn scroll(&mut self, lines: isize) {
        self.top = self.top.saturating_add_signed(lines).min(self.last_top());
    }

    /// Scrolls by the number of lines that fit.
    pub(super) fn page(&mut self, pages: isize) {
        self.scroll(pages.saturating_mul(isize::try_from(self.room).unwrap_or(isize::MAX)));
    }

    /// The first line, if the last one is at the bottom.
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
            // The name decides between equal numbers, so that lines keep their place.
            first.then_with(|| a.name.cmp(&b.name))
        });
    }
}
