# Sourced by the tests here: NAME PREFIX SCRATCH. Sets the installed tree up as its user would.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
prefix=$1 scratch=$2
rm -rf "$scratch"
mkdir -p "$scratch"
PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name firstdiff_trace.pc)")
LD_LIBRARY_PATH=$(dirname "$(find "$prefix" -name libfirstdiff_trace.so)")
export PKG_CONFIG_PATH LD_LIBRARY_PATH
firstdiff=$prefix/bin/firstdiff
unset FIRSTDIFF_TRACE

skip() { echo "skipped: $*"; exit 77; }
fail() { echo "FAILED: $*"; exit 1; }

# expect TEXT FILE: the file holds the text.
expect() { grep -qF -- "$1" "$2" || { cat "$2"; fail "expected \"$1\" in $2"; }; }

build_engine() {
    cc -std=c11 -O2 -Wall -Wextra -Werror "$root"/examples/engine/*.c $(pkg-config --cflags --libs firstdiff_trace) -lm \
        -o "$scratch/engine"
}

# verdict MODEL TOKENS BUG: the engine's trace with the bug against our reference: the verdict as JSON in
# $scratch/BUG.json, its exit status in $status.
verdict() {
    local model=$root/traces/$1.gguf
    [ -e "$scratch/ref.h5" ] || "$firstdiff" run "$model" --tokens "$2" -n 0 -q -o "$scratch/ref.h5"
    FIRSTDIFF_TRACE=$scratch/$3.h5 "$scratch/engine" "$model" "$2" --prefill 6 --bug "$3"
    status=0
    "$firstdiff" compare "$scratch/ref.h5" "$scratch/$3.h5" --model "$model" --json >"$scratch/$3.json" || status=$?
}

# clean MODEL TOKENS: noise, status 0.
clean() {
    verdict "$1" "$2" none
    [ "$status" = 0 ] || { cat "$scratch/none.json"; fail "the sound engine: status $status"; }
    expect '"status": "noise"' "$scratch/none.json"
    echo "$1 none: noise"
}

# bug MODEL TOKENS BUG NODE NAME: diverged at NODE, or at the weight that it reads, named NAME.
bug() {
    verdict "$1" "$2" "$3"
    [ "$status" = 1 ] || fail "$3: status $status"
    local found
    found=$(python3 - "$scratch/$3.json" <<'PY'
import json, sys
v = json.load(open(sys.argv[1]))
e = v["weights"] if v["divergence"]["kind"] == "weights" else v.get("explanation") or {}
remaining = e.get("remaining") or [{}]
print(v["divergence"]["node"], e.get("name"), remaining[0].get("name"))
PY
    )
    echo "$1 $3: $found"
    case $found in
    "$4 $5 "*) ;;
    "$4 None $5") [ "${6:-}" = possible ] || fail "$3: not named" ;;
    *) fail "$3: expected $4 $5" ;;
    esac
}
