/* Every op's bound in every candidate class: an engine that rounds so, in whatever order it sums, stays within it; the
 * smallest faults worth finding do not. */
#include <criterion/criterion.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare/bounds.h"
#include "model/quant.h"
#include "numerics/contract.h"
#include "reference_cpu/reference.h"
#include "tests/compare/rounding_engine.h"
#include "tests/ops/op_case.h"

/* ---- cases ---- */

/* A case with binary64 inputs, as replay has them; in classes of 16-bit tensors the inputs have that form. */
typedef struct trial {
    op_case *c;
    fd_op_args args;
    double *in[FD_MAX_INPUTS], *tables, *y, *rows, *candidate, *tau;
    int64_t n, width; /* elements, and of a head or a row */
} trial;

/* Every other one with a softcap and a window, or with sinks. */
static op_case *case_of_attention(fd_op op, int kind) {
    op_case *c = case_attention(op, 4, 2, 64, kind * 9, 4);
    if (kind % 2 == 0) return c;
    if (op == FD_OP_ATTN_SOFTMAX) case_add_sinks(c, FD_F32);
    c->nodes[2].softcap = 50.0f;
    c->nodes[2].window = 5;
    return c;
}

static op_case *make_case(fd_op op, int kind) {
    switch (op) {
    case FD_OP_EMBED: return case_embed(kind % 2 ? FD_F16 : FD_Q8_0, 50, 128, 5);
    case FD_OP_RMS_NORM: return case_norm(FD_F32, 256, 3, 1e-5f);
    case FD_OP_MATMUL:
        return case_matmul(kind % 3 == 0   ? FD_Q8_0
                           : kind % 3 == 1 ? FD_F16
                                           : FD_F32,
                           256, 40, 3, kind % 2 ? FD_F32 : -1);
    case FD_OP_ROPE: return case_rope(kind % 2 ? FD_ROPE_HALF : FD_ROPE_INTERLEAVED, 32, 4, 40, kind * 37, 3);
    case FD_OP_KV_WRITE: return case_kv_write(64, 0, 5, 5, 0);
    case FD_OP_ATTN_SCORES:
    case FD_OP_ATTN_SOFTMAX:
    case FD_OP_ATTN_MIX: return case_of_attention(op, kind);
    case FD_OP_SCALE:
    case FD_OP_SOFTCAP: return case_unary(op, 200, 3);
    case FD_OP_SOFTMAX: return case_unary(op, 60, 3);
    case FD_OP_TOP_K: return case_top_k(6);
    case FD_OP_EXPERT_WEIGHTS: return case_expert_weights((fd_gating)(kind % 3), kind % 2 ? 2.5f : 1.0f, 5);
    case FD_OP_EXPERT_MATMUL:
        return case_expert_matmul(kind % 2 ? FD_F16 : FD_Q8_0, 256, 12, 2, kind % 3 == 0, kind % 4 ? FD_F32 : -1);
    case FD_OP_EXPERT_SUM: return case_expert_sum(120, 2);
    default: return case_elementwise(op, 200, 3);
    }
}

static trial open_trial(fd_op op, const fd_numerics_class *class_, int kind) {
    trial t = {.c = make_case(op, kind)};
    t.args = t.c->args;
    for (int i = 0; i < FD_MAX_INPUTS; i++) {
        if (!t.c->in[i]) continue;
        t.in[i] = malloc(sizeof(double) * (size_t)t.c->n_in[i]);
        for (int64_t k = 0; k < t.c->n_in[i]; k++) {
            double spread = exp((double)(draw() % 6)) / 20; /* magnitudes over two decades, as activations have */
            bool as_is = op == FD_OP_ATTN_SOFTMAX || op == FD_OP_ATTN_MIX || op == FD_OP_SOFTMAX ||
                         (i == 1 && (op == FD_OP_EXPERT_WEIGHTS || op == FD_OP_EXPERT_MATMUL));
            t.in[i][k] = round_to((double)(float)(t.c->in[i][k] * (as_is ? 1 : spread)), class_->u_out);
        }
        t.args.in[i] = t.in[i];
        if (i == 1 && (op == FD_OP_ATTN_SCORES || op == FD_OP_ATTN_MIX))
            t.c->nodes[1].op = FD_OP_KV_WRITE; /* a cache, all positions from 0 */
        else
            t.c->nodes[i].op = FD_OP_ADD;
    }
    if (op == FD_OP_ROPE) {
        int64_t n = (int64_t)t.args.n_kv * t.c->nodes[2].rope.n_rot / 2;
        t.tables = malloc(2 * sizeof(double) * (size_t)n);
        fd_rope_table_f64(&t.c->nodes[2].rope, NULL, 0, t.args.n_kv, t.tables, t.tables + n);
        t.args.rope_cos = t.tables;
        t.args.rope_sin = t.tables + n;
    }
    t.n = fd_node_row_stride(t.args.node, t.args.n_kv) * t.args.n_pos;
    t.width = t.args.node->over_kv      ? t.args.n_kv
              : t.args.node->n_dim == 2 ? t.args.node->shape[1]
                                        : t.args.node->shape[0];
    t.y = malloc(sizeof(double) * (size_t)t.n);
    t.candidate = malloc(sizeof(double) * (size_t)t.n);
    t.tau = malloc(sizeof(double) * (size_t)t.n);
    t.args.out = t.y;
    fd_reference_op(FD_NUMERICS_F64, &t.args);
    rounding_engine(&t.args, class_, t.n, t.y, t.candidate);
    return t;
}

