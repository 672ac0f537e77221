//! `admin.listen`: an address, a unix socket, or off. The configuration, the log and the command line use the
//! same words for it.

use super::terms::is_loopback;
use std::fmt;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Prefix of the path of a unix socket.
pub const UNIX_SCHEME: &str = "unix:";

/// Longest path that the address of a unix socket can hold; a zero byte follows it.
const MAX_SOCKET_PATH: usize = 107;

/// The address of the admin server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// There is no admin server.
    Off,
    /// An address and port.
    Tcp(SocketAddr),
    /// A unix socket at this absolute path.
    Unix(PathBuf),
}

impl Listen {
    /// Reads the text that [`Display`](fmt::Display) writes.
    ///
    /// # Errors
    /// The fault, as the end of a sentence that begins with the key.
    pub fn parse(text: &str) -> Result<Listen, String> {
        if text == "off" {
            return Ok(Listen::Off);
        }
        if let Some(path) = text.strip_prefix(UNIX_SCHEME) {
            return socket_path(Path::new(path)).map(Listen::Unix);
        }
        text.parse().map(Listen::Tcp).map_err(|_| {
            "is not an address and port, such as 127.0.0.1:9380 or [::1]:9380, nor a socket, such as \
             unix:/run/tidegate/admin.sock, nor off"
                .to_owned()
        })
    }

    /// Whether only this machine has access, so that no token is needed.
    pub fn is_local(&self) -> bool {
        match self {
            Listen::Off | Listen::Unix(_) => true,
            Listen::Tcp(address) => is_loopback(address.ip()),
        }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listen::Off => f.write_str("off"),
            Listen::Tcp(address) => address.fmt(f),
            Listen::Unix(path) => write!(f, "{UNIX_SCHEME}{}", path.display()),
        }
    }
}

impl From<SocketAddr> for Listen {
    fn from(address: SocketAddr) -> Self {
        Listen::Tcp(address)
    }
}

fn socket_path(path: &Path) -> Result<PathBuf, String> {
    let bytes = path.as_os_str().as_bytes();
    if !path.is_absolute() || path.file_name().is_none() || bytes.ends_with(b"/") {
        return Err("names no socket by an absolute path: write unix:/run/tidegate/admin.sock".to_owned());
    }
    if bytes.contains(&0) {
        return Err("holds a zero byte".to_owned());
    }
    if bytes.len() > MAX_SOCKET_PATH {
        return Err(format!(
            "names a socket by a path of {} bytes: at most {MAX_SOCKET_PATH} fit into its address",
            bytes.len()
        ));
    }
    Ok(path.to_path_buf())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        for (text, local) in [
            ("off", true),
            ("127.0.0.1:9380", true),
            ("[::1]:0", true),
            ("[::ffff:127.0.0.1]:1", true),
            ("0.0.0.0:9380", false),
            ("[::]:9380", false),
            ("unix:/run/tidegate/admin.sock", true),
            ("unix:/a b", true),
        ] {
            let listen = Listen::parse(text).unwrap();
            assert_eq!((listen.to_string().as_str(), listen.is_local()), (text, local));
        }
    }

    #[test]
    fn what_names_no_place_is_refused() {
        for text in ["", "localhost:9380", "127.0.0.1", "Off", "/run/admin.sock", "http://127.0.0.1:1"] {
            assert!(Listen::parse(text).unwrap_err().starts_with("is not an address and port"), "{text}");
        }
        for text in ["unix:", "unix:admin.sock", "unix:@abstract", "unix:/", "unix:/run/", "unix:/run/.."] {
            assert!(Listen::parse(text).unwrap_err().contains("an absolute path"), "{text}");
        }
        assert!(Listen::parse("unix:/a\0b").is_err());
        let path = |bytes: usize| format!("unix:/{}", "a".repeat(bytes - 1));
        assert!(Listen::parse(&path(107)).is_ok());
        assert!(Listen::parse(&path(108)).unwrap_err().contains("of 108 bytes: at most 107"));
    }
}
