//! Reads paths and queries into checked values; pure.
//!
//! Names and ids may contain any UTF-8, slashes and spaces included: percent-encoded in a path, form-encoded
//! in a query (`+` is a space). Invalid input is refused with a sentence that names the parameter, and is
//! never guessed at: half of these requests destroy something.

use super::command::ItemOf;
use percent_encoding::percent_decode_str;
use std::sync::Arc;
use tidegate_config::rfc3339::{rfc3339_ms, Rounding};
use tidegate_config::terms::{FIRST_PLAUSIBLE_MS, MAX_ID, MAX_NAME};
use tidegate_types::rate::NoRate;
use tidegate_types::{
    CustomerOf, Filter, Key, ListPlace, ListedStage, Moment, Rate, Selection, TimelineQuery,
};
use tidegate_wire::dead_letters::{
    LetterFilter, LetterJob, LetterKey, LetterTask, LetterWalk, NewTime, RetryTerms, WalkCursor,
    MOST_LOOKED_AT, MOST_OF_A_CALL, MOST_OF_A_WALK,
};

/// Most rows of one page.
pub const MAX_PAGE: usize = 1_000;
/// Default number of rows of a page.
pub const DEFAULT_PAGE: usize = 100;

/// Index of the application in the segments of a path that names one: `/api/v1/KIND/APPLICATION`.
const APPLICATION: usize = 4;
/// Index of the segment behind the application, which names the target.
const SECOND: usize = 5;
/// Most characters quoted of a client's text.
const QUOTED: usize = 64;

/// The fault of a request: a sentence that names the parameter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadRequest(String);

fn fault(parameter: &str, text: &str) -> BadRequest {
    BadRequest(format!("{parameter}: {text}"))
}

/// The application of a path.
///
/// # Errors
/// If it is not 1 to [`MAX_NAME`] bytes of percent-encoded UTF-8.
pub fn application(path: &str) -> Result<Box<str>, BadRequest> {
    segment(path, APPLICATION, "application", MAX_NAME)
}

/// Application and customer of a path.
///
/// # Errors
/// As [`application`].
pub fn customer(path: &str) -> Result<CustomerOf, BadRequest> {
    Ok(CustomerOf { application: application(path)?, customer: segment(path, SECOND, "customer", MAX_NAME)? })
}

/// Application and id of a path.
///
/// # Errors
/// As [`application`]; an id may have up to [`MAX_ID`] bytes.
pub fn item(path: &str) -> Result<ItemOf, BadRequest> {
    Ok(ItemOf { application: application(path)?, id: segment(path, SECOND, "id", MAX_ID)? })
}

fn segment(path: &str, place: usize, parameter: &str, most: usize) -> Result<Box<str>, BadRequest> {
    let text = decoded(path.split('/').nth(place).unwrap_or_default(), parameter)?;
    bounded(&text, parameter, most)?;
    Ok(text.into())
}

fn bounded(text: &str, parameter: &str, most: usize) -> Result<(), BadRequest> {
    match text.len() {
        0 => Err(fault(parameter, "it must not be empty")),
        n if n > most => Err(fault(parameter, &format!("it has {n} bytes, {most} are allowed"))),
        _ => Ok(()),
    }
}

/// A percent sign that begins no escape is refused and not taken literally: the name was not encoded, and may
/// mean something else.
fn decoded(text: &str, parameter: &str) -> Result<String, BadRequest> {
    let whole = text.split('%').skip(1).all(|rest| {
        let digits = rest.as_bytes();
        digits.len() >= 2 && digits[..2].iter().all(u8::is_ascii_hexdigit)
    });
    if !whole {
        return Err(fault(parameter, "a % is not followed by two hexadecimal digits"));
    }
    let text = percent_decode_str(text).decode_utf8();
    text.map(|t| t.into_owned()).map_err(|_| fault(parameter, "it is not UTF-8"))
}

/// For a path without query parameters.
///
/// # Errors
/// If there is a query.
pub fn no_query(query: Option<&str>) -> Result<(), BadRequest> {
    match pairs(query.unwrap_or_default())?.first() {
        None => Ok(()),
        Some((name, _)) => Err(unknown(name)),
    }
}

/// Spans of a timeline, with the length of a bucket in ms and the number of buckets.
const SPANS: [(&str, u64, usize); 3] = [("minute", 1_000, 60), ("hour", 60_000, 60), ("day", 1_800_000, 48)];