static void close_trial(trial *t) {
    for (int i = 0; i < FD_MAX_INPUTS; i++) free(t->in[i]);
    free(t->tables);
    free(t->y);
    free(t->candidate);
    free(t->tau);
    case_free(t->c);
}

static double largest_z(trial *t, const fd_numerics_class *class_) {
    fd_bound_args args = {
        .op = &t->args, .candidate = t->candidate, .stored = FD_F64, .numerics = class_, .n_output = 1e6};
    fd_error err = {0};
    double most = 0;
    cr_assert_eq(fd_bound(&args, t->tau, &err), FD_OK, "%s", err.message);
    for (int64_t i = 0; i < t->n; i++) {
        double z = fd_bound_z(t->candidate[i], t->y[i], t->tau[i]);
        if (!(z <= most)) most = z;
    }
    return most;
}

/* ---- within ---- */

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

/* ---- beyond ---- */

typedef void (*fault_fn)(trial *t, int64_t at);

static void one_percent_off(trial *t, int64_t at) {
    t->candidate[at] *= 1.01;
}
static void head_scaled(trial *t, int64_t at) {
    for (int64_t i = at / t->width * t->width, end = i + t->width; i < end; i++) t->candidate[i] *= 1.01;
}
/* One block of 32 of the element's weight row read as zeros. */
static void block_zeroed(trial *t, int64_t at) {
    const fd_weight *w = t->args.weight[0];
    int64_t row = at / w->n_row, o = at % w->n_row;
    float values[1024];
    fd_dequantize_row(w->dtype, (const char *)w->data + o * fd_dtype_row_bytes(w->dtype, w->n_col), values, w->n_col);
    for (int64_t k = 64; k < 96; k++) t->candidate[at] -= (double)values[k] * t->in[0][row * w->n_col + k];
}
/* An expert that is not among the chosen. */
static void another_expert(trial *t, int64_t at) {
    int64_t row = at / CASE_CHOSEN * CASE_CHOSEN;
    double id = t->candidate[at];
    for (bool taken = true; taken;) {
        id = fmod(id + 1, CASE_EXPERTS);
        taken = false;
        for (int64_t r = row; r < row + CASE_CHOSEN; r++) taken = taken || t->candidate[r] == id;
    }
    t->candidate[at] = id;
}
static void same_expert_twice(trial *t, int64_t at) {
    t->candidate[at] = t->candidate[at / CASE_CHOSEN * CASE_CHOSEN + (at + 1) % CASE_CHOSEN];
}
static void becomes_nan(trial *t, int64_t at) {
    t->candidate[at] = NAN;
}
static void becomes_inf(trial *t, int64_t at) {
    t->candidate[at] = INFINITY;
}

/* The share of places where the fault is seen. */
static double detected(fd_op op, const char *class_name, fault_fn fault) {
    const fd_numerics_class *class_ = fd_numerics_class_find(class_name);
    int64_t n_seen = 0, n_tried = 0;
    for (int kind = 1; kind < 4; kind++) {
        trial t = open_trial(op, class_, kind);
        double *clean = malloc(sizeof *clean * (size_t)t.n);
        memcpy(clean, t.candidate, sizeof *clean * (size_t)t.n);
        for (int64_t at = 0; at < t.n; at += 1 + t.n / 10) {
            if (!isfinite(clean[at]) || (clean[at] == 0 && op != FD_OP_TOP_K)) continue;
            memcpy(t.candidate, clean, sizeof *clean * (size_t)t.n);
            fault(&t, at);
            n_tried++;
            n_seen += !(largest_z(&t, class_) <= 1);
        }
        free(clean);
        close_trial(&t);
    }
    cr_assert(n_tried > 0);
    return (double)n_seen / (double)n_tried;
}

enum { N_COLUMN = 10 };
static const char *const columns[N_COLUMN] = {"f32",       "f16kv", "f16",    "tf32",    "q8",
                                              "llama-cpu", "bf16",  "hf-f16", "hf-bf16", "f16acc"};

typedef struct detection {
    fd_op op;
    fault_fn fault;
    const char *what;
    double at_least[N_COLUMN];
} detection;

