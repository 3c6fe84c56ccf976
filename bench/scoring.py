"""What bench/verdicts.py and its neighbours share: an engine that is not ours records sound and buggy runs, `firstdiff compare --model`
judges them by what is recorded, and verdicts are counted.

A case is one run. Where its bug sits is measured, not told: the first tensor, in the graph's order, whose bits differ between the sound
and the buggy run of that same engine. *Located* is a verdict at the first recorded tensor that is computed from it.
Traces are made once and kept in a folder with what was measured on them; a newer firstdiff judges them again.

    FOLDER/MODEL/reference.N.h5     firstdiff run, tokens number N
    FOLDER/MODEL/LABEL.h5           a case; cut/LABEL.PROFILE.h5: what the profile leaves of it
    FOLDER/MODEL/facts.json         {label: [first tensor that differs, effect]}
    FOLDER/MODEL/verdicts/PROGRAM/  verdicts as JSON, by a hash of the program"""

import argparse
import collections
import concurrent.futures
import fnmatch
import hashlib
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "dumpers" / "python" / "src")]

import h5py
import numpy as np

# label: the file's name. tokens: which of Engine.tokens. sound: the label of the run without the bug, "" for a sound run. names: of
# docs/faults.md, right for the bug; NAME:WORDS where the explanation must also say WORDS. numerics: the class that is true. run: what Engine.record needs to know.
Case = collections.namedtuple("Case", "label tokens sound names numerics run")

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
OUTCOMES = ["located", "NOISE", "cannot tell", "elsewhere", "named", "wrong name"]


class Engine:
    """What a benchmark tells about its engine."""

    least = 2e-6  # of the logits' root mean square: bugs that move them less have no effect
    reordered = None  # label of a sound run with the sums of tokens 0 in another order: nor have bugs that move them less than that
    tokens = [[1, 300, 45, 7, 99, 512, 23, 1024, 8, 77, 301, 5, 64, 700, 12, 9]]
    decoded = 4  # of the tokens, one by one
    map = None  # the built-in map of its names

    def cases(self, model, args):
        """Sound runs first."""
        raise NotImplementedError

    def record(self, model, case, path):
        """Runs the case and writes its trace; False: the model gives the bug no hold. Called in several processes."""
        raise NotImplementedError

    def add_arguments(self, parser):
        pass

    def models(self, args):
        return args.models

    def tokens_of(self, model):
        """`tokens`, as a model with a small vocabulary can have them."""
        return self.tokens


# ---- names ----


def rules_of(name):
    """[(pattern of a foreign name, node's name with \\1 for the layer)] of a built-in map."""
    rules = []
    for line in (ROOT / "dumpers/import/maps" / f"{name}.map").read_text().splitlines():
        line = line.split(" #")[0].strip()
        if "->" not in line or line.startswith("#"):
            continue
        sources, node = line.split("->")
        for source in sources.split("|"):
            words = {"{layer}": r"(\d+)", "{rank}": r"(?P<rank>\d+)", "*": ".*", "?": "."}
            parts = re.split(r"(\{layer\}|\{rank\}|\*|\?)", source.strip())
            pattern = "".join(words.get(part, re.escape(part)) for part in parts)
            rules.append((re.compile(pattern), re.sub(r"\{\w+\}", r"\\1", node.split()[0])))
    return rules


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


# ---- one model ----


class Model:
    def __init__(self, engine, firstdiff, path, keep, own_names=False):
        self.engine, self.firstdiff, self.path, self.own_names = engine, firstdiff, str(path), own_names
        self.name = pathlib.Path(path).stem
        self.folder = pathlib.Path(keep) / self.name
        (self.folder / "cut").mkdir(parents=True, exist_ok=True)
        self.rules = rules_of(engine.map) if engine.map else None
        self.program = hashlib.sha256(pathlib.Path(firstdiff).read_bytes()).hexdigest()[:12]
        for i, tokens in enumerate(engine.tokens_of(self.path)):
            if not self.reference(i).exists():
                subprocess.run([firstdiff, "run", self.path, "--tokens", ",".join(map(str, tokens)), "-n", "0", "-q", "-o", self.reference(i)], check=True)
        with h5py.File(self.reference(0)) as f:
            graph = f["graph"][:]
        text = lambda x: x.decode() if isinstance(x, bytes) else x
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


