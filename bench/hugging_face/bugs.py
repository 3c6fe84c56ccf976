"""Bugs in Hugging Face transformers' llama and its kin, by replacing what their modules call. A row: what is wrong in words, the names of
docs/faults.md that are right for it (none: no row says it), the function that installs it, and whether a model has one such place (no
layer), or is wrong in 16-bit types alone.

An installer gets a Patch: the model, its layers that shall be wrong, the Python module of its classes, and `replace`, which undoes
itself when the run is over."""

import sys
from collections import namedtuple

import torch
from patch import PLAIN, only
from torch import nn

Bug = namedtuple("Bug", "words names install layered low", defaults=(True, False))


# ---- makers of installers ----


def norms(formula):
    """Norms compute formula(x in f32, weight, eps)."""

    def install(p):
        for norm in p.norms():
            p.replace(norm, "forward", lambda _, n=norm: lambda x: formula(x.float(), n.weight, n.variance_epsilon).to(x.dtype))

    return install


def attribute(part, name, change):
    """An attribute of a layer's part is another; the part "" is the layer."""

    def install(p):
        for layer in p.layers:
            owner = layer.get_submodule(part) if part else layer
            p.replace(owner, name, lambda was, l=layer: change(was, l))

    return install


def output(part, change):
    """What a layer's part returns is changed."""

    def install(p):
        for layer in p.layers:
            p.replace(layer.get_submodule(part), "forward", lambda was: lambda *a, **k: change(was(*a, **k)))

    return install


def weight(part, change):
    """A layer's weight is another, from change(p, layer's index)."""

    def install(p):
        for layer in p.layers:
            with torch.no_grad():
                i = list(p.model.model.layers).index(layer)
                layer.get_submodule(part).weight = nn.Parameter(change(p, i).clone(), requires_grad=False)

    return install


def function(name, make):
    """A function of the model's Python module is another: in every layer."""
    return lambda p: p.replace(p.module, name, make)


def rotary(make):
    return lambda p: p.replace(p.model.model.rotary_emb, "forward", make)


def frequencies(change):
    def install(p):
        with torch.no_grad():
            p.model.model.rotary_emb.inv_freq.copy_(change(p.model.model.rotary_emb.inv_freq.clone(), p.model.config))

    return install


def cache(make):
    """What the K/V cache's update does is another thing; make(sound)(cache, k, v, layer)."""
    return lambda p: p.replace(sys.modules["transformers"].DynamicCache, "update", lambda sound: make(sound))


def other(p, i, by, part):
    layers = p.model.model.layers
    return layers[(i + by) % len(layers)].get_submodule(part).weight


# ---- bugs that take more than a line ----


def interleaved(x):
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack((-b, a), -1).flatten(-2)


def pairs(_):
    def rope(q, k, cos, sin, unsqueeze_dim=1):
        half = cos.shape[-1] // 2
        cos, sin = (t[..., :half].repeat_interleave(2, -1).unsqueeze(unsqueeze_dim) for t in (cos, sin))
        return q * cos + interleaved(q) * sin, k * cos + interleaved(k) * sin

    return rope


def at_positions(change):
    return rotary(lambda sound: lambda x, position_ids: sound(x, change(position_ids)))


def decoding(position_ids, by):
    return position_ids + by if position_ids.shape[-1] == 1 else position_ids


def stale_in_decode(which):
    def make(sound):
        def update(self, k, v, layer, *args, **kwargs):
            if k.shape[-2] == 1:
                k, v = (torch.zeros_like(k), v) if which == "k" else (k, torch.zeros_like(v))
            return sound(self, k, v, layer, *args, **kwargs)

        return update

    return make


def rows_one_late(sound):
    def update(self, k, v, layer, *args, **kwargs):
        k, v = sound(self, k, v, layer, *args, **kwargs)
        return torch.cat((k[..., :1, :], k[..., :-1, :]), -2), v

    return update


def of_layer_before(sound):
    def update(self, k, v, layer, *args, **kwargs):
        own = sound(self, k, v, layer, *args, **kwargs)
        return (self.layers[layer - 1].keys, own[1]) if layer else own

    return update


def mask(change):
    """The additive mask [1, 1, n_tok, n_kv] of eager attention is another; where there is none it is made."""

    def make(sound):
        def attention(module, query, key, value, attention_mask, **kwargs):
            n, n_kv = query.shape[-2], key.shape[-2]
            own = torch.arange(n_kv - n, n_kv)[:, None]
            seen = change(own, torch.arange(n_kv)[None, :])
            hidden = torch.zeros(1, 1, n, n_kv, dtype=query.dtype).masked_fill(~seen, torch.finfo(query.dtype).min)
            return sound(module, query, key, value, hidden, **kwargs)

        return attention

    def install(p):
        only(not getattr(p.model.config, "sliding_window", None))
        function("eager_attention_forward", make)(p)

    return install


def mlp(formula):
    def install(p):
        only(p.model.config.hidden_act == "silu")
        for layer in p.layers:
            m = layer.mlp
            p.replace(m, "forward", lambda _, m=m: lambda x: m.down_proj(formula(m.gate_proj(x), m.up_proj(x))))

    return install


