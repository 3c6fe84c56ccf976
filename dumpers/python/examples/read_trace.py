#!/usr/bin/env python3
"""Looks into a trace with pandas, as a notebook would.  read_trace.py TRACE.h5"""

import sys

from firstdiff.trace import Reader

with Reader(sys.argv[1]) as trace:
    print(trace.nodes()[["name", "op", "layer", "shape", "dtype"]].head(8).to_string())
    name = list(trace)[-1]
    print(f"\n{name}, position 1, first elements: {trace[name].at(1).ravel()[:4]}\n")
    print(trace.stats([name])[["min", "max", "rms", "n_nan"]].to_string())
    entropy = trace.entropy()
    if not entropy.empty:
        last = entropy.iloc[-1]
        print(f"\nhead that looks around most: layer, head = {last.idxmax()}, {last.max():.2f} nats")
