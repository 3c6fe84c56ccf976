/* GELU_MUL, GELU, SWIGLU_CLAMP, SCALE, SOFTCAP, RELU_SQUARED, SIGMOID, CLAMP. The rounding of the output is added by
 * fd_bound. */
#include "compare/bounds/internal.h"

/* tanh off by 3u of itself and its argument by 2u of itself: u·(3|tanh v| + 2|v|(1 − tanh² v)), and |v|(1 − tanh² v)
 * is at most |tanh v|. Then one product. Fast math takes tanh.approx, off by up to 2⁻¹⁶·⁷ of |tanh v| ≤ 0.2 on an H200 (2,844 values of a
 * sound run), here twice that. */
double fd_bound_capped(const fd_numerics_class *c, double before, double cap, double error) {
    const double tanh_v = fabs(tanh(before / cap)), own = c->fast_math ? fmax(0x1.4p-16, 5 * c->u_op) : 5 * c->u_op;
    return error + cap * own * tanh_v + cap * c->tiny_out;
}

/* cap·tanh(x / cap); its slope is at most 1. */
void fd_bound_softcap(const fd_bound_work *work) {
    double cap = (double)work->node->softcap;
    for (int64_t i = 0; i < work->op->n_pos * work->stride; i++)
        work->tau[i] = fd_bound_capped(work->c, work->in[0][i], cap, work->e[0][i]);
}

/* x·f, f stored in the class's type. */
void fd_bound_scale(const fd_bound_work *work) {
    double factor = fabs((double)work->node->scale);
    for (int64_t i = 0; i < work->op->n_pos * work->stride; i++)
        work->tau[i] = factor * work->e[0][i] + work->c->u_op * fabs(work->y[i]);
}

/* GELU's tanh form, ½g(1 + tanh v). 1 + tanh v cancels where g < 0, so an engine that computes it so is off by u·|g|
 * (in binary32 in most engines: `u`); the argument, three products and a sum, by 5u of itself, which moves the result by
 * |g|·2|v|σ(2v)σ(−2v). The result is rounded before it is multiplied. llama.cpp's CPU reads it from a table by the
 * argument in f16: a replay repeats that, but for values that lie between two of the table's. |d gelu/dg| ≤ 1.13.
 * Fast math takes tanh.approx, off by up to 2⁻¹⁷ of 1 on an H200 (6,100 values of a sound run), here twice that. */
static double gelu_error(const fd_numerics_class *c, double u, double g, double e, double *size) {
    double u_table = c->q8_activations || c->replays_inputs ? 0x1p-11 : 0;
    double tiny = u_table > 0 ? 0x1p-24 : c->tiny_out, e_g = e + u_table * fabs(g);
    double twice_v = g * (1.5957691216057308 + 0.0713548162726 * g * g), share = 1 / (1 + exp(-twice_v));
    double gelu = fabs(g) * share, own = u * fabs(g) * (3 + 5 * fabs(twice_v) * share * (1 - share));
    own += c->fast_math ? 0x1p-16 * fabs(g) / 2 : 0;
    if (!isfinite(own)) own = 3 * u * fabs(g); /* far out 2v overflows, and σ(2v)σ(−2v) is 0 */
    *size = gelu;
    return own + 2 * fmax(c->u_op, u_table) * gelu + 1.13 * e_g + tiny;
}

void fd_bound_gelu_mul(const fd_bound_work *work) {
    for (int64_t i = 0; i < work->op->n_pos * work->stride; i++) {
        double up = fabs(work->in[1][i]), e_up = work->e[1][i], gelu;
        double own = gelu_error(work->c, fmin(work->c->u_op, 0x1p-24), work->in[0][i], work->e[0][i], &gelu);
        work->tau[i] = own * (up + e_up) + gelu * e_up;
    }
}

/* transformers has it as one operation of PyTorch, in binary32, or, for gpt2, phi and bloom, as a formula whose every step is
 * a tensor of the class. */
void fd_bound_gelu(const fd_bound_work *work) {
    double gelu;
    for (int64_t i = 0; i < work->op->n_pos * work->stride; i++)
        work->tau[i] = gelu_error(work->c, work->c->u_op, work->in[0][i], work->e[0][i], &gelu);
}

/* max(x, 0)²: its one rounding is the output's. */
void fd_bound_relu_squared(const fd_bound_work *work) {
    for (int64_t i = 0; i < work->op->n_pos * work->stride; i++)
        work->tau[i] = (2 * fmax(work->in[0][i], 0) + work->e[0][i]) * work->e[0][i];
}

/* σ(x): an exponential off by ε = u·(4 + 3|x|) moves σ by at most ε·σ(−x) of it; then a sum and a quotient. |dσ/dx| ≤
 * ¼. */
void fd_bound_sigmoid(const fd_bound_work *work) {
    double u = work->c->u_op;
    for (int64_t i = 0; i < work->op->n_pos * work->stride; i++) {
        double x = work->in[0][i], share = 1 / (1 + exp(-x)), other = 1 / (1 + exp(x));
        double roundings = u * (3 + (4 + 3 * fabs(x)) * other);
        if (x < -88 && u >= 0x1p-24) roundings = 1; /* e^-x overflows binary32: the quotient is 0 */
        work->tau[i] = share * roundings + fd_bound_half_of_sigmoid(u) + work->e[0][i] / 4 + work->c->tiny_out;
    }
}

/* A limit stored in the class's type; what is cut off passes no error, and the bound does not use that. */
void fd_bound_clamp(const fd_bound_work *work) {
    double limit = (double)work->node->limit;
    for (int64_t i = 0; i < work->op->n_pos * work->stride; i++)
        work->tau[i] = work->e[0][i] + (fabs(work->in[0][i]) >= limit * 0.99 ? work->c->u_op * limit : 0);
}

/* s = g·σ(a·g), y = s·(u + 1). As for SiLU with the slope a: an exponential off by ε = u·(4 + 3a|g|) moves σ by at most
 * ε·σ(−ag) of it; u + 1 is rounded once. A sigmoid among the subnormals is off by `tiny`, and g multiplies that.
 * |ds/dg| ≤ 1.1 whatever a. Clamps pass no error that they cut off, and the bound does not use that. */
void fd_bound_swiglu_clamp(const fd_bound_work *work) {
    double limit = (double)work->node->limit, slope = (double)work->node->slope, u_op = work->c->u_op;
    double tiny = work->c->tiny_out;
    for (int64_t i = 0; i < work->op->n_pos * work->stride; i++) {
        double g = fmin(work->in[0][i], limit), u = fmax(fmin(work->in[1][i], limit), -limit), e_g = work->e[0][i];
        double share = 1 / (1 + exp(-slope * g)), s = fabs(g) * share, factor = fabs(u + 1), e_u = work->e[1][i];
        double roundings = u_op * (6 + (4 + 3 * slope * fabs(g)) * (1 - share));
        if (slope * g < -88 && u_op >= 0x1p-24) roundings = 1; /* e^-ag overflows binary32: the quotient is 0 */
        e_u += u_op * factor;
        work->tau[i] =
            s * factor * roundings + 1.1 * e_g * (factor + e_u) + s * e_u + tiny * ((1 + fabs(g)) * factor + 1);
    }
}
