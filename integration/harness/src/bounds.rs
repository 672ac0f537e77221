//! Time limits: a test that hangs fails by name, and a test that measures runs alone.
//!
//! A test enters at its first use of the harness (a site, a node, a directory) and leaves when its thread
//! ends; libtest gives each test a separate thread with the test's name. A thread cannot be killed, so the
//! watch names a test that hangs, lets the others finish, and then ends the process.

use crate::util::shout;
use std::cell::RefCell;
use std::sync::{Condvar, Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};

/// Default time limit of a test: several times what the slowest tests need.
const LIMIT: Duration = Duration::from_secs(600);
/// Once a test hangs and no other test has run for this long, the process ends.
const QUIET: Duration = Duration::from_secs(10);
/// Exit code after a hanging test: that of libtest for a failed test.
const FAILED: i32 = 101;

#[derive(Debug)]
struct Test {
    number: u64,
    name: String,
    began: Instant,
    limit: Duration,
    alone: bool,
    hung: bool,
}

#[derive(Debug, Default)]
struct Stage {
    running: Vec<Test>,
    /// Tests that wait to run alone; no other test enters before them.
    waiting_alone: usize,
    entered: u64,
    changed: Option<Instant>,
}

impl Stage {
    /// Running tests, without those that hang.
    fn others(&self) -> impl Iterator<Item = &Test> {
        self.running.iter().filter(|test| !test.hung)
    }

    fn is_free(&self, alone: bool) -> bool {
        if alone {
            self.others().next().is_none()
        } else {
            self.waiting_alone == 0 && !self.others().any(|test| test.alone)
        }
    }
}

static STAGE: Mutex<Stage> =
    Mutex::new(Stage { running: Vec::new(), waiting_alone: 0, entered: 0, changed: None });
static CHANGED: Condvar = Condvar::new();

fn stage() -> MutexGuard<'static, Stage> {
    STAGE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Leaves when the thread ends, also by a panic.
struct Entry(u64);

impl Drop for Entry {
    fn drop(&mut self) {
        let mut stage = stage();
        stage.running.retain(|test| test.number != self.0);
        stage.changed = Some(Instant::now());
        drop(stage);
        CHANGED.notify_all();
    }
}

thread_local! {
    static ENTRY: RefCell<Option<Entry>> = const { RefCell::new(None) };
}

/// Name of the test of this thread; `None` in a program's main thread, and in threads that a test has
/// started.
pub(crate) fn test_name() -> Option<String> {
    std::thread::current().name().filter(|name| *name != "main").map(ToOwned::to_owned)
}

fn is_entered() -> bool {
    ENTRY.with_borrow(Option::is_some)
}

fn enter_as(alone: bool) {
    let Some(name) = test_name() else { return };
    watch();
    let mut stage = stage();
    stage.waiting_alone += usize::from(alone);
    stage = CHANGED.wait_while(stage, |stage| !stage.is_free(alone)).unwrap_or_else(PoisonError::into_inner);
    stage.waiting_alone -= usize::from(alone);
    stage.entered += 1;
    let number = stage.entered;
    stage.running.push(Test { number, name, began: Instant::now(), limit: LIMIT, alone, hung: false });
    drop(stage);
    ENTRY.set(Some(Entry(number)));
}

/// Enters this test, with the default time limit, unless it has entered before.
pub(crate) fn enter() {
    if !is_entered() {
        enter_as(false);
    }
}

/// Sets the time limit of this test, counted from its first use of the harness. When it is exceeded, the test
/// fails and its process ends. Needed only for a limit other than the default, or without any other use of
/// the harness.
pub fn bounded(limit: Duration) {
    enter();
    let number = ENTRY.with_borrow(|entry| entry.as_ref().map(|entry| entry.0));
    let mut stage = stage();
    if let Some(test) = stage.running.iter_mut().find(|test| Some(test.number) == number) {
        test.limit = limit;
    }
}

/// Runs this test alone: for tests that measure, and for those that would disturb the measurements of others.
/// Must be the first call to the harness, in a module named `alone`: a run of all tests runs these modules
/// last, so that no test waits for another to end.
///
/// # Panics
/// If it is not the first call, or not in such a module.
pub fn alone() {
    assert!(!is_entered(), "alone() comes before anything else of the harness");
    let apart = test_name().is_none_or(|name| name.contains("::alone::"));
    assert!(apart, "a test that runs alone() stands in a module of this name");
    enter_as(true);
}

/// Judges a measurement: it passes if one of three rounds does, because other work on the machine delays a
/// round. The test must run [`alone`]. Early or lost items are not a matter of rounds: each round asserts
/// that.
///
/// # Panics
/// With the figures of all three rounds if none passes; and if the test does not run alone.
pub fn best_of_three(mut round: impl FnMut(u32) -> Result<(), String>) {
    let number = ENTRY.with_borrow(|entry| entry.as_ref().map(|entry| entry.0));
    let is_alone = stage().running.iter().any(|test| Some(test.number) == number && test.alone);
    assert!(is_alone, "what is measured by the clock runs alone()");
    let mut missed = Vec::new();
    for n in 0..3 {
        match round(n) {
            Ok(()) => return,
            Err(figures) => missed.push(figures),
        }
    }
    panic!("the best of three: {missed:?}");
}

fn watch() {
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        std::thread::spawn(|| loop {
            std::thread::sleep(Duration::from_millis(500));
            look();
        });
    });
}

/// Names tests that hang, and ends the process once no other test runs.
fn look() {
    let mut stage = stage();
    let mut found = false;
    for test in stage.running.iter_mut().filter(|test| !test.hung && test.began.elapsed() > test.limit) {
        test.hung = true;
        found = true;
        shout(&format!("HANGS: test {} has not ended within {:?}", test.name, test.limit));
    }
    if found {
        stage.changed = Some(Instant::now());
        CHANGED.notify_all();
    }
    let hung: Vec<&str> =
        stage.running.iter().filter(|test| test.hung).map(|test| test.name.as_str()).collect();
    let quiet = stage.others().next().is_none() && stage.changed.is_some_and(|at| at.elapsed() > QUIET);
    if !hung.is_empty() && quiet {
        shout(&format!("FAILED: {} hung, which ends this process: {}", hung.len(), hung.join(", ")));
        std::process::exit(FAILED);
    }
}

/// The share of a processor that a busy thread gets at present, above 0 and at most 1. Divide a wall time
/// bound for work by it.
///
/// # Panics
/// If the system does not report the running time of a thread.
pub fn processor_share() -> f64 {
    let ran_ns = || -> u64 {
        let told = std::fs::read_to_string("/proc/thread-self/schedstat").expect("what the thread has had");
        told.split_whitespace().next().and_then(|ns| ns.parse().ok()).expect("nanoseconds")
    };
    let (begun, before) = (Instant::now(), ran_ns());
    while begun.elapsed() < Duration::from_millis(500) {
        std::hint::spin_loop();
    }
    let share = (ran_ns() - before) as f64 / begun.elapsed().as_nanos() as f64;
    share.clamp(0.05, 1.0)
}
