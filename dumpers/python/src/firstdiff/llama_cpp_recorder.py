"""The recorder of firstdiff.llama_cpp: each node of llama.cpp's graph into a trace, at the moment when it was computed."""

from __future__ import annotations

import ctypes
import re
from collections import Counter
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

import llama_cpp
import numpy as np

from firstdiff.ggml import TYPES, Ggml, Node
from firstdiff.trace.arrays import Array, Bfloat16
from firstdiff.trace.schema import MAX_NAME
from firstdiff.trace.writer import Writer

VIEWS = ("VIEW", "PERMUTE", "TRANSPOSE", "NONE")
BRANCH = re.compile(r"(?:attn_out|ffn_inp)-(\d+)")
HEADS = re.compile(r"[QK]cur-\d+")
HEADS_LATER = ("Qcur", "Kcur", "Vcur", "ssm_norm-", "inp_per_layer", "per_layer_proj")  # tokens, then heads or layers
CACHE = re.compile(r"cache_[kv]_l(\d+)")
WEIGHT = re.compile(r"blk\.(\d+)\.(\w+)\.(?:weight|bias)")
WITHIN = re.compile(r"(?:kqv_out|kqv|attn_norm|ffn_norm|norm|norm_w|ffn_swiglu|ffn_geglu|ffn_gelu)-(\d+)")


class Recorder:
    """llama.cpp's eval callback: writes each node into a trace. Keep it alive as long as the context.

    params = llama_cpp.llama_context_default_params()
    recorder = Recorder(trace)
    recorder.install(params)                # before llama_init_from_model
    trace.step(tokens); llama_cpp.llama_decode(context, batch)"""

    def __init__(self, trace: Writer, patterns: Sequence[str] = ("*",), *, weights: bool = False) -> None:
        """patterns: names of nodes to record (`*-0.*`: layer 0).
        weights: also hash the rows of every weight that a node reads, once: that is what the loader made of the file"""
        self._trace = trace
        self._weights: set[str] | None = set() if weights else None  # names of those that were looked at: llama.cpp keeps some twice
        self._patterns = tuple(patterns)
        self._ggml = Ggml(ctypes.CDLL(llama_cpp.llama_cpp._lib._name))
        self._seen: Counter[str] = Counter()
        self._labels: dict[str, str] = {}  # of this step's nodes, by llama.cpp's own name
        self._step = range(0)
        self.unread: set[str] = set()  # nodes that no trace can hold: quantised, integers, or without a row a position
        self.callback = llama_cpp.llama_cpp.ggml_backend_sched_eval_callback(self._called)

    def install(self, params: Any) -> None:
        """Sets the callback in a llama_context_params."""
        params.cb_eval = self.callback
        params.cb_eval_user_data = None

    def _called(self, address: int, ask: bool, _user: int) -> bool:
        """ask: shall this node be computed by itself, to be looked at? Else: it has been. Never raises into
        llama.cpp."""
        try:
            node = self._ggml.node(address)
            if ask:
                self._record_weights(address)
                return self._wanted(node)
            self._record(node)
        except Exception as error:
            if str(error) not in self._trace.errors:  # a strict Writer has kept its own
                self._trace.errors.append(f"{self._trace.path}: {error}")
        return not ask  # false here would end the computation

    def _record_weights(self, address: int) -> None:
        if self._weights is None:
            return
        for weight in self._ggml.weights(address):
            if weight.name in self._weights:
                continue
            self._weights.add(weight.name)
            rows = self._ggml.rows(weight)
            if rows is not None:
                self._trace.weight(weight.name, rows, weight.type.upper())

    def _wanted(self, node: Node) -> bool:
        if node.op in VIEWS or (node.op == "RESHAPE" and "(" in node.name):  # "(…)": named by ggml, not by llama.cpp
            return False
        return any(fnmatchcase(f"{node.name}.{node.op}", p) for p in self._patterns)

    def _label(self, node: Node) -> str:
        """llama.cpp's name for it. What has only a number, or no layer, is called after the layer's weight that it reads, as llama.cpp
        does elsewhere. Scores of a q that was scaled say so: no scale is to come."""
        if node.name.startswith("node_") or "-" not in node.name:
            reads = [self._labels.get(name, name) for name in self._ggml.reads(node.address)]
            if node.op == "FLASH_ATTN_EXT" and (cache := next(filter(None, map(CACHE.match, reads)), None)):
                return f"__fattn__-{cache[1]}"
            for name in reads:
                if weight := WEIGHT.fullmatch(name):
                    own = {"attn_output": "attn_out"}.get(weight[2], weight[2])
                    return f"{own if node.name.startswith('node_') else node.name}-{layer_of(weight[1], reads)}"
            if node.op == "GET_ROWS" and "-" in reads[0]:  # the rows whose logits are asked for
                return reads[0]
            if node.op == "ROPE" and (heads := HEADS.match(reads[0])):
                return heads[0]
            branch = next(filter(None, map(BRANCH.fullmatch, reads)), None)
            if node.op == "ADD" and branch and not any(name.startswith("ffn_out-") for name in reads):  # phi3's, jamba's
                return f"ffn_inp-{branch[1]}"
        if node.op == "RESHAPE":  # olmo's, after the clamp
            return next((name for name in self._ggml.reads(node.address) if "_clamped-" in name), node.name)
        if node.name.startswith("kq-"):
            q = self._ggml.viewed(node.address, 1)
            if q and (q.op == "SCALE" or q.name.startswith("Qcur_scaled")):
                return node.name.replace("kq-", "kq_of_scaled_q-")
        return node.name

    def _record(self, node: Node) -> None:
        if self._trace.step_positions != self._step:
            self._step = self._trace.step_positions
            self._seen.clear()
            self._labels.clear()
        label = self._labels[node.name] = self._label(node)
        name = f"{label}.{node.op}".replace(" ", "_").replace("/", "_")
        self._seen[name] += 1
        if self._seen[name] > 1:
            name += f"#{self._seen[name]}"
        if node.type not in TYPES or not node.contiguous:
            self.unread.add(name)
            return
        rows = positions_first(node, self._ggml.read(node), self._step)
        if rows is None or len(name.encode()) > MAX_NAME:
            self.unread.add(name)
            return
        values: Any = rows
        if node.type == "f16":
            values = rows.view(np.float16)
        elif node.type == "bf16":
            values = Bfloat16(rows)
        self._trace.put(name, values, over_kv=over_kv(node), op=node.op.lower())


