#!/bin/sh
# Compiles the crates of this workspace for the tests (RUSTC_WORKSPACE_WRAPPER): rustc with clippy's lints as errors. So
# one pass both lints and builds; clippy alone would check every dependency again, a third of a clean run.
exec clippy-driver "$@" -Dwarnings