# ---- counting ----


def is_right(names, explanation, right):
    """Is one of the names right, and does the explanation say the words that go with it?"""
    said = json.dumps(explanation, ensure_ascii=False)
    return any(name in names and words in said for name, _, words in (r.partition(":") for r in right))


def outcome(case, found, expected):
    """The columns that count, the blamed tensor and the names."""
    at = (found.get("divergence") or {}).get("node", "") if found["exit_status"] == 1 else ""
    explanation, weights = found.get("explanation") or {}, found.get("weights") or {}
    names = [row["name"] for row in explanation["remaining"]] if explanation.get("name") else []
    names += [weights["name"]] if weights.get("name") else []
    told = {0: "NOISE", 2: "cannot tell", 3: "cannot tell"}.get(found["exit_status"], "located" if at == expected else "elsewhere")
    counts = [told]
    if names:
        counts.append("named" if is_right(names, explanation, case.names) else "wrong name")
    elif "those of" in weights.get("holds", ""):
        counts.append("named")
        names = [weights["holds"]]
    return counts, at, names


Row = collections.namedtuple("Row", "model label profile effect outcome named expected at status cls names right more reason command")


def judge(model, case, profile, given):
    command, found = model.command(case, profile, given), model.verdict(case, profile, given)
    replay = found.get("replay") or {}
    cls = f"{replay.get('class')} {replay.get('class_source')}"
    first, moved = model.measure(case) if case.sound else (None, 0)
    expected = model.expected(first, case.label, profile) if first else None
    counts, at, names = outcome(case, found, expected)
    more = [f"{c['node']} {c['name'] or '?'}" for c in (found.get("causes") or [])[1:]]
    reasons = [*(found.get("reasons") or []), (found.get("explanation") or {}).get("reason") or ""]
    summary = (found.get("explanation") or {}).get("summary")
    return Row(model.name, case.label, profile, moved, counts[0], counts[1] if len(counts) > 1 else "", expected or "", at, found["status"], cls,
               "=".join(names) + (f" ({summary})" if summary else ""), "=".join(case.names), "; ".join(more)[:200], "; ".join(filter(None, reasons))[:300], shlex.join(command))


def make(model, cases, jobs):
    """Records what is not there yet; {labels that the model gives no hold}."""
    none_file = model.folder / "no_hold.json"
    none = set(json.loads(none_file.read_text())) if none_file.exists() else set()
    missing = [c for c in cases if not model.holds(c.label) and c.label not in none]
    if missing:
        started = time.time()
        with concurrent.futures.ProcessPoolExecutor(jobs) as pool:
            done = list(pool.map(record_one, [(model.engine, model.path, c, str(model.trace(c.label))) for c in missing], chunksize=4))
        none |= {c.label for c, there in zip(missing, done) if not there}
        none_file.write_text(json.dumps(sorted(none)))
        print(f"{model.name}: {len(missing)} runs recorded in {time.time() - started:.0f} s", file=sys.stderr)
    cases = [c for c in cases if c.label not in none]
    for case in cases:
        if case.sound:
            model.measure(case)
    model.facts_file.write_text(json.dumps(model.facts, indent=0))
    return cases


def record_one(job):
    engine, path, case, to = job
    part = f"{to}.part"
    there = engine.record(path, case, part)
    if there:
        os.replace(part, to)
    elif os.path.exists(part):
        os.unlink(part)
    return there


