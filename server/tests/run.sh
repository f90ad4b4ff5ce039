#!/usr/bin/env bash
# OpenAI's and Anthropic's Python clients against `atomc serve` with the example model, half a
# minute of clients that vanish, and answers with a draft's guesses beside those without: four
# minutes at most.
# usage: server/tests/run.sh [COUNT [CLIENTS]]     problems that are asked alone and then at once
# ATOMC is the command line; without it the one of cargo's folder for debug builds is taken.
# SOAK is how many seconds of clients that vanish there are (30; an hour is 3600).
# HOSTILE is how many hostile requests of the list there are beside honest clients, how many damaged
# ones, and after how many seconds the rest is left out ("40 500 50"); none without it.
# HOSTILE="1000 20000" takes all: that wants a build for release on a machine without other work.
# MODEL and PROBLEMS are a folder with a model and a file of problems.
# DRAFT is the folder of a draft for the model; the example has one, another MODEL none.
set -euo pipefail
cd "$(dirname "$0")/../.."
. server/tests/serving.sh
target=${CARGO_TARGET_DIR:-target}
atomc=$(realpath "${ATOMC:-$target/debug/atomc}") work=$(mktemp -d)
draft=${DRAFT-$([ -n "${MODEL:-}" ] || echo tests/models/qwen3-eagle3)}
model=${MODEL:-examples/models/qwen3} problems=${PROBLEMS:-examples/problems.jsonl}

venv=$target/serve-venv
[ -e "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check "openai>=2" "anthropic>=0.60"

# The example has no chat template: one that asks as it was trained.
cp -r "$model" "$work/model"
printf '%s' "{% for m in messages %}{{ 'Q: ' + m.content + '\nA:' }}{% endfor %}" >"$work/model/chat_template.jinja"
echo secret >"$work/keys"
export XDG_CONFIG_HOME=$work/config

# Starts a server with the model, or with these options, and waits until it says where it is.
start() {
    [ $# -gt 0 ] || set -- "$work/model"
    serve "$@" --api-key-file "$work/keys"
}

# Ends it as a system does. It ends by itself, with success.
stop() {
    kill "$server"
    wait "$server" || { cat "$work/log" && exit 1; }
    server=
}

# A folder without an artifact is compiled, for this machine.
start
grep -q '^no artifact in .*: compiling for host$' "$work/log"
[ -e "$work/model/model.atomc" ]
stop

# One that its user has not made is not run because it lies there.
"$atomc" trust --remove "$work/model/model.atomc"
if "$atomc" serve "$work/model" --port 0 >"$work/log" 2>&1; then exit 1; fi
grep -q 'is not on your list' "$work/log"

"$atomc" compile "$work/model" --invariant -o "$work/model/model.atomc" >"$work/log" 2>&1 || { cat "$work/log" && exit 1; }
start
"$venv/bin/python" server/tests/client.py "$url" "$problems" "$@" || { cat "$work/log" && exit 1; }
"$venv/bin/python" server/tests/soak.py "$url" "$problems" "${SOAK:-30}" "$server" || { cat "$work/log" && exit 1; }
read -ra hostile <<<"${HOSTILE:-}"
[ -z "${HOSTILE:-}" ] || "$venv/bin/python" server/tests/hostile.py "$url" "$problems" "$server" "${hostile[@]}" || { cat "$work/log" && exit 1; }

# A request that is under way when the server is told to end is answered.
curl -sN "$url/v1/completions" -H 'Authorization: Bearer secret' -H 'Content-Type: application/json' \
    -d '{"prompt": "Q:", "max_tokens": 400, "ignore_eos": true, "stream": true}' >"$work/last" &
last=$!
for _ in $(seq 100); do [ ! -s "$work/last" ] || break && sleep 0.02; done
stop
wait "$last"
tail -n 2 "$work/last" | grep -q DONE || { echo "the last answer was cut" >&2 && exit 1; }

# A draft's guesses change no answer.
[ -n "$draft" ] || exit 0
"$atomc" compile "$work/model" --draft "$draft" --speculate 3 --invariant -o "$work/draft.atomc" >"$work/log" 2>&1 ||
    { cat "$work/log" && exit 1; }
# More guesses than there may be are refused before weights are loaded.
refuse() {
    if "$atomc" serve "$1" --weights "$work/model" --port 0 --speculate 4 >"$work/log" 2>&1; then exit 1; fi
    grep -q "^error\[speculate\]: $2" "$work/log" || { cat "$work/log" && exit 1; }
}
refuse "$work/model/model.atomc" "the artifact has no draft"
refuse "$work/draft.atomc" "4 guesses, but the artifact's steps verify 3 at most"
for guesses in 0 3; do
    start "$work/draft.atomc" --weights "$work/model" --draft-weights "$draft" --speculate $guesses
    read -r made right < <("$venv/bin/python" server/tests/guesses.py "$url" "$problems" "$work/answers.$guesses")
    stop
done
diff "$work/answers.0" "$work/answers.3"
echo "guesses: $right of $made right, $(wc -l <"$work/answers.3") answers of 8 clients as without"
[ "$right" -gt 0 ]
