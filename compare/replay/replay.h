/* Replay: re-executing a model's ops on what a trace recorded. Every node gets the candidate's own inputs, so what
 * comes out differs from the candidate's output by that one op alone.
 *
 * Inputs that were not recorded are replayed from the nearest recorded ones before them. Perturbations drawn at
 * random within the bounds of their rounding travel along, and how far these spread is added to τ at the next
 * recorded tensor. Cache rows come from the trace's cache tensors where it has them, else from the rows written to
 * them.
 *
 * Use: open; for each range of positions, in order and without a gap: fd_replay_range, then fd_replay_node for every
 * node of the graph in order. Holds the tensors of one range until their last reader, and the caches of all
 * positions. */
#ifndef FD_COMPARE_REPLAY_REPLAY_H
#define FD_COMPARE_REPLAY_REPLAY_H

#include "compare/bounds/bounds.h"
#include "dumpers/store/trace.h"

typedef struct fd_replay fd_replay;

typedef struct fd_replay_options {
    const fd_graph *graph; /* of the model that ran, without faults */
    const fd_trace *trace;
    const int32_t *tokens; /* [n_pos]: those that were fed */
    fd_op_fn op;
    const fd_products *device; /* takes large products, and their bounds, from the CPU; NULL: none does */
    fd_product_memo *memo;     /* of products that the CPU computed for other replays; NULL: none */
    const fd_numerics_class *numerics;
    double n_output;     /* as in fd_bound_args */
    const bool *ignored; /* [n_node] taken for not recorded; NULL: none */
    const bool
        *unrounded; /* [n_node] handed to readers as replayed, whatever was recorded: of values alone; NULL: none */
    bool records_rounded; /* what was recorded was rounded to the class's 16 bits after its readers had it */
    const char *kv_type;  /* of the cache, as fd_kv_types_parse reads it; NULL: what the trace says */
    bool values_alone;    /* bounds are not asked for: tau is 0 throughout */
    int32_t
        draw; /* values alone, of another engine of the class: last bits of what was not recorded are moved, this tells the engines apart;
                     0: none are */
} fd_replay_options;

/* Everything in the options is borrowed. FD_ERR_INPUT when a recorded tensor does not have the graph's shape
 * (named). */
fd_code fd_replay_open(const fd_replay_options *options, fd_replay **out, fd_error *err);
void fd_replay_close(fd_replay *replay); /* NULL is fine */

fd_code fd_replay_range(fd_replay *replay, int32_t pos0, int32_t n_pos, fd_error *err);

/* Rows of one node: stride as fd_node_row_stride (over_kv rows padded). Borrowed, valid until the next call. */
typedef struct fd_replayed {
    int64_t stride;
    const bool *recorded;    /* [n_pos]: the trace holds this row */
    const double *candidate; /* as recorded; the replayed row where it is not */
    const double *y;         /* replayed; NULL: neither asked for nor needed */
    const double *tau;       /* likewise */
    int32_t span_first;      /* the first unrecorded node that y was computed through; the node itself: none */
} fd_replayed;

/* The next node. `wanted`: y and tau are needed also where the whole node is recorded. */
fd_code fd_replay_node(fd_replay *replay, int32_t node, bool wanted, fd_replayed *out, fd_error *err);

/* One recorded row, widened and padded to `stride` as executors lay it out for a batch that ends at n_kv. Scores that a window hides by
 * another number than -Inf (-1e30, a type's lowest) are -Inf, as an executor has them. *present is false when the trace does not hold it. `scratch` holds fd_node_elements(node, pos + 1). */
fd_code fd_replay_read_row(const fd_trace *trace, int32_t in_trace, const fd_node *node, int32_t pos, int32_t n_kv,
                           double *scratch, double *row, bool *present, fd_error *err);

#endif
