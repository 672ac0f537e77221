//! A connection with a limit on its idle time and one on its lifetime.
//!
//! Without these, clients that read nothing, or that trickle bytes, would hold file descriptors indefinitely.

use super::accept::Duplex;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{ready, Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// Time limits of one connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Longest time without a byte in either direction; longer than a request may take.
    pub(super) idle: Duration,
    /// Longest lifetime, which also ends clients that trickle bytes. A request in progress at its end has
    /// another [`Bounds::idle`].
    pub(super) life: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Bounds { idle: Duration::from_secs(45), life: Duration::from_secs(600) }
    }
}

/// A stream with time limits.
pub(super) struct Bounded {
    io: Box<dyn Duplex>,
    quiet: Pin<Box<Sleep>>,
    idle: Duration,
    ends: Instant,
}

impl Bounded {
    /// The limits count from this call.
    pub(super) fn new(io: Box<dyn Duplex>, bounds: Bounds) -> Bounded {
        let now = Instant::now();
        let ends = now + bounds.life + bounds.idle;
        let quiet = Box::pin(tokio::time::sleep_until((now + bounds.idle).min(ends)));
        Bounded { io, quiet, idle: bounds.idle, ends }
    }

    /// Passes the result of an I/O poll on, unless a time limit has passed.
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

impl AsyncRead for Bounded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut *self.io).poll_read(cx, buf);
        self.judge(cx, polled)
    }
}

impl AsyncWrite for Bounded {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut *self.io).poll_write(cx, data);
        self.judge(cx, polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // It has no effect on a socket and so proves no activity.
        Pin::new(&mut *self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.io).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut *self.io).poll_write_vectored(cx, parts);
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
    use tokio::net::{TcpListener, TcpStream};

    async fn pair(bounds: Bounds) -> (TcpStream, Bounded) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (client, Bounded::new(Box::new(listener.accept().await.unwrap().0), bounds))
    }

    #[tokio::test]
    async fn a_silent_connection_ends() {
        let bounds = Bounds { idle: Duration::from_millis(20), life: Duration::from_secs(60) };
        let (_client, mut io) = pair(bounds).await;
        let error = io.read_u8().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn a_trickling_connection_ends_too() {
        let bounds = Bounds { idle: Duration::from_secs(1), life: Duration::from_millis(50) };
        let (mut client, mut io) = pair(bounds).await;
        let trickle = tokio::spawn(async move {
            while client.write_all(b"x").await.is_ok() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        let error = loop {
            match io.read_u8().await {
                Ok(byte) => assert_eq!(byte, b'x'),
                Err(error) => break error,
            }
        };
        trickle.abort();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
