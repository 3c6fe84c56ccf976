/* Executors: whoever runs a graph. cli/ makes them; compare/ and dumpers/ only see this header. */
#ifndef FD_EXEC_EXEC_H
#define FD_EXEC_EXEC_H

#include "model/graph.h"
#include "numerics/fingerprint.h"
#include "numerics/summary.h"

typedef enum fd_numerics {
    FD_NUMERICS_EXACT,
    FD_NUMERICS_F64,
    FD_NUMERICS_Q8ACT, /* exact but for products with quantised weights: those of integers (numerics/q8act.h) */
    FD_NUMERICS_FAST,  /* as production engines compute: binary32 tensors, compared with tolerance */
} fd_numerics;
const char *fd_numerics_name(fd_numerics numerics); /* "exact", "f64", "q8act", "fast" */

/* The contract's version where it fixes every bit (exact, q8act), so that two runs are compared by fingerprint;
 * else 0. */
int32_t fd_numerics_contract(fd_numerics numerics);

/* What a node's op reads and writes; real is double for f64, else float (the pointers are void then cast).
 * Rows of a batch are contiguous: row r of in[i] starts at r * fd_node_row_stride(input node, n_kv). */
typedef struct fd_op_args {
    const fd_graph *graph;
    const fd_node *node;
    int32_t pos0;                       /* absolute position of the batch's first row */
    int32_t n_pos;                      /* rows */
    int32_t n_kv;                       /* pos0 + n_pos: positions visible to the last row */
    const int32_t *tokens;              /* [n_pos] (EMBED) */
    const void *in[FD_MAX_INPUTS];      /* rows of the input nodes; for a KV_WRITE input: the cache from position 0,
                                           [n_kv, n_head_kv, head_dim] */
    const fd_weight *weight[FD_MAX_WEIGHTS];
    const void *rope_cos, *rope_sin;    /* ROPE: tables from position 0, [n_ctx, n_rot/2] */
    void *out;                          /* rows; for KV_WRITE: the cache from position 0, [n_ctx, …] */
    int32_t n_ctx;                      /* positions that cache holds; 0: n_kv */
} fd_op_args;

/* Runs one node's op on its arguments. Handed in by cli/ to whoever replays ops without seeing an executor. */
typedef void (*fd_op_fn)(fd_numerics numerics, const fd_op_args *args);

/* A node's tensor, shown to an observer after the node ran and before anything that reads it. */
typedef struct fd_observation {
    const fd_graph *graph;
    const fd_node *node;
    int32_t step;       /* forward call since reset, from 0 */
    int32_t pos0, n_pos;
    int64_t row_stride; /* elements between rows; over_kv rows are padded ([n_head, pos0 + n_pos], scores -inf, weights 0) */
    uint32_t dtype;     /* FD_F32 or FD_F64 */
    const void *data;   /* host memory, [n_pos, row_stride]; valid during the call only, as is all below */
    /* What the executor has worked out where the tensor lies (fd_want), of the rows without padding; NULL: it has not, and
     * data is there. */
    const fd_fingerprint *fingerprints; /* [n_pos] */
    const fd_stats *stats;              /* [n_pos] */
    const float *entropy, *sink;        /* [n_pos, n_head]: of attention weights (dumpers/observe/health.h) */
    const fd_top_logits *top;           /* [n_pos]: of the logits */
} fd_observation;

/* Returns FD_OK, FD_STOP (the run ends with FD_STOP), or a failure that ends the run. */
typedef fd_code (*fd_observe_fn)(void *user, const fd_observation *observation, fd_error *err);

/* What an observer wants of a node's tensor. Where the elements are not wanted, an executor may hand over the rest alone
 * (data NULL); one that does not work it out shows the elements instead. */
typedef enum fd_want {
    FD_WANT_DATA = 1,
    FD_WANT_FINGERPRINT = 2,
    FD_WANT_STATS = 4,
    FD_WANT_HEALTH = 8, /* entropy and sink of attention weights, the best of the logits (the last node); else nothing */
} fd_want;

/* Asked before a node's tensor is brought to the host: a sum of fd_want; 0: it is not shown. NULL means FD_WANT_DATA of
 * all. */
typedef unsigned (*fd_wants_fn)(void *user, const fd_node *node);

/* FD_WANT_FINGERPRINT of all. */
unsigned fd_want_fingerprints(void *user, const fd_node *node);

typedef struct fd_batch fd_batch;
/* Before the first and after the last tensor of a forward call. */
typedef fd_code (*fd_begin_fn)(void *user, const fd_batch *batch, fd_error *err);
typedef fd_code (*fd_end_fn)(void *user, fd_error *err);

typedef struct fd_observer {
    fd_observe_fn observe; /* NULL: nobody watches */
    fd_wants_fn wants;
    void *user;
    /* Both or neither. With them a call's tensors, and its end, may come as late as during the next forward call, before
     * that call's begin: the device then computes while the observer works. A failure to observe ends that next call.
     * fd_exec_settle brings what is late. */
    fd_begin_fn begin;
    fd_end_fn end;
} fd_observer;

struct fd_batch {
    const int32_t *tokens; /* [n_tok], each in [0, n_vocab) */
    int32_t n_tok;         /* ≥ 1 */
    int32_t pos0;          /* must be where the last batch ended (0 after reset) */
    bool all_logits;       /* logits (and output_norm) for every row, not the last alone; observers always get all rows they
                              are shown, and while an observer is set every row is computed */
    float *logits;         /* host, [n_tok or 1, n_vocab]; NULL: not wanted. f64 rounds to f32 here */
};

/* A token, as soon as it is known: in order, in the thread that called fd_exec_generate. FD_OK, FD_STOP (no more are
 * wanted), or a failure that ends the run. */
