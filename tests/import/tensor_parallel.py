"""A tensor-parallel engine in NumPy: examples/numpy's, with the heads of attention and the FFN's columns split over ranks,
sums after attn_output and ffn_down, the embedding and the logits split by vocabulary. Every rank dumps what it has.

    tensor_parallel.py EXAMPLES MODEL.gguf OUT RANKS FORM [BUG[@LAYER]]

FORM: folders (rank0/…), sglang (its dumper's names) or vllm (its logging's, q k v and gate up in one array)."""

import sys
from pathlib import Path

import numpy as np

examples, model, out, n_rank, form, *bug = sys.argv[1:]
sys.path.insert(0, examples)
from engine import Engine, f32  # noqa: E402

n_rank, out = int(n_rank), Path(out)
bug, _, at = (bug or [""])[0].partition("@")
tokens = [1, 300, 45, 261, 9, 77, 512, 511]
e = Engine(model)
heads, kv_heads, dim = e.n_head // n_rank, max(1, e.n_head_kv // n_rank), e.head_dim
copies = max(1, n_rank // e.n_head_kv)  # ranks that share K/V heads


def has(name):
    return bug == name and (not at or e.layer == int(at))


VLLM = {"token_embd": "model.embed_tokens/outputs", "output_norm": "model.norm/outputs_0", "logits": "logits_processor/outputs",
        "attn_norm": "input_layernorm/outputs_0", "qkv": "self_attn.qkv_proj/outputs_0", "attn_out": "self_attn.attn/outputs",
        "attn_q_rope": "self_attn.rotary_emb/outputs_0", "attn_k_rope": "self_attn.rotary_emb/outputs_1",
        "attn_proj": "self_attn.o_proj/outputs_0", "ffn_norm": "post_attention_layernorm/outputs_0",
        "ffn_inp": "post_attention_layernorm/outputs_1", "gate_up": "mlp.gate_up_proj/outputs_0", "ffn_act": "mlp.act_fn/outputs",
        "ffn_down": "mlp.down_proj/outputs_0", "l_out": "input_layernorm/outputs_1"}
step, index = 0, 0


def halves(x):
    """Heads as an engine has them that always turns halves; the GGUF's turn neighbours where the architecture does."""
    return x if e.rope_halves else np.concatenate([x[..., 0::2], x[..., 1::2]], -1)


def put(name, rows):
    """rows[r]: what rank r has."""
    global index
    for r in range(n_rank):
        layer = e.layer
        x = np.asarray(rows[r], f32)
        if form == "folders":
            path = out / f"rank{r}" / f"s{step}.{f'blk.{layer}.' if layer >= 0 else ''}{name}.npy"
        elif form == "sglang":
            kind = f"___layer_id={layer}" if layer >= 0 else ""
            path = out / f"step={step}___rank={r}___dump_index={index}___name={name}{kind}.npy"
        else:
            if name not in VLLM:
                continue
            if name in ("attn_q_rope", "attn_k_rope"):
                x = halves(x)
            if name == "l_out":
                layer += 1
            module = VLLM[name] if layer < 0 else f"model.layers.{layer}.{VLLM[name]}"
            if layer == e.n_layer:
                module = "model.norm/outputs_1"
            path = out / f"step_{step}" / f"{module}_cuda_{r}.npy"
            x = x.reshape(len(x), -1)
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, x)
        index += 1
    return rows


def shared(r, n, size):
    """Rank r's part of n rows, `size` each at most."""
    return slice(r * size, min(n, (r + 1) * size))


def all_reduce(parts, name):
    """The sum on every rank, in one order."""
    parts = list(parts)
    kept = parts[1].copy()
    if has(f"{name}_missing"):
        parts[1] = np.zeros_like(kept)
    if has(f"{name}_twice"):
        parts[1] = 2 * kept
    total = parts[0]
    for p in parts[1:]:
        total = total + p
    result = [total.copy() for _ in parts]
    if has(f"{name}_stale"):  # rank 1 reads the buffer before the reduction of this row came
        result[1][1:] = total[:-1]
    if has(f"{name}_unreduced"):
        result = parts
    if has(f"{name}_mean"):
        result = [t / f32(len(parts)) for t in result]
    return result


def weight(part):
    return e.weight(f"blk.{e.layer}.{part}.weight")


def bias(part, rows):
    b = e.weight(f"blk.{e.layer}.{part}.bias")
    return 0 if b is None else b[rows]


