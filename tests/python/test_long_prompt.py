"""A sound engine of bfloat16 tensors and fused attention, a prompt of 186 tokens: softmax is so steep in one row or two that their bounds say
nothing, which is no doubt of the others."""

import os
import random
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "examples" / "numpy"), str(ROOT / "dumpers" / "python" / "src")]

from engine import Engine  # noqa: E402

from firstdiff.trace import Writer  # noqa: E402

FUSED = ("attn_scores", "attn_weights", "cache_k", "cache_v", "attn_q_rope", "attn_k_rope", "ffn_gate", "ffn_up", "ffn_act")


def test_a_sound_run_of_many_rows_is_noise(tmp_path):
    model, path = ROOT / "traces" / "kjv-llama.gguf", tmp_path / "run.h5"
    tokens = [1, *random.Random(186).choices(range(3, 2000), k=185)]
    with Writer(path, tokens, model=model) as trace:
        put = lambda name, rows: None if name.endswith(FUSED) else trace.put(name, rows)
        Engine(str(model), put, "hf-bf16").forward(tokens)
    check = [os.environ["FIRSTDIFF"], "check", str(model), str(path), "--allow-missing", "*"]
    said = subprocess.run(check, capture_output=True, text=True)
    assert said.returncode == 0, said.stdout
