/* Rows of a cache that attention reads and that are others than were written: from another place, from another cache, or fitted to
 * what attention made of them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compare/hypothesis/internal.h"

bool fd_hypothesis_fits_cache(const fd_hypothesis *h) {
    return h->guess == FD_GUESS_CACHE && (h->which == FD_CACHE_UNKNOWN || h->which == FD_CACHE_LATE ||
                                          h->which == FD_CACHE_OWN || h->which == FD_CACHE_OUTSIDE);
}

bool fd_hypothesis_moves_cache(const fd_hypothesis *h) {
    return h->which != FD_CACHE_UNKNOWN && h->which != FD_CACHE_RING && h->which != FD_CACHE_OWN &&
           h->which != FD_CACHE_OUTSIDE && h->which != FD_CACHE_PAST;
}

static int64_t end_of(const fd_hypothesis *h, int64_t n_row) {
    return h->end > 0 && h->end < n_row ? h->end : n_row;
}

/* Rows past the last one stay as they are: at another step they may be there. */
static void move(const fd_hypothesis *h, const float *from, float *rows, int64_t n_row, int64_t width) {
    const bool late = h->which == FD_CACHE_LATE;
    for (int64_t r = late ? h->first + h->n : h->first, end = end_of(h, n_row); r < end; r++) {
        const int64_t of = late ? r - h->n : r + h->n;
        const size_t size = sizeof *rows * (size_t)width;
        if (of >= n_row && h->which == FD_CACHE_MOVED && h->other) memset(rows + r * width, 0, size);
        if (of < 0 || of >= n_row) continue;
        memcpy(rows + r * width, from + of * width, size);
        if (h->which == FD_CACHE_EXCHANGED) memcpy(rows + of * width, from + r * width, size);
    }
}

static void shift(int64_t by, float *rows, int64_t n) {
    const int64_t size = by < 0 ? -by : by, left = n > size ? n - size : 0;
    memmove(by > 0 ? rows : rows + (n - left), by > 0 ? rows + (n - left) : rows, sizeof *rows * (size_t)left);
    memset(by > 0 ? rows + left : rows, 0, sizeof *rows * (size_t)(n - left));
}

void fd_hypothesis_cache(const fd_hypothesis *h, const float *other, float *rows, int64_t n_row, int64_t width) {
    const int64_t n = end_of(h, n_row) - h->first;
    const size_t size = sizeof *rows * (size_t)(n * width);
    if (n <= 0) return;
    if (h->which == FD_CACHE_ZEROS && !h->keys) memset(rows + h->first * width, 0, size);
    for (int64_t r = h->first; r < h->first + n && r < 64 && h->which == FD_CACHE_ZEROS; r++)
        if (h->keys >> r & 1) memset(rows + r * width, 0, sizeof *rows * (size_t)width);
    if (h->which == FD_CACHE_SHIFTED) shift(h->n, rows, n_row * width);
    if (h->which == FD_CACHE_OF && other) memcpy(rows + h->first * width, other + h->first * width, size);
    if (h->which != FD_CACHE_MOVED && h->which != FD_CACHE_EXCHANGED && h->which != FD_CACHE_LATE) return;
    float *from = malloc(sizeof *from * (size_t)(n_row * width));
    if (from) memcpy(from, rows, sizeof *from * (size_t)(n_row * width));
    if (from) move(h, from, rows, n_row, width);
    free(from);
}

/* ---- a ring ---- */

/* The newest position, up to the row's own, that stands where `key` does. */
static int64_t newest(const fd_hypothesis *h, int64_t key, int64_t own) {
    return key + (own - key) / h->n * h->n;
}

static void ring_of_keys(const fd_hypothesis *h, const fd_node *node, const fd_output_rows *out) {
    const int64_t n_kv = out->width / node->shape[0];
    for (int64_t at = 0; at < out->n_row * out->width; at += n_kv) {
        const int64_t own = out->pos0 + at / out->width;
        for (int64_t key = 0; key <= own && key < n_kv; key++)
            out->rows[at + key] = out->rows[at + newest(h, key, own)];
    }
}

