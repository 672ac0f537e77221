//! `check --connect`: what is wrong with the database, before a daemon needs it.
//!
//! Nothing is changed: what is tried is undone, the store is not claimed, and no lock is taken that a serving
//! daemon waits for. Every wait has a bound: that of each login, and the length of the lease for an answer.
//! Every host is logged in at, and the one that a daemon would use is examined.
//!
//! A finding does not end the examination, except where nothing more can be learned: there is no connection,
//! or a pooler mixes up the sessions, or the tables are another program's.

use super::clocks::{difference_ms, refusal, sentence};
use super::connect::{error_at, not_reached, DatabaseError, DatabaseLink, LoginError};
use super::membership::{all_there, SeenShard};
use super::schema::MakeTrial;
use super::settings::ServerSettings;
use super::{pooling, rights, schema, statements};
use crate::errors::shards_in_words;
use crate::OpenError;
use std::collections::BTreeMap;
use tidegate_common::check_line::{CheckLine, Severity};
use tidegate_config::DatabaseConfig;
use tokio_postgres::config::TargetSessionAttrs;
use tokio_postgres::error::SqlState;

/// The subject of all lines.
const SUBJECT: &str = "database";
/// A larger difference between the clocks is noticed by people, after a takeover.
const NOTICED_CLOCK_DIFFERENCE_MS: u64 = 1_000;

/// Examines the database of the stores of so many shards, without changing anything.
#[must_use]
pub fn inspect(config: &DatabaseConfig, count: u16) -> Vec<CheckLine> {
    let mut lines = Vec::new();
    if let Err(error) = examine(config, count, &mut lines) {
        lines.push(line(Severity::Fault, error.to_string()));
    }
    lines
}

fn line(severity: Severity, text: impl Into<String>) -> CheckLine {
    CheckLine::new(severity, SUBJECT, text)
}

/// A name of a role or of a database in a statement.
fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Adds a line for each finding.
///
/// # Errors
///
/// Why the examination cannot go on.
fn examine(config: &DatabaseConfig, count: u16, lines: &mut Vec<CheckLine>) -> Result<(), OpenError> {
    let (mut link, host) = reach_all(config, lines)?;
    let settings = link.settings().map_err(|e| link.failed(&e))?;
    lines.push(connected(config, host, &settings));
    judge_settings(config, &settings, lines);
    let second = match DatabaseLink::at(config, host, TargetSessionAttrs::ReadWrite) {
        Ok(second) => second,
        Err(error) => {
            lines.push(no_second(&error));
            return Ok(());
        }
    };
    if let Some(evidence) = pooling::evidence(&link, &second).map_err(|e| link.failed(&e))? {
        let text = format!(
            "a pooler between here and the database does not pool sessions ({evidence}): the daemon's \
             settings and prepared statements would get lost. With PgBouncer set pool_mode = session for \
             this database, or name the database itself in store.uri. Nothing else was checked through it"
        );
        lines.push(line(Severity::Fault, text));
        return Ok(());
    }
    drop(second);
    // Whatever was asked until here calls functions of `pg_catalog` by name.
    link.set_up(config).map_err(|e| link.failed(&e))?;
    let difference = difference_ms(&link).map_err(|e| link.failed(&e))?;
    lines.push(judge_clocks(difference));
    let role = quoted(&settings.role);
    let name = &config.schema;
    let usage =
        format!("SELECT has_schema_privilege(oid, 'USAGE') FROM pg_namespace WHERE nspname = '{name}'");
    let usage = link.words(&usage).map_err(|e| link.failed(&e))?;
    if usage.first().is_some_and(|row| row.concat() == "f") {
        let text = format!(
            "the right USAGE on schema `{name}` is missing: run `GRANT USAGE ON SCHEMA \"{name}\" TO \
             {role}`, and this check again, which then sees the tables"
        );
        lines.push(line(Severity::Fault, text));
        return Ok(());
    }
    if !schema::exists(&link, name)? {
        if let Some(line) = first_start(&link, name, count) {
            lines.push(line);
            return Ok(());
        }
    }
    examine_tables(&mut link, (name, count), &role, lines)
}

