"""The reader on a trace that C wrote: what it returns is what lies in the file and what the tensors say."""

import h5py
import numpy as np
import pytest
from conftest import KJV_QWEN2

from firstdiff.trace import Reader, TraceError, Writer
from firstdiff.trace.reader import statistics


@pytest.fixture(scope="module")
def path(firstdiff, tmp_path_factory):
    return firstdiff.reference(KJV_QWEN2, [5, 6, 7, 8, 9], tmp_path_factory.mktemp("reader") / "r.h5")


def test_tensors_are_sliced_lazily(path):
    with Reader(path) as trace:
        tensor = trace["blk.1.attn_q_rope"]
        assert tensor.shape == (5, 8, 32) and tensor.dtype == "F32" and tensor.at(3).shape == (8, 32)
        assert np.array_equal(tensor[2:4, 1, :5], np.asarray(tensor)[2:4, 1, :5])
        assert trace["blk.0.attn_weights"].at(2).shape == (8, 3)
        assert np.allclose(trace["blk.0.attn_weights"].at(2).sum(axis=-1), 1)
        with h5py.File(path) as file:
            assert np.array_equal(tensor, file["tensors/blk.1.attn_q_rope"])
            assert list(trace) == [name.decode() for name in file["graph"]["name"]]
    with pytest.raises(TraceError, match="the trace is closed"):
        trace["logits"]


def test_tables(path):
    pytest.importorskip("pandas", reason="no pandas: tables are not tried")
    with Reader(path) as trace:
        nodes = trace.nodes().set_index("name")
        assert nodes.loc["blk.1.attn_q", "op"] == "matmul" and nodes.loc["blk.1.attn_q", "layer"] == 1
        assert nodes.loc["blk.1.attn_q", "shape"] == (8, 32) and nodes.recorded.all()
        assert nodes.loc["blk.1.attn_q", "weight0"] == "blk.1.attn_q.weight"
        stats = trace.stats("blk.*.l_out")
        assert len(stats) == 5 * 4
        for (position, name), row in stats.iterrows():
            assert np.allclose(row, statistics(trace[name].at(position)), rtol=1e-12)
        health = trace.health()
        assert list(health.n_kv) == [1, 2, 3, 4, 5] and health.top_id[4] == np.argmax(trace["logits"].at(4))


def test_foreign_traces_give_the_same_tables(path, tmp_path):
    """Without /graph, /stats and /health: computed from the tensors."""
    pytest.importorskip("pandas", reason="no pandas: tables are not tried")
    with Reader(path) as trace:
        with Writer(tmp_path / "f.h5", tokens=trace.tokens) as foreign:
            for name in trace.match(["blk.*.attn_weights", "blk.*.l_out"]):
                foreign.put(name, trace[name][...])
        with Reader(tmp_path / "f.h5") as foreign:
            a, b = trace.entropy(), foreign.entropy()
            assert a.shape == b.shape == (5, 4 * 8) and np.allclose(a, b, atol=1e-6) and float(a.to_numpy().max()) > 0.1
            a, b = trace.stats("blk.2.l_out"), foreign.stats("blk.2.l_out")
            assert np.allclose(a, b, rtol=1e-12)
            assert list(foreign.nodes().layer)[:2] == [0, 0] and list(foreign.health().columns) == ["token"]


def test_unknown_names_say_what_there_is(path):
    with Reader(path) as trace:
        with pytest.raises(KeyError, match="no tensor blk.9.attn_q; there are blk.0.attn_q"):
            trace["blk.9.attn_q"]
        assert trace.match("blk.9.*") == []


def write(name, content):
    def make(folder):
        with h5py.File(folder / name, "w") as file:
            for key, value in content.items():
                file.attrs[key] = value
        return folder / name

    return make


def damaged(folder):
    (folder / "cut.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(40))
    return folder / "cut.h5"


BAD = {
    "missing": (lambda folder: folder / "none.h5", "no such file"),
    "damaged": (damaged, "not an HDF5 file, or damaged"),
    "no_schema": (write("a.h5", {"x": 1}), 'schema ""'),
    "another_version": (write("b.h5", {"schema": "firstdiff-trace", "version": 2}), "version 2; expected"),
    "no_tokens": (write("c.h5", {"schema": "firstdiff-trace", "version": 1}), "no /tokens"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_named(tmp_path, name):
    make, message = BAD[name]
    with pytest.raises(TraceError, match=message):
        Reader(make(tmp_path))
