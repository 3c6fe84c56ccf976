#!/usr/bin/env python3
"""Reads what the C writer wrote with h5py alone and recomputes everything in it; writes a trace with h5py alone, as
docs/trace-format.md tells a stranger, and has the C reader read it. The Python of that page is what runs here.

    check_with_h5py.py PATH/TO/trace_peer
"""

import os
import re
import signal
import subprocess
import sys
import tempfile

import h5py
import numpy as np

N_POS, N_NODE, PREFILL = 32, 41, 7


def check(condition, what):
    if not condition:
        raise SystemExit(f"FAILED: {what}")


# ---- the formulas; write_trace and fingerprint are the ones printed in docs/trace-format.md ----

def run_python_of_the_manual():
    page = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "docs", "trace-format.md")
    with open(page, encoding="utf-8") as f:
        blocks = re.findall(r"```python\n(.*?)```", f.read(), flags=re.S)
    names = {}
    for block in blocks:
        exec(compile(block, page, "exec"), names)
    return names["write_trace"], names["fingerprint"]


write_trace, fingerprint = run_python_of_the_manual()


def statistics(x):
    x = x.astype(np.float64).ravel()
    f = x[np.isfinite(x)]
    some = [f.min(), f.max(), f.mean(), np.sqrt((f * f).mean()), np.abs(f).max()] if f.size else [np.nan] * 5
    return some + [np.isnan(x).sum(), np.isposinf(x).sum(), np.isneginf(x).sum(), (f == 0).sum()]


def entropy(p):
    p = p.astype(np.float64)
    return -np.where(p > 0, p * np.log(np.where(p > 0, p, 1)), 0).sum(axis=-1)


def close(a, b, limit):
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return a.shape == b.shape and bool(np.all((np.abs(a - b) <= limit * (1 + np.abs(b))) | (np.isnan(a) & np.isnan(b))))


# ---- C wrote, h5py reads ----

def position(tensor, pos):
    """The unpadded tensor of one position."""
    return tensor[pos, :, : pos + 1] if tensor.attrs["over_kv"] else tensor[pos]


def check_trace(path, level, dtype):
    with h5py.File(path, "r") as f:
        check(f.attrs["schema"] == "firstdiff-trace" and f.attrs["version"] == 1, "schema")
        check(f.attrs["complete"] == 1 and f.attrs["level"] == level, "complete, level")
        check(f.attrs["prompt"] == 'Grüße, "world"\n' and f.attrs["kv_type"] == "f32", "text attributes are str")
        graph, steps = f["graph"][:], f["steps"][:]
        names = [row["name"].decode() for row in graph]
        check(len(names) == N_NODE and names[0] == "token_embd" and names[-1] == "logits", "graph names")
        check(graph["input1"][names.index("blk.1.attn_scores")] == b"blk.1.cache_k", "graph inputs")
        check(list(steps["first"]) == [0] + list(range(PREFILL, N_POS)) and steps["count"].sum() == N_POS, "steps")
        check(f["tokens"].shape == (N_POS,) and f["fingerprints"].shape == (N_POS, N_NODE, 2), "shapes")
        check(("stats" in f) == (level != "fingerprint"), "stats are there when asked for")
        check(len(f["tensors"]) == (N_NODE if level == "full" else 0), "tensors are there when asked for")
        if level == "full":
            check(list(f["tensors"]) == names, "h5py lists the tensors in order of execution")
            check_values(f, names, dtype)
            check_health(f)


def check_values(f, names, dtype):
    columns = list(f["stats"].attrs["columns"])
    check(columns == ["min", "max", "mean", "rms", "absmax", "n_nan", "n_pos_inf", "n_neg_inf", "n_zero"], "columns")
    prints, stats = f["fingerprints"][:], f["stats"][:]
    for k, name in enumerate(names):
        tensor = f["tensors"][name]
        check(tensor.attrs["seq"] == k and tensor.dtype == np.dtype(dtype), f"{name}: seq, dtype")
        for pos in range(N_POS):
            x = position(tensor, pos)
            check(fingerprint(x) == tuple(int(v) for v in prints[pos, k]), f"{name} {pos}: fingerprint")
            check(close(stats[pos, k], statistics(x), 1e-12), f"{name} {pos}: statistics")
    scores, weights = f["tensors/blk.0.attn_scores"], f["tensors/blk.0.attn_weights"]
    check(np.all(np.isneginf(scores[3, :, 4:])) and np.all(weights[3, :, 4:] == 0), "what follows a row is padding")
    x = f["tensors/blk.0.attn_q"][5].copy()
    check(fingerprint(x[::-1]) != fingerprint(x), "a permutation changes the fingerprint")


