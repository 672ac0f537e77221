//! A store of sorted maps, written from the interface alone, that checks its input: every operation against its
//! content, and after every commit the numbers that the engine keeps in it. It answers as the store on a disk does,
//! errors included: `src/store/model_tests.rs` compares the two.

mod twin;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tidegate_types::event::*;
use tidegate_types::*;

pub use twin::{Group, RealStore, Twin};

type Name = Arc<str>;

const FIRST: Key = Key::at(0);

/// The behaviour of a real store, over sorted maps. A job that has been executed is durable.
#[derive(Clone, Default)]
pub struct FakeStore {
    /// All items, by queue and key.
    pub items: BTreeMap<(Name, Key), Stored>,
    /// Keys of the items, in the order in which queues are read.
    order: BTreeMap<(Name, Key), Key>,
    /// Place of each item, by arrival number.
    pub places: BTreeMap<u64, Place>,
    /// Identity rows.
    pub identities: BTreeMap<Identity, Place>,
    /// Customer rows: application, customer, key.
    pub customers: BTreeSet<(Name, Name, Key)>,
    /// Items with a customer and without a customer row, by queue.
    bare: BTreeSet<(Name, Key)>,
    counts: BTreeMap<Name, u64>,
    /// Rows of queues, by name.
    pub queues: BTreeMap<Name, QueueRow>,
    /// Customers that are held back, by application and name: until when, UTC ms.
    pub held: BTreeMap<(Name, Name), u64>,
    /// Rows of long windows, by application and customer.
    pub windows: BTreeMap<(Name, Name), WindowRow>,
    /// Windows that closed early, by queue, planned end and number.
    pub closings: BTreeMap<(Name, u64, u64), ClosingRow>,
    /// Windows of which members were removed in this commit.
    left: BTreeSet<(Name, u64, u64)>,
    /// Ended items that are remembered, by bucket.
    pub ended: BTreeMap<(u8, Identity), Ended>,
    /// Buckets of ended ids, in the order in which they began.
    pub buckets: Vec<BucketRow>,
    /// Those of the last commit.
    pub marks: Marks,
    /// Number of deletes that found nothing.
    pub missed: u64,
    /// Number of rows that reads have visited.
    pub looked_at: u64,
    /// Whether rows of windows are compared with their members: while the clocks agree, all members wait for the end.
    pub counts_members: bool,
}

impl FakeStore {
    /// Applies one atomic commit, after which the engine's numbers must be right.
    pub fn apply(&mut self, ops: Vec<Op>, marks: Marks) {
        for queue in self.commit(ops, marks) {
            self.check_queue(&queue);
            if self.counts_members {
                self.check_windows(&queue);
            }
        }
    }

    /// Applies one atomic commit. Returns the queues whose items or row it has changed.
    pub fn commit(&mut self, ops: Vec<Op>, marks: Marks) -> BTreeSet<Name> {
        assert!(marks.next_seq >= self.marks.next_seq, "the mark of arrival numbers goes back");
        let mut touched = BTreeSet::new();
        for op in ops {
            self.apply_one(op, &mut touched);
        }
        for (queue, end, window) in std::mem::take(&mut self.left) {
            if self.window(&queue, end, window).next().is_none() {
                self.closings.remove(&(queue, end, window));
            }
        }
        self.marks = marks;
        touched
    }

    /// Each commit must leave exact numbers.
    fn check_queue(&self, queue: &Name) {
        let count = self.counts.get(queue).copied().unwrap_or(0);
        let Some(row) = self.queues.get(queue) else {
            assert_eq!(count, 0, "queue {queue:?} has items and no row");
            return;
        };
        assert_eq!(row.count, count, "count of queue {queue:?}");
        if let Some(((name, first), _)) = self.order.range((queue.clone(), FIRST)..).next() {
            assert!(
                name != queue || row.low <= *first,
                "low mark {:?} above {first:?} of {queue:?}",
                row.low
            );
        }
        let bare = self.bare.range((queue.clone(), FIRST)..(queue.clone(), Key::at(u64::MAX)));
        if let Some((_, last)) = bare.last() {
            assert!(last.due < row.unindexed_until, "{last:?} of {queue:?} has no customer row, {row:?}");
        }
    }

