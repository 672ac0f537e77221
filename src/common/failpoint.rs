//! Named points at which a test makes the process die. `TIDEGATE_FAILPOINT=NAME[:NTH[:panic]]` ends it when
//! NAME is reached for the NTH time (1 if not given): by SIGKILL, or by a panic of the thread that reached
//! it.
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

    struct Chosen {
        name: String,
        nth: u64,
        panics: bool,
    }

    fn chosen() -> Option<Chosen> {
        let text = std::env::var("TIDEGATE_FAILPOINT").ok().filter(|text| !text.is_empty())?;
        let mut parts = text.split(':');
        let name = parts.next()?.to_owned();
        let nth = parts.next().and_then(|nth| nth.parse().ok()).unwrap_or(1);
        Some(Chosen { name, nth, panics: parts.next() == Some("panic") })
    }

    /// A thread has reached the failpoint `name`.
    pub fn reached(name: &str) {
        static CHOSEN: OnceLock<Option<Chosen>> = OnceLock::new();
        static TIMES: AtomicU64 = AtomicU64::new(0);
        let Some(chosen) = CHOSEN.get_or_init(chosen) else { return };
        if chosen.name != name || TIMES.fetch_add(1, Ordering::Relaxed) + 1 != chosen.nth {
            return;
        }
        assert!(!chosen.panics, "failpoint {name}");
        let killed = kill_process(getpid(), Signal::KILL);
        // The signal may take a moment; the thread must not continue until then.
        while killed.is_ok() {
            std::thread::park();
        }
    }
}

#[cfg(feature = "failpoints")]
pub use armed::reached;
