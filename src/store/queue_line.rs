//! The line of an export for a queue that is paused, or leaves at a rate for a while, or of which a customer
//! is paused.

use crate::engine::event::{HeldRow, QueueRow, Slowed, FOR_EVER};
use crate::engine::types::Key;
use serde::{Deserialize, Serialize};

/// No moment before is one at which something ends: rows have other meanings for these numbers.
const FIRST_END: u64 = 2;

/// What is known of a queue beside its items.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct QueueLine {
    /// Name of the application.
    pub application: String,
    /// Held back until a command lets it go on.
    pub paused: bool,
    /// Or until then, UTC ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<u64>,
    /// This customer of it alone is paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub customer: Option<String>,
    /// How fast its items leave for a while, such as `10/s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<String>,
    /// Until then, UTC ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_until: Option<u64>,
}

impl QueueLine {
    /// `None`: nothing is known of it beside its items.
    pub fn of(row: &QueueRow) -> Option<Self> {
        let ends = |until: u64| Some(until).filter(|until| *until < FOR_EVER);
        (row.paused.is_some() || row.slowed.is_some()).then(|| QueueLine {
            application: row.queue.to_string(),
            paused: row.paused.is_some(),
            until: row.paused.and_then(ends),
            customer: None,
            rate: row.slowed.map(|slowed| slowed.rate.to_string()),
            rate_until: row.slowed.and_then(|slowed| ends(slowed.until)),
        })
    }

    /// Of a customer that is held back.
    pub fn of_customer(row: &HeldRow) -> Self {
        QueueLine {
            application: row.application.to_string(),
            paused: true,
            until: row.until.filter(|until| *until < FOR_EVER),
            customer: Some(row.customer.to_string()),
            rate: None,
            rate_until: None,
        }
    }

    /// The row of a customer that is held back, where it is one's.
    pub fn held(&self) -> Option<HeldRow> {
        let customer = self.customer.as_deref().filter(|_| self.paused)?;
        let until = Some(self.until.unwrap_or(FOR_EVER).max(FIRST_END));
        Some(HeldRow { application: self.application.as_str().into(), customer: customer.into(), until })
    }

    /// The row of a queue without items.
    ///
    /// # Errors
    /// Its rate is none.
    pub fn row(&self) -> Result<QueueRow, String> {
        let slowed = self.rate.as_deref().map(|text| {
            let rate = text.parse().map_err(|error| format!("rate: {error}"))?;
            Ok::<_, String>(Slowed { rate, until: self.rate_until.unwrap_or(FOR_EVER).max(FIRST_END) })
        });
        Ok(QueueRow {
            queue: self.application.as_str().into(),
            count: 0,
            low: Key::default(),
            paused: self.paused.then(|| self.until.unwrap_or(FOR_EVER).max(FIRST_END)),
            unindexed_until: 0,
            slowed: slowed.transpose()?,
        })
    }
}
