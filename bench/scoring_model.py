"""One model of bench/scoring.py: its folder of traces, what the profiles leave of them, and the verdicts of a firstdiff on these."""

import fnmatch
import hashlib
import json
import os
import pathlib
import re
import subprocess

import h5py
from scoring_traces import Trace, effect, first_that_differs, rules_of

ATTENTION = ["*attn_scores", "*attn_weights", "*cache_*"]
PROFILES = {  # what is not recorded
    "all": [],
    "partial": [*ATTENTION, "*ffn_gate", "*ffn_up"],
    "fused": [*ATTENTION, "*attn_?_rope", "*ffn_gate", "*ffn_up", "*ffn_act"],
    "layers": ["*.attn*", "*.cache*", "*.ffn*", "output_norm", "token_embd"],
    "logits": ["[!l]*", "*.*"],
    "weights": [],  # all, and the hashes of the weights' rows, where the engine records them
}
# What the author of an engine may call them, where --own-names asks for `firstdiff check`, which finds the map from the values. A node that is not here keeps no trace of its name.
OWN_NAMES = {
    "token_embd": "emb", "attn_norm": "n1", "attn_q": "qq", "attn_k": "kk", "attn_v": "vv", "attn_q_rope": "qr", "attn_k_rope": "kr", "cache_k": "kcache", "cache_v": "vcache",
    "attn_scores": "dots", "attn_weights": "probs", "attn_out": "ctx", "attn_proj": "mixer", "ffn_inp": "mid", "ffn_norm": "n2", "ffn_gate": "g",
    "ffn_up": "u", "ffn_act": "act", "ffn_down": "mlp", "l_out": "h", "output_norm": "fin", "logits": "scores_out",
}  # fmt: skip


class Model:
    def __init__(self, engine, firstdiff, path, keep, own_names=False):
        self.engine, self.firstdiff, self.path, self.own_names = engine, firstdiff, str(path), own_names
        self.name = pathlib.Path(path).stem
        self.folder = pathlib.Path(keep) / self.name
        (self.folder / "cut").mkdir(parents=True, exist_ok=True)
        self.program = hashlib.sha256(pathlib.Path(firstdiff).read_bytes()).hexdigest()[:12]
        for i, tokens in enumerate(engine.tokens_of(self.path)):
            if not self.reference(i).exists():
                subprocess.run([firstdiff, "run", self.path, "--tokens", ",".join(map(str, tokens)), "-n", "0", "-q", "-o", self.reference(i)], check=True)
        with h5py.File(self.reference(0)) as f:
            graph = f["graph"][:]
            arch = f.attrs["arch"]
        text = lambda x: x.decode() if isinstance(x, bytes) else x
        self.rules = rules_of(engine.map, text(arch)) if engine.map else None
        self.nodes = [text(n["name"]) for n in graph]
        self.leaves = sorted({n.rpartition(".")[2] for n in self.nodes})
        self.inputs = {text(n["name"]): {text(n[f"input{i}"]) for i in (0, 1)} for n in graph}
        self.n_layer = 1 + max(int(n) for name in self.nodes for n in re.findall(r"^blk\.(\d+)\.", name))
        self.facts_file = self.folder / "facts.json"
        self.facts = json.loads(self.facts_file.read_text()) if self.facts_file.exists() else {}

    def reference(self, tokens):
        return self.folder / f"reference.{tokens}.h5"

    def trace(self, label):
        return self.folder / f"{label}.h5"

    def holds(self, label):
        """Does the model give this case's bug a hold?"""
        return self.trace(label).exists()

    def measure(self, case):
        """(first tensor that differs, effect)"""
        if case.label not in self.facts:
            with Trace(self.trace(case.sound), self.rules) as sound, Trace(self.trace(case.label), self.rules) as buggy:
                self.facts[case.label] = [first_that_differs(sound, buggy, self.nodes), effect(sound, buggy)]
        return self.facts[case.label]

    def threshold(self):
        """Bugs that move the logits less have no effect."""
        if not self.engine.reordered:
            return self.engine.least
        sound = self.engine.reordered.replace("-reordered", "")
        with Trace(self.trace(sound), self.rules) as a, Trace(self.trace(self.engine.reordered), self.rules) as b:
            return max(self.engine.least, effect(a, b))

    def has_weights(self, path):
        with h5py.File(path, "r") as f:
            return "weights" in f

    def own_name(self, node):
        layer, leaf = re.fullmatch(r"(?:blk\.(\d+)\.)?(.*)", node).groups()
        own = OWN_NAMES.get(leaf, f"t{self.leaves.index(leaf)}")
        return f"L{layer}_{own}" if layer else own

    def cut(self, label, profile):
        """The trace without what the profile does not record."""
        path, globs = self.trace(label), PROFILES[profile]
        to = self.folder / "cut" / f"{label}.{profile}{'.own' if self.own_names else ''}.h5"
        if not globs and not self.own_names and not self.has_weights(path):
            return path
        if not to.exists():
            with Trace(path, self.rules) as whole, h5py.File(f"{to}.part", "w") as out:
                for key, value in whole.file.attrs.items():
                    out.attrs[key] = value
                for name in whole.file:
                    if name != "tensors" and (name != "weights" or profile == "weights"):
                        whole.file.copy(name, out)
                group = out.create_group("tensors")
                group.attrs.update(whole.file["tensors"].attrs)
                for name, node in whole.names.items():
                    if not any(fnmatch.fnmatch(node, g) for g in globs):
                        whole.file.copy(f"tensors/{name}", group, self.own_name(node) if self.own_names else name)
            os.replace(f"{to}.part", to)
        return to

    def expected(self, first, label, profile):
        """The first recorded tensor that `first` shows in."""
        with Trace(self.trace(label), self.rules) as trace:
            recorded = {n for n in trace.foreign if not any(fnmatch.fnmatch(n, g) for g in PROFILES[profile])}
        touched = set()
        for name in self.nodes:
            if name == first or touched & self.inputs[name]:
                touched.add(name)
                if name in recorded:
                    return name
        return None

    def command(self, case, profile, given):
        reference, dump = str(self.reference(case.tokens)), str(self.cut(case.label, profile))
        asked = ["check", self.path, dump] if self.own_names else ["compare", reference, dump, "--model", self.path]
        words = [str(self.firstdiff), *asked]
        words += [word for g in PROFILES[profile] for word in ("--allow-missing", g)]
        return words + (["--candidate", case.numerics] if given and case.numerics else [])

    def verdict(self, case, profile, given):
        """Of this program and of these traces: kept, so that a run which was cut short goes on where it was."""
        kept = self.folder / "verdicts" / self.program / f"{case.label}.{profile}{'.given' if given else ''}{'.own' if self.own_names else ''}.json"
        if not kept.exists() or kept.stat().st_mtime < self.trace(case.label).stat().st_mtime:
            found = self.compare(self.command(case, profile, given))
            kept.parent.mkdir(parents=True, exist_ok=True)
            part = kept.with_suffix(".part")
            part.write_text(json.dumps(found))
            os.replace(part, kept)
        return json.loads(kept.read_text())

    def compare(self, command):
        done = subprocess.run([*command, "--json"], capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        if done.returncode not in (0, 1, 3):
            return {"exit_status": 2, "status": "refused", "reasons": [done.stderr.strip()]}
        return json.loads(done.stdout)
