//! Handles of the rows in the engine's tables. They are separate from the tables, so that rows can name rows
//! of other tables without a dependency between the tables.

use super::slab::handle;

handle!(
    /// An item in memory.
    ItemId
);

handle!(
    /// A queue of an application, or the dead-letter queue.
    QueueId
);

handle!(
    /// A customer of one application.
    CustomerId
);
