#!/usr/bin/env python3
"""golden_tolerances.py FIRSTDIFF [MODEL…]: how much farther from the exact logits a sound run may be than the farthest of four others, which is why
`golden check` allows a multiple of what `golden record --tolerances` measured (FD_GOLDEN_MEASURED_FACTOR). Twelve orders of summation of each
class; every four that follow one another are taken for the measured ones, and each of the others is held to the farthest of them."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

TRACES = Path(__file__).parents[1] / "traces"
CLASSES = "f32 tf32 f16 f16acc q8 llama-cuda llama-cublas hf-f16".split()
MEASURED, SEEDS = 4, range(1, 13)


def nmse(firstdiff: str, model: str, golden: str, numerics: str) -> float:
    """Of the position that is farthest off, in any prompt."""
    words = ["golden", "check", model, golden, "--numerics", numerics, "--tolerance", "1", "--json"]
    said = subprocess.run([firstdiff, *words], capture_output=True, text=True, check=True).stdout
    return max(prompt["nmse"] for prompt in json.loads(said)["prompts"])


def main() -> None:
    firstdiff, *models = sys.argv[1:]
    for model in models or [str(TRACES / "kjv-llama.gguf"), str(TRACES / "kjv-qwen2.gguf")]:
        with tempfile.TemporaryDirectory() as scratch:
            golden = str(Path(scratch) / "golden.h5")
            words = ["golden", "record", model, str(TRACES / "prompts.txt"), "-n", "8", "-o", golden]
            subprocess.run([firstdiff, *words], check=True, stdout=subprocess.DEVNULL)
            for name in CLASSES:
                far = [nmse(firstdiff, model, golden, f"emulate-{name}:{seed}") for seed in SEEDS]
                windows = [(far[i : i + MEASURED], far[:i] + far[i + MEASURED :]) for i in range(len(far) - MEASURED + 1)]
                ratio = max(max(others) / max(measured) for measured, others in windows)
                print(f"{Path(model).stem:10} {name:12} {min(far):.2e} … {max(far):.2e}   at most {ratio:.2f} times", flush=True)


if __name__ == "__main__":
    main()
