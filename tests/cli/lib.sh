# Sourced by the scripts here: lib.sh FIRSTDIFF TRACES_DIR [TOOL]. Counts failures; every script ends with `finish`.
set -uo pipefail
firstdiff=$1 traces=$2 tool=${3-}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
llama=$traces/kjv-llama.gguf qwen2=$traces/kjv-qwen2.gguf
n_checked=0 n_failed=0 output=

# expect STATUS PATTERN COMMAND…: the command ends with STATUS and one of its streams matches PATTERN (extended regular
# expression; '' matches anything). Killed by a signal (status ≥ 128) is never what is expected.
expect() {
    local status=$1 pattern=$2 got
    shift 2
    output=$("$@" 2>&1 </dev/null)
    got=$?
    n_checked=$((n_checked + 1))
    if [ "$got" -ne "$status" ]; then
        echo "FAILED status $got, expected $status: $*"
    elif ! grep -qE -- "$pattern" <<<"$output"; then
        echo "FAILED no match for '$pattern': $*"
    else
        return 0
    fi
    sed 's/^/    /' <<<"$output" | head -20
    n_failed=$((n_failed + 1))
    return 1
}

# also PATTERN…: the output of the last expect matches each as well; what takes a second is not run again.
also() {
    local pattern
    for pattern in "$@"; do
        n_checked=$((n_checked + 1))
        grep -qE -- "$pattern" <<<"$output" && continue
        echo "FAILED no match for '$pattern', nor run again"
        sed 's/^/    /' <<<"$output" | head -20
        n_failed=$((n_failed + 1))
    done
}

# keep_printed COMMAND…: runs it, and leaves what it printed on standard output in $scratch/printed, too.
keep_printed() {
    "$@" >"$scratch/printed"
    local got=$?
    cat "$scratch/printed"
    return $got
}

# refuse STATUS PATTERN COMMAND…: as expect, and standard output stays empty: a message is for standard error.
refuse() {
    expect "$1" "$2" keep_printed "${@:3}" || return 1
    [ -s "$scratch/printed" ] || return 0
    echo "FAILED printed on standard output: ${*:3}"
    n_failed=$((n_failed + 1))
}

# says FILE PATTERN…: some line of FILE matches each; with ! in front, none does.
says() {
    local file=$1 pattern found
    shift
    for pattern in "$@"; do
        n_checked=$((n_checked + 1))
        grep -qE -- "${pattern#!}" "$file" && found=1 || found=0
        if [ "${pattern:0:1}" = '!' ]; then found=$((1 - found)); fi
        [ $found = 1 ] && continue
        echo "FAILED '$pattern' in ${row:-$file}:"
        cut -c1-180 "$file" | head -30
        n_failed=$((n_failed + 1))
    done
}

# runs_next PATTERN COMMAND…: the firstdiff command on the `next` line of COMMAND's verdict works, and its output matches.
runs_next() {
    local pattern=$1 next
    shift
    next=$("$@" 2>/dev/null </dev/null | sed -n 's/^  next  *firstdiff //p')
    expect 0 "$pattern" bash -c "'$firstdiff' ${next:-no-next-line}"
}

need() { # need FILE…: skips the script (ctest: SKIP_RETURN_CODE 77) when one is not there
    for file in "$@"; do
        [ -r "$file" ] && continue
        echo "skipped: $file is not there"
        exit 77
    done
}

finish() {
    echo "$n_checked checked, $n_failed failed"
    [ "$n_checked" -gt 0 ] && [ "$n_failed" -eq 0 ]
    exit
}
