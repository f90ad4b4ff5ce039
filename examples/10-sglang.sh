#!/usr/bin/env bash
# SGLang, as it is, with an artifact beside the model. SGLANG_PYTHON is one that has SGLang and the
# package (pip install ./plugin); `bash plugin/tests/run.sh --prepare sglang` makes one for machines
# without a GPU.
source "$(dirname "$0")/common.sh"
python=${SGLANG_PYTHON:-${VENVS:-target}/sglang/0.5.23/bin/python}

cp -r $qwen3 "$out/qwen3"
atomc compile "$out/qwen3" --target host -o "$out/qwen3/model.atomc"
atomc check "$out/qwen3" --for sglang --page-size 32
export SGLANG_EXTERNAL_MODEL_PACKAGE=atomc.sglang ATOMC_STRICT=1
"$python" -m sglang.launch_server --model-path "$out/qwen3" --page-size 32 --attention-backend atomc \
    --max-running-requests 4 --port "${PORT:-30123}" >"$out/log" 2>&1 &
server=$!
trap 'kill $server 2>/dev/null; wait; rm -rf "$out"' EXIT
await $server "$out/log" 'The server is fired up'
said 'atomc: ' <"$out/log"
body=$(python3 -c 'import json, sys; print(json.dumps({"text": sys.argv[1], "sampling_params": {"temperature": 0, "max_new_tokens": 64}}))' "$question")
curl -sSf "http://127.0.0.1:${PORT:-30123}/generate" -H 'content-type: application/json' -d "$body" | tee "$out/answer" && echo
said 'Ana has 15 apples' <"$out/answer" >/dev/null
