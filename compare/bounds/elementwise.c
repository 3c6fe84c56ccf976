/* RMS_NORM, ROPE, SILU_MUL, ADD, KV_WRITE. The rounding of the output is added by fd_bound; an intermediate that falls
 * among the subnormals of the tensors' type is off by up to `tiny_out`, whatever u is. */
#include <omp.h>

#include "compare/bounds/internal.h"
#include "model/weight_rows.h"

/* y = x·r·w, r = (Σx²/n + eps)^-½. All terms of Σx² are positive, so its chain costs at most λ·u·√n of it (binary32
 * in every engine), and errors of x cost 2·λ·√Σ(x e)²; r takes half of that, relatively. Then three roundings and
 * one spare. */
void fd_bound_rms_norm(const fd_bound_work *work) {
    const fd_op_args *op = work->op;
    const fd_weight *weight = op->weight[0];
    int64_t n = weight->n_col;
    double lambda = fd_bound_lambda_of(work, n), u = work->c->u_op;
    double chain = lambda * sqrt((double)n) * fmin(u, 0x1p-24);
    int64_t n_row = op->n_pos * work->stride / n;
#pragma omp parallel for if (n_row * n > FD_BOUND_MANY / 4)
    for (int64_t row = 0; row < n_row; row++) {
        float *w = work->row + omp_get_thread_num() * work->longest;
        fd_weight_row(weight, row % weight->n_row, w);
        const double *x = work->in[0] + row * n, *e = work->e[0] + row * n, *y = work->y + row * n;
        double squares = 0, errors = 0;
        for (int64_t i = 0; i < n; i++) {
            squares += x[i] * x[i];
            errors += x[i] * x[i] * e[i] * e[i] + e[i] * e[i] * e[i] * e[i];
        }
        double whole = squares + (double)n * (double)work->node->eps, r = 1 / sqrt(whole / (double)n);
        double relative = chain / 2 + (errors > 0 ? lambda * sqrt(errors) / whole : 0) + 4 * u + 2 * 0x1p-53;
        for (int64_t i = 0; i < n; i++)
            work->tau[row * n + i] = fabs(y[i]) * relative + fabs((double)w[i]) * (r * e[i] + work->c->tiny_out);
    }
}

/* (a, b) → (a·c − b·s, a·s + b·c): three roundings of each product, and the table. Its entries are rounded to the
 * op's type, and an engine that makes the angle in binary32, multiplying frequencies up pair by pair, is off by (i +
 * 4)·u·angle at pair i.
 *
 * Fast math: sin.approx and cos.approx are off by 2^-20.5 up to 2π and by some 2^-23·angle beyond (PTX's 2^-14.7 at
 * 100π); pow is ex2.approx(i·lg2.approx(·)), 2^-22 in either, and the exponent, at most 20 bits, is rounded.
 *
 * Frequency factors divide the angle, which an engine rounds once more. YaRN: a quotient, the ramp's two ends and its
 * blend are eight more roundings of the angle, whose size is at most the unscaled one's. An attention factor
 * multiplies cos and sin: it grows what their errors do, and takes two roundings. */
