/* Decode steps for an observer: the fused step as it always runs, but every tensor keeps memory of its own. Fingerprints,
 * statistics and health are worked out where the tensors lie, on a stream beside the next step; so are copies to the host.
 * Two sets of memory take turns. */
#ifndef FD_ENGINE_KEPT_H
#define FD_ENGINE_KEPT_H

#include "engine/memory.h"
#include "kernels/observe/summary.h"
#include "exec/exec.h"

struct fd_engine;

/* The decode step as a CUDA graph. */
typedef struct fd_step_graph {
    bool warm; /* its kernels have run once, so capturing loads none */
    cudaGraphExec_t exec;
} fd_step_graph;

/* One step. */
typedef struct fd_kept_set {
    fd_block tensors; /* device: what runs along the positions, [n_head, n_ctx] each; the same without gaps; the others */
    float **tensor;   /* owned, [n_node], device; a KV_WRITE's: where its row is copied to */
    fd_block views;   /* device: fd_row_view of every node, then of the attention weights */
    fd_block found, found_host;       /* device and pinned: fd_kept_layout.prints … */
    fd_block tensors_host;            /* pinned: the others, then what runs along the positions, without gaps */
    fd_step_graph graphs[2];          /* of positions from FD_ATTENTION_SHORT_CONTEXT on, and below */
    cudaEvent_t computed, brought;
    unsigned *wants; /* owned, [n_node] fd_want */
    bool pending;    /* the observer has not seen it */
    int32_t step, pos;
    unsigned observer; /* fd_exec.n_observer of the one it is for */
} fd_kept_set;

/* Where things lie in a set: bytes from the start of their block. */
typedef struct fd_kept_layout {
    int32_t n_over, n_weights; /* nodes along the positions, and the attention weights among them */
    int32_t n_head;            /* rows of each */
    int64_t n_block;           /* of FD_SUM_BLOCK elements in all tensors */
    size_t *at;                /* owned, [n_node]: among those along the positions, or among the others */
    int32_t *order;            /* owned, [n_node]: which of the nodes along the positions, of the attention weights: 0, 1 … */
    size_t over_bytes, other_bytes;
    size_t prints, entropy, sink, top, stats, found_bytes;
} fd_kept_layout;

typedef struct fd_kept {
    bool ready, refused; /* set up; cannot be: no memory, or a graph without a fixed number of heads */
    fd_kept_layout layout;
    fd_kept_set sets[2];
    int32_t next;
    cudaStream_t stream;
    fd_block scratch; /* device */
} fd_kept;

/* Device memory that it takes, from the first observed step on; 0 where a step is observed node by node. */
uint64_t fd_kept_bytes(const fd_graph *graph, int32_t n_ctx);
/* Memory for it; *possible false where a step is to be observed node by node. */
fd_code fd_kept_prepare(struct fd_engine *engine, bool *possible, fd_error *err);
void fd_kept_release(struct fd_engine *engine);

/* One observed token; the step before is shown meanwhile. */
fd_code fd_kept_forward(struct fd_engine *engine, const fd_batch *batch, fd_error *err);
/* Shows what has not been shown. */
fd_code fd_kept_flush(struct fd_engine *engine, fd_error *err);
void fd_kept_forget(struct fd_engine *engine);

#endif
