#!/usr/bin/env bash
# Compiles the trained example model for this CPU and lets it solve a word problem.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

cargo run --profile "${PROFILE:-release}" --quiet -- compile examples/models/qwen3 --no-trust --target host -o "$out/qwen3.atomc"
cargo run --profile "${PROFILE:-release}" --quiet -- run "$out/qwen3.atomc" --weights examples/models/qwen3 \
    --prompt $'Q: Ana has 12 apples. Ana buys 7 more. Ana gives 4 to Ben. How many apples does Ana have now?\nA:'
