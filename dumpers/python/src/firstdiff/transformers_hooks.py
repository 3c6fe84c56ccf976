"""The hooks of firstdiff.transformers on every module of a model."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import transformers

from firstdiff.trace.schema import MAX_NAME
from firstdiff.trace.writer import Writer
from firstdiff.transformers_rows import SequenceRows

ATTENTION = ("attn", "attention")  # how the paths of attention's modules end


class _Hooks:
    """What runs before and after each module's forward. Never raises into the model and never touches its tensors."""

    def __init__(self, trace: Writer, row: int | None) -> None:
        self._trace = trace
        self._rows = SequenceRows(row)
        self._given: dict[
            int, tuple[weakref.ref[Any], int]
        ] = {}  # tensors recorded in this call, by id, and their version
        self.attention = ""  # path of the attention module that runs
        self.has_sinks = False  # it has sinks
        self._head: Any = None  # what lm_head gave in this call
        self.saw_weights = False  # attention's, in any call
        self.head_dim: int | None = None  # of the attention module that runs, where it says so
        self._shapes: dict[str, tuple[int, ...]] = {}  # of each tensor's row, in the first call that had it

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A forward call of the whole model begins."""
        self._given.clear()
        self._head = None
        self.attention = ""
        ids = kwargs.get("input_ids", args[0] if args else None)
        wrong = self._rows.begin(ids, kwargs.get("attention_mask"), self._trace.n_pos)
        if wrong is not None:
            self._rows.own = []
            self._fail(wrong)
        elif ids is not None and self._rows.own:  # not where all that is fed is padding
            self._trace.step(ids[self._rows.row, self._rows.own].tolist())

    def before(self, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Records the inputs that no module gave out. RoPE's tables read theirs for its type alone."""
        if path.endswith("rotary_emb"):
            return
        tensors = [value for value in (*args, kwargs.get("hidden_states")) if isinstance(value, torch.Tensor)]
        for i, tensor in enumerate(tensors):
            if tensor.is_floating_point() and not self._was_given(tensor):
                self._put(f"{path}:in{i or ''}", tensor)

    def end(self, output: Any) -> None:
        """The call ended: records the logits that the model returns and, where it is another, the head's product."""
        logits = getattr(output, "logits", None)
        head, self._head = self._head, None
        if head is None:
            return
        if not isinstance(logits, torch.Tensor):
            self._put("lm_head", head)
            return
        if logits is not head:
            self._put("lm_head:product", head)
        self._put("logits", logits)

    def after(self, path: str, output: Any) -> None:
        """Records a module's outputs. What a router chose are integers."""
        if path == "lm_head":
            self._head = output
            return
        values = output if isinstance(output, (tuple, list)) else [output]
        for i, tensor in enumerate(values):
            if not isinstance(tensor, torch.Tensor) or self._was_given(tensor):
                continue
            if tensor.is_floating_point() or (i > 0 and tensor.ndim == 2):
                self._put(f"{path}:out{i}" if i else path, tensor)

    def rotated(self, result: Any) -> None:
        """Records q and k after RoPE: [1, n_head, n_tok, head_dim]. Not where the function was given the rotated part of each head alone."""
        for name, tensor in zip(("q_rope", "k_rope"), result, strict=False):
            if self.head_dim is not None and tensor.shape[-1] != self.head_dim:
                continue
            self._put(f"{self.attention}.{name}", tensor, heads_first=True)

    def softened(self, scores: Any) -> None:
        """Records what eager attention gives to its softmax: [1, n_head, n_tok, n_kv], scaled and masked.

        Where attention has sinks these stand in one column more, and the row's largest was taken off before: no scores."""
        if self.attention and not self.has_sinks and scores.ndim == 4:
            lowest = torch.finfo(scores.dtype).min  # what transformers' masks add, where the model hides a key
            self._put(f"{self.attention}.scores", scores.masked_fill(scores <= lowest / 2, -torch.inf))

    def cached(self, result: Any) -> None:
        """Records the rows of K and V that stand in the cache for this call's tokens: [n_batch, n_head_kv, n_kv, head_dim].

        A static cache is as long as it may become, a sliding window's as the window: its newest rows are the last."""
        for name, tensor in zip(("cache_k", "cache_v"), result, strict=False):
            if self.attention and self._rows.own and tensor.ndim == 4 and tensor.shape[2] >= self._rows.n_fed:
                self._put_rows(f"{self.attention}.{name}", self._rows.cached(tensor)[0])

    def _was_given(self, tensor: Any) -> bool:
        """Is it, unchanged, a tensor that is in the trace already? Inference tensors do not count their changes."""
        if tensor.is_inference():
            return False
        version: int = tensor._version
        known = self._given.get(id(tensor))
        return known is not None and known[0]() is tensor and known[1] == version

    def _put(self, name: str, tensor: Any, heads_first: bool | None = None) -> None:
        if not tensor.is_inference():
            self._given[id(tensor)] = (weakref.ref(tensor), tensor._version)
        n_fed = self._rows.n_fed
        weights = name.endswith(tuple(f"{of}{what}" for of in ATTENTION for what in (":out1", ".scores"))) and tensor.ndim == 4
        self.saw_weights |= weights
        if not self._rows.own or len(name.encode()) > MAX_NAME:
            return
        if tensor.ndim == 4 and (weights or (_heads_in_front(tensor, n_fed) if heads_first is None else heads_first)):
            tensor = tensor.transpose(1, 2)  # of [n_batch, n_head, n_tok, …]
            if weights:
                tensor = self._rows.over_keys(tensor, 0.0 if name.endswith("out1") else -torch.inf)
        fewer = tensor.ndim > 2 and tensor.shape[1] < n_fed and not name.startswith(("lm_head", "logits"))
        rows = None if fewer else self._rows.rows(tensor)
        if rows is not None:  # else nothing that runs over positions: a scale, a mask
            self._put_rows(name, rows, weights)

    def _put_rows(self, name: str, rows: Any, weights: bool = False) -> None:
        if not weights and self._shapes.setdefault(name, tuple(rows.shape[1:])) != tuple(rows.shape[1:]):
            return  # a mask or a bias of the scores: it grows with the keys
        positions, n_row = self._trace.step_positions, rows.shape[0]
        pos0 = None if n_row == len(positions) else positions[-n_row]  # logits of the last tokens alone
        self._trace.put(name, rows, pos0, over_kv=weights)

    def _fail(self, message: str) -> None:
        if message not in self._trace.errors:  # a strict Writer has kept its own
            self._trace.errors.append(f"{self._trace.path}: {message}")


