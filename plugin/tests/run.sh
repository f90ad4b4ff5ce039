#!/usr/bin/env bash
# The Python package, and vLLM and SGLang through it, on this machine's processor: environments, the
# wheel and the compiler, once for both, and all tests. The first release of each framework runs
# all, others those marked short, those between first and last without models and ranks. As many
# files of tests run at once as there are cores. Builds are those of the dev profile: artifacts are
# the same, and most of it is there after `cargo test`. VENVS keeps environments elsewhere than in
# target/; ATOMC is a compiler that is built already.
#
# usage: run.sh [--prepare] [--newest] [--short] [--all] [vllm] [sglang]
#
# --prepare only makes the environments, which needs no build of ours; --newest takes the first
# release of each framework alone; --short leaves out ranks, guesses and recurrent states; --all
# also runs tests that cost much and show little that is new.
set -euo pipefail
cd "$(dirname "$0")/../.."
here=$PWD/plugin/tests venvs=${VENVS:-$PWD/target}
declare -A releases=([vllm]="0.33.0 0.30.0 0.26.0" [sglang]="0.5.23 0.5.11")

prepare='' filter='not thorough' left_out='' frameworks=()
for word; do
    case $word in
    --prepare) prepare=1 ;;
    --newest) for framework in "${!releases[@]}"; do releases[$framework]=${releases[$framework]%% *}; done ;;
    --short) left_out='test_(parallel|speculate|recurrent)\.py$' ;;
    --all) filter='short or not short' ;;
    vllm | sglang) frameworks+=("$word") ;;
    *) echo "$word: known are --prepare, --newest, --short, --all, vllm and sglang" >&2 && exit 2 ;;
    esac
done
[ ${#frameworks[@]} -gt 0 ] || frameworks=(vllm sglang)

# Every process imports a framework, which takes twice as long without compiled modules.
unset PYTHONDONTWRITEBYTECODE
for framework in "${frameworks[@]}"; do
    for release in ${releases[$framework]}; do
        venv=$venvs/$framework/$release
        # An environment is made anew where what makes it has changed.
        made=$(find "$here/$framework" -maxdepth 1 \( -name '*.txt' -o -name venv.sh \) | sort |
            xargs cat "$here/stub_cuda.py" | sha256sum)
        if [ ! -e "$venv/done" ] || [ "$(cat "$venv/done")" != "$made" ]; then
            rm -rf "$venv"
            bash "$here/$framework/venv.sh" "$release" "$venv"
            echo "$made" >"$venv/done"
        fi
    done
done
[ -z "$prepare" ] || exit 0

if [ -z "${ATOMC:-}" ]; then
    cargo build -p atomc
    ATOMC=$PWD/target/debug/atomc
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$venv/bin/maturin" build --quiet --profile dev -m plugin/Cargo.toml -o "$work"
test "$(stat -c %s "$work"/*.whl)" -lt 20000000
for framework in "${frameworks[@]}"; do
    for release in ${releases[$framework]}; do
        python=$venvs/$framework/$release/bin/python
        "$python" -m uv pip install --python "$python" --quiet --no-deps --force-reinstall "$work"/*.whl
    done
done

# A build for the processor leaves VLLM_TARGET_DEVICE behind, which at run time would hide the
# plugin's platform.
unset VLLM_TARGET_DEVICE VLLM_PLUGINS SGLANG_PLUGINS SGLANG_PLATFORM SGLANG_USE_CPU_ENGINE
export ATOMC HF_HUB_OFFLINE=1 DO_NOT_TRACK=1 VLLM_NO_USAGE_STATS=1 VLLM_LOGGING_LEVEL=WARNING
export here venvs work

# Some files with one release, in one process: their output, when they are over.
tests() {
    local framework=$1 release=$2 filter=$3 log status=0
    shift 3
    source "$venvs/$framework/$release/bin/activate"
    log=$work/$framework-$release-$(basename "$1").log
    export VLLM_CACHE_ROOT=$work/cache-$release
    TIMEFORMAT="== $framework $release: $(basename -a "$@" | xargs), %R s, %U s of processor time"
    { time python -m pytest -q --rootdir "$here/$framework" -m "$filter" "$@" >"$log" 2>&1; } 2>&1 || status=$?
    cat "$log"
    return $status
}
export -f tests

# Every file of the first release has a process of its own, as an engine that failed leaves vLLM's
# groups of processes behind. test_capture.py wants vLLM imported with a variable set.
for framework in "${frameworks[@]}"; do
    read -r first others <<<"${releases[$framework]}"
    for file in "$here/$framework"/test_*.py; do
        [[ -z $left_out || ! $file =~ $left_out ]] || continue
        # All of these are for the other releases, and for --all.
        [[ $file == */test_release.py && $filter == 'not thorough' ]] || echo "$framework $first '$filter' $file"
    done
    for release in $others; do
        without=(test_capture.py)
        # What a release changed of models and ranks the oldest shows too; what it changed of
        # options, of classes' facts and of its server is its own.
        [[ $release == "${others##* }" || $filter != 'not thorough' ]] || without+=(test_architectures.py test_parallel.py)
        find "$here/$framework" -name 'test_*.py' $(printf '! -name %s ' "${without[@]}") | sort |
            xargs echo "$framework $release short"
        [ $framework != vllm ] || echo "$framework $release short $here/$framework/test_capture.py"
    done
done >"$work/jobs"
echo "${frameworks[0]} ${releases[${frameworks[0]}]%% *} '$filter' $here/test_package.py $here/test_rules.py" >>"$work/jobs"
xargs -P "${JOBS:-$(nproc)}" -L 1 bash -euo pipefail -c 'tests "$@"' tests <"$work/jobs"
