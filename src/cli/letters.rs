//! `dead`: what lies in the queue of dead letters, page by page and call by call.

use super::args::{
    DeadCommand, LetterArgs, LetterDropArgs, LetterExportArgs, LetterFilterArgs, LetterListArgs,
    LetterRetryArgs, MeantArgs, Output,
};
use super::client::{is_unknown, path, query, Client};
use super::commands::cell;
use super::millis;
use super::output::{plain, Failure, Out};
use crate::letters::MOST_OF_A_CALL;
use serde_json::{json, Value};
use ureq::http::Method;

type LetterQuery = Vec<(&'static str, String)>;

/// Runs one of them.
///
/// # Errors
/// Failed when the daemon or the broker cannot be asked; usage when it was not said that it is meant; partial
/// when not all was done, or nothing was there.
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

/// Up to `limit` letters, in one walk.
fn walked(client: &Client, filter: &LetterFilterArgs, limit: u64, whole: bool) -> Result<Value, Failure> {
    let mut pairs = self::filter(filter);
    pairs.extend([("limit", limit.to_string()), ("whole", whole.to_string())]);
    let page = client.ask(Method::GET, &(path(&["dead"]) + &query(&pairs)))?;
    match page["letters"].is_array() {
        true => Ok(page),
        false => Err(Failure::failed("the daemon's answer is no list")),
    }
}

/// What of the queue was not seen, and why.
fn ending(page: &Value) -> Result<(), Failure> {
    if let Some(text) = page["stopped"].as_str() {
        return Err(Failure::Partial(format!("not all were looked at: {}", plain(text))));
    }
    Ok(())
}

fn unseen(page: &Value) -> Option<String> {
    let (looked_at, depth) = (page["looked_at"].as_u64()?, page["depth"].as_u64()?);
    (page["more"] == true).then(|| format!("(looked at {looked_at} of {depth}; there are more)"))
}

fn list(client: &Client, args: &LetterListArgs, output: Output) -> Result<(), Failure> {
    let page = walked(client, &args.filter, args.limit, false)?;
    let mut out = Out::lock();
    match output {
        Output::Json => out.json(&page)?,
        Output::Table => {
            out.table(&rows(&LETTER_COLUMNS, page["letters"].as_array().map_or(&[][..], Vec::as_slice)))?;
            unseen(&page).map_or(Ok(()), |text| out.line(text))?;
        }
    }
    ending(&page)
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
    let mut counted = client.ask(Method::GET, &path(&["dead", "count"]))?;
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

fn groups_of(counted: &Value, filter: &LetterFilterArgs) -> Vec<Value> {
    let application = if filter.unreadable { Some("") } else { filter.application.as_deref() };
    let meant = |group: &&Value| {
        filter.reason.as_deref().is_none_or(|reason| group["reason"] == reason)
            && application.is_none_or(|name| group["application"] == name)
    };
    counted["groups"].as_array().into_iter().flatten().filter(meant).cloned().collect()
}

fn show(client: &Client, args: &LetterArgs, output: Output) -> Result<(), Failure> {
    let letter = client.ask(Method::GET, &path(&["dead", "letters", &args.key]))?;
    if is_unknown(&letter) {
        return Err(unknown(&letter));
    }
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
        (None, None) => "(longer than is shown)".to_owned(),
    };
    out.line(format_args!("\n{body}"))
}

fn unknown(answer: &Value) -> Failure {
    let text = match answer["more"] == true {
        true => format!("no such letter among the first {} of the queue", answer["looked_at"]),
        false => "unknown: no such letter is there".to_owned(),
    };
    Failure::Partial(text)
}

/// One document a line, whatever the output is to be.
fn export(client: &Client, args: &LetterExportArgs) -> Result<(), Failure> {
    let page = walked(client, &args.filter, args.limit, true)?;
    let letters = page["letters"].as_array().map_or(&[][..], Vec::as_slice);
    let left_out = letters.iter().filter(|letter| letter["body_left_out"] == true).count();
    let mut out = Out::lock();
    letters.iter().try_for_each(|letter| out.line(letter))?;
    ending(&page)?;
    // Whoever drops what was saved must know that it was not all.
    if let Some(text) = unseen(&page) {
        return Err(Failure::Partial(format!("not all were saved {text}")));
    }
    if left_out > 0 {
        let text = format!("{left_out} without their bodies, which are longer than 8 MiB");
        return Err(Failure::Partial(text));
    }
    Ok(())
}

/// What is done with letters, in the words of an answer and a question.
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
    asked: "takes them away for good",
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

/// So many letters are meant, or more: not all were looked at.
fn meant(client: &Client, args: &MeantArgs) -> Result<(u64, bool), Failure> {
    if let Some(key) = &args.key {
        let letter = client.ask(Method::GET, &path(&["dead", "letters", key]))?;
        return if is_unknown(&letter) { Err(unknown(&letter)) } else { Ok((1, false)) };
    }
    let counted = client.ask(Method::GET, &path(&["dead", "count"]))?;
    ending(&counted)?;
    let count = groups_of(&counted, &args.filter).iter().filter_map(|group| group["count"].as_u64()).sum();
    Ok((count, counted["more"] == true))
}

fn change(
    client: &Client,
    args: &MeantArgs,
    deed: &LetterDeed,
    terms: &[(&'static str, String)],
    output: Output,
) -> Result<(), Failure> {
    if !args.yes {
        let (count, more) = meant(client, args)?;
        let least = if more { "at least " } else { "" };
        let first = match args.limit {
            Some(limit) if more || count > limit => format!("the first {limit}, "),
            Some(_) | None => String::new(),
        };
        let text = format!("{least}{}: {first}--yes {}", letters(count), deed.asked);
        return Err(Failure::Usage(text));
    }
    let mut pairs = filter(&args.filter);
    pairs.extend(args.key.clone().map(|key| ("key", key)));
    pairs.extend(args.all.then(|| ("all", true.to_string())));
    pairs.extend_from_slice(terms);
    let total = call_by_call(args.limit.unwrap_or(u64::MAX), |limit| {
        let mut pairs = pairs.clone();
        pairs.push(("limit", limit.to_string()));
        client.ask(deed.method.clone(), &(path(deed.path) + &query(&pairs)))
    })?;
    conclude(&total, deed, args.limit, output)
}

fn letters(count: u64) -> String {
    format!("{count} letter{}", if count == 1 { "" } else { "s" })
}

/// Until so many are done, or none is left that was there at the beginning: those that die again come behind
/// the others, and must not go round.
fn call_by_call(limit: u64, mut call: impl FnMut(u64) -> Result<Value, Failure>) -> Result<Value, Failure> {
    let (mut done, mut there) = (0, None);
    loop {
        let most = limit - done;
        let called = call(most.min(MOST_OF_A_CALL as u64));
        let mut answer = match called {
            Ok(answer) => answer,
            Err(failure) if done == 0 => return Err(failure),
            Err(failure) => {
                let text = failure.text().unwrap_or_default().to_owned();
                json!({ "result": "done", "count": 0, "kept": 0, "more": true, "stopped": text })
            }
        };
        let count = answer["count"].as_u64().unwrap_or(0);
        let depth = *there.get_or_insert_with(|| answer["depth"].as_u64().unwrap_or(0));
        done += count;
        let over = count == 0 || done >= limit || done >= depth;
        if over || answer["more"] != true || !answer["stopped"].is_null() {
            answer["count"] = json!(done);
            return Ok(answer);
        }
    }
}

/// Whoever said no number meant all: where some are left that might be meant, that is not done.
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
            "{} not sent back: an envelope says its times itself, and takes no new one",
            letters(kept)
        );
        return Err(Failure::Partial(text));
    }
    match (count, total["more"] == true) {
        (0, false) => Err(Failure::Partial("unknown: no such letter is there".to_owned())),
        (0, true) => {
            let text = format!("no such letter among the first {} of the queue", total["looked_at"]);
            Err(Failure::Partial(text))
        }
        (_, true) if limit.is_none_or(|limit| count < limit) => Err(Failure::Partial(format!(
            "there are letters behind the first {} of the queue that were not looked at: not all were {}",
            total["looked_at"], deed.done
        ))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(count: u64, depth: u64, more: bool) -> Value {
        json!({ "result": "done", "count": count, "kept": 0, "depth": depth, "left": depth - count,
                "looked_at": depth, "more": more, "stopped": null })
    }

    #[test]
    fn what_dies_again_does_not_go_round() {
        let mut calls = Vec::new();
        let total = call_by_call(100_000, |limit| {
            calls.push(limit);
            Ok(answer(1_000, 2_500, true))
        });
        assert_eq!((calls.len(), total.unwrap()["count"].as_u64()), (3, Some(3_000)));
        assert_eq!(calls, [1_000, 1_000, 1_000]);
    }

    #[test]
    fn the_limit_is_kept_and_a_failure_tells_what_was_done() {
        let mut calls = Vec::new();
        let total = call_by_call(1_500, |limit| {
            calls.push(limit);
            Ok(answer(limit, 5_000, true))
        });
        assert_eq!((calls, total.unwrap()["count"].as_u64()), (vec![1_000, 500], Some(1_500)));
        let mut first = true;
        let total = call_by_call(5_000, |limit| match std::mem::take(&mut first) {
            true => Ok(answer(limit, 5_000, true)),
            false => Err(Failure::failed("gone")),
        });
        let total = total.unwrap();
        assert_eq!((total["count"].as_u64(), total["stopped"].as_str()), (Some(1_000), Some("gone")));
        assert_eq!(conclude(&total, &DROP, None, Output::Table).unwrap_err().exit_code(), 3);
        assert_eq!(call_by_call(1, |_| Err(Failure::failed("no"))).unwrap_err().exit_code(), 1);
    }
}
