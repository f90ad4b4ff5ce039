#!/usr/bin/env bash
# The same from Python, without a framework. PYTHON is one that has the package (pip install
# ./plugin) and tokenizers; without it an environment is made and the package is built.
source "$(dirname "$0")/common.sh"

if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$out/venv"
    "$out/venv/bin/python" -m pip install --quiet ./plugin tokenizers
    PYTHON=$out/venv/bin/python
fi
atomc compile $qwen3 --target host -o "$out/qwen3.atomc"
"$PYTHON" examples/08-from-python.py "$out/qwen3.atomc" $qwen3 "$question"
