"""Which rows of a forward call are those of the one sequence that is recorded: a row of a batch, without its padding."""

from __future__ import annotations

from typing import Any

import torch


class SequenceRows:
    """Of a call that is fed ids [n_batch, n_fed]: where in it, and among the keys, the sequence's own tokens are."""

    def __init__(self, row: int | None) -> None:
        self._row = row
        self._n_batch = 1
        self.row = row or 0
        self.n_fed = 0
        self.own: list[int] = []  # of the tokens that are fed
        self._keys: list[int] = []  # columns of the keys, one for each position so far
        self._n_key = 0

    def begin(self, ids: Any, mask: Any, n_before: int) -> str | None:
        """A call begins; `n_before`: positions of earlier ones. What is wrong with it, or None."""
        shape = "none" if ids is None else list(ids.shape)
        if ids is None or ids.ndim != 2:
            return f"input_ids of shape {shape}, expected [n_batch, n_tok]: tokens"
        self._n_batch, self.n_fed = ids.shape
        if self._n_batch > 1 and self._row is None:
            return f"input_ids of shape {shape}, expected [1, n_tok]: give attach(…, row=…) the sequence to record"
        if self.row >= self._n_batch:
            return f"input_ids of shape {shape} has no row {self.row}"
        masked = isinstance(mask, torch.Tensor) and mask.ndim == 2 and mask.shape[1] >= self.n_fed
        seen = mask[self.row if mask.shape[0] > 1 else 0].bool().tolist() if masked else [True] * (n_before + self.n_fed)
        self._n_key = len(seen)
        self.own = [i for i, is_seen in enumerate(seen[-self.n_fed :]) if is_seen]
        self._keys = [i for i, is_seen in enumerate(seen) if is_seen]
        if len(self._keys) != n_before + len(self.own):
            return f"attention_mask shows {len(self._keys)} tokens, {n_before + len(self.own)} were fed"
        return None

    def rows(self, tensor: Any) -> Any:
        """[n_row, …] of [n_batch, n, …], [1, n, …] or [n_batch · n_fed, …]; None: no tensor that runs over the tokens fed."""
        if tensor.ndim == 2 and tensor.shape[0] == self._n_batch * self.n_fed:  # a router's and its experts' rows
            tensor = tensor.reshape(self._n_batch, self.n_fed, -1)
        if tensor.ndim < 2 or tensor.shape[0] not in (1, self._n_batch) or tensor.shape[1] > self.n_fed:
            return None
        fewer = self.n_fed - tensor.shape[1]  # logits of the last tokens alone
        own = [i - fewer for i in self.own if i >= fewer]
        return tensor[self.row if tensor.shape[0] > 1 else 0, own]

    def over_keys(self, tensor: Any, hidden: float) -> Any:
        """The sequence's own keys on the last axis. A window's cache holds the last ones alone: those before are `hidden`."""
        return self._columns(tensor, -1, self._keys, hidden)

    def cached(self, tensor: Any) -> Any:
        """Of [n_batch, n_head, n_key, n] what the cache has for the tokens fed: [1, n_row, n_head, n]."""
        newest = self._keys[len(self._keys) - len(self.own) :]
        rows = tensor[self.row if tensor.shape[0] > 1 else 0][None]
        return self._columns(rows, 2, newest, 0.0).transpose(1, 2)

    def _columns(self, tensor: Any, axis: int, keys: list[int], hidden: float) -> Any:
        gone = max(self._n_key - tensor.shape[axis], 0)  # a static cache is longer
        columns = torch.tensor([key - gone for key in keys], device=tensor.device)
        chosen = tensor.index_select(axis, columns.clamp(min=0))
        if gone == 0:
            return chosen
        shape = [1] * tensor.ndim
        shape[axis] = -1
        return chosen.masked_fill((columns < 0).reshape(shape), hidden)
