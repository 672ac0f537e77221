//! The configuration as written: one tree of keys and values, each with its place; the environment overrides
//! the file.
//!
//! This module does not know the keys or their meaning.

use super::finding::{Finding, Location};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use toml::de::{DeTable, DeValue};

/// Prefix of the environment variables that override keys.
pub(crate) const PREFIX: &str = "TIDEGATE__";

/// Keys with their values.
pub(crate) type Table<'t> = BTreeMap<String, Node<'t>>;

/// A value, and the place of its key.
pub(crate) struct Node<'t> {
    pub place: Location,
    /// The text of the variable, if the value comes from one.
    pub text: Option<&'t str>,
    pub value: Value<'t>,
}

/// The shape of a value.
pub(crate) enum Value<'t> {
    Table(Table<'t>),
    List(Vec<Node<'t>>),
    /// Text, number, boolean or date.
    Leaf(DeValue<'t>),
}

/// Reads TOML text. A syntax fault (a repeated key is one) leaves nothing that can be trusted, so syntax
/// faults are reported alone, all of them.
pub(crate) fn parse<'t>(text: &'t str, path: &Arc<Path>) -> Result<Table<'t>, Vec<Finding>> {
    let lines: Vec<usize> = text.bytes().enumerate().filter(|&(_, b)| b == b'\n').map(|(n, _)| n).collect();
    let place = |offset: usize| Location::File {
        line: 1 + lines.partition_point(|&end| end < offset),
        path: path.clone(),
    };
    let (document, errors) = DeTable::parse_recoverable(text);
    if errors.is_empty() {
        return Ok(table(document.into_inner(), &place));
    }
    // Only the parser's message is used: its `Display` would quote the line, which may contain a password.
    let fault = |e: toml::de::Error| Finding {
        place: place(e.span().map_or(text.len(), |s| s.start)),
        key: String::new(),
        text: format!("not valid TOML: {}", e.message()),
    };
    Err(errors.into_iter().map(fault).collect())
}

fn table<'t>(source: DeTable<'t>, place: &impl Fn(usize) -> Location) -> Table<'t> {
    source
        .into_iter()
        .map(|(key, v)| {
            let at = place(key.span().start);
            (
                key.into_inner().into_owned(),
                Node { place: at, text: None, value: value(v.into_inner(), place) },
            )
        })
        .collect()
}

fn value<'t>(source: DeValue<'t>, place: &impl Fn(usize) -> Location) -> Value<'t> {
    match source {
        DeValue::Table(t) => Value::Table(table(t, place)),
        DeValue::Array(a) => Value::List(
            a.into_iter()
                .map(|v| Node {
                    place: place(v.span().start),
                    text: None,
                    value: value(v.into_inner(), place),
                })
                .collect(),
        ),
        leaf @ (DeValue::String(_)
        | DeValue::Integer(_)
        | DeValue::Float(_)
        | DeValue::Boolean(_)
        | DeValue::Datetime(_)) => Value::Leaf(leaf),
    }
}

/// Applies one environment variable to the tree. Its text is read as a TOML value if possible, else as text.
pub(crate) fn overlay<'t>(root: &mut Table<'t>, name: &'t str, text: &'t str) -> Result<(), Finding> {
    let place = Location::Variable(name.to_owned());
    let fault = |text: &str| Finding { place: place.clone(), key: String::new(), text: text.to_owned() };
    let path = path_of(name).map_err(fault)?;
    if text.contains(char::REPLACEMENT_CHARACTER) {
        return Err(fault("its value is not UTF-8"));
    }
    let Some((key, sections)) = path.split_last() else {
        return Err(fault("names no key"));
    };
    let mut table = root;
    for section in sections {
        let empty = || Node { place: place.clone(), text: None, value: Value::Table(Table::new()) };
        match &mut table.entry(section.clone()).or_insert_with(empty).value {
            Value::Table(t) => table = t,
            // Another value has the place of a section, which is a separate fault.
            Value::List(_) | Value::Leaf(_) => return Ok(()),
        }
    }
    let parsed = DeValue::parse(text).map_or_else(|_| DeValue::String(text.into()), |v| v.into_inner());
    let value = value(parsed, &|_| place.clone());
    table.insert(key.clone(), Node { place, text: Some(text), value });
    Ok(())
}

