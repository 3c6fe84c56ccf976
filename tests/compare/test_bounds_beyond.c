/* Beyond the bounds: the smallest faults worth finding, in every candidate class. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/gguf/quant.h"
#include "reference_cpu/reference.h"
#include "tests/compare/bounds_trial.h"

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

Test(bounds_beyond, the_smallest_faults_worth_finding_are_beyond) {
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

Test(bounds_beyond, no_op_is_without_a_smallest_fault) {
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

Test(bounds_beyond, a_new_nan_or_inf_is_beyond_in_every_op_and_class) {
    for (int32_t i = 0; fd_numerics_class_at(i); i++)
        for (fd_op op = 0; op < FD_OP_COUNT; op++) {
            cr_expect_eq(detected(op, fd_numerics_class_at(i)->name, becomes_nan), 1.0, "%s", fd_op_name(op));
            cr_expect_eq(detected(op, fd_numerics_class_at(i)->name, becomes_inf), 1.0, "%s", fd_op_name(op));
        }
}

/* The margin decides: a flip between near ties, or another order, is rounding; anything else is not. */
Test(bounds_beyond, choices_of_experts_may_differ_where_the_margin_is_small) {
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

Test(bounds_beyond, a_class_that_is_too_strict_is_exceeded) {
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
