/* Which rows of a trace an explanation is asked about. */
#ifndef FD_COMPARE_DIAGNOSE_ASKED_ROWS_H
#define FD_COMPARE_DIAGNOSE_ASKED_ROWS_H

#include "compare/diagnose/diagnose.h"

typedef struct fd_asked_rows {
    int32_t pos0, n_pos, n_kv, n_context, n_unjudged, n_earlier, batch_offset, batch_end; /* explain.h */
    bool row_by_row;        /* they are steps of one position */
    bool for_hidden_scores; /* from position 0 on, so that scores that a mask hides can be computed again */
    double products;        /* multiplications a row */
} fd_asked_rows;

/* Was the node recorded, and not set aside? */
bool fd_asked_is_recorded(const fd_diagnose_options *options, const fd_node *node);

/* Rows from the finding's to its step's end: also those that are right, for the keys of the last ones belong to what a mask lets through. */
int32_t fd_rest_of_step(const fd_diagnose_options *options);

/* Positions before the run's first step of one row. */
int32_t fd_prompt_length(const fd_trace *trace);

/* The first row in which what is left, z[n_node][n_pos], is about as large as anywhere; 0: there is no need to look further than the finding's
 * own, or nothing is known (z NULL). Through layers hardly anything of RoPE and attention shows in the first rows, but the roundings of a class
 * that is not known do. */
int32_t fd_shows_at(const float *z, int32_t n_pos, const fd_node_finding *finding);

/* Which of them. */
typedef enum fd_asked_for {
    FD_ASKED_ALL, /* as many as time allows */
    FD_ASKED_FEW, /* the first that show the finding */
    FD_ASKED_EARLY, /* the step's first, where few come so much later that every row before them costs more: n_pos 0: they do not */
    FD_N_ASKED
} fd_asked_for;

/* Of the finding's step, from `node`'s side. `most`: so many from the finding on; 0: no such limit. `hidden_scores`: those of earlier steps,
 * too, if hidden scores need them. */
fd_code fd_choose_rows(const fd_diagnose_options *options, const fd_node *node, fd_asked_for which, int32_t most,
                       bool hidden_scores, fd_asked_rows *out, fd_error *err);

#endif