/// The keys, outermost first, that a variable's name stands for. Names of applications are used unchanged
/// (and may contain `__`); all other parts are in upper case.
fn path_of(name: &str) -> Result<Vec<String>, &'static str> {
    let parts: Vec<&str> = name.strip_prefix(PREFIX).unwrap_or(name).split("__").collect();
    let (front, names, keys) = match parts.as_slice() {
        ["APPLICATIONS", rest @ ..] => {
            let deep = rest.len() >= 3 && ["RETRY", "REDELIVER"].contains(&rest[rest.len() - 2]);
            let keys = if deep { 2 } else { 1 };
            if rest.len() <= keys {
                return Err("names no key: write TIDEGATE__APPLICATIONS__NAME__KEY");
            }
            let (names, keys) = rest.split_at(rest.len() - keys);
            (&parts[..1], names, keys)
        }
        [_, _, ..] => (&parts[..1], &[][..], &parts[1..]),
        _ => return Err("names no key: write TIDEGATE__SECTION__KEY"),
    };
    if front.iter().chain(keys).any(|p| p.is_empty() || p.chars().any(char::is_lowercase)) {
        return Err(
            "unknown variable: sections and keys are written in upper case, with two underscores between",
        );
    }
    let lower = |parts: &[&str]| parts.iter().map(|p| p.to_lowercase()).collect::<Vec<_>>();
    let mut path = lower(front);
    if !names.is_empty() {
        path.push(names.join("__"));
    }
    path.extend(lower(keys));
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_variables() {
        let path = |name: &str| path_of(name).map(|p| p.join("."));
        assert_eq!(path("TIDEGATE__INGEST__QUEUE").unwrap(), "ingest.queue");
        assert_eq!(path("TIDEGATE__DEFAULTS__RETRY__MIN").unwrap(), "defaults.retry.min");
        assert_eq!(path("TIDEGATE__LIMITS__MAX_BODY").unwrap(), "limits.max_body");
        assert_eq!(path("TIDEGATE__APPLICATIONS__Shop__WINDOW").unwrap(), "applications.Shop.window");
        assert_eq!(path("TIDEGATE__APPLICATIONS__a__b__WINDOW").unwrap(), "applications.a__b.window");
        assert_eq!(path("TIDEGATE__APPLICATIONS__a__RETRY__MAX").unwrap(), "applications.a.retry.max");
        let redeliver = path("TIDEGATE__APPLICATIONS__a__b__REDELIVER__REASONS");
        assert_eq!(redeliver.unwrap(), "applications.a__b.redeliver.reasons");
        assert_eq!(path("TIDEGATE__APPLICATIONS__a__RETRY").unwrap(), "applications.a.retry");
        assert_eq!(path("TIDEGATE__APPLICATIONS__RETRY__MIN").unwrap(), "applications.RETRY.min");
        for bad in ["TIDEGATE__", "TIDEGATE__INGEST", "TIDEGATE__APPLICATIONS__a", "TIDEGATE__ingest__QUEUE"]
        {
            assert!(path_of(bad).is_err(), "{bad}");
        }
        assert!(path_of("TIDEGATE__INGEST____QUEUE").is_err());
    }

    #[test]
    fn lines_count_from_one() {
        let tree = parse("[a]\nb = 1\n\n[c]\nd = [\n 1,\n 2]\n", &Path::new("f").into());
        let Ok(tree) = tree else { panic!("it parses") };
        assert_eq!(tree["a"].place.to_string(), "f:1");
        let Value::Table(c) = &tree["c"].value else { panic!("a table") };
        assert_eq!(c["d"].place.to_string(), "f:5");
        let Value::List(d) = &c["d"].value else { panic!("a list") };
        assert_eq!(d[1].place.to_string(), "f:7");
    }
}
