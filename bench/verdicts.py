#!/usr/bin/env python3
"""What `firstdiff compare --model` says about an engine that is not ours: the one of examples/numpy, sound and with each of
its bugs, in every layer and in one, by what is recorded. The class is never given. Prints Markdown tables.

    python3 bench/verdicts.py build/release/firstdiff traces/kjv-llama.gguf traces/kjv-qwen2.gguf
    python3 bench/verdicts.py FIRSTDIFF MODEL.gguf --bugs eps --profiles all --details details.tsv

Needs numpy, h5py and xxhash. With effect are bugs that move the logits by more than 2e-6 of their root mean square, ten
times what an order of summation does. Where a bug is, is measured: the first tensor whose bits differ between the sound and the
buggy run of this engine; located is a verdict at the first recorded tensor that is computed from it. Of the others, NOISE are those
that pass for sound (exit 0), cannot tell those with status 3, elsewhere those blamed on another tensor. A name is wrong that
the bug's row does not list. Clean runs follow: every numerics of the engine, every profile, and a verdict of "diverged" is a false
alarm. The status is 1 with a NOISE, a wrong name or a false alarm."""
import argparse
import collections
import concurrent.futures
import fnmatch
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "examples" / "numpy"), str(ROOT / "dumpers" / "python" / "src")]

import h5py
import numpy as np
from bugs import install, table
from engine import Engine

from firstdiff.trace import Writer

TOKENS = [1, 300, 45, 7, 99, 512, 23, 1024, 8, 77, 301, 5, 64, 700, 12, 9]
DECODED = 4
ATTENTION = ["*attn_scores", "*attn_weights", "*cache_*"]
PROFILES = {  # what is not recorded
    "all": [],
    "partial": [*ATTENTION, "*ffn_gate", "*ffn_up"],
    "fused": [*ATTENTION, "*attn_?_rope", "*ffn_gate", "*ffn_up", "*ffn_act"],
    "layers": ["*.attn*", "*.cache*", "*.ffn*", "output_norm", "token_embd"],
    "logits": ["[!l]*", "*.*"],
}
NUMERICS = ["f32", "f16kv", "f16", "bf16", "q8", "hf-f16", "hf-bf16", "hf-bf16-f32-norm"]
OUTCOMES = ["located", "NOISE", "cannot tell", "elsewhere", "named", "wrong name"]
lock = threading.Lock()  # HDF5's


def run(model, numerics="f32", bug=None, trace=None):
    """{tensor: rows}; None where the model gives the bug no hold."""
    rows = {}
    engine = Engine(model, lambda name, x: rows.setdefault(name, []).append(np.array(x)), numerics)
    if bug and not install(engine, bug):
        return None
    prefill = len(TOKENS) - DECODED
    with np.errstate(all="ignore"):
        for step in [TOKENS[:prefill]] + [[t] for t in TOKENS[prefill:]]:
            engine.forward(step)
    if trace:
        with lock, Writer(trace, engine="NumPy") as to:
            for i, step in enumerate([TOKENS[:prefill]] + [[t] for t in TOKENS[prefill:]]):
                to.step(step)
                for name in rows:
                    to.put(name, rows[name][i])
    return rows


def visible(name, rows):
    """Without the keys that come after a token's own, which no trace shows."""
    if not name.endswith(("attn_scores", "attn_weights")):
        return rows
    n_kv = rows.shape[-1]
    own = np.arange(n_kv - len(rows), n_kv)[:, None, None]
    return np.where(np.arange(n_kv) <= own, rows, 0)


def first_that_differs(sound, buggy):
    for name in sound:
        for a, b in zip(sound[name], buggy[name]):
            if not np.array_equal(visible(name, a), visible(name, b), equal_nan=True):
                return name
    return None


def effect(sound, buggy):
    a, b = (np.concatenate(rows["logits"]) for rows in (sound, buggy))
    return float(np.sqrt(np.mean((a - b) ** 2) / np.mean(a**2)))


