"""Bugs that engines had, each as one method of engine.py done wrong. They were written from the reports of these bugs
(issues of llama.cpp, vLLM, SGLang, MLX, candle, transformers and of hand-written engines), not from docs/faults.md.

A row: the first tensor that comes out wrong, the names that would be right for it (none: no name says it; NAME:WORDS where the
explanation must also have these words: bench/scoring.py), the method, and what stands in its place: a function of the engine and the sound method that returns the wrong one."""

from collections import namedtuple

import numpy as np

from engine import f32, to_bf16, to_f16, to_int8_blocks

Bug = namedtuple("Bug", "node names method wrong numerics", defaults=("f32",))


def changed(value, at):
    """The sound method while engine.`at` is what `value` makes of it."""

    def wrong(e, sound):
        def method(*args):
            kept = getattr(e, at)
            setattr(e, at, value(e, kept))
            try:
                return sound(*args)
            finally:
                setattr(e, at, kept)

        return method

    return wrong


def after(change):
    """What the sound method returns, and then `change`d."""
    return lambda e, sound: lambda *args: change(sound(*args))


def for_part(part, of):
    """A wrong project() for one matrix; of(e, x) gives its rows."""
    return lambda e, sound: lambda x, which: of(e, sound, x) if which == part else sound(x, which)


def for_which(which, of):
    """A wrong method of (…, "q" or "k") for one of the two."""
    return lambda e, sound: lambda *args: of(e, sound, *args) if args[-1] == which else sound(*args)


def decoding(e):
    return len(e.pos) == 1 and e.pos[0] > 0


# ---- norms ----


def norm_as(formula):
    return lambda e, sound: lambda x, weight: formula(e, x, e.weight(weight)).astype(f32)


def rms(x):
    return np.sqrt(np.mean(x * x, -1, keepdims=True))


def variance_less_one(e, x, w):
    return x / np.sqrt((x * x).sum(-1, keepdims=True) / (x.shape[-1] - 1) + e.eps) * w


def layer_norm(e, x, w):
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + e.eps) * w


def norm_in(rounded):
    def formula(e, x, w):
        x = rounded(x)
        return rounded(rounded(x * rounded(1 / np.sqrt(rounded(np.mean(x * x, -1, keepdims=True)) + e.eps))) * rounded(w))

    return formula


def one_norm(which, of):
    """A bug in attn_norm or ffn_norm alone."""
    return lambda e, sound: lambda x, w: of(e, sound, x, w) if w.endswith(f"{which}.weight") else sound(x, w)


# ---- products ----


def sums_in_f16(e, sound):
    def product(x, w):
        total = np.zeros((len(x), len(w)), np.float16)
        for k in range(x.shape[-1]):
            total = (total.astype(f32) + x[:, k : k + 1] * w[:, k]).astype(np.float16)
        return total.astype(f32)

    return product


def with_row(row, values):
    """linear() whose matrix has other values in a row."""

    def of(e, sound, x):
        name = f"blk.{e.layer}.ffn_up.weight"
        kept = e.weight(name)
        e.weights[name] = kept.copy()
        e.weights[name][row] = values(kept)
        y = sound(x, "ffn_up")
        e.weights[name] = kept
        return y

    return of


def unwritten(y, n):
    y = y.copy()
    y[..., -n:] = 0
    return y


# ---- loading ----


def file_of(part, of):
    """A wrong load() of the layers' `part`; of(e, sound, name) gives its rows."""
    return lambda e, sound: lambda name: of(e, sound, name) if name.endswith(f".{part}.weight") else sound(name)


def of_layer(layer):
    return lambda e, sound, name: sound(f"blk.{layer}.{name.split('.', 2)[2]}")


