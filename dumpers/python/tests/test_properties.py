"""What holds for any input: whatever a Writer is given it raises nothing and its file opens, what it took comes back bit for bit, and
what lies in a file that is sound HDF5 but no sound trace is a TraceError."""

import warnings

import h5py
import numpy as np
import pytest

from firstdiff.trace import Bfloat16, Reader, TraceError, Writer
from firstdiff.trace.schema import STEP_ROW

hypothesis = pytest.importorskip("hypothesis", reason="no hypothesis: properties are not tried")
from hypothesis import HealthCheck, Phase, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from hypothesis.extra import numpy as hnp  # noqa: E402

settings.register_profile(
    "firstdiff",
    deadline=None,
    max_examples=40,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
    database=None,
)
settings.load_profile("firstdiff")

NAMES = st.one_of(st.sampled_from(["logits", "blk.0.attn_q", "blk.1.attn_weights", "x", ""]), st.text(max_size=70))
TYPES = [
    np.float16,
    np.float32,
    np.float64,
    ">f4",
    np.int8,
    np.int32,
    np.int64,
    np.uint16,
    np.bool_,
    np.complex64,
    "S3",
    object,
]
SHAPES = hnp.array_shapes(min_dims=0, max_dims=8, min_side=0, max_side=4)
JUNK = st.one_of(
    st.none(),
    st.integers(),
    st.floats(),
    st.text(),
    st.lists(st.floats(), max_size=3),
    st.just(object()),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
)


@st.composite
def arrays(draw, rows=None):
    kind = draw(st.sampled_from(TYPES[:9]))
    shape = draw(SHAPES if rows is None else st.lists(st.integers(1, 3), max_size=3).map(lambda rest: (rows, *rest)))
    bits = draw(st.binary(min_size=1, max_size=8))
    raw = np.resize(np.frombuffer(bits, np.uint8), max(1, int(np.prod(shape)) * np.dtype(kind).itemsize))
    return raw[: int(np.prod(shape)) * np.dtype(kind).itemsize].view(kind).reshape(shape)


def written(path, do):
    """The trace that `do` writes; what it warns of at the end is not the matter here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with Writer(path) as trace:
            do(trace)


@given(
    st.lists(st.tuples(NAMES, arrays(), st.one_of(st.none(), st.integers(-2, 6))), max_size=6),
    st.lists(JUNK, max_size=4),
)
def test_a_writer_never_raises_and_its_file_opens(tmp_path, firstdiff, puts, junk):
    def do(trace):
        for thing in junk:
            trace.step(thing)
            trace.put("junk", thing)
            trace.weight("junk.weight", thing)
        trace.step([1, 2, 3])
        for name, values, first in puts:
            trace.put(name, values, pos0=first)
            trace.weight(name, values)

    written(tmp_path / "t.h5", do)
    with Reader(tmp_path / "t.h5") as trace:
        assert trace.n_pos >= 3
    seen = firstdiff("inspect", tmp_path / "t.h5")
    assert seen.returncode in (0, 3), seen.stderr


@given(st.lists(arrays(rows=3), min_size=1, max_size=4))
def test_what_was_taken_comes_back(tmp_path, values):
    taken = {}

    def do(trace):
        trace.step([7, 8, 9])
        for i, array in enumerate(values):
            if trace.put(f"blk.{i}.x", array):
                taken[f"blk.{i}.x"] = array

    written(tmp_path / "t.h5", do)
    with Reader(tmp_path / "t.h5") as trace:
        assert list(trace) == list(taken)
        for name, array in taken.items():
            got = np.asarray(trace[name]).reshape(array.shape)
            native = array.astype(array.dtype.newbyteorder("="))
            if native.dtype.kind == "f":
                assert got.dtype == native.dtype and got.tobytes() == native.tobytes()
            else:
                assert np.array_equal(got.astype(native.dtype), native)


@given(hnp.arrays(np.uint16, st.tuples(st.just(2), st.integers(1, 5))))
def test_bfloat16_keeps_its_bits(tmp_path, bits):
    written(tmp_path / "t.h5", lambda trace: (trace.step([1, 2]), trace.put("x", Bfloat16(bits))))
    with h5py.File(tmp_path / "t.h5") as file:
        assert np.array_equal(file["tensors/x"][...], bits)


VALUES = st.one_of(
    hnp.arrays(st.sampled_from([np.int32, np.float64, "S2", STEP_ROW]), hnp.array_shapes(max_dims=2, max_side=3)),
    st.integers(-(2**31), 2**31),
    st.floats(),
    st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\0"), max_size=5),
)


@given(
    st.dictionaries(st.sampled_from(["complete", "level", "prompt", "names", "producer"]), VALUES),
    st.dictionaries(st.sampled_from(["tokens", "steps", "graph", "tensors", "stats", "health"]), VALUES),
    st.dictionaries(
        st.sampled_from(["a", "blk.0.x"]),
        st.tuples(VALUES, st.dictionaries(st.sampled_from(["seq", "dtype", "first_position", "over_kv"]), VALUES)),
    ),
)
def test_a_file_that_is_no_trace_is_a_trace_error(tmp_path, attributes, sets, tensors):
    with h5py.File(tmp_path / "t.h5", "w") as file:
        file.attrs["schema"], file.attrs["version"] = "firstdiff-trace", 1
        for key, value in attributes.items():
            file.attrs[key] = value
        for key, value in sets.items():
            file[key] = value
        if "tensors" not in sets:
            for key, (value, said) in tensors.items():
                file[f"tensors/{key}"] = value
                for name, number in said.items():
                    file[f"tensors/{key}"].attrs[name] = number
    try:
        with Reader(tmp_path / "t.h5") as trace:
            for name in trace:
                trace[name][...]
                trace[name].at(trace[name].first_position)
    except TraceError:
        pass
