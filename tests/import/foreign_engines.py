"""The forms of make_foreign.py that engines and their recorders write, under these engines' names."""
import fractions
import re

import numpy as np
from foreign_parts import at_step, halves, layer_and_kind, over_kv, rows_of_step, save_safetensors, save_torch, save_trace

HF = {
    "token_embd": "model.embed_tokens_outputs", "output_norm": "model.norm_outputs", "logits": "lm_head_outputs",
    "attn_norm": "input_layernorm_outputs", "attn_q": "self_attn.q_proj_outputs", "attn_k": "self_attn.k_proj_outputs",
    "attn_v": "self_attn.v_proj_outputs", "attn_out": "self_attn.o_proj_inputs_args_0", "attn_proj": "self_attn.o_proj_outputs",
    "ffn_inp": "post_attention_layernorm_inputs_args_0", "ffn_norm": "post_attention_layernorm_outputs",
    "ffn_gate": "mlp.gate_proj_outputs", "ffn_up": "mlp.up_proj_outputs", "ffn_act": "mlp.down_proj_inputs_args_0",
    "ffn_down": "mlp.down_proj_outputs",
}


def debugger(ref, out):
    """The folder of transformers' model debugger: one .safetensors a module, [1, n_tok, n]; only leaves have outputs."""
    tensors, _, tokens = ref
    out.mkdir()
    (out / "LlamaForCausalLM_debug_tree_FULL_TENSORS.json").write_text("{}")
    save_safetensors(out / "LlamaForCausalLM_inputs_kwargs_input_ids.safetensors", {"data": np.asarray(tokens, np.int64)[None]})
    save_safetensors(out / "LlamaForCausalLM_outputs_logits.safetensors", {"data": tensors["logits"][None]})
    last = max(int(n.split(".")[1]) for n in tensors if n.startswith("blk."))
    for name, values in tensors.items():
        layer, kind = (int(name.split(".")[1]), name.split(".")[2]) if name.startswith("blk.") else (None, name)
        if kind == "l_out":
            path = "model.norm_inputs_args_0" if layer == last else f"model.layers.{layer + 1}.input_layernorm_inputs_args_0"
        elif kind in HF:
            path = HF[kind] if layer is None else f"model.layers.{layer}.{HF[kind]}"
        else:
            continue
        if kind in ("attn_q", "attn_k"):
            values = halves(values)
        flat = np.ascontiguousarray(values.reshape(1, values.shape[0], -1))
        save_safetensors(out / f"LlamaForCausalLM.{path}.safetensors", {"data": flat})


LLAMA2C = {  # variable, which writing of it
    "attn_norm": "xb#1", "attn_out": "xb#2", "ffn_norm": "xb#3", "ffn_down": "xb#4", "attn_q": "q#1", "attn_q_rope": "q#2",
    "attn_k": "k#1", "attn_k_rope": "k#2", "attn_v": "v", "attn_scores": "att#1", "attn_weights": "att#2",
    "attn_proj": "xb2", "ffn_inp": "x#1", "l_out": "x#2", "ffn_gate": "hb#1", "ffn_up": "hb2", "ffn_act": "hb#2",
    "token_embd": "x#1", "output_norm": "x#2", "logits": "logits",
}


def llama2c(ref, out):
    """One position a step, as run.c goes: flat arrays, att [n_head, seq_len]."""
    tensors, _, tokens = ref
    out.mkdir()
    np.save(out / "tokens.npy", np.asarray(tokens, np.int32))
    for name, values in tensors.items():
        layer, kind = (int(name.split(".")[1]), name.split(".")[2]) if name.startswith("blk.") else (None, name)
        if kind not in LLAMA2C:
            continue
        variable, number = (LLAMA2C[kind] + "#1").split("#")[:2]
        full = f"{variable}-{layer}" if layer is not None else variable
        full += "" if number == "1" else f"#{number}"
        for pos in range(len(tokens)):
            row = values[pos] if over_kv(name) else values[pos].ravel()
            np.save(out / f"s{pos}.{full}.npy", row)


