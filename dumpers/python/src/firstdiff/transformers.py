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
`firstdiff compare` knows these names by the root attribute `names` = "transformers"."""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers

from firstdiff.options import run_parser, token_ids
from firstdiff.trace.arrays import TraceError
from firstdiff.trace.schema import MAX_NAME
from firstdiff.trace.writer import Writer

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class _Hooks:
    """What runs before and after each module's forward. Never raises into the model and never touches its tensors."""

    def __init__(self, trace: Writer) -> None:
        self._trace = trace
        self._given: dict[
            int, tuple[weakref.ref[Any], int]
        ] = {}  # tensors recorded in this call, by id, and their version
        self.attention = ""  # path of the attention module that runs

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A forward call of the whole model begins."""
        self._given.clear()
        ids = kwargs.get("input_ids", args[0] if args else None)
        if ids is None or ids.ndim != 2 or ids.shape[0] != 1:
            shape = "none" if ids is None else list(ids.shape)
            self._fail(f"input_ids of shape {shape}, expected [1, n_tok]: one sequence, given as tokens")
            return
        self._trace.step(ids[0].tolist())

    def before(self, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Records the inputs that no module gave out."""
        tensors = [value for value in (*args, kwargs.get("hidden_states")) if isinstance(value, torch.Tensor)]
        for i, tensor in enumerate(tensors):
            if tensor.is_floating_point() and not self._was_given(tensor):
                self._put(f"{path}:in{i or ''}", tensor)

    def after(self, path: str, output: Any) -> None:
        """Records a module's outputs."""
        values = output if isinstance(output, (tuple, list)) else [output]
        for i, tensor in enumerate(values):
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point() and not self._was_given(tensor):
                self._put(f"{path}:out{i}" if i else path, tensor)

    def rotated(self, result: Any) -> None:
        """Records q and k after RoPE: [1, n_head, n_tok, head_dim]."""
        for name, tensor in zip(("q_rope", "k_rope"), result, strict=False):
            self._put(f"{self.attention}.{name}", tensor.transpose(1, 2))

    def softened(self, scores: Any) -> None:
        """Records what eager attention gives to its softmax: [1, n_head, n_tok, n_kv], scaled and masked."""
        if self.attention and scores.ndim == 4:
            self._put(f"{self.attention}.scores", scores)

    def cached(self, result: Any) -> None:
        """Records the rows of K and V that stand in the cache for this call's tokens: [1, n_head_kv, n_kv, head_dim]."""
        n_tok = len(self._trace.step_positions)
        for name, tensor in zip(("cache_k", "cache_v"), result, strict=False):
            if self.attention and tensor.ndim == 4 and tensor.shape[2] >= n_tok:
                self._put(f"{self.attention}.{name}", tensor[:, :, -n_tok:].transpose(1, 2))

    def _was_given(self, tensor: Any) -> bool:
        """Is it, unchanged, a tensor that is in the trace already? Inference tensors do not count their changes."""
        if tensor.is_inference():
            return False
        version: int = tensor._version
        known = self._given.get(id(tensor))
        return known is not None and known[0]() is tensor and known[1] == version

    def _put(self, name: str, tensor: Any) -> None:
        if not tensor.is_inference():
            self._given[id(tensor)] = (weakref.ref(tensor), tensor._version)
        positions = self._trace.step_positions
        n_tok = len(positions)
        weights = name.endswith(("attn:out1", "attn.scores")) and tensor.ndim == 4
        if weights:  # [1, n_head, n_tok, n_kv]
            tensor = tensor.transpose(1, 2)
        if tensor.ndim < 2 or tensor.shape[0] != 1 or len(name.encode()) > MAX_NAME:
            return  # nothing that runs over positions: a scale, a mask
        rows = tensor.shape[1]
        if rows != n_tok and not (name.startswith("lm_head") and rows < n_tok):
            return
        pos0 = None if rows == n_tok else positions[-rows]  # logits of the last tokens alone
        self._trace.put(name, tensor[0], pos0, over_kv=weights)

    def _fail(self, message: str) -> None:
        if message not in self._trace.errors:  # a strict Writer has kept its own
            self._trace.errors.append(f"{self._trace.path}: {message}")


def _module_of_rope(model: Any) -> Any:
    """The Python module whose apply_rotary_pos_emb the model's attention calls; None when it has none."""
    for module in model.modules():
        source = sys.modules.get(type(module).__module__)
        if type(module).__name__.endswith("Attention") and hasattr(source, "apply_rotary_pos_emb"):
            return source
    return None


@contextmanager
def attach(model: Any, trace: Writer) -> Iterator[None]:
    """Hooks every module of `model` for as long as the block runs; each forward call of it is a step of `trace`.

    One sequence at a time (batch 1), without padding. The model computes what it computes without hooks."""
    hooks = _Hooks(trace)
    with ExitStack() as stack:

        def add(handle: Any) -> None:
            stack.callback(handle.remove)

        def begin(_module: Any, args: Any, kwargs: Any) -> None:
            hooks.begin(args, kwargs)

        add(model.register_forward_pre_hook(begin, with_kwargs=True))
        for path, module in model.named_modules():
            if path:
                add(module.register_forward_pre_hook(_before(hooks, path), with_kwargs=True))
                add(module.register_forward_hook(_after(hooks, path)))
        source = _module_of_rope(model)
        if source is not None:
            plain = source.apply_rotary_pos_emb

            def recorded(*args: Any, **kwargs: Any) -> Any:
                result = plain(*args, **kwargs)
                _safely(hooks, lambda: hooks.rotated(result))
                return result

            source.apply_rotary_pos_emb = recorded
            stack.callback(setattr, source, "apply_rotary_pos_emb", plain)
        update = transformers.Cache.update

        def recorded_update(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = update(self, *args, **kwargs)
            _safely(hooks, lambda: hooks.cached(result))
            return result

        transformers.Cache.update = recorded_update
        stack.callback(setattr, transformers.Cache, "update", update)
        softmax = torch.nn.functional.softmax

        def recorded_softmax(scores: Any, *args: Any, **kwargs: Any) -> Any:
            _safely(hooks, lambda: hooks.softened(scores))
            return softmax(scores, *args, **kwargs)

        torch.nn.functional.softmax = recorded_softmax
        stack.callback(setattr, torch.nn.functional, "softmax", softmax)
        yield


def _safely(hooks: _Hooks, do: Any) -> None:
    try:
        do()
    except Exception as error:
        hooks._fail(str(error))


def _before(hooks: _Hooks, path: str) -> Any:
    def hook(_module: Any, args: Any, kwargs: Any) -> None:
        if path.endswith("attn"):
            hooks.attention = path
        _safely(hooks, lambda: hooks.before(path, args, kwargs))

    return hook


def _after(hooks: _Hooks, path: str) -> Any:
    def hook(_module: Any, _args: Any, output: Any) -> None:
        if path == hooks.attention:
            hooks.attention = ""
        _safely(hooks, lambda: hooks.after(path, output))

    return hook


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
            "absent": "" if attention == "eager" else "blk.*.attn_weights",
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
