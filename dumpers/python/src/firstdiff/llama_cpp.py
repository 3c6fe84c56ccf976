"""Records every node of llama.cpp's graph, through llama-cpp-python.

    from firstdiff.llama_cpp import record
    record("model.gguf", tokens, "llama.h5", generate=8)

    python3 -m firstdiff.llama_cpp model.gguf --tokens 1,403,407 -o llama.h5

The trace has llama.cpp's own names: the tensor's, a dot, and ggml's op (`Qcur-0.ROPE`); a name that repeats within a
forward call gets `#2`, `#3`. `firstdiff compare` knows them by the root attribute `names` = "llama.cpp".

llama.cpp is asked to stop after each node that computes something, and the node is copied at that moment
(ggml_backend_tensor_get), from the CPU and from a GPU, so no buffer is read after it was used again. Views, which
compute nothing, are left out. On a GPU this also keeps llama.cpp from fusing nodes, and fused kernels round elsewhere: so
fusion is off (GGML_CUDA_DISABLE_FUSION) in the whole process once a model is on the GPU, unless you have set it. So is, beside a
quantised K/V cache, the rotation of its rows by a Hadamard matrix (LLAMA_ATTN_ROT_DISABLE), which no replay repeats: its rows are
other rows than the blocks that kv_type says.
`verify=True` runs again without recording and compares the logits bit by bit."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt

from firstdiff.llama_cpp_recorder import Recorder as Recorder
from firstdiff.options import run_parser, token_ids
from firstdiff.trace.arrays import Array, TraceError
from firstdiff.trace.writer import Writer

# Element types of the K/V cache by name; the numbers are ggml_type's (ggml.h).
KV_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "iq4_nl": 20, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "bf16": 30}
QUANTISED_KV = ("q8_0", "q4_0", "iq4_nl", "q4_1", "q5_0", "q5_1")
FLASH_ATTN_OFF, FLASH_ATTN_ON = 0, 1  # enum llama_flash_attn_type
OTHER_KERNELS = re.compile(r"(?:BLAS|ACCELERATE|AMX\w*|KLEIDIAI) = 1")  # of a CPU: in what llama_print_system_info says
WITHOUT_BLOCKS = re.compile(r"\b(?:all F32|F16|BF16)$")  # of what llama_model_desc says


@dataclass(frozen=True)
class Run:
    """What a run returned to its caller."""

    tokens: list[int]  # fed, in order: those given and then those generated
    logits: npt.NDArray[np.float32]  # [n_pos, n_vocab]
    unread: tuple[str, ...] = ()  # nodes that the trace could not hold: Recorder.unread


@dataclass(frozen=True)
class Settings:
    """How llama.cpp runs. Each of these can change the bits of a result."""

    kv_type: str = "f16"  # of K and V: KV_TYPES
    flash_attn: bool = False  # attention in one kernel, which keeps no scores and no weights
    threads: int = 0  # 0: llama.cpp's default
    batch: int = 512  # most tokens of a forward call
    gpu_layers: int = 0  # layers on the GPU, where the build has one; -1: all


@contextmanager
def _context(model: str, settings: Settings, n_ctx: int, recorder: Recorder | None) -> Iterator[tuple[Any, int, str]]:
    """A context that is freed at the end, the vocabulary's size, and the class that is known."""
    if settings.gpu_layers != 0:
        os.environ.setdefault("GGML_CUDA_DISABLE_FUSION", "1")  # read once, at the first graph
    if settings.kv_type in QUANTISED_KV:
        os.environ.setdefault("LLAMA_ATTN_ROT_DISABLE", "1")
    llama_cpp.llama_backend_init()
    model_params = llama_cpp.llama_model_default_params()
    model_params.n_gpu_layers = settings.gpu_layers if settings.gpu_layers >= 0 else 2**31 - 1
    if not os.path.isfile(model):
        raise TraceError(f"{model}: no such file")
    loaded = llama_cpp.llama_model_load_from_file(os.fsencode(model), model_params)
    if not loaded:
        raise TraceError(f"{model}: llama.cpp cannot load it (it says why on stderr)")
    context = None
    try:
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = n_ctx
        params.n_batch = params.n_ubatch = settings.batch
        params.type_k = params.type_v = KV_TYPES[settings.kv_type]
        params.flash_attn_type = FLASH_ATTN_ON if settings.flash_attn else FLASH_ATTN_OFF
        if settings.threads > 0:
            params.n_threads = params.n_threads_batch = settings.threads
        if settings.gpu_layers == 0:
            params.offload_kqv = params.op_offload = False
        if recorder:
            recorder.install(params)
        context = llama_cpp.llama_init_from_model(loaded, params)
        if not context:
            raise TraceError(f"{model}: llama.cpp refuses a context with {settings} (it says why on stderr)")
        n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(loaded))
        yield context, n_vocab, _known_numerics(settings, loaded)
    finally:
        if context:
            llama_cpp.llama_free(context)
        llama_cpp.llama_model_free(loaded)


