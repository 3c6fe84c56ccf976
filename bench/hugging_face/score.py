#!/usr/bin/env python3
"""What `firstdiff compare --model` says about Hugging Face transformers, sound in float32, float16 and bfloat16, eager and sdpa, and
with the bugs of bugs.py: in every layer and in layer 2, in float32 and bfloat16. Nothing tells compare the class (--given does).

    python3 bench/hugging_face/score.py build/release/firstdiff traces/kjv-llama.gguf traces/kjv-qwen2.gguf --keep TRACES
    firstdiff make-model --arch gemma2 -o gemma2.gguf && python3 bench/hugging_face/score.py build/release/firstdiff gemma2.gguf

Any architecture of models.py; of a bug that has no place in it there is no run. Needs torch, transformers, gguf and accelerate. The status is 1 with a NOISE, a wrong name or a false alarm."""

import functools
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import scoring
from scoring import Case

DTYPES = {"float32": "f32", "float16": "hf-f16", "bfloat16": "hf-bf16"}


class Transformers(scoring.Engine):
    map = "transformers"
    tokens = [*scoring.Engine.tokens, [1, 403, 407, 261, 378, 432, 383, 286, 261, 376, 298, 315, 421], [1, 7, 1500, 900, 33, 260, 1999, 4, 77]]

    def tokens_of(self, model):
        return [[t % vocabulary(model) for t in tokens] for tokens in self.tokens]

    def cases(self, model, args):
        from bugs import table

        out = []
        for dtype, cls in DTYPES.items():
            for attention in ("eager", "sdpa"):
                numerics = cls + ("-fa" if attention == "sdpa" and dtype != "float32" else "")
                out += [Case(f"sound-{dtype}-{attention}.{i}", i, "", (), numerics, ("", None, dtype, attention)) for i in range(len(self.tokens))]
        for name, bug in table.items():
            for layer in (None, 2) if bug.layered else (None,):
                for dtype in ("float32", "bfloat16"):
                    label = name + ("" if layer is None else f"@{layer}") + ("" if dtype == "float32" else "+bf16")
                    out.append(Case(label, 0, f"sound-{dtype}-eager.0", bug.names, DTYPES[dtype], (name, layer, dtype, "eager")))
        return out

    def record(self, model, case, path):
        import models
        import torch
        from bugs import table
        from patch import Patch

        import firstdiff.transformers as adapter

        torch.set_num_threads(1)
        name, layer, dtype, attention = case.run
        tokens = self.tokens_of(model)[case.tokens]
        try:
            loaded = models.build(model, dtype, attention)
        except ValueError as error:
            if "does not support an attention implementation" in str(error):
                return False
            raise
        try:
            with Patch(loaded, layer) as patch:
                if name:
                    table[name].install(patch)
                patch.replace(adapter, "load", lambda _: lambda *args: loaded)
                adapter.record(model, tokens, path, prefill=len(tokens) - self.decoded, dtype=dtype, attention=attention)
        except (LookupError, AttributeError):
            if not name:
                raise
            return False
        return True


@functools.cache
def vocabulary(model):
    from gguf import GGUFReader

    return next(int(t.shape[1]) for t in GGUFReader(model).tensors if t.name == "token_embd.weight")


if __name__ == "__main__":
    sys.exit(scoring.main(Transformers(), __doc__))
