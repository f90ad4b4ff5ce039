#!/usr/bin/env bash
# atomc beside its peers on this machine's CPU, in one run: Qwen3-0.6B shapes, random bf16 weights,
# two threads. Rounds alternate, because shared machines drift; compare within a round, or medians
# over rounds.
#
#     bash tests/bench/compare.sh [ROUNDS]
#
# The first run builds llama.cpp from source (a quarter of an hour on two cores) and writes a model
# file of 1.2 GB. Everything is kept in target/peers. Needs Python 3.10 or newer, a C++ compiler,
# and the package index that pip is set up for. A ready Python with both peers can be named in
# ATOMC_PEER_PYTHON; if PyTorch is in another one, that in ATOMC_TORCH_PYTHON.
set -euo pipefail
cd "$(dirname "$0")/../.."
rounds=${1:-3}
dir=${CARGO_TARGET_DIR:-target}/peers
mkdir -p "$dir"

llama=${ATOMC_PEER_PYTHON:-$dir/venv/bin/python}
torch=${ATOMC_TORCH_PYTHON:-$llama}
if ! [ -x "$llama" ]; then
    python3 -m venv "$dir/venv"
    CMAKE_ARGS=-DGGML_NATIVE=ON "$dir/venv/bin/pip" install --quiet llama-cpp-python gguf numpy torch transformers
fi

cargo build --release --quiet -p atomc
atomc=${CARGO_TARGET_DIR:-target}/release/atomc
"$atomc" compile tests/bench/qwen3-0.6b.json --no-trust --target host -o "$dir/qwen3-0.6b.atomc" 2>/dev/null

for round in $(seq "$rounds"); do
    echo "round $round"
    "$atomc" bench "$dir/qwen3-0.6b.atomc" --random-weights --threads 2 --prompt 512 --batch 1,8 2>/dev/null
    "$llama" tests/bench/peer_cpu.py llama "$dir/qwen3-0.6b-random.gguf"
    "$torch" tests/bench/peer_cpu.py torch
done
