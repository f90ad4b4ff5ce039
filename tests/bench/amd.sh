#!/usr/bin/env bash
# Our products on AMD chips, PREDICTED by the model of docs/timing.md, beside the best times that
# AITER's tuner MEASURED for the same shapes:
#
#     bash tests/bench/amd.sh BEST.csv [TABLE.md]
#
# BEST.csv has a row for each shape: gfx, compute units, type (bf16, fp8_row, fp8_block, fp4), M, N,
# K, microseconds, library. Its numbers are the least of each shape in the tuned configurations that
# AITER publishes (https://github.com/ROCm/aiter, below aiter/configs).
#
# MODELS are those of tests/bench, each with the ranks that share it out, its schemes if not all are
# for it, and rules that go with each; SCHEMES those of `atomc compile --quant`, `none` is bf16;
# CHIPS those of `atomc bench --model`; DECODE and PROMPTS the tokens of steps: a product has as
# many rows. ATOMC is the command line, if not that of `cargo build --release`. PREDICTED is a
# folder that keeps what was predicted: what is there is not predicted again. What nobody measured
# on a chip is left out. Needs Python 3, and no GPU.
set -euo pipefail
best=$(realpath "${1:?a table of measured times: tests/bench/amd.sh BEST.csv}")
table=${2:+$(realpath -m "$2")}
cd "$(dirname "$0")/../.."
models=${MODELS:-qwen3-8b:1 qwen3-30b-a3b:1 gpt-oss-120b:1:none deepseek-v3:8::*.kv_b_proj=none llama-3.1-70b:8}
schemes=${SCHEMES:-none fp8 fp8-block mxfp4-rows} chips=${CHIPS:-MI300X MI355X}
decode=${DECODE:-1,8,32,64} prompts=${PROMPTS:-256 2048}
if [ -z "${ATOMC:-}" ]; then
    cargo build --release --quiet -p atomc
    ATOMC=${CARGO_TARGET_DIR:-target}/release/atomc
fi
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
kept=${PREDICTED:-$out}
mkdir -p "$kept"

# Layers are alike: one of each kind has all products.
few() {
    sed 's/\("num_hidden_layers"\): [0-9]*/\1: 2/; s/\("first_k_dense_replace"\): [0-9]*/\1: 1/' \
        "tests/bench/$1.json"
}

# Whether somebody measured products of a scheme on a chip.
has() { python3 tests/bench/amd_table.py "$best" --has "$1" "$2"; }

quiet() { "$@" 2>"$out/errors" || { cat "$out/errors" >&2; return 1; }; }

largest=$(printf '%s\n' $prompts | sort -n | tail -1)
# Rules have patterns in them, which are no names of files.
set -f
for model in $models; do
    IFS=: read -r name ranks only rules <<<"$model"
    few "$name" >"$out/config.json"
    only=${only//,/ }
    for scheme in ${only:-$schemes}; do
        quant=(--quant "$scheme${rules:+,$rules}")
        [ "$scheme" != none ] || quant=()
        compiled=
        for chip in $chips; do
            has "$chip" "$scheme" || continue
            for prompt in $prompts; do
                said="$kept/$name+$ranks+$scheme+$chip+$prompt.json"
                [ ! -s "$said" ] || continue
                [ -n "$compiled" ] || quiet "$ATOMC" compile "$out/config.json" --no-trust --tp "$ranks" \
                    "${quant[@]}" --target gfx942,gfx950 --context 8192 --decode "$decode" \
                    --prefill "$largest" -o "$out/m.atomc" >"$out/compiled"
                compiled=yes
                # Each prompt alone, all batches beside the first.
                batch=$decode
                [ "$prompt" = "${prompts%% *}" ] || batch=1
                quiet "$ATOMC" bench "$out/m.atomc" --model "$chip" --prompt "$prompt" \
                    --position 1024 --batch "$batch" --kernels --json >"$out/said.json"
                mv "$out/said.json" "$said"
            done
            echo "$name, $ranks ranks, $scheme, $chip" >&2
        done
    done
done
python3 tests/bench/amd_table.py "$best" "$kept" ${table:+"$table"}
