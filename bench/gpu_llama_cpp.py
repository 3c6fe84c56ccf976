#!/usr/bin/env python3
"""bench/gpu_llama_cpp.py formats|splits|batches|depths BUILD LLAMA [--models DIR] [--gpus 0,1] [--only NAMES]

The GPU engine beside llama.cpp's CUDA backend, on the same files and the same GPU, one after the other:
  formats   one sequence, tinyllama-1.1B of every weight type: BUILD/bench/decode_gpu and LLAMA/llama-bench
  splits    llama-8B F16 on one and on two GPUs, llama.cpp in each of its split modes: split_gpu and llama-bench
  batches   1, 8 and 32 sequences of nine models: sequences_gpu and llama-batched-bench
  depths    one sequence of nine models near the beginning and after 2,048, 8,192 and 32,768 tokens: decode_gpu and llama-bench

LLAMA is the folder of llama.cpp's programs (cmake -DGGML_CUDA=ON; targets llama-bench and llama-batched-bench). Models of random weights are made in DIR, which should be a tmpfs, and removed after
use. --only Q4_0,MXFP4: these formats alone; "llama-8b F16": this model alone. --gpus: models are shared out among these GPUs. Both begin with an empty context where no depth is named. llama.cpp keeps K and V in binary16 and reads each
token's logits back; of ours both rates are shown, with each token's logits on the host and without. Rates are medians, tokens/s.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import queue
import re
import statistics
import subprocess
import sys

TYPES = ("F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q2_K Q3_K Q4_K Q5_K Q6_K IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S IQ4_NL IQ4_XS "
         "TQ1_0 TQ2_0 MXFP4 NVFP4").split()
NO_CUDA = ["TQ1_0", "TQ2_0"]  # llama.cpp has no CUDA kernel for these and multiplies them on the CPU
HOST = "decode with logits to the host, tokens/s"
FORMAT_ROWS = [prefix + row for row in ("decode, tokens/s", HOST, "prefill of 512, tokens/s") for prefix in ("", "fast: ")]
COUNTS = [1, 8, 32]
DEPTHS = [2048, 8192, 32768]
MODELS = [(preset, dtype) for preset in ("qwen2.5-0.5b", "tinyllama-1.1b", "llama-8b") for dtype in ("F16", "Q8_0", "Q4_K_M")]
TIMEOUT_S = 240  # llama-8B takes 32,768 tokens exactly in half a minute
SPLIT_MODES = ["none", "layer", "row", "tensor"]


def run(command, gpus):
    """The program's output, or a message why there is none: a table lacks a cell, not its other rows."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=TIMEOUT_S,
                              env={**os.environ, "CUDA_VISIBLE_DEVICES": gpus})
    except subprocess.TimeoutExpired:
        print(f"{command[0]} {command[2]}: more than {TIMEOUT_S} s", file=sys.stderr)
        return ""
    if done.returncode != 0:
        print(f"{' '.join(map(str, command))}: status {done.returncode}\n{(done.stdout + done.stderr)[-600:]}", file=sys.stderr)
    return done.stdout if done.returncode == 0 else ""


def llama_bench(options, model, gpus, *more):
    """Median rates of a prompt of 512 and of single tokens."""
    text = run([options.llama / "llama-bench", "-m", model, "-ngl", "99", "-fa", "1", "-p", "512", "-r", "5", "-o", "json", *more], gpus)
    rates = {test["n_gen"] > 0: statistics.median(test["samples_ts"]) for test in json.loads(text or "[]")}
    return rates.get(False), rates.get(True)


def rates_of(text, rows):
    """The medians that a program of ours printed."""
    found = [re.search(rf"^ *{re.escape(row)} +([\d.]+)", text, re.M) for row in rows]
    return [float(match[1]) if match else None for match in found]


def table_row(first, cells):
    print(f"| {first} | " + " | ".join("–" if cell is None else f"{cell:,.0f}" for cell in cells) + " |", flush=True)


class Made:
    """A model of random weights, as long as it is used."""

    def __init__(self, options, preset, dtype):
        self.path = options.models / f"{preset}-{dtype}.gguf"
        self.command = [options.build / "firstdiff", "make-model", "-p", preset, "--type", dtype, "-o", self.path]

    def __enter__(self):
        subprocess.run(self.command, check=True, stdout=subprocess.DEVNULL)
        return self.path

    def __exit__(self, *_):
        self.path.unlink()


def formats_of(options, dtype, gpu):
    with Made(options, "tinyllama-1.1b", dtype) as model:
        prompt, single = (None, None) if dtype in NO_CUDA else llama_bench(options, model, gpu, "-n", "128")
        text = run([options.build / "bench/decode_gpu", "-d", "0", "-n", "128", "-p", "512", "-r", "3", "--numerics=fast", model], gpu)
    cells = rates_of(text, FORMAT_ROWS)
    table_row(dtype, [single, *cells[:4], prompt, *cells[4:]])