def layer_of(weight: str, reads: Sequence[str]) -> str:
    """The layer of a node that reads a weight of layer `weight`, which a bug may have taken from another one: what else it reads
    inside a layer says it first."""
    within = next(filter(None, map(WITHIN.fullmatch, reads)), None)
    return within[1] if within else weight


def over_kv(node: Node) -> bool:
    """Scores and weights of attention: [1, n_head, n_tok, n_kv]."""
    return node.name.startswith("kq") and not node.name.startswith("kqv")


def positions_first(node: Node, values: Array, step: range) -> Array | None:
    """The tensor as [n_tok, …], without axes of length 1; None when it has no row for each token of the step.

    ggml's axes here, slowest first: [1, 1, n_tok, n]; [1, n_tok, n_head, head_dim] for what is split into heads or experts;
    [1, n_head, n_tok, …] inside the attention. Where several axes are as long as the step, the op and the name
    decide."""
    n_tok = len(step)
    if node.op == "SET_ROWS":  # a whole cache, of which this step's rows are new
        in_rows = node.shape[:2] == (1, 1) and node.shape[2] > step[-1] and node.shape[3] > 1
        rows: Array = values[0, 0, step.start : step.stop]
        return rows if in_rows else None
    axes = [axis for axis in (1, 2) if node.shape[axis] == n_tok]
    if not axes or node.shape[0] != 1 or 0 in node.shape:  # of recurrent states ggml takes views without elements
        return None
    later = node.name.startswith(HEADS_LATER) and "(permuted)" not in node.name
    heads = node.op in ("RESHAPE", "ROPE", "FLASH_ATTN_EXT") or later
    split = (heads or "_moe_" in node.name) and node.shape[1] > 1
    axis = axes[0] if len(axes) == 1 or split else axes[1]
    if n_tok == 1:  # any axis of length 1 gives the same elements; the ones that are left are the shape of other steps
        axis = 2 if node.shape[2] == 1 else 1
    moved: Array = np.moveaxis(values[0], axis - 1, 0)
    if over_kv(node):
        return moved
    rest = tuple(extent for extent in moved.shape[1:] if extent != 1) or (1,)
    squeezed: Array = moved.reshape(n_tok, *rest)
    return squeezed
