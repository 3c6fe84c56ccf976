/* One set of rows that explanations are set against, and what an explanation leaves of them: residuals, in bounds of the op as it
 * should be. Of an exact candidate, which has no bounds, in roundings of the largest values. */
#ifndef FD_COMPARE_EXPLAIN_TRIAL_ROWS_H
#define FD_COMPARE_EXPLAIN_TRIAL_ROWS_H

#include "compare/evaluate/evaluate.h"

typedef struct fd_trial_rows {
    const fd_explain_request *request; /* borrowed */
    fd_workbench *bench;
    fd_variant plain; /* the op as it should be */
} fd_trial_rows;

fd_code fd_trial_rows_open(const fd_explain_request *request, fd_trial_rows *rows, fd_error *err);
void fd_trial_rows_close(fd_trial_rows *rows); /* {0} is fine */

/* Largest and root mean square of what `v` leaves; and the latter alone, of all rows or of one. */
void fd_trial_residuals(const fd_trial_rows *rows, const fd_variant *v, double *largest, double *mean);
double fd_trial_left(const fd_trial_rows *rows, const fd_variant *v);
double fd_trial_left_of_row(const fd_trial_rows *rows, const fd_variant *v, int32_t row);

/* √Σ(x − plain)² of a row of `of`, laid out as the node's rows. */
double fd_trial_change_of_row(const fd_trial_rows *rows, const float *of, int32_t row);

/* Rows that `v` gives to their last bits, of those of which the op as it should be leaves far more. */
int32_t fd_trial_repeated_rows(const fd_trial_rows *rows, const fd_variant *v);

/* Rows from the first that departs on, one after another, that are not the op's as it should be; and the heads in which the node
 * departs, where these are some of them, else 0. */
int32_t fd_trial_departing_rows(const fd_trial_rows *rows);
uint64_t fd_trial_departing_heads(const fd_trial_rows *rows);

/* Binary32 everywhere. Coarser roundings hide which of two numbers it is: 26 of 32 dimensions turn nearly as with a base of 83000. */
bool fd_trial_rounds_little(const fd_trial_rows *rows);

/* Of the finite elements. */
double fd_root_mean_square(const float *x, int64_t n);

#endif
