"""Reads a trace into NumPy and pandas.

    with Reader("run.h5") as trace:
        trace.nodes()                        # DataFrame: every tensor, in order of execution
        trace["blk.0.attn_q"][3:5, 2]        # reads those rows alone
        trace.stats(["blk.0.*"])             # DataFrame: min, max, mean, rms, … per position
        trace.entropy()                      # DataFrame: attention entropy per position, layer and head

Works on the traces of every engine: what firstdiff itself did not write (statistics, entropy) is computed from the
tensors."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from types import TracebackType
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import numpy.typing as npt

from firstdiff.trace.arrays import Array, TraceError
from firstdiff.trace.schema import KINDS, STATS
from firstdiff.trace.tensor import Step, Tensor, text

if TYPE_CHECKING:
    import pandas as pd

NODE_COLUMNS = ("name", "op", "layer", "shape", "dtype", "over_kv", "input0", "input1", "weight0", "weight1", "params")


@contextmanager
def _no_sound_trace(what: str) -> Iterator[None]:
    """Sound HDF5 may still hold texts where numbers belong, or groups where lists do."""
    try:
        yield
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, OSError, RuntimeError) as error:
        raise TraceError(f"{what}: not as a trace has it: {error}") from error


class Reader(Mapping[str, Tensor]):
    """A trace that is open for reading; a mapping from names to tensors, in order of execution.

    The file is trusted: HDF5 runs in this process. `firstdiff inspect` reads a stranger's file safely.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._file = self._open()
        try:
            with _no_sound_trace(self.path):
                self._load()
        except BaseException:
            self._file.close()
            raise

    def _open(self) -> Any:
        try:
            return h5py.File(self.path, "r")
        except FileNotFoundError as error:
            raise TraceError(f"{self.path}: no such file") from error
        except (OSError, RuntimeError) as first:
            try:  # one that is being written, or whose writer was killed
                return h5py.File(self.path, "r", libver="latest", swmr=True)
            except (OSError, RuntimeError, ValueError):
                raise TraceError(f"{self.path}: not an HDF5 file, or damaged: {first}") from first

    def _load(self) -> None:
        attrs = self._file.attrs
        schema, version = text(attrs.get("schema")), attrs.get("version")
        if schema != "firstdiff-trace" or version != 1:
            raise TraceError(
                f'{self.path}: schema "{schema}", version {version}; expected "firstdiff-trace", version 1'
            )
        for name in ("tokens", "tensors"):
            if name not in self._file and not (name == "tensors" and "graph" in self._file):
                raise TraceError(f"{self.path}: no /{name}")
        self.info: dict[str, Any] = {key: _plain(value) for key, value in attrs.items()}
        self.complete = bool(attrs.get("complete", 1))
        tokens = np.asarray(self._file["tokens"][...])
        if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
            raise TraceError(f"{self.path}: /tokens of shape {list(tokens.shape)} and type {tokens.dtype}, expected ids")
        self.tokens: npt.NDArray[np.int32] = tokens.astype(np.int32)
        self.steps = self._read_steps()
        self._graph: Array | None = self._file["graph"][...] if "graph" in self._file else None
        group = self._file["tensors"] if "tensors" in self._file else {}
        if self._graph is not None:
            order = [text(name) for name in self._graph["name"]]
            self._names = [name for name in order if name in group]
        else:
            self._names = sorted(group, key=lambda name: int(group[name].attrs.get("seq", 0)))

    def _read_steps(self) -> list[Step]:
        if "steps" not in self._file:
            return [Step(0, len(self.tokens), "prefill")] if len(self.tokens) else []
        rows = self._file["steps"][...]
        return [Step(int(r["first"]), int(r["count"]), KINDS[int(r["kind"])]) for r in rows]

    def close(self) -> None:
        """Closes the file; tensors that were handed out cannot be read any more."""
        self._file.close()

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def n_pos(self) -> int:
        """Positions in the trace."""
        return len(self.tokens)

    def __getitem__(self, name: str) -> Tensor:
        if not self._file:
            raise TraceError(f"{self.path}: the trace is closed")
        if name not in self._names:
            near = [known for known in self._names if known.split(".")[-1] == name.split(".")[-1]][:3]
            hint = f"; there are {', '.join(near)}" if near else f"; it has {len(self._names)} tensors, see nodes()"
            raise KeyError(f"{self.path}: no tensor {name}{hint}")
        with _no_sound_trace(f"{self.path}: {name}"):
            tensor = Tensor(self._file["tensors"][name], name)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def match(self, patterns: str | Iterable[str]) -> list[str]:
        """Names that fit one of the patterns (`blk.*.attn_q`), in order of execution."""
        patterns = [patterns] if isinstance(patterns, str) else list(patterns)
        return [name for name in self._names if any(fnmatchcase(name, p) for p in patterns)]

    # ---- tables ----

    def nodes(self) -> pd.DataFrame:
        """Every node of the graph (or, without /graph, every tensor), in order of execution; `recorded`: its elements
        are in this trace. `shape` is that of one position."""
        import pandas as pd

        if self._graph is None:
            rows = [self._node_of(self[name]) for name in self._names]
        else:
            rows = [self._node_of_row(row) for row in self._graph]
        return pd.DataFrame(rows, columns=[*NODE_COLUMNS, "recorded"])

    @staticmethod
    def _node_of(tensor: Tensor) -> dict[str, Any]:
        parts = tensor.name.split(".")
        layer = int(parts[1]) if parts[0] == "blk" and len(parts) > 2 and parts[1].isdigit() else -1
        return {
            "name": tensor.name,
            "op": tensor.op,
            "layer": int(tensor._data.attrs.get("layer", layer)),
            "shape": tensor.shape[1:],
            "dtype": tensor.dtype,
            "over_kv": tensor.over_kv,
            "recorded": True,
        }

    def _node_of_row(self, row: Any) -> dict[str, Any]:
        known = set(row.dtype.names)
        node: dict[str, Any] = {c: _plain(row[c]) for c in NODE_COLUMNS if c in known}
        node["shape"] = tuple(int(row[f"shape{i}"]) for i in range(int(row["n_dim"])))
        node["over_kv"] = bool(node.get("over_kv", False))
        node["recorded"] = node["name"] in self._names
        return node

    def stats(self, patterns: str | Iterable[str] = "*") -> pd.DataFrame:
        """Statistics by (position, name): min, max, mean, rms, absmax of the finite elements, and counts of NaN,
        infinities and zeros. From /stats, else computed from the tensors."""
        import pandas as pd

        if "stats" in self._file and self._graph is not None:
            patterns = [patterns] if isinstance(patterns, str) else list(patterns)
            names = [text(name) for name in self._graph["name"]]
            at = [i for i, name in enumerate(names) if any(fnmatchcase(name, p) for p in patterns)]
            table = self._file["stats"][:, at, :] if at else np.zeros((0, 0, len(STATS)))
            index = pd.MultiIndex.from_product(
                [range(table.shape[0]), [names[i] for i in at]], names=["position", "name"]
            )
            return pd.DataFrame(table.reshape(-1, len(STATS)), index=index, columns=list(STATS))
        keys, found = [], []
        for name in self.match(patterns):
            tensor = self[name]
            for row in range(len(tensor)):
                keys.append((tensor.first_position + row, name))
                found.append(statistics(tensor.at(tensor.first_position + row)))
        index = pd.MultiIndex.from_tuples(keys, names=["position", "name"])
        return pd.DataFrame(found, index=index, columns=list(STATS)).sort_index(level=0, sort_remaining=False)

    def health(self) -> pd.DataFrame:
        """Per position: n_kv, top1_probability, logit_range, loop_length, and the best id and logit. The token
        alone where the trace has no /health."""
        import pandas as pd

        table = pd.DataFrame({"token": self.tokens}, index=pd.RangeIndex(self.n_pos, name="position"))
        group = self._file["health"] if "health" in self._file else {}
        for name in ("n_kv", "top1_probability", "logit_range", "loop_length"):
            if name in group:
                table[name] = group[name][: self.n_pos]
        for name in ("top_id", "top_logit"):
            if name in group:
                table[name] = group[name][: self.n_pos, 0]
        return table

    def entropy(self) -> pd.DataFrame:
        """Entropy of the attention weights in nats; rows are positions, columns (layer, head). From /health, else
        computed from the recorded weights; a trace with neither (flash attention keeps no weights) gives no
        columns."""
        import pandas as pd

        if "health" in self._file and "entropy" in self._file["health"]:
            table = self._file["health"]["entropy"][...]
            n_pos, n_layer, n_head = table.shape
            columns = pd.MultiIndex.from_product([range(n_layer), range(n_head)], names=["layer", "head"])
            return pd.DataFrame(table.reshape(n_pos, -1), columns=columns, index=pd.RangeIndex(n_pos, name="position"))
        found: dict[tuple[int, int], dict[int, float]] = {}
        for name in self.match("blk.*.attn_weights"):
            tensor, layer = self[name], int(name.split(".")[1])
            for row in range(len(tensor)):
                p = tensor.at(tensor.first_position + row).astype(np.float64)
                nats = -np.sum(p * np.log(np.where(p == 0, 1.0, p)), axis=-1)
                for head, value in enumerate(nats):
                    found.setdefault((layer, head), {})[tensor.first_position + row] = float(value)
        columns = pd.MultiIndex.from_tuples(list(found), names=["layer", "head"])
        index = pd.RangeIndex(self.n_pos, name="position")
        return pd.DataFrame({i: pd.Series(v) for i, v in enumerate(found.values())}, index=index).set_axis(
            columns, axis=1
        )


def statistics(values: Array) -> list[float]:
    """The columns of /stats for one tensor at one position."""
    x = values.astype(np.float64).ravel()
    f = x[np.isfinite(x)]
    some = [f.min(), f.max(), f.mean(), np.sqrt(np.mean(f * f)), np.abs(f).max()] if f.size else [np.nan] * 5
    counts = [np.isnan(x).sum(), np.isposinf(x).sum(), np.isneginf(x).sum(), (f == 0).sum()]
    return [float(v) for v in [*some, *counts]]


def _plain(value: Any) -> Any:
    """Strings and Python numbers for HDF5's bytes and NumPy scalars."""
    if isinstance(value, bytes):
        return value.decode()
    return value.item() if isinstance(value, np.generic) else value
