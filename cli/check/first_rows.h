/* The first rows that a match has, beside those of a reference's node: what cosines and distances are made of. */
#ifndef FD_CLI_CHECK_FIRST_ROWS_H
#define FD_CLI_CHECK_FIRST_ROWS_H

#include "dumpers/import/import.h"

/* Sums over all elements of the rows: x the match's, y the node's. All 0: the match has no such rows, or rows of another width. */
typedef struct fd_cli_row_sums {
    double xy, xx, yy;
} fd_cli_row_sums;

/* Of a few rows. The node is one of `ref`. Errors are those of reading, and FD_ERR_MEMORY. */
fd_code fd_cli_sum_first_rows(const fd_import_plan *plan, const fd_import_match *match, const fd_trace *ref,
                              int32_t node, fd_cli_row_sums *out, fd_error *err);

#endif
