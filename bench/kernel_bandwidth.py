#!/usr/bin/env python3
"""bench/kernel_bandwidth.py DECODE_GPU MODEL.gguf [--top 3] [--kernels 160] [--numerics exact] [--csv FILE]

What each kernel of a decode step reads from DRAM, and how fast: DECODE_GPU (bench/decode_gpu) under Nsight Compute, whose
ncu is on the PATH. Launches of one kernel and launch shape that read about as much are one row (a product of the layers and that
of the logits are two); the rows that take the most time come first.
Under ncu one kernel runs after the other, with cold caches, and none overlaps the next, so a step is slower than the sum.
A model cut to a few layers (firstdiff make-model --layers) shows the same kernels sooner.

--csv FILE: read what `ncu --csv --page raw --print-units base` printed before, instead of running it.
"""
import argparse
import csv
import statistics
import subprocess
import sys

BYTES, TIME = "dram__bytes_read.sum", "gpu__time_duration.sum"


def run_ncu(options):
    """The lines that ncu prints about `options.kernels` kernels in the middle of the decode, as CSV."""
    command = ["ncu", "--clock-control", "none", "--graph-profiling", "node", "-s", "200", "-c", str(options.kernels),
               "--metrics", f"{BYTES},{TIME}", "--csv", "--page", "raw", "--print-units", "base",
               options.decode_gpu, "-n", "64", "-d", "0", "-r", "1", "-p", "16", "-N", options.numerics, options.model]
    print("command:", " ".join(command), file=sys.stderr)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"kernel_bandwidth: {command[0]} ended with status {done.returncode}:\n{done.stdout[-2000:]}")
    return done.stdout.splitlines()


def rows_of(lines):
    """(kernel name, grid, block): [(bytes read, ns), …], of every kernel in ncu's CSV; lines before its heading are ncu's own."""
    table = [row for row in csv.reader(lines) if len(row) > 4]
    if not table:
        sys.exit("kernel_bandwidth: found no CSV in what ncu printed")
    heading = table[0]
    missing = [name for name in ("Kernel Name", "Grid Size", "Block Size", BYTES, TIME) if name not in heading]
    if missing:
        sys.exit(f"kernel_bandwidth: ncu's table has no column {', '.join(missing)}")
    name, grid, block, read, time = (heading.index(c) for c in ("Kernel Name", "Grid Size", "Block Size", BYTES, TIME))
    unit = table[1]
    if (unit[read], unit[time]) != ("byte", "ns"):
        sys.exit(f"kernel_bandwidth: units {unit[read]!r} and {unit[time]!r}, expected 'byte' and 'ns'")
    kernels = {}
    for row in table[2:]:
        function = row[name].rpartition("(")[0] or row[name]  # without the parameters
        at = kernels.setdefault((function, row[grid], row[block]), [])
        at.append((float(row[read].replace(",", "")), float(row[time].replace(",", ""))))
    return kernels


def products(launches):
    """Splits [(bytes, ns), …] where one launch reads more than 1.25 times what the next smaller one does, and 1 MB more."""
    parts = []
    for launch in sorted(launches):
        before = parts[-1][-1][0] if parts else 0
        if not parts or launch[0] > max(1.25 * before, before + 1e6):
            parts.append([])
        parts[-1].append(launch)
    return parts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("decode_gpu", nargs="?")
    parser.add_argument("model", nargs="?")
    parser.add_argument("--top", type=int, default=3)
    parser.add_argument("--kernels", type=int, default=160)
    parser.add_argument("--numerics", default="exact", choices=["exact", "q8act"])
    parser.add_argument("--csv")
    options = parser.parse_args()
    if not options.csv and not options.model:
        parser.error("DECODE_GPU and MODEL.gguf, or --csv FILE")
    if options.csv:
        with open(options.csv) as file:
            kernels = rows_of(file.read().splitlines())
    else:
        kernels = rows_of(run_ncu(options))
    total = sum(ns for launches in kernels.values() for _, ns in launches)
    print("| kernel | grid × block | launches | share of time | reads | time | DRAM read |")
    print("|---|---|---|---|---|---|---|")
    rows = [(shape, part) for shape, launches in kernels.items() for part in products(launches)]
    rows.sort(key=lambda row: -sum(ns for _, ns in row[1]))
    for (name, grid, block), launches in rows[: options.top]:
        read, ns = (statistics.median(column) for column in zip(*launches))
        share = sum(t for _, t in launches) / total
        print(f"| {name} | {grid} × {block} | {len(launches)} | {100 * share:.0f} % | {read / 1e6:.1f} MB | {ns / 1e3:.1f} µs | {read / ns / 1e3:.2f} TB/s |")


if __name__ == "__main__":
    main()
