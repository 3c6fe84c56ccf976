/* Every op's bound in every candidate class: an engine that rounds so, in whatever order it sums, stays within it.
 * test_bounds_beyond.c has what does not. */
#include <criterion/criterion.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/gguf/quant.h"
#include "reference_cpu/reference.h"
#include "tests/compare/bounds_trial.h"
#include "tests/compare/rounding_engine.h"

enum { TRIALS = 12 };

Test(bounds, rounding_of_every_class_stays_within_in_every_op) {
    for (int32_t i = 1; fd_numerics_class_at(i); i++)
        for (fd_op op = 0; op < FD_OP_COUNT; op++) {
            const fd_numerics_class *class_ = fd_numerics_class_at(i);
            double most = 0;
            for (int kind = 0; kind < TRIALS; kind++) {
                trial t = open_trial(op, class_, kind);
                double z = largest_z(&t, class_);
                cr_expect(z <= 1, "%s in %s, trial %d: z %.3g", fd_op_name(op), class_->name, kind, z);
                if (!(z <= most)) most = z;
                close_trial(&t);
            }
            if (getenv("FD_TEST_VERBOSE")) fprintf(stderr, "%-10s %-13s z %.3g\n", class_->name, fd_op_name(op), most);
        }
}

/* Cases large enough for threads to be woken. */
static op_case *make_large(fd_op op) {
    switch (op) {
    case FD_OP_RMS_NORM: return case_norm(FD_F32, 8192, 64, 1e-5f);
    case FD_OP_MATMUL: return case_matmul(FD_Q8_0, 1024, 600, 3, FD_F32);
    case FD_OP_ATTN_SCORES:
    case FD_OP_ATTN_MIX: return case_attention(op, 4, 2, 64, 900, 8);
    case FD_OP_ATTN_SOFTMAX: return case_attention(op, 4, 2, 64, 4000, 8);
    default: return case_elementwise(op, 40000, 3);
    }
}

Test(bounds, every_bit_is_the_same_whatever_the_number_of_threads) {
    static const fd_op ops[] = {FD_OP_RMS_NORM, FD_OP_MATMUL,   FD_OP_ATTN_SCORES, FD_OP_ATTN_SOFTMAX,
                                FD_OP_ATTN_MIX, FD_OP_SILU_MUL, FD_OP_ADD};
    const int most = omp_get_max_threads();
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        op_case *c = make_large(ops[i]);
        fd_op_args args = c->args;
        double *in[FD_MAX_INPUTS] = {NULL, NULL};
        for (int k = 0; k < FD_MAX_INPUTS; k++) {
            if (!c->in[k]) continue;
            in[k] = malloc(sizeof(double) * (size_t)c->n_in[k]);
            for (int64_t e = 0; e < c->n_in[k]; e++) in[k][e] = (double)c->in[k][e];
            args.in[k] = in[k];
            bool cache = k == 1 && (ops[i] == FD_OP_ATTN_SCORES || ops[i] == FD_OP_ATTN_MIX);
            c->nodes[k].op = cache ? FD_OP_KV_WRITE : FD_OP_ADD;
        }
        int64_t n = fd_node_row_stride(args.node, args.n_kv) * args.n_pos;
        double *y = malloc(sizeof *y * (size_t)n), *tau[2];
        args.out = y;
        fd_reference_op(FD_NUMERICS_F64, &args);
        fd_bound_args bound = {
            .op = &args, .stored = FD_F64, .numerics = fd_numerics_class_find("bf16"), .n_output = 1e6};
        fd_error err = {0};
        for (int t = 0; t < 2; t++) {
            tau[t] = malloc(sizeof *y * (size_t)n);
            omp_set_num_threads(t ? 5 : 1);
            cr_assert_eq(fd_bound(&bound, tau[t], &err), FD_OK, "%s", err.message);
        }
        omp_set_num_threads(most);
        cr_expect(memcmp(tau[0], tau[1], sizeof *y * (size_t)n) == 0, "%s", fd_op_name(ops[i]));
        for (int t = 0; t < 2; t++) free(tau[t]);
        for (int k = 0; k < FD_MAX_INPUTS; k++) free(in[k]);
        free(y);
        case_free(c);
    }
}

