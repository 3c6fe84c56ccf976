/* Between the files of engine/: the executor's struct and its parts. */
#ifndef FD_ENGINE_INTERNAL_H
#define FD_ENGINE_INTERNAL_H

#include "engine/budget.h"
#include "engine/engine.h"
#include "engine/memory.h"
#include "engine/plan.h"
#include "engine/weights.h"
#include "kernels/attention.h"
#include "kernels/matmul.h"
#include "kernels/step.h"

/* Rows of a batch that a node computes. Nodes that feed no cache need not compute all. */
typedef enum fd_rows { FD_ROWS_ALL, FD_ROWS_LAST, FD_ROWS_NONE } fd_rows;

/* cos and sin of one kind of RoPE: [n_ctx, n_rot/2] from position 0. */
typedef struct fd_rope_tables {
    fd_rope rope;
    int32_t factors;                /* weight index, -1 none */
    const float *cosine, *sine;     /* device, inside fd_engine.fixed */
    float *host_cosine, *host_sine; /* owned; kept for overrides */
} fd_rope_tables;

/* The device's copy of what changes from call to call. */
enum {
    FD_INPUT_FIRST,
    FD_INPUT_LAST,
    FD_INPUT_TOKENS
}; /* position of the first and of the last row, then the tokens */

/* One pass over a plan. */
typedef struct fd_run {
    const fd_plan *plan;
    const fd_block *slots; /* [plan->n_slot] */
    const fd_queue *queue;
    const int32_t *tokens; /* host, [n_tok]; for overrides */
    int32_t pos0, n_tok;   /* for overrides and observers; kernels read positions from inputs */
    int32_t n_kv;          /* room of over_kv rows: pos0 + n_tok; n_ctx in the decode step, whatever the position */
    const int32_t *inputs; /* device */
    fd_rows tail;
    bool near; /* every position of the pass is below FD_ATTENTION_NEAR */
} fd_run;

/* Tensors on their way to the observer: copied in stream order, shown when the copies are through. */
typedef struct fd_pending {
    int32_t node, pos0, n_pos;
    int64_t row_stride;
    size_t offset;
} fd_pending;

typedef struct fd_watch {
    fd_block pinned;
    size_t used;
    fd_pending *pending; /* owned, [n_node] */
    int32_t n_pending;
} fd_watch;

/* The decode step as a CUDA graph. */
typedef struct fd_step_graph {
    bool warm; /* its kernels have run once, so capturing loads none */
    cudaGraphExec_t exec;
} fd_step_graph;

typedef struct fd_engine {
    fd_exec exec; /* first: fd_exec * is fd_engine * */
    fd_queue queue;
    int32_t device;
    fd_device_weights weights;
    fd_block fixed;     /* caches, rope tables, inputs, attention scratch */
    float **cache;      /* [n_node] device, inside fixed; KV_WRITE nodes */
    size_t cache_bytes; /* they lie together at the start of fixed */
    int32_t *rope_of;   /* [n_node] index of ropes; -1 */
    fd_rope_tables *ropes;
    int32_t n_rope;
    int32_t *inputs; /* device, [FD_INPUT_TOKENS + n_ctx] */
    float *attention_scratch;
    bool *feeds_cache; /* [n_node] */
    bool has_override, may_split;

    fd_plan nodes;        /* a node each */
    fd_block *node_slots; /* grown to the largest batch so far */
    fd_plan step;         /* of one token */
    fd_block *step_slots; /* fixed size: the CUDA graph holds their addresses */
    bool overlap;         /* of the decode step's kernels; node by node each waits for the one before */
    bool no_graph;
    fd_step_graph graphs[2]; /* of positions from FD_ATTENTION_NEAR on, and below */
    fd_step *persistent;     /* the step as one kernel; NULL where it cannot be */
    int32_t persistent_from; /* position; -1: it is not wanted */

    fd_block inputs_host; /* pinned, as inputs */
    fd_block logits_host; /* pinned */
    fd_watch watch;
} fd_engine;

/* ---- setup.c ---- */
/* `persistent`: the decode step as one kernel, if it can be. */
fd_code fd_engine_setup(fd_engine *engine, bool fuse, bool persistent, fd_error *err);
void fd_engine_release(fd_engine *engine);

/* ---- run.c ---- */
fd_rows fd_run_rows(const fd_engine *engine, const fd_run *run, int32_t node);
int64_t fd_run_row_bytes(const fd_run *run, const fd_node *node);
/* Bytes a slot needs for this pass. */
size_t fd_run_slot_bytes(const fd_engine *engine, const fd_run *run, int32_t slot);
/* Where the node's rows are; a KV_WRITE's cache from position 0. */
float *fd_run_tensor(const fd_engine *engine, const fd_run *run, int32_t node);
/* Where reader `node` finds row 0 of input `input`, when it computes the last row alone too. */
const float *fd_run_input(const fd_engine *engine, const fd_run *run, int32_t node, int32_t input);
/* All items in order; shows nodes to the observer when `watch` is not NULL. */
fd_code fd_run_plan(fd_engine *engine, const fd_run *run, fd_watch *watch, fd_error *err);

/* ---- launch.c ---- */
fd_code fd_launch_node(const fd_engine *engine, const fd_run *run, int32_t node, fd_error *err);
fd_code fd_launch_item(const fd_engine *engine, const fd_run *run, const fd_item *item, fd_error *err);
fd_code fd_add_item(const fd_engine *engine, const fd_run *run, const fd_item *item, fd_step *step, fd_error *err);

/* ---- override.c: a node computed on the host ---- */
fd_code fd_run_override(const fd_engine *engine, const fd_run *run, int32_t node, fd_error *err);

/* ---- watch.c ---- */
fd_code fd_watch_node(fd_engine *engine, const fd_run *run, int32_t node, fd_watch *watch, fd_error *err);
fd_code fd_watch_flush(fd_engine *engine, fd_watch *watch, fd_error *err);

/* ---- step.c: one token without an observer ---- */
/* Leaves engine->persistent NULL when an item of the step has no place in it. */
fd_code fd_engine_make_persistent(fd_engine *engine, fd_error *err);
fd_code fd_engine_step(fd_engine *engine, int32_t token, int32_t pos, fd_error *err);

#endif
