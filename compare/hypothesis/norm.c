/* RMSNorm by another statistic of its row. */
#include <math.h>

#include "compare/hypothesis/hypothesis.h"

/* 1 / what a row of n elements is divided by. */
static double by(const fd_hypothesis *h, const fd_node *node, const float *x, int64_t n) {
    const bool first = h->which == FD_STATISTIC_FIRST || h->which == FD_STATISTIC_FIRST_OF_ALL;
    const int64_t summed = first && h->n < n ? h->n : n;
    double sum = 0, squares = 0, sizes = 0, largest = 0;
    for (int64_t i = 0; i < summed; i++) {
        squares += (double)x[i] * (double)x[i];
        sum += (double)x[i];
        sizes += fabs((double)x[i]);
        largest = fmax(largest, fabs((double)x[i]));
    }
    if (h->which == FD_STATISTIC_LARGEST) return 1 / (largest + (double)node->eps);
    if (h->which == FD_STATISTIC_ABSOLUTE) return 1 / (sizes / (double)n + (double)node->eps);
    if (h->which == FD_STATISTIC_VARIANCE) squares -= sum * sum / (double)n;
    return 1 / sqrt(squares / (double)(h->which == FD_STATISTIC_FIRST ? summed : n) + (double)node->eps);
}

/* How many elements are divided by one number, where `right` of them should be. */
static int64_t part_of(const fd_hypothesis *h, int64_t right, int64_t width) {
    if (h->which == FD_STATISTIC_WHOLE_ROW) return width;
    return h->which == FD_STATISTIC_PARTS && right % h->n == 0 ? right / h->n : right;
}

void fd_hypothesis_statistic(const fd_hypothesis *h, const fd_node *node, const float *x, const int32_t *first,
                             float *rows, int64_t n_row, int64_t width) {
    static const fd_hypothesis right = {.guess = FD_GUESS_NONE, .which = -1};
    const int64_t own_part = node->n_dim == 2 ? node->shape[1] : width, part = part_of(h, own_part, width);
    const int64_t least = part < own_part ? part : own_part; /* one of them divides the other */
    for (int64_t r = 0; r < n_row; r++)
        for (int64_t at = 0; at < width; at += least) {
            const int64_t from = h->which == FD_STATISTIC_FIRST_ROW ? first[r] : r;
            const double other = by(h, node, x + from * width + at / part * part, part),
                         own = by(&right, node, x + r * width + at / own_part * own_part, own_part);
            for (int64_t i = at; i < at + least; i++)
                rows[r * width + i] = (float)((double)rows[r * width + i] * (other / own));
        }
}
