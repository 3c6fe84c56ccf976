/* Sums of a product's sizes and squares on the CPU: rows of weights are decoded once, four together, for all positions of which
 * they are not known. */
#include "compare/products/products.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "base/clones.h"
#include "compare/products/check.h"
#include "model/gguf/quant.h"

enum { ROWS = 4, PAIR = 2 };

/* Multiplications from which threads are worth waking. Every sum is computed by itself, so their number changes
 * nothing. */
enum { MANY = 1 << 20 };

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

/* With `sizes` Σ|w|x and with `squares` Σ w²v of ROWS rows of weights, n apart, and PAIR positions. Each sum is eight partial
 * ones, the lanes of a vector. */
static inline __attribute__((always_inline)) void weigh(const float *w, const double *const size[PAIR],
                                                        const double *const variance[PAIR], int64_t n, bool sizes,
                                                        bool squares, weighed *out) {
    eight s[PAIR][ROWS] = {{{0}}}, q[PAIR][ROWS] = {{{0}}};
    int64_t whole = n - n % 8;
    for (int64_t k = 0; k < whole; k += 8) {
        eight x[PAIR], v[PAIR];
#pragma GCC unroll 2
        for (int p = 0; p < PAIR; p++) {
            if (sizes) memcpy(&x[p], size[p] + k, sizeof x[p]);
            if (squares) memcpy(&v[p], variance[p] + k, sizeof v[p]);
        }
#pragma GCC unroll 4
        for (int r = 0; r < ROWS; r++) {
            eight_floats narrow;
            memcpy(&narrow, w + r * n + k, sizeof narrow);
            eight a = (eight)((eight_bits) __builtin_convertvector(narrow, eight) & INT64_MAX); /* fabs */
#pragma GCC unroll 2
            for (int p = 0; p < PAIR; p++) {
                if (sizes) s[p][r] += a * x[p];
                if (squares) q[p][r] += a * a * v[p];
            }
        }
    }
    for (int p = 0; p < PAIR; p++)
        for (int r = 0; r < ROWS; r++) {
            for (int64_t k = whole; k < n; k++) {
                double a = fabs((double)w[r * n + k]);
                if (sizes) s[p][r][0] += a * size[p][k];
                if (squares) q[p][r][0] += a * a * variance[p][k];
            }
            out->size[p][r] = total_of(&s[p][r]);
            out->square[p][r] = total_of(&q[p][r]);
        }
}

FD_FOR_EACH_CPU
static void weigh_both(const float *w, const double *const size[PAIR], const double *const variance[PAIR], int64_t n,
                       weighed *out) {
    weigh(w, size, variance, n, true, true, out);
}

/* Where v is 0 throughout, as in binary32 from recorded inputs. */
FD_FOR_EACH_CPU
static void weigh_sizes(const float *w, const double *const size[PAIR], int64_t n, weighed *out) {
    weigh(w, size, NULL, n, true, false, out);
}

/* Where the sizes are known. */
FD_FOR_EACH_CPU
static void weigh_squares(const float *w, const double *const variance[PAIR], int64_t n, weighed *out) {
    weigh(w, NULL, variance, n, false, true, out);
}

/* Inf · 0 is NaN: weights that are not finite show in the sizes, too. */
static bool is_finite(const weighed *sums) {
    double sum = 0;
    for (int p = 0; p < PAIR; p++)
        for (int r = 0; r < ROWS; r++) sum += sums->size[p][r];
    return isfinite(sum) != 0;
}

static bool all_zero(const double *v, int64_t n) {
    bool zero = true;
    for (int64_t k = 0; k < n && zero; k++) zero = v[k] == 0;
    return zero;
}

