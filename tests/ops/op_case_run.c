#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "model/gguf/quant.h"
#include "numerics/contract.h"
#include "tests/ops/op_case_parts.h"

enum { UNTOUCHED = 0x7fedcba9 }; /* a NaN that no op makes */

float *case_run(const op_case *c, const fd_ref_ops *ops, int n_part) {
    fd_op_args args = c->args;
    float *out = case_own(c, sizeof *out * (size_t)c->n_out);
    for (int64_t i = 0; i < c->n_out; i++) out[i] = fd_from_bits32(UNTOUCHED);
    args.out = out;
    int64_t items = fd_ref_cost_of(&args).items;
    for (int part = 0; part < n_part; part++)
        ops->run[c->nodes[2].op](&args, items * part / n_part, items * (part + 1) / n_part);
    return out;
}

float *case_run_scalar(const op_case *c) {
    fd_ref_ops ops = fd_ref_select(FD_NUMERICS_EXACT, FD_ISA_BASELINE, true);
    return case_run(c, &ops, 1);
}

void case_expect_twins(const op_case *c, fd_numerics numerics, const int *n_parts, const char *what) {
    fd_ref_ops scalar = fd_ref_select(numerics, FD_ISA_BASELINE, true);
    float *expected = case_run(c, &scalar, 1);
    for (int isa = 0; isa <= (int)fd_isa_best(); isa++) {
        fd_ref_ops ops = fd_ref_select(numerics, (fd_isa)isa, false);
        for (const int *parts = n_parts; *parts; parts++) {
            int64_t n = bits_differ(case_run(c, &ops, *parts), expected, c->n_out);
            cr_expect_eq(n, 0, "%s, %s in %d parts: %lld of %lld outputs differ from the scalar definition", what,
                         fd_isa_name((fd_isa)isa), *parts, (long long)n, (long long)c->n_out);
        }
    }
}

static double *widen(const op_case *c, const float *x, int64_t n) {
    double *y = case_own(c, sizeof *y * (size_t)n);
    for (int64_t i = 0; i < n; i++) y[i] = (double)x[i];
    return y;
}

/* The case's arguments in binary64, with an output of NaN. */
static fd_op_args wide_args(const op_case *c) {
    fd_op_args args = c->args;
    int64_t table = (int64_t)c->args.n_kv * (c->nodes[2].rope.n_rot / 2);
    double *cosine = case_own(c, sizeof *cosine * (size_t)table), *sine = case_own(c, sizeof *sine * (size_t)table);
    double *out = case_own(c, sizeof *out * (size_t)c->n_out);
    for (int i = 0; i < 2; i++) args.in[i] = widen(c, c->in[i], c->n_in[i]);
    if (table) fd_rope_table_f64(&c->nodes[2].rope, NULL, 0, c->args.n_kv, cosine, sine);
    args.rope_cos = cosine;
    args.rope_sin = sine;
    for (int64_t i = 0; i < c->n_out; i++) out[i] = NAN;
    args.out = out;
    return args;
}

double *case_run_f64(const op_case *c) {
    fd_op_args args = wide_args(c);
    fd_reference_op(FD_NUMERICS_F64, &args);
    return args.out;
}

static double *run_f64_with(const op_case *c, fd_isa isa, bool scalar, int n_part) {
    fd_op_args args = wide_args(c);
    fd_ref_ops ops = fd_ref_select(FD_NUMERICS_F64, isa, scalar);
    int64_t items = fd_ref_cost_of(&args).items;
    for (int part = 0; part < n_part; part++)
        ops.run[c->nodes[2].op](&args, items * part / n_part, items * (part + 1) / n_part);
    return args.out;
}

void case_expect_f64_twins(const op_case *c, const int *n_parts, const char *what) {
    const double *expected = run_f64_with(c, FD_ISA_BASELINE, true, 1);
    for (int isa = 0; isa <= (int)fd_isa_best(); isa++)
        for (const int *parts = n_parts; *parts; parts++) {
            const double *found = run_f64_with(c, (fd_isa)isa, false, *parts);
            for (int64_t i = 0; i < c->n_out; i++) {
                bool same = memcmp(&found[i], &expected[i], sizeof *found) == 0;
                cr_assert(same || (isnan(found[i]) && isnan(expected[i])),
                          "%s, %s in %d parts: output %lld is %.17g, not %.17g", what, fd_isa_name((fd_isa)isa), *parts,
                          (long long)i, found[i], expected[i]);
            }
        }
}

int64_t bits_differ(const float *a, const float *b, int64_t n) {
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++) count += fd_canonical32(a[i]) != fd_canonical32(b[i]);
    return count;
}

float *case_weight_row(const op_case *c, int weight, int64_t row) {
    const fd_weight *w = &c->weights[weight];
    float *values = case_own(c, sizeof *values * (size_t)w->n_col);
    fd_dequantize_row(w->dtype, (const char *)w->data + row * fd_dtype_row_bytes(w->dtype, w->n_col), values, w->n_col);
    return values;
}
