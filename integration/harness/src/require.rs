//! Tools that a machine may lack, and tests that are therefore skipped, but never silently.
//!
//! In a CI (`TIDEGATE_CI=1`, or the common `CI=true`) a missing tool fails the test, unless `TIDEGATE_LACKS`
//! names it: a list of tools, separated by blanks, that this machine is known to lack. Elsewhere the test is
//! reported as skipped, in its output and in the file named by `TIDEGATE_SKIPPED`, which `make test` counts.

use crate::bounds::test_name;
use crate::util::shout;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;

fn is_set(name: &str) -> bool {
    std::env::var(name).is_ok_and(|value| !["", "0", "false"].contains(&value.as_str()))
}

/// Reports this test as skipped, with a reason that installing a tool would not remove.
pub fn skip(why: &str) {
    skip_named(&test_name().unwrap_or_else(|| "this program".to_owned()), why);
}

/// The same for a test (or a table row) of this name.
pub(crate) fn skip_named(test: &str, why: &str) {
    let line = format!("skipped: {test}: {why}");
    shout(&line);
    let Some(path) = std::env::var_os("TIDEGATE_SKIPPED").filter(|path| !path.is_empty()) else { return };
    let file = OpenOptions::new().append(true).create(true).open(path);
    let written = file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
    written.expect("the file for what is skipped");
}

/// Reports the test as skipped, because a tool cannot be used. The caller returns.
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

/// Whether a program is on the path; if not, as in [`lacks`].
///
/// # Panics
/// In a CI, unless `TIDEGATE_LACKS` names the program.
pub fn require(tool: &str) -> bool {
    let found = on_path(tool).is_some();
    if !found {
        lacks(tool, "is not installed");
    }
    found
}

/// The path of a program. That of a server is not on every user's path.
pub(crate) fn on_path(tool: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    let places: Vec<PathBuf> = folders.map(|dir| dir.join(tool)).collect();
    places.into_iter().find(|place| place.is_file())
}
