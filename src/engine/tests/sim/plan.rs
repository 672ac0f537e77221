//! Kinds of worlds.

use super::Random;

/// What kind of world a seed makes.
pub(super) struct Plan {
    /// The store does its work at once, and there are no faults.
    pub(super) calm: bool,
    /// The store does its work at once.
    pub(super) prompt: bool,
    pub(super) customers: u64,
    /// Ids for each application: few, which meet all the time, or many.
    pub(super) ids: u64,
    pub(super) pauses: bool,
    pub(super) poison: bool,
    pub(super) steps_of_the_clock: bool,
    pub(super) crashes: bool,
    pub(super) reloads: bool,
    /// Begins with far more than memory has room for.
    pub(super) crowd: usize,
    /// The crowd expires before it can leave, and nobody takes dead letters.
    pub(super) dying: bool,
    /// Two applications with two customers each, and next to no memory.
    pub(super) tight: bool,
    /// After a crash it takes in what it can at once, and is killed again before the store has done anything.
    pub(super) hasty: bool,
    /// What seldom meets meets often.
    pub(super) races: bool,
}

impl Plan {
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
            ids: if one_in(2) { 4 } else { 200 },
            pauses: !calm && one_in(2),
            poison: !calm && one_in(3),
            steps_of_the_clock: !calm && one_in(4),
            crashes: !calm && (one_in(2) || seed % 20 == 17),
            reloads: !calm && one_in(6),
            crowd: if matches!(seed % 40, 9 | 29) { 1_000 } else { 0 },
            dying: seed % 40 == 29,
            tight: seed % 20 == 13,
            hasty: seed % 20 == 17,
            races: seed % 20 == 7,
        }
    }
}
