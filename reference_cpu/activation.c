/* SILU_MUL, GELU_MUL, SWIGLU_CLAMP, ADD, SCALE, SOFTCAP, GELU, RELU_SQUARED, SIGMOID, CLAMP, SILU, SOFTPLUS, EXP, MUL:
 * element by element; positions lie behind each other, so an item is an element of the whole batch. */
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

/* gelu is rounded before it is multiplied. */
void REF(gelu_mul)(const fd_op_args *args, int64_t begin, int64_t end) {
    const real *gate = args->in[0], *up = args->in[1];
    real *y = args->out;
    for (int64_t i = begin; i < end; i++) y[i] = real_gelu(gate[i]) * up[i];
}

/* (g·σ(slope·g))·(u + 1) with g at most the limit and u within ± the limit; NaN stays NaN. */
void REF(swiglu_clamp)(const fd_op_args *args, int64_t begin, int64_t end) {
    const real *gate = args->in[0], *up = args->in[1];
    real *y = args->out, limit = (real)args->node->limit, slope = (real)args->node->slope;
    for (int64_t i = begin; i < end; i++) {
        real g = gate[i] > limit ? limit : gate[i];
        real u = up[i] > limit ? limit : up[i] < -limit ? -limit : up[i];
        y[i] = real_swish(g, slope) * (u + 1);
    }
}

void REF(scale)(const fd_op_args *args, int64_t begin, int64_t end) {
    const real *x = args->in[0];
    real *y = args->out, factor = (real)args->node->scale;
    for (int64_t i = begin; i < end; i++) y[i] = x[i] * factor;
}

void REF(softcap)(const fd_op_args *args, int64_t begin, int64_t end) {
    const real *x = args->in[0];
    real *y = args->out, cap = (real)args->node->softcap;
    for (int64_t i = begin; i < end; i++) y[i] = real_softcap(x[i], cap);
}

void REF(gelu)(const fd_op_args *args, int64_t begin, int64_t end) {
    const real *x = args->in[0];
    real *y = args->out;
    for (int64_t i = begin; i < end; i++) y[i] = real_gelu(x[i]);
}

/* NaN stays NaN. */
void REF(relu_squared)(const fd_op_args *args, int64_t begin, int64_t end) {
    const real *x = args->in[0];
    real *y = args->out;
    for (int64_t i = begin; i < end; i++) y[i] = x[i] < 0 ? 0 : x[i] * x[i];
}

void REF(sigmoid)(const fd_op_args *args, int64_t begin, int64_t end) {
    const real *x = args->in[0];
    real *y = args->out;
    for (int64_t i = begin; i < end; i++) y[i] = real_sigmoid(x[i]);
}

void REF(silu)(const fd_op_args *args, int64_t begin, int64_t end) {
    const real *x = args->in[0];
    real *y = args->out;
    for (int64_t i = begin; i < end; i++) y[i] = real_silu(x[i]);
}

void REF(softplus)(const fd_op_args *args, int64_t begin, int64_t end) {
    const real *x = args->in[0];
    real *y = args->out;
    for (int64_t i = begin; i < end; i++) y[i] = real_softplus(x[i]);
}

void REF(clamp)(const fd_op_args *args, int64_t begin, int64_t end) {
    const real *x = args->in[0];
    real *y = args->out, limit = (real)args->node->limit;
    for (int64_t i = begin; i < end; i++) y[i] = x[i] > limit ? limit : x[i] < -limit ? -limit : x[i];
}

void REF(exp)(const fd_op_args *args, int64_t begin, int64_t end) {
    const real *x = args->in[0];
    real *y = args->out;
    for (int64_t i = begin; i < end; i++) y[i] = real_exp(x[i]);
}

/* b is as wide as a, or has one element a head. */
void REF(mul)(const fd_op_args *args, int64_t begin, int64_t end) {
    const real *a = args->in[0], *b = args->in[1];
    real *y = args->out;
    int64_t each = fd_node_width(args->node) / fd_node_width(fd_ref_input(args, 1));
    for (int64_t i = begin; i < end; i++) y[i] = a[i] * b[i / each];
}
