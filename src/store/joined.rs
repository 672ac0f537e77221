//! The exports of several shards as one, which any store takes, or any number of shards.
//!
//! Arrival numbers of shards overlap. So all items get new ones, in the order of the lines, which is that of
//! each queue; and an item that came without an id keeps the assigned one as if its producer had given it.
//! A window gets the number of the first member in it.
//!
//! What a shard remembers of ended ids may have come there by an import, which brings them to every shard. So
//! the same id may be told of by several shards, and its latest end counts.

use super::export::{random_name, Export};
use super::lines::{EndLine, ExportLine, ItemLine, StoreLine, LINES_FORMAT, LINES_VERSION};
use super::naming::Naming;
use super::open_windows::OpenWindows;
use super::{new_identity, ReadError};
use std::collections::VecDeque;

/// Exports of shards, one after the other.
pub struct Joined {
    /// Those not yet read to their end.
    exports: VecDeque<Export>,
    /// How several are made one; `None`: there is one, which stays as it is.
    whole: Option<JoinedState>,
    items: u64,
    /// The numbers of a sole export at its end.
    told: EndLine,
}

/// The state of making several exports one.
struct JoinedState {
    /// The first line, until it is written.
    first: Option<StoreLine>,
    numbers: NewNumbers,
    told: EndLine,
}

impl Joined {
    /// Joins exports of all shards, in the order of the shards' numbers. A sole one stays as it is. Each
    /// keeps its state on the disk until it has been read.
    ///
    /// # Errors
    ///
    /// The system provides no random number for the export's name.
    pub fn of(exports: Vec<Export>, naming: Naming) -> Result<Self, ReadError> {
        let items = exports.iter().map(Export::items).sum();
        let whole = match exports.len() {
            1 => None,
            count => Some(JoinedState {
                first: Some(StoreLine {
                    format: LINES_FORMAT.to_owned(),
                    version: LINES_VERSION,
                    export: random_name()?,
                    store: format!("{:016x}", new_identity().map_err(|e| ReadError::Engine(e.to_string()))?),
                    next_number: NewNumbers::behind(items),
                    clock: exports.iter().map(Export::clock).max().unwrap_or_default(),
                    items,
                    shards: Some(u16::try_from(count).unwrap_or(u16::MAX)),
                }),
                numbers: NewNumbers::new(naming),
                told: EndLine::default(),
            }),
        };
        Ok(Joined { exports: exports.into(), whole, items, told: EndLine::default() })
    }

    /// Number of items, by the counts of all stores.
    pub fn items(&self) -> u64 {
        self.items
    }

    /// Numbers of lines and items written so far.
    pub fn told(&self) -> EndLine {
        match (&self.whole, self.exports.front()) {
            (Some(whole), _) => whole.told,
            (None, Some(sole)) => sole.told(),
            (None, None) => self.told,
        }
    }

    /// Appends the next lines, as [`Export::next`] does. False: these include the last line.
    ///
    /// # Errors
    ///
    /// As [`Export::next`].
    pub fn next(&mut self, out: &mut Vec<u8>) -> Result<bool, ReadError> {
        let Some(whole) = &mut self.whole else {
            let Some(sole) = self.exports.front_mut() else { return Ok(false) };
            let more = sole.next(out)?;
            if !more {
                self.told = sole.told();
                self.exports.clear();
            }
            return Ok(more);
        };
        if let Some(first) = whole.first.take() {
            ExportLine::Store(first).put(&mut whole.told, out);
        }
        let Some(export) = self.exports.front_mut() else {
            let told = whole.told;
            ExportLine::End(told).put(&mut whole.told, out);
            return Ok(false);
        };
        match export.lines()? {
            Some(lines) => {
                for line in lines {
                    for line in whole.numbers.renew(line).map_err(ReadError::Engine)? {
                        line.put(&mut whole.told, out);
                    }
                }
            }
            None => {
                self.exports.pop_front();
                whole.numbers.begin_next_store();
            }
        }
        Ok(true)
    }
}

/// Gives new arrival numbers to the items of several stores, whose lines come store by store.
struct NewNumbers {
    naming: Naming,
    /// The last number given.
    last: u64,
    windows: OpenWindows,
    /// The window of the last item.
    window: Option<LastWindow>,
}

/// A window, the members of which follow each other.
struct LastWindow {
    /// Queue of the items, which is that of an application or of dead letters.
    queue: String,
    due: u64,
    /// Its number before, and now.
    former: u64,
    number: u64,
}

impl NewNumbers {
    fn new(naming: Naming) -> Self {
        NewNumbers { naming, last: 0, windows: OpenWindows::default(), window: None }
    }

    /// A number above all those that this many items get.
    fn behind(items: u64) -> u64 {
        items.saturating_mul(2).saturating_add(1)
    }

    fn begin_next_store(&mut self) {
        (self.windows, self.window) = (OpenWindows::default(), None);
    }

    /// The lines that replace this one: none for a window, which comes with its first member.
    fn renew(&mut self, line: ExportLine) -> Result<Vec<ExportLine>, String> {
        match line {
            ExportLine::Window(row) => {
                self.windows.hold(row);
                Ok(Vec::new())
            }
            ExportLine::Item(item) => self.item(*item),
            ExportLine::Store(_) | ExportLine::Queue(_) | ExportLine::Ended(_) | ExportLine::End(_) => {
                Ok(vec![line])
            }
        }
    }