def formats(options):
    print("| type | decode: llama.cpp | exact | fast | logits to the host: exact | fast | prefill of 512: llama.cpp | exact | fast |")
    print("|---" * 9 + "|", flush=True)
    left = queue.SimpleQueue()
    for dtype in TYPES:
        if not options.only or dtype in options.only.split(","): left.put(dtype)

    def work(gpu):
        while True:
            try:
                dtype = left.get_nowait()
            except queue.Empty:
                return
            formats_of(options, dtype, gpu)

    with concurrent.futures.ThreadPoolExecutor(len(options.gpus)) as workers:
        list(workers.map(work, options.gpus))  # list: what a worker raises is raised here


def splits(options):
    both = ",".join(options.gpus)
    print("| llama-8B F16 | prefill of 512 | decode |\n|---|---|---|", flush=True)
    with Made(options, "llama-8b", "F16") as model:
        text = run([options.build / "bench/split_gpu", "-r", "5", "-n", "64", "--gpus", str(len(options.gpus)), model], both)
        rates = {}
        for name in "prefill", "decode":
            match = re.search(rf"^{name}, tokens/s +([\d.]+) on one +([\d.]+) on", text, re.M)
            rates[name] = [float(rate) for rate in match.groups()] if match else [None, None]
        for i, where in enumerate(["one GPU", "all"]): table_row(f"exact, {where}", [rates["prefill"][i], rates["decode"][i]])
        for mode in SPLIT_MODES:
            table_row(f"llama.cpp, {mode}", llama_bench(options, model, both, "-n", "64", "-sm", mode))


def models_of(options):
    """The nine models, or those of --only."""
    for preset, dtype in MODELS:
        if not options.only or f"{preset} {dtype}" in options.only.split(","): yield preset, dtype


def batches(options):
    print("| model, sequences together | llama.cpp | exact | fast | q8act |\n|---|---|---|---|---|", flush=True)
    counts = ",".join(map(str, COUNTS))
    for preset, dtype in models_of(options):
        with Made(options, preset, dtype) as model:
            text = run([options.llama / "llama-batched-bench", "-m", model, "-ngl", "99", "-fa", "on", "-c", "4096", "-npp", "16", "-ntg", "64",
                        "-npl", counts, "--output-format", "jsonl"], options.gpus[0])
            lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
            columns = [[{line["pl"]: line["speed_tg"] for line in lines}.get(count) for count in COUNTS]]
            for numerics in "exact", "fast", "q8act":
                text = run([options.build / "bench/sequences_gpu", "-s", counts, "-p", "16", "-n", "64", "-r", "3", f"--numerics={numerics}", model],
                           options.gpus[0])
                columns.append(rates_of(text, [f"{count} sequences" for count in COUNTS]))
        for count, cells in zip(COUNTS, zip(*columns)): table_row(f"{preset} {dtype}, {count}", cells)


def depths(options):
    print("| model, tokens before | llama.cpp | exact | exact, K and V in f16 | fast |\n|---|---|---|---|---|", flush=True)
    deep = ",".join(map(str, DEPTHS))
    rows = [f"{{}}decode{after}, tokens/s" for after in ("", *(f" after {depth}" for depth in DEPTHS))]
    for preset, dtype in models_of(options):
        with Made(options, preset, dtype) as model:
            text = run([options.llama / "llama-bench", "-m", model, "-ngl", "99", "-fa", "1", "-p", "0", "-n", "64", "-d", f"0,{deep}", "-r", "3",
                        "-o", "json"], options.gpus[0])
            rates = {test["n_depth"]: statistics.median(test["samples_ts"]) for test in json.loads(text or "[]")}
            columns = [[rates.get(depth) for depth in (0, *DEPTHS)]]
            command = [options.build / "bench/decode_gpu", "-n", "64", "-p", "512", "-r", "1", "-d", deep]
            text, halves = run([*command, "-N", "fast", model], options.gpus[0]), run([*command, "-c", "f16", model], options.gpus[0])
            for of, prefix in (text, ""), (halves, ""), (text, "fast: "): columns.append(rates_of(of, [row.format(prefix) for row in rows]))
        for depth, cells in zip((0, *DEPTHS), zip(*columns)): table_row(f"{preset} {dtype}, {depth}", cells)


def folder(text):
    path = pathlib.Path(text).resolve()
    if not path.is_dir(): raise argparse.ArgumentTypeError(f"{text} is no folder")
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["formats", "splits", "batches", "depths"])
    parser.add_argument("build", type=folder)
    parser.add_argument("llama", type=folder)
    parser.add_argument("--models", type=pathlib.Path, default=pathlib.Path("/dev/shm"))
    parser.add_argument("--gpus", type=lambda text: text.split(","), default=["0"])
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    {"formats": formats, "splits": splits, "batches": batches, "depths": depths}[options.what](options)


if __name__ == "__main__":
    main()
