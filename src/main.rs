//! The binary. All other code is in the library.

use std::env;
use std::process::ExitCode;

/// 64 MiB. lapin parses nested header tables by recursion, on its own thread, whose stack size can be set in
/// no other way: 10 kB of nesting overflow the usual 2 MiB and abort the process. An unoptimised build needs
/// several times as much per level.
const MIN_STACK: usize = if cfg!(debug_assertions) { 256 << 20 } else { 64 << 20 };

/// Each message causes about ten allocations on one thread that another thread frees. See
/// `docs/DECISIONS.md`.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // This comes first, because the standard library reads the variable once, when it starts the first
    // thread. Setting it cannot race while no other thread exists; in edition 2021 the function is safe.
    let current = env::var("RUST_MIN_STACK").ok().and_then(|v| v.parse::<usize>().ok());
    if current.is_none_or(|bytes| bytes < MIN_STACK) {
        env::set_var("RUST_MIN_STACK", MIN_STACK.to_string());
    }
    tidegate::cli::main()
}
