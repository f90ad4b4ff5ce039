#!/usr/bin/env bash
# Python of this tree: formatted and linted by ruff, type-checked by mypy, as pyproject.toml says.
# Comments of Python and Rust: few words of riddles, as tests/english.py counts them.
# usage: .ci/python.sh [--fix]       --fix formats, and mends what ruff can
# Both tools come from an environment in TOOLS, target/python-tools. Where the package index cannot
# be reached they are absent, which is said and fails nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
python3 tests/english.py --check
tools=${TOOLS:-${CARGO_TARGET_DIR:-target}/python-tools} wanted=("ruff==0.17.6" "mypy==2.4.1")

if [ "$(cat "$tools/done" 2>/dev/null)" != "${wanted[*]}" ]; then
    python3 -m venv "$tools"
    if ! "$tools/bin/python" -m pip install --quiet --disable-pip-version-check "${wanted[@]}"; then
        echo "NOT CHECKED: Python, as ruff and mypy cannot be installed"
        exit 0
    fi
    echo "${wanted[*]}" >"$tools/done"
fi
tools=$(realpath "$tools")
export RUFF_CACHE_DIR=$tools/ruff-cache MYPY_CACHE_DIR=$tools/mypy-cache

if [ "${1:-}" = --fix ]; then
    "$tools/bin/ruff" check --quiet --fix .
    "$tools/bin/ruff" format --quiet .
fi
"$tools/bin/ruff" format --quiet --check . || { echo "bash .ci/python.sh --fix formats these" && exit 1; }
"$tools/bin/ruff" check .

# The package with all of its functions. Scripts and tests, a folder at a time, as folders have
# modules of the same name; of these only functions with types.
"$tools/bin/mypy" --check-untyped-defs plugin/python/atomc
git ls-files '*.py' | grep -v -e ^plugin/python/ -e /absent/ | xargs -n 1 dirname | sort -u | while read -r folder; do
    MYPYPATH=plugin/python:plugin/tests:$folder "$tools/bin/mypy" --follow-imports silent "$folder"/*.py
done