    /// The row of a window must count its members.
    fn check_windows(&self, queue: &Name) {
        for row in self.windows.values().filter(|row| row.application == *queue) {
            let its = self.window(queue, row.end, row.window).map(|item| item.customer.as_ref());
            let members = its.inspect(|its| assert_eq!(*its, Some(&row.customer), "of {row:?}")).count();
            assert_eq!(row.count as usize, members, "members of {row:?}");
        }
    }

    /// Members of a window, by its planned end and its number.
    fn window(&self, queue: &Name, end: u64, window: u64) -> impl Iterator<Item = &Stored> {
        let first = Key { due: end, window, seq: 0 };
        let range = (queue.clone(), first)..=(queue.clone(), Key { seq: u64::MAX, ..first });
        self.items.range(range).map(|(_, item)| item).filter(|item| item.is_windowed())
    }

    fn apply_one(&mut self, op: Op, touched: &mut BTreeSet<Name>) {
        match op {
            Op::Put { item, indexed } => self.put(*item, indexed, touched),
            Op::Delete { place, rows } => {
                touched.insert(place.queue.clone());
                self.remove_rows(&place, &rows);
                match self.take(&place) {
                    Some(item) => self.check_unled(&place, &item),
                    None => self.missed += 1,
                }
            }
            Op::Index { key, rows } => {
                let place = self.places.get(&key.seq).expect("an item that is indexed is there").clone();
                assert_eq!(place.key, key, "indexed where it does not lie");
                self.add_rows(&place, &rows);
            }
            Op::Move { from, to, removed, written, standing, weight: _ } => {
                touched.extend([from.queue.clone(), to.queue.clone()]);
                assert_eq!(from.key.seq, to.key.seq, "a move keeps the arrival number");
                let mut item =
                    self.take(&from).unwrap_or_else(|| panic!("moved what is not there: {from:?}"));
                self.remove_rows(&from, &removed);
                let Standing { attempts, last_error, outcome_unknown, own_time, closed_by, dead, due } =
                    *standing;
                item = Stored { attempts, last_error, outcome_unknown, own_time, closed_by, dead, ..item };
                item.key = to.key;
                item.due = due.unwrap_or_else(|| Stored::letter_due(to.key, item.accepted_due, own_time));
                assert_eq!(item.queue(), &*to.queue, "moved to a queue that is not its own");
                if from != to {
                    self.check_unled(&from, &item);
                }
                self.insert(to.clone(), item);
                self.add_rows(&to, &written);
                self.check_led(&to);
            }
            Op::Close(closed) => {
                touched.insert(closed.application.clone());
                self.close(closed);
            }
            Op::PutQueue(row) => {
                touched.insert(row.queue.clone());
                if row.count == 0 && row.paused.is_none() && row.slowed.is_none() {
                    self.queues.remove(&row.queue);
                } else {
                    self.queues.insert(row.queue.clone(), row);
                }
            }
            Op::PutHeld(HeldRow { application, customer, until }) => match until {
                Some(until) => drop(self.held.insert((application, customer), until)),
                None => drop(self.held.remove(&(application, customer))),
            },
            Op::PutWindow(row) => {
                assert!(row.count > 0, "a window without members: {row:?}");
                self.windows.insert((row.application.clone(), row.customer.clone()), row);
            }
            Op::DeleteWindow { application, customer } => {
                self.windows.remove(&(application, customer));
            }
            Op::Remember { bucket, identity, ended } => {
                assert!(identity.is_given(), "only ids that producers gave are remembered");
                let begun = self.buckets.iter().any(|row| row.bucket == bucket);
                assert!(bucket < BUCKETS && begun, "the bucket was begun");
                self.ended.insert((bucket, identity), *ended);
            }
            Op::BeginBucket(row) => self.begin_bucket(row),
        }
    }

    /// Begins a bucket; this is not atomic with the rest of its commit.
    pub fn begin_bucket(&mut self, row: BucketRow) {
        assert!(row.bucket < BUCKETS);
        self.ended.retain(|(bucket, _), _| *bucket != row.bucket);
        self.buckets.retain(|other| other.bucket != row.bucket);
        self.buckets.push(row);
    }

