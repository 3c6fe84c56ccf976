#!/usr/bin/env python3
"""Writes base_letters.def: what is left of a character when it is decomposed (Unicode's NFD) and marks without width (Mn) are taken away.

    python3 model/tokenizer/base_letters.py > model/tokenizer/base_letters.def

Hangul, which decomposes by arithmetic, is not in it. The pairs of a character that leaves several follow each other."""

import unicodedata

HANGUL = range(0xAC00, 0xD7A4)
ROW = 5


def main():
    pairs = []
    for code in range(0x110000):
        whole = unicodedata.normalize("NFD", chr(code))
        if code not in HANGUL and whole != chr(code):
            pairs += [f"{{0x{code:X}, 0x{ord(c):X}}}" for c in whole if unicodedata.category(c) != "Mn"]
    print(f"/* Made by base_letters.py: Unicode {unicodedata.unidata_version}, {len(pairs)} pairs. */")
    for i in range(0, len(pairs), ROW):
        print(", ".join(pairs[i : i + ROW]) + ",")


if __name__ == "__main__":
    main()
