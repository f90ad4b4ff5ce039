#!/usr/bin/env bash
# Has NVIDIA's assembler, from its package for Python, take every kernel of the benchmark models:
# tests/ptxas.sh
set -euo pipefail
cd "$(dirname "$0")/.."
if [ -z "${ATOMC_PTXAS:-}" ]; then
    venv=target/ptxas
    [ -e "$venv" ] || python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --no-deps nvidia-cuda-nvcc==13.0.88
    ATOMC_PTXAS=$(find "$PWD/$venv" -name ptxas -type f | head -1)
fi
export ATOMC_PTXAS
cargo test --workspace --test ptxas -- --ignored
