/* SOFTMAX, TOP_K, EXPERT_WEIGHTS, EXPERT_MATMUL, EXPERT_SUM, written out plainly with the contract's functions: the
 * bits must be equal. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "numerics/contract.h"
#include "tests/ops/op_case.h"

static void expect_bits(const op_case *c, const float *expected, const char *what) {
    float *y = case_run_scalar(c);
    double *wide = case_run_f64(c);
    cr_expect_eq(bits_differ(y, expected, c->n_out), 0, "%s", what);
    for (int64_t i = 0; i < c->n_out; i++)
        cr_expect(fabs(wide[i] - (double)expected[i]) <= 1e-5 * (1 + fabs(wide[i])) ||
                      (isnan(wide[i]) && isnan(expected[i])),
                  "%s f64: %g, expected about %g", what, wide[i], (double)expected[i]);
}

static void softmax_of(const float *x, float *y, int64_t n) {
    float max = -INFINITY, sum;
    for (int64_t i = 0; i < n; i++) max = fmaxf(max, x[i]);
    for (int64_t i = 0; i < n; i++) y[i] = fd_exp32(x[i] - max);
    sum = fd_sum(y, n);
    for (int64_t i = 0; i < n; i++) y[i] = y[i] / sum;
}

Test(experts, softmax_has_the_contracts_bits_and_sums_to_one) {
    for (int32_t n = 1; n < 400; n = 2 * n + 3) {
        op_case *c = case_unary(FD_OP_SOFTMAX, n, 3);
        float *y = malloc(sizeof *y * (size_t)c->n_out);
        for (int r = 0; r < 3; r++) {
            double sum = 0;
            softmax_of(c->in[0] + r * n, y + r * n, n);
            for (int32_t i = 0; i < n; i++) sum += (double)y[r * n + i];
            cr_expect_float_eq(sum, 1, 1e-5);
        }
        expect_bits(c, y, "softmax");
        free(y);
    }
}

Test(experts, top_k_is_by_size_and_then_by_index_with_nan_last) {
    static const struct {
        float row[CASE_EXPERTS], ids[CASE_CHOSEN];
    } table[] = {
        {{1, 2, 3, 4, 5, 6, 7, 8}, {7, 6, 5}},
        {{8, 7, 6, 5, 4, 3, 2, 1}, {0, 1, 2}},
        {{2, 9, 2, 2, 9, 1, 2, 0}, {1, 4, 0}},
        {{0, 0, 0, 0, 0, 0, 0, 0}, {0, 1, 2}},
        {{-0.0f, 0, -1, -1, -1, -1, -1, -1}, {0, 1, 2}},
        {{-5, -4, -3, -9, -9, -9, -9, -9}, {2, 1, 0}},
        {{NAN, 3, NAN, -INFINITY, 1, NAN, NAN, NAN}, {1, 4, 3}},
        {{NAN, NAN, NAN, NAN, 1, NAN, NAN, NAN}, {4, 0, 1}},
        {{INFINITY, 1, INFINITY, 5, NAN, 0, 0, 0}, {0, 2, 3}},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        op_case *c = case_top_k(1);
        memcpy(c->in[0], table[i].row, sizeof table[i].row);
        float *y = case_run_scalar(c);
        double *wide = case_run_f64(c);
        for (int r = 0; r < CASE_CHOSEN; r++)
            cr_expect(y[r] == table[i].ids[r] && wide[r] == (double)table[i].ids[r], "row %zu, rank %d: %g", i, r,
                      (double)y[r]);
    }
}

Test(experts, weights_of_every_gating_have_the_contracts_bits) {
    for (int g = FD_GATING_GATHER; g <= FD_GATING_SOFTMAX; g++)
        for (int scaled = 0; scaled < 2; scaled++) {
            op_case *c = case_expert_weights((fd_gating)g, scaled ? 2.5f : 1.0f, 4);
            float y[4 * CASE_CHOSEN];
            for (int row = 0; row < 4; row++) {
                float chosen[CASE_CHOSEN], *w = y + row * CASE_CHOSEN;
                for (int r = 0; r < CASE_CHOSEN; r++)
                    chosen[r] = w[r] = c->in[0][row * CASE_EXPERTS + (int)c->in[1][row * CASE_CHOSEN + r]];
                if (g == FD_GATING_SOFTMAX) softmax_of(chosen, w, CASE_CHOSEN);
                float sum = fd_sum(chosen, CASE_CHOSEN);
                for (int r = 0; r < CASE_CHOSEN && g == FD_GATING_NORMALISED; r++) w[r] = chosen[r] / sum;
                for (int r = 0; r < CASE_CHOSEN && scaled; r++) w[r] = w[r] * 2.5f;
            }
            expect_bits(c, y, fd_gating_name((fd_gating)g));
        }
}

Test(experts, products_are_the_chosen_experts_rows) {
    for (int kind = 0; kind < 4; kind++) {
        bool own = kind % 2, bias = kind / 2;
        op_case *c = case_expert_matmul(kind ? FD_F16 : FD_Q8_0, 96, 10, 3, own, bias ? FD_F32 : -1);
        float *y = malloc(sizeof *y * (size_t)c->n_out);
        for (int item = 0; item < 3 * CASE_CHOSEN; item++)
            for (int o = 0; o < 10; o++) {
                int expert = (int)c->in[1][item];
                float *w = case_weight_row(c, 0, expert * 10 + o), *b = bias ? case_weight_row(c, 1, expert) : NULL;
                float dot = fd_dot(w, c->in[0] + (own ? item : item / CASE_CHOSEN) * 96, 96);
                y[item * 10 + o] = bias ? dot + b[o] : dot;
            }
        expect_bits(c, y, "expert_matmul");
        y[7] = y[17]; /* the gate sees one element of another expert */
        float *found = case_run_scalar(c);
        cr_expect(bits_differ(found, y, c->n_out) == 1);
        free(y);
    }
}

Test(experts, an_id_that_is_no_experts_makes_nan_and_reads_nothing) {
    static const float wrong[] = {-1, CASE_EXPERTS, 1e30f, 0.5f, NAN, INFINITY, -0.5f};
    fd_ref_ops twins = fd_ref_select(FD_NUMERICS_EXACT, fd_isa_best(), false);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        op_case *c = case_expert_matmul(FD_F32, 40, 6, 2, false, -1), *w = case_expert_weights(FD_GATING_GATHER, 1, 2);
        c->in[1][1] = w->in[1][1] = wrong[i];
        float *y[3] = {case_run_scalar(c), case_run(c, &twins, 2), case_run_scalar(w)};
        for (int64_t k = 0; k < c->n_out; k++) {
            cr_expect_eq((bool)isnan(y[0][k]), k / 6 == 1, "id %g, element %lld", (double)wrong[i], (long long)k);
            cr_expect_eq((bool)isnan(y[1][k]), k / 6 == 1);
        }
        for (int64_t k = 0; k < w->n_out; k++) cr_expect_eq((bool)isnan(y[2][k]), k == 1);
    }
}

Test(experts, the_sum_is_by_rank) {
    op_case *c = case_expert_sum(33, 2);
    float y[66];
    for (int i = 0; i < 66; i++) {
        float acc = 0;
        for (int r = 0; r < CASE_CHOSEN; r++)
            acc = fmaf(c->in[1][i / 33 * CASE_CHOSEN + r], c->in[0][(i / 33 * CASE_CHOSEN + r) * 33 + i % 33], acc);
        y[i] = acc;
    }
    expect_bits(c, y, "expert_sum");
}
