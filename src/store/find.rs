//! Finds items, or how they ended, by identity.

use super::closings;
use super::ended::{self, Epochs};
use super::errors::broken_contract;
use super::keyspace::KeyspaceId;
use super::reading::{damaged, head};
use super::row_reads::{RowBytes, Rows, NO_BODIES};
use super::{rows, ReadError};
use tidegate_types::event::{Found, Stored, Wanted};
use tidegate_types::{Ended, Identity, Key};

/// Finds these items, in their order. For each group of [`Rows::TOGETHER`] items it first requests all rows
/// by identity and then all items, so that a remote engine gets two requests.
///
/// # Errors
///
/// Errors of the storage engine; a row that does not read as it was written; an identity row of a producer's
/// id that leads to no item or to another item. No such row is skipped: an item that exists and is not found
/// would be taken for a new one. Only after an accepted loss ([`Rows::has_losses`]) does a row that leads to
/// no item count as none: its id may come again. A request alone never causes an error: an id that this store
/// assigned to an item of another application is not found.
pub(crate) fn find<R: Rows>(rows: &R, epochs: &Epochs, wanted: &[Wanted]) -> Result<Vec<Found>, ReadError> {
    let mut found = Vec::with_capacity(wanted.len());
    for wanted in wanted.chunks(R::TOGETHER) {
        found.extend(find_together(rows, epochs, wanted)?);
    }
    Ok(found)
}

fn find_together<R: Rows>(rows: &R, epochs: &Epochs, wanted: &[Wanted]) -> Result<Vec<Found>, ReadError> {
    let mut keys = Vec::with_capacity(wanted.iter().map(|wanted| 1 + wanted.buckets.len()).sum());
    for wanted in wanted {
        keys.push((KeyspaceId::Identities, wanted.identity.to_bytes().into()));
        for row in bucket_rows(wanted) {
            keys.push(row?);
        }
    }
    let mut answers = rows.get_many(&keys, NO_BODIES);
    let mut found = Vec::with_capacity(wanted.len());
    let mut leads = Vec::with_capacity(wanted.len());
    for wanted in wanted {
        let lead = answers.next().map_or(Ok(None), |row| row())?;
        leads.push(lead.map(|bytes| read_lead(wanted, &bytes)).transpose()?);
        let ended = first_that_knows(wanted, epochs, answers.by_ref().take(wanted.buckets.len()))?;
        found.push(Found { item: None, ended });
    }
    for (found, item) in found.iter_mut().zip(waiting(rows, wanted, &leads)?) {
        found.item = item;
    }
    Ok(found)
}

/// The waiting items to which the identity rows lead.
fn waiting<R: Rows>(
    rows: &R,
    wanted: &[Wanted],
    leads: &[Option<Key>],
) -> Result<Vec<Option<Stored>>, ReadError> {
    // Without an identity row the key comes from the request, and may belong to another item.
    let asked: Vec<_> = wanted
        .iter()
        .zip(leads)
        .map(|(wanted, lead)| (wanted, lead.or(wanted.key), lead.is_some()))
        .collect();
    let mut keys = Vec::new();
    for (wanted, key, _) in &asked {
        if let Some(key) = key {
            keys.push((KeyspaceId::Items, rows::item_key(&wanted.application, *key)?.into()));
        }
    }
    let mut items = Vec::with_capacity(wanted.len());
    let mut lying = keys.iter().zip(rows.get_many(&keys, NO_BODIES));
    for (wanted, key, is_led) in asked {
        let Some(((_, key), row)) = key.and_then(|_| lying.next()) else {
            items.push(None);
            continue;
        };
        // Without contents: all of them together may be large.
        let stored = |bytes: RowBytes| head(key, &bytes).map(|view| view.stored(&wanted.application));
        let item = row()?.map(stored).transpose()?;
        items.push(if is_led {
            led_to(rows, wanted, item)?
        } else {
            item.filter(|item| is_it(wanted, item))
        });
    }
    closings::as_due(rows, items.iter_mut().flatten())?;
    Ok(items)
}

fn is_it(wanted: &Wanted, item: &Stored) -> bool {
    item.identity() == wanted.identity
}

/// An identity row must lead to the item that it names.
fn led_to<R: Rows>(rows: &R, wanted: &Wanted, item: Option<Stored>) -> Result<Option<Stored>, ReadError> {
    match item {
        Some(item) if is_it(wanted, &item) => Ok(Some(item)),
        Some(_) => Err(broken_lead(wanted, "this row leads to another item")),
        // An assigned id contains no application, and a request may name any. A producer's id implies the
        // application, which is part of its hash.
        None if !wanted.identity.is_given() || rows.has_losses() => Ok(None),
        None => Err(broken_lead(wanted, "no item of the application's queue belongs to this row")),
    }
}

fn read_lead(wanted: &Wanted, bytes: &[u8]) -> Result<Key, ReadError> {
    rows::read_identity(wanted.identity, bytes).map_err(|error| broken_lead(wanted, &error))
}

fn broken_lead(wanted: &Wanted, error: &str) -> ReadError {
    damaged(KeyspaceId::Identities, &wanted.identity.to_bytes(), &error)
}

/// How the item ended, by the first of the buckets that contains it. `rows`: those of the requested buckets,
/// in order. The function takes all of them, and evaluates only as many as necessary.
fn first_that_knows(
    wanted: &Wanted,
    epochs: &Epochs,
    rows: impl Iterator<Item = impl FnOnce() -> Result<Option<RowBytes>, ReadError>>,
) -> Result<Option<Ended>, ReadError> {
    let mut ended = None;
    for (bucket, row) in wanted.buckets.iter().zip(rows) {
        if ended.is_none() {
            ended = read_ended(wanted.identity, epochs, *bucket, row()?)?;
        }
    }
    Ok(ended)
}

/// The keys under which the requested buckets would contain the item.
fn bucket_rows(wanted: &Wanted) -> impl Iterator<Item = Result<(KeyspaceId, RowBytes), ReadError>> + '_ {
    wanted.buckets.iter().map(|bucket| {
        let id = KeyspaceId::ended(*bucket)
            .ok_or_else(|| broken_contract(format!("there is no bucket {bucket} of ended items")))?;
        Ok((id, wanted.identity.to_bytes().into()))
    })
}

/// `None` if the bucket does not contain the item; rows of an earlier epoch do not count.
///
/// # Errors
///
/// The row does not read as it was written.
pub(crate) fn read_ended(
    identity: Identity,
    epochs: &Epochs,
    bucket: u8,
    bytes: Option<RowBytes>,
) -> Result<Option<Ended>, ReadError> {
    let Some(bytes) = bytes else { return Ok(None) };
    let broken = |e| damaged(KeyspaceId::Ended(bucket), &identity.to_bytes(), &e);
    let (epoch, ended) = ended::decode(identity, &bytes).map_err(broken)?;
    Ok((epochs.get(usize::from(bucket)) == Some(&epoch)).then_some(ended))
}
