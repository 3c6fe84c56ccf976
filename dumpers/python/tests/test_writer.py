"""What goes into a trace comes out of it, in Python and in C; what cannot be recorded is said and never hurts its
host."""

import warnings

import h5py
import numpy as np
import pytest
from conftest import KJV_LLAMA

from firstdiff.trace import Bfloat16, Reader, TraceError, TraceWarning, Writer

RNG = np.random.default_rng(7)


def floats(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def test_ten_lines_make_a_trace(tmp_path, firstdiff):
    tensors = {"token_embd": floats(5, 8), "blk.0.attn_q": floats(5, 2, 4), "logits": floats(5, 16)}
    with Writer(tmp_path / "t.h5", tokens=[1, 2, 3, 4, 5], engine="mine 1", prompt="five words") as trace:
        for name, values in tensors.items():
            assert trace.put(name, values)
    with Reader(tmp_path / "t.h5") as trace:
        assert list(trace) == list(tensors) and trace.complete and trace.info["producer"] == "mine 1"
        for name, values in tensors.items():
            assert np.array_equal(trace[name], values)
    seen = firstdiff("inspect", tmp_path / "t.h5")
    assert seen.returncode == 0 and "blk.0.attn_q" in seen.stdout, seen.stderr


def test_steps_append(tmp_path):
    values, weights = floats(6, 4), RNG.random((6, 2, 6)).astype(np.float32)
    with Writer(tmp_path / "t.h5") as trace:
        for first, last in ((0, 3), (3, 5), (5, 6)):
            trace.step(list(range(first, last)))
            trace.put("blk.0.l_out", values[first:last])
            trace.put("blk.0.attn_weights", weights[first:last, :, :last])
    with Reader(tmp_path / "t.h5") as trace:
        assert [(s.first, s.count, s.kind) for s in trace.steps] == [
            (0, 3, "prefill"),
            (3, 2, "prefill"),
            (5, 1, "decode"),
        ]
        assert np.array_equal(trace["blk.0.l_out"], values)
        for position in range(6):
            at = trace["blk.0.attn_weights"].at(position)
            assert np.array_equal(at, weights[position, :, : position + 1])


@pytest.mark.parametrize("name", ["attn_scores", "attn_alibi", "attn_weights"])
def test_attention_is_told_by_its_names(name, tmp_path, firstdiff):
    values = RNG.random((6, 2, 6)).astype(np.float32)
    with Writer(tmp_path / "steps.h5", strict=True) as trace:
        for first, last in ((0, 3), (3, 6)):
            trace.step(list(range(first, last)))
            trace.put(f"blk.0.{name}", values[first:last, :, :last])
    with h5py.File(tmp_path / "by_hand.h5", "w") as f:
        f.attrs["schema"], f.attrs["version"] = "firstdiff-trace", 1
        f["tokens"] = np.arange(6, dtype=np.int32)
        f[f"tensors/blk.0.{name}"] = values
    for file in ("steps.h5", "by_hand.h5"):
        with Reader(tmp_path / file) as trace:
            assert np.array_equal(trace[f"blk.0.{name}"].at(2), values[2, :, :3])
        shown = firstdiff("inspect", tmp_path / file, f"blk.0.{name}[2]")
        assert [len(line.split("]")[1].split()) for line in shown.stdout.splitlines()] == [3, 3], shown.stderr


def test_logits_of_the_last_token_alone(tmp_path, firstdiff):
    with Writer(tmp_path / "t.h5", tokens=[1, 2, 3]) as trace:
        trace.put("blk.0.l_out", floats(3, 4))
        trace.put("logits", floats(1, 9), pos0=2)
    with Reader(tmp_path / "t.h5") as trace:
        assert trace["logits"].first_position == 2 and trace["logits"].at(2).shape == (9,)
        with pytest.raises(TraceError, match="position 1, recorded are 2 to 2"):
            trace["logits"].at(1)
    assert firstdiff("inspect", tmp_path / "t.h5").returncode == 0


BITS = np.arange(6 * 10922, dtype=np.uint16).reshape(2, -1)  # nearly every pattern, NaN and subnormals among them


def test_float16_is_kept_bit_by_bit(tmp_path, firstdiff):
    with Writer(tmp_path / "t.h5", tokens=[1, 2]) as trace:
        trace.put("x", BITS.view(np.float16))
    with h5py.File(tmp_path / "t.h5") as file:
        data = file["tensors/x"]
        assert data.dtype == np.uint16 and data.attrs["dtype"] == "F16" and np.array_equal(data, BITS)
    with Reader(tmp_path / "t.h5") as trace:
        assert trace["x"][...].dtype == np.float16 and np.array_equal(trace["x"][...].view(np.uint16), BITS)
    assert "F16" in firstdiff("inspect", tmp_path / "t.h5").stdout


def test_bfloat16_bits_are_kept_without_torch(tmp_path, firstdiff):
    with Writer(tmp_path / "t.h5", tokens=[1, 2]) as trace:
        trace.put("x", Bfloat16(BITS))
    with Reader(tmp_path / "t.h5") as trace:
        assert np.array_equal(trace["x"][...].view(np.uint32), BITS.astype(np.uint32) << 16)
    assert "BF16" in firstdiff("inspect", tmp_path / "t.h5").stdout


def test_bfloat16_of_torch_is_kept_bit_by_bit(tmp_path):
    torch = pytest.importorskip("torch", reason="torch is not installed: its bfloat16 tensors are not tried")
    tensor = torch.from_numpy(BITS.view(np.int16).copy()).view(torch.bfloat16)
    with Writer(tmp_path / "t.h5", tokens=[1, 2]) as trace:
        trace.put("x", tensor)
        trace.put("gradient", tensor.clone().requires_grad_())
    with h5py.File(tmp_path / "t.h5") as file:
        for data in file["tensors"].values():
            assert data.dtype == np.uint16 and data.attrs["dtype"] == "BF16" and np.array_equal(data, BITS)
    with Reader(tmp_path / "t.h5") as trace:
        assert np.array_equal(trace["x"][...].view(np.uint32), tensor.float().numpy().view(np.uint32))


ARRAYS = {
    "float64": (floats(3, 4).astype(np.float64), np.float64),
    "big_endian": (floats(3, 4).astype(">f4"), np.float32),
    "fortran_order": (np.asfortranarray(floats(3, 4)), np.float32),
    "strided": (floats(3, 8)[:, ::2], np.float32),
    "int8": (np.arange(12, dtype=np.int8).reshape(3, 4), np.float32),
    "int32": (np.arange(12, dtype=np.int32).reshape(3, 4) + 2**30, np.float64),
    "list": (floats(3, 4).tolist(), np.float64),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_of_any_kind(tmp_path, name):
    values, kept_as = ARRAYS[name]
    with Writer(tmp_path / "t.h5", tokens=[1, 2, 3], strict=True) as trace:
        trace.put("x", values)
    with Reader(tmp_path / "t.h5") as trace:
        assert trace["x"][...].dtype == kept_as and np.array_equal(trace["x"], np.asarray(values))


def test_a_buffer_that_is_used_again_is_copied(tmp_path):
    buffer = np.zeros((2, 4), np.float32)
    with Writer(tmp_path / "t.h5", tokens=[1, 2]) as trace:
        for layer in range(3):
            buffer[:] = layer
            trace.put(f"blk.{layer}.l_out", buffer)
    with Reader(tmp_path / "t.h5") as trace:
        assert [float(trace[f"blk.{i}.l_out"][1, 3]) for i in range(3)] == [0, 1, 2]


def test_one_row_of_a_tensor_with_an_axis_of_one_is_no_batch(tmp_path):
    with Writer(tmp_path / "t.h5") as trace:
        for tokens in ([1, 2, 3], [4]):
            trace.step(tokens)
            trace.put("blk.0.ffn_shexp", np.full((len(tokens), 1, 8), len(tokens), np.float32))
    with Reader(tmp_path / "t.h5") as trace:
        assert trace["blk.0.ffn_shexp"].shape == (4, 1, 8)
        assert trace["blk.0.ffn_shexp"][:, 0, 0].tolist() == [3, 3, 3, 1]


def test_a_batch_axis_is_dropped(tmp_path):
    values, q = floats(1, 3, 4), floats(1, 3, 2, 4)
    with Writer(tmp_path / "t.h5", tokens=[1, 2, 3]) as trace:
        trace.put("x", values)
        trace.put("q", q)
        trace.step([9])
        trace.put("x", values[:, :1])
        trace.put("q", q[:, :1])
    with Reader(tmp_path / "t.h5") as trace:
        assert trace["x"].shape == (4, 4) and trace["q"].shape == (4, 2, 4)


def test_the_models_hash_is_firstdiffs(tmp_path, firstdiff):
    with Writer(tmp_path / "t.h5", tokens=[1, 2], model=KJV_LLAMA) as trace:
        trace.put("token_embd", floats(2, 256))
    firstdiff.reference(KJV_LLAMA, [1, 2], tmp_path / "r.h5")
    with Reader(tmp_path / "t.h5") as mine, Reader(tmp_path / "r.h5") as theirs:
        assert mine.info["model_hash"] == theirs.info["model_hash"] != ""


def put(name="x", values=None, **how):
    return lambda trace: trace.put(name, floats(3, 4) if values is None else values, **how)


BAD = {
    "rows_of_another_step": (put(values=floats(2, 4)), "has 2 rows, expected 3, one for each token of the step"),
    "positions_not_fed": (put(pos0=1), "3 rows from position 1, expected positions 0 to 2"),
    "negative_position": (put(values=floats(1, 4), pos0=-1), "from position -1"),
    "a_scalar": (put(values=np.float32(1)), "a scalar"),
    "strings": (put(values=np.array([["a"]] * 3)), "expected floats of 16, 32 or 64 bits"),
    "complex": (put(values=np.zeros((3, 2), np.complex64)), "an array of complex64"),
    "five_dimensions_more": (put(values=floats(3, 1, 1, 1, 1, 2)), "with 1 to 4 dimensions more"),
    "no_elements": (put(values=floats(3, 0)), "none empty"),
    "slash": (put("a/b"), "a name of 3 bytes"),
    "empty_name": (put(""), "a name of 0 bytes"),
    "long_name": (put("x" * 64), "a name of 64 bytes, expected 1 to 63"),
    "parent_folder": (put(".."), "not . or .."),
    "too_few_keys": (put("blk.0.attn_weights", floats(3, 2, 2)), "n_kv at least 3"),
    "no_heads": (put("blk.0.attn_scores", floats(3, 3)), r"expected \[n_pos, n_head, n_kv\]"),
    "wide_integers": (put(values=np.full((3, 1), 2**60)), "beyond 2\\*\\*53"),
    "ids_below_0": (lambda t: t.step([-1]), "token -1"),
    "no_ids": (lambda t: t.step([]), "expected a list of ids"),
    "float_ids": (lambda t: t.step([0.5]), "expected a list of ids"),
    "unknown_kind": (lambda t: t.step([1], kind="fill"), 'kind "fill"'),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_kept_and_never_raised(tmp_path, name, firstdiff):
    bad, message = BAD[name]
    trace = Writer(tmp_path / "t.h5", tokens=[1, 2, 3])
    trace.put("token_embd", floats(3, 8))
    assert bad(trace) is False
    with pytest.warns(TraceWarning, match=message):
        trace.close()
    with Reader(tmp_path / "t.h5") as read:
        assert not read.complete and list(read) == ["token_embd"]
    same = firstdiff("compare", tmp_path / "t.h5", tmp_path / "t.h5")
    assert same.returncode == 3, "a trace that lost something must not pass"
    with pytest.raises(TraceError, match=message):
        with Writer(tmp_path / "strict.h5", tokens=[1, 2, 3], strict=True) as strict:
            bad(strict)


def test_a_tensor_that_changes_its_form(tmp_path):
    for other in (floats(3, 5), floats(3, 4).astype(np.float64)):
        with Writer(tmp_path / "t.h5", tokens=[1, 2, 3], strict=True) as trace:
            trace.put("x", floats(3, 4))
            with pytest.raises(TraceError, match=r"expected F32 \[n_pos, 4\] as before"):
                trace.put("x", other)
            trace.errors.clear()


def test_a_position_that_was_left_out_is_said(tmp_path):
    trace = Writer(tmp_path / "t.h5", tokens=[1, 2, 3])
    trace.put("x", floats(1, 4), pos0=0)
    trace.put("x", floats(1, 4), pos0=2)
    with pytest.warns(TraceWarning, match="tensor x: position 1 was not recorded"):
        trace.close()


def test_a_closed_writer_and_one_without_a_step(tmp_path):
    trace = Writer(tmp_path / "t.h5")
    assert trace.put("x", floats(3, 4)) is False and "no step has begun" in trace.errors[0]
    with pytest.warns(TraceWarning):
        trace.close()
    trace.close()
    assert trace.put("x", floats(3, 4)) is False and "the trace is closed" in trace.errors[-1]


def test_the_model_is_not_overwritten(tmp_path):
    model = tmp_path / "model.gguf"
    model.write_bytes(b"not much of a model")
    with pytest.raises(TraceError, match="is the model"):
        Writer(model, model=model)
    assert model.read_bytes() == b"not much of a model"


def test_what_cannot_be_opened(tmp_path):
    with pytest.raises(TraceError, match="cannot be created"):
        Writer(tmp_path / "no" / "folder.h5")
    with pytest.raises(TraceError, match="No such file"):
        Writer(tmp_path / "t.h5", model=tmp_path / "none.gguf")
    assert not (tmp_path / "t.h5").exists()


def test_a_host_that_fails_keeps_its_own_error(tmp_path):
    with warnings.catch_warnings(record=True) as caught, pytest.raises(ZeroDivisionError):
        warnings.simplefilter("always")
        with Writer(tmp_path / "t.h5", tokens=[1]) as trace:
            trace.put("x", floats(1, 4))
            1 / 0  # noqa: B018
    assert "the run ended with ZeroDivisionError" in str(caught[0].message)
    with Reader(tmp_path / "t.h5") as read:
        assert not read.complete


def test_a_tensor_of_another_model_is_named(tmp_path, firstdiff):
    """The hash says it, and without a hash the shape does."""
    reference = firstdiff.reference(KJV_LLAMA, [1, 2, 3], tmp_path / "r.h5")
    with Writer(tmp_path / "hash.h5", tokens=[1, 2, 3], attributes={"model_hash": "xxh3-128:" + 32 * "0"}) as trace:
        trace.put("token_embd", floats(3, 256))
    with Writer(tmp_path / "shape.h5", tokens=[1, 2, 3]) as trace:
        trace.put("token_embd", floats(3, 255))
    for name, said in (("hash", "model"), ("shape", "255")):
        ran = firstdiff("compare", reference, tmp_path / f"{name}.h5", "--model", KJV_LLAMA)
        assert ran.returncode in (1, 2, 3) and said in ran.stdout + ran.stderr, ran.stdout + ran.stderr
