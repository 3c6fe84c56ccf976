#include "compare/attribute/one_value.h"

#include <stdlib.h>

#include "compare/attribute/row_errors.h"
#include "compare/bounds/column.h"

/* Of what is left, squared, so much may lie elsewhere: sums and other roundings of weights leave a hundred thousandth. Of n columns at
 * random the best one has 2 ln(n) / rows of it. */
#define MOST_ELSEWHERE 1e-3

/* Rows that another column than the right one does not go through by chance. */
enum { FEWEST_ROWS = 4 };

typedef struct one_row {
    int32_t pos;
    int64_t n;
    double *left; /* [n] candidate − replayed; owned */
} one_row;

static void take_row(void *user, const fd_attribution_row *row) {
    one_row *to = user;
    if (row->pos != to->pos || to->left) return;
    to->left = malloc(sizeof *to->left * (size_t)row->stride);
    to->n = row->stride;
    for (int64_t i = 0; i < row->stride && to->left; i++) to->left[i] = row->candidate[i] - row->replayed[i];
}

static fd_code left_of(const fd_attribution_options *options, const fd_node_finding *finding, one_row *out,
                       fd_error *err) {
    fd_attribution_options how = *options;
    bool *wanted = calloc((size_t)options->graph->n_node, sizeof *wanted);
    if (!wanted) return fd_fail(err, FD_ERR_MEMORY, "one value: out of memory");
    wanted[finding->node] = true;
    how.wanted = wanted;
    const fd_code code = fd_row_errors_show(&how, take_row, out, err);
    free(wanted);
    return code;
}

fd_code fd_is_one_value(const fd_attribution_options *options, const fd_node_finding *finding, bool *yes,
                        fd_error *err) {
    const fd_node *node = &options->graph->nodes[finding->node];
    const fd_weight *w = node->op == FD_OP_MATMUL ? &options->graph->weights[node->weight[0]] : NULL;
    one_row row = {.pos = finding->pos};
    double share = 0;
    int32_t column;
    *yes = false;
    if (!w) return FD_OK;
    fd_code code = left_of(options, finding, &row, err);
    if (code == FD_OK && row.left && row.n >= FEWEST_ROWS && row.n == w->n_row)
        code = fd_column_along(w, row.left, &column, &share, err);
    free(row.left);
    *yes = share >= 1 - MOST_ELSEWHERE;
    return code;
}
