//! The configuration as a JSON Schema, for editors and for programs that write configurations.
//!
//! The keys and their values come from the code that reads them; meanings and defaults come from the sample.
//! Rules between keys are not part of the schema; `tidegate check` applies them.

use super::{shapes, SAMPLE};
use serde_json::{json, Map, Value};
use std::collections::BTreeMap;

/// Draft 7, which the TOML extensions of editors read.
const DRAFT: &str = "http://json-schema.org/draft-07/schema#";

/// The schema of a configuration file. A value that the schema refuses is refused at the start, too. A value
/// that it accepts may still be out of bounds, since durations and sizes are text.
pub fn schema() -> Value {
    let meanings = meanings();
    let defaults = toml::from_str::<toml::Table>(SAMPLE).unwrap_or_default();
    let mut root = object();
    for (path, mut shape) in shapes() {
        if let Value::Object(shape) = &mut shape {
            if let Some(meaning) = meanings.get(path.as_str()) {
                shape.insert("description".to_owned(), json!(meaning));
            }
            if let Some(default) = find(&defaults, &path) {
                shape.insert("default".to_owned(), json!(default));
            }
        }
        place(&mut root, &path, shape);
    }
    let mut named = root["properties"]["defaults"].clone();
    forget_defaults(&mut named);
    named["description"] = json!("One application; what is left out is as in [defaults]");
    root["properties"]["applications"] = json!({ "type": "object", "additionalProperties": named });
    root["$schema"] = json!(DRAFT);
    root["title"] = json!("tidegate");
    root
}

fn object() -> Value {
    json!({ "type": "object", "additionalProperties": false, "properties": {} })
}

/// Puts a key into its sections.
fn place(root: &mut Value, path: &str, shape: Value) {
    let mut parts = path.split('.').peekable();
    let mut at = root;
    while let Some(part) = parts.next() {
        let inner = &mut at["properties"][part];
        if parts.peek().is_none() {
            *inner = shape;
            return;
        }
        if inner.is_null() {
            *inner = object();
        }
        at = inner;
    }
}

fn find<'t>(table: &'t toml::Table, path: &str) -> Option<&'t toml::Value> {
    match path.split_once('.') {
        Some((section, rest)) => find(table.get(section)?.as_table()?, rest),
        None => table.get(path),
    }
}

/// A key that is left out in an application's table has no default of its own.
fn forget_defaults(shape: &mut Value) {
    if let Value::Object(shape) = shape {
        shape.remove("default");
        let inner = shape.get_mut("properties").and_then(Value::as_object_mut);
        inner.into_iter().flat_map(Map::values_mut).for_each(forget_defaults);
    }
}

/// The meaning of each key in the sample: the comment above it.
fn meanings() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let (mut section, mut comment) = (String::new(), Vec::new());
    for line in SAMPLE.lines() {
        let active = line.strip_prefix('#').filter(|rest| !rest.starts_with(' ')).unwrap_or(line);
        if let Some(text) = line.strip_prefix("# ") {
            comment.push(text.trim_end());
        } else if let Some(name) = line.strip_prefix('[') {
            section = name.trim_end_matches(']').to_owned();
            comment.clear();
        } else if let Some((key, _)) = active.split_once(" = ") {
            found.entry(format!("{section}.{key}")).or_insert_with(|| comment.join("\n"));
            // A comment may be above several keys, but does not apply to what follows an example.
            if line.starts_with('#') {
                comment.clear();
            }
        } else {
            comment.clear();
        }
    }
    found.retain(|_, meaning| !meaning.is_empty());
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_a_type_and_a_meaning() {
        let schema = schema();
        for path in super::super::keys() {
            let pointer = format!("/properties/{}", path.replace('.', "/properties/"));
            let key = schema.pointer(&pointer).unwrap_or_else(|| panic!("{path} is not in the schema"));
            assert!(key["type"].is_string() || key["enum"].is_array(), "{path}: {key}");
            let told = key["description"].as_str().is_some_and(|text| text.len() > 20);
            assert!(
                told || ["defaults.retry.", "defaults.redeliver."].iter().any(|of| path.starts_with(of)),
                "{path} has no meaning"
            );
        }
    }

    #[test]
    fn shapes_and_defaults_are_those_of_the_code() {
        let schema = schema();
        let key = |pointer: &str| schema.pointer(pointer).unwrap();
        let prefetch = key("/properties/ingest/properties/prefetch");
        assert_eq!(
            (&prefetch["type"], &prefetch["minimum"], &prefetch["maximum"], &prefetch["default"]),
            (&json!("integer"), &json!(1), &json!(65_535), &json!(10_000))
        );
        let topology = key("/properties/amqp/properties/topology");
        assert_eq!(topology["enum"], json!(["declare", "passive", "off"]));
        assert_eq!(key("/properties/amqp/properties/uris/type"), "array");
        let shop = key("/properties/applications/additionalProperties/properties");
        assert_eq!((&shop["window"]["type"], &shop["window"]["default"]), (&json!("string"), &Value::Null));
        assert_eq!(shop["retry"]["properties"]["attempts"]["type"], "integer");
        assert_eq!(key("/properties/defaults/additionalProperties"), false);
    }
}
