//! Kinds of worlds.

use super::Random;
use tidegate_types::{AppSettings, Thresholds};

/// The kind of world that a seed makes.
pub(super) struct Plan {
    /// The store executes its work at once, and there are no faults.
    pub(super) calm: bool,
    /// The store executes its work at once.
    pub(super) prompt: bool,
    pub(super) customers: u64,
    /// Number of ids per application: few, which collide all the time, or many.
    pub(super) ids: u64,
    pub(super) pauses: bool,
    pub(super) poison: bool,
    pub(super) steps_of_the_clock: bool,
    pub(super) crashes: bool,
    pub(super) reloads: bool,
    /// It begins with this many items, far more than memory has room for.
    pub(super) crowd: usize,
    /// These items expire before they can leave, and dead letters are not taken.
    pub(super) dying: bool,
    /// Two applications with two customers each, and next to no memory.
    pub(super) tight: bool,
    /// After a crash the engine accepts what it can at once, and is killed again before the store has executed anything.
    pub(super) hasty: bool,
    /// Rare coincidences are frequent.
    pub(super) races: bool,
    /// Very small in two thirds of the worlds: either the work of a call, or all other thresholds.
    pub(super) thresholds: Thresholds,
    /// Situations that take several steps are frequent.
    pub(super) scenes: bool,
    /// Consumers send items back for another try.
    pub(super) tries: bool,
    /// Nearly all applications have a queue that never confirms.
    pub(super) silent: bool,
    /// Half of the kills are graceful stops.
    pub(super) stops: bool,
    /// Items are given other times.
    pub(super) retimes: bool,
    /// All applications remember ids for some seconds only, and ids are few.
    pub(super) forgetful: bool,
    /// Whole applications are flushed instead of single customers.
    pub(super) flushes: bool,
    /// Items are counted and cancelled by selections.
    pub(super) selects: bool,
    /// Customers are held back.
    pub(super) holds: bool,
    /// All applications have a rate.
    pub(super) rates: bool,
    /// All customers have a rate.
    pub(super) paces: bool,
    /// Messages have parts for other shards.
    pub(super) foreign: bool,
    /// The prefetch that the engine is given: it decides at once on most requests that would wait for an outcome.
    pub(super) prefetch: Option<u16>,
}

impl Plan {
    pub(super) fn shape(&self, drawn: AppSettings) -> AppSettings {
        let dedupe_tail = if self.forgetful { 5_000 } else { drawn.dedupe_tail };
        let (rate, burst) = match drawn.max_items % 3 {
            _ if !self.rates => ("", 0),
            0 => ("100/s", 0),
            1 => ("60/s", 3),
            _ => ("3000/min", 1),
        };
        let (customer_rate, customer_burst) = match drawn.max_items % 3 {
            _ if !self.paces => ("", 0),
            0 => ("20/s", 0),
            1 => ("10/s", 2),
            _ => ("1200/min", 1),
        };
        AppSettings {
            dedupe_tail,
            rate: rate.parse().ok(),
            burst,
            customer_rate: customer_rate.parse().ok(),
            customer_burst,
            ..drawn
        }
    }

    /// Settings for the applications of scenes.
    pub(super) fn shape_defaults(&self, drawn: AppSettings) -> AppSettings {
        let mut app = self.shape(drawn);
        if self.scenes {
            (app.window, app.quiet, app.align) = (90_000, 0, false);
            (app.max_items, app.max_bytes, app.max_waiting) = (1_000, 1 << 20, 0);
        }
        app
    }

    pub(super) fn of(seed: u64, random: &mut Random) -> Self {
        let mut one_in = |n: u64| random.draw().is_multiple_of(n);
        let calm = seed.is_multiple_of(4);
        Plan {
            calm,
            prompt: calm || one_in(3),
            customers: match (seed % 20 == 13, one_in(6)) {
                (true, _) => 2,
                (false, true) => 40,
                (false, false) => 3,
            },
            ids: if one_in(2) || seed % 20 == 1 { 4 } else { 200 },
            pauses: !calm && one_in(2),
            poison: !calm && one_in(3),
            steps_of_the_clock: !calm && (one_in(4) || seed % 20 == 11),
            crashes: !calm && (one_in(2) || seed % 20 == 17 || seed % 20 == 11),
            reloads: !calm && one_in(6),
            crowd: if matches!(seed % 40, 9 | 29) { 1_000 } else { 0 },
            dying: seed % 40 == 29,
            tight: seed % 20 == 13,
            hasty: seed % 20 == 17,
            races: seed % 20 == 7,
            thresholds: match seed % 3 {
                0 => Thresholds::default(),
                1 => short_turns(seed as usize / 3),
                _ => narrow(seed as usize / 3),
            },
            scenes: matches!(seed % 20, 1 | 3 | 11),
            tries: matches!(seed % 20, 2 | 5 | 10 | 16),
            silent: seed % 20 == 18,
            stops: matches!(seed % 20, 3 | 5 | 6 | 10 | 14 | 17 | 19),
            retimes: matches!(seed % 20, 0 | 6 | 14 | 15 | 18),
            forgetful: seed % 20 == 1,
            flushes: seed % 20 == 12,
            selects: matches!(seed % 40, 8 | 24 | 34),
            holds: matches!(seed % 40, 10 | 27 | 35),
            rates: matches!(seed % 40, 6 | 15 | 36),
            paces: matches!(seed % 40, 14 | 22 | 27 | 31 | 36 | 39),
            foreign: matches!(seed % 40, 5 | 12 | 16 | 25 | 38 | 39),
            prefetch: (seed % 5 == 2).then(|| [1, 4, 40][seed as usize / 5 % 3]),
        }
    }
}

/// Small thresholds that do not delay windows: they close when their time has come, and the reference knows the moment.
fn short_turns(n: usize) -> Thresholds {
    let lease = 32 + n as u64 % 3 * 16;
    let looked_at = 1 + n % 5;
    let (arrivals, sent, ended) = (1 + n % 4, 1 + n % 3, 1 + n / 3 % 3);
    Thresholds { arrivals, sent, ended, looked_at, lease, ..Thresholds::default() }
}

/// Small thresholds, so that a few items reach what otherwise takes many.
fn narrow(n: usize) -> Thresholds {
    let small = |of: usize| 1 + n / of % 4;
    Thresholds {
        due: small(2),
        windows: small(6),
        looked_at_by_all: small(3),
        gathered: small(5),
        evicted: small(7),
        trimmed: small(2),
        trimmed_queues: small(4),
        flushed_windows: small(1),
        flushed: small(6),
        chunk: small(1),
        few: small(1),
        reads: small(2),
        ranges: small(5),
        read: small(3),
        trim_read: small(4),
        probe: small(7),
        asked: small(3),
        step: small(2),
        step_looked_at: small(5),
        page: 400 * small(3) as u64,
        noted: small(4),
        asked_ahead: small(1),
        scans: 2 + small(4),
        enough: small(6) as u64,
        ready: small(3) as u64,
        trim_slack: small(7) as u64,
        idle_queues: small(2),
        lazy_ops: small(5),
        uncommitted_ops: 4 * small(1) as u64,
        uncommitted_bytes: 100 * small(4) as u64,
        large: if n % 8 == 2 { 1 } else { 4 << 10 },
        span: if n.is_multiple_of(5) { 8 * small(3) as u64 } else { u64::from(u32::MAX) },
        ..Thresholds::default()
    }
}