/// The timeline that a query asks for. An empty value counts as absent; the default span is the next hour.
///
/// # Errors
/// As [`filter`].
pub fn timeline(query: Option<&str>) -> Result<TimelineQuery, BadRequest> {
    let [_, (_, each_ms, stretches), _] = SPANS;
    let mut timeline = TimelineQuery { application: None, at: None, each_ms, stretches };
    for (name, value) in form(query, &["application", "span"])? {
        if name == "application" {
            bounded(&value, &name, MAX_NAME)?;
            timeline.application = Some(Arc::from(value));
        } else {
            let span = SPANS.into_iter().find(|(word, ..)| *word == value);
            let (_, each_ms, stretches) =
                span.ok_or_else(|| fault(&name, "it must be minute, hour or day"))?;
            (timeline.each_ms, timeline.stretches) = (each_ms, stretches);
        }
    }
    Ok(timeline)
}

/// The filter of a list. An empty value counts as absent. Of `cursor` and `from`, the later position applies.
///
/// # Errors
/// If a parameter is unknown, given twice or invalid.
pub fn filter(query: Option<&str>) -> Result<Filter, BadRequest> {
    const KNOWN: [&str; 7] = ["application", "customer", "state", "from", "to", "cursor", "limit"];
    let mut filter = Filter { limit: DEFAULT_PAGE, ..Filter::default() };
    for (name, value) in form(query, &KNOWN)? {
        set(&mut filter, &name, &value)?;
    }
    Ok(filter)
}

/// The items of an application to count or to cancel: `customer`, `customer_prefix`, `due_after`,
/// `due_before`, `received_before`; or `all=true`.
///
/// # Errors
/// As [`pause_end`]; and without any filter or `all`, or with both.
pub fn selection(application: Box<str>, query: Option<&str>) -> Result<Selection, BadRequest> {
    const KNOWN: [&str; 6] =
        ["all", "customer", "customer_prefix", "due_after", "due_before", "received_before"];
    let parameters = parameters(query, &KNOWN)?;
    let all = flag(&parameters, "all")?;
    let mut selection = Selection::all(application);
    for (name, value) in parameters.iter().filter(|(name, _)| name != "all") {
        if all {
            return Err(fault("all", &format!("it cannot be combined with `{name}`")));
        }
        let at = || moment(value).map_err(|text| fault(name, text));
        match name.as_str() {
            "due_after" => selection.due_from = at()?,
            "due_before" => selection.due_until = at()?,
            "received_before" => selection.received_until = at()?,
            _ => {
                bounded(value, name, MAX_NAME)?;
                if name == "customer" {
                    selection.customer = Some(value.as_str().into());
                } else {
                    selection.customer_prefix = value.as_str().into();
                }
            }
        }
    }
    if !all && selection == Selection::all(selection.application.clone()) {
        return Err(fault("all", "select items, or give `all=true`"));
    }
    Ok(selection)
}

/// The new time of an item: `at` (a moment) or `delay` (in ms).
///
/// # Errors
/// As [`pause_end`]; and with neither parameter.
pub fn new_due(query: Option<&str>) -> Result<Moment, BadRequest> {
    own_time(&parameters(query, &["at", "delay"])?)?
        .ok_or_else(|| fault("at", "say when: `at`, a moment, or `delay`, in ms"))
}

/// The end of a pause: `until` (a moment) or `for` (in ms). Without either it ends only by a command.
///
/// # Errors
/// If a parameter is unknown, given twice, empty or invalid, or both are given.
pub fn pause_end(query: Option<&str>) -> Result<Option<Moment>, BadRequest> {
    one_time(&parameters(query, &["until", "for"])?, "until", "for")
}

/// The new rate of an application, and its end: `until` (a moment) or `for` (in ms).
///
/// # Errors
/// As [`pause_end`]; and without a rate.
pub fn slowed(query: Option<&str>) -> Result<(Rate, Option<Moment>), BadRequest> {
    let all = parameters(query, &["rate", "until", "for"])?;
    let rate = of(&all, "rate").ok_or_else(|| fault("rate", "say how fast, such as 10/s"))?;
    let rate = rate.parse().map_err(|error: NoRate| fault("rate", &error.to_string()))?;
    Ok((rate, one_time(&all, "until", "for")?))
}

/// The value of `at` (a moment) or `delay` (in ms), if given.
fn own_time(all: &[(String, String)]) -> Result<Option<Moment>, BadRequest> {
    one_time(all, "at", "delay")
}

