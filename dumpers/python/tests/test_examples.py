"""The examples run as the README shows them."""

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import KJV_LLAMA, KJV_QWEN2

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def run(script, *arguments):
    return subprocess.run(
        [sys.executable, EXAMPLES / script, *map(str, arguments)], capture_output=True, text=True, check=False
    )


def test_numpy_engine_and_reader(tmp_path, firstdiff):
    made = run("trace_numpy.py", tmp_path / "t.h5")
    assert made.returncode == 0, made.stderr
    assert firstdiff("compare", tmp_path / "t.h5", tmp_path / "t.h5").returncode == 0
    pytest.importorskip("pandas", reason="pandas is not installed: read_trace.py is not tried")
    shown = run("read_trace.py", tmp_path / "t.h5")
    assert shown.returncode == 0 and "blk.0.l_out" in shown.stdout, shown.stderr


@pytest.mark.parametrize("flash", [[], ["flash"]], ids=["plain", "flash"])
def test_llama_cpp(tmp_path, firstdiff, flash):
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed: trace_llama_cpp.py is not tried")
    shown = run("trace_llama_cpp.py", firstdiff.path, KJV_LLAMA, tmp_path, *flash)
    assert shown.returncode == 0 and shown.stdout.startswith("NOISE"), shown.stdout + shown.stderr


def test_transformers(tmp_path, firstdiff):
    for package in ("torch", "transformers", "gguf", "accelerate"):
        pytest.importorskip(package, reason=f"{package} is not installed: trace_transformers.py is not tried")
    shown = run("trace_transformers.py", firstdiff.path, KJV_QWEN2, tmp_path, "bfloat16")
    assert shown.returncode == 0 and shown.stdout.startswith("NOISE"), shown.stdout + shown.stderr
