"""Traces of which an engine recorded some rows, or some tensors in another type: what the verdict makes of them."""

import h5py
import numpy as np
from conftest import KJV_LLAMA

from firstdiff.trace import Reader, Writer


def test_last_rows_of_chunks_are_no_gap(tmp_path, firstdiff):
    """A prompt in chunks, of which the engine computes the last token's logits alone."""
    ids, n_vocab = [1, 300, 45, 7, 99, 512, 8], 2048
    firstdiff("run", KJV_LLAMA, "--tokens", ",".join(map(str, ids)), "-n", "0", "-q", "-o", tmp_path / "ref.h5")
    with Reader(tmp_path / "ref.h5") as read:
        logits, norm = read["logits"][:], read["output_norm"][:]
    with Writer(tmp_path / "t.h5", numerics="f32", strict=True) as trace:
        for first, last in ((0, 3), (3, 6), (6, 7)):
            trace.step(ids[first:last])
            trace.put("output_norm", norm[first:last])
            trace.put("logits", logits[last - 1 : last], pos0=trace.n_pos - 1)
    with h5py.File(tmp_path / "t.h5") as file:
        assert file["tensors/logits"].attrs["last_rows"] == 1 and file["tensors/logits"].shape == (5, n_vocab)
    said = firstdiff("compare", tmp_path / "ref.h5", tmp_path / "t.h5", "--model", KJV_LLAMA, "--allow-missing", "*")
    assert said.returncode == 0, said.stdout


def test_a_cache_stored_in_binary16_shows_its_class(tmp_path, firstdiff):
    """Beside it every op is right by what was stored, in binary32 too: the whole run is not."""
    ids = [1, 300, 45, 7, 99, 512, 8, 261, 77]
    fed = ("--tokens", ",".join(map(str, ids)), "-n", "0", "-q", "-o")
    run = firstdiff("run", KJV_LLAMA, "--numerics", "emulate-f16kv", *fed, tmp_path / "f16kv.h5")
    assert run.returncode == 0, run.stderr
    with Reader(tmp_path / "f16kv.h5") as read, Writer(tmp_path / "t.h5", ids, strict=True) as trace:
        for name in read:
            trace.put(name, read[name][:].astype(np.float16) if ".cache_" in name else read[name][:])
    firstdiff("run", KJV_LLAMA, *fed, tmp_path / "ref.h5")
    said = firstdiff("compare", tmp_path / "ref.h5", tmp_path / "t.h5", "--model", KJV_LLAMA)
    assert said.returncode == 0 and "class       f16kv (inferred)" in said.stdout, said.stdout