/// The value of one parameter (a moment) or another (a time from now in ms), if given.
fn one_time(
    all: &[(String, String)],
    at_name: &'static str,
    after_name: &'static str,
) -> Result<Option<Moment>, BadRequest> {
    let at = of(all, at_name).map(|text| moment(text).map_err(|text| fault(at_name, text))).transpose()?;
    match (at, of(all, after_name)) {
        (Some(_), Some(_)) => Err(fault(after_name, &format!("it cannot be combined with `{at_name}`"))),
        (Some(at), None) => Ok(Some(Moment::At(at))),
        (None, Some(text)) => {
            let ms = number(text).ok_or_else(|| fault(after_name, "it is not a number of milliseconds"))?;
            Ok(Some(Moment::After(ms)))
        }
        (None, None) => Ok(None),
    }
}

/// The parameters of a request that changes something, or counts what it would change. An empty value is
/// refused: it is the empty variable of a script, and without it the rest would select more.
fn parameters(query: Option<&str>, known: &[&str]) -> Result<Vec<(String, String)>, BadRequest> {
    let all = known_parameters(query, known)?;
    match all.iter().find(|(_, value)| value.is_empty()) {
        Some((name, _)) => Err(fault(name, "it is empty: give it a value, or leave it out")),
        None => Ok(all),
    }
}

/// The parameters of a request that only reads. An empty value counts as absent, so a form or a template can
/// send all its fields.
fn form(query: Option<&str>, known: &[&str]) -> Result<Vec<(String, String)>, BadRequest> {
    let mut all = known_parameters(query, known)?;
    all.retain(|(_, value)| !value.is_empty());
    Ok(all)
}

/// The parameters; each must be known and given once.
fn known_parameters(query: Option<&str>, known: &[&str]) -> Result<Vec<(String, String)>, BadRequest> {
    let all = pairs(query.unwrap_or_default())?;
    for (place, (name, _)) in all.iter().enumerate() {
        if !known.contains(&name.as_str()) {
            return Err(unknown(name));
        }
        if all[..place].iter().any(|(before, _)| before == name) {
            return Err(fault(name, "it is given twice"));
        }
    }
    Ok(all)
}

/// A count of dead letters.
///
/// # Errors
/// As [`filter`].
pub fn letter_count(query: Option<&str>) -> Result<LetterTask, BadRequest> {
    Ok(LetterTask { job: LetterJob::Count, walk: walk(&form(query, &LETTER_WALK)?)? })
}

/// Parameters that select dead letters.
const LETTER_CHOICE: [&str; 5] = ["reason", "application", "unreadable", "key", "limit"];
/// Parameters of a walk.
const LETTER_WALK: [&str; 2] = ["walk", "cursor"];

/// A list of dead letters. `whole` is `true` or `false`.
///
/// # Errors
/// As [`filter`].
pub fn letter_list(query: Option<&str>) -> Result<LetterTask, BadRequest> {
    let all = form(query, &letter_parameters(&["whole"]))?;
    let walk = walk(&all)?;
    let (filter, limit) = letter_filter(&all, DEFAULT_PAGE, most(&walk, MOST_LOOKED_AT))?;
    Ok(LetterTask { job: LetterJob::List { filter, limit, whole: flag(&all, "whole")? }, walk })
}

/// Dead letters with headers and body.
///
/// # Errors
/// As [`filter`].
pub fn letter_export(query: Option<&str>) -> Result<LetterTask, BadRequest> {
    let all = form(query, &letter_parameters(&[]))?;
    let walk = walk(&all)?;
    let most = most(&walk, MOST_LOOKED_AT);
    let (filter, limit) = letter_filter(&all, most, most)?;
    Ok(LetterTask { job: LetterJob::List { filter, limit, whole: true }, walk })
}

/// One dead letter with headers and body: `/api/v1/dead/letters/KEY`.
///
/// # Errors
/// If the path contains no valid key.
pub fn letter(path: &str) -> Result<LetterTask, BadRequest> {
    let key = key_of(path.split('/').nth(SECOND).unwrap_or_default())?;
    let filter = LetterFilter { key: Some(key), ..LetterFilter::default() };
    Ok(LetterTask { job: LetterJob::List { filter, limit: 1, whole: true }, walk: LetterWalk::Once })
}

/// Dead letters to drop.
///
/// # Errors
/// If a parameter is unknown, given twice, empty or invalid; and without a key, a reason, an application or
/// `all=true`.
pub fn letter_drop(query: Option<&str>) -> Result<LetterTask, BadRequest> {
    let all = parameters(query, &letter_parameters(&["all"]))?;
    let walk = walk(&all)?;
    let (filter, limit) = meant_letters(&all, &walk)?;
    Ok(LetterTask { job: LetterJob::Drop { filter, limit }, walk })
}

