#!/usr/bin/env bash
# Fuzzes under AddressSanitizer, with the toolchain that the tree is built with: bash fuzz/run.sh
# SECONDS [TARGET ...]
#
# It wants a C++ compiler. SECONDS is for each target; all targets without a list, `light` for those
# without the emulator, whose build takes longest. What a fuzzer finds lies in target/fuzz/found.
# New inputs stay in target/fuzz/corpora and do not change the tree.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:?bash fuzz/run.sh SECONDS [TARGET ...]}
shift
targets=("$@")
light=(file manifest weights ir_text bodies config checkpoint gguf packed pieces requests image) features=libfuzzer,emulator
case ${targets[*]} in
"") targets=("${light[@]}" code_object instructions) ;;
light) targets=("${light[@]}") features=libfuzzer ;;
esac

# The sanitizer and the coverage of libFuzzer are unstable options of a stable compiler, whose LLVM
# atomc is built against.
export RUSTC_BOOTSTRAP=1
export RUSTFLAGS="-Zsanitizer=address --cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
 -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1 -Cdebug-assertions"
RUSTFLAGS=$(echo $RUSTFLAGS)
triple=$(rustc -vV | sed -n 's/^host: //p')
export CARGO_TARGET_DIR=target/fuzz
cargo build -p atomc-fuzz --no-default-features --features $features --bins --target "$triple" --config profile.dev.incremental=false
export LD_LIBRARY_PATH=$(rustc --print sysroot)/lib

# LLVM, which the emulator disassembles with, never gives its tables back.
export ASAN_OPTIONS=detect_leaks=0
fuzz() {
    local target=$1
    mkdir -p "target/fuzz/corpora/$target" target/fuzz/found
    "target/fuzz/$triple/debug/$target" "target/fuzz/corpora/$target" "fuzz/corpora/$target" \
        -max_total_time="$seconds" -max_len=131072 -rss_limit_mb=2048 -malloc_limit_mb=512 -timeout=10 -verbosity=0 \
        -print_funcs=0 -print_final_stats=1 -artifact_prefix="target/fuzz/found/$target-" 2>&1 |
        grep -v '^INFO\|^$\|^"\|^######\|stat::slow\|stat::peak' | sed "s/^/$target: /"
}
export -f fuzz
export seconds triple
# As many at once as there are cores.
printf '%s\n' "${targets[@]}" | xargs -P "$(nproc)" -I{} bash -euo pipefail -c 'fuzz {}'
