#!/usr/bin/env bash
# The same from C: builds the runtime as a shared library and a program of some 60 lines against its
# header.
source "$(dirname "$0")/common.sh"

build -p atomc -p atomc-c
atomc compile $qwen3 --target host -o "$out/qwen3.atomc"
cc -std=c11 -Wall -Wextra -Werror -Iruntime/include examples/04-from-c.c -L"$built" -latomc_runtime -o "$out/from-c"
LD_LIBRARY_PATH=$built "$out/from-c" "$out/qwen3.atomc" $qwen3
