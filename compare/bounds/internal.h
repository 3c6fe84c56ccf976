/* Between the files bounds*.c: one function an op, from ops.def, so that an op without a bound does not link. */
#ifndef FD_COMPARE_BOUNDS_INTERNAL_H
#define FD_COMPARE_BOUNDS_INTERNAL_H

#include <math.h>

#include "compare/bounds/bounds.h"
#include "model/gguf/quant.h"

/* Operations from which threads are worth waking. Every element is computed by itself, so their number changes
 * nothing. */
enum { FD_BOUND_MANY = 1 << 20 };

typedef struct fd_bound_work {
    const fd_bound_args *args;
    const fd_op_args *op;
    const fd_node *node;
    const fd_numerics_class *c;      /* of this op */
    const fd_numerics_class *inside; /* of what a fused attention keeps to itself; `c` where nothing is fused */
    const double *in[FD_MAX_INPUTS];
    const double *e[FD_MAX_INPUTS]; /* laid out as in[i], the class's rounding of inputs included; never NULL */
    const double *y;                /* replayed rows */
    int64_t stride;                 /* of y and tau */
    float *row;                     /* [threads, longest]: room for a row of weights */
    int64_t longest;
    fd_code *code; /* FD_OK until a product fails, which `err` describes */
    fd_error *err;
    double *scratch; /* products: [2, n_pos, as many], then [n_pos]; EXPERT_WEIGHTS: [2, chosen] */
    double *tau;     /* without the rounding of the output, which fd_bound adds */
} fd_bound_work;

#define FD_OP(ENUM, name, n_input, summary) void fd_bound_##name(const fd_bound_work *work);
#include "model/ops.def"
#undef FD_OP

/* llama.cpp multiplies the minimum of Q4_1 and Q5_1 with the sum of a block of activations, which Q8_1 keeps in binary16,
 * whatever the device: an error that 32 elements share. Of w = d·q + m the two terms have up to 2.5 times the root mean
 * square of w. */
#define FD_BOUND_U_OF_SUMS (2.5 * 0x1p-11 * sqrt(32))
static inline bool fd_bound_has_sums(uint32_t dtype) {
    return dtype == FD_Q4_1 || dtype == FD_Q5_1;
}

/* λ for sums of n terms. */
static inline double fd_bound_lambda_of(const fd_bound_work *work, int64_t n) {
    return work->c->typical ? 1 : fd_bound_lambda((double)n, work->args->n_output);
}

/* Root mean square of a rounding to nearest, in u·|x|: half a unit in the last place is u·|x| or down to half of that. */
#define FD_BOUND_TYPICAL 0.42

/* A rounding by u at most. */
static inline double fd_bound_rounding(const fd_numerics_class *c, double u) {
    return c->typical ? FD_BOUND_TYPICAL * u : u;
}

/* A typical class: what n additions leave of each product and of the result, each rounded by u: their partial sums are a walk
 * to the result, √(n/2) as large as a product on the average. Else 0. */
static inline double fd_bound_typical_chain(const fd_bound_work *work, double u, int64_t n) {
    return work->c->typical ? FD_BOUND_TYPICAL * u * sqrt((double)n / 2) : 0;
}

/* What cap·tanh(before / cap) is off by, `before` by `error`; without the rounding of the result. */
double fd_bound_capped(const fd_numerics_class *c, double before, double cap, double error);

/* Some rows of a matrix times n_pos vectors. */
typedef struct fd_bound_products {
    const fd_weight *weight, *bias; /* bias NULL: none */
    int64_t first_row, bias_row;    /* rows [first_row, first_row + n_out) of weight; row bias_row of bias */
    int64_t n_out, n_pos;
    const double *x, *e; /* [n_pos, n_col] */
    const double *y;     /* [n_pos, n_out], replayed */
    double *tau;         /* [n_pos, n_out] */
} fd_bound_products;
void fd_bound_of_products(const fd_bound_work *work, const fd_bound_products *products);

/* Unit roundoff of weights that a float dot product rounds: none where the class's inputs hold the weight's type. */
double fd_bound_weight_roundoff(const fd_numerics_class *numerics, const fd_weight *weight);

/* What σ(x) may be off by, however small it is: engines that take it as ½ + ½·tanh(x/2) (XLA), or as ½ and a rational function (ONNX Runtime),
 * subtract numbers of up to ½ in binary32: two of its roundings there, which are a unit. (ONNX Runtime's largest error was 0.7 of it.) */
static inline double fd_bound_half_of_sigmoid(double u) {
    return fmin(u, 0x1p-24);
}

#endif
