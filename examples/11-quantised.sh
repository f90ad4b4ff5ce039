#!/usr/bin/env bash
# A model in 4 bits: the checkpoint stays as it is, and weights become codes while they are loaded.
# A checkpoint that is quantised already needs no option (docs/quantization.md).
source "$(dirname "$0")/common.sh"

head -n 50 examples/problems.jsonl >"$out/problems.jsonl"
for scheme in none int4-g64 fp8; do
    atomc compile $qwen3 --quant $scheme --target host -o "$out/$scheme.atomc"
    echo "$scheme: $(atomc inspect "$out/$scheme.atomc" | said '  weights ')"
    atomc eval "$out/$scheme.atomc" --weights $qwen3 "$out/problems.jsonl" --json
done
