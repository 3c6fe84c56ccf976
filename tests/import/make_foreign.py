#!/usr/bin/env python3
"""make_foreign.py FORM REF.h5 OUT: the tensors of a trace as other engines leave them.

The elements are the same, so that what `firstdiff import` makes of OUT must be equal to REF in every bit. REF is of a llama
model (RoPE on neighbours), with a prefill and decode steps.
"""
import collections
import fractions
import io
import json
import pickle
import re
import struct
import sys
import types
import zipfile
from pathlib import Path

import h5py
import numpy as np


def read(path):
    """Name -> array [n_pos, ...] of a trace, the steps (first, count) and the tokens."""
    with h5py.File(path) as f:
        tensors = {name: f["tensors"][name][()] for name in f["tensors"]}
        return tensors, [(int(s["first"]), int(s["count"])) for s in f["steps"]], f["tokens"][()]


def over_kv(name):
    return name.endswith(("attn_scores", "attn_weights"))


def at_step(name, values, first, count):
    """The rows of a step; attention has the keys up to its end, 3 more as padding, and the heads in front."""
    rows = values[first : first + count]
    if not over_kv(name):
        return rows
    keys = np.zeros((count, rows.shape[1], first + count + 3), rows.dtype)
    keys[:, :, : first + count] = rows[:, :, : first + count]
    return keys.transpose(1, 0, 2)


def halves(values):
    """Neighbouring pairs of every head to halves, as transformers has them."""
    return np.concatenate([values[..., 0::2], values[..., 1::2]], -1)


def save_safetensors(path, tensors):
    header, at = {}, 0
    for name, values in tensors.items():
        header[name] = {"dtype": {"f": "F32", "i": "I64"}[values.dtype.kind], "shape": values.shape, "data_offsets": [at, at + values.nbytes]}
        at += values.nbytes
    text = json.dumps(header).encode()
    body = b"".join(np.ascontiguousarray(v).tobytes() for v in tensors.values())
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


# ---- forms: (reference) -> OUT ----

def npy_tree(ref, out):
    """step_N/NAME.npy: column-major, big-endian and binary64 by turns, a batch axis; tokens.txt."""
    tensors, steps, tokens = ref
    for s, (first, count) in enumerate(steps):
        (out / f"step_{s}").mkdir(parents=True)
        for i, (name, values) in enumerate(tensors.items()):
            rows = at_step(name, values, first, count)[None]
            form = [np.asfortranarray, lambda a: a.astype(">f4"), lambda a: a.astype("<f8"), np.ascontiguousarray][i % 4]
            np.save(out / f"step_{s}" / f"{name}.npy", form(rows))
    (out / "tokens.txt").write_text(", ".join(map(str, tokens)) + "\n")


def npz(ref, out):
    """One compressed archive of a single prefill; the tokens inside."""
    tensors, _, tokens = ref
    np.savez_compressed(out, tokens=np.asarray(tokens, np.int64), **tensors)


def zip64(ref, out):
    """The same with 64-bit sizes throughout, stored."""
    tensors, _, tokens = ref
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as z:
        for name, values in {"tokens": tokens, **tensors}.items():
            with z.open(f"{name}.npy", "w", force_zip64=True) as f:
                np.lib.format.write_array(f, np.asarray(values))


def safetensors(ref, out):
    """One file, steps in front of the names."""
    tensors, steps, _ = ref
    save_safetensors(out, {f"s{s}.{n}": np.ascontiguousarray(at_step(n, v, *step)) for s, step in enumerate(steps)
                           for n, v in tensors.items()})


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


def save_trace(out, names, tensors, steps, tokens):
    """Positions first, `names` says which map."""
    with h5py.File(out, "w") as f:
        f.attrs["schema"], f.attrs["version"], f.attrs["names"] = "firstdiff-trace", 1, names
        f["tokens"] = np.asarray(tokens, np.int32)
        f["steps"] = np.array([(a, n, int(i > 0), 2) for i, (a, n) in enumerate(steps)],
                              [("first", "<i4"), ("count", "<i4"), ("kind", "<i4"), ("level", "<i4")])
        for name, values in tensors.items():
            f["tensors/" + name] = values


def layer_and_kind(name):
    return (name.split(".")[1], name.split(".")[2]) if name.startswith("blk.") else ("", name)


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