def half_zero(e, sound, name):
    rows = sound(name).copy()
    rows[len(rows) // 2 :] = 0
    return rows


def gate_for_up(e, sound):
    other = {"ffn_gate": "ffn_up", "ffn_up": "ffn_gate"}

    def load(name):
        *layer, part, kind = name.split(".")
        return sound(".".join([*layer, other.get(part, part), kind]))

    return load


# ---- RoPE ----


def table_in(rounded):
    return after(lambda table: tuple(rounded(t) for t in table))


def frequencies_in(rounded):
    def wrong(e, sound):
        def angles(which):
            frequency = rounded((e.rope_base ** (-np.arange(0, e.head_dim, 2) / e.head_dim)).astype(f32))
            angle = e.positions(which)[:, None] * frequency.astype(float)
            return np.cos(angle).astype(f32)[:, None], np.sin(angle).astype(f32)[:, None]

        return angles

    return wrong


def half_of_the_dims(e, sound):
    def rotate(x, which):
        return np.concatenate([sound(x, which)[..., : e.head_dim // 2], x[..., e.head_dim // 2 :]], -1)

    return rotate


# ---- attention and cache ----


def exchanged(a, b):
    def change(out):
        out = out.copy()
        out[:, [a, b]] = out[:, [b, a]]
        return out

    return change


def one_head_times(head, factor):
    def change(out):
        out = out.copy()
        out[:, head] *= f32(factor)
        return out

    return change


def softmax_in(rounded):
    def wrong(e, sound):
        def softmax(s):
            x = np.exp(rounded(rounded(s) - rounded(s.max(-1, keepdims=True))))
            x = rounded(x)
            return rounded(x / rounded(x.sum(-1, keepdims=True)))

        return softmax

    return wrong


def scores_in(rounded):
    return after(rounded)


def stale(e, sound):
    """The newest row is what was there before: nothing, or the row of the call before."""

    def rows():
        kept = sound().copy()
        kept[-len(e.pos) :] = kept[-len(e.pos) - 1] if decoding(e) else 0
        return kept

    return rows


def stale_in_decode(e, sound):
    def rows():
        kept = sound().copy()
        if decoding(e):
            kept[-1] = 0
        return kept

    return rows


def one_slot_on(e, sound):
    """Rows are written one slot too far: a token finds the row before its own in its slot."""
    late = {}

    def remember(k, v):
        rows = []
        for kind, x in (("k", k), ("v", v)):
            first = late.get((kind, e.layer), np.zeros_like(x[:1]))
            rows.append(np.concatenate([first, x[:-1]]))
            late[kind, e.layer] = x[-1:].copy()
        sound(*rows)

    return remember


def cache_of_layer_before(cache):
    return lambda e, sound: lambda: getattr(e, cache)[max(e.layer - 1, 0)]


def seen_from(extra):
    def wrong(e, sound):
        return lambda n_kv: np.arange(n_kv)[None, :] <= e.pos[:, None] + extra

    return wrong


def window(n):
    return lambda e, sound: lambda n_kv: sound(n_kv) & (np.arange(n_kv)[None, :] > e.pos[:, None] - n)


def without_first_key(e, sound):
    def visible(n_kv):
        seen = sound(n_kv).copy()
        seen[1:, 0] = False
        seen[:, 0] |= e.pos == 0
        return seen

    return visible


# ---- FFN ----


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def activated(formula):
    return lambda e, sound: lambda gate, up: formula(gate, up).astype(f32)


table = {
    # embedding
    "embed-scaled": Bug("token_embd", ["embed_scaled", "factor:16"], "embed", lambda e, s: lambda t: s(t) * f32(np.sqrt(e.n_embd))),
    "embed-next-row": Bug("token_embd", ["embed_next_row", "other_token:+ 1"], "embed", lambda e, s: lambda t: s(np.asarray(t) + 1)),
    "embed-times-1.01": Bug("token_embd", ["factor:1.01"], "embed", after(lambda x: x * f32(1.01))),
    # norms
    "eps-outside": Bug("attn_norm", ["eps_outside_root"], "norm", norm_as(lambda e, x, w: x / (rms(x) + e.eps) * w)),
    "eps-1e-3": Bug("attn_norm", ["other_eps:0.001"], "norm", changed(lambda e, eps: f32(1e-3), "eps")),
    "eps-1e-2": Bug("attn_norm", ["other_eps:0.01"], "norm", changed(lambda e, eps: f32(1e-2), "eps")),
    "eps-missing": Bug("attn_norm", ["eps_missing", "eps_value", "other_eps:eps 0"], "norm", changed(lambda e, eps: f32(0), "eps")),
    "norm-n-less-1": Bug("attn_norm", ["norm_n_less_one"], "norm", norm_as(variance_less_one)),
    "norm-in-bf16": Bug("attn_norm", ["norm_in_bf16"], "norm", norm_as(norm_in(to_bf16))),
    "norm-in-f16": Bug("attn_norm", ["norm_in_f16"], "norm", norm_as(norm_in(to_f16))),
    "norm-plus-one": Bug("attn_norm", ["norm_plus_one"], "norm", norm_as(lambda e, x, w: x / np.sqrt(rms(x) ** 2 + e.eps) * (1 + w))),
    "layer-norm": Bug("attn_norm", ["layer_norm"], "norm", norm_as(layer_norm)),
    "ffn-norm-weight-of-attn": Bug("ffn_norm", ["other_weight:attn_norm"], "norm", one_norm("ffn_norm", lambda e, s, x, w: s(x, w.replace("ffn", "attn")))),
    "norm-weight-in-bf16": Bug("attn_norm", ["norm_weight_bf16"], "norm", norm_as(lambda e, x, w: x / np.sqrt(rms(x) ** 2 + e.eps) * to_bf16(w))),
    # products
    "q-of-next-layer": Bug("attn_q", ["other_weight:attn_q"], "project", for_part("attn_q", lambda e, s, x: e.linear(x, f"blk.{(e.layer + 1) % e.n_layer}.attn_q"))),
    "k-bias-missing": Bug("attn_k", ["missing_qkv_bias"], "project", for_part("attn_k", lambda e, s, x: e.as_tensor(e.product(x, e.weight(f"blk.{e.layer}.attn_k.weight"))))),
    "biases-missing": Bug("attn_q", ["missing_qkv_bias"], "linear", lambda e, s: lambda x, name: e.as_tensor(e.product(x, e.weight(name + ".weight")))),
    "half-summed": Bug("attn_q", ["half_summed", "sum_cut_short:128"], "product", lambda e, s: lambda x, w: x[:, : x.shape[-1] // 2] @ w[:, : x.shape[-1] // 2].T),
    "last-8-not-summed": Bug("attn_q", ["sum_cut_short:8"], "product", lambda e, s: lambda x, w: x[:, :-8] @ w[:, :-8].T),
    "last-16-rows-unwritten": Bug("attn_q", ["tile_unwritten", "zeros"], "product", after(lambda y: unwritten(y, 16))),
    "sums-in-f16": Bug("attn_q", ["f16_accumulation"], "product", sums_in_f16),
    "ffn-row-damaged": Bug("ffn_up", [], "project", for_part("ffn_up", with_row(17, lambda w: w[17][::-1] * f32(0.7)))),
    "ffn-row-of-another": Bug("ffn_up", [], "project", for_part("ffn_up", with_row(33, lambda w: w[34]))),
    "ffn-block-damaged": Bug("ffn_up", [], "project", for_part("ffn_up", with_row(5, lambda w: np.concatenate([w[5][:32] * f32(1.5), w[5][32:]])))),
    "int8-cut": Bug("attn_q", [], "as_factor", lambda e, s: lambda x: to_int8_blocks(x, snap=np.trunc), "q8"),
    "int8-scale-128": Bug("attn_q", ["other_blocks:/ 128"], "as_factor", lambda e, s: lambda x: to_int8_blocks(x, 128.0, lambda q: np.clip(np.rint(q), -127, 127)), "q8"),
    # RoPE
    "rope-base-5e5": Bug("attn_q_rope", ["other_rope_base:500000"], "angles", changed(lambda e, base: 5e5, "rope_base")),
    "rope-base-1e6": Bug("attn_q_rope", ["rope_base", "other_rope_base"], "angles", changed(lambda e, base: 1e6 if base != 1e6 else 1e4, "rope_base")),
    "rope-pairing": Bug("attn_q_rope", ["rope_pairing"], "rotate", changed(lambda e, halves: not halves, "rope_halves")),
    "rope-sign": Bug("attn_q_rope", ["rope_sign"], "angles", after(lambda table: (table[0], -table[1]))),
    "rope-one-further-in-decode": Bug("attn_q_rope", ["rope_both_one_further", "other_position:+ 1"], "positions", lambda e, s: lambda which: s(which) + (1 if decoding(e) else 0)),
    "rope-one-short-in-decode": Bug("attn_q_rope", ["other_position:- 1"], "positions", lambda e, s: lambda which: s(which) - (1 if decoding(e) else 0)),
    "rope-zero-in-decode": Bug("attn_q_rope", ["rope_position_zero", "other_position:position 0"], "positions", lambda e, s: lambda which: s(which) * (0 if decoding(e) else 1)),
    "rope-position-mod-8": Bug("attn_q_rope", ["other_position:mod 8"], "positions", lambda e, s: lambda which: s(which) % 8),
    "rope-q-one-further": Bug("attn_q_rope", ["rope_q_one_further", "other_position:+ 1"], "positions", for_which("q", lambda e, s, which: s(which) + 1)),
    "rope-k-alone": Bug("attn_q_rope", ["other_position:position 0", "rope_position_zero", "other_input:attn_q"], "rotate", for_which("q", lambda e, s, x, which: x)),
    "rope-table-f16": Bug("attn_q_rope", ["rope_table_f16"], "angles", table_in(to_f16)),
    "rope-table-bf16": Bug("attn_q_rope", ["rope_table_bf16"], "angles", table_in(to_bf16)),
    "rope-frequencies-bf16": Bug("attn_q_rope", ["rope_freq_bf16"], "angles", frequencies_in(to_bf16)),
    "rope-half-the-dims": Bug("attn_q_rope", ["other_rope_dims:16"], "rotate", half_of_the_dims),
    "rope-positions-halved": Bug("attn_q_rope", ["other_rope_factor:2"], "positions", lambda e, s: lambda which: s(which) / 2),
    # attention
    "scale-missing": Bug("attn_scores", ["attn_scale_missing", "other_attn_scale:1;"], "scores", changed(lambda e, scale: f32(1), "scale")),
    "scale-by-n-head": Bug("attn_scores", ["other_attn_scale"], "scores", changed(lambda e, scale: f32(1 / np.sqrt(e.n_head)), "scale")),
    "scale-by-width": Bug("attn_scores", ["attn_scale_by_width", "other_attn_scale"], "scores", changed(lambda e, scale: f32(1 / np.sqrt(e.n_embd)), "scale")),
    "softcap-50": Bug("attn_scores", ["other_attn_softcap:50"], "scores", changed(lambda e, cap: 50.0, "softcap")),
    "scores-in-f16": Bug("attn_scores", ["rounded:binary16"], "scores", scores_in(to_f16)),
    "gqa-modulo": Bug("attn_scores", ["gqa_modulo"], "kv_head", lambda e, s: lambda head: head % e.n_head_kv),
    "mask-missing": Bug("attn_weights", ["mask_missing"], "visible", seen_from(10**6)),
    "mask-one-more": Bug("attn_weights", ["mask_one_ahead"], "visible", seen_from(1)),
    "first-key-hidden": Bug("attn_scores", ["keys_hidden:position 0"], "visible", without_first_key),
    "window-8": Bug("attn_scores", ["keys_hidden:8", "other_window:8"], "visible", window(8)),
    "softmax-in-f16": Bug("attn_weights", ["softmax_in_f16"], "softmax", softmax_in(to_f16)),
    "softmax-in-bf16": Bug("attn_weights", ["softmax_in_bf16"], "softmax", softmax_in(to_bf16)),
    "softmax-plus-one": Bug("attn_weights", ["cache_one_slot_more"], "softmax", lambda e, s: lambda x: np.exp(x) / (1 + np.exp(x).sum(-1, keepdims=True))),
    "mix-in-f16": Bug("attn_out", ["rounded:binary16"], "mix", after(to_f16)),
    "heads-swapped": Bug("attn_out", ["other_order"], "mix", after(exchanged(0, 1))),
    "heads-reversed": Bug("attn_out", ["heads_reversed", "other_order:reversed"], "mix", after(lambda out: out[:, ::-1])),
    "heads-transposed": Bug("attn_out", ["other_order"], "mix", after(lambda out: out.transpose(0, 2, 1).reshape(out.shape))),
    "head-3-1.01": Bug("attn_out", ["factor:1.01"], "mix", after(one_head_times(3, 1.01))),
    # cache
    "cache-one-slot-on": Bug("cache_k", ["kv_off_by_one", "other_rows:1 earlier", "other_cache_row:1"], "remember", one_slot_on),
    "k-stale": Bug("cache_k", ["kv_stale_row", "zeros:not written"], "keys", stale),
    "k-stale-in-decode": Bug("cache_k", ["kv_stale_row", "zeros"], "keys", stale_in_decode),
    "v-stale-in-decode": Bug("cache_v", ["zeros", "kv_stale_row"], "values", stale_in_decode),
    "k-of-layer-before": Bug("cache_k", ["kv_previous_layer", "other_input:cache_k"], "keys", cache_of_layer_before("cache_k")),
    "v-is-k": Bug("cache_v", ["kv_v_is_k", "other_input:attn_k_rope"], "remember", lambda e, s: lambda k, v: s(k, k)),
    # FFN
    "gelu": Bug("ffn_act", ["gelu_tanh"], "activate", activated(lambda gate, up: gelu_tanh(gate) * up)),
    "quick-gelu": Bug("ffn_act", ["gelu_quick"], "activate", activated(lambda gate, up: gate * sigmoid(1.702 * gate) * up)),
    "silu-on-up": Bug("ffn_act", ["silu_on_up"], "activate", activated(lambda gate, up: gate * up * sigmoid(up))),
    "up-missing": Bug("ffn_act", ["up_missing"], "activate", activated(lambda gate, up: gate * sigmoid(gate))),
    "activation-in-f16": Bug("ffn_act", ["rounded:binary16"], "activate", after(to_f16)),
    "activation-in-bf16": Bug("ffn_act", ["rounded:bfloat16"], "activate", after(to_bf16)),
    # residual stream
    "stream-in-f16": Bug("ffn_inp", ["rounded:binary16"], "add", after(to_f16)),
    "stream-in-bf16": Bug("ffn_inp", ["rounded:bfloat16"], "add", after(to_bf16)),
    "residual-missing": Bug("ffn_inp", ["residual_missing", "input_factor:left out"], "add", lambda e, s: lambda stream, branch: branch),
    "branch-twice": Bug("ffn_inp", ["input_factor:2"], "add", lambda e, s: lambda stream, branch: stream + branch + branch),
    "branch-halved": Bug("ffn_inp", ["input_factor:0.5"], "add", lambda e, s: lambda stream, branch: stream + branch * f32(0.5)),
    # output
    "final-norm-missing": Bug("output_norm", ["final_norm_missing"], "norm", one_norm("output_norm", lambda e, s, x, w: x)),
    "logits-in-f16": Bug("logits", ["rounded:binary16"], "linear", lambda e, s: lambda x, n: to_f16(s(x, n)) if not n.startswith("blk") else s(x, n)),
    "logits-scaled": Bug("logits", ["logit_scale", "factor:0.0625"], "linear", lambda e, s: lambda x, n: s(x, n) / f32(np.sqrt(e.n_embd)) if not n.startswith("blk") else s(x, n)),
    "logits-0.9": Bug("logits", ["factor:0.9"], "linear", lambda e, s: lambda x, n: s(x, n) * f32(0.9) if not n.startswith("blk") else s(x, n)),
    # loading: named from the hashes of the weights, where the trace has them
    "q-loaded-from-layer-3": Bug("attn_q", ["other_weight:blk.3.attn_q"], "load", file_of("attn_q", of_layer(3))),
    "q-half-loaded": Bug("attn_q", ["zeros"], "load", file_of("attn_q", half_zero)),
    "gate-up-swapped": Bug("ffn_gate", ["gate_up_swapped", "silu_on_up", "other_weight"], "load", gate_for_up),
}
OUTSIDE = ("token_embd", "output_norm", "logits")  # these bugs have no layer


def install(engine, spec):
    """Puts the bug into every layer, or with NAME@LAYER into that one. False: the model gives it no hold."""
    name, _, layer = spec.partition("@")
    bug = table[name]
    if "bias" in name and engine.weight("blk.0.attn_k.bias") is None:
        return False
    sound = getattr(engine, bug.method)
    wrong = bug.wrong(engine, sound)
    inside = bug.node not in OUTSIDE
    there = lambda: engine.layer == int(layer) if layer else (engine.layer >= 0) == inside or bug.method == "norm"
    if bug.method in ("norm", "product") and inside and not layer:
        there = lambda: True  # the last norm, the logits' product too
    setattr(engine, bug.method, lambda *args: (wrong if there() else sound)(*args))
    return True
