#!/usr/bin/env bash
# Unpacks what dist/build.sh made, each into an empty folder, and runs it as on a machine that has
# nothing of ours: no variables, no programs in PATH, an empty home, and, where this machine lets us
# hide folders (unshare), without the Rust toolchain, Cargo's folder and this checkout.
# usage: dist/test.sh [FOLDER]       FOLDER: target/dist; PYTHON is the Python that gets the wheel
set -euo pipefail
cd "$(dirname "$0")/.."
made=$(realpath "${1:-target/dist}")
# Not a script that finds a Python by way of PATH.
python=$("${PYTHON:-python3}" -c 'import sys; print(sys.executable)')
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work"/{home,compiler,runtime}
tar -xzf "$made"/atomc-[0-9]*.tar.gz -C "$work/compiler" --strip-components 1
tar -xzf "$made"/atomc-runtime-*.tar.gz -C "$work/runtime" --strip-components 1
cp -r examples/models/qwen3 "$work/model"
cp tests/golden/llama2/config.json "$work/small.json"
PYTHONDONTWRITEBYTECODE=1 "$python" -m pip install --quiet --disable-pip-version-check --no-index --no-deps --target "$work/site" "$made"/atomc-*.whl
cc -std=c11 -Wall -Wextra -Werror -I"$work/runtime/include" examples/04-from-c.c \
    -L"$work/runtime/lib" -latomc_runtime -Wl,-rpath,'$ORIGIN/runtime/lib' -o "$work/from-c"

# Every library comes out of the archive or the system, whoever runs the loader.
sysroot=$(rustc --print sysroot)
for file in "$work"/{compiler,runtime}/{bin,lib,libexec}/* "$work/from-c"; do
    [ -e "$file" ] || continue
    needs=$(ldd "$file")
    if grep -F -e 'not found' -e "$sysroot" -e "$PWD" <<<"$needs"; then
        echo "$file needs what the archive does not have" >&2 && exit 1
    fi
done

# Folders that nobody else has. A system's own Rust, below /usr, stays.
hidden=("$PWD" "${CARGO_HOME:-$HOME/.cargo}" "${RUSTUP_HOME:-$HOME/.rustup}")
case $sysroot in /usr | /usr/local) ;; *) hidden+=("$sysroot") ;; esac
if unshare -m true 2>/dev/null; then
    apart=(unshare -m)
elif unshare -rm true 2>/dev/null; then
    apart=(unshare -rm)
else
    echo "nothing can be hidden here: the toolchain stays where it is" >&2
    apart=() hidden=()
fi

cd "$work"
"${apart[@]}" bash -euo pipefail -s "$python" "${hidden[@]}" <<'SH'
python=$1 && shift
for folder; do
    [ ! -d "$folder" ] || mount -t tmpfs none "$folder"
    [ -z "$(ls "$folder" 2>/dev/null)" ]
done
prompt=$'Q: Ana has 12 apples. Ana buys 7 more. Ana gives 4 to Ben. How many apples does Ana have now?\nA:'
# What a command says is of interest where it fails.
bare() { env -i HOME="$PWD/home" PATH="$PWD/home" "$@" >said 2>&1 || { cat said >&2 && exit 1; }; }
said() { grep -F -e "$1" said || { cat said >&2 && exit 1; }; }

bare compiler/bin/atomc doctor --python "$python"
said "compiles and runs"
# A GPU's code goes through lld, as the host's does.
bare compiler/bin/atomc compile model --target host,gfx942 --decode 1 --prefill 16 --no-trust -o model.atomc
bare compiler/bin/atomc verify model.atomc --device host
said "right on host"
bare compiler/bin/atomc compile small.json --target gfx942 --decode 1 --prefill 16 --no-trust -o small.atomc
bare compiler/bin/atomc verify small.atomc --device emu:gfx942
said "right on emu:gfx942"

bare runtime/bin/atomc doctor --python "$python"
said "cannot compile"
bare runtime/bin/atomc run model.atomc --weights model --prompt "$prompt"
said "15"
bare ./from-c model.atomc model
said "32 tokens shared"

bare PYTHONPATH=site "$python" -c '
import atomc
engine = atomc.Engine(atomc.Artifact("model.atomc"))
engine.load("model")
print("the package makes", len(engine.generate([5, 6, 7], 4)), "tokens on", engine.device)'
said "the package makes 4 tokens"
SH
