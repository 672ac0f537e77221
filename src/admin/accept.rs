//! The listener of the admin port, on an address or a unix socket, and the peers of its connections.

use super::socket::{self, AdminSocket};
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use tidegate_config::Listen;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixStream};

/// A bound listener of either kind.
#[derive(Debug)]
pub(super) enum AdminListener {
    Tcp(TcpListener),
    Unix(AdminSocket),
}

/// A stream of bytes in both directions.
pub(super) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl Duplex for TcpStream {}
impl Duplex for UnixStream {}

/// The client of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    /// A client at this address.
    Address(SocketAddr),
    /// A process of this machine, as the kernel reported it at the connect.
    Process { uid: u32, pid: Option<i32> },
}

/// Clients whose connections are counted together.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(super) enum Source {
    /// All clients of one address.
    Machine(IpAddr),
    /// All processes of one user of this machine.
    User(u32),
}

impl AdminListener {
    /// Binds, and returns the actual address; `None` for a listener that is off.
    pub(super) async fn bind(listen: &Listen) -> io::Result<Option<(AdminListener, Listen)>> {
        match listen {
            Listen::Off => Ok(None),
            Listen::Tcp(address) => {
                let listener = TcpListener::bind(address).await?;
                let bound = Listen::Tcp(listener.local_addr()?);
                Ok(Some((AdminListener::Tcp(listener), bound)))
            }
            Listen::Unix(path) => {
                let bound = socket::bind(path).await?;
                Ok(Some((AdminListener::Unix(bound), listen.clone())))
            }
        }
    }

    /// The next connection. Cancelling the wait loses no connection.
    pub(super) async fn accept(&self) -> io::Result<(Box<dyn Duplex>, Peer)> {
        match self {
            AdminListener::Tcp(listener) => {
                let (stream, address) = listener.accept().await?;
                // A failure costs latency only.
                let _ = stream.set_nodelay(true);
                Ok((Box::new(stream), Peer::Address(address)))
            }
            AdminListener::Unix(socket) => {
                let (stream, _) = socket.listener.accept().await?;
                let credentials = stream.peer_cred()?;
                let peer = Peer::Process { uid: credentials.uid(), pid: credentials.pid() };
                Ok((Box::new(stream), peer))
            }
        }
    }
}

impl Peer {
    pub(super) fn source(self) -> Source {
        match self {
            Peer::Address(address) => Source::from(address.ip()),
            Peer::Process { uid, .. } => Source::User(uid),
        }
    }
}

impl From<IpAddr> for Source {
    /// The IPv4 client of an IPv6 listener is the same source.
    fn from(address: IpAddr) -> Self {
        Source::Machine(address.to_canonical())
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Address(address) => address.fmt(f),
            Peer::Process { uid, pid: Some(pid) } => write!(f, "uid:{uid},pid:{pid}"),
            Peer::Process { uid, pid: None } => write!(f, "uid:{uid}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_process_at_the_other_end_is_named_by_the_kernel() {
        let dir = tempfile::tempdir().unwrap();
        let listen = Listen::Unix(dir.path().join("admin.sock"));
        let (listener, bound) = AdminListener::bind(&listen).await.unwrap().unwrap();
        assert_eq!(bound, listen);
        let Listen::Unix(path) = &listen else { panic!("a socket") };
        let _client = UnixStream::connect(path).await.unwrap();
        let (_stream, peer) = listener.accept().await.unwrap();
        let (uid, pid) = (rustix::process::geteuid().as_raw(), std::process::id());
        assert_eq!(peer.to_string(), format!("uid:{uid},pid:{pid}"));
        assert_eq!(peer.source(), Source::User(uid));
    }

    #[tokio::test]
    async fn nobody_listens_where_it_is_off() {
        assert!(AdminListener::bind(&Listen::Off).await.unwrap().is_none());
    }
}
