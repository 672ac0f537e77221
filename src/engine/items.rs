//! The items in memory, and what they cost there. Persistent facts come from
//! [`tidegate_types::event::Stored`]; all else here is volatile and rebuilt after a restart.
//!
//! Deliberately absent: the position of an item in its queue. Queues, windows and flights hold handles.

mod item;
mod packed;

use super::ids::ItemId;
use super::lookup::Lookup;
use super::slab::{Handle, Slab};
use alloc::sync::Arc;
use core::hash::{BuildHasherDefault, Hasher};
use core::num::NonZeroU32;
use core::ops::{Index, IndexMut};
use tidegate_types::{Content, Identity};

pub(crate) use item::{
    reported_due, Address, Item, ItemFlag, LetterFacts, Placement, Residence, Stage, Tries,
};

/// Hashes arrival numbers. They are consecutive: no producer can choose them, but a producer can choose which
/// of them stay, every 1,024th, say. So the high bits of the product must reach the low ones, which select
/// the slot in the table. Sixteen consecutive numbers share neighbouring slots, since they arrive together.
#[derive(Default)]
pub(crate) struct SeqHasher(u64);

impl Hasher for SeqHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }
    fn write_u64(&mut self, n: u64) {
        let n = self.0.rotate_left(5) ^ n;
        let mixed = (n >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = (mixed ^ (mixed >> 32)) << 4 | (n & 15);
    }
}

/// A table by arrival number or identity.
pub(crate) type NumberMap<K, V> = Lookup<K, V, BuildHasherDefault<SeqHasher>>;

// Two cache lines: items are accessed in any order, and each line costs a fetch.
const _: () = assert!(Slab::<ItemId, Item, Siblings>::SLOT <= 128);

/// Items by arrival number. Consecutive numbers share an entry, since most of them are present together: an
/// eighth of the entries fits better into the processor's caches.
#[derive(Debug)]
struct BySeq {
    blocks: NumberMap<u64, [u32; BLOCK as usize]>,
}

/// Arrival numbers that share an entry of [`BySeq`].
const BLOCK: u64 = 8;
/// Marks a number in such an entry that has no item.
const NONE: u32 = u32::MAX;

impl BySeq {
    fn new() -> Self {
        BySeq { blocks: Lookup::new() }
    }

    /// Place of the item with this number.
    fn get(&self, seq: u64) -> Option<u32> {
        let block = self.blocks.get(&(seq / BLOCK))?;
        Some(block[(seq % BLOCK) as usize]).filter(|place| *place != NONE)
    }

    fn insert(&mut self, seq: u64, place: u32) {
        let block = self.blocks.get_or_insert_with(seq / BLOCK, || [NONE; BLOCK as usize]);
        debug_assert_eq!(block[(seq % BLOCK) as usize], NONE, "an arrival number is in memory once");
        block[(seq % BLOCK) as usize] = place;
    }

    fn remove(&mut self, seq: u64) {
        let Some(block) = self.blocks.get_mut(&(seq / BLOCK)) else {
            debug_assert!(false, "each item in memory has its number here");
            return;
        };
        block[(seq % BLOCK) as usize] = NONE;
        if *block == [NONE; BLOCK as usize] {
            self.blocks.remove(&(seq / BLOCK));
        }
    }
}

/// Places of an item's neighbours in its customer's list, plus one.
#[derive(Clone, Copy, Debug, Default)]
struct Siblings {
    before: Option<NonZeroU32>,
    after: Option<NonZeroU32>,
}

/// See the module's page.
#[derive(Debug)]
pub(crate) struct Items {
    rows: Slab<ItemId, Item, Siblings>,
    by_seq: BySeq,
    /// Items that have not ended and whose producers gave an id.
    by_identity: NumberMap<Identity, ItemId>,
    content_bytes: u64,
}

impl Items {
    pub(crate) fn new() -> Self {
        Items { rows: Slab::new(), by_seq: BySeq::new(), by_identity: Lookup::new(), content_bytes: 0 }
    }

    pub(crate) fn insert(&mut self, item: Item) -> ItemId {
        self.content_bytes += item.content().map_or(0, |content| content.size());
        let (seq, identity, dead) = (item.key().seq, item.identity(), item.letter().is_some());
        let id = self.rows.insert(item);
        self.by_seq.insert(seq, id.place());
        if identity.is_given() && !dead {
            let before = self.by_identity.insert(identity, id);
            debug_assert!(before.is_none(), "an identity is alive once");
        }
        id
    }

