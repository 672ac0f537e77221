//! Rules of the engine: its parts know only each other's methods. That it is pure, its crate says (`no_std`).

use crate::source::{block, words, Source};
use std::collections::{BTreeMap, BTreeSet};

/// Modules with values and without state (`ids`: typed handles), whose fields are public.
const PLAIN: [&str; 2] = ["mutant", "ids"];
/// Limit of the composition's fields: each is a part, or shared by all parts.
const MOST_FIELDS: usize = 15;

fn parts(sources: &[Source]) -> impl Iterator<Item = (&Source, &str)> {
    sources.iter().filter_map(|source| Some((source, source.engine_part()?)))
}

/// `Engine` is composed and named in one file; parts receive what they share.
pub fn composed_in_one_file(sources: &[Source]) -> Vec<String> {
    let mut faults = vec![];
    for (source, _) in parts(sources).filter(|(_, part)| *part != "lib") {
        for (at, _) in words(&source.shipped).filter(|(_, word)| *word == "Engine") {
            faults.push(format!("{}:{}: Engine", source.path, source.line_at(at)));
        }
    }
    faults
}

/// The declared fields of each struct, with their positions.
fn fields(code: &str) -> Vec<(String, Vec<(&str, usize)>)> {
    let mut out = vec![];
    let all: Vec<(usize, &str)> = words(code).collect();
    for pair in all.windows(2).filter(|pair| pair[0].1 == "struct") {
        let (at, name) = pair[1];
        let Some((open, end)) = block(code, at) else { continue };
        let mut list = vec![];
        let mut depth = 0;
        let mut begins = open + 1;
        for (at, byte) in code.bytes().enumerate().take(end).skip(open + 1) {
            match byte {
                b'<' | b'(' | b'[' | b'{' => depth += 1,
                // The arrow of a function type closes no bracket.
                b'>' if code.as_bytes()[at - 1] == b'-' => {}
                b'>' | b')' | b']' => depth -= 1,
                b',' | b'}' if depth == 0 => {
                    let field = code[begins..at].trim();
                    if field.contains(':') {
                        let at = begins + code[begins..at].find(field).unwrap_or(0);
                        list.push((field, at));
                    }
                    begins = at + 1;
                }
                _ => {}
            }
        }
        out.push((name.to_owned(), list));
    }
    out
}

/// The composition has few fields.
pub fn few_fields(sources: &[Source]) -> Vec<String> {
    let mut faults = vec![];
    for (source, _) in parts(sources).filter(|(_, part)| *part == "lib") {
        let all = fields(&source.shipped);
        let engine = all.iter().find(|(name, _)| name == "Engine").expect("struct Engine in engine/lib.rs");
        if engine.1.len() > MOST_FIELDS {
            faults.push(format!("{}: struct Engine has {} fields", source.path, engine.1.len()));
        }
    }
    faults
}

/// A type with more methods has more than one responsibility.
const MOST_METHODS: usize = 40;

/// Each `impl` of a file: type name and body.
fn impls(code: &str) -> Vec<(&str, &str)> {
    let of = |(at, _): (usize, &str)| {
        let head = &code[at + 5..];
        let head = &head[..head.find('{').unwrap_or(head.len())];
        let of = head.rsplit_once(" for ").map_or_else(|| after_generics(head), |(_, of)| of.trim());
        let (_, name) = words(of).next()?;
        let (open, end) = block(code, at + 5)?;
        Some((name, &code[open..end]))
    };
    code.match_indices("\nimpl").filter_map(of).collect()
}

/// Number of methods of each type in a file. `code` is without comments and tests.
fn methods(code: &str) -> BTreeMap<&str, usize> {
    let is_method = |line: &&str| {
        let head = line.strip_prefix("    ").filter(|rest| !rest.starts_with(' ')).unwrap_or_default();
        let mut words =
            head.split_whitespace().filter(|word| !word.starts_with("pub") && !word.starts_with("crate::"));
        words.find(|word| *word != "const") == Some("fn")
    };
    let mut out = BTreeMap::new();
    for (name, body) in impls(code) {
        *out.entry(name).or_default() += body.lines().filter(is_method).count();
    }
    out
}

/// No type of a part has too many methods.
pub fn few_methods(sources: &[Source]) -> Vec<String> {
    let mut all: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for (source, part) in parts(sources) {
        for (name, count) in methods(&source.shipped) {
            *all.entry((part, name)).or_default() += count;
        }
    }
    let many = all.into_iter().filter(|(_, count)| *count > MOST_METHODS);
    many.map(|((part, name), count)| format!("src/engine/{part}: {name} has {count} methods")).collect()
}

/// Types with a method that takes `&mut self`.
fn owners(code: &str) -> BTreeSet<&str> {
    impls(code).into_iter().filter(|(_, body)| body.contains("&mut self")).map(|(name, _)| name).collect()
}

