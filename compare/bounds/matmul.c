/* MATMUL and EMBED: the ops that read a weight matrix. */
#include <stdlib.h>

#include "compare/bounds/dot_inputs.h"
#include "compare/bounds/internal.h"
#include "compare/products/products.h"
#include "model/weight_rows.h"

enum { MOST_SUMS = 1 << 20 }; /* that are held at once: 16 MiB */

/* τ = λ·u_acc·√n·S + λ·√Σ (w²(e² + (u_w x)²) + (t x)²), S = Σ|x||w|, t half the spacing of the subnormals that a
 * rounded weight may fall among. The bias: the dot and the bias are each rounded once before they are added. A class
 * whose inputs are cut has a mean error of up to u for each of the two factors. */
void fd_bound_of_products(const fd_bound_work *work, const fd_bound_products *p) {
    const fd_weight *w = p->weight;
    const fd_numerics_class *c = work->c;
    int64_t n = w->n_col, n_pos = p->n_pos, most = MOST_SUMS / n_pos;
    double lambda = fd_bound_lambda_of(work, n), u_w = fd_bound_rounding(c, fd_bound_weight_roundoff(c, w));
    double u_acc = w->dtype == FD_F16 ? fmax(c->u_acc, c->u_acc_f16) : c->u_acc;
    bool cut = c->in_truncates && (!c->q8_activations || (w->dtype == FD_F32 && !w->requantised));
    double typical = fd_bound_typical_chain(work, u_acc, n);
    double u_chain = c->typical ? 0 : lambda * u_acc * sqrt((double)n), u_mean = cut ? 2 * c->u_in : 0;
    double t = u_w > 0 ? c->tiny_in / 2 : 0, *size = work->scratch, *variance = size + n_pos * n;
    if (most < 1) most = 1;
    if (most > p->n_out) most = p->n_out;
    double *sums = malloc(2 * sizeof *sums * (size_t)(n_pos * most)), *squares = sums + n_pos * most;
    fd_code code = sums ? FD_OK : fd_fail(work->err, FD_ERR_MEMORY, "%s: bounds: out of memory", work->node->name);

    for (int64_t k = 0; k < n_pos * n; k++) {
        double x = p->x[k], e = p->e[k];
        size[k] = fabs(x);
        variance[k] = e * e + (u_w * u_w + typical * typical) * x * x;
    }
    double *flushed = variance + n_pos * n; /* [n_pos] */
    for (int64_t r = 0; r < n_pos; r++) {
        flushed[r] = 0;
        for (int64_t k = 0; k < n; k++) flushed[r] += t * t * size[r * n + k] * size[r * n + k];
    }
    for (int64_t first = 0; first < p->n_out && code == FD_OK; first += most) {
        int64_t n_row = p->n_out - first < most ? p->n_out - first : most;
        fd_product rows = {.weight = w, .first_row = p->first_row + first, .n_row = n_row, .n_pos = n_pos};
        code = fd_products_weigh(work->args->device, work->args->memo, &rows, size, variance, sums, squares, work->err);
#pragma omp parallel for schedule(static) if (n_row * n_pos > FD_BOUND_MANY / 64)
        for (int64_t r = 0; r < n_row * (code == FD_OK); r++) {
            float bias = p->bias ? fabsf(fd_weight_row_element(p->bias, p->bias_row, first + r)) : 0;
            for (int64_t pos = 0; pos < n_pos; pos++) {
                int64_t at = pos * p->n_out + first + r;
                double y = fabs(p->y[at]);
                /* as a rule one rounding more: it is added within the product, or to what was rounded */
                const double of_bias = c->typical ? FD_BOUND_TYPICAL * y : y + 2 * (double)bias;
                p->tau[at] = u_chain * sums[pos * n_row + r] + lambda * sqrt(squares[pos * n_row + r] + flushed[pos]) +
                             (u_mean + typical) * y + (bias > 0 ? c->u_out * of_bias : 0);
            }
        }
    }
    free(sums);
    if (code != FD_OK) *work->code = code;
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

/* The largest of the row's block that holds element i. */
static double most_of_block(const double *y, int64_t n, int64_t i, int64_t block) {
    double most = 0;
    for (int64_t k = i - i % block; k < n && k < i - i % block + block; k++) most = fmax(most, fabs(y[k]));
    return most;
}

/* A row of the table: exact but for the rounding of the output. Formats with a minimum (d·q − m) are dequantised in
 * different orders by different engines: their rounding is that of the row's largest value. The others' products have
 * no more bits than binary32 in any order. An engine of binary16 keeps a format's scales as they are and may
 * dequantise in binary16: as scale·q + bias with q counted from 0 (MLX) the product is up to twice the block's largest
 * value, and it is rounded. */
void fd_bound_embed(const fd_bound_work *work) {
    uint32_t dtype = work->op->weight[0]->dtype;
    bool integers = fd_dot_is_of_integers(work->op->weight[0]);
    bool with_minimum = integers && dtype != FD_Q8_0 && dtype != FD_Q4_0 && dtype != FD_Q5_0 && dtype != FD_Q3_K &&
                        !fd_has_codes(dtype);
    const double f16 = fd_dtype_roundoff(FD_F16);
    const bool in_f16 = integers && work->c->u_op == f16 && work->c->u_out == f16;
    const int64_t block = fd_dtype_get(dtype)->block_elements;
    for (int64_t r = 0; r < work->op->n_pos; r++) {
        const double *y = work->y + r * work->stride;
        double most = 0;
        for (int64_t i = 0; i < work->stride; i++) most = fmax(most, fabs(y[i]));
        for (int64_t i = 0; i < work->stride; i++)
            work->tau[r * work->stride + i] = work->c->u_op * fabs(y[i]) + (with_minimum ? 4 * 0x1p-24 * most : 0) +
                                              (in_f16 ? 2 * f16 * most_of_block(y, work->stride, i, block) : 0);
    }
}
