/* The insides of a replay: replay.c goes node by node, run.c runs an op on what its inputs hand it, perturb.c samples
 * what rounding does to tensors that were not recorded. */
#ifndef FD_COMPARE_REPLAY_INTERNAL_H
#define FD_COMPARE_REPLAY_INTERNAL_H

#include "compare/bounds/dot_inputs.h"
#include "compare/replay/replay.h"

enum { FD_REPLAY_SAMPLES = 4 };

/* What a node hands to its readers. KV_WRITE: all positions so far; others: the range's. */
typedef struct fd_node_state {
    double *x, *e; /* e: how far x may be from what the candidate used; owned */
    double *again; /* of scores and weights: how far x may be from what a kernel that keeps its own has; NULL; owned */
    double *samples[FD_REPLAY_SAMPLES]; /* x with perturbations where it was not recorded; NULL: none yet; owned */
    bool *unknown; /* per row: not recorded, and after a choice of experts that may have been another; of a cache: this
                      row or an earlier one, for its readers read those too; owned */
    bool missing;  /* some row was not recorded */
    int32_t span_first;
} fd_node_state;

struct fd_replay {
    fd_replay_options o;
    int32_t *in_trace;       /* [n_node] index in the trace, -1: unknown to it; owned */
    int32_t *last_reader;    /* [n_node]; owned */
    fd_node_state *state;    /* [n_node]; owned */
    uint32_t k_type, v_type; /* FD_Q8_0, Q4_0, …: the trace says that rows of K, of V, are such blocks; else FD_F32 */
    int32_t pos0, n_pos, n_kv;
    fd_weight rounded_weight;              /* the last one that the class rounds; its data is owned */
    fd_numerics_class of_product;          /* factors.h */
    int32_t rounded;                       /* which node's; -1: none */
    fd_dot_type rounded_type;              /* and how */
    bool *recorded;                        /* [n_pos] */
    double *y, *tau, *candidate, *scratch; /* of the current node; owned */
    double *room; /* cuda_kernels.h: what sums of binary16 may be off; laid out as tau; owned */
    double
        *sampled[FD_REPLAY_SAMPLES]; /* laid out as y, one behind the other; NULL: its inputs are as recorded; owned */
};

/* Rows of samples are computed beside those of their positions, which come last or alone. */
static inline bool fd_replay_is_own_row(const fd_replay *replay, const fd_op_args *args, int64_t r) {
    return args->n_pos > replay->n_pos ? r >= args->n_pos - replay->n_pos : args->out == replay->y;
}

static inline bool fd_replay_reads_unrounded(const fd_replay *replay, const fd_node *node) {
    return replay->o.unrounded && replay->o.unrounded[node->id];
}

/* ---- run.c ---- */

/* The blocks that rows of K or V are: of a cache, or of what reads it; FD_F32: none. */
void fd_replay_read_kv_types(fd_replay *replay);
uint32_t fd_replay_kv_type(const fd_replay *replay, const fd_node *node);
/* n_row rows of n elements, rounded to blocks as ggml's reference algorithm does it. */
fd_code fd_replay_quantise_rows(const fd_replay *replay, uint32_t type, double *rows, int64_t n_row, int64_t n,
                                fd_error *err);
/* Elements of the node's rows as its op gives them: a cache's from position 0. */
int64_t fd_replay_rows_given(const fd_replay *replay, const fd_node *node);

/* Tables from position 0, in binary64 or, for the contract, binary32; *table owns both halves. */
fd_code fd_replay_rope_tables(const fd_replay *replay, fd_op_args *args, void **table, fd_error *err);

/* x[0 … n), rounded one by one, into memory of the caller's own. */
fd_code fd_replay_round_copy(fd_dot_type type, const double *x, int64_t n, double **out, fd_error *err);

/* The op in contract order, or in binary64 with its K/V inputs in blocks where the trace says so. */
fd_code fd_replay_run_exact(const fd_replay *replay, fd_op_args args, double *out, fd_error *err);
fd_code fd_replay_run_f64(fd_replay *replay, fd_op_args args, fd_error *err);
/* Flash attention of a class whose sums of V are kept in binary16, key after key, in calls of few rows (flash_sums.c). */
bool fd_replay_is_in_turn(const fd_replay *replay, const fd_node *node);
fd_code fd_replay_run_in_turn(fd_replay *replay, fd_op_args args, fd_error *err);
/* Such a class does not round this row of queries. */
bool fd_replay_keeps_query(const fd_replay *replay, const fd_node *node, int64_t row);
/* The same of a class that rounds its weights (flash_mix.c); and the op on inputs that are as it reads them. */
bool fd_replay_is_flash_mix(const fd_replay *replay, const fd_node *node);
fd_code fd_replay_run_flash_mix(fd_replay *replay, fd_op_args args, fd_error *err);
fd_code fd_replay_run_as_given(fd_replay *replay, fd_op_args args, fd_error *err);
/* The op in binary64 on inputs that are rounded already. */
fd_code fd_replay_run_rounded(fd_replay *replay, fd_op_args args, fd_error *err);

/* ---- recomputed.c ---- */

/* After τ of the node: what a fused kernel's own scores and weights may be off, or τ of ATTN_MIX's rows that follow from such. */
fd_code fd_replay_recompute(fd_replay *replay, const fd_node *node, const fd_bound_args *bound, fd_error *err);

/* ---- perturb.c ---- */

/* Runs the op into args.out and, where an input has samples, for each of them into replay->sampled. */
fd_code fd_replay_run_with_samples(fd_replay *replay, const fd_node *node, fd_op_args args, fd_error *err);

/* How far the logits of a router may be from those that the candidate chose by. *out is owned by the caller. */
fd_code fd_replay_router_error(const fd_replay *replay, const fd_node *node, double **out, fd_error *err);

/* In a class whose roundings of a product's inputs are repeated: what those of an unrecorded input may do beside the
 * samples. A value near the middle between two goes to either, a whole step apart. *out NULL: nothing; else it is owned
 * by the caller, and holds what was recorded of the input, too. */
fd_code fd_replay_flip_error(const fd_replay *replay, const fd_node *node, const fd_weight *weight, double **out,
                             fd_error *err);
/* The same for a row of a cache in binary16, of any unrecorded input. *out NULL: none is rounded. */
fd_code fd_replay_cache_flips(const fd_replay *replay, const fd_node *node, double **out, fd_error *err);

/* A row that was not recorded, for options->draw. */
void fd_replay_move_last_bits(const fd_replay *replay, const fd_node *node, double *row, int32_t pos, int64_t stride);

/* Stores the samples of what a node hands on. */
fd_code fd_replay_store_samples(fd_replay *replay, const fd_node *node, int64_t stride, int64_t before, fd_error *err);

/* Adds to τ how far the samples went. */
fd_code fd_replay_add_spread(fd_replay *replay, const fd_node *node, int64_t stride, fd_error *err);

/* Marks the rows after a choice of experts that was not recorded. `ran`: τ was computed. */
fd_code fd_replay_spread_unknown(fd_replay *replay, const fd_node *node, int64_t stride, bool ran, fd_error *err);

#endif
