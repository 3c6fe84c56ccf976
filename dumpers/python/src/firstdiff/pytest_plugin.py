"""pytest: fixtures that compare what an engine computed with what it should have.

pytest finds them by itself once firstdiff is installed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from firstdiff.verdicts import PathLike, Verdict, check, compare, golden_message


def _sound(verdict: Verdict) -> Verdict:
    __tracebackhide__ = True
    if not verdict.ok:
        pytest.fail(f"{verdict}\nnext: {verdict.next}" if verdict.next else str(verdict), pytrace=False)
    return verdict


@pytest.fixture
def assert_matches_golden() -> Callable[..., Verdict]:
    """assert_matches_golden("golden.h5", "run.h5", prompt=1, model=None): the trace has every bit of the golden's
    prompt, or with the model differs by rounding alone. More as of firstdiff.compare."""

    def matches(golden: PathLike, trace: PathLike, *, prompt: int = 1, **options: Any) -> Verdict:
        __tracebackhide__ = True
        return _sound(compare(f"{golden}#{prompt}", trace, **options))

    return matches


@pytest.fixture
def assert_near_golden() -> Callable[..., None]:
    """assert_near_golden("model.gguf", "golden.h5", "dump/", numerics="f16"): the logits that the engine left of a prompt
    are as near the golden's as those of sound engines of these numerics, as measured when it was recorded."""

    def near(model: PathLike, golden: PathLike, dump: PathLike, *, numerics: str | None = None) -> None:
        __tracebackhide__ = True
        message = golden_message(model, golden, dump, numerics=numerics)
        if message:
            pytest.fail(message, pytrace=False)

    return near


@pytest.fixture
def assert_computes_model() -> Callable[..., Verdict]:
    """assert_computes_model("model.gguf", "dump/", numerics="f16"): the engine that left the dump computes what the
    model says. More as of firstdiff.check."""

    def computes(model: PathLike, dump: PathLike, **options: Any) -> Verdict:
        __tracebackhide__ = True
        return _sound(check(model, dump, **options))

    return computes
