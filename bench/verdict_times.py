#!/usr/bin/env python3
"""bench/verdict_times.py FIRSTDIFF MODEL.gguf [--positions 400] [--layers-only] [--numerics CLASS] [--fault FAULT] [--before PROGRAM] [--replay cpu,gpu] [--dir DIR]

How long `firstdiff compare --model` takes, and how much memory: the exact run of so many positions of MODEL against the emulation of
llama.cpp's CPU kernels, or of another class, with a fault or without, every tensor recorded; with --layers-only only the outputs of layers
and the logits, and the class is not given. Prints seconds, CPU seconds, and MiB resident besides the model's file: of an earlier program
and this one in turns with --before, and with --replay for each of these; exit status 1 unless all give the same JSON. CPU seconds of one
thread (OMP_NUM_THREADS=1) are what a machine with other work says least wrong. Needs h5py for --layers-only.

    firstdiff make-model --preset llama-8b --type Q4_K_M -o 8b.gguf && bench/verdict_times.py FIRSTDIFF 8b.gguf --positions 8
    bench/verdict_times.py FIRSTDIFF 8b.gguf --positions 8 --replay cpu,gpu,cpu,gpu
    bench/verdict_times.py FIRSTDIFF traces/kjv-llama.gguf --positions 400
    firstdiff make-model -p tinyllama-1.1b --type Q8_0 -o 1b.gguf
    OMP_NUM_THREADS=1 bench/verdict_times.py FIRSTDIFF 1b.gguf --positions 24 --layers-only --before OLD"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time


def forget_class(path):
    import h5py

    with h5py.File(path, "r+") as trace:
        trace.attrs["numerics"] = ""


def compare(args, program, ref, cand, replay):
    """Prints what a comparison took; returns the verdict's JSON."""
    command = [program, "compare", ref, cand, "--model", args.model, "--allow-missing", "*", "--json", "--replay", replay]
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    said = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    took = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in ([0, 1, 3] if args.fault else [0]):
        sys.exit(f"{program}, --replay {replay}: exit status {process.returncode}, {said[:200]}")
    besides = used.ru_maxrss / 1024 - args.model.stat().st_size / 2**20
    print(f"{program}, --replay {replay}: {json.loads(said)['status']}; {took:.1f} s, {used.ru_utime + used.ru_stime:.1f} s of CPU, {max(besides, 0):.0f} MiB "
          f"besides the model's file; {args.positions} positions, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    return said


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("firstdiff")
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--positions", type=int, default=400)
    parser.add_argument("--layers-only", action="store_true")
    parser.add_argument("--numerics", default="llama-cpu", help="the class that is emulated")
    parser.add_argument("--fault", default="", help="of the emulated run, as firstdiff run has it")
    parser.add_argument("--before", help="an earlier program, in turns with this one: twice each")
    parser.add_argument("--replay", default="cpu", help="cpu, gpu, or several in turns: cpu,gpu,cpu,gpu")
    parser.add_argument("--dir", default=None, help="where the traces go (default: the system's temporary folder)")
    args = parser.parse_args()
    tokens = ",".join(str(1 + i * 7919 % 1999) for i in range(args.positions))
    with tempfile.TemporaryDirectory(dir=args.dir) as folder:
        ref, cand = os.path.join(folder, "ref.h5"), os.path.join(folder, "cand.h5")
        run = [args.firstdiff, "run", args.model, "-t", tokens, "-n", "0", "-q", "-o"]
        less = ["--tensors", "*l_out,logits", "--no-weights"] if args.layers_only else []
        subprocess.run([*run, ref], check=True)
        subprocess.run([*run, cand, "--numerics", f"emulate-{args.numerics}", *(["--fault", args.fault] if args.fault else []), *less], check=True)
        if args.layers_only:
            forget_class(cand)
        programs = [args.before, args.firstdiff] * 2 if args.before else [args.firstdiff]
        said = {compare(args, program, ref, cand, replay) for program in programs for replay in args.replay.split(",")}
    if len(said) > 1:
        print("the verdicts differ")
    return len(said) > 1


if __name__ == "__main__":
    sys.exit(main())
