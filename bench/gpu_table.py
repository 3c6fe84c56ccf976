#!/usr/bin/env python3
"""bench/gpu_table.py BUILD [--models DIR] [--only TEXT] [--rounds 3]

The table of GPU decode and prefill in docs/performance.md: makes each model of random weights that DIR lacks (30 GB for all nine), runs
BUILD/bench/decode_gpu --numerics=fast on it, exact and fast in turns, and prints its row as soon as it is measured. --only:
models whose name has TEXT, such as "llama-8B F16". Nothing else should use the GPU or many cores meanwhile.
"""
import argparse
import pathlib
import re
import subprocess
import sys

MODELS = [("qwen2.5-0.5B", "qwen2.5-0.5b", 128), ("tinyllama-1.1B", "tinyllama-1.1b", 128), ("llama-8B", "llama-8b", 64)]
TYPES = ["F16", "Q8_0", "Q4_K_M"]
ROWS = ["decode, tokens/s", "decode after 2048, tokens/s", "prefill of 512, tokens/s"]


def cells_of(text):
    """GB a token, then [exact, fast] of each of ROWS, from decode_gpu's output."""
    weights = re.search(r"^([\d.]+) GB of weights a token", text, re.M)
    cells = []
    for row in ROWS:
        found = [re.search(rf"^{re.escape(prefix + row)} +([\d.]+) \[", text, re.M) for prefix in ("", "fast: ")]
        if not weights or None in found:
            sys.exit(f"gpu_table: decode_gpu printed no {row!r} of exact and fast:\n{text[-1500:]}")
        cells += [float(match[1]) for match in found]
    return float(weights[1]), cells


def run(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"gpu_table: {command[0]} ended with status {done.returncode}\n{done.stdout[-1500:]}")
    return done.stdout


def model_file(build, directory, preset, dtype):
    path = directory / f"{preset}-{dtype}.gguf"
    if not path.exists():
        part = path.with_suffix(".part")  # a run that is stopped leaves no model cut short
        run([build / "firstdiff", "make-model", "--preset", preset, "--type", dtype, "-o", part])
        part.rename(path)
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--models", type=pathlib.Path, default=pathlib.Path("build/bench-models"))
    parser.add_argument("--only", default="")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    wanted = [(name, preset, dtype, tokens) for name, preset, tokens in MODELS for dtype in TYPES
              if options.only.lower() in f"{name} {dtype}".lower()]
    if not wanted:
        names = ", ".join(f"{name} {dtype}" for name, _, _ in MODELS for dtype in TYPES)
        parser.error(f"--only {options.only!r}: expected a part of {names}")
    options.models.mkdir(parents=True, exist_ok=True)
    print("| model | weights read a token | decode: exact | fast | after 2048 tokens: exact | fast | prefill of 512: exact | fast |")
    print("|---" * 8 + "|", flush=True)
    for name, preset, dtype, tokens in wanted:
        path = model_file(options.build, options.models, preset, dtype)
        text = run([options.build / "bench/decode_gpu", "-n", str(tokens), "-r", str(options.rounds), "--numerics=fast", path])
        weights, cells = cells_of(text)
        print(f"| {name} {dtype} | {weights:.2f} GB | " + " | ".join(f"{cell:,.0f}" for cell in cells) + " |", flush=True)


if __name__ == "__main__":
    main()
