//! Headers of a dead letter beyond its own body, properties and headers.
//!
//! None of them changes what the message means as a request, so it can be published to the ingest exchange
//! again as it is: `x-application` and `x-customer` contain what was understood, and the request reader
//! ignores the others.

use super::fields;
use super::properties::{set_number, set_text};
use lapin::types::FieldTable;
use tidegate_types::{Batch, BatchItem, Dead};

/// Adds the verdict to the headers, and overwrites that of an earlier dead-lettering.
pub(crate) fn mark(headers: &mut FieldTable, batch: &Batch, item: &BatchItem, verdict: &Dead) {
    if !batch.application.is_empty() {
        set_text(headers, fields::APPLICATION, &batch.application);
    }
    if let Some(customer) = &batch.customer {
        set_text(headers, fields::CUSTOMER, customer);
    }
    set_text(headers, "x-tidegate-reason", verdict.reason.as_str());
    set_text(headers, "x-tidegate-error", &verdict.error);
    set_number(headers, "x-tidegate-attempts", item.attempts.into());
}
