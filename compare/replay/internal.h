/* The insides of a replay: replay.c (recorded rows, node by node), replay_run.c (an op on what its inputs hand it),
 * replay_span.c (what rounding does to tensors that were not recorded). */
#ifndef FD_COMPARE_REPLAY_INTERNAL_H
#define FD_COMPARE_REPLAY_INTERNAL_H

#include "compare/replay/replay.h"

/* Roundings drawn through unrecorded ops (replay_span.c). */
enum { FD_REPLAY_DRAWS = 4 };

/* What a node hands to its readers. KV_WRITE: all positions so far; others: the range's. */
typedef struct fd_fed {
    double *x, *e;              /* e: how far x may be from what the candidate used; owned */
    double *p[FD_REPLAY_DRAWS]; /* x with roundings drawn in what was not recorded; NULL: nothing drawn yet; owned */
    bool *unknown; /* per row: not recorded, and behind a choice of experts that may have been another; of a cache: this
                      row or an earlier one, for whoever reads it reads those too; owned */
    bool missing;  /* some row was not recorded */
    int32_t span_first;
} fd_fed;

struct fd_replay {
    fd_replay_options o;
    int32_t *in_trace;    /* [n_node] index in the trace, -1: unknown to it; owned */
    int32_t *last_reader; /* [n_node]; owned */
    fd_fed *fed;          /* [n_node]; owned */
    uint32_t kv_type;     /* FD_Q8_0, FD_Q4_0: the trace says that cache rows are such blocks; else FD_F32 */
    int32_t pos0, n_pos, n_kv;
    bool *recorded;                        /* [n_pos] */
    double *y, *tau, *candidate, *scratch; /* of the node at hand; owned */
    double *drawn[FD_REPLAY_DRAWS];        /* laid out as y; NULL: its inputs are as recorded; owned */
};

/* ---- replay_run.c ---- */

/* Elements of the node's rows as its op gives them: a cache's from position 0. */
int64_t fd_replay_rows_given(const fd_replay *replay, const fd_node *node);

/* The op in binary64, its K/V inputs in blocks where the trace says so. */
fd_code fd_replay_run_f64(const fd_replay *replay, fd_op_args args, fd_error *err);

/* Runs the node into `out` and fills replay->tau and replay->drawn. */
fd_code fd_replay_run(fd_replay *replay, const fd_node *node, double *out, fd_error *err);

/* ---- replay_span.c ---- */

/* The op once more for each draw, where an input has one. */
fd_code fd_replay_run_draws(fd_replay *replay, const fd_node *node, fd_op_args args, fd_error *err);

/* How far the logits of a choice may be from those that the candidate chose by. *out is owned by the caller. */
fd_code fd_replay_choice_error(const fd_replay *replay, const fd_node *node, double **out, fd_error *err);

/* The draws beside what a node hands on. */
fd_code fd_replay_feed_draws(fd_replay *replay, const fd_node *node, int64_t stride, int64_t before, fd_error *err);

/* Adds to τ how far the draws went. */
void fd_replay_add_spread(fd_replay *replay, const fd_node *node, int64_t stride);

/* Marks the rows behind a choice of experts that nobody recorded. `ran`: τ was computed. */
fd_code fd_replay_spread_unknown(fd_replay *replay, const fd_node *node, int64_t stride, bool ran, fd_error *err);

#endif
