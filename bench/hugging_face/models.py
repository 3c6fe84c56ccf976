"""transformers' models of GGUFs, of architectures that transformers' own reader of GGUFs does not know as well: a configuration from the file's
keys, and the file's weights, dequantised, under the modules' names and in their order.

    build("granite.gguf", "bfloat16", "sdpa")

What `firstdiff make-model --arch NAME` writes is read: NAME is a row of ARCHITECTURES. gpt2, gptneox, phi2, bloom and mpt want
`--kv-heads 4` (there K and V have as many heads as Q), bloom and mpt `--ff 1024` (four times the width); DeepSeek's class norms compressed
Q and K with an eps of 1e-6 whatever its configuration says (`--set attention.layer_norm_rms_epsilon=1e-6`)."""

import re
from collections import namedtuple

import numpy as np
import torch
import transformers
from gguf import GGUFReader, dequantize

Sizes = namedtuple("Sizes", "n_layer n_embd n_head n_head_kv head_dim n_ff rope_base eps")
# The class; what its configuration has besides what all have, from keys and sizes; names of a layer's parts and of those outside; where layers
# stand; are Q's and K's rows in halves where the GGUF's are neighbours; do norms lack the GGUF's 1; the rest, done to the weights.
Architecture = namedtuple(
    "Architecture", "cls config parts ends layers halves minus_one finish", defaults=(None, {}, {}, "model.layers.", False, False, None)
)

