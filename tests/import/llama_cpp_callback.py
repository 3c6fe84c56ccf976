#!/usr/bin/env python3
"""llama_cpp_callback.py ARCH RUN.h5 OUT [flash|rounded]: a run as llama.cpp's own eval callback leaves it, one .npy a node.

Arrays have ggml's four dimensions; what llama.cpp gives no name has its number in the graph; views are left out, because they compute
nothing. So a bias behind an unnamed product is another unnamed node, the softmax of gpt-oss's chosen experts has no name, and q
that is scaled before it meets K leaves scores with nothing to come. flash: scores stay in a kernel. rounded: the cache of K is there, in
binary16, and scores were rounded to that, too.
"""
import sys
from pathlib import Path

import numpy as np
from foreign_parts import read

arch, run, out, flash, rounded = sys.argv[1], sys.argv[2], Path(sys.argv[3]), "flash" in sys.argv, "rounded" in sys.argv
SCALED_Q = ("gemma", "gemma2", "gemma3", "phi2", "phi3")
BIASED = ("phi2",)
SUMS = {"attn_q": "Qcur-%d.ADD", "attn_k": "Kcur-%d.ADD", "attn_v": "Vcur-%d.ADD", "ffn_moe_logits": "ffn_moe_logits_biased-%d.ADD",
        "ffn_moe_gate": "ffn_moe_gate_biased-%d.ADD_ID", "ffn_moe_up": "ffn_moe_up_biased-%d.ADD_ID", "ffn_moe_down": "ffn_moe_down_biased-%d.ADD_ID"}
HEADS = {"attn_q_rope": "Qcur-%d.ROPE", "attn_k_rope": "Kcur-%d.ROPE"}
ROWS = {
    "attn_norm": "attn_norm-%d.MUL", "attn_q": "Qcur-%d.MUL_MAT", "attn_k": "Kcur-%d.MUL_MAT", "attn_v": "Vcur-%d.MUL_MAT",
    "attn_q_norm": "Qcur_normed-%d.MUL", "attn_k_norm": "Kcur_normed-%d.MUL", "attn_post_norm": "attn_post_norm-%d.MUL",
    "ffn_inp": "ffn_inp-%d.ADD", "ffn_norm": "ffn_norm-%d.MUL", "ffn_gate": "ffn_gate-%d.MUL_MAT", "ffn_up": "ffn_up-%d.MUL_MAT",
    "ffn_act": "ffn_swiglu-%d.GLU", "ffn_down": "ffn_out-%d.MUL_MAT", "l_out": "l_out-%d.ADD", "attn_out": "kqv_out-%d.CONT",
    "ffn_moe_logits": "ffn_moe_logits-%d.MUL_MAT", "ffn_moe_probs": "ffn_moe_probs-%d.SOFT_MAX", "ffn_moe_out": "ffn_moe_out-%d.ADD",
}
EXPERTS = {"ffn_moe_gate": "ffn_moe_gate-%d.MUL_MAT_ID", "ffn_moe_up": "ffn_moe_up-%d.MUL_MAT_ID",
           "ffn_moe_act": "ffn_moe_swiglu-%d.GLU", "ffn_moe_down": "ffn_moe_down-%d.MUL_MAT_ID"}
OUTSIDE = {"token_embd": "embd.GET_ROWS", "token_embd_scaled": "inp_scaled.SCALE", "output_norm": "result_norm.MUL", "logits": "result_output.MUL_MAT"}


def save(name, array, dtype=np.float32):
    np.save(out / "step_0" / f"{name}.npy", np.ascontiguousarray(array, dtype))


tensors, _, tokens = read(run)
n = len(tokens)
(out / "step_0").mkdir(parents=True)
(out / "tokens.txt").write_text(",".join(map(str, tokens)) + "\n")
for name, values in tensors.items():
    flat = values.reshape(n, -1)
    if name in OUTSIDE:
        save(OUTSIDE[name], flat[None, None])
    if not name.startswith("blk."):
        continue
    layer, node = int(name.split(".")[1]), name.split(".")[2]
    if rounded and node in ("attn_weights", "attn_out", "attn_proj", "ffn_inp"):  # they follow from what scores were
        continue
    number = 100 * (layer + 1)
    if node in SUMS and arch in ("phi2", "gpt-oss"):  # products, which lack the bias, have the plain names
        products = ROWS | EXPERTS
        save(products[node] % layer, (values if node in EXPERTS else flat[None])[None] - 0.01)
        save(SUMS[node] % layer, (values if node in EXPERTS else flat[None])[None])
        continue
    if node in HEADS or (node in ("attn_q_norm", "attn_k_norm")):
        save(HEADS.get(node, ROWS.get(node)) % layer, values[None])
    elif node == "attn_out" and flash:
        save(f"node_{number}.FLASH_ATTN_EXT", values[None])
    elif node in ("attn_scores", "attn_weights") and not flash:
        scores = values.transpose(1, 0, 2)[None]
        scale = 1 if node == "attn_weights" or arch in SCALED_Q else np.sqrt(tensors["blk.0.attn_q_rope"].shape[2])
        scores = np.where(np.isfinite(scores), scores, 0) * scale
        if node == "attn_scores" and rounded:
            scores = scores.astype(np.float16)
        save(("kq-%d.MUL_MAT" if node == "attn_scores" else "kq_soft_max-%d.SOFT_MAX") % layer, scores)
    elif node == "cache_k" and rounded:
        save("cache_k_l%d_(view).SET_ROWS" % layer, flat[None, None], np.float16)
    elif node == "attn_proj":
        save(f"node_{number + 1}.MUL_MAT", (flat - 0.01 if arch in BIASED else flat)[None, None])
        if arch in BIASED:
            save(f"node_{number + 2}.ADD", flat[None, None])
    elif node == "ffn_moe_weights" and arch == "gpt-oss":
        save("ffn_moe_weights-%d.GET_ROWS" % layer, np.log(flat)[None, :, :, None])
        save(f"node_{number + 3}.SOFT_MAX", flat[None, None])
    elif node == "ffn_moe_weights":
        save("ffn_moe_weights-%d.GET_ROWS" % layer, 0.5 * flat[None, :, :, None])
        save("ffn_moe_weights_norm-%d.DIV" % layer, flat[None, None])
    elif node == "ffn_moe_topk":  # a view of all of them in order, which alone is computed
        n_expert = tensors["blk.%d.ffn_moe_logits" % layer].shape[-1]
        order = [[*row, *(e for e in range(n_expert) if e not in row)] for row in flat.astype(int).tolist()]
        save("ffn_moe_argsort-%d.ARGSORT" % layer, np.array(order)[None, None], np.int32)
    elif node in EXPERTS:
        save(EXPERTS[node] % layer, values[None])
    elif node in ROWS:
        save(ROWS[node] % layer, flat[None, None])
