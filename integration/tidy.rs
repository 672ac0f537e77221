//! The design's rules that a compiler does not check: who imports whom, and that the engine is pure.

use std::fs;
use std::path::{Path, PathBuf};

/// Which of our modules a module may name. `daemon` and `cli` know all.
const MAY_IMPORT: [(&str, &[&str]); 9] = [
    ("engine", &["engine"]),
    ("store", &["store", "engine", "config", "clock"]),
    ("amqp", &["amqp", "engine", "config", "clock"]),
    ("admin", &["admin", "engine", "config"]),
    ("config", &["config", "engine"]),
    ("clock", &["engine"]),
    ("logging", &[]),
    ("notify", &[]),
    ("signals", &[]),
];

fn files(folder: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder of the project") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            files(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
}

/// Source lines of a module, without comments and without what is only compiled for tests.
fn code_of(module: &str) -> Vec<(PathBuf, usize, String)> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut paths = vec![];
    if src.join(module).is_dir() {
        files(&src.join(module), &mut paths);
    }
    if src.join(format!("{module}.rs")).exists() {
        paths.push(src.join(format!("{module}.rs")));
    }
    assert!(!paths.is_empty(), "no module {module}");
    let mut out = vec![];
    for path in paths {
        if path.iter().any(|part| part == "tests" || part == "tests.rs") {
            continue;
        }
        let text = fs::read_to_string(&path).expect("a source file");
        for (number, line) in text.lines().enumerate() {
            if line.trim() == "#[cfg(test)]" {
                let rest: String = text.lines().skip(number + 1).take(1).collect();
                if rest.starts_with("mod tests {") {
                    break;
                }
            }
            let code = line.split("//").next().unwrap_or_default();
            if !code.trim().is_empty() {
                out.push((path.clone(), number + 1, code.to_owned()));
            }
        }
    }
    out
}

#[test]
fn modules_import_only_what_the_table_allows() {
    let mut faults = vec![];
    for (module, allowed) in MAY_IMPORT {
        for (path, number, code) in code_of(module) {
            for (at, _) in code.match_indices("crate::") {
                // `$crate` and `pub(in crate::..)` name themselves.
                let name: String =
                    code[at + 7..].chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                if !name.is_empty() && !allowed.contains(&name.as_str()) && name != module {
                    faults.push(format!("{}:{number}: {module} names {name}", path.display()));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn the_engine_is_pure() {
    const BANNED: [&str; 14] = [
        "std::time",
        "Instant",
        "SystemTime",
        "std::thread",
        "spawn",
        "std::fs",
        "std::net",
        "std::io",
        "async ",
        "tokio",
        "tracing",
        "println",
        "std::env",
        "unsafe {",
    ];
    let mut faults = vec![];
    for (path, number, code) in code_of("engine") {
        for banned in BANNED.iter().filter(|banned| code.contains(**banned)) {
            faults.push(format!("{}:{number}: {banned}", path.display()));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn the_engine_never_walks_a_hash_map() {
    // Its order differs from run to run, and a replay must be exact. The maps by name:
    const MAPS: [&str; 5] = ["names", "by_seq", "flights", "moved", ".groups"];
    const WALKS: [&str; 6] = [".iter()", ".iter_mut()", ".keys()", ".values()", ".values_mut()", ".drain()"];
    let mut faults = vec![];
    let mut maps_seen = 0;
    for (path, number, code) in code_of("engine") {
        maps_seen += usize::from(code.contains("HashMap<"));
        for map in MAPS {
            for walk in WALKS {
                if code.contains(&format!("{map}{walk}")) {
                    faults.push(format!("{}:{number}: {map}{walk}", path.display()));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(maps_seen >= 4, "the maps are still there under these names");
}
