//! The prepared statements.
//!
//! A look-up by key must use the index whatever statistics the database has of its tables, which are empty at
//! the start and large an hour later: a LATERAL with an OFFSET is one index look-up for each key. Statements
//! that delete by key first find the rows in the same way.

use tokio_postgres::{Client, Error, Statement};

/// Age at which a daemon counts as gone, seconds; each reports every second.
const SPARE_WITHIN_S: u32 = 5;
/// What is left of the lease in `expires`, ms; 0: the shard is free.
const LEFT_MS: &str =
    "(extract(epoch FROM greatest(expires, clock_timestamp()) - clock_timestamp()) * 1000)::int8";

/// The statements of one connection, for one shard in the tables of one schema.
pub(super) struct Statements {
    /// Reads items by key, with or without their rests.
    pub(super) items: Statement,
    /// Reads rows of other keyspaces by key.
    pub(super) others: Statement,
    /// Reads ended items by bucket, epoch and identity.
    pub(super) ended: Statement,
    /// Reads a page of the ended items of a bucket's epoch.
    pub(super) ended_page: Statement,
    /// Reads a page of items: at most a number of rows, fewer if their heads are large; with rests up to a
    /// bound.
    pub(super) item_page: Statement,
    /// Reads a page of another keyspace.
    pub(super) page: Statement,
    /// The first statement of each transaction; see [`super::claim`].
    pub(super) fence: Statement,
    /// Claims the store if it is free, its lease has expired, or it was this daemon's.
    pub(super) claim: Statement,
    /// Reads the owner, and the remaining time of the lease.
    pub(super) owner: Statement,
    /// Records another name of the owner, as long as its claim is the present one.
    pub(super) rename: Statement,
    /// Releases the store.
    pub(super) release: Statement,
    /// Ends the connection of the last owner, if its lease has expired or it was this daemon.
    pub(super) unblock: Statement,
    /// Records that this daemon stands by.
    pub(super) note_spare: Statement,
    /// Reads another daemon that stood by lately.
    pub(super) spare: Statement,
    /// Removes this daemon from those that stand by, and those that have not reported for a day.
    pub(super) forget_spares: Statement,
    /// Removes items by key.
    pub(super) delete_items: Statement,
    /// Writes items, new or known.
    pub(super) write_items: Statement,
    /// Removes rows of other keyspaces by key.
    pub(super) delete_others: Statement,
    /// Writes rows of other keyspaces, new or known.
    pub(super) write_others: Statement,
    /// Writes how items ended.
    pub(super) write_ended: Statement,
    /// Removes rows of earlier epochs of a bucket.
    pub(super) sweep: Statement,
}

impl Statements {
    /// Prepares all statements.
    ///
    /// # Errors
    ///
    /// Those of the database: a table is missing or different.
    pub(super) async fn prepare(client: &Client, schema: &str, shard: u16) -> Result<Self, Error> {
        let texts = Texts::of(schema, shard);
        let statement = |text: String| async move { client.prepare(&text).await };
        let (items, others, ended, ended_page, item_page, page) = tokio::try_join!(
            statement(texts.items()),
            statement(texts.others()),
            statement(texts.ended()),
            statement(texts.ended_page()),
            statement(texts.item_page()),
            statement(texts.page()),
        )?;
        let (fence, claim, owner, rename, release) = tokio::try_join!(
            statement(texts.fence()),
            statement(texts.claim()),
            statement(texts.owner()),
            statement(texts.rename()),
            statement(texts.release()),
        )?;
        let (unblock, note_spare, spare, forget_spares) = tokio::try_join!(
            statement(texts.unblock()),
            statement(texts.note_spare()),
            statement(texts.spare()),
            statement(texts.forget_spares()),
        )?;
        let (delete_items, write_items, delete_others, write_others, write_ended, sweep) = tokio::try_join!(
            statement(texts.delete_items()),
            statement(texts.write_items()),
            statement(texts.delete_others()),
            statement(texts.write_others()),
            statement(texts.write_ended()),
            statement(texts.sweep()),
        )?;
        Ok(Statements {
            items,
            others,
            ended,
            ended_page,
            item_page,
            page,
            fence,
            claim,
            owner,
            rename,
            release,
            unblock,
            note_spare,
            spare,
            forget_spares,
            delete_items,
            write_items,
            delete_others,
            write_others,
            write_ended,
            sweep,
        })
    }
}

