# What both tests of the server do: start it, and end it when they end, where it has not ended.
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null || true; rm -rf "$work"' EXIT

# Starts `atomc serve` with these options, and waits until it says where it is: `url`, of `server`.
# `atomc` and `work` are the command line and a folder for its log.
serve() {
    # Emptied here, as the child may do so later than the log is read, which has the last address.
    : >"$work/log"
    "$atomc" serve "$@" --port 0 >"$work/log" 2>&1 &
    server=$!
    for _ in $(seq 300); do
        url=$(sed -n 's|.* at \(http://.*\)/v1$|\1|p' "$work/log")
        [ -z "$url" ] || return 0
        kill -0 "$server" 2>/dev/null || break
        sleep 0.1
    done
    cat "$work/log" && exit 1
}
