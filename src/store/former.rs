//! Windows of an export of version 1, which does not name them. In that version, items of one customer that
//! wait for the end of a window and are due at the same moment are members of one window.

use super::lines::{ExportLine, ItemLine};
use super::open_windows::OpenWindows;
use std::collections::HashMap;

/// Assigns to each window the number of its first member. Items arrive by application, and after the windows.
#[derive(Default)]
pub(crate) struct FormerWindows {
    application: String,
    /// Number of the first item, by customer and due, for this application.
    first: HashMap<(String, u64), u64>,
    windows: OpenWindows,
}

impl FormerWindows {
    /// The lines that replace this line: none for a window, which follows with its first member.
    pub(crate) fn name(&mut self, line: ExportLine) -> Vec<ExportLine> {
        match line {
            ExportLine::Window(row) => {
                self.windows.hold(row);
                Vec::new()
            }
            ExportLine::Item(item) => self.item(*item),
            ExportLine::Store(_) | ExportLine::Queue(_) | ExportLine::Ended(_) | ExportLine::End(_) => {
                vec![line]
            }
        }
    }

    fn item(&mut self, mut item: ItemLine) -> Vec<ExportLine> {
        let customer = item.customer.clone().filter(|_| item.is_windowed());
        let Some(customer) = customer else { return vec![ExportLine::Item(Box::new(item))] };
        if self.application != item.application {
            self.first.clear();
            self.application.clone_from(&item.application);
        }
        let number = *self.first.entry((customer, item.due)).or_insert(item.number);
        item.window = Some(number);
        let window = self.windows.begun_by(&item, number);
        window.into_iter().chain([ExportLine::Item(Box::new(item))]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::lines::WindowLine;
    use super::*;

    fn item(customer: &str, due: u64, number: u64) -> ItemLine {
        ItemLine {
            state: "waiting".into(),
            application: "shop".into(),
            customer: Some(customer.into()),
            number,
            due,
            ..ItemLine::default()
        }
    }

    #[test]
    fn members_have_the_number_of_the_first_and_their_window_comes_with_it() {
        let mut windows = FormerWindows::default();
        let row = WindowLine {
            application: "shop".into(),
            customer: "ann".into(),
            end: 20,
            window: None,
            count: 2,
            weight: 9,
            expiry: None,
        };
        assert_eq!(windows.name(ExportLine::Window(row.clone())), []);
        let mut name = |item: ItemLine| windows.name(ExportLine::Item(Box::new(item)));
        let named = |window, item: ItemLine| {
            vec![ExportLine::Item(Box::new(ItemLine { window: Some(window), ..item }))]
        };
        assert_eq!(name(item("ann", 10, 1)), named(1, item("ann", 10, 1)));
        let mut with_its_window = vec![ExportLine::Window(WindowLine { window: Some(3), ..row })];
        with_its_window.extend(named(3, item("ann", 20, 3)));
        assert_eq!(name(item("ann", 20, 3)), with_its_window);
        assert_eq!(name(item("bob", 20, 4)), named(4, item("bob", 20, 4)));
        assert_eq!(name(item("ann", 20, 7)), named(3, item("ann", 20, 7)));
        let own = ItemLine { own_time: true, ..item("ann", 20, 8) };
        assert_eq!(name(own.clone()), [ExportLine::Item(Box::new(own))]);
        // This window closed early, and its row was between the others.
        let closed = ItemLine { accepted_due: Some(20), ..item("cat", 5, 9) };
        assert_eq!(name(closed.clone()), named(9, closed.clone()));
        assert_eq!(name(item("ann", 20, 10)), named(3, item("ann", 20, 10)));
        let again = ItemLine { number: 11, ..closed };
        assert_eq!(name(again.clone()), named(9, again));
        assert_eq!(name(item("ann", 30, 12)), named(12, item("ann", 30, 12)));
    }
}
