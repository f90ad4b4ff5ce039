#!/usr/bin/env bash
# What the compiler makes of a model: the graph before and after fusion, and what the artifact
# holds.
source "$(dirname "$0")/common.sh"

atomc print $qwen3 --after dce | sed -n 1,30p
atomc print $qwen3 --after fuse | sed -n 1,40p
atomc compile $qwen3 --target host -o "$out/qwen3.atomc"
atomc inspect "$out/qwen3.atomc"
