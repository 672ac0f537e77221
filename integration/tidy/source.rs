//! Source files as the rules see them: comments and literals blanked, with or without code for tests.

use std::fs;
use std::path::{Path, PathBuf};

/// One file below `src`.
pub struct Source {
    /// Path relative to the project, as in `src/engine/lib.rs`.
    pub path: String,
    /// The file's text.
    pub text: String,
    /// Comments, strings and characters blanked; line breaks kept.
    pub code: String,
    /// The same without code compiled only for tests.
    pub shipped: String,
}

impl Source {
    /// Whether the file contains only tests.
    pub fn is_test(&self) -> bool {
        self.path.contains("/tests/") || self.path.ends_with("tests.rs")
    }

    /// Its module in `engine`, or that of its folder; `None` outside of it and for tests.
    pub fn engine_part(&self) -> Option<&str> {
        self.part_of("src/engine")
    }

    /// The same of another folder.
    pub fn part_of(&self, folder: &str) -> Option<&str> {
        let part = self.path.strip_prefix(folder)?.strip_prefix('/')?.strip_suffix(".rs")?;
        let part = part.split_once('/').map_or(part, |(folder, _)| folder);
        (!self.is_test()).then_some(part)
    }

    /// Line of a byte position in `code`.
    pub fn line_at(&self, at: usize) -> usize {
        self.code[..at].matches('\n').count() + 1
    }
}

/// All files below `src`, by path.
pub fn sources() -> Vec<Source> {
    below("src")
}

/// The black-box tests, without benchmarks and harness.
pub fn black_box_tests() -> Vec<Source> {
    let mut tests = below("integration");
    tests.retain(|test| {
        !["/bench", "/fake_store/", "/harness/", "/tidy"].iter().any(|part| test.path.contains(part))
    });
    tests
}

fn below(folder: &str) -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut paths = vec![];
    collect(&root.join(folder), &mut paths);
    paths.sort();
    assert!(paths.len() > 50, "{} files below {folder}", paths.len());
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).expect("a source file");
        let code = blanked(&text);
        let shipped = without_tests(&code);
        let path = path.strip_prefix(root).expect("below the root").to_string_lossy().into_owned();
        Source { path, text, code, shipped }
    };
    paths.into_iter().map(read).collect()
}

fn collect(folder: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder of the project") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            collect(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
}

/// Blanks of the same length in bytes, with the same line breaks.
fn blank(text: &str, out: &mut String) {
    out.extend(text.bytes().map(|byte| if byte == b'\n' { '\n' } else { ' ' }));
}

/// Length of the literal or comment at the beginning of `rest`; 0 for anything else.
fn length_of_other(rest: &str, after_word: bool) -> usize {
    let until =
        |from: usize, end: &str| rest[from..].find(end).map_or(rest.len(), |at| from + at + end.len());
    if rest.starts_with("//") {
        return rest.find('\n').unwrap_or(rest.len());
    }
    if rest.starts_with("/*") {
        return until(2, "*/");
    }
    let prefix = if after_word { 0 } else { rest.len() - rest.trim_start_matches(['b', 'c']).len() };
    let raw = &rest[prefix..];
    if !after_word && raw.starts_with('r') {
        let hashes = raw[1..].len() - raw[1..].trim_start_matches('#').len();
        if raw[1 + hashes..].starts_with('"') {
            return until(prefix + hashes + 2, &format!("\"{}", "#".repeat(hashes)));
        }
    }
    let quote = raw.bytes().next().filter(|byte| b"\"'".contains(byte));
    let Some(quote) = quote.filter(|_| prefix <= 1) else { return 0 };
    // A lifetime has no second quote after one character.
    let is_char = raw[1..].starts_with('\\') || raw[1..].chars().nth(1) == Some('\'');
    if quote == b'\'' && !is_char {
        return 0;
    }
    let mut at = prefix + 1;
    while at < rest.len() && rest.as_bytes()[at] != quote {
        at += if rest.as_bytes()[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(rest.len())
}

fn blanked(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    let mut after_word = false;
    while at < text.len() {
        let rest = &text[at..];
        let length = length_of_other(rest, after_word);
        if length > 0 {
            blank(&rest[..length], &mut out);
            at += length;
            after_word = false;
            continue;
        }
        let next = rest.chars().next().expect("not at the end");
        after_word = next.is_alphanumeric() || next == '_';
        out.push(next);
        at += next.len_utf8();
    }
    out
}

/// Start and end of the block that opens at or after `from`; `None` if a `;` comes first.
pub fn block(code: &str, from: usize) -> Option<(usize, usize)> {
    let mut depth = 0;
    let mut open = None;
    // Brackets in a signature (`[u8; 4]`) may contain semicolons.
    let mut inside = 0;
    for (at, byte) in code.bytes().enumerate().skip(from) {
        match byte {
            b'[' | b'(' => inside += 1,
            b']' | b')' => inside -= 1,
            b';' if depth == 0 && inside == 0 => return None,
            b'{' => {
                open = open.or(Some(at));
                depth += 1;
            }
            b'}' => {
                depth -= 1;
                if depth == 0 {
                    return Some((open?, at + 1));
                }
            }
            _ => {}
        }
    }
    None
}

fn without_tests(code: &str) -> String {
    const MARK: &str = "#[cfg(test)]";
    let mut out = code.to_owned();
    let mut from = 0;
    while let Some(at) = out[from..].find(MARK).map(|at| from + at) {
        let behind = at + MARK.len();
        let end = match block(&out, behind) {
            Some((_, end)) => end,
            None => out[behind..].find(';').map_or(out.len(), |end| behind + end + 1),
        };
        let mut kept = out[..at].to_owned();
        blank(&out[at..end], &mut kept);
        kept.push_str(&out[end..]);
        out = kept;
        from = end;
    }
    out
}

/// The words of code, with their positions.
pub fn words(code: &str) -> impl Iterator<Item = (usize, &str)> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut at = 0;
    std::iter::from_fn(move || {
        let begin = at + code[at..].find(is_word)?;
        let end = code[begin..].find(|c| !is_word(c)).map_or(code.len(), |end| begin + end);
        at = end;
        Some((begin, &code[begin..end]))
    })
}

#[test]
fn literals_and_comments_are_blanked() {
    for (text, code) in [
        ("a // b \"c\nd", "a        \nd"),
        ("a /* { */ b", "a         b"),
        (r#"f("{ \" }", '{', '\'', 'a)"#, "f(        ,    ,     , 'a)"),
        (r##"g(r#"a"b"#, br"\", b"x")"##, "g(        ,      ,     )"),
        ("for r in x", "for r in x"),
    ] {
        assert_eq!(blanked(text), code, "{text}");
    }
}

#[test]
fn what_is_for_tests_is_left_out() {
    let code = "a\n#[cfg(test)]\nmod tests { fn b() {} }\nc\n#[cfg(test)]\nmod more;\nd";
    let kept: Vec<&str> =
        without_tests(code).split_whitespace().map(|word| word.to_owned().leak() as &str).collect();
    assert_eq!(kept, ["a", "c", "d"]);
}
