"""What the hooks of firstdiff.transformers record of small random models: parts that no module gives out, caches, what is not asked for."""

import h5py
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: the adapter for transformers is not tried")
transformers = pytest.importorskip("transformers", reason="transformers is not installed: its adapter is not tried")

from firstdiff.trace import Reader, Writer  # noqa: E402
from firstdiff.transformers import attach  # noqa: E402

SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64,
         "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 32, "pad_token_id": None}  # fmt: skip


def traced(config, path, calls, attention="eager"):
    """A random model of this configuration, recorded by a Writer of one's own."""
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()
    cache = None
    with torch.no_grad(), Writer(path, names="transformers", strict=True) as trace, attach(model, trace):
        for call in calls:
            cache = model(torch.tensor([call]), past_key_values=cache, use_cache=True).past_key_values
    return Reader(path)


def absent(path):
    with h5py.File(path) as file:
        return str(file.attrs["absent"]).split()


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_what_fused_attention_keeps_is_not_asked_for(attention, tmp_path):
    traced(transformers.Qwen2Config(**SMALL), tmp_path / "c.h5", [[1, 2, 3]], attention)
    assert absent(tmp_path / "c.h5") == ([] if attention == "eager" else ["blk.*.attn_weights"])


def test_a_router_is_recorded_and_the_insides_of_its_experts_are_not_asked_for(tmp_path):
    config = transformers.MixtralConfig(**SMALL, num_local_experts=4, num_experts_per_tok=2)
    with traced(config, tmp_path / "c.h5", [[1, 2, 3], [4]]) as read:
        for name, width in {"gate": 4, "gate:out1": 2, "gate:out2": 2, "experts": 32}.items():
            assert read[f"model.layers.1.mlp.{name}"][:].shape == (4, width)
    assert "blk.*.ffn_moe_gate" in absent(tmp_path / "c.h5")


def test_logits_behind_a_softcap_are_told_from_the_heads_product(tmp_path):
    config = transformers.Gemma2Config(**SMALL, final_logit_softcapping=0.5)
    with traced(config, tmp_path / "c.h5", [[1, 2, 3], [4]]) as read:
        product, capped = read["lm_head:product"][:], read["logits"][:]
        assert "lm_head" not in list(read)
    assert np.allclose(capped, 0.5 * np.tanh(product / 0.5), atol=1e-6) and not np.allclose(capped, product, atol=1e-3)


def test_logits_are_what_the_model_returns_though_its_softcap_was_lost(tmp_path):
    with traced(transformers.Gemma2Config(**SMALL, final_logit_softcapping=None), tmp_path / "c.h5", [[1, 2, 3]]) as read:
        assert "logits" in list(read) and "lm_head" not in list(read)


def test_a_scaled_embedding_is_what_the_first_layer_gets(tmp_path):
    with traced(transformers.GraniteConfig(**SMALL, embedding_multiplier=4.0), tmp_path / "c.h5", [[1, 2, 3]]) as read:
        assert np.allclose(read["model.layers.0:in"][:], 4 * read["model.embed_tokens"][:])


def test_what_attention_with_sinks_gives_its_softmax_is_no_scores(tmp_path):
    config = transformers.GptOssConfig(**SMALL, num_local_experts=4, num_experts_per_tok=2)
    with traced(config, tmp_path / "c.h5", [[1, 2, 3], [4]]) as read:
        attention = [name for name in read if "layers.0.self_attn" in name]
        assert "model.layers.0.self_attn:out1" in attention and "model.layers.0.self_attn.scores" not in attention


@pytest.mark.parametrize("config", [
    transformers.BloomConfig(hidden_size=32, n_layer=2, n_head=4, vocab_size=64),
    transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=64, n_positions=32),
    transformers.FalconConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, vocab_size=64, alibi=False),
    transformers.GPTNeoXConfig(**SMALL),
], ids=lambda config: config.model_type)  # fmt: skip
def test_attention_by_other_names_and_masks_that_grow_with_the_keys(config, tmp_path):
    with traced(config, tmp_path / "c.h5", [[1, 2, 3], [4], [5]]) as read:
        of = "attn" if config.model_type == "gpt2" else "attention" if config.model_type == "gpt_neox" else "self_attention"
        parts = {name.rsplit(f".{of}", 1)[1] for name in read if f".1.{of}" in name}
        assert {".cache_k", ".cache_v", ".scores"} <= parts and (":out1" in parts or of == "self_attention")


@pytest.mark.parametrize("config", [transformers.PhiConfig, transformers.StableLmConfig], ids=lambda config: config.model_type)
def test_the_rotated_part_of_a_head_is_no_rotated_head(config, tmp_path):
    small = {name: value for name, value in SMALL.items() if name != "head_dim"}
    with traced(config(**small, partial_rotary_factor=0.5), tmp_path / "c.h5", [[1, 2, 3], [4]]) as read:
        assert not any(name.endswith(("q_rope", "k_rope")) for name in read)
        assert read["model.layers.0.self_attn.cache_k"][:].shape == (4, 2, 8)


@pytest.mark.parametrize("first", [2, 3, 4])
def test_heads_in_front_of_the_tokens_are_put_behind_them(first, tmp_path):
    """As many tokens as Q or K/V has heads, too: gemma3 norms [1, n_head, n_tok, n]."""
    with traced(transformers.Gemma3TextConfig(**SMALL), tmp_path / "c.h5", [list(range(1, 1 + first)), [9]]) as read:
        for of, heads in {"q": 4, "k": 2}.items():
            part = f"model.layers.0.self_attn.{of}"
            normed, product = read[f"{part}_norm"][:], read[f"{part}_proj"][:].reshape(first + 1, heads, 8)
            scaled = product / np.sqrt((product**2).mean(-1, keepdims=True) + 1e-6)
            assert np.allclose(normed, scaled, atol=1e-3)
            assert read[f"{part}_rope"][:].shape == (first + 1, heads, 8)
        assert read["model.layers.0.self_attn.cache_k"][:].shape == (first + 1, 2, 8)


def test_a_static_caches_rows_are_those_of_the_tokens(tmp_path):
    model = transformers.AutoModelForCausalLM.from_config(transformers.Qwen2Config(**SMALL)).eval()
    cache = transformers.StaticCache(config=model.config, max_cache_len=9)
    with Writer(tmp_path / "c.h5", names="transformers") as trace, attach(model, trace), torch.no_grad():
        for call in [1, 2, 3], [4], [5]:
            model(input_ids=torch.tensor([call]), past_key_values=cache, use_cache=True)
    with Reader(tmp_path / "c.h5") as read:
        for of in "kv":
            written = read[f"model.layers.1.self_attn.{'k_rope' if of == 'k' else 'v_proj'}"][:].reshape(5, 2, 8)
            assert np.array_equal(read[f"model.layers.1.self_attn.cache_{of}"][:], written)


def test_keys_that_a_sliding_window_forgot_keep_their_places(tmp_path):
    config = transformers.Gemma2Config(**SMALL, sliding_window=4)
    with traced(config, tmp_path / "c.h5", [list(range(1, 10)), [10, 11, 12], [13]]) as read:
        weights, scores = read["model.layers.0.self_attn:out1"], read["model.layers.0.self_attn.scores"]
        for position in (8, 11, 12):
            seen = weights.at(position)
            assert seen.shape[-1] == position + 1
            assert np.all(np.isneginf(scores.at(position)[:, : position - 3]))
            assert np.all(seen[:, : position - 3] == 0) and np.all(seen[:, position - 3 :] > 0)