/* size NULL: not asked for. */
static fd_code weigh_on_cpu(const fd_product *p, const double *x, const double *v, double *size, double *square,
                            fd_error *err) {
    const fd_weight *w = p->weight;
    int64_t n = w->n_col, row_bytes = fd_dtype_row_bytes(w->dtype, n);
    float *memory = malloc(sizeof *memory * (size_t)(omp_get_max_threads() * ROWS * n));
    if (!memory) return fd_fail(err, FD_ERR_MEMORY, "%s: bounds: out of memory", w->name);
    bool any_variance = !all_zero(v, p->n_pos * n);
#pragma omp parallel for schedule(static) if (p->n_row * n * p->n_pos > MANY)
    for (int64_t first = 0; first < p->n_row; first += ROWS) { /* rows outside: each is dequantised once */
        int64_t n_row = p->n_row - first < ROWS ? p->n_row - first : ROWS;
        float *rows = memory + omp_get_thread_num() * ROWS * n;
        for (int64_t r = 0; r < ROWS; r++) { /* past the last: that again */
            int64_t row = p->first_row + first + (r < n_row ? r : n_row - 1);
            fd_dequantize_row(w->dtype, (const char *)w->data + row * row_bytes, rows + r * n, n);
        }
        for (int64_t pos = 0; pos < p->n_pos; pos += PAIR) {
            const double *sizes[PAIR], *variances[PAIR];
            weighed sums;
            for (int i = 0; i < PAIR; i++) {
                int64_t at = (pos + i < p->n_pos ? pos + i : p->n_pos - 1) * n;
                sizes[i] = size ? x + at : NULL;
                variances[i] = v + at;
            }
            if (!size)
                weigh_squares(rows, variances, n, &sums);
            else if (!any_variance)
                weigh_sizes(rows, sizes, n, &sums);
            if (size && (any_variance || !is_finite(&sums))) weigh_both(rows, sizes, variances, n, &sums);
            for (int64_t i = 0; i < PAIR && pos + i < p->n_pos; i++)
                for (int64_t r = 0; r < n_row; r++) {
                    if (size) size[(pos + i) * p->n_row + first + r] = sums.size[i][r];
                    square[(pos + i) * p->n_row + first + r] = sums.square[i][r];
                }
        }
    }
    free(memory);
    return FD_OK;
}

/* ---- what was computed before ---- */

/* Positions of a product of which the same sums are not known. */
typedef struct unknown {
    fd_memo_key size_key, square_key;
    int64_t *pos, n; /* [n]; owned */
    bool sizes;
} unknown;

/* Computes the unknown ones' sums, puts them in their places and keeps them. */
static fd_code fill_in(const fd_product *p, fd_product_memo *memo, const unknown *u, const double *x, const double *v,
                       double *size, double *square, fd_error *err) {
    const int64_t n_in = p->weight->n_col, n_out = p->n_row;
    if (u->n == 0) return FD_OK;
    double *own = malloc(2 * sizeof *own * (size_t)(u->n * (n_in + n_out)));
    if (!own) return fd_fail(err, FD_ERR_MEMORY, "%s: bounds: out of memory", p->weight->name);
    double *own_v = own + u->n * n_in, *sizes = own_v + u->n * n_in, *squares = sizes + u->n * n_out;
    for (int64_t i = 0; i < u->n; i++) {
        memcpy(own + i * n_in, x + u->pos[i] * n_in, sizeof *own * (size_t)n_in);
        memcpy(own_v + i * n_in, v + u->pos[i] * n_in, sizeof *own * (size_t)n_in);
    }
    fd_product few = *p;
    few.n_pos = u->n;
    fd_code code = weigh_on_cpu(&few, own, own_v, u->sizes ? sizes : NULL, squares, err);
    for (int64_t i = 0; i < u->n && code == FD_OK; i++) {
        int64_t to = u->pos[i] * n_out;
        if (u->sizes) memcpy(size + to, sizes + i * n_out, sizeof *own * (size_t)n_out);
        memcpy(square + to, squares + i * n_out, sizeof *own * (size_t)n_out);
        if (u->sizes) fd_product_memo_keep(memo, &u->size_key, own + i * n_in, sizes + i * n_out);
        if (!all_zero(own_v + i * n_in, n_in))
            fd_product_memo_keep(memo, &u->square_key, own_v + i * n_in, squares + i * n_out);
    }
    free(own);
    return code;
}

