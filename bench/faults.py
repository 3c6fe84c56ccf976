#!/usr/bin/env python3
"""Every fault of docs/faults.md in the first, a middle and the last layer, in candidates of several precisions: how many
`firstdiff compare --model` locates at the exact node and names, and how long a verdict takes. Prints a Markdown table.

    python3 bench/faults.py build/release/firstdiff traces/kjv-llama.gguf traces/kjv-qwen2.gguf
    python3 bench/faults.py FIRSTDIFF MODEL.gguf --classes emulate-q8 --every 8    # a sample
    python3 bench/faults.py FIRSTDIFF MODEL.gguf --by-turns    # each injection in one of the classes, a quarter of the time

Traces are one prefill of 12 tokens at the class's own numerics; the reference is cpu:exact. The exact node is the one of the
fault's row in the table or, where that says another for this model, measured: the first whose bits differ when the same
fault runs without any rounding (cpu:exact). A misread weight is located at a weight that this node reads.

Without effect in a class: that exact run, judged by the bounds of the class, has no element of any tensor beyond them.
No engine of the class could be told from a sound one by these inputs; such runs are counted, and count for nothing else. A
fault may also stay within at its node and leave the bounds later on; the exact run says where, and that is its node then.

Named means that the injected fault is the one named, or among those named together. Clean runs of every class come first:
a verdict of "diverged" on one is a false alarm, and the status is 1. So is it when a fault is given a wrong name."""
import argparse
import concurrent.futures
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOKENS = [1, 300, 45, 7, 99, 512, 23, 1024, 8, 77, 301, 5]


def faults():
    """(name, suffix of the node where it first shows, outside the layers) of each row of the tables."""
    text = (ROOT / "docs" / "faults.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\| `(\w+)`", text, re.M)
    return [(name, node, node.startswith(("token_embd", "inp_pos", "output_norm", "logits"))) for name, node in rows]


