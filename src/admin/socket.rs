//! The unix socket of the admin port. Only the owner and the group of its file may ever connect. It replaces
//! the file of a process that died, and its file is removed with the listener.
//!
//! Deliberately absent: a lock. Two daemons that take one path at the same instant are misconfigured; the
//! lock of the store detects that if they share the store, too.

use rustix::fs::{fchmod, Mode};
use std::fs::{self, Metadata, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::{UnixListener, UnixSocket, UnixStream};
use tokio::time::timeout;

/// Mode of the file: the right to write it is the right to connect.
const MODE: u32 = 0o660;
/// Connections that the system holds until they are accepted, as many as for an address.
const BACKLOG: u32 = 1_024;
/// Time limit of the check whether a process still listens; the system answers at once.
const PROBE_WITHIN: Duration = Duration::from_secs(1);

/// A listening socket and its file.
#[derive(Debug)]
pub(super) struct AdminSocket {
    // The file is dropped first: once the listener has gone, no client finds a file that leads nowhere.
    _file: SocketFile,
    pub(super) listener: UnixListener,
}

/// Listens at this path.
///
/// # Errors
/// If a process listens there, if the file is not a socket, or on an error of the system.
pub(super) async fn bind(path: &Path) -> io::Result<AdminSocket> {
    make_room(path).await?;
    let socket = UnixSocket::new_stream()?;
    // The file takes its mode from the socket, reduced by the umask, so its mode is never too wide. Setting
    // the umask would affect all threads, and so the files of the store. After a rename, `ss` would show the
    // earlier name.
    fchmod(&socket, Mode::from_raw_mode(MODE))?;
    socket.bind(path)?;
    let file = SocketFile::at(path)?;
    // Restores the group's rights that the umask removed. No client can connect yet, as the socket does not
    // listen.
    fs::set_permissions(path, Permissions::from_mode(MODE))?;
    let listener = socket.listen(BACKLOG)?;
    Ok(AdminSocket { _file: file, listener })
}

/// Removes the socket of a process that has ended, and nothing else.
async fn make_room(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => {}
        Ok(_) => {
            let text = "the file at this path is not a socket and is not replaced";
            return Err(io::Error::new(ErrorKind::AlreadyExists, text));
        }
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    }
    let taken = || io::Error::new(ErrorKind::AddrInUse, "another process listens there");
    let error = match timeout(PROBE_WITHIN, UnixStream::connect(path)).await {
        Ok(Ok(_)) | Err(_) => return Err(taken()),
        Ok(Err(error)) => error,
    };
    let kind = error.kind();
    if kind == ErrorKind::ConnectionRefused {
        // No process has this socket open any more.
        fs::remove_file(path)
    } else if kind == ErrorKind::NotFound {
        Ok(())
    } else if kind == ErrorKind::WouldBlock {
        // A process listens there, and its backlog is full.
        Err(taken())
    } else {
        let text = format!("cannot determine whether a process listens there: {error}");
        Err(io::Error::new(kind, text))
    }
}

/// The file of this process's socket. Dropping it removes the file, unless another process has replaced it.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl SocketFile {
    fn at(path: &Path) -> io::Result<SocketFile> {
        Ok(SocketFile { path: path.to_path_buf(), identity: identity(&fs::symlink_metadata(path)?) })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|found| identity(&found) == self.identity) {
            // A file that remains is replaced at the next start.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(found: &Metadata) -> (u64, u64) {
    (found.dev(), found.ino())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net as blocking;

    fn place() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("admin.sock");
        (dir, path)
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[tokio::test]
    async fn its_owner_and_group_may_connect_and_it_goes_with_its_listener() {
        let (_dir, path) = place();
        let socket = bind(&path).await.unwrap();
        assert_eq!(mode(&path), 0o660);
        assert!(blocking::UnixStream::connect(&path).is_ok());
        drop(socket);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn the_file_is_born_with_no_more_than_its_mode() {
        let (_dir, path) = place();
        let socket = UnixSocket::new_stream().unwrap();
        fchmod(&socket, Mode::from_raw_mode(MODE)).unwrap();
        socket.bind(&path).unwrap();
        // The test does not depend on its umask.
        assert_eq!(mode(&path) & !MODE, 0, "{:o}", mode(&path));
        let refused = blocking::UnixStream::connect(&path).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "before it listens");
    }

    #[tokio::test]
    async fn what_a_dead_process_left_is_replaced() {
        let (_dir, path) = place();
        // The listener has gone; its file remains.
        drop(blocking::UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let _socket = bind(&path).await.unwrap();
        assert_eq!(mode(&path), 0o660);
    }

    #[tokio::test]
    async fn what_a_living_process_listens_on_is_left_to_it() {
        let (_dir, path) = place();
        let first = bind(&path).await.unwrap();
        let refused = bind(&path).await.unwrap_err();
        assert_eq!(refused.to_string(), "another process listens there");
        assert!(blocking::UnixStream::connect(&path).is_ok());
        drop(first);
        // A listener with a full backlog is alive as well.
        let full = UnixSocket::new_stream().unwrap();
        full.bind(&path).unwrap();
        let _full = full.listen(0).unwrap();
        let mut waiting = vec![];
        while let Ok(stream) = UnixStream::connect(&path).await {
            waiting.push(stream);
            assert!(waiting.len() < 100);
        }
        assert_eq!(bind(&path).await.unwrap_err().kind(), ErrorKind::AddrInUse);
    }

    #[tokio::test]
    async fn what_is_no_socket_is_left_alone() {
        let (dir, path) = place();
        fs::write(&path, "kept").unwrap();
        let refused = bind(&path).await.unwrap_err();
        assert!(refused.to_string().contains("not a socket"), "{refused}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "kept");
        fs::remove_file(&path).unwrap();
        // The path is a link to another place.
        std::os::unix::fs::symlink(dir.path().join("other"), &path).unwrap();
        assert!(bind(&path).await.unwrap_err().to_string().contains("not a socket"));
        let nowhere = dir.path().join("none/admin.sock");
        assert_eq!(bind(&nowhere).await.unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[tokio::test]
    async fn the_file_of_a_successor_is_not_removed() {
        let (_dir, path) = place();
        let socket = bind(&path).await.unwrap();
        fs::remove_file(&path).unwrap();
        let _other = blocking::UnixListener::bind(&path).unwrap();
        drop(socket);
        assert!(path.exists());
    }
}
