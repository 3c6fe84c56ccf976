"""Records every module of a Hugging Face transformers model.

    from firstdiff.transformers import attach
    with Writer("hf.h5", names="transformers") as trace, attach(model, trace):
        model.generate(ids)                    # or model(ids): each forward call is a step

    from firstdiff.transformers import record
    record("model.gguf", tokens, "hf.h5", dtype="bfloat16")

    python3 -m firstdiff.transformers model.gguf --tokens 1,403,407 --dtype bfloat16 -o hf.h5

Names are the modules' paths: `model.layers.0.mlp` is that module's output, `…:out1` the second of its outputs (of
`self_attn`, with eager attention: the weights), `…:in` its input where no module gave that tensor out (the input of
`o_proj` is the attention's own result). What apply_rotary_pos_emb returns becomes `…self_attn.q_rope` and `…k_rope`, what the K/V cache
holds for the call's tokens `…self_attn.cache_k` and `…cache_v`, what eager attention gives to its softmax `…self_attn.scores`.
What the model returns is `logits`; where its head gave something else (before a softcap, a factor), that is `lm_head:product`.
Sinks are part of what eager attention's softmax reads, so no scores are recorded where attention has them.
`firstdiff compare` knows these names by the root attribute `names` = "transformers"."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers

from firstdiff.options import run_parser, token_ids
from firstdiff.trace.arrays import TraceError
from firstdiff.trace.writer import Writer
from firstdiff.transformers_hooks import attach as attach

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

# By config.model_type: are the rows of Q and K in another order than in the GGUF, whose RoPE turns neighbours? Other models are not
# listed: their converters change more than names.
ROWS_IN_HALVES = {"llama": True, "mistral": True, "qwen2": False, "qwen3": False}
PARTS = {  # of model.layers.N
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
ENDS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def record_weights(model: Any, trace: Writer) -> int:
    """Hashes of the rows of the model's weights, under the GGUF's names and in its order; how many. Only of architectures in
    ROWS_IN_HALVES, and of weights held in float32: those that were rounded when they were loaded differ from the file."""
    config = model.config
    if config.model_type not in ROWS_IN_HALVES:
        return 0
    n = 0
    for path, value in model.state_dict().items():
        part, kind = path.rsplit(".", 1)
        layer = part.split(".")[2] if part.startswith("model.layers.") else ""
        name = f"blk.{layer}.{PARTS.get(part.split('.', 3)[3])}" if layer else ENDS.get(part, "None")
        tied = part == "lm_head" and getattr(config, "tie_word_embeddings", False)
        if name.endswith("None") or tied or value.dtype != torch.float32:
            continue
        rows = value.detach().cpu()
        if name.endswith(("attn_q", "attn_k")) and ROWS_IN_HALVES[config.model_type]:
            head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
            rows = rows.reshape(-1, 2, head_dim // 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)
        n += trace.weight(f"{name}.{kind}", rows)
    return n


def load(model: str | os.PathLike[str], dtype: str = "float32", attention: str = "eager") -> Any:
    """A causal language model from a GGUF, or from a folder with config.json and safetensors. Nothing is downloaded.

    attention: "eager" keeps the attention weights, "sdpa" does not."""
    path = os.fspath(model)
    if dtype not in DTYPES:
        raise TraceError(f'dtype "{dtype}", expected {", ".join(DTYPES)}')
    if not os.path.exists(path):
        raise TraceError(f"{path}: no such file or folder")
    how: dict[str, Any] = {"dtype": DTYPES[dtype], "attn_implementation": attention, "local_files_only": True}
    if os.path.isfile(path):
        folder, how["gguf_file"] = os.path.split(path)
        path = folder or "."
    loaded = transformers.AutoModelForCausalLM.from_pretrained(path, **how)
    return loaded.eval()


def record(
    model: str | os.PathLike[str],
    tokens: Sequence[int],
    path: str | os.PathLike[str],
    *,
    prefill: int | None = None,
    generate: int = 0,
    dtype: str = "float32",
    attention: str = "eager",
    device: str = "cpu",
    gguf: str | os.PathLike[str] | None = None,
    numerics: str = "",
    weights: bool = True,
    strict: bool = True,
) -> tuple[list[int], npt.NDArray[np.float32]]:
    """Runs `tokens` through a model from a GGUF or a folder of safetensors and writes the trace to `path`.

    prefill    so many tokens in one forward call, the rest one by one (decode); None: all
    generate   then so many tokens of the model's own choice, the likeliest each time
    gguf       the GGUF that the trace will be compared with, when `model` is a folder made from the same weights
    numerics   where it rounds; "": firstdiff infers it
    weights    keep hashes of the weights' rows (record_weights): weights are compared before any op

    Returns the tokens that were fed and the logits [n_pos, n_vocab]. Raises TraceError."""
    tokens = [int(t) for t in tokens]
    prefill = len(tokens) if prefill is None else prefill
    if not tokens or not 1 <= prefill <= len(tokens) or generate < 0:
        raise TraceError(
            f"{len(tokens)} tokens, {prefill} to prefill, {generate} to generate: "
            "expected at least one token, and 1 to all of them to prefill"
        )
    loaded = load(model, dtype, attention).to(device)
    n_vocab = loaded.get_input_embeddings().weight.shape[0]
    bad = [t for t in tokens if not 0 <= t < n_vocab]
    if bad:
        raise TraceError(f"{os.fspath(model)}: token {bad[0]}, expected 0 to {n_vocab - 1}: of another model?")
    source = model if gguf is None and os.path.isfile(model) else gguf
    trace = Writer(
        path,
        model=source,
        engine=f"transformers {transformers.__version__}",
        numerics=numerics,
        kv_type=dtype,
        device=device,
        names="transformers",
        strict=strict,
        attributes={
            "backend": f"torch {torch.__version__}",
            "fusion": "none" if attention == "eager" else attention,
        },
    )
    fed: list[int] = []
    rows: list[npt.NDArray[np.float32]] = []
    try:
        with trace, attach(loaded, trace), torch.no_grad():
            if weights:
                record_weights(loaded, trace)
            cache = None
            for call in [tokens[:prefill], *([t] for t in tokens[prefill:]), *([[]] * generate)]:
                call = call or [int(np.argmax(rows[-1][-1]))]
                output = loaded(input_ids=torch.tensor([call], device=device), past_key_values=cache, use_cache=True)
                cache = output.past_key_values
                rows.append(output.logits[0].float().cpu().numpy())
                fed += call
    finally:
        if strict and trace.errors and sys.exc_info()[0] is None:
            raise TraceError(trace.errors[0])
    return fed, np.concatenate(rows)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = run_parser(
        "python3 -m firstdiff.transformers",
        "Records a transformers model as a trace.",
        "MODEL",
        "a GGUF, or a folder with config.json and safetensors",
        "in one call",
        "the model",
    )
    parser.add_argument("--dtype", default="float32", choices=list(DTYPES))
    parser.add_argument("--attention", default="eager", choices=["eager", "sdpa"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--gguf", metavar="MODEL.gguf", help="the GGUF of the same weights, when MODEL is a folder")
    args = parser.parse_args(argv)
    try:
        fed, _ = record(
            args.model,
            token_ids(args.tokens),
            args.output,
            prefill=args.prefill,
            generate=args.generate,
            dtype=args.dtype,
            attention=args.attention,
            device=args.device,
            gguf=args.gguf,
        )
    except (TraceError, ValueError, OSError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    print(f"{args.output}: {len(fed)} positions; tokens {','.join(map(str, fed))}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
