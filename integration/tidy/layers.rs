//! The modules of each folder are in layers: none depends on one that depends on it, directly or not. So each can be
//! understood with those below it.

use crate::source::{block, words, Source};
use std::collections::{BTreeMap, BTreeSet};

/// Folders of modules, and how a file names the module of its folder from anywhere in the crate.
const FOLDERS: [(&str, &str); 9] = [
    ("src/engine", "crate::"),
    ("src/store", "crate::"),
    ("src/store/postgres", "crate::postgres::"),
    ("src/config", "crate::"),
    ("src/admin", "crate::admin::"),
    ("src/amqp", "crate::"),
    ("src/amqp/wire", "crate::"),
    ("src/daemon", "crate::daemon::"),
    ("src/cli", "crate::cli::"),
];

/// First names in a `use` tree or path: `{a::X, b::{Y}}` gives `a` and `b`.
fn firsts(tree: &str) -> Vec<&str> {
    if !tree.starts_with('{') {
        return words(tree).take(1).map(|(_, word)| word).collect();
    }
    let end = block(tree, 0).map_or(tree.len(), |(_, end)| end);
    let (mut depth, mut begins, mut out) = (0, 1, vec![]);
    for (at, byte) in tree.bytes().enumerate().take(end).skip(1) {
        match byte {
            b'{' => depth += 1,
            b'}' if depth > 0 => depth -= 1,
            b',' | b'}' if depth == 0 => {
                out.extend(words(&tree[begins..at]).take(1).map(|(_, word)| word));
                begins = at + 1;
            }
            _ => {}
        }
    }
    out
}

/// The modules of a folder that each of them names.
fn imports<'s>(
    sources: &'s [Source],
    folder: &str,
    from_crate: &str,
) -> BTreeMap<&'s str, BTreeSet<&'s str>> {
    // A crate within the folder of another one has modules of its own.
    let is_inner = |source: &&Source| folder == "src/amqp" && source.path.starts_with("src/amqp/wire/");
    let parts = || {
        let own = sources.iter().filter(move |source| !is_inner(source));
        own.filter_map(|source| Some((source, source.part_of(folder)?)))
    };
    let names: BTreeSet<&str> = parts().map(|(_, part)| part).collect();
    let mut out: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (source, part) in parts().filter(|(_, part)| !["lib", "mod"].contains(part)) {
        let named = out.entry(part).or_default();
        // In a `mod.rs`, `super` is the folder above.
        let depth = source.path[folder.len()..].trim_end_matches("/mod.rs").matches('/').count();
        for way in [&*"super::".repeat(depth), from_crate] {
            for (at, _) in source.shipped.match_indices(way) {
                // Within `super::super::` a single one begins, too.
                if source.shipped[..at].ends_with([':', '_']) {
                    continue;
                }
                let found = firsts(&source.shipped[at + way.len()..]);
                named.extend(found.into_iter().filter(|name| *name != part && names.contains(name)));
            }
        }
    }
    out
}

pub fn modules_in_layers(sources: &[Source]) -> Vec<String> {
    let mut faults = vec![];
    for (folder, from_crate) in FOLDERS {
        let mut open = imports(sources, folder, from_crate);
        assert!(open.len() > 5, "{} modules in {folder}", open.len());
        // A module that names no remaining one, or that no remaining one names, is not in a circle.
        loop {
            let named_by = |part: &str| open.values().any(|named| named.contains(part));
            let free = open.iter().filter(|(part, named)| named.is_empty() || !named_by(part));
            let done: Vec<&str> = free.map(|(part, _)| *part).collect();
            if done.is_empty() {
                break;
            }
            open.retain(|part, _| !done.contains(part));
            open.values_mut().for_each(|named| named.retain(|name| !done.contains(name)));
        }
        faults.extend(
            open.iter().map(|(part, named)| format!("{folder}/{part}.rs: in a circle with {named:?}")),
        );
    }
    faults
}

#[test]
fn use_trees_are_read() {
    assert_eq!(firsts("a::B;"), ["a"]);
    assert_eq!(firsts("{a::{B, c::D}, e, f::G}; {h}"), ["a", "e", "f"]);
}