class Model:
    def __init__(self, args, path):
        self.args, self.path = args, path
        shown = subprocess.run([args.firstdiff, "model", path], capture_output=True, text=True, check=True).stdout
        self.n_layer = 1 + max(int(n) for n in re.findall(r"blk\.(\d+)\.", shown))
        n_vocab = int(re.search(r"vocabulary (\d+)", shown)[1])
        self.tokens = ",".join(str(1 + t % (n_vocab - 1)) for t in TOKENS)

    def injections(self):
        for name, suffix, outside in faults()[:: self.args.every]:
            for layer in [None] if outside else sorted({0, self.n_layer // 2, self.n_layer - 1}):
                yield (name, name, suffix) if outside else (name, f"{name}@{layer}", f"blk.{layer}.{suffix}")

    def record(self, numerics, to, fault=None):
        command = [self.args.firstdiff, "run", self.path, "--tokens", self.tokens, "-n", "0", "-q", "-j", "1",
                   "--numerics", numerics, "-o", to]
        done = subprocess.run(command + (["--fault", fault] if fault else []), capture_output=True, text=True)
        if done.returncode == 0:
            return True
        if fault and "nothing that it could change" in done.stderr:
            return False
        sys.exit(f"{' '.join(command)} --fault {fault}: {done.stderr}")

    def compare(self, reference, candidate, *options):
        done = subprocess.run([self.args.firstdiff, "compare", reference, candidate, "--json", *options],
                              capture_output=True, text=True)
        if done.returncode not in (0, 1):
            sys.exit(f"compare {options} ended with status {done.returncode}: {done.stderr}{done.stdout[:500]}")
        return json.loads(done.stdout)


def place(found):
    """The node that a verdict blames, or whose weights it blames; "" none."""
    weights = found.get("weights") or {}
    if weights.get("differ"):
        return weights["read_by"]
    return (found.get("divergence") or {}).get("node", "") if found["exit_status"] == 1 else ""


def names(found):
    weights, explanation = found.get("weights") or {}, found.get("explanation") or {}
    if weights.get("differ"):
        return [weights["name"]] + re.findall(r"\w+", weights["same_as"]) if weights["name"] else []
    return [row["name"] for row in explanation["remaining"]] if explanation.get("name") else []


class Score:
    def __init__(self):
        self.injected = self.without_effect = self.located = self.named = self.wrong = 0
        self.seconds = []

    def row(self, model, numerics, alarm):
        n = max(1, self.injected - self.without_effect)
        return (f"| {pathlib.Path(model).stem} | {numerics.removeprefix('emulate-')} | {self.injected} | {self.without_effect} | "
                f"{100 * self.located / n:.1f} % | {100 * self.named / n:.1f} % | {self.wrong} | {alarm} | "
                f"{statistics.median(self.seconds):.2f} | {max(self.seconds):.2f} |")

    def add(self, other):
        for key in ("injected", "without_effect", "located", "named", "wrong", "seconds"):
            setattr(self, key, getattr(self, key) + getattr(other, key))


def inject(model, reference, name, spec, expected, classes, scratch):
    """One fault in each of the classes: {class: outcome}, or nothing where this model gives it no hold."""
    exact, candidate = f"{scratch}/{spec}.exact.h5", f"{scratch}/{spec}.h5"
    out = {}
    for numerics in classes:
        if not model.record(numerics, candidate, spec):
            return out
        start = time.monotonic()
        found = model.compare(reference, candidate, "--model", model.path)
        seconds = time.monotonic() - start
        at, effect = place(found), True
        located = at == expected
        if not located:
            model.record("exact", exact, spec)
            node = place(model.compare(reference, exact))
            effect = node != ""  # no bit of these inputs' run depends on what the fault changes
            located = effect and at == node
        if effect and not located:
            class_ = numerics.removeprefix("emulate-")
            in_class = model.compare(reference, exact, "--model", model.path, "--candidate", class_)
            effect = in_class["status"] == "diverged"
            located = effect and at == place(in_class)
        said = names(found)
        out[numerics] = (effect, located, name in said, bool(said) and name not in said, seconds)
        if effect and (not located or name not in said):
            print(f"{pathlib.Path(model.path).stem}, {numerics}, {spec}: {at or 'nothing'}, {' = '.join(said) or 'no name'}; "
                  f"{(found.get('explanation') or {}).get('reason', '')}", file=sys.stderr, flush=True)
    for path in (exact, candidate):
        pathlib.Path(path).unlink(missing_ok=True)
    return out


def measure(model, classes, scratch, pool, total):
    reference = f"{scratch}/reference.h5"
    model.record("exact", reference)
    scores, alarms = {c: Score() for c in classes}, {}
    for numerics in classes:
        model.record(numerics, f"{scratch}/clean.h5")
        found = model.compare(reference, f"{scratch}/clean.h5", "--model", model.path)
        alarms[numerics] = int(found["exit_status"] != 0)
        if alarms[numerics]:
            print(f"false alarm: {model.path}, {numerics}: {place(found)}", file=sys.stderr)
    jobs = [pool.submit(inject, model, reference, *injection,
                        [classes[i % len(classes)]] if model.args.by_turns else classes, scratch)
            for i, injection in enumerate(model.injections())]
    for job in jobs:
        for numerics, (effect, located, named, wrong, seconds) in job.result().items():
            s = scores[numerics]
            s.injected += 1
            s.without_effect += not effect
            s.located += located
            s.named += named and effect
            s.wrong += wrong
            s.seconds.append(seconds)
    for numerics in classes:
        if not scores[numerics].injected:
            sys.exit(f"{model.path}: no fault could be injected")
        print(scores[numerics].row(model.path, numerics, alarms[numerics]), flush=True)
        total.add(scores[numerics])
    return sum(alarms.values())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("firstdiff")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--classes", default="emulate-f32,emulate-f16,emulate-bf16,emulate-llama-cpu")
    parser.add_argument("--every", type=int, default=1, help="only every Nth fault")
    parser.add_argument("--by-turns", action="store_true", help="each injection in one of the classes, by turns")
    parser.add_argument("--jobs", type=int, default=1, help="verdicts at a time (default 1, for timings)")
    args = parser.parse_args()
    print("| model | class | injected | without effect | located | named | wrong names | false alarms when clean | "
          "seconds a verdict, median | largest |\n|---|---|---|---|---|---|---|---|---|---|")
    alarms, total, classes = 0, Score(), args.classes.split(",")
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for path in args.models:
            with tempfile.TemporaryDirectory() as scratch:
                alarms += measure(Model(args, path), classes, scratch, pool, total)
    print(total.row("all", "all", alarms))
    return 1 if alarms or total.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
