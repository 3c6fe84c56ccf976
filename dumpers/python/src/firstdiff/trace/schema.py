"""What the schema firstdiff-trace 1 fixes, for the writer and the reader (docs/trace-format.md)."""

from __future__ import annotations

import os
from typing import Literal

import numpy as np

from firstdiff.trace.arrays import TraceError

Kind = Literal["prefill", "decode", "verify"]
KINDS: tuple[Kind, ...] = ("prefill", "decode", "verify")  # by their number in /steps
STEP_ROW = np.dtype([("first", "<i4"), ("count", "<i4"), ("kind", "<i4"), ("level", "<i4")])
LEVEL_FULL = 2
STATS = ("min", "max", "mean", "rms", "absmax", "n_nan", "n_pos_inf", "n_neg_inf", "n_zero")  # columns of /stats
MAX_NAME = 63  # bytes; a row of /graph has 64
MAX_WEIGHT_NAME = 191  # bytes; "NODE:NAME" at most
OVER_KV = (".attn_scores", ".attn_alibi", ".attn_weights")  # ends of names whose last axis runs over keys
MAX_DIM = 4  # besides the position


def check_name(name: str, most: int = MAX_NAME) -> None:
    """Raises TraceError for a name that a trace cannot hold."""
    if not name or len(name.encode()) > most or "/" in name or name in (".", "..") or "\0" in name:
        raise TraceError(
            f"a name of {len(name.encode())} bytes, expected 1 to {most} without / and zero bytes, not . or .."
        )


def model_hash(path: str | os.PathLike[str]) -> str:
    """The hash of a model's file, as firstdiff writes it into `model_hash`. Reads all of the file."""
    import xxhash

    digest = xxhash.xxh3_128()
    try:
        with open(path, "rb") as file:
            while block := file.read(1 << 22):
                digest.update(block)
    except OSError as error:
        raise TraceError(f"{os.fspath(path)}: {error.strerror}") from error
    return f"xxh3-128:{digest.hexdigest()}"
