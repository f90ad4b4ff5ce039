#!/usr/bin/env bash
# A virtual environment with SGLang for a machine without a GPU: torch without NVIDIA's libraries,
# and SGLang's Python with the packages that it imports there, instead of all that it names. A
# minute, 2.5 GB. It takes python3.11 (or $PYTHON), gcc and readelf. usage: venv.sh RELEASE FOLDER;
# releases are those that have a list of packages beside this script
set -euo pipefail
release=$1 folder=$2
here=$(cd "$(dirname "$0")" && pwd)
packages=$here/$release.txt
if [ ! -e "$packages" ]; then
    echo "SGLang $release: known are $(cd "$here" && ls [0-9]*.txt | sed 's/\.txt$//' | xargs)" >&2 && exit 2
fi
"${PYTHON:-python3.11}" -m venv "$folder"
source "$folder/bin/activate"
python -m pip install -q uv
# The runtime library is the only one of NVIDIA's that torch calls when it is imported.
uv pip install -q --no-deps -r "$packages" nvidia-cuda-runtime==13.0.96 nvidia-cuda-cupti==13.0.85
python "$here/../stub_cuda.py"
uv pip install -q pytest pytest-timeout maturin
python -c "import sglang, torch; print('SGLang', sglang.__version__, 'torch', torch.__version__)"
