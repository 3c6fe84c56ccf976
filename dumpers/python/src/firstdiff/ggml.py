"""The tensors of ggml's graph, read through ctypes from the library that llama-cpp-python loaded.

ggml_tensor is laid out here as ggml.h declares it (llama.cpp, MIT licence). ggml promises no stable layout, so
`check_layout` holds it against ggml's own accessors before anything is read."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np

from firstdiff.trace.arrays import Array, Bfloat16, TraceError

MAX_DIMS, MAX_SRC, MAX_OP_PARAMS, MAX_NAME = 4, 10, 64, 64


class TensorStruct(ctypes.Structure):
    """struct ggml_tensor."""

    _fields_ = [
        ("type", ctypes.c_int),
        ("buffer", ctypes.c_void_p),
        ("ne", ctypes.c_int64 * MAX_DIMS),  # elements, fastest dimension first
        ("nb", ctypes.c_size_t * MAX_DIMS),  # strides in bytes
        ("op", ctypes.c_int),
        ("op_params", ctypes.c_int32 * (MAX_OP_PARAMS // 4)),
        ("flags", ctypes.c_int32),
        ("src", ctypes.c_void_p * MAX_SRC),
        ("view_src", ctypes.c_void_p),
        ("view_offs", ctypes.c_size_t),
        ("data", ctypes.c_void_p),
        ("name", ctypes.c_char * MAX_NAME),
    ]


# Element types that a trace can hold, by ggml's own name: NumPy type of the elements and the trace's name.
TYPES = {"f32": (np.float32, "F32"), "f16": (np.uint16, "F16"), "bf16": (np.uint16, "BF16"), "f64": (np.float64, "F64")}


@dataclass(frozen=True)
class Node:
    """One tensor of the graph, after it was computed."""

    name: str  # "Qcur-0"; "" for those that have none
    op: str  # "MUL_MAT"
    type: str  # "f32"
    shape: tuple[int, ...]  # of all four dimensions, slowest first, as NumPy has them
    address: int
    contiguous: bool


class Ggml:
    """The functions of the loaded ggml that reading a tensor takes."""

    def __init__(self, library: Any) -> None:
        """`library`: the ctypes handle of a library through which ggml's symbols are reached."""
        signatures: dict[str, tuple[list[Any], Any]] = {
            "ggml_get_name": ([ctypes.c_void_p], ctypes.c_void_p),
            "ggml_op_name": ([ctypes.c_int], ctypes.c_char_p),
            "ggml_type_name": ([ctypes.c_int], ctypes.c_char_p),
            "ggml_nelements": ([ctypes.c_void_p], ctypes.c_int64),
            "ggml_nbytes": ([ctypes.c_void_p], ctypes.c_size_t),
            "ggml_is_contiguous": ([ctypes.c_void_p], ctypes.c_bool),
            "ggml_element_size": ([ctypes.c_void_p], ctypes.c_size_t),
            "ggml_backend_buffer_is_host": ([ctypes.c_void_p], ctypes.c_bool),
            "ggml_backend_tensor_get": ([ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t], None),
        }
        for name, (arguments, result) in signatures.items():
            try:
                function = getattr(library, name)
            except AttributeError as error:
                raise TraceError(f"this build of llama.cpp has no function {name}") from error
            function.argtypes, function.restype = arguments, result
            setattr(self, name, function)
        self._ops: dict[int, str] = {}
        self._types: dict[int, str] = {}
        self._checked = False

    def __getattr__(self, name: str) -> Any:  # for mypy: the functions above
        raise AttributeError(name)

    def check_layout(self, address: int) -> None:
        """Raises TraceError where ggml's accessors and TensorStruct disagree about a tensor."""
        t = TensorStruct.from_address(address)
        n = 1
        for extent in t.ne:
            n *= extent
        facts = [
            ("ggml_get_name", self.ggml_get_name(address), address + TensorStruct.name.offset),
            ("ggml_nelements", self.ggml_nelements(address), n),
            ("ggml_element_size", self.ggml_element_size(address), t.nb[0]),
        ]
        for name, said, found in facts:
            if said != found:
                raise TraceError(
                    f"this build of llama.cpp lays out ggml_tensor otherwise ({name} says {said}, expected {found}): "
                    "its tensors cannot be read"
                )

    def node(self, address: int) -> Node:
        """What the graph says about the tensor at `address`."""
        if not self._checked:
            self.check_layout(address)
            self._checked = True
        t = TensorStruct.from_address(address)
        if t.op not in self._ops:
            self._ops[t.op] = self.ggml_op_name(t.op).decode()
        if t.type not in self._types:
            self._types[t.type] = self.ggml_type_name(t.type).decode()
        return Node(
            name=t.name.decode(errors="replace"),
            op=self._ops[t.op],
            type=self._types[t.type],
            shape=tuple(reversed(t.ne)),
            address=address,
            contiguous=bool(self.ggml_is_contiguous(address)),
        )

    def viewed(self, address: int, i: int) -> Node | None:
        """The tensor that source i of the node is a view of."""
        source = TensorStruct.from_address(address).src[i]
        whole = TensorStruct.from_address(source).view_src if source else None
        return self.node(whole) if whole else None

    def reads(self, address: int) -> list[str]:
        """The names of the tensors that the node reads."""
        sources = [source for source in TensorStruct.from_address(address).src if source]
        return [TensorStruct.from_address(source).name.decode(errors="replace") for source in sources]

    def weights(self, address: int) -> list[Node]:
        """The weights and biases of the model that the node at `address` reads, where they lie in host memory as the file
        has them. (What is packed again for a kernel, or copied to a GPU, does not.)"""
        sources = [source for source in TensorStruct.from_address(address).src if source]
        nodes = [self.node(source) for source in sources if TensorStruct.from_address(source).buffer]
        return [
            node
            for node in nodes
            if node.op == "NONE"
            and node.name.endswith((".weight", ".bias"))
            and node.contiguous
            and self.ggml_backend_buffer_is_host(TensorStruct.from_address(node.address).buffer)
        ]

    def rows(self, weight: Node) -> Any:
        """A weight's rows as floats; None for a type that takes the package gguf, which is not installed, or that it does not
        know."""
        raw = np.empty(self.ggml_nbytes(weight.address), np.uint8)
        self.ggml_backend_tensor_get(weight.address, raw.ctypes.data, 0, raw.nbytes)
        if weight.type in TYPES:
            values = raw.view(TYPES[weight.type][0]).reshape(weight.shape)
            return values.view(np.float16) if weight.type == "f16" else Bfloat16(values) if weight.type == "bf16" else values
        try:
            from gguf import GGMLQuantizationType, quants

            blocks = raw.reshape(-1, raw.nbytes // int(np.prod(weight.shape[:-1])))
            return quants.dequantize(blocks, GGMLQuantizationType[weight.type.upper()])
        except (ImportError, KeyError, NotImplementedError):
            return None

    def read(self, node: Node) -> Array:
        """A copy of the tensor's elements in host memory, wherever they lie; F16 and BF16 as uint16."""
        size = self.ggml_nbytes(node.address)
        values = np.empty(node.shape, TYPES[node.type][0])
        if not node.contiguous or values.nbytes != size:
            raise TraceError(f"{node.name}.{node.op}: a view with gaps, expected contiguous elements")
        self.ggml_backend_tensor_get(node.address, values.ctypes.data, 0, size)
        return values
