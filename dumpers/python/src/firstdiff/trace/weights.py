"""Hashes of a weight's rows, as firstdiff's own traces have them (docs/trace-format.md, Weights)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from firstdiff.trace.arrays import TraceError, from_raw, to_host

MAX_HASHES = 4096  # of a weight; a matrix of more rows has several of them in a hash
MAX_DTYPE = 7  # bytes


@dataclass(frozen=True)
class RowHashes:
    """What stands in /weights for one weight."""

    hashes: npt.NDArray[np.uint64]
    dtype: str
    integers: dict[str, int]  # the dataset's other attributes, but `seq`


def hash_rows(values: Any, dtype: str | None) -> RowHashes:
    """XXH3 (64 bits) of the rows as little-endian binary32: [..., n_col], a vector is one row."""
    import xxhash

    held = str(getattr(values, "dtype", ""))
    if "int" in held or "bool" in held:
        raise TraceError(f"an array of {held}, expected floats: dequantise the rows first")
    raw, found = to_host(values)
    if raw.ndim == 0 or raw.size == 0:
        raise TraceError(f"shape {list(raw.shape)}, expected [n_row, n_col] or a vector, not empty")
    dtype = found if dtype is None else dtype
    if len(dtype.encode()) > MAX_DTYPE:
        raise TraceError(f'dtype "{dtype}", expected at most {MAX_DTYPE} bytes, as "Q8_0"')
    raw = raw.reshape(-1, raw.shape[-1])
    n_row, n_col = raw.shape
    each = -(-n_row // MAX_HASHES)
    hashes, zero = [], np.zeros(n_row, bool)
    for first in range(0, n_row, each):
        rows = np.ascontiguousarray(from_raw(raw[first : first + each], found), "<f4")
        hashes.append(xxhash.xxh3_64_intdigest(rows.tobytes()))
        zero[first : first + each] = ~rows.any(axis=1)
    trailing = n_row if zero.all() else int(np.argmin(zero[::-1]))
    integers = {
        "n_row": n_row,
        "n_col": n_col,
        "rows_per_hash": each,
        "n_zero_row": int(zero.sum()),
        "n_trailing_zero_row": trailing,
    }
    return RowHashes(np.array(hashes, np.uint64), dtype, integers)
