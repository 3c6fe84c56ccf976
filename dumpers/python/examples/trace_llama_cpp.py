#!/usr/bin/env python3
"""llama.cpp against firstdiff's reference.  trace_llama_cpp.py FIRSTDIFF MODEL.gguf FOLDER [flash]

FIRSTDIFF is the program; the traces are left in FOLDER. Needs llama-cpp-python."""

import subprocess
import sys

from firstdiff.llama_cpp import Settings, record

program, model, folder = sys.argv[1:4]
run = record(
    model,
    [1, 403, 407, 261, 378, 432],
    f"{folder}/llama.h5",
    generate=4,
    settings=Settings(flash_attn="flash" in sys.argv),
)
tokens = ",".join(map(str, run.tokens))
subprocess.run([program, "run", model, "--tokens", tokens, "-n", "0", "-q", "-o", f"{folder}/reference.h5"], check=True)
compared = subprocess.run([program, "compare", f"{folder}/reference.h5", f"{folder}/llama.h5", "--model", model])
sys.exit(compared.returncode)
