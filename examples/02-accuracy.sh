#!/usr/bin/env bash
# Exact-match accuracy on held-out word problems: a number that a compiler bug visibly lowers.
source "$(dirname "$0")/common.sh"

for model in llama qwen3; do
    atomc compile "examples/models/$model" --target host -o "$out/$model.atomc"
    atomc eval "$out/$model.atomc" --weights "examples/models/$model" examples/problems.jsonl --json
done
