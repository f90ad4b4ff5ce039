#!/usr/bin/env bash
# The page of `atomc serve` in headless Chromium, with the example model: a minute at most.
# usage: server/tests/page.sh [FOLDER]         FOLDER gets pictures of it
# ATOMC is the command line; without it the one of cargo's folder for debug builds is taken.
# CHROMIUM is the browser; without it the one that is installed, or Debian's, which is installed.
set -euo pipefail
cd "$(dirname "$0")/../.."
. server/tests/serving.sh
target=${CARGO_TARGET_DIR:-target}
atomc=$(realpath "${ATOMC:-$target/debug/atomc}") work=$(mktemp -d)

# The browser. As root on Debian it is installed; elsewhere what cannot be asked fails nothing, and
# is said.
find_browser() {
    browser=${CHROMIUM:-$(command -v chromium || command -v chromium-browser || command -v google-chrome)}
}
if ! find_browser && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; } >"$work/log" 2>&1 || cat "$work/log"
    find_browser || true
fi
[ -n "$browser" ] || { echo "NOT CHECKED: the server's page, as there is no Chromium" && exit 0; }
venv=$target/page-venv
[ -e "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check "playwright>=1.55" || {
    echo "NOT CHECKED: the server's page, as playwright cannot be installed"
    exit 0
}

# The example, with a template, and without an end: an answer is as long as its request lets it be,
# so that it is still under way when it is stopped.
cp -r examples/models/qwen3 "$work/model"
rm "$work/model/generation_config.json"
sed -i -e '/"eos_token_id"/d' -e 's/\("max_position_embeddings": \)512/\132768/' "$work/model/config.json"
cat >"$work/model/chat_template.jinja" <<'TEMPLATE'
{% for m in messages %}{% if 'refuse' in m.content %}{{ raise_exception('this turn is refused') }}{% endif %}{{ 'Q: ' if m.role == 'user' }}{{ m.content }}{{ '\nA:' if m.role == 'user' }}{% endfor %}{{ '<think>' if enable_thinking }}
TEMPLATE
echo secret >"$work/keys"
export XDG_CONFIG_HOME=$work/config

start() {
    serve "$work/model" --parallel 2 --reasoning-parser think "$@"
}

start --no-page
[ "$(curl -s -o "$work/none" -w '%{http_code}' "$url/")" = 404 ]
kill "$server" && wait "$server"
start --api-key-file "$work/keys"
"$venv/bin/python" server/tests/page.py "$url" "$browser" "$server" examples/problems.jsonl "$@" || { cat "$work/log" && exit 1; }
