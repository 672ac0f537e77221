//! Tests that the document describes every route and no other, and the real answers.

use super::super::health::NodeHealth;
use super::super::page::FILES;
use super::super::state::{self, LinkState, STATES};
use super::{DOCUMENT, PATH};
use serde_json::{json, Value};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use tidegate_harness::{schema_faults, schema_references};
use tidegate_types::Reason;

const METHODS: [&str; 5] = ["get", "post", "put", "delete", "patch"];

fn document() -> Value {
    serde_json::from_str(DOCUMENT).unwrap()
}

/// Method and path of every described operation.
fn told() -> BTreeSet<(String, String)> {
    let document = document();
    let paths = document["paths"].as_object().unwrap().iter();
    let each = paths.flat_map(|(path, operations)| {
        let known = METHODS.into_iter().filter(|method| operations.get(method).is_some());
        known.map(|method| (method.to_owned(), path.clone())).collect::<Vec<_>>()
    });
    each.collect()
}

/// Method and path of every route, read from the sources: axum does not list the routes of a router.
fn routed() -> BTreeSet<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/admin");
    let mut routes: BTreeSet<_> = FILES.iter().map(|(path, ..)| ("get".to_owned(), (*path).into())).collect();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if name.ends_with(".rs") && !name.ends_with("tests.rs") && name != "page.rs" {
            let text = fs::read_to_string(&path).unwrap();
            text.split(".route(").skip(1).for_each(|rest| routes.extend(route(rest, &name)));
        }
    }
    routes
}

/// Reads what follows `.route(`: a path, and one method or several.
fn route(rest: &str, file: &str) -> Vec<(String, String)> {
    let mut quoted = rest.split('"');
    let (before, path) = (quoted.next().unwrap(), quoted.next().unwrap());
    assert_eq!(before.trim(), "", "{file}: write the path of a route out, so that this test can read it");
    let end = rest.find(")\n").unwrap_or(rest.len());
    let known = |method: &&str| {
        let call = format!("{method}(");
        rest[..end].contains(&format!(" {call}")) || rest[..end].contains(&format!(".{call}"))
    };
    let methods: Vec<_> = METHODS.into_iter().filter(known).collect();
    assert!(!methods.is_empty(), "{file}: no method of {path} could be read");
    methods.into_iter().map(|method| (method.to_owned(), path.to_owned())).collect()
}

#[test]
fn the_document_tells_of_every_route_and_of_no_other() {
    let (told, routed) = (told(), routed());
    let silent: Vec<_> = routed.difference(&told).collect();
    assert!(silent.is_empty(), "served, and not described in src/admin/openapi.json: {silent:?}");
    let invented: Vec<_> = told.difference(&routed).collect();
    assert!(invented.is_empty(), "described in src/admin/openapi.json, and not served: {invented:?}");
    assert!(routed.contains(&("get".into(), PATH.into())) && routed.len() > 20, "{routed:?}");
}

/// Every reference has a target, and every component is referenced.
#[test]
fn nothing_is_missing_and_nothing_is_left_over() {
    let document = document();
    let named = schema_references(&document);
    for reference in &named {
        let place = reference.strip_prefix('#').unwrap();
        assert!(document.pointer(place).is_some(), "{reference} leads nowhere");
    }
    for kind in ["parameters", "responses", "schemas"] {
        for name in document["components"][kind].as_object().unwrap().keys() {
            let reference = format!("#/components/{kind}/{name}");
            assert!(named.contains(&reference), "nobody refers to {reference}");
        }
    }
    let operations = document["paths"].as_object().unwrap().values();
    let ids: Vec<_> = operations
        .flat_map(|path| METHODS.into_iter().filter_map(|method| path[method]["operationId"].as_str()))
        .collect();
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), told().len(), "{ids:?}");
}

/// The code defines these names; the document only repeats them.
#[test]
fn words_are_those_of_the_code() {
    let document = document();
    let schemas = &document["components"]["schemas"];
    let state = &schemas["State"]["properties"];
    assert_eq!(state["state"]["enum"], json!(STATES));
    assert_eq!(state["links"]["items"]["properties"]["state"]["enum"], json!(LinkState::STATES));
    let reasons: BTreeSet<_> = Reason::ALL.iter().map(|reason| reason.as_str()).collect();
    let dead = state["totals"]["properties"]["dead"]["properties"].as_object().unwrap();
    assert_eq!(dead.keys().map(String::as_str).collect::<BTreeSet<_>>(), reasons);
}

/// The schema of the state document has all its keys.
#[test]
fn the_state_is_told_key_by_key() {
    for input in [state::tests::example(), state::tests::with_map()] {
        let state = state::Document::new(&input, &NodeHealth::ready_but(&["egress"]));
        let state = serde_json::to_value(state).unwrap();
        assert_eq!(schema_faults(&document(), "#/components/schemas/State", &state), [""; 0]);
    }
}
