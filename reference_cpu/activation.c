/* SILU_MUL and ADD: element by element; positions lie behind each other, so an item is an element of the whole batch. */
#include "reference_cpu/real.h"

/* (x / (1 + e^-x))·up: silu is rounded before it is multiplied. */
void REF(silu_mul)(const fd_op_args *args, int64_t begin, int64_t end) {
    const real *gate = args->in[0], *up = args->in[1];
    real *y = args->out;
    for (int64_t i = begin; i < end; i++) y[i] = real_silu(gate[i]) * up[i];
}

void REF(add)(const fd_op_args *args, int64_t begin, int64_t end) {
    const real *a = args->in[0], *b = args->in[1];
    real *y = args->out;
    for (int64_t i = begin; i < end; i++) y[i] = a[i] + b[i];
}
