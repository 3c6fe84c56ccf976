/* The rows of the node asked about, as the candidate has them and as they should be: what guesses read off them. */
#ifndef FD_COMPARE_EXPLAIN_JUDGED_ROWS_H
#define FD_COMPARE_EXPLAIN_JUDGED_ROWS_H

#include "compare/explain/trial.h"

typedef struct fd_judged_rows {
    const fd_explain_request *r;
    const fd_variant *plain;
    const fd_node *node;
    int64_t width;
    int32_t first, n; /* rows [first, n) */
    const float *
        bias; /* [width]: that of a product, which stays where it is while elements move; NULL: none, or not asked about */
} fd_judged_rows;

fd_judged_rows fd_judged_rows_of(const fd_trial *t);
/* From the first row on that departs: a bug of decode alone leaves those before it as they should be. */
fd_judged_rows fd_judged_departing(const fd_trial *t);

/* The bias of the product asked about, to be freed, in *out; NULL: it has none, or one for each expert. FD_ERR_MEMORY. */
fd_code fd_judged_bias(const fd_trial *t, float **out, fd_error *err);

/* Element i of the candidate's rows is x, or what it should be, as far as rounding goes. */
bool fd_judged_is(const fd_judged_rows *j, int64_t i, float x);
bool fd_judged_is_right(const fd_judged_rows *j, int64_t i);
/* What stands at i is what should stand at `right`, within that one's bound. */
bool fd_judged_is_that_of(const fd_judged_rows *j, int64_t i, int64_t right);

/* An FFN's activation of a product, or of two: each of its elements is that of a row of their weights. */
bool fd_activates_products(const fd_graph *graph, const fd_node *node);

/* Columns [*first, *end) that depart in any row; false: none. */
bool fd_judged_columns(const fd_judged_rows *j, int32_t *first, int32_t *end);

#endif
