#!/usr/bin/env python3
"""Write kjv-llama.gguf and kjv-qwen2.gguf from train.py's weights and the two tokenisers.

The tensors in --weights are already rounded to what a GGUF stores (storage.py), so this only lays them out: same
input, same bytes. Needs the Python packages gguf and sentencepiece.
"""

import argparse
import json
from pathlib import Path

import gguf
import numpy as np
import sentencepiece

from model_config import CONFIGS, Config

LARGEST_FILE = 8_000_000
DESCRIPTION = "A small {arch} model trained from scratch on the King James Bible, for testing inference engines."
FILE_TYPES = {"Q8_0": gguf.LlamaFileType.MOSTLY_Q8_0, "F16": gguf.LlamaFileType.MOSTLY_F16}
TENSOR_TYPES = {
    np.dtype(np.uint8): gguf.GGMLQuantizationType.Q8_0,
    np.dtype(np.float16): gguf.GGMLQuantizationType.F16,
    np.dtype(np.float32): gguf.GGMLQuantizationType.F32,
}


def add_hyperparameters(writer: gguf.GGUFWriter, config: Config) -> None:
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name(config.name)
    writer.add_description(DESCRIPTION.format(arch=config.arch))
    writer.add_license("mit")
    writer.add_languages(["en"])
    writer.add_file_type(FILE_TYPES[config.matrices])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_block_count(config.n_layer)
    writer.add_context_length(config.n_ctx)
    writer.add_embedding_length(config.n_embd)
    writer.add_feed_forward_length(config.n_ff)
    writer.add_head_count(config.n_head)
    writer.add_head_count_kv(config.n_head_kv)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_base)
    writer.add_vocab_size(config.n_vocab)


def add_llama_tokenizer(writer: gguf.GGUFWriter, path: Path) -> None:
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    ids = range(processor.vocab_size())
    kinds = (
        (processor.is_unknown, gguf.TokenType.UNKNOWN),
        (processor.is_control, gguf.TokenType.CONTROL),
        (processor.is_unused, gguf.TokenType.UNUSED),
        (processor.is_byte, gguf.TokenType.BYTE),
        (lambda token: True, gguf.TokenType.NORMAL),
    )
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([processor.id_to_piece(token) for token in ids])
    writer.add_token_scores([processor.get_score(token) for token in ids])
    writer.add_token_types([next(kind for test, kind in kinds if test(token)) for token in ids])
    writer.add_bos_token_id(processor.bos_id())
    writer.add_eos_token_id(processor.eos_id())
    writer.add_unk_token_id(processor.unk_id())
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(True)


def add_qwen2_tokenizer(writer: gguf.GGUFWriter, path: Path) -> None:
    description = json.loads(path.read_text(encoding="utf-8"))
    special = {token["content"]: token["id"] for token in description["added_tokens"]}
    vocabulary = {**description["model"]["vocab"], **special}
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    end = special["<|endoftext|>"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL if t in special else gguf.TokenType.NORMAL for t in tokens])
    writer.add_token_merges([" ".join(merge) for merge in description["model"]["merges"]])
    writer.add_bos_token_id(end)
    writer.add_eos_token_id(end)
    writer.add_pad_token_id(end)
    writer.add_add_bos_token(False)


def export(config: Config, weights: Path, tokenizers: Path, out: Path) -> None:
    writer = gguf.GGUFWriter(out, config.arch)
    add_hyperparameters(writer, config)
    if config.arch == "llama":
        add_llama_tokenizer(writer, tokenizers / f"{config.name}.model")
    else:
        add_qwen2_tokenizer(writer, tokenizers / f"{config.name}.json")
    with np.load(weights) as tensors:
        for name in tensors.files:
            array = tensors[name]
            writer.add_tensor(name, array, raw_dtype=TENSOR_TYPES[array.dtype])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    size = out.stat().st_size
    if size > LARGEST_FILE:
        raise SystemExit(f"{out}: {size} bytes, more than {LARGEST_FILE}")
    print(f"{out}: {size} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", type=Path, required=True, help="folder with train.py's NAME.npz")
    parser.add_argument("--tokenizers", type=Path, required=True, help="folder of train_tokenizers.py")
    parser.add_argument("--out", type=Path, required=True, help="folder to write into")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for config in CONFIGS.values():
        export(config, args.weights / f"{config.name}.npz", args.tokenizers, args.out / f"{config.name}.gguf")


if __name__ == "__main__":
    main()