def own(ref, out):
    """An engine of one's own: Q, K and V in one array with the heads last but one, transposed heads, a scaled score, K and V
    caches, a copy under a second name, and a mixture of two tensors that is neither."""
    tensors, _, tokens = ref
    out.mkdir()
    (out / "tokens.txt").write_text(" ".join(map(str, tokens)))
    flat = {n: v.reshape(len(v), -1) if not over_kv(n) else v for n, v in tensors.items()}
    layers = 1 + max(int(n.split(".")[1]) for n in tensors if n.startswith("blk."))
    for i in range(layers):
        b = f"blk.{i}."
        np.save(out / f"L{i}_qkv.npy", np.concatenate([flat[b + "attn_q"], flat[b + "attn_k"], flat[b + "attn_v"]], 1))
        np.save(out / f"L{i}_rot_q.npy", tensors[b + "attn_q_rope"].transpose(0, 2, 1))
        np.save(out / f"L{i}_dots.npy", tensors[b + "attn_scores"].transpose(1, 0, 2) * np.float32(4))
        np.save(out / f"L{i}_kcache.npy", flat[b + "cache_k"])
        np.save(out / f"L{i}_hidden.npy", flat[b + "l_out"])
    np.save(out / "mix.npy", flat["blk.1.l_out"] / np.linalg.norm(flat["blk.1.l_out"]) +
            flat["blk.4.l_out"] / np.linalg.norm(flat["blk.4.l_out"]))


HOOKS = {
    "token_embd": "model.embed_tokens", "attn_norm": "model.layers.{}.input_layernorm", "attn_q": "model.layers.{}.self_attn.q_proj",
    "attn_k": "model.layers.{}.self_attn.k_proj", "attn_v": "model.layers.{}.self_attn.v_proj", "attn_proj": "model.layers.{}.self_attn.0",
    "attn_weights": "model.layers.{}.self_attn.1", "ffn_norm": "model.layers.{}.post_attention_layernorm", "ffn_gate": "model.layers.{}.mlp.gate_proj",
    "ffn_up": "model.layers.{}.mlp.up_proj", "ffn_down": "model.layers.{}.mlp.down_proj", "l_out": "model.layers.{}.0", "output_norm": "model.norm",
    "logits": "lm_head", "ffn_act": "my.act{}", "ffn_inp": "my.mid{}",
}
VLLM = {**HOOKS, "attn_out": "model.layers.{}.self_attn.attn", "attn_proj": "model.layers.{}.self_attn.o_proj", "ffn_act": "model.layers.{}.mlp.act_fn",
        "logits": "logits_processor"}
SHORT = {"token_embd": "emb", "attn_q": "L{}_q", "attn_k": "L{}_k", "attn_v": "L{}_v", "attn_out": "L{}_mix", "attn_proj": "L{}_o", "ffn_gate": "L{}_g",
         "ffn_up": "L{}_u", "ffn_down": "L{}_d", "l_out": "L{}_x", "logits": "head"}


def rows_of_step(ref, names, first, count, turn):
    """{their name: [count, n]}; Q and K in halves where `turn`."""
    out = {}
    for name, values in ref[0].items():
        layer, kind = layer_and_kind(name)
        if kind not in names:
            continue
        rows = at_step(name, values, first, count)
        rows = halves(rows) if turn and kind in ("attn_q", "attn_k") else rows
        out[names[kind].format(layer)] = rows if over_kv(name) else rows.reshape(count, -1)
    return out


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


def phases(ref, out):
    """prefill.npz, decode_1.npz, decode_2.npz, names of one's own."""
    out.mkdir()
    for s, step in enumerate(ref[1]):
        np.savez(out / (f"decode_{s}" if s else "prefill"), **rows_of_step(ref, SHORT, *step, False))
    (out / "tokens.txt").write_text(" ".join(map(str, ref[2])))


def words16(ref, out):
    """bfloat16 as uint16, in names that do not say so."""
    out.mkdir()
    for name, rows in rows_of_step(ref, SHORT, 0, len(ref[2]), False).items():
        bits = rows.astype(np.float32).view(np.uint32)
        np.save(out / f"{name}.npy", ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16))
    (out / "tokens.txt").write_text(" ".join(map(str, ref[2])))


