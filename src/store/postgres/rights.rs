//! The rights on the tables, and how to find out whether a role has them.
//!
//! Each right is tried by a statement that touches no row, in a transaction that is undone: the database
//! checks rights before it looks for rows.

use super::connect::{DatabaseError, DatabaseLink};
use tokio_postgres::error::SqlState;

/// What the statements of a daemon do with one table.
struct TableUse {
    table: &'static str,
    /// Columns that are read; a role may have rights on these alone.
    read: &'static str,
    /// Columns of new rows; empty: it inserts none.
    inserted: &'static str,
    /// Columns that change; empty: none.
    updated: &'static [&'static str],
    /// Whether it deletes rows.
    is_emptied: bool,
}

/// What a daemon for several shards reads of table `cluster`. One for a single shard does not need the key,
/// which older tables do not have.
const READ_WITH_KEY: &str = "format, shards, key";

const USES: [TableUse; 6] = [
    TableUse { table: "cluster", read: "format, shards", inserted: "", updated: &[], is_emptied: false },
    TableUse {
        table: "shards",
        read: "shard, identity, claim, epoch, owner, backend, claimed, expires, commit_no, next_seq, wall",
        inserted: "",
        updated: &[
            "claim",
            "writer",
            "epoch",
            "owner",
            "backend",
            "claimed",
            "expires",
            "commit_no",
            "next_seq",
            "wall",
        ],
        is_emptied: false,
    },
    TableUse {
        table: "nodes",
        read: "name, seen",
        inserted: "name, seen",
        updated: &["seen"],
        is_emptied: true,
    },
    TableUse {
        table: "items",
        read: "ctid, shard, key, head, rest",
        inserted: "shard, key, head, rest",
        updated: &["head", "rest"],
        is_emptied: true,
    },
    TableUse {
        table: "rows",
        read: "ctid, shard, space, key, value",
        inserted: "shard, space, key, value",
        updated: &["value"],
        is_emptied: true,
    },
    TableUse {
        table: "ended",
        read: "ctid, shard, bucket, epoch, identity, value",
        inserted: "shard, bucket, epoch, identity, value",
        updated: &["value"],
        is_emptied: true,
    },
];

impl TableUse {
    /// Each needed right, with a statement that needs it. `count`: the number of shards.
    fn trials(&self, schema: &str, count: u16) -> Vec<(&'static str, String)> {
        let name = format!("\"{schema}\".{}", self.table);
        let read = if self.table == "cluster" && count > 1 { READ_WITH_KEY } else { self.read };
        let mut all = vec![("SELECT", format!("SELECT {read} FROM {name} WHERE false"))];
        if !self.inserted.is_empty() {
            let columns = self.inserted;
            let values = vec!["NULL"; columns.split(',').count()].join(", ");
            all.push(("INSERT", format!("INSERT INTO {name} ({columns}) SELECT {values} WHERE false")));
        }
        if !self.updated.is_empty() {
            let set: Vec<_> = self.updated.iter().map(|column| format!("{column} = DEFAULT")).collect();
            all.push(("UPDATE", format!("UPDATE {name} SET {} WHERE false", set.join(", "))));
        }
        if self.is_emptied {
            all.push(("DELETE", format!("DELETE FROM {name} WHERE false")));
        }
        all
    }
}

/// Statements that need each right on the tables with the rows of the shards, and touch no row.
pub(super) fn trials_of_rows(schema: &str) -> String {
    let of_rows = USES.iter().filter(|one| ["items", "rows", "ended"].contains(&one.table));
    let trials = of_rows.flat_map(|one| one.trials(schema, 1)).map(|(_, statement)| statement);
    trials.collect::<Vec<_>>().join("; ")
}

/// The result of [`try_rights`].
#[derive(Debug, Default)]
pub(super) struct TriedRights {
    /// Tables without a right, each with the missing ones.
    pub(super) missing: Vec<(&'static str, Vec<&'static str>)>,
    /// The first error of another kind.
    pub(super) error: Option<DatabaseError>,
}

impl TriedRights {
    /// Whether the role may read this table.
    pub(super) fn may_read(&self, table: &str) -> bool {
        !self.missing.iter().any(|(name, rights)| *name == table && rights.contains(&"SELECT"))
    }

    /// The statements that grant what is missing to this role, an identifier in quotes.
    pub(super) fn grants(&self, schema: &str, role: &str) -> String {
        let grant = |(table, rights): &(&str, Vec<&str>)| {
            format!("GRANT {} ON \"{schema}\".{table} TO {role}", rights.join(", "))
        };
        self.missing.iter().map(grant).collect::<Vec<_>>().join("; ")
    }
}

/// Tries each right on each table that a daemon for so many shards needs.
///
/// # Errors
///
/// The connection is lost.
pub(super) fn try_rights(
    link: &DatabaseLink,
    schema: &str,
    count: u16,
) -> Result<TriedRights, DatabaseError> {
    let mut tried = TriedRights::default();
    link.execute("BEGIN; SAVEPOINT tried")?;
    for one in &USES {
        let mut missing = Vec::new();
        for (right, statement) in one.trials(schema, count) {
            match link.execute(&format!("ROLLBACK TO SAVEPOINT tried; {statement}")) {
                Ok(()) => {}
                Err(error) if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => missing.push(right),
                Err(error) if error.code().is_none() => return Err(error),
                Err(error) => tried.error = tried.error.or(Some(error)),
            }
        }
        if !missing.is_empty() {
            tried.missing.push((one.table, missing));
        }
    }
    link.execute("ROLLBACK")?;
    Ok(tried)
}
