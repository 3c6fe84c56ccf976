/* Bugs of precision: the factors of a matrix product go through a coarser type where binary32 was meant (a default of a
 * library, a cast left in). Sums and results stay binary32. Beside a class of engines that is as coarse itself these
 * are no bugs: info.u_in says how coarse they are, and the explanations look at it. */
#include "faults/internal.h"

#include <math.h>
#include <stdlib.h>

#include "numerics/contract.h"

typedef float (*round_fn)(float x);

/* TF32 keeps 10 of the 23 bits of the mantissa. */
enum { TF32_DROPPED = 13 };

/* To nearest, ties to even: cvt.rn.tf32 of sm_90; cvt.rna of older GPUs differs in ties alone. */
static float to_tf32(float x) {
    uint32_t bits = fd_bits32(x);
    if (!isfinite(x)) return x;
    bits += (1u << (TF32_DROPPED - 1)) - 1 + (bits >> TF32_DROPPED & 1);
    return fd_from_bits32(bits >> TF32_DROPPED << TF32_DROPPED);
}

/* Tensor cores that are given binary32 do not look at the lower bits. A NaN keeps its quiet bit, which is the
 * highest. */
static float cut_to_tf32(float x) {
    return fd_from_bits32(fd_bits32(x) >> TF32_DROPPED << TF32_DROPPED);
}

static void round_all(float *to, const float *from, int64_t n, round_fn round) {
    for (int64_t i = 0; i < n; i++) to[i] = round(from[i]);
}

/* y = dot(round(W), round(x)) + b. */
static void product(const fd_op_args *args, round_fn round) {
    const fd_weight *w = args->weight[0];
    int64_t n_x = args->n_pos * w->n_col;
    float *bias = args->weight[1] ? fd_fault_row(args->weight[1], 0) : NULL;
    float *x = malloc(sizeof *x * (size_t)n_x);
    if (!x || (args->weight[1] && !bias)) {
        fd_fault_nan(args, w->n_row);
        free(x);
        free(bias);
        return;
    }
    round_all(x, args->in[0], n_x, round);
    for (int64_t o = 0; o < w->n_row; o++) {
        float *row = fd_fault_row(w, o);
        if (row) round_all(row, row, w->n_col, round);
        for (int32_t r = 0; r < args->n_pos; r++) {
            float *y = (float *)args->out + r * w->n_row + o;
            *y = row ? fd_fault_dot(row, x + r * w->n_col, w->n_col) : NAN;
            if (bias) *y = *y + bias[o];
        }
        free(row);
    }
    free(x);
    free(bias);
}

FD_OVERRIDE(in_tf32, product(args, to_tf32))
FD_OVERRIDE(in_cut_tf32, product(args, cut_to_tf32))
FD_OVERRIDE(in_f16, product(args, fd_fault_to_f16))
FD_OVERRIDE(in_bf16, product(args, fd_fault_to_bf16))

#define NUMERICS(name, u, summary) .info = {name, "numerics", summary, "attn_q", false, u}, .op = FD_OP_MATMUL

static const fd_fault rows[] = {
    {NUMERICS("tf32_compute", 0x1p-11, "factors of products are rounded to TF32 where binary32 was meant"),
     .override = in_tf32},
    {NUMERICS("tf32_cut", 0x1p-11, "factors of products are cut to TF32, not rounded, where binary32 was meant"),
     .override = in_cut_tf32},
    {NUMERICS("f16_compute", 0x1p-11, "factors of products are rounded to binary16 where binary32 was meant"),
     .override = in_f16},
    {NUMERICS("bf16_compute", 0x1p-8, "factors of products are rounded to bfloat16 where binary32 was meant"),
     .override = in_bf16},
};
const fd_fault_family fd_numerics_faults = FD_FAULT_FAMILY(rows);
