/* MATMUL and EMBED: the ops that read a weight matrix. */
#include <omp.h>

#include "base/clones.h"
#include "compare/bounds/internal.h"

/* Σ|w||x| and Σ w²v in eight partial sums, so that a compiler can vectorise them. */
FD_FOR_EACH_CPU
static void weigh(const float *w, const double *size, const double *variance, int64_t n, double *sum, double *square) {
    double s[8] = {0}, q[8] = {0};
    int64_t k = 0;
    for (; k + 8 <= n; k += 8)
        for (int j = 0; j < 8; j++) {
            double a = fabs((double)w[k + j]);
            s[j] += a * size[k + j];
            q[j] += a * a * variance[k + j];
        }
    for (; k < n; k++) {
        double a = fabs((double)w[k]);
        s[0] += a * size[k];
        q[0] += a * a * variance[k];
    }
    *sum = ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
    *square = ((q[0] + q[1]) + (q[2] + q[3])) + ((q[4] + q[5]) + (q[6] + q[7]));
}

static float bias_of(const fd_bound_products *p, int64_t i) {
    if (!p->bias) return 0;
    int64_t block = fd_dtype_get(p->bias->dtype)->block_elements, first = i - i % block;
    int64_t row_bytes = fd_dtype_row_bytes(p->bias->dtype, p->bias->n_col);
    const char *data = (const char *)p->bias->data + p->bias_row * row_bytes;
    float values[256];
    fd_dequantize_row(p->bias->dtype, data + fd_dtype_row_bytes(p->bias->dtype, first), values, block);
    return values[i - first];
}

/* τ = λ·u_acc·√n·S + λ·√Σ (w²(e² + (u_w x)²) + (t x)²), S = Σ|x||w|, t half the spacing of the subnormals that a
 * rounded weight may fall among. The bias: the dot and the bias are each rounded once before they are added. A class
 * whose inputs are cut has a mean error of up to u for each of the two factors. */
void fd_bound_of_products(const fd_bound_work *work, const fd_bound_products *p) {
    const fd_weight *w = p->weight;
    const fd_numerics_class *c = work->c;
    int64_t n = w->n_col, row_bytes = fd_dtype_row_bytes(w->dtype, n);
    double lambda = fd_bound_lambda_of(work, n), u_w = fd_bound_weight_roundoff(c, w->dtype);
    double u_acc = w->dtype == FD_F16 ? fmax(c->u_acc, c->u_acc_f16) : c->u_acc;
    bool cut = c->in_truncates && (!c->q8_activations || w->dtype == FD_F32);
    double u_chain = lambda * u_acc * sqrt((double)n), u_mean = cut ? 2 * c->u_in : 0;
    double t = u_w > 0 ? c->tiny_in / 2 : 0, *size = work->scratch, *variance = size + p->n_pos * n;

    for (int64_t k = 0; k < p->n_pos * n; k++) {
        double x = p->x[k], e = p->e[k];
        size[k] = fabs(x);
        variance[k] = e * e + u_w * u_w * x * x;
    }
    double *flushed = variance + p->n_pos * n; /* [n_pos] */
    for (int64_t r = 0; r < p->n_pos; r++) {
        flushed[r] = 0;
        for (int64_t k = 0; k < n; k++) flushed[r] += t * t * size[r * n + k] * size[r * n + k];
    }
#pragma omp parallel for schedule(static) if (p->n_out * n * p->n_pos > FD_BOUND_MANY)
    for (int64_t o = 0; o < p->n_out; o++) { /* rows outside: each is dequantised once */
        double bias = fabs((double)bias_of(p, o));
        float *row = work->row + omp_get_thread_num() * work->longest;
        fd_dequantize_row(w->dtype, (const char *)w->data + (p->first_row + o) * row_bytes, row, n);
        for (int64_t r = 0; r < p->n_pos; r++) {
            double sum, square, y = fabs(p->y[r * p->n_out + o]);
            weigh(row, size + r * n, variance + r * n, n, &sum, &square);
            p->tau[r * p->n_out + o] = u_chain * sum + lambda * sqrt(square + flushed[r]) + u_mean * y +
                                       (bias > 0 ? c->u_out * (y + 2 * bias) : 0);
        }
    }
}

void fd_bound_matmul(const fd_bound_work *work) {
    const fd_op_args *op = work->op;
    fd_bound_products whole = {.weight = op->weight[0],
                               .bias = op->weight[1],
                               .n_out = op->weight[0]->n_row,
                               .n_pos = op->n_pos,
                               .x = work->in[0],
                               .e = work->e[0],
                               .y = work->y,
                               .tau = work->tau};
    fd_bound_of_products(work, &whole);
}

/* A row of the table: exact but for the rounding of the output. Formats with a minimum (d·q − m) are dequantised in
 * different orders by different engines: their rounding is that of the row's largest value. The others' products have
 * no more bits than binary32 in any order. */
void fd_bound_embed(const fd_bound_work *work) {
    uint32_t dtype = work->op->weight[0]->dtype;
    bool with_minimum = fd_dtype_get(dtype)->is_quantised && dtype != FD_Q8_0 && dtype != FD_Q4_0 && dtype != FD_Q5_0 &&
                        dtype != FD_Q3_K && !fd_has_codes(dtype);
    for (int64_t r = 0; r < work->op->n_pos; r++) {
        const double *y = work->y + r * work->stride;
        double most = 0;
        for (int64_t i = 0; i < work->stride; i++) most = fmax(most, fabs(y[i]));
        for (int64_t i = 0; i < work->stride; i++)
            work->tau[r * work->stride + i] = work->c->u_op * fabs(y[i]) + (with_minimum ? 4 * 0x1p-24 * most : 0);
    }
}