static void ring_of_values(const fd_hypothesis *h, const fd_node *node, const fd_output_rows *out) {
    const int64_t n_head = node->shape[0], dim = out->width / n_head, n_kv = out->pos0 + out->n_row;
    const int64_t group = n_head / out->n_kv_head, width = dim * out->n_kv_head;
    for (int64_t i = 0; i < out->n_row * out->width; i++) {
        const int64_t row = i / out->width, head = i / dim % n_head, own = out->pos0 + row;
        const float *weights = out->weights + (row * n_head + head) * n_kv,
                    *column = out->values + head / group * dim + i % dim;
        double more = 0;
        for (int64_t key = 0; key + h->n <= own; key++)
            more += (double)weights[key] * ((double)column[newest(h, key, own) * width] - (double)column[key * width]);
        if (own >= h->n) out->rows[i] = (float)((double)out->rows[i] + more);
    }
}

/* ---- fitted ---- */

void fd_hypothesis_fitted_rows(const fd_hypothesis *h, int64_t own, int64_t n_kv, int64_t *first, int64_t *end) {
    *first = h->which == FD_CACHE_OWN ? own : h->first;
    *end = h->which == FD_CACHE_OWN ? own + 1 : h->which == FD_CACHE_LATE ? *first + h->n : end_of(h, n_kv);
    if (*end > n_kv) *end = n_kv;
    if (h->which == FD_CACHE_OUTSIDE) *end = *first;
}

/* Keys: a score is q times the key, so it is what the candidate has; what a mask hides from one side alone no key makes. */
static void fit_keys(const fd_hypothesis *h, const fd_node *node, const fd_output_rows *out) {
    const int64_t n_kv = out->width / node->shape[0];
    for (int64_t at = 0; at < out->n_row * out->width; at += n_kv) {
        int64_t key, end;
        fd_hypothesis_fitted_rows(h, out->pos0 + at / out->width, n_kv, &key, &end);
        for (; key < end; key++)
            if (isinf(out->rows[at + key]) == isinf(out->candidate[at + key]))
                out->rows[at + key] = out->candidate[at + key];
    }
}

/* Values: Σ weight · (value − what was written) over the keys in question is what the candidate has more, for every row and every head
 * that shares the values. More of these than keys, and they may contradict each other. */
typedef struct least_squares {
    int64_t n;       /* unknown rows */
    double *squares; /* [n, n] Σ weight · weight, then its Cholesky factor; owned */
    double *sums;    /* [n] Σ weight · difference, then the solution; owned */
} least_squares;

static bool factorise(least_squares *s) {
    for (int64_t i = 0; i < s->n; i++)
        for (int64_t j = 0; j <= i; j++) {
            double sum = s->squares[i * s->n + j];
            for (int64_t k = 0; k < j; k++) sum -= s->squares[i * s->n + k] * s->squares[j * s->n + k];
            /* a key that rows hardly weigh apart from the others has no value of its own */
            if (i == j && !(sum > 0x1p-30 * s->squares[i * s->n + i])) return false;
            s->squares[i * s->n + j] = i == j ? sqrt(sum) : sum / s->squares[j * s->n + j];
        }
    return true;
}

static void solve(const least_squares *s) {
    for (int64_t i = 0; i < s->n; i++) {
        for (int64_t k = 0; k < i; k++) s->sums[i] -= s->squares[i * s->n + k] * s->sums[k];
        s->sums[i] /= s->squares[i * s->n + i];
    }
    for (int64_t i = s->n - 1; i >= 0; i--) {
        for (int64_t k = i + 1; k < s->n; k++) s->sums[i] -= s->squares[k * s->n + i] * s->sums[k];
        s->sums[i] /= s->squares[i * s->n + i];
    }
}

typedef struct value_fit {
    const fd_output_rows *out;
    int64_t n_head, n_kv, dim, group;
    int64_t first;         /* of the cache's rows that are fitted */
    int64_t from_row, end; /* rows of the output that they are fitted to */
} value_fit;

static const float *weights_of(const value_fit *f, int64_t row, int64_t head) {
    return f->out->weights + (row * f->n_head + head) * f->n_kv + f->first;
}

static bool add_up_squares(const value_fit *f, int64_t kv_head, least_squares *s) {
    memset(s->squares, 0, sizeof *s->squares * (size_t)(s->n * s->n));
    for (int64_t row = f->from_row; row < f->end; row++)
        for (int64_t head = kv_head * f->group; head < (kv_head + 1) * f->group; head++)
            for (int64_t i = 0; i < s->n; i++)
                for (int64_t j = 0; j <= i; j++)
                    s->squares[i * s->n + j] +=
                        (double)weights_of(f, row, head)[i] * (double)weights_of(f, row, head)[j];
    return factorise(s);
}

