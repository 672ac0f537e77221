//! Standard error for log lines: no thread waits for whoever reads it.
//!
//! A pager, a stopped terminal or a container's log driver may stop reading. A daemon whose threads waited
//! for it would stand still as one after the other has something to say. So a line is written at once where
//! that cannot block; otherwise it waits for a thread that does nothing else.

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use std::fs::File;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::Duration;

/// Most bytes of lines that wait. Lines beyond it are lost, and counted.
const MOST_BYTES: usize = 1 << 20;
/// `PIPE_BUF` of Linux: a pipe that polls as writable takes so many bytes without blocking.
const AT_ONCE: usize = 4096;
/// The thread only writes.
const STACK: usize = 512 << 10;

/// The stream, shared by all threads that log.
#[derive(Clone, Debug)]
pub(super) struct LogStream(Arc<StreamState>);

#[derive(Debug)]
struct StreamState {
    to: File,
    lines: Mutex<WaitingLines>,
    changed: Condvar,
}

/// Lines that could not be written at once.
#[derive(Debug, Default)]
struct WaitingLines {
    bytes: Vec<u8>,
    /// Number of lines for which there was no room.
    lost: u64,
    /// The thread has taken lines that it has not written yet.
    writing: bool,
}

impl LogStream {
    /// # Errors
    /// If the system cannot start a thread.
    pub(super) fn start(to: File) -> io::Result<LogStream> {
        let shared = StreamState { to, lines: Mutex::default(), changed: Condvar::new() };
        let stream = LogStream(Arc::new(shared));
        let writer = stream.clone();
        Builder::new().name("tidegate-log".to_owned()).stack_size(STACK).spawn(move || loop {
            writer.write_waiting();
        })?;
        Ok(stream)
    }

    /// Waits until all lines are written, at most for `limit`.
    pub(super) fn finish(&self, limit: Duration) {
        let unwritten = |lines: &mut WaitingLines| lines.writing || !lines.bytes.is_empty();
        let _written = self.0.changed.wait_timeout_while(self.lines(), limit, unwritten);
    }

    fn write_waiting(&self) {
        let waited = self.0.changed.wait_while(self.lines(), |lines| lines.bytes.is_empty());
        let mut lines = waited.unwrap_or_else(PoisonError::into_inner);
        let bytes = std::mem::take(&mut lines.bytes);
        let lost = std::mem::take(&mut lines.lost);
        lines.writing = true;
        drop(lines);
        // One by one: only a line that cannot be written is lost.
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            let _ = (&self.0.to).write_all(line);
        }
        if lost > 0 {
            // Waits like any other line.
            tracing::warn!(lost, "log lines are lost: nobody read standard error");
        }
        self.lines().writing = false;
        self.0.changed.notify_all();
    }

    fn lines(&self) -> MutexGuard<'_, WaitingLines> {
        self.0.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Write for LogStream {
    /// Takes a whole line; never fails.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut lines = self.lines();
        let is_first = lines.bytes.is_empty() && !lines.writing;
        if is_first && line.len() <= AT_ONCE && takes_now(&self.0.to) {
            let _ = (&self.0.to).write_all(line);
        } else if lines.bytes.is_empty() || lines.bytes.len() + line.len() <= MOST_BYTES {
            lines.bytes.extend_from_slice(line);
            self.0.changed.notify_all();
        } else {
            lines.lost += 1;
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whether a short line can be written without waiting. A stream that is closed takes it, too: the write
/// fails.
fn takes_now(to: &File) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(to, PollFlags::OUT)], Some(&now)).is_ok_and(|ready| ready > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::os::fd::OwnedFd;

    /// Far longer than anything here takes.
    const LIMIT: Duration = Duration::from_secs(60);

    fn piped() -> (BufReader<io::PipeReader>, LogStream) {
        let (reader, writer) = io::pipe().unwrap();
        (BufReader::new(reader), LogStream::start(File::from(OwnedFd::from(writer))).unwrap())
    }

    fn number(line: &str) -> usize {
        line.trim_start_matches('-').trim_end().parse().unwrap()
    }

    #[test]
    fn a_line_is_there_when_it_has_been_logged() {
        let (mut reader, mut stream) = piped();
        for n in 0..100 {
            stream.write_all(format!("{n}\n").as_bytes()).unwrap();
            assert!(!stream.lines().writing && stream.lines().bytes.is_empty());
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            assert_eq!(number(&line), n);
        }
    }

    #[test]
    fn who_logs_does_not_wait_for_a_reader_and_the_lines_keep_their_order() {
        let (reader, mut stream) = piped();
        const COUNT: usize = 10_000;
        for n in 0..COUNT {
            stream.write_all(format!("{n:-<60}\n").replace('-', "").as_bytes()).unwrap();
        }
        assert_eq!(stream.lines().lost, 0);
        let reading = std::thread::spawn(move || {
            reader.lines().take(COUNT).map(|line| number(&line.unwrap())).collect::<Vec<_>>()
        });
        stream.finish(LIMIT);
        assert_eq!(reading.join().unwrap(), (0..COUNT).collect::<Vec<_>>());
    }

    #[test]
    fn what_waits_is_bounded_and_what_is_lost_is_counted() {
        let (reader, mut stream) = piped();
        let line = format!("{}\n", "x".repeat(999));
        let count = 4 * MOST_BYTES / line.len();
        for _ in 0..count {
            stream.write_all(line.as_bytes()).unwrap();
        }
        let lost = stream.lines().lost as usize;
        assert!(stream.lines().bytes.len() <= MOST_BYTES && lost > count / 3, "{lost} of {count}");
        stream.finish(Duration::from_millis(10));
        let reading = std::thread::spawn(move || reader.lines().take(count - lost).count());
        assert_eq!(reading.join().unwrap(), count - lost);
        stream.finish(LIMIT);
        assert_eq!(stream.lines().lost, 0);
    }

    #[test]
    fn a_line_longer_than_all_that_may_wait_is_written() {
        let (mut reader, mut stream) = piped();
        let long = format!("{}\n", "x".repeat(2 * MOST_BYTES));
        stream.write_all(long.as_bytes()).unwrap();
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        assert!(line == long);
    }

    #[test]
    fn a_reader_that_is_gone_stops_nobody() {
        let (reader, mut stream) = piped();
        drop(reader);
        stream.write_all(b"a\n").unwrap();
        stream.write_all(&[b'x'; 2 * AT_ONCE]).unwrap();
        stream.finish(LIMIT);
        assert!(!stream.lines().writing && stream.lines().bytes.is_empty());
    }
}
