//! The binary. Everything else is in the library.

use std::env;
use std::process::ExitCode;

/// 64 MiB: a frame full of nested header tables is parsed by recursion, on a thread of lapin's own whose
/// stack can be set in no other way: 10 kB of nesting overflow the usual 2 MiB and abort the process. A build
/// that is not optimised takes several times as much for each level.
const MIN_STACK: usize = if cfg!(debug_assertions) { 256 << 20 } else { 64 << 20 };

/// What one thread allocates, another frees: for each message some ten times. See `docs/DECISIONS.md`.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // First of all, because the standard library reads it once, at the first thread. Before any thread
    // exists, setting a variable races with nothing; edition 2021 has it as a safe function.
    let current = env::var("RUST_MIN_STACK").ok().and_then(|v| v.parse::<usize>().ok());
    if current.is_none_or(|bytes| bytes < MIN_STACK) {
        env::set_var("RUST_MIN_STACK", MIN_STACK.to_string());
    }
    tidegate::cli::main()
}
