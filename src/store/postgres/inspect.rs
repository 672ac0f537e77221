//! `check --connect`: what is wrong with the database, before a daemon needs it.
//!
//! Nothing is changed: what is tried is undone, the store is not claimed, and no lock is taken that a serving
//! daemon waits for. Every wait has a bound: that of the connect, and the length of the lease for an answer.
//!
//! A finding does not end the examination, except where nothing more can be learned: there is no connection,
//! or a pooler mixes up the sessions, or the tables are another program's.

use super::clocks::{difference_ms, refusal, sentence};
use super::connect::{DatabaseLink, Reached};
use super::settings::ServerSettings;
use super::{pooling, rights, schema};
use crate::OpenError;
use tidegate_common::check_line::{CheckLine, Severity};
use tidegate_config::DatabaseConfig;
use tokio_postgres::error::SqlState;

/// The subject of all lines.
const SUBJECT: &str = "database";
/// A larger difference between the clocks is noticed by people, after a takeover.
const NOTICED_CLOCK_DIFFERENCE_MS: u64 = 1_000;

/// Examines the database of a store, without changing anything.
#[must_use]
pub fn inspect(config: &DatabaseConfig) -> Vec<CheckLine> {
    let mut lines = Vec::new();
    if let Err(error) = examine(config, &mut lines) {
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
fn examine(config: &DatabaseConfig, lines: &mut Vec<CheckLine>) -> Result<(), OpenError> {
    let Reached { mut link, host, errors } = DatabaseLink::reach(config)?;
    let unused = errors.into_iter().map(|error| format!("a host is not used: {error}"));
    lines.extend(unused.map(|text| line(Severity::Warning, text)));
    let settings = link.settings().map_err(|e| link.failed(&e))?;
    lines.push(connected(config, &host, &settings));
    judge_settings(config, &settings, lines);
    let second = match DatabaseLink::reach(config) {
        Ok(reached) => reached.link,
        Err(error) => {
            let text =
                format!("a daemon needs a second connection beside the first, and there is none: {error}");
            lines.push(line(Severity::Fault, text));
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
    link.set_up(config).map_err(|e| link.failed(&e))?;
    let difference = difference_ms(&link).map_err(|e| link.failed(&e))?;
    lines.push(judge_clocks(difference));
    let role = quoted(&config.user);
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
    if schema::exists(&link, name)? {
        return examine_tables(&mut link, config, lines);
    }
    lines.push(first_start(&link, name));
    Ok(())
}

fn connected(config: &DatabaseConfig, host: &str, settings: &ServerSettings) -> CheckLine {
    let tls = if config.tls { "with TLS" } else { "without TLS" };
    let (database, user, version) = (&config.database, &config.user, &settings.version);
    line(
        Severity::Good,
        format!("logged in to `{database}` at {host} as '{user}', {tls}: PostgreSQL {version}"),
    )
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
        lines.push(lax_commits(config, &settings.synchronous_commit));
    }
    if settings.standbys.is_empty() {
        let text = "synchronous_standby_names is empty: what is committed is on one machine, unless the \
                    database's service copies it by other means. If that machine is lost, so are acked \
                    requests";
        lines.push(line(Severity::Note, text));
    }
    if !settings.has_checksums() {
        let text = "data_checksums is off: the server does not notice pages that its disk has damaged. Stop \
                    it and run `pg_checksums --enable`";
        lines.push(line(Severity::Warning, text));
    }
}

fn lax_commits(config: &DatabaseConfig, value: &str) -> CheckLine {
    let lost = match value {
        "local" => {
            "a commit returns before a synchronous replica has it, and a failover loses acked requests"
        }
        _ => "a commit returns before it is on a disk, and a crash of the server loses acked requests",
    };
    let mend = format!(
        "ALTER ROLE {} IN DATABASE {} SET synchronous_commit = on",
        quoted(&config.user),
        quoted(&config.database)
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

/// There are no tables yet.
fn first_start(link: &DatabaseLink, name: &str) -> CheckLine {
    match schema::try_make(link, name) {
        Ok(true) => line(
            Severity::Good,
            format!("there are no tables in schema `{name}` yet: the first start makes them"),
        ),
        Ok(false) => {
            line(Severity::Note, format!("a daemon makes the tables in schema `{name}` at this moment"))
        }
        Err(error) => {
            let is_right = error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE);
            let severity = if is_right { Severity::Warning } else { Severity::Fault };
            line(severity, schema::not_made(link, name, &error).to_string())
        }
    }
}

fn examine_tables(
    link: &mut DatabaseLink,
    config: &DatabaseConfig,
    lines: &mut Vec<CheckLine>,
) -> Result<(), OpenError> {
    let name = &config.schema;
    let tried = rights::try_rights(link, name).map_err(|e| link.failed(&e))?;
    if !tried.missing.is_empty() {
        let missing = tried.missing.iter();
        let missing = missing.map(|(table, rights)| format!("{} on `{table}`", rights.join(", ")));
        let text = format!(
            "rights on the tables in schema `{name}` are missing: {}. Run `{}`",
            missing.collect::<Vec<_>>().join("; "),
            tried.grants(name, &quoted(&config.user))
        );
        lines.push(line(Severity::Fault, text));
    }
    if tried.may_read("cluster") {
        schema::known(link, name)?;
    }
    // Fails if a table or a column is missing.
    link.prepare(name)?;
    if let Some(error) = &tried.error {
        lines.push(line(Severity::Fault, link.failed(error).to_string()));
    } else if tried.missing.is_empty() {
        lines.push(line(Severity::Good, format!("has all rights on the tables in schema `{name}`")));
    }
    if tried.may_read("shards") {
        lines.push(owner(link)?);
    }
    Ok(())
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