def tables(rows, profiles, out):
    """Bugs by profile, then sound runs by class and profile. Returns what must not be: NOISE, wrong names, false alarms."""
    bugs, clean = collections.defaultdict(collections.Counter), collections.defaultdict(collections.Counter)
    for row in rows:
        if row.right is None:
            clean[row.label.rsplit(".", 1)[0], row.profile][f"{row.status} {row.cls.split()[0]}"] += 1
            continue
        t = bugs[row.profile]
        t["bugs"] += 1
        t[row.outcome] += 1
        t[row.named] += 1
        t["has a name"] += bool(row.right)
        t["more bugs"] += row.outcome == "located" and bool(row.more)
    print("| recorded | bugs with effect | " + " | ".join(OUTCOMES) + " | with a row | located, and more bugs that are none |\n|---|" + "---|" * (len(OUTCOMES) + 3), file=out)
    for profile in profiles:
        t = bugs[profile]
        print(f"| {profile} | {t['bugs']} | " + " | ".join(str(t[o]) for o in OUTCOMES) + f" | {t['has a name']} | {t['more bugs']} |", file=out)
    kinds = list(dict.fromkeys(kind for kind, _ in clean))
    print("\n| sound engine | " + " | ".join(profiles) + " |\n|---|" + "---|" * len(profiles), file=out)
    for kind in kinds:
        print(f"| {kind} | " + " | ".join(", ".join(f"{k} {n}" for k, n in sorted(clean[kind, p].items())) for p in profiles) + " |", file=out)
    runs = sum(n for c in clean.values() for n in c.values())
    alarms = sum(n for c in clean.values() for k, n in c.items() if k.startswith("diverged"))
    print(f"\nfalse alarms: {alarms} of {runs}", file=out)
    return sum(t["NOISE"] + t["wrong name"] for t in bugs.values()) + alarms


def main(engine, doc):
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("firstdiff")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--keep", metavar="DIR", help="keep traces here, and take those that are there")
    parser.add_argument("--bugs", default="", help="only those whose label this pattern finds; ^$: none")
    parser.add_argument("--every", type=int, default=1, help="only every Nth run with a bug")
    parser.add_argument("--clean", default="", help="only sound runs whose label this pattern finds; ^$: none")
    parser.add_argument("--profiles", default=[p for p in PROFILES if p != "weights"], type=lambda s: s.split(","))
    parser.add_argument("--own-names", action="store_true", help="names that say nothing: firstdiff check finds the map from the values")
    parser.add_argument("--given", action="store_true", help="tell compare the class")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--details", help="a line for each verdict, here")
    engine.add_arguments(parser)
    args = parser.parse_args()
    if args.keep:
        return score(engine, args)
    import tempfile

    with tempfile.TemporaryDirectory() as args.keep:
        return score(engine, args)


def score(engine, args):
    rows = []
    details = open(args.details, "w") if args.details else open(os.devnull, "w")
    print(*Row._fields, sep="\t", file=details)
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool, details:
        for path in engine.models(args):
            model = Model(engine, args.firstdiff, path, args.keep, args.own_names)
            cases = engine.cases(model, args)
            sound = [c for c in cases if not c.sound]
            bugs = [c for c in cases if c.sound and re.search(args.bugs, c.label)][:: args.every]
            needed = {c.sound for c in bugs} | ({engine.reordered} if bugs else set())
            asked = [c for c in sound if re.search(args.clean, c.label)]
            cases = make(model, [c for c in sound if c in asked or c.label in needed] + bugs, args.jobs)
            threshold = model.threshold() if bugs else 0
            jobs = []
            for case in cases:
                if case.sound and not (model.facts[case.label][0] and not model.facts[case.label][1] <= threshold):
                    continue
                if case.sound or case in asked:
                    jobs += [(case, p, pool.submit(judge, model, case, p, args.given)) for p in args.profiles]
            for case, profile, job in jobs:
                row = job.result()
                if not case.sound:
                    row = row._replace(right=None, outcome="false alarm" if row.status == "diverged" else row.status)
                elif not row.expected:
                    continue
                rows.append(row)
                print(*(f"{v:.1e}" if isinstance(v, float) else v for v in row), sep="\t", file=details, flush=True)
    return 1 if tables(rows, args.profiles, sys.stdout) else 0
