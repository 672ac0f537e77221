//! General rules: sizes, names, comments, and imports between modules.

use crate::source::{black_box_tests, block, words, Source};
use std::collections::BTreeMap;

const MOST_COLUMNS: usize = 110;
const MOST_LINES_OF_A_FUNCTION: usize = 90;
const FEWEST_WORDS: usize = 3;

/// Modules of the daemon's own crate that each of them may name. `daemon` and `cli` may name all. What the other
/// crates may name, their `Cargo.toml` says.
const MAY_IMPORT: [(&str, &[&str]); 5] =
    [("admin", &["admin"]), ("logging", &[]), ("notify", &[]), ("signals", &[]), ("telemetry", &[])];

/// Checks the table above.
pub fn imports_as_allowed(sources: &[Source]) -> Vec<String> {
    let mut faults = vec![];
    for (module, allowed) in MAY_IMPORT {
        let below = format!("src/{module}/");
        let itself = format!("src/{module}.rs");
        let mut files = 0;
        for source in sources.iter().filter(|s| s.path.starts_with(&below) || s.path == itself) {
            files += 1;
            if source.is_test() {
                continue;
            }
            for (at, _) in source.shipped.match_indices("crate::") {
                let Some((_, name)) = words(&source.shipped[at + 7..]).next() else { continue };
                // `pub(in crate::..)` names itself.
                if !allowed.contains(&name) && name != module {
                    faults.push(format!("{}:{}: {module} names {name}", source.path, source.line_at(at)));
                }
            }
        }
        assert!(files > 0, "no module {module}");
    }
    faults
}

/// The first line of a file states its purpose.
pub fn files_say_their_purpose(sources: &[Source]) -> Vec<String> {
    let silent = |source: &&Source| !source.text.starts_with("//! ");
    sources.iter().filter(silent).map(|source| format!("{}:1: no purpose", source.path)).collect()
}

/// Includes comments, because rustfmt wraps only code.
pub fn lines_are_short(sources: &[Source]) -> Vec<String> {
    let mut faults = vec![];
    for source in sources {
        for (number, line) in source.text.lines().enumerate() {
            let columns = line.chars().count();
            if columns > MOST_COLUMNS {
                faults.push(format!("{}:{}: {columns} columns", source.path, number + 1));
            }
        }
    }
    faults
}

/// Counted from the line of `fn` to its closing brace.
pub fn functions_are_short(sources: &[Source]) -> Vec<String> {
    let mut faults = vec![];
    for source in sources {
        let all: Vec<(usize, &str)> = words(&source.code).collect();
        for pair in all.windows(2).filter(|pair| pair[0].1 == "fn") {
            let (at, name) = pair[1];
            let Some((_, end)) = block(&source.code, at) else { continue };
            let lines = source.code[at..end].matches('\n').count() + 1;
            if lines > MOST_LINES_OF_A_FUNCTION {
                faults.push(format!("{}:{}: {name} has {lines} lines", source.path, source.line_at(at)));
            }
        }
    }
    faults
}

/// One name, one type; types compiled only for tests are exempt.
pub fn type_names_are_unique(sources: &[Source]) -> Vec<String> {
    let twice = types(sources).into_iter().filter(|(_, homes)| homes.len() > 1);
    twice.map(|(name, homes)| format!("{}: {name}, also {}", homes[0], homes[1..].join(", "))).collect()
}

/// Types by name, and their places of declaration.
fn types(sources: &[Source]) -> BTreeMap<&str, Vec<String>> {
    let mut homes: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for source in sources.iter().filter(|source| !source.is_test()) {
        let all: Vec<(usize, &str)> = words(&source.shipped).collect();
        for pair in all.windows(2) {
            let (at, kind) = pair[0];
            // Only at the left margin: `type Value` inside an `impl` belongs to its trait.
            let line = source.shipped[..at].rfind('\n').map_or(0, |end| end + 1);
            let outer = !source.shipped[line..at].starts_with(' ');
            if outer && ["struct", "enum", "trait", "type", "union"].contains(&kind) {
                homes.entry(pair[1].1).or_default().push(format!("{}:{}", source.path, source.line_at(at)));
            }
        }
    }
    assert!(homes.len() > 100, "{} types", homes.len());
    homes
}

