#include "compare/attribute/row_errors.h"

#include <math.h>
#include <stdlib.h>

static void add_row(void *user, const fd_attribution_row *row) {
    fd_row_error s = {0};
    for (int64_t i = 0; i < row->stride; i++) {
        const double c = row->candidate[i], y = row->replayed[i];
        if (isinf(c) && isinf(y)) continue; /* masked scores */
        s.error += (c - y) * (c - y);
        s.size += y * y;
        s.fourth += y * y * y * y;
    }
    if (isfinite(s.error) && isfinite(s.size) && s.size > 0 && row->node->op != FD_OP_TOP_K)
        *fd_row_errors_of(user, row->node->id, row->pos) = s;
}

fd_code fd_row_errors_show(const fd_attribution_options *options,
                           void (*on_row)(void *user, const fd_attribution_row *row), void *user, fd_error *err) {
    fd_attribution_options how = *options;
    fd_attribution unused;
    how.on_row = on_row;
    how.user = user;
    how.progress = NULL;
    how.rows_alone = how.values_alone = true;
    const fd_code code = fd_attribute_errors(&how, &unused, err);
    fd_attribution_free(&unused);
    return code;
}

fd_code fd_row_errors_measure(const fd_attribution_options *options, fd_row_errors *out, fd_error *err) {
    const size_t n = (size_t)options->graph->n_node * (size_t)options->n_pos;
    *out = (fd_row_errors){options->n_pos, malloc(sizeof *out->row * n)};
    if (!out->row) return fd_fail(err, FD_ERR_MEMORY, "errors of %d nodes: out of memory", options->graph->n_node);
    for (size_t i = 0; i < n; i++) out->row[i] = (fd_row_error){.error = -1};
    return fd_row_errors_show(options, add_row, out, err);
}

void fd_row_errors_free(fd_row_errors *errors) {
    free(errors->row);
    errors->row = NULL;
}
