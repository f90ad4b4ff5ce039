#!/usr/bin/env bash
# A model with experts, as GPT-OSS is published: experts in MXFP4, the rest in bf16. The weights are
# random and small, so tokens go in and come out as numbers.
source "$(dirname "$0")/common.sh"
model=tests/published/small/gpt-oss-20b

atomc compile $model --target host,gfx942 -o "$out/experts.atomc"
atomc inspect "$out/experts.atomc" --weights $model | said 'fits      host'
atomc verify "$out/experts.atomc" --device host | tail -n 1
atomc run "$out/experts.atomc" --weights $model --tokens 1,2,3 --max-tokens 8
# One artifact for each of two ranks that hold half of the experts, whole, for a framework to run.
atomc compile $model --target gfx942 --tp 2 --ep 2 -o "$out/rank.atomc"
atomc inspect "$out/rank.atomc" | said 'ranks'
