//! What a dead letter carries beyond its own body, properties and headers.
//!
//! None of it changes what the message means as a request, so it can be published to the ingest exchange
//! again as it is: `x-application` and `x-customer` say what was understood, the rest is not read there.

use super::batch::{put_number, put_text};
use super::fields;
use crate::engine::types::{Batch, BatchItem, Dead};
use lapin::types::FieldTable;

/// Adds the verdict to the headers; what an earlier death left there is overwritten.
pub(super) fn mark(headers: &mut FieldTable, batch: &Batch, item: &BatchItem, verdict: &Dead) {
    if !batch.application.is_empty() {
        put_text(headers, fields::APPLICATION, &batch.application);
    }
    if let Some(customer) = &batch.customer {
        put_text(headers, fields::CUSTOMER, customer);
    }
    put_text(headers, "x-tidegate-reason", verdict.reason.as_str());
    put_text(headers, "x-tidegate-error", &verdict.error);
    put_number(headers, "x-tidegate-attempts", item.attempts.into());
}
