//! Finds out whether something between the daemon and the database gives each transaction another session.
//!
//! The daemon's settings, its prepared statements and its locks belong to a session. So they would get lost,
//! or reach the sessions of other clients.
//!
//! Only plain statements are used here: some poolers lose prepared ones. A setting is made first, because a
//! pooler may keep a session for a client as soon as the client has changed it.

use super::connect::{DatabaseError, DatabaseLink};

/// Rounds of questions. A busy pooler may give a client the same session twice by chance.
const ROUNDS: u32 = 3;
/// Code by which poolers refuse a statement that their mode does not support.
const PROTOCOL_VIOLATION: &str = "08P01";
/// A setting without a meaning for the server.
const MARK: &str = "tidegate.mark";

/// Asks which session a connection has: the server's process, and the mark in it. The session's path is not
/// set: behind a pooler, other clients would get it too.
const WHICH: &str = "SELECT pg_catalog.pg_backend_pid(), pg_catalog.current_setting('tidegate.mark', true)";

/// A session, as a connection sees it.
#[derive(Clone, Debug, Default)]
struct SeenSession {
    /// Id of the server's process.
    process: String,
    mark: String,
}

impl SeenSession {
    /// Asks by [`WHICH`], after other statements.
    fn ask(link: &DatabaseLink, before: &str) -> Result<Self, DatabaseError> {
        let rows = link.words(&format!("{before}{WHICH}"))?;
        let columns = rows.into_iter().next().and_then(|row| <[String; 2]>::try_from(row).ok());
        let [process, mark] =
            columns.ok_or_else(|| DatabaseError::saying("the server does not name its process"))?;
        Ok(SeenSession { process, mark })
    }
}

/// What shows that sessions are pooled by transaction or by statement; `None` if each of these connections
/// has a session to itself.
///
/// # Errors
///
/// Those of a query.
pub(super) fn evidence(first: &DatabaseLink, second: &DatabaseLink) -> Result<Option<String>, DatabaseError> {
    let told = compared(first, second);
    for link in [first, second] {
        // Behind a pooler, another client gets this session next. The mark means nothing to it.
        let _unmarked = link.execute(&format!("RESET {MARK}"));
    }
    match told {
        Err(error) if error.code().is_some_and(|code| code.code() == PROTOCOL_VIOLATION) => {
            Ok(Some(error.to_string()))
        }
        told => told,
    }
}

fn compared(first: &DatabaseLink, second: &DatabaseLink) -> Result<Option<String>, DatabaseError> {
    first.execute(&format!("SET {MARK} = 'first'"))?;
    second.execute(&format!("SET {MARK} = 'second'"))?;
    let own = SeenSession::ask(first, "")?;
    for _ in 0..ROUNDS {
        let other = SeenSession::ask(second, "BEGIN; ");
        let again = match &other {
            // If the pooler has this session alone, an answer would come after the transaction.
            Ok(other) if other.process == own.process => Ok(own.clone()),
            Ok(_) => SeenSession::ask(first, ""),
            Err(_) => Ok(own.clone()),
        };
        let ended = second.execute("ROLLBACK");
        if let Some(text) = judge(&own, &other?, &again?) {
            return Ok(Some(text));
        }
        ended?;
    }
    Ok(None)
}

/// `own` and `again`: the first connection before the transaction of the second one, and during it.
fn judge(own: &SeenSession, other: &SeenSession, again: &SeenSession) -> Option<String> {
    let SeenSession { process, .. } = own;
    if other.process == own.process {
        return Some(format!("two connections have the session of process {process}"));
    }
    if again.process != own.process {
        let now = &again.process;
        return Some(format!("a connection had the session of process {process}, and then that of {now}"));
    }
    (own.mark != "first" || again.mark != "first").then(|| "a setting of a session is lost".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_belongs_to_one_connection_and_stays() {
        let seen = |process: &str, mark: &str| SeenSession { process: process.into(), mark: mark.into() };
        let first = seen("1", "first");
        assert_eq!(judge(&first, &seen("2", "second"), &first), None);
        for (own, other, again, part) in [
            (first.clone(), seen("1", "first"), first.clone(), "two connections"),
            (first.clone(), seen("2", "second"), seen("3", "first"), "then that of 3"),
            (first.clone(), seen("2", "second"), seen("1", ""), "is lost"),
            (seen("1", "second"), seen("2", "second"), first.clone(), "is lost"),
        ] {
            let told = judge(&own, &other, &again).unwrap_or_default();
            assert!(told.contains(part), "{part}: {told}");
        }
    }
}
