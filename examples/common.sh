# What the examples share. `atomc` is the command line of this checkout, built if it has to be, or
# what ATOMC names; PROFILE is cargo's profile. BUILT is a folder where all is built already, as
# `cargo build --workspace --all-targets` leaves it. $out is a folder that goes when the script
# ends. With `first` set the build is the one that takes least: without the server and the emulator,
# and with code of its own that is not optimised. Kernels are.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
profile=${PROFILE:-release} features=() out=$(mktemp -d)
if [ -n "${first:-}" ] && [ -z "${PROFILE:-}" ]; then
    profile=first features=(--no-default-features --features compiler)
fi
trap 'rm -rf "$out"' EXIT
# The list of trusted artifacts is the example's own.
export XDG_CONFIG_HOME=$out/config
# What `cargo build` leaves, and where.
built=${BUILT:-${CARGO_TARGET_DIR:-target}/${profile/#dev/debug}}
build() { [ -n "${BUILT:-}" ] || cargo build --profile "$profile" --quiet "$@"; }
if [ -z "${ATOMC:-}" ]; then
    build "${features[@]}" --bin atomc
    ATOMC=$built/atomc
fi
atomc() { "$ATOMC" "$@"; }

qwen3=examples/models/qwen3
question=$'Q: Ana has 12 apples. Ana buys 7 more. Ana gives 4 to Ben. How many apples does Ana have now?\nA:'

# The first lines of its input that have a text in them, or the end of the script.
said() { grep -F -m "${2:-1}" -e "$1" || { echo "nobody said: $1" >&2 && exit 1; }; }

# Waits until a log has a text, while a process lives.
await() {
    local process=$1 log=$2 text=$3
    for _ in $(seq 1200); do
        ! grep -qF -e "$text" "$log" || return 0
        kill -0 "$process" 2>/dev/null || break
        sleep 0.1
    done
    cat "$log" >&2
    return 1
}