def block(formula):
    """A layer's forward is another: formula(layer, x, attention's output as a function of the normed input)."""

    def install(p):
        only(p.model.config.model_type in PLAIN)
        for layer in p.layers:

            def forward(hidden_states, l=layer, **kwargs):
                return formula(l, hidden_states, lambda x: l.self_attn(hidden_states=x, **kwargs)[0])

            p.replace(layer, "forward", lambda _, f=forward: f)

    return install


def residual_missing(layer, x, attend):
    x = attend(layer.input_layernorm(x))
    return x + layer.mlp(layer.post_attention_layernorm(x))


def parallel(layer, x, attend):
    """Attention and MLP side by side, as GPT-NeoX has them."""
    return x + attend(layer.input_layernorm(x)) + layer.mlp(layer.post_attention_layernorm(x))


def post_norm(layer, x, attend):
    """The residual starts after the norm."""
    x = layer.input_layernorm(x)
    x = x + attend(x)
    return x + layer.mlp(layer.post_attention_layernorm(x))


def rms(x, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


def on_model(name, make):
    return lambda p: p.replace(p.model.get_submodule(name), "forward", make)


def no_bias(part):
    def install(p):
        for layer in p.layers:
            linear = layer.get_submodule(part)
            if linear.bias is None:
                raise LookupError("no bias")
            linear.bias = None

    return install


silu = nn.functional.silu
table = {
    # norms
    "eps-1e-3": Bug("eps 1e-3", ("other_eps:0.001",), lambda p: [p.replace(n, "variance_epsilon", lambda _: 1e-3) for n in p.norms()]),
    "eps-outside": Bug("eps outside the root", ("eps_outside_root",), norms(lambda x, w, eps: w * x / (x.pow(2).mean(-1, keepdim=True).sqrt() + eps))),
    "norm-plus-one": Bug("times 1 + w", ("norm_plus_one",), norms(lambda x, w, eps: rms(x, eps) * (1 + w))),
    "norm-layer": Bug("LayerNorm", ("layer_norm",), norms(lambda x, w, eps: rms(x - x.mean(-1, keepdim=True), eps) * w)),
    "norm-std": Bug("the standard deviation, n - 1", (), norms(lambda x, w, eps: x / (x.std(-1, keepdim=True) + eps) * w)),
    "norm-l2": Bug("the L2 norm, not divided by n", ("norm_sum_for_mean",), norms(lambda x, w, eps: x / torch.sqrt(x.pow(2).sum(-1, keepdim=True) + eps) * w)),
    "norms-exchanged": Bug("ffn_norm's weight in attn_norm", ("other_weight:ffn_norm",), weight("input_layernorm", lambda p, i: other(p, i, 0, "post_attention_layernorm"))),
    # RoPE
    "rope-base-5e5": Bug("base 500000", ("other_rope_base:500000",), frequencies(lambda f, c: 5e5 ** (-torch.arange(0, 2 * len(f), 2) / (2 * len(f)))), False),
    "rope-linear-2": Bug("frequencies halved", ("other_rope_factor:2",), frequencies(lambda f, c: f / 2), False),
    "rope-frequencies-bf16": Bug("frequencies in bf16, as .to(bfloat16) leaves them", (), frequencies(lambda f, c: f.bfloat16().float()), False),
    "rope-llama3-scaling": Bug("low frequencies divided by 8", (), frequencies(lambda f, c: torch.where(f < 0.05, f / 8, f)), False),
    "rope-pairs": Bug("neighbours for halves, both in one order of rows", ("rope_pairing",), function("apply_rotary_pos_emb", pairs), False),
    "rope-decode-plus-1": Bug("position + 1 in decode", ("rope_both_one_further", "other_position:+ 1"), at_positions(lambda ids: decoding(ids, 1)), False),
    "rope-decode-minus-1": Bug("position - 1 in decode", ("other_position:- 1",), at_positions(lambda ids: decoding(ids, -1)), False),
    "rope-decode-zero": Bug("position 0 in decode", ("rope_position_zero", "other_position:position 0"), at_positions(lambda ids: ids * (ids.shape[-1] > 1)), False),
    "rope-left-padded": Bug("positions begin at 1", ("rope_both_one_further", "other_position:+ 1"), at_positions(lambda ids: ids + 1), False),
    "rope-yarn-factor": Bug("cos and sin times 1.1", ("factor:1.1",), lambda p: p.replace(p.model.model.rotary_emb, "attention_scaling", lambda _: 1.1), False),
    # attention
    "scale-by-heads": Bug("1/sqrt(n_head)", ("other_attn_scale",), attribute("self_attn", "scaling", lambda was, l: l.self_attn.config.num_attention_heads ** -0.5)),
    "scale-missing": Bug("no scale", ("attn_scale_missing", "other_attn_scale:1;"), attribute("self_attn", "scaling", lambda was, l: 1.0)),
    "scale-muP": Bug("1/head_dim", ("attn_scale_twice", "other_attn_scale"), attribute("self_attn", "scaling", lambda was, l: was * was)),
    "gqa-tiled": Bug("K/V heads tiled", ("gqa_modulo",), function("repeat_kv", lambda _: lambda x, n: x.repeat(1, n, 1, 1)), False),
    "mask-missing": Bug("no mask", ("mask_missing",), mask(lambda own, key: key >= 0), False),
    "mask-one-ahead": Bug("sees the next token", ("mask_one_ahead",), mask(lambda own, key: key <= own + 1), False),
    "window-8": Bug("a window of 8", ("keys_hidden:8", "other_window:8"), mask(lambda own, key: (key <= own) & (key > own - 8)), False),
    "first-token-masked": Bug("the first token is padding", ("keys_hidden:first 1",), mask(lambda own, key: (key <= own) & ((key > 0) | (own == 0))), False),
    "attention-reshaped": Bug("heads and tokens are not transposed back", ("heads_not_transposed",), lambda p: p.replace(p.module, "eager_attention_forward", lambda sound: lambda *a, **k: (lambda out: (out[0].transpose(1, 2).reshape(out[0].shape), out[1]))(sound(*a, **k))), False),
    # cache
    "k-stale-in-decode": Bug("K of the new token is zero", ("kv_stale_row", "zeros"), cache(stale_in_decode("k")), False),
    "v-stale-in-decode": Bug("V of the new token is zero", ("kv_stale_row", "zeros"), cache(stale_in_decode("v")), False),
    "k-one-late": Bug("K is one row late", ("kv_off_by_one", "earlier_input:1 position", "other_rows:1 earlier", "other_cache_row:1"), cache(rows_one_late), False),
    "k-of-layer-before": Bug("K of the layer before", ("kv_previous_layer", "other_input"), cache(of_layer_before), False),
    # MLP
    "gelu": Bug("GELU (erf)", ("gelu_erf",), mlp(lambda g, u: nn.functional.gelu(g) * u)),
    "gelu-tanh": Bug("GELU (tanh)", ("gelu_tanh",), mlp(lambda g, u: nn.functional.gelu(g, approximate="tanh") * u)),
    "gelu-quick": Bug("GELU (sigmoid)", (), mlp(lambda g, u: g * torch.sigmoid(1.702 * g) * u)),
    "silu-on-up": Bug("SiLU of up", ("silu_on_up", "gate_up_swapped"), mlp(lambda g, u: silu(u) * g)),
    "up-missing": Bug("no up", ("up_missing",), mlp(lambda g, u: silu(g))),
    "swiglu-limit": Bug("clamped at 1", (), mlp(lambda g, u: silu(g.clamp(max=1)) * u.clamp(-1, 1))),
    # weights
    "q-of-next-layer": Bug("Q's matrix is the next layer's", ("other_weight:attn_q",), weight("self_attn.q_proj", lambda p, i: other(p, i, 1, "self_attn.q_proj"))),
    "q-rows-permuted": Bug("Q's rows are in the GGUF's order", ("other_order",), weight("self_attn.q_proj", lambda p, i: (lambda w, d: w.view(-1, 2, d // 2, w.shape[1]).transpose(1, 2).reshape(w.shape))(other(p, i, 0, "self_attn.q_proj"), p.layers[0].self_attn.head_dim))),
    "down-rounded-int8": Bug("ffn_down in int8 with one scale a row", (), weight("mlp.down_proj", lambda p, i: (lambda w: (w / w.abs().amax(1, True) * 127).round() * w.abs().amax(1, True) / 127)(other(p, i, 0, "mlp.down_proj")))),
    "k-bias-missing": Bug("K without its bias", ("missing_qkv_bias",), no_bias("self_attn.k_proj")),
    # stream
    "residual-missing": Bug("the attention replaces the stream", ("residual_missing", "input_factor:left out"), block(residual_missing)),
    "parallel": Bug("attention and MLP side by side", ("other_input",), block(parallel)),
    "post-norm": Bug("the residual is the normed stream", ("residual_wrong_branch", "other_input:attn_norm"), block(post_norm)),
    "attention-halved": Bug("attention's projection times 0.5", ("factor:0.5", "input_factor:0.5"), output("self_attn.o_proj", lambda y: y * 0.5)),
    "mlp-scaled": Bug("the MLP's output times 1.01", ("factor:1.01",), output("mlp.down_proj", lambda y: y * 1.01)),
    # ends
    "embed-scaled": Bug("times sqrt(n_embd)", ("embed_scaled", "factor:16"), on_model("model.embed_tokens", lambda sound: lambda ids: sound(ids) * sound(ids).shape[-1] ** 0.5), False),
    "final-norm-missing": Bug("no last norm", ("final_norm_missing", "logits_unnormed"), on_model("model.norm", lambda _: lambda x: x * 1), False),
    "temperature": Bug("logits divided by 0.8", ("factor:1.25",), on_model("lm_head", lambda sound: lambda x: sound(x) / 0.8), False),
    "softcap-30": Bug("30 tanh(logits / 30)", (), on_model("lm_head", lambda sound: lambda x: torch.tanh(sound(x) / 30) * 30), False),
}