Test(bounds, z_of_special_values) {
    static const struct {
        double c, y, tau, z;
    } table[] = {{1, 1, 0, 0},
                 {1, 2, 0, INFINITY},
                 {1, 3, 4, 0.5},
                 {NAN, NAN, 1, 0},
                 {NAN, 1, 1e30, INFINITY},
                 {1, NAN, 1e30, INFINITY},
                 {-INFINITY, -INFINITY, 1, 0},
                 {-INFINITY, INFINITY, 1, INFINITY},
                 {1, INFINITY, 1, INFINITY}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        cr_expect_eq(fd_bound_z(table[i].c, table[i].y, table[i].tau), table[i].z, "row %zu", i);
    cr_expect(!(fd_bound_z(1, 2, NAN) <= 1), "a bound that is NaN holds nothing");
}

/* σ as XLA and ONNX Runtime take it: far below 0 it is what two numbers of nearly ½ leave. */
static double sigmoid_by_tanh(double x) {
    return (double)(0.5f + 0.5f * tanhf(0.5f * (float)x));
}

Test(bounds, a_sigmoid_of_two_halves_stays_within_and_one_of_16_bits_does_not) {
    static const fd_op ops[] = {FD_OP_SIGMOID, FD_OP_SILU, FD_OP_SILU_MUL};
    const fd_numerics_class *f32 = fd_numerics_class_find("f32");
    for (size_t k = 0; k < sizeof ops / sizeof *ops; k++) {
        trial t = open_trial(ops[k], f32, 0);
        for (int64_t i = 0; i < t.n; i++) t.in[0][i] = (double)(float)(16.0 * (double)i / (double)t.n - 12);
        fd_reference_op(FD_NUMERICS_F64, &t.args);
        for (int bits = 24; bits >= 11; bits -= 13) {
            for (int64_t i = 0; i < t.n; i++) {
                const double x = t.in[0][i];
                float s = (float)sigmoid_by_tanh(x);
                if (bits == 11) s = fd_f16_to_f32(fd_f32_to_f16(s));
                t.candidate[i] = (double)(ops[k] == FD_OP_SIGMOID ? s : (float)x * s);
                if (ops[k] == FD_OP_SILU_MUL) t.candidate[i] = (double)((float)t.candidate[i] * (float)t.in[1][i]);
            }
            const double z = largest_z(&t, f32);
            cr_expect((z <= 1) == (bits == 24), "%s, %d bits: z %.3g", fd_op_name(ops[k]), bits, z);
        }
        close_trial(&t);
    }
}

/* x + a·w with a·w rounded to what is recorded, or not. */
Test(bounds, a_sum_may_take_a_product_before_it_is_rounded) {
    const fd_numerics_class *f32 = fd_numerics_class_find("f32");
    trial t = open_trial(FD_OP_ADD, f32, 0);
    for (int bits = 24; bits >= 11; bits -= 13) {
        for (int64_t i = 0; i < t.n; i++) {
            const float a = 0.3f + (float)(i % 7), w = 1.1f + (float)(i % 5) / 3, product = a * w;
            /* nearly the opposite: hardly anything but the product's rounding is left */
            const float x = -product * (1 + 0x1p-12f * (float)(i % 3));
            t.in[0][i] = (double)x;
            t.in[1][i] = (double)(bits == 24 ? product : fd_f16_to_f32(fd_f32_to_f16(product)));
            t.candidate[i] = (double)fmaf(a, w, x);
        }
        fd_reference_op(FD_NUMERICS_F64, &t.args);
        const double z = largest_z(&t, f32);
        cr_expect((z <= 1) == (bits == 24), "%d bits: z %.3g", bits, z);
    }
    close_trial(&t);
}

Test(bounds, rounding_what_is_rounded_already_costs_nothing) {
    cr_expect_eq(fd_rounding_error(1.5, 11, 0x1p-24), 0);
    cr_expect_eq(fd_rounding_error(0x1.8p-20, 11, 0x1p-24), 0);                               /* a binary16 subnormal */
    cr_expect_eq(fd_rounding_error(0x1p-26, 11, 0x1p-24), 0x1p-25, "below the smallest one"); /* becomes 0 */
    cr_expect_gt(fd_rounding_error(1 + 0x1p-12, 11, 0x1p-24), 0);
    cr_expect_eq(fd_rounding_error(1 + 0x1p-12, 24, 0x1p-126), 0);
    cr_expect_eq(fd_rounding_error(NAN, 11, 0x1p-24), 0);
    for (int i = 0; i < 10000; i++) {
        float x = (float)ldexp((double)(draw() >> 11) * 0x1p-53 - 0.5, (int)(draw() % 40) - 30);
        double error = fabs((double)fd_f16_to_f32(fd_f32_to_f16(x)) - (double)x);
        if (fabsf(x) < 65504) cr_assert(error <= fd_rounding_error((double)x, 11, 0x1p-24), "%a", (double)x);
    }
}

Test(bounds, lambda_is_what_the_document_says) {
    cr_expect_float_eq(fd_bound_lambda(4096, 1e6), 7.7, 0.05);
    cr_expect(fd_bound_lambda(0, 0) > 3.8);
}

Test(numerics_class, names_are_found_and_unknown_ones_are_not) {
    cr_expect_str_eq(fd_numerics_class_find("q8act")->name, "q8");
    cr_expect_str_eq(fd_numerics_class_find("emulate-hf-f16:7")->name, "hf-f16");
    cr_expect_str_eq(fd_numerics_class_find("emulate-llama-cublas")->name, "f16acc");
    cr_expect_str_eq(fd_numerics_class_find("emulate-llama-cuda:3")->name, "llama-cuda");
    cr_expect_str_eq(fd_numerics_class_find("fast")->name, "f16"); /* the GPU engine\'s */
    cr_expect_str_eq(fd_numerics_class_find("fast-int8")->name, "fast-int8");
    cr_expect_null(fd_numerics_class_find(""));
    cr_expect_null(fd_numerics_class_find("f1"));
    cr_expect_null(fd_numerics_class_find("emulate-"));
}
