#!/usr/bin/env bash
# All of an artifact on one page that needs no network: launches as a graph, kernels with their
# schedules and times, memory, weights, and what changed from another artifact. Open it in a
# browser. usage: 13-report.sh [PAGE]
source "$(dirname "$0")/common.sh"
page=${1:-$out/report.html}

atomc compile $qwen3 --target host -o "$out/before.atomc"
atomc compile $qwen3 --target host --quant int4-g64 -o "$out/after.atomc"
atomc bench "$out/after.atomc" --weights $qwen3 --prompt 64 --steps 4 --repeat 1 --kernels --json >"$out/bench.json"
atomc report "$out/after.atomc" -o "$page" --bench "$out/bench.json" --against "$out/before.atomc"
# The first lines of what changed, as the page has them.
atomc diff "$out/before.atomc" "$out/after.atomc" | head -n 20
echo "$page: $(stat -c %s "$page") bytes"
