/* Rows of K and V that are none of this run's, in the place of its own or besides them, where attention shows its output alone. What a head gives is then some part of what it
 * would give without these keys, and a sum of a few vectors that all heads of the group have in common: the values that stand there.
 * So behind the directions that the heads would have without them, as many are left as there are such keys, and not one for each
 * head. Which parts they take is fitted; that they are so few is the evidence. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compare/hypothesis/internal.h"

/* So many directions must be left that neither the heads nor the unknown values have: of the head, and of the values that a head
 * weighs, for other weights of these are no other keys. What is written too far leaves one row's values to all rows that follow. */
enum { MARGIN = 2, FEWEST_ROWS_OF_LATE = 2 };

typedef struct attended {
    const fd_hypothesis *h;
    const fd_output_rows *out;
    int64_t n_head, n_kv, dim, group;
} attended;

/* Heads of one K/V head in rows [from, to): item i is head i % group of row from + i / group. */
typedef struct some_heads {
    int64_t kv_head, from, to, n;
    int unknown;   /* keys */
    double *basis; /* [n, dim] orthonormal: what the heads would give; owned, and of one block: */
    double *left;  /* [n, dim] of the candidate behind that */
    double *along; /* [unknown, n] */
    int n_basis;
} some_heads;

static int64_t head_at(const attended *a, const some_heads *s, int64_t i) {
    return ((s->from + i / a->group) * a->n_head + s->kv_head * a->group + i % a->group);
}

static int64_t known_keys(const attended *a, int64_t row) {
    int64_t first, end;
    const int64_t own = a->out->pos0 + row;
    fd_hypothesis_fitted_rows(a->h, own, a->n_kv, &first, &end);
    if (end > own + 1) end = own + 1;
    return own + 1 - (end > first ? end - first : 0);
}

/* Keys whose values are fitted, where the row at position `own` reads them. */
static int unknown_keys(const attended *a, int64_t own) {
    int64_t first, end;
    fd_hypothesis_fitted_rows(a->h, own, a->n_kv, &first, &end);
    return a->h->which == FD_CACHE_OUTSIDE ? a->h->n : (int)(end - first);
}

/* What a head would give without the unknown keys, but for a factor. */
static void without_unknown(const attended *a, const some_heads *s, int64_t i, double *to) {
    const int64_t row = s->from + i / a->group, own = a->out->pos0 + row, width = a->out->n_kv_head * a->dim;
    const float *weights = a->out->weights + head_at(a, s, i) * a->n_kv;
    int64_t first, end;
    fd_hypothesis_fitted_rows(a->h, own, a->n_kv, &first, &end);
    memset(to, 0, sizeof *to * (size_t)a->dim);
    for (int64_t key = 0; key <= own && key < a->n_kv; key++) {
        const float *v = a->out->values + key * width + s->kv_head * a->dim;
        for (int64_t d = 0; d < a->dim && (key < first || key >= end); d++)
            to[d] += (double)weights[key] * (double)v[d];
    }
}

static double product(const double *x, const double *y, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * y[i];
    return sum;
}

/* Takes what the basis has out of x, twice, for once leaves roundings. */
static void take_out(const some_heads *s, double *x, int64_t dim) {
    for (int pass = 0; pass < 2; pass++)
        for (int k = 0; k < s->n_basis; k++) {
            const double *e = s->basis + k * dim, by = product(x, e, dim);
            for (int64_t d = 0; d < dim; d++) x[d] -= by * e[d];
        }
}

static void add_to_basis(const attended *a, some_heads *s, int64_t i) {
    double *x = s->basis + s->n_basis * a->dim;
    without_unknown(a, s, i, x);
    const double before = sqrt(product(x, x, a->dim));
    take_out(s, x, a->dim);
    const double after = sqrt(product(x, x, a->dim));
    if (!(after > 1e-5 * before)) return;
    for (int64_t d = 0; d < a->dim; d++) x[d] /= after;
    s->n_basis++;
}

/* Takes out of x what it has of y. */
static void take_along(double *x, const double *y, int64_t n) {
    const double squares = product(y, y, n), by = squares > 0 ? product(x, y, n) / squares : 0;
    for (int64_t i = 0; i < n; i++) x[i] -= by * y[i];
}

/* More than roundings of binary32 leave; and of K and V in 16 bits, whose class the engine's may be. */
#define LEAST_CHANGE    1e-4
#define LEAST_OF_OTHERS 1e-2