PARTS = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm", "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj", "ffn_gate_inp": "mlp.gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj", "ffn_up_shexp": "mlp.shared_expert.up_proj", "ffn_down_shexp": "mlp.shared_expert.down_proj",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate", "attn_qkv": "self_attn.qkv_proj", "attn_sinks": "self_attn.sinks", "exp_probs_b": "mlp.gate.e_score_correction_bias",
}  # fmt: skip
ENDS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
POST_NORM = {"post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}
FOUR_NORMS = {**POST_NORM, "ffn_norm": "pre_feedforward_layernorm"}
SHARED = {f"ffn_{part}_shexp": f"mlp.shared_experts.{part}_proj" for part in ("gate", "up", "down")}
GPT = {"attn_norm": "ln_1", "ffn_norm": "ln_2", "attn_qkv": "attn.c_attn", "attn_output": "attn.c_proj", "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"}
DENSE = {"ffn_norm": "post_attention_layernorm", "ffn_up": "mlp.dense_h_to_4h", "ffn_down": "mlp.dense_4h_to_h"}


# ---- configurations ----


def experts(k, s):
    n = k["expert_count"]
    return {
        "num_experts": n, "num_local_experts": n, "n_routed_experts": n, "num_experts_per_tok": k["expert_used_count"],
        "moe_intermediate_size": k.get("expert_feed_forward_length", s.n_ff), "decoder_sparse_step": 1, "mlp_only_layers": [],
    }  # fmt: skip


def chosen_by_sigmoid(k, s):
    return {**experts(k, s), "n_shared_experts": k["expert_shared_count"], "first_k_dense_replace": k["leading_dense_block_count"],
            "routed_scaling_factor": k["expert_weights_scale"], "norm_topk_prob": True, "n_group": k.get("expert_group_count", 1),
            "topk_group": k.get("expert_group_used_count", 1)}  # fmt: skip


def windows(k, s, every):
    """Of every so many layers the last sees all keys."""
    kinds = ["full_attention" if i % every == every - 1 else "sliding_attention" for i in range(s.n_layer)]
    return {"sliding_window": k["attention.sliding_window"], "layer_types": kinds}


def gemma(k, s):
    return {"hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": s.head_dim}


def gemma3(k, s):
    ropes = {"full_attention": s.rope_base, "sliding_attention": 10000.0}
    return {**gemma(k, s), **windows(k, s, 6), "rope_parameters": {kind: {"rope_type": "default", "rope_theta": base} for kind, base in ropes.items()}}


def multipliers(k, s):
    names = {"embedding_multiplier": "embedding_scale", "residual_multiplier": "residual_scale", "logits_scaling": "logit_scale", "attention_multiplier": "attention.scale"}
    return {**{name: k[key] for name, key in names.items()}, "num_local_experts": k.get("expert_count"), "num_experts_per_tok": k.get("expert_used_count"),
            "shared_intermediate_size": k.get("expert_shared_feed_forward_length")}  # fmt: skip


def latent(k, s):
    n_rope = k["rope.dimension_count"]
    return {**chosen_by_sigmoid(k, s), "num_key_value_heads": s.n_head, "q_lora_rank": k["attention.q_lora_rank"], "kv_lora_rank": k["attention.kv_lora_rank"],
            "qk_nope_head_dim": k["attention.key_length_mla"] - n_rope, "qk_rope_head_dim": n_rope, "v_head_dim": k["attention.value_length_mla"],
            "head_dim": n_rope, "rope_interleave": True, "partial_rotary_factor": 1.0}  # fmt: skip


def gpt2(k, s):
    return {"n_embd": s.n_embd, "n_head": s.n_head, "n_layer": s.n_layer, "n_positions": k["context_length"], "n_inner": s.n_ff}


def bloom(k, s):
    return {"n_layer": s.n_layer, "n_head": s.n_head}


def mpt(k, s):
    attention = {"clip_qkv": k.get("attention.clamp_kqv"), "alibi": True, "alibi_bias_max": 8, "attn_impl": "torch"}
    return {"d_model": s.n_embd, "n_heads": s.n_head, "n_layers": s.n_layer, "expansion_ratio": s.n_ff // s.n_embd, "max_seq_len": k["context_length"], "attn_config": attention}


def always(**values):
    return lambda k, s: values


# ---- weights that are not as the GGUF has them ----


def each_layer(change):
    def finish(state, w, s):
        for i in range(s.n_layer):
            change(state, {name.removeprefix(f"blk.{i}."): rows for name, rows in w.items()}, i, s)

    return finish


def gate_and_up(state, w, i, s):
    state[f"model.layers.{i}.mlp.gate_up_proj.weight"] = state.pop(f"model.layers.{i}.mlp.up_proj.weight")


def granite_experts(state, w, i, s):
    part = f"model.layers.{i}."
    for name in [name for name in state if name.startswith(f"{part}mlp.")]:
        state[name.replace(".mlp.", ".block_sparse_moe.").replace("moe.gate.", "moe.router.")] = state.pop(name)
    state[f"{part}shared_mlp.input_linear.weight"] = torch.cat([w["ffn_gate_shexp.weight"], w["ffn_up_shexp.weight"]])
    state[f"{part}shared_mlp.output_linear.weight"] = w["ffn_down_shexp.weight"]
    for name in [name for name in state if ".shared_expert." in name]:
        del state[name]


def gpt_oss_experts(state, w, i, s):
    part = f"model.layers.{i}.mlp."
    for kind, name in (("weight", ""), ("bias", "_bias")):
        in_turn = torch.stack([w[f"ffn_gate_exps.{kind}"], w[f"ffn_up_exps.{kind}"]], 2).flatten(1, 2)
        down = w[f"ffn_down_exps.{kind}"]
        state[f"{part}experts.gate_up_proj{name}"] = in_turn if name else in_turn.transpose(1, 2)
        state[f"{part}experts.down_proj{name}"] = down if name else down.transpose(1, 2)
        state[f"{part}router.{kind}"] = state.pop(f"{part}gate.{kind}")


def latent_kv(state, w, i, s):
    both = torch.cat([w["attn_k_b.weight"].transpose(1, 2), w["attn_v_b.weight"]], 1)
    state[f"model.layers.{i}.self_attn.kv_b_proj.weight"] = both.reshape(-1, both.shape[-1])


def transposed(state, w, s):
    for name in [name for name in state if re.search(r"(c_attn|c_proj|c_fc)\.weight", name)]:
        state[name] = state[name].T


def by_heads(state, w, s):
    """Q, K and V as each K/V head has them."""
    for name in [name for name in state if "query_key_value" in name]:
        parts = state[name].split([s.n_head * s.head_dim, s.n_head_kv * s.head_dim, s.n_head_kv * s.head_dim])
        state[name] = torch.cat([part.reshape(s.n_head_kv, -1, *part.shape[1:]) for part in parts], 1).reshape(state[name].shape)


def q_k_v(state, w, s):
    for name in [name for name in state if ".qkv_proj." in name]:
        for part, rows in zip("qkv", state.pop(name).chunk(3), strict=True):
            state[name.replace(".qkv_proj.", f".{part}_proj.")] = rows


# ---- architectures ----

A = Architecture
ARCHITECTURES = {
    "llama": A("Llama", halves=True),
    "mixtral": A("Mixtral", lambda k, s: {**experts(k, s), "sliding_window": None}, halves=True),  # a llama with experts
    "mistral3": A("Ministral3", lambda k, s: {"sliding_window": None, "rope_parameters": {"rope_type": "default", "rope_theta": s.rope_base, "llama_4_scaling_beta": 0.0, "original_max_position_embeddings": k["context_length"]}}, halves=True),
    "qwen2": A("Qwen2"),
    "qwen2moe": A("Qwen2Moe", lambda k, s: {**experts(k, s), "shared_expert_intermediate_size": k["expert_shared_feed_forward_length"], "norm_topk_prob": False}),
    "qwen3": A("Qwen3"),
    "qwen3moe": A("Qwen3Moe", lambda k, s: {**experts(k, s), "norm_topk_prob": True}),
    "gemma": A("Gemma", gemma, minus_one=True),
    "gemma2": A("Gemma2", lambda k, s: {**gemma(k, s), **windows(k, s, 2), "attn_logit_softcapping": k["attn_logit_softcapping"], "final_logit_softcapping": k["final_logit_softcapping"]}, FOUR_NORMS, minus_one=True),
    "gemma3": A("Gemma3", gemma3, FOUR_NORMS, minus_one=True),
    "phi2": A("Phi", always(hidden_act="gelu_new"), {"attn_output": "self_attn.dense", "ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2"}, {"output_norm": "model.final_layernorm"}, finish=q_k_v),
    "phi3": A("Phi3", always(sliding_window=None), finish=each_layer(gate_and_up)),
    "starcoder2": A("Starcoder2", always(use_bias=True, sliding_window=None, hidden_act="gelu_pytorch_tanh"), {"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"}),
    "stablelm": A("StableLm", always(use_parallel_residual=False)),
    "olmo": A("Olmo", lambda k, s: {"clip_qkv": k["attention.clamp_kqv"]}, halves=True),
    "olmo2": A("Olmo2", parts=POST_NORM),
    "olmoe": A("Olmoe", lambda k, s: {**experts(k, s), "norm_topk_prob": False}),
    "granite": A("Granite", multipliers, halves=True),
    "granitemoe": A("GraniteMoeShared", multipliers, halves=True, finish=each_layer(granite_experts)),
    "command-r": A("Cohere", lambda k, s: {"logit_scale": k["logit_scale"]}),
    "cohere2": A("Cohere2", lambda k, s: {"logit_scale": k["logit_scale"], **windows(k, s, 4)}),
    "glm4": A("Glm4", always(attention_bias=False), {"post_attention_norm": "post_self_attn_layernorm", "post_ffw_norm": "post_mlp_layernorm"}, finish=each_layer(gate_and_up)),
    "glm4moe": A("Glm4Moe", lambda k, s: {**chosen_by_sigmoid(k, s), "use_qk_norm": False}, {**SHARED, "post_attention_norm": "post_attention_layernorm"}),
    "deepseek2": A("DeepseekV3", latent, {**SHARED, "attn_q_a": "self_attn.q_a_proj", "attn_q_a_norm": "self_attn.q_a_layernorm", "attn_q_b": "self_attn.q_b_proj", "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa", "attn_kv_a_norm": "self_attn.kv_a_layernorm"}, finish=each_layer(latent_kv)),
    "gpt-oss": A("GptOss", lambda k, s: {**experts(k, s), **windows(k, s, 2), "intermediate_size": k["expert_feed_forward_length"]}, {"post_attention_norm": "post_attention_layernorm"}, finish=each_layer(gpt_oss_experts)),
    "nemotron": A("Nemotron", always(hidden_act="relu2"), minus_one=True),
    "arcee": A("Arcee", always(hidden_act="relu2"), halves=True),
    "seed_oss": A("SeedOss", always(attention_bias=False, attention_out_bias=False), {"post_attention_norm": "post_attention_layernorm"}),
    "hunyuan-dense": A("HunYuanDenseV1", parts={"attn_q_norm": "self_attn.query_layernorm", "attn_k_norm": "self_attn.key_layernorm"}),
    "ernie4_5": A("Ernie4_5"),
    "exaone4": A("Exaone4", lambda k, s: {"sliding_window": None, "layer_types": ["full_attention"] * s.n_layer}, POST_NORM),
    "smollm3": A("SmolLM3", lambda k, s: {"no_rope_layers": [int(i % 4 != 3) for i in range(s.n_layer)]}, halves=True),
    "gpt2": A("GPT2", gpt2, GPT, {"token_embd": "transformer.wte", "position_embd": "transformer.wpe", "output_norm": "transformer.ln_f"}, "transformer.h.", finish=transposed),
    "gptneox": A("GPTNeoX", always(use_parallel_residual=True, attention_bias=True, hidden_act="gelu_pytorch_tanh"), {**DENSE, "attn_qkv": "attention.query_key_value", "attn_output": "attention.dense"}, {"token_embd": "gpt_neox.embed_in", "output_norm": "gpt_neox.final_layer_norm"}, "gpt_neox.layers.", finish=by_heads),
    "bloom": A("Bloom", bloom, {**DENSE, "attn_qkv": "self_attention.query_key_value", "attn_output": "self_attention.dense"}, {"token_embd": "transformer.word_embeddings", "token_embd_norm": "transformer.word_embeddings_layernorm", "output_norm": "transformer.ln_f"}, "transformer.h.", finish=by_heads),
    "falcon": A("Falcon", lambda k, s: {"new_decoder_architecture": True, "num_ln_in_parallel_attn": 1, "num_kv_heads": s.n_head_kv, "ffn_hidden_size": s.n_ff, "activation": "gelu_pytorch_tanh"}, {**DENSE, "attn_qkv": "self_attention.query_key_value", "attn_output": "self_attention.dense"}, {"token_embd": "transformer.word_embeddings", "output_norm": "transformer.ln_f"}, "transformer.h.", finish=by_heads),
    "mpt": A("Mpt", mpt, {"attn_norm": "norm_1", "ffn_norm": "norm_2", "attn_qkv": "attn.Wqkv", "attn_output": "attn.out_proj", "ffn_up": "ffn.up_proj", "ffn_down": "ffn.down_proj"}, {"token_embd": "transformer.wte", "output_norm": "transformer.norm_f"}, "transformer.blocks."),
}  # fmt: skip
# These have names of their own for sizes and take no others.
OWN_SIZES = {"gpt2", "bloom", "mpt"}


def configuration(name, k, s, w):
    norm = {field: s.eps for field in ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps", "norm_epsilon")}
    ends = {"vocab_size": len(w["token_embd.weight"]), "tie_word_embeddings": "output.weight" not in w, "pad_token_id": None, "bos_token_id": 1, "eos_token_id": 2}
    biased = {field: "blk.0.attn_q.bias" in w for field in ("attention_bias", "use_qkv_bias")}
    part = k.get("rope.dimension_count", s.head_dim) / s.head_dim
    sizes = {"hidden_size": s.n_embd} if name == "bloom" else {} if name in OWN_SIZES else {
        "hidden_size": s.n_embd, "intermediate_size": s.n_ff, "num_hidden_layers": s.n_layer, "num_attention_heads": s.n_head, "num_key_value_heads": s.n_head_kv,
        "head_dim": s.head_dim, "max_position_embeddings": k["context_length"], "partial_rotary_factor": part,
        "rope_parameters": {"rope_type": "default", "rope_theta": s.rope_base, "partial_rotary_factor": part},
    }  # fmt: skip
    if name == "falcon":
        del sizes["head_dim"]
    own = ARCHITECTURES[name].config
    return {**norm, **ends, **biased, **sizes, **(own(k, s) if own else {})}


def read(path):
    """(row of ARCHITECTURES or the file's architecture, keys without its name, sizes, weights)"""
    reader = GGUFReader(path)
    arch = reader.fields["general.architecture"].contents()
    k = {key.removeprefix(f"{arch}."): field.contents() for key, field in reader.fields.items() if key.startswith(f"{arch}.")}
    w = {t.name: torch.from_numpy(np.array(dequantize(t.data, t.tensor_type), np.float32).reshape([int(n) for n in reversed(t.shape)])) for t in reader.tensors}
    n_head, n_embd = k["attention.head_count"], k["embedding_length"]
    eps = k.get("attention.layer_norm_rms_epsilon", k.get("attention.layer_norm_epsilon"))
    s = Sizes(k["block_count"], n_embd, n_head, k.get("attention.head_count_kv", n_head), k.get("attention.key_length", n_embd // n_head),
              k.get("feed_forward_length", 0), float(k.get("rope.freq_base", 10000.0)), eps)  # fmt: skip
    return "mixtral" if arch == "llama" and "expert_count" in k else arch, k, s, w


def state_of(name, s, w):
    a, state = ARCHITECTURES[name], {}
    parts, ends = {**PARTS, **a.parts}, {**ENDS, **a.ends}
    for tensor, rows in w.items():
        part, kind = tensor.rsplit(".", 1)
        layer = re.fullmatch(r"blk\.(\d+)\.(\w+)", part)
        leaf = layer[2] if layer else part
        if leaf.endswith("_exps") or leaf in ("attn_k_b", "attn_v_b"):
            continue
        if a.halves and leaf in ("attn_q", "attn_k"):
            n = s.n_head if leaf == "attn_q" else s.n_head_kv
            rows = rows.reshape(n, -1, 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)
        rows = rows - 1 if a.minus_one and kind == "weight" and "norm" in leaf else rows[None] if leaf == "ffn_gate_inp_shexp" else rows
        to = f"{a.layers}{layer[1]}.{parts[leaf]}" if layer else ends[part]
        state[to if leaf in ("attn_sinks", "exp_probs_b") else f"{to}.{kind}"] = rows
    for i in range(s.n_layer):
        if f"blk.{i}.ffn_gate_exps.weight" in w:
            gate, up, down = (w[f"blk.{i}.ffn_{part}_exps.weight"] for part in ("gate", "up", "down"))
            state[f"{a.layers}{i}.mlp.experts.gate_up_proj"] = torch.cat([gate, up], 1)
            state[f"{a.layers}{i}.mlp.experts.down_proj"] = down
    if a.finish:
        a.finish(state, w, s)
    return state


def build(path, dtype="float32", attention="eager"):
    """Raises ValueError where transformers has no such attention for the class, LookupError where ARCHITECTURES has no such row."""
    name, k, s, w = read(path)
    cls = ARCHITECTURES[name].cls
    config = getattr(transformers, f"{cls}TextConfig" if name == "gemma3" else f"{cls}Config")(**configuration(name, k, s, w))
    model = getattr(transformers, f"{cls}LMHeadModel" if name == "gpt2" else f"{cls}ForCausalLM")._from_config(config, dtype=torch.float32, attn_implementation=attention)
    missing, unknown = model.load_state_dict(state_of(name, s, w), strict=False)
    missing = [name for name in missing if not (name == "lm_head.weight" and config.tie_word_embeddings)]
    if missing or unknown:
        raise ValueError(f"{path}: the model lacks {missing}, the file {unknown}")
    model.tie_weights()
    if name == "mpt":  # the class has the erf form alone, a GGUF's graph the other
        for block in model.transformer.blocks:
            block.ffn.act = torch.nn.GELU(approximate="tanh")
    kept = {name: buffer.clone() for name, buffer in model.named_buffers() if name.endswith("inv_freq")}
    model = model.to(getattr(torch, dtype)).eval()
    for name, buffer in kept.items():  # from_pretrained leaves RoPE's frequencies in binary32; `.to` rounds them, which is a bug of its own
        owner, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(owner), leaf, buffer)
    return model