/// Prepares the statement of one round of a membership. Its parameters: the name of this node, whether it is
/// reported as living, and a former name of it, or NULL. A row for each shard, in order: its number, its
/// owner, what is left of its lease (ms), the clock (UTC ms), the key of all shards, and the other living
/// nodes.
///
/// # Errors
///
/// Those of the database: a table or a column is missing.
pub(super) async fn prepare_round(client: &Client, schema: &str) -> Result<Statement, Error> {
    client.prepare(&Texts::of(schema, 0).round()).await
}

/// Text of a query for all shards in order: number, owner, and what is left of the lease, ms.
pub(super) fn owners(schema: &str) -> String {
    let Texts { shards, .. } = Texts::of(schema, 0);
    format!("SELECT shard, owner, {LEFT_MS} FROM {shards} ORDER BY shard")
}

/// The texts of the statements, over these tables.
struct Texts {
    shard: u16,
    items: String,
    rows: String,
    ended: String,
    shards: String,
    nodes: String,
    cluster: String,
}

impl Texts {
    fn of(schema: &str, shard: u16) -> Self {
        let table = |name: &str| format!("\"{schema}\".{name}");
        Texts {
            shard,
            items: table("items"),
            rows: table("rows"),
            ended: table("ended"),
            shards: table("shards"),
            nodes: table("nodes"),
            cluster: table("cluster"),
        }
    }

    fn items(&self) -> String {
        let Texts { shard, items, .. } = self;
        format!(
            "SELECT w.n, i.head, CASE WHEN $2 THEN i.rest END \
             FROM unnest($1::bytea[]) WITH ORDINALITY AS w(key, n), \
             LATERAL (SELECT * FROM {items} i WHERE i.shard = {shard} AND i.key = w.key OFFSET 0) i"
        )
    }

    fn others(&self) -> String {
        let Texts { shard, rows, .. } = self;
        format!(
            "SELECT w.n, r.value FROM unnest($1::int2[], $2::bytea[]) WITH ORDINALITY AS w(space, key, n), \
             LATERAL (SELECT * FROM {rows} r \
             WHERE r.shard = {shard} AND r.space = w.space AND r.key = w.key OFFSET 0) r"
        )
    }

    fn ended(&self) -> String {
        let Texts { shard, ended, .. } = self;
        format!(
            "SELECT w.n, e.value FROM unnest($1::int2[], $2::int8[], $3::bytea[]) \
             WITH ORDINALITY AS w(bucket, epoch, identity, n), \
             LATERAL (SELECT * FROM {ended} e WHERE e.shard = {shard} AND e.bucket = w.bucket \
             AND e.epoch = w.epoch AND e.identity = w.identity OFFSET 0) e"
        )
    }

    fn ended_page(&self) -> String {
        let Texts { shard, ended, .. } = self;
        format!(
            "SELECT identity, value FROM {ended} WHERE shard = {shard} AND bucket = $1 AND epoch = $2 \
             AND identity > $3 ORDER BY identity LIMIT $4"
        )
    }

    fn item_page(&self) -> String {
        let Texts { shard, items, .. } = self;
        format!(
            "SELECT key, head, CASE WHEN rests <= $5 THEN rest END FROM (SELECT key, head, rest, \
             sum(octet_length(head)) OVER w - octet_length(head) AS heads, \
             sum(octet_length(rest)) OVER w AS rests FROM (SELECT key, head, rest FROM {items} \
             WHERE shard = {shard} AND key >= $1 AND key < $2 ORDER BY key LIMIT $3) r \
             WINDOW w AS (ORDER BY key ROWS UNBOUNDED PRECEDING)) s WHERE heads < $4 ORDER BY key"
        )
    }