    /// Gives the next number. If the first member of the item's window has left, a number before the item
    /// remains its own.
    fn item(&mut self, mut item: ItemLine) -> Result<Vec<ExportLine>, String> {
        self.naming.keep_id(&mut item)?;
        let former = item.window.unwrap_or(item.number);
        let is_first = former == item.number;
        let adjacent = self
            .window
            .take()
            .filter(|last| (last.queue.as_str(), last.due, last.former) == (item.queue(), item.due, former));
        self.last += if is_first || adjacent.is_some() { 1 } else { 2 };
        let last = adjacent.unwrap_or_else(|| LastWindow {
            queue: item.queue().to_owned(),
            due: item.due,
            former,
            number: if is_first { self.last } else { self.last - 1 },
        });
        item.number = self.last;
        item.window = Some(last.number).filter(|window| *window != item.number);
        let row = self.windows.begun_by(&item, last.number);
        self.window = Some(last);
        Ok(row.into_iter().chain([ExportLine::Item(Box::new(item))]).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::super::lines::WindowLine;
    use super::*;
    use tidegate_types::Identity;

    /// The item's number and due, and its window; absent: its own number.
    type Seen = (u64, u64, Option<u64>);

    fn line(application: &str, (number, due, window): Seen) -> ItemLine {
        ItemLine {
            state: "waiting".into(),
            application: application.into(),
            customer: Some("ann".into()),
            id: Some(format!("id-{number}")),
            number,
            due,
            window,
            ..ItemLine::default()
        }
    }

    fn numbers() -> NewNumbers {
        NewNumbers::new(Naming {
            identity_of: |_, id| Identity::given([id.len() as u8; 16]),
            with_id: |properties, id| Some([properties, id.as_bytes()].concat()),
        })
    }

    fn renewed(numbers: &mut NewNumbers, item: ItemLine) -> Seen {
        let lines = numbers.renew(ExportLine::Item(Box::new(item))).unwrap();
        let Some(ExportLine::Item(item)) = lines.last() else { panic!("{lines:?}") };
        (item.number, item.due, item.window)
    }

    #[test]
    fn items_get_the_next_numbers_and_stay_in_their_windows() {
        let mut numbers = numbers();
        let mut renew = |item: Seen| renewed(&mut numbers, line("shop", item));
        assert_eq!(renew((70, 5, None)), (1, 5, None));
        assert_eq!(renew((80, 9, None)), (2, 9, None));
        assert_eq!(renew((85, 9, Some(80))), (3, 9, Some(2)));
        // The first member of this window has left.
        assert_eq!(renew((87, 9, Some(81))), (5, 9, Some(4)));
        assert_eq!(renew((88, 9, Some(81))), (6, 9, Some(4)));
        assert_eq!(renew((89, 9, Some(82))), (8, 9, Some(7)));
        // The same number in another queue, and due at another moment.
        assert_eq!(renewed(&mut numbers, line("mail", (90, 9, Some(82)))), (10, 9, Some(9)));
        assert_eq!(renewed(&mut numbers, line("mail", (91, 10, Some(82)))), (12, 10, Some(11)));
        numbers.begin_next_store();
        assert_eq!(renewed(&mut numbers, line("mail", (92, 10, Some(82)))), (14, 10, Some(13)));
        let dead = ItemLine { state: "dead".into(), ..line("mail", (93, 10, Some(82))) };
        assert_eq!(renewed(&mut numbers, dead), (16, 10, Some(15)));
        assert!(16 < NewNumbers::behind(10), "the largest that ten items can get is below");
    }

    #[test]
    fn a_window_comes_with_its_first_member_and_has_its_number() {
        let mut numbers = numbers();
        let row = WindowLine {
            application: "shop".into(),
            customer: "ann".into(),
            end: 9,
            window: Some(80),
            count: 2,
            weight: 3,
            expiry: None,
        };
        assert_eq!(numbers.renew(ExportLine::Window(row.clone())).unwrap(), []);
        let mut own = line("shop", (84, 9, Some(80)));
        own.own_time = true;
        assert_eq!(numbers.renew(ExportLine::Item(Box::new(own))).unwrap().len(), 1, "it is no member");
        let lines = numbers.renew(ExportLine::Item(Box::new(line("shop", (85, 9, Some(80)))))).unwrap();
        assert_eq!(lines[0], ExportLine::Window(WindowLine { window: Some(1), ..row }));
        let ExportLine::Item(item) = &lines[1] else { panic!("{lines:?}") };
        assert_eq!((item.number, item.window), (3, Some(1)));
    }

    #[test]
    fn an_assigned_id_is_kept_and_a_given_one_stays() {
        let mut numbers = numbers();
        let mut item = |item: ItemLine| {
            let lines = numbers.renew(ExportLine::Item(Box::new(item))).unwrap();
            let [ExportLine::Item(item)] = &lines[..] else { panic!("{lines:?}") };
            (**item).clone()
        };
        let assigned = item(line("shop", (7, 5, None)));
        assert_eq!(assigned.stored_properties().unwrap(), b"id-7");
        assert_eq!(
            assigned.identity.as_deref(),
            Some("8404040404040404".to_owned() + &"04".repeat(8)).as_deref()
        );
        let given = ItemLine { identity: Some("f".repeat(32)), ..line("shop", (8, 5, None)) };
        let kept = item(given.clone());
        assert_eq!((kept.identity, kept.properties), (given.identity, given.properties));
        let nameless = ItemLine { id: None, ..line("shop", (9, 5, None)) };
        let error = numbers.renew(ExportLine::Item(Box::new(nameless))).unwrap_err();
        assert_eq!(error, "`id` is missing: the store assigned it");
    }
}