/// Dead letters to send back. `at` and `deliver_before` are moments, `delay` is in ms.
///
/// # Errors
/// As [`letter_drop`]; and with both `at` and `delay`, or an expiry that is not later than the new time.
pub fn letter_retry(query: Option<&str>) -> Result<LetterTask, BadRequest> {
    let all = parameters(query, &letter_parameters(&["all", "at", "delay", "deliver_before"]))?;
    let walk = walk(&all)?;
    let (filter, limit) = meant_letters(&all, &walk)?;
    let time = match own_time(&all)? {
        Some(Moment::At(at)) => NewTime::At(at),
        Some(Moment::After(ms)) => NewTime::After(ms),
        None => NewTime::Now,
    };
    let before = of(&all, "deliver_before");
    let before = before.map(|text| expiry(text).map_err(|text| fault("deliver_before", text)));
    let deliver_before = before.transpose()?;
    if let (NewTime::At(at), Some(before)) = (time, deliver_before) {
        if before <= at {
            return Err(fault("deliver_before", "it is not later than `at`: the item would expire"));
        }
    }
    let terms = RetryTerms { time, deliver_before };
    Ok(LetterTask { job: LetterJob::Retry { filter, limit, terms }, walk })
}

/// The known parameters of a request about dead letters: its own, and those of all such requests.
fn letter_parameters<'n>(own: &[&'n str]) -> Vec<&'n str> {
    [&LETTER_CHOICE[..], &LETTER_WALK, own].concat()
}

fn walk(all: &[(String, String)]) -> Result<LetterWalk, BadRequest> {
    match (flag(all, "walk")?, of(all, "cursor")) {
        (false, None) => Ok(LetterWalk::Once),
        (true, None) => Ok(LetterWalk::First),
        (true, Some(_)) => Err(fault("walk", "it cannot be combined with `cursor`, which continues a walk")),
        (false, Some(text)) => WalkCursor::parse(text)
            .map(LetterWalk::Next)
            .ok_or_else(|| fault("cursor", "it is not a `cursor` of an answer")),
    }
}

/// The largest limit of one call, or of all calls of a walk together.
fn most(walk: &LetterWalk, of_a_call: usize) -> usize {
    match walk {
        LetterWalk::Once => of_a_call,
        LetterWalk::First | LetterWalk::Next(_) => MOST_OF_A_WALK,
    }
}

fn of<'p>(all: &'p [(String, String)], name: &str) -> Option<&'p str> {
    all.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
}

fn flag(all: &[(String, String)], name: &str) -> Result<bool, BadRequest> {
    match of(all, name) {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        Some(_) => Err(fault(name, "it must be true or false")),
    }
}

fn key_of(text: &str) -> Result<LetterKey, BadRequest> {
    LetterKey::parse(text).ok_or_else(|| fault("key", "it is not the key of a dead letter: 32 hex digits"))
}

/// `unreadable` selects dead letters whose application could not be read: any word could be a name.
fn letter_filter(
    all: &[(String, String)],
    limit: usize,
    most: usize,
) -> Result<(LetterFilter, usize), BadRequest> {
    let mut filter = LetterFilter::default();
    if let Some(reason) = of(all, "reason") {
        bounded(reason, "reason", MAX_NAME)?;
        filter.reason = Some(reason.into());
    }
    if let Some(name) = of(all, "application") {
        bounded(name, "application", MAX_NAME)?;
        filter.application = Some(name.into());
    }
    if flag(all, "unreadable")? {
        if filter.application.is_some() {
            return Err(fault("unreadable", "it cannot be combined with `application`"));
        }
        filter.application = Some("".into());
    }
    filter.key = of(all, "key").map(key_of).transpose()?;
    Ok((filter, of(all, "limit").map_or(Ok(limit), |text| rows("limit", text, most))?))
}

/// No filter must not select all by mistake.
fn meant_letters(all: &[(String, String)], walk: &LetterWalk) -> Result<(LetterFilter, usize), BadRequest> {
    let most = most(walk, MOST_OF_A_CALL);
    let (filter, limit) = letter_filter(all, most, most)?;
    match (flag(all, "all")?, filter == LetterFilter::default()) {
        (false, true) => {
            Err(fault("all", "name a key, a reason or an application, or give all=true for all dead letters"))
        }
        (true, false) => Err(fault("all", "it cannot be combined with a filter")),
        (true, true) | (false, false) => Ok((filter, limit)),
    }
}

/// A number of rows, 1 to `most`.
fn rows(name: &str, text: &str, most: usize) -> Result<usize, BadRequest> {
    let rows = number(text).and_then(|n| usize::try_from(n).ok());
    let within = rows.filter(|n| (1..=most).contains(n));
    within.ok_or_else(|| fault(name, &format!("it is not a number from 1 to {most}")))
}

