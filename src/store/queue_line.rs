//! The line of an export for a queue that is paused or has a temporary rate, or for a paused customer.

use serde::{Deserialize, Serialize};
use tidegate_types::event::{HeldRow, QueueRow, Slowed, FOR_EVER};
use tidegate_types::Key;

/// The smallest valid end, because rows use smaller numbers with other meanings.
const FIRST_END: u64 = 2;

/// The state of a queue other than its items.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct QueueLine {
    /// Name of the application.
    pub application: String,
    /// The application or customer is held back until a command resumes it.
    pub paused: bool,
    /// End of the pause, UTC ms, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<u64>,
    /// Name of the paused customer, if only one customer of the application is paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub customer: Option<String>,
    /// Temporary rate at which its items leave, such as `10/s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<String>,
    /// End of the rate, UTC ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_until: Option<u64>,
}

impl QueueLine {
    /// The line for a queue; `None`: the queue has no state other than its items.
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

    /// The line for a customer that is held back.
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

    /// The row of a held customer, if the line is for a customer.
    pub fn held(&self) -> Option<HeldRow> {
        let customer = self.customer.as_deref().filter(|_| self.paused)?;
        let until = Some(self.until.unwrap_or(FOR_EVER).max(FIRST_END));
        Some(HeldRow { application: self.application.as_str().into(), customer: customer.into(), until })
    }

    /// The queue's row, without items.
    ///
    /// # Errors
    /// The rate is not valid.
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
