"""One tensor's dataset in a trace being written: made of the first rows, grown with each step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from firstdiff.trace.arrays import Array, TraceError
from firstdiff.trace.schema import MAX_DIM

CHUNK_BYTES, KV_CHUNK = 32 * 1024, 64  # as firstdiff's own writer: whole positions, attention cut every 64 keys


@dataclass
class Dataset:
    """A dataset and the positions that it holds."""

    data: Any  # h5py.Dataset
    dtype: str
    rest: tuple[int, ...]  # dimensions after the position; the last is free where over_kv
    over_kv: bool
    first: int  # position of row 0
    have: list[bool] = field(default_factory=list)

    def store(self, raw: Array, row: int) -> None:
        end = row + raw.shape[0]
        shape = list(self.data.shape)
        shape[0] = max(shape[0], end)
        if self.over_kv:
            shape[-1] = max(shape[-1], raw.shape[-1])
        if tuple(shape) != self.data.shape:
            self.data.resize(shape)
        if self.over_kv:
            self.data[row:end, :, : raw.shape[-1]] = raw
        else:
            self.data[row:end] = raw
        self.have.extend([False] * (end - len(self.have)))
        self.have[row:end] = [True] * (end - row)

    def last_rows(self, steps: list[range]) -> int:
        """How many positions at the end of every step from the first recorded one on it holds, and no other of them; 0: it is not so."""
        held = [[p - self.first < len(self.have) and self.have[p - self.first] for p in step if p >= self.first] for step in steps]
        counts = [sum(row) for row in held if row]
        most = max(counts)
        at_end = all(sum(row) == min(most, len(row)) and all(row[len(row) - sum(row) :]) for row in held if row)
        return most if at_end else 0


def create(
    group: Any, name: str, raw: Array, dtype: str, over_kv: bool, first: int, op: str, layer: int | None
) -> Dataset:
    """A dataset without rows for a tensor of which `raw` are the first, as the next of the group."""
    rest = raw.shape[1:]
    maxshape = (None, *rest[:-1], None if over_kv else rest[-1])
    cut = (*rest[:-1], KV_CHUNK) if over_kv else rest
    row_bytes = int(np.prod(cut)) * raw.dtype.itemsize
    fill = np.nan if dtype in ("F32", "F64") else 0
    if over_kv and dtype in ("F32", "F64"):  # keys not yet there: no weight, no score
        fill = 0 if name.endswith("weights") else -np.inf
    data = group.create_dataset(
        name,
        (0, *rest),
        raw.dtype.newbyteorder("<"),
        maxshape=maxshape,
        chunks=(max(1, min(CHUNK_BYTES // max(row_bytes, 1), 1024)), *cut),
        fillvalue=fill,
    )
    data.attrs["dtype"], data.attrs["seq"] = dtype, len(group) - 1
    if op:
        data.attrs["op"] = op
    if layer is not None:
        data.attrs["layer"] = layer
    if over_kv:
        data.attrs["over_kv"] = 1
    return Dataset(data, dtype, rest, over_kv, first)


def rows_of(raw: Array, pos0: int | None, over_kv: bool, step: range, have: Dataset | None) -> Array:
    """`raw`, which a `step` of positions gave, as [rows, …]: checks the positions and drops a batch axis of 1, which one row of a tensor known from before may lack."""
    count = len(step)
    if raw.ndim == 0:
        raise TraceError("a scalar, expected [n_pos, …]")
    n_least = 3 if over_kv else 1
    if have is not None:
        n_least = 1 + len(have.rest)
    batched = raw.ndim > n_least and raw.shape[0] == 1
    if batched and (raw.shape[1] == count if pos0 is None else raw.ndim > 2):
        raw = raw[0]
    if raw.ndim == 1:
        raw = raw[:, None]
    if pos0 is None and raw.shape[0] != count:
        raise TraceError(
            f"shape {list(raw.shape)} has {raw.shape[0]} rows, expected {count}, one for each token of the step "
            f"(positions {step.start} to {step.stop - 1}); pos0 says so when they are others"
        )
    if pos0 is not None and not 0 <= pos0 <= step.stop - raw.shape[0]:
        raise TraceError(f"{raw.shape[0]} rows from position {pos0}, expected positions 0 to {step.stop - 1}")
    if raw.ndim > 1 + MAX_DIM or raw.size == 0:
        raise TraceError(
            f"shape {list(raw.shape)}, expected [n_pos, …] with 1 to {MAX_DIM} dimensions more, none empty"
        )
    if over_kv:
        keys = (step.start if pos0 is None else pos0) + raw.shape[0]
        if raw.ndim != 3 or raw.shape[2] < keys:
            raise TraceError(f"shape {list(raw.shape)}, expected [n_pos, n_head, n_kv] with n_kv at least {keys}")
        raw = raw[..., :keys]  # what stands beyond is padding
    return raw
