#!/usr/bin/env python3
"""Records two forward calls of an engine that computes with NumPy.  trace_numpy.py TRACE.h5"""

import sys

import numpy as np

from firstdiff.trace import Writer

rng = np.random.default_rng(0)
table, weight = rng.standard_normal((100, 16)), rng.standard_normal((16, 16)) / 4

with Writer(sys.argv[1], engine="NumPy example", numerics="f64") as trace:
    for tokens in ([5, 17, 3, 42], [8]):  # a prefill of four tokens, a decode step of one
        trace.step(tokens)
        x = table[tokens]
        trace.put("token_embd", x)
        trace.put("blk.0.attn_norm", x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-5))
        trace.put("blk.0.l_out", x + x @ weight)
