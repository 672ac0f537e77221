//! HTTP over a unix socket for the HTTP client: it replaces only the transport, so that requests and answers
//! are the same as over TCP.

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, LazyBuffers, NextTimeout, Transport,
};
use ureq::{Error, Timeout};

/// Connects to the socket at this path, whatever host the URL names.
#[derive(Debug)]
pub(super) struct SocketConnector {
    path: PathBuf,
    within: Duration,
}

impl SocketConnector {
    pub(super) fn new(path: &Path, within: Duration) -> SocketConnector {
        SocketConnector { path: path.to_path_buf(), within }
    }
}

impl Connector for SocketConnector {
    type Out = SocketTransport;

    fn connect(
        &self,
        details: &ConnectionDetails<'_>,
        _: Option<()>,
    ) -> Result<Option<SocketTransport>, Error> {
        let stream = connected(&self.path, self.within)?;
        let sizes = (details.config.input_buffer_size(), details.config.output_buffer_size());
        Ok(Some(SocketTransport { stream, buffers: LazyBuffers::new(sizes.0, sizes.1) }))
    }
}

/// Connects with a time limit. If a listener accepts nothing, a connect may wait indefinitely, and the
/// standard library has no limit for it. The thread ends with the process.
fn connected(path: &Path, within: Duration) -> Result<UnixStream, Error> {
    let (done, ended) = mpsc::channel();
    let path = path.to_path_buf();
    std::thread::Builder::new().spawn(move || {
        // The receiver may be gone; the connection is then closed.
        let _ = done.send(UnixStream::connect(path));
    })?;
    match ended.recv_timeout(within) {
        Ok(connected) => Ok(connected?),
        Err(_) => Err(Error::Timeout(Timeout::Connect)),
    }
}

/// A connection for one exchange.
#[derive(Debug)]
pub(super) struct SocketTransport {
    stream: UnixStream,
    buffers: LazyBuffers,
}

impl Transport for SocketTransport {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        let timeout = timeout.for_write();
        self.stream.set_write_timeout(left(timeout))?;
        match self.stream.write_all(&self.buffers.output()[..amount]) {
            // A daemon that refuses a request answers and closes without reading all of it. What is received
            // by then is its answer, and without one the read reports the end.
            Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {
                Ok(())
            }
            sent => sent.map_err(|error| explained(error, timeout)),
        }
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        let timeout = timeout.for_read();
        let end = left(timeout).map(|left| Instant::now() + left);
        let into = self.buffers.input_append_buf();
        let read = loop {
            // At least 1 ms, because the system treats zero as no limit.
            let least = Duration::from_millis(1);
            let left = end.map(|end| end.saturating_duration_since(Instant::now()).max(least));
            self.stream.set_read_timeout(left)?;
            match self.stream.read(into) {
                // A signal interrupts the read, for instance when a stopped job continues.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => break read,
            }
        };
        let amount = read.map_err(|error| explained(error, timeout))?;
        self.buffers.input_appended(amount);
        Ok(amount > 0)
    }

    /// A connection is not reused, as over TCP.
    fn is_open(&mut self) -> bool {
        false
    }
}

fn left(timeout: NextTimeout) -> Option<Duration> {
    timeout.not_zero().map(|left| *left)
}

fn explained(error: io::Error, timeout: NextTimeout) -> Error {
    // The error kind for a time limit depends on the system.
    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) {
        Error::Timeout(timeout.reason)
    } else {
        Error::Io(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::os::unix::net::UnixListener;

    fn agent(path: &Path, within: Duration) -> ureq::Agent {
        let config = ureq::Agent::config_builder().timeout_global(Some(within)).build();
        let resolver = ureq::unversioned::resolver::DefaultResolver::default();
        let connector = SocketConnector::new(path, within / 2);
        ureq::Agent::with_parts(config, connector, resolver)
    }

    /// A body whose end is sent only once the listener has closed the connection.
    struct LateBody(mpsc::Receiver<()>);

    impl Read for LateBody {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            // It fails once the sender is gone, which is what is waited for.
            let _ = self.0.recv_timeout(Duration::from_secs(20));
            Ok(0)
        }
    }

    /// Posts to a listener that reads the head, writes `answer`, and closes before the end of the body.
    fn posted(answer: &'static str) -> Error {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("refusing.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let (open, closed) = mpsc::channel();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
            assert!(lines.take_while(|line| !line.is_empty()).count() > 0);
            stream.write_all(answer.as_bytes()).unwrap();
            drop(stream);
            drop(open);
        });
        let mut body = LateBody(closed);
        let agent = agent(&path, Duration::from_secs(20));
        let refused = agent.post("http://127.0.0.1/x").send(ureq::SendBody::from_reader(&mut body));
        server.join().unwrap();
        refused.unwrap_err()
    }

    #[test]
    fn an_answer_before_the_end_of_the_request_is_read() {
        let error = posted("HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n");
        assert!(matches!(error, Error::StatusCode(403)), "{error}");
        let error = posted("");
        assert!(matches!(error, Error::Io(_)) && !error.to_string().contains("Broken pipe"), "{error}");
    }

    #[test]
    fn a_daemon_that_says_nothing_is_waited_for_within_bounds() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("silent.sock");
        let _listener = UnixListener::bind(&path).unwrap();
        let error =
            agent(&path, Duration::from_millis(200)).get("http://127.0.0.1/livez").call().unwrap_err();
        assert!(matches!(error, Error::Timeout(_)), "{error}");
    }

    #[test]
    fn what_is_not_there_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let agent = agent(&dir.path().join("none.sock"), Duration::from_millis(200));
        let error = agent.get("http://127.0.0.1/livez").call().unwrap_err();
        assert!(error.to_string().contains("No such file"), "{error}");
    }
}
