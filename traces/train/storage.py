"""The rounding of weights to what the GGUF stores: Q8_0 or F16 for matrices, F32 for norms and biases.

A stored tensor is a numpy array whose dtype tells its type: uint8 is a row of Q8_0 blocks (an f16 scale, then 32
int8 quants), float16 is F16, float32 is F32. The Q8_0 blocks are, byte for byte, those of ggml's reference quantiser.
"""

import numpy as np

BLOCK = 32


def quantise_q8_0(weights: np.ndarray) -> np.ndarray:
    blocks = weights.astype(np.float32).reshape(-1, BLOCK)
    scale = np.abs(blocks).max(1, keepdims=True) / np.float32(127)
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale != 0)
    scaled = blocks * inverse
    quants = np.trunc(scaled + np.copysign(np.float32(0.5), scaled)).astype(np.int8)
    packed = np.concatenate([scale.astype("<f2").view(np.uint8), quants.view(np.uint8)], 1)
    return packed.reshape(weights.shape[0], -1)


def dequantise_q8_0(packed: np.ndarray) -> np.ndarray:
    blocks = packed.reshape(-1, BLOCK + 2)
    scale = np.ascontiguousarray(blocks[:, :2]).view("<f2").astype(np.float32)
    quants = np.ascontiguousarray(blocks[:, 2:]).view(np.int8).astype(np.float32)
    return (scale * quants).reshape(packed.shape[0], -1)


def store(weights: np.ndarray, matrices: str) -> np.ndarray:
    """One tensor as the GGUF stores it; `matrices` is the type of its matrices, Q8_0 or F16."""
    if weights.ndim == 1:
        return weights.astype(np.float32)
    return quantise_q8_0(weights) if matrices == "Q8_0" else weights.astype(np.float16)


def restore(stored: np.ndarray) -> np.ndarray:
    """The float32 values that a stored tensor stands for."""
    return dequantise_q8_0(stored) if stored.dtype == np.uint8 else stored.astype(np.float32)
