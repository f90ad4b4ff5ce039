#!/usr/bin/env bash
# The Python package and vLLM through it, on this machine's processor: environments, the wheel, the
# compiler, and all tests with vLLM 0.33.0, those marked short with 0.30.0 and 0.26.0. As many files
# of tests run at once as there are cores. VENVS keeps environments elsewhere than in target/; ATOMC
# is a compiler that is built already. usage: run.sh [--prepare]; with it only what needs no build
# of ours is done: the environments
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
[ "${1:-}" != --prepare ] || exit 0

if [ -z "${ATOMC:-}" ]; then
    cargo build --release -p atomc
    ATOMC=$PWD/target/release/atomc
fi
wheels=$(mktemp -d)
trap 'rm -rf "$wheels"' EXIT
"$venvs/${releases[0]}/bin/maturin" build --quiet --release -m plugin/Cargo.toml -o "$wheels"
test "$(stat -c %s "$wheels"/*.whl)" -lt 20000000
for release in "${releases[@]}"; do
    uv=$venvs/$release/bin/uv
    "$uv" pip install --python "$venvs/$release/bin/python" --quiet --no-deps --force-reinstall "$wheels"/*.whl
done

# A build for the processor leaves VLLM_TARGET_DEVICE behind, which at run time would hide the
# plugin's platform.
unset VLLM_TARGET_DEVICE VLLM_PLUGINS
export ATOMC HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 VLLM_LOGGING_LEVEL=WARNING
export here venvs wheels

# One file with one release: its output, when it is over. Every file has a process of its own, as an
# engine that failed leaves vLLM's groups of processes behind.
tests() {
    local release=$1 file=$2 log status=0 start=$SECONDS
    shift 2
    log=$wheels/$release-$(basename "$file").log
    source "$venvs/$release/bin/activate"
    VLLM_CACHE_ROOT=$wheels/cache-$release \
        python -m pytest -q --rootdir "$here" "$@" "$file" >"$log" 2>&1 || status=$?
    echo "== vLLM $release: $(basename "$file"), $((SECONDS - start)) s"
    cat "$log"
    return $status
}
export -f tests

{
    for file in "$here"/test_*.py plugin/tests/test_package.py; do
        echo "${releases[0]} $file"
    done
    for release in "${releases[@]:1}"; do
        for file in "$here"/test_*.py; do
            echo "$release $file -m short"
        done
    done
} | xargs -P "${JOBS:-$(nproc)}" -L 1 bash -euo pipefail -c 'tests "$@"' tests
