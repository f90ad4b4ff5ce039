#!/usr/bin/env bash
# For an MI300X that is not here: compiles the trained example model, checks every kernel in the
# emulator, solves a word problem with the chip's code there, and predicts what a step would take.
source "$(dirname "$0")/common.sh"

atomc compile $qwen3 --target gfx942 -o "$out/qwen3.atomc"
atomc verify "$out/qwen3.atomc" --device emu:gfx942
atomc run "$out/qwen3.atomc" --weights $qwen3 --device emu:gfx942 --prompt "$question"
# What the kernels take of the chip, and how long: predicted, with the model's error.
atomc inspect "$out/qwen3.atomc" --kernels | sed -n '/^kernels/,$p' | head -n 12
atomc bench "$out/qwen3.atomc" --model MI300X --prompt 512 --position 256 --batch 1,8
