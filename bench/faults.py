#!/usr/bin/env python3
"""Every fault of docs/faults.md in the first, a middle and the last layer, in candidates of several precisions: how many
`firstdiff compare --model` locates at the exact node and names, and how long a verdict takes. Prints a Markdown table.

    python3 bench/faults.py build/release/firstdiff traces/kjv-llama.gguf traces/kjv-qwen2.gguf
    python3 bench/faults.py FIRSTDIFF MODEL.gguf --classes emulate-q8 --every 8    # a sample

Traces are one prefill of 12 tokens, at the class's own numerics; the reference is cpu:exact. Located means that the
verdict's node is the one of the fault's row; a fault that the verdict does not report at all counts as not located.
Clean runs of every class come first: a verdict of "diverged" on one is a false alarm, and the status is 1. So is it when
a fault is given a wrong name. Faults that do the same at the judged node are named together; the injected one must be among
them."""
import argparse
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOKENS = "1,300,45,7,99,512,23,1024,8,77,301,5"


def faults():
    """(name, suffix of the node where it first shows) of each row of the tables."""
    text = (ROOT / "docs" / "faults.md").read_text()
    return re.findall(r"^\| `(\w+)` \|[^|]*\| `(\w+)`", text, re.M)


def record(args, model, numerics, to, fault=None):
    command = [args.firstdiff, "run", model, "--tokens", TOKENS, "-n", "0", "-q", "--numerics", numerics, "-o", to]
    done = subprocess.run(command + (["--fault", fault] if fault else []), capture_output=True, text=True)
    if done.returncode == 0:
        return True
    if fault and "nothing that it could change" in done.stderr:
        return False
    sys.exit(f"{' '.join(command)}: {done.stderr}")


def verdict(args, model, reference, candidate):
    start = time.monotonic()
    done = subprocess.run([args.firstdiff, "compare", reference, candidate, "--model", model, "--json"],
                          capture_output=True, text=True)
    seconds = time.monotonic() - start
    if done.returncode not in (0, 1):
        sys.exit(f"compare ended with status {done.returncode}: {done.stderr}{done.stdout[:500]}")
    found = json.loads(done.stdout)
    node = (found.get("divergence") or {}).get("node", "") if done.returncode == 1 else ""
    explanation = found.get("explanation") or {}
    return node, [row["name"] for row in explanation["remaining"]] if explanation.get("name") else [], seconds


def injections(n_layer, rows):
    """(name, spec, expected node). A fault that sits outside the layers takes no layer."""
    for name, suffix in rows:
        if suffix in ("token_embd", "output_norm", "logits"):
            yield name, name, suffix
        else:
            for layer in sorted({0, n_layer // 2, n_layer - 1}):
                yield name, f"{name}@{layer}", f"blk.{layer}.{suffix}"


def measure(args, model, n_layer, numerics, scratch):
    reference, candidate = f"{scratch}/reference.h5", f"{scratch}/candidate.h5"
    record(args, model, "exact", reference)
    record(args, model, numerics, candidate)
    alarm = verdict(args, model, reference, candidate)[0]
    if alarm:
        print(f"false alarm: {model}, {numerics}: {alarm}", file=sys.stderr)
    located, named, wrong, seconds = 0, 0, 0, []
    for name, spec, expected in injections(n_layer, faults()[:: args.every]):
        if not record(args, model, numerics, candidate, spec):
            continue
        node, said, took = verdict(args, model, reference, candidate)
        seconds.append(took)
        located += node == expected
        named += name in said
        wrong += bool(said) and name not in said
        if node != expected or (said and name not in said):
            print(f"{model}, {numerics}, {spec}: {node or 'nothing'}, {' = '.join(said) or 'no name'}", file=sys.stderr)
    if not seconds:
        sys.exit(f"{model}: no fault could be injected")
    n = len(seconds)
    print(f"| {pathlib.Path(model).name} | {numerics} | {n} | {100 * located / n:.1f} % | {100 * named / n:.1f} % | {wrong} | "
          f"{'yes' if alarm else 'no'} | {statistics.median(seconds):.2f} | {max(seconds):.2f} |", flush=True)
    return not alarm and not wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("firstdiff")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--classes", default="exact,emulate-f32,emulate-f16,emulate-q8")
    parser.add_argument("--every", type=int, default=1, help="only every Nth fault")
    args = parser.parse_args()
    print(f"`python3 {' '.join(sys.argv)}`\n\n| model | candidate | injected | located | named | wrong names | false alarm "
          "when clean | seconds a verdict, median | largest |\n|---|---|---|---|---|---|---|---|---|")
    good = True
    for model in args.models:
        shown = subprocess.run([args.firstdiff, "model", model], capture_output=True, text=True, check=True).stdout
        n_layer = 1 + max(int(n) for n in re.findall(r"blk\.(\d+)\.", shown))
        with tempfile.TemporaryDirectory() as scratch:
            for numerics in args.classes.split(","):
                good &= measure(args, model, n_layer, numerics, scratch)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