    fn put(&mut self, item: Stored, indexed: bool, touched: &mut BTreeSet<Name>) {
        assert!(item.content.is_some(), "a write carries its content");
        assert!(item.key.seq < self.marks.next_seq, "{:?} is beyond the lease {:?}", item.key, self.marks);
        let place = Place { queue: item.queue().into(), key: item.key };
        touched.insert(place.queue.clone());
        let identity = item.given.filter(|_| item.dead.is_none());
        let customer = item.customer.clone().filter(|_| indexed).map(|name| (item.application.clone(), name));
        assert!(!indexed || customer.is_some(), "no customer, and a row under one");
        assert!(item.dead.is_none() || !indexed, "a dead item under a customer");
        self.insert(place.clone(), item);
        self.add_rows(&place, &IndexRows { identity, customer });
    }

    /// Inserts an item. As on the disk, a fingerprint is kept only with an id that a producer gave.
    fn insert(&mut self, place: Place, item: Stored) {
        let fingerprint = if item.given.is_some() { item.fingerprint } else { 0 };
        let closing = self.closings.get(&(place.queue.clone(), item.key.due, item.key.window));
        let closing = closing.filter(|_| item.is_windowed());
        let own_due = if item.dead.is_some() { item.due } else { item.key.due };
        let (due, closed_by) =
            closing.map_or((own_due, item.closed_by), |closing| (closing.due, closing.cause));
        let item = Stored { fingerprint, due, closed_by, ..item };
        self.order.insert((place.queue.clone(), item.place()), item.key);
        let row = item.customer.clone().map(|customer| (item.application.clone(), customer, item.key));
        if item.dead.is_none() && row.is_some_and(|row| !self.customers.contains(&row)) {
            self.bare.insert((place.queue.clone(), place.key));
        }
        *self.counts.entry(place.queue.clone()).or_default() += 1;
        let before = self.places.insert(item.key.seq, place.clone());
        assert!(before.is_none(), "{:?} is there twice: {before:?}", item.key);
        let before = self.items.insert((place.queue, place.key), item);
        assert!(before.is_none(), "written over {before:?}");
    }

    fn take(&mut self, place: &Place) -> Option<Stored> {
        let name = (place.queue.clone(), place.key);
        let item = self.items.remove(&name)?;
        self.order.remove(&(place.queue.clone(), item.place()));
        let closing = (place.queue.clone(), place.key.due, place.key.window);
        if self.closings.contains_key(&closing) {
            self.left.insert(closing);
        }
        self.bare.remove(&name);
        self.places.remove(&place.key.seq);
        let count = self.counts.get_mut(&place.queue).expect("counted");
        *count -= 1;
        if *count == 0 {
            self.counts.remove(&place.queue);
        }
        Some(item)
    }

    /// Makes the members of the window due; they stay under their keys.
    fn close(&mut self, closed: ClosingRow) {
        assert!(closed.due < closed.end, "it closed early: {closed:?}");
        let queue = closed.application.clone();
        let keys: Vec<Key> = self.window(&queue, closed.end, closed.window).map(|item| item.key).collect();
        for key in keys {
            let item = self.items.get_mut(&(queue.clone(), key)).expect("just found");
            self.order.remove(&(queue.clone(), item.place()));
            (item.due, item.closed_by) = (closed.due, closed.cause);
            self.order.insert((queue.clone(), item.place()), key);
        }
        let name = (queue, closed.end, closed.window);
        self.left.insert(name.clone());
        self.closings.insert(name, closed);
    }

    fn add_rows(&mut self, place: &Place, rows: &IndexRows) {
        let item = &self.items[&(place.queue.clone(), place.key)];
        if let Some((application, customer)) = &rows.customer {
            assert_eq!(
                (&item.application, item.customer.as_ref()),
                (application, Some(customer)),
                "its own row"
            );
            self.customers.insert((application.clone(), customer.clone(), place.key));
            self.bare.remove(&(place.queue.clone(), place.key));
        }
        if let Some(identity) = rows.identity {
            assert_eq!(identity, item.identity(), "its own identity");
            let before = self.identities.insert(identity, place.clone());
            assert!(
                before.as_ref().is_none_or(|b| b == place),
                "two items of one identity: {before:?}, {place:?}"
            );
        }
    }

    fn remove_rows(&mut self, place: &Place, rows: &IndexRows) {
        if let Some((application, customer)) = &rows.customer {
            let was = self.customers.remove(&(application.clone(), customer.clone(), place.key));
            if was && self.items.contains_key(&(place.queue.clone(), place.key)) {
                self.bare.insert((place.queue.clone(), place.key));
            }
        }
        if let Some(identity) = rows.identity {
            let there = self.identities.remove(&identity);
            assert!(there.as_ref().is_none_or(|at| at == place), "another item's row: {there:?}, {place:?}");
        }
    }

