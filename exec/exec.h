/* The executor interface: something that runs a graph on tokens. cli/ makes executors; compare/ and dumpers/ see this
 * header alone.
 *
 *     fd_reference_new(graph, &options, &exec, err);       or fd_engine_new, fd_emulate_new
 *     fd_exec_set_observer(exec, observer);                optional: sees every tensor
 *     fd_exec_forward(exec, &batch, err);                  tokens in, logits out; again for the next tokens
 *     fd_exec_flush(exec, err);                            observers with begin and end: shows what is still to come
 *     fd_exec_free(exec);
 *
 * Text generation is in exec/generate.h, sampling in exec/sampler.h. Functions return FD_OK or a failure that `err`
 * describes. One thread at a time uses an executor; several executors live in one process. */
#ifndef FD_EXEC_EXEC_H
#define FD_EXEC_EXEC_H

#include "model/graph.h"
#include "numerics/fingerprint.h"
#include "numerics/summary.h"

typedef enum fd_numerics {
    FD_NUMERICS_EXACT, /* the contract, bit for bit (numerics/contract.h) */
    FD_NUMERICS_F64,   /* the same formulas in binary64 */
    FD_NUMERICS_Q8ACT, /* exact, but products with quantised weights are of integers (numerics/q8act.h) */
    FD_NUMERICS_FAST,  /* as production engines compute: binary32 tensors, compared with a tolerance */
} fd_numerics;
const char *fd_numerics_name(fd_numerics numerics); /* "exact", "f64", "q8act", "fast" */

/* The contract's version where it fixes every bit (exact, q8act), so that two runs are compared by fingerprint; else
 * 0. */
int32_t fd_numerics_contract(fd_numerics numerics);

typedef struct fd_exec fd_exec;

/* ---- running tokens ---- */

typedef struct fd_batch {
    const int32_t *tokens; /* [n_tok], each in [0, n_vocab) */
    int32_t n_tok;         /* ≥ 1 */
    int32_t pos0;          /* where the last batch ended: n_past; 0 after a reset */
    bool all_logits; /* logits (and output_norm) of every row, not of the last alone. While an observer is set every
                              row is computed */
    float *logits;   /* host, [n_tok or 1, n_vocab]; NULL: not wanted. f64 rounds to binary32 here */
} fd_batch;

/* Checks the batch (tokens in range, pos0 == n_past, room in the context), runs it, and advances n_past and step. On
 * failure n_past is unchanged and the cache rows past it are undefined. */
fd_code fd_exec_forward(fd_exec *exec, const fd_batch *batch, fd_error *err);
void fd_exec_reset(fd_exec *exec); /* empties the caches of all sequences and selects the first */
void fd_exec_free(fd_exec *exec);  /* NULL is fine */

const char *fd_exec_numerics_name(const fd_exec *exec); /* for traces and reports: "exact", "emulate-f16" */
const char *fd_exec_kv_type(const fd_exec *exec);       /* "f32", "f64", "f16", "q8_0", "q8_0/q4_0" … */

/* ---- observing: every tensor of every node ---- */

/* A node's tensor. An observer sees it after the node ran and before anything that reads it. */
typedef struct fd_observation {
    const fd_graph *graph;
    const fd_node *node;
    int32_t step;        /* forward call since reset, from 0 */
    int32_t pos0, n_pos; /* the rows: positions [pos0, pos0 + n_pos) */
    int64_t row_stride;  /* elements from row to row. Rows over positions are padded to [n_head, pos0 + n_pos]: scores
                            with -inf, weights with 0 */
    uint32_t dtype;      /* FD_F32 or FD_F64 */
    const void *data;    /* host memory, [n_pos, row_stride]. Valid during the call only, as is all below */
    /* What the executor computed of the rows (without padding) where the tensor lies, as the mask asked; NULL: it did
     * not, and data is there. */
    const fd_fingerprint *fingerprints; /* [n_pos] */
    const fd_stats *stats;              /* [n_pos] */
    const float *entropy, *sink;        /* [n_pos, n_head]: of attention weights (dumpers/observe/health.h) */
    const fd_top_logits *top;           /* [n_pos]: of the logits */
} fd_observation;

