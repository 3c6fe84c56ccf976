"""What a Reader gives: the tensors and the steps of a trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from firstdiff.trace.arrays import Array, TraceError, from_raw
from firstdiff.trace.schema import OVER_KV


@dataclass(frozen=True)
class Step:
    """One forward call: positions [first, first + count)."""

    first: int
    count: int
    kind: str


class Tensor:
    """A tensor of a trace, [n_pos, …]. Nothing is read until it is sliced (or np.asarray takes all of it).

    Row r is position `first_position` + r. bfloat16 comes as float32, which holds it exactly; the rest as recorded."""

    def __init__(self, data: Any, name: str) -> None:
        self._data = data
        self.name = name
        self.shape: tuple[int, ...] = tuple(data.shape)
        if not self.shape:
            raise TraceError(f"{name}: a scalar, expected [n_pos, …]")
        self.dtype: str = text(data.attrs.get("dtype")) or {2: "F16", 4: "F32", 8: "F64"}.get(data.dtype.itemsize, "?")
        self.first_position = int(data.attrs.get("first_position", 0))
        self.op: str = text(data.attrs.get("op"))
        self.over_kv = bool(data.attrs.get("over_kv", name.endswith(OVER_KV)))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Array:
        return from_raw(np.asarray(self._data[index]), self.dtype)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        values = self[...]
        return values if dtype is None else values.astype(dtype)

    def at(self, position: int) -> Array:
        """The tensor at one position, without padding: keys 0 … position of attention scores and weights."""
        row = position - self.first_position
        if not 0 <= row < self.shape[0]:
            last = self.first_position + self.shape[0] - 1
            raise TraceError(f"{self.name}: position {position}, recorded are {self.first_position} to {last}")
        values: Array = self[row]
        return values[..., : position + 1] if self.over_kv else values

    def __repr__(self) -> str:
        return f"<Tensor {self.name} {self.dtype} {list(self.shape)}>"


def text(value: Any) -> str:
    if value is None:
        return ""
    return value.decode() if isinstance(value, bytes) else str(value)
