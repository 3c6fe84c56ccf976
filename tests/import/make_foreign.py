#!/usr/bin/env python3
"""make_foreign.py FORM REF.h5 OUT: the tensors of a trace as other engines leave them.

The elements are the same, so that what `firstdiff import` makes of OUT must be equal to REF in every bit. REF is of a llama
model (RoPE on neighbours), with a prefill and decode steps.
"""
import sys
import zipfile
from pathlib import Path

import numpy as np
from foreign_engines import architecture, debugger, hooks, llama2c, onnx, swapped, torch_files, torch_onnx, trace, vllm
from foreign_parts import at_step, over_kv, read, rows_of_step, save_safetensors, whole


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


SHORT = {"token_embd": "emb", "attn_q": "L{}_q", "attn_k": "L{}_k", "attn_v": "L{}_v", "attn_out": "L{}_mix", "attn_proj": "L{}_o", "ffn_gate": "L{}_g",
         "ffn_up": "L{}_u", "ffn_down": "L{}_d", "l_out": "L{}_x", "logits": "head"}


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


def raw(ref, out, names=SHORT):
    """step_N/NAME.bin, numbers alone."""
    for s, step in enumerate(ref[1]):
        (out / f"step_{s}").mkdir(parents=True)
        for name, rows in rows_of_step(ref, names, *step, False).items():
            rows.tofile(out / f"step_{s}" / f"{name}.bin")
    (out / "tokens.txt").write_text(" ".join(map(str, ref[2])))


def calls(ref, out):
    """0.npz, 1.npz, …: an archive a call."""
    out.mkdir()
    for s, step in enumerate(ref[1]):
        np.savez(out / f"{s}.npz", **rows_of_step(ref, SHORT, *step, False))
    (out / "tokens.txt").write_text(" ".join(map(str, ref[2])))


def counted(ref, out, folder="step_{}"):
    """step_N/0042_NAME.npy: a counter of what was written stands in front."""
    n = 0
    for s, step in enumerate(ref[1]):
        (out / folder.format(s)).mkdir(parents=True, exist_ok=True)
        for name, rows in rows_of_step(ref, SHORT, *step, False).items():
            np.save(out / folder.format(s) / f"{n:04d}_{name}.npy", rows)
            n += 1
    (out / "tokens.txt").write_text(" ".join(map(str, ref[2])))


def counted_alone(ref, out):
    """The same in one folder: how often a name comes says which call it is of."""
    counted(ref, out, ".")


def own_paths(ref, out):
    """The same, paths as transformers' with words of the engine's own at their ends."""
    at = "model.layers.{}."
    raw(ref, out, {"token_embd": "model.embed_tokens", "attn_norm": at + "input_layernorm", "attn_q": at + "self_attn.q", "attn_k": at + "self_attn.k",
                   "attn_v": at + "self_attn.v", "attn_q_rope": at + "self_attn.q_rot", "attn_k_rope": at + "self_attn.k_rot", "attn_scores": at + "self_attn.scores",
                   "attn_out": at + "self_attn.ctx", "attn_proj": at + "self_attn.o", "ffn_norm": at + "post_attention_layernorm",
                   "ffn_act": at + "mlp.h", "ffn_down": at + "mlp.down", "l_out": at + "output", "logits": "lm_head"})


def ends(ref, out):
    """NAME_N.npy, a row for each position N."""
    out.mkdir()
    for pos in range(len(ref[2])):
        for name, rows in rows_of_step(ref, SHORT, pos, 1, False).items():
            np.save(out / f"{name}_{pos}.npy", rows[0])
    (out / "tokens.txt").write_text(" ".join(map(str, ref[2])))


def appended(ref, out, save=lambda path, rows: rows.tofile(f"{path}.bin")):
    """NAME.bin, each call's rows after those of the one before; of logits the last token's of each call."""
    out.mkdir()
    last = [first + count - 1 for first, count in ref[1]]
    for name, rows in rows_of_step(ref, SHORT, 0, len(ref[2]), False).items():
        save(out / name, rows[last] if name == "head" else rows)
    (out / "tokens.txt").write_text(" ".join(map(str, ref[2])))


def chunked(ref, out):
    """The same of an engine that took the prompt in two calls, which nothing says."""
    appended((ref[0], [(0, 3), (3, 3), (6, 1)], ref[2]), out)


def appended_npy(ref, out):
    """The same, with a shape."""
    appended(ref, out, np.save)


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


FORMS = {f.__name__: f for f in (npy_tree, npz, zip64, safetensors, debugger, llama2c, trace, architecture, swapped, own, caches, flat, hooks, vllm, phases, words16, torch_files, onnx, torch_onnx, raw, own_paths, calls, counted, counted_alone, ends, appended, appended_npy, chunked)}

if __name__ == "__main__":
    FORMS[sys.argv[1]](read(sys.argv[2]), Path(sys.argv[3]))