LLAMA_CPP = {
    "token_embd": "embd.GET_ROWS", "attn_norm": "attn_norm-{}.MUL", "attn_q": "Qcur-{}.RESHAPE", "attn_k": "Kcur-{}.RESHAPE",
    "attn_v": "Vcur-{}.RESHAPE", "attn_q_rope": "Qcur-{}.ROPE", "attn_k_rope": "Kcur-{}.ROPE", "cache_k": "cache_k_l{}_(view).SET_ROWS",
    "attn_weights": "kq_soft_max-{}.SOFT_MAX", "attn_out": "kqv_out-{}.CONT", "attn_proj": "attn_out-{}.MUL_MAT",
    "ffn_inp": "ffn_inp-{}.ADD", "ffn_norm": "ffn_norm-{}.MUL", "ffn_gate": "ffn_gate-{}.MUL_MAT", "ffn_up": "ffn_up-{}.MUL_MAT",
    "ffn_act": "ffn_swiglu-{}.GLU", "ffn_down": "ffn_out-{}.MUL_MAT", "l_out": "l_out-{}.ADD", "output_norm": "result_norm.MUL",
    "logits": "result_output.MUL_MAT",
}

# What other architectures have besides. Shared experts have the names of another layer's FFN.
LLAMA_CPP_OTHERS = {
    "attn_scores": "kq_of_scaled_q-{}.MUL_MAT", "ffn_moe_probs_biased": "ffn_moe_probs_biased-{}.ADD",
    "attn_post_norm": "post_attn_norm-{}.MUL", "ffn_post_norm": "post_mlp_norm-{}.MUL", "token_embd_scaled": "embd.SCALE",
    "ffn_shexp_gate": "ffn_gate-{}.MUL_MAT", "ffn_shexp_up": "ffn_up-{}.MUL_MAT", "ffn_shexp_act": "ffn_swiglu-{}.GLU",
    "ffn_shexp": "ffn_shexp-{}.MUL_MAT", "ffn_shexp_logit": "ffn_shexp_gate_inp-{}.MUL_MAT", "ffn_shexp_share": "ffn_shexp_gate-{}.DIV",
    "ffn_shexp_gated": "ffn_shexp_out-{}.MUL", "ffn_out": "ffn_out-{}.ADD", "ffn_moe_logits": "ffn_moe_logits-{}.MUL_MAT",
    "ffn_moe_probs": "ffn_moe_probs-{}.SOFT_MAX", "ffn_moe_weights": "ffn_moe_weights-{}.GET_ROWS", "ffn_moe_gate": "ffn_moe_gate-{}.MUL_MAT_ID",
    "ffn_moe_up": "ffn_moe_up-{}.MUL_MAT_ID", "ffn_moe_act": "ffn_moe_swiglu-{}.GLU", "ffn_moe_down": "ffn_moe_down-{}.MUL_MAT_ID",
    "ffn_moe_out": "ffn_moe_out-{}.ADD", "attn_q_a": "q-{}.MUL_MAT", "attn_q_a_norm": "q-{}.MUL", "attn_q_absorbed": "q_nope_absorbed-{}.MUL_MAT",
    "attn_q_whole": "Qcur-{}.CONCAT", "attn_k_whole": "Kcur-{}.CONCAT", "attn_kv_a_norm": "kv_cmpr-{}.MUL", "attn_out_v": "kqv_out-{}.CONT",
}

LLAMA_CPP_LATENT = {"attn_q": "q-{}.MUL_MAT#2", "attn_q_rope": "q_pe-{}.ROPE", "attn_k_rope": "k_pe-{}.ROPE", "attn_out": "kqv-{}.MUL_MAT"}


def trace(ref, out):
    """A foreign-named trace."""
    tensors, steps, tokens = ref
    named = {}
    for name, values in tensors.items():
        layer, kind = layer_and_kind(name)
        if kind in LLAMA_CPP:
            named[LLAMA_CPP[kind].format(layer)] = values
    save_trace(out, "llama.cpp", named, steps, tokens)