def check_health(f):
    health = f["health"]
    for pos in range(N_POS):
        for layer in range(2):
            p = f[f"tensors/blk.{layer}.attn_weights"][pos, :, : pos + 1]
            check(close(health["entropy"][pos, layer], entropy(p), 1e-6), f"entropy {pos} {layer}")
            check(np.array_equal(health["sink"][pos, layer], p[:, 0].astype(np.float32)), f"sink {pos} {layer}")
        logits = f["tensors/logits"][pos].astype(np.float64)
        best = np.argsort(-logits, kind="stable")[:10]
        check(np.array_equal(health["top_id"][pos], best), f"top ids {pos}")
        check(np.array_equal(health["top_logit"][pos], logits[best].astype(np.float32)), f"top logits {pos}")
        p = np.exp(logits - logits.max())
        check(close(health["top1_probability"][pos], 1 / p.sum(), 1e-6), f"probability {pos}")
        check(close(health["logit_range"][pos], logits[best[0]] - logits[best[9]], 1e-6), f"range {pos}")
    check(np.array_equal(health["n_kv"][:], np.arange(1, N_POS + 1)), "n_kv")
    check(health["loop_length"][27] == 0 and health["loop_length"][28] == 3, "loop")


def check_killed(path):
    """A run that was killed opens without ado and holds the steps that it flushed."""
    with h5py.File(path, "r") as f:
        check(f.attrs["complete"] == 0, "a killed run is not complete")
        steps = f["steps"][:]
        check(steps["count"].sum() == N_POS, "finished steps")
        prints = f["fingerprints"][:N_POS]
        for k, name in enumerate(row["name"].decode() for row in f["graph"][:]):
            x = f["tensors"][name][N_POS - 1]
            x = x[:, :N_POS] if f["tensors"][name].attrs["over_kv"] else x
            check(fingerprint(x) == tuple(int(v) for v in prints[N_POS - 1, k]), f"killed: {name}")


# ---- h5py writes, C reads ----

def check_foreign(peer, path):
    rng = np.random.default_rng(1)
    n = 5
    weights = np.tril(rng.random((n, 2, n)).transpose(1, 0, 2)).transpose(1, 0, 2).astype(np.float32)
    tensors = {
        "zz_first": rng.standard_normal((n, 6)).astype(np.float32),
        "blk.0.attn_q": rng.standard_normal((n, 2, 3)),
        "blk.0.attn_weights": weights,
        "blk.0.attn_out": rng.standard_normal((n, 6)).astype(np.float16),
        "logits": rng.standard_normal((n, 9)).astype(np.float32),
    }
    tensors["zz_first"][2, 3] = np.nan
    tensors["logits"][4, 0] = -0.0
    write_trace(path, tensors, [5, 4, 3, 2, 1])
    lines = subprocess.run([peer, "read", path], check=True, capture_output=True, text=True).stdout.splitlines()
    check(lines[0] == "positions 5 complete 1 tokens 5 4 3 2 1", lines[0])
    expected = []
    for name, values in tensors.items():
        for pos in range(n):
            x = values[pos, :, : pos + 1] if name.endswith("attn_weights") else values[pos]
            bits = x.astype(np.float64).ravel().view(np.uint64)
            expected.append(" ".join([name, str(pos)] + [f"{int(b):016x}" for b in bits]))
    for found, wanted in zip(lines[1:], expected):
        check(found == wanted, f"the C reader found\n  {found}\nexpected\n  {wanted}")
    check(len(lines) == 1 + len(expected), "number of rows")
    with h5py.File(path, "r+") as f:                  # and a wrong one is refused by name
        del f["tensors/logits"]
        f["tensors/logits"] = np.zeros((n - 1, 9), np.float32)
    bad = subprocess.run([peer, "read", path], capture_output=True, text=True)
    check(bad.returncode == 1 and "tensors/logits" in bad.stderr, f"a short tensor is refused: {bad.stderr}")


def main():
    peer = sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.h5")
        for level, dtype in [("full", "f32"), ("full", "f64"), ("stats", "f32"), ("fingerprint", "f32")]:
            subprocess.run([peer, "write", path, level, dtype], check=True)
            check_trace(path, level, {"f32": "<f4", "f64": "<f8"}[dtype])
        killed = subprocess.run([peer, "killed", path])
        check(killed.returncode == -signal.SIGKILL, "the killed run was killed")
        check_killed(path)
        check_foreign(peer, path)
    print(f"h5py {h5py.__version__}, HDF5 {h5py.version.hdf5_version}, NumPy {np.__version__}: all agree")


if __name__ == "__main__":
    main()