/* Nearer than this to the right ones, in norms, other rows' values are not: roundings of 16 bits are. */
#define AS_RIGHT 0x1p-6

/* Is nothing left, or a value of a key that is not asked about? A key that is hidden, zero, or counted twice leaves its own. */
static bool are_own_values(const attended *a, const some_heads *s) {
    const int64_t dim = a->dim, width = a->out->n_kv_head * dim;
    double *x = malloc(sizeof *x * (size_t)(dim * (s->unknown + 1) + s->unknown * s->n)), all = 0;
    if (!x) return true;
    double *directions = x + dim, *along = directions + s->unknown * dim;
    bool own = !fd_directions_of(s->left, (int)s->n, dim, s->unknown, along);
    memset(directions, 0, sizeof *x * (size_t)(s->unknown * dim));
    for (int k = 0; k < s->unknown && !own; k++) {
        double *to = directions + k * dim;
        for (int64_t i = 0; i < s->n; i++)
            for (int64_t d = 0; d < dim; d++) to[d] += along[k * s->n + i] * s->left[i * dim + d];
        for (int other = 0; other < k; other++) take_along(to, directions + other * dim, dim);
        own = !(product(to, to, dim) > 0);
    }
    for (int64_t i = 0; i < s->n; i++) {
        const float *c = a->out->candidate + head_at(a, s, i) * dim;
        for (int64_t d = 0; d < dim; d++) all += (double)c[d] * (double)c[d];
    }
    own |= !(product(s->left, s->left, s->n * dim) > LEAST_OF_OTHERS * LEAST_OF_OTHERS * all);
    int64_t first, end;
    fd_hypothesis_fitted_rows(a->h, a->out->pos0 + s->from, a->n_kv, &first, &end);
    for (int64_t key = 0; key < a->n_kv && !own; key++) {
        if (key >= first && key < end) continue;
        for (int64_t d = 0; d < dim; d++) x[d] = (double)a->out->values[key * width + s->kv_head * dim + d];
        take_out(s, x, dim);
        const double before = product(x, x, dim);
        for (int k = 0; k < s->unknown; k++) take_along(x, directions + k * dim, dim);
        own = before > LEAST_CHANGE * LEAST_CHANGE && product(x, x, dim) <= AS_RIGHT * AS_RIGHT * before;
    }
    free(x);
    return own;
}

/* Is what is left what the right values of the unknown keys give? Then it is their weights that are others, as a factor or another
 * softmax has it, and no rows of the cache. */
static bool are_right_values(const attended *a, const some_heads *s) {
    const int64_t dim = a->dim;
    double *left = malloc(sizeof *left * (size_t)((s->n + s->unknown) * dim));
    int64_t first, end;
    int n_right = 0;
    if (!left) return false;
    double *right = left + s->n * dim; /* orthogonal */
    fd_hypothesis_fitted_rows(a->h, a->out->pos0 + s->from, a->n_kv, &first, &end);
    memcpy(left, s->left, sizeof *left * (size_t)(s->n * dim));
    const double all = product(left, left, s->n * dim);
    for (int64_t key = first; key < end && n_right < s->unknown; key++) {
        const float *v = a->out->values + (key * a->out->n_kv_head + s->kv_head) * dim;
        double *x = right + n_right * dim;
        for (int64_t d = 0; d < dim; d++) x[d] = (double)v[d];
        take_out(s, x, dim);
        for (int k = 0; k < n_right; k++) take_along(x, right + k * dim, dim);
        for (int64_t i = 0; i < s->n; i++) take_along(left + i * dim, x, dim);
        n_right++;
    }
    const double rest = product(left, left, s->n * dim);
    free(left);
    return rest <= AS_RIGHT * AS_RIGHT * all;
}

static void fit_heads(const attended *a, some_heads *s) {
    for (int64_t i = 0; i < s->n; i++) add_to_basis(a, s, i);
    for (int64_t i = 0; i < s->n; i++) {
        const float *candidate = a->out->candidate + head_at(a, s, i) * a->dim;
        for (int64_t d = 0; d < a->dim; d++) s->left[i * a->dim + d] = (double)candidate[d];
        take_out(s, s->left + i * a->dim, a->dim);
    }
    if (are_own_values(a, s) || are_right_values(a, s) ||
        !fd_directions_of(s->left, (int)s->n, a->dim, s->unknown, s->along))
        return;
    for (int64_t d = 0; d < a->dim; d++)
        for (int64_t i = 0; i < s->n; i++) {
            double of_unknown = 0;
            for (int k = 0; k < s->unknown; k++) {
                double sum = 0;
                for (int64_t j = 0; j < s->n; j++) sum += s->along[k * s->n + j] * s->left[j * a->dim + d];
                of_unknown += s->along[k * s->n + i] * sum;
            }
            const int64_t at = head_at(a, s, i) * a->dim + d;
            a->out->rows[at] = (float)((double)a->out->candidate[at] - s->left[i * a->dim + d] + of_unknown);
        }
}

