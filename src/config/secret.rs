//! Secrets that stand in files of their own: read whole, within bounds, never printed.

use rustix::fs::{Mode, OFlags};
use secrecy::SecretString;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Longer than any password or token; a file given by mistake is not read whole.
const MAX_BYTES: u64 = 4_096;

/// A secret and whether its file is open to everybody.
pub(super) struct Secret {
    pub text: SecretString,
    pub exposed: bool,
}

/// Opens a regular file without following a symbolic link in its last component: a link could be turned towards
/// something else by whoever may write the directory. Never blocks on a pipe.
pub(super) fn open(path: &Path) -> Result<File, String> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|e| match e {
        rustix::io::Errno::LOOP => format!("{} is a symbolic link: name the file itself", path.display()),
        e => unreadable(path, &io::Error::from(e)),
    })?;
    let file = File::from(file);
    let meta = file.metadata().map_err(|e| unreadable(path, &e))?;
    if !meta.is_file() {
        return Err(format!("{} is not a regular file", path.display()));
    }
    Ok(file)
}

/// The text of a file, one newline at its end removed. Empty, too long, or not UTF-8 is a fault.
pub(super) fn read(path: &Path) -> Result<Secret, String> {
    let file = open(path)?;
    let mode = file.metadata().map_err(|e| unreadable(path, &e))?.permissions().mode();
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(|e| unreadable(path, &e))?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(format!("{} holds more than {MAX_BYTES} bytes", path.display()));
    }
    let text = String::from_utf8(bytes).map_err(|_| format!("{} is not UTF-8", path.display()))?;
    let text = text.strip_suffix('\n').map_or(text.as_str(), |t| t.strip_suffix('\r').unwrap_or(t));
    if text.is_empty() {
        return Err(format!("{} is empty", path.display()));
    }
    if text.contains(['\0', '\n']) {
        return Err(format!("{} holds more than one line", path.display()));
    }
    Ok(Secret { text: text.into(), exposed: mode & 0o007 != 0 })
}

fn unreadable(path: &Path, e: &io::Error) -> String {
    format!("{} cannot be read: {e}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;
    use secrecy::ExposeSecret;

    #[test]
    fn one_newline_goes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        for (content, text) in [("a b", "a b"), ("a\n", "a"), ("a\r\n", "a"), (" a ", " a ")] {
            std::fs::write(&path, content).unwrap();
            assert_eq!(read(&path).ok().unwrap().text.expose_secret(), text);
        }
        for content in ["", "\n", "a\nb\n", "a\n\n", "a\0"] {
            std::fs::write(&path, content).unwrap();
            assert!(read(&path).is_err(), "{content:?}");
        }
        std::fs::write(&path, [b'x'; 5_000]).unwrap();
        assert!(read(&path).err().unwrap().contains("more than 4096"));
        std::fs::write(&path, b"\xff").unwrap();
        assert!(read(&path).err().unwrap().ends_with("is not UTF-8"));
    }

    #[test]
    fn links_directories_and_pipes_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        std::fs::write(&file, "x").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert!(read(&link).err().unwrap().contains("symbolic link"));
        assert!(read(dir.path()).err().unwrap().ends_with("is not a regular file"));
        assert!(read(&dir.path().join("none")).err().unwrap().contains("cannot be read: No such file"));
    }
}
