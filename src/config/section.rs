//! Reads one section of the tree, each key once through its seed; a key that is not read is unknown.
//!
//! So the code that reads the keys is their only list.

use super::finding::{nearest, Finding, Location};
use super::tree::{Node, Table, Value};
use super::units::Shape;
use serde::de::DeserializeSeed;
use serde_json::json;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use toml::de::{DeValue, Error, ValueDeserializer};
use toml::Spanned;

/// All findings so far.
#[derive(Default)]
pub(crate) struct Findings {
    pub faults: RefCell<Vec<Finding>>,
    pub warnings: RefCell<Vec<Finding>>,
    /// Paths of all keys that were read, with the values that each takes.
    pub keys: RefCell<BTreeMap<String, serde_json::Value>>,
}

impl Findings {
    pub(crate) fn fault(&self, place: Location, key: &str, text: impl Into<String>) {
        self.faults.borrow_mut().push(Finding { place, key: key.to_owned(), text: text.into() });
    }

    pub(crate) fn warn(&self, place: Location, key: &str, text: impl Into<String>) {
        self.warnings.borrow_mut().push(Finding { place, key: key.to_owned(), text: text.into() });
    }
}

/// One table of the configuration, present or absent.
pub(crate) struct Section<'t, 'f> {
    findings: &'f Findings,
    path: String,
    place: Location,
    table: Option<&'t Table<'t>>,
    known: Vec<&'static str>,
    failed: BTreeSet<&'static str>,
}

impl<'t, 'f> Section<'t, 'f> {
    /// The whole document.
    pub(crate) fn root(table: &'t Table<'t>, findings: &'f Findings) -> Self {
        let (path, place) = (String::new(), Location::Default);
        Section { findings, path, place, table: Some(table), known: Vec::new(), failed: BTreeSet::new() }
    }

    /// A table in this one; empty if it is absent.
    pub(crate) fn section(&mut self, key: &'static str) -> Section<'t, 'f> {
        self.known.push(key);
        let node = self.table.and_then(|t| t.get(key));
        self.inner(self.path_of(key), node)
    }

    /// The tables in this one whose names are free.
    pub(crate) fn named(&self) -> Vec<(&'t str, Section<'t, 'f>)> {
        let entries = self.table.into_iter().flatten();
        entries.map(|(name, node)| (name.as_str(), self.inner(self.path_of(name), Some(node)))).collect()
    }

    fn inner(&self, path: String, node: Option<&'t Node<'t>>) -> Section<'t, 'f> {
        let table = match node.map(|n| &n.value) {
            None => None,
            Some(Value::Table(t)) => Some(t),
            Some(Value::List(_) | Value::Leaf(_)) => {
                let place = node.map_or(Location::Default, |n| n.place.clone());
                self.findings.fault(
                    place,
                    &path,
                    format!("is a section: write [{path}], or a table in braces"),
                );
                None
            }
        };
        let place = node.map_or(Location::Default, |n| n.place.clone());
        Section { findings: self.findings, path, place, table, known: Vec::new(), failed: BTreeSet::new() }
    }