    /// No index row may lead to the former place of an item.
    fn check_unled(&self, place: &Place, item: &Stored) {
        let at = self.identities.get(&item.identity());
        assert!(at.is_none_or(|at| at != place), "an identity row is left behind: {item:?}");
        if let Some(customer) = &item.customer {
            let row = (item.application.clone(), customer.clone(), place.key);
            assert!(!self.customers.contains(&row), "a customer row is left behind: {item:?}");
        }
    }

    /// The identity of an item must lead to its place.
    fn check_led(&self, place: &Place) {
        let item = &self.items[&(place.queue.clone(), place.key)];
        let own_key = Key { due: item.accepted_due, ..item.key };
        if item.dead.is_none() && (item.given.is_some() || item.key != own_key) {
            assert_eq!(self.identities.get(&item.identity()), Some(place), "its identity leads elsewhere");
        }
    }

    /// Looks an identity up, as strictly as the disk: an id of a producer leads to its item, and an assigned one to
    /// an item of the application in question, or to none.
    fn find(&self, wanted: &Wanted) -> Result<Found, String> {
        let own = |key: Key| self.items.get(&(wanted.application.clone(), key));
        let item = match self.identities.get(&wanted.identity) {
            Some(led) => {
                let item = own(led.key);
                let is_its = item.is_none_or(|item| item.identity() == wanted.identity);
                if !is_its || item.is_none() && wanted.identity.is_given() {
                    return Err(format!("damage: {wanted:?} leads to {led:?}, {item:?}"));
                }
                item
            }
            None => wanted.key.and_then(own).filter(|item| item.identity() == wanted.identity),
        };
        let item = item.map(|item| Stored { content: None, ..item.clone() });
        let ended = wanted.buckets.iter().find_map(|bucket| self.ended.get(&(*bucket, wanted.identity)));
        Ok(Found { item, ended: ended.cloned() })
    }

    fn range(&mut self, range: &Range, most: usize, bytes: &mut u64, max_bytes: u64) -> RangeRows {
        let ends = (range.queue.clone(), range.from)..(range.queue.clone(), Key::at(range.until));
        let (mut rows, mut next) = (Vec::new(), None);
        if ends.start < ends.end {
            for ((queue, place), key) in self.order.range(ends) {
                if rows.len() == range.max_rows.min(most) {
                    next = Some(*place);
                    break;
                }
                let mut item = self.items[&(queue.clone(), *key)].clone();
                *bytes += item.content.as_ref().map_or(0, |content| content.size());
                if *bytes > max_bytes {
                    item.content = None;
                }
                rows.push(item);
            }
        }
        self.looked_at += rows.len() as u64;
        RangeRows { queue: range.queue.clone(), rows, next }
    }

    fn scan(&mut self, scan: &Scan, most: usize) -> Loaded {
        let until = Key::at(scan.until);
        // Place of each row in the order of the scan, and its key.
        let keys: Vec<(Key, (Name, Key))> = match &scan.along {
            _ if scan.from >= until => vec![],
            Along::Queue(queue) => {
                let range = self.order.range((queue.clone(), scan.from)..(queue.clone(), until));
                let of = |((queue, place), key): (&(Name, Key), &Key)| (*place, (queue.clone(), *key));
                range.map(of).take(scan.max_looked_at.saturating_add(1)).collect()
            }
            Along::Customer(app, customer) => {
                let from = (app.clone(), customer.clone(), scan.from);
                let range = self.customers.range(from..(app.clone(), customer.clone(), until));
                range
                    .map(|(app, _, key)| (*key, (app.clone(), *key)))
                    .take(scan.max_looked_at.saturating_add(1))
                    .collect()
            }
        };
        let (mut rows, mut next, mut looked) = (Vec::new(), None, 0);
        for (at, name) in keys {
            if rows.len() == scan.max_rows.min(most) || looked == scan.max_looked_at {
                next = Some(at);
                break;
            }
            looked += 1;
            let item = self.items.get(&name).expect("a customer row leads to its item");
            if scan.customer.as_ref().is_some_and(|customer| item.customer.as_ref() != Some(customer)) {
                continue;
            }
            let head = |content: &Arc<Content>| Arc::new(Content { body: vec![], ..(**content).clone() });
            let content = item.content.as_ref().filter(|_| scan.properties).map(head);
            rows.push(Stored { content, ..item.clone() });
        }
        self.looked_at += looked as u64;
        Loaded::Scanned { number: scan.number, rows, next }
    }

