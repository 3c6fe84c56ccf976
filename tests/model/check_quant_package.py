#!/usr/bin/env python3
"""Runs test_quant on blocks that the installed `gguf` package has just dequantised: other ones every day.

    check_quant_package.py TEST_QUANT            (77, skipped, without gguf and numpy)
"""
import datetime
import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile

if not all(importlib.util.find_spec(name) for name in ("numpy", "gguf")):
    print("skipped: this Python has no gguf and numpy")
    sys.exit(77)

seed = str(datetime.date.today().toordinal())
print("seed", seed)
with tempfile.TemporaryDirectory() as folder:
    vectors = os.path.join(folder, "vectors.bin")
    subprocess.run([sys.executable, pathlib.Path(__file__).with_name("make_quant_vectors.py"), vectors, seed], check=True)
    run = subprocess.run([sys.argv[1], "--filter", "quant/*code_to*"],
                         env=dict(os.environ, FD_QUANT_VECTORS=vectors))
sys.exit(run.returncode)
