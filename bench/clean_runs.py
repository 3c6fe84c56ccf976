#!/usr/bin/env python3
"""What `firstdiff check` says of runs without a bug: made models of every architecture, each emulated class, what engines record,
lengths and steps. The class is neither recorded nor, without --given, given, nor does anything else in the dump tell that the run is ours. Prints
Markdown tables; the status is 1 with a false alarm.

    python3 bench/clean_runs.py build/release/firstdiff --runs 2000 --jobs 2 --details clean.tsv
    python3 bench/clean_runs.py build/release/firstdiff --first 2000 --runs 200 --archs llama,gemma2
    python3 bench/clean_runs.py build/release/firstdiff --again clean.tsv

Run i is drawn from its number: architecture, class, profile (bench/scoring.py), type and dimensions of the weights, tokens, decode steps; so
figures of several calls add up. A table's runs are drawn again whatever architectures and classes there are by now.
Needs numpy, h5py and xxhash. A run takes a second or two on one core."""

import argparse
import collections
import concurrent.futures
import csv
import fnmatch
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time

import h5py
from scoring import PROFILES

from firstdiff.trace import Writer

TYPES = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_K", "Q6_K"]
RECORDED = ["all", "partial", "fused", "layers", "logits"]
SHAPES = ["", "--layers 2", "--layers 4 --embd 512", "--layers 3 --vocab 1000"]

Draw = collections.namedtuple("Draw", "number arch type shape seed tokens decoded numerics profile")
Row = collections.namedtuple("Row", "number arch type shape tokens decoded numerics profile status cls seconds at z reason")


def known(firstdiff, *command):
    """What firstdiff says it knows, when it is asked for what it does not."""
    said = subprocess.run([firstdiff, *command], capture_output=True, text=True).stderr
    return re.search(r"known: (.*)", said)[1].split(", ")


