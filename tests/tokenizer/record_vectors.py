#!/usr/bin/env python3
"""Makes vocabularies of kinds that no shared vector has, and records llama.cpp's ids of some texts, for test_made_vectors.c.

    eval $(python3 bench/llama_cpp/build.py FOLDER | tail -2)
    python3 tests/tokenizer/record_vectors.py        # needs gguf and llama-cpp-python

made/NAME.gguf is the vocabulary, NAME.inp and NAME.out the texts and their ids as llama.cpp's own vectors have them."""

import collections
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


NUMBERS = TEXTS + [f"a{'7' * n} {'8' * n}.5{chr(10) * n}-{'9' * n}x" for n in range(1, 10)] + [
    "1" * 50, "  12   3456", "\t\t123 \t4567", "\n 1\n  23", "١٢٣٤٥ ๑๒๓๔ ไทย๑๒ ２０２４年", "½1234 12½345 Ⅷ", "1,234,567.89", "v1.2.3-rc4567", "ລາວ မြန်မာ ꧠ 가나다 ｱｲｳ ⼀", "\n" * 40 + "x", "line\n\n\n  two \n",
    "▁ <0x0A> ▁▁", "<|turn>user\nhi<turn|>", "a <|\"|> b </s>c",
]  # fmt: skip


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


def commonest_pairs(rows, n):
    """Joins the commonest pair of symbols, n times; what was joined."""
    joined = []
    while len(joined) < n:
        pairs = collections.Counter(pair for row in rows for pair in zip(row, row[1:]))
        a, b = max(sorted(pairs), key=pairs.get)
        joined.append((a, b))
        for row in rows:
            at = 0
            while at + 1 < len(row):
                if row[at] == a and row[at + 1] == b:
                    row[at : at + 2] = [a + b]
                at += 1
    return joined


def gemma4(writer):
    """Characters that are common, all bytes, the commonest pairs of the texts, spaces and newlines too; runs of newlines, one without merges."""
    marked = [text.replace(" ", "▁") for text in NUMBERS]
    counts = collections.Counter("".join(marked))
    letters = sorted(c for c in counts if counts[c] > 2)
    special = ["<unk>", "<bos>", "<eos>", "<|turn>", "<turn|>", "<|tool_response>"]
    pairs = commonest_pairs([[c for c in text if c in letters] for text in marked], 300)
    tokens = special + [f"<0x{i:02X}>" for i in range(256)] + letters + ['<|"|>', "</s>"] + [a + b for a, b in pairs] + ["\n" * n for n in (5, 6, 7)]
    tokens = list(dict.fromkeys(tokens))
    types = {t: gguf.TokenType.CONTROL for t in special} | {t: gguf.TokenType.BYTE for t in tokens[6:262]} | {t: gguf.TokenType.USER_DEFINED for t in ('<|"|>', "<|tool_response>", "</s>")}
    writer.add_tokenizer_model("gemma4")
    writer.add_token_list(tokens)
    writer.add_token_types([types.get(t, gguf.TokenType.NORMAL) for t in tokens])
    writer.add_token_merges([f"{a} {b}" for a, b in pairs])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)  # is overruled


def bpe(pre, texts=TEXTS):
    """Bytes, and the commonest pairs of the texts, which cross words: where a pre-tokeniser cuts shows in the ids."""
    letters = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
    names = {b: chr(b) for b in letters} | {b: chr(256 + i) for i, b in enumerate(b for b in range(256) if b not in letters)}
    rows = [[names[b] for b in text.encode()] for text in texts]
    pairs = commonest_pairs(rows, 300)
    tokens = [names[b] for b in range(256)] + [a + b for a, b in pairs]

    def fill(writer):
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        writer.add_token_list(tokens)
        writer.add_token_types([gguf.TokenType.NORMAL] * len(tokens))
        writer.add_token_merges([f"{a} {b}" for a, b in pairs])

    return fill, texts


KINDS = {"rwkv": (rwkv, TEXTS), "bert": (bert, TEXTS), "gemma4": (gemma4, NUMBERS)} | {
    pre: bpe(pre, texts) for pre, texts in {"qwen35": TEXTS, "exaone-moe": TEXTS, "jais-2": RUNS, "afmoe": NUMBERS, "mellum2": NUMBERS}.items()
}


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


def record(name, texts):
    import llama_cpp

    model = llama_cpp.Llama(str(HERE / f"{name}.gguf"), vocab_only=True, verbose=False)
    lines = [" ".join(map(str, model.tokenize(text.encode(), add_bos=False, special=False))) for text in texts]
    (HERE / f"{name}.inp").write_text("".join(text + SEPARATOR for text in texts), newline="")
    (HERE / f"{name}.out").write_text("".join(line + "\n" for line in lines))


def main():
    HERE.mkdir(exist_ok=True)
    for name in sys.argv[1:] or KINDS:
        fill, texts = KINDS[name]
        make(name, fill)
        record(name, texts)


if __name__ == "__main__":
    main()
