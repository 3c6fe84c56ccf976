#!/usr/bin/env python3
"""bench/decode_llama_cpp.py BENCH MODEL.gguf ... --built BUILT [--threads 2] [--rounds 5]

Decode and prefill of the CPU reference beside llama.cpp's CPU backend, on the same files with the same number of threads. The two take
turns, a round of BENCH/decode_cpu and a round of llama.cpp; the table has medians, and the median of the ratios of rounds. BUILT is the
folder of bench/llama_cpp/build.py. Nothing else should use the cores meanwhile: llama.cpp's threads wait by spinning."""

import argparse
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent / "llama_cpp")]

from build import environment


class LlamaCpp:
    def __init__(self, llama, model, threads, n_ctx):
        self.llama = llama
        params = llama.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = n_ctx
        params.n_threads = params.n_threads_batch = threads
        self.model = llama.llama_model_load_from_file(os.fsencode(model), llama.llama_model_default_params())
        self.context = self.model and llama.llama_init_from_model(self.model, params)
        if not self.context:
            sys.exit(f"{model}: llama.cpp cannot run it")
        self.vocab = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(self.model))

    def close(self):
        self.llama.llama_free(self.context)
        self.llama.llama_model_free(self.model)

    def rate(self, n, at_once):
        """Tokens per second of n positions, at_once of them a call; logits of the last of each call."""
        llama = self.llama
        llama.llama_memory_clear(llama.llama_get_memory(self.context), True)
        batch = llama.llama_batch_init(at_once, 0, 1)
        start = time.perf_counter()
        for first in range(0, n, at_once):
            batch.n_tokens = at_once
            for i in range(at_once):
                batch.token[i], batch.pos[i] = (first + i) * 7919 % self.vocab, first + i
                batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = 1, 0, i == at_once - 1
            if llama.llama_decode(self.context, batch) != 0:
                sys.exit("llama.cpp's decode failed")
            llama.llama_get_logits_ith(self.context, -1)  # waits until they are there
        seconds = time.perf_counter() - start
        llama.llama_batch_free(batch)
        return n / seconds


def reference(bench, model, args):
    """decode, prefill"""
    command = [bench / "decode_cpu", "-r", "1", "-t", str(args.threads), "-n", str(args.decode), "-p", str(args.prefill), model]
    text = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True).stdout
    return [float(re.search(rf"^reference, {what} of \d+ +([\d.]+)", text, re.M)[1]) for what in ("decode", "prefill")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench", type=pathlib.Path)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--built", required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--decode", type=int, default=32)
    parser.add_argument("--prefill", type=int, default=64)
    args = parser.parse_args()
    found = environment(args.built)
    os.environ.update(found)
    sys.path[:0] = found["PYTHONPATH"].split(os.pathsep)
    import llama_cpp

    quiet = llama_cpp.llama_log_callback(lambda *_: None)
    llama_cpp.llama_log_set(quiet, None)
    llama_cpp.llama_backend_init()
    print(f"{args.threads} threads; tokens/s, medians of {args.rounds} rounds\n")
    print(f"| model | decode of {args.decode} | llama.cpp | ratio | prefill of {args.prefill} | llama.cpp | ratio |\n" + "|---" * 7 + "|", flush=True)
    for model in args.models:
        peer = LlamaCpp(llama_cpp, model, args.threads, max(args.decode, args.prefill))
        peer.rate(args.prefill, args.prefill)
        rounds = []
        for _ in range(args.rounds):
            ours = reference(args.bench, model, args)
            theirs = [peer.rate(args.decode, 1), peer.rate(args.prefill, args.prefill)]
            rounds.append((ours[0], theirs[0], ours[0] / theirs[0], ours[1], theirs[1], ours[1] / theirs[1]))
        peer.close()
        row = [statistics.median(column) for column in zip(*rounds)]
        cells = [f"{x:.2f}" if i % 3 == 2 else f"{x:.1f}" for i, x in enumerate(row)]
        print(f"| {pathlib.Path(model).name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
