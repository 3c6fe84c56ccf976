#!/usr/bin/env python3
"""Writes codebooks.c: the code books of the IQ types, as the `gguf` Python package (gguf.quants) holds ggml's.

    python3 model/gguf/codebooks.py > model/gguf/codebooks.c && clang-format -i model/gguf/codebooks.c
"""
import gguf.quants as q

BOOKS = (("iq1", q.IQ1_S), ("iq2_xxs", q.IQ2_XXS), ("iq2_xs", q.IQ2_XS), ("iq2_s", q.IQ2_S), ("iq3_xxs", q.IQ3_XXS),
         ("iq3_s", q.IQ3_S))

print("/* Code books, written by codebooks.py. Source: the `gguf` Python package, whose values are ggml's (ggml-common.h). */")
print('#include "model/gguf/codebooks.h"\n')
for name, kind in BOOKS:
    kind.init_grid()
    levels, rows = list(kind.grid_map), kind.grid[0, 0]
    bits = 2 if len(levels) == 3 else 3
    codes = [sum(levels.index(value) << bits * i for i, value in enumerate(row)) for row in rows]
    print("\nconst uint16_t fd_%s_codes[%d] = {%s};" % (name, len(codes), ", ".join(map(str, codes))))
