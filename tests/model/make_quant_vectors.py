#!/usr/bin/env python3
"""Writes quant_vectors.bin: blocks of every format and what the `gguf` Python package makes of them.

    python3 tests/model/make_quant_vectors.py            (needs numpy and gguf; the result is committed)
    python3 tests/model/make_quant_vectors.py FILE N     (other blocks, random number seed N, eight times as many)

Little endian. Records until a kind of 0xffffffff:
    u32 kind (0 decode, 1 encode), u32 dtype, u32 n elements, u32 bytes of the encoded form,
    decode: encoded bytes, then n float32 expected        encode: n float32, then encoded bytes expected
"""
import pathlib
import struct
import sys

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as T
from gguf.quants import dequantize, quantize

OUT = sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).with_name("quant_vectors.bin")
TIMES = 8 if len(sys.argv) > 1 else 1
rng = np.random.default_rng(int(sys.argv[2]) if len(sys.argv) > 2 else 20240607)

# Scales that have gone wrong somewhere: zeros, subnormals, the ends of the range, infinities, NaN.
SCALES = np.array([0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0x2E66, 0xA1B2],
                  dtype=np.uint16)
# Where a block's binary16 scales are.
SCALE_AT = {T.Q8_0: [0], T.Q4_0: [0], T.Q4_K: [0, 2], T.Q6_K: [208], T.Q5_0: [0], T.Q4_1: [0, 2], T.Q5_1: [0, 2],
            T.Q2_K: [80, 82], T.Q3_K: [108], T.Q5_K: [0, 2], T.IQ1_S: [0], T.IQ2_XXS: [0], T.IQ2_XS: [0], T.IQ2_S: [0],
            T.IQ3_XXS: [0], T.IQ3_S: [0], T.IQ4_NL: [0], T.IQ4_XS: [0], T.TQ1_0: [52], T.TQ2_0: [64], T.IQ1_M: [],
            T.MXFP4: [], T.NVFP4: []}
NUMBERS = {T.I8: np.int8, T.I16: np.int16, T.I32: np.int32, T.I64: np.int64, T.F64: np.float64}


def blocks_of(kind):
    elements, size = GGML_QUANT_SIZES[kind]
    n = TIMES * {256: 6, 64: 24, 32: 24}[elements]
    blocks = rng.integers(0, 256, (n, size), dtype=np.uint8)
    extreme = np.resize(SCALES, n // 2) # half of all blocks stay ordinary
    for column, at in enumerate(SCALE_AT[kind]):
        scale = rng.uniform(1e-4, 0.1, n).astype(np.float16).view(np.uint16)
        # The larger formats have fewer blocks: each takes other extremes.
        scale[: n // 2] = np.roll(extreme, 3 * list(SCALE_AT).index(kind) + 5 * column)
        blocks[:, at : at + 2] = scale.view(np.uint8).reshape(n, 2)
    if kind == T.IQ1_M:  # four bits of the scale in each of four words
        scale = rng.uniform(1e-4, 0.1, n).astype(np.float16).view(np.uint16)
        scale[: n // 2] = extreme
        for i in range(4):
            blocks[:, 49 + 2 * i] = blocks[:, 49 + 2 * i] & 15 | (scale >> 4 * i & 15) << 4
    if kind == T.MXFP4:
        blocks[: n // 2, 0] = np.resize([0, 1, 2, 3, 254, 255, 253, 127], n // 2)
        blocks[n // 2 :, 0] = rng.integers(110, 140, n - n // 2)
    if kind == T.NVFP4:
        blocks[: n // 2, 0] = np.resize([0, 1, 7, 8, 126, 127, 128, 255], n // 2)
    return blocks.reshape(-1)


def numbers_of(dtype):
    n = 64 * TIMES
    if dtype == np.float64:
        values = rng.standard_normal(n) * np.exp2(rng.integers(-160, 130, n))
        values[:8] = [0.0, -0.0, np.inf, -np.inf, np.nan, 1 + 2.0**-24, 1 + 2.0**-24 + 2.0**-50, 3.5e38]
        return values
    limits = np.iinfo(dtype)
    values = rng.integers(limits.min, limits.max, n, dtype=dtype, endpoint=True)
    values[:4] = [limits.min, limits.max, 0, -1]
    return values


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


with np.errstate(all="ignore"), open(OUT, "wb") as out:
    for kind in SCALE_AT:
        encoded = blocks_of(kind)
        values = dequantize(encoded.reshape(1, -1), kind).reshape(-1).astype(np.float32)
        out.write(struct.pack("<4I", 0, kind, values.size, encoded.size) + encoded.tobytes() + values.tobytes())
    for kind, dtype in NUMBERS.items():  # no blocks: NumPy's rounding to binary32
        numbers = numbers_of(dtype)
        values = numbers.astype(np.float32)
        out.write(struct.pack("<4I", 0, kind, values.size, numbers.nbytes) + numbers.tobytes() + values.tobytes())
    for kind in (T.F16, T.BF16, T.Q8_0, T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1):
        values = rows_to_encode(kind)
        encoded = quantize(values.reshape(1, -1), kind).view(np.uint8).reshape(-1)
        out.write(struct.pack("<4I", 1, kind, values.size, encoded.size) + values.tobytes() + encoded.tobytes())
    out.write(struct.pack("<4I", 0xFFFFFFFF, 0, 0, 0))
