"""A language model in NumPy, float32 with a K/V cache: llama and qwen2. Every step of the forward pass is a method of its
own, so that bugs.py can replace one, as a buggy engine has it.

    python3 engine.py MODEL.gguf TRACE.h5 --tokens 1,300,45 --decode 4 [--bug NAME[@LAYER]] [--numerics f32]

Each tensor goes to `record(name, rows)`, where rows is [n_tokens, …], as soon as it is computed. The weights that were
used stand in `weights`."""

import argparse
import sys

import numpy as np

from gguf import Gguf

f32 = np.float32


def to_bf16(x):
    """Rounded to bfloat16, to nearest even."""
    bits = np.asarray(x, f32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(f32)


def to_f16(x):
    return np.asarray(x, f32).astype(np.float16).astype(f32)


def to_int8_blocks(x, whole=127.0, snap=np.rint):
    """As blocks of 32 int8 with a float16 scale; `whole` is what the largest becomes."""
    blocks = np.asarray(x, f32).reshape(*x.shape[:-1], -1, 32)
    step = np.abs(blocks).max(-1, keepdims=True) / f32(whole)
    q = snap(blocks / np.where(step > 0, step, 1))
    return (np.clip(q, -128, 127).astype(f32) * to_f16(step)).reshape(x.shape)


def as_is(x):
    return x


class Engine:
    """`numerics` says where it rounds: f32 nowhere; f16, bf16, q8: factors of products; f16kv: the K/V cache;
    hf-f16, hf-bf16: every tensor; hf-bf16-f32-norm: every tensor but what norms give."""

    def __init__(self, path, record=lambda name, rows: None, numerics="f32"):
        gguf = Gguf(path)
        arch = gguf.values["general.architecture"]
        if arch not in ("llama", "qwen2"):
            raise SystemExit(f"{path}: architecture {arch}, expected llama or qwen2")
        get = lambda key, default=None: gguf.values.get(f"{arch}.{key}", default)
        self.n_layer, self.n_embd = get("block_count"), get("embedding_length")
        self.n_head = get("attention.head_count")
        self.n_head_kv = get("attention.head_count_kv", self.n_head)
        self.head_dim = get("attention.key_length", self.n_embd // self.n_head)
        self.eps = f32(get("attention.layer_norm_rms_epsilon"))
        self.rope_base = get("rope.freq_base", 10000.0)
        self.rope_halves = arch == "qwen2"  # llama rotates neighbours
        self.scale = f32(1 / np.sqrt(self.head_dim))
        self.softcap = 0.0
        self.tensor, self.record, self.layer, self.pos = gguf.tensor, record, -1, np.zeros(0, int)
        self.weights = {}
        kinds = {"f16": to_f16, "bf16": to_bf16, "hf-f16": to_f16, "hf-bf16": to_bf16, "hf-bf16-f32-norm": to_bf16}
        self.numerics = numerics
        self.as_factor = to_int8_blocks if numerics == "q8" else kinds.get(numerics, as_is)
        self.as_weight = as_is if numerics == "q8" else self.as_factor
        self.as_attention = as_is if numerics == "q8" else self.as_factor
        self.as_tensor = kinds[numerics] if numerics.startswith("hf-") else as_is
        self.as_norm = as_is if numerics.endswith("f32-norm") else self.as_tensor
        self.as_cached = to_f16 if numerics in ("f16kv", "f16") else kinds.get(numerics, as_is)
        self.cache_k = [np.zeros((0, self.n_head_kv, self.head_dim), f32)] * self.n_layer
        self.cache_v = list(self.cache_k)

    # ---- the parts ----

    def load(self, name):
        return self.tensor(name)

    def weight(self, name):
        if name not in self.weights:
            self.weights[name] = self.load(name)
        return self.weights[name]

    def put(self, name, rows):
        self.record(f"blk.{self.layer}.{name}" if self.layer >= 0 else name, rows)
        return rows

    def embed(self, tokens):
        return self.as_tensor(self.weight("token_embd.weight")[tokens])

    def norm(self, x, weight):
        mean = np.mean(x * x, axis=-1, keepdims=True, dtype=f32)
        return self.as_norm(x / np.sqrt(mean + self.eps) * self.weight(weight))

    def product(self, x, w):
        return self.as_factor(x) @ self.as_weight(w).T

    def linear(self, x, name):
        y, bias = self.product(x, self.weight(name + ".weight")), self.weight(name + ".bias")
        return self.as_tensor(y if bias is None else y + bias)

    def project(self, x, part):
        return self.linear(x, f"blk.{self.layer}.{part}")

    def heads(self, x):
        return x.reshape(len(x), -1, self.head_dim)

    def positions(self, which):
        """Of the rows at hand; `which` is "q" or "k"."""
        return self.pos

    def angles(self, which):
        frequency = self.rope_base ** (-np.arange(0, self.head_dim, 2) / self.head_dim)
        angle = self.positions(which)[:, None] * frequency
        return np.cos(angle).astype(f32)[:, None], np.sin(angle).astype(f32)[:, None]

    def rotate(self, x, which):
        cos, sin = (self.as_tensor(t) for t in self.angles(which))
        half, out = self.head_dim // 2, np.empty_like(x)
        a, b = (slice(0, half), slice(half, None)) if self.rope_halves else (slice(0, None, 2), slice(1, None, 2))
        out[..., a] = x[..., a] * cos - x[..., b] * sin
        out[..., b] = x[..., a] * sin + x[..., b] * cos
        return self.as_tensor(out)

    def remember(self, k, v):
        """Appends rows to the cache of this layer."""
        self.cache_k[self.layer] = np.concatenate([self.cache_k[self.layer], self.as_cached(k)])
        self.cache_v[self.layer] = np.concatenate([self.cache_v[self.layer], self.as_cached(v)])

    def keys(self):
        return self.cache_k[self.layer]

    def values(self):
        return self.cache_v[self.layer]

    def kv_head(self, head):
        return head // (self.n_head // self.n_head_kv)

    def visible(self, n_kv):
        """[n_tokens, n_kv]: who sees whom."""
        return np.arange(n_kv)[None, :] <= self.pos[:, None]

    def scores(self, q, k):
        k = k[:, [self.kv_head(h) for h in range(self.n_head)]]
        s = np.einsum("qhd,khd->hqk", self.as_attention(q), self.as_attention(k)) * self.scale
        if self.softcap:
            s = np.tanh(s / self.softcap) * self.softcap
        return self.as_tensor(s.astype(f32))

    def softmax(self, s):
        e = np.exp(s - s.max(-1, keepdims=True))
        return self.as_tensor(e / e.sum(-1, keepdims=True))

    def mix(self, p, v):
        v = v[:, [self.kv_head(h) for h in range(self.n_head)]]
        return self.as_tensor(np.einsum("hqk,khd->qhd", self.as_attention(p), self.as_attention(v)).astype(f32))

    def activate(self, gate, up):
        return self.as_tensor(self.as_tensor(gate / (1 + np.exp(-gate))) * up)

    def add(self, stream, branch):
        return self.as_tensor(stream + branch)

    # ---- the whole ----

    def attention(self, x):
        q = self.put("attn_q", self.heads(self.project(x, "attn_q")))
        k = self.put("attn_k", self.heads(self.project(x, "attn_k")))
        v = self.put("attn_v", self.heads(self.project(x, "attn_v")))
        q = self.put("attn_q_rope", self.rotate(q, "q"))
        k = self.put("attn_k_rope", self.rotate(k, "k"))
        self.remember(k, v)
        keys, values = self.keys(), self.values()
        self.put("cache_k", keys[-len(x) :])
        self.put("cache_v", values[-len(x) :])
        s = np.where(self.visible(len(keys)), self.scores(q, keys), f32(-np.inf))
        self.put("attn_scores", s.transpose(1, 0, 2))
        p = self.softmax(s)
        self.put("attn_weights", p.transpose(1, 0, 2))
        out = self.put("attn_out", self.mix(p, values))
        return self.put("attn_proj", self.project(out.reshape(len(x), -1), "attn_output"))

    def block(self, x):
        name = f"blk.{self.layer}."
        normed = self.put("attn_norm", self.norm(x, name + "attn_norm.weight"))
        x = self.put("ffn_inp", self.add(x, self.attention(normed)))
        normed = self.put("ffn_norm", self.norm(x, name + "ffn_norm.weight"))
        gate = self.put("ffn_gate", self.project(normed, "ffn_gate"))
        up = self.put("ffn_up", self.project(normed, "ffn_up"))
        act = self.put("ffn_act", self.activate(gate, up))
        return self.put("l_out", self.add(x, self.put("ffn_down", self.project(act, "ffn_down"))))

    def head(self, x):
        x = self.put("output_norm", self.norm(x, "output_norm.weight"))
        output = "output" if self.weight("output.weight") is not None else "token_embd"
        return self.put("logits", self.linear(x, output))

    def forward(self, tokens):
        """One call: the logits of each token, [n_tokens, n_vocab]."""
        first = len(self.pos) and self.pos[-1] + 1
        self.pos, self.layer = np.arange(first, first + len(tokens)), -1
        x = self.put("token_embd", self.embed(tokens))
        for self.layer in range(self.n_layer):
            x = self.block(x)
        self.layer = -1
        return self.head(x)


def main():
    from bugs import install, table

    from firstdiff.trace import Writer

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("trace")
    parser.add_argument("--tokens", default="1,300,45,7,99,512")
    parser.add_argument("--decode", type=int, default=2, help="so many of the tokens are fed one by one")
    parser.add_argument("--numerics", default="f32")
    parser.add_argument("--bug", help=f"NAME or NAME@LAYER: {', '.join(table)}")
    args = parser.parse_args()
    tokens = [int(t) for t in args.tokens.split(",")]
    prefill = len(tokens) - args.decode
    with Writer(args.trace, model=args.model, engine="NumPy") as trace:
        engine = Engine(args.model, lambda name, rows: trace.put(name, rows), args.numerics)
        if args.bug and not install(engine, args.bug):
            sys.exit(f"{args.bug}: this model has nothing that it could change")
        for step in [tokens[:prefill]] + [[t] for t in tokens[prefill:]]:
            trace.step(step)
            engine.forward(step)
        for name, rows in engine.weights.items():
            if rows is not None:  # a bias that the model has not
                trace.weight(name, rows)


if __name__ == "__main__":
    main()
