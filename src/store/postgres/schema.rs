//! The tables, and how they are made.
//!
//! `tidegate schema` prints the same text, for databases whose administrators do not allow a daemon to make
//! tables.

use super::connect::{DatabaseError, DatabaseLink, OWN_NAMES};
use crate::errors::shards_in_words;
use crate::OpenError;
use tokio_postgres::error::SqlState;

/// Format of the tables and their contents.
const FORMAT: i32 = 3;
/// An earlier format: the same without `key`. Such tables are for one shard, which needs none.
const KEYLESS_FORMAT: i32 = 2;

/// First number of the advisory locks under which tables are made.
const LOCKS: i32 = 0x7469_6465;

/// The two numbers of the advisory lock under which the tables in this schema are made, one daemon at a time.
/// Another schema waits for it only if its name has the same checksum.
pub(super) fn lock(name: &str) -> String {
    format!("{LOCKS}, {}", crc32c::crc32c(name.as_bytes()).cast_signed())
}

/// SQL that makes the tables in the schema `name`, a plain name, for so many shards (1 to 256).
///
/// Keys and values are those of the disk store's rows, with their checksums. The record of an item is split
/// over two columns, so that it can be read without its body. Each transaction sets the column `writer` of a
/// shard to the writer's claim; the constraint refuses it unless that is the present claim.
///
/// The view and the defaults keep the functions and operators that they find when they are made, and run them
/// with the rights of whoever reads or writes.
#[must_use]
pub fn schema(name: &str, count: u16) -> String {
    let (shards, last) = (shards_in_words(count), count.saturating_sub(1));
    format!(
        r#"-- The tables of tidegate, format {FORMAT}, for {shards}. For PostgreSQL 13 or newer.
{OWN_NAMES}
CREATE SCHEMA IF NOT EXISTS "{name}";
CREATE TABLE "{name}".cluster (
  only_one bool PRIMARY KEY DEFAULT true CHECK (only_one),
  format int4 NOT NULL,
  shards int2 NOT NULL,
  -- Proves requests that a shard forwards to another: a secret.
  key bytea NOT NULL DEFAULT sha256((gen_random_uuid()::text || gen_random_uuid()::text)::bytea));
CREATE TABLE "{name}".shards (
  shard int2 PRIMARY KEY,
  identity int8 NOT NULL,
  claim bytea, writer bytea,
  epoch int8 NOT NULL DEFAULT 0,
  owner text, backend int4, claimed timestamptz,
  expires timestamptz NOT NULL DEFAULT '-infinity',
  commit_no int8 NOT NULL DEFAULT 0, next_seq int8 NOT NULL DEFAULT 0, wall int8 NOT NULL DEFAULT 0,
  CONSTRAINT fence CHECK (writer IS NOT DISTINCT FROM claim))
  WITH (fillfactor = 10);
-- Daemons that stand by or share the shards, and when each last reported.
CREATE TABLE "{name}".nodes (name text PRIMARY KEY, seen timestamptz NOT NULL) WITH (fillfactor = 50);
CREATE TABLE "{name}".items (
  shard int2 NOT NULL, key bytea NOT NULL, head bytea NOT NULL, rest bytea NOT NULL,
  PRIMARY KEY (shard, key))
  WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0,
        toast.autovacuum_vacuum_scale_factor = 0.02, toast.autovacuum_vacuum_cost_delay = 0);
CREATE TABLE "{name}".rows (
  shard int2 NOT NULL, space int2 NOT NULL, key bytea NOT NULL, value bytea NOT NULL,
  PRIMARY KEY (shard, space, key))
  WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE TABLE "{name}".ended (
  shard int2 NOT NULL, bucket int2 NOT NULL, epoch int8 NOT NULL, identity bytea NOT NULL,
  value bytea NOT NULL,
  PRIMARY KEY (shard, bucket, epoch, identity))
  WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
-- For people: the waiting items by application ('' contains dead letters), and their planned due. A name that
-- this database cannot have as text is escaped.
CREATE OR REPLACE VIEW "{name}".waiting AS SELECT shard,
  CASE WHEN getdatabaseencoding() IN ('UTF8', 'SQL_ASCII') AND position('\x00'::bytea IN app.name) = 0
    THEN convert_from(app.name, 'UTF8'::name) ELSE encode(app.name, 'escape') END AS queue,
  to_timestamp(('x' || encode(substring(key FROM 2 + get_byte(key, 0) FOR 8), 'hex'))::bit(64)::int8::float8
    / 1000.0::float8) AS due,
  ('x' || encode(substring(key FROM 18 + get_byte(key, 0) FOR 8), 'hex'))::bit(64)::int8 AS number,
  octet_length(head) + octet_length(rest) AS bytes
  FROM "{name}".items, LATERAL (SELECT substring(key FROM 2 FOR get_byte(key, 0)) AS name) app;
INSERT INTO "{name}".cluster (format, shards) VALUES ({FORMAT}, {count});
INSERT INTO "{name}".shards (shard, identity)
  SELECT n, ('x' || substr(md5(gen_random_uuid()::text || clock_timestamp()::text), 1, 16))::bit(64)::int8
  FROM generate_series(0, {last}) n;
"#
    )
}

