#!/usr/bin/env python3
"""Writes quant_vectors.bin: blocks of every format and what the `gguf` Python package makes of them.

    python3 tests/model/make_quant_vectors.py            (needs numpy and gguf; the result is committed)

Little endian. Records until a kind of 0xffffffff:
    u32 kind (0 decode, 1 encode), u32 dtype, u32 n elements, u32 bytes of the encoded form,
    decode: encoded bytes, then n float32 expected        encode: n float32, then encoded bytes expected
"""
import pathlib
import struct

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as T
from gguf.quants import dequantize, quantize

rng = np.random.default_rng(20240607)

# Scales that have gone wrong somewhere: zeros, subnormals, the ends of the range, infinities, NaN.
SCALES = np.array([0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0x2E66, 0xA1B2],
                  dtype=np.uint16)
SCALE_AT = {T.Q8_0: [0], T.Q4_0: [0], T.Q4_K: [0, 2], T.Q6_K: [208], T.Q5_0: [0]}
BLOCKS = {T.Q8_0: 24, T.Q4_0: 24, T.Q4_K: 6, T.Q6_K: 6, T.Q5_0: 24}


def blocks_of(kind):
    n, size = BLOCKS[kind], GGML_QUANT_SIZES[kind][1]
    blocks = rng.integers(0, 256, (n, size), dtype=np.uint8)
    ordinary = rng.uniform(1e-4, 0.1, (n, len(SCALE_AT[kind]))).astype(np.float16).view(np.uint16)
    for column, at in enumerate(SCALE_AT[kind]):
        scale = ordinary[:, column].copy()
        # The larger formats have fewer blocks: each takes other extremes, and half of all blocks stay ordinary.
        extreme = np.roll(SCALES, 3 * list(BLOCKS).index(kind) + 5 * column)[: n // 2]
        scale[: n // 2] = extreme
        blocks[:, at : at + 2] = scale.view(np.uint8).reshape(n, 2)
    return blocks.reshape(-1)


def rows_to_encode(kind):
    n = 12 * 32
    rows = (rng.standard_normal(n) * np.exp2(np.repeat(rng.integers(-20, 8, n // 32), 32))).astype(np.float32)
    rows[:32] = 0
    rows[32:64] = np.linspace(-127, 127, 32)
    rows[64:96] = (np.arange(32) - 16 + 0.5) * 127 / 15.5  # ties of the rounding
    rows[96:128] = np.tile([1.0, -1.0], 16)  # equal magnitudes: the first one decides Q4_0's sign
    if kind in (T.F16, T.BF16):
        special = [0x00000000, 0x80000000, 0x7F800000, 0xFF800000, 0x00000001, 0x007FFFFF, 0x33000000, 0x33000001,
                   0x387FC000, 0x477FEFFF, 0x477FF000, 0x7F7FFFFF, 0x3F801000, 0x3F803000, 0x3F808000, 0x3F818000]
        rows[: len(special)] = np.array(special, dtype=np.uint32).view(np.float32)
    return rows


with np.errstate(all="ignore"), open(pathlib.Path(__file__).with_name("quant_vectors.bin"), "wb") as out:
    for kind in BLOCKS:
        encoded = blocks_of(kind)
        values = dequantize(encoded.reshape(1, -1), kind).reshape(-1).astype(np.float32)
        out.write(struct.pack("<4I", 0, kind, values.size, encoded.size) + encoded.tobytes() + values.tobytes())
    for kind in (T.F16, T.BF16, T.Q8_0, T.Q4_0):
        values = rows_to_encode(kind)
        encoded = quantize(values.reshape(1, -1), kind).view(np.uint8).reshape(-1)
        out.write(struct.pack("<4I", 1, kind, values.size, encoded.size) + values.tobytes() + encoded.tobytes())
    out.write(struct.pack("<4I", 0xFFFFFFFF, 0, 0, 0))