def architecture(ref, out, swapped=False):
    """As the recorder of llama.cpp writes other architectures, by OUT's name: granite's kq without its scale of 1/16; Q, K, V and gate, up
    in one array where it says fused; no sum x + attention where both branches are added at once. `swapped`: up before gate."""
    tensors, steps, tokens = ref
    names = {**LLAMA_CPP, **LLAMA_CPP_OTHERS, **(LLAMA_CPP_LATENT if "blk.0.attn_q_a" in tensors else {})}
    side_by_side = out.name.startswith(("falcon", "command-r"))
    fused = [("wqkv-{}.MUL_MAT", ["attn_q", "attn_k", "attn_v"]), ("ffn_up-{}.MUL_MAT", ["ffn_up", "ffn_gate"] if swapped else ["ffn_gate", "ffn_up"])]
    fused = fused if "fused" in out.name else []
    if out.name.startswith(("glm4moe", "deepseek2")):
        names["ffn_moe_weights"] = "ffn_moe_weights_scaled-{}.SCALE"
    named = {}
    for name, values in tensors.items():
        layer, kind = layer_and_kind(name)
        whole = next(((to, parts) for to, parts in fused if kind in parts), None)
        if whole:
            rows = [tensors[f"blk.{layer}.{part}"].reshape(len(values), -1) for part in whole[1]]
            named[whole[0].format(layer)] = np.concatenate(rows, 1)
        elif kind == "attn_scores" and "granite" in out.name:
            named[f"kq-{layer}.MUL_MAT"] = values * np.float32(16)
        elif kind in names and not (kind == "ffn_inp" and side_by_side):
            named[names[kind].format(layer)] = values
    save_trace(out, "llama.cpp", named, steps, tokens)


def swapped(ref, out):
    architecture(ref, out, True)


HOOKS = {
    "token_embd": "model.embed_tokens", "attn_norm": "model.layers.{}.input_layernorm", "attn_q": "model.layers.{}.self_attn.q_proj",
    "attn_k": "model.layers.{}.self_attn.k_proj", "attn_v": "model.layers.{}.self_attn.v_proj", "attn_proj": "model.layers.{}.self_attn.0",
    "attn_weights": "model.layers.{}.self_attn.1", "ffn_norm": "model.layers.{}.post_attention_layernorm", "ffn_gate": "model.layers.{}.mlp.gate_proj",
    "ffn_up": "model.layers.{}.mlp.up_proj", "ffn_down": "model.layers.{}.mlp.down_proj", "l_out": "model.layers.{}.0", "output_norm": "model.norm",
    "logits": "lm_head", "ffn_act": "my.act{}", "ffn_inp": "my.mid{}",
}

VLLM = {**HOOKS, "attn_out": "model.layers.{}.self_attn.attn", "attn_proj": "model.layers.{}.self_attn.o_proj", "ffn_act": "model.layers.{}.mlp.act_fn",
        "logits": "logits_processor"}


def hooks(ref, out):
    """step_N/MODULE.npy as forward hooks save them: a batch axis, the outputs of modules with tuples as .0 and .1; two names are their own."""
    for s, step in enumerate(ref[1]):
        (out / f"step_{s}").mkdir(parents=True)
        for name, rows in rows_of_step(ref, HOOKS, *step, True).items():
            np.save(out / f"step_{s}" / f"{name}.npy", rows[None])
    (out / "tokens.txt").write_text(" ".join(map(str, ref[2])))


def vllm(ref, out):
    """step_N.npz of one rank: [n_tok, n], qkv_proj and gate_up_proj whole, logits of the last token alone."""
    out.mkdir()
    for s, step in enumerate(ref[1]):
        rows = rows_of_step(ref, VLLM, *step, True)
        for i in range(1 + max(int(layer_and_kind(n)[0] or 0) for n in ref[0])):
            p = f"model.layers.{i}."
            rows[p + "self_attn.qkv_proj"] = np.concatenate([rows.pop(f"{p}self_attn.{x}_proj") for x in "qkv"], 1)
            rows[p + "mlp.gate_up_proj"] = np.concatenate([rows.pop(f"{p}mlp.{x}_proj") for x in ("gate", "up")], 1)
        rows["logits_processor"] = rows["logits_processor"][-1:]
        np.savez(out / f"step_{s}", **{n: v for n, v in rows.items() if not re.fullmatch(r"model.layers.\d+.0|.*self_attn.1|my.*", n)})
    (out / "tokens.txt").write_text(" ".join(map(str, ref[2])))


