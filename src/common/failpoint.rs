//! Named points at which a test ends or freezes the process. `TIDEGATE_FAILPOINT=NAME[:NTH[:HOW]]` acts when
//! NAME is reached for the NTH time (1 if not given): by SIGKILL; by a panic of the thread that reached it
//! (`panic`); or by SIGSTOP, after which the process goes on with SIGCONT (`freeze`).
//!
//! They exist only with the cargo feature `failpoints`, which no shipped binary has. Without it they expand
//! to nothing.

/// Marks a failpoint. Expands to nothing without the feature.
#[cfg(feature = "failpoints")]
#[macro_export]
macro_rules! failpoint {
    ($name:literal) => {
        $crate::failpoint::reached($name);
    };
    ($name:literal, if $holds:expr) => {
        if $holds {
            $crate::failpoint::reached($name);
        }
    };
}

/// Marks a failpoint. Expands to nothing without the feature.
#[cfg(not(feature = "failpoints"))]
#[macro_export]
macro_rules! failpoint {
    ($name:literal) => {};
    ($name:literal, if $holds:expr) => {};
}

#[cfg(feature = "failpoints")]
mod armed {
    use rustix::process::{getpid, kill_process, Signal};
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::OnceLock;
    use std::time::Duration;

    struct Chosen {
        name: String,
        nth: u64,
        how: How,
    }

    #[derive(Clone, Copy)]
    enum How {
        Kill,
        Panic,
        Freeze,
    }

    fn chosen() -> Option<Chosen> {
        let text = std::env::var("TIDEGATE_FAILPOINT").ok().filter(|text| !text.is_empty())?;
        let mut parts = text.split(':');
        let name = parts.next()?.to_owned();
        let nth = parts.next().and_then(|nth| nth.parse().ok()).unwrap_or(1);
        let how = match parts.next() {
            Some("panic") => How::Panic,
            Some("freeze") => How::Freeze,
            _ => How::Kill,
        };
        Some(Chosen { name, nth, how })
    }

    /// A thread has reached the failpoint `name`.
    pub fn reached(name: &str) {
        static CHOSEN: OnceLock<Option<Chosen>> = OnceLock::new();
        static TIMES: AtomicU64 = AtomicU64::new(0);
        let Some(chosen) = CHOSEN.get_or_init(chosen) else { return };
        if chosen.name != name || TIMES.fetch_add(1, Ordering::Relaxed) + 1 != chosen.nth {
            return;
        }
        let signal = match chosen.how {
            How::Kill => Signal::KILL,
            How::Panic => panic!("failpoint {name}"),
            How::Freeze => Signal::STOP,
        };
        let sent = kill_process(getpid(), signal);
        // A signal may take a moment, and this thread must not continue until then.
        match chosen.how {
            How::Freeze => std::thread::sleep(Duration::from_millis(200)),
            How::Kill | How::Panic => {
                while sent.is_ok() {
                    std::thread::park();
                }
            }
        }
    }
}

#[cfg(feature = "failpoints")]
pub use armed::reached;
