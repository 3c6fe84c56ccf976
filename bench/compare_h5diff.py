#!/usr/bin/env python3
"""bench/compare_h5diff.py FIRSTDIFF [--rounds 5] [--dir DIR] [--scale 1] [--cases WORDS]

Times `firstdiff compare A B` against `h5diff A B` on the same two files, which lie in the page cache, taking turns; prints
medians as a table. Needs h5py and h5diff (hdf5-tools).

Both look at every element: the files have no fingerprints. "equal": both exit 0. "last": one element of the last tensor
differs; both exit 1; h5diff prints it, firstdiff prints its verdict. Each time is of the whole command, from start to exit.
"CPU" is the time of all cores together, which a busy machine changes less.
h5diff has no bfloat16: bf16 traces hold 16-bit integers, and it compares those as integers.
"""
import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time

import h5py
import numpy as np

# name, tensors, shape of each, element type, what one tensor is
CASES = [
    ("f32, large", 16, (64, 65536), "f32"),
    ("f16, large", 16, (64, 32768), "f16"),
    ("bf16, large", 16, (64, 65536), "bf16"),
    ("f32, 16 KiB each", 20000, (2, 2048), "f32"),
    ("f16, 16 KiB each", 4000, (2, 4096), "f16"),
]


def elements(rng, shape, kind):
    x = rng.standard_normal(shape, dtype=np.float32)
    if kind == "f16":
        return x.astype(np.float16)
    return (x.view(np.uint32) >> 16).astype(np.uint16) if kind == "bf16" else x


def write(path, n, shape, kind, changed):
    rng = np.random.default_rng(1)
    with h5py.File(path, "w") as f:
        f.attrs["schema"], f.attrs["version"] = "firstdiff-trace", 1
        f["tokens"] = np.zeros(shape[0], np.int32)
        for i in range(n):
            x = elements(rng, shape, kind)
            if changed and i == n - 1:
                x[-1, -1] += 1
            d = f.create_dataset(f"tensors/t{i:05d}", data=x)
            d.attrs["seq"] = i
            if kind == "bf16":
                d.attrs["dtype"] = "BF16"


def seconds(command, status):
    """From start to exit, and those of all cores together."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, found, used = os.wait4(process.pid, 0)
    took = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(found)
    if process.returncode != status:
        sys.exit(f"{' '.join(command)}: exit status {process.returncode}, expected {status}")
    return took, used.ru_utime + used.ru_stime


def measure(firstdiff, a, b, status, rounds):
    peers = {"h5diff": ["h5diff", a, b], "firstdiff": [firstdiff, "compare", a, b]}
    times = {name: [] for name in peers}
    for r in range(rounds + 1):  # the first fills the page cache
        for name, command in peers.items():
            took = seconds(command, status)
            if r:
                times[name].append(took)
    return {name: [statistics.median(t) for t in zip(*pairs)] for name, pairs in times.items()}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("firstdiff")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--dir", default=None, help="where the files go (default: the system's temporary folder)")
    p.add_argument("--scale", type=float, default=1, help="factor on the number of tensors")
    p.add_argument("--cases", default="", help="only cases whose names contain one of these, separated by |")
    a = p.parse_args()
    print(f"{os.cpu_count()} cores; medians of {a.rounds} rounds; {' '.join(sys.argv)}\n")
    print("| case | MiB a side | tensors | files | h5diff s | firstdiff s | ratio | of CPU | firstdiff GB/s, both sides | µs a tensor | of CPU |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(dir=a.dir) as folder:
        for name, n, shape, kind in CASES:
            if not any(word in name for word in a.cases.split("|")):
                continue
            n = max(2, int(n * a.scale))
            size = n * shape[0] * shape[1] * (4 if kind == "f32" else 2)
            paths = [os.path.join(folder, f) for f in ("a.h5", "equal.h5", "last.h5")]
            for i, path in enumerate(paths):
                write(path, n, shape, kind, i == 2)
            for label, path, status in (("equal", paths[1], 0), ("last", paths[2], 1)):
                t = measure(a.firstdiff, paths[0], path, status, a.rounds)
                (h, h_cpu), (f, f_cpu) = t["h5diff"], t["firstdiff"]
                print(f"| {name} | {size / 2**20:.0f} | {n} | {label} | {h:.3f} | {f:.4f} | {h / f:.1f} | {h_cpu / f_cpu:.1f} | "
                      f"{2 * size / f / 1e9:.1f} | {f / n * 1e6:.1f} | {f_cpu / n * 1e6:.1f} |", flush=True)
            for path in paths:
                os.unlink(path)


if __name__ == "__main__":
    main()
