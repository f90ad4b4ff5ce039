#!/usr/bin/env bash
# What the compiler makes of a model: the graph before and after fusion, and what the artifact
# holds.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

cargo run --profile "${PROFILE:-release}" --quiet -- print examples/models/qwen3 --after dce | sed -n 1,30p
cargo run --profile "${PROFILE:-release}" --quiet -- print examples/models/qwen3 --after fuse | sed -n 1,40p
cargo run --profile "${PROFILE:-release}" --quiet -- compile examples/models/qwen3 --no-trust --target host -o "$out/qwen3.atomc"
cargo run --profile "${PROFILE:-release}" --quiet -- inspect "$out/qwen3.atomc"
