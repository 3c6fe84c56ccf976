"""A model while a bug of bugs.py is in it."""

import contextlib
import sys
from unittest import mock

PLAIN = {"llama", "mistral", "ministral3", "qwen2", "qwen3", "seed_oss", "smollm3", "ernie4_5", "hunyuan_v1_dense"}  # two norms and two branches a layer, no factors


def only(holds):
    """Of other models this would be another bug, or two."""
    if not holds:
        raise LookupError("no such place")


class Patch(contextlib.ExitStack):
    def __init__(self, model, layer):
        super().__init__()
        self.model = model
        layers = model.model.layers if hasattr(model, "model") else []
        self.layers = [l for i, l in enumerate(layers) if layer is None or i == layer]
        self.all = layer is None
        self.module = sys.modules[type(model).__module__]

    def replace(self, owner, name, make):
        """`owner`.`name` becomes make(what it was)."""
        self.enter_context(mock.patch.object(owner, name, make(getattr(owner, name))))

    def norms(self):
        only(not type(self.model).__name__.startswith("Gemma"))  # which multiplies by 1 + w
        found = [n for l in self.layers for n in (l.input_layernorm, l.post_attention_layernorm)]
        return found + ([self.model.model.norm] if self.all else [])
