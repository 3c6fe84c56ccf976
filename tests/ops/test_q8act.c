/* MATMUL and EXPERT_MATMUL of q8act: the definition is the formula, the twins have its bits, a run of it is whole. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "model/gguf/quant.h"
#include "numerics/q8act.h"
#include "tests/ops/executor_run.h"
#include "tests/ops/op_case.h"
#include "tests/ops/random_model.h"

#define COUNT(a) (sizeof(a) / sizeof *(a))

static const uint32_t types[] = {FD_Q8_0, FD_Q4_0, FD_Q5_0, FD_Q4_K, FD_Q6_K};

static float *run_scalar(const op_case *c) {
    fd_ref_ops ops = fd_ref_select(FD_NUMERICS_Q8ACT, FD_ISA_BASELINE, true);
    return case_run(c, &ops, 1);
}

/* x as q8act reads it, written back: d·q. */
static void round_x(const float *x, int64_t n, double *to) {
    for (int64_t b = 0; b < n; b += FD_Q8_BLOCK) {
        float largest = 0;
        for (int i = 0; i < FD_Q8_BLOCK; i++) largest = fmaxf(largest, fabsf(x[b + i]));
        for (int i = 0; i < FD_Q8_BLOCK; i++)
            to[b + i] = largest > 0 ? (double)(largest / 127) * rint((double)(x[b + i] * (127 / largest))) : 0;
    }
}

/* The largest |y − Σ w·d·q| in units of its bound: three roundings a block and one for the last addition, each of what
 * has been summed, at most Σ|w·d·q| and the minimum's share. */
static double worst(const op_case *c, const float *y) {
    const fd_weight *weight = &c->weights[0];
    int64_t n = weight->n_col;
    double *x = malloc(sizeof *x * (size_t)n), largest = 0;
    float *bias = c->nodes[2].weight[1] >= 0 ? case_weight_row(c, 1, 0) : NULL;
    for (int32_t p = 0; p < c->args.n_pos; p++) {
        round_x(c->in[0] + p * n, n, x);
        for (int64_t o = 0; o < weight->n_row; o++) {
            float *w = case_weight_row(c, 0, o);
            double sum = bias ? bias[o] : 0, size = fabs(sum), most = 0;
            for (int64_t k = 0; k < n; k++) {
                sum += (double)w[k] * x[k];
                most = fmax(most, fabs((double)w[k]));
                size += fabs((double)w[k] * x[k]);
            }
            for (int64_t k = 0; k < n; k++) size += 2 * most * fabs(x[k]) / 4; /* d·q and its minimum, larger than w */
            double z = fabs((double)y[p * weight->n_row + o] - sum) / ((3.0 * (double)n / 32 + 3) * 0x1p-24 * size);
            largest = worse(largest, z);
        }
    }
    free(x);
    return largest;
}

Test(q8act, definition_is_within_its_bound_of_the_formula) {
    for (size_t t = 0; t < COUNT(types); t++)
        for (int blocks = 1; blocks <= 5; blocks += 2) {
            int32_t n = blocks * fd_dtype_get(types[t])->block_elements;
            op_case *c = case_matmul(types[t], n, 9, 3, blocks == 3 ? FD_F32 : -1);
            float *y = run_scalar(c);
            double z = worst(c, y);
            cr_expect(z <= 1, "%s, n = %d: %g of the bound", fd_dtype_get(types[t])->name, n, z);
            float *exact = case_run_scalar(c);
            cr_expect(!(worst(c, exact) <= 1), "%s: exact products are something else", fd_dtype_get(types[t])->name);
            float most = 0;
            for (int64_t i = 0; i < c->n_out; i++) most = fmaxf(most, fabsf(y[i]));
            y[5] += 1e-3f * most;
            cr_expect(!(worst(c, y) <= 1), "a part in a thousand shows");
            y[5] = NAN;
            cr_expect(!(worst(c, y) <= 1), "NaN shows");
        }
}

/* Blocks of Q8_0 taken from the file by hand, the two sums written out. */
Test(q8act, definition_is_the_contracts_order) {
    op_case *c = case_matmul(FD_Q8_0, 160, 3, 2, -1);
    float *y = run_scalar(c);
    for (int p = 0; p < 2; p++)
        for (int o = 0; o < 3; o++) {
            float even = 0, odd = 0;
            for (int b = 0; b < 5; b++) {
                const fd_block_q8_0 *w = (const fd_block_q8_0 *)c->weights[0].data + o * 5 + b;
                const float *x = c->in[0] + p * 160 + b * 32;
                float largest = 0, *acc = b % 2 ? &odd : &even;
                int32_t s = 0;
                for (int i = 0; i < 32; i++) largest = fmaxf(largest, fabsf(x[i]));
                for (int i = 0; i < 32; i++) s += w->qs[i] * (int32_t)rintf(x[i] * (127.0f / largest));
                *acc = fmaf((float)s * fd_f16_to_f32(w->d), largest / 127.0f, *acc);
            }
            float expected = even + odd;
            cr_expect_eq(bits_differ(&y[p * 3 + o], &expected, 1), 0, "output %d of position %d", o, p);
        }
}