def _forward(context: Any, tokens: Sequence[int], first: int, n_vocab: int) -> npt.NDArray[np.float32]:
    """One forward call; logits of all its tokens."""
    n = len(tokens)
    batch = llama_cpp.llama_batch_init(n, 0, 1)
    try:
        batch.n_tokens = n
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i] = token, first + i
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
            batch.logits[i] = 1  # of every position: otherwise llama.cpp drops the other rows of the last layer
        status = llama_cpp.llama_decode(context, batch)
        if status != 0:
            raise TraceError(f"llama_decode of positions {first} to {first + n - 1} returned {status}")
        pointer = llama_cpp.llama_get_logits(context)
        return np.ctypeslib.as_array(pointer, shape=(n, n_vocab)).astype(np.float32)
    finally:
        llama_cpp.llama_batch_free(batch)


def _known_numerics(settings: Settings, model: Any) -> str:
    """The class that the settings tell: what the kernels for x86 do, and the cache's type. "": firstdiff infers it, of a GPU, of
    models without attention, beside caches in blocks, and where other kernels take the products. And beside weights in blocks: through
    several layers such a class has room for bugs of a layer, which one that is inferred has to repeat rows to excuse."""
    if settings.gpu_layers != 0 or llama_cpp.llama_model_is_recurrent(model):
        return ""
    if platform.machine() not in ("x86_64", "AMD64") or OTHER_KERNELS.search(_system_info()):
        return ""
    if settings.flash_attn:  # short batches sum V in binary16, long ones in binary32
        return "ggml-cpu-fa" if settings.kv_type == "f16" else ""
    if not WITHOUT_BLOCKS.search(_description(model)):
        return ""
    return {"f16": "ggml-cpu", "f32": "ggml-cpu-f32kv"}.get(settings.kv_type, "")


def _description(model: Any) -> str:
    """The architecture, the size, and the type of most matrices as the file says or as llama.cpp counts: "qwen2 ?B F16"."""
    text = ctypes.create_string_buffer(256)
    llama_cpp.llama_model_desc(model, text, len(text))
    return text.value.decode(errors="replace")


def _system_info() -> str:
    return str(llama_cpp.llama_print_system_info().decode())


def _run(
    model: str,
    tokens: Sequence[int],
    prefill: int,
    generate: int,
    settings: Settings,
    recorder: Recorder | None,
    trace: Writer | None,
    numerics: str,
) -> Run:
    fed: list[int] = []
    rows: list[Array] = []
    n_ctx = len(tokens) + generate
    with _context(model, settings, n_ctx, recorder) as (context, n_vocab, known):
        if trace and not numerics:
            trace.set_numerics(known)
        bad = [t for t in tokens if not 0 <= t < n_vocab]
        if bad:
            raise TraceError(f"{model}: token {bad[0]}, expected 0 to {n_vocab - 1}: of another model?")
        calls = [list(tokens[i : min(i + settings.batch, prefill)]) for i in range(0, prefill, settings.batch)]
        calls += [[t] for t in tokens[prefill:]] + [[]] * generate
        for call in calls:
            call = call or [int(np.argmax(rows[-1][-1]))]
            if trace:
                trace.step(call)
            rows.append(_forward(context, call, len(fed), n_vocab))
            fed += call
    return Run(fed, np.concatenate(rows), tuple(sorted(recorder.unread)) if recorder else ())


