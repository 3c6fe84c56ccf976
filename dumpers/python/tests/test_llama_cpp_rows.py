"""Which axis of a node of llama.cpp's graph is the tokens', and which layer a node without a name is of."""

import numpy as np
import pytest

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed: its adapter is not tried")

from firstdiff.ggml import Node  # noqa: E402
from firstdiff.llama_cpp_recorder import layer_of, positions_first  # noqa: E402


def test_as_many_tokens_as_groups_of_heads():
    """Of six rows of six heads the name says which are which."""
    values = np.arange(1 * 6 * 6 * 2, dtype=np.float32).reshape(1, 6, 6, 2)
    norm = Node("ssm_norm-0", "MUL", "f32", values.shape, 0, True)
    scores = Node("kq-0", "MUL_MAT", "f32", values.shape, 0, True)
    assert (positions_first(norm, values, range(6)) == values[0]).all()
    assert (positions_first(scores, values, range(6)) == np.moveaxis(values[0], 1, 0)).all()


def test_as_many_tokens_as_layers():
    """gemma4's inputs of each layer come as rows of tokens, until they are permuted."""
    values = np.arange(1 * 4 * 4 * 2, dtype=np.float32).reshape(1, 4, 4, 2)
    for name, op in (("inp_per_layer_selected", "SCALE"), ("per_layer_proj", "MUL"), ("inp_per_layer", "SCALE")):
        node = Node(name, op, "f32", values.shape, 0, True)
        assert (positions_first(node, values, range(4)) == values[0]).all(), name
    permuted = Node("inp_per_layer (permuted) (cont)", "CONT", "f32", values.shape, 0, True)
    assert (positions_first(permuted, values, range(4)) == np.moveaxis(values[0], 1, 0)).all()


def test_layer_of_a_node_that_reads_another_layers_weight():
    """By its input inside the layer; a layer's input is the output of the one before."""
    assert layer_of("2", ["blk.2.attn_output.weight", "kqv_out-1"]) == "1"
    assert layer_of("2", ["blk.2.attn_output.weight", "kqv_out-2"]) == "2"
    assert layer_of("2", ["blk.2.attn_q.weight", "l_out-1"]) == "2"
