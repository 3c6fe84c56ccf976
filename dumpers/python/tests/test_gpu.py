"""transformers on a CUDA device. The traces are kept in the folder FD_GPU_TRACES, where it is set, to be compared elsewhere."""

import os
from pathlib import Path

import numpy as np
import pytest
from conftest import KJV_QWEN2, TOKENS

torch = pytest.importorskip("torch", reason="torch is not installed: nothing to run on a GPU")
pytest.importorskip("transformers", reason="transformers is not installed: its adapter is not tried")
pytest.importorskip("gguf", reason="gguf is not installed: transformers cannot read a GGUF")
pytest.importorskip("accelerate", reason="accelerate is not installed: transformers cannot read a GGUF")

from firstdiff.trace import Reader  # noqa: E402
from firstdiff.transformers import record  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.fixture
def folder(tmp_path) -> Path:
    kept = Path(os.environ.get("FD_GPU_TRACES") or tmp_path)
    kept.mkdir(parents=True, exist_ok=True)
    return kept


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("dtype,inferred", [("float32", "f32"), ("bfloat16", "hf-bf16"), ("float16", "hf-f16")])
def test_transformers_on_cuda_is_noise(dtype, inferred, attention, folder, request):
    """The trace is whole, and noise where FIRSTDIFF names the program."""
    path = folder / f"qwen2-{dtype}-{attention}.h5"
    tokens, logits = record(
        KJV_QWEN2, TOKENS, path, prefill=10, generate=4, dtype=dtype, attention=attention, device="cuda"
    )
    with Reader(path) as trace:
        assert trace.complete and list(trace.tokens) == tokens and len(tokens) == len(TOKENS) + 4
        assert np.array_equal(np.asarray(trace["logits"], np.float32), logits) and np.isfinite(logits).all()
    if not os.environ.get("FIRSTDIFF"):
        return
    firstdiff = request.getfixturevalue("firstdiff")
    reference = firstdiff.reference(KJV_QWEN2, tokens, path.with_suffix(".ref.h5"))
    verdict = firstdiff.verdict(reference, path, KJV_QWEN2)
    assert verdict["status"] == "noise", verdict.get("divergence") or verdict["reasons"]
    fused = "-fa" if attention == "sdpa" and dtype != "float32" else ""
    assert verdict["replay"]["class"] == inferred + fused
