//! How an item keeps its assigned id in a store that assigns other ids: as if its producer had given it.
//!
//! An assigned id consists of the store's identity and the item's arrival number. Where the items of one
//! store go to several, or those of several to one, an item cannot keep both.

use super::lines::ItemLine;
use tidegate_types::Identity;

/// Returns the identity of a producer's id within an application.
pub type IdentityOf = fn(&str, &str) -> Identity;

/// Returns stored properties with an id, unless they have one.
pub type WithId = fn(&[u8], &str) -> Option<Vec<u8>>;

/// What the form of messages says about ids.
#[derive(Clone, Copy, Debug)]
pub struct Naming {
    /// Makes an identity.
    pub identity_of: IdentityOf,
    /// Puts an id into properties.
    pub with_id: WithId,
}

impl Naming {
    /// Gives an item without a producer's id its assigned one, which the line contains.
    ///
    /// # Errors
    ///
    /// A text that names the missing or invalid key.
    pub(crate) fn keep_id(&self, line: &mut ItemLine) -> Result<(), String> {
        if line.identity.is_some() {
            return Ok(());
        }
        let id = line.id.as_deref().ok_or("`id` is missing: the store assigned it")?;
        if let Some(properties) = (self.with_id)(&line.stored_properties()?, id) {
            let identity = (self.identity_of)(&line.application, id);
            line.give(identity, &properties);
        }
        Ok(())
    }
}
