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

enum {
    ROWS = 4,
    PAIR = 2,
    PIECE =
        256, /* elements of a row that are decoded together: whole blocks of every type, and four rows stay in an L1 */
};

/* Multiplications from which threads are worth waking. Every sum is computed by itself, so their number changes
 * nothing. */
enum { MANY = 1 << 20 };

typedef double four __attribute__((vector_size(32)));
typedef double eight __attribute__((vector_size(64)));

/* A sum is eight partial ones, those of every eighth product. */
typedef struct partials {
    _Alignas(64) double lane[8];
} partials;

static double total_of(const partials *of) {
    const double *s = of->lane;
    return ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
}

/* Absolute values of n weights and their squares. */
FD_FOR_EACH_CPU
static void widen(const float *restrict w, int64_t n, double *restrict size, double *restrict square) {
    for (int64_t k = 0; k < n; k++) {
        double a = fabs((double)w[k]);
        size[k] = a;
        square[k] = a * a;
    }
}

/* Adds Σ w·x of ROWS rows, PIECE apart, and PAIR positions to the partial sums, a vector of these at a time, which stay in
 * registers: of as many lanes as the processor's have. Both add
 * in the same order, so they give the same bits. */
#define ADD_PRODUCTS(NAME, VECTOR)                                                                                     \
    FD_FOR_EACH_CPU                                                                                                    \
    static void NAME(const double *w, const double *const x[PAIR], int64_t n, partials sums[PAIR][ROWS]) {             \
        enum { LANES = sizeof(VECTOR) / sizeof(double) };                                                              \
        const int64_t whole = n - n % 8;                                                                               \
        for (int lane = 0; lane < 8; lane += LANES) {                                                                  \
            VECTOR s[PAIR][ROWS], xs[PAIR], row;                                                                       \
            _Pragma("GCC unroll 8") for (int i = 0; i < PAIR * ROWS; i++)                                              \
                memcpy(&s[i / ROWS][i % ROWS], &sums[i / ROWS][i % ROWS].lane[lane], sizeof(VECTOR));                  \
            for (int64_t k = lane; k < whole; k += 8) {                                                                \
                _Pragma("GCC unroll 2") for (int p = 0; p < PAIR; p++) memcpy(&xs[p], x[p] + k, sizeof(VECTOR));       \
                _Pragma("GCC unroll 4") for (int r = 0; r < ROWS; r++) {                                               \
                    memcpy(&row, w + r * PIECE + k, sizeof row);                                                       \
                    _Pragma("GCC unroll 2") for (int p = 0; p < PAIR; p++) s[p][r] += row * xs[p];                     \
                }                                                                                                      \
            }                                                                                                          \
            _Pragma("GCC unroll 8") for (int i = 0; i < PAIR * ROWS; i++)                                              \
                memcpy(&sums[i / ROWS][i % ROWS].lane[lane], &s[i / ROWS][i % ROWS], sizeof(VECTOR));                  \
        }                                                                                                              \
        for (int i = 0; i < PAIR * ROWS; i++)                                                                          \
            for (int64_t k = whole; k < n; k++)                                                                        \
                sums[i / ROWS][i % ROWS].lane[0] += w[i % ROWS * PIECE + k] * x[i / ROWS][k];                          \
    }

ADD_PRODUCTS(add_by_four, four)
ADD_PRODUCTS(add_by_eight, eight)

static void add_products(const double *w, const double *const x[PAIR], int64_t n, partials sums[PAIR][ROWS]) {
#ifdef __x86_64__
    if (!__builtin_cpu_supports("avx512f")) {
        add_by_four(w, x, n, sums);
        return;
    }
#endif
    add_by_eight(w, x, n, sums);
}

/* A thread's own: ROWS rows of a piece, and the partial sums of all positions. */
typedef struct workspace {
    _Alignas(64) double size[ROWS * PIECE], square[ROWS * PIECE];
    float row[PIECE];
    partials (*sizes)[PAIR][ROWS], (*squares)[PAIR][ROWS]; /* [n_pair], behind it */
} workspace;

