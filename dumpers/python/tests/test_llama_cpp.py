"""llama.cpp through llama-cpp-python, judged by firstdiff: rounding is noise, an altered tensor is not."""

from pathlib import Path

import h5py
import numpy as np
import pytest
from conftest import KJV_LLAMA, KJV_QWEN2, SHARED, STORIES, TOKENS, weight_hashes

llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed: its adapter is not tried")

from firstdiff.llama_cpp import Recorder, Settings, main, record  # noqa: E402
from firstdiff.trace import Reader, TraceError, Writer  # noqa: E402

llama_cpp._logger.set_verbose(False)
FILE_TYPES = {"F32": 0, "F16": 1, "Q8_0": 7, "Q4_K": 14}  # enum llama_ftype
F16 = Settings()
F32 = Settings(kv_type="f32")
FLASH = Settings(flash_attn=True)


@pytest.fixture(scope="session")
def requantised(tmp_path_factory):
    """A bundled model with its matrices in another type, by llama.cpp's own quantiser."""
    folder = tmp_path_factory.mktemp("models")

    def make(model: Path, kind: str) -> Path:
        path = folder / f"{model.stem}-{kind}.gguf"
        if not path.exists():
            params = llama_cpp.llama_model_quantize_default_params()
            params.ftype, params.allow_requantize, params.pure, params.nthread = FILE_TYPES[kind], True, True, 2
            assert llama_cpp.llama_model_quantize(str(model).encode(), str(path).encode(), params) == 0
        return path

    return make


def check_noise(verdict, classes):
    assert verdict["status"] == "noise", verdict.get("divergence") or verdict["reasons"]
    replay = verdict["replay"]
    assert replay["class"] in classes and replay["introduced"] == 0
    assert 0 < replay["largest_noise_z"]["value"] <= 1
    return replay


