#!/usr/bin/env python3
"""serving_engines.py FORM REF.h5 OUT: the tensors of a trace as forward hooks on the modules of vLLM 0.32 leave them (vllm: on all modules), and SGLang
0.5's --debug-tensor-dump-output-folder (sglang: on the leaves; mixed: of two requests in a batch). gptj: vllm with a bug.

Norms add: a layer gives a branch and the stream that it is to be added to. Q, K, V and gate, up are one array. Logits are the last token's.
"""
import sys
from pathlib import Path

import h5py
import numpy as np
from foreign_parts import halves, layer_and_kind, read

LEAVES = {"attn_out": "self_attn.attn", "attn_proj": "self_attn.o_proj.0", "ffn_act": "mlp.act_fn", "ffn_down": "mlp.down_proj.0", "ffn_moe_logits": "mlp.gate.0",
          "ffn_moe_out": "mlp.experts", "attn_post_norm": "post_attention_layernorm", "ffn_post_norm": "post_feedforward_layernorm"}
HEADS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}


def modules(layer, kinds, stream):
    """{what hooks call it: rows} of a layer; `stream`: what came in, None in the first, where nothing is to be added yet."""
    flat = {k: v.reshape(len(v), -1) for k, v in kinds.items()}
    norm = "pre_feedforward_layernorm" if "attn_post_norm" in kinds else "post_attention_layernorm"
    branch = flat.get("ffn_post_norm", flat.get("ffn_moe_out", flat.get("ffn_down")))
    out = {"input_layernorm" if stream is None else "input_layernorm.0": flat["attn_norm"],
           "self_attn.qkv_proj.0": np.concatenate([flat["attn_q"], flat["attn_k"], flat["attn_v"]], 1), "self_attn.rotary_emb.0": flat["attn_q_rope"],
           "self_attn.rotary_emb.1": flat["attn_k_rope"], f"{norm}.0": flat["ffn_norm"], f"{norm}.1": flat["ffn_inp"]}
    out |= {name: flat[kind] for kind, name in LEAVES.items() if kind in flat} | {name: kinds[kind] for kind, name in HEADS.items() if kind in kinds}
    out |= {} if stream is None else {"input_layernorm.1": stream}
    out |= {"mlp.gate_up_proj.0": np.concatenate([flat["ffn_gate"], flat["ffn_up"]], 1)} if "ffn_gate" in flat else {}
    blocks = {"self_attn": flat["attn_proj"], "mlp": flat.get("ffn_moe_out", flat.get("ffn_down")), "0": branch, "1": flat["ffn_inp"]}
    return ({f"model.layers.{layer}.{n}": v for n, v in d.items()} for d in (out, blocks))


ROUTER = {"ffn_moe_weights": "mlp.topk.0", "ffn_moe_topk": "mlp.topk.1"}


def call(tensors, first, count, turn):
    """What a forward call of the rows records: (leaves, blocks, choices of experts)."""
    rows = {n: v[first : first + count] for n, v in tensors.items() if not n.endswith(("attn_scores", "attn_weights"))}
    layers = {}
    for name, values in rows.items():
        layer, kind = layer_and_kind(name)
        if layer:
            layers.setdefault(int(layer), {})[kind] = halves(values) if turn and kind in ("attn_q", "attn_k", "attn_q_rope", "attn_k_rope") else values
    leaves, blocks, routers, stream = {"model.embed_tokens": rows["token_embd"]}, {}, {}, None
    for layer, kinds in sorted(layers.items()):
        for into, found in zip((leaves, blocks), modules(layer, kinds, stream)):
            into |= found
        stream = kinds["l_out"]
        routers |= {f"model.layers.{layer}.{name}": kinds[kind].reshape(len(kinds[kind]), -1) for kind, name in ROUTER.items() if kind in kinds}
    return leaves | {"model.norm.0": rows["output_norm"], "model.norm.1": stream, "logits_processor": rows["logits"][-1:]}, blocks, routers


def vllm(calls, tokens, out):
    for step, (leaves, blocks, *_) in enumerate(calls):
        np.savez(out / f"step_{step}", **leaves, **blocks)
    (out / "tokens.txt").write_text(", ".join(map(str, tokens)))


def gptj(calls, tokens, out):
    """A bug: is_neox_style=False for a model whose checkpoint pairs halves. The table as get_rope makes it, of binary32 throughout, 8 heads of 32."""
    frequencies = np.float32(1) / np.float32(10000) ** (np.arange(0, 32, 2, dtype=np.float32) / np.float32(32))
    table = np.arange(len(tokens), dtype=np.float32)[:, None] * frequencies
    for leaves, _, _, first, count in calls:
        cos, sin = (f(table[first : first + count])[:, None] for f in (np.cos, np.sin))
        for name in [n for n in leaves if "rotary_emb" in n]:
            qkv = leaves[f"{name.split('.rotary')[0]}.qkv_proj.0"]
            x = (qkv[:, :256] if name.endswith("0") else qkv[:, 256:384]).reshape(count, -1, 32)
            pairs = x[..., ::2] * cos - x[..., 1::2] * sin, x[..., 1::2] * cos + x[..., ::2] * sin
            leaves[name] = np.stack(pairs, -1).reshape(count, -1)
    vllm(calls, tokens, out)


def sglang(calls, tokens, out, several=0):
    """A file a pass, in a rank's folder; a server's warm-up before it. The model writes its pass when it returns: what it returns and the logits come
    into the next one. All layers share rotary_emb, so that the last one's result is under every layer's name."""
    folder = out / "TP0_PP0_Rank0_pid77"
    folder.mkdir()
    late = {}
    for number, (leaves, _, routers, first, count) in enumerate([(*calls[0][:3], 0, 4), *calls]):
        leaves = leaves | routers
        last = max(int(n.split(".")[2]) for n in leaves if n.startswith("model.layers."))
        of_last = {n: f"model.layers.{last}.{n.split('.', 3)[3]}" if "rotary_emb" in n else n for n in leaves}
        file = {n.removesuffix(".0") if n.endswith(("proj.0", "gate.0")) else n: leaves[of_last[n]][:count] for n in leaves
                if n != "logits_processor" and not n.endswith(".experts")}
        file = {n: v.reshape(-1, v.shape[-1]) if n.endswith(("q_norm", "k_norm")) else v for n, v in file.items()}
        file |= late
        late = {"model": file["model.norm.0"], "logits_processor": leaves["logits_processor"]}
        file |= {"model.forward_batch_info.input_ids": np.asarray(tokens[first : first + count], np.int64),
                 "model.forward_batch_info.positions": np.concatenate([np.arange(first, first + count - several), np.arange(several)]).astype(np.int64),
                 "model.forward_batch_info.seq_lens": np.asarray([first + count], np.int64)}
        np.savez(folder / f"Pass{number:05}", **file)


def mixed(calls, tokens, out):
    sglang(calls[:1], tokens, out, 2)


if __name__ == "__main__":
    form, path, into = sys.argv[1:]
    with h5py.File(path) as f:
        turns = f.attrs["arch"] == "llama"
    values, steps, ids = read(path)
    Path(into).mkdir()
    {f.__name__: f for f in (vllm, gptj, sglang, mixed)}[form]([(*call(values, *s, turns), *s) for s in steps], ids.tolist(), Path(into))