    fn page(&self) -> String {
        let Texts { shard, rows, .. } = self;
        format!(
            "SELECT key, value FROM {rows} \
             WHERE shard = {shard} AND space = $1 AND key >= $2 AND key < $3 ORDER BY key LIMIT $4"
        )
    }

    /// A missing row is an error as well, because otherwise the transaction would continue.
    fn fence(&self) -> String {
        let Texts { shard, shards, .. } = self;
        format!(
            "WITH fenced AS (UPDATE {shards} SET writer = $1, commit_no = $2, next_seq = $3, wall = $4, \
             expires = clock_timestamp() + $5 * interval '1 millisecond' WHERE shard = {shard} RETURNING 1) \
             SELECT 1 / count(*) FROM fenced"
        )
    }

    /// A daemon that may not claim the store locks no row.
    fn claim(&self) -> String {
        let Texts { shard, shards, .. } = self;
        format!(
            "WITH former AS (SELECT shard, owner FROM {shards} \
             WHERE shard = {shard} AND (expires < clock_timestamp() OR owner = $2) FOR UPDATE) \
             UPDATE {shards} s SET claim = $1, writer = $1, epoch = epoch + 1, owner = $2, \
             backend = pg_backend_pid(), claimed = clock_timestamp(), \
             expires = clock_timestamp() + $3 * interval '1 millisecond' \
             FROM former WHERE s.shard = former.shard \
             RETURNING s.epoch, s.commit_no, s.next_seq, s.wall, s.identity, former.owner"
        )
    }

    /// A process id that another connection has by now does not count. The session's own time limits (half a
    /// lease in a transaction, a lease in a statement) would end the connection too, but later.
    fn unblock(&self) -> String {
        let Texts { shard, shards, .. } = self;
        format!(
            "SELECT pg_terminate_backend(a.pid) FROM {shards} s JOIN pg_stat_activity a ON a.pid = s.backend \
             WHERE s.shard = {shard} AND (s.expires < clock_timestamp() OR s.owner = $1) \
             AND a.datname = current_database() AND a.usename = current_user \
             AND a.backend_start <= s.claimed AND a.pid <> pg_backend_pid() \
             AND EXISTS (SELECT FROM pg_locks l WHERE l.pid = a.pid AND l.granted \
             AND l.relation = '{shards}'::regclass)"
        )
    }

    fn note_spare(&self) -> String {
        let Texts { nodes, .. } = self;
        format!(
            "INSERT INTO {nodes} (name, seen) VALUES ($1, clock_timestamp()) \
             ON CONFLICT (name) DO UPDATE SET seen = excluded.seen"
        )
    }

    fn spare(&self) -> String {
        let Texts { nodes, .. } = self;
        format!(
            "SELECT name FROM {nodes} WHERE name <> $1 \
             AND seen > clock_timestamp() - interval '{SPARE_WITHIN_S} s' ORDER BY seen DESC LIMIT 1"
        )
    }

    fn forget_spares(&self) -> String {
        let Texts { nodes, .. } = self;
        format!("DELETE FROM {nodes} WHERE name = $1 OR seen < clock_timestamp() - interval '1 day'")
    }

    /// See [`prepare_round`]. What is written here is not yet seen here, and no row is changed twice.
    fn round(&self) -> String {
        let Texts { shards, nodes, cluster, .. } = self;
        format!(
            "WITH forgotten AS (DELETE FROM {nodes} WHERE CASE WHEN name = $1 THEN NOT $2 \
             ELSE name = $3 OR seen < clock_timestamp() - interval '1 day' END), \
             reported AS (INSERT INTO {nodes} (name, seen) SELECT $1, clock_timestamp() WHERE $2 \
             ON CONFLICT (name) DO UPDATE SET seen = excluded.seen) \
             SELECT s.shard, s.owner, {LEFT_MS}, \
             floor(extract(epoch FROM clock_timestamp()) * 1000)::int8, c.key, \
             ARRAY(SELECT name FROM {nodes} WHERE name <> $1 AND name IS DISTINCT FROM $3 \
             AND seen > clock_timestamp() - interval '{SPARE_WITHIN_S} s') \
             FROM {shards} s, {cluster} c ORDER BY s.shard"
        )
    }

