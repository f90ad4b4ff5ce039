#!/usr/bin/env bash
# A server with OpenAI's interface, and curl: no Python, no framework. The folder has no artifact,
# so the server compiles one first and says so.
source "$(dirname "$0")/common.sh"

cp -r $qwen3 "$out/qwen3"
"$ATOMC" serve "$out/qwen3" --port 0 >"$out/log" 2>&1 &
server=$!
trap 'kill $server 2>/dev/null; rm -rf "$out"' EXIT
await $server "$out/log" /v1
url=$(sed -n 's|.* at \(http://.*/v1\)$|\1|p' "$out/log")
cat "$out/log"

curl -sSf "$url/models" && echo
body=$(python3 -c 'import json, sys; print(json.dumps({"prompt": sys.argv[1], "max_tokens": 40, "temperature": 0}))' "$question")
curl -sSf "$url/completions" -H 'content-type: application/json' -d "$body" | tee "$out/answer" && echo
said 'Ana has 15 apples' <"$out/answer" >/dev/null
