#include <criterion/criterion.h>
#include <math.h>

#include "model/gguf/quant.h"
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

/* A row of the cache is what the type gives back; one that is not finite stays. */
Test(kv_write, rows_are_rounded_to_the_type_of_the_cache) {
    static const uint32_t types[] = {FD_Q8_0, FD_Q4_0, FD_Q4_1, FD_Q5_0, FD_Q5_1};
    enum { WIDTH = 320, ROWS = 3 };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        op_case *c = case_kv_write(WIDTH, 0, ROWS, ROWS, 0);
        c->in[0][2 * WIDTH + 5] = INFINITY;
        c->nodes[2].kv_type = types[i];
        const float *cache = case_run_scalar(c);
        char blocks[4 * WIDTH];
        float expected[WIDTH];
        for (int row = 0; row < 2; row++) {
            fd_quantize_row(types[i], c->in[0] + row * WIDTH, blocks, WIDTH);
            fd_dequantize_row(types[i], blocks, expected, WIDTH);
            cr_expect_eq(bits_differ(cache + row * WIDTH, expected, WIDTH), 0, "type %u", types[i]);
            cr_expect_gt(bits_differ(cache + row * WIDTH, c->in[0] + row * WIDTH, WIDTH), WIDTH / 2, "type %u",
                         types[i]);
        }
        cr_expect_eq(bits_differ(cache + 2 * WIDTH, c->in[0] + 2 * WIDTH, WIDTH), 0, "type %u", types[i]);
        const double *wide = case_run_f64(c);
        for (int k = 0; k < WIDTH; k++) cr_expect_eq(wide[k], (double)cache[k], "type %u", types[i]);
    }
}

/* Element by element: what is beyond the type's range becomes an infinity, and its neighbours are rounded. */
Test(kv_write, rows_of_16_bits_are_rounded_beside_what_is_not_finite) {
    static const uint32_t types[] = {FD_F16, FD_BF16};
    enum { WIDTH = 320 };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        op_case *c = case_kv_write(WIDTH, 0, 1, 1, 0);
        c->in[0][5] = INFINITY, c->in[0][6] = NAN, c->in[0][7] = -65520.0f;
        c->nodes[2].kv_type = types[i];
        const float *cache = case_run_scalar(c);
        uint16_t halves[WIDTH];
        float expected[WIDTH];
        fd_quantize_row(types[i], c->in[0], halves, WIDTH);
        fd_dequantize_row(types[i], halves, expected, WIDTH);
        cr_expect_eq(bits_differ(cache, expected, WIDTH), 0, "type %u", types[i]);
        cr_expect_gt(bits_differ(cache, c->in[0], WIDTH), WIDTH / 2, "type %u", types[i]);
        cr_expect_eq(cache[5], INFINITY);
        cr_expect(isnan(cache[6]));
        cr_expect_eq(isinf(cache[7]), types[i] == FD_F16 ? -1 : 0);
    }
}

Test(kv_write, a_shifted_row_is_noticed) {
    op_case *c = case_kv_write(24, 2, 3, 9, 1);
    float *cache = case_run_scalar(c);
    c->nodes[2].row_offset = 0;
    cr_expect_eq(wrong_rows(c, cache), 4);
}
