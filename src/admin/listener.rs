//! A TCP listener whose connections are limited in number, in idle time and in length of life.
//!
//! Without it, clients that open connections and say nothing would take file descriptors for ever.

use axum::serve::Listener;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{ready, Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep};

/// Bounds on connections.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Most open connections; further ones wait in the kernel's backlog.
    pub connections: usize,
    /// Longest time without a byte in either direction. Longer than a request may take.
    pub idle: Duration,
    /// Longest life: what trickles bytes ends here.
    pub life: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Bounds { connections: 64, idle: Duration::from_secs(45), life: Duration::from_secs(600) }
    }
}

/// See the module.
#[derive(Debug)]
pub struct Limited {
    inner: TcpListener,
    slots: Arc<Semaphore>,
    bounds: Bounds,
}

impl Limited {
    /// Puts bounds on a bound listener.
    pub fn new(inner: TcpListener, bounds: Bounds) -> Self {
        Limited { inner, slots: Arc::new(Semaphore::new(bounds.connections)), bounds }
    }
}

impl Listener for Limited {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        let Ok(slot) = self.slots.clone().acquire_owned().await else {
            // Only a closed semaphore fails, and this one is never closed.
            return std::future::pending().await;
        };
        let (io, addr) = Listener::accept(&mut self.inner).await;
        // Only costs latency when it fails.
        let _ = io.set_nodelay(true);
        let now = Instant::now();
        let ends = now + self.bounds.life;
        let quiet = Box::pin(tokio::time::sleep_until((now + self.bounds.idle).min(ends)));
        (Connection { io, quiet, idle: self.bounds.idle, ends, _slot: slot }, addr)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        TcpListener::local_addr(&self.inner)
    }
}

/// One accepted connection; gives its slot back when dropped.
#[derive(Debug)]
pub struct Connection {
    io: TcpStream,
    quiet: Pin<Box<Sleep>>,
    idle: Duration,
    ends: Instant,
    _slot: OwnedSemaphorePermit,
}

impl Connection {
    /// Passes the outcome of an I/O poll on, unless the connection has been quiet, or alive, for too long.
    fn judge<T>(&mut self, cx: &mut Context<'_>, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            let until = (Instant::now() + self.idle).min(self.ends);
            self.quiet.as_mut().reset(until);
            return polled;
        }
        ready!(self.quiet.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.io).poll_read(cx, buf);
        self.judge(cx, polled)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.io).poll_write(cx, data);
        self.judge(cx, polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Without effect on TCP, and so no sign of life.
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.io).poll_write_vectored(cx, parts);
        self.judge(cx, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    async fn pair(bounds: Bounds) -> (Limited, SocketAddr) {
        let inner = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = inner.local_addr().unwrap();
        (Limited::new(inner, bounds), addr)
    }

    #[tokio::test]
    async fn a_silent_connection_ends() {
        let bounds =
            Bounds { connections: 1, idle: Duration::from_millis(20), life: Duration::from_secs(60) };
        let (mut listener, addr) = pair(bounds).await;
        let _client = TcpStream::connect(addr).await.unwrap();
        let (mut io, _) = listener.accept().await;
        let error = io.read_u8().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn a_trickling_connection_ends_too() {
        let bounds =
            Bounds { connections: 1, idle: Duration::from_secs(60), life: Duration::from_millis(50) };
        let (mut listener, addr) = pair(bounds).await;
        let mut client = TcpStream::connect(addr).await.unwrap();
        let (mut io, _) = listener.accept().await;
        client.write_all(b"x").await.unwrap();
        assert_eq!(io.read_u8().await.unwrap(), b'x');
        let error = io.read_u8().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn a_slot_comes_back_with_the_connection() {
        let (mut listener, addr) = pair(Bounds { connections: 1, ..Bounds::default() }).await;
        let _first = TcpStream::connect(addr).await.unwrap();
        let _second = TcpStream::connect(addr).await.unwrap();
        let (io, _) = listener.accept().await;
        let full = tokio::time::timeout(Duration::from_millis(50), listener.accept()).await;
        assert!(full.is_err(), "a second connection was taken");
        drop(io);
        tokio::time::timeout(Duration::from_secs(5), listener.accept()).await.unwrap();
    }
}