/// Logs in at each host, because a failover may need any of them. Returns a connection to the first that
/// takes writes, which is the one that a daemon uses.
///
/// # Errors
///
/// No host takes writes.
fn reach_all<'c>(
    config: &'c DatabaseConfig,
    lines: &mut Vec<CheckLine>,
) -> Result<(DatabaseLink, &'c (String, u16)), OpenError> {
    let mut used: Option<(DatabaseLink, &(String, u16))> = None;
    let (mut errors, mut others) = (Vec::new(), Vec::new());
    for host in &config.hosts {
        match DatabaseLink::at(config, host, TargetSessionAttrs::ReadWrite) {
            Ok(link) => match &used {
                Some((first, _)) => others.push(another_writer(first, &link, host)),
                None => used = Some((link, host)),
            },
            Err(error) => {
                others.push(no_writer(config, host, &error));
                errors.push(error_at(host, &error));
            }
        }
    }
    let used = used.ok_or_else(|| not_reached(config, &errors))?;
    lines.extend(others);
    Ok(used)
}

/// A host at which there is no login for writes.
fn no_writer(config: &DatabaseConfig, host: &(String, u16), error: &LoginError) -> CheckLine {
    let (name, port) = host;
    let read_only = match error.may_be_read_only() {
        true => DatabaseLink::at(config, host, TargetSessionAttrs::ReadOnly).ok(),
        false => None,
    };
    let Some(link) = read_only else {
        let text = format!("no login at {name}:{port}, so no daemon could use it after a failover: {error}");
        return line(Severity::Warning, text);
    };
    match link.words("SELECT pg_catalog.pg_is_in_recovery()") {
        Ok(rows) if rows.first().is_some_and(|row| row.concat() == "t") => {
            line(Severity::Good, format!("logged in at {name}:{port}, a replica: takes no writes"))
        }
        Ok(_) => {
            let text = format!(
                "logged in at {name}:{port}: takes no writes, and is no replica. Look at its \
                 default_transaction_read_only"
            );
            line(Severity::Warning, text)
        }
        Err(error) => line(Severity::Warning, format!("{name}:{port} takes no writes: {error}")),
    }
}

/// A further host that takes writes: the same server by another name, or one that must not do that.
fn another_writer(first: &DatabaseLink, link: &DatabaseLink, (name, port): &(String, u16)) -> CheckLine {
    let started = |link: &DatabaseLink| link.words("SELECT pg_catalog.pg_postmaster_start_time()");
    match (started(first), started(link)) {
        (Ok(first), Ok(other)) if first == other => {
            line(Severity::Good, format!("logged in at {name}:{port}: the same server"))
        }
        (Ok(_), Ok(_)) => {
            let text = format!(
                "logged in at {name}:{port}: takes writes as well, and is another server. A daemon that does \
                 not reach the hosts before it would use what is stored there. Let one server take writes"
            );
            line(Severity::Warning, text)
        }
        (Err(error), _) | (_, Err(error)) => {
            line(Severity::Warning, format!("{name}:{port} takes writes as well: {error}"))
        }
    }
}

fn connected(config: &DatabaseConfig, (name, port): &(String, u16), settings: &ServerSettings) -> CheckLine {
    let tls = if config.tls { "with TLS" } else { "without TLS" };
    let ServerSettings { database, login, role, version, .. } = settings;
    let rights = if role == login { String::new() } else { format!(" with the rights of '{role}'") };
    line(
        Severity::Good,
        format!(
            "logged in to `{database}` at {name}:{port} as '{login}'{rights}, {tls}: PostgreSQL {version}"
        ),
    )
}