class Model:
    def __init__(self, firstdiff, path, scratch):
        self.firstdiff, self.path, self.scratch = firstdiff, path, scratch
        self.name = pathlib.Path(path).stem
        self.reference = f"{scratch}/reference.h5"
        subprocess.run([firstdiff, "run", path, "--tokens", ",".join(map(str, TOKENS)), "-n", "0", "-q", "-o", self.reference], check=True)
        with h5py.File(self.reference) as f:
            graph = f["graph"][:]
        text = lambda x: x.decode() if isinstance(x, bytes) else x
        self.nodes = [text(n["name"]) for n in graph]
        self.inputs = {text(n["name"]): {text(n["input0"]), text(n["input1"])} for n in graph}
        self.n_layer = 1 + max(int(n) for name in self.nodes for n in re.findall(r"^blk\.(\d+)\.", name))

    def profile(self, trace, globs):
        to = f"{trace}.{len(globs)}.h5"
        with lock:
            shutil.copyfile(trace, to)
            with h5py.File(to, "a") as f:
                for name in list(f["tensors"]):
                    if any(fnmatch.fnmatch(name, g) for g in globs):
                        del f["tensors"][name]
        return to

    def expected(self, first, globs):
        """The first recorded tensor that `first` shows in."""
        touched = set()
        for name in self.nodes:
            if name == first or touched & self.inputs[name]:
                touched.add(name)
                if not any(fnmatch.fnmatch(name, g) for g in globs):
                    return name
        return None

    def compare(self, trace, globs):
        allowed = [word for g in globs for word in ("--allow-missing", g)]
        done = subprocess.run([self.firstdiff, "compare", self.reference, trace, "--model", self.path, "--json", *allowed],
                              capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        if done.returncode not in (0, 1, 3):
            sys.exit(f"compare {trace} ended with status {done.returncode}: {done.stderr}")
        return json.loads(done.stdout)

    def judge(self, spec, bug, numerics, profiles):
        """[(profile, verdict, where the bug is, effect)] of one run."""
        trace = f"{self.scratch}/{spec or 'clean'}.{numerics}.h5"
        rows = run(self.path, numerics, spec, trace)
        if rows is None:
            return []
        out, sound = [], self.sound[numerics] if bug else None
        first = first_that_differs(sound, rows) if bug else None
        moved = effect(sound, rows) if bug else 0
        for name in profiles:
            cut = self.profile(trace, PROFILES[name])
            out.append((name, self.compare(cut, PROFILES[name]), first and self.expected(first, PROFILES[name]), moved))
            pathlib.Path(cut).unlink()
        pathlib.Path(trace).unlink()
        return out


def outcome(bug, found, expected):
    """The columns that count, the blamed tensor and the names."""
    at = (found.get("divergence") or {}).get("node", "") if found["exit_status"] == 1 else ""
    explanation = found.get("explanation") or {}
    names = [row["name"] for row in explanation["remaining"]] if explanation.get("name") else []
    told = {0: "NOISE", 3: "cannot tell"}.get(found["exit_status"], "located" if at == expected else "elsewhere")
    counts = [told]
    if names:
        counts.append("named" if set(names) & set(bug.names) else "wrong name")
    return counts, at, names


def measure(args, model, pool, totals, details):
    specs = [s for name in table if re.search(args.bugs, name)
             for s in ([name] if table[name].node in ("token_embd", "output_norm", "logits") else [name, f"{name}@2"])]
    jobs = {}
    for spec in specs[:: args.every]:
        bug = table[spec.split("@")[0]]
        if bug.numerics == "q8" and "llama" not in model.name:
            continue
        jobs[spec] = pool.submit(model.judge, spec, bug, bug.numerics, args.profiles)
    for spec, job in jobs.items():
        bug = table[spec.split("@")[0]]
        for profile, found, expected, moved in job.result():
            if not moved > 2e-6 or expected is None:
                continue
            counts, at, names = outcome(bug, found, expected)
            replay = found.get("replay") or {}
            totals[profile]["bugs"] += 1
            for c in counts:
                totals[profile][c] += 1
            totals[profile]["has a name"] += bool(bug.names)
            print(model.name, spec, profile, f"{moved:.1e}", counts[0], f"expected {expected}", f"at {at}", f"class {replay.get('class')} {replay.get('class_source')}",
                  "=".join(names), "WRONG" if "wrong name" in counts else "", "; ".join(found["reasons"])[:200], sep="\t", file=details, flush=True)


def measure_clean(args, model, pool, clean, details):
    jobs = [(n, pool.submit(model.judge, None, None, n, args.profiles)) for n in NUMERICS if n != "q8" or "llama" in model.name]
    for numerics, job in jobs:
        for profile, found, _, _ in job.result():
            clean[numerics, profile][found["status"] + " " + found["replay"]["class"]] += 1
            if found["exit_status"]:
                print(model.name, f"clean {numerics}", profile, "", found["status"], "", f"at {(found.get('divergence') or {}).get('node', '')}",
                      f"class {found['replay']['class']}", "", "", "; ".join(found["reasons"])[:200], sep="\t", file=details, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("firstdiff")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--bugs", default="", help="only those whose name this pattern finds")
    parser.add_argument("--every", type=int, default=1, help="only every Nth bug")
    parser.add_argument("--profiles", default=",".join(PROFILES), type=lambda s: s.split(","))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--details", help="a line for each verdict, here")
    args = parser.parse_args()
    args.profiles = args.profiles if isinstance(args.profiles, list) else args.profiles.split(",")
    totals, clean = collections.defaultdict(collections.Counter), collections.defaultdict(collections.Counter)
    details = open(args.details, "w") if args.details else open("/dev/null", "w")
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool, details:
        for path in args.models:
            with tempfile.TemporaryDirectory() as scratch:
                model = Model(args.firstdiff, path, scratch)
                model.sound = {n: run(path, n) for n in ("f32", "q8")}
                measure_clean(args, model, pool, clean, details)
                measure(args, model, pool, totals, details)
    print("| recorded | bugs with effect | " + " | ".join(OUTCOMES) + " | of those with a row |\n|---|" + "---|" * (len(OUTCOMES) + 2))
    for profile in args.profiles:
        t = totals[profile]
        print(f"| {profile} | {t['bugs']} | " + " | ".join(str(t[o]) for o in OUTCOMES) + f" | {t['has a name']} |")
    print("\n| sound engine | " + " | ".join(args.profiles) + " |\n|---|" + "---|" * len(args.profiles))
    for numerics in NUMERICS:
        print(f"| {numerics} | " + " | ".join(", ".join(f"{k} {n}" for k, n in clean[numerics, p].items()) for p in args.profiles) + " |")
    bad = sum(t["NOISE"] + t["wrong name"] for t in totals.values())
    alarms = sum(n for c in clean.values() for k, n in c.items() if k.startswith("diverged"))
    print(f"\nfalse alarms: {alarms}")
    return 1 if bad or alarms else 0


if __name__ == "__main__":
    sys.exit(main())
