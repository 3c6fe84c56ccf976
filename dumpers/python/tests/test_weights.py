"""Row hashes of weights: those of firstdiff's own traces, and what `compare` says by them."""

import subprocess
import sys

import h5py
import numpy as np
import pytest
import xxhash
from conftest import KJV_LLAMA, KJV_QWEN2, ROOT, TOKENS

from firstdiff.trace import Bfloat16, TraceError, Writer

ENGINE = ROOT / "examples" / "numpy" / "engine.py"
RNG = np.random.default_rng(11)


def recorded(path, name="w"):
    with h5py.File(path) as file:
        data = file["weights"][name]
        return data[...], dict(data.attrs)


def record(path, values, dtype=None):
    with Writer(path, tokens=[1], strict=True) as trace:
        trace.weight("w", values, dtype)
    return recorded(path)


def run_engine(model, path, *arguments):
    """examples/numpy on TOKENS."""
    tokens = ",".join(map(str, TOKENS))
    ran = subprocess.run(
        [sys.executable, ENGINE, model, path, "--tokens", tokens, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return path


@pytest.mark.parametrize("model", [KJV_LLAMA, KJV_QWEN2], ids=["llama", "qwen2"])
def test_they_are_those_of_firstdiff(tmp_path, firstdiff, model):
    reference = firstdiff.reference(model, TOKENS, tmp_path / "r.h5")
    ours = run_engine(model, tmp_path / "t.h5")
    with h5py.File(reference) as a, h5py.File(ours) as b:
        assert sorted(a["weights"]) == sorted(b["weights"])
        for name, data in a["weights"].items():
            same = b["weights"][name]
            assert same.dtype == data.dtype and np.array_equal(same, data), name
            want, have = dict(data.attrs), dict(same.attrs)
            assert have.pop("dtype") == "F32" and want.pop("dtype")  # the engine holds float32, firstdiff the file's blocks
            assert have == want and {type(v) for v in have.values()} == {type(v) for v in want.values()}, name
    found = firstdiff.verdict(reference, ours, model)
    assert found["status"] == "noise" and found["weights"]["differ"] == 0 == found["weights"]["unknown"]


@pytest.mark.parametrize(
    ("bug", "weight", "holds", "name"),
    [
        ("q-loaded-from-layer-3@2", "blk.2.attn_q.weight", "all 256 rows are those of blk.3.attn_q.weight", None),
        ("q-half-loaded@2", "blk.2.attn_q.weight", "", None),
        ("gate-up-swapped@1", "blk.1.ffn_gate.weight", "all 768 rows are those of blk.1.ffn_up.weight", "gate_up_swapped"),
    ],
)
def test_a_bug_of_the_loader(tmp_path, firstdiff, bug, weight, holds, name):
    reference = firstdiff.reference(KJV_LLAMA, TOKENS, tmp_path / "r.h5")
    found = firstdiff.verdict(reference, run_engine(KJV_LLAMA, tmp_path / "t.h5", "--bug", bug), KJV_LLAMA)
    weights = found["weights"]
    assert found["status"] == "diverged" and weights["first"] == weight
    assert (weights["holds"] or "") == holds and weights["name"] == name
    if bug.startswith("q-half"):
        assert weights["first_row"] == 128 and weights["held"]["trailing_zero_rows"] == 128


def test_rows_dequantised_by_the_gguf_package(tmp_path, firstdiff):
    gguf = pytest.importorskip("gguf", reason="gguf is not installed: rows that it dequantises are not tried")
    reference = firstdiff.reference(KJV_LLAMA, TOKENS, tmp_path / "r.h5")
    with Writer(tmp_path / "t.h5", TOKENS, strict=True) as trace:
        for tensor in gguf.GGUFReader(KJV_LLAMA).tensors:
            values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            trace.weight(tensor.name, values, tensor.tensor_type.name)
    with h5py.File(reference) as file:
        names = list(file["weights"])
    assert names
    for name in names:
        (want, about), (have, ours) = recorded(reference, name), recorded(tmp_path / "t.h5", name)
        assert np.array_equal(have, want) and ours["dtype"] == about["dtype"]


def test_any_float_is_hashed_as_float32(tmp_path):
    halves = RNG.standard_normal((6, 8)).astype(np.float16)
    want, about = record(tmp_path / "a.h5", halves.astype(np.float32))
    assert about["dtype"] == "F32" and about["n_row"] == 6 and about["n_col"] == 8
    by_hand = [xxhash.xxh3_64_intdigest(row.astype("<f4").tobytes()) for row in halves]
    assert want.tolist() == by_hand
    for dtype, values in [
        ("F16", halves),
        ("F64", halves.astype(np.float64)),
        ("F32", np.asfortranarray(halves.astype(np.float32))),
        ("F32", halves.astype(">f4")),
    ]:
        got, about = record(tmp_path / "b.h5", values)
        assert np.array_equal(got, want) and about["dtype"] == dtype
    assert record(tmp_path / "b.h5", halves, "Q8_0")[1]["dtype"] == "Q8_0"
    bits = RNG.integers(0, 0x7F00, (3, 4), dtype=np.uint16)
    wide = (bits.astype(np.uint32) << 16).view(np.float32)
    assert np.array_equal(record(tmp_path / "b.h5", Bfloat16(bits))[0], record(tmp_path / "a.h5", wide)[0])


def test_torch(tmp_path):
    torch = pytest.importorskip("torch", reason="torch is not installed: its tensors as weights are not tried")
    weight = torch.nn.Parameter(torch.randn(4, 8, dtype=torch.bfloat16))
    want = record(tmp_path / "a.h5", weight.detach().float().numpy())[0]
    assert np.array_equal(record(tmp_path / "b.h5", weight)[0], want)


def test_vectors_experts_and_large_tables(tmp_path):
    vector = RNG.standard_normal(8).astype(np.float32)
    hashes, about = record(tmp_path / "t.h5", vector)
    assert len(hashes) == 1 and about["n_row"] == 1 and about["n_col"] == 8
    assert record(tmp_path / "t.h5", np.zeros((3, 4, 8), np.float32))[1]["n_row"] == 12
    table = RNG.standard_normal((10000, 4)).astype(np.float32)
    hashes, about = record(tmp_path / "t.h5", table)
    assert about["rows_per_hash"] == 3 and len(hashes) == 3334
    assert hashes[1] == xxhash.xxh3_64_intdigest(table[3:6].tobytes())
    assert hashes[-1] == xxhash.xxh3_64_intdigest(table[9999:].tobytes())


def test_rows_of_zeros(tmp_path):
    rows = np.ones((6, 3), np.float32)
    rows[[1, 4, 5]], rows[0] = -0.0, np.nan
    about = record(tmp_path / "t.h5", rows)[1]
    assert about["n_zero_row"] == 3 and about["n_trailing_zero_row"] == 2
    about = record(tmp_path / "t.h5", np.zeros((6, 3), np.float32))[1]
    assert about["n_zero_row"] == about["n_trailing_zero_row"] == 6


def test_what_is_refused(tmp_path):
    good = np.ones((2, 2), np.float32)
    with Writer(tmp_path / "t.h5", strict=True) as trace:  # before any step: weights are loaded first
        assert trace.weight("logits:token_embd.weight", good)
        for name, values, dtype, said in [
            ("q", np.zeros((2, 34), np.uint8), None, "uint8, expected floats: dequantise"),
            ("q", np.float32(1), None, r"shape \[\], expected"),
            ("q", np.zeros((0, 4), np.float32), None, r"shape \[0, 4\], expected"),
            ("q", good, "IQ2_XXS_R4", "expected at most 7 bytes"),
            ("a/b", good, None, "expected 1 to 191"),
            ("logits:token_embd.weight", good, None, "recorded already"),
        ]:
            with pytest.raises(TraceError, match=said):
                trace.weight(name, values, dtype)
        trace.step([1])
    with h5py.File(tmp_path / "t.h5") as file:
        assert list(file["weights"]) == ["logits:token_embd.weight"]


def test_it_never_raises_in_the_engine(tmp_path):
    trace = Writer(tmp_path / "t.h5", tokens=[1])
    assert not trace.weight("q", np.zeros((2, 34), np.uint8)) and "weight q: " in trace.errors[0]
    with pytest.warns(match="marked as incomplete"):
        trace.close()