    fn owner(&self) -> String {
        let Texts { shard, shards, .. } = self;
        format!("SELECT coalesce(owner, ''), {LEFT_MS} FROM {shards} WHERE shard = {shard}")
    }

    fn rename(&self) -> String {
        let Texts { shard, shards, .. } = self;
        format!("UPDATE {shards} SET owner = $2 WHERE shard = {shard} AND claim = $1")
    }

    fn release(&self) -> String {
        let Texts { shard, shards, .. } = self;
        format!(
            "UPDATE {shards} SET claim = NULL, writer = NULL, owner = NULL, expires = '-infinity' \
             WHERE shard = {shard} AND claim = $1"
        )
    }

    fn delete_items(&self) -> String {
        let Texts { shard, items, .. } = self;
        format!(
            "DELETE FROM {items} WHERE ctid = ANY (ARRAY(SELECT t.ctid FROM unnest($1::bytea[]) AS k(key), \
             LATERAL (SELECT i.ctid FROM {items} i WHERE i.shard = {shard} AND i.key = k.key OFFSET 0) t))"
        )
    }

    fn write_items(&self) -> String {
        let Texts { shard, items, .. } = self;
        format!(
            "INSERT INTO {items} (shard, key, head, rest) SELECT {shard}, u.key, u.head, u.rest \
             FROM unnest($1::bytea[], $2::bytea[], $3::bytea[]) AS u(key, head, rest) \
             ON CONFLICT (shard, key) DO UPDATE SET head = excluded.head, rest = excluded.rest"
        )
    }

    fn delete_others(&self) -> String {
        let Texts { shard, rows, .. } = self;
        format!(
            "DELETE FROM {rows} WHERE ctid = ANY (ARRAY(SELECT t.ctid \
             FROM unnest($1::int2[], $2::bytea[]) AS k(space, key), LATERAL (SELECT r.ctid FROM {rows} r \
             WHERE r.shard = {shard} AND r.space = k.space AND r.key = k.key OFFSET 0) t))"
        )
    }

    fn write_others(&self) -> String {
        let Texts { shard, rows, .. } = self;
        format!(
            "INSERT INTO {rows} (shard, space, key, value) SELECT {shard}, u.space, u.key, u.value \
             FROM unnest($1::int2[], $2::bytea[], $3::bytea[]) AS u(space, key, value) \
             ON CONFLICT (shard, space, key) DO UPDATE SET value = excluded.value"
        )
    }

    fn write_ended(&self) -> String {
        let Texts { shard, ended, .. } = self;
        format!(
            "INSERT INTO {ended} (shard, bucket, epoch, identity, value) \
             SELECT {shard}, u.bucket, u.epoch, u.identity, u.value \
             FROM unnest($1::int2[], $2::int8[], $3::bytea[], $4::bytea[]) \
             AS u(bucket, epoch, identity, value) \
             ON CONFLICT (shard, bucket, epoch, identity) DO UPDATE SET value = excluded.value"
        )
    }

    fn sweep(&self) -> String {
        let Texts { shard, ended, shards, .. } = self;
        format!(
            "DELETE FROM {ended} WHERE ctid = ANY (ARRAY(SELECT ctid FROM {ended} \
             WHERE shard = {shard} AND bucket = $1 AND epoch < $2 \
             AND (SELECT claim FROM {shards} WHERE shard = {shard}) = $4 \
             ORDER BY shard, bucket, epoch, identity LIMIT $3))"
        )
    }
}
