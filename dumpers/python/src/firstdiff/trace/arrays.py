"""Arrays of any library as NumPy arrays, and 16-bit floats as the raw integers that a trace holds.

A trace never converts what an engine computed: binary16 and bfloat16 are stored bit by bit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class TraceError(Exception):
    """Something about a trace is not as it must be; the message names the object, what was found and what was
    expected."""


@dataclass(frozen=True)
class Bfloat16:
    """bfloat16 as its raw bits, for NumPy, which has no such type."""

    bits: Array  # uint16


def to_host(values: Any) -> tuple[Array, str]:
    """A NumPy array of what `values` holds now, and its element type in the trace: F32, F64, F16 or BF16.

    F16 and BF16 come as uint16 with the same bits. Device tensors are copied before the call returns; host arrays may
    be shared, so write the result away before the engine goes on. int8 is widened to F32 and other integers to F64,
    which hold them exactly (int64 up to 2**53: larger ones are refused)."""
    if isinstance(values, Bfloat16):
        return np.ascontiguousarray(values.bits, np.uint16), "BF16"
    if hasattr(values, "detach") and hasattr(values, "cpu"):
        return _from_torch(values)
    if hasattr(values, "get") and type(values).__module__.split(".")[0] == "cupy":
        values = values.get()
    return _from_numpy(np.asarray(values))


def _from_torch(tensor: Any) -> tuple[Array, str]:
    import torch

    host = tensor.detach().to("cpu")
    if host.dtype == torch.bfloat16:
        return np.asarray(host.contiguous().view(torch.int16).numpy()).view(np.uint16), "BF16"
    return _from_numpy(np.asarray(host.resolve_conj().resolve_neg().numpy()))


def _from_numpy(array: Array) -> tuple[Array, str]:
    kind, size, name = array.dtype.kind, array.dtype.itemsize, array.dtype.name
    if name == "bfloat16":  # ml_dtypes, as JAX returns it
        return np.ascontiguousarray(array).view(np.uint16), "BF16"
    if kind == "f" and size in (2, 4, 8):
        native = array.astype(array.dtype.newbyteorder("="), copy=False)
        return (np.ascontiguousarray(native).view(np.uint16), "F16") if size == 2 else (native, f"F{8 * size}")
    if kind in "iu" and size == 1:
        return array.astype(np.float32), "F32"
    if kind in "iu":
        wide = array.astype(np.float64)
        if size == 8 and array.size and max(abs(int(array.max())), abs(int(array.min()))) > 2**53:
            raise TraceError(f"an array of {name} with elements beyond 2**53, which binary64 does not hold exactly")
        return wide, "F64"
    raise TraceError(f"an array of {name}, expected floats of 16, 32 or 64 bits or integers")


def from_raw(raw: Array, dtype: str) -> Array:
    """The values of stored elements: F16 as float16, BF16 widened to float32 (exact), the rest as they are."""
    if dtype == "BF16" and raw.dtype.kind in "iu":
        return (raw.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if dtype == "F16" and raw.dtype.kind in "iu":
        return raw.astype(np.uint16, copy=False).view(np.float16)
    return raw
