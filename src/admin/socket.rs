//! The unix socket of the admin port: a file that only its owner and group may ever connect to, that takes
//! the place of one left behind by a process that died, and goes with its listener.
//!
//! Deliberately absent: a lock. Two daemons that take one path in the same instant are a fault of their
//! configurations that the lock of the store finds as soon as it is shared, too.

use rustix::fs::{fchmod, Mode};
use std::fs::{self, Metadata, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::{UnixListener, UnixSocket, UnixStream};
use tokio::time::timeout;

/// Of the file: whoever may write it may connect.
const MODE: u32 = 0o660;
/// Connections that the system holds until they are accepted; as many as for an address.
const BACKLOG: u32 = 1_024;
/// Time for a process that listens already to be told from one that is gone; the system answers at once.
const PROBE_WITHIN: Duration = Duration::from_secs(1);

/// A listening socket and its file.
#[derive(Debug)]
pub(super) struct AdminSocket {
    // Dropped in this order: whoever finds no file is not refused by a listener that has gone.
    _file: SocketFile,
    pub(super) listener: UnixListener,
}

/// Listens at this path.
///
/// # Errors
/// A process listens there, there is something else than a socket, or the system's answer.
pub(super) async fn bind(path: &Path) -> io::Result<AdminSocket> {
    make_room(path).await?;
    let socket = UnixSocket::new_stream()?;
    // The file takes its mode from the socket, less what the umask takes: so at no moment it has more. A
    // umask set for this moment would be that of all threads, and so of the store's files.
    fchmod(&socket, Mode::from_raw_mode(MODE))?;
    socket.bind(path)?;
    let file = SocketFile::at(path)?;
    // What the umask took from the group is given back. Nobody can connect yet: it does not listen.
    fs::set_permissions(path, Permissions::from_mode(MODE))?;
    let listener = socket.listen(BACKLOG)?;
    Ok(AdminSocket { _file: file, listener })
}

/// Removes the socket of a process that has gone; nothing else is touched.
async fn make_room(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => {}
        Ok(_) => {
            let text = "there is something at this path that is no socket, and it is left alone";
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
        // The file of a socket that nobody has open any more.
        fs::remove_file(path)
    } else if kind == ErrorKind::NotFound {
        Ok(())
    } else if kind == ErrorKind::WouldBlock {
        // It has more newcomers than it can hold.
        Err(taken())
    } else {
        let text = format!("it cannot be told whether a process listens there: {error}");
        Err(io::Error::new(kind, text))
    }
}

/// The file of a socket that this process has made; removed when dropped, unless it is another's by now.
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
            // One that is left behind is replaced at the next start.
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
        // Whatever the umask of the tests.
        assert_eq!(mode(&path) & !MODE, 0, "{:o}", mode(&path));
        let refused = blocking::UnixStream::connect(&path).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "before it listens");
    }

    #[tokio::test]
    async fn what_a_dead_process_left_is_replaced() {
        let (_dir, path) = place();
        // Its listener is gone, its file is not.
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
        // One that has more newcomers than it takes is alive as well.
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
        assert!(refused.to_string().contains("no socket"), "{refused}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "kept");
        fs::remove_file(&path).unwrap();
        // A link leads elsewhere, whatever is there.
        std::os::unix::fs::symlink(dir.path().join("other"), &path).unwrap();
        assert!(bind(&path).await.unwrap_err().to_string().contains("no socket"));
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
