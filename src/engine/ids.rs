//! Handles of the rows in the engine's tables, apart from the tables: a row of one names rows of others, and
//! no table need know another for that.

use super::slab::handle;

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