ONNX = {
    "token_embd": "/model/embed_tokens/Gather/output_0", "attn_norm": "/model/layers.{}/input_layernorm/output_0",
    "attn_q": "/model/layers.{}/attn/q_proj/MatMul/output_0", "attn_k": "/model/layers.{}/attn/k_proj/MatMulNBits/output_0",
    "attn_v": "/model/layers.{}/attn/v_proj/MatMul_Q4/output_0", "attn_out": "/model/layers.{}/attn/GroupQueryAttention/output_0",
    "attn_proj": "/model/layers.{}/attn/o_proj/MatMul/output_0", "ffn_inp": "/model/layers.{}/post_attention_layernorm/output_3",
    "ffn_norm": "/model/layers.{}/post_attention_layernorm/output_0", "ffn_gate": "/model/layers.{}/mlp/gate_proj/MatMul/output_0",
    "ffn_up": "/model/layers.{}/mlp/up_proj/MatMul/output_0", "ffn_act": "/model/layers.{}/mlp/Mul/output_0",
    "ffn_down": "/model/layers.{}/mlp/down_proj/MatMul/output_0", "output_norm": "/model/layers.6/final_norm_layernorm/output_0", "logits": "logits",
}
# torch.onnx ends a tensor's name in _output_0, takes norms apart, and shows attention's weights.
TORCH_ONNX = {kind: name.replace("/output_0", "_output_0").replace("/attn/", "/self_attn/") for kind, name in ONNX.items()} | {
    "attn_norm": "/model/layers.{}/input_layernorm/Mul_1_output_0", "ffn_norm": "/model/layers.{}/post_attention_layernorm/Mul_1_output_0",
    "ffn_inp": "/model/layers.{}/Add_output_0", "l_out": "/model/layers.{}/Add_1_output_0", "output_norm": "/model/norm/Mul_1_output_0",
    "attn_weights": "/model/layers.{}/self_attn/Softmax_output_0",
}
TORCH_ONNX.pop("attn_out")


def present(ref, first, count):
    """present.N.key and .value: past and present together, [1, n_head_kv, all positions, head_dim]."""
    out = {}
    for name, values in ref[0].items():
        layer, kind = layer_and_kind(name)
        if kind in ("cache_k", "cache_v"):
            rows = values[:first + count]
            rows = halves(rows) if kind == "cache_k" else rows
            out[f"present.{layer}.{'key' if kind == 'cache_k' else 'value'}"] = rows.transpose(1, 0, 2)[None]
    return out


def onnx(ref, out):
    """step_N.npz by the names of onnxruntime-genai's model builder, a slash in front; what the gate's activation is before `up`."""
    out.mkdir()
    for s, step in enumerate(ref[1]):
        rows = {name: x[None] for name, x in rows_of_step(ref, ONNX, *step, True).items()}
        for name in [n for n in rows if "/gate_proj/" in n]:
            gate = rows[name].astype(np.float64)
            rows[name.replace("gate_proj/MatMul", "act_fn/SiLU")] = (gate / (1 + np.exp(-gate))).astype(np.float32)
        rows["/model/layers.6/final_norm_layernorm/output_3"] = at_step("l", ref[0]["blk.5.l_out"], *step)[None]
        for i in range(1, 6):
            rows[f"/model/layers.{i}/input_layernorm/output_3"] = at_step("l", ref[0][f"blk.{i - 1}.l_out"], *step)[None]
        np.savez(out / f"step_{s}", **rows, **present(ref, *step))
    (out / "tokens.txt").write_text(" ".join(map(str, ref[2])))


def torch_onnx(ref, out):
    """step_N/NAME.npy by the names of torch.onnx, underscores for slashes."""
    for s, step in enumerate(ref[1]):
        (out / f"step_{s}").mkdir(parents=True)
        for name, rows in {**rows_of_step(ref, TORCH_ONNX, *step, True), **present(ref, *step)}.items():
            np.save(out / f"step_{s}" / f"{name.strip('/').replace('/', '_')}.npy", rows if "present" in name else rows[None])
    (out / "tokens.txt").write_text(" ".join(map(str, ref[2])))


def torch_files(ref, out):
    """step_N.pt as hooks with torch.save write them: modules by name, a tuple where a module returns one, other objects among them."""
    out.mkdir()
    for s, step in enumerate(ref[1]):
        rows = {name: np.ascontiguousarray(rows[None], np.float32) for name, rows in rows_of_step(ref, HOOKS, *step, True).items()}
        for name in [n for n in rows if n.endswith("self_attn.0")]:
            rows[name[:-2]] = (rows.pop(name), rows.pop(name[:-1] + "1"), None)
        save_torch(out / f"step_{s}.pt", {"engine": "mine", "when": fractions.Fraction(1, 3), **rows})
    (out / "tokens.txt").write_text(" ".join(map(str, ref[2])))
