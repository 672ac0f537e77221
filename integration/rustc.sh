#!/bin/sh
# What tests are compiled by, of this workspace's crates (RUSTC_WORKSPACE_WRAPPER): rustc with clippy's lints, each of them
# an error. So one pass both lints and builds: clippy by itself checks every dependency once more, a third of a clean run.
exec clippy-driver "$@" -Dwarnings
