//! `docs/PROMISES.md`: the tests that judge each promise, and the planted bugs that break it. It is generated
//! from the source, and a rule checks that it is up to date.
//!
//! A test that judges a promise says so in its doc comment, a file of such tests in its head: "Judges promise 4." A
//! planted bug names the promise behind `breaks` (`src/engine/mutant.rs`).

use crate::source::{black_box_tests, Source};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;

/// If set, the document is written instead of checked.
const WRITE: &str = "WRITE_PROMISES";
const PAGE: &str = "docs/PROMISES.md";
const PROMISES: &str = "docs/GUARANTEES.md";
const PLANTED: &str = "src/engine/mutant.rs";

const HEAD: &str = "\
# Which tests judge each promise

Made from the source: `WRITE_PROMISES=1 cargo test --test tidy`. The promises are in [GUARANTEES](GUARANTEES.md).

| kind of test | place | run |
| --- | --- | --- |
| engine: this input, exactly these effects | `src/engine/tests/` | `cargo test -p tidegate-engine` |
| simulation of all promises at once | `src/engine/tests/sim.rs`, `src/engine/tests/sim/` | `make sim` |
| store, wire format, daemon | beside the code in `src/` | `cargo test --workspace --lib` |
| the built daemon against a private RabbitMQ | `integration/` | `cargo test --test integration NAME` |
| the table of faults | `integration/faults/` | `make faults` |

The simulation runs seeded worlds: a store that lags and loses what was not synced, a broker that nacks, returns, refuses,
hangs, blocks and vanishes, acks that get lost, crashes, and clocks that step. A reference without the engine's ideas
follows every item and judges every call. A *planted bug* is a wrong decision in the engine; the simulation has to find
each of them. No planted bug is in the program.
";

/// The tests and the planted bugs of one promise.
#[derive(Default)]
struct Proof {
    /// Names of tests by file; an empty set stands for the whole file.
    tests: BTreeMap<String, BTreeSet<String>>,
    /// Planted bugs, with their descriptions.
    bugs: Vec<(String, String)>,
}

/// Promises by number, with their names.
fn promises() -> BTreeMap<usize, String> {
    let text = fs::read_to_string(PROMISES).expect("the promises");
    let heads = text.lines().filter_map(|line| line.strip_prefix("## "));
    let found: BTreeMap<usize, String> = heads
        .filter_map(|head| head.split_once(". "))
        .filter_map(|(number, name)| Some((number.parse().ok()?, name.to_owned())))
        .collect();
    assert!(found.len() >= 15, "{} promises", found.len());
    found
}

/// The promises that a line names; `None` for any other line.
fn named(line: &str, all: &BTreeMap<usize, String>) -> Option<Vec<usize>> {
    let said = line.trim_start().trim_start_matches(['/', '!']).trim().strip_prefix("Judges ")?;
    if said == "every promise." {
        return Some(all.keys().copied().collect());
    }
    let said = said.strip_prefix("promise")?;
    Some(said.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect())
}

/// The function below a doc comment.
fn function_below<'t>(lines: &[&'t str]) -> Option<&'t str> {
    let code = lines.iter().find(|line| !line.trim_start().starts_with(['/', '#']))?;
    let (_, name) = code.split_once("fn ")?;
    name.split(|c: char| !c.is_alphanumeric() && c != '_').next()
}

fn gather(sources: &[Source]) -> (BTreeMap<usize, Proof>, Vec<String>) {
    let all = promises();
    let mut proofs: BTreeMap<usize, Proof> = all.keys().map(|number| (*number, Proof::default())).collect();
    let mut faults = vec![];
    let rules = |source: &&Source| !source.path.contains("/tidy");
    let tests = black_box_tests();
    for source in sources.iter().chain(&tests).filter(rules) {
        let lines: Vec<&str> = source.text.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            let Some(numbers) = named(line, &all).filter(|_| line.trim_start().starts_with("//")) else {
                continue;
            };
            let is_head = line.trim_start().starts_with("//!");
            let name = function_below(&lines[at..]).filter(|_| !is_head);
            if numbers.is_empty() || name.is_none() && !is_head {
                faults.push(format!("{}:{}: no promise, or no test", source.path, at + 1));
            }
            for number in numbers {
                let Some(proof) = proofs.get_mut(&number) else {
                    faults.push(format!("{}:{}: there is no promise {number}", source.path, at + 1));
                    continue;
                };
                let names = proof.tests.entry(source.path.clone()).or_default();
                names.extend(name.map(str::to_owned));
            }
        }
    }
    let planted = sources.iter().find(|source| source.path == PLANTED).expect("the planted bugs");
    let mut what = vec![];
    for line in planted.text.lines().map(str::trim) {
        if let Some(more) = line.strip_prefix("///") {
            what.push(more.trim());
            continue;
        }
        if let Some((name, numbers)) = line.strip_suffix(',').and_then(|line| line.split_once(" breaks ")) {
            for number in numbers.split(' ').filter_map(|number| number.parse().ok()) {
                match proofs.get_mut(&number) {
                    Some(proof) => proof.bugs.push((name.to_owned(), what.join(" "))),
                    None => faults.push(format!("{PLANTED}: {name}: there is no promise {number}")),
                }
            }
        }
        what.clear();
    }
    (proofs, faults)
}

fn page(proofs: &BTreeMap<usize, Proof>) -> String {
    let names = promises();
    let anchor = |name: &str| name.to_lowercase().replace(' ', "-").replace([',', '.'], "");
    let mut page = HEAD.to_owned();
    let contents: Vec<String> = names
        .iter()
        .map(|(number, name)| format!("[{number}. {name}](#{number}-{})", anchor(name)))
        .collect();
    // One paragraph, which every viewer wraps; a list would be long.
    let _ = writeln!(page, "\n{}.", contents.join(" ·\n"));
    for (number, proof) in proofs {
        let _ = writeln!(page, "\n## {number}. {}\n\n| tests in | names |\n| --- | --- |", names[number]);
        for (file, tests) in &proof.tests {
            let names: Vec<String> = tests.iter().map(|name| format!("`{name}`")).collect();
            let names = if names.is_empty() { "all of it".to_owned() } else { names.join(", ") };
            let _ = writeln!(page, "| `{file}` | {names} |");
        }
        if !proof.bugs.is_empty() {
            let _ = writeln!(page, "\n| planted bug | what it does |\n| --- | --- |");
        }
        for (name, what) in &proof.bugs {
            let _ = writeln!(page, "| `{name}` | {what} |");
        }
    }
    page
}

pub fn the_page_is_up_to_date(sources: &[Source]) -> Vec<String> {
    let (proofs, mut faults) = gather(sources);
    let untested = proofs.iter().filter(|(_, proof)| proof.tests.is_empty());
    faults.extend(untested.map(|(number, _)| format!("{PROMISES}: nothing judges promise {number}")));
    let made = page(&proofs);
    if std::env::var_os(WRITE).is_some() {
        fs::write(PAGE, made).expect("the page is written");
    } else if fs::read_to_string(PAGE).ok() != Some(made) {
        faults.push(format!("{PAGE} is not what the source says; write it with {WRITE}=1"));
    }
    faults
}
