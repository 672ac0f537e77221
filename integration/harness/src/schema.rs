//! JSON validation against a schema inside a document.

use serde_json::Value;
use std::collections::BTreeSet;

/// The faults of a value by the schema at `reference` (`#/...`) of a document. Clients must accept unknown
/// keys, but here a key that the schema does not contain is a fault.
///
/// # Panics
/// If there is no such schema, or it is invalid.
pub fn schema_faults(document: &Value, reference: &str, value: &Value) -> Vec<String> {
    let mut schema = document.clone();
    close(&mut schema);
    if reference != "#" {
        assert!(schema.pointer(&reference[1..]).is_some(), "there is no {reference}");
        schema["$ref"] = reference.into();
    }
    let validator = jsonschema::validator_for(&schema).unwrap_or_else(|e| panic!("{reference}: {e}"));
    validator.iter_errors(value).map(|error| format!("{}: {error}", error.instance_path())).collect()
}

/// All `$ref` references in a document.
pub fn schema_references(document: &Value) -> BTreeSet<String> {
    let mut named = BTreeSet::new();
    collect(document, &mut named);
    named
}

fn collect(value: &Value, named: &mut BTreeSet<String>) {
    named.extend(value["$ref"].as_str().map(ToOwned::to_owned));
    value.as_array().into_iter().flatten().for_each(|inner| collect(inner, named));
    value.as_object().into_iter().flatten().for_each(|(_, inner)| collect(inner, named));
}

fn close(value: &mut Value) {
    let told = value["type"] == "object" && value["properties"].is_object();
    if told && value.get("additionalProperties").is_none() {
        value["additionalProperties"] = false.into();
    }
    if let Some(inner) = value.as_array_mut() {
        inner.iter_mut().for_each(close);
    } else if let Some(inner) = value.as_object_mut() {
        inner.values_mut().for_each(close);
    }
}
