"""Which axis of a node of llama.cpp's graph is the tokens'."""

import numpy as np
import pytest

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed: its adapter is not tried")

from firstdiff.ggml import Node  # noqa: E402
from firstdiff.llama_cpp_recorder import positions_first  # noqa: E402


def test_as_many_tokens_as_groups_of_heads():
    """Of six rows of six heads the name says which are which."""
    values = np.arange(1 * 6 * 6 * 2, dtype=np.float32).reshape(1, 6, 6, 2)
    norm = Node("ssm_norm-0", "MUL", "f32", values.shape, 0, True)
    scores = Node("kq-0", "MUL_MAT", "f32", values.shape, 0, True)
    assert (positions_first(norm, values, range(6)) == values[0]).all()
    assert (positions_first(scores, values, range(6)) == np.moveaxis(values[0], 1, 0)).all()
