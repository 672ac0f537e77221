//! Headers of a dead letter beyond its own body, properties and headers.
//!
//! None of them changes what the message means as a request, so it can be published to the ingest exchange
//! again as it is: `x-application` and `x-customer` contain what was understood, and the request reader
//! ignores the others.

use super::batch::{put_number, put_text};
use super::fields;
use crate::engine::types::{Batch, BatchItem, Dead};
use lapin::types::FieldTable;

/// Adds the verdict to the headers, and overwrites that of an earlier dead-lettering.
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
