//! `list` and `parked list`: items page by page, and counts.

use super::args::{ListArgs, Output, ParkedListArgs};
use super::client::{is_unknown, path, query, Client};
use super::commands::cell;
use super::output::{plain, Failure, Out};
use super::status::{self, span};
use crate::admin::applications::Applications;
use crate::admin::parse::MAX_PAGE;
use crate::admin::state::Application;
use serde::Deserialize;
use serde_json::{json, Value};
use std::collections::BTreeSet;
use tidegate_types::ListedStage;
use ureq::http::Method;

type Pairs = Vec<(&'static str, String)>;

/// Runs `list`.
///
/// # Errors
/// Failed if the daemon cannot be queried; usage if a customer is to be counted without application.
pub(super) fn run(client: &Client, args: &ListArgs, output: Output) -> Result<(), Failure> {
    match (args.count, &args.application, &args.customer) {
        (false, _, _) => items(client, &filter(args), args.cursor.clone(), args.limit, output),
        (true, Some(application), Some(customer)) => {
            let counts = client.ask(Method::GET, &path(&["customers", application, customer]))?;
            print(counts, output, customer_counts)
        }
        (true, None, Some(_)) => {
            Err(Failure::Usage("--count of a --customer needs the --application too".to_owned()))
        }
        (true, Some(application), None) => {
            let one = client.ask(Method::GET, &path(&["applications", application]))?;
            print(one, output, |one| Ok(status::applications(&[application_of(one)?], None)))
        }
        (true, None, None) => {
            let all = client.ask(Method::GET, &path(&["applications"]))?;
            print(all, output, |all| {
                let all = applications_of(all)?;
                let rows = status::applications(&all.applications, all.dead_letters.as_ref());
                Ok(remark(rows, &all))
            })
        }
    }
}

/// Runs `parked list`.
///
/// # Errors
/// Failed if the daemon cannot be queried.
pub(super) fn parked(client: &Client, args: &ParkedListArgs, output: Output) -> Result<(), Failure> {
    match &args.application {
        Some(application) => {
            let state = ListedStage::Parked.as_str().to_owned();
            items(
                client,
                &vec![("application", application.clone()), ("state", state)],
                None,
                args.limit,
                output,
            )
        }
        None => {
            let parked = client.ask(Method::GET, &path(&["parked"]))?;
            print(parked, output, |parked| {
                let parked = applications_of(parked)?;
                Ok(remark(parked_table(&parked), &parked))
            })
        }
    }
}

fn filter(args: &ListArgs) -> Pairs {
    let pairs = [
        ("application", args.application.clone()),
        ("customer", args.customer.clone()),
        ("state", args.state.map(|state| state.as_str().to_owned())),
        ("from", args.from.map(|ms| ms.to_string())),
        ("to", args.to.map(|ms| ms.to_string())),
    ];
    pairs.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

fn items(
    client: &Client,
    filter: &Pairs,
    from: Option<String>,
    limit: u64,
    output: Output,
) -> Result<(), Failure> {
    let listed = follow(from, limit, |cursor, rows| {
        let mut pairs = filter.clone();
        pairs.push(("limit", rows.to_string()));
        pairs.extend(cursor.map(|cursor| ("cursor", cursor.to_owned())));
        client.ask(Method::GET, &(path(&["items"]) + &query(&pairs)))
    })?;
    let mut out = Out::lock();
    match output {
        Output::Json => {
            let mut document = json!({ "items": listed.items, "next": listed.next });
            if !listed.missing_shards.is_empty() {
                document["missing_shards"] = json!(listed.missing_shards);
            }
            out.json(&document)
        }
        Output::Table => {
            out.table(&item_table(&listed.items))?;
            if !listed.missing_shards.is_empty() {
                let missing: Vec<String> = listed.missing_shards.iter().map(u64::to_string).collect();
                out.line(format_args!("(not all: no node has shard {} at present)", missing.join(", ")))?;
            }
            match listed.next {
                Some(next) => out.line(format_args!(
                    "(there are more: --cursor {next} continues, --limit shows more at a time)"
                )),
                None => Ok(()),
            }
        }
    }
}

/// The requested number of items, or all.
#[derive(Debug, PartialEq)]
struct ListedItems {
    items: Vec<Value>,
    /// Start of the next page.
    next: Option<String>,
    /// Shards whose items are missing from one of the pages.
    missing_shards: BTreeSet<u64>,
}

/// Reads pages until `limit` items are read, or the end. A page may be short or empty without being the last.
fn follow(
    from: Option<String>,
    limit: u64,
    mut fetch: impl FnMut(Option<&str>, u64) -> Result<Value, Failure>,
) -> Result<ListedItems, Failure> {
    let mut all = ListedItems { items: Vec::new(), next: from, missing_shards: BTreeSet::new() };
    loop {
        let rows = (limit - all.items.len() as u64).min(MAX_PAGE as u64);
        let mut page = fetch(all.next.as_deref(), rows)?;
        let Some(items) = page["items"].as_array_mut() else {
            return Err(Failure::failed("the daemon's answer is not a list"));
        };
        if items.len() as u64 > rows {
            return Err(Failure::failed("the daemon's list is longer than was asked for"));
        }
        all.items.append(items);
        let missing = page["missing_shards"].as_array().into_iter().flatten();
        all.missing_shards.extend(missing.filter_map(Value::as_u64));
        let next = page["next"].as_str().map(str::to_owned);
        if next.is_some() && next == all.next {
            return Err(Failure::failed("the daemon's list does not continue from its cursor"));
        }
        all.next = next;
        if all.next.is_none() || all.items.len() as u64 >= limit {
            return Ok(all);
        }
    }
}

fn print(
    answer: Value,
    output: Output,
    rows: impl FnOnce(&Value) -> Result<Vec<Vec<String>>, Failure>,
) -> Result<(), Failure> {
    let mut out = Out::lock();
    match output {
        Output::Json => out.json(&answer)?,
        Output::Table if is_unknown(&answer) => {}
        Output::Table => out.table(&rows(&answer)?)?,
    }
    if is_unknown(&answer) {
        return Err(Failure::Partial("unknown: the daemon has nothing of that name".to_owned()));
    }
    Ok(())
}

fn applications_of(answer: &Value) -> Result<Applications, Failure> {
    Applications::deserialize(answer).map_err(|_| Failure::failed("the daemon's answer is not understood"))
}

fn application_of(answer: &Value) -> Result<Application, Failure> {
    Application::deserialize(answer).map_err(|_| Failure::failed("the daemon's answer is not understood"))
}

fn remark(mut rows: Vec<Vec<String>>, all: &Applications) -> Vec<Vec<String>> {
    if !all.missing_shards.is_empty() {
        let missing: Vec<String> = all.missing_shards.iter().map(u16::to_string).collect();
        rows.push(vec![format!("(not all: nobody tells of shard {} at present)", missing.join(", "))]);
    }
    if all.applications_truncated {
        rows.push(vec!["(not all applications are listed)".to_owned()]);
    }
    rows
}

fn item_table(items: &[Value]) -> Vec<Vec<String>> {
    const COLUMNS: [(&str, &str); 7] = [
        ("DUE", "due"),
        ("STATE", "state"),
        ("APPLICATION", "application"),
        ("CUSTOMER", "customer"),
        ("ID", "id"),
        ("ATTEMPTS", "attempts"),
        ("LAST ERROR", "last_error"),
    ];
    let mut rows = vec![COLUMNS.map(|(head, _)| head.to_owned()).to_vec()];
    rows.extend(items.iter().map(|item| COLUMNS.map(|(_, key)| cell(key, &item[key])).to_vec()));
    rows
}

fn customer_counts(counts: &Value) -> Result<Vec<Vec<String>>, Failure> {
    const KEYS: [&str; 4] = ["waiting", "in_flight", "parked", "next_due"];
    let known = KEYS.iter().filter(|key| !counts[**key].is_null());
    Ok(known.map(|key| vec![key.replace('_', " "), cell(key, &counts[*key])]).collect())
}

fn parked_table(parked: &Applications) -> Vec<Vec<String>> {
    let head = ["APPLICATION", "PARKED", "FAILURES", "NEXT TRY", "LAST ERROR"];
    let row = |name: &str, a: &Application| {
        let parked = a.parked_since();
        let next = parked.map_or(String::new(), |p| format!("in {}", span(p.next_try_in_ms)));
        let failures = parked.map_or(String::new(), |p| p.failures.to_string());
        let error = plain(parked.map_or("", |p| p.last_error)).into_owned();
        vec![plain(name).into_owned(), a.parked.to_string(), failures, next, error]
    };
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(parked.applications.iter().map(|a| row(&a.name, a)));
    rows.extend(parked.dead_letters.iter().map(|a| row("(dead letters)", a)));
    rows
}

#[cfg(test)]
#[path = "list_tests.rs"]
mod tests;
