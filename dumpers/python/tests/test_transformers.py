"""transformers on the bundled models, judged by firstdiff: rounding is noise, an altered tensor is not."""

import shutil

import h5py
import numpy as np
import pytest
from conftest import KJV_LLAMA, KJV_QWEN2, TOKENS, weight_hashes

torch = pytest.importorskip("torch", reason="torch is not installed: the adapter for transformers is not tried")
transformers = pytest.importorskip("transformers", reason="transformers is not installed: its adapter is not tried")
pytest.importorskip("gguf", reason="gguf is not installed: transformers cannot read a GGUF")
pytest.importorskip("accelerate", reason="accelerate is not installed: transformers cannot read a GGUF")

from firstdiff.trace import Reader, TraceError, TraceWarning, Writer  # noqa: E402
from firstdiff.transformers import attach, load, main, record  # noqa: E402

# Worked example: kjv-qwen2 is F16, kjv-llama Q8_0; transformers computes with the dequantised weights.
CASES = {
    "qwen2-float32": (KJV_QWEN2, "float32", "eager", "f32"),
    "qwen2-bfloat16": (KJV_QWEN2, "bfloat16", "eager", "hf-bf16"),
    "qwen2-float16": (KJV_QWEN2, "float16", "eager", "hf-f16"),
    "qwen2-float32-sdpa": (KJV_QWEN2, "float32", "sdpa", "f32"),
    "qwen2-bfloat16-sdpa": (KJV_QWEN2, "bfloat16", "sdpa", "hf-bf16-fa"),
    "qwen2-float16-sdpa": (KJV_QWEN2, "float16", "sdpa", "hf-f16-fa"),
    "llama-float32": (KJV_LLAMA, "float32", "eager", "f32"),
    "llama-bfloat16": (KJV_LLAMA, "bfloat16", "eager", "hf-bf16"),
    "llama-bfloat16-sdpa": (KJV_LLAMA, "bfloat16", "sdpa", "hf-bf16-fa"),
    "llama-float16-sdpa": (KJV_LLAMA, "float16", "sdpa", "hf-f16-fa"),
}
MUTANTS = {
    "model.layers.2.mlp.down_proj:in": "blk.2.ffn_act",
    "model.layers.1.self_attn.k_rope": "blk.1.attn_k_rope",
    "logits": "logits",
}


def double(raw, dtype):
    """The stored elements times 2: exact in every type."""
    if dtype == "F32":
        return raw * np.float32(2)
    if dtype == "F16":
        return (raw.view(np.float16) * np.float16(2)).view(np.uint16)
    return (((raw.astype(np.uint32) << 16).view(np.float32) * 2).view(np.uint32) >> 16).astype(np.uint16)


@pytest.mark.parametrize("name", CASES)
def test_transformers_is_noise_and_a_mutant_is_not(name, tmp_path, firstdiff):
    model, dtype, attention, inferred = CASES[name]
    tokens, _ = record(model, TOKENS, tmp_path / "c.h5", prefill=10, generate=2, dtype=dtype, attention=attention)
    reference = firstdiff.reference(model, tokens, tmp_path / "r.h5")
    verdict = firstdiff.verdict(reference, tmp_path / "c.h5", model)
    assert verdict["status"] == "noise", verdict.get("divergence") or verdict["reasons"]
    replay = verdict["replay"]
    assert (replay["class"], replay["class_source"], replay["introduced"]) == (inferred, "inferred", 0)
    assert 0 < replay["largest_noise_z"]["value"] <= 1
    gone = ("attn_scores", "attn_weights") if attention == "sdpa" else ()
    assert all(m["name"].endswith(gone) for m in verdict["missing"]), verdict["missing"]
    for tensor, node in MUTANTS.items():
        shutil.copy(tmp_path / "c.h5", tmp_path / "m.h5")
        with h5py.File(tmp_path / "m.h5", "r+") as file:
            data = file["tensors"][tensor]
            data[11] = double(data[11], data.attrs["dtype"])
        verdict = firstdiff.verdict(reference, tmp_path / "m.h5", model)
        # The record alone is wrong: where what reads it was recorded, the verdict says so (docs/verdicts.md).
        assert verdict["status"] == ("diverged" if tensor == "logits" else "check-dump"), f"{tensor} times 2 passed"
        if tensor == "logits":
            assert verdict["divergence"]["node"] == node and verdict["divergence"]["position"] == 11
        else:
            assert node in str(verdict["misrecorded"])


