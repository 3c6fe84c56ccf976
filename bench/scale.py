#!/usr/bin/env python3
"""bench/scale.py FIRSTDIFF [--dir /dev/shm] [--ranks 1,2,4] [--layers 4] [--tokens 128] [--long 1024] [--rounds 3]

What a trace of a large model costs. Measures on this machine, with a model of real width and few layers: bytes of a trace at each
level, time of a run with and without it, of a comparison of elements and of a replay; with mpirun, the same with several processes of
one thread. Then multiplies: docs/scale.md has the table. Sizes that the formula gives are checked against the traces that were written."""
import argparse
import os
import re
import shutil
import statistics
import subprocess
import time
from pathlib import Path

# name: layers, width, heads, K/V heads, head width, FFN width, vocabulary, experts used, width of an expert's FFN, all experts
SHAPES = {
    "tinyllama": (22, 2048, 32, 4, 64, 5632, 32000, 0, 0, 0),
    "8B": (32, 4096, 32, 8, 128, 14336, 128256, 0, 0, 0),
    "70B": (80, 8192, 64, 8, 128, 28672, 128256, 0, 0, 0),
    "405B": (126, 16384, 128, 8, 128, 53248, 128256, 0, 0, 0),
    "1T experts": (61, 7168, 64, 8, 128, 0, 163840, 8, 2048, 384),
}


def elements(shape, n_kv):
    """(nodes, elements, elements of attention's scores and weights among them) of one position that sees n_kv."""
    n_layer, e, h, kv, d, f, v, k, fe, n_expert = shape
    per = [e, h * d, kv * d, kv * d, h * d, kv * d, kv * d, kv * d, h * n_kv, h * n_kv, h * d, e, e, e]
    per += [n_expert, n_expert, k, k, k * fe, k * fe, k * fe, k * e, e, e] if k else [f, f, f, e, e]
    return n_layer * len(per) + 3, n_layer * sum(per) + 2 * e + v, n_layer * 2 * h * n_kv


def products(shape):
    """Multiply-adds of one position, and weights."""
    n_layer, e, h, kv, d, f, v, k, fe, n_expert = shape
    attention = e * (2 * h * d + 2 * kv * d)
    each = attention + (n_expert * e + k * 3 * e * fe if k else 3 * e * f)
    weights = n_layer * (attention + (n_expert * (e + 3 * e * fe) if k else 3 * e * f)) + 2 * v * e
    return n_layer * each + v * e, weights


