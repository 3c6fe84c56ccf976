#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

#include "numerics/contract.h"
#include "tests/ops/op_case.h"

static const struct {
    int32_t n_head, n_head_kv, head_dim, pos0, n_pos;
} shapes[] = {{1, 1, 2, 0, 1},    {4, 2, 16, 0, 5},    {6, 6, 48, 3, 2}, {6, 2, 64, 62, 4}, {2, 1, 80, 64, 1},
              {3, 1, 100, 0, 66}, {4, 4, 128, 127, 3}, {8, 4, 8, 0, 13}, {4, 1, 64, 299, 2}};
#define N_SHAPE (sizeof shapes / sizeof *shapes)

static op_case *make(fd_op op, size_t i) {
    return case_attention(op, shapes[i].n_head, shapes[i].n_head_kv, shapes[i].head_dim, shapes[i].pos0,
                          shapes[i].n_pos);
}

/* Where an element lies: head h of row r, of n_kv positions; the head's K/V head counted by walking, not by
 * dividing. */
typedef struct place {
    int64_t row, head, kv_head, own, n_kv;
} place;

static place place_of(const op_case *c, size_t shape, int64_t item) {
    place p = {item / shapes[shape].n_head, item % shapes[shape].n_head, 0, 0, c->args.n_kv};
    int group = shapes[shape].n_head / shapes[shape].n_head_kv;
    for (int64_t h = 0; h < p.head; h++) p.kv_head += (h + 1) % group == 0;
    p.own = c->args.pos0 + p.row;
    return p;
}

/* The largest error of `y` in the units of its bound; `shape` is an index of `shapes`. */
typedef double (*worst_fn)(const op_case *c, size_t shape, const float *y);

static void expect_within(fd_op op, worst_fn worst) {
    for (size_t i = 0; i < N_SHAPE; i++) {
        op_case *c = make(op, i);
        float *y = case_run_scalar(c);
        double z = worst(c, i, y);
        cr_expect(z <= 1, "shape %zu: %g of the bound", i, z);
    }
}

/* ---- scores: |s - ŝ| ≤ (h + 1)·u·Σ|q||k|·scale, h = ⌈d/64⌉ + 6 ---- */

static double worst_score(const op_case *c, size_t shape, const float *y) {
    int32_t d = shapes[shape].head_dim;
    double largest = 0, h = ceil(d / 64.0) + 6;
    for (int64_t item = 0; item < (int64_t)shapes[shape].n_head * c->args.n_pos; item++) {
        place p = place_of(c, shape, item);
        for (int64_t t = 0; t < p.n_kv; t++) {
            float s = y[item * p.n_kv + t];
            long double sum = 0, size = 0;
            for (int32_t i = 0; i < d; i++) {
                long double product = (long double)c->in[0][item * d + i] *
                                      c->in[1][(t * shapes[shape].n_head_kv + p.kv_head) * d + i] * c->nodes[2].scale;
                sum += product;
                size += fabsl(product);
            }
            double z =
                t > p.own ? (s == -INFINITY ? 0 : INFINITY) : (double)(fabsl(s - sum) / ((h + 1) * 0x1p-24L * size));
            largest = worse(largest, z);
        }
    }
    return largest;
}

Test(attn_scores, are_within_their_bound_and_masked_past_the_own_position) {
    expect_within(FD_OP_ATTN_SCORES, worst_score);
}

Test(attn_scores, wrong_heads_scale_and_mask_are_beyond_the_bound) {
    op_case *c = make(FD_OP_ATTN_SCORES, 3); /* 6 heads, 2 K/V heads, positions 62 … 65 */
    float *y = case_run_scalar(c), *modulo = case_run_scalar(c);
    const int64_t n_kv = 66, d = 64;
    for (int64_t t = 0; t <= 62; t++) /* head 1 with K/V head 1 % 2 */
        modulo[n_kv + t] = fd_dot(c->in[0] + d, c->in[1] + (t * 2 + 1) * d, d) * c->nodes[2].scale;
    cr_expect(!(worst_score(c, 3, modulo) <= 1), "remainder for division");
    float right = y[0];
    y[0] = right * 8;
    cr_expect(!(worst_score(c, 3, y) <= 1), "scale missing");
    y[0] = right;
    y[63] = 0.0f;
    cr_expect(!(worst_score(c, 3, y) <= 1), "future position seen");
    y[63] = -INFINITY;
    y[62] = -INFINITY;
    cr_expect(!(worst_score(c, 3, y) <= 1), "own position masked");
    y[62] = NAN;
    cr_expect(!(worst_score(c, 3, y) <= 1), "NaN");
}

/* ---- softmax: e within 2 u and u/2·|s - m| of its argument, the sum (n/64 + 7) u, the division 1: all terms are
 * positive ---- */

