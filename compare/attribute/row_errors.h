/* What each op leaves of its recorded rows, from its own inputs. */
#ifndef FD_COMPARE_ATTRIBUTE_ROW_ERRORS_H
#define FD_COMPARE_ATTRIBUTE_ROW_ERRORS_H

#include "compare/attribute/attribution.h"

typedef struct fd_row_error {
    double error, size; /* Σ of squares: candidate − replayed, replayed; error < 0: not judged */
    double fourth;      /* Σ of fourth powers: replayed. size²/fourth elements of one size would be as much */
} fd_row_error;

typedef struct fd_row_errors {
    int32_t n_pos;
    fd_row_error *row; /* [n_node, n_pos]; owned */
} fd_row_errors;

/* Shows on_row each wanted row beside its replay: values alone, without bounds, and nothing is found. */
fd_code fd_row_errors_show(const fd_attribution_options *options,
                           void (*on_row)(void *user, const fd_attribution_row *row), void *user, fd_error *err);

/* Of the nodes that the options want. Freed with fd_row_errors_free, also after a failure. */
fd_code fd_row_errors_measure(const fd_attribution_options *options, fd_row_errors *out, fd_error *err);
void fd_row_errors_free(fd_row_errors *errors);

static inline fd_row_error *fd_row_errors_of(const fd_row_errors *errors, int32_t node, int32_t pos) {
    return &errors->row[(int64_t)node * errors->n_pos + pos];
}

#endif
