//! Rules of the design that the compiler does not check, in one table.
//!
//! A rule that does not hold everywhere yet lists excepted files. The list only shrinks: an exception that is
//! no longer needed fails here.
#![expect(unreachable_pub, reason = "modules of a program: `pub` says what the others use")]

#[path = "tidy/documents.rs"]
mod documents;
#[path = "tidy/engine.rs"]
mod engine;
#[path = "tidy/house.rs"]
mod house;
#[path = "tidy/layers.rs"]
mod layers;
#[path = "tidy/promises.rs"]
mod promises;
#[path = "tidy/source.rs"]
mod source;

use source::{sources, Source};

enum Holds {
    Everywhere,
    /// Except in these files, or below these folders.
    Except(&'static [&'static str]),
}

use Holds::{Everywhere, Except};

struct Rule {
    name: &'static str,
    /// One line for each breach: path, line, description.
    faults: fn(&[Source]) -> Vec<String>,
    holds: Holds,
}

const RULES: [Rule; 20] = [
    rule("modules import what the table allows", house::imports_as_allowed, Everywhere),
    rule("a file begins with its purpose", house::files_say_their_purpose, Everywhere),
    rule("a function has 90 lines at most", house::functions_are_short, Everywhere),
    rule("a line has 110 columns at most", house::lines_are_short, Except(&["src/engine/tests/"])),
    rule("a type's name is unique", house::type_names_are_unique, Everywhere),
    rule("a doc comment has three words at least", house::docs_say_something, Everywhere),
    rule("a doc comment begins with no other type", house::docs_begin_with_their_own_item, Everywhere),
    rule("a count of the broker's is awaited", house::counts_are_awaited, Everywhere),
    rule("a link leads somewhere", documents::links_lead_somewhere, Everywhere),
    rule(
        "the index of the documents leads to every section",
        documents::the_index_leads_everywhere,
        Everywhere,
    ),
    rule("documents name mutants that are planted", house::told_mutants_exist, Everywhere),
    rule("the table of promises is up to date", promises::the_page_is_up_to_date, Everywhere),
    rule("a sentence names its subject", house::sentences_have_a_subject, Everywhere),
    rule("a guide has 200 lines at most", documents::guides_are_short, Everywhere),
    rule("the engine is composed in lib.rs alone", engine::composed_in_one_file, Everywhere),
    rule("the engine has 15 fields at most", engine::few_fields, Everywhere),
    rule("a part's fields are its own", engine::fields_are_private, Everywhere),
    rule("a type of the engine has 40 methods at most", engine::few_methods, Everywhere),
    rule("modules are in layers", layers::modules_in_layers, Everywhere),
    rule("methods stand beside their type", engine::methods_beside_their_type, Everywhere),
];

const fn rule(name: &'static str, faults: fn(&[Source]) -> Vec<String>, holds: Holds) -> Rule {
    Rule { name, faults, holds }
}

/// Failures of a rule: breaches where it applies, and exceptions that are no longer needed.
fn judge(rule: &Rule, sources: &[Source]) -> Vec<String> {
    let faults = (rule.faults)(sources);
    match rule.holds {
        Everywhere => faults,
        Except(files) => {
            let of = |file: &str| {
                let faults = &faults;
                faults.iter().any(move |fault| fault.starts_with(file))
            };
            let stale = files.iter().filter(|file| !of(file));
            let mut wrong: Vec<String> =
                stale.map(|file| format!("{file}: no exception any more: strike it")).collect();
            let excepted = |fault: &String| files.iter().any(|file| fault.starts_with(file));
            wrong.extend(faults.iter().filter(|fault| !excepted(fault)).cloned());
            wrong
        }
    }
}

#[test]
fn the_rules_hold() {
    let sources = sources();
    let wrong: Vec<String> = RULES
        .iter()
        .flat_map(|rule| judge(rule, &sources).into_iter().map(|fault| format!("{}: {fault}", rule.name)))
        .collect();
    assert!(wrong.is_empty(), "{} breaches:\n{}", wrong.len(), wrong.join("\n"));
}