/* Rows [from, to) at most, of the rows that begin there: as many as the directions allow. */
static int64_t rows_that_tell(const attended *a, int64_t from, int64_t to, int unknown) {
    const int64_t known = known_keys(a, from), most = (known < a->dim ? known : a->dim) - MARGIN - unknown;
    const int64_t n = most / a->group;
    return n < to - from ? n : to - from;
}

static bool departs(const attended *a, int64_t from, int64_t to) {
    double change = 0, all = 0;
    for (int64_t i = from * a->out->width; i < to * a->out->width; i++) {
        const double d = (double)a->out->candidate[i] - (double)a->out->rows[i];
        change += d * d;
        all += (double)a->out->rows[i] * (double)a->out->rows[i];
    }
    return change > LEAST_CHANGE * LEAST_CHANGE * all;
}

static bool fit_rows(const attended *a, int64_t from, int64_t to, int unknown) {
    const int64_t n = (to - from) * a->group;
    double *memory = malloc(sizeof *memory * (size_t)(2 * n * a->dim + unknown * n));
    for (int64_t kv_head = 0; kv_head < a->out->n_kv_head && memory; kv_head++) {
        some_heads s = {kv_head, from, to, n, unknown, memory, memory + n * a->dim, memory + 2 * n * a->dim, 0};
        fit_heads(a, &s);
    }
    free(memory);
    return memory != NULL;
}

/* The first row that sees an unknown key. */
static int64_t first_row(const attended *a) {
    int64_t row = a->out->n_unjudged, first, end;
    for (; row < a->out->n_row; row++) {
        fd_hypothesis_fitted_rows(a->h, a->out->pos0 + row, a->n_kv, &first, &end);
        if (first <= a->out->pos0 + row) break;
    }
    return row;
}

/* The next rows from `row` on that tell, with some before them where they are too few: their end; `row`: they do not. */
static int64_t next_rows(const attended *a, int64_t row, int64_t *from, bool *departing) {
    const bool own = a->h->which == FD_CACHE_OWN, late = a->h->which == FD_CACHE_LATE;
    const int64_t n_row = a->out->n_row, least = first_row(a);
    const int unknown = unknown_keys(a, a->out->pos0 + row);
    const int64_t n = rows_that_tell(a, row, own ? row + 1 : n_row, unknown), to = row + n;
    if (n <= 0) return row;
    for (*from = row; *from > least && !own; --*from)
        if ((to - *from) * a->group > unknown && !(late && to - *from < FEWEST_ROWS_OF_LATE)) break;
    const int64_t n_all = to - *from;
    *departing = departs(a, row, to);
    if (n_all * a->group <= unknown || (late && n_all < FEWEST_ROWS_OF_LATE)) return row;
    return n_all <= rows_that_tell(a, *from, n_row, unknown) && fit_rows(a, *from, to, unknown) ? to : row;
}

/* Early rows see so few keys that any values explain them: they are taken as they are, if later ones that depart tell. */
void fd_hypothesis_attended(const fd_hypothesis *h, const fd_node *node, const fd_output_rows *out) {
    const int64_t n_head = node->shape[0], n_kv = out->pos0 + out->n_row, width = out->width;
    const attended a = {h, out, n_head, n_kv, width / n_head, n_head / out->n_kv_head};
    const int64_t first = first_row(&a);
    bool told = false, departing;
    for (int64_t row = first, to, from; row < out->n_row; row = to) {
        to = next_rows(&a, row, &from, &departing);
        if (to == row && told) return; /* what comes behind rows that tell does */
        if (to > row && !told && from > first && !departing) return;
        if (to > row && !told && from > first)
            memcpy(out->rows + first * width, out->candidate + first * width,
                   sizeof *out->rows * (size_t)((from - first) * width));
        told |= to > row;
        to += to == row;
    }
}
