//! Where an item is, or how it ended, by its identity.

use super::spaces::{damaged, Lives, Spaces};
use super::{ended, rows, space::Space, StoreError};
use crate::engine::event::{Found, Place, Wanted};

/// What the store knows of one item.
///
/// # Errors
///
/// The storage engine's; a row that does not read as it was written; an identity row that leads nowhere, or to
/// another item. None of them is skipped: an item that is there and not found would be taken for a new one.
pub fn find(spaces: &Spaces, lives: &Lives, wanted: &Wanted) -> Result<Found, StoreError> {
    let mut found = Found::default();
    let row = wanted.identity.to_bytes();
    if let Some(bytes) = spaces.get(Space::Identities, &row)? {
        let broken = |error: &dyn std::fmt::Display| damaged(Space::Identities, &row, error);
        let key = rows::read_identity(wanted.identity, &bytes).map_err(|e| broken(&e))?;
        for place in [Place::Time, Place::Lane(wanted.application.clone())] {
            if let Some(item) = spaces.view(&place, key, |view| view.stored(key))? {
                found.item = Some((place, item));
                break;
            }
        }
        match &found.item {
            Some((_, item)) if item.identity() == wanted.identity => {}
            Some(_) => return Err(broken(&"the item that this row leads to is another one")),
            None => return Err(broken(&"no item in the time index or its lane belongs to this row")),
        }
    }
    for bucket in &wanted.buckets {
        let space = Space::ended(*bucket)?;
        let Some(bytes) = spaces.get(space, &row)? else { continue };
        let (life, ended) = ended::decode(wanted.identity, &bytes).map_err(|e| damaged(space, &row, &e))?;
        // What is left of an earlier life of the bucket says nothing any more.
        if lives.get(usize::from(*bucket)) == Some(&life) {
            found.ended = Some(ended);
            break;
        }
    }
    Ok(found)
}
