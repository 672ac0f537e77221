//! The keyspaces, and how their keys are named in messages.

use super::rows::PLACE_LEN;
use super::StoreError;
use crate::engine::event::BUCKETS;

/// A keyspace. The names are part of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    /// (due, seq) -> record.
    Time,
    /// (lane, due, seq) -> record.
    Lanes,
    /// (application, customer, due, seq) -> nothing.
    Customers,
    /// (identity) -> (due, seq).
    Identities,
    /// (application, customer) -> window row.
    Windows,
    /// (lane) -> lane row.
    LaneRows,
    /// Counts of stored items by application.
    Applications,
    /// Format, identity, marks.
    Meta,
    /// A bucket, by its number: (identity) -> how the item ended, and one row about the bucket itself.
    Ended(u8),
}

/// Keyspaces beside the buckets.
const FIXED: usize = 8;
/// Keyspaces.
pub const SPACES: usize = FIXED + BUCKETS as usize;

const NAMES: [&str; SPACES] = [
    "time",
    "lanes",
    "customers",
    "identities",
    "windows",
    "lane_rows",
    "applications",
    "meta",
    "ended_0",
    "ended_1",
    "ended_2",
    "ended_3",
    "ended_4",
    "ended_5",
    "ended_6",
    "ended_7",
];

impl Space {
    /// All of them, in the order of [`Space::index`].
    pub const ALL: [Space; SPACES] = [
        Space::Time,
        Space::Lanes,
        Space::Customers,
        Space::Identities,
        Space::Windows,
        Space::LaneRows,
        Space::Applications,
        Space::Meta,
        Space::Ended(0),
        Space::Ended(1),
        Space::Ended(2),
        Space::Ended(3),
        Space::Ended(4),
        Space::Ended(5),
        Space::Ended(6),
        Space::Ended(7),
    ];

    /// The one of a bucket.
    ///
    /// # Errors
    ///
    /// [`StoreError::NoBucket`].
    pub fn ended(bucket: u8) -> Result<Self, StoreError> {
        if bucket < BUCKETS {
            Ok(Space::Ended(bucket))
        } else {
            Err(StoreError::NoBucket(bucket))
        }
    }

    /// Its place in [`Space::ALL`].
    pub fn index(self) -> usize {
        match self {
            Space::Time => 0,
            Space::Lanes => 1,
            Space::Customers => 2,
            Space::Identities => 3,
            Space::Windows => 4,
            Space::LaneRows => 5,
            Space::Applications => 6,
            Space::Meta => 7,
            Space::Ended(bucket) => FIXED + usize::from(bucket % BUCKETS),
        }
    }

    /// Its name in the storage engine and in messages.
    pub fn name(self) -> &'static str {
        NAMES[self.index()]
    }
}

/// A key as it is named in messages: places and identities in numbers, of all others the bytes, printable names
/// readable among them.
pub fn show(space: Space, key: &[u8]) -> String {
    match (space, <[u8; PLACE_LEN]>::try_from(key)) {
        (Space::Time, Ok(place)) => {
            let place = u128::from_be_bytes(place);
            format!("due {} number {}", (place >> 64) as u64, place as u64)
        }
        (Space::Identities | Space::Ended(_), Ok(identity)) => {
            format!("identity {:032x}", u128::from_be_bytes(identity))
        }
        _ => format!("`{}`", key.escape_ascii()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_keyspace_has_a_place_and_a_name() {
        for (place, space) in Space::ALL.into_iter().enumerate() {
            assert_eq!(space.index(), place);
        }
        assert_eq!(Space::ended(7).unwrap().name(), "ended_7");
        assert!(matches!(Space::ended(8), Err(StoreError::NoBucket(8))));
        assert_eq!(NAMES.iter().collect::<std::collections::BTreeSet<_>>().len(), SPACES);
    }
}