void fd_bound_rope(const fd_bound_work *work) {
    const fd_op_args *op = work->op;
    const fd_rope *rope = &work->node->rope;
    int32_t n_head = work->node->shape[0], d = work->node->shape[1], half = rope->n_rot / 2;
    bool interleaved = rope->pairing == FD_ROPE_INTERLEAVED;
    double u = work->c->u_op, u_angle = u > 0x1p-24 ? 0x1p-24 : u;
    double factor = rope->attention_factor == 0 ? 1 : rope->attention_factor;
    int32_t more = (rope->scaling == FD_ROPE_SCALING_YARN ? 8 : 0) + (op->weight[0] != NULL);

    for (int64_t row = 0; row < op->n_pos; row++)
        for (int32_t i = 0; i < half; i++) {
            double angle = (double)(op->pos0 + row) * pow(rope->base, -2.0 * i / rope->n_rot);
            if (op->weight[0]) angle /= fabs((double)fd_weight_element(op->weight[0], i));
            double product = 4 * u + u_angle * (i + 4 + more) * angle;
            if (work->c->fast_math) product = 2 * u * fmax(angle, 8) + u_angle * (3 * i + 20 + more) * angle;
            if (factor != 1) product = factor * (product + 2 * u);
            const double *cosine = (const double *)op->rope_cos + (op->pos0 + row) * half;
            const double *sine = (const double *)op->rope_sin + (op->pos0 + row) * half;
            double c = fabs(cosine[i]), s = fabs(sine[i]);
            for (int32_t head = 0; head < n_head; head++) {
                int64_t at = (row * n_head + head) * d;
                int64_t first = at + (interleaved ? 2 * i : i), second = interleaved ? first + 1 : first + half;
                double a = fabs(work->in[0][first]), b = fabs(work->in[0][second]);
                double e_a = work->e[0][first], e_b = work->e[0][second];
                work->tau[first] = c * e_a + s * e_b + product * (a + b) + 2 * work->c->tiny_out;
                work->tau[second] = s * e_a + c * e_b + product * (a + b) + 2 * work->c->tiny_out;
            }
        }
    for (int64_t item = 0; item < (int64_t)op->n_pos * n_head; item++)
        for (int32_t i = 2 * half; i < d; i++) work->tau[item * d + i] = work->e[0][item * d + i];
}

/* g·σ(g)·up. An exponential off by ε moves σ by at most ε·σ(−g) of it, and ε = u·(4 + 3|g|); then a sum, a quotient, a
 * product. |d silu/dg| ≤ 1.1. */
void fd_bound_silu_mul(const fd_bound_work *work) {
    int64_t n = work->op->n_pos * work->stride;
#pragma omp parallel for if (n > FD_BOUND_MANY / 16)
    for (int64_t i = 0; i < n; i++) {
        double g = work->in[0][i], up = fabs(work->in[1][i]), u = work->c->u_op;
        double e_g = work->e[0][i], e_up = work->e[1][i], other = 1 / (1 + exp(g));
        double roundings = u * (5 + (4 + 3 * fabs(g)) * other);
        if (g < -88 && u >= 0x1p-24) roundings = 1; /* e^-g overflows binary32: the quotient is 0 */
        work->tau[i] = fabs(work->y[i]) * roundings + fabs(g) * up * fd_bound_half_of_sigmoid(u) +
                       1.1 * e_g * (up + e_up) + fabs(g) * (1 - other) * e_up + work->c->tiny_out * up;
    }
}

/* One addition; its rounding is the output's. Where what is added was a product (by a norm's weight, a scale), a fused multiply-add takes it
 * before it is rounded to what is recorded: XLA, and C compilers where both are in one loop. */
void fd_bound_add(const fd_bound_work *work) {
    const double u = fmin(work->c->u_op, 0x1p-24);
    for (int64_t i = 0; i < work->op->n_pos * work->stride; i++)
        work->tau[i] = work->e[0][i] + work->e[1][i] + u * (fabs(work->in[0][i]) + fabs(work->in[1][i]));
}

/* A copy. */
void fd_bound_kv_write(const fd_bound_work *work) {
    if (work->args->kv_type == FD_BF16) {
        const int64_t n = work->op->n_pos * work->stride;
        for (int64_t i = 0; i < n; i++) work->tau[i] = work->e[0][i];
        fd_bound_bf16_flips(work->in[0], work->e[0], n, work->tau);
        return;
    }
    if (fd_kv_is_quantised(work->args->kv_type)) {
        int64_t n = work->op->n_pos * work->stride;
        fd_bound_kv_flips(work->in[0], work->e[0], n, work->args->kv_type, work->tau);
        for (int64_t i = 0; i < n; i++) work->tau[i] += 2 * 0x1p-24 * fabs(work->y[i]);
        return;
    }
    for (int64_t i = 0; i < work->op->n_pos * work->stride; i++) work->tau[i] = work->e[0][i];
}
