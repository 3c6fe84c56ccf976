#!/usr/bin/env python3
"""Train the tokenisers of kjv-llama and kjv-qwen2 and tokenise the text with them.

  kjv-llama   SentencePiece BPE with byte fallback, as Llama 2 has it; a newline is the byte token <0x0A>.
  kjv-qwen2   byte-level BPE behind Qwen2's pre-tokeniser, <|endoftext|> as the last token.

Both have 2048 tokens. Writes into --out: kjv-llama.model, kjv-qwen2.json (the tokenisers), kjv-llama.npz and
kjv-qwen2.npz (the tokenised text, see data.py). Runs on a CPU in seconds; same text, same bytes.
"""

import argparse
import io
from pathlib import Path

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

import data

VOCABULARY = 2048
END_OF_TEXT = "<|endoftext|>"
QWEN2_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def train_llama(chapters: list[list[str]]) -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(verse for chapter in chapters for verse in chapter),
        model_writer=model,
        model_type="bpe",
        vocab_size=VOCABULARY,
        byte_fallback=True,
        character_coverage=1.0,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        split_digits=True,
        unk_id=0,
        bos_id=1,
        eos_id=2,
        pad_id=-1,
        max_sentence_length=16384,
        num_threads=1,
        minloglevel=1,
    )
    return model.getvalue()


def train_qwen2(chapters: list[list[str]]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN2_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - 1,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(("\n".join(chapter) for chapter in chapters), trainer)
    tokenizer.add_special_tokens([AddedToken(END_OF_TEXT, special=True)])
    return tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=Path, required=True, help="text file of prepare_text.py")
    parser.add_argument("--out", type=Path, required=True, help="folder to write into")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    chapters = data.read_chapters(args.text)
    parts = {
        "train": [chapter for number, chapter in enumerate(chapters) if not data.is_held_out(number)],
        "valid": [chapter for number, chapter in enumerate(chapters) if data.is_held_out(number)],
    }

    model = train_llama(parts["train"])
    (args.out / "kjv-llama.model").write_bytes(model)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    newlines = {processor.piece_to_id("<0x0A>")}
    llama = {
        name: data.build_split(part, processor.encode, newlines, [processor.bos_id()], [processor.eos_id()])
        for name, part in parts.items()
    }
    data.save(args.out / "kjv-llama.npz", llama)

    tokenizer = train_qwen2(parts["train"])
    tokenizer.save(str(args.out / "kjv-qwen2.json"))
    newlines = {token for token in range(VOCABULARY - 1) if "\n" in tokenizer.decode([token])}
    end = tokenizer.token_to_id(END_OF_TEXT)
    qwen2 = {
        name: data.build_split(part, lambda text: tokenizer.encode(text).ids, newlines, [], [end])
        for name, part in parts.items()
    }
    data.save(args.out / "kjv-qwen2.npz", qwen2)

    print(f"kjv-llama: {processor.vocab_size()} tokens in the vocabulary, {len(llama['train'].stream)} train, "
          f"{len(llama['valid'].stream)} held out")
    print(f"kjv-qwen2: {tokenizer.get_vocab_size()} tokens in the vocabulary, {len(qwen2['train'].stream)} train, "
          f"{len(qwen2['valid'].stream)} held out")


if __name__ == "__main__":
    main()
