/* MATMUL and EMBED: the ops that read a weight matrix. */
#include <omp.h>
#include <string.h>

#include "base/clones.h"
#include "compare/bounds/internal.h"

enum { ROWS = FD_BOUND_ROWS, PAIR = 2 };

typedef double eight __attribute__((vector_size(64)));
typedef int64_t eight_bits __attribute__((vector_size(64)));
typedef float eight_floats __attribute__((vector_size(32)));

typedef struct weighed {
    double size[PAIR][ROWS], square[PAIR][ROWS];
} weighed;

static inline double total_of(const eight *of) {
    const eight sums = *of;
    return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

/* Σ|w||x| and, with `squares`, Σ w²v of ROWS rows of weights, `longest` apart, and PAIR positions, n apart. Each sum is eight
 * partial ones, the lanes of a vector. */
static inline __attribute__((always_inline)) void weigh(const float *w, int64_t longest, const double *const size[PAIR],
                                                        const double *const variance[PAIR], int64_t n, bool squares,
                                                        weighed *out) {
    eight s[PAIR][ROWS] = {{{0}}}, q[PAIR][ROWS] = {{{0}}};
    int64_t whole = n - n % 8;
    for (int64_t k = 0; k < whole; k += 8) {
        eight x[PAIR], v[PAIR];
#pragma GCC unroll 2
        for (int p = 0; p < PAIR; p++) {
            memcpy(&x[p], size[p] + k, sizeof x[p]);
            if (squares) memcpy(&v[p], variance[p] + k, sizeof v[p]);
        }
#pragma GCC unroll 4
        for (int r = 0; r < ROWS; r++) {
            eight_floats narrow;
            memcpy(&narrow, w + r * longest + k, sizeof narrow);
            eight a = (eight)((eight_bits) __builtin_convertvector(narrow, eight) & INT64_MAX); /* fabs */
#pragma GCC unroll 2
            for (int p = 0; p < PAIR; p++) {
                s[p][r] += a * x[p];
                if (squares) q[p][r] += a * a * v[p];
            }
        }
    }
    for (int p = 0; p < PAIR; p++)
        for (int r = 0; r < ROWS; r++) {
            for (int64_t k = whole; k < n; k++) {
                double a = fabs((double)w[r * longest + k]);
                s[p][r][0] += a * size[p][k];
                if (squares) q[p][r][0] += a * a * variance[p][k];
            }
            out->size[p][r] = total_of(&s[p][r]);
            out->square[p][r] = total_of(&q[p][r]);
        }
}

FD_FOR_EACH_CPU
static void weigh_both(const float *w, int64_t longest, const double *const size[PAIR],
                       const double *const variance[PAIR], int64_t n, weighed *out) {
    weigh(w, longest, size, variance, n, true, out);
}

/* Where v is 0 throughout, as in binary32 from recorded inputs. */
FD_FOR_EACH_CPU
static void weigh_sizes(const float *w, int64_t longest, const double *const size[PAIR], int64_t n, weighed *out) {
    weigh(w, longest, size, NULL, n, false, out);
}

/* Inf · 0 is NaN: weights that are not finite show in the sizes, too. */
static bool is_finite(const weighed *sums) {
    double sum = 0;
    for (int p = 0; p < PAIR; p++)
        for (int r = 0; r < ROWS; r++) sum += sums->size[p][r];
    return isfinite(sum) != 0;
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
    bool any_variance = false;
    for (int64_t k = 0; k < p->n_pos * n && !any_variance; k++) any_variance = !(variance[k] == 0);
    for (int64_t r = 0; r < p->n_pos; r++) {
        flushed[r] = 0;
        for (int64_t k = 0; k < n; k++) flushed[r] += t * t * size[r * n + k] * size[r * n + k];
    }
#pragma omp parallel for schedule(static) if (p->n_out * n * p->n_pos > FD_BOUND_MANY)
    for (int64_t first = 0; first < p->n_out; first += ROWS) { /* rows outside: each is dequantised once */
        int64_t n_row = p->n_out - first < ROWS ? p->n_out - first : ROWS;
        float *rows = work->row + omp_get_thread_num() * ROWS * work->longest;
        double bias[ROWS];
        for (int64_t r = 0; r < ROWS; r++) { /* past the last: that again */
            int64_t o = first + (r < n_row ? r : n_row - 1);
            fd_dequantize_row(w->dtype, (const char *)w->data + (p->first_row + o) * row_bytes,
                              rows + r * work->longest, n);
            bias[r] = fabs((double)bias_of(p, o));
        }
        for (int64_t pos = 0; pos < p->n_pos; pos += PAIR) {
            const double *sizes[PAIR], *variances[PAIR];
            weighed sums;
            for (int i = 0; i < PAIR; i++) {
                int64_t at = (pos + i < p->n_pos ? pos + i : p->n_pos - 1) * n;
                sizes[i] = size + at;
                variances[i] = variance + at;
            }
            if (!any_variance) weigh_sizes(rows, work->longest, sizes, n, &sums);
            if (any_variance || !is_finite(&sums)) weigh_both(rows, work->longest, sizes, variances, n, &sums);
            for (int64_t i = 0; i < PAIR && pos + i < p->n_pos; i++)
                for (int64_t r = 0; r < n_row; r++) {
                    int64_t at = (pos + i) * p->n_out + first + r;
                    double y = fabs(p->y[at]);
                    p->tau[at] = u_chain * sums.size[i][r] + lambda * sqrt(sums.square[i][r] + flushed[pos + i]) +
                                 u_mean * y + (bias[r] > 0 ? c->u_out * (y + 2 * bias[r]) : 0);
                }
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
