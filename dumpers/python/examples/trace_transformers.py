#!/usr/bin/env python3
"""transformers against firstdiff's reference.  trace_transformers.py FIRSTDIFF MODEL.gguf FOLDER [DTYPE]

FIRSTDIFF is the program; the traces are left in FOLDER. Needs torch, transformers, gguf and accelerate."""

import subprocess
import sys

from firstdiff.transformers import record

program, model, folder = sys.argv[1:4]
dtype = sys.argv[4] if len(sys.argv) > 4 else "float32"
fed, _ = record(model, [1, 403, 407, 261, 378, 432], f"{folder}/hf.h5", generate=4, dtype=dtype)
tokens = ",".join(map(str, fed))
subprocess.run([program, "run", model, "--tokens", tokens, "-n", "0", "-q", "-o", f"{folder}/reference.h5"], check=True)
compared = subprocess.run([program, "compare", f"{folder}/reference.h5", f"{folder}/hf.h5", "--model", model])
sys.exit(compared.returncode)
