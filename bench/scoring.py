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
import json
import os
import pathlib
import re
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "dumpers" / "python" / "src")]

from scoring_counts import Row, judge, tables
from scoring_model import PROFILES, Model

# label: the file's name. tokens: which of Engine.tokens. sound: the label of the run without the bug, "" for a sound run. names: of
# docs/faults.md, right for the bug; NAME:WORDS where the explanation must also say WORDS. numerics: the class that is true. run: what Engine.record needs to know.
Case = collections.namedtuple("Case", "label tokens sound names numerics run")



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