    /// Executes a read that returns at most `most` rows of each range or scan, as a store may that serves a large
    /// read in pieces. An error is what a store reports as damage.
    pub fn load(&mut self, load: &Load, most: usize) -> Result<Loaded, String> {
        let most = most.max(1);
        Ok(match load {
            Load::Ranges { ranges, max_rows, max_bytes } => {
                let (mut bytes, mut left) = (0, *max_rows);
                let rows = |range: &Range| {
                    if left == 0 {
                        let (queue, next) = (range.queue.clone(), Some(range.from));
                        return RangeRows { queue, rows: vec![], next };
                    }
                    let answer = self.range(range, most.min(left), &mut bytes, *max_bytes);
                    left -= answer.rows.len();
                    answer
                };
                Loaded::Ranges(ranges.iter().map(rows).collect())
            }
            Load::Find(wanted) => {
                Loaded::Found(wanted.iter().map(|wanted| self.find(wanted)).collect::<Result<_, _>>()?)
            }
            Load::Scan(scan) => self.scan(scan, most),
            Load::Contents(wanted) => {
                let contents = self.contents(wanted);
                Loaded::Contents(contents.ok_or_else(|| format!("not all of it is there: {wanted:?}"))?)
            }
        })
    }

    /// Contents, if all of them exist.
    pub fn contents(&self, wanted: &[(u64, Place)]) -> Option<Vec<(u64, Arc<Content>)>> {
        let one = |(handle, place): &(u64, Place)| {
            let item = self.items.get(&(place.queue.clone(), place.key))?;
            Some((*handle, item.content.clone().expect("has content")))
        };
        wanted.iter().map(one).collect()
    }

    /// State that a start finds when the clock shows `wall`.
    pub fn opened(&self, wall: u64) -> Opened {
        Opened {
            marks: self.marks,
            queues: self.queues.values().cloned().collect(),
            held: self
                .held
                .iter()
                .map(|((application, customer), until)| HeldRow {
                    application: application.clone(),
                    customer: customer.clone(),
                    until: Some(*until),
                })
                .collect(),
            windows: self.windows.values().cloned().collect(),
            buckets: self.buckets.clone(),
            ahead: self.ahead(wall),
        }
    }

    fn ahead(&self, wall: u64) -> Vec<AheadRow> {
        let last = self.marks.wall;
        let is_ahead =
            |item: &&Stored| item.is_windowed() && item.due > wall && item.due <= last + HORIZON_MS;
        let items = self.items.values().filter(|_| last > wall).filter(is_ahead);
        let row = |item: &Stored| AheadRow {
            application: item.application.clone(),
            customer: item.customer.clone().expect("windowed"),
            end: item.key.due,
            due: item.due,
            window: item.key.window,
            closed_by: (item.due != item.accepted_due).then_some(item.closed_by),
        };
        items.map(row).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Panics if any row of any item is left.
    pub fn check_empty(&self) {
        assert!(self.items.is_empty(), "left: {:?}", self.items.keys().collect::<Vec<_>>());
        assert!(self.order.is_empty(), "left in order: {:?}", self.order);
        assert!(self.identities.is_empty(), "left of identities: {:?}", self.identities);
        assert!(self.customers.is_empty(), "left of customers: {:?}", self.customers);
        assert!(self.queues.is_empty(), "left of queues: {:?}", self.queues);
        assert!(self.windows.is_empty(), "left of windows: {:?}", self.windows);
        assert!(self.closings.is_empty(), "left of closings: {:?}", self.closings);
    }
}

/// A stored item of an application with this key, and with default values otherwise.
pub fn blank(application: &str, key: Key) -> Stored {
    Stored {
        key,
        due: key.due,
        accepted_due: key.due,
        application: application.into(),
        customer: None,
        given: None,
        fingerprint: 0,
        received: 0,
        own_time: false,
        expiry: None,
        weight: 0,
        closed_by: ClosedBy::Time,
        attempts: 0,
        last_error: None,
        outcome_unknown: false,
        retry: 0,
        dead: None,
        content: None,
    }
}
