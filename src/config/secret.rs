//! Secrets in files: read whole, within bounds, and never printed.

use super::section::Section;
use rustix::fs::{Mode, OFlags};
use secrecy::{ExposeSecret, SecretString};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Longer than any password or signed token; a file given by mistake is not read whole.
const MAX_BYTES: u64 = 16 << 10;

/// Longer than any private key with its text in front.
const MAX_KEY_BYTES: u64 = 64 << 10;

/// A secret, and the doubts about its file.
pub(crate) struct Secret {
    pub text: SecretString,
    /// Every user may read or change the file.
    pub exposed: bool,
    /// The file belongs neither to root nor to the user of this process.
    pub foreign: bool,
}

/// Opens a regular file. Symbolic links are followed, since secret volumes and secret managers consist of
/// them; the owner and mode of the target count. Never blocks on a pipe.
fn open(path: &Path) -> Result<File, String> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|e| unreadable(path, &e.into()))?;
    let file = File::from(file);
    let meta = file.metadata().map_err(|e| unreadable(path, &e))?;
    if !meta.is_file() {
        return Err(format!("{} is not a regular file", path.display()));
    }
    Ok(file)
}

/// The text of a file, without one newline at its end. An empty or too long file is a fault, and so is one
/// that is not UTF-8.
pub(crate) fn read(path: &Path) -> Result<Secret, String> {
    let secret = read_whole(path, MAX_BYTES)?;
    let text = secret.text.expose_secret();
    let text = text.strip_suffix('\n').map_or(text, |t| t.strip_suffix('\r').unwrap_or(t));
    if text.is_empty() {
        return Err(format!("{} is empty", path.display()));
    }
    if text.contains(['\0', '\n']) {
        return Err(format!("{} holds more than one line", path.display()));
    }
    Ok(Secret { text: text.to_owned().into(), ..secret })
}

/// A PEM file with a private key, which is not parsed here.
pub(crate) fn read_key(path: &Path) -> Result<Secret, String> {
    let secret = read_whole(path, MAX_KEY_BYTES)?;
    let text = secret.text.expose_secret();
    if text.contains("BEGIN ENCRYPTED PRIVATE KEY") || text.contains("Proc-Type: 4,ENCRYPTED") {
        return Err(format!("{} is encrypted: tidegate has no passphrase for it", path.display()));
    }
    if !text.contains("PRIVATE KEY-----") {
        return Err(format!("{} holds no PEM private key", path.display()));
    }
    Ok(secret)
}

fn read_whole(path: &Path, most: u64) -> Result<Secret, String> {
    let file = open(path)?;
    let meta = file.metadata().map_err(|e| unreadable(path, &e))?;
    let foreign = meta.uid() != 0 && meta.uid() != rustix::process::geteuid().as_raw();
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes).map_err(|e| unreadable(path, &e))?;
    if bytes.len() as u64 > most {
        return Err(format!("{} holds more than {most} bytes", path.display()));
    }
    let text = String::from_utf8(bytes).map_err(|_| format!("{} is not UTF-8", path.display()))?;
    Ok(Secret { text: text.into(), exposed: meta.mode() & 0o007 != 0, foreign })
}

/// Warns of doubts about the file that `key` names.
pub(crate) fn warn_of(s: &Section<'_, '_>, key: &'static str, path: &Path, secret: &Secret) {
    if secret.exposed {
        s.warn(key, format!("{} may be read by every user: chmod o= it", path.display()));
    }
    if secret.foreign {
        s.warn(key, format!("{} belongs to another user, who may change it", path.display()));
    }
}

fn unreadable(path: &Path, e: &io::Error) -> String {
    // A secret typed in place of its file's name must not be shown.
    if !path.is_absolute() {
        return format!(
            "names no readable file ({e}); its value is not shown, because it is not an absolute path and \
             may be the secret itself, which belongs in a file"
        );
    }
    format!("{} cannot be read: {e}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

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
        std::fs::write(&path, [b'x'; 17_000]).unwrap();
        assert!(read(&path).err().unwrap().contains("more than 16384"));
        std::fs::write(&path, b"\xff").unwrap();
        assert!(read(&path).err().unwrap().ends_with("is not UTF-8"));
    }

    #[test]
    fn a_secret_in_the_place_of_a_path_is_not_echoed() {
        for typed in ["hunter2", "aB3/x+9=", &"long".repeat(100)] {
            let told = read(Path::new(typed)).err().unwrap();
            assert!(told.contains("names no readable file") && !told.contains(typed), "{told}");
        }
        assert!(read(Path::new("/no/such/file")).err().unwrap().contains("/no/such/file"));
    }

    #[test]
    fn a_link_is_judged_by_its_target() {
        // Kubernetes mounts a secret like this: the file links to ..data/NAME, and ..data to a dated
        // directory.
        let dir = tempfile::tempdir().unwrap();
        let day = dir.path().join("..2026");
        std::fs::create_dir(&day).unwrap();
        std::fs::write(day.join("token"), "canary\n").unwrap();
        std::os::unix::fs::symlink(&day, dir.path().join("..data")).unwrap();
        std::os::unix::fs::symlink("..data/token", dir.path().join("token")).unwrap();
        for (mode, exposed) in [(0o600, false), (0o440, false), (0o644, true), (0o602, true)] {
            std::fs::set_permissions(day.join("token"), std::fs::Permissions::from_mode(mode)).unwrap();
            let secret = read(&dir.path().join("token")).ok().unwrap();
            assert_eq!(
                (secret.text.expose_secret(), secret.exposed, secret.foreign),
                ("canary", exposed, false)
            );
        }
        std::fs::remove_file(day.join("token")).unwrap();
        assert!(read(&dir.path().join("token")).err().unwrap().contains("No such file"));
    }

    #[test]
    fn directories_and_pipes_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &pipe,
            rustix::fs::FileType::Fifo,
            Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        assert!(
            read(&pipe).err().unwrap().ends_with("is not a regular file"),
            "and the read does not wait for a writer"
        );
        assert!(read(dir.path()).err().unwrap().ends_with("is not a regular file"));
        assert!(read(&dir.path().join("none")).err().unwrap().contains("cannot be read: No such file"));
    }
}
