#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "numerics/contract.h"
#include "tests/ops/op_case.h"

/* The largest error in units of its bound. y = x·r·w with r = 1/sqrt(ss/n + eps): each of x·r and ·w, the division, the
 * root, the addition and ss/n rounds once (half of u for what is under the root), and ss has relative error at most
 * (n/64 + 7)·u, all terms being positive. Bound: (n/128 + 8)·u·|y|. */
static double worst(const op_case *c, const float *y) {
    int64_t n = c->weights[0].n_col;
    float *w = case_weight_row(c, 0, 0);
    double bound = ((double)n / 128 + 8) * 0x1p-24, largest = 0;
    for (int32_t p = 0; p < c->args.n_pos; p++) {
        const float *x = c->in[0] + p * n;
        long double ss = 0;
        for (int64_t i = 0; i < n; i++) ss += (long double)x[i] * x[i];
        double r = (double)(1 / sqrtl(ss / (long double)n + c->nodes[2].eps));
        for (int64_t i = 0; i < n; i++) {
            double expected = (double)x[i] * r * w[i],
                   z = fabs(y[p * n + i] - expected) / (bound * fabs(expected) + 1e-40);
            largest = worse(largest, z);
        }
    }
    return largest;
}

static const struct {
    int32_t n, n_pos;
    float eps;
    uint32_t dtype;
} cases[] = {{1, 1, 1e-5f, FD_F32},   {63, 3, 1e-5f, FD_F32},   {64, 1, 0.0f, FD_F32},  {65, 2, 1e-6f, FD_F32},
             {300, 4, 1e-5f, FD_F32}, {4096, 2, 1e-6f, FD_F32}, {256, 2, 1.0f, FD_F16}, {257, 1, 1e-5f, FD_BF16}};

Test(norm, is_within_its_bound_of_the_formula) {
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        op_case *c = case_norm(cases[i].dtype, cases[i].n, cases[i].n_pos, cases[i].eps);
        float *y = case_run_scalar(c);
        double z = worst(c, y);
        cr_expect(z <= 1, "n = %d: %g of the bound", cases[i].n, z);
    }
}

Test(norm, f64_is_the_formula) {
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        op_case *c = case_norm(cases[i].dtype, cases[i].n, cases[i].n_pos, cases[i].eps);
        int64_t n = cases[i].n;
        float *w = case_weight_row(c, 0, 0);
        double *y = case_run_f64(c);
        for (int32_t p = 0; p < cases[i].n_pos; p++) {
            long double ss = 0;
            for (int64_t k = 0; k < n; k++) ss += (long double)c->in[0][p * n + k] * c->in[0][p * n + k];
            for (int64_t k = 0; k < n; k++) {
                long double e = c->in[0][p * n + k] / sqrtl(ss / (long double)n + c->nodes[2].eps) * w[k];
                cr_assert(fabsl(y[p * n + k] - e) <= 1e-13L * fabsl(e), "n = %lld", (long long)n);
            }
        }
    }
}

Test(norm, eps_outside_the_root_is_beyond_the_bound) {
    op_case *c = case_norm(FD_F32, 64, 1, 1e-5f);
    float *y = case_run_scalar(c), *w = case_weight_row(c, 0, 0);
    for (int i = 0; i < 64; i++) c->in[0][i] *= 0.1f;
    float r = 1.0f / (sqrtf(fd_dot(c->in[0], c->in[0], 64) / 64) + c->nodes[2].eps);
    for (int i = 0; i < 64; i++) y[i] = c->in[0][i] * r * w[i];
    cr_expect(!(worst(c, y) <= 1));
}

Test(norm, nan_in_is_nan_out_for_its_own_position_only) {
    op_case *c = case_norm(FD_F32, 100, 3, 1e-5f);
    c->in[0][150] = NAN;
    float *y = case_run_scalar(c);
    for (int i = 0; i < 300; i++) cr_expect_eq((bool)isnan(y[i]), i >= 100 && i < 200, "element %d", i);
    cr_expect(!(worst(c, y) <= 1), "the bound lets NaN pass");
}

Test(norm, heads_are_normed_each_by_itself) {
    op_case *heads = case_head_norm(32, 3, 2), *rows = case_norm(FD_F32, 32, 6, 1e-6f);
    memcpy(rows->in[0], heads->in[0], sizeof(float) * 6 * 32);
    memcpy((void *)(uintptr_t)rows->weights[0].data, heads->weights[0].data, sizeof(float) * 32);
    float *y = case_run_scalar(heads), *expected = case_run_scalar(rows);
    double *wide = case_run_f64(heads);
    cr_expect_eq(bits_differ(y, expected, 6 * 32), 0);
    for (int i = 0; i < 6 * 32; i++) cr_expect_float_eq(wide[i], (double)y[i], 1e-5);
    heads->in[0][40] *= 2; /* head 1 of the first position */
    float *changed = case_run_scalar(heads);
    for (int h = 0; h < 6; h++) cr_expect_eq(bits_differ(y + h * 32, changed + h * 32, 32) > 0, h == 1, "head %d", h);
}