def draw(number, archs, classes):
    lot = random.Random(number)
    tokens = [1 + lot.randrange(250) for _ in range(lot.choice([2, 5, 9, 16, 24]))]
    return Draw(number, archs[number % len(archs)], lot.choice(TYPES), lot.choice(SHAPES), lot.randrange(1000), tokens,
                min(len(tokens) - 1, lot.choice([0, 0, 1, 3])), lot.choice(classes), RECORDED[number // len(archs) % len(RECORDED)])


def make_model(firstdiff, drawn, path):
    """What an architecture refuses is left out: blocks that do not fit its rows are F32 instead, other dimensions its own."""
    for kind, shape in [(drawn.type, drawn.shape), ("F32", drawn.shape), (drawn.type, ""), ("F32", "")]:
        command = [firstdiff, "make-model", "-a", drawn.arch, "-t", kind, "-s", str(drawn.seed), *shape.split(), "-o", path]
        made = subprocess.run(command, capture_output=True, text=True)
        if made.returncode == 0:
            return
    raise RuntimeError(f"{' '.join(command)}: {made.stderr}")


def record(firstdiff, drawn, model, dump, scratch):
    """The run as its engine would have recorded it: some tensors, no word about numerics. Decoded tokens are the model's own choice."""
    whole = f"{scratch}/whole.h5"
    prompt = drawn.tokens[: len(drawn.tokens) - drawn.decoded]
    generated = drawn.decoded + 1 if drawn.decoded else 0
    subprocess.run([firstdiff, "run", model, "--tokens", ",".join(map(str, prompt)), "-n", str(generated), "-q", "-j", "1", "--no-weights",
                    "--numerics", f"emulate-{drawn.numerics}", "-o", whole], check=True, capture_output=True)
    with h5py.File(whole) as run, Writer(dump, engine="bench/clean_runs.py") as out:
        tokens = run["tokens"][:]
        names = [n for n in run["tensors"] if not any(fnmatch.fnmatch(n, glob) for glob in PROFILES[drawn.profile])]
        for step in run["steps"][:]:
            first, n = int(step[0]), int(step[1])
            out.step(tokens[first : first + n])
            for name in names:
                data = run["tensors"][name]
                rows = data[first : first + n]
                over_kv = bool(data.attrs["over_kv"])
                out.put(name, rows[..., : first + n] if over_kv else rows, over_kv=over_kv)
    os.unlink(whole)


def judge(job):
    firstdiff, drawn, keep, given = job
    asked = drawn.number, drawn.arch, drawn.type, drawn.shape, len(drawn.tokens), drawn.decoded, drawn.numerics, drawn.profile
    with tempfile.TemporaryDirectory() as scratch:
        model, dump = f"{scratch}/model.gguf", f"{scratch}/dump.h5"
        make_model(firstdiff, drawn, model)
        try:
            record(firstdiff, drawn, model, dump, scratch)
        except subprocess.CalledProcessError as failed:
            if b"found NaN" not in failed.stderr: raise RuntimeError(f"run {drawn.number}: {failed.stderr.decode()}") from failed
            return Row(*asked, "overflow", "", 0.0, "", "", "the run itself ended: its logits are NaN")
        started = time.monotonic()
        told = ["--candidate", drawn.numerics] if given else []
        done = subprocess.run([firstdiff, "check", model, dump, "--allow-missing", "*", "--json", *told], capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        seconds = time.monotonic() - started
        found = json.loads(done.stdout) if done.stdout.startswith("{") else {"status": "refused", "reasons": [done.stderr.strip()]}
        if keep and found["status"] not in ("noise", "identical"):
            os.makedirs(f"{keep}/{drawn.number}", exist_ok=True)
            for path in (model, dump):
                shutil.move(path, f"{keep}/{drawn.number}/{os.path.basename(path)}")
    replay, at = found.get("replay") or {}, found.get("divergence") or {}
    if replay.get("overflow") and found["status"] == "diverged":
        found["status"] = "overflow"  # an engine of 16 bits on random weights: it did leave its range, and firstdiff says so
    reasons = [*(found.get("reasons") or []), (found.get("explanation") or {}).get("summary") or ""]
    return Row(*asked, found["status"],
               replay.get("class") or "", round(seconds, 2), at.get("node") or "", at.get("z") or "", "; ".join(filter(None, reasons))[:300].replace("\n", " "))


def table(rows, classes):
    print("| class of the run | " + " | ".join(RECORDED) + " |\n|---|" + "---|" * len(RECORDED))
    for numerics in classes:
        cells = []
        for profile in RECORDED:
            these = [r for r in rows if (r.numerics, r.profile) == (numerics, profile)]
            counts = collections.Counter(f"{r.status} {r.cls}".strip() for r in these)
            cells.append(", ".join(f"{said} {n}" for said, n in counts.most_common()))
        print(f"| {numerics} | " + " | ".join(cells) + " |")


def draw_again(path):
    with open(path) as table:
        for row in csv.DictReader((line for line in table if not line.startswith("#")), delimiter="\t"):
            drawn = draw(int(row["number"]), [row["arch"]], [row["numerics"]])
            yield drawn._replace(profile=row["profile"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("firstdiff")
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0, help="number of the first run")
    parser.add_argument("--archs", type=lambda s: s.split(","), help="default: all that make-model knows")
    parser.add_argument("--classes", type=lambda s: s.split(","), help="default: all that are emulated")
    parser.add_argument("--again", metavar="TABLE", help="the runs of this table of --details instead: number, arch, numerics and profile count")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--keep", metavar="DIR", help="keep model and dump of every run that is not NOISE here")
    parser.add_argument("--given", action="store_true", help="tell check the class")
    parser.add_argument("--details", default=os.devnull, help="a line for each run, here")
    args = parser.parse_args()
    firstdiff = os.path.abspath(args.firstdiff)
    archs = args.archs or known(firstdiff, "make-model", "-a", "?", "-o", os.devnull)
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run([firstdiff, "make-model", "-o", f"{scratch}/m.gguf"], check=True, capture_output=True)
        classes = args.classes or known(firstdiff, "run", f"{scratch}/m.gguf", "--numerics", "emulate-?", "-t", "1", "-n", "0")
    numbers = range(args.first, args.first + args.runs)
    draws = list(draw_again(args.again)) if args.again else [draw(i, archs, classes) for i in numbers]
    rows = []
    with concurrent.futures.ProcessPoolExecutor(args.jobs) as pool, open(args.details, "w") as details:
        print(*Row._fields, sep="\t", file=details)
        for row in pool.map(judge, [(firstdiff, d, args.keep, args.given) for d in draws]):
            rows.append(row)
            print(*row, sep="\t", file=details, flush=True)
    table(rows, sorted({r.numerics for r in rows}))
    said = collections.Counter(r.status for r in rows)
    alarms = said["diverged"] + said["refused"]
    print(f"\n{len(rows)} runs of {len({r.arch for r in rows})} architectures: " + ", ".join(f"{status} {n}" for status, n in said.most_common()) + f"; false alarms: {alarms}")
    return 1 if alarms else 0


if __name__ == "__main__":
    sys.exit(main())