fn set(filter: &mut Filter, name: &str, value: &str) -> Result<(), BadRequest> {
    let checked_name = || bounded(value, name, MAX_NAME).map(|()| Some(Arc::from(value)));
    match name {
        "application" => filter.application = checked_name()?,
        "customer" => filter.customer = checked_name()?,
        "state" => filter.state = Some(stage(value).map_err(|text| fault(name, text))?),
        "from" => {
            let due = moment(value).map_err(|text| fault(name, text))?;
            begin_at(filter, ListPlace { key: Key::at(due), shard: 0 });
        }
        "to" => filter.until = Some(moment(value).map_err(|text| fault(name, text))?),
        "cursor" => {
            let place = cursor(value).ok_or_else(|| fault(name, "it is not a `next` of a page"))?;
            begin_at(filter, place);
        }
        "limit" => filter.limit = rows(name, value, MAX_PAGE)?,
        _ => return Err(unknown(name)),
    }
    Ok(())
}

/// Begins the list at this place, unless it begins later.
fn begin_at(filter: &mut Filter, place: ListPlace) {
    let ListPlace { key, shard } = filter.first().max(place);
    (filter.from, filter.from_shard) = (key, shard);
}

fn unknown(name: &str) -> BadRequest {
    let cut: String = name.chars().take(QUOTED).collect();
    fault(&cut, "this path has no such query parameter")
}

fn pairs(query: &str) -> Result<Vec<(String, String)>, BadRequest> {
    let form = |text: &str, parameter: &str| decoded(&text.replace('+', " "), parameter);
    query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let name = form(name, "the query")?;
            let value = form(value, &name.chars().take(QUOTED).collect::<String>())?;
            Ok((name, value))
        })
        .collect()
}

/// Reads the state of a list's filter.
///
/// # Errors
/// If it is not one of the three.
pub fn stage(text: &str) -> Result<ListedStage, &'static str> {
    [ListedStage::Waiting, ListedStage::InFlight, ListedStage::Parked]
        .into_iter()
        .find(|stage| stage.as_str() == text)
        .ok_or("it must be waiting, in_flight or parked")
}

/// Reads a moment, UTC ms: milliseconds, or RFC 3339 with an offset. A fraction of a ms rounds up; moments
/// before 1970 are 0.
///
/// # Errors
/// If it is neither.
pub fn moment(text: &str) -> Result<u64, &'static str> {
    read_moment(text, Rounding::Up)
}

/// As [`moment`] for an expiry: a fraction of a ms rounds down.
///
/// # Errors
/// As [`moment`].
pub fn expiry(text: &str) -> Result<u64, &'static str> {
    read_moment(text, Rounding::Down)
}

fn read_moment(text: &str, rounding: Rounding) -> Result<u64, &'static str> {
    if let Some(ms) = number(text) {
        // 0 means the epoch.
        return match ms {
            1..FIRST_PLAUSIBLE_MS => {
                Err("that is in 1973 or before: it is read as milliseconds, and looks like seconds")
            }
            _ => Ok(ms),
        };
    }
    // A plus sign that was not encoded arrives as a space.
    let text = match text.len().checked_sub(6).and_then(|at| text.split_at_checked(at)) {
        Some((before, offset)) if offset.starts_with(' ') => format!("{before}+{}", &offset[1..]),
        Some(_) | None => text.to_owned(),
    };
    let ms = rfc3339_ms(&text, rounding)
        .ok_or("it is neither milliseconds nor RFC 3339 such as 2030-01-31T09:00:00+01:00")?;
    Ok(u64::try_from(ms).unwrap_or(0))
}

/// The text of a page's end, where the next page begins: the three numbers of a key, and the shard unless it
/// is the first.
pub fn cursor_text(place: ListPlace) -> String {
    let ListPlace { key: Key { due, window, seq }, shard } = place;
    if shard == 0 {
        format!("{due}-{window}-{seq}")
    } else {
        format!("{due}-{window}-{seq}-{shard}")
    }
}

/// Reads the text of [`cursor_text`].
pub fn cursor(text: &str) -> Option<ListPlace> {
    let (due, rest) = text.split_once('-')?;
    let (window, rest) = rest.split_once('-')?;
    let (seq, shard) = rest.split_once('-').unwrap_or((rest, "0"));
    let key = Key { due: number(due)?, window: number(window)?, seq: number(seq)? };
    Some(ListPlace { key, shard: u16::try_from(number(shard)?).ok()? })
}

/// A number of digits only, without sign or space.
fn number(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
#[path = "parse_tests.rs"]
mod tests;
