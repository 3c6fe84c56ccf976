"""repro_every_op FIRSTDIFF [FOLDER]: --repro has a test for every op of model/ops.def: its formula gives what is expected, in NumPy and in C, and shows
the engine's wrong value. A trace of small models of architectures that have all ops, of which the node and what it reads is kept, with
one element changed. FOLDER keeps what --repro wrote, a folder an op."""

import contextlib
import io
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import h5py
import numpy as np

FIRSTDIFF, OPS = sys.argv[1], Path(__file__).parents[2] / "model/ops.def"
TOKENS = [1, 30, 45, 9, 77, 12]
ARCHS = (  # each has an op that no earlier one has
    "llama gemma2 gpt-oss qwen3moe gpt2 bloom mistral3 nemotron deepseek2 mamba qwen3next rwkv7 olmo"
).split()

KEYS = {"mistral3": ["--set", "attention.temperature_scale=0.1", "--set", "attention.temperature_length=4"]}


def run(*words, status=0):
    ran = subprocess.run([FIRSTDIFF, *map(str, words)], capture_output=True, text=True)
    if ran.returncode != status:
        raise AssertionError(f"status {ran.returncode}, expected {status}: {words}\n{ran.stdout}{ran.stderr}")
    return ran.stdout + ran.stderr


def wrong_trace(full, path, node, inputs):
    """What the node reads, and its tensor with one element of the last position off."""
    with h5py.File(full) as f, h5py.File(path, "w") as to:
        to.attrs.update(schema="firstdiff-trace", version=1)
        to["tokens"] = f["tokens"][:]
        for i, name in enumerate([*inputs, node]):
            values = f["tensors/" + name][:]
            if name == node:
                last = values[-1].reshape(-1)
                at = int(np.flatnonzero(np.isfinite(last))[-1])
                last[at] = last[at] * 1.5 + 0.25 if "topk" not in node else (last[at] + 1) % 4
                values[-1] = last.reshape(values[-1].shape)
            to["tensors/" + name] = values
            to["tensors/" + name].attrs.update(f["tensors/" + name].attrs, seq=i)


def holds(folder, op):
    scope = {"__file__": str(folder / "test_op.py"), "__name__": "test_op"}
    exec((folder / "test_op.py").read_text(), scope)
    scope["test_the_formula_gives_what_is_expected"]()
    try:
        scope["test_the_engine_computes_it"]()
    except AssertionError:
        pass
    else:
        raise AssertionError(f"{op}: the engine's values pass")
    subprocess.run(["cc", "-O0", "-Wall", "-Wextra", "-Werror", "op.c", "-lm", "-o", "op"], cwd=folder, check=True)
    said = subprocess.run(["./op"], cwd=folder, capture_output=True, text=True)
    if said.returncode != 1 or "the formula is right, the engine WRONG" not in said.stdout:
        raise AssertionError(f"{op}: op.c: {said.returncode}\n{said.stdout}")


def main():
    left = set(re.findall(r"^FD_OP(?:_CPU)?\(\w+, *(\w+),", OPS.read_text(), re.M))
    n_op = len(left)
    with tempfile.TemporaryDirectory() as scratch:
        at = Path(scratch)
        kept = Path(sys.argv[2]) if len(sys.argv) > 2 else at
        for arch in ARCHS:
            model, full, wrong = at / f"{arch}.gguf", at / f"{arch}.h5", at / "wrong.h5"
            run("make-model", "-a", arch, "-o", model, *KEYS.get(arch, []))
            run("run", model, "--tokens", ",".join(map(str, TOKENS)), "-n", 0, "-q", "-o", full)
            with h5py.File(full) as f:
                graph = [(n["name"].decode(), n["op"].decode(), [n[k].decode() for k in ("input0", "input1")]) for n in f["graph"][:]]
            for name, op, inputs in reversed(graph):
                if op not in left:
                    continue
                wrong_trace(full, wrong, name, [i for i in inputs if i and i != "tokens"])
                folder = kept / op
                said = run("compare", full, wrong, "--model", model, "--candidate", "f32", "--allow-missing", "*", "--repro", folder, status=1)
                if f"{name} alone" not in said:
                    raise AssertionError(f"{op}: {said}")
                with contextlib.redirect_stdout(io.StringIO()):
                    holds(folder, op)
                left.discard(op)
    if left:
        raise AssertionError(f"no architecture here has {sorted(left)}")
    print(f"{n_op} ops")


if __name__ == "__main__":
    main()
