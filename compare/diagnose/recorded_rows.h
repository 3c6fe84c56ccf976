/* What the candidate recorded of a finding's node, and of what that reads, in the rows that are asked about: the question that is explained. */
#ifndef FD_COMPARE_DIAGNOSE_RECORDED_ROWS_H
#define FD_COMPARE_DIAGNOSE_RECORDED_ROWS_H

#include "compare/diagnose/asked_rows.h"

typedef struct fd_recorded_rows {
    const fd_diagnose_options *o;
    fd_asked_rows at;
    float **rows;  /* [n_node] owned; NULL: not asked for yet, or not recorded */
    float *before; /* the finding's node at positions before these; owned */
    fd_error err;  /* the first failure while a tensor was read */
    fd_code code;
} fd_recorded_rows;

/* Of the rows that fd_choose_rows takes; close it, also after a failure. */
fd_code fd_recorded_rows_open(const fd_diagnose_options *options, const fd_node *node, fd_asked_for which, int32_t most,
                              fd_recorded_rows *out, fd_error *err);
void fd_recorded_rows_close(fd_recorded_rows *rows);

/* What is asked about `node` there. Reads tensors from `rows`, which live as long; output NULL: it was not recorded, or rows->code says why
 * it could not be read. */
fd_explain_request fd_recorded_question(fd_recorded_rows *rows, const fd_node *node);

#endif