def times(raw, dtype, factor):
    """The stored elements of 16 bits times a factor, rounded to their type."""
    if dtype == "F16":
        return (raw.view(np.float16).astype(np.float32) * factor).astype(np.float16).view(np.uint16)
    bits = ((raw.astype(np.uint32) << 16).view(np.float32) * np.float32(factor)).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("model", [KJV_LLAMA, KJV_QWEN2], ids=lambda m: m.stem)
def test_fused_attention_hides_no_error_in_a_long_prompt(model, dtype, tmp_path, firstdiff):
    """150 positions: rounding is noise; an output of one head off by a tenth, and K or V of the position before, are not."""
    tokens = [int(t) for t in np.random.default_rng(150).integers(3, 2048, 150)]
    record(model, tokens, tmp_path / "c.h5", prefill=148, dtype=dtype, attention="sdpa")
    reference = firstdiff.reference(model, tokens, tmp_path / "r.h5")
    verdict = firstdiff.verdict(reference, tmp_path / "c.h5", model)
    assert verdict["status"] == "noise", verdict.get("divergence") or verdict["reasons"]
    assert verdict["replay"]["class"] == {"bfloat16": "hf-bf16-fa", "float16": "hf-f16-fa"}[dtype]
    mutants = {"o_proj:in": "blk.1.attn_out", "k_rope": "blk.1.attn_k_rope", "v_proj": "blk.1.attn_v"}
    for tensor, node in mutants.items():
        shutil.copy(tmp_path / "c.h5", tmp_path / "m.h5")
        with h5py.File(tmp_path / "m.h5", "r+") as file:
            data = file["tensors"][f"model.layers.1.self_attn.{tensor}"]
            if tensor == "o_proj:in":
                row = data[140]
                row[..., 64:96] = times(row[..., 64:96], data.attrs["dtype"], 1.1)
                data[140] = row
            else:
                data[1:] = data[:-1]
        verdict = firstdiff.verdict(reference, tmp_path / "m.h5", model)
        # The record alone is wrong: what reads it may say so.
        assert verdict["status"] in ("diverged", "check-dump"), f"{dtype} {tensor} altered passed"
        assert node in str(verdict["divergence" if verdict["status"] == "diverged" else "misrecorded"])


