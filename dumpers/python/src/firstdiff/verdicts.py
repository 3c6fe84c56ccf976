"""Verdicts from Python: what `firstdiff check` and `firstdiff compare` say, as an object."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sysconfig
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PathLike = str | os.PathLike[str]


class FirstdiffError(RuntimeError):
    """The program could not be run, or could not use what it was given; the message is its own."""


@dataclass(frozen=True)
class Verdict:
    """What a comparison found. `report` is the whole of it, with the keys of docs/verdicts.md."""

    status: str  #: "identical", "noise", "diverged", "incomplete", "check-dump"
    report: Mapping[str, Any]
    messages: str = ""  #: what was said besides: the map that was taken, names without a node

    @property
    def ok(self) -> bool:
        """No divergence: every bit agrees, or rounding explains every difference; False when it could not look."""
        return bool(self.report["exit_status"] == 0)

    @property
    def node(self) -> str | None:
        """The first tensor that is wrong, or the first weight."""
        weights, divergence = self.report.get("weights") or {}, self.report["divergence"]
        if self.status != "diverged":
            return None
        first: str = weights["first"] if weights.get("differ") else divergence["node"]
        return first

    @property
    def bug(self) -> str | None:
        """The name of the bug that explains it, "rope_pairing"; None: there is none, or none is named."""
        return self._explained("name")

    @property
    def summary(self) -> str | None:
        """What the engine does, in a sentence."""
        return self._explained("summary")

    @property
    def next(self) -> str:
        """The command to type now; "" none."""
        command: str = self.report["next"]
        return command

    def _explained(self, key: str) -> str | None:
        weights, explanation = self.report.get("weights") or {}, self.report.get("explanation") or {}
        found: str | None = weights.get(key) if weights.get("differ") else explanation.get(key)
        return found

    def __str__(self) -> str:
        where = f" at {self.node}" if self.node else ""
        return f"{self.status.upper()}{where}" + (f": {self.summary} ({self.bug})" if self.bug else "")


def program() -> str:
    """Where the program is: $FIRSTDIFF, next to this package's Python, or on the PATH."""
    given = os.environ.get("FIRSTDIFF")
    beside = Path(sysconfig.get_path("scripts")) / "firstdiff"
    found = given or (str(beside) if os.access(beside, os.X_OK) else shutil.which("firstdiff"))
    if not found:
        raise FirstdiffError("the program firstdiff is not on the PATH: install it, or name it in $FIRSTDIFF")
    return found


def _verdict(command: list[object]) -> Verdict:
    try:
        ran = subprocess.run([program(), *map(os.fspath, map(_text, command))], capture_output=True, text=True, check=False)
    except OSError as error:
        raise FirstdiffError(f"{program()}: {error}") from error
    if ran.returncode == 2 or not ran.stdout:
        raise FirstdiffError(ran.stderr.strip() or f"firstdiff ended with status {ran.returncode}")
    report = json.loads(ran.stdout)
    report["exit_status"] = ran.returncode  # names without a node make it 3
    return Verdict(report["status"], report, ran.stderr.strip())


def _text(word: object) -> str:
    return os.fspath(word) if isinstance(word, os.PathLike) else str(word)


def _options(allow_missing: Iterable[str], html: PathLike | None, **options: object) -> list[object]:
    words: list[object] = []
    for name, value in {**options, "html": html}.items():
        if value is not None:
            words += [f"--{name.replace('_', '-')}", value]
    for glob in allow_missing:
        words += ["--allow-missing", glob]
    return words


def compare(
    reference: PathLike,
    candidate: PathLike,
    *,
    model: PathLike | None = None,
    numerics: str | None = None,
    map: PathLike | None = None,
    since: PathLike | None = None,
    allow_missing: Iterable[str] = (),
    html: PathLike | None = None,
) -> Verdict:
    """Compares two traces. With the model every op is replayed: rounding is told from bugs, and bugs are named.

    numerics: where the candidate rounds ("f32", "f16", …; None: as recorded, else inferred); html: also writes the page.
    """
    return _verdict(
        ["compare", reference, candidate, "--json"]
        + _options(allow_missing, html, model=model, candidate=numerics, map=map, since=since)
    )


def check(
    model: PathLike,
    candidate: PathLike,
    *,
    numerics: str | None = None,
    tokens: Iterable[int] | None = None,
    map: PathLike | None = None,
    weights: PathLike | None = None,
    backend: str | None = None,
    keep: PathLike | None = None,
    allow_missing: Iterable[str] = (),
    html: PathLike | None = None,
) -> Verdict:
    """Whether an engine computes what its model says: `candidate` is a trace, or a folder or file of what it dumped.

    tokens: those it was fed (None: the dump holds them); keep: a folder for both traces and the map that was found.
    """
    fed = None if tokens is None else ",".join(str(int(t)) for t in tokens)
    return _verdict(
        ["check", model, candidate, "--json"]
        + _options(allow_missing, html, candidate=numerics, tokens=fed, map=map, weights=weights, backend=backend, keep=keep)
    )


def golden_message(model: PathLike, golden: PathLike, dump: PathLike, *, numerics: str | None = None) -> str:
    """What `firstdiff golden check` has against the logits of an engine's run of one of the golden's prompts; "": nothing.

    numerics: where the engine rounds ("f16"; None: as its trace says)."""
    words = [program(), "golden", "check", model, golden, dump, *_options((), None, numerics=numerics)]
    ran = subprocess.run(list(map(_text, words)), capture_output=True, text=True, check=False)
    if ran.returncode == 0:
        return ""
    return (ran.stdout if ran.returncode == 1 else ran.stderr).strip() or f"firstdiff ended with status {ran.returncode}"
