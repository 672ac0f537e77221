//! Which item an application and an id name, and the ids that this store assigns.

use crate::engine::types::{Identity, Target};

/// The identity of a producer's id within an application: the first 128 bits of a cryptographic hash over both, so
/// that nobody can make two ids meet.
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

/// The item that somebody names by its application and id: its producer's, or one assigned by the store with this
/// identity.
pub fn target(application: &str, id: &str, store_identity: u64) -> Target {
    Target {
        application: application.into(),
        id: id.into(),
        identity: identity(application, id),
        assigned: arrival(id, store_identity),
    }
}

/// The id of an item that came without one: unique, because the store's identity is, and the arrival number is
/// within it.
pub(super) fn assigned(store_identity: u64, seq: u64) -> String {
    format!("{store_identity:016x}-{seq:x}")
}

/// The arrival number in an id of exactly the form of [`assigned`].
fn arrival(id: &str, store_identity: u64) -> Option<u64> {
    let (_, digits) = id.split_once('-')?;
    let seq = u64::from_str_radix(digits, 16).ok()?;
    // Other spellings of the same numbers were not assigned by anybody.
    (assigned(store_identity, seq) == id).then_some(seq)
}
