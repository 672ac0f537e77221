//! Which item an application and an id name, and the ids that this store assigns.

use crate::engine::types::{AssignedId, Identity, Target};

/// The identity of a producer's id within an application: the first 128 bits of a cryptographic hash over
/// both, so that no choice of ids makes two meet.
pub fn identity(application: &str, id: &str) -> Identity {
    let mut hasher = blake3::Hasher::new();
    for text in [application, id] {
        // Lengths keep "a" + "bc" apart from "ab" + "c".
        hasher.update(&(text.len() as u64).to_le_bytes());
        hasher.update(text.as_bytes());
    }
    let mut hash = [0; 16];
    hash.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    Identity::given(hash)
}

/// The item that a command names by its application and id: its producer's, or one assigned by the store with
/// this identity.
pub fn target(application: &str, id: &str, store_identity: u64) -> Target {
    Target {
        application: application.into(),
        id: id.into(),
        identity: identity(application, id),
        assigned: read_assigned(id, store_identity),
    }
}

/// The id of an item that came without one: unique, because the store's identity is, and the arrival number
/// is within it. The due as accepted stands behind them, so that the store finds the item by its id alone.
pub(super) fn assigned(store_identity: u64, id: AssignedId) -> String {
    format!("{store_identity:016x}-{:x}-{:x}", id.seq, id.due)
}

/// What an id of exactly the form of [`assigned`] says.
pub(super) fn read_assigned(id: &str, store_identity: u64) -> Option<AssignedId> {
    let (_, numbers) = id.split_once('-')?;
    let (seq, due) = numbers.split_once('-')?;
    let read =
        AssignedId { seq: u64::from_str_radix(seq, 16).ok()?, due: u64::from_str_radix(due, 16).ok()? };
    // Other spellings of the same numbers were never assigned.
    (assigned(store_identity, read) == id).then_some(read)
}
