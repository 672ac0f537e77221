//! The memory store: keeps nothing. The broker's unacked message is the only copy, and the engine, told so by its
//! settings, writes nothing here.

use super::{new_identity, Commit, OpenError, OpenStore, Store, StoreError, Usage};
use crate::engine::event::{Load, Loaded, Opened};

/// Opens an empty store with a fresh identity.
///
/// # Errors
///
/// The system has no random numbers.
pub fn open() -> Result<OpenStore, OpenError> {
    Ok(OpenStore { store: Box::new(MemoryStore), opened: Opened::default(), identity: new_identity()? })
}

/// See the module.
#[derive(Debug)]
pub struct MemoryStore;

impl Store for MemoryStore {
    fn commit(&mut self, groups: &[Commit]) -> Result<(), StoreError> {
        debug_assert!(
            groups.iter().all(|g| g.ops.is_empty()),
            "the memory store was given something to keep"
        );
        Ok(())
    }

    fn load(&mut self, load: &Load) -> Result<Loaded, StoreError> {
        Ok(match load {
            Load::Time { .. } => Loaded::Time { rows: Vec::new(), next: None },
            Load::Lane { lane, .. } => Loaded::Lane { lane: lane.clone(), rows: Vec::new(), next: None },
            Load::Group { application, customer, .. } => Loaded::Group {
                application: application.clone(),
                customer: customer.clone(),
                rows: Vec::new(),
                next: None,
            },
            Load::Contents(wanted) => match wanted.first() {
                None => Loaded::Contents(Vec::new()),
                Some((_, place, key)) => {
                    return Err(StoreError::Missing { place: place.clone(), key: *key });
                }
            },
        })
    }

    fn usage(&self) -> Result<Usage, StoreError> {
        Ok(Usage { used: 0, free: u64::MAX, total: u64::MAX })
    }

    fn close(self: Box<Self>) -> Result<(), StoreError> {
        Ok(())
    }
}
