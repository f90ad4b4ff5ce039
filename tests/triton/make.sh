#!/bin/sh
# Makes a virtual environment with the pinned Triton beside this file, once, and runs make.py (or
# another script of this folder) in it: tests/triton/make.sh [--all] [--out DIR] [--chip CHIP] [CASE
# ...] tests/triton/make.sh interpret.py [--all] [CASE ...]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
if [ ! -x "$here/.venv/bin/python" ]; then
    python3 -m venv "$here/.venv"
    "$here/.venv/bin/pip" install --quiet --requirement "$here/requirements.txt"
fi
case "${1:-}" in
    *.py) script=$1; shift ;;
    *) script=make.py ;;
esac
PYTHONDONTWRITEBYTECODE=1 exec "$here/.venv/bin/python" "$here/$script" "$@"
