/* A product as it was before its bias was added, beside one behind it: its values are near to the node's, and what they lack is the same
 * in every row. It is no node, and no copy such as a cache is. */
#include <math.h>
#include <stdlib.h>

#include "dumpers/import/propose/internal.h"

/* Of what is lacking, in squares: all of it is one vector. Of the values: a bias is larger than a rounding of 16 bits. */
#define ALL_OF_IT 0.999
#define LEAST     1e-3
enum { FEWEST_ROWS = 3 };

typedef struct lacking {
    double *sum; /* [n] over rows */
    int64_t n;
    double squares, values;
    int32_t n_row;
    bool failed;
} lacking;

/* fd_propose_row_fn */
static void add_row(void *user, const double *x, const float *ref, int64_t n) {
    lacking *to = user;
    if (!to->sum) to->sum = calloc((size_t)n, sizeof *to->sum), to->n = n;
    to->failed |= !to->sum || to->n != n;
    for (int64_t i = 0; i < n && !to->failed; i++) {
        const double d = (double)ref[i] - x[i];
        to->sum[i] += d;
        to->squares += d * d;
        to->values += (double)ref[i] * (double)ref[i];
    }
    to->n_row++;
}

static bool lacks_a_bias(const fd_proposer *p, const fd_proposed *item) {
    lacking all = {0};
    const fd_code code = fd_propose_visit_rows(p, item, add_row, &all);
    double common = 0;
    for (int64_t i = 0; i < all.n && !all.failed; i++) common += all.sum[i] * all.sum[i];
    const bool known = code == FD_OK && !all.failed && all.n_row >= FEWEST_ROWS;
    free(all.sum);
    return known && all.squares > LEAST * LEAST * all.values && common >= ALL_OF_IT * all.squares * all.n_row;
}

/* Another name that has the values of the same node, nearer. */
static bool has_nearer(const fd_proposer *p, const fd_proposed *item) {
    for (size_t i = 0; i < p->n; i++) {
        const fd_proposed *other = &p->items[i];
        const bool same =
            other != item && other->clear && !other->slice[0] && other->best[0].node == item->best[0].node;
        if (same && other->best[0].away < item->best[0].away) return true;
    }
    return false;
}

void fd_propose_drop_before_bias(fd_proposer *p) {
    for (size_t i = 0; i < p->n; i++) {
        fd_proposed *item = &p->items[i];
        const bool asked = item->clear && !item->slice[0] && item->best[0].node >= 0 && has_nearer(p, item);
        if (asked && lacks_a_bias(p, item)) item->clear = item->matched = false;
    }
}