    /// The value of a key, or `default` if it is absent or faulty; a fault is recorded.
    pub(crate) fn get<S>(&mut self, key: &'static str, default: S::Value, seed: S) -> S::Value
    where
        S: DeserializeSeed<'t> + Shape + Clone,
    {
        let Some(node) = self.node(key, seed.shape()) else { return default };
        let as_text = seed.clone();
        let read: Result<S::Value, Error> = match &node.value {
            // The span is not used: the place is known, and may be outside of a file.
            Value::Leaf(v) => seed.deserialize(ValueDeserializer::from(Spanned::new(0..0, v.clone()))),
            Value::List(_) => Err(serde::de::Error::custom("is a list; expected a single value")),
            Value::Table(_) => Err(serde::de::Error::custom("is a table; expected a single value")),
        };
        // A variable is always text: if it looks like a number, the key may still want text.
        let text =
            node.text.map(|text| ValueDeserializer::from(Spanned::new(0..0, DeValue::String(text.into()))));
        let read = read.or_else(|e| match text {
            Some(text) => as_text.deserialize(text).map_err(|_: Error| e),
            None => Err(e),
        });
        read.unwrap_or_else(|e| {
            self.fault(key, e.message());
            default
        })
    }

    /// As [`get`](Self::get), in milliseconds.
    pub(crate) fn get_ms<S>(&mut self, key: &'static str, default: u64, seed: S) -> u64
    where
        S: DeserializeSeed<'t, Value = Duration> + Shape + Clone,
    {
        // Seeds limit durations to a hundred years, so the milliseconds fit.
        self.get(key, Duration::from_millis(default), seed).as_millis() as u64
    }

    /// A list of values, each with its place; `None` if it is absent or faulty.
    pub(crate) fn list<S>(&mut self, key: &'static str, seed: fn() -> S) -> Option<Vec<(Location, S::Value)>>
    where
        S: DeserializeSeed<'t> + Shape,
    {
        let shape = json!({ "type": "array", "items": seed().shape() });
        let Value::List(nodes) = &self.node(key, shape)?.value else {
            self.fault(key, "is not a list: write [\"..\", \"..\"]");
            return None;
        };
        let mut values = Vec::new();
        for node in nodes {
            let read = match &node.value {
                Value::Leaf(v) => seed().deserialize(ValueDeserializer::from(Spanned::new(0..0, v.clone()))),
                Value::List(_) | Value::Table(_) => {
                    Err(serde::de::Error::custom("contains something other than values"))
                }
            };
            match read {
                Ok(v) => values.push((node.place.clone(), v)),
                Err(e) => self.fault(key, e.message()),
            }
        }
        (!self.failed(&[key])).then_some(values)
    }

    /// Records a fault of a key of this section, at its place.
    pub(crate) fn fault(&mut self, key: &'static str, text: impl Into<String>) {
        self.failed.insert(key);
        self.findings.fault(self.place(key), &self.path_of(key), text);
    }

    /// Records a warning about a key of this section.
    pub(crate) fn warn(&self, key: &'static str, text: impl Into<String>) {
        self.findings.warn(self.place(key), &self.path_of(key), text);
    }

    /// Records a fault of the section itself.
    pub(crate) fn fault_here(&self, text: impl Into<String>) {
        self.findings.fault(self.place.clone(), &self.path, text);
    }

    /// Whether any of these keys has a fault; its value then proves nothing.
    pub(crate) fn failed(&self, keys: &[&'static str]) -> bool {
        keys.iter().any(|k| self.failed.contains(k))
    }

    /// Whether the key is written anywhere.
    pub(crate) fn is_set(&self, key: &str) -> bool {
        self.table.is_some_and(|t| t.contains_key(key))
    }

    /// The place of a key.
    pub(crate) fn place(&self, key: &str) -> Location {
        self.table.and_then(|t| t.get(key)).map_or(Location::Default, |n| n.place.clone())
    }

    /// The place of a key in one of the section's tables.
    pub(crate) fn place_of(&self, section: &str, key: &str) -> Location {
        match self.table.and_then(|t| t.get(section)).map(|node| &node.value) {
            Some(Value::Table(table)) => table.get(key).map_or(Location::Default, |n| n.place.clone()),
            Some(Value::List(_) | Value::Leaf(_)) | None => Location::Default,
        }
    }

    /// The list of findings.
    pub(crate) fn findings(&self) -> &'f Findings {
        self.findings
    }

    /// Path of a key, with its name quoted if TOML requires that.
    pub(crate) fn path_of(&self, key: &str) -> String {
        let bare = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
        let key = match !key.is_empty() && key.bytes().all(bare) {
            true => key.to_owned(),
            false => format!("{key:?}"),
        };
        if self.path.is_empty() {
            key
        } else {
            format!("{}.{key}", self.path)
        }
    }

    fn node(&mut self, key: &'static str, shape: serde_json::Value) -> Option<&'t Node<'t>> {
        self.known.push(key);
        self.findings.keys.borrow_mut().insert(self.path_of(key), shape);
        self.table?.get(key)
    }

    /// Records every key that was not read as a fault.
    pub(crate) fn end(self) {
        for (key, node) in self.table.into_iter().flatten().filter(|(k, _)| !self.known.contains(&k.as_str()))
        {
            let kind = if matches!(node.value, Value::Table(_)) { "section" } else { "key" };
            let hint = match nearest(key, self.known.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("known here: {}", self.known.join(", ")),
            };
            self.findings.fault(node.place.clone(), &self.path_of(key), format!("unknown {kind}, {hint}"));
        }
    }
}
