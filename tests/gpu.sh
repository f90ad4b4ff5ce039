#!/usr/bin/env bash
# Every test and benchmark that needs a GPU, on a machine that has one: tests/gpu.sh [DEVICE]
# [TARGET], e.g. hip:0 gfx942. What it prints is also in one file to attach to a report,
# target/gpu-TARGET.txt, or REPORT. PEER=1 also times PyTorch on the same machine. Where there is no
# Rust, ATOMC and GOLDEN name what was built elsewhere: the command line, and the test binary of
# golden_devices. MODELS are those of tests/bench that are timed, PROBLEMS the file of problems that
# the example models solve, CASES the golden models, with commas between. SHORT=1 takes of each as
# much as shows that everything runs. PROFILE is cargo's, if not release. STEPS are the shapes of
# tests/bench/steps.py of which no larger step may be faster than a smaller one; STEPS alone is
# checked by
#   ONLY=steps bash tests/gpu.sh cuda:0 sm_90a
#
# A walk through it without a GPU, on HIP's library in the emulator, in some minutes:
#   cargo build -p atomc -p atomc-hip && mkdir -p target/hip &&
#     ln -sf ../debug/libhip_on_emulator.so target/hip/libamdhip64.so
#   LD_LIBRARY_PATH=$PWD/target/hip HIP_EMULATED_CHIP=gfx942 PROFILE=dev SHORT=1 \
#     bash tests/gpu.sh hip:0 gfx942
set -euo pipefail
cd "$(dirname "$0")/.."
device=${1:-cuda:0} target=${2:-sm_90a} steps=1,2,4,8,16,32,64
profile=${PROFILE:-release}
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
# What is compiled here is trusted here, and nowhere else.
export XDG_CONFIG_HOME="$out/config"
if [ -z "${ATOMC:-}" ]; then
    cargo build --profile "$profile" -p atomc
    ATOMC=target/${profile/#dev/debug}/atomc
fi
if [ -n "${SHORT:-}" ]; then
    # A model of each kind.
    CASES=${CASES-qwen3,qwen2-sliding,q-fp8-block,moe-gpt-oss,mla-v3,hybrid-next} MODELS=${MODELS-} steps=1,8
    head -n 1 examples/problems.jsonl >"$out/problems.jsonl"
    PROBLEMS=${PROBLEMS-$out/problems.jsonl}
fi

report=${REPORT:-target/gpu-$target.txt}
mkdir -p "$(dirname "$report")"
exec > >(tee "$report") 2> >(tee -a "$report" >&2)
echo "tests/gpu.sh $device $target, $(date -u +%Y-%m-%dT%H:%MZ), $(git describe --always --dirty 2>/dev/null || echo "no checkout")"

# Progress is for nobody here, and what failed is told.
atomc() { "$ATOMC" "$@" 2>"$out/errors" || { cat "$out/errors"; return 1; }; }

# What an AMD chip took beside what the model of docs/timing.md says, kernel by kernel: the model
# was fitted to other kernels, so this is its first grade. The artifact, then options of bench.
grade() {
    [[ $device == hip:* && ( $target == gfx942 || $target == gfx950 ) ]] || return 0
    "$ATOMC" bench --help | grep -q -- --model || { echo "no grade: this atomc has no model"; return 0; }
    local artifact=$1 steps=("${@:2}") chip=$target
    atomc bench "$artifact" --random-weights --device "$device" "${steps[@]}" --kernels --json >"$out/measured.json"
    ! grep -q MI308X "$out/measured.json" || chip=MI308X
    echo "== measured beside predicted"
    atomc bench "$artifact" --model "$chip" "${steps[@]}" --measured "$out/measured.json"
}

# Steps of 1 to 64 sequences: ends with an error where a larger one takes less time than a smaller.
grow() {
    local shape=$1 batches=${2:-$steps}
    PYTHONPATH=tests/bench python3 tests/bench/steps.py config "$shape" >"$out/grow.json" &&
        atomc compile "$out/grow.json" --context 2048 --target "$target" --decode "$batches" --prefill 512 -o "$out/m.atomc" &&
        atomc bench "$out/m.atomc" --random-weights --device "$device" --prompt 512 --position 512 \
            --batch "$batches" --steps 40 --repeat 1 --json >"$out/$shape.steps" &&
        PYTHONPATH=tests/bench python3 tests/bench/steps.py check "$out/$shape.steps"
}
all_grow() {
    local failed=0 shape
    for shape in ${STEPS-$(PYTHONPATH=tests/bench python3 tests/bench/steps.py list)}; do
        grow "$shape" || failed=1
    done
    return $failed
}

# What is missing is said before anything else, and ends it.
atomc doctor --device "$device"
atomc devices
if [ "${ONLY:-}" = steps ]; then
    echo "== steps of more sequences take longer"
    all_grow
    exit
fi
for model in llama qwen3; do
    for cache in fp8 auto; do
        atomc compile "examples/models/$model" --target "$target" --cache-dtype "$cache" --decode "$steps" -o "$out/$model.atomc"
        atomc verify "$out/$model.atomc" --device "$device"
        atomc eval "$out/$model.atomc" --weights "examples/models/$model" "${PROBLEMS:-examples/problems.jsonl}" --device "$device"
    done
done
# A layer of a model that is timed below: heads of 128, which small models do not have.
sed 's/\("num_hidden_layers"\): [0-9]*/\1: 1/; s/\("vocab_size"\): [0-9]*/\1: 8192/' tests/bench/qwen3-8b.json >"$out/few.json"
atomc compile "$out/few.json" --context 1024 --target "$target" --decode "$steps" --prefill 256 -o "$out/few.atomc"
atomc verify "$out/few.atomc" --device "$device" --kernel attend
# Blocks of fp8 with so many features that tiles of prompts have several scales: gate and up, down,
# and experts.
for shape in gated wide experts; do
    PYTHONPATH=tests/bench python3 - "$shape" >"$out/$shape.json" <<'EOF'
import json, sys
from served import BLOCKS
sizes = {"gated": (256, 8448), "wide": (16896, 256), "experts": (256, 2048)}
name = "qwen3-30b-a3b" if sys.argv[1] == "experts" else "qwen3-8b"
config = json.load(open(f"tests/bench/{name}.json"))
hidden, features = sizes[sys.argv[1]]
config |= {"num_hidden_layers": 1, "vocab_size": 1024, "num_attention_heads": 4, "num_key_value_heads": 2}
config |= {"hidden_size": hidden, "intermediate_size": features, "moe_intermediate_size": features}
config |= {"num_experts": 4, "num_experts_per_tok": 2} if sys.argv[1] == "experts" else {}
quantised = BLOCKS | {"modules_to_not_convert": ["lm_head", "model.layers.0.mlp.gate"]}
json.dump(config | {"quantization_config": quantised}, sys.stdout)
EOF
    atomc compile "$out/$shape.json" --context 1024 --target "$target" --decode 1 --prefill 256 -o "$out/$shape.atomc"
done
atomc verify "$out/gated.atomc" --device "$device" --kernel mlp
atomc verify "$out/wide.atomc" --device "$device" --kernel down_proj
atomc verify "$out/experts.atomc" --device "$device" --kernel experts
if [ -n "${SHORT:-}" ]; then
    atomc bench "$out/few.atomc" --random-weights --device "$device" --prompt 32 --position 32 --batch 1,8 --steps 2 --repeat 1 --kernels
    grade "$out/few.atomc" --prompt 32 --position 32 --batch 1,8 --steps 2 --repeat 1
fi
golden=(cargo test --profile "$profile" -p atomc-tests --test golden_devices --)
[ -z "${GOLDEN:-}" ] || golden=("$GOLDEN")
ATOMC_TEST_DEVICE=$device ATOMC_TEST_TARGET=$target ATOMC_TEST_CASES=${CASES:-} "${golden[@]}" --ignored a_gpu
for model in ${MODELS-qwen3-8b llama-3.1-8b qwen3-0.6b}; do
    echo "== $model"
    atomc compile "tests/bench/$model.json" --context 4096 --target "$target" --decode 1,8,16,32,64 --prefill 2048 -o "$out/m.atomc"
    atomc bench "$out/m.atomc" --random-weights --device "$device" --prompt 2048 --position 1024 --batch 1,8,16,32,64 --steps 40 --repeat 7 --kernels
    grade "$out/m.atomc" --prompt 2048 --position 1024 --batch 1,8,16,32,64 --steps 20 --repeat 3
    if [ -n "${PEER:-}" ]; then
        python3 tests/bench/peer_torch.py --model "${model/llama-3.1-8b/llama3-8b}" --batches 1,8,32 --modes eager,compile
    fi
done
if [ -z "${SHORT:-}" ]; then
    echo "== steps of more sequences take longer"
    all_grow
fi
# The Python package, and vLLM through it, where they are installed.
if python3 -c "import torch, atomc" 2>/dev/null; then
    atomc compile examples/models/qwen3 --target "$target" --attention own,caller -o "$out/m.atomc"
    atomc compile examples/models/qwen3 --target "$target" --tp 2 -o "$out/shared.atomc"
    python3 plugin/tests/gpu.py "$device" examples/models/qwen3 "$out/m.atomc" "$out/shared.atomc"
    atomc compile tests/bench/qwen3-8b.json --context 4096 --target "$target" --decode 1 --prefill 512 -o "$out/m.atomc"
    python3 tests/bench/update_gpu.py "$device" "$out/m.atomc" tests/bench/qwen3-8b.json
fi
if python3 -c "import vllm, atomc" 2>/dev/null; then
    gpus=$(python3 -c "import torch; print(torch.cuda.device_count())")
    for ranks in 1 2; do
        [ "$ranks" -le "$gpus" ] || continue
        cp -r examples/models/qwen3 "$out/solve-$ranks"
        atomc compile "$out/solve-$ranks" --target "$target" --tp "$ranks" -o "$out/solve-$ranks/model.atomc"
        python3 plugin/tests/vllm/solve.py "$out/solve-$ranks" examples/problems.jsonl "$ranks" --sleep
        VLLM_USE_BREAKABLE_CUDAGRAPH=1 python3 plugin/tests/vllm/solve.py "$out/solve-$ranks" examples/problems.jsonl "$ranks"
        mkdir "$out/vllm-$ranks"
        cp tests/bench/qwen3-8b.json "$out/vllm-$ranks/config.json"
        atomc compile "$out/vllm-$ranks" --target "$target" --tp "$ranks" --decode 1,2,4,8,16,32,64 --prefill 2048 -o "$out/vllm-$ranks/model.atomc"
        python3 tests/bench/vllm_gpu.py "$out/vllm-$ranks" --ranks "$ranks"
        ATOMC_DISABLE=1 python3 tests/bench/vllm_gpu.py "$out/vllm-$ranks" --ranks "$ranks"
    done
fi
# Every row that vLLM serves beside its own model, and the gate of its ratios: GATE names the
# machine of served.json.
if [ -z "${SHORT:-}" ] && python3 -c "import vllm, atomc" 2>/dev/null; then
    python3 tests/bench/served.py prepare "$out/served" --gpus "$gpus" --atomc "$ATOMC" --target "$target"
    python3 tests/bench/served.py run "$out/served" --gpus "$gpus" --memory=0.92 >"$out/served.jsonl" || echo "a row failed"
    cat "$out/served.jsonl"
    [ -z "${GATE:-}" ] || python3 tests/bench/served.py check "$out/served.jsonl" --machine "$GATE"
else
    echo "no rows through vLLM: it is not installed beside the package, or SHORT is set"
fi
if python3 -c "import sglang, atomc" 2>/dev/null; then
    export SGLANG_EXTERNAL_MODEL_PACKAGE=atomc.sglang
    cp -r examples/models/qwen3 "$out/sglang"
    atomc compile "$out/sglang" --target "$target" -o "$out/sglang/model.atomc"
    python3 tests/bench/sglang_gpu.py "$out/sglang" --problems examples/problems.jsonl
    mkdir "$out/load"
    cp tests/bench/qwen3-8b.json "$out/load/config.json"
    atomc compile "$out/load" --target "$target" --decode 1,2,4,8,16,32,64 --prefill 2048 -o "$out/load/model.atomc"
    python3 tests/bench/sglang_gpu.py "$out/load"
else
    echo "nothing through SGLang: it is not installed beside the package"
fi
# Slow, so last, and several at a time: the kernels of the example models, of the golden ones, and
# of that layer.
if command -v compute-sanitizer; then
    for golden in tests/golden/*/; do
        atomc compile "$golden" --target "$target" --decode 1,4,64 -o "$out/golden-$(basename "$golden").atomc"
    done
    # One step of each size, with few sequences; everything else is verified.
    few="--random-weights --prompt 256 --position 128 --batch 1,2,3,5,9,17,33 --steps 1 --repeat 1"
    check() {
        local log="$2.$1"
        compute-sanitizer --tool "$1" --error-exitcode 1 "$ATOMC" "$3" "$2" --device "$device" "${@:4}" >"$log" 2>&1 || { cat "$log"; return 255; }
        echo "$1 $3 $(basename "$2"): $(grep -E "^=+ (ERROR|RACECHECK)|right on" "$log" | tr '\n' ' ')"
    }
    export -f check
    export ATOMC device
    for artifact in "$out"/{few,llama,qwen3,golden-*}.atomc; do
        work=verify
        [ "$artifact" != "$out/few.atomc" ] || work="bench $few"
        printf '%s\n' {memcheck,racecheck}" $artifact $work"
    done | xargs -P 8 -L 1 bash -c 'check "$@"' check
fi
