#!/usr/bin/env bash
# The same from Rust: 07-from-rust.rs opens the artifact, loads weights and streams an answer with
# the crate atomc-runtime, which links neither LLVM nor Python.
source "$(dirname "$0")/common.sh"

atomc compile $qwen3 --target host -o "$out/qwen3.atomc"
build --example from-rust
"$built/examples/from-rust" "$out/qwen3.atomc" $qwen3 "$question"