Test(bounds, the_smallest_faults_worth_finding_are_beyond) {
    static const detection table[] = {
#include "tests/compare/detections.h"
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        for (int k = 0; k < N_COLUMN; k++) {
            double share = detected(table[i].op, columns[k], table[i].fault);
            if (getenv("FD_TEST_VERBOSE"))
                fprintf(stderr, "%-13s %-16s %-9s %.2f\n", fd_op_name(table[i].op), table[i].what, columns[k], share);
            cr_expect(share >= table[i].at_least[k], "%s, %s in %s: seen %.2f, expected %.2f", fd_op_name(table[i].op),
                      table[i].what, columns[k], share, table[i].at_least[k]);
        }
}

Test(bounds, no_op_is_without_a_smallest_fault) {
    static const detection table[] = {
#include "tests/compare/detections.h"
    };
    for (fd_op op = 0; op < FD_OP_COUNT; op++) {
        bool any = false;
        for (size_t i = 0; i < sizeof table / sizeof *table; i++)
            any |= table[i].op == op && table[i].at_least[0] >= 0.5;
        cr_expect(any, "%s has no row in detections.h", fd_op_name(op));
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

Test(bounds, a_new_nan_or_inf_is_beyond_in_every_op_and_class) {
    for (int32_t i = 0; fd_numerics_class_at(i); i++)
        for (fd_op op = 0; op < FD_OP_COUNT; op++) {
            cr_expect_eq(detected(op, fd_numerics_class_at(i)->name, becomes_nan), 1.0, "%s", fd_op_name(op));
            cr_expect_eq(detected(op, fd_numerics_class_at(i)->name, becomes_inf), 1.0, "%s", fd_op_name(op));
        }
}

/* The margin decides: a flip between near ties, or another order, is rounding; anything else is not. */
Test(bounds, choices_of_experts_may_differ_where_the_margin_is_small) {
    static const struct {
        double ids[CASE_CHOSEN];
        bool within;
    } table[] = {{{5, 2, 7}, true},  {{2, 5, 7}, true},  {{7, 2, 5}, true},  {{5, 2, 1}, true},  {{5, 1, 7}, false},
                 {{5, 2, 0}, false}, {{5, 5, 7}, false}, {{5, 2, 2}, false}, {{5, 2, 8}, false}, {{5, 2, -1}, false}};
    static const float row[CASE_EXPERTS] = {0.1f, 0.5f, 0.9f, 0,
                                            0,    1.0f, 0,    0.50000006f}; /* 1 and 7 differ by one ulp */
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        op_case *c = case_top_k(1);
        double x[CASE_EXPERTS], e[CASE_EXPERTS], y[CASE_CHOSEN], tau[CASE_CHOSEN], most = 0;
        fd_error err = {0};
        for (int k = 0; k < CASE_EXPERTS; k++) x[k] = (double)row[k], e[k] = 1e-6;
        fd_op_args args = c->args;
        args.in[0] = x;
        args.out = y;
        fd_reference_op(FD_NUMERICS_F64, &args);
        fd_bound_args bound = {.op = &args,
                               .in_error = {e},
                               .candidate = table[i].ids,
                               .stored = FD_F64,
                               .numerics = fd_numerics_class_find("f32"),
                               .n_output = 1e6};
        cr_assert_eq(fd_bound(&bound, tau, &err), FD_OK);
        for (int r = 0; r < CASE_CHOSEN; r++) most = fmax(most, fd_bound_z(table[i].ids[r], y[r], tau[r]));
        cr_expect_eq(most <= 1, table[i].within, "row %zu: z %g", i, most);
        case_free(c);
    }
}

Test(bounds, a_class_that_is_too_strict_is_exceeded) {
    static const struct {
        fd_op op;
        const char *strict, *right;
        int kind;
    } cases[] = {
        {FD_OP_MATMUL, "f32", "f16", 3},
        {FD_OP_MATMUL, "f32", "bf16", 3},
        {FD_OP_MATMUL, "f16", "bf16", 3},
        {FD_OP_MATMUL, "f32", "q8", 3},
        {FD_OP_MATMUL, "f32", "f16acc", 3},
        {FD_OP_MATMUL, "f16", "fast-int8", 3},
        {FD_OP_MATMUL, "llama-cpu", "fast-int8", 2},
        {FD_OP_MATMUL, "llama-cpu", "llama-cuda", 1}, /* F16 weights */
        {FD_OP_MATMUL, "llama-cpu", "llama-cuda", 2}, /* F32 */
        {FD_OP_ROPE, "llama-cpu", "llama-cuda", 1},
        {FD_OP_ATTN_MIX, "llama-cpu", "llama-cpu-fa", 80}}; /* 720 keys: the chain grows, one rounding does not */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        trial t = open_trial(cases[i].op, fd_numerics_class_find(cases[i].right), cases[i].kind);
        cr_expect(!(largest_z(&t, fd_numerics_class_find(cases[i].strict)) <= 1), "%s as %s in %s", cases[i].right,
                  cases[i].strict, fd_op_name(cases[i].op));
        close_trial(&t);
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
