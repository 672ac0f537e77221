//! The fields of an item that change most, in sixteen bytes instead of forty, so that a row of the table fits
//! into two cache lines.

use super::item::{Residence, Stage};
use core::num::NonZeroU64;
use tidegate_types::ClosedBy;

/// Causes, by number.
const CAUSES: [ClosedBy; 6] =
    [ClosedBy::Time, ClosedBy::Count, ClosedBy::Bytes, ClosedBy::Quiet, ClosedBy::Flush, ClosedBy::Expiry];

/// Bits of a [`PackedState`] below this are the stage. The numbers of flights stay far below 2^55.
const STAGE_BITS: u32 = 57;
const STAGE: u64 = (1 << STAGE_BITS) - 1;
const CAUSE: u64 = 7 << STAGE_BITS;

/// Boolean facts about an item.
#[derive(Clone, Copy, Debug)]
#[repr(u64)]
pub(crate) enum ItemFlag {
    /// Its window is open, and it was due by the wall clock when it came into memory: the window counts it as
    /// an item that is in the store only.
    Stray = 1 << 60,
    /// Its request named its due.
    OwnTime = 1 << 61,
    /// Its row may have a row under its customer.
    Indexed = 1 << 62,
    /// Its tries differ from those in its row.
    Amended = 1 << 63,
}

/// A [`Stage`], a [`ClosedBy`] and flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PackedState(u64);

impl PackedState {
    /// State without flags, closed by time.
    pub(super) fn new(stage: Stage) -> Self {
        PackedState(pack(stage))
    }

    pub(super) fn stage(self) -> Stage {
        let bits = self.0 & STAGE;
        match bits & 3 {
            0 => Stage::Scheduled,
            1 => Stage::Ready,
            2 if bits >> 2 == 0 => Stage::Detached,
            2 => Stage::Flying(bits >> 2),
            _ => Stage::Windowed { pos: (bits >> 3) as u32, scheduled: bits & 4 != 0 },
        }
    }

    pub(super) fn set_stage(&mut self, stage: Stage) {
        self.0 = self.0 & !STAGE | pack(stage);
    }

    pub(super) fn closed_by(self) -> ClosedBy {
        let number = (self.0 & CAUSE) >> STAGE_BITS;
        CAUSES.get(number as usize).copied().unwrap_or_default()
    }

    pub(super) fn set_closed_by(&mut self, cause: ClosedBy) {
        self.0 = self.0 & !CAUSE | (cause as u64) << STAGE_BITS;
    }

    pub(super) fn has(self, flag: ItemFlag) -> bool {
        self.0 & flag as u64 != 0
    }

    pub(super) fn set(&mut self, flag: ItemFlag, to: bool) {
        self.0 = if to { self.0 | flag as u64 } else { self.0 & !(flag as u64) };
    }
}

fn pack(stage: Stage) -> u64 {
    match stage {
        Stage::Scheduled => 0,
        Stage::Ready => 1,
        Stage::Detached => 2,
        Stage::Flying(flight) => {
            debug_assert!(flight > 0, "no flight has the number 0");
            flight << 2 | 2
        }
        Stage::Windowed { pos, scheduled } => u64::from(pos) << 3 | u64::from(scheduled) << 2 | 3,
    }
}

/// A [`Residence`]. Tags and tokens stay far below 2^63.
#[derive(Clone, Copy, Debug)]
pub(super) struct PackedResidence(u64);

impl From<Residence> for PackedResidence {
    fn from(residence: Residence) -> Self {
        PackedResidence(match residence {
            Residence::Orphaned => 0,
            Residence::Pending(tag) => tag.get() << 1,
            Residence::Stored(token) => token << 1 | 1,
        })
    }
}

impl From<PackedResidence> for Residence {
    fn from(PackedResidence(bits): PackedResidence) -> Self {
        if bits & 1 == 1 {
            return Residence::Stored(bits >> 1);
        }
        NonZeroU64::new(bits >> 1).map_or(Residence::Orphaned, Residence::Pending)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stage() -> impl Strategy<Value = Stage> {
        prop_oneof![
            Just(Stage::Scheduled),
            Just(Stage::Ready),
            Just(Stage::Detached),
            (1..1u64 << 55).prop_map(Stage::Flying),
            (any::<u32>(), any::<bool>()).prop_map(|(pos, scheduled)| Stage::Windowed { pos, scheduled }),
        ]
    }

    fn residence() -> impl Strategy<Value = Residence> {
        prop_oneof![
            Just(Residence::Orphaned),
            (1..1u64 << 62)
                .prop_map(|tag| { NonZeroU64::new(tag).map_or(Residence::Orphaned, Residence::Pending) }),
            (0..1u64 << 62).prop_map(Residence::Stored),
        ]
    }

    proptest! {
        #[test]
        fn nothing_of_it_changes_anything_else(
            steps in prop::collection::vec((stage(), 0..CAUSES.len(), any::<[bool; 3]>()), 1..20),
        ) {
            let flags = [ItemFlag::OwnTime, ItemFlag::Indexed, ItemFlag::Amended];
            let mut packed = PackedState::new(Stage::Ready);
            for (stage, cause, set) in steps {
                packed.set_stage(stage);
                packed.set_closed_by(CAUSES[cause]);
                flags.into_iter().zip(set).for_each(|(flag, to)| packed.set(flag, to));
                prop_assert_eq!((packed.stage(), packed.closed_by()), (stage, CAUSES[cause]));
                prop_assert_eq!(flags.map(|flag| packed.has(flag)), set);
            }
        }

        #[test]
        fn a_residence_comes_out_as_it_went_in(residence in residence()) {
            prop_assert_eq!(Residence::from(PackedResidence::from(residence)), residence);
        }
    }
}