# Worked example: the bundled models and stories260K, all layers, prefill and decode. kjv-llama is Q8_0, kjv-qwen2 F16.
EXAMPLES = {
    "kjv-llama": (KJV_LLAMA, 6, "inferred"),
    "kjv-qwen2": (KJV_QWEN2, 4, "recorded"),
    "stories260K": (STORIES, 5, "recorded"),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_no_divergence_in_any_layer(name, tmp_path, firstdiff):
    model, n_layer, source = EXAMPLES[name]
    if not model.exists():
        pytest.skip(f"{model.name} is not there")
    run = record(model, TOKENS, tmp_path / "c.h5", generate=4, verify=True)
    reference = firstdiff.reference(model, run.tokens, tmp_path / "r.h5")
    verdict = firstdiff.verdict(reference, tmp_path / "c.h5", model)
    replay = check_noise(verdict, ["ggml-cpu"])
    assert replay["class_source"] == source
    assert verdict["candidate"]["label"] == str(tmp_path / "c.h5")
    with Reader(reference) as trace:
        nodes = [n for n in trace if ".cache_" not in n]
        assert n_layer * 17 + 3 == len(nodes)
        # each in its prefill and its four decode steps, or in the reference's single step
        assert replay["tensors"] >= len(nodes)
    assert all(".cache_" in m["name"] for m in verdict["missing"]), verdict["missing"]


# Which roundings firstdiff finds in each type of weights: activations of quantised matrices are int8 blocks, those of
# f16 matrices f16; K and V in f16 are told apart where nothing coarser hides them. Flash attention is recorded, not
# inferred.
ROUNDINGS = {
    ("F32", F32): ["ggml-cpu-f32kv"],
    ("F32", F16): ["ggml-cpu"],
    ("F16", F32): ["ggml-cpu-f32kv"],
    ("F16", F16): ["ggml-cpu"],
    ("Q8_0", F32): ["ggml-cpu-f32kv"],
    ("Q8_0", F16): ["ggml-cpu"],
    ("Q4_K", F32): ["ggml-cpu-f32kv"],
    ("Q4_K", F16): ["ggml-cpu"],
    ("F32", FLASH): ["ggml-cpu-fa"],
    ("F16", FLASH): ["ggml-cpu-fa"],
    ("Q8_0", FLASH): ["ggml-cpu-fa"],
    ("Q4_K", FLASH): ["ggml-cpu-fa"],
}


# Other architectures: every node of llama.cpp's graph that has one of ours is mapped.
ARCHITECTURES = "exaone4-dense gpt-oss-moe granite-dense internlm2-dense llama-moe minicpm-dense mistral3-dense qwen3-dense qwen3moe-moe seed_oss-dense smollm3-dense"


@pytest.mark.parametrize("name", ARCHITECTURES.split())
def test_other_architectures_are_noise(name, tmp_path, firstdiff):
    model = SHARED / "conformance" / f"{name}.gguf"
    if not model.exists():
        pytest.skip(f"{model.name} is not there")
    tokens = [t % 128 for t in TOKENS]
    record(model, tokens, tmp_path / "c.h5", prefill=10, settings=F32)
    reference = firstdiff.reference(model, tokens, tmp_path / "r.h5")
    check_noise(firstdiff.verdict(reference, tmp_path / "c.h5", model), ["ggml-cpu-f32kv"])


def is_noticed(verdict, node):
    """A tensor that was changed in the dump alone: what reads it has the right values, where something recorded does."""
    if verdict["status"] == "check-dump":
        return [found["node"] for found in verdict["misrecorded"]] == [node]
    return verdict["status"] == "diverged" and verdict["divergence"]["node"] == node


def settings_name(settings):
    return f"kv-{settings.kv_type}" + ("-flash" if settings.flash_attn else "")


def alter(path, name, position, change):
    """The mutant: `change` of one row of a tensor."""
    with h5py.File(path, "r+") as file:
        data = file["tensors"][name]
        row = data[position]
        data[position] = change(row)
        assert not np.array_equal(row, data[position])


@pytest.mark.parametrize("model", [KJV_LLAMA, KJV_QWEN2], ids=lambda m: m.stem)
@pytest.mark.parametrize("kind,settings", ROUNDINGS, ids=lambda v: v if isinstance(v, str) else settings_name(v))
def test_llama_cpp_is_noise_and_a_mutant_is_not(model, kind, settings, requantised, tmp_path, firstdiff):
    path = requantised(model, kind)
    run = record(path, TOKENS, tmp_path / "c.h5", prefill=8, settings=settings)
    reference = firstdiff.reference(path, run.tokens, tmp_path / "r.h5")
    check_noise(firstdiff.verdict(reference, tmp_path / "c.h5", path), ROUNDINGS[kind, settings])
    mutants = {
        "ffn_swiglu-2.GLU": "blk.2.ffn_act",
        "kqv_out-1." + ("RESHAPE" if settings.flash_attn else "CONT"): "blk.1.attn_out",
        "result_output.MUL_MAT": "logits",
    }
    name, node = list(mutants.items())[
        list(ROUNDINGS).index((kind, settings)) % len(mutants)
    ]  # one a case: seconds each
    alter(tmp_path / "c.h5", name, 9, lambda row: row * np.float32(1.05))
    verdict = firstdiff.verdict(reference, tmp_path / "c.h5", path)
    assert is_noticed(verdict, node), f"{name} times 1.05 passed"


# A GPU build of llama.cpp: matrices by mmq (int8), mmf, mmvf and cuBLAS, which one depends on the type and the batch.
@pytest.mark.gpu
@pytest.mark.skipif(not llama_cpp.llama_supports_gpu_offload(), reason="this build of llama.cpp has no GPU")
@pytest.mark.parametrize("n", [13, 80])
@pytest.mark.parametrize("kv_type", ["f16", "f32"])
@pytest.mark.parametrize("kind", FILE_TYPES)
@pytest.mark.parametrize("model", [KJV_LLAMA, KJV_QWEN2], ids=lambda m: m.stem)
def test_llama_cpp_on_a_gpu_is_noise_and_a_mutant_is_not(model, kind, kv_type, n, requantised, tmp_path, firstdiff):
    path = requantised(model, kind)
    tokens = TOKENS if n == len(TOKENS) else [int(t) for t in np.random.default_rng(n).integers(3, 2048, n)]
    settings = Settings(kv_type=kv_type, gpu_layers=-1)
    run = record(path, tokens, tmp_path / "c.h5", prefill=n - 4, settings=settings, verify=True)
    reference = firstdiff.reference(path, run.tokens, tmp_path / "r.h5")
    check_noise(firstdiff.verdict(reference, tmp_path / "c.h5", path), ["tf32", "llama-cpu", "llama-cuda"])
    alter(tmp_path / "c.h5", "ffn_swiglu-2.GLU", 9, lambda row: row * np.float32(1.05))
    verdict = firstdiff.verdict(reference, tmp_path / "c.h5", path)
    assert verdict["status"] == "diverged" and verdict["divergence"]["node"] == "blk.2.ffn_act"


def test_long_flash_attention_is_noise(tmp_path, requantised, firstdiff):
    """Short batches sum V in binary16, long ones in binary32: 64 tokens, then 22, then one by one."""
    model = requantised(KJV_LLAMA, "F32")
    tokens = [int(t) for t in np.random.default_rng(3).integers(3, 2048, 88)]
    record(model, tokens, tmp_path / "c.h5", prefill=86, settings=Settings(flash_attn=True, batch=64, threads=2))
    reference = firstdiff.reference(model, tokens, tmp_path / "r.h5")
    check_noise(firstdiff.verdict(reference, tmp_path / "c.h5", model), ["ggml-cpu-fa"])


def test_batches_and_heads_of_one_length_are_told_apart(tmp_path, firstdiff):
    """8 tokens and 8 heads, 4 tokens and 4 K/V heads: the axes of positions and heads are as long."""
    for n in (4, 8):
        record(KJV_LLAMA, TOKENS[:n], tmp_path / "c.h5", settings=F32)
        reference = firstdiff.reference(KJV_LLAMA, TOKENS[:n], tmp_path / "r.h5")
        check_noise(firstdiff.verdict(reference, tmp_path / "c.h5", KJV_LLAMA), ["ggml-cpu-f32kv"])


def test_names_and_shapes_are_llama_cpps(tmp_path):
    """As in the dump of the same model that llama.cpp's own callback wrote."""
    dump = SHARED / "models" / "stories260K.nodes"
    if not dump.is_dir():
        pytest.skip("stories260K.nodes is not there")
    record(STORIES, TOKENS, tmp_path / "c.h5", settings=F32)
    with Reader(tmp_path / "c.h5") as trace:
        assert {"Qcur-0.ROPE", "kq_soft_max-4.SOFT_MAX", "norm-2.RMS_NORM#2", "result_output.MUL_MAT"} <= set(trace)
        for name in ("l_out-0.ADD", "Qcur-3.ROPE", "kqv_out-2.CONT", "attn_norm-4.MUL"):
            theirs = np.load(dump / f"s0.{name}.npy").reshape(trace[name].shape)
            assert np.allclose(trace[name], theirs, rtol=1e-4, atol=1e-5), name


def test_recording_changes_nothing_and_patterns_select(tmp_path):
    all_of_it = record(KJV_QWEN2, TOKENS, tmp_path / "a.h5", generate=2, verify=True)
    some = record(KJV_QWEN2, TOKENS, tmp_path / "b.h5", generate=2, patterns=["l_out-*"])
    assert np.array_equal(all_of_it.logits, some.logits) and all_of_it.tokens == some.tokens
    with Reader(tmp_path / "b.h5") as trace:
        assert list(trace) == [f"l_out-{i}.ADD" for i in range(4)]


def test_a_bfloat16_cache_is_recorded_as_such(tmp_path):
    record(KJV_LLAMA, TOKENS, tmp_path / "c.h5", settings=Settings(kv_type="bf16"))
    with Reader(tmp_path / "c.h5") as trace:
        cache, rope = trace["cache_k_l2_(view).SET_ROWS"], trace["Kcur-2.ROPE"]
        assert cache.dtype == "BF16" and cache.shape == (13, 128)
        assert np.allclose(cache, np.asarray(rope).reshape(13, 128), rtol=2**-8, atol=0)


@pytest.mark.parametrize("kind", FILE_TYPES)
@pytest.mark.parametrize("model", [KJV_LLAMA, KJV_QWEN2], ids=lambda m: m.stem)
def test_weights_that_llama_cpp_holds_are_the_files(model, kind, requantised, tmp_path, firstdiff):
    pytest.importorskip("gguf", reason="gguf is not installed: rows of quantised types are not hashed")
    path = requantised(model, kind)
    record(path, TOKENS, tmp_path / "c.h5")
    record(path, TOKENS, tmp_path / "n.h5", weights=False)
    theirs = weight_hashes(tmp_path / "c.h5")
    ours = weight_hashes(firstdiff.reference(path, TOKENS, tmp_path / "r.h5"))
    assert theirs and not weight_hashes(tmp_path / "n.h5")
    if kind != "Q4_K":  # whose matrices llama.cpp may pack again for its kernels: these are left out
        assert theirs.keys() == ours.keys()
    assert all(theirs[name] == ours[name] for name in theirs)


@pytest.mark.parametrize("n", [13, 150])
@pytest.mark.parametrize("kv_type", ["q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl"])
@pytest.mark.parametrize("model", [KJV_LLAMA, KJV_QWEN2], ids=lambda m: m.stem)
def test_a_quantised_cache_is_noise_and_a_mutant_is_not(model, kv_type, n, tmp_path, firstdiff):
    """Its rows are not recorded; replay makes the same blocks."""
    tokens = TOKENS if n == len(TOKENS) else [int(t) for t in np.random.default_rng(n).integers(3, 2048, n)]
    run = record(model, tokens, tmp_path / "c.h5", prefill=n - 2, settings=Settings(kv_type=kv_type, flash_attn=True))
    assert "cache_k_l2_(view).SET_ROWS" in run.unread
    with Reader(tmp_path / "c.h5") as trace:
        assert trace.complete and trace.info["kv_type"] == kv_type and not trace.match("cache_*")
    reference = firstdiff.reference(model, tokens, tmp_path / "r.h5")
    check_noise(firstdiff.verdict(reference, tmp_path / "c.h5", model), ["ggml-cpu-f32kv", "ggml-cpu-fa"])
    alter(tmp_path / "c.h5", "kqv_out-1.RESHAPE", n - 1, lambda row: row * np.float32(1.05))
    verdict = firstdiff.verdict(reference, tmp_path / "c.h5", model)
    assert is_noticed(verdict, "blk.1.attn_out") or is_noticed(verdict, "blk.1.attn_proj")  # binary16 sums of 150 have room for it


@pytest.mark.parametrize("kv_type", ["q8_0", "q4_0", "iq4_nl"])
def test_rows_of_a_quantised_cache_are_recorded_as_they_are_without_a_rotation(kv_type, tmp_path, firstdiff):
    """Heads of 64 llama.cpp would rotate before it makes blocks of them."""
    model = tmp_path / "m.gguf"
    made = firstdiff("make-model", "--layers", "2", "--heads", "4", "--kv-heads", "2", "--embd", "256", "-o", model)
    assert made.returncode == 0, made.stderr
    tokens = [t % 250 for t in TOKENS]
    record(model, tokens, tmp_path / "c.h5", settings=Settings(kv_type=kv_type, flash_attn=True))
    reference = firstdiff.reference(model, tokens, tmp_path / "r.h5")
    check_noise(firstdiff.verdict(reference, tmp_path / "c.h5", model), ["ggml-cpu-f32kv", "ggml-cpu-fa"])


def test_heads_that_are_normed_by_as_many_tokens_as_there_are_heads(tmp_path, firstdiff):
    model = tmp_path / "m.gguf"
    assert firstdiff("make-model", "--arch", "qwen3", "--kv-heads", "2", "-o", model).returncode == 0
    record(model, [t % 250 for t in TOKENS], tmp_path / "c.h5", settings=Settings(kv_type="f32", batch=2))
    reference = firstdiff.reference(model, [t % 250 for t in TOKENS], tmp_path / "r.h5")
    check_noise(firstdiff.verdict(reference, tmp_path / "c.h5", model), ["f32", "ggml-cpu-f32kv"])


BAD = {
    "no_model": ({"model": "none.gguf"}, "none.gguf: no such file"),
    "no_gguf": ({"model": __file__}, "llama.cpp cannot load it"),
    "token_of_another_model": ({"tokens": [1, 5000]}, "token 5000, expected 0 to 2047"),
    "no_tokens": ({"tokens": []}, "0 tokens"),
    "prefill_of_more": ({"prefill": 14}, "13 tokens, 14 to prefill"),
    "kv_type": ({"settings": Settings(kv_type="f8")}, 'K/V type "f8", expected f32'),
    "quantised_v_without_flash": ({"settings": Settings(kv_type="q8_0")}, "refuses a context"),
    "folder": ({"path": "no/folder.h5"}, "cannot be created"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named(name, tmp_path):
    changed, message = BAD[name]
    arguments = {"model": KJV_LLAMA, "tokens": TOKENS, "path": tmp_path / "c.h5", **changed}
    with pytest.raises(TraceError, match=message):
        record(**arguments)


def test_an_error_inside_the_callback_never_reaches_llama_cpp(tmp_path):
    trace = Writer(tmp_path / "c.h5", tokens=[1])
    recorder = Recorder(trace)
    recorder._ggml.node = None  # calling it raises
    assert recorder._called(0, True, 0) is False and recorder._called(0, False, 0) is True
    assert len(trace.errors) == 2
    with pytest.warns(UserWarning):
        trace.close()


def test_command_line(tmp_path, capsys):
    tokens = ",".join(map(str, TOKENS))
    assert main([str(KJV_LLAMA), "--tokens", tokens, "-o", str(tmp_path / "c.h5"), "--generate", "1"]) == 0
    assert "14 positions" in capsys.readouterr().out
    assert main([str(KJV_LLAMA), "--tokens", "x", "-o", str(tmp_path / "c.h5")]) == 2
    assert main(["none.gguf", "--tokens", "1", "-o", str(tmp_path / "c.h5")]) == 2
    assert "no such file" in capsys.readouterr().err