static bool all_finite(const double *x, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += 0 * x[i];
    return sum == 0;
}

/* Squares of v = 0 are 0, unless a weight is not finite, which shows in the sizes. */
static bool find_squares(fd_product_memo *memo, const fd_memo_key *key, const double *v, const double *size,
                         double *square) {
    if (all_zero(v, key->n) && all_finite(size, key->n_row)) {
        memset(square, 0, sizeof *square * (size_t)key->n_row);
        return true;
    }
    const double *known = fd_product_memo_find(memo, key, v);
    if (known) memcpy(square, known, sizeof *square * (size_t)key->n_row);
    return known != NULL;
}

static fd_code weigh_unknown(const fd_product *p, fd_product_memo *memo, const double *x, const double *v, double *size,
                             double *square, fd_error *err) {
    fd_memo_key key = {.kind = FD_MEMO_SIZE,
                       .weight = p->weight->data,
                       .first_row = p->first_row,
                       .n_row = p->n_row,
                       .n = p->weight->n_col};
    unknown both = {.size_key = key, .sizes = true}, squares;
    both.square_key = key;
    both.square_key.kind = FD_MEMO_SQUARE;
    squares = both;
    squares.sizes = false;
    both.pos = malloc(2 * sizeof *both.pos * (size_t)p->n_pos);
    if (!both.pos) return fd_fail(err, FD_ERR_MEMORY, "%s: bounds: out of memory", p->weight->name);
    squares.pos = both.pos + p->n_pos;
    for (int64_t pos = 0; pos < p->n_pos; pos++) {
        const double *known = fd_product_memo_find(memo, &both.size_key, x + pos * key.n);
        if (!known) {
            both.pos[both.n++] = pos;
            continue;
        }
        memcpy(size + pos * key.n_row, known, sizeof *size * (size_t)key.n_row);
        if (!find_squares(memo, &both.square_key, v + pos * key.n, known, square + pos * key.n_row))
            squares.pos[squares.n++] = pos;
    }
    fd_code code = fill_in(p, memo, &both, x, v, size, square, err);
    if (code == FD_OK) code = fill_in(p, memo, &squares, x, v, size, square, err);
    free(both.pos);
    return code;
}

static fd_code check_by_cpu(const fd_product *product, const double *x, const double *v, const double *size,
                            const double *square, fd_error *err) {
    fd_check_sample sample;
    FD_TRY(fd_check_sample_make(product, x, &sample, err));
    const fd_product few = {.weight = &sample.weight, .n_row = sample.weight.n_row, .n_pos = product->n_pos};
    int64_t n = few.n_row * few.n_pos;
    double *own = malloc(2 * sizeof *own * (size_t)n);
    fd_code code = own ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "%s: bounds: out of memory", product->weight->name);
    if (code == FD_OK) code = weigh_on_cpu(&few, x, v, own, own + n, err);
    if (code == FD_OK) code = fd_check_rows(product, &sample, sizeof *size, size, own, err);
    if (code == FD_OK) code = fd_check_rows(product, &sample, sizeof *square, square, own + n, err);
    free(own);
    fd_check_sample_free(&sample);
    return code;
}

fd_code fd_products_weigh(const fd_products *device, fd_product_memo *memo, const fd_product *product, const double *x,
                          const double *v, double *size, double *square, fd_error *err) {
    int64_t n = product->n_row * product->n_pos;
    bool taken = device && device->takes(device->user, product);
    if (taken) {
        FD_TRY(device->weigh(device->user, product, x, v, size, square, err));
        if (device->together) return FD_OK;
        taken = !fd_check_any_nan(size, n, sizeof *size) && !fd_check_any_nan(square, n, sizeof *square);
    }
    if (!taken && memo) return weigh_unknown(product, memo, x, v, size, square, err);
    if (!taken) return weigh_on_cpu(product, x, v, size, square, err);
    return check_by_cpu(product, x, v, size, square, err);
}
