#!/usr/bin/env bash
# Makes what people download, for machines like this one's processor:
#   atomc-VERSION-MACHINE-linux-glibcN.tar.gz          the compiler, with LLVM and lld beside it
#   atomc-runtime-VERSION-MACHINE-linux-glibcN.tar.gz  the runtime: command line, C library, header
#   atomc-VERSION-…-manylinux_N_MACHINE.whl            the Python package
# usage: dist/build.sh [FOLDER]       FOLDER: target/dist
# GLIBC is the oldest version of the C library that they run with. It is 2.28, which zig links for;
# zig and maturin are fetched with pip. With GLIBC empty this machine's linker and C library are
# used, and names say which version came of it. PROFILE=dev takes the builds that tests use, and
# leaves GLIBC empty.
set -euo pipefail
cd "$(dirname "$0")/.."
profile=${PROFILE:-release} out=$(realpath -m "${1:-target/dist}") version=$(cargo pkgid -p atomc | sed 's/.*[#@]//')
built=$([ "$profile" = dev ] && echo debug || echo "$profile")
glibc=${GLIBC-$([ "$profile" = dev ] || echo 2.28)}
machine=$(uname -m) host=$(rustc -vV | sed -n 's/^host: //p')
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Tools in a folder of their own, fetched once. zig's next release may link otherwise.
tools=$CARGO_TARGET_DIR/dist-tools wanted=("maturin==1.*")
[ -z "$glibc" ] || wanted+=("ziglang==0.15.*" "cargo-zigbuild==0.24.*")
[ -e "$tools/bin/python" ] || python3 -m venv "$tools"
"$tools/bin/python" -m pip install --quiet --disable-pip-version-check "${wanted[@]}"
export PATH=$tools/bin:$PATH
cargo=(cargo build) folder=$CARGO_TARGET_DIR/$built wheel=()
sysroot=$(rustc --print sysroot)
llvm=${ATOMC_LLVM_DIR:-$sysroot/lib}
if [ -n "$glibc" ]; then
    # zig takes a library by this name, and not the linker script that the toolchain has there.
    export ATOMC_LLVM_DIR=$CARGO_TARGET_DIR/dist-llvm
    mkdir -p "$ATOMC_LLVM_DIR"
    for name in "$llvm"/libLLVM*22*; do
        ln -sfn "$(realpath "$llvm"/libLLVM.so.22*)" "$ATOMC_LLVM_DIR/$(basename "$name")"
    done
    # inkwell asks for libffi, of which nothing is used: an empty one is dropped again.
    python3 -m ziglang cc -target "$machine-linux-gnu.$glibc" -shared -o "$ATOMC_LLVM_DIR/libffi.so" -x c /dev/null
    cargo=(cargo zigbuild --target "$host.$glibc") folder=$CARGO_TARGET_DIR/$host/$built
    wheel=(--zig --compatibility "manylinux_${glibc/./_}")
fi

# The runtime first: what lies in cargo's folder at the end is the compiler, as it is after
# `cargo build`.
runtime=$work/runtime compiler=$work/compiler
mkdir -p "$runtime"/{bin,lib,include} "$compiler"/{bin,lib,libexec}
"${cargo[@]}" --quiet --profile "$profile" -p atomc -p atomc-c --no-default-features --features atomc/server
cp "$folder/atomc" "$runtime/bin/"
cp "$folder/libatomc_runtime.so" "$runtime/lib/"
cp runtime/include/atomc.h "$runtime/include/"
"${cargo[@]}" --quiet --profile "$profile" -p atomc
cp "$folder/atomc" "$compiler/bin/"
maturin build --quiet --profile "$profile" "${wheel[@]}" -m plugin/Cargo.toml -o "$work/wheel"

# LLVM and lld of the toolchain that atomc was built with. Each finds the library in ../lib.
cp -L "$llvm"/libLLVM.so.22* "$compiler/lib/"
cp "$sysroot/lib/rustlib/$host/bin/rust-lld" "$compiler/libexec/"

# The build has two places for the library: beside the binary, and in the toolchain. The first
# stays: nobody else has the second, or whoever has such a folder is not asked for LLVM.
python3 - "$compiler/bin/atomc" <<'PY'
import re, subprocess, sys

path = sys.argv[1]
dynamic = subprocess.run(["readelf", "-d", path], check=True, capture_output=True, text=True).stdout
(found,) = re.findall(r"\((?:RUN)?R?PATH\).*\[(.*)\]", dynamic)
old, new = found.encode(), b"$ORIGIN/../lib"
data = open(path, "rb").read()
if data.count(old + b"\0") != 1 or new not in old.split(b":"):
    sys.exit(f"{path}: the run path {found} is not there once, with {new.decode()} in it")
with open(path, "wb") as file:
    file.write(data.replace(old + b"\0", new.ljust(len(old), b"\0") + b"\0"))
PY

# The newest version of the C library that anything in a folder asks for.
newest() {
    find "$1" -type f \( -path '*/bin/*' -o -path '*/lib*/*' \) -exec readelf -V {} + |
        grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1 | sed s/GLIBC_//
}

mkdir -p "$out"
rm -f "$out"/atomc-*
for kind in compiler runtime; do
    needs=$(newest "$work/$kind")
    if [ -n "$glibc" ] && [ "$(printf '%s\n' "$glibc" "$needs" | sort -V | tail -n 1)" != "$glibc" ]; then
        echo "the $kind asks for glibc $needs, not $glibc" >&2 && exit 1
    fi
    base=atomc-$version && [ $kind = compiler ] || base=atomc-runtime-$version
    name=$base-$machine-linux-glibc${glibc:-$needs}
    mv "$work/$kind" "$work/$name"
    cp LICENSE dist/atomc.service "$work/$name/"
    # The same files make the same archive.
    tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX -C "$work" -c "$name" |
        gzip -n "-$([ "$profile" = dev ] && echo 1 || echo 9)" >"$out/$name.tar.gz"
done
cp "$work"/wheel/*.whl "$out/"
(cd "$out" && sha256sum atomc-* >SHA256SUMS && ls -l --block-size=1 atomc-* | awk '{print $NF ": " $5 " bytes"}')
