#!/usr/bin/env bash
# Exact-match accuracy on held-out word problems: a number that a compiler bug visibly lowers.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

for model in llama qwen3; do
    cargo run --profile "${PROFILE:-release}" --quiet -- compile "examples/models/$model" --no-trust --target host -o "$out/$model.atomc"
    cargo run --profile "${PROFILE:-release}" --quiet -- eval "$out/$model.atomc" --weights "examples/models/$model" examples/problems.jsonl --json
done