def embed(ids):
    table = e.weight("token_embd.weight")
    size, parts = -(-len(table) // n_rank), []
    for r in range(n_rank):
        start = r * size - (1 if bug == "vocabulary_off_by_one" and r else 0)
        mine = [r * size <= t < (r + 1) * size for t in ids]
        if bug == "vocabulary_overlap" and r:
            mine = [r * size - 1 <= t < (r + 1) * size for t in ids]
        rows = np.array([table[(t - start + r * size) % len(table)] if m else np.zeros(e.n_embd, f32) for t, m in zip(ids, mine)])
        parts.append(rows.astype(f32))
    if form == "folders":
        put("token_embd", parts)
    x = all_reduce(parts, "embed")
    return x if form == "folders" else put("token_embd", x)



def attention(x, caches):
    q, k, v = [], [], []
    for r in range(n_rank):
        kv = r // copies if copies > 1 else r
        if has("kv_in_turn"):
            kv = r % e.n_head_kv
        rows_q, rows_kv = slice(r * heads * dim, (r + 1) * heads * dim), slice(kv * kv_heads * dim, (kv + 1) * kv_heads * dim)
        q.append((x[r] @ weight("attn_q")[rows_q].T + bias("attn_q", rows_q)).reshape(len(x[r]), heads, dim))
        k.append((x[r] @ weight("attn_k")[rows_kv].T + bias("attn_k", rows_kv)).reshape(len(x[r]), kv_heads, dim))
        v.append((x[r] @ weight("attn_v")[rows_kv].T + bias("attn_v", rows_kv)).reshape(len(x[r]), kv_heads, dim))
    if has("q_stale"):
        q[1][1:] = q[1][:-1].copy()
    if form == "vllm":
        put("qkv", [np.concatenate([halves(a).reshape(len(a), -1), halves(b).reshape(len(b), -1), c.reshape(len(c), -1)], 1)
                    for a, b, c in zip(q, k, v)])
    else:
        put("attn_q", q), put("attn_k", k), put("attn_v", v)
    q = put("attn_q_rope", [e.rotate(t, "q") for t in q])
    k = put("attn_k_rope", [e.rotate(t, "k") for t in k])
    result = []
    for r in range(n_rank):
        cache = caches[r][e.layer]
        cache[0] = np.concatenate([cache[0], k[r]])
        cache[1] = np.concatenate([cache[1], v[r]])
        keys, values = (t[:, np.arange(heads) // (heads // kv_heads)] for t in cache)
        s = np.einsum("qhd,khd->hqk", q[r], keys).astype(f32) * e.scale
        p = e.softmax(np.where(e.visible(len(keys)), s, f32(-np.inf)))
        result.append(np.einsum("hqk,khd->qhd", p, values).astype(f32))
    put("attn_out", result)
    parts = [result[r].reshape(len(x[r]), -1) @ weight("attn_output")[:, shared(r, e.n_head * dim, heads * dim)].T
             for r in range(n_rank)]
    if form == "folders":  # as a hook before the all-reduce sees it
        return reduced(put("attn_proj", parts), "proj")
    return put("attn_proj", reduced(parts, "proj"))


def reduced(parts, name):
    return all_reduce(parts, name)


def ffn(x):
    n = weight("ffn_gate").shape[0]
    size = -(-n // n_rank)
    gate = [x[r] @ weight("ffn_gate")[shared(r, n, size)].T for r in range(n_rank)]
    up = [x[r] @ weight("ffn_up")[shared(r, n, size)].T for r in range(n_rank)]
    if form == "vllm":
        put("gate_up", [np.concatenate([g, u], 1) for g, u in zip(gate, up)])
    else:
        put("ffn_gate", gate), put("ffn_up", up)
    act = put("ffn_act", [e.activate(g, u) for g, u in zip(gate, up)])
    parts = [act[r] @ weight("ffn_down")[:, shared(r, n, size)].T for r in range(n_rank)]
    if has("down_alike"):  # every rank has the whole product, and they are added up all the same
        parts = [sum(parts)] * n_rank
    if form == "folders":
        return reduced(put("ffn_down", parts), "down")
    return put("ffn_down", reduced(parts, "down"))


def forward(ids, caches):
    first = len(e.pos) and e.pos[-1] + 1
    e.pos, e.layer = np.arange(first, first + len(ids)), -1
    x = embed(ids)
    for e.layer in range(e.n_layer):
        name = f"blk.{e.layer}."
        normed = put("attn_norm", [e.norm(t, name + "attn_norm.weight") for t in x])
        branch = attention(normed, caches)
        times = f32(n_rank if has("stream_on_every_rank") else 1)  # added before the all-reduce
        x = put("ffn_inp", [times * a + b for a, b in zip(x, branch)])
        normed = [e.norm(t, name + "ffn_norm.weight") for t in x]
        if has("norm_on_one_rank"):
            normed[1] = normed[1] * f32(1.02)
        put("ffn_norm", normed)
        x = put("l_out", [a + b for a, b in zip(x, ffn(normed))])
    e.layer = -1
    x = put("output_norm", [e.norm(t, "output_norm.weight") for t in x])
    table = e.weight("output.weight")
    table = e.weight("token_embd.weight") if table is None else table
    size = -(-len(table) // n_rank)
    logits = []
    for r in range(n_rank):  # the last rank's is padded, as production engines do
        rows = np.zeros((size, e.n_embd), f32)
        shift = 1 if bug == "logits_off_by_one" and r else 0
        mine = table[r * size + shift : (r + 1) * size + shift]
        rows[: len(mine)] = mine
        logits.append(x[r] @ rows.T)
    if form == "vllm":  # gathered and cut to the vocabulary
        put("logits", [np.concatenate(logits, 1)[:, : len(table)]] * n_rank)
    else:
        put("logits", logits)


caches = [[[np.zeros((0, kv_heads, dim), f32)] * 2 for _ in range(e.n_layer)] for _ in range(n_rank)]
caches = [[list(layer) for layer in rank] for rank in caches]
out.mkdir()
(out / "tokens.txt").write_text(",".join(map(str, tokens)))
for ids in (tokens[:-1], tokens[-1:]):
    forward(ids, caches)
    step += 1