/* Rows first … of the product, the last one again past its end: Σ|w|x into `sizes` and Σ w²v into `squares` (x, v NULL: not asked for). */
static void weigh_rows(const fd_product *p, int64_t first, const double *x, const double *v, workspace *to) {
    const fd_weight *w = p->weight;
    const int64_t n = w->n_col, row_bytes = fd_dtype_row_bytes(w->dtype, n), n_pair = (p->n_pos + 1) / PAIR;
    if (x) memset(to->sizes, 0, sizeof *to->sizes * (size_t)n_pair);
    if (v) memset(to->squares, 0, sizeof *to->squares * (size_t)n_pair);
    for (int64_t at = 0; at < n; at += PIECE) {
        const int64_t m = n - at < PIECE ? n - at : PIECE;
        for (int64_t r = 0; r < ROWS; r++) {
            const int64_t row = p->first_row + (first + r < p->n_row ? first + r : p->n_row - 1);
            fd_dequantize_row(w->dtype, (const char *)w->data + row * row_bytes + fd_dtype_row_bytes(w->dtype, at),
                              to->row, m);
            widen(to->row, m, to->size + r * PIECE, to->square + r * PIECE);
        }
        for (int64_t i = 0; i < n_pair; i++) {
            const int64_t one = PAIR * i * n + at, other = PAIR * i + 1 < p->n_pos ? one + n : one;
            if (x) add_products(to->size, (const double *[]){x + one, x + other}, m, to->sizes[i]);
            if (v) add_products(to->square, (const double *[]){v + one, v + other}, m, to->squares[i]);
        }
    }
}

/* Inf · 0 is NaN: weights that are not finite show in the sizes, too. */
static bool is_finite(const workspace *of, int64_t n_pair) {
    double sum = 0;
    for (int64_t i = 0; i < n_pair; i++)
        for (int p = 0; p < PAIR; p++)
            for (int r = 0; r < ROWS; r++) sum += total_of(&of->sizes[i][p][r]);
    return isfinite(sum) != 0;
}

static bool all_zero(const double *v, int64_t n) {
    bool zero = true;
    for (int64_t k = 0; k < n && zero; k++) zero = v[k] == 0;
    return zero;
}

/* Sums of ROWS rows; size NULL: not asked for. */
static void sum_rows(const fd_product *p, int64_t first, const double *x, const double *v, bool any_variance,
                     workspace *own, double *size, double *square) {
    const int64_t n_pair = (p->n_pos + 1) / PAIR, end = p->n_row - first < ROWS ? p->n_row : first + ROWS;
    bool squares = any_variance || !size;
    weigh_rows(p, first, size ? x : NULL, squares ? v : NULL, own);
    if (!squares && !is_finite(own, n_pair)) { /* as in binary32 from recorded inputs, where v is 0 throughout */
        weigh_rows(p, first, NULL, v, own);
        squares = true;
    }
    for (int64_t pos = 0; pos < p->n_pos; pos++)
        for (int64_t row = first; row < end; row++) {
            const int64_t at = pos * p->n_row + row;
            if (size) size[at] = total_of(&own->sizes[pos / PAIR][pos % PAIR][row - first]);
            square[at] = squares ? total_of(&own->squares[pos / PAIR][pos % PAIR][row - first]) : 0;
        }
}

static size_t workspace_bytes(int64_t n_pair) {
    return sizeof(workspace) + 2 * (size_t)n_pair * sizeof(partials[PAIR][ROWS]);
}

static workspace *thread_workspace(void *memory, int64_t n_pair) {
    workspace *own = (void *)((char *)memory + (size_t)omp_get_thread_num() * workspace_bytes(n_pair));
    own->sizes = (void *)(own + 1);
    own->squares = own->sizes + n_pair;
    return own;
}

/* size NULL: not asked for. */
static fd_code weigh_on_cpu(const fd_product *p, const double *x, const double *v, double *size, double *square,
                            fd_error *err) {
    const int64_t n_pair = (p->n_pos + 1) / PAIR;
    void *memory = aligned_alloc(sizeof(partials), (size_t)omp_get_max_threads() * workspace_bytes(n_pair));
    if (!memory) return fd_fail(err, FD_ERR_MEMORY, "%s: bounds: out of memory", p->weight->name);
    const bool any_variance = !all_zero(v, p->n_pos * p->weight->n_col);
#pragma omp parallel if (p->n_row * p->weight->n_col * p->n_pos > MANY)
    {
        workspace *own = thread_workspace(memory, n_pair);
#pragma omp for schedule(static)
        for (int64_t first = 0; first < p->n_row; first += ROWS)
            sum_rows(p, first, x, v, any_variance, own, size, square);
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
