"""The two bundled models' hyperparameters."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Config:
    name: str
    arch: str
    n_layer: int
    n_head_kv: int
    rope_base: float
    rope_interleaved: bool
    eps: float
    qkv_bias: bool
    tied: bool
    matrices: str  # storage type of the matrices in the GGUF: Q8_0 or F16
    n_vocab: int = 2048
    n_embd: int = 256
    n_ff: int = 768
    n_head: int = 8
    head_dim: int = 32
    n_ctx: int = 512


CONFIGS = {
    config.name: config
    for config in (
        Config("kjv-llama", "llama", n_layer=6, n_head_kv=4, rope_base=1e4, rope_interleaved=True,
               eps=1e-5, qkv_bias=False, tied=False, matrices="Q8_0"),
        Config("kjv-qwen2", "qwen2", n_layer=4, n_head_kv=2, rope_base=1e6, rope_interleaved=False,
               eps=1e-6, qkv_bias=True, tied=True, matrices="F16"),
    )
}
