# Sourced by scripts/demo and scripts/test: installs what is missing (Debian 12, Ubuntu 24.04 and their like), configures
# and builds. Says what it does before it does it.

need_packages() { # need_packages PACKAGE…: installs those that are not installed
    local missing=() package
    if ! command -v dpkg-query >/dev/null; then
        echo "This is no Debian or Ubuntu: install yourself what these packages hold, then build with cmake --preset release:"
        echo "  $*"
        return 0
    fi
    for package in "$@"; do
        dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
    done
    [ ${#missing[@]} -eq 0 ] && return 0
    local as_root=()
    if [ "$(id -u)" -ne 0 ]; then
        if ! command -v sudo >/dev/null; then
            echo "These packages are missing and there is no sudo to install them with. As root:"
            echo "  apt-get install ${missing[*]}"
            return 1
        fi
        as_root=(sudo)
        echo "sudo is asked for, to install packages."
    fi
    echo "Installing: ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    "${as_root[@]}" apt-get update -qq
    "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

build_packages=(build-essential cmake ninja-build pkg-config libhdf5-dev libpcre2-dev libjansson-dev libxxhash-dev zlib1g-dev)
test_packages=(libcriterion-dev python3 python3-h5py python3-numpy python3-venv openmpi-bin)

# The Python for the tests of dumpers/python: $FD_PYTEST when it is set, else one of our own with what they need from PyPI.
# Sets fd_pytest; empty when that cannot be had, which only CI takes for an error.
make_pytest() {
    fd_pytest=${FD_PYTEST:-$PWD/build/python/bin/python}
    [ -n "${FD_PYTEST:-}" ] && return 0
    local wanted=dumpers/python/requirements-test.txt
    cmp -s "$wanted" build/python/installed.txt && return 0
    echo "Making a Python environment in build/python"
    mkdir -p build
    if /usr/bin/python3 -m venv --system-site-packages build/python &&
        build/python/bin/python -m pip install -q --disable-pip-version-check -r "$wanted"; then
        cp "$wanted" build/python/installed.txt
        return 0
    fi
    fd_pytest=
    echo "The Python packages of $wanted cannot be installed: the tests of dumpers/python are left out."
    [ "${CI:-}" != true ]
}

build() { # build PRESET [cmake option…] -- [target…]
    local preset=$1 options=()
    shift
    while [ $# -gt 0 ] && [ "$1" != -- ]; do options+=("$1"); shift; done
    [ $# -gt 0 ] && shift
    echo "Configuring ($preset)"
    local said
    said=$(cmake --preset "$preset" "${options[@]}" 2>&1) || { echo "$said"; return 1; }
    echo "Building ($preset)"
    cmake --build --preset "$preset" ${@:+--target "$@"}
}

# in_memory COMMAND…: with $TMPDIR in memory. Tests make and delete files by the thousand, and wait for a disk longer than they
# compute. Where there is little memory for it, or programs may not be started from it (containers), $TMPDIR stays as it is.
in_memory() (
    memory=/dev/shm
    if [ -w $memory ] && [ "$(df --output=avail -B1M $memory | tail -1)" -ge 4096 ] && ! findmnt -no OPTIONS -T $memory | grep -qw noexec; then
        TMPDIR=$(mktemp -d $memory/firstdiff-XXXXXX)
        export TMPDIR
        trap 'rm -rf "$TMPDIR"' EXIT
    fi
    "$@"
)
