#!/usr/bin/env bash
# The same from C: builds the runtime as a shared library and a program of some 60 lines against its
# header.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

# Both at once, so that they share what they are made of.
profile=${PROFILE:-release}
cargo build --profile "$profile" --quiet -p atomc -p atomc-c
cargo run --profile "$profile" --quiet -- compile examples/models/qwen3 --no-trust --target host -o "$out/qwen3.atomc"
folder=${profile/#dev/debug}
libraries="${CARGO_TARGET_DIR:-target}/$folder"
cc -std=c11 -Wall -Wextra -Werror -Iruntime/include examples/04-from-c.c -L"$libraries" -latomc_runtime -o "$out/from-c"
LD_LIBRARY_PATH="$libraries" "$out/from-c" "$out/qwen3.atomc" examples/models/qwen3
