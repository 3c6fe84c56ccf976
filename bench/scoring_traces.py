"""Traces of engines that bench/scoring.py compares: their tensors by the node's name, where two runs first differ, how far the logits move."""

import pathlib
import re

import h5py
import numpy as np

MAPS = pathlib.Path(__file__).resolve().parent.parent / "dumpers/import/maps"


# ---- names ----


def holds_for(arch, words):
    """Is the rule one of this architecture? arch=a,b lists those it is for, arch=!a,b those it is not for."""
    for word in words:
        if word.startswith("arch="):
            archs = word[len("arch=") :]
            return (arch in archs.lstrip("!").split(",")) != archs.startswith("!")
    return True


def rules_of(name, arch):
    """[(pattern of a foreign name, node's name with \\1 for the layer)] of a built-in map, as it is for an architecture. Rules that
    take a part of a tensor come last: here it stands for the whole."""
    rules, parts = [], []
    for line in (MAPS / f"{name}.map").read_text().splitlines():
        line = line.split(" #")[0].strip()
        if "->" not in line or line.startswith("#"):
            continue
        sources, node = line.split("->")
        if not holds_for(arch, node.split()[1:]):
            continue
        for source in sources.split("|"):
            words = {"{layer}": r"(\d+)", "{rank}": r"(?P<rank>\d+)", "*": ".*", "?": "."}
            pieces = re.split(r"(\{layer\}|\{rank\}|\*|\?)", source.strip())
            pattern = "".join(words.get(piece, re.escape(piece)) for piece in pieces)
            (parts if "part=" in node else rules).append((re.compile(pattern), re.sub(r"\{\w+\}", r"\\1", node.split()[0])))
    return rules + parts


def nodes_of(names, rules):
    """{foreign name: node}; the first rule that gives a node wins."""
    found, taken = {}, set()
    for pattern, node in rules:
        hits = {name: m for name in names if (m := pattern.fullmatch(name))}
        if "rank" in pattern.groupindex:
            order = sorted(hits, key=lambda name: int(hits[name]["rank"]))
            given = {name: node.replace(r"\1", str(i)) for i, name in enumerate(order)}
        else:
            given = {name: m.expand(node) for name, m in hits.items()}
        given = {name: n for name, n in given.items() if n not in taken and name not in found}
        found.update(given)
        taken |= set(given.values())
    return found


# ---- what stands in traces ----


class Trace:
    """A candidate's tensors by the node's name."""

    def __init__(self, path, rules):
        self.file = h5py.File(path, "r")
        names = list(self.file["tensors"])
        self.names = nodes_of(names, rules) if rules else {name: name for name in names}
        self.foreign = {node: name for name, node in self.names.items()}

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.file.close()

    def bits(self, node):
        """Rows; of attention, without the keys that come after a token's own."""
        data = self.file["tensors"][self.foreign[node]]
        rows = data[:]
        if node.endswith(("attn_scores", "attn_weights")):
            own = np.arange(len(rows))[:, None, None]
            rows = np.where(np.arange(rows.shape[-1]) <= own, rows, 0)
        return np.ascontiguousarray(rows).view({2: np.uint16, 4: np.uint32, 8: np.uint64}[rows.dtype.itemsize])

    def logits(self):
        data = self.file["tensors"][self.foreign["logits"]]
        raw, dtype = data[:], data.attrs.get("dtype", b"F32")
        dtype = dtype.decode() if isinstance(dtype, bytes) else dtype
        if dtype == "BF16":
            return (raw.astype(np.uint32) << 16).view(np.float32)
        return (raw.view(np.float16) if dtype == "F16" else raw).astype(np.float32)


def first_that_differs(sound, buggy, nodes):
    for node in nodes:
        if node in sound.foreign and node in buggy.foreign:
            a, b = sound.bits(node), buggy.bits(node)
            if a.shape != b.shape or not np.array_equal(a, b):
                return node
    return None


def effect(sound, buggy):
    """How far the logits move, of their root mean square."""
    a, b = sound.logits(), buggy.logits()
    return float(np.sqrt(np.mean((a - b) ** 2) / np.mean(a**2)))