static void fit_column(const value_fit *f, int64_t kv_head, int64_t d, const least_squares *s) {
    const int64_t first = kv_head * f->group, end = first + f->group;
    memset(s->sums, 0, sizeof *s->sums * (size_t)s->n);
    for (int64_t row = f->from_row; row < f->end; row++)
        for (int64_t head = first; head < end; head++) {
            const int64_t at = (row * f->n_head + head) * f->dim + d;
            const double more = (double)f->out->candidate[at] - (double)f->out->rows[at];
            for (int64_t i = 0; i < s->n; i++) s->sums[i] += (double)weights_of(f, row, head)[i] * more;
        }
    solve(s);
}

static void give_column(const value_fit *f, int64_t kv_head, int64_t d, const least_squares *s) {
    const int64_t first = kv_head * f->group, end = first + f->group;
    for (int64_t row = f->from_row; row < f->end; row++)
        for (int64_t head = first; head < end; head++) {
            double more = 0;
            for (int64_t i = 0; i < s->n; i++) more += (double)weights_of(f, row, head)[i] * s->sums[i];
            float *to = &f->out->rows[(row * f->n_head + head) * f->dim + d];
            *to = (float)((double)*to + more);
        }
}

/* Rows of another sequence, or of a draft, have other values. Those that are nearly what was written were rounded, or a sum was. */
#define LEAST_CHANGE 0.25

static bool are_other_values(const value_fit *f, int64_t kv_head, least_squares *s) {
    double change = 0, written = 0;
    const int64_t width = f->out->n_kv_head * f->dim;
    for (int64_t d = 0; d < f->dim; d++) {
        fit_column(f, kv_head, d, s);
        for (int64_t i = 0; i < s->n; i++) {
            const double v = (double)f->out->values[(f->first + i) * width + kv_head * f->dim + d];
            change += s->sums[i] * s->sums[i];
            written += v * v;
        }
    }
    return change >= LEAST_CHANGE * LEAST_CHANGE * written;
}

static void give_values(const value_fit *f, least_squares *s) {
    for (int64_t kv_head = 0; kv_head < f->out->n_kv_head; kv_head++)
        if (add_up_squares(f, kv_head, s) && are_other_values(f, kv_head, s))
            for (int64_t d = 0; d < f->dim; d++) {
                fit_column(f, kv_head, d, s);
                give_column(f, kv_head, d, s);
            }
}

/* Where each position's own value is fitted, by its own row; else by all that are judged. */
static void fit_values(const fd_hypothesis *h, const fd_node *node, const fd_output_rows *out) {
    const int64_t n_head = node->shape[0], n_kv = out->pos0 + out->n_row, group = n_head / out->n_kv_head;
    const int64_t each = h->which == FD_CACHE_OWN ? 1 : out->n_row - out->n_unjudged;
    for (int64_t row = out->n_unjudged; row + each <= out->n_row && each > 0; row += each) {
        value_fit f = {out, n_head, n_kv, out->width / n_head, group, 0, row, row + each};
        least_squares s = {0};
        int64_t end;
        fd_hypothesis_fitted_rows(h, out->pos0 + row, n_kv, &f.first, &end);
        s.n = end - f.first;
        /* weights that follow from unrecorded keys, which may be the wrong ones, leave room for nearly as many values as they weigh */
        if (s.n <= 0 || each * group <= (out->weights_known ? s.n : 2 * s.n)) return;
        s.squares = malloc(sizeof *s.squares * (size_t)(s.n * s.n));
        s.sums = malloc(sizeof *s.sums * (size_t)s.n);
        if (s.squares && s.sums) give_values(&f, &s);
        free(s.squares);
        free(s.sums);
    }
}

void fd_hypothesis_cache_output(const fd_hypothesis *h, const fd_node *node, const fd_output_rows *out) {
    const bool keys = node->op == FD_OP_ATTN_SCORES, ring = h->which == FD_CACHE_RING;
    const bool values = node->op == FD_OP_ATTN_MIX && out->weights && out->values && out->n_kv_head > 0;
    if (keys && ring) ring_of_keys(h, node, out);
    if (keys && !ring && out->candidate) fit_keys(h, node, out);
    if (values && ring) ring_of_values(h, node, out);
    if (values && !ring && out->candidate && h->node < 0 && !out->weights_known)
        fd_hypothesis_attended(h, node, out);
    else if (values && !ring && out->candidate)
        fit_values(h, node, out);
}
