//! `dead`: the content of the dead-letter queue, page by page and call by call.

use super::args::{
    DeadCommand, LetterArgs, LetterDropArgs, LetterExportArgs, LetterFilterArgs, LetterListArgs,
    LetterRetryArgs, MeantArgs, Output,
};
use super::client::{path, query, Client};
use super::commands::cell;
use super::millis;
use super::output::{inert, plain, Failure, Out};
use serde_json::{json, Value};
use std::collections::BTreeMap;
use tidegate_wire::dead_letters::MOST_OF_A_WALK;
use ureq::http::Method;

type LetterQuery = Vec<(&'static str, String)>;

/// Runs one of the subcommands.
///
/// # Errors
/// Failed if the daemon or the broker cannot be queried; usage without `--yes`; partial if not all was done,
/// or nothing matched.
pub(super) fn run(client: &Client, command: &DeadCommand, output: Output) -> Result<(), Failure> {
    match command {
        DeadCommand::List(args) if args.count => count(client, &args.filter, output),
        DeadCommand::List(args) => list(client, args, output),
        DeadCommand::Show(args) => show(client, args, output),
        DeadCommand::Retry(args) => retry(client, args, output),
        DeadCommand::Drop(LetterDropArgs { meant }) => change(client, meant, &DROP, &[], output),
        DeadCommand::Export(args) => export(client, args),
    }
}

fn filter(args: &LetterFilterArgs) -> LetterQuery {
    let unreadable = args.unreadable.then(|| true.to_string());
    let pairs = [
        ("reason", args.reason.clone()),
        ("application", args.application.clone()),
        ("unreadable", unreadable),
    ];
    pairs.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

/// Calls until `limit` dead letters are handled, or the walk has reached those that were not there at the
/// beginning: a message that is dead-lettered again comes behind the others and is not handled twice. `each`
/// gets each answer and returns how many of the limit it used up. Returns the last answer; the failure of a
/// later call is part of it.
fn walk(
    limit: u64,
    mut call: impl FnMut(u64, (&'static str, String)) -> Result<Value, Failure>,
    mut each: impl FnMut(&Value) -> Result<u64, Failure>,
) -> Result<Value, Failure> {
    let (mut left, mut place) = (limit, ("walk", true.to_string()));
    let mut first = true;
    loop {
        let answer = match call(left, place) {
            Err(failure) if !std::mem::take(&mut first) => {
                let text = failure.text().to_owned();
                json!({ "more": true, "stopped": text, "cursor": null })
            }
            called => called?,
        };
        first = false;
        left = left.saturating_sub(each(&answer)?);
        match answer["cursor"].as_str() {
            Some(cursor) if left > 0 => place = ("cursor", cursor.to_owned()),
            Some(_) | None => return Ok(answer),
        }
    }
}

/// Up to `limit` dead letters, page by page.
fn walked(
    client: &Client,
    filter: &LetterQuery,
    limit: u64,
    whole: bool,
    mut each: impl FnMut(&[Value]) -> Result<(), Failure>,
) -> Result<Value, Failure> {
    let call = |limit: u64, place| {
        let mut pairs = filter.clone();
        pairs.extend([("limit", limit.to_string()), ("whole", whole.to_string()), place]);
        client.ask(Method::GET, &(path(&["dead"]) + &query(&pairs)))
    };
    walk(limit, call, |page| {
        let none = page["stopped"].is_string().then_some(&[][..]);
        let letters = page["letters"].as_array().map(Vec::as_slice).or(none);
        let letters = letters.ok_or_else(|| Failure::failed("the daemon's answer is not a list"))?;
        each(letters)?;
        Ok(letters.len() as u64)
    })
}

/// The failure if the walk stopped early.
fn ending(page: &Value) -> Result<(), Failure> {
    if let Some(text) = page["stopped"].as_str() {
        return Err(Failure::Partial(format!("not all were read: {}", plain(text))));
    }
    Ok(())
}

fn unseen(page: &Value) -> Option<String> {
    let (looked_at, depth) = (page["looked_at"].as_u64()?, page["depth"].as_u64()?);
    (page["more"] == true).then(|| format!("(read {looked_at} of {depth}; there are more)"))
}

fn list(client: &Client, args: &LetterListArgs, output: Output) -> Result<(), Failure> {
    let mut letters = Vec::new();
    let mut last = walked(client, &filter(&args.filter), args.limit, false, |page| {
        letters.extend_from_slice(page);
        Ok(())
    })?;
    let mut out = Out::lock();
    match output {
        Output::Json => {
            last["letters"] = json!(letters);
            out.json(&last)?;
        }
        Output::Table => {
            out.table(&rows(&LETTER_COLUMNS, &letters))?;
            unseen(&last).map_or(Ok(()), |text| out.line(text))?;
        }
    }
    ending(&last)
}

const LETTER_COLUMNS: [(&str, &str); 6] = [
    ("KEY", "key"),
    ("REASON", "reason"),
    ("APPLICATION", "application"),
    ("CUSTOMER", "customer"),
    ("ID", "id"),
    ("ERROR", "error"),
];

const GROUP_COLUMNS: [(&str, &str); 3] =
    [("REASON", "reason"), ("APPLICATION", "application"), ("LETTERS", "count")];

fn rows(columns: &[(&str, &str)], all: &[Value]) -> Vec<Vec<String>> {
    let mut rows = vec![columns.iter().map(|(head, _)| (*head).to_owned()).collect::<Vec<_>>()];
    rows.extend(all.iter().map(|one| columns.iter().map(|(_, key)| cell(key, &one[*key])).collect()));
    rows
}

fn count(client: &Client, filter: &LetterFilterArgs, output: Output) -> Result<(), Failure> {
    let mut counted = counted(client)?;
    let groups = groups_of(&counted, filter);
    let mut out = Out::lock();
    match output {
        Output::Json => {
            counted["groups"] = json!(groups);
            out.json(&counted)?;
        }
        Output::Table => {
            out.table(&rows(&GROUP_COLUMNS, &groups))?;
            unseen(&counted).map_or(Ok(()), |text| out.line(text))?;
        }
    }
    ending(&counted)
}

/// The number of all dead letters, by reason and application.
fn counted(client: &Client) -> Result<Value, Failure> {
    let mut groups: BTreeMap<(String, String), u64> = BTreeMap::new();
    let call = |_, place| client.ask(Method::GET, &(path(&["dead", "count"]) + &query(&[place])));
    let mut last = walk(u64::MAX, call, |page| {
        for group in page["groups"].as_array().into_iter().flatten() {
            let name = |key: &str| group[key].as_str().unwrap_or_default().to_owned();
            *groups.entry((name("reason"), name("application"))).or_default() +=
                group["count"].as_u64().unwrap_or(0);
        }
        Ok(0)
    })?;
    let groups = groups.iter();
    let groups = groups.map(|((reason, application), count)| {
        json!({ "reason": reason, "application": application, "count": count })
    });
    last["groups"] = groups.collect();
    Ok(last)
}

fn groups_of(counted: &Value, filter: &LetterFilterArgs) -> Vec<Value> {
    let application = if filter.unreadable { Some("") } else { filter.application.as_deref() };
    let meant = |group: &&Value| {
        filter.reason.as_deref().is_none_or(|reason| group["reason"] == reason)
            && application.is_none_or(|name| group["application"] == name)
    };
    counted["groups"].as_array().into_iter().flatten().filter(meant).cloned().collect()
}

fn show(client: &Client, args: &LetterArgs, output: Output) -> Result<(), Failure> {
    let letter = found(client, &args.key, true)?;
    let mut out = Out::lock();
    if output == Output::Json {
        return out.json(&letter);
    }
    const FACTS: [&str; 10] = [
        "key",
        "reason",
        "error",
        "application",
        "customer",
        "id",
        "attempts",
        "due",
        "content_type",
        "bytes",
    ];
    let mut facts: Vec<Vec<String>> = Vec::new();
    for name in FACTS.into_iter().filter(|name| !letter[*name].is_null()) {
        facts.push(vec![name.replace('_', " "), cell(name, &letter[name])]);
    }
    for (kind, what) in [("properties", "property"), ("headers", "header")] {
        for (name, value) in letter[kind].as_object().into_iter().flatten() {
            facts.push(vec![format!("{what} {}", plain(name)), plain(&value.to_string()).into_owned()]);
        }
    }
    out.table(&facts)?;
    let body = match (letter["body"].as_str(), letter["body_base64"].as_str()) {
        (Some(text), _) => text.lines().map(|line| plain(line).into_owned()).collect::<Vec<_>>().join("\n"),
        (None, Some(text)) => format!("(base64) {text}"),
        (None, None) => "(too long to show)".to_owned(),
    };
    out.line(format_args!("\n{body}"))
}

/// The dead letter with this key, at any position in the queue.
fn found(client: &Client, key: &str, whole: bool) -> Result<Value, Failure> {
    let mut found = None;
    let last = walked(client, &vec![("key", key.to_owned())], 1, whole, |page| {
        found = page.first().cloned();
        Ok(())
    })?;
    found.map_or_else(|| Err(ending(&last).err().unwrap_or_else(unknown)), Ok)
}

fn unknown() -> Failure {
    Failure::Partial("unknown: no such dead letter".to_owned())
}

/// Prints one document per line as they arrive, whatever the output format.
fn export(client: &Client, args: &LetterExportArgs) -> Result<(), Failure> {
    let mut left_out = 0;
    let mut out = Out::lock();
    let last =
        walked(client, &filter(&args.filter), args.limit.unwrap_or(MOST_OF_A_WALK as u64), true, |page| {
            left_out += page.iter().filter(|letter| letter["body_left_out"] == true).count();
            page.iter().try_for_each(|letter| out.line(inert(&letter.to_string())))?;
            out.all_written()
        })?;
    ending(&last)?;
    // Before dropping what was saved, the operator must know that it was not all.
    if let Some(text) = unseen(&last) {
        return Err(Failure::Partial(format!("not all were saved {text}")));
    }
    if left_out > 0 {
        let text = format!("{left_out} saved without their bodies, which are longer than 8 MiB");
        return Err(Failure::Partial(text));
    }
    Ok(())
}

/// An action on dead letters, with its words for the result and for the question.
struct LetterDeed {
    method: Method,
    path: &'static [&'static str],
    done: &'static str,
    asked: &'static str,
}

const DROP: LetterDeed = LetterDeed {
    method: Method::DELETE,
    path: &["dead"],
    done: "dropped",
    asked: "deletes them permanently",
};
const RETRY: LetterDeed = LetterDeed {
    method: Method::POST,
    path: &["dead", "retry"],
    done: "sent back",
    asked: "sends them back",
};

fn retry(client: &Client, args: &LetterRetryArgs, output: Output) -> Result<(), Failure> {
    let terms = [
        ("at", args.at.map(|ms| ms.to_string())),
        ("delay", args.delay.map(|delay| millis(delay).to_string())),
        ("deliver_before", args.deliver_before.map(|ms| ms.to_string())),
    ];
    let terms: LetterQuery = terms.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
    change(client, &args.meant, &RETRY, &terms, output)
}

/// The number of dead letters that match.
fn meant(client: &Client, args: &MeantArgs) -> Result<u64, Failure> {
    if let Some(key) = &args.key {
        return found(client, key, false).map(|_| 1);
    }
    let counted = counted(client)?;
    ending(&counted)?;
    Ok(groups_of(&counted, &args.filter).iter().filter_map(|group| group["count"].as_u64()).sum())
}

fn change(
    client: &Client,
    args: &MeantArgs,
    deed: &LetterDeed,
    terms: &[(&'static str, String)],
    output: Output,
) -> Result<(), Failure> {
    if !args.yes {
        let count = meant(client, args)?;
        let first = match args.limit {
            Some(limit) if count > limit => format!("the first {limit}, "),
            Some(_) | None => String::new(),
        };
        let text = format!("{}: {first}--yes {}", letters(count), deed.asked);
        return Err(Failure::Usage(text));
    }
    let mut pairs = filter(&args.filter);
    pairs.extend(args.key.clone().map(|key| ("key", key)));
    pairs.extend(args.all.then(|| ("all", true.to_string())));
    pairs.extend_from_slice(terms);
    let (mut count, mut kept) = (0, 0);
    let call = |limit: u64, place| {
        let mut pairs = pairs.clone();
        pairs.extend([("limit", limit.to_string()), place]);
        client.ask(deed.method.clone(), &(path(deed.path) + &query(&pairs)))
    };
    let mut total = walk(args.limit.unwrap_or(MOST_OF_A_WALK as u64), call, |answer| {
        let done = answer["count"].as_u64().unwrap_or(0);
        count += done;
        kept += answer["kept"].as_u64().unwrap_or(0);
        Ok(done)
    })?;
    (total["result"], total["count"], total["kept"]) = (json!("done"), json!(count), json!(kept));
    if let Some(depth) = total["depth"].as_u64() {
        total["left"] = json!(depth.saturating_sub(count));
    }
    conclude(&total, deed, args.limit, output)
}

fn letters(count: u64) -> String {
    format!("{count} letter{}", if count == 1 { "" } else { "s" })
}

/// Without a limit the command covers all: it is partial if others that may match remain.
fn conclude(total: &Value, deed: &LetterDeed, limit: Option<u64>, output: Output) -> Result<(), Failure> {
    let (count, kept) = (total["count"].as_u64().unwrap_or(0), total["kept"].as_u64().unwrap_or(0));
    let left = total["left"].as_u64().map_or(String::new(), |left| format!("; left in the queue: {left}"));
    let text = format!("{}: {}{left}", deed.done, letters(count));
    let mut out = Out::lock();
    match output {
        Output::Json => out.json(total)?,
        Output::Table => out.line(&text)?,
    }
    if let Some(stopped) = total["stopped"].as_str() {
        return Err(Failure::Partial(format!("stopped: {}", plain(stopped))));
    }
    if kept > 0 {
        let text = format!(
            "{} not sent back: an envelope contains its times and cannot get a new one",
            letters(kept)
        );
        return Err(Failure::Partial(text));
    }
    match (count, total["more"] == true) {
        (0, false) => Err(unknown()),
        (0, true) => {
            let text = format!("no such dead letter among the first {} of the queue", total["looked_at"]);
            Err(Failure::Partial(text))
        }
        (_, true) if limit.is_none_or(|limit| count < limit) => Err(Failure::Partial(format!(
            "the dead letters behind the first {} of the queue were not read: not all were {}",
            total["looked_at"], deed.done
        ))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer of a walk: the number handled, and the cursor for the next call.
    fn answer(count: u64, cursor: Option<&str>) -> Value {
        json!({ "result": "done", "count": count, "kept": 0, "depth": 2_500, "left": 2_500 - count,
                "looked_at": 2_500, "more": cursor.is_some(), "stopped": null, "cursor": cursor })
    }

    fn count(answer: &Value) -> Result<u64, Failure> {
        Ok(answer["count"].as_u64().unwrap_or(0))
    }

    #[test]
    fn a_walk_goes_on_with_each_cursor_until_there_is_none() {
        let mut cursors = ["1", "2"].into_iter();
        let (mut calls, mut done) = (Vec::new(), 0);
        let call = |limit: u64, (name, value): (&'static str, String)| {
            calls.push((limit, name, value));
            Ok(answer(1_000, cursors.next()))
        };
        let last = walk(100_000, call, |answer| count(answer).inspect(|count| done += count)).unwrap();
        assert_eq!((done, last["cursor"].is_null()), (3_000, true));
        let places: Vec<(&str, &str)> = calls.iter().map(|(_, name, value)| (*name, &**value)).collect();
        assert_eq!(places, [("walk", "true"), ("cursor", "1"), ("cursor", "2")]);
        assert_eq!(calls.iter().map(|call| call.0).collect::<Vec<_>>(), [100_000, 99_000, 98_000]);
    }

    #[test]
    fn the_limit_is_kept_and_a_failure_tells_what_was_done() {
        let mut calls = Vec::new();
        let last = walk(
            1_500,
            |limit, _| {
                calls.push(limit);
                Ok(answer(limit.min(1_000), Some("1")))
            },
            count,
        );
        assert_eq!((calls, last.unwrap()["count"].as_u64()), (vec![1_000 + 500, 500], Some(500)));
        let mut first = true;
        let call = |_, _| match std::mem::take(&mut first) {
            true => Ok(answer(1_000, Some("1"))),
            false => Err(Failure::failed("gone")),
        };
        let mut total = walk(5_000, call, count).unwrap();
        assert_eq!(total["stopped"].as_str(), Some("gone"));
        total["count"] = json!(1_000);
        assert_eq!(conclude(&total, &DROP, None, Output::Table).unwrap_err().exit_code(), 3);
        assert_eq!(walk(1, |_, _| Err(Failure::failed("no")), count).unwrap_err().exit_code(), 1);
    }
}