def record(
    model: str | os.PathLike[str],
    tokens: Sequence[int],
    path: str | os.PathLike[str],
    *,
    prefill: int | None = None,
    generate: int = 0,
    settings: Settings | None = None,
    patterns: Sequence[str] = ("*",),
    numerics: str = "",
    weights: bool = True,
    verify: bool = False,
    strict: bool = True,
) -> Run:
    """Runs `tokens` through llama.cpp and writes the trace to `path`.

    prefill    so many tokens in batches of settings.batch, the rest one by one (decode); None: all
    generate   then so many tokens of llama.cpp's own choice, the likeliest each time
    patterns   which nodes to record
    numerics   where this build rounds, when you know (docs/verdicts.md); "": on a CPU that follows from the settings (ggml-cpu,
               ggml-cpu-f32kv, ggml-cpu-fa) beside weights in F32, F16 and BF16, else firstdiff infers it from the numbers
    weights    keep a hash of every weight's rows, as llama.cpp holds them: weights are compared before any op. Types other than
               F32, F16 and BF16 take the package gguf; what lies on a GPU or is packed again is left out
    verify     run again without recording; other logits in any bit are an error
    strict     raise what goes wrong while recording; else as Writer does

    Raises TraceError."""
    settings = settings or Settings()
    tokens = [int(t) for t in tokens]
    prefill = len(tokens) if prefill is None else prefill
    if settings.kv_type not in KV_TYPES:
        raise TraceError(f'K/V type "{settings.kv_type}", expected {", ".join(KV_TYPES)}')
    if not tokens or not 1 <= prefill <= len(tokens) or settings.batch < 1 or generate < 0:
        raise TraceError(
            f"{len(tokens)} tokens, {prefill} to prefill in batches of {settings.batch}, {generate} to generate: "
            "expected at least one token, and 1 to all of them to prefill"
        )
    name = os.fspath(model)
    if not os.path.isfile(name):
        raise TraceError(f"{name}: no such file")
    trace = Writer(
        path,
        model=name,
        engine=f"llama-cpp-python {llama_cpp.__version__}",
        numerics=numerics,
        kv_type=settings.kv_type,
        names="llama.cpp",
        strict=strict,
        attributes={
            "backend": "llama.cpp",
            "fusion": "flash attention" if settings.flash_attn else "none",
            "absent": "blk.*.attn_scores blk.*.attn_weights" if settings.flash_attn else "",
            "build": _system_info().strip(),
        },
    )
    try:
        with trace:
            recorder = Recorder(trace, patterns, weights=weights)
            run = _run(name, tokens, prefill, generate, settings, recorder, trace, numerics)
    finally:
        if strict and trace.errors and sys.exc_info()[0] is None:
            raise TraceError(trace.errors[0])
    if verify:
        plain = _run(name, tokens, prefill, generate, settings, None, None, "")
        if plain.tokens != run.tokens or plain.logits.tobytes() != run.logits.tobytes():
            raise TraceError(
                f"{name}: recording changed the logits: the trace shows another computation than the plain run's"
            )
    return run


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = run_parser(
        "python3 -m firstdiff.llama_cpp",
        "Records llama.cpp as a trace.",
        "MODEL.gguf",
        None,
        "in batches",
        "llama.cpp",
    )
    parser.add_argument("--kv-type", default="f16", choices=list(KV_TYPES))
    parser.add_argument("--flash-attn", action="store_true")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--gpu-layers", type=int, default=0)
    parser.add_argument("--no-weights", action="store_true", help="keep no hashes of the weights' rows")
    parser.add_argument("--verify", action="store_true", help="run again without recording and compare the logits")
    args = parser.parse_args(argv)
    settings = Settings(args.kv_type, args.flash_attn, args.threads, args.batch, args.gpu_layers)
    llama_cpp._logger.set_verbose(False)
    try:
        run = record(
            args.model,
            token_ids(args.tokens),
            args.output,
            prefill=args.prefill,
            generate=args.generate,
            settings=settings,
            weights=not args.no_weights,
            verify=args.verify,
        )
    except (TraceError, ValueError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    print(f"{args.output}: {len(run.tokens)} positions; tokens {','.join(map(str, run.tokens))}")
    if run.unread:
        print(f"not recorded, being quantised, integers or without a row for each position: {', '.join(run.unread)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
