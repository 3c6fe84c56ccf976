/* SILU_MUL, GELU_MUL, SWIGLU_CLAMP, ADD, SCALE, SOFTCAP, GELU, RELU_SQUARED, SIGMOID, CLAMP, SILU, SOFTPLUS, EXP, MUL:
 * element by element; positions lie behind each other, so an item is an element of the whole batch. */
#include "reference_cpu/real.h"

/* An op that makes each element of one of x, or of a and b. */
#define MAP(op, formula)                                                                                               \
    void REF(op)(const fd_op_args *args, int64_t begin, int64_t end) {                                                 \
        const real *in = args->in[0];                                                                                  \
        real *y = args->out;                                                                                           \
        for (int64_t i = begin; i < end; i++) {                                                                        \
            const real x = in[i];                                                                                      \
            y[i] = formula;                                                                                            \
        }                                                                                                              \
    }
#define MAP2(op, formula)                                                                                              \
    void REF(op)(const fd_op_args *args, int64_t begin, int64_t end) {                                                 \
        const real *in = args->in[0], *with = args->in[1];                                                             \
        real *y = args->out;                                                                                           \
        for (int64_t i = begin; i < end; i++) {                                                                        \
            const real a = in[i], b = with[i];                                                                         \
            y[i] = formula;                                                                                            \
        }                                                                                                              \
    }

/* (x / (1 + e^-x))·up: silu is rounded before it is multiplied. */
MAP2(silu_mul, real_silu(a) * b)

MAP2(add, a + b)

/* gelu is rounded before it is multiplied. */
MAP2(gelu_mul, real_gelu(a) * b)

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

MAP(gelu, real_gelu(x))

/* NaN stays NaN. */
MAP(relu_squared, x < 0 ? 0 : x * x)

MAP(sigmoid, real_sigmoid(x))

MAP(silu, real_silu(x))

MAP(softplus, real_softplus(x))

void REF(clamp)(const fd_op_args *args, int64_t begin, int64_t end) {
    const real *x = args->in[0];
    real *y = args->out, limit = (real)args->node->limit;
    for (int64_t i = begin; i < end; i++) y[i] = x[i] > limit ? limit : x[i] < -limit ? -limit : x[i];
}

MAP(exp, real_exp(x))

/* b is as wide as a, or has one element a head. */
void REF(mul)(const fd_op_args *args, int64_t begin, int64_t end) {
    const real *a = args->in[0], *b = args->in[1];
    real *y = args->out;
    int64_t each = fd_node_width(args->node) / fd_node_width(fd_ref_input(args, 1));
    for (int64_t i = begin; i < end; i++) y[i] = a[i] * b[i / each];
}
