#!/usr/bin/env python3
"""Makes vocabularies of kinds that no shared vector has, and records llama.cpp's ids of some texts, for test_made_vectors.c.

    eval $(python3 bench/llama_cpp/build.py FOLDER | tail -2)
    python3 tests/tokenizer/record_vectors.py        # needs gguf and llama-cpp-python

made/NAME.gguf is the vocabulary, NAME.inp and NAME.out the texts and their ids as llama.cpp's own vectors have them."""

import pathlib
import sys

import gguf

HERE = pathlib.Path(__file__).resolve().parent / "made"
SEPARATOR = "\n__ggml_vocab_test__\n"
TEXTS = [
    "", " ", "  ", "\t", "\n", "\n\n\n", " \n\t ", "a", "Hello world", "  Hello   WORLD!  ", "hello, world... what's this?", "don't won't CAN'T",
    "int main(void) { return x_1 + 0x2F; }", "1234567890 12.5e-3", "naïve café ÀÉÎÕÜ ñandú", "Größe straße ẞ", "ἀρχὴ Ελλάδα", "Привет, мир! Ёлка й",
    "你好世界", "漢字かな交じり文 カタカナ", "한국어 문장", "ไทย ភាសាខ្មែរ हिन्दी தமிழ்", "🦙.cpp 👍🏽 e\u0301 \u0041\u030a", "a\u200bb\u00adc\u2028d", "¿Qué? «Oui» – “ja” €5",
    "[CLS] hello [SEP]", "<s> text </s>", "unaffable untouchable", "the theme of theology", "ab" * 40, "İstanbul ǅ ﬁ Å", "tabs\tand\nlines\r\nend", "\u3000全角　空白", "x" * 200,
]  # fmt: skip


RUNS = TEXTS + [f"a{' ' * n}b{' ' * n}\t" for n in (3, 4, 5, 7, 9, 15, 33, 67, 140, 300, 520, 1100)] + ["\n  \n      x", "end" + " " * 21]


def rwkv(writer):
    """Bytes, and pieces of the texts of up to five characters, as Python prints them."""
    tokens = [b"<s>"] + [bytes([i]) for i in range(256)]
    for text in TEXTS[7:30]:
        data = text.encode()
        tokens += [data[i : i + n] for n in (2, 3, 5, 9) for i in range(0, len(data) - n, n + 1)]
    tokens += [b"'\"\\", b"\n\n", b"  ", b"the", b" the", b" theme"]
    tokens = list(dict.fromkeys(tokens))
    writer.add_tokenizer_model("rwkv")
    writer.add_token_list([t if i == 0 else repr(t)[2:-1].encode() for i, t in enumerate(tokens)])
    writer.add_token_types([gguf.TokenType.CONTROL] + [gguf.TokenType.NORMAL] * (len(tokens) - 1))


def bert(writer):
    """Letters and pieces of some words; a mark where a word begins."""
    mark = "\u2581"
    words = "hello world don t wo can what s this int main void return un aff able touch the me of ology theme caf naive and lines end grosse strasse".split()
    tokens = [f"[unused{i}]" for i in range(100)] + ["[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokens += [mark + c for c in "abcdefghijklmnoprstuvwyz0123456789.,!?'-(){}[]_+;<>/$你好世界漢字привет"] + list("abcdefghijklmnopqrstuvwyz0123456789") + list("приветмркйαρχηλδ")
    tokens += [mark + w for w in words] + words + [mark + "αρχ", mark + "«", mark + "–", mark + "\u1112", "\u1161"]
    tokens = list(dict.fromkeys(tokens))
    writer.add_tokenizer_model("bert")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL if 100 <= i < 104 else gguf.TokenType.NORMAL for i in range(len(tokens))])
    writer.add_unk_token_id(100)
    writer.add_sep_token_id(102)


def bpe(pre, texts=TEXTS):
    """Bytes, and the commonest pairs of the texts, which cross words: where a pre-tokeniser cuts shows in the ids."""
    letters = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
    names = {b: chr(b) for b in letters} | {b: chr(256 + i) for i, b in enumerate(b for b in range(256) if b not in letters)}
    rows = [[names[b] for b in text.encode()] for text in texts]
    tokens, merges = [names[b] for b in range(256)], []
    while len(merges) < 300:
        pairs = [pair for row in rows for pair in zip(row, row[1:])]
        a, b = max(sorted(set(pairs)), key=pairs.count)
        merges.append(f"{a} {b}")
        tokens.append(a + b)
        for row in rows:
            at = 0
            while at + 1 < len(row):
                if row[at] == a and row[at + 1] == b:
                    row[at : at + 2] = [a + b]
                at += 1

    def fill(writer):
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        writer.add_token_list(tokens)
        writer.add_token_types([gguf.TokenType.NORMAL] * len(tokens))
        writer.add_token_merges(merges)

    return fill


KINDS = {"rwkv": rwkv, "bert": bert, "qwen35": bpe("qwen35"), "exaone-moe": bpe("exaone-moe"), "jais-2": bpe("jais-2", RUNS)}


def make(name, fill):
    writer = gguf.GGUFWriter(HERE / f"{name}.gguf", "llama")
    for key, value in {"context_length": 64, "embedding_length": 32, "block_count": 1, "feed_forward_length": 32, "attention.head_count": 1}.items():
        writer.add_uint32(f"llama.{key}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    fill(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def record(name):
    import llama_cpp

    model = llama_cpp.Llama(str(HERE / f"{name}.gguf"), vocab_only=True, verbose=False)
    texts = RUNS if name == "jais-2" else TEXTS
    lines = [" ".join(map(str, model.tokenize(text.encode(), add_bos=False, special=False))) for text in texts]
    (HERE / f"{name}.inp").write_text("".join(text + SEPARATOR for text in texts), newline="")
    (HERE / f"{name}.out").write_text("".join(line + "\n" for line in lines))


def main():
    HERE.mkdir(exist_ok=True)
    for name in sys.argv[1:] or KINDS:
        make(name, KINDS[name])
        record(name)


if __name__ == "__main__":
    main()
