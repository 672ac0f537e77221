//! The keyspaces, and the display of their keys in messages.

use super::rows;
use tidegate_types::event::BUCKETS;

/// A keyspace. The names are part of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyspaceId {
    /// (queue, due, seq) -> record.
    Items,
    /// (application, customer, due, seq) -> nothing.
    Customers,
    /// (identity) -> (due, seq); the reader supplies the queue.
    Identities,
    /// (queue) -> queue row.
    Queues,
    /// (application, customer) -> window row.
    Windows,
    /// (kind, queue, planned end or moment of closing, window) -> closing row.
    Closings,
    /// Format, identity, marks.
    Meta,
    /// A bucket, by its number below [`BUCKETS`]: (identity) -> how the item ended, plus one row about the
    /// bucket itself.
    Ended(u8),
}

/// Number of keyspaces other than buckets.
const FIXED: usize = 7;
/// Number of all keyspaces.
pub(crate) const KEYSPACES: usize = FIXED + BUCKETS as usize;

const NAMES: [&str; KEYSPACES] = [
    "items",
    "customers",
    "identities",
    "queues",
    "windows",
    "closings",
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

impl KeyspaceId {
    /// All keyspaces, in the order of [`KeyspaceId::index`].
    pub(crate) const ALL: [KeyspaceId; KEYSPACES] = [
        KeyspaceId::Items,
        KeyspaceId::Customers,
        KeyspaceId::Identities,
        KeyspaceId::Queues,
        KeyspaceId::Windows,
        KeyspaceId::Closings,
        KeyspaceId::Meta,
        KeyspaceId::Ended(0),
        KeyspaceId::Ended(1),
        KeyspaceId::Ended(2),
        KeyspaceId::Ended(3),
        KeyspaceId::Ended(4),
        KeyspaceId::Ended(5),
        KeyspaceId::Ended(6),
        KeyspaceId::Ended(7),
    ];

    /// The keyspace of a bucket; `None`: there is no such bucket.
    pub(crate) fn ended(bucket: u8) -> Option<Self> {
        (bucket < BUCKETS).then_some(KeyspaceId::Ended(bucket))
    }

    /// Its index in [`KeyspaceId::ALL`].
    pub(crate) fn index(self) -> usize {
        match self {
            KeyspaceId::Items => 0,
            KeyspaceId::Customers => 1,
            KeyspaceId::Identities => 2,
            KeyspaceId::Queues => 3,
            KeyspaceId::Windows => 4,
            KeyspaceId::Closings => 5,
            KeyspaceId::Meta => 6,
            KeyspaceId::Ended(bucket) => FIXED + usize::from(bucket % BUCKETS),
        }
    }

    /// Its name in the storage engine and in messages.
    pub(crate) fn name(self) -> &'static str {
        NAMES[self.index()]
    }
}

/// A key as shown in messages: items and identities as words and numbers, all others as escaped bytes, in
/// which printable names stay readable.
pub(crate) fn show(id: KeyspaceId, key: &[u8]) -> String {
    match (id, rows::read_item_key(key), <[u8; 16]>::try_from(key)) {
        (KeyspaceId::Items, Some((queue, key)), _) => {
            format!("queue `{queue}` due {} number {}", key.due, key.seq)
        }
        (KeyspaceId::Identities | KeyspaceId::Ended(_), _, Ok(identity)) => {
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
        for (place, id) in KeyspaceId::ALL.into_iter().enumerate() {
            assert_eq!(id.index(), place);
        }
        assert_eq!(KeyspaceId::ended(7).unwrap().name(), "ended_7");
        assert_eq!(KeyspaceId::ended(BUCKETS), None);
        assert_eq!(NAMES.iter().collect::<std::collections::BTreeSet<_>>().len(), KEYSPACES);
    }

    #[test]
    fn keys_are_named_readably() {
        use tidegate_types::{Identity, Key};
        let item = rows::item_key("shop", Key::own(5, 6)).unwrap();
        assert_eq!(show(KeyspaceId::Items, &item), "queue `shop` due 5 number 6");
        assert_eq!(show(KeyspaceId::Items, b"ab\x01"), "`ab\\x01`");
        let identity = Identity::assigned(255).to_bytes();
        assert_eq!(show(KeyspaceId::Ended(1), &identity), format!("identity {:032x}", 255));
    }
}