typedef fd_code (*fd_token_fn)(void *user, int32_t token, fd_error *err);

typedef struct fd_generation {
    int32_t *tokens;            /* [n_token + n_new]: those known, then those generated */
    int32_t n_token;            /* known: the first n_past of them are in the cache, at least one is not */
    int32_t n_new;              /* to generate at most; ≥ 1 */
    struct fd_sampler *sampler; /* goes on as if each token had come from fd_sample */
    fd_token_fn on_token;       /* NULL: nobody waits for them */
    void *user;
} fd_generation;

/* One more token for each of several sequences. */
typedef struct fd_decode {
    int32_t n;                /* ≥ 1 */
    const int32_t *sequences; /* [n], all different */
    const int32_t *tokens;    /* [n], each in [0, n_vocab) */
    float *logits;            /* host, [n, n_vocab]; NULL: not wanted */
} fd_decode;

typedef struct fd_exec fd_exec;
typedef struct fd_exec_class {
    fd_code (*forward)(fd_exec *exec, const fd_batch *batch, fd_error *err);
    void (*reset)(fd_exec *exec);
    void (*destroy)(fd_exec *exec);
    fd_code (*settle)(fd_exec *exec, fd_error *err); /* NULL: nothing is ever late. Else the class calls begin and end */
    /* NULL: fd_exec_generate_on_host does it. */
    fd_code (*generate)(fd_exec *exec, const fd_generation *run, int32_t *n_done, fd_error *err);
    /* NULL: a sequence after the other. fd_exec_decode moves n_past and step on. */
    fd_code (*decode)(fd_exec *exec, const fd_decode *decode, fd_error *err);
    /* NULL: fd_exec_generate_many_on_host does it. */
    fd_code (*generate_many)(fd_exec *exec, const fd_generation *runs, int32_t n_run, int32_t *n_done, fd_error *err);
} fd_exec_class;

struct fd_exec { /* the executor's own struct begins with this */
    const fd_exec_class *class_;
    const fd_graph *graph; /* borrowed: must outlive the executor */
    fd_numerics numerics;
    const char *numerics_name; /* of its own, "emulate-f16"; NULL: that of `numerics` */
    const char *kv_type;       /* of the K/V rows, "f16"; NULL: the executor's real type */
    const char *backend;  /* "cpu", "gpu", "trace" */
    char device[128];     /* "AMD EPYC …", "NVIDIA H200" */
    char driver[64];      /* CUDA driver and runtime; "" on the CPU */
    int32_t n_ctx;        /* positions its K/V cache holds, of each sequence */
    int32_t n_seq;        /* sequences it holds; 0 counts as 1 */
    int32_t sequence;     /* the one that is selected: forward and generate go on with it */
    int32_t n_past;       /* positions of it in the cache */
    int32_t *n_past_of;   /* [n_seq], owned; of those that are not selected. NULL until one is */
    int32_t step;         /* forward calls since reset */
    fd_observer observer;
    unsigned n_observer; /* set so far: what is late for one is not shown to the next */
};

const char *fd_exec_numerics_name(const fd_exec *exec); /* for traces and reports: "exact", "emulate-f16" */
const char *fd_exec_kv_type(const fd_exec *exec);       /* "f32", "f64", "f16", "bf16" */

/* Checks the batch (tokens in range, pos0 == n_past, room in the context), runs it, advances n_past and step. On failure
 * n_past is unchanged and the cache rows past it are undefined. */
fd_code fd_exec_forward(fd_exec *exec, const fd_batch *batch, fd_error *err);
/* Shows the observer what it has not seen yet of the last forward call. */
fd_code fd_exec_settle(fd_exec *exec, fd_error *err);

/* Feeds the known tokens that the cache does not hold, then samples, feeds the sample, and so on: what a loop of
 * fd_exec_forward and fd_sample does, token for token, on whatever backend and with as little waiting as it can do with.
 * *n_done tokens have been generated, on failure too. The last one is not fed: n_past is n_token + *n_done - 1 afterwards.
 * FD_STOP from on_token is no failure: FD_OK. */
fd_code fd_exec_generate(fd_exec *exec, const fd_generation *run, int32_t *n_done, fd_error *err);
/* The same by logits that come to the host. */
fd_code fd_exec_generate_on_host(fd_exec *exec, const fd_generation *run, int32_t *n_done, fd_error *err);

/* ---- several sequences, each with a cache of its own ----
 *
 * What a sequence gets does not depend on the others: its bits are those of running it alone. */

/* Forward and generate go on with `sequence`, where it stood. FD_ERR_INPUT: there is none of that number. */
fd_code fd_exec_select(fd_exec *exec, int32_t sequence, fd_error *err);
int32_t fd_exec_past(const fd_exec *exec, int32_t sequence); /* positions of it in the cache */

/* Checks as fd_exec_forward does, and runs all of them at once where the backend can. The selected sequence stays. With
 * an observer, one after the other. */
fd_code fd_exec_decode(fd_exec *exec, const fd_decode *decode, fd_error *err);

/* Generation number i goes on with sequence i; n_done [n_run] as fd_exec_generate's. A failure of one ends all. */
fd_code fd_exec_generate_many(fd_exec *exec, const fd_generation *runs, int32_t n_run, int32_t *n_done, fd_error *err);
fd_code fd_exec_generate_many_on_host(fd_exec *exec, const fd_generation *runs, int32_t n_run, int32_t *n_done,
                                      fd_error *err);

/* {0} removes it. What is late by then is not shown to anyone; nor after a reset. */
void fd_exec_set_observer(fd_exec *exec, fd_observer observer);
void fd_exec_reset(fd_exec *exec); /* all sequences; selects the first */
void fd_exec_free(fd_exec *exec); /* NULL is fine */

#endif
