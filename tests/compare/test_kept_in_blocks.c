/* Blocks of a cache that are put together wrongly, as explanations have them. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "compare/hypothesis/internal.h"
#include "model/gguf/quant.h"

enum { ROWS = 3, WIDTH = 96 };

/* In blocks of that type, the scales of a row's blocks as 1 to 2 to 4. */
static void fill(uint32_t type, float rows[ROWS * WIDTH]) {
    for (int i = 0; i < ROWS * WIDTH; i++)
        rows[i] = sinf((float)(i * i) / 7) * (float)(1 << i % WIDTH / 32) * (i % 32 == 5 ? 3 : 1);
    for (int r = 0; r < ROWS; r++) fd_round_through(type, rows + r * WIDTH, WIDTH);
}

Test(kept_in_blocks, each_rule_changes_what_it_says) {
    static const struct {
        int rule;
        uint32_t type;
        int at, of; /* element `at` of a row becomes element `of`'s quants … */
        int scale;  /* … with the scale of this block; -1: zero */
    } cases[] = {
        {FD_BLOCKS_SCALE_BEFORE, FD_Q8_0, 40, 40, 0}, {FD_BLOCKS_SCALE_BEFORE, FD_Q8_0, 70, 70, 1},
        {FD_BLOCKS_SCALE_BEFORE, FD_Q8_0, 7, 7, 0},   {FD_BLOCKS_SCALE_NEXT, FD_Q8_0, 7, 7, 1},
        {FD_BLOCKS_SCALE_NEXT, FD_Q8_0, 70, 70, 2},   {FD_BLOCKS_SCALE_FIRST, FD_Q4_0, 70, 70, 0},
        {FD_BLOCKS_NIBBLES, FD_Q4_0, 3, 19, 0},       {FD_BLOCKS_NIBBLES, FD_Q8_0, 3, 3, 0},
        {FD_BLOCKS_HALVES, FD_Q8_0, 35, 51, 1},       {FD_BLOCKS_LAST_MISSING, FD_Q8_0, 70, 70, -1},
        {FD_BLOCKS_LAST_MISSING, FD_Q4_0, 40, 40, 1}, {FD_BLOCKS_SCALE_FIRST, FD_F32, 70, 70, 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float is[ROWS * WIDTH], to[ROWS * WIDTH];
        const uint32_t type = cases[i].type;
        fill(type == FD_F32 ? FD_Q8_0 : type, is);
        memcpy(to, is, sizeof to);
        fd_cache_blocks(cases[i].rule, type, to, ROWS, WIDTH);
        for (int r = 0; r < ROWS; r++) {
            const float *row = is + r * WIDTH;
            float scale[3] = {0}; /* a block's largest value is 127 or 8 steps */
            for (int k = 0; k < WIDTH; k++) scale[k / 32] = fmaxf(scale[k / 32], fabsf(row[k]));
            const float by = cases[i].scale < 0 ? 0 : scale[cases[i].scale] / scale[cases[i].of / 32];
            const float expected = row[cases[i].of] * by, found = to[r * WIDTH + cases[i].at];
            if (type == FD_Q4_0 && cases[i].scale >= 0 && cases[i].scale != cases[i].of / 32) {
                cr_expect(fabsf(fabsf(found) - fabsf(expected)) <= 1e-3f, "%zu: %g, not ±%g", i, (double)found,
                          (double)expected); /* Q4_0's scale has a sign */
                continue;
            }
            cr_expect(fabsf(found - expected) <= 2e-3f * fabsf(expected) + 1e-6f, "%zu, row %d: %g, not %g", i, r,
                      (double)found, (double)expected);
        }
    }
}
