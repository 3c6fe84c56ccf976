#!/usr/bin/env python3
"""What `firstdiff check` says about sound runs of llama.cpp, of every architecture that it shares with `firstdiff make-model`: of its CPU
backend, or with --gpu of a build for CUDA (build.py makes none: FOLDER has source/ and build/bin/ of one, all layers are on the GPU).
Nothing tells the class, and no map is given: what a stranger types. Prints a line for every run that is not NOISE of the right class,
and a Markdown table.

    python3 bench/llama_cpp/build.py BUILT          # once, 3 minutes; any build of llama-cpp-python will do
    python3 bench/llama_cpp/sound.py build/release/firstdiff --built BUILT --keep FOLDER

FOLDER/ARCH.TYPE.gguf is the model, FOLDER/ARCH.TYPE.PROFILE.h5 the run; both are made once, and verdicts are asked for every time.
The status is 1 with a false alarm, a run that cannot be told, or another class."""

import argparse
import collections
import os
import pathlib
import re
import subprocess
import sys

from build import environment

TOKENS = "1,5,7,9,30,44,61,20,5,5,200,17"  # 8 in one call, then one by one
PREFILL = "8"
GPU_TOKENS = TOKENS + ",3,80,81,82,99,12,140,14,15,60,7,7,5,200,9,1,33"  # 24: more than sixteen rows have kernels of their own
GPU_PREFILL = "24"
PROFILES = {"f32": ["--kv-type", "f32"], "f16": ["--kv-type", "f16"], "flash": ["--kv-type", "f16", "--flash-attn"]}
# Classes that are right: by the weights' type and the profile. GELU reads a table in f16, which is no longer f32.
RIGHT = {
    ("F32", "f32"): ("f32", "ggml-cpu-f32kv"),
    ("F32", "f16"): ("f16kv", "ggml-cpu"),
    ("quantised", "f32"): ("ggml-cpu-f32kv",),
    ("quantised", "f16"): ("ggml-cpu",),
}

GPU_RIGHT = {"f32": ("ggml-cuda-f32kv", "tf32-cut"), "f16": ("ggml-cuda", "tf32-cut"), "flash": ("ggml-cuda-fa", "ggml-cpu-fa")}

WITHOUT_CACHE = ("mamba", "mamba2", "rwkv7")  # of K and V: its type says nothing


def right_classes(arch, dtype, profile, gpu):
    if arch in WITHOUT_CACHE:
        profile = "f32"
    if gpu:
        return GPU_RIGHT[profile]
    return ("ggml-cpu-fa",) if profile == "flash" else RIGHT["F32" if dtype == "F32" else "quantised", profile]


def architectures(firstdiff):
    """All that make-model knows, from what it says of one that it does not."""
    said = subprocess.run([firstdiff, "make-model", "--arch", "?", "-o", os.devnull], capture_output=True, text=True).stderr
    return re.split(r",\s*", said.split("known: ")[1].strip())


def made(args, arch, dtype):
    path = args.keep / f"{arch}.{dtype}.gguf"
    if not path.exists():
        subprocess.run([args.firstdiff, "make-model", "--arch", arch, "--type", dtype, "-o", path], check=True, capture_output=True)
    return path


def recorded(args, model, profile):
    """The run's trace, or what llama.cpp said instead."""
    path = model.with_suffix(f".{profile}{'.gpu' if args.gpu else ''}.h5")
    tokens, prefill, where = (GPU_TOKENS, GPU_PREFILL, ["--gpu-layers", "-1"]) if args.gpu else (TOKENS, PREFILL, [])
    if path.exists():
        return path, ""
    command = [sys.executable, "-m", "firstdiff.llama_cpp", model, "--tokens", tokens, "--prefill", prefill, "--threads", "1", "-o", path, *PROFILES[profile], *where]
    run = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment(args.built)})
    said = [line for line in (run.stderr + run.stdout).splitlines() if line.strip()]
    if run.returncode != 0:
        path.unlink(missing_ok=True)  # of a run that died
    return (path, "") if run.returncode == 0 and path.exists() else (None, said[-1] if said else f"status {run.returncode}")


def verdict(args, model, trace):
    """(status, one line, what stderr lists, class)."""
    run = subprocess.run([args.firstdiff, "check", model, trace], capture_output=True, text=True)
    listed = " ".join(line.split()[1] for line in run.stderr.splitlines() if line.startswith("unmatched"))
    name = re.search(r"^  class +(\S+)", run.stdout, re.M)
    said = (run.stdout or run.stderr.splitlines()[-1]).splitlines()
    return run.returncode, " ".join(line.strip() for line in said if line[:1].isupper() or "not seen" in line or line is said[0]), listed, name[1] if name else ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("firstdiff")
    parser.add_argument("--built", required=True, help="the folder of build.py")
    parser.add_argument("--keep", type=pathlib.Path, required=True, help="the folder of models and traces")
    parser.add_argument("--gpu", action="store_true", help="all layers on a GPU, prompts of 24 tokens")
    parser.add_argument("--archs", default="", metavar="llama,qwen2", help="these alone (default: all)")
    parser.add_argument("--types", default="F32,F16,Q8_0,Q4_K", help="of the matrices")
    parser.add_argument("--profiles", default=",".join(PROFILES), help="K/V in f32, in f16, and flash attention")
    args = parser.parse_args()
    args.keep.mkdir(parents=True, exist_ok=True)
    counts, without = collections.defaultdict(collections.Counter), {}
    for arch in args.archs.split(",") if args.archs else architectures(args.firstdiff):
        for dtype in args.types.split(","):
            model = made(args, arch, dtype)
            for profile in args.profiles.split(","):
                trace, refused = recorded(args, model, profile)
                if not trace:
                    without[arch] = refused
                    continue
                status, said, listed, name = verdict(args, model, trace)
                right = name in right_classes(arch, dtype, profile, args.gpu)
                outcome = "NOISE" if status == 0 and right else "another class" if status == 0 else "false alarm" if status == 1 else "cannot tell"
                counts[dtype, profile][outcome] += 1
                if outcome != "NOISE":
                    print(f"{arch} {dtype} {profile}: status {status}, class {name}: {said} {listed}", flush=True)
    outcomes = ["NOISE", "another class", "cannot tell", "false alarm"]
    print(f"\n| weights | recorded with | {' | '.join(outcomes)} |\n|---|---|{'---|' * len(outcomes)}")
    for (dtype, profile), found in counts.items():
        print(f"| {dtype} | {profile} | {' | '.join(str(found[o]) for o in outcomes)} |")
    for arch, said in without.items():
        print(f"{arch}: llama.cpp did not run it: {said}")
    return 0 if all(found["NOISE"] == sum(found.values()) for found in counts.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
