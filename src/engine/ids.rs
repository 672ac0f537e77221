//! Handles of the rows in the engine's tables, apart from the tables: a row of one names rows of others, and
//! no table need know another for that.

use super::slab::handle;
use std::num::NonZeroU32;

handle!(
    /// An item in memory.
    ItemId
);

handle!(
    /// A queue: that of an application, or that of the dead letters.
    QueueId
);

handle!(
    /// A customer of one application.
    CustomerId
);

handle!(
    /// A window that closed early, with members in memory under their old keys.
    ClosingId
);

/// Place of such a window in its table, plus one: what its members keep of it. It stays for
/// as long as any of its members names it, so that none needs to know its version.
pub(super) type ClosingPlace = NonZeroU32;