/* Returns FD_OK, FD_STOP (the run ends with FD_STOP), or a failure that ends the run. */
typedef fd_code (*fd_observe_fn)(void *user, const fd_observation *observation, fd_error *err);

/* The observation mask: what an observer wants of a node's tensor. Without FD_WANT_DATA an executor may hand over the
 * rest alone (data NULL); one that does not compute it hands over the elements instead. */
typedef enum fd_want {
    FD_WANT_DATA = 1,
    FD_WANT_FINGERPRINT = 2,
    FD_WANT_STATS = 4,
    FD_WANT_HEALTH = 8, /* entropy and sink of attention weights, the best logits (last node); of other nodes nothing */
} fd_want;

/* Asked before a node's tensor is copied to the host: a sum of fd_want; 0: the node is not shown. */
typedef unsigned (*fd_wants_fn)(void *user, const fd_node *node);

/* A mask: FD_WANT_FINGERPRINT of every node. */
unsigned fd_want_fingerprints(void *user, const fd_node *node);

/* Before the first and after the last tensor of a forward call. */
typedef fd_code (*fd_begin_fn)(void *user, const fd_batch *batch, fd_error *err);
typedef fd_code (*fd_end_fn)(void *user, fd_error *err);

typedef struct fd_observer {
    fd_observe_fn observe; /* NULL: there is no observer */
    fd_wants_fn wants;     /* NULL: FD_WANT_DATA of every node */
    void *user;
    /* Both or neither. With them a call's tensors and its end may come as late as during the next forward call, before
     * that call's begin, so that the device computes while the observer works. A failure to observe ends that next
     * call. fd_exec_flush brings what is late. */
    fd_begin_fn begin;
    fd_end_fn end;
} fd_observer;

/* {0} removes the observer. Tensors that are late by then are shown to no observer; nor are they after a reset. */
void fd_exec_set_observer(fd_exec *exec, fd_observer observer);
/* Shows the observer what it has not seen yet of the last forward call. */
fd_code fd_exec_flush(fd_exec *exec, fd_error *err);

/* How much of a long forward call is through: positions of its batch, after each part, where an executor takes it in
 * parts; a generation's prompt is such a call. NULL: no one asks. */
typedef void (*fd_progress_fn)(void *user, int64_t done, int64_t total);
void fd_exec_set_progress(fd_exec *exec, fd_progress_fn progress, void *user);

/* ---- several sequences, each with a cache of its own ----
 *
 * What a sequence gets does not depend on the others: its bits are those of running it alone. */

/* Selects the sequence that forward and generate continue. FD_ERR_INPUT: there is none of that number. */
fd_code fd_exec_select(fd_exec *exec, int32_t sequence, fd_error *err);
int32_t fd_exec_past(const fd_exec *exec, int32_t sequence); /* positions of it in the cache */

/* One more token for each of several sequences. */
typedef struct fd_decode {
    int32_t n;                /* ≥ 1 */
    const int32_t *sequences; /* [n], all different */
    const int32_t *tokens;    /* [n], each in [0, n_vocab) */
    float *logits;            /* host, [n, n_vocab]; NULL: not wanted */
} fd_decode;

/* Checks as fd_exec_forward does and runs all of them at once where the backend can; with an observer, one after the
 * other. The selection does not change. */
fd_code fd_exec_decode(fd_exec *exec, const fd_decode *decode, fd_error *err);

/* ---- replaying one op ---- */

/* What a node's op reads and writes. `real` is double for f64, else float. Rows of a batch are contiguous: row r of
 * in[i] starts at r * fd_node_row_stride(input node, n_kv). */
