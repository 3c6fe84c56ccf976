#!/usr/bin/env python3
"""What `firstdiff compare --model` says about llama.cpp's CPU backend, sound and with the bugs of bugs/table.h in its ops: in every
layer, in layer 2, in decode alone. Nothing tells compare the class (--given does). Prints Markdown tables.

    python3 bench/llama_cpp/build.py BUILT                        # once, 3 minutes
    python3 bench/llama_cpp/score.py build/release/firstdiff traces/kjv-llama.gguf traces/kjv-qwen2.gguf --built BUILT --keep TRACES

Profile "all" is what llama.cpp's callback gives: all but V's cache. Needs numpy, h5py, xxhash, gguf, and what llama-cpp-python asks for
(diskcache, jinja2, typing_extensions). Sound runs: both models in F32, F16, Q8_0 and Q4_K, K/V in f16 and f32, flash attention,
one and two threads, batches of all and of 5, four prompts.
The status is 1 with a NOISE, a wrong name or a false alarm. docs/scoreboard.md has the words."""

import functools
import os
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import scoring
from names import table
from build import environment
from scoring import Case

FILE_TYPES = {"F32": 0, "F16": 1, "Q8_0": 7, "Q4_K": 14}  # enum llama_ftype
CLASSES = {  # by the weights' type and the cache's
    ("F32", "f32"): "f32", ("F32", "f16"): "f16kv", ("F16", "f32"): "ggml-cpu-f32kv", ("F16", "f16"): "ggml-cpu",
    ("Q8_0", "f32"): "ggml-cpu-f32kv", ("Q8_0", "f16"): "ggml-cpu", ("Q4_K", "f32"): "ggml-cpu-f32kv", ("Q4_K", "f16"): "ggml-cpu",
}


def prompt(seed, n):
    import numpy as np

    return [1, *(int(t) for t in np.random.default_rng(seed).integers(3, 2000, n - 1))]


class LlamaCpp(scoring.Engine):
    map = "llama.cpp"
    tokens = [*scoring.Engine.tokens, prompt(1, 13), prompt(2, 24), prompt(3, 9)]

    reordered = "sound-kv-f16-reordered.0"

    def __init__(self):
        self.built = None

    def add_arguments(self, parser):
        parser.add_argument("--built", required=True, help="the folder of build.py")

    def tokens_of(self, model):
        return [[t % file_of(model)[1] for t in tokens] for tokens in self.tokens]

    def cases(self, model, args):
        self.built = str(pathlib.Path(args.built).resolve())
        held = str(file_of(model.path)[0])
        out = []
        for flash in (False, True):
            for kv in ("f16", "f32"):
                if flash and kv == "f32":
                    continue
                for i in range(len(self.tokens)):
                    for threads, batch in ((1, 512), (2, 5)) if i < 2 else ((1, 512),):
                        label = f"sound-kv-{kv}{'-flash' if flash else ''}{'-batch-5' if batch == 5 else ''}.{i}"
                        numerics = "ggml-cpu-fa" if flash else CLASSES[held, kv]
                        out.append(Case(label, i, "", (), numerics, ("", kv, flash, threads, batch)))
        for kv in ("f16", "f32"):
            out += [Case(f"sound-kv-{kv}-reordered.{i}", i, "", (), CLASSES[held, kv], ("sums-reordered", kv, False, 1, 512)) for i in range(len(self.tokens))]
        for name, bug in table.items():
            if bug.q8 and held != "Q8_0":
                continue
            specs = [name] + ([f"{name}@{bug.where}"] if bug.where else []) + ([f"{name}+decode"] if bug.decode else [])
            for spec in specs:
                out.append(Case(spec, 0, f"sound-kv-{bug.kv}.0", bug.names, CLASSES[held, bug.kv], (spec, bug.kv, False, 1, 512)))
        return out

    def record(self, model, case, path):
        os.environ.update(LLAMA_CPP_LIB_PATH=environment(self.built)["LLAMA_CPP_LIB_PATH"])
        sys.path.insert(0, environment(self.built)["PYTHONPATH"].split(os.pathsep)[0])
        spec, kv, flash, threads, batch = case.run
        os.environ["FD_BUG"] = spec
        import llama_cpp

        from firstdiff.llama_cpp import Settings, record

        llama_cpp._logger.set_verbose(False)
        tokens = self.tokens_of(model)[case.tokens]
        settings = Settings(kv, flash, threads, batch)
        record(model, tokens, path, prefill=len(tokens) - self.decoded, settings=settings, numerics="unknown")
        return True


@functools.cache
def file_of(model):
    """The type of a model's matrices, and its vocabulary's size."""
    from gguf import GGUFReader

    tensors = {t.name: t for t in GGUFReader(model).tensors}
    return tensors["blk.0.attn_q.weight"].tensor_type.name, int(tensors["token_embd.weight"].shape[1])


if __name__ == "__main__":
    sys.exit(scoring.main(LlamaCpp(), __doc__))
