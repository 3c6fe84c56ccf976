#!/usr/bin/env python3
"""What `firstdiff compare --model` says about an engine that is not ours: the one of examples/numpy, sound and with each of
its bugs, in every layer and in one, by what is recorded. The class is never given, but with --given. Prints Markdown tables.

    python3 bench/verdicts.py build/release/firstdiff traces/kjv-llama.gguf traces/kjv-qwen2.gguf --keep TRACES
    python3 bench/verdicts.py FIRSTDIFF MODEL.gguf --bugs eps --profiles all --details details.tsv

Needs numpy, h5py and xxhash. With effect are bugs that move the logits by more than 2e-6 of their root mean square, ten
times what an order of summation does. Where a bug is, is measured (bench/scoring.py); of the bugs that are not located, NOISE are those
that pass for sound (exit 0), cannot tell those with status 3, elsewhere those blamed on another tensor. A name is wrong that
the bug's row does not list. Sound runs follow: every numerics of the engine, every profile, and a verdict of "diverged" is a false
alarm. The status is 1 with a NOISE, a wrong name or a false alarm. With --keep, traces are made once: 2 minutes a model on two cores; the
verdicts of all profiles take most of the time, about a second each."""

import sys

import numpy as np
import scoring
from scoring import ROOT, Case

sys.path[:0] = [str(ROOT / "examples" / "numpy")]

from bugs import OUTSIDE, install, table
from engine import Engine

from firstdiff.trace import Writer

# The classes that firstdiff has for them; "" where it has none.
NUMERICS = {"f32": "f32", "f16kv": "f16kv", "f16": "f16", "bf16": "bf16", "q8": "q8", "hf-f16": "hf-f16", "hf-bf16": "hf-bf16", "hf-bf16-f32-norm": ""}


class NumPy(scoring.Engine):
    def cases(self, model, args):
        known = {n: cls for n, cls in NUMERICS.items() if n != "q8" or "llama" in model.name}
        out = [Case(f"sound-{n}.0", 0, "", (), cls, (None, n)) for n, cls in known.items()]
        for name, bug in table.items():
            if bug.numerics not in known:
                continue
            for spec in [name] if bug.node in OUTSIDE else [name, f"{name}@2"]:
                out.append(Case(spec, 0, f"sound-{bug.numerics}.0", tuple(bug.names), known[bug.numerics], (spec, bug.numerics)))
        return out

    def record(self, model, case, path):
        spec, numerics = case.run
        with np.errstate(all="ignore"), Writer(path, model=model, engine="NumPy") as trace:
            engine = Engine(model, lambda name, x: trace.put(name, x), numerics)
            if spec and not install(engine, spec):
                return False
            tokens = self.tokens[case.tokens]
            prefill = len(tokens) - self.decoded
            for step in [tokens[:prefill]] + [[t] for t in tokens[prefill:]]:
                trace.step(step)
                engine.forward(step)
            for name, rows in engine.weights.items():
                if rows is not None:  # a bias that the model has not
                    trace.weight(name, rows)
        return True


if __name__ == "__main__":
    sys.exit(scoring.main(NumPy(), __doc__))