typedef struct fd_op_args {
    const fd_graph *graph;
    const fd_node *node;
    int32_t pos0;                  /* absolute position of the batch's first row */
    int32_t n_pos;                 /* rows */
    int32_t n_kv;                  /* pos0 + n_pos: positions visible to the last row */
    const int32_t *tokens;         /* [n_pos] (EMBED) */
    const void *in[FD_MAX_INPUTS]; /* real, the input nodes' rows; of a KV_WRITE the cache from position 0,
                                      [n_kv, n_head_kv, head_dim] */
    const fd_weight *weight[FD_MAX_WEIGHTS];
    const void *rope_cos, *rope_sin; /* ROPE: real [n_ctx, n_rot/2], from position 0 */
    void *out;                       /* real, the rows; for KV_WRITE the cache from position 0, [n_ctx, …] */
    int32_t n_ctx;                   /* positions that the cache holds; 0: n_kv */
    /* For faults alone: every row was a batch of its own, run after the rows before it; or else, so many rows of the same
     * batch came before the first one, negative: so many of these rows are of earlier batches. */
    bool row_by_row;
    int32_t batch_offset;
    int32_t first_batch; /* rows of the run's first batch; 0: this is it, or it is not known */
    int32_t batch_end;   /* the position after the batch's last row, where that is not here; 0: n_kv */
} fd_op_args;

/* Runs one node's op on its arguments. cli/ hands it to the parts that replay ops without seeing an executor. */
typedef void (*fd_op_fn)(fd_numerics numerics, const fd_op_args *args);

/* ---- for executors: what an implementation provides and shares ---- */

struct fd_generation; /* exec/generate.h */

typedef struct fd_exec_class {
    fd_code (*forward)(fd_exec *exec, const fd_batch *batch, fd_error *err);
    void (*reset)(fd_exec *exec);
    void (*destroy)(fd_exec *exec);
    /* NULL: tensors are never late. With it the class itself calls begin and end. */
    fd_code (*flush)(fd_exec *exec, fd_error *err);
    /* NULL: fd_exec_generate_on_host. */
    fd_code (*generate)(fd_exec *exec, const struct fd_generation *run, int32_t *n_done, fd_error *err);
    /* NULL: one sequence after the other. fd_exec_decode advances n_past and step. */
    fd_code (*decode)(fd_exec *exec, const fd_decode *decode, fd_error *err);
    /* NULL: fd_exec_generate_many_on_host. */
    fd_code (*generate_many)(fd_exec *exec, const struct fd_generation *runs, int32_t n_run, int32_t *n_done,
                             fd_error *err);
} fd_exec_class;

struct fd_exec { /* the first member of an executor's own struct; callers read it */
    const fd_exec_class *class_;
    const fd_graph *graph; /* borrowed: must outlive the executor */
    fd_numerics numerics;
    const char *numerics_name; /* "emulate-f16"; NULL: fd_numerics_name(numerics) */
    const char *kv_type;       /* of the K/V rows, "f16"; NULL: the executor's real type */
    const char *backend;       /* "cpu", "gpu", "trace" */
    char device[128];          /* "AMD EPYC …", "NVIDIA H200" */
    char driver[64];           /* CUDA driver and runtime; "" on the CPU */
    int32_t n_ctx;             /* positions that the K/V cache of each sequence holds */
    int32_t n_seq;             /* sequences; 0 counts as 1 */
    int32_t sequence;          /* the selected one */
    int32_t n_past;            /* its positions in the cache */
    int32_t *n_past_of;        /* [n_seq], owned: of the others. NULL until a second one is selected */
    int32_t step;              /* forward calls since reset */
    fd_observer observer;
    unsigned n_observer; /* observers set so far: what is late for one is not shown to the next */
    fd_progress_fn progress;
    void *progress_user;
};

/* fd_graph_validate, and the last node is a row of n_vocab logits. */
fd_code fd_exec_check_graph(const fd_graph *graph, fd_error *err);
/* Every weight has a type that fd_dequantize_row knows: FD_ERR_UNSUPPORTED names one that has not. */
fd_code fd_exec_check_weights(const fd_graph *graph, fd_error *err);

/* Shows the observer, if one is set and its mask asks for the node, what an op left in args->out (host memory). */
fd_code fd_exec_show(const fd_exec *exec, const fd_op_args *args, fd_error *err);

#endif