Test(q8act, nan_in_is_nan_out_for_its_position_alone) {
    for (size_t t = 0; t < COUNT(types); t++) {
        op_case *c = case_matmul(types[t], 512, 4, 2, -1);
        c->in[0][77] = t % 2 ? NAN : INFINITY;
        float *y = run_scalar(c);
        for (int o = 0; o < 8; o++) cr_expect_eq((bool)isnan(y[o]), o < 4);
    }
}

Test(q8act, other_types_have_the_exact_products) {
    static const uint32_t others[] = {FD_F16, FD_Q4_1, FD_Q3_K, FD_NVFP4, FD_IQ2_S};
    for (size_t t = 0; t < COUNT(others); t++) {
        op_case *c = case_matmul(others[t], 512, 9, 3, FD_F32), *e = case_expert_matmul(others[t], 512, 5, 2, true, -1);
        cr_expect_eq(bits_differ(run_scalar(c), case_run_scalar(c), c->n_out), 0, "%s", fd_dtype_get(others[t])->name);
        cr_expect_eq(bits_differ(run_scalar(e), case_run_scalar(e), e->n_out), 0, "%s", fd_dtype_get(others[t])->name);
    }
}

/* ---- twins ---- */

static void expect_scalar_bits(const op_case *c, const char *what) {
    static const int parts[] = {1, 4, 0};
    case_expect_twins(c, FD_NUMERICS_Q8ACT, parts, what);
}

Test(q8act, twins_equal_scalar) {
    static const int32_t positions[] = {1, 2, 9};
    for (size_t t = 0; t < COUNT(types); t++)
        for (int blocks = 1; blocks <= 9; blocks += 2)
            for (size_t p = 0; p < COUNT(positions); p++) {
                const fd_dtype_info *type = fd_dtype_get(types[t]);
                int32_t n = blocks * type->block_elements;
                char what[96];
                snprintf(what, sizeof what, "%s, %d inputs, %d positions", type->name, n, positions[p]);
                expect_scalar_bits(case_matmul(types[t], n, 11, positions[p], blocks % 3 ? FD_F16 : -1), what);
            }
}

Test(q8act, expert_twins_equal_scalar) {
    for (size_t t = 0; t < COUNT(types); t++)
        for (int own = 0; own < 2; own++)
            expect_scalar_bits(case_expert_matmul(types[t], 512, 11, 3, own, own ? FD_F32 : -1),
                               fd_dtype_get(types[t])->name);
}

/* An expert's product is MATMUL's of its own rows. */
Test(q8act, an_experts_product_is_that_of_its_rows) {
    op_case *c = case_expert_matmul(FD_Q8_0, 96, 5, 1, true, -1), *m = case_matmul(FD_Q8_0, 96, 5, 1, -1);
    float *y = run_scalar(c);
    for (int rank = 0; rank < CASE_CHOSEN; rank++) {
        int64_t expert = (int64_t)c->in[1][rank], row_bytes = fd_dtype_row_bytes(FD_Q8_0, 96);
        m->weights[0].data = (const char *)c->weights[0].data + expert * 5 * row_bytes;
        memcpy(m->in[0], c->in[0] + rank * 96, 96 * sizeof(float));
        float *expected = run_scalar(m);
        cr_expect_eq(bits_differ(y + rank * 5, expected, 5), 0, "rank %d", rank);
    }
}

Test(q8act, weights_that_are_not_quantised_have_the_exact_ops_bits) {
    static const uint32_t floats[] = {FD_F32, FD_F16, FD_BF16};
    for (size_t t = 0; t < COUNT(floats); t++) {
        op_case *c = case_matmul(floats[t], 96, 7, 3, FD_F32);
        float *expected = case_run_scalar(c), *found = run_scalar(c);
        cr_expect_eq(bits_differ(found, expected, c->n_out), 0);
    }
}

/* ---- whole runs ---- */

enum { N_TOKEN = 21, N = N_TOKEN * RANDOM_VOCAB };

Test(q8act, a_run_has_the_same_bits_however_it_is_cut, .init = fill_tokens) {
    static const struct {
        const char *arch;
        uint32_t dtype;
    } models[] = {{"llama", FD_Q8_0}, {"qwen2", FD_Q4_0}};
    for (size_t i = 0; i < COUNT(models); i++) {
        random_model m = random_model_make(models[i].arch, models[i].dtype);
        fd_reference_options q8 = {.numerics = FD_NUMERICS_Q8ACT, .n_thread = 1}, two = q8, scalar = q8, exact = q8;
        two.n_thread = 2;
        scalar.scalar = true;
        exact.numerics = FD_NUMERICS_EXACT;
        float *decoded = run_new(m.graph, q8, N_TOKEN, 1), *whole = run_new(m.graph, two, N_TOKEN, N_TOKEN);
        float *by_definition = run_new(m.graph, scalar, N_TOKEN, 5),
              *otherwise = run_new(m.graph, exact, N_TOKEN, N_TOKEN);
        expect_same(whole, decoded, N, "prefill");
        expect_same(by_definition, decoded, N, "definition");
        double most = 0, size = 0;
        for (int k = 0; k < N; k++) {
            most = worse(most, fabs((double)otherwise[k] - (double)decoded[k]));
            size = fmax(size, fabs((double)otherwise[k]));
        }
        cr_expect(most > 1e-4 * size && most < 0.1 * size, "off from exact by %g of %g", most, size);
    }
}