/// Makes the tables for so many shards if there are none, and checks that they are such tables.
///
/// # Errors
///
/// [`OpenError::Database`]; those of [`known`].
pub(super) fn ensure(link: &DatabaseLink, name: &str, count: u16) -> Result<(), OpenError> {
    if !exists(link, name)? {
        // A second daemon finds the tables made.
        let text = format!("BEGIN; SELECT pg_advisory_xact_lock({})", lock(name));
        link.execute(&text).map_err(|e| link.failed(&e))?;
        let made = if exists(link, name)? { Ok(()) } else { link.execute(&schema(name, count)) };
        let ended = link.execute(if made.is_ok() { "COMMIT" } else { "ROLLBACK" });
        made.map_err(|error| not_made(link, name, &error))?;
        ended.map_err(|e| link.failed(&e))?;
        tracing::info!(schema = name, shards = count, "made the tables");
    }
    known(link, name, count)
}

/// The result of [`try_make`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MakeTrial {
    /// The tables can be made.
    Possible,
    /// A daemon is making them at this moment.
    Busy,
    /// There are tables: a daemon has made them since the last look.
    Made,
}

/// Makes the tables for so many shards in a transaction that is undone.
///
/// # Errors
///
/// That of the statement that failed.
pub(super) fn try_make(link: &DatabaseLink, name: &str, count: u16) -> Result<MakeTrial, DatabaseError> {
    link.execute("BEGIN")?;
    let locked = link.words(&format!("SELECT pg_try_advisory_xact_lock({})", lock(name)));
    let tried = locked.and_then(|rows| {
        if rows.first().is_none_or(|row| row.concat() != "t") {
            return Ok(MakeTrial::Busy);
        }
        if is_there(link, name)? {
            return Ok(MakeTrial::Made);
        }
        link.execute(&schema(name, count)).map(|()| MakeTrial::Possible)
    });
    let undone = link.execute("ROLLBACK");
    tried.and_then(|tried| undone.map(|()| tried))
}

/// Checks that this program knows the tables' format, and that they are for so many shards.
///
/// # Errors
///
/// [`OpenError::ForeignSchema`], [`OpenError::OtherShards`], [`OpenError::Database`].
pub(super) fn known(link: &DatabaseLink, name: &str, count: u16) -> Result<(), OpenError> {
    let text = format!("SELECT format, shards FROM \"{name}\".cluster");
    let rows = link.ask(&text).map_err(|e| link.failed(&e))?;
    let Some((format, shards)) = rows.first().map(|row| (row.get::<_, i32>(0), row.get::<_, i16>(1))) else {
        return Err(OpenError::ForeignSchema {
            schema: name.to_owned(),
            error: "table `cluster` is empty".to_owned(),
        });
    };
    let (schema, found) = (name.to_owned(), shards.unsigned_abs());
    if ![KEYLESS_FORMAT, FORMAT].contains(&format) {
        let error =
            format!("its tables have format {format}, and this program knows {KEYLESS_FORMAT} and {FORMAT}");
        return Err(OpenError::ForeignSchema { schema, error });
    }
    if found != count {
        return Err(OpenError::OtherShards { schema, found, wanted: count });
    }
    Ok(())
}

/// Whether there are tables of this program.
///
/// # Errors
///
/// [`OpenError::Database`].
pub(super) fn exists(link: &DatabaseLink, name: &str) -> Result<bool, OpenError> {
    is_there(link, name).map_err(|e| link.failed(&e))
}

/// Reads the catalogue itself: within a transaction, `to_regclass` may answer from what the session knew
/// before, and miss tables that another daemon or shard has made during the wait for the lock.
fn is_there(link: &DatabaseLink, name: &str) -> Result<bool, DatabaseError> {
    let rows = link.ask(&format!(
        "SELECT EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
         WHERE n.nspname = '{name}' AND c.relname = 'cluster')"
    ))?;
    Ok(rows.first().is_some_and(|row| row.get(0)))
}

/// The error of a start that failed to make the tables with `error`.
pub(super) fn not_made(link: &DatabaseLink, name: &str, error: &DatabaseError) -> OpenError {
    if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) {
        let error = format!(
            "this role may not make the tables in schema `{name}` ({error}): run the output of \
             `tidegate schema` as a role that may, and grant this role USAGE on the schema and SELECT, \
             INSERT, UPDATE and DELETE on its tables"
        );
        return OpenError::Database { place: link.place().to_owned(), error };
    }
    link.failed(error)
}
