#!/usr/bin/env python3
"""transformers_dump.py ARCH REF.h5 OUT [WRONG]: a run's tensors as hooks on every module of transformers' model of this architecture save
them: its names, shapes and order, one archive a step. WRONG: rows (of Q and K in halves), choice (another expert), norms (two exchanged)."""
import sys
from pathlib import Path

import numpy as np
from foreign_parts import at_step, halves, layer_and_kind, over_kv, read

LLAMA = {
    "token_embd": "model.embed_tokens", "attn_norm": "{}.input_layernorm", "attn_q": "{}.self_attn.q_proj", "attn_k": "{}.self_attn.k_proj",
    "attn_v": "{}.self_attn.v_proj", "attn_weights": "{}.self_attn.1", "attn_out": "{}.self_attn.o_proj:in", "attn_proj": "{}.self_attn.o_proj",
    "ffn_norm": "{}.post_attention_layernorm", "ffn_gate": "{}.mlp.gate_proj", "ffn_up": "{}.mlp.up_proj", "ffn_act": "{}.mlp.down_proj:in",
    "ffn_down": "{}.mlp.down_proj", "l_out": "{}", "output_norm": "model.norm", "logits": "lm_head",
}
NORMED = {"attn_post_norm": "{}.post_attention_layernorm", "ffn_post_norm": "{}.post_feedforward_layernorm"}
GEMMA = {**NORMED, "token_embd": None, "token_embd_scaled": "model.embed_tokens", "ffn_norm": "{}.pre_feedforward_layernorm"}
HEADS = {"attn_q_norm": "{}.self_attn.q_norm", "attn_k_norm": "{}.self_attn.k_norm"}
ROUTER = {"ffn_moe_logits": "{}.mlp.gate.0", "ffn_moe_weights": "{}.mlp.gate.1", "ffn_moe_topk": "{}.mlp.gate.2", "ffn_moe_out": "{}.mlp.experts {}.mlp"}
SHARED = {"ffn_moe_out": "{}.mlp.experts", "ffn_shexp_gate": "{}.mlp.shared_expert.gate_proj", "ffn_shexp": "{}.mlp.shared_expert", "ffn_out": "{}.mlp",
          "ffn_shexp_up": "{}.mlp.shared_expert.up_proj", "ffn_shexp_logit": "{}.mlp.shared_expert_gate"}
LATENT = {"attn_q_a": "{}.self_attn.q_a_proj", "attn_q_a_norm": "{}.self_attn.q_a_layernorm", "attn_q": "{}.self_attn.q_b_proj", "attn_kv_a_norm": "{}.self_attn.kv_a_layernorm",
          "attn_k": None, "attn_kv_a": "{}.self_attn.kv_a_proj_with_mqa", "attn_out": None, "attn_out_v": "{}.self_attn.o_proj:in",
          "ffn_moe_out": "{}.mlp.experts", "ffn_shexp": "{}.mlp.shared_experts", "ffn_out": "{}.mlp"}
SHARED_APART = {"ffn_moe_logits": "{}.block_sparse_moe.router.0", "ffn_moe_weights": "{}.block_sparse_moe.router.1", "ffn_moe_topk": "{}.block_sparse_moe.router.2",
                "ffn_moe_out": "{}.block_sparse_moe.experts {}.block_sparse_moe", "ffn_shexp": "{}.shared_mlp"}
GPT_NEOX = {
    "token_embd": "gpt_neox.embed_in", "attn_norm": "{}.input_layernorm", "attn_weights": "{}.attention.1", "attn_proj": "{}.attention.dense",
    "ffn_norm": "{}.post_attention_layernorm", "ffn_up": "{}.mlp.dense_h_to_4h", "ffn_act": "{}.mlp.act", "ffn_down": "{}.mlp.dense_4h_to_h", "l_out": "{}",
    "output_norm": "gpt_neox.final_layer_norm", "logits": "lm_head",
}
# What differs from llama: names, and how Q, K and V lie ("turned": in halves; "fused": each K/V head's q, k, v).
ARCHITECTURES = {
    "granite": {"turned": True, "token_embd_scaled": "model.layers.0:in", "ffn_inp": "{}.post_attention_layernorm:in"}, "command-r": {}, "gpt-oss": {**ROUTER, "attn_post_norm": "{}.post_attention_layernorm"},
    "gemma2": GEMMA, "gemma3": {**GEMMA, **HEADS, "heads first": True}, "olmo2": {**NORMED, **HEADS},
    "glm4": {"attn_post_norm": "{}.post_self_attn_layernorm", "ffn_post_norm": "{}.post_mlp_layernorm"},
    "qwen3moe": {**HEADS, **ROUTER}, "qwen2moe": {**ROUTER, **SHARED}, "gptneox": {"fused": True},
    "deepseek2": {**ROUTER, **LATENT}, "granitemoe": {"turned": True, **SHARED_APART},
}


def rows_of(kind, rows, how):
    """One step's rows as the module gives them, without the batch axis."""
    if kind == "ffn_moe_topk":
        return rows.astype(np.int64)
    if kind in ("attn_q", "attn_k") and how.get("turned"):
        rows = halves(rows)
    if kind in ("attn_q_norm", "attn_k_norm") and rows.ndim == 3:
        return rows.transpose(1, 0, 2) if how.get("heads first") else rows
    return rows if over_kv(kind) else rows.reshape(len(rows), -1)


def step(tensors, names, how, first, count):
    out = {}
    for name, values in tensors.items():
        layer, kind = layer_and_kind(name)
        for to in (names.get(kind) or "").split():
            rows = rows_of(kind, at_step(name, values, first, count), how)
            if kind == "attn_kv_a":  # K's rotated part is of the same product
                rows = np.concatenate([rows, rows_of("attn_k", tensors[f"blk.{layer}.attn_k"][first : first + count], how)], -1)
            to = to.format(("gpt_neox" if how.get("fused") else "model") + f".layers.{layer}")
            out[to] = rows if ".gate." in to or ".router." in to else rows[None]
        if how.get("fused") and kind == "attn_q":
            n_kv = tensors[f"blk.{layer}.attn_k"].shape[1]
            qkv = [tensors[f"blk.{layer}.attn_{x}"][first : first + count].reshape(count, n_kv, -1) for x in "qkv"]
            out[f"gpt_neox.layers.{layer}.attention.query_key_value"] = np.concatenate(qkv, -1).reshape(1, count, -1)
    return out


def main(arch, ref, out, wrong=""):
    tensors, steps, tokens = read(ref)
    how = dict(ARCHITECTURES[arch])
    names = {**(GPT_NEOX if how.get("fused") else LLAMA), **how}
    if wrong == "rows":
        how["turned"] = True
    if wrong == "choice":
        tensors["blk.0.ffn_moe_topk"][2, 0] = (1 + tensors["blk.0.ffn_moe_topk"][2].max()) % 4
    if wrong == "norms":
        names["ffn_norm"], names["attn_post_norm"] = names["attn_post_norm"], names["ffn_norm"]
    out.mkdir()
    for s, (first, count) in enumerate(steps):
        np.savez(out / f"step_{s}", **step(tensors, names, how, first, count))
    (out / "tokens.txt").write_text(" ".join(map(str, tokens)))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), *sys.argv[4:])
