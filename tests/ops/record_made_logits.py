#!/usr/bin/env python3
"""Records llama.cpp's logits of made models, for tests/ops/test_made_models.c.

    eval $(python3 bench/llama_cpp/build.py FOLDER | tail -2)
    python3 tests/ops/record_made_logits.py build/release/firstdiff        # needs numpy, gguf and llama-cpp-python

made_models.txt has a model a line: architecture, type of the matrices, limit of the NMSE, CRC-32 of the file, options.
This writes the CRCs anew, and made_logits.npy: the logits of the last of 24 tokens, one row a line; lines whose file has the CRC that
they name keep their row (new ones go to the end, with the CRC 0), with --all none does. llama.cpp multiplies quantised
matrices by activations that it rounds to 8 bits, so it is given the model dequantised to F32, by the gguf package: what is compared is
our decoding of the blocks and the graph, not that rounding. K and V are F32, flash attention is off."""

import pathlib
import subprocess
import sys
import tempfile
import zlib

import gguf
import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
SEED, VOCABULARY = 7, 320
TOKENS = [(37 * i + 5) % VOCABULARY for i in range(24)]


def dequantise(source, target):
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            sub = field.types[1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), field.types[0], sub)
    for t in reader.tensors:
        values = gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32)
        writer.add_tensor(t.name, values.reshape([int(n) for n in reversed(t.shape)]))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def logits_of(path):
    import llama_cpp

    model = llama_cpp.Llama(str(path), n_ctx=256, n_batch=256, n_ubatch=256, n_threads=2, type_k=0, type_v=0, flash_attn=False, yarn_attn_factor=-1.0,
                            yarn_beta_fast=-1.0, yarn_beta_slow=-1.0, logits_all=True, verbose=False)
    model.eval(TOKENS)
    row = np.array(model.scores[len(TOKENS) - 1], np.float32)
    model.close()
    return row


def main():
    program, table = sys.argv[1], HERE / "made_models.txt"
    lines, rows = [], []
    recorded = [] if "--all" in sys.argv else list(np.load(HERE / "made_logits.npy"))
    with tempfile.TemporaryDirectory() as folder:
        made, plain = pathlib.Path(folder, "made.gguf"), pathlib.Path(folder, "plain.gguf")
        for line in table.read_text().splitlines():
            if not line or line.startswith("#"):
                lines.append(line)
                continue
            arch, dtype, limit, known, *options = line.split()
            command = [program, "make-model", "--arch", arch, "--type", dtype, "--seed", str(SEED), "-o", made]
            for option in options:
                command += ["--with", option[5:].replace(",", " ")] if option.startswith("with:") else ["--set", option]
            subprocess.run(command, check=True)
            crc = f"{zlib.crc32(made.read_bytes()):08x}"
            if crc == known and len(rows) < len(recorded):
                rows.append(recorded[len(rows)])
                lines.append(line)
                continue
            dequantise(made, plain)
            try:
                row = logits_of(plain)
            except Exception as error:
                sys.exit(f"{arch} {dtype}: {error}")
            if not np.isfinite(row).all() or row.std() == 0:
                sys.exit(f"{arch} {dtype}: the logits are not finite")
            rows.append(row)
            lines.append(" ".join([arch, dtype, limit, crc, *options]))
            print(lines[-1], flush=True)
    table.write_text("\n".join(lines) + "\n")
    np.save(HERE / "made_logits.npy", np.stack(rows))


if __name__ == "__main__":
    main()