static double worst_weight(const op_case *c, size_t shape, const float *y) {
    double largest = 0;
    for (int64_t item = 0; item < (int64_t)shapes[shape].n_head * c->args.n_pos; item++) {
        place p = place_of(c, shape, item);
        const float *s = c->in[0] + item * p.n_kv;
        long double max = -INFINITY, sum = 0, reach = 0;
        for (int64_t t = 0; t <= p.own; t++) max = fmaxl(max, s[t]);
        for (int64_t t = 0; t <= p.own; t++) {
            sum += expl(s[t] - max);
            reach = fmaxl(reach, max - s[t]);
        }
        long double bound = 0x1p-24L * (2 * (2 + reach) + (long double)p.own / 64 + 9);
        for (int64_t t = 0; t < p.n_kv; t++) {
            long double e = t <= p.own ? expl(s[t] - max) / sum : 0;
            double z = t > p.own ? (y[item * p.n_kv + t] == 0 ? 0 : INFINITY)
                                 : (double)(fabsl(y[item * p.n_kv + t] - e) / (bound * e));
            largest = worse(largest, z);
        }
    }
    return largest;
}

Test(attn_softmax, is_within_its_bound_and_zero_past_the_own_position) {
    expect_within(FD_OP_ATTN_SOFTMAX, worst_weight);
}

Test(attn_softmax, one_position_has_weight_one) {
    op_case *c = make(FD_OP_ATTN_SOFTMAX, 0);
    float *y = case_run_scalar(c);
    cr_expect_eq(y[0], 1.0f);
}

Test(attn_softmax, large_scores_do_not_overflow) {
    op_case *c = make(FD_OP_ATTN_SOFTMAX, 5);
    for (int64_t i = 0; i < c->n_in[0]; i++) c->in[0][i] += 1000.0f;
    float *y = case_run_scalar(c);
    cr_expect(worst_weight(c, 5, y) <= 1);
}

Test(attn_softmax, nan_spoils_its_own_row_and_no_other) {
    op_case *c = make(FD_OP_ATTN_SOFTMAX, 1); /* 4 heads, 5 positions */
    c->in[0][(2 * 4 + 1) * 5 + 1] = NAN;      /* row 2, head 1, position 1 */
    float *y = case_run_scalar(c);
    for (int64_t item = 0; item < 20; item++)
        for (int t = 0; t < 5; t++)
            cr_expect_eq((bool)isnan(y[item * 5 + t]), item == 9 && t <= 2, "item %lld, position %d", (long long)item,
                         t);
    cr_expect(!(worst_weight(c, 1, y) <= 1));
}

Test(attn_softmax, wrong_sums_are_beyond_the_bound) {
    op_case *c = make(FD_OP_ATTN_SOFTMAX, 6);
    float *y = case_run_scalar(c);
    const float *s = c->in[0];
    float sum = 0;
    for (int t = 0; t < 130; t++) sum += t <= 127 ? expf(s[t]) : 1.0f; /* masked slots counted as e^0 */
    for (int t = 0; t < 128; t++) y[t] = expf(s[t]) / sum;
    cr_expect(!(worst_weight(c, 6, y) <= 1));
}

/* ---- mix: |y - ŷ| ≤ (min(n, 64) + ⌈n/64⌉)·u·Σ|p||v| ---- */

static double worst_mix(const op_case *c, size_t shape, const float *y) {
    int32_t d = shapes[shape].head_dim;
    double largest = 0;
    for (int64_t item = 0; item < (int64_t)shapes[shape].n_head * c->args.n_pos; item++) {
        place p = place_of(c, shape, item);
        for (int32_t i = 0; i < d; i++) {
            long double sum = 0, size = 0;
            for (int64_t t = 0; t <= p.own; t++) {
                long double product = (long double)c->in[0][item * p.n_kv + t] *
                                      c->in[1][(t * shapes[shape].n_head_kv + p.kv_head) * d + i];
                sum += product;
                size += fabsl(product);
            }
            double n = (double)p.own + 1, bound = (fmin(n, 64) + ceil(n / 64)) * 0x1p-24;
            double z = (double)(fabsl(y[item * d + i] - sum) / (bound * size));
            largest = worse(largest, z);
        }
    }
    return largest;
}

Test(attn_mix, is_within_its_bound_of_the_formula) {
    expect_within(FD_OP_ATTN_MIX, worst_mix);
}

Test(attn_mix, blocks_of_64_start_at_absolute_position_0) {
    op_case *c = make(FD_OP_ATTN_MIX, 8); /* positions 299, 300; one K/V head of 64 */
    float *y = case_run_scalar(c);
    for (int row = 0; row < 2; row++)
        for (int i = 0; i < 64; i++) {
            float total = 0;
            for (int block = 0; block <= 299 + row; block += 64) {
                float acc = 0;
                for (int t = block; t < block + 64 && t <= 299 + row; t++)
                    acc = fmaf(c->in[0][row * 4 * 301 + t], c->in[1][t * 64 + i], acc);
                total += acc;
            }
            cr_expect_eq(bits_differ(&total, &y[row * 4 * 64 + i], 1), 0, "row %d, element %d", row, i);
        }
}

