#!/usr/bin/env bash
# Shows a page of `atomc report` in headless Chromium, in both colour schemes and three widths, and
# checks what the page did there: no errors, nothing wider than the window, a box for each launch.
# usage: tests/page.sh REPORT.html FOLDER     (pictures go to the folder; needs node and npm)
set -euo pipefail
page=$(realpath "$1") out=$(realpath -m "$2")
cd "$(dirname "$0")/.."
# Chromium comes as a package, unpacked once: a browser's own installers want hosts of their own.
tools=$PWD/target/browser
mkdir -p "$tools" "$out"
if [ ! -x "$tools/chromium" ]; then
  npm install --prefix "$tools" --no-audit --no-fund --ignore-scripts --silent \
    @sparticuz/chromium@147 puppeteer-core@24
  cat > "$tools/unpack.mjs" <<'JS'
import chromium from "@sparticuz/chromium";
import { renameSync } from "node:fs";
renameSync(await chromium.executablePath(), process.argv[2]);
JS
  TMPDIR=$tools node "$tools/unpack.mjs" "$tools/chromium"
fi
cp tests/page.mjs "$tools/page.mjs"
node "$tools/page.mjs" "$tools/chromium" "$page" "$out"
