//! The documents: every link leads somewhere, and the index leads to every section.

use crate::source::Source;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Component, Path, PathBuf};

/// The index of all documents, with the glossary.
const INDEX: &str = "docs/README.md";
/// Size limit of the glossary: beyond it, words should be renamed instead of explained.
const MOST_WORDS: usize = 60;
/// Length limit of a guide, lines.
const MOST_LINES: usize = 200;

/// A document's headings and links.
#[derive(Default)]
struct Document {
    /// Anchors of all headings, each with its level.
    headings: Vec<(usize, String)>,
    links: Vec<Link>,
    words: usize,
}

struct Link {
    line: usize,
    /// Whether it comes before the first section, as a table of contents does.
    is_above: bool,
    target: String,
}

/// GitHub's anchor: lower case, without punctuation, hyphens for spaces.
fn anchor(heading: &str) -> String {
    let kept = |c: char| c.is_alphanumeric() || ['-', '_', ' '].contains(&c);
    heading.to_lowercase().chars().filter(|&c| kept(c)).map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn read(text: &str) -> Document {
    let (mut document, mut is_code, mut is_glossary) = (Document::default(), false, false);
    for (number, line) in text.lines().enumerate() {
        if line.starts_with("```") {
            is_code = !is_code;
        }
        if is_code {
            continue;
        }
        let hashes = line.bytes().take_while(|&byte| byte == b'#').count();
        if let Some(heading) = line[hashes..].strip_prefix(' ').filter(|_| hashes > 0) {
            let name = anchor(heading.trim());
            let same = document.headings.iter().filter(|(_, other)| *other == name).count();
            is_glossary = name == "glossary";
            let name = if same == 0 { name } else { format!("{name}-{same}") };
            document.headings.push((hashes, name));
        }
        document.words += usize::from(is_glossary && line.starts_with("| "));
        let is_above = document.headings.iter().all(|(level, _)| *level < 2);
        for (at, _) in line.match_indices("](") {
            let Some(target) = line[at + 2..].split(')').next() else { continue };
            document.links.push(Link { line: number + 1, is_above, target: target.to_owned() });
        }
    }
    document
}

/// All documents by path.
pub fn texts() -> BTreeMap<String, String> {
    let mut folders = vec![PathBuf::from("docs")];
    let mut paths: Vec<PathBuf> =
        fs::read_dir(".").expect("the project").flatten().map(|e| e.file_name().into()).collect();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of documents").flatten() {
            let into = if entry.path().is_dir() { &mut folders } else { &mut paths };
            into.push(entry.path());
        }
    }
    paths.retain(|path| path.extension().is_some_and(|name| name == "md"));
    assert!(paths.len() > 10, "{} documents", paths.len());
    let read = |path: PathBuf| (path.display().to_string(), fs::read_to_string(&path).expect("a document"));
    paths.into_iter().map(read).collect()
}

fn documents() -> BTreeMap<PathBuf, Document> {
    texts().into_iter().map(|(path, text)| (path.into(), read(&text))).collect()
}

/// Target file and anchor of a link; `None` if it leads out of the project.
fn place(from: &Path, target: &str) -> Option<(PathBuf, String)> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    let mut path =
        if file.is_empty() { from.to_owned() } else { from.parent().map(Path::to_owned).unwrap_or_default() };
    for part in Path::new(file).components() {
        match part {
            Component::ParentDir => drop(path.pop()),
            Component::Normal(name) => path.push(name),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    Some((path, anchor.to_owned()))
}

pub fn links_lead_somewhere(_: &[Source]) -> Vec<String> {
    let documents = documents();
    let mut faults = vec![];
    for (path, document) in &documents {
        for link in &document.links {
            let Some((to, anchor)) = place(path, &link.target) else { continue };
            let has_anchor = |to: &Document| to.headings.iter().any(|(_, name)| *name == anchor);
            let is_there = to.exists() && (anchor.is_empty() || documents.get(&to).is_none_or(has_anchor));
            if !is_there {
                faults.push(format!("{}:{}: {}", path.display(), link.line, link.target));
            }
        }
    }
    faults
}

/// A guide covers one task and can be read in one sitting.
pub fn guides_are_short(_: &[Source]) -> Vec<String> {
    let guides = ["docs/guide", "docs/operate"].into_iter().flat_map(|folder| {
        let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{folder}: {error}"));
        entries.flatten().map(|entry| entry.path())
    });
    let lines = |path: &PathBuf| fs::read_to_string(path).expect("a guide").lines().count();
    let long = guides.map(|path| (lines(&path), path)).filter(|(lines, _)| *lines > MOST_LINES);
    long.map(|(lines, path)| format!("{}: {lines} lines", path.display())).collect()
}

/// Through the index itself, or through the table of contents of a document in the index.
pub fn the_index_leads_everywhere(_: &[Source]) -> Vec<String> {
    let documents = documents();
    let index = &documents[Path::new(INDEX)];
    let named: Vec<_> = index.links.iter().filter_map(|link| place(Path::new(INDEX), &link.target)).collect();
    let mut faults = vec![];
    for (path, document) in
        documents.iter().filter(|(path, _)| path.starts_with("docs") && **path != Path::new(INDEX))
    {
        if !named.iter().any(|(to, _)| to == path) {
            faults.push(format!("{}: not in the index", path.display()));
        }
        let contents = document.links.iter().filter(|link| link.is_above);
        let contents: Vec<_> = contents.filter_map(|link| place(path, &link.target)).collect();
        for (_, section) in document.headings.iter().filter(|(level, _)| *level == 2) {
            if !named.iter().chain(&contents).any(|(to, anchor)| to == path && anchor == section) {
                faults.push(format!("{}: #{section} is not in the index", path.display()));
            }
        }
    }
    if index.words > MOST_WORDS + 2 {
        faults.push(format!("{INDEX}: {} words in the glossary", index.words));
    }
    faults
}

#[test]
fn links_headings_and_places_are_read() {
    let read =
        read("# T\n[a](b.md#c)\n## It's `x`, y\n```\n# no\n```\n## It's x, y\n[d](#it) [e](https://f)\n");
    let headings: Vec<_> = read.headings.iter().map(|(level, name)| format!("{level}{name}")).collect();
    assert_eq!(headings, ["1t", "2its-x-y", "2its-x-y-1"]);
    let links: Vec<_> =
        read.links.iter().map(|link| (link.line, link.is_above, link.target.as_str())).collect();
    assert_eq!(links, [(2, true, "b.md#c"), (8, false, "#it"), (8, false, "https://f")]);
    let at = |target| {
        place(Path::new("docs/a/b.md"), target).map(|(path, anchor)| (path.display().to_string(), anchor))
    };
    assert_eq!(at("../c.md#d"), Some(("docs/c.md".to_owned(), "d".to_owned())));
    assert_eq!(at("#d"), Some(("docs/a/b.md".to_owned(), "d".to_owned())));
    assert_eq!(at("https://d"), None);
}
