#!/usr/bin/env bash
# SGLang through the Python package, on this machine's processor: environments, the wheel, the
# compiler, and all tests. As many files of tests run at once as there are cores. VENVS keeps
# environments elsewhere than in target/; ATOMC is a compiler that is built already. usage: run.sh
# [--prepare]; with it only what needs no build of ours is done: the environments
set -euo pipefail
cd "$(dirname "$0")/../../.."
here=$PWD/plugin/tests/sglang venvs=${VENVS:-$PWD/target/sglang}
releases=(0.5.23)

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
for release in "${releases[@]}"; do
    uv=$venvs/$release/bin/uv
    "$uv" pip install --python "$venvs/$release/bin/python" --quiet --no-deps --force-reinstall "$wheels"/*.whl
done

unset SGLANG_PLUGINS SGLANG_PLATFORM SGLANG_USE_CPU_ENGINE
export ATOMC HF_HUB_OFFLINE=1 DO_NOT_TRACK=1
export here venvs wheels

# One file with one release: its output, when it is over.
tests() {
    local release=$1 file=$2 log status=0 start=$SECONDS
    log=$wheels/$release-$(basename "$file").log
    source "$venvs/$release/bin/activate"
    python -m pytest -q --rootdir "$here" "$file" >"$log" 2>&1 || status=$?
    echo "== SGLang $release: $(basename "$file"), $((SECONDS - start)) s"
    cat "$log"
    return $status
}
export -f tests

for release in "${releases[@]}"; do
    for file in "$here"/test_*.py; do
        echo "$release $file"
    done
done | xargs -P "${JOBS:-$(nproc)}" -L 1 bash -euo pipefail -c 'tests "$@"' tests