/// The second login at a host has failed.
fn no_second(error: &LoginError) -> CheckLine {
    if error.is_full() {
        let text = format!(
            "connections are used up: {error}. The check needs two beside those of the daemons: look at the \
             role's CONNECTION LIMIT, max_connections, and the pool of a pooler. Nothing else was checked"
        );
        return line(Severity::Warning, text);
    }
    let text = format!("a daemon needs a second connection beside the first, and there is none: {error}");
    line(Severity::Fault, text)
}

fn judge_settings(config: &DatabaseConfig, settings: &ServerSettings, lines: &mut Vec<CheckLine>) {
    if let Some(refusal) = settings.refusal(config.allow_async) {
        lines.push(line(Severity::Fault, refusal));
    } else if settings.is_unsynced() {
        let text =
            "the server runs with fsync = off, and store.allow_async = true accepts it: a crash of its \
                    machine loses acked requests, and can damage the whole database";
        lines.push(line(Severity::Warning, text));
    }
    if settings.is_commit_lax() {
        lines.push(lax_commits(config, settings));
    }
    if settings.standbys.is_empty() {
        let text = "synchronous_standby_names is empty: what is committed is on one machine, unless the \
                    database's service copies it by other means. If that machine is lost, so are acked \
                    requests";
        lines.push(line(Severity::Note, text));
    }
    if !settings.has_checksums() {
        let text = "data_checksums is off: the server does not notice pages that its disk has damaged. Stop \
                    it and run `pg_checksums --enable`. (A managed service may check pages by other means)";
        lines.push(line(Severity::Warning, text));
    }
}

fn lax_commits(config: &DatabaseConfig, settings: &ServerSettings) -> CheckLine {
    let value = &settings.synchronous_commit;
    let lost = match &**value {
        "local" => {
            "a commit returns before a synchronous replica has it, and a failover loses acked requests"
        }
        _ => "a commit returns before it is on a disk, and a crash of the server loses acked requests",
    };
    let mend = format!(
        "ALTER ROLE {} IN DATABASE {} SET synchronous_commit = on",
        quoted(&settings.login),
        quoted(&settings.database)
    );
    if config.allow_async {
        let text = format!(
            "synchronous_commit is {value}, and store.allow_async = true leaves it so: {lost}. To change \
             that, run `{mend}`"
        );
        return line(Severity::Warning, text);
    }
    let text = format!(
        "synchronous_commit is {value}: {lost}. The daemon turns it on in its own sessions; turn it on for \
         its role too, so that this does not depend on the daemon: run `{mend}`, or set store.allow_async = \
         true if such losses are acceptable"
    );
    line(Severity::Fault, text)
}

fn judge_clocks(difference_ms: i64) -> CheckLine {
    if let Some(refusal) = refusal(difference_ms) {
        return line(Severity::Fault, refusal);
    }
    if difference_ms.unsigned_abs() > NOTICED_CLOCK_DIFFERENCE_MS {
        let sentence = sentence(difference_ms);
        let text = format!(
            "{sentence}: after a takeover, items are early or late by the difference between the daemons' \
             clocks. Synchronise them"
        );
        return line(Severity::Warning, text);
    }
    line(Severity::Good, "the database's clock agrees with this machine's, within a second")
}

/// There were no tables; `None`: there are some by now.
fn first_start(link: &DatabaseLink, name: &str, count: u16) -> Option<CheckLine> {
    Some(match schema::try_make(link, name, count) {
        Ok(MakeTrial::Made) => return None,
        Ok(MakeTrial::Possible) => line(
            Severity::Good,
            format!("there are no tables in schema `{name}` yet: the first start makes them"),
        ),
        Ok(MakeTrial::Busy) => {
            line(Severity::Note, format!("a daemon makes the tables in schema `{name}` at this moment"))
        }
        Err(error) => {
            let is_right = error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE);
            let severity = if is_right { Severity::Warning } else { Severity::Fault };
            line(severity, schema::not_made(link, name, &error).to_string())
        }
    })
}

