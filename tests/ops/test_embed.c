#include <criterion/criterion.h>

#include "tests/ops/op_case.h"

/* Counts elements that are not exactly the table's; the formats' own formulas are tested in tests/model. */
static int64_t wrong(const op_case *c, const float *y) {
    int64_t n = c->weights[0].n_col, count = 0;
    for (int32_t p = 0; p < c->args.n_pos; p++) {
        float *row = case_weight_row(c, 0, c->args.tokens[p]);
        count += bits_differ(y + p * n, row, n);
    }
    return count;
}

Test(embed, every_position_gets_its_tokens_row) {
    static const struct {
        uint32_t dtype;
        int32_t width;
    } cases[] = {{FD_F32, 1},    {FD_F32, 300},   {FD_F16, 257},  {FD_BF16, 100}, {FD_Q8_0, 288},
                 {FD_Q4_0, 544}, {FD_Q5_0, 96},   {FD_Q4_K, 512}, {FD_Q6_K, 768}, {FD_Q5_1, 96},
                 {FD_Q3_K, 512}, {FD_MXFP4, 160}, {FD_IQ2_S, 256}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        op_case *c = case_embed(cases[i].dtype, 13, cases[i].width, 7);
        float *y = case_run_scalar(c);
        double *wide = case_run_f64(c);
        cr_expect_eq(wrong(c, y), 0, "%s, width %d", fd_dtype_get(cases[i].dtype)->name, cases[i].width);
        for (int64_t k = 0; k < c->n_out; k++) cr_assert_eq(wide[k], (double)y[k]);
    }
}

Test(embed, a_wrong_row_is_noticed) {
    op_case *c = case_embed(FD_F32, 13, 64, 3);
    float *y = case_run_scalar(c);
    int32_t *tokens = (int32_t *)(uintptr_t)c->args.tokens;
    tokens[1] = (tokens[1] + 1) % 13;
    cr_expect(wrong(c, y) > 60);
}
