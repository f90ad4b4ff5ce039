#!/usr/bin/env bash
# The Python package and vLLM through it, on this machine's processor: environments, the wheel, the compiler, and all tests with
# vLLM 0.33.0, those marked short with 0.30.0 and 0.26.0. About fifteen minutes, most of it vLLM's starts. VENVS keeps environments elsewhere
# than in target/; ATOMC is a compiler that is built already.
set -euo pipefail
cd "$(dirname "$0")/../../.."
here=$PWD/plugin/tests/vllm venvs=${VENVS:-$PWD/target/vllm}
releases=(0.33.0 0.30.0 0.26.0)

for release in "${releases[@]}"; do
    if [ ! -e "$venvs/$release/done" ]; then
        bash "$here/venv.sh" "$release" "$venvs/$release"
        touch "$venvs/$release/done"
    fi
done

if [ -z "${ATOMC:-}" ]; then
    cargo build --release -p atomc
    ATOMC=$PWD/target/release/atomc
fi
wheels=$(mktemp -d)
trap 'rm -rf "$wheels"' EXIT
"$venvs/${releases[0]}/bin/maturin" build --quiet --release -m plugin/Cargo.toml -o "$wheels"
test "$(stat -c %s "$wheels"/*.whl)" -lt 20000000

# A build for the processor leaves VLLM_TARGET_DEVICE behind, which at run time would hide the plugin's platform.
unset VLLM_TARGET_DEVICE VLLM_PLUGINS
export ATOMC HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 VLLM_LOGGING_LEVEL=WARNING VLLM_CACHE_ROOT="$wheels/cache"
for release in "${releases[@]}"; do
    source "$venvs/$release/bin/activate"
    uv pip install --quiet --no-deps --force-reinstall "$wheels"/*.whl
    short=()
    if [ "$release" = "${releases[0]}" ]; then
        python -m pytest -q plugin/tests/test_package.py
    else
        short=(-m short)
    fi
    # Every file in a process of its own: an engine that failed leaves vLLM's groups of processes behind.
    for file in "$here"/test_*.py; do
        echo "== vLLM $release: $(basename "$file")"
        python -m pytest -q --rootdir "$here" "${short[@]}" "$file"
    done
    deactivate
done
