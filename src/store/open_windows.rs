//! Rows of open windows, held back until their first members, where a window gets another number: it is that
//! of the first member. Pure.

use super::lines::{ExportLine, ItemLine, WindowLine};
use std::collections::HashMap;

/// Windows without a member so far.
#[derive(Default)]
pub(crate) struct OpenWindows {
    /// By application, customer and end.
    held: HashMap<(String, String, u64), WindowLine>,
}

impl OpenWindows {
    /// Holds a row back.
    pub(crate) fn hold(&mut self, row: WindowLine) {
        self.held.insert((row.application.clone(), row.customer.clone(), row.end), row);
    }

    /// The row of the window whose first member this item is, with another number. `None`: the window has
    /// another first member, or no row, or the item is no member.
    pub(crate) fn begun_by(&mut self, item: &ItemLine, number: u64) -> Option<ExportLine> {
        let customer = item.customer.clone().filter(|_| item.is_windowed())?;
        let row = self.held.remove(&(item.application.clone(), customer, item.due))?;
        Some(ExportLine::Window(WindowLine { window: Some(number), ..row }))
    }
}
