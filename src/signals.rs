//! Signals: SIGTERM and SIGINT ask for a graceful stop, SIGHUP for a reload. A second request to stop takes
//! effect at once.
//!
//! A dedicated thread receives them, independently of the loop and the connections. The second request ends
//! the process within the signal handler, so that it works even if all threads are stuck. Nothing is lost by
//! it: correctness never depends on a graceful stop.

use futures_util::StreamExt;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook_tokio::{Handle, Signals};
use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::Arc;

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Stop gracefully: SIGTERM or SIGINT.
    Terminate,
    /// Read the configuration again.
    Reload,
}

/// Keeps the callback registered. Once dropped, no signal reaches the callback; a second request to stop
/// still ends the process.
#[must_use = "signals are delivered as long as it lives"]
pub struct Listening(Handle);

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Passes signals to `callback` from a dedicated thread. Signals of one kind that arrive together count as
/// one. Call it once per process, and before anything that takes time: until then a signal kills the process.
///
/// # Errors
/// If the handlers cannot be installed, or the system cannot start a thread.
pub fn listen(callback: impl Fn(Signal) + Send + 'static) -> io::Result<Listening> {
    let stopping = Arc::new(AtomicBool::new(false));
    for (signal, status) in [(SIGTERM, 128 + SIGTERM), (SIGINT, 128 + SIGINT)] {
        // The order matters: the first signal finds the flag down and raises it, the second finds it up.
        flag::register_conditional_shutdown(signal, status, stopping.clone())?;
        flag::register(signal, stopping.clone())?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let mut signals = {
        let _entered = runtime.enter();
        Signals::new([SIGTERM, SIGINT, SIGHUP])?
    };
    let handle = signals.handle();
    let pass = async move {
        while let Some(signal) = signals.next().await {
            match signal {
                SIGHUP => callback(Signal::Reload),
                _ => callback(Signal::Terminate),
            }
        }
    };
    std::thread::Builder::new().name("tidegate-signal".to_owned()).spawn(move || runtime.block_on(pass))?;
    Ok(Listening(handle))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{kill_process, Pid, Signal as Kill};
    use std::io::{BufRead, BufReader, Lines, Write};
    use std::process::{Child, ChildStdout, Command, Stdio};
    use std::time::{Duration, Instant};

    /// A child process that prints the signals it received. Killed if a test fails.
    struct Listener {
        child: Child,
        said: Lines<BufReader<ChildStdout>>,
    }

    impl Listener {
        /// `test` is the ignored test that the child runs.
        fn start(test: &str) -> Listener {
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", test, "--ignored", "--nocapture"])
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let said = BufReader::new(child.stdout.take().unwrap()).lines();
            let mut listener = Listener { child, said };
            listener.expect("ready");
            listener
        }

        fn expect(&mut self, what: &str) {
            let found = self.said.by_ref().map_while(Result::ok).any(|line| line.ends_with(what));
            assert!(found, "the child ended without printing {what:?}");
        }

        fn send(&self, signal: Kill) {
            kill_process(Pid::from_child(&self.child), signal).unwrap();
        }

        fn status(&mut self) -> Option<i32> {
            // The child exits after 20 s with another status.
            self.child.wait().unwrap().code()
        }
    }

    impl Drop for Listener {
        fn drop(&mut self) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }

    #[test]
    fn each_signal_reaches_the_callback() {
        let mut child = Listener::start("signals::tests::child_listens");
        child.send(Kill::HUP);
        child.expect("Reload");
        child.send(Kill::HUP);
        child.expect("Reload");
        child.send(Kill::INT);
        child.expect("Terminate");
        child.send(Kill::TERM);
        assert_eq!(child.status(), Some(143));
    }

    #[test]
    fn a_second_terminate_ends_even_a_process_that_hangs() {
        for (second, status) in [(Kill::TERM, 143), (Kill::INT, 130)] {
            let mut child = Listener::start("signals::tests::child_hangs");
            child.send(Kill::TERM);
            child.expect("Terminate");
            child.send(Kill::HUP);
            child.send(second);
            assert_eq!(child.status(), Some(status));
        }
    }

    /// Bypasses the capture of the test harness and is written at once.
    fn say(what: &str) {
        let mut out = io::stdout().lock();
        let _ = writeln!(out, "\n{what}");
        let _ = out.flush();
    }

    fn run(callback: fn(Signal)) {
        let _listening = listen(callback).unwrap();
        say("ready");
        std::thread::sleep(Duration::from_secs(20));
    }

    #[test]
    #[ignore = "run as a process of its own by another test"]
    fn child_listens() {
        run(|signal| say(&format!("{signal:?}")));
    }

    #[test]
    #[ignore = "run as a process of its own by another test"]
    fn child_hangs() {
        run(|signal| {
            say(&format!("{signal:?}"));
            let end = Instant::now() + Duration::from_secs(20);
            while Instant::now() < end {
                std::hint::spin_loop();
            }
        });
    }
}