def test_safetensors_give_the_same_trace(tmp_path):
    """The same weights from a folder: every recorded element is the same."""
    model = load(KJV_QWEN2)
    model.hf_quantizer = None  # the weights are plain floats by now
    del model.config.quantization_config
    model.save_pretrained(tmp_path / "folder")
    assert list((tmp_path / "folder").glob("*.safetensors"))
    record(KJV_QWEN2, TOKENS, tmp_path / "a.h5")
    record(tmp_path / "folder", TOKENS, tmp_path / "b.h5", gguf=KJV_QWEN2)
    with Reader(tmp_path / "a.h5") as a, Reader(tmp_path / "b.h5") as b:
        assert list(a) == list(b) and a.info["model_hash"] == b.info["model_hash"]
        assert all(np.array_equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("model", [KJV_LLAMA, KJV_QWEN2], ids=lambda m: m.stem)
def test_weights_have_the_ggufs_rows(model, tmp_path, firstdiff):
    """In its order, where transformers has Q's and K's rows in another; weights rounded to 16 bits are left out."""
    record(model, TOKENS, tmp_path / "c.h5")
    record(model, TOKENS, tmp_path / "b.h5", dtype="bfloat16")
    assert weight_hashes(tmp_path / "c.h5") == weight_hashes(firstdiff.reference(model, TOKENS, tmp_path / "r.h5"))
    assert not weight_hashes(tmp_path / "b.h5")


def test_hooks_change_nothing_and_leave_nothing(tmp_path):
    model = load(KJV_QWEN2, "bfloat16")
    module = __import__(type(model).__module__, fromlist=["apply_rotary_pos_emb"])
    rope, softmax, ids = module.apply_rotary_pos_emb, torch.nn.functional.softmax, torch.tensor([TOKENS])
    update = transformers.Cache.update
    with torch.no_grad():
        plain = model(ids).logits
        with Writer(tmp_path / "c.h5", names="transformers") as trace, attach(model, trace):
            assert module.apply_rotary_pos_emb is not rope
            traced = model(ids).logits
        assert torch.equal(plain, traced)
    assert transformers.Cache.update is update
    assert module.apply_rotary_pos_emb is rope and torch.nn.functional.softmax is softmax
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_generate_is_traced_in_steps(tmp_path):
    model = load(KJV_QWEN2)
    with Writer(tmp_path / "c.h5", names="transformers") as trace, attach(model, trace):
        out = model.generate(torch.tensor([TOKENS]), max_new_tokens=3, do_sample=False, eos_token_id=-1)
    with Reader(tmp_path / "c.h5") as read:
        assert [(s.count, s.kind) for s in read.steps] == [(13, "prefill"), (1, "decode"), (1, "decode")]
        assert list(read.tokens) == out[0, :-1].tolist()
        logits = read["logits"]
        assert read.complete and int(np.argmax(logits.at(12))) == int(out[0, 13])


def test_a_tensor_that_is_changed_in_place_is_recorded_again(tmp_path):
    """The residual stream that is added to in place is a new tensor each time."""

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = torch.nn.Linear(4, 4), torch.nn.Identity()

        def forward(self, input_ids):
            x = self.a(torch.ones(1, input_ids.shape[1], 4))
            x += 1
            return self.b(x)

    block = Block()
    with Writer(tmp_path / "c.h5", names="transformers") as trace, attach(block, trace), torch.no_grad():
        block(input_ids=torch.tensor([[1, 2]]))
    with Reader(tmp_path / "c.h5") as read:
        assert np.allclose(read["a"][...] + 1, read["b:in"]) and "b" not in read


def test_a_padded_row_of_a_batch_is_recorded_as_if_it_were_alone(tmp_path, firstdiff):
    model, n_pad, n_prompt = load(KJV_QWEN2), 3, 10
    other = list(range(40, 40 + len(TOKENS) + n_pad))
    ids = torch.tensor([other, [2] * n_pad + TOKENS])
    mask = torch.ones_like(ids)
    mask[1, :n_pad] = 0
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    cache = transformers.DynamicCache(config=model.config)
    trace = Writer(tmp_path / "c.h5", names="transformers", model=KJV_QWEN2, strict=True)
    with trace, attach(model, trace, row=1), torch.no_grad():
        for first, end in ((0, n_pad + n_prompt), *((i, i + 1) for i in range(n_pad + n_prompt, ids.shape[1]))):
            call = {"attention_mask": mask[:, :end], "position_ids": positions[:, first:end]}
            model(input_ids=ids[:, first:end], past_key_values=cache, **call)
    reference = firstdiff.reference(KJV_QWEN2, TOKENS, tmp_path / "r.h5")
    verdict = firstdiff.verdict(reference, tmp_path / "c.h5", KJV_QWEN2)
    assert verdict["status"] == "noise", verdict.get("divergence") or verdict["reasons"]
    assert not verdict["missing"]


def test_several_sequences_are_refused_and_the_model_runs_on(tmp_path):
    model = load(KJV_QWEN2)
    trace = Writer(tmp_path / "c.h5", names="transformers")
    with attach(model, trace), torch.no_grad():
        assert model(torch.tensor([TOKENS, TOKENS])).logits.shape == (2, 13, 2048)
    assert "input_ids of shape [2, 13], expected [1, n_tok]" in trace.errors[0]
    with pytest.warns(TraceWarning):
        trace.close()


BAD = {
    "no_model": ({"model": "none.gguf"}, "none.gguf: no such file"),
    "dtype": ({"dtype": "int8"}, 'dtype "int8", expected float32'),
    "token_of_another_model": ({"tokens": [1, 5000]}, "token 5000, expected 0 to 2047"),
    "no_tokens": ({"tokens": []}, "0 tokens"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named(name, tmp_path):
    changed, message = BAD[name]
    with pytest.raises(TraceError, match=message):
        record(**{"model": KJV_QWEN2, "tokens": TOKENS, "path": tmp_path / "c.h5", **changed})


def test_command_line(tmp_path, capsys):
    assert main([str(KJV_QWEN2), "--tokens", "1,2,3", "-o", str(tmp_path / "c.h5"), "--generate", "1"]) == 0
    assert "4 positions" in capsys.readouterr().out
    assert main(["none.gguf", "--tokens", "1", "-o", str(tmp_path / "c.h5")]) == 2
    assert "no such file" in capsys.readouterr().err