def save_torch(path, objects):
    """What torch.save writes, without torch: a pickle of stand-ins with its classes' names, storages in files of their own."""
    torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")
    storage = type("FloatStorage", (), {"__module__": "torch", "__init__": lambda self, key, values: self.__dict__.update(key=key, values=values)})
    rebuild = types.FunctionType((lambda *_: None).__code__, {}, "_rebuild_tensor_v2")
    rebuild.__module__, rebuild.__qualname__, torch.FloatStorage, utils._rebuild_tensor_v2 = "torch._utils", "_rebuild_tensor_v2", storage, rebuild
    storages = []

    class Tensor:
        def __init__(self, values):
            self.shape = values.shape
            self.storage = storage(str(len(storages)), np.ascontiguousarray(values))
            storages.append(self.storage)

        def __reduce__(self):
            strides = tuple(int(np.prod(self.shape[i + 1 :])) for i in range(len(self.shape)))
            return rebuild, (self.storage, 0, self.shape, strides, False, collections.OrderedDict())

    class Pickler(pickle.Pickler):
        def persistent_id(self, value):
            return ("storage", storage, value.key, "cpu", value.values.size) if isinstance(value, storage) else None

    def wrap(value):
        if isinstance(value, (dict, tuple)):
            return {k: wrap(v) for k, v in value.items()} if isinstance(value, dict) else tuple(map(wrap, value))
        return Tensor(value) if isinstance(value, np.ndarray) else value

    sys.modules.update({"torch": torch, "torch._utils": utils})
    text = io.BytesIO()
    Pickler(text, 2).dump(wrap(objects))
    del sys.modules["torch"], sys.modules["torch._utils"]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as z:
        z.writestr("archive/data.pkl", text.getvalue())
        z.writestr("archive/byteorder", "little")
        for s in storages:
            z.writestr(f"archive/data/{s.key}", s.values.tobytes())


def torch_files(ref, out):
    """step_N.pt as hooks with torch.save write them: modules by name, a tuple where a module returns one, other objects among them."""
    out.mkdir()
    for s, step in enumerate(ref[1]):
        rows = {name: np.ascontiguousarray(rows[None], np.float32) for name, rows in rows_of_step(ref, HOOKS, *step, True).items()}
        for name in [n for n in rows if n.endswith("self_attn.0")]:
            rows[name[:-2]] = (rows.pop(name), rows.pop(name[:-1] + "1"), None)
        save_torch(out / f"step_{s}.pt", {"engine": "mine", "when": fractions.Fraction(1, 3), **rows})
    (out / "tokens.txt").write_text(" ".join(map(str, ref[2])))


def raw(ref, out):
    """Numbers alone."""
    out.mkdir()
    for name, rows in rows_of_step(ref, SHORT, 0, len(ref[2]), False).items():
        rows.tofile(out / f"{name}.bin")


def whole(rows, end):
    """A cache of 24 positions, filled up to `end`."""
    return np.concatenate([rows[:end], np.zeros((24 - end, *rows.shape[1:]), rows.dtype)])


def caches(ref, out):
    """step_N.npz: whole caches, K with the heads in front, V transposed; logits of the last token alone, without dimensions."""
    tensors, steps, tokens = ref
    out.mkdir()
    (out / "tokens.txt").write_text(" ".join(map(str, tokens)))
    for s, (first, count) in enumerate(steps):
        step = {}
        for node, values in tensors.items():
            name = node.replace("blk.", "h")
            if node.endswith("cache_k"):
                step[name.replace("cache_k", "kc")] = whole(values, first + count).transpose(1, 0, 2)
            elif node.endswith("cache_v"):
                step[name.replace("cache_v", "vc")] = whole(values, first + count).reshape(24, -1).T
            elif node == "logits":
                step["head"] = values[first + count - 1]
            else:
                step[name] = at_step(node, values, first, count)
        np.savez(out / f"step_{s}", **step)


def flat(ref, out):
    """step_N/NAME.npy, nothing has dimensions: neither rows of tokens nor whole caches nor attention."""
    tensors, steps, tokens = ref
    for s, (first, count) in enumerate(steps):
        (out / f"step_{s}").mkdir(parents=True)
        for name, values in tensors.items():
            rows = whole(values, first + count) if "cache_" in name else at_step(name, values, first, count)
            np.save(out / f"step_{s}" / f"x_{name.replace('blk.', 'h')}.npy", np.ascontiguousarray(rows).ravel())
    (out / "tokens.txt").write_text(" ".join(map(str, tokens)))


FORMS = {f.__name__: f for f in (npy_tree, npz, zip64, safetensors, debugger, llama2c, trace, architecture, swapped, own, caches, flat, hooks, vllm, phases, words16, torch_files, raw)}

if __name__ == "__main__":
    FORMS[sys.argv[1]](read(sys.argv[2]), Path(sys.argv[3]))
