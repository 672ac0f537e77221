//! What a machine may lack, and tests that therefore do not run: never silently.
//!
//! In a CI (`TIDEGATE_CI=1`, or `CI=true` as most of them set it) a missing tool fails the test, unless `TIDEGATE_LACKS`
//! names it: tools that this machine is known not to have, with blanks between. Elsewhere the test says that it is
//! skipped, beside the results, and in the file named by `TIDEGATE_SKIPPED`, from which `make test` counts.

use crate::bounds::test_name;
use crate::util::shout;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;

fn is_set(name: &str) -> bool {
    std::env::var(name).is_ok_and(|value| !["", "0", "false"].contains(&value.as_str()))
}

/// Says that this test does not run here, and why: for reasons that nobody can mend.
pub fn skip(why: &str) {
    skip_named(&test_name().unwrap_or_else(|| "this program".to_owned()), why);
}

/// The same for a test (or a row of a table) of this name.
pub(crate) fn skip_named(test: &str, why: &str) {
    let line = format!("skipped: {test}: {why}");
    shout(&line);
    let Some(path) = std::env::var_os("TIDEGATE_SKIPPED").filter(|path| !path.is_empty()) else { return };
    let file = OpenOptions::new().append(true).create(true).open(path);
    let written = file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
    written.expect("the file for what is skipped");
}

/// A tool that the test needs cannot be used: says that the test is skipped. The caller returns.
///
/// # Panics
/// In a CI, unless `TIDEGATE_LACKS` names the tool.
pub fn lacks(tool: &str, why: &str) {
    let excused = std::env::var("TIDEGATE_LACKS").unwrap_or_default();
    let known = excused.split_whitespace().any(|name| name == tool);
    let strict = is_set("TIDEGATE_CI") || is_set("CI");
    assert!(known || !strict, "{tool} {why}: install it, or let TIDEGATE_LACKS name it");
    skip(&format!("{tool} {why}"));
}

/// Whether a program is on the path; where it is not, as [`lacks`].
///
/// # Panics
/// In a CI, unless `TIDEGATE_LACKS` names it.
pub fn require(tool: &str) -> bool {
    let found = on_path(tool).is_some();
    if !found {
        lacks(tool, "is not installed");
    }
    found
}

/// Where a program lies.
pub(crate) fn on_path(tool: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places: Vec<PathBuf> = std::env::split_paths(&path).map(|dir| dir.join(tool)).collect();
    places.into_iter().find(|place| place.is_file())
}
