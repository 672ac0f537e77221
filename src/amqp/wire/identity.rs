//! Which item an application and an id name, and the ids that this store assigns.

use tidegate_types::{AssignedId, Identity, Target};

/// The identity of a producer's id within an application: the first 128 bits of a cryptographic hash over
/// both, so that no choice of ids makes two of them collide.
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

/// The item that a command names by its application and id: the id is the producer's, or one assigned by the
/// store with this identity.
pub fn target(application: &str, id: &str, store_identity: u64) -> Target {
    Target {
        application: application.into(),
        id: id.into(),
        identity: identity(application, id),
        assigned: read_assigned(id, store_identity),
    }
}

/// The id of an item that came without one. It is unique, because the store's identity is unique, and so is
/// the arrival number within the store. The due as accepted follows, and for every member of a window but the
/// first the distance to the first one, so that the store finds the item by its id alone.
pub(crate) fn assigned(store_identity: u64, id: AssignedId) -> String {
    let AssignedId { seq, due, .. } = id;
    match id.key().behind_first() {
        0 => format!("{store_identity:016x}-{seq:x}-{due:x}"),
        behind => format!("{store_identity:016x}-{seq:x}-{due:x}-{behind:x}"),
    }
}

/// Reads an id of exactly the form of [`assigned`].
pub(crate) fn read_assigned(id: &str, store_identity: u64) -> Option<AssignedId> {
    let (_, numbers) = id.split_once('-')?;
    let (seq, rest) = numbers.split_once('-')?;
    let (due, behind) = rest.split_once('-').unwrap_or((rest, "0"));
    let number = |digits| u64::from_str_radix(digits, 16).ok();
    let (seq, behind) = (number(seq)?, u32::from_str_radix(behind, 16).ok()?);
    let read = AssignedId { seq, due: number(due)?, window: seq.checked_sub(behind.into())? };
    // Numbers begin with 1, and other spellings of the same ones were never assigned.
    (read.window > 0 || behind == 0).then_some(())?;
    (assigned(store_identity, read) == id).then_some(read)
}
