#!/usr/bin/env bash
# A virtual environment with vLLM for a machine without a GPU: torch without NVIDIA's libraries, and
# vLLM's Python without its kernels, which this plugin does not need. Two minutes, 2 GB. It takes
# python3.11 (or $PYTHON), gcc and readelf. usage: venv.sh VERSION FOLDER; versions are those of the
# table below
set -euo pipefail
version=$1 folder=$2
case $version in
0.33.0) torch=2.14.0 vision=0.29.0 ;;
0.30.0) torch=2.13.0 vision=0.28.0 ;;
0.26.0) torch=2.11.0 vision=0.26.0 ;;
*) echo "vLLM $version: known are 0.33.0, 0.30.0 and 0.26.0" >&2 && exit 2 ;;
esac
here=$(cd "$(dirname "$0")" && pwd)
"${PYTHON:-python3.11}" -m venv "$folder"
source "$folder/bin/activate"
python -m pip install -q uv

# torch, and what it imports, and torchvision, without which vLLM does not import classes of models
# with images; the runtime library is the only one of NVIDIA's that it calls when it
# is imported.
uv pip install -q --no-deps "torch==$torch" "torchvision==$vision" nvidia-cuda-runtime==13.0.96 nvidia-cuda-cupti==13.0.85
uv pip install -q filelock typing-extensions 'sympy>=1.13.3' networkx jinja2 fsspec numpy==2.3.5
python "$here/../stub_cuda.py"

# vLLM's source distribution with nothing to compile. Its own dependencies come after it, read from
# what was installed: the list in the distribution is that of the build with kernels.
uv pip install -q 'setuptools>=77.0.3,<81' setuptools-scm setuptools-rust wheel packaging
VLLM_TARGET_DEVICE=empty VLLM_VERSION_OVERRIDE=$version CARGO=false \
    uv pip install -q --no-deps --no-build-isolation --no-binary vllm "vllm==$version"
python - >"$folder/vllm.txt" <<'EOF'
from importlib.metadata import requires
print("\n".join(r for r in requires("vllm") if "extra ==" not in r))
EOF
{
    echo "torch==$torch"
    echo "certifi>=2025.1"
    for package in triton cuda-{toolkit,bindings} \
        nvidia-{cublas,cuda-nvrtc,cufft,cufile,curand,cusolver,cusparse,nvjitlink,nvtx,cudnn-cu13,cusparselt-cu13,nccl-cu13,nvshmem-cu13}; do
        echo "$package; python_version < '3'"
    done
} >"$folder/override.txt"
uv pip install -q --override "$folder/override.txt" -r "$folder/vllm.txt" pytest pytest-timeout maturin ray numba
python -c "import torch, vllm; print('vLLM', vllm.__version__, 'torch', torch.__version__)"