def _heads_in_front(tensor: Any, n_tok: int) -> bool:
    """Is [1, a, b, n] a view of [1, b, a, n], its tokens b? Where a and b are equal the strides tell: what is computed of a
    transposed tensor keeps its order in memory."""
    _, a, b, _ = tensor.shape
    return bool(b == n_tok and (a != n_tok or tensor.stride(1) < tensor.stride(2)))


def _unseen(model: Any, hooks: _Hooks) -> str:
    """Nodes that no module gives out: what fused attention keeps to itself, and the insides of experts that are one module."""
    unseen = [] if hooks.saw_weights else ["blk.*.attn_weights"]
    if any(path.endswith(".experts") and list(module.parameters(False)) for path, module in model.named_modules()):
        unseen += [f"blk.*.ffn_moe_{part}" for part in ("probs", "gate", "up", "act", "down")]
    return " ".join(unseen)


def _module_of_rope(model: Any) -> Any:
    """The Python module whose apply_rotary_pos_emb the model's attention calls; None when it has none."""
    for module in model.modules():
        source = sys.modules.get(type(module).__module__)
        if type(module).__name__.endswith("Attention") and hasattr(source, "apply_rotary_pos_emb"):
            return source
    return None


@contextmanager
def attach(model: Any, trace: Writer, row: int | None = None) -> Iterator[None]:
    """Hooks every module of `model` for as long as the block runs; each forward call of it is a step of `trace`.

    One sequence: of a batch, that of `row`. What attention_mask hides is padding and not recorded. The model computes what it computes
    without hooks."""
    hooks = _Hooks(trace, row)
    with ExitStack() as stack:

        def add(handle: Any) -> None:
            stack.callback(handle.remove)

        def begin(_module: Any, args: Any, kwargs: Any) -> None:
            hooks.begin(args, kwargs)

        def end(_module: Any, _args: Any, output: Any) -> None:
            _safely(hooks, lambda: hooks.end(output))

        stack.callback(lambda: trace.add_absent(_unseen(model, hooks)))
        add(model.register_forward_pre_hook(begin, with_kwargs=True))
        add(model.register_forward_hook(end))
        for path, module in model.named_modules():
            if path:
                add(module.register_forward_pre_hook(_before(hooks, path), with_kwargs=True))
                add(module.register_forward_hook(_after(hooks, path)))
        source = _module_of_rope(model)
        if source is not None:
            plain = source.apply_rotary_pos_emb

            def recorded(*args: Any, **kwargs: Any) -> Any:
                result = plain(*args, **kwargs)
                _safely(hooks, lambda: hooks.rotated(result))
                return result

            source.apply_rotary_pos_emb = recorded
            stack.callback(setattr, source, "apply_rotary_pos_emb", plain)
        update = transformers.Cache.update

        def recorded_update(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = update(self, *args, **kwargs)
            _safely(hooks, lambda: hooks.cached(result))
            return result

        transformers.Cache.update = recorded_update
        stack.callback(setattr, transformers.Cache, "update", update)
        softmax = torch.nn.functional.softmax

        def recorded_softmax(scores: Any, *args: Any, **kwargs: Any) -> Any:
            _safely(hooks, lambda: hooks.softened(scores))
            return softmax(scores, *args, **kwargs)

        torch.nn.functional.softmax = recorded_softmax
        stack.callback(setattr, torch.nn.functional, "softmax", softmax)
        yield


def _safely(hooks: _Hooks, do: Any) -> None:
    try:
        do()
    except Exception as error:
        hooks._fail(str(error))


def _before(hooks: _Hooks, path: str) -> Any:
    def hook(_module: Any, args: Any, kwargs: Any) -> None:
        if not hooks.attention and path.endswith(ATTENTION):  # not c_attn inside attn
            hooks.attention = path
            hooks.head_dim = getattr(_module, "head_dim", None)
            hooks.has_sinks = getattr(_module, "sinks", None) is not None
        _safely(hooks, lambda: hooks.before(path, args, kwargs))

    return hook


def _after(hooks: _Hooks, path: str) -> Any:
    def hook(_module: Any, _args: Any, output: Any) -> None:
        if path == hooks.attention:
            hooks.attention = ""
        _safely(hooks, lambda: hooks.after(path, output))

    return hook
