#!/usr/bin/env bash
# Compiles the trained example model for this CPU and lets it solve a word problem.
first=1 source "$(dirname "$0")/common.sh"

atomc compile $qwen3 --target host -o "$out/qwen3.atomc"
atomc run "$out/qwen3.atomc" --weights $qwen3 --prompt "$question"