/// Whether a field is visible outside its part, whose methods may be in several files.
fn leaves_part(field: &str, path: &str, part: &str) -> bool {
    let inside = path.contains(&format!("/{part}/")) && !path.ends_with("/mod.rs");
    let public = field.lines().map(str::trim).find(|line| line.starts_with("pub"));
    public.is_some_and(|line| !(inside && line.starts_with("pub(super)")))
}

/// An owner's fields are private; others use its methods. A record without methods that change it may have
/// public fields, and an owner may expose a field that is an owner itself.
pub fn fields_are_private(sources: &[Source]) -> Vec<String> {
    let mut faults = vec![];
    let mut all: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (source, part) in parts(sources).filter(|(_, part)| !PLAIN.contains(part)) {
        all.entry(part).or_default().extend(owners(&source.shipped));
    }
    let is_owner = |field: &str| {
        let (_, of) = field.rsplit_once(": ").unwrap_or_default();
        all.values().any(|names| names.contains(of))
    };
    for (source, part) in parts(sources).filter(|(_, part)| !PLAIN.contains(part)) {
        for (name, list) in fields(&source.shipped) {
            if !all[part].contains(name.as_str()) {
                continue;
            }
            let shown =
                |(field, _): &&(&str, usize)| leaves_part(field, &source.path, part) && !is_owner(field);
            for (_, at) in list.iter().filter(shown) {
                faults.push(format!("{}:{}: a field of {name}", source.path, source.line_at(*at)));
            }
        }
    }
    faults
}

/// Methods are in the part of their type.
pub fn methods_beside_their_type(sources: &[Source]) -> Vec<String> {
    let mut homes: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (source, part) in parts(sources) {
        let all: Vec<&str> = words(&source.shipped).map(|(_, word)| word).collect();
        for pair in all.windows(2).filter(|pair| ["struct", "enum"].contains(&pair[0])) {
            homes.entry(pair[1]).or_default().insert(part);
        }
    }
    let mut faults = vec![];
    for (source, part) in parts(sources) {
        for (at, _) in source.shipped.match_indices("\nimpl") {
            let head = &source.shipped[at + 5..];
            let head = &head[..head.find('{').unwrap_or(head.len())];
            // An `impl` of a trait counts for its type. Generics may come before and after the name.
            let of = head.rsplit_once(" for ").map_or_else(|| after_generics(head), |(_, of)| of.trim());
            let Some((_, name)) = words(of).next() else { continue };
            if homes.get(name).is_some_and(|homes| !homes.contains(part)) {
                faults.push(format!("{}:{}: impl {name}", source.path, source.line_at(at + 1)));
            }
        }
    }
    faults
}

fn after_generics(head: &str) -> &str {
    let head = head.trim();
    let mut depth = 0;
    for (at, byte) in head.bytes().enumerate() {
        match byte {
            b'<' => depth += 1,
            b'>' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return if at == 0 { head } else { &head[at + 1..] };
        }
    }
    head
}

#[test]
fn fields_are_read() {
    let code = "struct A { a: B<C, D>, pub(super) b: fn(X) -> Y, c: [u8; 4] }\nstruct E(F);\nstruct G {}";
    let of: Vec<(String, Vec<&str>)> =
        fields(code).into_iter().map(|(name, list)| (name, list.iter().map(|f| f.0).collect())).collect();
    let of_a = vec!["a: B<C, D>", "pub(super) b: fn(X) -> Y", "c: [u8; 4]"];
    assert_eq!(of, [("A".to_owned(), of_a), ("G".to_owned(), vec![])]);
}

#[test]
fn a_field_for_its_part_alone_stays_there() {
    let field = "/// Two words.\n    pub(super) items: Items";
    assert!(!leaves_part(field, "src/engine/live/shared.rs", "live"));
    assert!(leaves_part(field, "src/engine/live/mod.rs", "live"), "its parent is the engine");
    assert!(leaves_part(field, "src/engine/queue.rs", "queue"));
    assert!(leaves_part("pub(crate) journal: Journal", "src/engine/live/shared.rs", "live"));
    assert!(!leaves_part("items: Items", "src/engine/live/mod.rs", "live"));
}

#[test]
fn methods_are_counted() {
    let code = "
impl A {
    fn a() {
        let f = fn_of();
    }
    pub(crate) fn b(&self) {}
}
impl<'a> A<'a> {
    pub const fn c() {}
}
impl X for B {
    fn d() {}
}";
    assert_eq!(methods(code).into_iter().collect::<Vec<_>>(), [("A", 3), ("B", 1)]);
}

#[test]
fn owners_change_themselves() {
    let code = "\nimpl A { fn a(&self) {} }\nimpl<T> X<T> for B<T> { fn b(&mut self) {} }\nimpl C { fn c(&mut self) {} }";
    assert_eq!(owners(code).into_iter().collect::<Vec<_>>(), ["B", "C"]);
}

#[test]
fn generics_before_a_type_are_passed_over() {
    assert_eq!(after_generics("<K: Eq, V: Into<K>> Lookup<K, V> "), " Lookup<K, V>");
    assert_eq!(after_generics(" Engine "), "Engine");
}
