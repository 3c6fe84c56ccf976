"""Where the tests find firstdiff's program, the bundled models and the data next to the checkout."""

import json
import os
import subprocess
from pathlib import Path

import h5py
import pytest

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parents[3]
SHARED = ROOT.parent / "shared"
KJV_LLAMA, KJV_QWEN2 = ROOT / "traces" / "kjv-llama.gguf", ROOT / "traces" / "kjv-qwen2.gguf"
STORIES = SHARED / "models" / "stories260K.gguf"
TOKENS = [1, 403, 407, 261, 378, 432, 383, 286, 261, 376, 298, 315, 421]


class Program:
    """The program firstdiff."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __call__(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run([self.path, *map(str, arguments)], capture_output=True, text=True, check=False)

    def reference(self, model: Path, tokens: list[int], path: Path) -> Path:
        """A trace of the reference on the same tokens."""
        ran = self("run", model, "--tokens", ",".join(map(str, tokens)), "-n", "0", "-q", "-o", path)
        assert ran.returncode == 0, ran.stderr
        return path

    def verdict(self, reference: Path, candidate: Path, model: Path) -> dict[str, object]:
        """What `compare --model` says, as JSON; its exit status must be the one that it says."""
        ran = self("compare", reference, candidate, "--model", model, "--json")
        assert ran.stdout, ran.stderr
        found: dict[str, object] = json.loads(ran.stdout)
        assert ran.returncode == found["exit_status"], ran.stderr
        return found


@pytest.fixture(scope="session")
def firstdiff() -> Program:
    path = os.environ.get("FIRSTDIFF", "")
    if not path:
        pytest.skip("FIRSTDIFF does not name the program firstdiff")
    return Program(path)


def weight_hashes(path: Path) -> dict[str, list[int]]:
    """The hashes of /weights."""
    with h5py.File(path) as file:
        return {name: data[...].tolist() for name, data in file.get("weights", {}).items()}
