"""Writes a trace.

    with Writer("run.h5", engine="myengine 0.3", model="model.gguf") as trace:
        trace.step(tokens)                            # one forward call: the tokens that it is fed
        trace.put("blk.0.attn_norm", x)               # [n_tokens, n_embd], as soon as it is computed
        trace.weight("blk.0.attn_q.weight", w)        # hashes of its rows; any time

The names of tensors are those of docs/trace-format.md; others are welcome."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from datetime import datetime, timezone
from types import TracebackType
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from firstdiff.trace.arrays import TraceError, to_host
from firstdiff.trace.dataset import Dataset, create, rows_of
from firstdiff.trace.schema import (
    KINDS,
    LEVEL_FULL,
    MAX_WEIGHT_NAME,
    OVER_KV,
    STEP_ROW,
    Kind,
    check_name,
    model_hash,
)
from firstdiff.trace.weights import hash_rows


class TraceWarning(UserWarning):
    """A trace is incomplete because something could not be recorded."""


class Writer:
    """A trace being written, level `full`.

    A failed `step`, `put` or `weight` never raises, so hooks may call them inside an engine: it returns False, the message is
    kept in `errors`, the file stays marked as incomplete (which `firstdiff compare` answers with status 3), and
    `close` warns. `strict=True` raises instead. Whatever cannot be opened raises TraceError at once.

    Not for several threads at a time. A Writer holds no tensor after `put` returns."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        tokens: Sequence[int] | npt.NDArray[np.integer[Any]] | None = None,
        *,
        model: str | os.PathLike[str] | None = None,
        engine: str = "",
        numerics: str = "",
        kv_type: str = "",
        device: str = "",
        prompt: str | None = None,
        names: str = "",
        attributes: dict[str, str] | None = None,
        strict: bool = False,
    ) -> None:
        """Starts the trace at `path`, replacing a file that is there.

        tokens      of the first forward call, which then needs no `step`
        model       the GGUF (its hash is recorded: traces of different models are told apart)
        engine      "myengine 0.3"
        numerics    where the engine rounds: "f32", "f16", "bf16", "q8", … (docs/verdicts.md); "": firstdiff infers it
        kv_type     element type of the K/V cache, "f16"
        names       whose names the tensors have, when not firstdiff's: "llama.cpp", "transformers"
        attributes  further root attributes"""
        self.path = os.fspath(path)
        self.errors: list[str] = []
        self._strict = self._strict_now = strict
        self._sets: dict[str, Dataset] = {}
        self._first, self._n_pos = 0, 0
        self._pending: tuple[int, int, int, int] | None = None
        digest = model_hash(model) if model is not None else ""
        if model is not None and os.path.exists(self.path) and os.path.samefile(self.path, model):
            raise TraceError(f"{self.path}: is the model, expected another file to write")
        try:
            self._file = h5py.File(self.path, "w")
        except OSError as error:
            raise TraceError(f"{self.path}: cannot be created: {error}") from error
        attrs = self._file.attrs
        attrs["schema"], attrs["version"], attrs["complete"], attrs["level"] = "firstdiff-trace", 1, 0, "full"
        given = {
            "producer": engine,
            "numerics": numerics,
            "kv_type": kv_type,
            "device": device,
            "model_hash": digest,
            "names": names,
            "started": _now(),
            "finished": "",
            **(attributes or {}),
        }
        for key, text in given.items():
            attrs[key] = text
        if prompt is not None:
            attrs["prompt"] = prompt
        self._tokens = self._file.create_dataset("tokens", (0,), "<i4", maxshape=(None,), chunks=(1024,))
        self._steps = self._file.create_dataset("steps", (0,), STEP_ROW, maxshape=(None,), chunks=(256,))
        self._tensors = self._file.create_group("tensors")
        if tokens is not None:
            self.step(tokens)

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.errors.append(f"{self.path}: the run ended with {type(error).__name__}: {error}")
            self._strict_now = False  # the host's own error goes on
        self.close()

    def set_numerics(self, numerics: str) -> None:
        """States where the engine rounds, once that is known (`numerics` of the constructor)."""
        if not self.closed:
            self._file.attrs["numerics"] = numerics

    def add_absent(self, nodes: str) -> None:
        """States that the engine cannot record these nodes (globs of the GGUF's names, separated by spaces), besides those stated
        before: `firstdiff compare` lists them and does not ask for them."""
        if not self.closed:
            known = str(self._file.attrs.get("absent", "")).split()
            self._file.attrs["absent"] = " ".join(known + [node for node in nodes.split() if node not in known])

    @property
    def closed(self) -> bool:
        """No more can be recorded."""
        return not self._file

    @property
    def n_pos(self) -> int:
        """Tokens fed so far."""
        return self._n_pos

    @property
    def step_positions(self) -> range:
        """Positions of the forward call that is being recorded."""
        return range(self._first, self._n_pos)

    def step(self, tokens: Sequence[int] | npt.NDArray[np.integer[Any]] | int, kind: Kind | None = None) -> bool:
        """Begins a forward call that is fed `tokens` at the positions after those fed so far.

        kind: by default prefill, or decode for a single token that is not the first."""
        return self._guard("step", lambda: self._step(tokens, kind))

    def put(
        self,
        name: str,
        values: Any,
        pos0: int | None = None,
        *,
        over_kv: bool | None = None,
        op: str = "",
        layer: int | None = None,
    ) -> bool:
        """Records a tensor now: NumPy, torch (any device, bfloat16 too), or what np.asarray takes; [n_pos, …].

        The rows are the step's positions, or, with `pos0`, the positions pos0, pos0 + 1, …. A batch axis of 1 before
        them is dropped. over_kv: the last axis runs over the key positions 0, 1, … and grows with them (attention
        scores and weights; so taken by itself for names that end in one of OVER_KV). op: the engine's name
        of it. A row given twice holds what came last."""
        return self._guard(f"tensor {name}", lambda: self._put(name, values, pos0, over_kv, op, layer))

    def weight(self, name: str, values: Any, dtype: str | None = None) -> bool:
        """Records hashes of a weight's rows as the engine holds it now, at any time before `close`: with `--model`,
        `firstdiff compare` looks for a loader's bug in them before it looks at any tensor. The trace grows by 8 bytes a
        row, 32 KiB a weight at most.

        name    as in the GGUF, "blk.3.attn_q.weight"
        values  [n_row, n_col] as the GGUF has it: row r makes output r (of an embedding: token r's), so give the
                transpose (`w.T`) of what is held as [in, out]. Experts' matrices [n_expert, n_row, n_col]; a norm's or
                bias's vector is one row. Floats of 16, 32 or 64 bits of any library, hashed as float32, so what was
                dequantised from Q8_0 equals the file's rows. Integers are refused: dequantise quantised rows as the
                engine does
        dtype   the type that is held, for the reader: "Q8_0"; by default that of `values`

        What an engine rounded when it loaded (bfloat16 from F32) or changed on purpose (a norm's 1 + w) differs from
        the file, and is reported: leave such weights out."""
        return self._guard(f"weight {name}", lambda: self._weight(name, values, dtype))

    def close(self) -> None:
        """Ends the trace and marks it as complete, unless something could not be recorded: then warns. May be
        repeated."""
        if self.closed:
            return
        self._guard("close", self._finish)
        try:
            self._file.close()
        except (OSError, RuntimeError) as error:
            self.errors.append(f"{self.path}: {error}")
        if self.errors and not self._strict:
            more = f" (and {len(self.errors) - 1} more)" if len(self.errors) > 1 else ""
            warnings.warn(f"{self.errors[0]}{more}; the trace is marked as incomplete", TraceWarning, stacklevel=2)

    # ---- insides ----

    def _guard(self, what: str, do: Any) -> bool:
        """Runs `do`; keeps what goes wrong. Whatever an array library may raise must not reach the engine."""
        try:
            if self.closed:
                raise TraceError("the trace is closed")
            do()
            return True
        except Exception as error:
            message = f"{self.path}: {what}: {error}"
            self.errors.append(message)
            if self._strict_now:
                raise TraceError(message) from error
            return False

    def _step(self, tokens: Any, kind: Kind | None) -> None:
        fed = np.atleast_1d(np.asarray(tokens.tolist() if hasattr(tokens, "tolist") else tokens)).squeeze()
        fed = np.atleast_1d(fed)
        if fed.ndim != 1 or fed.size == 0 or fed.dtype.kind not in "iu":
            raise TraceError(f"tokens of shape {list(fed.shape)} and type {fed.dtype}, expected a list of ids")
        if int(fed.min()) < 0 or int(fed.max()) >= 2**31:
            raise TraceError(f"token {int(fed.min() if fed.min() < 0 else fed.max())}, expected 0 to 2^31-1")
        if kind is not None and kind not in KINDS:
            raise TraceError(f'kind "{kind}", expected prefill, decode or verify')
        self._end_step()
        kind = kind or ("decode" if fed.size == 1 and self._n_pos > 0 else "prefill")
        self._first, self._n_pos = self._n_pos, self._n_pos + fed.size
        self._tokens.resize((self._n_pos,))
        self._tokens[self._first :] = fed
        self._pending = (self._first, fed.size, KINDS.index(kind), LEVEL_FULL)

    def _end_step(self) -> None:
        """The row of /steps comes last, so that a killed run says how far it got."""
        if self._pending is None:
            return
        self._file.flush()
        self._steps.resize((len(self._steps) + 1,))
        self._steps[-1] = np.array(self._pending, STEP_ROW)
        self._pending = None
        self._file.flush()

    def _put(self, name: str, values: Any, pos0: int | None, over_kv: bool | None, op: str, layer: int | None) -> None:
        check_name(name)
        if self._n_pos == 0:
            raise TraceError("no step has begun: give `tokens` when opening, or call step(tokens) first")
        raw, dtype = to_host(values)
        if over_kv is None:
            over_kv = name.endswith(OVER_KV)
        first = self._first if pos0 is None else pos0
        have = self._sets.get(name)
        raw = rows_of(raw, pos0, over_kv, range(self._first, self._n_pos), have)
        if have is None:
            have = create(self._tensors, name, raw, dtype, over_kv, first, op, layer)
            self._sets[name] = have
        wanted = have.rest[:-1] if have.over_kv else have.rest
        rest = raw.shape[1:-1] if have.over_kv else raw.shape[1:]
        if rest != wanted or dtype != have.dtype or over_kv != have.over_kv:
            raise TraceError(
                f"{dtype} of shape {list(raw.shape)}, expected {have.dtype} [n_pos, {', '.join(map(str, have.rest))}] "
                "as before"
            )
        if first < have.first:
            raise TraceError(f"position {first} after the tensor began at {have.first}: record positions in order")
        have.store(raw, first - have.first)

    def _weight(self, name: str, values: Any, dtype: str | None) -> None:
        check_name(name, MAX_WEIGHT_NAME)
        group = self._file.require_group("weights")
        if name in group:
            raise TraceError("recorded already")
        rows = hash_rows(values, dtype)
        data = group.create_dataset(name, data=rows.hashes, dtype="<u8")
        data.attrs["dtype"] = rows.dtype
        for key, number in {**rows.integers, "seq": len(group) - 1}.items():
            data.attrs[key] = np.int32(number)

    def _finish(self) -> None:
        self._end_step()
        if self._n_pos == 0:
            raise TraceError("no step was recorded")
        for name, have in self._sets.items():
            if have.first > 0 or len(have.have) < self._n_pos:
                have.data.attrs["first_position"] = have.first
            if all(have.have):
                continue
            last = have.last_rows([range(row["first"], row["first"] + row["count"]) for row in self._steps[:]])
            if not last:
                raise TraceError(f"tensor {name}: position {have.first + have.have.index(False)} was not recorded")
            have.data.attrs["last_rows"] = np.int32(last)  # logits of each chunk's last token: the rows between are not there
        self._file.attrs["finished"] = _now()
        self._file.attrs["complete"] = 0 if self.errors else 1


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
