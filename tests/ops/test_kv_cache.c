#include <criterion/criterion.h>
#include <math.h>

#include "tests/ops/op_case.h"

/* Rows of the cache that do not hold what they should: row p + offset the batch's row, all others what was there
 * before. */
static int64_t wrong_rows(const op_case *c, const float *cache) {
    int32_t width = c->nodes[2].shape[1], count = 0;
    float untouched = NAN;
    for (int32_t row = 0; row < c->args.n_ctx; row++) {
        int32_t from = row - c->nodes[2].row_offset - c->args.pos0;
        bool written = from >= 0 && from < c->args.n_pos, right = true;
        for (int32_t i = 0; i < width; i++)
            right = right &&
                    bits_differ(&cache[row * width + i], written ? &c->in[0][from * width + i] : &untouched, 1) == 0;
        count += !right;
    }
    return count;
}

Test(kv_write, rows_go_to_their_positions_and_nowhere_else) {
    static const struct {
        int32_t pos0, n_pos, n_ctx, row_offset;
    } cases[] = {{0, 1, 1, 0}, {0, 5, 9, 0}, {4, 5, 9, 0},  {8, 1, 9, 0},
                 {3, 3, 9, 1}, {4, 5, 9, 1}, {0, 5, 9, -1}, {8, 1, 9, 7}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        op_case *c = case_kv_write(24, cases[i].pos0, cases[i].n_pos, cases[i].n_ctx, cases[i].row_offset);
        float *cache = case_run_scalar(c);
        cr_expect_eq(wrong_rows(c, cache), 0, "case %zu", i);
    }
}

Test(kv_write, a_shifted_row_is_noticed) {
    op_case *c = case_kv_write(24, 2, 3, 9, 1);
    float *cache = case_run_scalar(c);
    c->nodes[2].row_offset = 0;
    cr_expect_eq(wrong_rows(c, cache), 4);
}
