#!/usr/bin/env python3
"""bench/reading_times.py OLD NEW [MODEL.gguf] [--rounds 15] [--dir DIR] [--cases WORDS]

Times two builds of firstdiff in turns on the same files: writing traces and goldens, reading and comparing them. The files lie in the
page cache. What runs a model has one thread: threads that wait for others spin, which measures the machine's other work. Each round
runs every command once with either program, in changing order; printed is the median of the rounds' ratios NEW / OLD, of the time from
start to exit and of the processor time (that of all cores and of child processes), with OLD's medians.
Needs h5py.

Traces of h5py have no fingerprints: every element is looked at. Goldens are recorded by the program that checks them.
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

TEXT = "In the beginning God created the heaven and the earth. And the earth was without form, and void; and darkness was upon the face of the deep."
RUN = ["run", "{model}", "-p", TEXT, "-j", "1", "-n", "60", "-q", "-o", "{dir}/out.h5"]
GOLDEN = ["golden", "record", "{model}", "{dir}/prompts.txt", "-j", "1", "-n", "16", "-o"]

# name, arguments; {own}: a folder of the program's
CASES = [
    ("run -o", RUN),
    ("run -o --compress", [*RUN, "--compress"]),
    ("run -o --level fingerprint", [*RUN, "--level", "fingerprint"]),
    ("golden record", [*GOLDEN, "{own}/record.h5"]),
    ("golden check", ["golden", "check", "{model}", "{own}/golden.h5", "-j", "1"]),
    ("sweep", ["sweep", "{model}", "-p", TEXT]),
    ("compare, our traces", ["compare", "{dir}/own.h5", "{dir}/own2.h5"]),
    ("compare, our traces, --compress", ["compare", "{dir}/compressed.h5", "{dir}/compressed2.h5"]),
    ("compare, a bug, --compress, --model", ["compare", "{dir}/compressed.h5", "{dir}/bug.h5", "--model", "{model}"]),
    ("compare, h5py, gzip", ["compare", "{dir}/gzip.h5", "{dir}/gzip2.h5"]),
    ("compare, h5py, gzip, large", ["compare", "{dir}/large.h5", "{dir}/large2.h5"]),
    ("compare, h5py, 2,000 small tensors", ["compare", "{dir}/small.h5", "{dir}/small2.h5"]),
    ("compare, h5py, 2,000 small tensors, gzip", ["compare", "{dir}/smallz.h5", "{dir}/smallz2.h5"]),
    ("inspect, our trace", ["inspect", "{dir}/own.h5"]),
    ("inspect, our trace, --compress", ["inspect", "{dir}/compressed.h5"]),
    ("inspect, a tensor, --compress", ["inspect", "{dir}/compressed.h5", "blk.0.attn_q"]),
    ("inspect, h5py, gzip", ["inspect", "{dir}/gzip.h5"]),
    ("inspect, h5py, 2,000 small tensors", ["inspect", "{dir}/small.h5"]),
]


def write(path, n, shape, gzip):
    rng = np.random.default_rng(1)
    with h5py.File(path, "w") as f:
        f.attrs["schema"], f.attrs["version"] = "firstdiff-trace", 1
        f["tokens"] = np.zeros(shape[0], np.int32)
        for i in range(n):
            x = rng.standard_normal(shape, dtype=np.float32)
            options = {"compression": "gzip", "compression_opts": 1, "shuffle": True} if gzip else {}
            f.create_dataset(f"tensors/blk.{i // 20}.t{i % 20:02d}", data=x, **options).attrs["seq"] = i


def with_gzip(path, other):
    """The tensors of a trace of ours as h5py compresses them: no fingerprints, no graph."""
    with h5py.File(path, "r") as f, h5py.File(other, "w") as g:
        g.attrs["schema"], g.attrs["version"] = "firstdiff-trace", 1
        g["tokens"] = f["tokens"][:]
        for name, d in f["tensors"].items():
            z = g.create_dataset(f"tensors/{name}", data=d[:], compression="gzip", shuffle=True)
            z.attrs["seq"] = d.attrs["seq"]


def seconds(program, arguments):
    """From start to exit, and those of all cores together."""
    start = time.perf_counter()
    process = subprocess.Popen([program, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    message = process.stderr.read()
    _, found, used = os.wait4(process.pid, 0)
    took = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(found)
    if process.returncode not in (0, 1):
        sys.exit(f"{program} {' '.join(arguments)}: exit status {process.returncode}: {message.decode()}")
    return took, used.ru_utime + used.ru_stime


def make_files(folder, programs, model):
    own = {"model": model, "dir": folder}
    with open(f"{folder}/prompts.txt", "w") as f:
        f.write("In the beginning\nAnd God said\nThe LORD is my shepherd\nBlessed are\n")

    def run(program, arguments):
        seconds(program, [a.format(**own) for a in arguments])

    new = programs[1]
    for name, more in (("own", []), ("compressed", ["--compress"]), ("bug", ["--compress", "--fault", "rope_pairing@3"])):
        run(new, [*RUN[:-1], f"{folder}/{name}.h5", *more])
    with_gzip(f"{folder}/own.h5", f"{folder}/gzip.h5")
    write(f"{folder}/large.h5", 6, (64, 16384), True)
    write(f"{folder}/small.h5", 2000, (4, 256), False)
    write(f"{folder}/smallz.h5", 2000, (4, 256), True)
    for name in ("own", "compressed", "gzip", "large", "small", "smallz"):
        with open(f"{folder}/{name}.h5", "rb") as f, open(f"{folder}/{name}2.h5", "wb") as g:
            g.write(f.read())
    for i, program in enumerate(programs):
        os.mkdir(f"{folder}/{i}")
        run(program, [*GOLDEN, f"{folder}/{i}/golden.h5"])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("old")
    p.add_argument("new")
    p.add_argument("model", nargs="?", default=os.path.join(os.path.dirname(__file__), "..", "traces", "kjv-llama.gguf"))
    p.add_argument("--rounds", type=int, default=15)
    p.add_argument("--dir", default=None, help="where the files go (default: the system's temporary folder)")
    p.add_argument("--cases", default="", help="only cases whose names contain one of these, separated by |")
    a = p.parse_args()
    programs = [a.old, a.new]
    cases = [c for c in CASES if any(word in c[0] for word in a.cases.split("|"))]
    with tempfile.TemporaryDirectory(dir=a.dir) as folder:
        make_files(folder, programs, a.model)
        times = {name: [] for name, _ in cases}
        for r in range(a.rounds + 1):  # the first fills the page cache
            for name, arguments in cases:
                took = [None, None]
                for i in ((0, 1), (1, 0))[r % 2]:
                    names = {"model": a.model, "dir": folder, "own": f"{folder}/{i}"}
                    took[i] = seconds(programs[i], [x.format(**names) for x in arguments])
                if r:
                    times[name].append(took)
    print(f"{os.cpu_count()} cores; medians of {a.rounds} rounds; {' '.join(sys.argv)}\n")
    print("| command | old, ms | new / old | old, CPU ms | new / old |")
    print("|---|---|---|---|---|")
    for name, pairs in times.items():
        cells = []
        for k in (0, 1):
            cells.append(f"{statistics.median(old[k] for old, _ in pairs) * 1e3:.1f}")
            cells.append(f"{statistics.median(new[k] / max(old[k], 1e-6) for old, new in pairs):.2f}")
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
