#!/usr/bin/env bash
# Compiles the trained example model for an AMD GPU that is not here, checks every kernel of it, and
# solves a word problem with the GPU's code in the emulator.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

cargo run --profile "${PROFILE:-release}" --quiet -- compile examples/models/qwen3 --no-trust --target gfx942 -o "$out/qwen3.atomc"
cargo run --profile "${PROFILE:-release}" --quiet -- verify "$out/qwen3.atomc" --device emu:gfx942
cargo run --profile "${PROFILE:-release}" --quiet -- run "$out/qwen3.atomc" --weights examples/models/qwen3 --device emu:gfx942 \
    --prompt $'Q: Ana has 12 apples. Ana buys 7 more. Ana gives 4 to Ben. How many apples does Ana have now?\nA:'