Test(attn_mix, wrong_mixes_are_beyond_the_bound) {
    op_case *c = make(FD_OP_ATTN_MIX, 3);
    float *y = case_run_scalar(c);
    y[0] = c->in[0][62] * c->in[1][62 * 2 * 64];
    cr_expect(!(worst_mix(c, 3, y) <= 1), "current token only");
    float *last = case_run_scalar(c);
    last[64] += c->in[0][66 + 62] * 1e-3f;
    cr_expect(!(worst_mix(c, 3, last) <= 1), "one weight off by 1e-3");
    last[64] = NAN;
    cr_expect(!(worst_mix(c, 3, last) <= 1), "NaN");
}

/* ---- windows, softcaps, sinks: what they do to the plain op's results, bit for bit ---- */

Test(attn_scores, a_window_hides_what_lies_before_it_and_changes_nothing_else) {
    static const int32_t windows[] = {1, 2, 3, 64, 65, 66, 67, 500};
    for (size_t i = 0; i < 2 * (sizeof windows / sizeof *windows); i++) {
        const int32_t window = windows[i / 2];
        const bool chunked = i % 2;              /* it shows the row's own chunk instead */
        op_case *c = make(FD_OP_ATTN_SCORES, 3); /* positions 62 … 65 */
        float *plain = case_run_scalar(c);
        c->nodes[2].window = window;
        c->nodes[2].chunked = chunked;
        float *y = case_run_scalar(c);
        double *wide = case_run_f64(c);
        for (int64_t item = 0; item < 6 * 4; item++)
            for (int64_t t = 0; t < 66; t++) {
                int64_t own = 62 + item / 6;
                bool seen = t <= own && (chunked ? t / window == own / window : own - t < window);
                float expected = seen ? plain[item * 66 + t] : -INFINITY;
                cr_expect_eq(bits_differ(&y[item * 66 + t], &expected, 1), 0, "window %d, row %lld, position %lld",
                             window, (long long)own, (long long)t);
                cr_expect_eq((bool)isinf(wide[item * 66 + t]), !seen);
            }
    }
}

Test(attn_scores, a_softcap_follows_the_scale) {
    op_case *c = make(FD_OP_ATTN_SCORES, 3);
    float *plain = case_run_scalar(c);
    c->nodes[2].softcap = 0.25f;
    float *y = case_run_scalar(c);
    double *wide = case_run_f64(c);
    for (int64_t i = 0; i < c->n_out; i++) {
        float expected = isinf(plain[i]) ? plain[i] : 0.25f * fd_tanh32(plain[i] / 0.25f);
        cr_expect_eq(bits_differ(&y[i], &expected, 1), 0);
        cr_expect(isinf(wide[i]) || fabs(wide[i] - (double)y[i]) < 1e-6);
    }
}

Test(attn_softmax, a_sink_takes_its_share) {
    op_case *c = make(FD_OP_ATTN_SOFTMAX, 1); /* 4 heads, positions 0 … 4 */
    case_add_sinks(c, FD_F32);
    float *sinks = (float *)(uintptr_t)c->weights[0].data;
    sinks[1] = 50.0f; /* above every score */
    sinks[2] = -1e30f;
    float *y = case_run_scalar(c);
    double *wide = case_run_f64(c);
    for (int64_t item = 0; item < 20; item++) {
        const float *s = c->in[0] + item * 5;
        int64_t n = item / 4 + 1;
        float e[5], max = sinks[item % 4], sum;
        for (int64_t t = 0; t < n; t++) max = fmaxf(max, s[t]);
        for (int64_t t = 0; t < n; t++) e[t] = fd_exp32(s[t] - max);
        sum = fd_sum(e, n) + fd_exp32(sinks[item % 4] - max);
        double share = 0;
        for (int64_t t = 0; t < n; t++) {
            float expected = e[t] / sum;
            cr_expect_eq(bits_differ(&y[item * 5 + t], &expected, 1), 0, "item %lld", (long long)item);
            cr_expect_float_eq(wide[item * 5 + t], (double)expected, 1e-6);
            share += wide[item * 5 + t];
        }
        if (item % 4 == 1) cr_expect(share < 1e-10);
        if (item % 4 == 2) cr_expect_float_eq(share, 1, 1e-12);
        if (item % 4 == 0) cr_expect(share < 0.9999);
    }
}

/* ---- f64 ---- */

Test(attention, f64_agrees_with_the_formulas_far_below_binary32) {
    static const fd_op ops[] = {FD_OP_ATTN_SCORES, FD_OP_ATTN_SOFTMAX, FD_OP_ATTN_MIX};
    const worst_fn worst[] = {worst_score, worst_weight, worst_mix};
    for (size_t i = 0; i < N_SHAPE; i++)
        for (int o = 0; o < 3; o++) {
            op_case *c = make(ops[o], i);
            double *wide = case_run_f64(c);
            float *y = malloc(sizeof *y * (size_t)c->n_out);
            for (int64_t k = 0; k < c->n_out; k++) y[k] = (float)wide[k];
            double z = worst[o](c, i, y); /* one rounding of the result is all that is left */
            cr_expect(z <= 0.51, "%s, shape %zu: %g", fd_op_name(ops[o]), i, z);
            free(y);
        }
}