def timed(command, rounds=1, env=None, expected=(0,)):
    took = []
    for _ in range(rounds):
        begun = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **(env or {})})
        took.append(time.perf_counter() - begun)
        if done.returncode not in expected:
            raise SystemExit(f"{' '.join(map(str, command))}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return statistics.median(took), done


def prefill_rate(stderr):
    return float(re.search(r"prefill \d+ tokens ([\d.]+) tok/s", stderr)[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("firstdiff")
    parser.add_argument("--dir", default="/dev/shm")
    parser.add_argument("--ranks", default="1,2,4")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--long", type=int, default=1024, help="positions of the traces whose elements are compared")
    parser.add_argument("--rounds", type=int, default=3)
    a = parser.parse_args()
    at = Path(a.dir) / f"fd_scale_{os.getpid()}"
    at.mkdir()
    try:
        measure(a, at)
    finally:
        shutil.rmtree(at)


def measure(a, at):
    model, n = at / "m.gguf", a.tokens
    shape = (a.layers, *SHAPES["tinyllama"][1:])
    subprocess.run([a.firstdiff, "make-model", "-p", "tinyllama-1.1b", "-t", "F16", "--layers", str(a.layers), "-o", model], check=True,
                   capture_output=True)
    run = [a.firstdiff, "run", model, "--tokens", ",".join(str(3 + 7 * i % 900) for i in range(n)), "--ids", "-n", "0"]
    macs, _ = products(shape)
    in_layers = macs - shape[6] * shape[1]  # without a trace the last position alone has logits
    print(f"{os.cpu_count()} processors; tinyllama's width, {a.layers} layers, F16; {n} positions, medians of {a.rounds}")

    rates = [prefill_rate(timed(run)[1].stderr) for _ in range(a.rounds)]
    rate = statistics.median(rates)
    print(f"run, no trace         {rate:8.1f} positions/s   {rate * in_layers / 1e9:8.1f} G multiply-adds/s")
    sizes = {}
    for level in ("fingerprint", "stats", "full"):
        out = at / f"{level}.h5"
        done = [timed(run + ["-o", out, "--level", level, "--no-weights"])[1] for _ in range(a.rounds)]
        rate_traced = statistics.median(prefill_rate(d.stderr) for d in done)
        sizes[level] = out.stat().st_size
        print(f"run, {level:<12}     {rate_traced:8.1f} positions/s   {sizes[level] / n:12.0f} bytes a position")
    node, whole, attention = elements(shape, n)
    low, high = 4 * (whole - attention // 2) * n, 4 * whole * n  # rows of scores end at their position, or at the last one's
    written = sizes["full"] - sizes["stats"]
    print(f"full: {sizes['full'] / 1e6:.0f} MB; the formula: {low / 1e6:.0f} to {high / 1e6:.0f} MB of elements")
    if not 0.97 * low <= written <= 1.06 * high:
        raise SystemExit("the formula does not give what was written")
    per_node = {level: (sizes[level]) / n / node for level in ("fingerprint", "stats")}
    print("a node of a position: " + ", ".join(f"{level} {b:.0f} bytes" for level, b in per_node.items()))

    # a trace that was imported has no fingerprints: elements are compared
    f16 = ["--no-weights", "--numerics", "emulate-f16"]
    timed(run + ["-o", at / "f16.h5", *f16])
    long = ",".join(str(3 + 7 * i % 900) for i in range(a.long))
    timed([x if "," not in str(x) else long for x in run] + ["--ctx", str(a.long), "-o", at / "own.h5", *f16])
    timed([a.firstdiff, "import", at / "own.h5", "-o", at / "a.h5"])
    shutil.copy(at / "a.h5", at / "b.h5")
    both = 2 * (at / "a.h5").stat().st_size
    print(f"compare: two traces of {a.long} positions, {both / 1e9:.2f} GB together")
    read, _ = timed([a.firstdiff, "compare", at / "a.h5", at / "b.h5"], a.rounds)
    print(f"compare, elements     {both / read / 1e9:8.2f} GB/s of both files")
    exact, _ = timed([a.firstdiff, "compare", at / "full.h5", at / "full.h5"], a.rounds)
    print(f"compare, fingerprints {node * n / exact / 1e6:8.2f} million tensors/s")
    replay, _ = timed([a.firstdiff, "compare", at / "full.h5", at / "f16.h5", "--model", model, "--candidate", "f16"], 1,
                      expected=(0, 1, 3))
    print(f"compare, replay       {n / replay:8.1f} positions/s   {n * macs / replay / 1e9:8.1f} G multiply-adds/s")

    print("\n| | weights in F16 | tensors a position | fingerprint | stats | full, at 4,096 | f16, no attention | CPU run | compare | replay |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name, s in SHAPES.items():
        if name == "tinyllama":
            continue
        nodes, total, attended = elements(s, 4096)
        cost, weights = products(s)
        full = 4 * total
        print(f"| {name} | {2 * weights / 1e9:.0f} GB | {nodes} | {nodes * per_node['fingerprint'] / 1e3:.0f} KB | "
              f"{nodes * per_node['stats'] / 1e3:.0f} KB | {full / 1e6:.1f} MB | {2 * (total - attended) / 1e6:.1f} MB | "
              f"{cost / (rate * in_layers):.2f} s | {2 * full / (both / read) * 1e3:.1f} ms | {cost * replay / (n * macs):.2f} s |")

    if shutil.which("mpirun"):
        ranks(a, at, run)


def ranks(a, at, run):
    env = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
    compare = [a.firstdiff, "compare", at / "a.h5", at / "b.h5"]
    replay = [a.firstdiff, "compare", at / "full.h5", at / "f16.h5", "--model", at / "m.gguf", "--candidate", "f16"]
    print("\n| processes of one thread | prefill | decode | compare, elements | compare, replay | of which mpirun's start |")
    print("|---|---|---|---|---|---|")
    first = None
    for n in map(int, a.ranks.split(",")):
        started = ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(n)] if n > 1 else []
        decode, prefill = [], []
        for _ in range(a.rounds):
            done = timed(started + run[:-1] + ["32", "--ignore-eos"], env=env)[1]
            prefill.append(prefill_rate(done.stderr))
            decode.append(float(re.search(r"decode \d+ tokens ([\d.]+) tok/s", done.stderr)[1]))
        read, _ = timed(started + compare, a.rounds, env)
        start = timed(started + [a.firstdiff, "compare", at / "f16.h5", at / "f16.h5"], a.rounds, env)[0] if n > 1 else 0
        replayed, _ = timed(started + replay, 1, env, (0, 1, 3))
        row = statistics.median(prefill), statistics.median(decode), read - start, replayed - start
        first = first or row
        print(f"| {n} | {row[0]:.1f}/s ({row[0] / first[0]:.2f}) | {row[1]:.1f}/s ({row[1] / first[1]:.2f}) | "
              f"{read:.2f} s ({first[2] / row[2]:.2f} without the start) | {replayed:.2f} s ({first[3] / row[3]:.2f}) | {start:.2f} s |")


main()
