/* Of copies that differ one is wrong: whose are given. */
#include <math.h>
#include <stdlib.h>

#include "dumpers/import/ranks/internal.h"

static const fd_joined *joined_of(const fd_source *whole, const fd_rank_finding *f) {
    for (size_t i = 0; i < whole->n; i++)
        if (whole->ranks->joined[i].node == f->order && fd_source_at(whole, i)->step == f->step)
            return &whole->ranks->joined[i];
    return NULL;
}

/* ||values - right||²; infinite where a value is none. */
static double distance(const double *values, const float *right, int64_t n) {
    double d2 = 0;
    for (int64_t i = 0; i < n; i++) d2 += (values[i] - (double)right[i]) * (values[i] - (double)right[i]);
    return isnan(d2) ? INFINITY : d2;
}

static fd_code farthest(const struct fd_ranks *ranks, const fd_joined *j, const fd_rank_finding *f, const fd_trace *ref,
                        int32_t *rank, fd_error *err) {
    const int32_t node = fd_trace_find(ref, f->node);
    if (node < 0 || f->position >= fd_trace_n_pos(ref) || !fd_trace_node_at(ref, node)->has_data) return FD_OK;
    const int64_t n_right = fd_trace_elements(fd_trace_node_at(ref, node), f->position);
    float *right = malloc(sizeof *right * (size_t)(n_right + 1));
    double *values = NULL, most = -1;
    int64_t n = 0;
    fd_code code = right ? fd_trace_read(ref, node, f->position, right, NULL, err)
                         : fd_fail(err, FD_ERR_MEMORY, "ranks: out of memory");
    for (int32_t r = 0; code == FD_OK && r < ranks->n_rank; r++) {
        code = fd_joined_row(ranks, j, r, f->position - j->pos0, &values, &n, err);
        const double d = code == FD_OK && n == n_right ? distance(values, right, n) : -1;
        if (d > most) {
            most = d;
            *rank = r;
        }
        free(values);
        values = NULL;
    }
    free(right);
    return code;
}

fd_code fd_ranks_take_odd_copies(fd_source *joined, const fd_trace *ref, int32_t *rank, fd_error *err) {
    struct fd_ranks *ranks = joined->ranks;
    const fd_rank_finding *first = NULL;
    *rank = -1;
    for (size_t i = 0; i < ranks->report.n_finding && !first; i++)
        if (ranks->report.findings[i].copies) first = &ranks->report.findings[i];
    const fd_joined *j = first ? joined_of(joined, first) : NULL;
    if (!j) return FD_OK;
    *rank = first->odd;
    if (ref && first->order >= 0) FD_TRY(farthest(ranks, j, first, ref, rank, err));
    if (*rank >= 0) ranks->copies_of = *rank;
    return FD_OK;
}
