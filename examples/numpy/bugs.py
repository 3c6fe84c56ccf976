"""Bugs that engines had, each as one method of engine.py done wrong. They were written from the reports of these bugs
(issues of llama.cpp, vLLM, SGLang, MLX, candle, transformers and of hand-written engines), not from docs/faults.md.

A row: the first tensor that comes out wrong, the names that would be right for it (none: no name says it; NAME:WORDS where the
explanation must also have these words: bench/scoring.py), the method, and what stands in its place: a function of the engine and the sound method that returns the wrong one."""

from collections import namedtuple

import numpy as np

from engine import f32, to_bf16, to_f16, to_int8_blocks
from wrong import (
    activated, after, cache_of_layer_before, changed, decoding, exchanged, file_of, for_part, for_which, frequencies_in,
    gate_for_up, gelu_tanh, half_of_the_dims, half_zero, layer_norm, norm_as, norm_in, of_layer, one_head_times, one_norm,
    one_slot_on, rms, scores_in, seen_from, sigmoid, softmax_in, stale, stale_in_decode, sums_in_f16, table_in, unwritten,
    variance_less_one, window, with_row, without_first_key,
)

Bug = namedtuple("Bug", "node names method wrong numerics", defaults=("f32",))

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
    "ffn-row-damaged": Bug("ffn_up", ["weight_rows_wrong"], "project", for_part("ffn_up", with_row(17, lambda w: w[17][::-1] * f32(0.7)))),
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
