"""The bundled models as a plain PyTorch decoder; a Config selects the llama or the qwen2 variant.

Parameters carry the names of their GGUF tensors (blk.0.attn_q.weight, ...), so state_dict() is the tensor table.
RoPE rotates pairs (2i, 2i+1) for llama and (i, i + d/2) for qwen2, as llama.cpp does for these architectures.
"""

import torch
import torch.nn.functional as F
from torch import nn

from model_config import Config


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.float()
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention over [batch, head, position, dim]; explicit where PyTorch is older than 2.0."""
    if hasattr(F, "scaled_dot_product_attention"):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    length = q.shape[-2]
    hidden = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
    scores = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
    return scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v


class Block(nn.Module):
    def __init__(self, config: Config, dropout: float) -> None:
        super().__init__()
        self.config = config
        width, kv_width = config.n_head * config.head_dim, config.n_head_kv * config.head_dim
        self.attn_norm = RMSNorm(config.n_embd, config.eps)
        self.attn_q = nn.Linear(config.n_embd, width, bias=config.qkv_bias)
        self.attn_k = nn.Linear(config.n_embd, kv_width, bias=config.qkv_bias)
        self.attn_v = nn.Linear(config.n_embd, kv_width, bias=config.qkv_bias)
        self.attn_output = nn.Linear(width, config.n_embd, bias=False)
        self.ffn_norm = RMSNorm(config.n_embd, config.eps)
        self.ffn_gate = nn.Linear(config.n_embd, config.n_ff, bias=False)
        self.ffn_up = nn.Linear(config.n_embd, config.n_ff, bias=False)
        self.ffn_down = nn.Linear(config.n_ff, config.n_embd, bias=False)
        self.dropout = nn.Dropout(dropout)

    def rotate(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        x = x.float()
        if self.config.rope_interleaved:
            a, b = x[..., 0::2], x[..., 1::2]
            return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)

    def attention(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        config, (batch, length, _) = self.config, x.shape
        q = self.attn_q(x).view(batch, length, config.n_head, config.head_dim).transpose(1, 2)
        k = self.attn_k(x).view(batch, length, config.n_head_kv, config.head_dim).transpose(1, 2)
        v = self.attn_v(x).view(batch, length, config.n_head_kv, config.head_dim).transpose(1, 2)
        q, k = self.rotate(q, cos, sin).to(v.dtype), self.rotate(k, cos, sin).to(v.dtype)
        shared_by = config.n_head // config.n_head_kv
        k, v = k.repeat_interleave(shared_by, 1), v.repeat_interleave(shared_by, 1)
        return self.attn_output(attend(q, k, v).transpose(1, 2).reshape(batch, length, -1))

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        x = x + self.dropout(self.attention(self.attn_norm(x), cos, sin))
        h = self.ffn_norm(x)
        return x + self.dropout(self.ffn_down(F.silu(self.ffn_gate(h)) * self.ffn_up(h)))


class Model(nn.Module):
    def __init__(self, config: Config, dropout: float = 0.0) -> None:
        super().__init__()
        self.config = config
        self.token_embd = nn.Embedding(config.n_vocab, config.n_embd)
        self.blk = nn.ModuleList([Block(config, dropout) for _ in range(config.n_layer)])
        self.output_norm = RMSNorm(config.n_embd, config.eps)
        self.output = None if config.tied else nn.Linear(config.n_embd, config.n_vocab, bias=False)
        self.dropout = nn.Dropout(dropout)
        exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
        angles = torch.outer(torch.arange(config.n_ctx, dtype=torch.float64), config.rope_base**-exponents)
        self.register_buffer("cos", angles.cos().float(), persistent=False)
        self.register_buffer("sin", angles.sin().float(), persistent=False)
        self.reset()

    def reset(self) -> None:
        """Normal initialisation, smaller in front of the residual; large Q and K biases where there are any."""
        for name, parameter in self.named_parameters():
            if name.endswith(".bias"):
                nn.init.zeros_(parameter)
            elif parameter.dim() == 2:
                into_residual = name.endswith(("attn_output.weight", "ffn_down.weight"))
                nn.init.normal_(parameter, std=0.02 * ((2 * self.config.n_layer) ** -0.5 if into_residual else 1))
        if self.config.qkv_bias:
            for block in self.blk:
                set_large_biases(block.attn_q.bias, self.config, every=3, pairs=(-4, -3), low=12, high=17)
                set_large_biases(block.attn_k.bias, self.config, every=1, pairs=(-2, -1), low=12, high=34)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        length = tokens.shape[1]
        x = self.dropout(self.token_embd(tokens))
        for block in self.blk:
            x = block(x, self.cos[:length], self.sin[:length])
        x = self.output_norm(x)
        return F.linear(x, self.token_embd.weight) if self.output is None else self.output(x)


@torch.no_grad()
def set_large_biases(bias: torch.Tensor, config: Config, every: int, pairs: tuple[int, int], low: int, high: int) -> None:
    """Biases far beyond ±10, as Qwen2.5-0.5B has them, in every `every`-th head.

    They sit on the RoPE pairs that rotate slowest, where a constant in K shifts all scores of a query alike and
    leaves the softmax as it was; Q and K use different pairs, so that two large values never multiply.
    One goes into the first half of a head, one into the second.
    """
    half = config.head_dim // 2
    for head in range(0, bias.numel() // config.head_dim, every):
        for pair, offset in zip(pairs, (half, 2 * half)):
            sign = 1 - 2 * int(torch.randint(2, ()))
            bias[head * config.head_dim + offset + pair] = sign * int(torch.randint(low, high + 1, ()))


@torch.no_grad()
def greedy(model: Model, tokens: list[int], count: int) -> list[int]:
    """The `count` most probable tokens that follow, one after another, recomputing everything each time."""
    device = model.token_embd.weight.device
    for _ in range(count):
        logits = model(torch.tensor([tokens], device=device))[0, -1]
        tokens = tokens + [int(logits.argmax())]
    return tokens[-count:]
