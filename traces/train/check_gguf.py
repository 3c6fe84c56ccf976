#!/usr/bin/env python3
"""Read the exported GGUFs back and run them in numpy, apart from the code that trained them.

Everything but the prompt's token ids comes from the GGUF: hyperparameters, weights, vocabulary, and the RoPE pairing
that the architecture stands for. Each greedy continuation must be the one in train.py's log for the rounded weights.
"""

import argparse
import json
import sys
from pathlib import Path

import gguf
import numpy as np
import sentencepiece
import tokenizers
from gguf.quants import dequantize

NAMES = ("kjv-llama", "kjv-qwen2")
NEW_TOKENS = 24


class Gguf:
    def __init__(self, path: Path) -> None:
        reader = gguf.GGUFReader(path)
        self.fields = {name: field.contents() for name, field in reader.fields.items()}
        self.arch = self.fields["general.architecture"]
        self.tensors = {t.name: dequantize(t.data, t.tensor_type).reshape(t.shape[::-1]) for t in reader.tensors}

    def number(self, key: str) -> float:
        return self.fields[f"{self.arch}.{key}"]

    def linear(self, name: str, x: np.ndarray) -> np.ndarray:
        return x @ self.tensors[f"{name}.weight"].T + self.tensors.get(f"{name}.bias", 0)

    def norm(self, name: str, x: np.ndarray) -> np.ndarray:
        mean = (x * x).mean(-1, keepdims=True)
        eps = self.number("attention.layer_norm_rms_epsilon")
        return x / np.sqrt(mean + eps) * self.tensors[f"{name}.weight"]

    def rope(self, x: np.ndarray) -> np.ndarray:
        """x is [position, head, dim]."""
        dim = self.number("rope.dimension_count")
        angle = np.arange(len(x))[:, None] * self.number("rope.freq_base") ** (-np.arange(0, dim, 2) / dim)
        cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
        pair = {"llama": (slice(0, None, 2), slice(1, None, 2)), "qwen2": (slice(dim // 2), slice(dim // 2, None))}
        first, second = pair[self.arch]
        out = np.empty_like(x)
        out[..., first] = x[..., first] * cos - x[..., second] * sin
        out[..., second] = x[..., first] * sin + x[..., second] * cos
        return out

    def attention(self, block: str, x: np.ndarray) -> np.ndarray:
        heads, heads_kv = self.number("attention.head_count"), self.number("attention.head_count_kv")
        q = self.rope(self.linear(f"{block}.attn_q", x).reshape(len(x), heads, -1))
        k = self.rope(self.linear(f"{block}.attn_k", x).reshape(len(x), heads_kv, -1))
        v = self.linear(f"{block}.attn_v", x).reshape(len(x), heads_kv, -1)
        out = np.empty_like(q)
        for head in range(heads):
            shared = head * heads_kv // heads
            scores = q[:, head] @ k[:, shared].T / np.sqrt(q.shape[-1])
            scores[np.triu_indices(len(x), 1)] = -np.inf
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            out[:, head] = weights / weights.sum(-1, keepdims=True) @ v[:, shared]
        return self.linear(f"{block}.attn_output", out.reshape(len(x), -1))

    def logits(self, tokens: list[int]) -> np.ndarray:
        x = self.tensors["token_embd.weight"][tokens].astype(np.float64)
        for layer in range(self.number("block_count")):
            block = f"blk.{layer}"
            x = x + self.attention(block, self.norm(f"{block}.attn_norm", x))
            h = self.norm(f"{block}.ffn_norm", x)
            gate = self.linear(f"{block}.ffn_gate", h)
            x = x + self.linear(f"{block}.ffn_down", gate / (1 + np.exp(-gate)) * self.linear(f"{block}.ffn_up", h))
        x = self.norm("output_norm", x)
        return x @ self.tensors.get("output.weight", self.tensors["token_embd.weight"]).T


def continue_prompt(model: Gguf, prompt: str, folder: Path, name: str) -> str:
    if model.arch == "llama":
        processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{name}.model"))
        tokens, decode = [processor.bos_id()] + processor.encode(prompt), processor.decode
    else:
        tokenizer = tokenizers.Tokenizer.from_file(str(folder / f"{name}.json"))
        tokens, decode = tokenizer.encode(prompt).ids, tokenizer.decode
    for _ in range(NEW_TOKENS):
        tokens.append(int(model.logits(tokens)[-1].argmax()))
    return decode(tokens)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gguf", type=Path, required=True, help="folder with the two GGUFs")
    parser.add_argument("--logs", type=Path, required=True, help="folder with train.py's NAME.json")
    parser.add_argument("--tokenizers", type=Path, required=True, help="folder of train_tokenizers.py")
    args = parser.parse_args()
    failures = 0
    for name in NAMES:
        model = Gguf(args.gguf / f"{name}.gguf")
        log = json.loads((args.logs / f"{name}.json").read_text(encoding="utf-8"))
        for prompt, expected in log["rounded"]["continuations"].items():
            text = continue_prompt(model, prompt, args.tokenizers, name)
            failures += text != expected
            print(f"{name}: {'same' if text == expected else 'DIFFERS'}: {text!r}")
        biases = [t for n, t in model.tensors.items() if n.endswith(".bias")]
        print(f"{name}: {len(model.tensors)} tensors, {sum(int((abs(b) > 10).sum()) for b in biases)} biases beyond ±10")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