/// `role`: whose rights apply, in quotes.
fn examine_tables(
    link: &mut DatabaseLink,
    (name, count): (&str, u16),
    role: &str,
    lines: &mut Vec<CheckLine>,
) -> Result<(), OpenError> {
    let tried = rights::try_rights(link, name, count).map_err(|e| link.failed(&e))?;
    if !tried.missing.is_empty() {
        let missing = tried.missing.iter();
        let missing = missing.map(|(table, rights)| format!("{} on `{table}`", rights.join(", ")));
        let text = format!(
            "rights on the tables in schema `{name}` are missing: {}. Run `{}`",
            missing.collect::<Vec<_>>().join("; "),
            tried.grants(name, role)
        );
        lines.push(line(Severity::Fault, text));
    }
    if tried.may_read("cluster") {
        schema::known(link, name, count)?;
        let text = format!("the tables in schema `{name}` are laid out for {}", shards_in_words(count));
        lines.push(line(Severity::Good, text));
    }
    // Fails if a table or a column is missing.
    link.prepare(name, 0)?;
    if count > 1 {
        link.prepare_round(name)?;
    }
    if let Some(error) = &tried.error {
        lines.push(line(Severity::Fault, link.failed(error).to_string()));
    } else if tried.missing.is_empty() {
        lines.push(line(Severity::Good, format!("has all rights on the tables in schema `{name}`")));
    }
    if tried.may_read("shards") {
        match count {
            0 | 1 => lines.push(owner(link)?),
            2.. => lines.extend(owners(link, name, count).map_err(|e| link.failed(&e))?),
        }
    }
    Ok(())
}

/// A line for each owner with its shards, and one for those without an owner.
fn owners(link: &DatabaseLink, name: &str, count: u16) -> Result<Vec<CheckLine>, DatabaseError> {
    let rows = link.ask(&statements::owners(name))?;
    let shards: Vec<SeenShard> = rows.iter().map(SeenShard::of).collect();
    all_there(&shards, count)?;
    let mut by_owner: BTreeMap<(Option<&str>, bool), Vec<String>> = BTreeMap::new();
    for SeenShard { number, owner, left_ms } in &shards {
        let holds = owner.is_some() && *left_ms > 0;
        by_owner.entry((owner.as_deref(), holds)).or_default().push(number.to_string());
    }
    let told = by_owner.into_iter().map(|((owner, holds), numbers)| {
        let numbers = numbers.join(", ");
        match owner {
            None => line(Severity::Good, format!("no daemon owns these shards: {numbers}")),
            Some(owner) if holds => line(Severity::Good, format!("{owner} owns these shards: {numbers}")),
            Some(owner) => {
                let text = format!("the last owner of these shards, {owner}, has lost its leases: {numbers}");
                line(Severity::Note, text)
            }
        }
    });
    Ok(told.collect())
}

fn owner(link: &DatabaseLink) -> Result<CheckLine, OpenError> {
    let rows = link.statements().and_then(|statements| link.query(&statements.owner, &[]));
    let rows = rows.map_err(|e| link.failed(&e))?;
    let Some(row) = rows.first() else {
        return Ok(line(Severity::Fault, "table `shards` is empty: no daemon can claim the store"));
    };
    let (owner, left_ms): (&str, i64) = (row.get(0), row.get(1));
    Ok(match (owner, left_ms) {
        ("", _) => line(Severity::Good, "no daemon owns the store"),
        (_, ..=0) => {
            line(Severity::Note, format!("the last owner of the store, {owner}, has lost its lease"))
        }
        (_, left_ms) => {
            // The same words as those of a refused claim.
            let left_ms = left_ms.unsigned_abs();
            line(Severity::Good, OpenError::Claimed { owner: owner.to_owned(), left_ms }.to_string())
        }
    })
}
