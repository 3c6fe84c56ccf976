#include <criterion/criterion.h>
#include <math.h>

#include "numerics/contract.h"
#include "tests/ops/op_case.h"

/* silu(g)·up: exp is within 2 u (tests/numerics), then 1 + e, the division and the product round once each, and a
 * relative error of e counts at most once in 1 + e. Bound: 5.5·u·|y|; below the normal range, half the smallest
 * subnormal more for each of silu and the product. */
static double worst_silu(const op_case *c, const float *y) {
    double largest = 0;
    for (int64_t i = 0; i < c->n_out; i++) {
        long double g = c->in[0][i], expected = g / (1 + expl(-g)) * c->in[1][i];
        double z = (double)(fabsl(y[i] - expected) / (5.5L * 0x1p-24L * fabsl(expected) + 0x1p-149L));
        largest = worse(largest, z);
    }
    return largest;
}

Test(silu_mul, is_within_its_bound_of_the_formula) {
    static const int32_t lengths[] = {1, 17, 768, 5632};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        op_case *c = case_elementwise(FD_OP_SILU_MUL, lengths[i], 3);
        float *y = case_run_scalar(c);
        double *wide = case_run_f64(c);
        double z = worst_silu(c, y);
        cr_expect(z <= 1, "n = %d: %g of the bound", lengths[i], z);
        for (int64_t k = 0; k < c->n_out; k++) {
            long double g = c->in[0][k], e = g / (1 + expl(-g)) * c->in[1][k];
            cr_assert(fabsl(wide[k] - e) <= 1e-15L * fabsl(e), "f64, element %lld", (long long)k);
        }
    }
}

Test(silu_mul, ends_and_special_values) {
    static const struct {
        float gate, up, expected;
    } cases[] = {{0.0f, 3.0f, 0.0f},         {-0.0f, 3.0f, -0.0f},   {200.0f, 2.0f, 400.0f}, {-200.0f, 2.0f, -0.0f},
                 {INFINITY, 1.0f, INFINITY}, {-INFINITY, 1.0f, NAN}, {NAN, 1.0f, NAN},       {1.0f, NAN, NAN}};
    op_case *c = case_elementwise(FD_OP_SILU_MUL, 8, 1);
    for (int i = 0; i < 8; i++) {
        c->in[0][i] = cases[i].gate;
        c->in[1][i] = cases[i].up;
    }
    float *y = case_run_scalar(c);
    for (int i = 0; i < 8; i++)
        cr_expect_eq(bits_differ(&y[i], &cases[i].expected, 1), 0, "silu(%g)·%g = %g", cases[i].gate, cases[i].up,
                     y[i]);
}

Test(silu_mul, another_activation_is_beyond_the_bound) {
    op_case *c = case_elementwise(FD_OP_SILU_MUL, 64, 1);
    float *y = case_run_scalar(c);
    for (int64_t i = 0; i < 64; i++) {
        float g = c->in[0][i];
        y[i] = 0.5f * g * (1 + erff(g * 0.70710678f)) * c->in[1][i];
    }
    cr_expect(!(worst_silu(c, y) <= 1), "GELU");
    for (int64_t i = 0; i < 64; i++) y[i] = fd_silu32(c->in[1][i]) * c->in[0][i];
    cr_expect(!(worst_silu(c, y) <= 1), "gate and up swapped");
    y[3] = NAN;
    cr_expect(!(worst_silu(c, y) <= 1), "NaN");
}

Test(add, is_one_rounded_addition) {
    op_case *c = case_elementwise(FD_OP_ADD, 333, 2);
    c->in[0][0] = -0.0f, c->in[1][0] = -0.0f;
    c->in[0][1] = -0.0f, c->in[1][1] = 0.0f;
    c->in[0][2] = NAN;
    c->in[0][3] = INFINITY, c->in[1][3] = -INFINITY;
    float *y = case_run_scalar(c);
    double *wide = case_run_f64(c);
    for (int64_t i = 0; i < c->n_out; i++) {
        float expected = (float)((double)c->in[0][i] + (double)c->in[1][i]); /* exact in double, rounded once */
        cr_expect_eq(bits_differ(&y[i], &expected, 1), 0, "element %lld", (long long)i);
        cr_expect(wide[i] == (double)c->in[0][i] + (double)c->in[1][i] || (isnan(wide[i]) && isnan(expected)));
    }
}
