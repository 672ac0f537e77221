//! Standard error for log lines: no thread waits for whoever reads it.
//!
//! A pager, a stopped terminal or a container's log driver may stop reading. A daemon whose threads waited
//! for it would stand still as one after the other has something to say. So a line is written at once where
//! that cannot block; otherwise it waits for a thread that does nothing else.

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::fs::{fstat, FileType};
use std::cell::Cell;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::Duration;

/// Most bytes of lines that wait. Lines beyond it are lost, and counted.
const MOST_BYTES: usize = 1 << 20;
/// `PIPE_BUF` of Linux: a pipe that polls as writable takes so many bytes without blocking.
const AT_ONCE: usize = 4096;
/// How long a line waits for one that is being written at once, before it waits for the thread.
const BRIEFLY: Duration = Duration::from_millis(100);
/// The thread only writes.
const STACK: usize = 512 << 10;

thread_local! {
    /// This is the thread that writes, which tells what is lost.
    static WRITES: Cell<bool> = const { Cell::new(false) };
}

/// The stream, shared by all threads that log.
#[derive(Clone, Debug)]
pub(super) struct LogStream(Arc<StreamState>);

#[derive(Debug)]
struct StreamState {
    to: File,
    /// Short lines may be written without the thread. A terminal may take a part of a line, and let the rest
    /// wait.
    at_once: bool,
    lines: Mutex<WaitingLines>,
    changed: Condvar,
}

/// Lines that could not be written at once.
#[derive(Debug, Default)]
struct WaitingLines {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
    /// Number of lines for which there was no room.
    lost: u64,
    writing: Writing,
}

/// Who writes at present, without the lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Writing {
    #[default]
    Nobody,
    /// A thread that logs, for a moment.
    Logger,
    /// The thread for it; or a thread that logs, which the stream holds up all the same.
    Long,
}

impl LogStream {
    /// # Errors
    /// If the system cannot start a thread.
    pub(super) fn start(to: File) -> io::Result<LogStream> {
        let is_short = |kind| matches!(kind, FileType::Fifo | FileType::Socket | FileType::RegularFile);
        let at_once = fstat(&to).is_ok_and(|stat| is_short(FileType::from_raw_mode(stat.st_mode)));
        let state = StreamState { to, at_once, lines: Mutex::default(), changed: Condvar::new() };
        let stream = LogStream(Arc::new(state));
        let writer = stream.clone();
        Builder::new().name("tidegate-log".to_owned()).stack_size(STACK).spawn(move || {
            WRITES.set(true);
            loop {
                writer.write_waiting();
            }
        })?;
        Ok(stream)
    }

    /// Waits until all lines are written, at most for `limit`.
    pub(super) fn finish(&self, limit: Duration) {
        let unwritten = |lines: &mut WaitingLines| !lines.is_clear();
        let _written = self.0.changed.wait_timeout_while(self.lines(), limit, unwritten);
    }

    fn write_waiting(&self) {
        let idle = |lines: &mut WaitingLines| lines.lines.is_empty() || lines.writing != Writing::Nobody;
        let waited = self.0.changed.wait_while(self.lines(), idle);
        let mut lines = waited.unwrap_or_else(PoisonError::into_inner);
        let taken = std::mem::take(&mut lines.lines);
        lines.bytes = 0;
        lines.writing = Writing::Long;
        drop(lines);
        for line in taken {
            // Only a line that cannot be written is lost.
            let _ = write_whole(&self.0.to, &line);
        }
        let mut lines = self.lines();
        lines.writing = Writing::Nobody;
        let lost = std::mem::take(&mut lines.lost);
        drop(lines);
        self.0.changed.notify_all();
        if lost > 0 {
            tracing::warn!(lost, "log lines are lost: nobody read standard error");
        }
    }

    /// Writes the line without the thread, if that does not block. False: it has to wait.
    fn write_at_once(&self, line: &[u8]) -> bool {
        if !self.0.at_once || line.len() > AT_ONCE {
            return false;
        }
        let another = |lines: &mut WaitingLines| lines.writing == Writing::Logger;
        let waited = self.0.changed.wait_timeout_while(self.lines(), BRIEFLY, another);
        let (mut lines, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() && lines.writing == Writing::Logger {
            // Another process has filled the stream between its look and its write.
            lines.writing = Writing::Long;
        }
        if !lines.is_clear() || !takes_now(&self.0.to) {
            return false;
        }
        lines.writing = Writing::Logger;
        drop(lines);
        let _ = write_whole(&self.0.to, line);
        self.lines().writing = Writing::Nobody;
        self.0.changed.notify_all();
        true
    }

    fn lines(&self) -> MutexGuard<'_, WaitingLines> {
        self.0.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WaitingLines {
    fn is_clear(&self) -> bool {
        self.lines.is_empty() && self.writing == Writing::Nobody
    }
}

impl Write for LogStream {
    /// Takes a whole line; never fails.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.write_at_once(line) {
            return Ok(line.len());
        }
        let mut lines = self.lines();
        // The number of those that are lost must not be lost itself.
        if lines.lines.is_empty() || lines.bytes + line.len() <= MOST_BYTES || WRITES.get() {
            lines.lines.push_back(line.to_vec());
            lines.bytes += line.len();
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

/// Writes all of it, also to a stream that some other process has set to non-blocking.
fn write_whole(mut to: &File, mut line: &[u8]) -> io::Result<()> {
    while !line.is_empty() {
        match to.write(line) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(count) => line = &line[count..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                poll(&mut [PollFd::new(to, PollFlags::OUT)], None)?;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
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
            assert!(stream.lines().is_clear());
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
            stream.write_all(format!("{n:->60}\n").as_bytes()).unwrap();
        }
        assert!(stream.lines().lost == 0 && !stream.lines().is_clear(), "the pipe takes a tenth");
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
        // Longer than what the pipe takes: it holds the thread up.
        stream.write_all(format!("{}\n", "x".repeat(MOST_BYTES)).as_bytes()).unwrap();
        while !(stream.lines().writing == Writing::Long && stream.lines().lines.is_empty()) {
            std::thread::yield_now();
        }
        let most = MOST_BYTES / line.len();
        for _ in 0..most + 70 {
            stream.write_all(line.as_bytes()).unwrap();
        }
        let count = |lines: MutexGuard<'_, WaitingLines>| (lines.lost, lines.lines.len());
        assert_eq!(count(stream.lines()), (70, most));
        stream.finish(Duration::from_millis(10));
        let reading = std::thread::spawn(move || reader.lines().take(1 + most).count());
        assert_eq!(reading.join().unwrap(), 1 + most);
        stream.finish(LIMIT);
        assert!(stream.lines().is_clear());
        while stream.lines().lost > 0 {
            std::thread::yield_now();
        }
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
        assert!(stream.lines().is_clear());
    }
}