/// A comment that begins with another type's name is the remnant of a mechanical renaming.
pub fn docs_begin_with_their_own_item(sources: &[Source]) -> Vec<String> {
    let types = types(sources);
    let is_type = |word: &str| {
        let humps = word.bytes().filter(u8::is_ascii_uppercase).count();
        humps > 1
            && [Some(word), word.strip_suffix('s')].into_iter().flatten().any(|name| types.contains_key(name))
    };
    let mut faults = vec![];
    for source in sources {
        let mut first: Option<(usize, &str)> = None;
        for (number, line) in source.text.lines().enumerate() {
            let line = line.trim_start();
            let doc = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"));
            match (doc, first) {
                (Some(doc), None) => {
                    first = Some((number + 1, doc.split_whitespace().next().unwrap_or_default()))
                }
                (Some(_), Some(_)) => {}
                // Attributes between a comment and its item.
                (None, _) if line.starts_with("#[") => {}
                (None, Some((at, word))) => {
                    if is_type(word) && !words(line).any(|(_, name)| name == word) {
                        faults.push(format!("{}:{at}: \"{word}\" above \"{line}\"", source.path));
                    }
                    first = None;
                }
                (None, None) => {}
            }
        }
    }
    faults
}

/// A comment of one or two words says nothing: state a fact, or make the item private without a comment.
pub fn docs_say_something(sources: &[Source]) -> Vec<String> {
    let mut faults = vec![];
    for source in sources.iter().filter(|source| !source.is_test()) {
        let mut doc = Vec::new();
        for (number, line) in source.text.lines().enumerate() {
            if let Some(more) = line.trim_start().strip_prefix("///") {
                doc.extend(more.split_whitespace());
                continue;
            }
            if !doc.is_empty() && doc.len() < FEWEST_WORDS {
                faults.push(format!("{}:{number}: \"{}\"", source.path, doc.join(" ")));
            }
            doc.clear();
        }
    }
    faults
}

/// Openings of a sentence without a specific subject: name the actor instead.
const VAGUE: [&str; 3] = ["Whoever", "Nobody", "So many"];

/// Sentences name their subject, in comments and in documents.
pub fn sentences_have_a_subject(sources: &[Source]) -> Vec<String> {
    let is_vague = |text: &str| {
        VAGUE.iter().any(|word| {
            text.match_indices(word).any(|(at, _)| {
                let before = text[..at].trim_end_matches([' ', '*', '`', '"', '(']);
                before.is_empty() || before.ends_with(['.', ':', ';', '?', '!', '|', '-'])
            })
        })
    };
    let mut faults = vec![];
    for source in sources {
        for (number, line) in source.text.lines().enumerate() {
            let comment = line.trim_start().strip_prefix("//");
            if comment.is_some_and(|text| is_vague(text.trim_start_matches(['/', '!', ' ']))) {
                faults.push(format!("{}:{}: {}", source.path, number + 1, line.trim()));
            }
        }
    }
    for (path, text) in crate::documents::texts() {
        let lines = text.lines().enumerate().filter(|(_, line)| is_vague(line));
        faults.extend(lines.map(|(number, line)| format!("{path}:{}: {line}", number + 1)));
    }
    faults
}

/// Mutants named in the documents exist: each name after "Mutants:", and in tables of them.
pub fn told_mutants_exist(sources: &[Source]) -> Vec<String> {
    let planted = sources.iter().find(|source| source.path == "src/engine/mutant.rs").expect("the mutants");
    let known: Vec<&str> = words(&planted.code).map(|(_, word)| word).collect();
    let (mut faults, mut told) = (vec![], 0);
    for path in ["docs/GUARANTEES.md", "docs/RELIABILITY.md", "docs/ARCHITECTURE.md"] {
        let text = std::fs::read_to_string(path).expect("the document");
        for paragraph in text.split("\n\n") {
            let heads = ["Mutants:", "Mutant:", "| mutants of"];
            let Some(at) = heads.iter().filter_map(|head| paragraph.find(head)).min() else { continue };
            for name in paragraph[at..].split('`').skip(1).step_by(2).filter(|name| is_type_name(name)) {
                told += 1;
                if !known.contains(&name) {
                    faults.push(format!("{path}: {name} is not planted"));
                }
            }
        }
    }
    assert!(told > 10, "{told} mutants are told of");
    faults
}

/// The broker counts a message shortly after it is published, returned or acked, so a test that asserts a
/// count at once fails now and then: `lies` waits.
pub fn counts_are_awaited(_: &[Source]) -> Vec<String> {
    let mut faults = vec![];
    for test in black_box_tests() {
        for statement in test.code.split_inclusive(';') {
            let at = statement.as_ptr() as usize - test.code.as_ptr() as usize;
            let Some(begin) = statement.find("assert") else { continue };
            if [".depth(", ".messages("].iter().any(|count| statement[begin..].contains(count)) {
                faults.push(format!("{}:{}: looked at once", test.path, test.line_at(at + begin)));
            }
        }
    }
    faults
}

fn is_type_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_uppercase()) && name.chars().all(char::is_alphanumeric)
}
