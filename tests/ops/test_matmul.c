#include <criterion/criterion.h>
#include <math.h>

#include "numerics/contract.h"
#include "tests/ops/op_case.h"

/* The largest |y - ŷ| in units of its bound, (h + 1)·u·(Σ|w||x| + |b|): h = ⌈n/64⌉ additions in the longest partial sum
 * and 6 in the tree, 1 for the bias; fma rounds a product and its addition once. */
static double worst(const op_case *c, const float *y) {
    const fd_weight *weight = &c->weights[0];
    bool biased = c->nodes[2].weight[1] >= 0;
    float *bias = biased ? case_weight_row(c, 1, 0) : NULL;
    double largest = 0, h = ceil((double)weight->n_col / 64) + 6;
    for (int64_t o = 0; o < weight->n_row; o++) {
        float *w = case_weight_row(c, 0, o);
        for (int32_t p = 0; p < c->args.n_pos; p++) {
            const float *x = c->in[0] + p * weight->n_col;
            long double sum = biased ? bias[o] : 0, size = fabsl(sum);
            for (int64_t k = 0; k < weight->n_col; k++) {
                sum += (long double)w[k] * x[k];
                size += fabsl((long double)w[k] * x[k]);
            }
            double z = (double)(fabsl(y[p * weight->n_row + o] - sum) / ((h + 1) * 0x1p-24L * size + 1e-40L));
            largest = worse(largest, z);
        }
    }
    return largest;
}

static const struct {
    uint32_t dtype;
    int32_t n_in, n_out, n_pos;
    int bias;
} cases[] = {{FD_F32, 1, 1, 1, -1},        {FD_F32, 63, 5, 3, -1},        {FD_F32, 64, 5, 1, FD_F32},
             {FD_F32, 65, 7, 2, -1},       {FD_F32, 1000, 3, 1, -1},      {FD_F16, 100, 9, 3, FD_F32},
             {FD_F16, 896, 4, 1, FD_F16},  {FD_BF16, 130, 9, 2, FD_BF16}, {FD_Q8_0, 96, 9, 2, FD_F32},
             {FD_Q4_0, 288, 9, 2, FD_F32}, {FD_Q5_0, 160, 9, 2, FD_F32},  {FD_Q4_K, 768, 5, 2, -1},
             {FD_Q6_K, 512, 5, 2, FD_F32}, {FD_F32, 64, 600, 1, FD_F32},  {FD_Q8_0, 64, 320, 1, FD_Q8_0},
             {FD_Q4_1, 96, 9, 2, -1},      {FD_Q5_1, 96, 9, 2, -1},       {FD_Q2_K, 512, 5, 2, -1},
             {FD_Q3_K, 512, 5, 2, -1},     {FD_Q5_K, 512, 5, 2, -1},      {FD_IQ4_NL, 96, 5, 2, -1},
             {FD_IQ4_XS, 512, 5, 2, -1},   {FD_MXFP4, 96, 5, 2, -1},      {FD_NVFP4, 192, 5, 2, -1},
             {FD_IQ1_S, 256, 5, 2, -1},    {FD_IQ1_M, 256, 5, 2, -1},     {FD_IQ2_XXS, 256, 5, 2, -1},
             {FD_IQ2_XS, 256, 5, 2, -1},   {FD_IQ2_S, 256, 5, 2, -1},     {FD_IQ3_XXS, 256, 5, 2, -1},
             {FD_IQ3_S, 256, 5, 2, -1},    {FD_TQ1_0, 256, 5, 2, -1},     {FD_TQ2_0, 256, 5, 2, -1}};
#define N_CASE (sizeof cases / sizeof *cases)

static op_case *make(size_t i) {
    return case_matmul(cases[i].dtype, cases[i].n_in, cases[i].n_out, cases[i].n_pos, cases[i].bias);
}

Test(matmul, is_within_its_bound_of_the_formula) {
    for (size_t i = 0; i < N_CASE; i++) {
        op_case *c = make(i);
        float *y = case_run_scalar(c);
        double z = worst(c, y);
        cr_expect(z <= 1, "%s, n = %d: %g of the bound", fd_dtype_get(cases[i].dtype)->name, cases[i].n_in, z);
    }
}

Test(matmul, is_the_contracts_dot_plus_one_addition) {
    for (size_t i = 0; i < N_CASE; i++) {
        op_case *c = make(i);
        float *y = case_run_scalar(c), *bias = cases[i].bias >= 0 ? case_weight_row(c, 1, 0) : NULL;
        for (int32_t o = 0; o < cases[i].n_out; o++) {
            float *w = case_weight_row(c, 0, o);
            for (int32_t p = 0; p < cases[i].n_pos; p++) {
                float dot = fd_dot(w, c->in[0] + p * cases[i].n_in, cases[i].n_in), found = y[p * cases[i].n_out + o];
                float expected = bias ? dot + bias[o] : dot;
                cr_expect_eq(bits_differ(&found, &expected, 1), 0, "case %zu, output %d", i, o);
            }
        }
    }
}

Test(matmul, f64_is_the_formula) {
    for (size_t i = 0; i < N_CASE; i++) {
        op_case *c = make(i);
        double *y = case_run_f64(c);
        float *bias = cases[i].bias >= 0 ? case_weight_row(c, 1, 0) : NULL;
        for (int32_t o = 0; o < cases[i].n_out; o++) {
            float *w = case_weight_row(c, 0, o);
            for (int32_t p = 0; p < cases[i].n_pos; p++) {
                long double sum = bias ? bias[o] : 0, size = fabsl(sum);
                for (int32_t k = 0; k < cases[i].n_in; k++) {
                    sum += (long double)w[k] * c->in[0][p * cases[i].n_in + k];
                    size += fabsl((long double)w[k] * c->in[0][p * cases[i].n_in + k]);
                }
                cr_assert(fabsl(y[p * cases[i].n_out + o] - sum) <= 1e-14L * size, "case %zu, output %d", i, o);
            }
        }
    }
}

Test(matmul, nan_in_is_nan_out_and_fails_the_bound) {
    op_case *c = case_matmul(FD_F32, 100, 4, 2, -1);
    c->in[0][99] = NAN;
    float *y = case_run_scalar(c);
    for (int o = 0; o < 8; o++) cr_expect_eq((bool)isnan(y[o]), o < 4);
    cr_expect(!(worst(c, y) <= 1));
}

/* The bound is 17 u·S here; each of these is a real bug of faults.md. */
Test(matmul, wrong_products_are_beyond_the_bound) {
    op_case *c = case_matmul(FD_F32, 640, 640, 1, FD_F32);
    const float *w = c->weights[0].data, *x = c->in[0], *bias = c->weights[1].data;
    float *y = case_run_scalar(c);
    cr_assert(worst(c, y) <= 1);
    float right = y[7];
    y[7] = right - bias[7];
    cr_expect(!(worst(c, y) <= 1), "missing bias");
    y[7] = right + bias[7];
    cr_expect(!(worst(c, y) <= 1), "bias twice");
    y[7] = fd_dot(w + 7 * 640, x, 639) + bias[7];
    cr_expect(!(worst(c, y) <= 1), "last element left out");
    y[7] = bias[7];
    for (int k = 0; k < 640; k++) y[7] += w[k * 640 + 7] * x[k];
    cr_expect(!(worst(c, y) <= 1), "transposed");
    y[7] = 0.0f;
    cr_expect(!(worst(c, y) <= 1), "row left out");
}