    /// Removes the index entries of items that are about to be removed.
    pub(crate) fn unindex(&mut self, leaving: &[ItemId]) {
        for id in leaving {
            self.by_seq.remove(self.rows[*id].key().seq);
        }
        for id in leaving {
            self.by_identity.remove_if(&self.rows[*id].identity(), |other| other == id);
        }
    }

    /// Removes an item that has been unindexed.
    pub(crate) fn remove(&mut self, id: ItemId) -> Item {
        let item = self.rows.remove(id).expect("a live handle");
        debug_assert!(self.by_seq.get(item.key().seq).is_none(), "nothing leads to it any more");
        self.content_bytes -= item.content().map_or(0, |content| content.size());
        item
    }

    pub(crate) fn get(&self, id: ItemId) -> Option<&Item> {
        self.rows.get(id)
    }

    /// The item in this place of the table.
    pub(crate) fn at(&self, place: u32) -> Option<ItemId> {
        self.rows.at(place)
    }

    pub(crate) fn by_seq(&self, seq: u64) -> Option<ItemId> {
        self.by_seq.get(seq).and_then(|place| self.rows.at(place))
    }

    /// The item of this identity that has not ended.
    pub(crate) fn by_identity(&self, identity: Identity) -> Option<ItemId> {
        match identity.assigned_seq() {
            None => self.by_identity.get(&identity).copied(),
            Some(seq) => self.by_seq(seq).filter(|id| {
                let item = &self.rows[*id];
                item.identity() == identity && item.letter().is_none()
            }),
        }
    }

    /// Replaces the identity of a dead item by its arrival number, since its id may be used again. Returns
    /// the former identity.
    pub(crate) fn lose_identity(&mut self, id: ItemId) -> Identity {
        let identity = self.rows[id].lose_identity();
        self.by_identity.remove_if(&identity, |other| *other == id);
        identity
    }

    pub(crate) fn set_content(&mut self, id: ItemId, content: Arc<Content>) {
        let item = &mut self.rows[id];
        if item.content().is_none() {
            self.content_bytes += content.size();
            item.content = Some(content);
        }
    }

    pub(crate) fn take_content(&mut self, id: ItemId) -> Option<Arc<Content>> {
        let content = self.rows[id].content.take()?;
        self.content_bytes -= content.size();
        Some(content)
    }

    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Inserts an item before `first`, the present head of its customer's list.
    pub(crate) fn link(&mut self, id: ItemId, first: Option<ItemId>) {
        let after = first.and_then(|first| NonZeroU32::new(first.place() + 1));
        *self.rows.aside_mut(id.place()) = Siblings { before: None, after };
        if let Some(first) = first {
            self.rows.aside_mut(first.place()).before = NonZeroU32::new(id.place() + 1);
        }
    }

    /// Removes an item from that list. Returns `Some` if the item was the head: the new head, if any.
    pub(crate) fn unlink(&mut self, id: ItemId) -> Option<Option<ItemId>> {
        let Siblings { before, after } = self.rows.aside(id.place());
        if let Some(after) = after {
            self.rows.aside_mut(after.get() - 1).before = before;
        }
        match before {
            Some(before) => {
                self.rows.aside_mut(before.get() - 1).after = after;
                None
            }
            None => Some(after.and_then(|after| self.rows.at(after.get() - 1))),
        }
    }

    /// The next item in that list.
    pub(crate) fn sibling(&self, id: ItemId) -> Option<ItemId> {
        let Siblings { after, .. } = self.rows.aside(id.place());
        after.and_then(|after| self.rows.at(after.get() - 1))
    }

    /// Payload bytes in memory.
    pub(crate) fn content_bytes(&self) -> u64 {
        self.content_bytes
    }

    /// All items, in order of place. For rare uses only: the cost is proportional to the number of items.
    pub(crate) fn ids(&self) -> impl Iterator<Item = ItemId> + '_ {
        self.rows.handles()
    }
}

impl Index<ItemId> for Items {
    type Output = Item;
    fn index(&self, id: ItemId) -> &Item {
        &self.rows[id]
    }
}

/// Content and identity change through the methods above only, since they are counted and indexed.
impl IndexMut<ItemId> for Items {
    fn index_mut(&mut self, id: ItemId) -> &mut Item {
        &mut self.rows[id]
    }
}

/// The place of a handle, for the schedule.
pub(crate) fn place_of(id: ItemId) -> u32 {
    id.place()
}
